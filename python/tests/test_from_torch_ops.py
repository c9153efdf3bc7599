"""Ops of PyTorch with conversions of their own: values and gradients against PyTorch, many ops in one program."""

import warnings

import mithril as ml
import numpy as np
import pytest
from mithril.errors import UnsupportedOpError

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional


def f(*shape, low=-2.0, high=2.0):
    """Numbers that are all distinct, in no order."""
    count = int(np.prod(shape))
    order = (np.arange(count) * 7919 + 13) % count if count % 7919 else np.arange(count)
    return torch.tensor((low + (high - low) * (order + 0.5) / max(count, 1)).reshape(shape), dtype=torch.float32)


def i(values, *shape):
    return torch.tensor(values).reshape(*shape) if shape else torch.tensor(values)


class Case(nn.Module):
    """A function of parameters and of other inputs."""

    def __init__(self, function, parameters):
        super().__init__()
        self.function = function
        self.values = nn.ParameterList(nn.Parameter(x.clone()) for x in parameters)

    def forward(self, *rest):
        return self.function(*self.values, *rest)


class Family(nn.Module):
    def __init__(self, cases):
        super().__init__()
        self.cases = nn.ModuleDict({name: Case(function, values) for name, (function, values, *_) in cases.items()})

    def forward(self, rest):
        return {name: case(*rest[name]) for name, case in self.cases.items()}


def numbers(x):
    """Tensors of one number, complex or of a complex one's shape."""
    made = [make(4, dtype=x.dtype) for make in (torch.zeros, torch.ones)]
    made += [torch.full((4,), 2 - 1j), torch.full_like(x, 3), torch.zeros_like(x, dtype=torch.float32)]
    made += [x.new_zeros(4), x.new_ones(4), x.new_full((4,), 0.5j)]
    return torch.cat([x * y + y for y in made])


def likes(x):
    return x * torch.ones_like(x) + torch.zeros_like(x)


def low_modes(x):
    """The first of a spectrum, as Fourier neural operators take them."""
    y = torch.zeros(3, x.shape[1], dtype=torch.cfloat)
    y[:, :3] = x[:, :3] * (1 + 2j)
    return y


def complex_of(x):
    return torch.view_as_complex(x)


def real_of(x):
    return torch.view_as_real(x)


def assigned(x, row):
    """Real numbers into rows of complex ones."""
    x = complex_of(x).clone()
    x[1] = row
    return real_of(x)


IDS = i([1, 3, 2, 0, 4, 4, 1, 2])
SPOTS = i([0, 2, 1, 1, 0, 2, 2, 0, 1, 1, 1, 0], 4, 3)

