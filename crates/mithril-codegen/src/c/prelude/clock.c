/* Measuring the steps of a program. */
#include <time.h>
static inline int64_t mithril_clock(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Adds the seconds since the last time. */
static inline void mithril_mark(double *seconds, int64_t *last) {
    int64_t now = mithril_clock();
    *seconds += 1e-9 * (double)(now - *last);
    *last = now;
}
