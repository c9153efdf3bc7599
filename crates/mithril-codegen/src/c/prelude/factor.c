/* Factors of matrices, row-major and in double; matrices follow one another, and every thread takes some of them. Signs
 * are fixed as the ops promise; a matrix with an element that is not finite gives NaN. */

/* The largest absolute value, NaN or infinite if an element is not finite. */
static double mithril_largest(const double *a, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs(a[i]) <= largest)) largest = fabs(a[i]);
        if (!(largest < INFINITY)) return largest;
    }
    return largest;
}

/* A power of two by which a matrix is divided, so that squares of its elements stay in the range of numbers. */
static double mithril_scale(double largest) {
    int exponent;
    if (largest < 1e-300) return 1;
    frexp(largest, &exponent);
    return ldexp(1, exponent - 1);
}

static void mithril_fill_nan(double *a, int64_t count) {
    for (int64_t i = 0; i < count; i++) a[i] = NAN;
}

/* The sign of the first of n elements, stride apart, that is not small. */
static double mithril_sign_of(const double *x, int64_t n, int64_t stride) {
    const double least = 0.63 / sqrt((double)n);
    for (int64_t i = 0; i < n; i++) {
        if (fabs(x[i * stride]) > least) return x[i * stride] < 0 ? -1 : 1;
    }
    return 1;
}

/* q [m, columns] and r [columns, n] of count matrices [m, n], by reflections (Householder). columns: the smaller of m and
 * n, or m. scratch: (m · n + m + n) · 8 bytes. */
static void mithril_qr(int64_t thread, int64_t threads, const double *input, double *q, double *r, int64_t count,
        int64_t m, int64_t n, int64_t columns, void *scratch) {
    double *a = scratch, *product = a + m * n, *factors = product + (m > n ? m : n);
    const int64_t k = m < n ? m : n, last = mithril_part(count, thread + 1, threads);
    for (int64_t matrix = mithril_part(count, thread, threads); matrix < last; matrix++) {
        double *own_q = q + matrix * m * columns, *own_r = r + matrix * columns * n;
        const double largest = mithril_largest(input + matrix * m * n, m * n);
        if (!(largest < INFINITY)) {
            mithril_fill_nan(own_q, m * columns);
            mithril_fill_nan(own_r, columns * n);
            continue;
        }
        const double scale = mithril_scale(largest);
        for (int64_t i = 0; i < m * n; i++) a[i] = input[matrix * m * n + i] / scale;
        /* Column j of a keeps r above the diagonal and below it the vector of reflection j, whose first element is 1. */
        for (int64_t j = 0; j < k; j++) {
            double rest = 0, head = a[j * n + j];
            for (int64_t i = j + 1; i < m; i++) rest += a[i * n + j] * a[i * n + j];
            factors[j] = 0;
            if (rest == 0) continue;
            const double length = sqrt(head * head + rest),
                    diagonal = head < 0 || (head == 0 && signbit(head)) ? length : -length;
            factors[j] = (diagonal - head) / diagonal;
            for (int64_t i = j + 1; i < m; i++) a[i * n + j] /= head - diagonal;
            a[j * n + j] = diagonal;
            for (int64_t c = j + 1; c < n; c++) product[c] = a[j * n + c];
            for (int64_t i = j + 1; i < m; i++) {
                for (int64_t c = j + 1; c < n; c++) product[c] += a[i * n + j] * a[i * n + c];
            }
            for (int64_t c = j + 1; c < n; c++) a[j * n + c] -= factors[j] * product[c];
            for (int64_t i = j + 1; i < m; i++) {
                for (int64_t c = j + 1; c < n; c++) a[i * n + c] -= factors[j] * a[i * n + j] * product[c];
            }
        }
        for (int64_t i = 0; i < columns; i++) {
            for (int64_t c = 0; c < n; c++) own_r[i * n + c] = i <= c && i < k ? a[i * n + c] * scale : 0;
        }
        for (int64_t i = 0; i < m; i++) {
            for (int64_t c = 0; c < columns; c++) own_q[i * columns + c] = i == c;
        }
        for (int64_t j = k - 1; j >= 0; j--) {
            for (int64_t c = j; c < columns; c++) product[c] = own_q[j * columns + c];
            for (int64_t i = j + 1; i < m; i++) {
                for (int64_t c = j; c < columns; c++) product[c] += a[i * n + j] * own_q[i * columns + c];
            }
            for (int64_t c = j; c < columns; c++) own_q[j * columns + c] -= factors[j] * product[c];
            for (int64_t i = j + 1; i < m; i++) {
                for (int64_t c = j; c < columns; c++)
                    own_q[i * columns + c] -= factors[j] * a[i * n + j] * product[c];
            }
        }
        for (int64_t j = 0; j < k; j++) {
            if (!(own_r[j * n + j] < 0)) continue;
            for (int64_t i = 0; i < m; i++) own_q[i * columns + j] = -own_q[i * columns + j];
            for (int64_t c = j; c < n; c++) own_r[j * n + c] = -own_r[j * n + c];
        }
    }
}