COMPLEXES = {
    # For a negative radius PyTorch has the wrong sign of the gradient.
    "polar": (lambda r, a: real_of(torch.polar(r, a)), [f(2, 3, low=0.2), f(2, 3)]),
    "complex": (lambda a, b: real_of(torch.complex(a, b) * 2.0), [f(2, 3), f(2, 3)]),
    "product": (lambda a, b: real_of(complex_of(a) * complex_of(b)[None]), [f(2, 3, 2), f(3, 2)]),
    "quotient": (lambda a, b: real_of(complex_of(a) / complex_of(b)), [f(3, 2), f(3, 2, low=1)]),
    "number": (lambda a: real_of(complex_of(a) * (1 + 2j) - 1j), [f(3, 2)]),
    "abs": (lambda a: complex_of(a).abs(), [f(3, 2)]),
    "angle": (lambda a: complex_of(a).angle(), [f(3, 2)]),
    "conj": (lambda a: real_of((complex_of(a).conj() * complex_of(a)).resolve_conj()), [f(3, 2)]),
    "rotary": (
        lambda x, a: real_of(complex_of(x.reshape(2, 5, 4, 2)) * torch.polar(torch.ones_like(a), a)[None]).flatten(2),
        [f(2, 5, 8), f(5, 4)],
    ),
    "moved": (lambda a: real_of(torch.cat([complex_of(a).transpose(0, 1), complex_of(a).t()])[1:]), [f(3, 4, 2)]),
    "matmul": (lambda a, b: real_of(complex_of(a) @ complex_of(b)), [f(3, 4, 2), f(4, 2, 2)]),
    "exp": (lambda a: real_of(torch.exp(complex_of(a))), [f(3, 2)]),
    "sum": (lambda a: real_of(complex_of(a).sum(0)), [f(3, 4, 2)]),
    "padded": (lambda a: real_of(F.pad(complex_of(a), (1, 2))), [f(3, 4, 2)]),
    "padded_with": (lambda a: real_of(F.pad(complex_of(a), (1, 2), value=3.0)), [f(3, 4, 2)]),
    "mixed_cat": (lambda a, b: real_of(torch.cat([complex_of(a), b])), [f(3, 4, 2)], [f(2, 4)]),
    "mixed_where": (lambda a, b: real_of(torch.where(b > 0, complex_of(a), b)), [f(3, 4, 2)], [f(3, 4)]),
    "where": (lambda a, b: real_of(torch.where(b > 0, complex_of(a), 2.0)), [f(3, 4, 2), f(3, 4)]),
    "masked": (lambda a, b: real_of(complex_of(a).masked_fill(b > 0, 2.0)), [f(3, 4, 2), f(3, 4)]),
    "masked_with": (lambda a, b: real_of(complex_of(a).masked_fill(b > 0, 2 - 1j)), [f(3, 4, 2), f(3, 4)]),
    "assigned": (assigned, [f(3, 4, 2)], [f(4)]),
    "indexed": (lambda a, rows: real_of(complex_of(a)[rows]), [f(3, 4, 2)], [i([2, 0])]),
    "log": (lambda a: real_of(torch.log(complex_of(a))), [f(3, 4, 2)]),
    "sqrt": (lambda a: real_of(torch.sqrt(complex_of(a))), [f(3, 4, 2)]),
    "norm": (lambda a: torch.linalg.vector_norm(complex_of(a), dim=0), [f(3, 4, 2)]),
    "equal": (lambda a: torch.where(complex_of(a) == complex_of(a.flip(0)), a[..., 0], 0.0), [f(3, 4, 2)]),
    "not_equal": (lambda a: torch.where(complex_of(a) != complex_of(a.flip(0)), a[..., 1], 0.0), [f(3, 4, 2)]),
    "filled": (lambda a: real_of(numbers(complex_of(a))), [f(3, 4, 2)]),
    "mode": (lambda a: torch.fft.irfft(low_modes(torch.fft.rfft(a)), n=9), [f(3, 9)]),
    "likes": (
        lambda a: real_of(complex_of(a) * torch.ones_like(complex_of(a)) + torch.zeros_like(complex_of(a))),
        [f(3, 2)],
    ),
    "to_device": (lambda a: real_of(complex_of(a).to("cpu") * 2.0), [f(3, 2)]),
    "to_layout": (lambda a: real_of(complex_of(a).to(torch.device("cpu"), copy=True) * 2.0), [f(3, 2)]),
    "to_precision": (lambda a: real_of(complex_of(a).to(torch.complex128) * 2.0), [f(3, 2)]),
    "to_real": (lambda a: complex_of(a).to(torch.float64), [f(3, 2)]),
    "to_bool": (lambda a: complex_of((a > 0).float() * a).to(torch.bool), [f(5, 2)]),
    "to_complex": (lambda a, x: real_of(x.type_as(complex_of(a)) * complex_of(a)), [f(3, 2)], [f(3)]),
    "real_imag": (lambda a: complex_of(a).real * complex_of(a).imag, [f(3, 2)]),
}
FOURIER = {
    "fft": (lambda x: real_of(torch.fft.fft(x)), [f(2, 6)]),
    "fft_size": (lambda x: real_of(torch.fft.fft(x, n=4, dim=0, norm="ortho")), [f(6, 2)]),
    "ifft": (lambda x: real_of(torch.fft.ifft(complex_of(x))), [f(5, 2)]),
    "fft2": (lambda x: torch.fft.fft2(x).real, [f(2, 4, 3)]),
    "ifft2": (lambda x: torch.fft.ifft2(torch.fft.fft2(x)).real, [f(2, 4, 3)]),
    "rfft": (lambda x: real_of(torch.fft.rfft(x)), [f(2, 7)]),
    "irfft": (lambda x: torch.fft.irfft(complex_of(x)), [f(2, 4, 2)]),
    "irfft_odd": (lambda x: torch.fft.irfft(complex_of(x), n=7, norm="forward"), [f(2, 4, 2)]),
    "rfft2": (lambda x: real_of(torch.fft.rfft2(x, norm="ortho")), [f(2, 4, 6)]),
    "irfft2": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2, s=(4, 6)), [f(2, 4, 6)]),
    "rfftn": (lambda x: torch.fft.irfftn(torch.fft.rfftn(x, dim=(1, 2)), dim=(1, 2), s=(4, 5)), [f(2, 4, 5)]),
    "hfft": (lambda x: (torch.fft.hfft(x), torch.fft.hfft2(x, dim=(1, 0))), [f(4, 5)]),
    "shift": (lambda x: torch.fft.ifftshift(torch.fft.fftshift(x, dim=1) * x, dim=(0, 1)), [f(4, 5)]),
    "mixing": (lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, [f(2, 4, 6)]),
}
ORDERS = {
    "cummax": (lambda x: tuple(torch.cummax(x, 1)), [f(3, 6)]),
    "cummin": (lambda x: tuple(torch.cummin(x, 0)), [f(3, 6)]),
    "median": (lambda x: torch.median(x), [f(3, 6)]),
    "median_dim": (lambda x: tuple(torch.median(x, 1)), [f(3, 6)]),
    "median_odd": (lambda x: tuple(x.median(0, keepdim=True)), [f(3, 6)]),
    "nanmedian": (lambda x, m: tuple(torch.where(m, x, float("nan")).nanmedian(1)), [f(3, 6)], [f(3, 6) > -1.0]),
    "median_nan": (lambda x, m: torch.where(m, x, float("nan")).median(1)[1], [f(3, 6)], [f(3, 6) > -1.6]),
    "median_integers": (lambda x: (x.median(), *x.median(1)), [], [i([5, 1, 4, 8, 0, 9], 2, 3)]),
    "mode": (lambda x: (*x.round().mode(0), *x.round().mode(1, keepdim=True)), [f(5, 6)]),
    "scalar": (
        lambda x: (x.softmax(0), x.max(0)[0], x.logsumexp(0), x.norm(2, 0), x.cumsum(0), x.topk(1)[0]),
        [f(1)[0]],
    ),
    "scalar_order": (
        lambda x: (*x.sort(0), x.argsort(), x.flip(0), *x.median(0), *x.kthvalue(1, 0), *x.cummax(0), x.movedim(0, 0)),
        [f(1)[0]],
    ),
    "scalar_indices": (
        lambda x, n, y: (
            x.gather(0, n),
            x.index_select(0, n[None]),
            x.take_along_dim(n[None]),
            x.scatter(0, n, y),
            x.scatter(-1, n, 3.0),
            x.scatter_add(0, n, y),
            x.scatter_reduce(0, n, y, "amax"),
            x.index_fill(0, n[None], 2.0),
            x.index_copy(0, n[None], y[None]),
        ),
        [f(1)[0]],
        [i(0), f(1)[0]],
    ),
    "take_along_all": (lambda x, n: x.take_along_dim(n), [f(2, 3)], [i([[4, 0], [1, 5]])]),
    "kthvalue": (lambda x: tuple(torch.kthvalue(x, 2, 1)), [f(3, 6)]),
    "kthvalue_kept": (lambda x: tuple(x.kthvalue(3, 0, keepdim=True)), [f(3, 6)]),
    "sort": (lambda x: tuple(x.sort(1, descending=True)), [f(3, 6)]),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x * 40, 1), [f(3, 6)]),
    "logcumsumexp_infinite": (
        lambda x: torch.logcumsumexp(x, 0),
        [],
        [i([-float("inf"), -float("inf"), 1.0, -float("inf"), 2.0])],
    ),
    "msort": (lambda x: torch.msort(x), [f(4, 3)]),
    "searchsorted": (
        lambda s, v: (torch.searchsorted(s, v), torch.searchsorted(s, v, right=True, out_int32=True)),
        [],
        [i([1.0, 2.0, 2.0, 5.0]), i([0.0, 2.0, 2.5, 5.0, 7.0])],
    ),
    "searchsorted_rows": (
        lambda s, v: torch.searchsorted(s, v, side="right"),
        [],
        [i([1.0, 2.0, 4.0, 0.0, 3.0, 3.0], 2, 3), i([2.0, 0.5, 3.0, 9.0], 2, 2)],
    ),
    "bucketize": (lambda v, s: torch.bucketize(v, s), [], [f(3, 4), i([-1.0, 0.0, 0.5])]),
    "bincount": (
        lambda x: torch.bincount(x, minlength=6)[:6],
        [],
        [i([0, 1, 1, 3, 5, 5])],
    ),
}


