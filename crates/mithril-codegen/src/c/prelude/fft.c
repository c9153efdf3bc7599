/* Discrete Fourier transforms of any size, in double: real and imaginary parts lie in arrays of their own.
 *
 * A tensor is seen as [outer, size, inner] and transformed along the middle axis. A size is split into its prime
 * factors (Cooley and Tukey 1965). One with a prime factor above MITHRIL_FFT_LARGEST_PRIME becomes a convolution
 * of a size that is a power of two (Bluestein 1970). */

enum { MITHRIL_FFT_LARGEST_PRIME = 61 };

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

/* Whether all prime factors of n are small. */
static int mithril_fft_is_smooth(int64_t n) {
  for (int64_t p = 2; p <= MITHRIL_FFT_LARGEST_PRIME; p++) {
    while (n % p == 0) n /= p;
  }
  return n == 1;
}

/* Joins the transforms of four quarters, m elements each, one after the other at re and im. */
static void mithril_fft_join4(double *restrict re, double *restrict im, int64_t m, double sign,
                              const double *restrict root_re, const double *restrict root_im, int64_t stride) {
  for (int64_t k = 0; k < m; k++) {
    const double c1 = root_re[k * stride], s1 = sign * root_im[k * stride];
    const double c2 = root_re[2 * k * stride], s2 = sign * root_im[2 * k * stride];
    const double c3 = root_re[3 * k * stride], s3 = sign * root_im[3 * k * stride];
    const double x0 = re[k], y0 = im[k];
    const double x1 = re[m + k] * c1 - im[m + k] * s1, y1 = re[m + k] * s1 + im[m + k] * c1;
    const double x2 = re[2 * m + k] * c2 - im[2 * m + k] * s2, y2 = re[2 * m + k] * s2 + im[2 * m + k] * c2;
    const double x3 = re[3 * m + k] * c3 - im[3 * m + k] * s3, y3 = re[3 * m + k] * s3 + im[3 * m + k] * c3;
    const double even_x = x0 + x2, even_y = y0 + y2, rest_x = x0 - x2, rest_y = y0 - y2;
    const double odd_x = x1 + x3, odd_y = y1 + y3, turned_x = sign * (y3 - y1), turned_y = sign * (x1 - x3);
    re[k] = even_x + odd_x;
    im[k] = even_y + odd_y;
    re[m + k] = rest_x + turned_x;
    im[m + k] = rest_y + turned_y;
    re[2 * m + k] = even_x - odd_x;
    im[2 * m + k] = even_y - odd_y;
    re[3 * m + k] = rest_x - turned_x;
    im[3 * m + k] = rest_y - turned_y;
  }
}

/* Joins the transforms of p parts, m elements each. work: 2 · p elements. */
static void mithril_fft_join(double *re, double *im, int64_t p, int64_t m, double sign, const double *root_re,
                             const double *root_im, int64_t stride, double *work) {
  double *x = work, *y = work + p;
  for (int64_t k = 0; k < m; k++) {
    /* The k-th results of the parts, turned. */
    for (int64_t r = 0; r < p; r++) {
      const double c = root_re[r * k * stride], s = sign * root_im[r * k * stride];
      x[r] = re[r * m + k] * c - im[r * m + k] * s;
      y[r] = re[r * m + k] * s + im[r * m + k] * c;
    }
    for (int64_t q = 0; q < p; q++) {
      double sum_x = x[0], sum_y = y[0];
      int64_t j = 0; /* (r · q mod p) of p parts of the turn */
      for (int64_t r = 1; r < p; r++) {
        j += q * m * stride;
        if (j >= p * m * stride) j -= p * m * stride;
        const double c = root_re[j], s = sign * root_im[j];
        sum_x += x[r] * c - y[r] * s;
        sum_y += x[r] * s + y[r] * c;
      }
      re[q * m + k] = sum_x;
      im[q * m + k] = sum_y;
    }
  }
}

/* The transform of n elements at from, step apart, into to; sign is that of the exponent. roots holds exp(2πi·j/whole)
 * for all j below whole, a multiple of n. work: 2 · MITHRIL_FFT_LARGEST_PRIME elements. */
static void mithril_fft_smooth(const double *from_re, const double *from_im, int64_t step, double *to_re,
                               double *to_im, int64_t n, double sign, const double *root_re, const double *root_im,
                               int64_t whole, double *work) {
  int64_t p = n % 4 == 0 ? 4 : 2;
  while (p < n && n % p != 0) p++;
  const int64_t m = n / p, stride = whole / n;
  if (m <= 1) {
    for (int64_t r = 0; r < n; r++) {
      to_re[r] = from_re[r * step];
      to_im[r] = from_im[r * step];
    }
  } else {
    for (int64_t r = 0; r < p; r++) {
      mithril_fft_smooth(from_re + r * step, from_im + r * step, step * p, to_re + r * m, to_im + r * m, m, sign,
                         root_re, root_im, whole, work);
    }
  }
  if (n == 1) return;
  if (p == 4) {
    mithril_fft_join4(to_re, to_im, m, sign, root_re, root_im, stride);
  } else {
    mithril_fft_join(to_re, to_im, p, m, sign, root_re, root_im, stride, work);
  }
}

/* The least power of two that a convolution of n by n elements fits into. */
static int64_t mithril_fft_padded(int64_t n) {
  int64_t padded = 1;
  while (padded < 2 * n - 1) padded *= 2;
  return padded;
}