/* The rotation (cosine, sine) that makes the off-diagonal element of the symmetric matrix [p, x; x, q] zero. */
static void mithril_rotation(double p, double q, double x, double *cosine, double *sine) {
    const double cotangent = (q - p) / (2 * x);
    const double tangent = (cotangent < 0 ? -1 : 1) / (fabs(cotangent) + hypot(1, cotangent));
    *cosine = 1 / sqrt(1 + tangent * tangent);
    *sine = tangent * *cosine;
}

static void mithril_rotate(double *x, double *y, int64_t n, double cosine, double sine) {
    for (int64_t i = 0; i < n; i++) {
        const double a = x[i], b = y[i];
        x[i] = cosine * a - sine * b;
        y[i] = sine * a + cosine * b;
    }
}

/* Exchanges so that sizes ascend, or descend, together with rows of rows_of_x and of rows_of_y, of which one may be absent. */
static void mithril_sort_rows(double *sizes, double *x, double *y, int64_t count, int64_t width_x, int64_t width_y,
        int ascending) {
    for (int64_t i = 0; i + 1 < count; i++) {
        int64_t best = i;
        for (int64_t j = i + 1; j < count; j++) {
            if (ascending ? sizes[j] < sizes[best] : sizes[j] > sizes[best]) best = j;
        }
        if (best == i) continue;
        const double size = sizes[i];
        sizes[i] = sizes[best];
        sizes[best] = size;
        for (int64_t c = 0; c < width_x; c++) {
            const double element = x[i * width_x + c];
            x[i * width_x + c] = x[best * width_x + c];
            x[best * width_x + c] = element;
        }
        for (int64_t c = 0; c < width_y; c++) {
            const double element = y[i * width_y + c];
            y[i * width_y + c] = y[best * width_y + c];
            y[best * width_y + c] = element;
        }
    }
}

/* Eigenvalues in ascending order and eigenvectors (columns) of the symmetric parts of count matrices, by rotations (Jacobi).
 * scratch: (2 · n · n + n) · 8 bytes. */
static void mithril_eigh(int64_t thread, int64_t threads, const double *input, double *values, double *vectors,
        int64_t count, int64_t n, void *scratch) {
    double *a = scratch, *rows = a + n * n, *diagonal = rows + n * n;
    const int64_t last = mithril_part(count, thread + 1, threads);
    for (int64_t matrix = mithril_part(count, thread, threads); matrix < last; matrix++) {
        const double *own = input + matrix * n * n, largest = mithril_largest(own, n * n);
        if (!(largest < INFINITY)) {
            mithril_fill_nan(values + matrix * n, n);
            mithril_fill_nan(vectors + matrix * n * n, n * n);
            continue;
        }
        const double scale = mithril_scale(largest);
        double total = 0;
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < n; j++) {
                a[i * n + j] = 0.5 * (own[i * n + j] / scale) + 0.5 * (own[j * n + i] / scale);
                rows[i * n + j] = i == j;
                total += a[i * n + j] * a[i * n + j];
            }
        }
        /* What is smaller changes no eigenvalue by more than rounding does. */
        const double least = sqrt(total) / (double)n * (DBL_EPSILON / 16);
        int rotated = 1;
        for (int sweep = 0; sweep < 64 && rotated; sweep++) {
            rotated = 0;
            for (int64_t p = 0; p < n; p++) {
                for (int64_t q = p + 1; q < n; q++) {
                    if (fabs(a[p * n + q]) <= least) continue;
                    double cosine, sine;
                    rotated = 1;
                    mithril_rotation(a[p * n + p], a[q * n + q], a[p * n + q], &cosine, &sine);
                    mithril_rotate(a + p * n, a + q * n, n, cosine, sine);
                    for (int64_t i = 0; i < n; i++) {
                        const double x = a[i * n + p], y = a[i * n + q];
                        a[i * n + p] = cosine * x - sine * y;
                        a[i * n + q] = sine * x + cosine * y;
                    }
                    a[p * n + q] = a[q * n + p] = 0;
                    mithril_rotate(rows + p * n, rows + q * n, n, cosine, sine);
                }
            }
        }
        for (int64_t i = 0; i < n; i++) diagonal[i] = a[i * n + i] * scale;
        mithril_sort_rows(diagonal, rows, rows, n, n, 0, 1);
        for (int64_t j = 0; j < n; j++) {
            const double sign = mithril_sign_of(rows + j * n, n, 1);
            values[matrix * n + j] = diagonal[j];
            for (int64_t i = 0; i < n; i++) vectors[matrix * n * n + i * n + j] = sign * rows[j * n + i];
        }
    }
}