def put(x, key, values):
    """Return `x` with `values` at a place."""
    x = x.clone()
    x[key] = values
    return x


SCATTERS = {
    **{
        f"scatter_reduce_{mode}_{'with' if is_included else 'without'}": (
            lambda x, s, k, mode=mode, is_included=is_included: x.scatter_reduce(
                0, k, s, reduce=mode, include_self=is_included
            ),
            [f(3, 3), f(4, 3, low=-1.5, high=1.7)],
            [SPOTS],
        )
        for mode in ("sum", "prod", "mean", "amax", "amin")
        for is_included in (True, False)
    },
    "scatter_mode": (lambda x, s, k: x.scatter(0, k, s, reduce="add"), [], [f(3, 3), f(4, 3), SPOTS]),
    "scatter_value": (lambda x, k: x.scatter(0, k, 1.5, reduce="multiply"), [], [f(3, 3), SPOTS]),
    "index_fill": (lambda x, k: x.index_fill(1, k, -1.0), [f(3, 4)], [i([0, 3])]),
    "index_reduce": (lambda x, s, k: x.index_reduce(0, k, s, "mean"), [f(3, 4), f(5, 4)], [i([0, 2, 2, 1, 0])]),
    "masked_scatter": (lambda x, s, m: x.masked_scatter(m, s), [f(3, 4), f(12)], [f(3, 4) > 0]),
    "mask_of_rows": (lambda x, v: x.index_put((x[:, 0] > 0,), v), [f(5, 3), f(3)]),
    "mask_added": (lambda x, v: x.index_put((x[..., 0] > 0,), v, accumulate=True), [f(2, 3, 4), f(1, 4)]),
    "mask_of_all_axes": (lambda x, v: x.index_put((x > 0,), v), [f(3, 4), f(1)]),
    "mask_of_inner_axes": (lambda x, v: put(x, (slice(None), x[0, ..., 0] > 0), v), [f(2, 3, 4, 5), f(2, 1, 5)]),
    "mask_of_the_last_axis": (lambda x, v: put(x, (slice(None), x[0] > 0), v), [f(4, 5), f(4, 1)]),
    "put": (lambda x, s, k: x.put(k, s, accumulate=True), [f(3, 4), f(2)], [i([5, 5])]),
    "take": (lambda x, k: x.take(k), [f(3, 4)], [i([[5, 11], [0, 5]])]),
    "diagonal_scatter": (lambda x, s: x.diagonal_scatter(s, -1, 1, 0), [f(3, 4), f(3)]),
    "scatter_add_part": (lambda x, s, k: x.scatter_add(0, k, s), [f(5, 4)], [f(3, 3), SPOTS[:2, :2]]),
    "masked_scatter_rows": (lambda x, s, m: x.masked_scatter(m, s), [f(3, 4), f(12)], [f(4) > 0]),
    "pdist": (lambda x: (F.pdist(x), F.pdist(x, 1.0)), [f(5, 3)]),
    "as_strided": (lambda x: x.as_strided((3, 2, 2), (4, 2, 1), 1), [f(4, 4)]),
    "as_strided_overlap": (lambda x: x.as_strided((5, 4), (1, 1)), [f(9)]),
    "as_strided_transposed": (lambda x: x.t().as_strided((2, 3), (1, 5), 2), [f(4, 5)]),
    "as_strided_part": (lambda x: x[1:].as_strided((3, 3), (3, 1)), [f(4, 3)]),
    "as_strided_view": (lambda x: x.as_strided((2, 6), (6, 1)) * 2, [f(3, 4)]),
    "bag_sum": (lambda w, k, o: F.embedding_bag(k, w, o, mode="sum"), [f(5, 3)], [IDS, i([0, 2, 2, 5])]),
    "bag_mean": (lambda w, k, o: F.embedding_bag(k, w, o), [f(5, 3)], [IDS, i([0, 2, 2, 5])]),
    # The last row is left out.
    "bag_padding_from_the_end": (
        lambda w, k, o: F.embedding_bag(k, w, o, padding_idx=-1),
        [f(5, 3)],
        [IDS, i([0, 2, 2, 5])],
    ),
    "bag_max": (lambda w, k, o: F.embedding_bag(k, w, o, mode="max"), [f(5, 3)], [IDS, i([0, 2, 2, 5])]),
    "bag_weighted": (
        lambda w, p, k, o: F.embedding_bag(k, w, o, mode="sum", per_sample_weights=p),
        [f(5, 3), f(8)],
        [IDS, i([0, 2, 2, 5])],
    ),
    "bag_padding": (lambda w, k, o: F.embedding_bag(k, w, o, padding_idx=4), [f(5, 3)], [IDS, i([0, 2, 2, 5])]),
    "bag_last_offset": (
        lambda w, k, o: F.embedding_bag(k, w, o, mode="sum", include_last_offset=True),
        [f(5, 3)],
        [IDS, i([0, 2, 2, 8])],
    ),
    "bag_rows": (lambda w, k: F.embedding_bag(k, w), [f(5, 3)], [IDS.reshape(2, 4)]),
    "cdist": (lambda x, y: torch.cdist(x, y), [f(3, 4), f(5, 4, low=-1)]),
    "cdist_one": (lambda x, y: torch.cdist(x, y, p=1.0), [f(2, 3, 4), f(2, 5, 4, low=-1)]),
    "cdist_largest": (lambda x, y: torch.cdist(x, y, p=float("inf")), [f(3, 4), f(5, 4, low=-1)]),
    "cond_of_a_constant": (
        lambda x, y: torch.cond(torch.tensor(True), lambda a, b: a * b, lambda a, b: a - b, (x, y)),
        [f(3), f(3)],
    ),
}
WINDOWS = {
    "conv_image": (lambda x, w: F.conv2d(x, w, padding=1), [f(3, 5, 6), f(4, 3, 3, 3)]),
    "conv_same_image": (lambda x, w: F.conv1d(x, w, padding="same"), [f(3, 6), f(4, 3, 3)]),
    "transposed_image": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [f(3, 3, 4), f(3, 2, 3, 3)]),
    "pools_image": (
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 2), F.lp_pool2d(x + 3, 2, 2)),
        [f(3, 5, 6)],
    ),
    "places": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), [f(2, 3, 7, 6)]),
    "places_dilated": (
        lambda x: F.max_pool2d(x, (3, 2), 2, 1, (2, 1), ceil_mode=True, return_indices=True),
        [f(2, 3, 8, 7)],
    ),
    "places_line": (lambda x: F.max_pool1d(x, 3, 2, return_indices=True), [f(3, 7)]),
    "places_volume": (lambda x: F.max_pool3d(x, 2, return_indices=True), [f(1, 2, 4, 4, 5)]),
    "adaptive": (lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), [f(2, 3, 7, 6)]),
    "adaptive_line": (lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True), [f(3, 7)]),
    "adaptive_volume": (
        lambda x: (*F.adaptive_max_pool3d(x, 2, return_indices=True), F.adaptive_avg_pool3d(x, (2, 3, None))),
        [f(1, 2, 3, 4, 5)],
    ),
    "beyond_the_image": (
        lambda x: (
            F.avg_pool2d(x, 5000, ceil_mode=True),
            F.avg_pool2d(x, (5000, 3), (6000, 2), ceil_mode=True),
            F.max_pool2d(x, (4, 5000), ceil_mode=True),
            F.avg_pool1d(x[:, 0], 9000, 8997, ceil_mode=True),
        ),
        [f(2, 3, 6, 7)],
    ),
    "divisor": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5), [f(2, 3, 6, 7)]),
    "unpool": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(5, 6)),
        [f(2, 3, 5, 6)],
    ),
    "unpool_line": (lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2), [f(2, 3, 6)]),
    "unpool_volume": (lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2), [f(1, 2, 4, 4, 2)]),
    "fractional": (
        lambda x, s: F.fractional_max_pool2d(x, (2, 3), (3, 2), return_indices=True, _random_samples=s),
        [f(2, 3, 7, 8)],
        [f(2, 3, 2, low=0.0, high=1.0)],
    ),
    "fractional_volume": (
        lambda x, s: F.fractional_max_pool3d(x, 2, (3, 2, 1), return_indices=True, _random_samples=s),
        [f(2, 3, 5, 6, 3)],
        [f(2, 3, 3, low=0.0, high=1.0)],
    ),
    "bilinear": (lambda x, y, w, b: F.bilinear(x, y, w, b), [f(2, 5, 3), f(2, 5, 4), f(6, 3, 4), f(6)]),
    "pad_negative": (
        lambda x: tuple(F.pad(x, (2, -1, -2, 1), mode=mode) for mode in ("reflect", "replicate", "circular")),
        [f(1, 2, 5, 6)],
    ),
    "grid_volume": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        [f(1, 2, 3, 3, 4), f(1, 2, 2, 3, 3, high=1)],
    ),
}


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


