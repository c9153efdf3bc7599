"""Names that other libraries use mean what they mean there, or are refused with the spelling that works.

The last tests go over every name and alias of ops and layers and hold it against the signatures of PyTorch and JAX, so
that a name whose arguments stand in another order there cannot be added without a row in the table of spellings.
"""

from __future__ import annotations

import inspect

import mithril as ml
import numpy as np
import pytest
from mithril import _core, spellings
from mithril.testing.cases import cases

torch = pytest.importorskip("torch")
functional = torch.nn.functional

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4)).astype("float32")
INDEX = RNG.integers(0, 2, (2, 3, 4))
IMAGE = RNG.normal(size=(2, 4, 6, 6)).astype("float32")
WEIGHT = RNG.normal(size=(5, 4, 3, 3)).astype("float32")
FOUR = [RNG.normal(size=4).astype("float32") for _ in range(4)]
T = torch.tensor
backend = ml.NumpyBackend()


def same(actual, expected):
    actual, expected = (v if isinstance(v, (tuple, list)) else [v] for v in (actual, expected))
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "args", "own"),
    [
        ("gather", (X, 0, INDEX), torch.gather),
        ("index_select", (X, 2, np.array([1, 0])), torch.index_select),
        ("scatter_add", (X, 0, INDEX, X), torch.scatter_add),
        ("index_add", (X, 0, np.array([1, 0]), X), torch.index_add),
        ("index_copy", (X, 0, np.array([1, 0]), X), torch.index_copy),
        ("layer_norm", (X, (4,), FOUR[0], FOUR[1]), functional.layer_norm),
        ("rms_norm", (X, (4,), FOUR[0]), functional.rms_norm),
        ("group_norm", (IMAGE, 2, FOUR[0], FOUR[1]), functional.group_norm),
        ("permute", (X, (2, 0, 1)), torch.permute),
        ("permute", (X, 2, 0, 1), lambda x, *axes: x.permute(*axes)),
        ("reshape", (X, 6, -1), lambda x, *sizes: x.reshape(*sizes)),
        ("cat", ([X, X], 1), torch.cat),
        ("concat", ([X, X], -1), torch.cat),
        ("stack", ((X, X), 1), torch.stack),
        ("cross_entropy", (X[0], INDEX[0, :, 0], None, None, -100, None, "sum"), functional.cross_entropy),
        ("mse_loss", (X, X + 1, None, None, "sum"), functional.mse_loss),
    ],
)
def test_calls_in_the_order_of_pytorch_are_those_of_pytorch(name, args, own):
    tensors = [T(a) if isinstance(a, np.ndarray) else [T(i) for i in a] if isinstance(a, list) else a for a in args]
    tensors = [tuple(T(i) for i in a) if isinstance(a, tuple) and isinstance(a[0], np.ndarray) else a for a in tensors]
    same(getattr(backend, name)(*args), own(*tensors))


