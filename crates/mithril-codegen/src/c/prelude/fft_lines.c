/* Fourier transforms of lines of a tensor; like fft.c in every respect. */

/* The elements of lines first … first + lanes - 1, as [size, lanes]. Each has stored elements along the axis: size, or
 * size / 2 + 1, and then the rest mirrors them (the spectrum of a real signal). imag may be NULL: 0. */
static void mithril_fft_read_f32(const float *restrict real, const float *restrict imag, int64_t first, int64_t lanes,
        int64_t stored, int64_t size, int64_t inner, float *restrict re, float *restrict im) {
    int64_t start[MITHRIL_FFT_MOST_LANES];
    for (int64_t i = 0; i < lanes; i++) start[i] = (first + i) / inner * stored * inner + (first + i) % inner;
    for (int64_t t = 0; t < size; t++) {
        const int64_t along = (t < stored ? t : size - t) * inner;
        /* The spectrum of a real signal is real where it mirrors itself. */
        const int is_real = imag == NULL || (stored < size && (t == 0 || 2 * t == size));
        const float sign = t < stored ? 1 : -1;
        for (int64_t i = 0; i < lanes; i++) re[t * lanes + i] = real[start[i] + along];
        for (int64_t i = 0; i < lanes; i++) im[t * lanes + i] = is_real ? 0 : sign * imag[start[i] + along];
    }
}

/* Writes the first kept elements of such lines, times scale; in squares, so that what is written lies together where
 * inner is 1. */
static void mithril_fft_write_f32(const float *from, int64_t first, int64_t lanes, int64_t kept, int64_t inner,
        float scale, float *to) {
    enum { LANES = MITHRIL_FFT_MOST_LANES };
    for (int64_t k = 0; k < kept; k += LANES) {
        for (int64_t i = 0; i < lanes; i++) {
            const float *restrict x = from + k * lanes + i;
            float *restrict y = to + ((first + i) / inner * kept + k) * inner + (first + i) % inner;
            if (inner == 1 && lanes == LANES && k + LANES <= kept) {
                for (int64_t step = 0; step < LANES; step++) y[step] = scale * x[step * LANES];
            } else {
                for (int64_t step = 0; step < LANES && k + step < kept; step++)
                    y[step * inner] = scale * x[step * lanes];
            }
        }
    }
}

/* Lines of real elements of an even size as complex ones of half the size: each two elements make one. */
static void mithril_fft_read_pairs_f32(const float *restrict real, int64_t first, int64_t lanes, int64_t size,
        int64_t inner, float *restrict re, float *restrict im) {
    int64_t start[MITHRIL_FFT_MOST_LANES];
    for (int64_t i = 0; i < lanes; i++) start[i] = (first + i) / inner * size * inner + (first + i) % inner;
    for (int64_t t = 0; t < size / 2; t++) {
        for (int64_t i = 0; i < lanes; i++) re[t * lanes + i] = real[start[i] + 2 * t * inner];
        for (int64_t i = 0; i < lanes; i++) im[t * lanes + i] = real[start[i] + (2 * t + 1) * inner];
    }
}

/* The transforms of real lines, elements 0 … half, from those of their pairs, half elements at parts[0] and parts[1]: with
 * the transforms E of the even and O of the odd elements, these are E + i·O, and those E + exp(sign·2πi·k/(2·half))·O. As
 * both are of real lines, element half - k says apart what element k holds together. The results, for which there is room
 * behind the places, become parts[0] and parts[1]. */
static void mithril_fft_part_f32(float *parts[4], int64_t half, int64_t lanes, float sign, const float *root_re,
        const float *root_im) {
    const float *restrict x_re = parts[0], *restrict x_im = parts[1];
    float *restrict y_re = parts[2], *restrict y_im = parts[3];
    for (int64_t k = 0; 2 * k <= half; k++) {
        const int64_t low = k * lanes, high = (half - k) * lanes, mirror = k == 0 ? 0 : high;
        const float c = root_re[k], s = sign * root_im[k];
        MITHRIL_INDEPENDENT
        for (int64_t q = 0; q < lanes; q++) {
            const float even_re = 0.5f * (x_re[low + q] + x_re[mirror + q]);
            const float even_im = 0.5f * (x_im[low + q] - x_im[mirror + q]);
            const float odd_re = 0.5f * (x_im[low + q] + x_im[mirror + q]);
            const float odd_im = 0.5f * (x_re[mirror + q] - x_re[low + q]);
            const float turned_re = odd_re * c - odd_im * s, turned_im = odd_re * s + odd_im * c;
            y_re[low + q] = even_re + turned_re;
            y_im[low + q] = even_im + turned_im;
            y_re[high + q] = even_re - turned_re;
            y_im[high + q] = turned_im - even_im;
        }
    }
    for (int i = 0; i < 2; i++) {
        float *other = parts[i + 2];
        parts[i + 2] = parts[i];
        parts[i] = other;
    }
}

