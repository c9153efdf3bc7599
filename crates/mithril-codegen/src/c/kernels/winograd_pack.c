/* Transformed weights[@filters@, @channels@, 3, 3] in panels: [point][filters / WIDTH][channel][WIDTH]; in double, for what
   is rounded here is rounded for every pixel. */
static MITHRIL_ONCE void @name@(long thread, long threads, const float *restrict weights, float *restrict packed)
{
    enum { CHANNELS = @channels@, FILTERS = @filters@, WIDTH = 2 * @lanes@, PANELS = (FILTERS + WIDTH - 1) / WIDTH, TILE = @tile@ };
    static const double factor[TILE][3] = {@factors@};
    const long units = (long)PANELS * CHANNELS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long panel = unit / CHANNELS, channel = unit % CHANNELS;
        double kernel[9][WIDTH], half[TILE][3][WIDTH];
        for (long place = 0; place < 9; place++)
            for (long column = 0; column < WIDTH; column++) {
                const long filter = panel * WIDTH + column;
                kernel[place][column] = filter < FILTERS ? weights[(filter * CHANNELS + channel) * 9 + place] : 0;
            }
        for (long y = 0; y < TILE; y++)
            for (long x = 0; x < 3; x++)
                for (long column = 0; column < WIDTH; column++)
                    half[y][x][column] = factor[y][0] * kernel[x][column] + factor[y][1] * kernel[3 + x][column] +
                                         factor[y][2] * kernel[6 + x][column];
        for (long y = 0; y < TILE; y++)
            for (long x = 0; x < TILE; x++) {
                float *restrict to = packed + (((y * TILE + x) * PANELS + panel) * CHANNELS + channel) * WIDTH;
                for (long column = 0; column < WIDTH; column++)
                    to[column] = (float)(half[y][0][column] * factor[x][0] + half[y][1][column] * factor[x][1] +
                                         half[y][2][column] * factor[x][2]);
            }
    }
}
