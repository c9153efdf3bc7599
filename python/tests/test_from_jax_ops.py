"""Primitives of JAX with conversions of their own: values and gradients against JAX, many in one program."""

import mithril as ml
import numpy as np
import pytest
from mithril.errors import UnsupportedOpError

jax = pytest.importorskip("jax")
jnp = jax.numpy
lax = jax.lax


def f(*shape, low=-2.0, high=2.0):
    """Numbers that are all distinct, in no order."""
    count = int(np.prod(shape))
    order = (np.arange(count) * 7919 + 13) % count
    return (low + (high - low) * (order + 0.5) / count).reshape(shape).astype(np.float32)


SYMMETRIC = f(4, 4) @ f(4, 4).T + np.eye(4, dtype=np.float32)


def times(function, factors):
    """A product with the factors of a matrix, whatever their signs."""
    return lambda x: factors(*function(x))


#: A function, its arguments that are differentiated, and others.
LINALG = {
    "cholesky": (jnp.linalg.cholesky, [SYMMETRIC]),
    "cho_solve": (lambda x, y: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(x), True), y), [SYMMETRIC, f(4, 2)]),
    "solve": (jnp.linalg.solve, [SYMMETRIC, f(4, 2)]),
    "solve_vector": (jnp.linalg.solve, [SYMMETRIC, f(4)]),
    "solve_batch": (jax.vmap(jnp.linalg.solve), [np.stack([SYMMETRIC, SYMMETRIC.T + 1]), f(2, 4, 3)]),
    "solve_triangular": (lambda x, y: jax.scipy.linalg.solve_triangular(jnp.triu(x), y), [SYMMETRIC, f(4, 2)]),
    "solve_lower": (
        lambda x, y: jax.scipy.linalg.solve_triangular(jnp.tril(x), y, lower=True, trans=1),
        [SYMMETRIC, f(4, 2)],
    ),
    "right": (lambda x, y: lax.linalg.triangular_solve(jnp.tril(x), y, lower=True), [SYMMETRIC, f(2, 4)]),
    "inv": (jnp.linalg.inv, [SYMMETRIC]),
    "det": (jnp.linalg.det, [SYMMETRIC]),
    "det_small": (jnp.linalg.det, [SYMMETRIC[:3, :3]]),
    "slogdet": (lambda x: jnp.linalg.slogdet(-x[:3, :3]), [SYMMETRIC]),
    "pinv": (jnp.linalg.pinv, [SYMMETRIC[:3]]),
    "svd": (times(lambda x: jnp.linalg.svd(x, False), lambda u, s, v: (u * jnp.sqrt(s)) @ v), [SYMMETRIC]),
    "svdvals": (lambda x: jnp.linalg.svd(x, compute_uv=False), [SYMMETRIC[:3]]),
    "eigh": (times(jnp.linalg.eigh, lambda w, v: (v * jnp.log(w)) @ v.T), [SYMMETRIC]),
    "qr": (lambda x: jnp.abs(jnp.linalg.qr(x)[1]), [SYMMETRIC[:, :3]]),
    "diagonal": (jnp.diagonal, [SYMMETRIC]),
    # Without symmetrizing, one triangle is read.
    "eigh_of_triangle": (
        lambda x: [lax.linalg.eigh(x, lower=lower, symmetrize_input=False)[1] for lower in (False, True)],
        [],
        f(4, 4),
    ),
}
ONES = np.array([1, 2, -1], np.int16)


def parts(z):
    return jnp.real(z), jnp.imag(z)