/* Such transforms of a size with a large prime factor, of the lines in groups from … last - 1; the numbers in between are
 * double. */
static void mithril_fft_by_chirp_f32(const float *real, const float *imag, float *output_real, float *output_imag,
        int64_t from, int64_t last, int64_t lines, int64_t stored, int64_t size, int64_t kept, int64_t inner,
        int64_t lanes, double sign, double scale, double *tables) {
    const int64_t whole = mithril_fft_padded(size);
    double *work = tables + 4 * whole + 2 * size;
    mithril_fft_prepare(tables, size, work);
    for (int64_t group = from; group < last; group++) {
        const int64_t first = group * lanes, count = lines - first < lanes ? lines - first : lanes,
                part = whole * count;
        double *parts[4] = {work, work + part, work + 2 * part, work + 3 * part};
        float *narrow = (float *)(void *)parts[2];
        mithril_fft_read_f32(real, imag, first, count, stored, size, inner, narrow, narrow + size * count);
        for (int64_t i = 0; i < part; i++) {
            parts[0][i] = i < size * count ? narrow[i] : 0;
            parts[1][i] = i < size * count ? narrow[size * count + i] : 0;
        }
        mithril_fft_chirp(parts, size, count, sign, tables);
        for (int64_t i = 0; i < size * count; i++) {
            const double re = parts[0][i], im = parts[1][i];
            narrow[i] = (float)re;
            narrow[size * count + i] = (float)im;
        }
        mithril_fft_write_f32(narrow, first, count, kept, inner, (float)scale, output_real);
        if (output_imag == NULL) continue;
        mithril_fft_write_f32(narrow + size * count, first, count, kept, inner, (float)scale, output_imag);
    }
}

/* Output k of each line is scale · Σ_t input[t] · exp(sign·2πi·k·t/size), for k below kept; every thread transforms some of
 * the lines. imag may be NULL: 0; so may output_imag: not computed. stored: as above. lanes: how many lines are transformed
 * at once, at most MITHRIL_FFT_MOST_LANES.
 * scratch: ((2 + 4 · lanes) · size + 320) · 8 bytes if all prime factors of size are at most 61; otherwise
 * (2 · size + (4 + 4 · lanes) · w) · 8 bytes, where w is the least power of two that is at least 2 · size - 1. */
static void mithril_fft_f32(int64_t thread, int64_t threads, const float *real, const float *imag, float *output_real,
        float *output_imag, int64_t outer, int64_t stored, int64_t size, int64_t kept, int64_t inner, int64_t lanes,
        double sign, double scale, void *scratch) {
    const int64_t lines = outer * inner, groups = (lines + lanes - 1) / lanes;
    const int64_t last = mithril_part(groups, thread + 1, threads), from = mithril_part(groups, thread, threads);
    if (from == last) return;
    const int is_smooth = mithril_fft_is_smooth(size);
    /* Of real lines the second half mirrors the first. */
    const int is_real = imag == NULL && stored == size && size % 2 == 0 && 2 * kept <= size + 2;
    float *roots = scratch, *work = roots + 2 * size;
    if (is_smooth) mithril_fft_roots_f32(roots, roots + size, size);
    for (int64_t group = from; group < last && is_smooth; group++) {
        const int64_t first = group * lanes, count = lines - first < lanes ? lines - first : lanes;
        const int64_t part = size * count + MITHRIL_FFT_APART;
        float *parts[4] = {work, work + part, work + 2 * part, work + 3 * part};
        if (is_real) {
            mithril_fft_read_pairs_f32(real, first, count, size, inner, parts[0], parts[1]);
            mithril_fft_smooth_f32(parts, size / 2, count, (float)sign, roots, roots + size, 2);
            mithril_fft_part_f32(parts, size / 2, count, (float)sign, roots, roots + size);
        } else {
            mithril_fft_read_f32(real, imag, first, count, stored, size, inner, parts[0], parts[1]);
            mithril_fft_smooth_f32(parts, size, count, (float)sign, roots, roots + size, 1);
        }
        mithril_fft_write_f32(parts[0], first, count, kept, inner, (float)scale, output_real);
        if (output_imag == NULL) continue;
        mithril_fft_write_f32(parts[1], first, count, kept, inner, (float)scale, output_imag);
    }
    if (!is_smooth) {
        mithril_fft_by_chirp_f32(real, imag, output_real, output_imag, from, last, lines, stored, size, kept, inner,
                lanes, sign, scale, scratch);
    }
}
