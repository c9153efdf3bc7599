/* The gradient of the weights of a convolution in @groups@ groups: sums[@group_filters@ filters][@channels@ channels]
   [@kh@][@kw@] of each group, over @n@ images. Rows of a result are brought to the distance that rows of its image have,
   with zeros between them; with a stride an image is split into phases, of every stride-th pixel each. Then what a weight meets lies as far behind what the weight before
   meets for all pixels, so that a sum is one of products of two long lines. */

/* sums[filters][taps][vector] += products of lines of `count` images; the taps from `first` on. */
MITHRIL_INLINE void @name@_tile(const long first, const long taps, const long filters, const @type@ *restrict under,
        const @type@ *restrict lines, long count, @type@ *restrict sums) {
    enum {
        LANES = @lanes@, LENGTH = @length@, IMAGE = @under@, PHASE = @phase@, PITCH = @pitch@, LINES = @block@ * LENGTH,
        SUMS = @channels@ * @kh@ * @kw@ * LANES
    };
    mithril_@t@ sum[@most@];
    MITHRIL_UNROLL(@most@)
    for (long i = 0; i < filters * taps; i++)
        sum[i] = (mithril_@t@){0};
    for (long image = 0; image < count; image++, under += IMAGE, lines += LENGTH)
        for (long x = 0; x < LENGTH; x += LANES) {
            const mithril_@t@ left = MITHRIL_LOAD(@t@, lines + x);
            const mithril_@t@ right = filters > 1 ? MITHRIL_LOAD(@t@, lines + LINES + x) : left;
            MITHRIL_UNROLL(@most@)
            for (long i = 0; i < taps; i++) {
                const long y = (first + i) / @kw@ * @dilation_y@, z = (first + i) % @kw@ * @dilation_x@;
                const long phase = y % @stride_y@ * @stride_x@ + z % @stride_x@;
                const mithril_@t@ met = MITHRIL_LOAD(@t@, under + phase * PHASE + y / @stride_y@ * PITCH + z / @stride_x@ + x);
                sum[filters * i] += met * left;
                if (filters > 1)
                    sum[filters * i + 1] += met * right;
            }
        }
    MITHRIL_UNROLL(@most@)
    for (long i = 0; i < filters * taps; i++) {
        @type@ *const to = sums + i % filters * SUMS + (first + i / filters) * LANES;
        MITHRIL_STORE(@t@, to, MITHRIL_LOAD(@t@, to) + sum[i]);
    }
}

/* The result of one filter in one image, with its rows as far apart as those of a phase; zeros are there. */
static void @name@_line(const @type@ *restrict from, @type@ *restrict to) {
    for (long y = 0; y < @oh@; y++)
        for (long x = 0; x < @ow@; x++)
            to[y * @pitch@ + x] = from[y * @ow@ + x];
}

/* A channel of one image, in phases; zeros are there. */
static void @name@_phases(const @type@ *restrict from, @type@ *restrict to) {
    enum { HEIGHT = @h@, WIDTH = @w@, TOP = @top@, LEFT = @left@, DOWN = @stride_y@, ACROSS = @stride_x@ };
    for (long y = 0; y < HEIGHT && (y + TOP) / DOWN < @rows@; y++) {
        @type@ *const row = to + (y + TOP) % DOWN * ACROSS * @phase@ + (y + TOP) / DOWN * @pitch@;
        for (long phase = 0; phase < ACROSS; phase++) {
            const long first = (LEFT + ACROSS - 1 - phase) / ACROSS; /* of the phase, inside of the image */
            const long last = (LEFT + WIDTH - phase + ACROSS - 1) / ACROSS;
            for (long x = first; x < (last < @pitch@ ? last : @pitch@); x++)
                row[phase * @phase@ + x] = from[y * WIDTH + x * ACROSS + phase - LEFT];
        }
    }
}

static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict image, const @type@ *restrict result,
        @out@ *restrict out@parameters@, @type@ *restrict scratch) {
    enum {
        LANES = @lanes@, FILTERS = @group_filters@, CHANNELS = @channels@, TAPS = @kh@ * @kw@, IMAGES = @n@,
        TOGETHER = @together@, PARTS = (FILTERS + TOGETHER - 1) / TOGETHER, /* filters of a unit, units of a group */
        BLOCK = @block@, LENGTH = @length@, IMAGE = @under@, SUMS = CHANNELS * TAPS * LANES
    };
    @type@ *const lines = scratch, *const under = lines + TOGETHER * BLOCK * LENGTH, *const sums = under + BLOCK * IMAGE;
    /* What is between the rows, and around an image, stays zero. */
    memset(scratch, 0, sizeof(@type@) * (sums - scratch));
    const long units = (long)@groups@ * PARTS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long group = unit / PARTS, part = unit % PARTS * TOGETHER;
        const long filters = FILTERS - part < TOGETHER ? FILTERS - part : TOGETHER, first_filter = group * FILTERS + part;
        memset(sums, 0, sizeof(@type@) * filters * SUMS);
        for (long first = 0; first < IMAGES; first += BLOCK) {
            const long count = IMAGES - first < BLOCK ? IMAGES - first : BLOCK;
            for (long filter = 0; filter < filters; filter++)
                for (long i = 0; i < count; i++)
                    @name@_line(result + (first + i) * @result_batch@ + (first_filter + filter) * @filter@,
                        lines + (filter * BLOCK + i) * LENGTH);
            for (long channel = 0; channel < CHANNELS; channel++) {
                for (long i = 0; i < count; i++)
                    @name@_phases(image + (first + i) * @image_batch@ + group * @group@ + channel * @plane@, under + i * IMAGE);
                long filter = 0;
                for (; filter + 2 <= filters; filter += 2) {
                    const @type@ *const from = lines + filter * BLOCK * LENGTH;
                    @type@ *const to = sums + filter * SUMS + channel * TAPS * LANES;
                    @pairs@
                }
                if (filter < filters) {
                    const @type@ *const from = lines + filter * BLOCK * LENGTH;
                    @type@ *const to = sums + filter * SUMS + channel * TAPS * LANES;
                    @singles@
                }
            }
        }
        for (long row = first_filter; row < first_filter + filters; row++)
            for (long batch = 0; batch < CHANNELS; batch++)
                for (long column = 0; column < TAPS; column++) {
                    const @type@ *const lane = sums + (row - first_filter) * SUMS + (batch * TAPS + column) * LANES;
                    @type@ accumulator = 0;
                    for (long i = 0; i < LANES; i++)
                        accumulator += lane[i];
                    out[@out_place@] = @expression@;
                }
    }
}
