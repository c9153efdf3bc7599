"""Factors of matrices, with the signs that the ops promise; a matrix with an element that is not finite gives NaN."""


def _finite(a):
    """Which matrices hold finite numbers only, [..., 1, 1]."""
    if a.size == 0:  # MLX may read beyond such an array, or never end
        return xp.ones((*a.shape[:-2], 1, 1), xp.bool_)
    return xp.isfinite(a).all(-1).all(-1)[..., None, None]


def _signs(columns):
    """The sign of the first element of each column that is not small, [..., 1, n]."""
    is_large = xp.where(abs(columns) > 0.63 / max(columns.shape[-2], 1) ** 0.5, 1, 0)
    is_first = is_large * xp.cumsum(is_large, -2) == 1
    return (xp.sign(columns) * is_first).sum(-2)[..., None, :]


def _qr(a, mode):
    """q and r with a diagonal of r that is not negative."""
    finite = _finite(a)
    a = xp.where(finite, a, 0)
    m, n = a.shape[-2:]
    # Columns beyond the m-th are q times those of r: so they have a derivative everywhere.
    q, r = xp.linalg.qr(a[..., :m], mode)
    diagonal = xp.diagonal(r, 0, -2, -1)
    sign = (xp.sign(diagonal) + (diagonal == 0))[..., None, :]
    k = min(m, n)
    r = xp.concatenate((r[..., :k, :] * xp.swapaxes(sign, -1, -2), r[..., k:, :]), -2)
    q = xp.concatenate((q[..., :k] * sign, q[..., k:]), -1)
    if n > m:
        r = xp.concatenate((r, xp.swapaxes(q, -1, -2) @ a[..., m:]), -1)
    return xp.where(finite, q, xp.nan), xp.where(finite, r, xp.nan)


def _eigh(a):
    """Eigenvalues and eigenvectors of the symmetric part of a."""
    finite = _finite(a)
    a = xp.where(finite, a, 0)
    values, vectors = xp.linalg.eigh(a / 2 + xp.swapaxes(a, -1, -2) / 2)
    return xp.where(finite[..., 0], values, xp.nan), xp.where(finite, vectors * _signs(vectors), xp.nan)


def _signed(u, s, vh):
    """Singular vectors whose signs u decides; where s is 0 up to rounding, each side for itself."""
    m, n = u.shape[-2], vh.shape[-1]
    sign, sign_v = _signs(u), _signs(xp.swapaxes(vh, -1, -2))
    is_zero = (s <= s[..., :1] * (max(m, n) * xp.finfo(s.dtype).eps))[..., None, :]
    return u * sign, vh * xp.swapaxes(xp.where(is_zero, sign_v, sign), -1, -2)


def _svd(a):
    """The reduced singular value decomposition."""
    finite = _finite(a)
    u, s, vh = xp.linalg.svd(xp.where(finite, a, 0), full_matrices=False)
    u, vh = _signed(u, s, vh)
    return xp.where(finite, u, xp.nan), xp.where(finite[..., 0], s, xp.nan), xp.where(finite, vh, xp.nan)
