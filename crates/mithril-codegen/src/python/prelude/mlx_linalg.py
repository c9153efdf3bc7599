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


_determinant = _with_gradient(lambda x: mx.linalg.det(x, stream=mx.cpu), _det_gradient)


def _det(x):
    """Determinants; MLX differentiates those of small matrices, also of singular ones."""
    return mx.linalg.det(x, stream=mx.cpu) if x.shape[-1] < 4 else _determinant(x)


def _log_determinant(x):
    return tuple(mx.linalg.slogdet(x, stream=mx.cpu))


_log_of_determinant = _with_gradient(
    _log_determinant, lambda x, cotangents, _: cotangents[1][..., None, None] * _transposed(_inv(x))
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
