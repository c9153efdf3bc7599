/* weights[@filters@, @group_channels@, @kh@, @kw@] of groups of @group_filters@ filters as [filters / LANES][blocks of channels that they
   read][ky][kx][LANES channels][LANES filters], with zeros where channel and filter are of two groups@of_pairs@. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict weights, @packed@ *restrict packed) {
    enum { LANES = @lanes@, CHANNELS = @group_channels@, FILTERS = @group_filters@, PLACES = @kh@ * @kw@, SPAN = @span@ };
    for (long panel = @filters@L / LANES * thread / threads; panel < @filters@L / LANES * (thread + 1) / threads; panel++)
        for (long i = 0; i < SPAN * LANES; i++)
            for (long place = 0; place < PLACES; place++)
                for (long lane = 0; lane < LANES; lane++) {
                    const long filter = panel * LANES + lane, channel = @first_block@ * LANES + i - filter / FILTERS * CHANNELS;
                    const @type@ weight = channel >= 0 && channel < CHANNELS ? weights[(filter * CHANNELS + channel) * PLACES + place] : 0;
                    packed[@place@] = @weight@;
                }
}