@pytest.mark.parametrize(
    ("name", "args", "options", "own"),
    [
        ("sum", (X,), {"dim": 1}, torch.sum),
        ("mean", (X,), {"dim": (0, 2), "keepdim": True}, torch.mean),
        ("std", (X,), {"dim": 1, "correction": 0}, torch.std),
        ("gather", (X,), {"dim": 1, "index": INDEX}, torch.gather),
        ("scatter_add", (X,), {"dim": 1, "index": INDEX, "src": X}, torch.scatter_add),
        ("topk", (X, 2), {"dim": 1}, torch.topk),
        ("flip", (X,), {"dims": (0, 1)}, torch.flip),
        ("leaky_relu", (X,), {"negative_slope": 0.3}, functional.leaky_relu),
        ("diag", (X[0, 0],), {"diagonal": 1}, torch.diag),
        ("flatten", (X,), {"start_dim": 1}, torch.flatten),
        ("one_hot", (INDEX,), {"num_classes": 4}, functional.one_hot),
        ("clamp", (X,), {"min": -0.5, "max": 0.1}, torch.clamp),
        ("batch_norm", (IMAGE,), dict(zip(("running_mean", "weight", "bias"), FOUR, strict=False)), None),
    ],
)
def test_words_of_pytorch_name_the_arguments(name, args, options, own):
    if name == "batch_norm":
        options |= {"running_var": np.abs(FOUR[3])}
        actual = backend.batch_norm(*args, **options, training=False)[0]
        return same(actual, functional.batch_norm(T(args[0]), **{k: T(v) for k, v in options.items()}))
    tensors = {k: T(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    return same(getattr(backend, name)(*args, **options), own(T(args[0]), *args[1:], **tensors))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda b: b.gather(X, INDEX), "gather(input, dim, index)"),
        (lambda b: b.std(X, 0, False), "unbiased=False"),
        (lambda b: b.transpose(X, 0, 1), "swapaxes(x, 0, 1)"),
        (lambda b: b.pad(X, (1, 1)), "pad(x, ((0, 0), (1, 1)))"),
        (lambda b: b.repeat(X, 2, 1), "tile(x, (2, 1))"),
        (lambda b: b.normalize(X, 2, 1), "dim=1"),
        (lambda b: b.select(X > 0, 0, 1), "where(condition, a, b)"),
        (lambda b: b.fft(X, 8), "n=8"),
        (lambda b: b.rfft(X, 2), "n=2"),
        (lambda b: b.batch_norm(IMAGE, *FOUR), "running_mean=x"),
        (lambda b: b.instance_norm(IMAGE, *FOUR[:2]), "weight=x"),
        (lambda b: b.scaled_dot_product_attention(X, X, X, None, 0.0, True), "dropout_p"),
        (lambda b: b.mse_loss(X, X, False), 'reduction="mean"'),
        (lambda b: b.binary_cross_entropy_with_logits(X, X, X, False), "size_average=False"),
        (lambda b: b.resize(IMAGE, (3, 3)), "method"),
        (lambda b: b.normal(0, 1), "mean=0.0"),
        (lambda b: b.uniform(2, 5), "low=0.0"),
        (lambda b: b.conv2d(IMAGE, WEIGHT, kernel_size=5), "kernel_size"),
        (lambda b: ml.Linear(4, 3), "Linear(in_features=4, out_features=3)"),
        (lambda b: ml.Linear(4, 1), "the size of the input is inferred"),
        (lambda b: ml.Conv2d(3, 64, 7), "Conv2d(filters=3, kernel_size=64, stride=7)"),
        (lambda b: ml.Conv2d(3, 64, 7, 2, 3), "Conv2d(out_channels=64, kernel_size=7, stride=2, padding=3)"),
        (lambda b: ml.Conv1d(3, 64, kernel_size=7), "in_channels=3"),
        (lambda b: ml.ConvTranspose2d(3, 8, 2), "filters=3"),
        (lambda b: ml.LSTM(10, 20), "LSTM(hidden_size=10, length=20)"),
        (lambda b: ml.GRUCell(10, 20), "GRUCell(hidden_size=20)"),
        (lambda b: ml.MaxPool2d(3, 2, 1, 1, True), "return_indices"),
        (lambda b: ml.Dropout(0.5, True), "inplace"),
        (lambda b: ml.MultiheadAttention(64, 8, 0.1), "dropout"),
        (lambda b: ml.TransformerEncoderLayer(8, 2, 16, 0.1, "relu", 1e-5, True), "batch_first"),
        (lambda b: ml.InstanceNorm2d(8, 1e-5, 0.1, True), "momentum"),
        (lambda b: ml.MSELoss(False), 'reduction="mean"'),
    ],
)
def test_what_means_something_else_elsewhere_is_refused_with_what_works(call, words):
    with pytest.raises(ml.errors.InvalidValueError) as caught:
        call(backend)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda b, x: b.split(x, 2, dim=1), "split(x, n, axis=...)"),
        (lambda b, x: b.split(x, sections=2, dim=1), "split(x, n, axis=...)"),
        (lambda b, x: b.split(x, split_size_or_sections=2), "chunk(x, n, dim=...)"),
        (lambda b, x: b.split(x, indices_or_sections=(1, 2), axis=1), "give the sizes of the parts"),
        (lambda b, x: b.max(x, dim=1), "amax(x, dim=...)"),
        (lambda b, x: b.min(x, dim=1), "amin(x, dim=...)"),
        (lambda b, x: b.sort(x, dim=1), "argsort(x, dim=...)"),
        (lambda b, x: b.median(x, dim=1), "quantile(x, 0.5"),
        (lambda b, x: b.nanmedian(x, dim=1), "quantile(x, 0.5"),
        (lambda b, x: b.std(x, axis=1, keepdims=True), "correction=0"),
        (lambda b, x: b.var(x, keepdims=True), "correction=0"),
        (lambda b, x: b.nanstd(x, axis=1, keepdims=True), "correction=0"),
        (lambda b, x: b.nanvar(x, keepdims=True), "correction=0"),
        (lambda b, x: b.norm(x, ord=2), "matrix_norm(x, ord=...)"),
        (lambda b, x: b.norm(x, ord=2, axis=(0, 1)), "matrix_norm(x, ord=...)"),
    ],
)
def test_words_of_a_library_that_means_something_else_are_refused(call, words):
    for x in (X, _core.Connection.input("x")):
        with pytest.raises(ml.errors.InvalidValueError) as caught:
            call(backend, x)
        assert words in str(caught.value)


