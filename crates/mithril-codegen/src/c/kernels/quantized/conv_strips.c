@given@
const float *const filter_scales = (const float *)packed + (long)PANELS * K * WIDTH;
const long units = (long)SECTIONS * PANELS, end = units * (thread + 1) / threads;@setup@
float scale = 0;
for (long unit = units * thread / threads, known = -1; unit < end; unit++) {
    const long section = unit / PANELS, panel = unit % PANELS;
    const long first = STRIPS * section / SECTIONS, last = STRIPS * (section + 1) / SECTIONS;
    const uint32_t *const right = (const uint32_t *)packed + panel * K * WIDTH;
    const char *next = (const char *)((const uint32_t *)packed + (panel + 1) % PANELS * K * WIDTH);
    const long stride = WIDTH * (long)sizeof(uint32_t) / ((last - first) * GROUPS);
    for (long strip = first; strip < last; strip++) {
        const long batch = strip / STRIPS_OF, y = strip % STRIPS_OF * DOWN;
        const uint32_t *const line = (const uint32_t *)image + batch * @image_batch@ + y * @image_line@@group_words@;
        if (batch != known) {
            @scale@
            known = batch;
        }@ahead@@none@
        @pixels@@note@
    }
}