PARTS = [f(2, 3), f(2, 3)[::-1]]
SIGN = [PARTS] if jax.__version_info__ >= (0, 12) else [[], *PARTS]
COMPLEXES = {
    "product": (lambda x, y: jnp.imag(lax.complex(x, y) * lax.complex(y, x + 1)), [f(2, 3), f(2, 3)]),
    "quotient": (lambda x, y: jnp.real(lax.complex(x, y) / lax.complex(y, x + 3)), [f(2, 3), f(2, 3)]),
    "number": (lambda x: jnp.imag(lax.complex(x, x) * (1 + 2j) - 1j), [f(2, 3)]),
    "abs": (lambda x, y: jnp.abs(jnp.conj(lax.complex(x, y)).T[1:]), [f(2, 3), f(2, 3)]),
    "exp": (lambda x: jnp.real(jnp.exp(1j * x) ** 2), [f(2, 3)]),
    "matmul": (lambda x, y: jnp.real(lax.complex(x, x) @ lax.complex(y, 2 * y)), [f(2, 3), f(3, 2)]),
    "scan": (lambda x: jnp.real(lax.scan(lambda c, r: (c * r, c + r), x[0] + 0j, lax.complex(x, -x))[1]), [f(3, 4)]),
    "functions": (
        lambda x, y: [
            parts(g(lax.complex(x, y)))
            for g in (jnp.sin, jnp.cos, jnp.sinh, jnp.cosh, jnp.tan, jnp.tanh, jax.nn.sigmoid, jnp.log, jnp.sqrt)
        ],
        [f(2, 3), f(2, 3)[::-1]],
    ),
    "more_functions": (
        lambda x, y: [
            parts(g(lax.complex(x, y)))
            for g in (jnp.expm1, jnp.log1p, lax.rsqrt, lambda z: z**-3, lambda z: z**11, lambda z: z**0)
        ],
        PARTS,
    ),
    # JAX gives it a gradient since 0.12.
    "sign": (lambda x, y: parts(jnp.sign(lax.complex(x, y))), *SIGN),
    "power": (lambda x, y: parts(lax.complex(x, y) ** lax.complex(y, x)), [f(2, 3), f(2, 3)[::-1]]),
    "root_of_0": (lambda x: (parts(jnp.sqrt(x - x + 0j)), parts(jnp.sign(x - x + 0j))), [], f(3)),
    "equal": (lambda x: ((x + 1j * x[0]) == x[0] * (1 + 1j), (x + 1j * x[0]) != x[0] * (1 + 1j)), [], f(3)),
    "cast": (lambda x, i: parts(i.astype(jnp.complex64) * x), [], f(3), ONES),
    "broadcast": (lambda x, y: parts(lax.complex(x, y) * 1j), [f(3, 1), f(3, 2)]),
    "convolution": (
        lambda x, k: parts(lax.conv_general_dilated(lax.complex(x, 2 * x), lax.complex(k, -k), (1,), "SAME")),
        [f(1, 2, 5), f(3, 2, 3)],
    ),
    "update": (lambda x, y: parts(lax.complex(x, x).at[1].add(y * 1j)), [f(3, 2), f(2)]),
    "fft": (lambda x: jnp.imag(jnp.fft.fft(x)), [f(3, 4)]),
    "ifft": (lambda x: jnp.real(jnp.fft.ifft(lax.complex(x, x + 1), axis=0)), [f(3, 4)]),
    "rfft": (lambda x: (jnp.fft.rfft(x).real, jnp.fft.rfft2(x).imag), [f(3, 5)]),
    "irfft": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.arange(3), n=5), [f(3, 5)]),
    "irfft2": (lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * 2), [f(3, 4)]),
    "fft2": (lambda x: jnp.real(jnp.fft.ifft2(jnp.fft.fft2(x) ** 2)), [f(3, 4)]),
}


def attended(**named):
    return lambda q, k: jax.nn.dot_product_attention(q, k, k, **named)


def linear(a, b):
    return a[0] * b[0], b[0] * a[1] + b[1]