def test_words_of_a_library_that_means_the_same_are_taken():
    same(backend.split(X, (1, 3), dim=2), torch.split(T(X), (1, 3), dim=2))
    same(backend.split(X, split_size_or_sections=(1, 3), dim=2), torch.split(T(X), (1, 3), dim=2))
    same(backend.split(X, 2, axis=2), np.split(T(X), 2, axis=2))
    same(backend.split(X, indices_or_sections=2, axis=2), np.split(T(X), 2, axis=2))
    same(backend.chunk(X, 2, dim=-1), torch.chunk(T(X), 2, dim=-1))
    same(backend.chunk(X, chunks=2, dim=2), torch.chunk(T(X), 2, dim=2))
    same(_evaluated(lambda x: x.chunk(2, dim=2)[1]), torch.chunk(T(X), 2, dim=2)[1])
    same(backend.amax(X, dim=1), torch.amax(T(X), dim=1))
    same(backend.std(X, axis=1, keepdims=True, correction=0), T(np.std(X, axis=1, keepdims=True)))
    same(backend.std(X, axis=1, keepdims=True, ddof=1), T(np.std(X, axis=1, keepdims=True, ddof=1)))
    same(backend.norm(X, ord=1, axis=1), T(np.linalg.norm(X, ord=1, axis=1)))
    same(backend.vector_norm(X, ord=2), torch.linalg.vector_norm(T(X), ord=2))
    same(_evaluated(lambda x: x.amin(dim=1)), torch.amin(T(X), dim=1))


def _evaluated(function):
    model = ml.Model.create(output=function(_core.Connection.input("x")))
    return ml.compile(model, backend, shapes={"x": X.shape}, data_keys={"x"}).evaluate({}, {"x": X})["output"]


def test_words_of_layers_that_mean_something_else_are_refused():
    for call, words in (
        (lambda: ml.Max(dim=1), "amax(x, dim=...)"),
        (lambda: ml.Split(2, dim=1), "split(x, n, axis=...)"),
        (lambda: ml.Median(dim=1), "quantile(x, 0.5"),
        (lambda: ml.BatchNorm2d(momentum=0.99, epsilon=1e-3), "0.01 instead of 0.99"),
        (lambda: ml.BatchNorm1d(momentum=0.9, epsilon=1e-3, affine=False), "0.01 instead of 0.99"),
    ):
        with pytest.raises(ml.errors.InvalidValueError) as caught:
            call()
        assert words in str(caught.value)
    for layer in (lambda: ml.Max(axis=1), lambda: ml.Split((1, 2), dim=1), lambda: ml.BatchNorm2d(epsilon=1e-3)):
        assert isinstance(layer(), ml.Model)


