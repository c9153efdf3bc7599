"""Linear algebra for MLX: decompositions on the CPU, where MLX has them, with derivatives, which it lacks."""

import mlx.core as mx


def _integer_matmul(left, right):
    """Matrix product of integers, which `@` of MLX does not take."""
    is_row, is_column = left.ndim == 1, right.ndim == 1
    left = left[None, :] if is_row else left
    right = right[:, None] if is_column else right
    y = _reduced(mx.sum, 0, left[..., :, :, None] * right[..., None, :, :], axis=-2).astype(left.dtype)
    return y.squeeze([axis for axis, flat in ((-2, is_row), (-1, is_column)) if flat])


def _transposed(x):
    return mx.swapaxes(x, -1, -2)


def _solve_gradient(primals, cotangent, x):
    to_right = _solve_systems(_transposed(primals[0]), cotangent)
    return -to_right @ _transposed(x), to_right


def _solved(left, right):
    return mx.linalg.solve(left, right, stream=mx.cpu) if right.size else right


_solve_systems = _with_gradient(_solved, _solve_gradient)


def _solve(left, right):
    """x in left @ x = right, for a vector or matrices on the right."""
    is_vector = right.ndim == 1
    right = right[:, None] if is_vector else right
    batch = mx.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left = mx.broadcast_to(left, (*batch, *left.shape[-2:]))
    x = _solve_systems(left, mx.broadcast_to(right, (*batch, *right.shape[-2:])))
    return x[..., 0] if is_vector else x


def _inverted(x):
    return mx.linalg.inv(x, stream=mx.cpu) if x.size else x


_inv = _with_gradient(_inverted, lambda x, cotangent, y: -(_transposed(y) @ cotangent @ _transposed(y)))


def _det_gradient(x, cotangent, y):
    return (cotangent * y)[..., None, None] * _transposed(_inv(x))


def _lu_diagonal(x):
    """Sign of the row exchanges, and the diagonal of U; `mx.linalg.det` rounds float64 to float32 on the way."""
    factors, pivots = mx.linalg.lu_factor(x, stream=mx.cpu)
    exchanges = mx.sum(pivots != mx.arange(x.shape[-1], dtype=pivots.dtype), axis=-1)
    return (1 - 2 * (exchanges % 2).astype(mx.int32)).astype(x.dtype), mx.diagonal(factors, axis1=-2, axis2=-1)


def _lu_determinant(x):
    sign, diagonal = _lu_diagonal(x)
    return sign * mx.prod(diagonal, axis=-1)


_determinant = _with_gradient(_lu_determinant, _det_gradient)


def _det(x):
    """Determinants; MLX differentiates those of small matrices, also of singular ones."""
    return mx.linalg.det(x, stream=mx.cpu) if x.shape[-1] < 4 else _determinant(x)


def _log_determinant(x):
    return tuple(mx.linalg.slogdet(x, stream=mx.cpu))


def _lu_log_determinant(x):
    sign, diagonal = _lu_diagonal(x)
    return sign * mx.prod(mx.sign(diagonal), axis=-1), mx.sum(mx.log(mx.abs(diagonal)), axis=-1)


_log_of_determinant = _with_gradient(
    _lu_log_determinant, lambda x, cotangents, _: cotangents[1][..., None, None] * _transposed(_inv(x))
)


def _slogdet(x):
    """Signs and logarithms of determinants; MLX differentiates those of small matrices."""
    return _log_determinant(x) if x.shape[-1] < 4 else _log_of_determinant(x)


def _lower_factor(x):
    if x.size == 0:
        return x
    lower = mx.linalg.cholesky((x + _transposed(x)) / 2, stream=mx.cpu)
    # MLX says nothing about a matrix that is not positive definite; such factors become NaN.
    is_definite = _reduced(mx.all, True, mx.diagonal(lower, axis1=-2, axis2=-1) > 0, axis=-1)
    return mx.where(is_definite[..., None, None], lower, mx.nan)


def _cholesky_gradient(x, cotangent, lower):
    """I. Murray, Differentiation of the Cholesky decomposition (2016)."""
    product = _transposed(lower) @ cotangent
    phi = (mx.tril(product) + mx.tril(product, -1)) / 2
    inverse = _inv(lower)
    full = _transposed(inverse) @ phi @ inverse
    return (full + _transposed(full)) / 2


_cholesky = _with_gradient(_lower_factor, _cholesky_gradient)


def _skew(x):
    return x - _transposed(x)


def _apart(x):
    """Differences of the elements of the last axis to divide by; see the gradient of `eigh`."""
    all_pairs = x[..., None, :] - x[..., None]
    limit = mx.abs(x).sum(-1)[..., None, None] * mx.finfo(x.dtype).eps
    all_pairs = mx.where(mx.abs(all_pairs) <= limit, mx.nan, all_pairs)
    return mx.where(mx.eye(x.shape[-1], dtype=mx.bool_), 1, all_pairs)


def _quotient(x, divisor):
    """x / divisor; 0 where x is."""
    return mx.where(x == 0, 0, x / divisor)