HEADS = [f(2, 5, 4, 3), f(2, 5, 2, 3, low=-1)]
CONTROL = {
    "associative_scan": (lambda x: lax.associative_scan(jnp.add, x), [f(5, 2)]),
    "linear_scan": (lambda x, y: lax.associative_scan(linear, (x, y), axis=1, reverse=True), [f(2, 6), f(2, 6)]),
    # JAX does not differentiate it.
    "while": (
        lambda x: lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, jnp.tanh(c[1]) + c[0]), (0, x)),
        [],
        f(3),
    ),
    "while_inside": (
        lambda x: lax.scan(lambda c, i: (lax.fori_loop(0, 2, lambda _, v: v * 0.5 + i, c), c), x, jnp.arange(3.0)),
        [f(3)],
    ),
    "known_in_scan": (
        lambda x: lax.scan(
            lambda c, r: ((c[0] + 1, c[1] + lax.switch(c[0], [jnp.sin, jnp.cos], r)), r), (0, x[0]), x[:2]
        ),
        [f(3, 2)],
    ),
    "cond": (lambda x, b: lax.cond(b, lambda v: jnp.sqrt(v - v) + v, lambda v: v * 2, x), [f(3)], np.array(False)),
    "cond_true": (lambda x, b: lax.cond(b, jnp.sin, jnp.sqrt, x - x), [f(3)], np.array(True)),
    "switch": (
        lambda x, i: [lax.switch(k, [jnp.sin, jnp.cos, jnp.tanh], x) for k in i],
        [f(3)],
        np.array([-1, 0, 1, 5]),
    ),
    "attention": (attended(), [HEADS[0], HEADS[0]]),
    "attention_causal": (attended(is_causal=True, scale=0.3), [HEADS[0], HEADS[0]]),
    "attention_grouped": (attended(), HEADS),
    "attention_mask": (
        lambda q, m: jax.nn.dot_product_attention(q, q, q, mask=m),
        [HEADS[0]],
        np.tril(np.ones((5, 5), bool))[None, None],
    ),
    "attention_lengths": (
        lambda q, n: jax.nn.dot_product_attention(q, q, q, query_seq_lengths=n, key_value_seq_lengths=n)[:, :3],
        [HEADS[0]],
        np.array([3, 5], np.int32),
    ),
    "old_key": (lambda x: x + jax.random.normal(jax.random.PRNGKey(3), (3,)), [f(3)]),
    "typed_key": (lambda x: x + jax.random.uniform(jax.random.split(jax.random.key(3))[1], (3,)), [f(3)]),
    "keys_in_scan": (
        lambda x: lax.scan(
            lambda c, r: ((jax.random.split(c[0])[0], c[1] + r * jax.random.normal(c[0], (2,))), None),
            (jax.random.key(0), x[0]),
            x,
        )[0][1],
        [f(3, 2)],
    ),
}


def larger(a, b):
    is_first = a[0] >= b[0]
    return jnp.maximum(a[0], b[0]), jnp.where(is_first, a[1], b[1])