def test_gather_of_a_part_is_not_stretched():
    with pytest.raises(ml.errors.InvalidValueError, match="take_along_axis"):
        backend.gather(X, 1, INDEX[:, :, :1])
    same(backend.gather(X, 1, INDEX), torch.gather(T(X), 1, T(INDEX)))
    assert backend.take_along_axis(X, INDEX[:, :, :1], 1).shape == (2, 3, 4)


def test_connections_are_called_like_arrays():
    x, index = _core.Connection.input("x"), _core.Connection.input("index")
    model = ml.Model.create(gathered=x.gather(1, index), summed=x.sum(dim=2), turned=x.permute(2, 0, 1))
    compiled = ml.compile(model, backend, shapes={"x": [2, 3, 4], "index": [2, 3, 4]}, data_keys={"x", "index"})
    outputs = compiled.evaluate({}, {"x": X, "index": INDEX})
    same(outputs["gathered"], torch.gather(T(X), 1, T(INDEX)))
    same(outputs["summed"], T(X).sum(2))
    same(outputs["turned"], T(X).permute(2, 0, 1))
    for call in (lambda: x.transpose(0, 1), lambda: x.repeat(2, 1), lambda: x.std(0, True), lambda: x.pad((1, 1))):
        with pytest.raises(ml.errors.InvalidValueError, match="PyTorch"):
            call()


def test_sizes_of_the_kernel_may_be_said_and_are_checked():
    expected = functional.conv2d(T(IMAGE), T(WEIGHT), padding=1)
    same(backend.conv2d(IMAGE, WEIGHT, (3, 3), strides=(1, 1), padding="SAME"), expected)
    same(backend.conv2d(x=IMAGE, filters=WEIGHT, kernel_size=3, padding="same"), expected)
    same(backend.conv2d(IMAGE, WEIGHT, 3, (1, 1), "SAME"), expected)
    x, w = _core.Connection.input("x"), _core.Connection.input("w")
    for image in (backend.conv2d(x, w, (3, 3), (1, 1), "SAME"), x.conv2d(w, 3, strides=1, padding="SAME")):
        compiled = ml.compile(ml.Model.create(output=image), backend, shapes={"x": IMAGE.shape, "w": WEIGHT.shape})
        same(compiled.evaluate({}, {"x": IMAGE, "w": WEIGHT})["output"], expected)
        with pytest.raises(ml.errors.ShapeError):
            ml.compile(ml.Model.create(output=image), backend, shapes={"x": IMAGE.shape, "w": (5, 4, 1, 9)})


@pytest.mark.parametrize(
    ("layer", "own", "shape"),
    [
        (lambda: ml.Linear(in_features=4, out_features=3), lambda: torch.nn.Linear(4, 3), (2, 4)),
        (
            lambda: ml.Conv2d(in_channels=4, out_channels=6, kernel_size=3, groups=2),
            lambda: torch.nn.Conv2d(4, 6, 3, groups=2),
            (2, 4, 6, 6),
        ),
        (
            lambda: ml.ConvTranspose2d(in_channels=4, out_channels=6, kernel_size=3),
            lambda: torch.nn.ConvTranspose2d(4, 6, 3),
            (2, 4, 6, 6),
        ),
        (lambda: ml.LayerNorm(4, 1e-5, True, False), lambda: torch.nn.LayerNorm(4, 1e-5, True, False), (2, 4)),
        (lambda: ml.LSTMCell(input_size=4, hidden_size=3), lambda: torch.nn.LSTMCell(4, 3), (2, 4)),
        (lambda: ml.GRU(input_size=4, hidden_size=3, length=5), lambda: torch.nn.GRU(4, 3), (5, 2, 4)),
    ],
)
def test_layers_take_the_sizes_of_their_inputs_by_the_words_of_pytorch(layer, own, shape):
    own, x = own(), RNG.normal(size=shape).astype("float32")
    compiled = ml.compile(layer(), backend, shapes={"input": list(shape)})
    params = {name: value.detach().numpy() for name, value in own.named_parameters()}
    assert {n: tuple(p.shape) for n, p in params.items()} == {
        n: tuple(p.shape) for n, p in compiled.randomize_params().items()
    }
    expected = own(T(x))
    actual = compiled.evaluate(params, {"input": x})["output"]
    same(actual, (expected[0] if isinstance(expected, tuple) else expected).detach())
    other = list(shape)
    other[1 if len(shape) == 4 else -1] += 1
    with pytest.raises(ml.errors.ShapeError):
        ml.compile(layer(), backend, shapes={"input": other})


