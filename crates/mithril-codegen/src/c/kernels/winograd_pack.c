/* Transformed weights[@filters@, @channels@, 3, 3] in panels: [point][filters / WIDTH][channel][WIDTH]; in double, for what
   is rounded here is rounded for every pixel. */
static void @name@(long thread, long threads, const float *restrict weights, float *restrict packed)
{
    enum { CHANNELS = @channels@, FILTERS = @filters@, WIDTH = 2 * @lanes@, PANELS = (FILTERS + WIDTH - 1) / WIDTH, TILE = @tile@ };
    static const double factor[TILE][3] = {@factors@};
    const long units = (long)PANELS * CHANNELS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++)
        for (long column = 0; column < WIDTH; column++) {
            const long panel = unit / CHANNELS, channel = unit % CHANNELS, filter = panel * WIDTH + column;
            const float *const kernel = weights + (filter * CHANNELS + channel) * 9;
            double half[TILE][3] = {{0}};
            for (long y = 0; y < TILE && filter < FILTERS; y++)
                for (long x = 0; x < 3; x++)
                    half[y][x] = factor[y][0] * kernel[x] + factor[y][1] * kernel[3 + x] + factor[y][2] * kernel[6 + x];
            for (long y = 0; y < TILE; y++)
                for (long x = 0; x < TILE; x++)
                    packed[(((y * TILE + x) * PANELS + panel) * CHANNELS + channel) * WIDTH + column] =
                        (float)(half[y][0] * factor[x][0] + half[y][1] * factor[x][1] + half[y][2] * factor[x][2]);
        }
}