OTHERS = {
    "lgamma": (lax.lgamma, [f(40, low=-6.3, high=9.2)]),
    "digamma": (lax.digamma, [f(40, low=-6.3, high=9.2)]),
    "half": (lambda x: lax.lgamma(x.astype(jnp.bfloat16)).astype(jnp.float32), [], f(5, low=1, high=4)),
    "exp2": (jnp.exp2, [f(5)]),
    "cumlogsumexp": (lambda x: (lax.cumlogsumexp(x * 40), lax.cumlogsumexp(x, 1, reverse=True)), [f(5, 3)]),
    "pad": (lambda x: lax.pad(x, 3.0, [(0, 1, 1), (1, -1, 2)]), [f(3, 4)]),
    "pad_by_data": (lambda x, v: lax.pad(x, v[0], [(0, 1, 1), (1, -1, 2)]), [f(3, 4), f(2)]),
    "promised": (
        lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 2)),
        [],
        f(3, 2),
        np.array([[0], [2], [-1], [7]], np.int32),
    ),
    "reduce_pairs": (
        lambda x, i: lax.reduce((x, i), (np.float32(-9), np.int32(0)), larger, (0, 2)),
        [],
        f(3, 2, 5),
        np.arange(30, dtype=np.int32).reshape(3, 2, 5),
    ),
    "reduce_own": (lambda x: lax.reduce(x, np.float32(-np.inf), jnp.logaddexp, (1,)), [f(3, 5)]),
    "reduce_nothing": (lambda x: lax.reduce(x[:0], np.float32(-np.inf), jnp.logaddexp, (0,)) + x, [f(3, 5)]),
    "counted": (lambda x, i: jnp.where(x > 0, jnp.int16(3), i) * jnp.int16(7), [], f(3), ONES),
    "product_of_truths": (lambda x: lax.dot(x[:, :2] > 0, x[:2] > 1), [], f(3, 3)),
    "nextafter": (
        lambda x, y: (
            lax.nextafter(x, y),
            lax.nextafter(x.astype(jnp.float16), y.astype(jnp.float16)) * jnp.float32(1),
        ),
        [],
        np.array([1, 1, -1, -1, 2, 0.5, np.inf, -np.inf, np.nan, 1, 3], np.float32),
        np.array([2, 0, 0, -2, 2, 7, 0, 0, 1, np.nan, np.inf], np.float32),
    ),
    "half_precision": (
        lambda x: lax.reduce_precision(x, 5, 10),
        [],
        np.array([1 / 3, -1e5, 65519.9, 1e-5, -(2.0**-14), 2.0**-14 * (1 - 2.0**-13), 2.0**-14 * (1 - 2.0**-11)], "f"),
    ),
    "bytes": (
        lambda x, u: (
            lax.bitcast_convert_type(x, jnp.uint8),
            lax.bitcast_convert_type(u, jnp.float32),
            lax.bitcast_convert_type(x.astype(jnp.float16), jnp.int16),
            lax.bitcast_convert_type(u, jnp.bfloat16).astype(jnp.float32),
        ),
        [],
        f(5),
        np.array([[0x3F, 0x4000], [0x1234, 0x4321]], np.uint16),
    ),
    "known_inside": (jax.jit(lambda x: x * jax.nn.relu(jnp.arange(-1.0, 2.0)) + jax.nn.silu(jnp.arange(3.0))), [f(3)]),
    "put": (lambda x: jax.device_put(x) * 2, [f(3)]),
    "same": (lambda x: x, [f(3)]),
    "sort_by_two": (lambda x: lax.sort((jnp.round(x), -jnp.abs(x), x), num_keys=2), [f(12)]),
    "searchsorted": (lambda x, y: jnp.searchsorted(jnp.sort(x), y), [], f(7), f(4, low=-3, high=3)),
    "shifts": (
        lambda i, u: (i << 2, i >> 1, u >> 1),
        [],
        np.arange(-3, 4, dtype=np.int32),
        np.arange(5, dtype=np.uint32),
    ),
    "bessel": (lambda x: (lax.bessel_i0e(x * 9), lax.bessel_i1e(x * 9), jnp.i0(x), jax.scipy.special.i1(x)), [f(9)]),
    "polygamma": (lambda x: (lax.polygamma(2.0, x), jax.scipy.special.polygamma(1, x)), [f(9, low=0.3, high=6)]),
    "digamma_slope": (jax.grad(lambda x: lax.digamma(x).sum()), [f(9, low=0.3, high=6)]),
    "zeta": (lambda x: lax.zeta(jnp.float32(2.5), x), [], f(9, low=1, high=6)),
    "bits": (
        lambda i, u, b: [f(v) for v in (i, u, b) for f in (lax.population_count, lax.clz)],
        [],
        np.array([0, 1, -1, 12345, -(2**31)], np.int32),
        np.array([0, 1, 2**32 - 1, 7], np.uint32),
        np.array([0, 255, 16, 1], np.uint8),
    ),
    "logical_shift": (lambda i: lax.shift_right_logical(i, np.int32(3)), [], np.array([-8, 8, -1], np.int32)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 7), [], f(9)),
    "approx": (lambda x: (*lax.approx_max_k(x, 2), *lax.approx_min_k(x, 2)), [f(3, 6)]),
    "reduce_bits": (
        lambda i: [lax.reduce(i, np.int32(n), f, (0,)) for n, f in ((0, lax.bitwise_xor), (-1, lax.bitwise_and))],
        [],
        np.array([[5, 3], [6, 3], [7, 2]], np.int32),
    ),
    "unstack": (lambda x: jnp.unstack(x, axis=1), [f(2, 3)]),
    "ragged_dot": (lambda x, y, n: lax.ragged_dot(x, y, n), [f(6, 3), f(2, 3, 4)], np.array([2, 3], np.int32)),
    "expm": (jax.scipy.linalg.expm, [0.3 * f(3, 3)]),
}
NHWC = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
TABLE = np.array([3, 0, 3, 9], np.int32)