def test_two_spellings_that_differ_are_an_error_even_if_one_is_the_default():
    for layer, options in (
        (ml.Linear, {"dimension": 3, "bias": True, "use_bias": False}),
        (ml.Softmax, {"axis": -1, "dim": 0}),
        (ml.Conv2d, {"filters": 3, "kernel_size": 3, "stride": 1, "strides": 2}),
    ):
        with pytest.raises(ml.errors.ConflictingOptionError):
            layer(**options)
    with pytest.raises(ml.errors.InvalidValueError, match="twice"):
        backend.sum(X, axis=0, dim=1)


# --- the whole table ----------------------------------------------------------------------------------------------

#: Arguments that stand where PyTorch has another one, and why nothing is computed silently.
JUDGED = {
    ("split", "sections"): "a number of parts, as NumPy, JAX, MLX and Keras read it; sizes as a tuple are PyTorch's",
    ("topk", "largest"): "torch.overrides calls it otherwise than torch.topk does",
    ("logsumexp", "axis"): "torch.overrides has another order than torch.logsumexp",
    ("max_pool3d", "ceil_mode"): "torch.overrides has another order than torch.nn.functional.max_pool3d",
    ("Unflatten", "sizes"): "the same order: dim, unflattened_size",
    ("bincount", "length"): "its weights, second there, are a tensor or none, which is no length",
    ("bincount", "weights"): "its minlength, third there, is a number, which stands for no tensor",
    ("unique", "fill_value"): "whether there are positions, third there, is a truth value, which is no number",
    ("cosine_similarity", "left"): "the same order: x1, x2, dim, eps",
    ("cosine_similarity", "right"): "the same order: x1, x2, dim, eps",
    ("histogram", "weights"): "the same order; it calls them weight",
    ("polar", "angle"): "the same order; it calls it ang",
    ("unique", "size"): "whether the result is in order, second there, is a truth value, which is no size",
    ("cholesky_solve", "right"): "the same order: torch.overrides calls them input1 and input2",
    ("cholesky_solve", "factor"): "the same order: torch.overrides calls them input1 and input2",
    ("cond", "p"): "the same order: torch.overrides says nothing of p",
    ("matrix_rank", "atol"): "its tol is absolute, too",
    ("matrix_rank", "rtol"): "whether it is Hermitian, third there, is a truth value, which is no number",
    (
        "qr",
        "mode",
    ): "torch.qr has `some`, a truth value, which is no mode; torch.linalg.qr, which replaces it, is as here",
    ("svd", "full_matrices"): "torch.linalg.svd, NumPy's and JAX's order; it replaces torch.svd, which has `some`",
    ("triangular_solve", "right"): "PyTorch has replaced its own by linalg.solve_triangular, whose order is ours",
}
#: What PyTorch calls our ports, at the same place.
SAME = {
    "axis1": ("dim0", "dim1"),
    "axis2": ("dim1", "dim2"),
    "left": ("tensor1",),
    "other": ("y",),
    "reps": ("dims",),
    "right": ("b", "A", "tensor2", "mat2", "vec2", "exponent"),
    "shape": ("size",),
    "target": ("other",),
    "value": ("fill_value",),
}
#: Parameters that PyTorch takes by name alone, which torch.overrides does not say.
BY_NAME = ("out", "dtype", "generator", "names", "layout", "device", "requires_grad", "pin_memory", "memory_format")


def _signatures():
    """Give every name of ours that PyTorch has too, with PyTorch's parameters."""
    overrides = {f: inspect.signature(o) for f, o in torch.overrides.get_testing_overrides().items()}
    rows = {row["name"]: row for row in _core.op_definitions()}
    for row in rows.values():
        for name in (row["name"], *row["aliases"]):
            for owner in (functional, torch):
                function = getattr(owner, name, None)
                if function is None or not callable(function):
                    continue
                signature = overrides.get(function)
                if signature is None:
                    try:
                        signature = inspect.signature(function)
                    except (TypeError, ValueError):
                        continue
                yield name, row, list(signature.parameters.values())


