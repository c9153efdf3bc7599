"""Factors of matrices from torch, with the signs that the ops promise."""

import torch


def signs(columns):
    """The sign of the first element of each column that is not small, written out one by one."""
    factors = torch.ones(*columns.shape[:-2], 1, columns.shape[-1], dtype=columns.dtype)
    if columns.numel() == 0:
        return factors
    m, n = columns.shape[-2:]
    for matrix, sign in zip(columns.detach().reshape(-1, m, n), factors.reshape(-1, n), strict=True):
        for j in range(n):
            large = [x for x in matrix[:, j].tolist() if abs(x) > 0.63 / m**0.5]
            sign[j] = -1.0 if large[0] < 0 else 1.0
    return factors


def qr(x, mode):
    q, r = torch.linalg.qr(x, mode)
    k = min(x.shape[-2:])
    sign = torch.ones(*q.shape[:-2], q.shape[-1], dtype=q.dtype)
    sign[..., :k] = torch.where(torch.diagonal(r, 0, -2, -1).detach() < 0, -1.0, 1.0)
    rows = torch.ones(r.shape[:-1], dtype=r.dtype)
    rows[..., :k] = sign[..., :k]
    return q * sign[..., None, :], r * rows[..., None]


def eigh(x):
    values, vectors = torch.linalg.eigh((x + x.mT) / 2)
    return values, vectors * signs(vectors)


def svd(x, full_matrices=False):
    u, s, vh = torch.linalg.svd(x, full_matrices=full_matrices)
    k = s.shape[-1]
    sign = signs(u[..., :k])
    u, vh = u[..., :k] * sign, vh[..., :k, :] * sign.mT
    return (complete(u), s, complete(vh.mT).mT) if full_matrices else (u, s, vh)


def complete(q):
    return torch.cat([q, torch.linalg.qr(q, "complete")[0][..., q.shape[-1] :]], -1)


def lstsq(a, b, rcond):
    vector = b.ndim == 1
    x = torch.linalg.pinv(a, rtol=rcond) @ (b[:, None] if vector else b)
    return x[..., 0] if vector else x


def matrix_norm(x, order, keepdim):
    order = order if isinstance(order, str) else float(order)
    if order in (2, -2, "nuc"):
        # torch.linalg.matrix_norm of symmetric tiny matrices and of empty ones has gradients of its own.
        s = torch.linalg.svdvals(x)
        result = s.sum(-1) if order == "nuc" else s.amax(-1) if order == 2 else s.amin(-1)
        return result[..., None, None] if keepdim else result
    return torch.linalg.matrix_norm(x, order, keepdim=keepdim)


def cond(x, p):
    if p is None or p in (2, -2):
        return torch.linalg.cond(x, p)
    # PyTorch changes the inverse in place, which its own gradient needs.
    order = p if isinstance(p, str) else float(p)
    return torch.linalg.matrix_norm(x, order) * torch.linalg.matrix_norm(torch.linalg.inv(x), order)


def cholesky_solve(b, factor, upper):
    vector = b.ndim == 1
    x = torch.cholesky_solve(b[:, None] if vector else b, factor.triu() if upper else factor.tril(), upper=upper)
    return x[..., 0] if vector else x


def solve_triangular(a, b, upper, transpose, unit):
    vector = b.ndim == 1
    left, upper = (a.mT, not upper) if transpose else (a, upper)
    x = torch.linalg.solve_triangular(left, b[:, None] if vector else b, upper=upper, unitriangular=unit)
    return x[..., 0] if vector else x


OPS = {
    "qr": qr,
    "eigh": eigh,
    "eigvalsh": lambda x: torch.linalg.eigvalsh((x + x.mT) / 2),
    "thin_svd": svd,
    "svd": svd,
    "svdvals": torch.linalg.svdvals,
    "lstsq": lstsq,
    "pinv": lambda x, rtol, atol: torch.linalg.pinv(x, rtol=rtol, atol=atol),
    "matrix_rank": lambda x, atol, rtol: torch.linalg.matrix_rank(x.detach(), rtol=rtol, atol=atol),
    "matrix_norm": matrix_norm,
    "cond": cond,
    "cholesky_solve": cholesky_solve,
    "cholesky_inverse": lambda x, upper: torch.cholesky_inverse(x.triu() if upper else x.tril(), upper=upper),
    "triangular_solve": lambda a, b, lower, transpose, unit: solve_triangular(a, b, not lower, transpose, unit),
    "solve_triangular": solve_triangular,
}
