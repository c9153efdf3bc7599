/* b[@k@, @n@]@batched@ into panels of @vectors@ vectors of columns, [panel][k][column]; the last panel is
   padded with zeros. The threads divide the panels. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @stored@ *restrict b, @factor@ *restrict panels) {
    enum { N = @n@, K = @steps@,@of_pairs@@filled@ LANES = @lanes@, WIDTH = @vectors@ * LANES, PANELS = (N + WIDTH - 1) / WIDTH };
    const long units = (long)@batches@ * PANELS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long batch = unit / PANELS, first = unit % PANELS * WIDTH;
        const long columns = N - first < WIDTH ? N - first : WIDTH;
        const @stored@ *restrict from = b + @b_batch@ + first * @b_column@;
        @factor@ *restrict to = panels + unit * @panel_steps@ * WIDTH;
        @zeros@@fill@
        (void)batch;
    }
}