def _means(word, port):
    """Whether a parameter of that name is that port."""
    return word == port or port in spellings.WORDS.get(word, ()) or word in spellings.WORDS.get(port, ())


def test_every_op_that_pytorch_has_too_takes_its_arguments_in_that_order_or_has_a_row():
    signatures = _core.library_signatures()
    orders = {name: [theirs for theirs, _ in params] for what, name, _, params, _ in signatures if what == "op"}
    compared, wrong = 0, []
    for name, row, parameters in _signatures():
        if any(p.kind is p.VAR_POSITIONAL for p in parameters) or any(p["kind"] == "variadic" for p in row["ports"]):
            continue
        compared += 1
        order = orders.get(name) or orders.get(row["name"])
        own = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if order is not None:
            continue
        own = [word for word in own if word not in BY_NAME]
        for i, (port, word) in enumerate(zip(row["ports"], own, strict=False)):
            is_first = i == 0 and port["kind"] == "tensor"
            is_known = (name, port["name"]) in JUDGED or word in SAME.get(port["name"], ())
            if not (is_first or is_known or _means(word, port["name"])):
                wrong.append(f"{name}: argument {i} is `{word}` in PyTorch and `{port['name']}` here")
                break
    assert compared > 80
    assert not wrong, "\n".join(wrong)


def test_every_layer_that_pytorch_has_too_takes_its_arguments_in_that_order_or_has_a_row():
    rows = {name: params for what, name, _, params, _ in _core.library_signatures() if what == "layer"}
    compared, wrong = 0, []
    for row in _core.layer_definitions():
        aliases = dict(row["arg_aliases"])
        args = [a["name"] for a in row["args"]]
        for name in (row["name"], *row["aliases"]):
            module = getattr(torch.nn, name, None)
            if module is None:
                continue
            recurrent = name in ("RNN", "LSTM", "GRU")
            own = list(inspect.signature((module.__mro__[1] if recurrent else module).__init__).parameters)
            own = own[2:] if recurrent else own[1:]
            if own == ["args", "kwargs"]:
                continue
            compared += 1
            if row["name"] in rows:
                # The row says what PyTorch says, as far as it goes.
                theirs = [param for param, _ in rows[row["name"]]]
                # torch.nn.RNN alone has `nonlinearity`, as its fourth.
                theirs = [p for p in theirs if p != "nonlinearity"] if name == "RNN" else theirs
                assert theirs == own[: len(theirs)], (name, theirs, own)
                continue
            for i, (arg, word) in enumerate(zip(args, own, strict=False)):
                if aliases.get(word, word) != arg and (name, arg) not in JUDGED:
                    wrong.append(f"{name}: argument {i} is `{word}` in PyTorch and `{arg}` here")
                    break
    assert compared > 50
    assert not wrong, "\n".join(wrong)


def test_what_only_pytorch_means_is_not_taken_for_something_else():
    bounds = np.arange(3, dtype=np.float32)
    for call in (lambda: backend.unique(X, True), lambda: backend.matrix_rank(X, None, True)):
        # Whether it is in order, or Hermitian: no number.
        with pytest.raises(ml.errors.InvalidValueError, match="is true"):
            call()
    calls = (
        lambda: backend.bucketize(X, bounds, True),
        lambda: backend.searchsorted(bounds, X, True),
        lambda: backend.searchsorted(bounds, X, False, True),
    )
    for call in calls:
        with pytest.raises(ml.errors.MithrilError, match="PyTorch"):
            call()
    same(backend.bucketize(X, bounds, right=True), torch.bucketize(T(X), T(bounds), right=True))
    same(backend.searchsorted(bounds, X, right=True), torch.searchsorted(T(bounds), T(X), right=True))


