/* Decompositions of square matrices, row-major and in double; matrices follow one another, and every thread takes
 * some of them. A function that can meet
 * a matrix it has no result for returns MITHRIL_ERROR_SINGULAR or MITHRIL_ERROR_INDEFINITE. */

/* P·A = L·U in place by elimination with the largest pivot of each column, both factors in one matrix; rows[i] is
 * the row of A that stands at i. The sign of the permutation, or 0 if the matrix is singular. */
static int mithril_lu(double *a, int64_t *rows, int64_t n) {
  int sign = 1;
  for (int64_t i = 0; i < n; i++) rows[i] = i;
  for (int64_t k = 0; k < n; k++) {
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
      for (int64_t j = k + 1; j < n; j++) a[i * n + j] -= factor * a[k * n + j];
    }
  }
  return sign;
}

/* Replaces the right-hand sides x [n, columns] by the solutions of a triangular system: row by row from the diagonal's
 * end that is known. With unit the diagonal is 1 and not read; with transposed the matrix is the transpose of a. */
static void mithril_substitute(const double *a, double *x, int64_t n, int64_t columns, int lower, int transposed,
                               int unit) {
  for (int64_t step = 0; step < n; step++) {
    int64_t i = lower ? step : n - 1 - step;
    int64_t first = lower ? 0 : i + 1, last = lower ? i : n;
    for (int64_t j = first; j < last; j++) {
      double factor = transposed ? a[j * n + i] : a[i * n + j];
      for (int64_t c = 0; c < columns; c++) x[i * columns + c] -= factor * x[j * columns + c];
    }
    if (!unit) {
      for (int64_t c = 0; c < columns; c++) x[i * columns + c] /= a[i * n + i];
    }
  }
}

/* solution with left · solution = right for count systems of columns right-hand sides each.
 * scratch: (n · n + n) · 8 bytes. */
static int mithril_solve(int64_t thread, int64_t threads, const double *left, const double *right, double *solution, int64_t count, int64_t n,
                         int64_t columns, void *scratch) {
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

/* As mithril_solve for triangular matrices, of which only the lower or the upper triangle is read. */
static int mithril_triangular_solve(int64_t thread, int64_t threads, const double *left, const double *right, double *solution, int64_t count,
                                    int64_t n, int64_t columns, int lower, int transposed) {
  const int64_t last = mithril_part(count, thread + 1, threads);
  for (int64_t m = mithril_part(count, thread, threads); m < last; m++) {
    const double *a = left + m * n * n;
    for (int64_t i = 0; i < n; i++) {
      if (a[i * n + i] == 0) return MITHRIL_ERROR_SINGULAR;
    }
    memcpy(solution + m * n * columns, right + m * n * columns, (size_t)(n * columns) * sizeof(double));
    mithril_substitute(a, solution + m * n * columns, n, columns, lower != transposed, transposed, 0);
  }
  return 0;
}

/* The inverses of count matrices. scratch: (n · n + n) · 8 bytes. */
static int mithril_inverse(int64_t thread, int64_t threads, const double *input, double *inverse, int64_t count, int64_t n, void *scratch) {
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
static void mithril_determinant(int64_t thread, int64_t threads, const double *input, double *determinant, int64_t count, int64_t n, void *scratch) {
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
static void mithril_log_determinant(int64_t thread, int64_t threads, const double *input, double *signs, double *logarithms, int64_t count, int64_t n,
                                    void *scratch) {
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
static int mithril_cholesky(int64_t thread, int64_t threads, const double *input, double *factor, int64_t count, int64_t n) {
  const int64_t last = mithril_part(count, thread + 1, threads);
  for (int64_t m = mithril_part(count, thread, threads); m < last; m++) {
    const double *a = input + m * n * n;
    double *l = factor + m * n * n;
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j <= i; j++) {
        double rest = 0.5 * a[i * n + j] + 0.5 * a[j * n + i];
        for (int64_t k = 0; k < j; k++) rest -= l[i * n + k] * l[j * n + k];
        if (i == j && rest <= 0) return MITHRIL_ERROR_INDEFINITE;
        l[i * n + j] = i == j ? sqrt(rest) : rest / l[j * n + j];
      }
      for (int64_t j = i + 1; j < n; j++) l[i * n + j] = 0;
    }
  }
  return 0;
}
