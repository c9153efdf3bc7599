"""Random graphs of ops: every backend against the interpreter, which shares neither passes nor code with it."""

import mithril as ml
import numpy as np
import pytest
from backends import BACKENDS, backend
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mithril import _core

REFERENCE = ml.InterpreterBackend(dtype="float64")
EPSILON = 2.0**-52
SIZES = st.sampled_from([1, 2, 3, 4, 2, 3, 0])

UNARY = [
    "tanh",
    "sigmoid",
    "sin",
    "relu",
    "negative",
    "abs",
    "square",
    "gelu",
    "softplus",
    "floor",
    "atan",
    "zeros_like",
]
BINARY = ["add", "subtract", "multiply", "maximum", "minimum", "atan2"]
REDUCE = ["sum", "mean", "max", "min", "logsumexp", "argmax"]
NON_EMPTY = {"mean", "max", "min", "logsumexp", "argmax"}


class Graph:
    """A graph under construction: each node is a connection with its shape."""

    def __init__(self, draw):
        self.draw = draw
        self.nodes = []
        self.shapes = {}
        for i in range(draw(st.integers(1, 3))):
            shape = tuple(draw(st.lists(SIZES, max_size=3)))
            self.shapes[f"x{i}"] = shape
            self.nodes.append((ml.IOKey(f"x{i}"), shape))

    def pick(self, accepts=lambda shape: True):
        candidates = [node for node in self.nodes if accepts(node[1])]
        return self.draw(st.sampled_from(candidates)) if candidates else None

    def apply(self, name, shape, *args):
        self.nodes.append((_core.apply_op(name, list(args)), tuple(shape)))

    def axis(self, shape):
        return self.draw(st.integers(-len(shape), len(shape) - 1))

    def grow(self):
        kind = self.draw(st.sampled_from(["unary", "binary", "reduce", "move", "matmul", "where", "softmax", "number"]))
        getattr(self, kind)()

    def unary(self):
        x, shape = self.pick()
        self.apply(self.draw(st.sampled_from(UNARY)), shape, x)

    def number(self):
        x, shape = self.pick()
        number = self.draw(st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0]))
        args = [x, number] if self.draw(st.booleans()) else [number, x]
        self.apply(self.draw(st.sampled_from(["add", "subtract", "multiply", "maximum"])), shape, *args)

    def partner(self, shape):
        """Pick another node that broadcasts with a shape."""

        def fits(other):
            return all(a == b or 1 in (a, b) for a, b in zip(reversed(shape), reversed(other), strict=False))

        y, other = self.pick(fits)
        return y, np.broadcast_shapes(shape, other)

    def binary(self):
        x, shape = self.pick()
        y, together = self.partner(shape)
        self.apply(self.draw(st.sampled_from(BINARY)), together, x, y)

    def where(self):
        x, shape = self.pick()
        y, together = self.partner(shape)
        condition = _core.apply_op("less", [x, y])
        self.apply("where", together, condition, x, self.draw(st.sampled_from([y, 0.25])))

    def softmax(self):
        node = self.pick(lambda shape: shape and 0 not in shape)
        if node is not None:
            self.apply(
                self.draw(st.sampled_from(["softmax", "log_softmax", "cumsum", "sort"])),
                node[1],
                node[0],
                self.axis(node[1]),
            )

    def reduce(self):
        name = self.draw(st.sampled_from(REDUCE))
        node = self.pick(lambda shape: shape and (name not in NON_EMPTY or 0 not in shape))
        if node is None:
            return
        x, shape = node
        axis, keepdim = self.axis(shape), self.draw(st.booleans())
        rest = [(1 if keepdim else None) if i == axis % len(shape) else n for i, n in enumerate(shape)]
        rest = [n for n in rest if n is not None]
        if name == "argmax":
            # An integer on the way: it becomes a float again and has no gradient.
            self.apply("cast", rest, _core.apply_op(name, [x, axis, keepdim]), ml.float64)
        else:
            self.apply(name, rest, x, axis, keepdim)

    def matmul(self):
        node = self.pick(lambda shape: len(shape) >= 2)
        if node is None:
            return
        x, shape = node
        other = self.pick(lambda s: len(s) == 2 and s[0] == shape[-1])
        if other is None:
            turned = _core.apply_op("matrix_transpose", [x])
            self.apply("matmul", (*shape[:-1], shape[-2]), x, turned)
        else:
            self.apply("matmul", (*shape[:-1], other[1][1]), x, other[0])

    def move(self):
        kind = self.draw(
            st.sampled_from(["transpose", "reshape", "expand", "slice", "flip", "concat", "squeeze", "broadcast"])
        )
        x, shape = self.pick(lambda s: len(s) > 0) or (None, ())
        if x is None:
            return
        axis = self.axis(shape)
        at = axis % len(shape)
        if kind == "transpose":
            axes = tuple(self.draw(st.permutations(range(len(shape)))))
            self.apply("transpose", [shape[a] for a in axes], x, axes)
        elif kind == "reshape":
            self.apply("reshape", (int(np.prod(shape)),), x, (int(np.prod(shape)),))
        elif kind == "expand" and len(shape) < 4:
            self.apply("expand_dims", (*shape[:at], 1, *shape[at:]), x, at)
        elif kind == "slice":
            bounds = st.integers(-5, 5) | st.none()
            part = slice(self.draw(bounds), self.draw(bounds), self.draw(st.sampled_from([None, 1, 2, -1, -2])))
            starts, stops, steps = [[None] * at + [n] for n in (part.start, part.stop, part.step)]
            sizes = (*shape[:at], len(range(shape[at])[part]), *shape[at + 1 :])
            self.apply("slice", sizes, x, tuple(starts), tuple(stops), tuple(1 if s is None else s for s in steps))
        elif kind == "flip":
            self.apply("flip", shape, x, axis)
        elif kind == "concat":
            y, other = self.pick(
                lambda s: len(s) == len(shape) and s[:at] + s[at + 1 :] == shape[:at] + shape[at + 1 :]
            )
            self.apply("concat", (*shape[:at], shape[at] + other[at], *shape[at + 1 :]), axis, x, y)
        elif kind == "squeeze" and shape[at] == 1:
            self.apply("squeeze", shape[:at] + shape[at + 1 :], x, axis)
        elif kind == "broadcast" and len(shape) < 4:
            self.apply("broadcast_to", (2, *shape), x, (2, *shape))


