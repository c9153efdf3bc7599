/* Discrete Fourier transforms of any size: real and imaginary parts lie in arrays of their own.
 *
 * A tensor is seen as [outer, size, inner] and transformed along the middle axis, `lanes` lines at once, which lie side
 * by side: [size, lanes]. A size is split into factors (Cooley and Tukey 1965), and every factor is a pass from one array
 * into another that leaves the results in order (Stockham 1966). A size with a prime factor above
 * MITHRIL_FFT_LARGEST_PRIME becomes a convolution of a size that is a power of two (Bluestein 1970), in double. What is
 * written here for float (_f32) is used for double (_f64) too. */

enum { MITHRIL_FFT_LARGEST_PRIME = 61, MITHRIL_FFT_MOST_LANES = 16 };

/* Elements between two arrays, so that they do not compete for the same cache sets. */
enum { MITHRIL_FFT_APART = 80 };

/* For loops whose iterations are independent, which a compiler cannot know. */
#if defined(__clang__)
#define MITHRIL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define MITHRIL_INDEPENDENT _Pragma("GCC ivdep")
#else
#define MITHRIL_INDEPENDENT
#endif

/* exp(2πi·j/n), exact where it is simple; 0 <= j < n. */
static void mithril_fft_root(int64_t j, int64_t n, double *re, double *im) {
    const double turn = 6.283185307179586476925286766559;
    double quarter[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
    /* By symmetry to an angle of at most an eighth of a turn around the nearest quarter. */
    int64_t nearest = (8 * j + n) / (2 * n);
    double angle = turn * (double)(4 * j - nearest * n) / (double)(4 * n);
    double c = cos(angle), s = sin(angle), *q = quarter[nearest % 4];
    *re = q[0] * c - q[1] * s;
    *im = q[0] * s + q[1] * c;
}

/* All exp(2πi·j/n): every 32nd exactly, the others by one turn from there. */
static void mithril_fft_roots_f32(float *re, float *im, int64_t n) {
    double near_re[32], near_im[32], c, s;
    for (int64_t j = 0; j < 32 && j < n; j++) mithril_fft_root(j, n, near_re + j, near_im + j);
    for (int64_t first = 0; first < n; first += 32) {
        mithril_fft_root(first, n, &c, &s);
        for (int64_t j = 0; j < 32 && first + j < n; j++) {
            re[first + j] = (float)(c * near_re[j] - s * near_im[j]);
            im[first + j] = (float)(c * near_im[j] + s * near_re[j]);
        }
    }
}

/* Whether all prime factors of n are small. */
static int mithril_fft_is_smooth(int64_t n) {
    for (int64_t p = 2; p <= MITHRIL_FFT_LARGEST_PRIME; p++) {
        while (n % p == 0) n /= p;
    }
    return n == 1;
}

/* Element q of a pass of factor 4 for q below count: a, b, c, d are m · s elements apart in x, the results s in y. */
static inline void mithril_fft_four_f32(const int64_t count, const float *restrict x_re, const float *restrict x_im,
        float *restrict y_re, float *restrict y_im, int64_t apart, int64_t s, float sign,
        const float *restrict turns_re, const float *restrict turns_im) {
    MITHRIL_INDEPENDENT
    for (int64_t q = 0; q < count; q++) {
        const float even_re = x_re[q] + x_re[2 * apart + q], even_im = x_im[q] + x_im[2 * apart + q];
        const float rest_re = x_re[q] - x_re[2 * apart + q], rest_im = x_im[q] - x_im[2 * apart + q];
        const float odd_re = x_re[apart + q] + x_re[3 * apart + q], odd_im = x_im[apart + q] + x_im[3 * apart + q];
        const float turned_re = sign * (x_im[3 * apart + q] - x_im[apart + q]);
        const float turned_im = sign * (x_re[apart + q] - x_re[3 * apart + q]);
        const float y1_re = rest_re + turned_re, y1_im = rest_im + turned_im;
        const float y2_re = even_re - odd_re, y2_im = even_im - odd_im;
        const float y3_re = rest_re - turned_re, y3_im = rest_im - turned_im;
        y_re[q] = even_re + odd_re;
        y_im[q] = even_im + odd_im;
        y_re[s + q] = y1_re * turns_re[0] - y1_im * turns_im[0];
        y_im[s + q] = y1_re * turns_im[0] + y1_im * turns_re[0];
        y_re[2 * s + q] = y2_re * turns_re[1] - y2_im * turns_im[1];
        y_im[2 * s + q] = y2_re * turns_im[1] + y2_im * turns_re[1];
        y_re[3 * s + q] = y3_re * turns_re[2] - y3_im * turns_im[2];
        y_im[3 * s + q] = y3_re * turns_im[2] + y3_im * turns_re[2];
    }
}

/* A pass of factor 4: s transforms of 4 · m elements become 4 · s of m, from x into y. Root j · step of the table is
 * exp(2πi·j/(4·m)); sign is that of the exponent. */
static void mithril_fft_pass4_f32(const float *restrict x_re, const float *restrict x_im, float *restrict y_re,
        float *restrict y_im, int64_t m, int64_t s, float sign, const float *root_re, const float *root_im,
        int64_t step) {
    enum { LANES = MITHRIL_FFT_MOST_LANES };
    for (int64_t p = 0; p < m; p++) {
        float c[3], t[3];
        for (int64_t j = 0; j < 3; j++) {
            c[j] = root_re[(j + 1) * p * step];
            t[j] = sign * root_im[(j + 1) * p * step];
        }
        for (int64_t first = 0; first < s; first += LANES) {
            const int64_t x = s * p + first, y = 4 * s * p + first;
            /* A number that the compiler knows lets it do without loops. */
            if (s - first >= LANES)
                mithril_fft_four_f32(LANES, x_re + x, x_im + x, y_re + y, y_im + y, s * m, s, sign, c, t);
            else mithril_fft_four_f32(s - first, x_re + x, x_im + x, y_re + y, y_im + y, s * m, s, sign, c, t);
        }
    }
}

/* As the pass of 4, of factor 2. */
static void mithril_fft_pass2_f32(const float *restrict x_re, const float *restrict x_im, float *restrict y_re,
        float *restrict y_im, int64_t m, int64_t s, float sign, const float *root_re, const float *root_im,
        int64_t step) {
    for (int64_t p = 0; p < m; p++) {
        const float c = root_re[p * step], si = sign * root_im[p * step];
        const float *a_re = x_re + s * p, *b_re = a_re + s * m, *a_im = x_im + s * p, *b_im = a_im + s * m;
        float *to_re = y_re + 2 * s * p, *to_im = y_im + 2 * s * p;
        MITHRIL_INDEPENDENT
        for (int64_t q = 0; q < s; q++) {
            const float rest_re = a_re[q] - b_re[q], rest_im = a_im[q] - b_im[q];
            to_re[q] = a_re[q] + b_re[q];
            to_im[q] = a_im[q] + b_im[q];
            to_re[s + q] = rest_re * c - rest_im * si;
            to_im[s + q] = rest_re * si + rest_im * c;
        }
    }
}

/* Elements of a pass of an odd factor r, count of them at x and y. Results j and r - j are sums of the same products: of
 * the sums of opposite elements with cosines, and of their differences with sines. turns_re and turns_im say by what the
 * results are turned, root j · part is exp(2πi·j/r). */
static inline void mithril_fft_odd_f32(const int64_t count, const float *restrict x_re, const float *restrict x_im,
        float *restrict y_re, float *restrict y_im, int64_t r, int64_t apart, int64_t s, float sign,
        const float *turns_re, const float *turns_im, const float *root_re, const float *root_im, int64_t part) {
    enum { HALF = MITHRIL_FFT_LARGEST_PRIME / 2, LANES = MITHRIL_FFT_MOST_LANES };
    float sum_re[HALF][LANES], sum_im[HALF][LANES], rest_re[HALF][LANES], rest_im[HALF][LANES];
    float all_re[LANES], all_im[LANES];
    for (int64_t q = 0; q < count; q++) {
        all_re[q] = x_re[q];
        all_im[q] = x_im[q];
    }
    for (int64_t i = 0; i < r / 2; i++) {
        const int64_t left = (i + 1) * apart, right = (r - 1 - i) * apart;
        for (int64_t q = 0; q < count; q++) {
            sum_re[i][q] = x_re[left + q] + x_re[right + q];
            sum_im[i][q] = x_im[left + q] + x_im[right + q];
            rest_re[i][q] = sign * (x_re[left + q] - x_re[right + q]);
            rest_im[i][q] = sign * (x_im[left + q] - x_im[right + q]);
            all_re[q] += sum_re[i][q];
            all_im[q] += sum_im[i][q];
        }
    }
    for (int64_t q = 0; q < count; q++) {
        y_re[q] = all_re[q];
        y_im[q] = all_im[q];
    }
    for (int64_t j = 1; j <= r / 2; j++) {
        float even_re[LANES], even_im[LANES], odd_re[LANES], odd_im[LANES];
        for (int64_t q = 0; q < count; q++) {
            even_re[q] = x_re[q];
            even_im[q] = x_im[q];
            odd_re[q] = odd_im[q] = 0;
        }
        int64_t turn = 0; /* i · j mod r */
        for (int64_t i = 0; i < r / 2; i++) {
            turn = turn + j < r ? turn + j : turn + j - r;
            const float c = root_re[turn * part], t = root_im[turn * part];
            for (int64_t q = 0; q < count; q++) {
                even_re[q] += c * sum_re[i][q];
                even_im[q] += c * sum_im[i][q];
                odd_re[q] -= t * rest_im[i][q];
                odd_im[q] += t * rest_re[i][q];
            }
        }
        const float c1 = turns_re[j], t1 = turns_im[j], c2 = turns_re[r - j], t2 = turns_im[r - j];
        float *restrict near_re = y_re + j * s, *restrict near_im = y_im + j * s;
        float *restrict far_re = y_re + (r - j) * s, *restrict far_im = y_im + (r - j) * s;
        MITHRIL_INDEPENDENT
        for (int64_t q = 0; q < count; q++) {
            const float y1_re = even_re[q] + odd_re[q], y1_im = even_im[q] + odd_im[q];
            const float y2_re = even_re[q] - odd_re[q], y2_im = even_im[q] - odd_im[q];
            near_re[q] = y1_re * c1 - y1_im * t1;
            near_im[q] = y1_re * t1 + y1_im * c1;
            far_re[q] = y2_re * c2 - y2_im * t2;
            far_im[q] = y2_re * t2 + y2_im * c2;
        }
    }
}

/* As the pass of 4, of an odd factor r. */
static void mithril_fft_pass_f32(const float *restrict x_re, const float *restrict x_im, float *restrict y_re,
        float *restrict y_im, int64_t r, int64_t m, int64_t s, float sign, const float *root_re, const float *root_im,
        int64_t step) {
    enum { LANES = MITHRIL_FFT_MOST_LANES };
    float c[MITHRIL_FFT_LARGEST_PRIME], t[MITHRIL_FFT_LARGEST_PRIME];
    for (int64_t p = 0; p < m; p++) {
        for (int64_t j = 0; j < r; j++) {
            c[j] = root_re[j * p * step];
            t[j] = sign * root_im[j * p * step];
        }
        for (int64_t first = 0; first < s; first += LANES) {
            const int64_t x = s * p + first, y = r * s * p + first;
            if (s - first >= LANES)
                mithril_fft_odd_f32(LANES, x_re + x, x_im + x, y_re + y, y_im + y, r, s * m, s, sign, c, t, root_re,
                        root_im, m * step);
            else
                mithril_fft_odd_f32(s - first, x_re + x, x_im + x, y_re + y, y_im + y, r, s * m, s, sign, c, t,
                        root_re, root_im, m * step);
        }
    }
}

/* The transforms of `lanes` lines of n elements, whose prime factors are small, at parts[0] (real) and parts[1]
 * (imaginary). parts[2] and parts[3] are as large; in the end parts[0] and parts[1] are the results. Root j · every of the
 * table is exp(2πi·j/n). */
static void mithril_fft_smooth_f32(float *parts[4], int64_t n, int64_t lanes, float sign, const float *root_re,
        const float *root_im, int64_t every) {
    for (int64_t s = lanes, rest = n; rest > 1;) {
        int64_t r = rest % 4 == 0 ? 4 : 2;
        while (rest % r != 0) r++;
        const int64_t m = rest / r, step = n / rest * every;
        if (r == 4) {
            mithril_fft_pass4_f32(parts[0], parts[1], parts[2], parts[3], m, s, sign, root_re, root_im, step);
        } else if (r == 2) {
            mithril_fft_pass2_f32(parts[0], parts[1], parts[2], parts[3], m, s, sign, root_re, root_im, step);
        } else {
            mithril_fft_pass_f32(parts[0], parts[1], parts[2], parts[3], r, m, s, sign, root_re, root_im, step);
        }
        for (int i = 0; i < 2; i++) {
            float *other = parts[i + 2];
            parts[i + 2] = parts[i];
            parts[i] = other;
        }
        rest = m;
        s *= r;
    }
}

/* The least power of two that a convolution of n by n elements fits into. */
static int64_t mithril_fft_padded(int64_t n) {
    int64_t padded = 1;
    while (padded < 2 * n - 1) padded *= 2;
    return padded;
}

/* Fills the tables of a transform by convolution: the roots, the chirp exp(πi·k²/n), and the transform of that. */
static void mithril_fft_prepare(double *tables, int64_t n, double *work) {
    const int64_t whole = mithril_fft_padded(n);
    double *root_re = tables, *root_im = tables + whole;
    double *chirp_re = tables + 2 * whole, *chirp_im = chirp_re + n, *filter_re = chirp_im + n;
    double *parts[4] = {work, work + whole, work + 2 * whole, work + 3 * whole};
    mithril_fft_roots_f64(root_re, root_im, whole);
    for (int64_t i = 0; i < 2 * whole; i++) work[i] = 0;
    int64_t square = 0; /* k² mod 2n, by differences so that it never overflows */
    for (int64_t k = 0; k < n; k++) {
        mithril_fft_root(square, 2 * n, chirp_re + k, chirp_im + k);
        parts[0][k] = parts[0][(whole - k) % whole] = chirp_re[k];
        parts[1][k] = parts[1][(whole - k) % whole] = chirp_im[k];
        square = (square + 2 * k + 1) % (2 * n);
    }
    mithril_fft_smooth_f64(parts, whole, 1, -1, root_re, root_im, 1);
    memcpy(filter_re, parts[0], (size_t)whole * sizeof(double));
    memcpy(filter_re + whole, parts[1], (size_t)whole * sizeof(double));
}

/* The transforms of `lanes` lines of n elements with a large prime factor, at parts[0] and parts[1] in front of zeros:
 * with k·t = (k² + t² - (k-t)²)/2 they are convolutions with the chirp. The sign of the exponent is that of the imaginary
 * parts on both sides. */
static void mithril_fft_chirp(double *parts[4], int64_t n, int64_t lanes, double sign, const double *tables) {
    const int64_t whole = mithril_fft_padded(n);
    const double *root_re = tables, *root_im = tables + whole;
    const double *chirp_re = tables + 2 * whole, *chirp_im = chirp_re + n, *filter_re = chirp_im + n;
    const double *filter_im = filter_re + whole;
    for (int64_t k = 0; k < n; k++) {
        for (int64_t lane = 0; lane < lanes; lane++) {
            const double re = parts[0][k * lanes + lane], im = -sign * parts[1][k * lanes + lane];
            parts[0][k * lanes + lane] = re * chirp_re[k] + im * chirp_im[k];
            parts[1][k * lanes + lane] = im * chirp_re[k] - re * chirp_im[k];
        }
    }
    mithril_fft_smooth_f64(parts, whole, lanes, -1, root_re, root_im, 1);
    for (int64_t k = 0; k < whole; k++) {
        for (int64_t lane = 0; lane < lanes; lane++) {
            const double re = parts[0][k * lanes + lane], im = parts[1][k * lanes + lane];
            parts[0][k * lanes + lane] = re * filter_re[k] - im * filter_im[k];
            parts[1][k * lanes + lane] = re * filter_im[k] + im * filter_re[k];
        }
    }
    mithril_fft_smooth_f64(parts, whole, lanes, 1, root_re, root_im, 1);
    for (int64_t k = 0; k < n; k++) {
        for (int64_t lane = 0; lane < lanes; lane++) {
            const double re = parts[0][k * lanes + lane] / (double)whole,
                    im = parts[1][k * lanes + lane] / (double)whole;
            parts[0][k * lanes + lane] = re * chirp_re[k] + im * chirp_im[k];
            parts[1][k * lanes + lane] = -sign * (im * chirp_re[k] - re * chirp_im[k]);
        }
    }
}