def windowed(initial, function, window=(1, 2, 2, 1), **named):
    named = {"window_strides": (1, 2, 1, 1), "padding": "SAME"} | named
    return lambda x: lax.reduce_window(x, np.array(initial, x.dtype), function, window, **named)


def slope(function):
    """The gradient as a function: what JAX writes for it."""
    return jax.grad(lambda *xs: (function(*xs) ** 2).sum())


DILATED = {"padding": [(0, 0), (0, 1), (1, 1), (0, 0)], "base_dilation": (1, 2, 1, 1), "window_dilation": (1, 1, 2, 1)}
WINDOWS = {
    "sums": (windowed(0, lax.add), [f(2, 6, 7, 3)]),
    "maxima": (windowed(-np.inf, lax.max), [f(2, 6, 7, 3)]),
    "minima": (windowed(np.inf, lax.min), [f(2, 6, 7, 3)]),
    "products": (windowed(1, lax.mul), [], f(2, 6, 7, 3)),
    "initial": (windowed(2, lax.add), [], f(2, 6, 7, 3)),
    "dilated_sums": (windowed(0, lax.add, **DILATED), [f(2, 6, 7, 3)]),
    "dilated_maxima": (windowed(-np.inf, lax.max, **DILATED), [], f(2, 6, 7, 3)),
    "four_axes": (windowed(0, lax.add, (2, 2, 3, 2)), [f(2, 6, 7, 3)]),
    "integers": (
        lambda i: (windowed(0, lax.add)(i), windowed(-(2**31), lax.max)(i)),
        [],
        np.arange(84, dtype=np.int32).reshape(1, 4, 7, 3) % 11,
    ),
    "slope_of_maxima": (slope(windowed(-np.inf, lax.max, (1, 3, 2, 1))), [f(2, 6, 7, 3)]),
    "slope_of_sums": (slope(windowed(0, lax.add)), [f(2, 6, 7, 3)]),
    "convolution": (
        lambda x, k: lax.conv_general_dilated(
            x, k, (2, 1), [(1, 2), (0, -1)], lhs_dilation=(2, 3), rhs_dilation=(1, 2), **NHWC
        ),
        [f(2, 5, 6, 4), f(3, 2, 4, 5)],
    ),
    "feature_groups": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", feature_group_count=2, **NHWC),
        [f(2, 5, 6, 4), f(3, 2, 2, 6)],
    ),
    "batch_groups": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "VALID", batch_group_count=2, **NHWC),
        [f(4, 5, 6, 3), f(3, 2, 3, 6)],
    ),
    "own": (windowed(-np.inf, jnp.logaddexp, **DILATED), [], f(2, 6, 7, 3)),
    "slope_forward": (
        lambda x, t: jax.jvp(windowed(-np.inf, lax.max), (x,), (t,))[1],
        [],
        f(2, 6, 7, 3),
        f(2, 6, 7, 3),
    ),
    "bytes": (
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", preferred_element_type=np.int8),
        [],
        (np.arange(20, dtype=np.int8).reshape(1, 2, 10) * 13).astype(np.int8),
        np.arange(-9, 9, dtype=np.int8).reshape(3, 2, 3) * 11,
    ),
    "no_place": (
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "VALID").sum() + x * k[0, 0, 0],
        [f(1, 2, 3)],
        f(3, 2, 5),
    ),
    "no_axes": (lambda x, k: lax.conv_general_dilated(x, k, (), ()), [f(2, 3), f(4, 3)]),
    "multiplied": (lambda x, v, i: jnp.asarray(x).at[i].multiply(v), [], f(5, 2), f(4, 2), TABLE),
    "largest": (lambda x, v, i: x.at[:, i].max(v, mode="drop"), [f(2, 5), f(2, 4)], TABLE),
    "smallest": (lambda x, v, i: x.at[i].min(v, mode="clip"), [f(5, 2), f(4, 2)], TABLE),
    "truths": (
        lambda x, i: (
            jnp.asarray(x).at[i].min(jnp.arange(4) > 1),
            jnp.asarray(x).at[i].max(jnp.arange(4) > 1, mode="drop"),
        ),
        [],
        np.array([True, False, True, False, True]),
        TABLE,
    ),
    "subtracted": (lambda x, v, i: x.at[i].subtract(v), [f(5, 2), f(4, 2)], TABLE),
    "segments": (
        lambda x, i: (jax.ops.segment_max(x, i, num_segments=5), jax.ops.segment_prod(x, i, num_segments=5)),
        [],
        f(4, 2),
        TABLE,
    ),
}
MIXED = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
LINALG |= {
    "lu": (lambda x: lax.linalg.lu(x), [MIXED]),
    "lu_factors": (lambda x: jax.scipy.linalg.lu(x), [MIXED[:4]]),
    "lu_solve": (lambda x, y: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(x), y), [MIXED[:4], f(4)]),
    "slope_of_solve": (slope(jnp.linalg.solve), [SYMMETRIC, f(4)]),
    "slope_of_solve_columns": (slope(jnp.linalg.solve), [SYMMETRIC + f(4, 4) / 9, f(4, 2)]),
    "slope_of_det": (slope(jnp.linalg.det), [SYMMETRIC]),
    "householder": (lax.linalg.householder_product, [], MIXED[:, :3], f(3)),
}
#: Constants that are one number everywhere have more elements than what they meet.
ONE_NUMBER = {
    "multiply": (lambda x: jnp.ones((3, 2)) * x[0, 0], [f(2, 2)]),
    "add": (lambda x: x.sum() + jnp.zeros(40), [f(2, 2)]),
    "divide": (lambda x: jnp.ones(3) / x[0, 0], [f(2, 2)]),
    "maximum": (lambda x: jnp.maximum(jnp.full(3, 0.2), x[0, 1]), [f(2, 2)]),
    "power": (lambda x: jnp.full((2, 3), 2.0) ** x[0], [f(2, 3)]),
    "compare": (lambda x: jnp.zeros(3) < x[0, 0], [f(2, 2)]),
    "both_axes": (lambda x: jnp.ones((3, 1)) * x.sum(0), [f(2, 2)]),
    "select": (lambda x: jnp.where(x[0, 0] > 0, jnp.ones(3), jnp.zeros(3)) * x[0, 0], [f(2, 2)]),
    "complex": (lambda x: jnp.real(jnp.ones(3, jnp.complex64) * (x[0, 0] + 1j * x[0, 1])), [f(2, 2)]),
}
FAMILIES = {
    "one_number": ONE_NUMBER,
    "windows": WINDOWS,
    "linalg": LINALG,
    "complexes": COMPLEXES,
    "control": CONTROL,
    "others": OTHERS,
}


