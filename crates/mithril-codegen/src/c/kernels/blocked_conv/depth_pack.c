/* weights[@filters@, 1, @kh@, @kw@] in blocks of channels: [filters / LANES][ky][kx][LANES]. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict weights, @type@ *restrict packed) {
    enum { LANES = @lanes@, PLACES = @kd@ * @kh@ * @kw@ };
    for (long filter = @filters@L * thread / threads; filter < @filters@L * (thread + 1) / threads; filter++)
        for (long place = 0; place < PLACES; place++)
            packed[(filter / LANES * PLACES + place) * LANES + filter % LANES] = weights[filter * PLACES + place];
}
