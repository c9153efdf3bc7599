/* A position that was read from a tensor. One that lies outside of its axis is an error, and 0 stands for it. */
static inline int64_t mithril_index(int64_t at, int64_t size, int *error) {
    if (at < 0 || at >= size) {
        *error = MITHRIL_ERROR_INDEX;
        return 0;
    }
    return at;
}

/* As mithril_index; a negative position counts from the end. */
static inline int64_t mithril_wrapped_index(int64_t at, int64_t size, int *error) {
    return mithril_index(at < 0 ? at + size : at, size, error);
}

/* The floor of a / b for a positive b. */
static inline int64_t mithril_floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* The remainder of a / b for a positive b, never negative. */
static inline int64_t mithril_modulo(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }

/* Where the part of a thread starts; it ends where that of the next thread starts. */
static inline int64_t mithril_part(int64_t count, int64_t thread, int64_t threads) {
    return count * thread / threads;
}

/* How many of the lines from this one on, up to last, lie side by side: [outer, inner] lines are counted row by row. */
static inline int64_t mithril_beside(int64_t line, int64_t last, int64_t inner) {
    int64_t count = inner - line % inner;
    return count < last - line ? count : last - line;
}