def named(name, value):
    leaves = jax.tree_util.tree_leaves(value)
    name = f"out_{name}"
    return {name if len(leaves) == 1 else f"{name}_{i}": x for i, x in enumerate(leaves)}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """Model, parameters, inputs, and JAX's outputs and gradients."""
    cases = FAMILIES[request.param]

    def function(params, rest):
        results = {}
        for name, (case, *_) in cases.items():
            results |= named(name, case(*params.get(name, []), *rest.get(name, [])))
        return results

    params = {name: list(case[1]) for name, case in cases.items() if case[1]}
    rest = {name: list(case[2:]) for name, case in cases.items() if len(case) > 2}
    model, weights = ml.from_jax(function, (rest,), params=params)
    outputs, back = jax.vjp(lambda p: function(p, rest), params)
    directions, zeros = {}, {}
    for name, x in outputs.items():
        if x.dtype == np.float32:
            directions[name] = np.linspace(-1, 1.5, x.size, dtype=np.float32).reshape(x.shape)
        zeros[name] = directions.get(name, np.zeros(x.shape, jax.dtypes.float0))
    (gradients,) = back(zeros)
    data = {f"rest_{name}_{i}": x for name, xs in rest.items() for i, x in enumerate(xs)}
    return model, weights, data, outputs, directions, gradients