/* Fills the tables of a transform of n elements: the roots, and for a convolution its chirp exp(πi·k²/n) and the
 * transform of that. tables: as said at mithril_fft. */
static void mithril_fft_prepare(double *tables, int64_t n, double *work) {
  int64_t whole = mithril_fft_is_smooth(n) ? n : mithril_fft_padded(n);
  double *root_re = tables, *root_im = tables + whole;
  for (int64_t j = 0; j < whole; j++) mithril_fft_root(j, whole, root_re + j, root_im + j);
  if (whole == n && mithril_fft_is_smooth(n)) return;
  double *chirp_re = tables + 2 * whole, *chirp_im = chirp_re + n, *filter_re = chirp_im + n;
  double *filter_im = filter_re + whole, *long_re = filter_im + whole, *long_im = long_re + whole;
  for (int64_t i = 0; i < whole; i++) long_re[i] = long_im[i] = 0;
  int64_t square = 0; /* k² mod 2n, by differences so that it never overflows */
  for (int64_t k = 0; k < n; k++) {
    mithril_fft_root(square, 2 * n, chirp_re + k, chirp_im + k);
    long_re[k] = long_re[(whole - k) % whole] = chirp_re[k];
    long_im[k] = long_im[(whole - k) % whole] = chirp_im[k];
    square = (square + 2 * k + 1) % (2 * n);
  }
  mithril_fft_smooth(long_re, long_im, 1, filter_re, filter_im, whole, -1, root_re, root_im, whole, work);
}

/* The transform of n elements with a large prime factor: with k·t = (k² + t² - (k-t)²)/2 a convolution with the
 * chirp. The sign of the exponent is that of the imaginary parts on both sides. */
static void mithril_fft_chirp(const double *from_re, const double *from_im, double *to_re, double *to_im, int64_t n,
                              double sign, double *tables, double *work) {
  int64_t whole = mithril_fft_padded(n);
  double *root_re = tables, *root_im = tables + whole;
  double *chirp_re = tables + 2 * whole, *chirp_im = chirp_re + n, *filter_re = chirp_im + n;
  double *filter_im = filter_re + whole, *long_re = filter_im + whole, *long_im = long_re + whole;
  double *spectrum_re = long_im + whole, *spectrum_im = spectrum_re + whole;
  for (int64_t k = 0; k < whole; k++) {
    double re = k < n ? from_re[k] : 0, im = k < n ? -sign * from_im[k] : 0;
    double c = k < n ? chirp_re[k] : 0, s = k < n ? -chirp_im[k] : 0;
    long_re[k] = re * c - im * s;
    long_im[k] = re * s + im * c;
  }
  mithril_fft_smooth(long_re, long_im, 1, spectrum_re, spectrum_im, whole, -1, root_re, root_im, whole, work);
  for (int64_t k = 0; k < whole; k++) {
    double re = spectrum_re[k], im = spectrum_im[k];
    spectrum_re[k] = re * filter_re[k] - im * filter_im[k];
    spectrum_im[k] = re * filter_im[k] + im * filter_re[k];
  }
  mithril_fft_smooth(spectrum_re, spectrum_im, 1, long_re, long_im, whole, 1, root_re, root_im, whole, work);
  for (int64_t k = 0; k < n; k++) {
    double re = long_re[k] / (double)whole, im = long_im[k] / (double)whole;
    to_re[k] = re * chirp_re[k] + im * chirp_im[k];
    to_im[k] = -sign * (im * chirp_re[k] - re * chirp_im[k]);
  }
}

/* Output k of each line is scale · Σ_t input[t] · exp(sign·2πi·k·t/size), for k below kept. The input has given
 * elements along the axis: size, or size / 2 + 1, and then the rest mirrors them (the spectrum of a real signal).
 * imag may be NULL: 0; so may output_imag: not wanted.
 * scratch: (128 + 4·size + 2·w) · 8 bytes, where w is size if all its prime factors are at most 61; otherwise
 * (128 + 6·size + 8·w) · 8 bytes, where w is the least power of two that is at least 2·size - 1. */
static void mithril_fft(const double *real, const double *imag, double *output_real, double *output_imag,
                        int64_t outer, int64_t given, int64_t size, int64_t kept, int64_t inner, double sign,
                        double scale, void *scratch) {
  double *work = scratch, *re = work + 128, *im = re + size, *to_re = im + size, *to_im = to_re + size;
  double *tables = to_im + size;
  int is_smooth = mithril_fft_is_smooth(size);
  mithril_fft_prepare(tables, size, work);
  for (int64_t line = 0; line < outer * inner; line++) {
    int64_t o = line / inner, i = line % inner;
    for (int64_t t = 0; t < size; t++) {
      int64_t mirrored = t < given ? t : size - t, from = (o * given + mirrored) * inner + i;
      re[t] = real[from];
      im[t] = imag == NULL ? 0 : t < given ? imag[from] : -imag[from];
      /* The spectrum of a real signal is real where it mirrors itself. */
      if (given < size && (t == 0 || 2 * t == size)) im[t] = 0;
    }
    if (is_smooth) {
      mithril_fft_smooth(re, im, 1, to_re, to_im, size, sign, tables, tables + size, size, work);
    } else {
      mithril_fft_chirp(re, im, to_re, to_im, size, sign, tables, work);
    }
    for (int64_t k = 0; k < kept; k++) {
      int64_t at = (o * kept + k) * inner + i;
      output_real[at] = scale * to_re[k];
      if (output_imag != NULL) output_imag[at] = scale * to_im[k];
    }
  }
}
