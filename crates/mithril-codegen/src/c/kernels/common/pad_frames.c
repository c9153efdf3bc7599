/* Copies volumes[@images@][@channels@][@depth@][@h@][@w@] to [image][frame][channel][y][x] with zero padding: @front@ frames
   in front, @top@ rows above, @left@ pixels to the left. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict image, @type@ *restrict padded) {
    enum {
        CHANNELS = @channels@, DEPTH = @depth@, FRAMES = @frames@, H = @h@, W = @w@, PADDED_H = @padded_height@,
        PADDED_W = @padded_width@
    };
    const long rows = (long)@images@ * FRAMES * CHANNELS * PADDED_H;
    for (long row = rows * thread / threads; row < rows * (thread + 1) / threads; row++) {
        const long y = row % PADDED_H - @top@, channel = row / PADDED_H % CHANNELS;
        const long z = row / PADDED_H / CHANNELS % FRAMES - @front@, batch = row / PADDED_H / CHANNELS / FRAMES;
        @type@ *restrict to = padded + row * PADDED_W;
        memset(to, 0, sizeof(@type@) * PADDED_W);
        if (y >= 0 && y < H && z >= 0 && z < DEPTH)
            memcpy(to + @left@, image + (((batch * CHANNELS + channel) * DEPTH + z) * H + y) * W, sizeof(@type@) * W);
    }
}