@pytest.mark.parametrize("backend", ["numpy", "c"])
def test_values_and_gradients_are_those_of_jax(family, backend):
    model, params, data, outputs, directions, gradients = family
    compiled = ml.compile(model, ml.get_backend(backend))
    actual, grads = compiled.evaluate(params, data, directions)
    expected = dict(outputs)
    for name, several in gradients.items():
        expected |= {f"{name}.{i}": x for i, x in enumerate(several)}
    wrong = []
    for name, right in expected.items():
        value, right = np.asarray(actual[name] if name in outputs else grads[name]), np.asarray(right)
        same = value.shape == right.shape and value.dtype == right.dtype
        if not same or not np.allclose(value, right, rtol=2e-4, atol=5e-5, equal_nan=True):
            wrong.append(
                f"{name}: {value.dtype}{value.shape} {value.ravel()[:8]}, "
                f"not {right.dtype}{right.shape} {right.ravel()[:8]}"
            )
    assert not wrong, "\n".join(wrong)


def test_keys_as_arguments_give_the_numbers_of_jax():
    def function(x, key, old):
        first, second = jax.random.split(key)
        noise = jax.random.normal(first, x.shape) * jax.random.uniform(jax.random.fold_in(second, 7), x.shape)
        keys = jax.random.split(second, 3)
        last, drawn = lax.scan(lambda k, _: (jax.random.split(k)[0], jax.random.gumbel(k)), key, None, length=3)
        return {
            "noise": x + noise,
            "dropout": jnp.where(jax.random.bernoulli(old, 0.5, x.shape), x, 0),
            "each": jax.vmap(lambda k: jax.random.randint(k, (4,), 0, 100))(keys),
            "drawn": drawn,
            "words": jax.random.key_data(last),
            "typed": keys[1],
            "order": jax.random.permutation(first, 5),
            "classes": jax.random.categorical(first, x),
        }

    x, key, old = f(3, 4), jax.random.key(5), jax.random.PRNGKey(9)
    model, params = ml.from_jax(function, (x, key, old))
    for backend in (ml.NumpyBackend(), ml.CBackend()):
        compiled = ml.compile(model, backend)
        for seed in (5, 6):
            own = jax.random.key(seed)
            right = function(x, own, old)
            right["typed"] = jax.random.key_data(right["typed"])
            data = {"x": x, "key": np.asarray(jax.random.key_data(own)), "old": np.asarray(old)}
            outputs = compiled.evaluate(params, data)
            assert set(outputs) == set(right)
            for name, exact in right.items():
                assert outputs[name].dtype == exact.dtype, name
                np.testing.assert_allclose(outputs[name], exact, rtol=1e-5, atol=1e-6, err_msg=name)


def test_bits_of_floats_are_read():
    patterns = np.array([0, 1, 0x3F800000, 0xC0490FDB, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00800000, 0x80000000])
    bits = patterns.astype(np.uint32)
    model, _ = ml.from_jax(lambda x: lax.bitcast_convert_type(x, jnp.float32), (bits,))
    value = ml.compile(model, ml.NumpyBackend()).evaluate({}, {"x": bits})["output"]
    np.testing.assert_array_equal(value, bits.view(np.float32))
    np.testing.assert_array_equal(np.signbit(value), np.signbit(bits.view(np.float32)))


