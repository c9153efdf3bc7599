/* Transformed weights[@filters@, @channels@, 3, 3] in panels: [point][filters / WIDTH][channel][WIDTH]; in double, for what
   is rounded here is rounded for every pixel. */
static MITHRIL_ONCE void @name@(long thread, long threads, const float *restrict weights, float *restrict packed)
{
    enum { CHANNELS = @channels@, FILTERS = @filters@, WIDTH = 2 * @lanes@, PANELS = (FILTERS + WIDTH - 1) / WIDTH, TILE_HIGH = @tile_high@, TILE_WIDE = @tile_wide@ };
    static const double down[TILE_HIGH][3] = {@factors_down@};
    static const double across[TILE_WIDE][3] = {@factors_across@};
    const long units = (long)PANELS * CHANNELS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long panel = unit / CHANNELS, channel = unit % CHANNELS;
        double kernel[9][WIDTH], half[TILE_HIGH][3][WIDTH];
        for (long place = 0; place < 9; place++)
            for (long column = 0; column < WIDTH; column++) {
                const long filter = panel * WIDTH + column;
                kernel[place][column] = filter < FILTERS ? weights[(filter * CHANNELS + channel) * 9 + place] : 0;
            }
        for (long y = 0; y < TILE_HIGH; y++)
            for (long x = 0; x < 3; x++)
                for (long column = 0; column < WIDTH; column++)
                    half[y][x][column] = down[y][0] * kernel[x][column] + down[y][1] * kernel[3 + x][column] +
                                         down[y][2] * kernel[6 + x][column];
        for (long y = 0; y < TILE_HIGH; y++)
            for (long x = 0; x < TILE_WIDE; x++) {
                float *restrict to = packed + (((y * TILE_WIDE + x) * PANELS + panel) * CHANNELS + channel) * WIDTH;
                for (long column = 0; column < WIDTH; column++)
                    to[column] = (float)(half[y][0][column] * across[x][0] + half[y][1][column] * across[x][1] +
                                         half[y][2][column] * across[x][2]);
            }
    }
}