/* Makes row j of rows [count, n] a unit vector that is orthogonal to the rows before it. */
static void mithril_complete_row(double *rows, int64_t j, int64_t n) {
    /* Of the unit vectors, the one that lies farthest outside of the rows. */
    int64_t best = 0;
    double least = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double inside = 0;
        for (int64_t r = 0; r < j; r++) inside += rows[r * n + i] * rows[r * n + i];
        if (inside < least) {
            least = inside;
            best = i;
        }
    }
    double *row = rows + j * n;
    for (int64_t i = 0; i < n; i++) row[i] = i == best;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t r = 0; r < j; r++) {
            double product = 0;
#pragma omp simd reduction(+ : product)
            for (int64_t i = 0; i < n; i++) product += rows[r * n + i] * row[i];
            for (int64_t i = 0; i < n; i++) row[i] -= product * rows[r * n + i];
        }
    }
    double length = 0;
    for (int64_t i = 0; i < n; i++) length += row[i] * row[i];
    for (int64_t i = 0; i < n; i++) row[i] /= sqrt(length);
}

/* The reduced decompositions u [m, k], s [k], vh [k, n] of count matrices [m, n], k the smaller of m and n, by rotations
 * that make the columns of a matrix orthogonal (Hestenes, Jacobi). epsilon: of the dtype that the matrices had.
 * scratch: (m · n + k · (k + 1)) · 8 bytes. */
static void mithril_svd(int64_t thread, int64_t threads, const double *input, double *u, double *s, double *vh,
        int64_t count, int64_t m, int64_t n, double epsilon, void *scratch) {
    /* The longer side of the matrix runs along the rows of a, whose products are made zero. */
    const int64_t k = m < n ? m : n, length = m < n ? n : m;
    double *a = scratch, *turned = a + k * length, *sizes = turned + k * k;
    const int64_t last = mithril_part(count, thread + 1, threads);
    for (int64_t matrix = mithril_part(count, thread, threads); matrix < last; matrix++) {
        const double *own = input + matrix * m * n, largest = mithril_largest(own, m * n);
        double *own_u = u + matrix * m * k, *own_vh = vh + matrix * k * n;
        if (!(largest < INFINITY)) {
            mithril_fill_nan(own_u, m * k);
            mithril_fill_nan(s + matrix * k, k);
            mithril_fill_nan(own_vh, k * n);
            continue;
        }
        const double scale = mithril_scale(largest);
        for (int64_t j = 0; j < k; j++) {
            for (int64_t i = 0; i < length; i++)
                a[j * length + i] = (m < n ? own[j * n + i] : own[i * n + j]) / scale;
            for (int64_t i = 0; i < k; i++) turned[j * k + i] = i == j;
        }
        int rotated = 1;
        for (int sweep = 0; sweep < 64 && rotated; sweep++) {
            rotated = 0;
            for (int64_t p = 0; p < k; p++) {
                for (int64_t q = p + 1; q < k; q++) {
                    double *x = a + p * length, *y = a + q * length, xx = 0, yy = 0, xy = 0;
#pragma omp simd reduction(+ : xx, yy, xy)
                    for (int64_t i = 0; i < length; i++) {
                        xx += x[i] * x[i];
                        yy += y[i] * y[i];
                        xy += x[i] * y[i];
                    }
                    if (xx == 0 || yy == 0 || fabs(xy) <= DBL_EPSILON * sqrt(xx) * sqrt(yy)) continue;
                    double cosine, sine;
                    rotated = 1;
                    mithril_rotation(xx, yy, xy, &cosine, &sine);
                    mithril_rotate(x, y, length, cosine, sine);
                    mithril_rotate(turned + p * k, turned + q * k, k, cosine, sine);
                }
            }
        }
        for (int64_t j = 0; j < k; j++) {
            sizes[j] = 0;
            for (int64_t i = 0; i < length; i++) sizes[j] += a[j * length + i] * a[j * length + i];
            sizes[j] = sqrt(sizes[j]);
        }
        mithril_sort_rows(sizes, a, turned, k, length, k, 0);
        for (int64_t j = 0; j < k; j++) {
            /* Far below rounding, what is left of a row says nothing about its direction. */
            if (sizes[j] > sizes[0] * 1e-30) {
                for (int64_t i = 0; i < length; i++) a[j * length + i] /= sizes[j];
            } else {
                mithril_complete_row(a, j, length);
            }
            const double *left = m < n ? turned + j * k : a + j * length,
                    *right = m < n ? a + j * length : turned + j * k;
            const double sign = mithril_sign_of(left, m, 1);
            const int is_zero = sizes[j] <= epsilon * (double)length * sizes[0];
            const double sign_v = is_zero ? mithril_sign_of(right, n, 1) : sign;
            s[matrix * k + j] = sizes[j] * scale;
            for (int64_t i = 0; i < m; i++) own_u[i * k + j] = sign * left[i];
            for (int64_t i = 0; i < n; i++) own_vh[j * n + i] = sign_v * right[i];
        }
    }
}