def compiled(chosen, model, shapes):
    names = [name for name in shapes if name in model.input_keys]
    return ml.compile(model, chosen, shapes={n: shapes[n] for n in names}, trainable_keys=names), names


def assert_same(actual, expected, units, scale, label):
    assert actual.dtype == expected.dtype, label
    assert actual.shape == expected.shape, label
    with np.errstate(invalid="ignore"):
        close = (actual == expected) | (np.abs(actual - expected) <= units * EPSILON * scale)
    assert np.all(close | (np.isnan(actual) & np.isnan(expected))), label


def largest(arrays):
    return max((np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in arrays), default=0.0)


def on_host(chosen, arrays):
    return {name: np.asarray(chosen.to_numpy(array)) for name, array in arrays.items()}


@pytest.mark.parametrize("backend_name", BACKENDS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_backends_agree_on_random_graphs(backend_name, data):
    graph = Graph(data.draw)
    for _ in range(data.draw(st.integers(2, 16))):
        graph.grow()
    computed = graph.nodes[len(graph.shapes) :]
    assume(computed)
    # Several outputs, duplicates among them; nodes that nothing reads are dead.
    outputs = [*data.draw(st.lists(st.sampled_from(computed), max_size=2)), computed[-1]]
    model = ml.Model.create(**{f"output{i}": node for i, (node, _) in enumerate(outputs)})
    random = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    chosen = backend(backend_name, "float64")
    tested, names = compiled(chosen, model, graph.shapes)
    reference, _ = compiled(REFERENCE, model, graph.shapes)
    params = {name: random.uniform(-1.5, 1.5, graph.shapes[name]) for name in names}
    cotangents = {f"output{i}": random.uniform(-1, 1, shape) for i, (_, shape) in enumerate(outputs)}
    native = {name: chosen.array(value) for name, value in params.items()}
    pair = tested.evaluate(native, {}, {name: chosen.array(value) for name, value in cotangents.items()})
    actual, expected = [on_host(chosen, part) for part in pair], reference.evaluate(params, {}, cotangents)
    for part, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert list(a) == list(b)
        for name in b:
            label = f"{('output', 'gradient')[part]} {name}\n{model}\n{tested.source}"
            assert_same(a[name], np.asarray(b[name]), 512, 1 + largest([b[name]]), label)
    for i, (_, shape) in enumerate(outputs):
        assert expected[0][f"output{i}"].shape == shape
    plain = on_host(chosen, tested.evaluate(native, {}))
    for name in plain:
        np.testing.assert_array_equal(plain[name], actual[0][name], err_msg=f"{name}: with gradients other numbers")