#: What another library computes otherwise although it is called by its own words, and why that is not refused.
KNOWN = {
    ("equal", "torch"): "one truth value for all elements; equal of NumPy, JAX, MLX and Keras is as here",
    ("hardtanh", "torch"): "integers stay integers there, also between bounds that are not",
    ("batch_norm", "torch"): "without the new statistics, which it changes in place",
    ("topk", "torch"): "which of equal elements come first is not promised",
    ("bincount", "jax"): "counts of what is not an index differ",
    ("unique", "jax"): "the values alone, unless others are asked for",
    ("median", "jax"): "of a number it has one axis with keepdims",
    ("nanmedian", "jax"): "of a number it has one axis with keepdims",
    ("cummax", "jax"): "the values alone",
    ("cummin", "jax"): "the values alone",
}


def _calls_by_their_words(row, parameters, pick):
    """Calls of the cases of an op with the words of another library, at least one of which is not ours."""
    ports = row["ports"]
    if any(p["kind"] == "variadic" for p in ports):
        return
    for case in cases(row):
        words, is_complete = {}, True
        for port, value in zip(ports, case.args, strict=True):
            is_default = not isinstance(value, np.ndarray) and value == port.get("default")
            word = next((p.name for p in parameters if p.name not in words and _means(p.name, port["name"])), None)
            if word is None and not words and isinstance(value, np.ndarray):
                word = parameters[0].name if parameters else None
            if word is None:
                is_complete = is_complete and is_default
            elif port["required"] or not is_default:
                wide = isinstance(value, np.ndarray) and value.dtype == np.float64
                words[word] = pick(value.astype(np.float32) if wide else value)
        names = {p["name"] for p in ports}
        first = next(iter(words), None)
        if is_complete and words and {w for w in words if w != first} - names:
            yield first, words


def _differences(library, functions, pick, read):
    compared, wrong = 0, []
    for name, row, function, parameters in functions:
        if (row["name"], library) in KNOWN or (name, library) in KNOWN:
            continue
        for first, words in _calls_by_their_words(row, parameters, lambda value: value):
            rest = {word: value for word, value in words.items() if word != first}
            try:
                expected = function(pick(words[first]), **{word: pick(value) for word, value in rest.items()})
                actual = getattr(backend, name)(words[first], **rest)
            except Exception:
                continue
            compared += 1
            expected, actual = (list(v) if isinstance(v, (tuple, list)) else [v] for v in (expected, actual))
            if len(expected) != len(actual) or not all(
                np.shape(f) == np.shape(read(w)) and np.allclose(f, read(w), rtol=1e-3, atol=1e-4, equal_nan=True)
                for f, w in zip(actual, expected, strict=True)
            ):
                wrong.append(f"{name}({', '.join(words)}) gives something else in {library}")
    return compared, sorted(set(wrong))


def test_every_call_by_the_words_of_pytorch_gives_what_pytorch_gives_or_is_refused():
    def functions():
        for name, row, parameters in _signatures():
            for owner in (functional, torch):
                if callable(function := getattr(owner, name, None)):
                    yield name, row, function, parameters

    compared, wrong = _differences(
        "torch", functions(), lambda v: T(v) if isinstance(v, np.ndarray) else v, lambda v: np.asarray(v)
    )
    assert compared > 150
    assert wrong == []


def test_every_call_by_the_words_of_numpy_and_jax_gives_what_they_give_or_is_refused():
    jax = pytest.importorskip("jax")

    def functions(owners):
        for row in _core.op_definitions():
            for name in (row["name"], *row["aliases"]):
                for owner in owners:
                    function = getattr(owner, name, None)
                    if not callable(function) or isinstance(function, type):
                        continue
                    try:
                        parameters = list(inspect.signature(function).parameters.values())
                    except (TypeError, ValueError):
                        continue
                    yield name, row, function, parameters

    for library, owners, least in (
        ("numpy", (np, np.linalg), 20),
        ("jax", (jax.numpy, jax.numpy.linalg, jax.nn, jax.lax), 20),
    ):
        compared, wrong = _differences(library, functions(owners), lambda v: v, np.asarray)
        assert compared > least, compared
        assert wrong == [], wrong