SYMMETRIC = f(4, 4) @ f(4, 4).T + torch.eye(4)
LINALG = {
    "inv": (lambda x: torch.linalg.inv(x), [SYMMETRIC]),
    "cholesky": (lambda x: torch.linalg.cholesky(x), [SYMMETRIC]),
    "cholesky_upper": (lambda x: torch.linalg.cholesky(x, upper=True), [SYMMETRIC]),
    "cholesky_solve": (lambda x, y: torch.cholesky_solve(y, torch.linalg.cholesky(x)), [SYMMETRIC, f(4, 2)]),
    "cholesky_inverse": (lambda x: torch.cholesky_inverse(torch.linalg.cholesky(x)), [SYMMETRIC]),
    "det": (lambda x: torch.linalg.det(x) + torch.logdet(x), [SYMMETRIC]),
    "slogdet": (lambda x: torch.linalg.slogdet(-x[:3, :3])[1], [SYMMETRIC]),
    # Signs of factors may differ; what does not depend on them does not.
    "qr": (lambda x: torch.linalg.qr(x)[1].abs(), [SYMMETRIC[:, :3]]),
    "svdvals": (lambda x: torch.linalg.svdvals(x), [f(4, 4) @ f(4, 3)]),
    "svd_values": (lambda x: torch.linalg.svd(x)[1], [SYMMETRIC[:3]]),
    "svd": (lambda x: (lambda u, s, v: u @ torch.diag(s.sqrt()) @ v)(*torch.linalg.svd(x, False)), [SYMMETRIC[:3]]),
    "svd_old": (lambda x: (lambda u, s, v: u * s[None] @ v.T)(*torch.svd(x)), [SYMMETRIC[:3]]),
    "eigvalsh": (lambda x: torch.linalg.eigvalsh(x), [SYMMETRIC]),
    "eigh": (lambda x: (lambda w, v: v @ torch.diag(w.log()) @ v.T)(*torch.linalg.eigh(x)), [SYMMETRIC]),
    "pinv": (lambda x: torch.linalg.pinv(x), [SYMMETRIC[:3]]),
    "solve": (lambda x, y: torch.linalg.solve(x, y), [SYMMETRIC, f(4, 2)]),
    "solve_vectors": (lambda x, y: torch.linalg.solve(torch.stack([x, x + torch.eye(4)]), y), [SYMMETRIC, f(2, 4)]),
    "solve_right": (lambda x, y: torch.linalg.solve(x, y, left=False), [SYMMETRIC, f(2, 4)]),
    "solve_triangular": (lambda x, y: torch.linalg.solve_triangular(x.triu(), y, upper=True), [SYMMETRIC, f(4, 2)]),
    "solve_triangular_right": (
        lambda x, y: torch.linalg.solve_triangular(x.tril(), y, upper=False, left=False),
        [SYMMETRIC, f(2, 4)],
    ),
    "matrix_norm": (lambda x: torch.linalg.matrix_norm(x, 2), [SYMMETRIC]),
    "matrix_exp": (
        lambda x: torch.linalg.matrix_exp(x * 0.3) + torch.matrix_exp(torch.stack([-x, x / 9]))[1],
        [SYMMETRIC],
    ),
    "lu": (lambda x: torch.linalg.lu(x), [drawn(4, 4)]),
    "lu_wide": (lambda x: torch.linalg.lu(x)[1:], [drawn(2, 3, 5)]),
    "lu_tall": (lambda x: torch.linalg.lu_factor(x), [drawn(5, 3)]),
    "lu_unpack": (lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x)), [drawn(2, 4, 4)]),
    "lu_solve": (lambda x, y: torch.linalg.lu_solve(*torch.linalg.lu_factor(x), y), [drawn(4, 4), f(4, 2)]),
    "lu_solve_transposed": (
        lambda x, y: torch.linalg.lu_solve(*torch.linalg.lu_factor(x), y, left=False, adjoint=True),
        [drawn(4, 4), f(2, 4)],
    ),
    "lu_solve_right": (
        lambda x, y: torch.linalg.lu_solve(*torch.linalg.lu_factor(x), y, left=False),
        [drawn(4, 4), f(2, 4)],
    ),
    "householder": (lambda x, t: torch.linalg.householder_product(x, t), [drawn(2, 5, 3), f(2, 3)]),
    "tensorinv": (lambda x: torch.linalg.tensorinv(x.reshape(4, 2, 2), ind=1), [SYMMETRIC]),
    "addbmm": (lambda x, y: torch.addbmm(x[0], x, y, beta=0.5), [f(3, 4, 4), f(3, 4, 4)]),
    # PyTorch writes the check of the matrix with effects when it decomposes the program.
    "decomposed": (lambda x: torch.linalg.tensorsolve(x, x[0]) * torch.sinc(x[0]), [SYMMETRIC]),
}
SPECIAL = {
    "i0": (
        lambda x: (torch.special.i0(x), torch.special.i0e(x * 9), torch.special.i1(x), torch.special.i1e(x * 9)),
        [f(9)],
    ),
    "polygamma": (lambda x: tuple(torch.polygamma(n, x) for n in range(4)), [f(9, low=0.3, high=6)]),
    "zeta": (lambda x: torch.special.zeta(x + 0.2, x), [], [f(9, low=1, high=6)]),
    "normal": (
        lambda x: (torch.special.log_ndtr(x * 9), torch.special.ndtr(x), torch.special.ndtri((x + 2) / 4)),
        [f(9)],
    ),
    "erfcx": (lambda x: (torch.special.erfcx(x), torch.special.entr(x + 2.1)), [f(9)]),
    "xlogy": (lambda x, y: (torch.xlogy(x, y), torch.special.xlog1py(x, y), torch.xlogy(2, y)), [f(5), f(5, low=0.1)]),
    "xlogy_zero": (lambda x, y: torch.xlogy(x, y), [], [i([0.0, 0.0, 0.0, 2.0]), i([0.0, float("nan"), -1.0, 0.0])]),
    "signs": (
        lambda x, y: (torch.copysign(x, y), torch.signbit(y), torch.copysign(x, -2.0)),
        [],
        [f(6), i([0.0, -0.0, -float("inf"), float("inf"), -1.0, 1.0])],
    ),
    "frexp": (
        lambda x: (*torch.frexp(x), torch.ldexp(x, torch.tensor([-1, 0, 3, 2, 1, 1]))),
        [],
        [i([0.0, 1.0, -0.25, 5.0, 2.0**-120, float("inf")])],
    ),
    "round": (lambda x: (torch.round(x, decimals=1), torch.round(x * 100, decimals=-1)), [], [f(7)]),
    "hypot": (lambda x, y: (torch.hypot(x, y), torch.dist(x, y, 3)), [f(5), f(5, low=1)]),
    "shifts": (lambda a, b: (a << b, a >> b, a.div(b + 1, rounding_mode="trunc")), [], [i([5, -7, 8]), i([1, 2, 3])]),
    "lgamma": (lambda x: torch.lgamma(x), [f(40, low=-6.3, high=9.2)]),
    "lgamma_large": (lambda x: torch.lgamma(x * 1e4), [f(5, low=1, high=9)]),
    "lgamma_poles": (lambda x: torch.lgamma(x), [], [i([0.0, -1.0, -3.0, 1.0, 2.0, float("inf"), -float("inf")])]),
    "digamma": (lambda x: torch.digamma(x), [f(40, low=-6.3, high=9.2)]),
    "digamma_poles": (lambda x: torch.digamma(x), [], [i([-1.0, -3.0, 1.0, 1e6])]),
    "exp2": (lambda x: torch.exp2(x), [f(5)]),
    "frac": (lambda x: torch.frac(x), [f(7)]),
    "tanhshrink": (lambda x: F.tanhshrink(x), [f(7)]),
    "fmax": (lambda x, y: torch.fmax(x, y) * torch.fmin(y, x), [f(5), f(5, low=-1)]),
    "fmax_nan": (
        lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)),
        [],
        [i([1.0, float("nan"), 2.0, float("nan")]), i([float("nan"), 3.0, 1.0, float("nan")])],
    ),
    "stft": (
        lambda x: real_of(torch.stft(x, 8, return_complex=True, window=torch.hann_window(8))),
        [f(2, 32)],
    ),
    "istft": (
        lambda x: torch.istft(torch.stft(x, 8, return_complex=True, window=torch.ones(8)) * 2, 8, window=torch.ones(8)),
        [f(2, 32)],
    ),
    "antialias": (
        lambda x: (
            F.interpolate(x, (3, 9), mode="bilinear", antialias=True),
            F.interpolate(x, (9, 2), mode="bicubic", antialias=True, align_corners=True),
            F.interpolate(x, scale_factor=(0.4, 1.7), mode="bicubic", antialias=True),
            F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True, recompute_scale_factor=True),
        ),
        [f(2, 2, 7, 5)],
    ),
    "unfold": (lambda x: x.unfold(1, 3, 2).unfold(0, 2, 1), [f(4, 7)]),
    # No gradient comes out of the branch that is not taken, infinite or not.
    "cond": (
        lambda x, p: torch.cond(p.any(), lambda a: a * 2, lambda a: (a - a.detach()).sqrt() + a, (x,)),
        [f(4)],
        [i([True, False])],
    ),
    "cond_else": (
        lambda x, y, p: torch.cond(p.any(), lambda a, b: (a * b, a + 1), lambda a, b: (a - b, b.sin()), (x, y)),
        [f(4), f(4)],
        [i([False, False])],
    ),
}
CLASSES = i([2, 0, -100, 1])
LOSSES = {
    # Numbers at 0, and where squares are too small or too large to be floats.
    "sinc": (torch.sinc, [torch.tensor([-2.0, 0.0, 0.5, 1.0])]),
    "atan2": (torch.atan2, [torch.tensor([0.0, 0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0, -1.0])]),
    # On the bounds no gradient flows, as in PyTorch.
    "hard_tanh": (F.hardtanh, [torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])]),
    "relu6": (lambda a: F.hardtanh(a, 0.0, 6.0), [torch.tensor([-1.0, 0.0, 3.0, 6.0, 7.0])]),
    "mse": (lambda a, b: F.mse_loss(a, b), [f(3, 4), f(3, 4, low=-1)]),
    "mse_none": (lambda a, b: F.mse_loss(a, b, reduction="none"), [f(3, 4), f(3, 4, low=-1)]),
    "l1": (lambda a, b: F.l1_loss(a, b, reduction="sum"), [f(3, 4), f(3, 4, low=-1)]),
    "huber": (lambda a, b: F.huber_loss(a, b, delta=0.7), [f(3, 4), f(3, 4, low=-1)]),
    "smooth_l1": (lambda a, b: F.smooth_l1_loss(a, b, beta=0.5), [f(3, 4), f(3, 4, low=-1)]),
    # Probabilities that are 0 or 1, right and wrong.
    "binary": (F.binary_cross_entropy, [torch.tensor([0.0, 1.0, 0.5, 0.25])], [torch.tensor([0.0, 1.0, 1.0, 0.5])]),
    "binary_weight": (
        lambda a, t, w: F.binary_cross_entropy(a, t, w, reduction="sum"),
        [f(2, 3, low=0.1, high=0.9)],
        [f(2, 3, low=0, high=1), f(3, low=0.5)],
    ),
    "logits": (
        lambda a, t, w, p: F.binary_cross_entropy_with_logits(a, t, w, pos_weight=p),
        [f(2, 3, low=-20, high=20)],
        [f(2, 3, low=0, high=1), f(3, low=0.5), f(3, low=0.5)],
    ),
    "kl": (lambda a, t: F.kl_div(a, t, reduction="batchmean"), [f(3, 4)], [f(3, 4, low=0.1)]),
    "kl_log": (lambda a, t: F.kl_div(a, t, reduction="sum", log_target=True), [f(3, 4), f(3, 4, low=-1)]),
    "nll": (lambda a, w, t: F.nll_loss(a, t, w), [f(4, 3)], [f(3, low=0.5), CLASSES]),
    "nll_pixels": (
        lambda a, t: F.nll_loss(a, t, ignore_index=1, reduction="none"),
        [f(2, 3, 2, 2)],
        [i([0, 1, 2, 2, 1, 0, 0, 2], 2, 2, 2)],
    ),
    "classes": (
        lambda a, w, t: F.cross_entropy(a, t, w, label_smoothing=0.1),
        [f(4, 3)],
        [f(3, low=0.5), CLASSES],
    ),
    "probabilities": (lambda a, t: F.cross_entropy(a, t.softmax(1), reduction="sum"), [f(4, 3)], [f(4, 3, low=0)]),
}
FAMILIES = {
    "losses": LOSSES,
    "linalg": LINALG,
    "special": SPECIAL,
    "complexes": COMPLEXES,
    "fourier": FOURIER,
    "orders": ORDERS,
    "scatters": SCATTERS,
    "windows": WINDOWS,
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """Model, parameters, inputs, and PyTorch's outputs and gradients."""
    cases = FAMILIES[request.param]
    module = Family(cases)
    rest = {name: list(case[2]) if len(case) > 2 else [] for name, case in cases.items()}
    model, params = ml.from_torch(module, (rest,))
    data = {f"rest_{name}_{i}": x.numpy() for name, xs in rest.items() for i, x in enumerate(xs)}
    outputs = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = module(rest)
    for name, value in results.items():
        several = value if isinstance(value, tuple) else (value,)
        outputs |= {name if len(several) == 1 else f"{name}_{i}": x for i, x in enumerate(several)}
    directions = {
        name: torch.linspace(-1, 1.5, x.numel()).reshape(x.shape) for name, x in outputs.items() if x.requires_grad
    }
    sum((outputs[name] * direction).nan_to_num().sum() for name, direction in directions.items()).backward()
    gradients = {name: p.grad for name, p in module.named_parameters()}
    return model, params, data, outputs, directions, gradients


@pytest.mark.parametrize("backend", ["numpy", "c"])
def test_values_and_gradients_are_those_of_pytorch(family, backend):
    model, params, data, outputs, directions, gradients = family
    compiled = ml.compile(model, ml.get_backend(backend))
    result, grads = compiled.evaluate(params, data, {name: d.numpy() for name, d in directions.items()})
    wrong = []
    for name, right in [*outputs.items(), *gradients.items()]:
        value = result[name] if name in outputs else grads[name]
        right = (torch.zeros(params[name].shape) if right is None else right).detach().resolve_conj().numpy()
        value = np.asarray(value)
        same = value.shape == right.shape and value.dtype == right.dtype
        if not same or not np.allclose(value, right, rtol=1e-4, atol=2e-5, equal_nan=True):
            wrong.append(
                f"{name}: {value.dtype}{value.shape} {value.ravel()[:8]}, "
                f"not {right.dtype}{right.shape} {right.ravel()[:8]}"
            )
    assert not wrong, "\n".join(wrong)


def test_special_functions_are_exact_in_float64():
    scipy = pytest.importorskip("scipy.special")
    x = np.concatenate([np.linspace(-12, 12, 401), [-700.0, -30.0, 8.0, -8.0, 0.0, 1e-9, 40.0, 600.0]])
    size = np.abs(x) + 1e-3
    p = np.concatenate([np.logspace(-300, -0.01, 300), 1 - np.logspace(-15, -0.5, 50), [0.0, 0.14, 0.5, 1.0, 2.0]])
    functions = {
        "i0e": (torch.special.i0e, scipy.i0e, x),
        "i1e": (torch.special.i1e, scipy.i1e, x),
        "erfcx": (torch.special.erfcx, scipy.erfcx, x[x > -20]),
        "log_ndtr": (torch.special.log_ndtr, scipy.log_ndtr, x),
        "ndtri": (torch.special.ndtri, scipy.ndtri, p),
        "trigamma": (lambda x: torch.polygamma(1, x), lambda x: scipy.polygamma(1, x), size),
        "polygamma": (lambda x: torch.polygamma(4, x), lambda x: scipy.polygamma(4, x), size),
        "reflected": (lambda x: torch.polygamma(2, x), lambda x: scipy_derivative(x), np.array([-0.3, -2.7])),
        "zeta": (lambda x: torch.special.zeta(2.5, x), lambda x: scipy.zeta(2.5, x), size),
    }

    def scipy_derivative(x):
        # The recurrence, from where the function is defined.
        steps = sum((x + k) ** -3.0 for k in range(4))
        return scipy.polygamma(2, x + 4) - 2 * steps

    class Module(nn.Module):
        def forward(self, values):
            return {name: functions[name][0](v) for name, v in values.items()}

    values = {name: torch.tensor(v) for name, (_, _, v) in functions.items()}
    model, params = ml.from_torch(Module(), (values,))
    compiled = ml.compile(model, ml.NumpyBackend())
    outputs = compiled.evaluate(params, {f"values_{name}": v.numpy() for name, v in values.items()})
    for name, (_, exact, v) in functions.items():
        np.testing.assert_allclose(outputs[name], exact(v), rtol=2e-13, atol=1e-300, err_msg=name)


def test_windows_take_any_batch():
    class Module(nn.Module):
        def forward(self, x, samples):
            values, where = F.max_pool2d(x, 2, return_indices=True)
            return (
                F.max_unpool2d(values, where, 2),
                *F.adaptive_max_pool2d(x, 3, return_indices=True),
                *F.fractional_max_pool2d(x, 2, output_size=2, return_indices=True, _random_samples=samples),
                F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
                F.pad(x, (1, -1, -1, 2), mode="replicate"),
                torch.matrix_exp(x[:, 0]),
            )

    module, batch = Module(), torch.export.Dim("batch", min=2)
    examples = (torch.randn(2, 3, 4, 4), torch.rand(2, 3, 2))
    model, params = ml.from_torch(module, examples, dynamic_shapes=({0: batch}, {0: batch}))
    compiled = ml.compile(model, ml.NumpyBackend())
    for n in (2, 5):
        x, samples = torch.randn(n, 3, 4, 4), torch.rand(n, 3, 2)
        outputs = compiled.evaluate(params, {"x": x.numpy(), "samples": samples.numpy()}).values()
        for actual, right in zip(outputs, module(x, samples), strict=True):
            np.testing.assert_allclose(actual, right.numpy(), rtol=1e-4, atol=1e-5)


def test_results_that_are_not_computed_are_not_left_out():
    class Module(nn.Module):
        def forward(self, x):
            return torch.native_layer_norm(x, (4,), None, None, 1e-5)

    with pytest.raises(UnsupportedOpError, match=r"native_layer_norm.default` \(its result 1 has no counterpart\)"):
        ml.from_torch(Module(), (torch.ones(3, 4),))


class Draws(nn.Module):
    def forward(self, x, p):
        tall = x.new_empty(x.shape)
        return {
            "rand": torch.rand(x.shape) + 0 * x,
            "rand_like": torch.rand_like(x),
            "randn": torch.randn(x.shape[0], 500),
            "randn_like": torch.randn_like(x),
            "normal": torch.normal(x * 0 + 2, 0.5),
            "normal_": tall.clone().normal_(1, 2),
            "uniform_": tall.clone().uniform_(-1, 3),
            "exponential_": tall.clone().exponential_(0.5),
            "randint": torch.randint(2, 7, (40, 500)),
            "randint_like": torch.randint_like(x, 2, 7),
            "bernoulli": torch.bernoulli(p.expand(4000, 4)),
            "bernoulli_": tall.clone().bernoulli_(0.3),
            "randperm": torch.randperm(50),
            "multinomial": torch.multinomial(p.expand(4000, 4), 2),
            "multinomial_again": torch.multinomial(p, 4000, replacement=True),
        }


#: Mean and standard deviation.
MOMENTS = {
    **dict.fromkeys(("rand", "rand_like"), (0.5, 12**-0.5)),
    **dict.fromkeys(("randn", "randn_like"), (0.0, 1.0)),
    **{"normal": (2.0, 0.5), "normal_": (1.0, 2.0), "uniform_": (1.0, 4 * 12**-0.5), "exponential_": (2.0, 2.0)},
    **dict.fromkeys(("randint", "randint_like"), (4.0, 2**0.5)),
    **{"bernoulli": (0.25, 3**0.5 / 4), "bernoulli_": (0.3, 0.21**0.5)},
}


@pytest.mark.parametrize("is_open", [False, True])
def test_random_numbers_have_the_distributions_of_pytorch(is_open):
    x, p = torch.zeros(40, 500), torch.tensor([0.1, 0.2, 0.3, 0.4])
    shapes = ({0: torch.export.Dim("n", min=2)}, None) if is_open else None
    module = Draws()
    model, params = ml.from_torch(module, (x, p), dynamic_shapes=shapes)
    compiled = ml.compile(model, ml.NumpyBackend())
    data = {"x": x.numpy(), "p": p.numpy()}
    first, second = (compiled.evaluate(params, data) for _ in range(2))
    for name, right in module(x, p).items():
        assert first[name].dtype == right.numpy().dtype, name
        assert first[name].shape == right.shape, name
        assert not np.array_equal(first[name], second[name]), name
    for name, (mean, deviation) in MOMENTS.items():
        assert abs(first[name].mean() - mean) < 0.05, name
        assert abs(first[name].std() - deviation) < 0.05, name
    drawn = [first[name] for name in ("rand", "rand_like", "randn", "randn_like")]
    assert all(abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.05 for a in drawn for b in drawn if a is not b)
    assert sorted(first["randperm"]) == list(range(50))
    pairs = first["multinomial"]
    assert (pairs[:, 0] != pairs[:, 1]).all()
    for chosen in (pairs[:, 0], first["multinomial_again"]):
        np.testing.assert_allclose(np.bincount(chosen, minlength=4) / 4000, p.numpy(), atol=0.04)


def test_conversions_use_ops_that_exist():
    import re
    from pathlib import Path

    from mithril.backends.signatures import ports
    from mithril.frontend.jax.ops import elementwise as jax_elementwise
    from mithril.frontend.jax.ops import reduction as jax_reduction
    from mithril.frontend.torch.ops import elementwise

    names = set()
    for file in (Path(ml.__file__).parent / "frontend").rglob("*.py"):
        names.update(re.findall(r'apply\(\s*"(\w+)"', file.read_text()))
    tables = (
        *(elementwise.UNARY, elementwise.BINARY, elementwise.COMPARISONS),
        *(jax_elementwise.UNARY, jax_elementwise.BINARY, jax_reduction.REDUCTIONS),
    )
    names.update(name for table in tables for name in table.values())
    assert len(names) > 100
    for name in names:
        ports(name)
