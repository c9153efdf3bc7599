/* The gradient of the weights of a convolution: sums[@filters@ filters][@channels@ channels][@kh@][@kw@], each of
   the products of all pixels of result[@n@, @filters@, @oh@, @ow@] with what lies under them in image[@n@,
   @channels@, ...]. A unit of work is two vectors of filters, a block of channels and a part of the lines of all
   images. It processes strips of lines: their pixels are transposed to [pixel][filter], and for each tile of sums
   that fits into registers every pixel loads two vectors of filters and broadcasts one element of the image for
   each sum. */

/* sums[channels * down * across][2 vectors of filters] += products over some lines of pixels, which begin at `lines`
   in the image. */
MITHRIL_INLINE void @name@_tile(const long channels, const long down, const long across, const @type@ *restrict image,
        const long *restrict lines, long count, long width, const @type@ *restrict pixels,
        @type@ *restrict sums) {
    enum { LANES = @lanes@, PLANE = @plane@, ROW = @row@, COLUMN = @column@, STEP = @step@ };
    mithril_@t@ sum[@most@][2];
    MITHRIL_UNROLL(@most@)
    for (long i = 0; i < channels * down * across; i++)
        sum[i][0] = sum[i][1] = (mithril_@t@){0};
    for (long line = 0; line < count; line++) {
        const @type@ *restrict place = image + lines[line];
        for (long x = 0; x < width; x++, place += STEP, pixels += 2 * LANES) {
            /* Without the prefetch GCC 12 joins two steps and adds up their products first, with a third more instructions. */
            MITHRIL_PREFETCH_L2(pixels + 32 * LANES);
            const mithril_@t@ left = MITHRIL_LOAD(@t@, pixels), right = MITHRIL_LOAD(@t@, pixels + LANES);
            MITHRIL_UNROLL(@most@)
            for (long i = 0; i < channels * down * across; i++) {
                const @type@ element = place[i / (down * across) * PLANE + i / across % down * ROW + i % across * COLUMN];
                const mithril_@t@ factor = MITHRIL_BROADCAST_@t@(element);
                sum[i][0] += factor * left;
                sum[i][1] += factor * right;
            }
        }
    }
    MITHRIL_UNROLL(@most@)
    for (long i = 0; i < channels * down * across; i++, sums += 2 * LANES) {
        MITHRIL_STORE(@t@, sums, MITHRIL_LOAD(@t@, sums) + sum[i][0]);
        MITHRIL_STORE(@t@, sums + LANES, MITHRIL_LOAD(@t@, sums + LANES) + sum[i][1]);
    }
}

/* Pixels that lie together, of so many filters, as [pixel][2 vectors of filters]; filters beyond the last are zero. */
static void @name@_pixels(const @type@ *restrict from, long pixels, long filters, @type@ *restrict to) {
    enum { LANES = @lanes@, WIDTH = 2 * LANES, FILTER = @filter@ };
    for (long first = 0; first < WIDTH; first += LANES)
        for (long pixel = 0; pixel < pixels; pixel += LANES) {
            @square@
            for (long i = pixel; i < pixel + LANES && i < pixels; i++)
                for (long filter = first; filter < first + LANES; filter++)
                    to[i * WIDTH + filter] = filter < filters ? from[filter * FILTER + i] : 0;
        }
}

@epilogue@
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict image, const @type@ *restrict result,
        @to_parameters@, @type@ *restrict scratch) {
    enum {
        LANES = @lanes@, WIDTH = 2 * LANES, FILTERS = @filters@, PANELS = (FILTERS + WIDTH - 1) / WIDTH, PLACES = @kh@ * @kw@,
        CHANNEL_GROUPS = @channel_groups@, CHANNELS = @group_channels@, DOWN_GROUPS = @down_groups@, DOWN = @group_down@,
        ACROSS_GROUPS = @across_groups@, ACROSS = @group_across@, /* sums of a tile */
        REMAINDER = @remainder@,                                /* the first REMAINDER groups have one @of_one@ more */
        BLOCK = @block@, BLOCKS = (CHANNEL_GROUPS + BLOCK - 1) / BLOCK, /* groups of channels of a unit */
        HEIGHT = @oh@, LINES = @n@ * HEIGHT, STRIP = @strip@, PIECE = @piece@, PIECES = (@ow@ + PIECE - 1) / PIECE,
        STRIPS = (LINES + STRIP - 1) / STRIP * PIECES, PARTS = @parts@
    };
    @type@ *const pixels = scratch, *const sums = scratch + STRIP * PIECE * WIDTH;
    long lines[STRIP];
    const long units = (long)PANELS * BLOCKS * PARTS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long panel = unit % PANELS, block = unit / PANELS % BLOCKS, part = unit / PANELS / BLOCKS;
        const long first = block * BLOCK, last = first + BLOCK < CHANNEL_GROUPS ? first + BLOCK : CHANNEL_GROUPS;
        const long first_channel = first * CHANNELS + @first_longer@, end_channel = last * CHANNELS + @last_longer@;
        const long filters = FILTERS - panel * WIDTH < WIDTH ? FILTERS - panel * WIDTH : WIDTH;
        memset(sums, 0, sizeof(@type@) * (end_channel - first_channel) * PLACES * WIDTH);
        for (long strip = STRIPS * part / PARTS; strip < STRIPS * (part + 1) / PARTS; strip++) {
            const long line = strip / PIECES * STRIP, count = LINES - line < STRIP ? LINES - line : STRIP;
            const long x = strip % PIECES * PIECE, width = @ow@ - x < PIECE ? @ow@ - x : PIECE;
            @type@ *to = pixels;
            for (long i = 0, run; i < count; i += run) {
                const long batch = (line + i) / HEIGHT, y = (line + i) % HEIGHT;
                run = HEIGHT - y < count - i ? HEIGHT - y : count - i; /* lines of one image */
                @name@_pixels(result + batch * @result_batch@ + panel * WIDTH * @filter@ + y * @ow@ + x, run * width, filters, to);
                to += run * width * WIDTH;
                for (long more = 0; more < run; more++)
                    lines[i + more] = batch * @image_batch@ + (y + more) * @line@ + x * @step@;
            }
            for (long group = first; group < last; group++)
                for (long down = 0; down < DOWN_GROUPS; down++)
                    for (long across = 0; across < ACROSS_GROUPS; across++) {
                        const long extra = @split@ < REMAINDER, more = extra ? @split@ : REMAINDER;
                        const long channel = group * CHANNELS@channel_more@, ky = down * DOWN@down_more@, kx = across * ACROSS@across_more@;
                        const @type@ *const under = image + channel * @plane@ + ky * @row@ + kx * @column@;
                        @type@ *const tile = sums + ((channel - first_channel) * PLACES + ky * @kw@ + kx) * WIDTH;
                        @tiles@
                        (void)extra;
                        (void)more;
                    }
        }
        @last@
    }
}
