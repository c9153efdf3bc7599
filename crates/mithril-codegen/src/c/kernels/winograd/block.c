/* The image with zero padding and blocked channels: [image][channels / LANES][y][x][LANES]. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const float *restrict image, float *restrict blocked) {
    enum {
        LANES = @lanes@, CHANNELS = @channels@, BLOCKS = (CHANNELS + LANES - 1) / LANES, H = @h@, W = @w@, PIXELS = H * W,
        BLOCKED_W = @blocked_width@, PLANE = @blocked_plane@
    };
    float square[LANES * LANES] __attribute__((aligned(64)));
    for (long unit = @n@ * BLOCKS * thread / threads; unit < @n@ * BLOCKS * (thread + 1) / threads; unit++) {
        const long channel = unit % BLOCKS * LANES;
        const float *restrict from = image + (unit / BLOCKS * CHANNELS + channel) * PIXELS;
        float *restrict to = blocked + unit * PLANE;
        for (long i = 0; i < PLANE; i++)
            to[i] = 0;
        to += (@top@ * BLOCKED_W + @left@) * LANES;
        if (PIXELS < LANES || CHANNELS - channel < LANES) {
            for (long c = 0; c < LANES && channel + c < CHANNELS; c++)
                for (long y = 0; y < H; y++)
                    for (long x = 0; x < W; x++)
                        to[(y * BLOCKED_W + x) * LANES + c] = from[c * PIXELS + y * W + x];
            continue;
        }
        for (long next = 0; next < PIXELS; next += LANES) {
            const long pixel = next + LANES <= PIXELS ? next : PIXELS - LANES; /* the last square may overlap */
            mithril_transpose_f32(from + pixel, PIXELS, square, LANES);
            for (long i = 0, y = pixel / W, x = pixel % W; i < LANES; i++) {
                MITHRIL_STORE(f32, to + (y * BLOCKED_W + x) * LANES, MITHRIL_LOAD(f32, square + i * LANES));
                if (++x == W) {
                    x = 0;
                    y++;
                }
            }
        }
    }
}
