/* Decompositions of square matrices, row-major and in double; matrices follow one another, and every thread takes
 * some of them. A function that can meet a matrix it has no result for returns MITHRIL_ERROR_SINGULAR or
 * MITHRIL_ERROR_INDEFINITE. */

enum { MITHRIL_PANEL = 16, MITHRIL_STRIP = 32 };

/* Subtracts from the elements of rows first … last - 1 in columns left … right - 1 the products of what stands in columns
 * from … to - 1 of the row with those rows, at most MITHRIL_PANEL of them. */
static void mithril_subtract_products(double *a, int64_t n, int64_t first, int64_t last, int64_t left, int64_t right,
        int64_t from, int64_t to) {
    for (int64_t strip = left; strip < right; strip += MITHRIL_STRIP) {
        const int64_t width = right - strip < MITHRIL_STRIP ? right - strip : MITHRIL_STRIP;
        double rows[MITHRIL_PANEL][MITHRIL_STRIP];
        for (int64_t k = from; k < to; k++) {
            for (int64_t j = 0; j < MITHRIL_STRIP; j++) rows[k - from][j] = j < width ? a[k * n + strip + j] : 0;
        }
        for (int64_t i = first; i < last; i++) {
            double sum[MITHRIL_STRIP] = {0};
            int64_t k = from;
            /* Four at a time, since a sum waits for the one before. */
            for (; k + 4 <= to; k += 4) {
                const double *f = a + i * n + k, (*row)[MITHRIL_STRIP] = rows + (k - from);
                for (int64_t j = 0; j < MITHRIL_STRIP; j++)
                    sum[j] += f[0] * row[0][j] + f[1] * row[1][j] + f[2] * row[2][j] + f[3] * row[3][j];
            }
            for (; k < to; k++) {
                for (int64_t j = 0; j < MITHRIL_STRIP; j++) sum[j] += a[i * n + k] * rows[k - from][j];
            }
            for (int64_t j = 0; j < width; j++) a[i * n + strip + j] -= sum[j];
        }
    }
}

/* P·A = L·U in place by elimination with the largest pivot of each column, both factors in one matrix; rows[i] is
 * the row of A that stands at i. Columns are eliminated in panels; the rest of the matrix follows a panel at a time. The
 * sign of the permutation, or 0 if the matrix is singular. */
static int mithril_lu(double *a, int64_t *rows, int64_t n) {
    int sign = 1;
    for (int64_t i = 0; i < n; i++) rows[i] = i;
    for (int64_t first = 0; first < n; first += MITHRIL_PANEL) {
        const int64_t last = first + MITHRIL_PANEL < n ? first + MITHRIL_PANEL : n;
        for (int64_t k = first; k < last; k++) {
            int64_t pivot = k;
            for (int64_t i = k + 1; i < n; i++) {
                if (fabs(a[i * n + k]) > fabs(a[pivot * n + k])) pivot = i;
            }
            if (pivot != k) {
                for (int64_t j = 0; j < n; j++) {
                    double x = a[k * n + j];
                    a[k * n + j] = a[pivot * n + j];
                    a[pivot * n + j] = x;
                }
                int64_t row = rows[k];
                rows[k] = rows[pivot];
                rows[pivot] = row;
                sign = -sign;
            }
            if (a[k * n + k] == 0) return 0;
            for (int64_t i = k + 1; i < n; i++) {
                double factor = a[i * n + k] / a[k * n + k];
                a[i * n + k] = factor;
                for (int64_t j = k + 1; j < last; j++) a[i * n + j] -= factor * a[k * n + j];
            }
        }
        for (int64_t i = first + 1; i < last; i++) mithril_subtract_products(a, n, i, i + 1, last, n, first, i);
        mithril_subtract_products(a, n, last, n, last, n, first, last);
    }
    return sign;
}