@pytest.mark.parametrize("backend", [ml.NumpyBackend, ml.CBackend])
def test_bits_of_floats_are_written(backend):
    # All exponents of numbers that are not subnormal, which C may take for 0.
    bits = np.concatenate([np.arange(1, 256) << 23, (np.arange(1, 255) << 23) | 0x7FFFFF, [0, 0x3FAAAAAA]])
    bits = np.concatenate([bits, bits | 1 << 31]).astype(np.uint32)
    x = bits.view(np.float32)

    def function(x):
        words = lax.bitcast_convert_type(x, jnp.uint32), lax.bitcast_convert_type(x, jnp.int32)
        return (*words, jnp.signbit(x), jnp.copysign(1.0, x), *jnp.frexp(x))

    model, _ = ml.from_jax(function, (x,))
    outputs = ml.compile(model, backend()).evaluate({}, {"x": x}).values()
    right = (bits, bits.view(np.int32), np.signbit(x), np.copysign(np.float32(1), x), *np.frexp(x))
    for actual, exact in zip(outputs, right, strict=True):
        np.testing.assert_array_equal(np.asarray(actual), exact)


def test_a_function_may_return_what_it_takes():
    x = f(2, 3)
    for function in (lambda x: x, lambda x: {"a": x, "b": x}):
        model, _ = ml.from_jax(function, (x,))
        for output in ml.compile(model, ml.NumpyBackend()).evaluate({}, {"x": x}).values():
            np.testing.assert_array_equal(output, x)


def test_errors_say_what_helps():
    x = np.ones((3, 3), np.float32)
    with pytest.raises(UnsupportedOpError, match=r"lu cannot be converted: of more than 32(?s:.*)use jnp.linalg.solve"):
        ml.from_jax(lambda x: jax.scipy.linalg.lu(x), (np.eye(40, dtype=np.float32),))
    with pytest.raises(UnsupportedOpError, match=r"scatter cannot be converted(?s:.*)x.at\[i\].set"):
        ml.from_jax(lambda x: x.at[1].apply(jnp.sin), (x,))
    with pytest.raises(UnsupportedOpError, match=r"reduce cannot be converted: by a function that is not associative"):
        ml.from_jax(lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + 2 * b, (0,)), (x,))
    with pytest.raises(UnsupportedOpError, match=r"reduce_window cannot be converted: (?s:.*)more than once"):
        ml.from_jax(lambda x: windowed(-9, jnp.logaddexp, (2, 2), window_strides=(1, 1))(x), (x,))
    with pytest.raises(UnsupportedOpError, match=r"igamma cannot be converted: Mithril has no counterpart"):
        ml.from_jax(
            lambda x: lax.reduce(x, np.float32(0), lambda a, b: jnp.where(lax.igamma(a, b) > 2, 0, a) + b, (0,)), (x,)
        )
    with pytest.raises(UnsupportedOpError, match=r"random_bits cannot be converted: of keys of the kind rbg"):
        ml.from_jax(lambda x, key: x + jax.random.uniform(key, (3, 3)), (x, jax.random.key(0, impl="rbg")))
    with pytest.raises(UnsupportedOpError, match=r"`asin of complex numbers`, once"):
        ml.from_jax(lambda x: jnp.real(jnp.arcsin(x + 1j)), (x,))
    with pytest.raises(UnsupportedOpError, match=r"`output` is complex(?s:.*)real and imaginary"):
        ml.from_jax(lambda x: x + 1j, (x,))
    with pytest.raises(UnsupportedOpError, match=r"the input `x` is complex(?s:.*)real and imaginary"):
        ml.from_jax(lambda x: jnp.real(x), (x + 1j,))