def _triangular_factors(a):
    """q and r of square or tall matrices. Columns of zeros leave what completes q as it is."""
    if a.size == 0:
        *batch, m, n = a.shape
        k = min(m, n)
        return mx.broadcast_to(mx.eye(m, k, dtype=a.dtype), (*batch, m, k)), mx.zeros((*batch, k, n), a.dtype)
    q, r = mx.linalg.qr(a, stream=mx.cpu)
    diagonal = mx.diagonal(r, 0, -2, -1)
    sign = (mx.sign(diagonal) + (diagonal == 0))[..., None, :]
    return q * sign, r * _transposed(sign)


def _triangular_gradient(a, cotangents, outputs):
    """S. F. Walter and L. Lehmann, Algorithmic differentiation of linear algebra functions (2018)."""
    (q, r), (to_q, to_r) = outputs, cotangents
    if q.size == 0:
        return mx.zeros_like(a)
    inner = r @ _transposed(to_r) - _transposed(to_q) @ q
    inner = mx.tril(inner) + _transposed(mx.tril(inner, -1))
    return _transposed(_solve(r, _transposed(to_q + q @ inner)))


_triangular = _with_gradient(_triangular_factors, _triangular_gradient)


def _orthogonal_factors(a, mode):
    """q and r with a diagonal of r that is not negative."""
    finite = _finite(a)
    a = mx.where(finite, a, 0)
    m, n = a.shape[-2:]
    if mode == "complete" and m > n:
        square = mx.concatenate((a, mx.zeros((*a.shape[:-1], m - n), a.dtype)), -1)
        q, r = _triangular(square)
        r = r[..., :n]
    else:
        q, r = _triangular(a[..., :m])
        r = mx.concatenate((r, _transposed(q) @ a[..., m:]), -1) if n > m else r
    return mx.where(finite, q, mx.nan), mx.where(finite, r, mx.nan)


def _symmetric_vectors(a):
    if a.size == 0:
        return mx.zeros(a.shape[:-1], a.dtype), a
    values, vectors = mx.linalg.eigh(a, stream=mx.cpu)
    return values, vectors * _signs(vectors)


def _symmetric_gradient(a, cotangents, outputs):
    (values, vectors), (to_values, to_vectors) = outputs, cotangents
    if a.size == 0:
        return mx.zeros_like(a)
    inner = to_values[..., None] * mx.eye(a.shape[-1], dtype=a.dtype)
    inner = inner + _quotient(_skew(_transposed(vectors) @ to_vectors) / 2, _apart(values))
    return vectors @ inner @ _transposed(vectors)


_symmetric = _with_gradient(_symmetric_vectors, _symmetric_gradient)


def _eigenvectors(a):
    """Eigenvalues and eigenvectors of the symmetric part of a."""
    finite = _finite(a)
    a = mx.where(finite, a, 0)
    values, vectors = _symmetric(a / 2 + _transposed(a) / 2)
    return mx.where(finite[..., 0], values, mx.nan), mx.where(finite, vectors, mx.nan)


def _thin_factors(a):
    *batch, m, n = a.shape
    k = min(m, n)
    if a.size == 0:
        return mx.zeros((*batch, m, k), a.dtype), mx.zeros((*batch, k), a.dtype), mx.zeros((*batch, k, n), a.dtype)
    u, s, vh = mx.linalg.svd(a, stream=mx.cpu)
    u, vh = _signed(u[..., :k], s, vh[..., :k, :])
    return u, s, vh


def _thin_gradient(a, cotangents, outputs):
    """J. Townsend, Differentiating the singular value decomposition (2016)."""
    (u, s, vh), (to_u, to_s, to_vh) = outputs, cotangents
    if a.size == 0:
        return mx.zeros_like(a)
    row, column = s[..., None, :], s[..., None]
    eye = mx.eye(s.shape[-1], dtype=mx.bool_)
    apart = mx.where(eye, 1, _apart(s) * (row + column))
    inner = to_s[..., None] * eye + _quotient(_skew(_transposed(u) @ to_u), apart) * row
    inner = inner + column * _quotient(_skew(vh @ _transposed(to_vh)), apart)
    found = u @ inner @ vh
    size = mx.where(s <= s.sum(-1, keepdims=True) * mx.finfo(s.dtype).eps, mx.nan, s)
    m, n = a.shape[-2:]
    if m > n:
        found = found + _quotient(to_u - u @ (_transposed(u) @ to_u), size[..., None, :]) @ vh
    if n > m:
        found = found + u @ _quotient(to_vh - (to_vh @ _transposed(vh)) @ vh, size[..., None])
    return found


_thin = _with_gradient(_thin_factors, _thin_gradient)


def _singular_vectors(a):
    """The reduced singular value decomposition."""
    finite = _finite(a)
    u, s, vh = _thin(mx.where(finite, a, 0))
    return mx.where(finite, u, mx.nan), mx.where(finite[..., 0], s, mx.nan), mx.where(finite, vh, mx.nan)