/* Replaces the right-hand sides x [n, columns] by the solutions of a triangular system: row by row from the diagonal's
 * end that is known. With unit the diagonal is 1 and not read; with transposed the matrix is the transpose of a. */
static void mithril_substitute(const double *a, double *x, int64_t n, int64_t columns, int lower, int transposed,
        int unit) {
    const int64_t down = transposed ? n : 1, across = transposed ? 1 : n;
    for (int64_t strip = 0; strip < columns; strip += MITHRIL_PANEL) {
        const int64_t width = columns - strip < MITHRIL_PANEL ? columns - strip : MITHRIL_PANEL;
        for (int64_t step = 0; step < n; step++) {
            const int64_t i = lower ? step : n - 1 - step, last = lower ? i : n;
            double sum[MITHRIL_PANEL] = {0};
            int64_t j = lower ? 0 : i + 1;
            /* A width that the compiler knows makes vectors; four rows at a time, since a sum waits for the one before. */
            for (; j + 4 <= last && width == MITHRIL_PANEL; j += 4) {
                const double *f = a + i * across + j * down, *k0 = x + j * columns + strip;
                const double *k1 = k0 + columns, *k2 = k1 + columns, *k3 = k2 + columns;
                const double f0 = f[0], f1 = f[down], f2 = f[2 * down], f3 = f[3 * down];
                for (int64_t c = 0; c < MITHRIL_PANEL; c++)
                    sum[c] += f0 * k0[c] + f1 * k1[c] + f2 * k2[c] + f3 * k3[c];
            }
            for (; j < last; j++) {
                const double factor = a[i * across + j * down], *known = x + j * columns + strip;
                for (int64_t c = 0; c < width; c++) sum[c] += factor * known[c];
            }
            for (int64_t c = 0; c < width; c++) {
                const double rest = x[i * columns + strip + c] - sum[c];
                x[i * columns + strip + c] = unit ? rest : rest / a[i * n + i];
            }
        }
    }
}

/* solution with left · solution = right for count systems of columns right-hand sides each.
 * scratch: (n · n + n) · 8 bytes. */
static int mithril_solve(int64_t thread, int64_t threads, const double *left, const double *right, double *solution,
        int64_t count, int64_t n, int64_t columns, void *scratch) {
    double *lu = scratch;
    int64_t *rows = (int64_t *)(lu + n * n);
    const int64_t last = mithril_part(count, thread + 1, threads);
    for (int64_t m = mithril_part(count, thread, threads); m < last; m++) {
        memcpy(lu, left + m * n * n, (size_t)(n * n) * sizeof(double));
        if (mithril_lu(lu, rows, n) == 0) return MITHRIL_ERROR_SINGULAR;
        double *x = solution + m * n * columns;
        for (int64_t i = 0; i < n; i++) {
            memcpy(x + i * columns, right + (m * n + rows[i]) * columns, (size_t)columns * sizeof(double));
        }
        mithril_substitute(lu, x, n, columns, 1, 0, 1);
        mithril_substitute(lu, x, n, columns, 0, 0, 0);
    }
    return 0;
}

/* As mithril_solve for triangular matrices, of which only the lower or the upper triangle is read; with unit the diagonal
 * is 1 and not read. */
static int mithril_triangular_solve(int64_t thread, int64_t threads, const double *left, const double *right,
        double *solution, int64_t count, int64_t n, int64_t columns, int lower, int transposed, int unit) {
    const int64_t last = mithril_part(count, thread + 1, threads);
    for (int64_t m = mithril_part(count, thread, threads); m < last; m++) {
        const double *a = left + m * n * n;
        for (int64_t i = 0; i < n; i++) {
            if (!unit && a[i * n + i] == 0) return MITHRIL_ERROR_SINGULAR;
        }
        memcpy(solution + m * n * columns, right + m * n * columns, (size_t)(n * columns) * sizeof(double));
        mithril_substitute(a, solution + m * n * columns, n, columns, lower != transposed, transposed, unit);
    }
    return 0;
}

/* The inverses of count matrices. scratch: (n · n + n) · 8 bytes. */
static int mithril_inverse(int64_t thread, int64_t threads, const double *input, double *inverse, int64_t count,
        int64_t n, void *scratch) {
    double *lu = scratch;
    int64_t *rows = (int64_t *)(lu + n * n);
    const int64_t last = mithril_part(count, thread + 1, threads);
    for (int64_t m = mithril_part(count, thread, threads); m < last; m++) {
        memcpy(lu, input + m * n * n, (size_t)(n * n) * sizeof(double));
        if (mithril_lu(lu, rows, n) == 0) return MITHRIL_ERROR_SINGULAR;
        double *x = inverse + m * n * n;
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < n; j++) x[i * n + j] = rows[i] == j;
        }
        mithril_substitute(lu, x, n, n, 1, 0, 1);
        mithril_substitute(lu, x, n, n, 0, 0, 0);
    }
    return 0;
}

/* The determinants of count matrices. scratch: (n · n + n) · 8 bytes. */
static void mithril_determinant(int64_t thread, int64_t threads, const double *input, double *determinant,
        int64_t count, int64_t n, void *scratch) {
    double *lu = scratch;
    int64_t *rows = (int64_t *)(lu + n * n);
    const int64_t last = mithril_part(count, thread + 1, threads);
    for (int64_t m = mithril_part(count, thread, threads); m < last; m++) {
        memcpy(lu, input + m * n * n, (size_t)(n * n) * sizeof(double));
        int sign = mithril_lu(lu, rows, n);
        double product = sign;
        for (int64_t i = 0; i < n && sign != 0; i++) product *= lu[i * n + i];
        determinant[m] = product;
    }
}

/* Signs of the determinants of count matrices and logarithms of their absolute values; 0 and minus infinity for a
 * singular matrix. scratch: (n · n + n) · 8 bytes. */
static void mithril_log_determinant(int64_t thread, int64_t threads, const double *input, double *signs,
        double *logarithms, int64_t count, int64_t n, void *scratch) {
    double *lu = scratch;
    int64_t *rows = (int64_t *)(lu + n * n);
    const int64_t last = mithril_part(count, thread + 1, threads);
    for (int64_t m = mithril_part(count, thread, threads); m < last; m++) {
        memcpy(lu, input + m * n * n, (size_t)(n * n) * sizeof(double));
        int sign = mithril_lu(lu, rows, n);
        double logarithm = sign == 0 ? -INFINITY : 0;
        double direction = sign;
        for (int64_t i = 0; i < n && sign != 0; i++) {
            double pivot = lu[i * n + i];
            logarithm += log(fabs(pivot));
            direction *= pivot != pivot ? pivot : pivot < 0 ? -1 : 1;
        }
        signs[m] = direction;
        logarithms[m] = logarithm;
    }
}

/* The lower Cholesky factors of the symmetric parts of count matrices. */
static int mithril_cholesky(int64_t thread, int64_t threads, const double *input, double *factor, int64_t count,
        int64_t n) {
    const int64_t last = mithril_part(count, thread + 1, threads);
    for (int64_t m = mithril_part(count, thread, threads); m < last; m++) {
        const double *a = input + m * n * n;
        double *l = factor + m * n * n;
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j <= i; j++) {
                double rest = 0.5 * a[i * n + j] + 0.5 * a[j * n + i];
#pragma omp simd reduction(+ : rest)
                for (int64_t k = 0; k < j; k++) rest -= l[i * n + k] * l[j * n + k];
                if (i == j && rest <= 0) return MITHRIL_ERROR_INDEFINITE;
                l[i * n + j] = i == j ? sqrt(rest) : rest / l[j * n + j];
            }
            for (int64_t j = i + 1; j < n; j++) l[i * n + j] = 0;
        }
    }
    return 0;
}
