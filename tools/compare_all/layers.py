"""Uses of every layer of `ml`: arguments, and the inputs for them."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
from mithril._generated import layers

#: Layer -> uses: arguments, then the inputs by name as in the cases of ops, e.g. ``i64[4]<5``.
#: ``p[2]`` is between 0 and 1, ``q[2]`` positive, ``up[2]`` ascending; in ``nan[4]`` every third number is missing.
#: Inputs that are not named are ``[2,3]``.
LAYERS: dict[str, list[tuple[tuple[Any, ...], str]]] = {
    "AdaptiveAvgPool1d": [((2,), "[2,3,5]")],
    "AdaptiveAvgPool2d": [(((2, 3),), "[2,3,5,7]")],
    "AdaptiveAvgPool3d": [((2,), "[1,2,4,5,6]")],
    "AdaptiveMaxPool1d": [((2,), "[2,3,5]")],
    "AdaptiveMaxPool2d": [(((2, 3),), "[2,3,5,7]")],
    "AdaptiveMaxPool3d": [((2,), "[1,2,4,5,6]")],
    "AffineGrid": [(((2, 3, 4, 5),), "[2,2,3]"), (((1, 2, 2, 3, 2), True), "[1,3,4]")],
    "All": [((), "bool[2,3]"), ((1, True), "bool[2,3]")],
    "Any": [((), "bool[2,3]"), ((-1,), "bool[2,3]")],
    "ArgMax": [((), ""), ((1, True), "")],
    "ArgMin": [((), ""), ((-1,), "")],
    "AvgPool1d": [((2,), "[2,3,6]"), ((3, 2, 1), "[2,3,6]")],
    "AvgPool2d": [((2,), "[2,3,6,4]"), (((3, 2), 1, (1, 1), True, False), "[1,2,6,4]")],
    "AvgPool3d": [((2,), "[1,2,4,4,4]")],
    "BatchNorm1d": [((), "[5,3]"), ((3,), "[4,3,2]")],
    "BatchNorm2d": [((), "[2,3,4,4]"), ((3, 1e-3, 0.2, False), "[2,3,4,4]")],
    "BatchNorm3d": [((), "[2,3,2,2,2]")],
    "BinCount": [((5,), "i64[9]<4"), ((3,), "i64[2,4]<5")],
    "BinaryCrossEntropy": [((), "p[2,3] p[2,3]"), (("none",), "p[2,3] p[2,3]")],
    "BinaryCrossEntropyWithLogits": [((), "[2,3] p[2,3]"), (("sum",), "[2,3] p[2,3]")],
    "BitwiseAnd": [((), "i64[2,3] i64[3]")],
    "BitwiseNot": [((), "i64[2,3]")],
    "BitwiseOr": [((), "i64[2,3] i64[3]")],
    "BitwiseXor": [((), "i64[2,3] bool[3]")],
    "BroadcastTo": [(((2, 4, 3),), "[4,1]")],
    "Bucketize": [((), "[2,3] up[4]"), ((True,), "i64[2,3] up[5]")],
    "Cast": [(("int32",), ""), (("float32",), "i64[2]")],
    "Cholesky": [((), "spd[3,3]"), ((), "spd[2,2]")],
    "CholeskyInverse": [((), "spd[3,3]"), ((True,), "spd[3,3]")],
    "CholeskySolve": [((), "[3,2] spd[3,3]"), ((True,), "[3] spd[3,3]")],
    "Clip": [((), "[2,3]")],
    "Concat": [((), ""), ((1, 3), "[2,1] [2,2] [2,3]")],
    "ConditionNumber": [((), "[3,2]"), (("fro",), "spd[3,3]")],
    "Conv1d": [((4, 3), "[2,3,6]"), ((6, 2, 2, 1, 2, 3, False), "[2,3,7]")],
    "Conv2d": [((4, 3, 1, "same"), "[2,3,5,5]"), ((6, (3, 2), 2, ((1, 0), (0, 1)), 1, 3), "[1,3,6,5]")],
    "Conv3d": [((2, 2), "[1,2,3,3,4]")],
    "ConvTranspose1d": [((4, 3), "[2,3,5]"), ((2, 3, 2, 1, 1), "[2,3,5]")],
    "ConvTranspose2d": [((2, 3, 2, 1), "[1,3,4,4]")],
    "ConvTranspose3d": [((2, 2), "[1,2,2,3,2]")],
    "CountNonzero": [((), "i64[2,3]"), ((1,), "i64[2,3]")],
    "Cross": [((), "[2,3] [2,3]")],
    "CrossEntropy": [((), "[4,5] i64[4]<5"), (("sum", 2, 0.1), "[4,5] i64[4]<5"), (("none",), "[2,5,3] i64[2,3]<5")],
    "CumMax": [((1,), "[2,5]"), ((-2,), "[2,4,3]")],
    "CumMin": [((1,), "[2,5]"), ((-2,), "[2,4,3]")],
    "CumProd": [((1,), ""), ((0, True, True), "[4,2]")],
    "CumSum": [((1,), ""), ((0, True, True), "[4,2]")],
    "CumulativeMax": [((1,), "[2,5]"), ((-2, True), "[2,4,3]")],
    "CumulativeMin": [((1,), "[2,5]"), ((-2, True), "[2,4,3]")],
    "Determinant": [((), "spd[3,3]")],
    "Diag": [((), "[3]"), ((1,), "[3,3]")],
    "Diagonal": [((), "[3,4]"), ((1, 1, 2), "[2,3,4]")],
    "Dot": [((), "[4] [4]"), ((), "[2,3] [3,4]")],
    "Dropout": [((0.0,), ""), ((0.5,), "[40]")],
    "Einsum": [(("ij,jk->ik",), "[2,3] [3,4]"), (("...ii->...i", 1), "[2,3,3]")],
    "Embedding": [((5, 3), "i64[2,4]<5"), ((5, 3, 1), "i64[4]<5")],
    "ExpandDims": [((1,), ""), (((0, -1),), "")],
    "Fft": [((), "[2,4]"), ((0, "ortho"), "[3,2]")],
    "Flatten": [((), "[2,3,4]"), ((0, 1), "[2,3,4]")],
    "Flip": [((), ""), ((1,), "")],
    "FloorDivide": [((), "i64[2,3] q[3]")],
    "Fold": [((4, 2, 1, 0, 2), "[8,4]"), (((4, 5), (2, 3), (2, 1), (1, 0), (1, 2)), "[2,6,8]")],
    "GRU": [((4, 3), "[3,2,5]"), ((2, 3, 2, True, True, True), "[2,3,5]")],
    "GRUCell": [((4,), "[2,3]")],
    "Gelu": [((), ""), (("tanh",), "")],
    "GridSample": [
        ((), "[1,2,4,5] [1,3,2,2]"),
        (("bicubic", "reflection", True), "[1,2,3,4] [1,2,3,2]"),
        (("nearest", "border"), "[1,2,2,3,4] [1,2,1,3,3]"),
    ],
    "GroupNorm": [((2,), "[2,4,3]"), ((1, 3, 1e-3, False), "[2,3]")],
    "IndexAdd": [((), "[4,3] i64[2]<4 [2,3]")],
    "IndexCopy": [((), "[4,3] i64[1]<4 [1,3]")],
    "IndexFill": [((0,), "[4,3] i64[2]<4 []"), ((-1,), "[2,6] i64[3]<6 []")],
    "IndexPut": [
        (("tensor", False, 1), "[4,3] [2,3] i64[2]<4"),
        ((("tensor", "tensor"), True), "[3,4] [5] i64[5]<3 i64[5]<4"),
        (((slice(1, 3), "tensor"), True, 1), "[4,5] [2,3] i64[3]<5"),
    ],
    "Inner": [((), "[2,3] [4,3]")],
    "InstanceNorm1d": [((), "[2,3,5]"), ((3, 1e-3, True), "[2,3,5]")],
    "InstanceNorm2d": [((), "[2,3,4,2]")],
    "InstanceNorm3d": [((), "[1,2,2,2,3]")],
    "Eigh": [((), "[3,3]")],
    "Eigvalsh": [((), "[3,3]")],
    "Inverse": [((), "spd[3,3]")],
    "InverseFft": [((), "[2,4]")],
    "InverseRealFft": [((), "[2,3] [2,3]"), ((5,), "[2,3] [2,3]")],
    "KLDivergence": [((), "[2,3] p[2,3]"), (("batchmean", True), "[2,3] [2,3]")],
    "Kron": [((), "[2,3] [3,2]")],
    "L1Loss": [((), ""), (("none",), "")],
    "LSTM": [((4, 3), "[3,2,5]"), ((2, 3, 2, True, True, True), "[2,3,5]")],
    "LSTMCell": [((4,), "[2,3]")],
    "LayerNorm": [((), ""), (((2, 3), 1e-3, False), "[4,2,3]")],
    "LeftShift": [((), "i64[2,3] i64[3]<4")],
    "LeastSquares": [((), "[4,2] [4]"), ((1e-3,), "[4,2] [4,3]")],
    "Linear": [((4,), ""), ((4, False), "[2,5,3]"), ((2,), "[3]")],
    "LogicalAnd": [((), "bool[2,3] bool[3]")],
    "LogicalNot": [((), "bool[2,3]")],
    "LogicalOr": [((), "bool[2,3] bool[3]")],
    "LogicalXor": [((), "bool[2,3] bool[3]")],
    "LogSoftmax": [((), ""), ((0,), "")],
    "LogSumExp": [((), ""), ((1, True), "")],
    "MLP": [(((4, 2),), ""), (((4, 2), ("Tanh", "Sigmoid"), False), "")],
    "MaskedFill": [((), "[2,3] bool[2,3] []"), ((), "[2,1] bool[3] []")],
    "MaskedScatter": [((), "[2,3] bool[2,3] [6]"), ((), "[2,3] bool[3] [2,3]")],
    "MatrixMultiply": [((), "[2,3] [3,4]"), ((), "[2,1,3,4] [5,4,2]")],
    "MatrixNorm": [((), "[3,2]"), (("nuc", True), "[3,4]"), ((2,), "[3,4]")],
    "MatrixPower": [((3,), "spd[2,2]"), ((-1,), "spd[2,2]")],
    "MatrixRank": [((), "[3,4]"), ((None, 0.5), "[3,4]")],
    "MatrixTranspose": [((), "[2,3,4]")],
    "Max": [((), ""), ((1, True), "")],
    "MaxPool1d": [((2,), "[2,3,6]"), ((3, 2, 1), "[2,3,6]")],
    "MaxPool2d": [((2,), "[2,3,6,4]"), (((3, 2), 1, (1, 1)), "[1,2,6,4]")],
    "MaxPool3d": [((2,), "[1,2,4,4,4]")],
    "Min": [((), ""), ((1, True), "")],
    "MoveAxis": [((0, -1), "[2,3,4]")],
    "MultiHeadAttention": [((4, 2), "[2,3,4] [2,5,4] [2,5,4]"), ((4, 2, False, True), "[2,3,4] [2,3,4] [2,3,4]")],
    "NLLLoss": [((), "[4,5] i64[4]<5"), (("sum", 1), "[4,5] i64[4]<5")],
    "NanCumProd": [((1,), "nan[2,4]"), ((0, True, True), "nan[5,2]")],
    "NanCumSum": [((1,), "nan[2,4]"), ((0, True, True), "nan[5,2]")],
    "NanQuantile": [((), "nan[7] p[]"), ((1, True, "midpoint"), "nan[3,5] p[]"), (((0, -1),), "nan[2,3,4] p[2]")],
    "Norm": [((), ""), ((1.0, 1, True), ""), ((3.0,), "")],
    "OneHot": [((4,), "i64[3]<4")],
    "Outer": [((), "[3] [4]")],
    "Pad": [((((1, 2), (0, 1)),), ""), ((1, "reflect"), "[3,4]"), ((((0, 0), (1, 2)), "edge"), "")],
    "PseudoInverse": [((), "[3,2]"), ((1e-3,), "[2,4]")],
    "Qr": [((), "[4,3]"), (("complete",), "[3,4]")],
    "PixelShuffle": [((2,), "[1,8,2,3]")],
    "PixelUnshuffle": [((2,), "[1,2,4,6]")],
    "Power": [((), "q[2,3] [3]")],
    "Prelu": [((), "[2,4,3]"), ((4,), "[2,4,3]")],
    "Quantile": [((), "[7] p[]"), ((1, True, "midpoint"), "[3,5] p[]"), (((0, -1),), "[2,3,4] p[2]")],
    "RNN": [((4, 3), "[3,2,5]"), ((2, 3, 2, True, True, True, "relu"), "[2,3,5]")],
    "RNNCell": [((4,), "[2,3]"), ((4, False, "relu"), "[2,3]")],
    "RMSNorm": [((), ""), (((2, 3), 1e-3, False), "[4,2,3]")],
    "RandomBernoulli": [(((2, 3),), "")],
    "RandomNormal": [(((2, 3),), "")],
    "RandomPermutation": [((5,), "")],
    "RandomRandint": [(((2, 3), 0, 5), "")],
    "RandomUniform": [(((2, 3),), "")],
    "RealFft": [((), "[2,4]"), ((0,), "[3,2]")],
    "Remainder": [((), "[2,3] q[3]")],
    "Repeat": [((2,), ""), ((2, 1), "")],
    "Reshape": [(((3, -1),), "")],
    "RightShift": [((), "i64[2,3] i64[3]<4")],
    "Roll": [((1,), ""), (((1, -1), (0, 1)), "")],
    "RotaryEmbedding": [((), "[2,5,4]"), ((100.0, True), "[1,2,3,4]")],
    "ScaledDotProductAttention": [((), "[2,3,4] [2,5,4] [2,5,6]"), ((True,), "[2,2,3,4] [2,2,3,4] [2,2,3,4]")],
    "Scatter": [((0,), "[4,3] i64[2,3]<4 [2,3]"), ((-1,), "[2,6] i64[2,9]<6 [2,9]")],
    "ScatterAdd": [((), "[4,3] i64[2,3]<4 [2,3]")],
    "ScatterMax": [((), "[4,3] i64[2,3]<4 [2,3]"), ((-1,), "[2,3] i64[2,7]<3 [2,7]")],
    "ScatterMin": [((), "[4,3] i64[2,3]<4 [2,3]"), ((-1,), "[2,3] i64[2,7]<3 [2,7]")],
    "ScatterProd": [((), "[4,3] i64[2,3]<4 [2,3]"), ((-1,), "[2,3] i64[2,7]<3 [2,7]")],
    "ScatterReduce": [
        ((0, "mean"), "[4,3] i64[6,3]<4 [6,3]"),
        ((1, "amax", False), "[2,4] i64[2,3]<4 [2,3]"),
        ((-1, "prod", False), "[2,4] i64[2,7]<4 [2,7]"),
    ],
    "SelfAttention": [((4, 2), "[2,3,4]"), ((4, 1, False, True), "[2,3,4]")],
    "SingularValues": [((), "[3,4]")],
    "SlogDeterminant": [((), "spd[3,3]")],
    "Slice": [(((0, 1), (2, 3)), ""), (((0, 2), (2, 0), (1, -1)), "")],
    "SliceUpdate": [(((0, 1), (2, 3)), "[2,3] [2,2]")],
    "Solve": [((), "spd[3,3] [3,2]"), ((), "spd[3,3] [3]")],
    "SolveTriangular": [((True,), "spd[3,3] [3,2]"), ((False, True, True), "spd[3,3] [3,2]")],
    "Sort": [((), ""), ((0, True), "[4,2]")],
    "ArgSort": [((), ""), ((0, True), "[4,2]")],
    "Split": [((2, 1), "[3,4]"), (((1, 4), 0), "[5,2]")],
    "Squeeze": [((), "[2,1,3]"), ((1,), "[2,1,3]")],
    "Stack": [((), ""), ((1, 3), "[2] [2] [2]")],
    "Std": [((), ""), ((1, True, 0.0), "")],
    "Sum": [((), ""), ((0, True), "")],
    "Svd": [((), "[3,3]"), ((False,), "[4,2]")],
    "SwapAxes": [((0, 1), "")],
    "Take": [((0,), "[4,3] i64[2,2]<4"), ((), "[4,3] i64[2]<4")],
    "TakeAlongAxis": [((), "[2,4] i64[2,3]<4")],
    "Tensordot": [((1,), "[2,3] [3,4]"), ((((0,), (1,)),), "[3,2] [4,3]")],
    "ThinSvd": [((), "[3,4]")],
    "Tile": [(((2, 1),), "")],
    "TopK": [((2,), ""), ((1, 0, False), "")],
    "Trace": [((), "[3,3]")],
    "TransformerDecoder": [((2, 4, 2, 8, 0.0), "[2,3,4] [2,5,4]")],
    "TransformerDecoderLayer": [((4, 2, 8, 0.0), "[2,3,4] [2,5,4]"), ((4, 2, 8, 0.1, "gelu"), "[2,3,4] [2,5,4]")],
    "TransformerEncoder": [((2, 4, 2, 8, 0.0), "[2,3,4]")],
    "TransformerEncoderLayer": [((4, 2, 8, 0.0), "[2,3,4]"), ((4, 2, 8, 0.0, "gelu", 1e-3, True), "[2,3,4]")],
    "Transpose": [((), ""), (((2, 0, 1),), "[2,3,4]")],
    "TriangularSolve": [((), "spd[3,3] [3,2]"), ((False, True), "spd[3,3] [3,2]")],
    "Tril": [((), "[3,3]"), ((1,), "[2,3]")],
    "Triu": [((), "[3,3]"), ((-1,), "[2,3]")],
    "Unflatten": [((1, (2, 3)), "[2,6]"), ((0, (-1, 2)), "[6,2]")],
    "Unfold": [((2,), "[1,2,4,5]"), (((2, 3), (2, 1), (1, 0), (1, 2)), "[2,1,5,6]")],
    "UnfoldAxis": [((0, 3), "[7]"), ((1, 2, 3), "[2,7,2]")],
    "Unique": [((6,), "i64[9]<4"), ((5, 7.5), "[4]"), ((3,), "[2,4]")],
    "Upsample": [((None, 2), "[1,2,3]"), (((4, 6), None, "bilinear"), "[1,2,3,3]")],
    "Var": [((), ""), ((1, True, 0.0), "")],
    "VectorDot": [((), "[2,3] [2,3]")],
    "ViewAsComplex": [((), "[3,2]")],
    "ViewAsReal": [((), "[2,3] [2,3]"), ((), "[2,1] [3]")],
    "Where": [((), "bool[2,3] [2,3] [3]")],
}
#: Layers of floats whose values have to lie in a range.
RANGES: dict[str, tuple[float, float]] = {
    "Acos": (-0.9, 0.9),
    "Asin": (-0.9, 0.9),
    "Atanh": (-0.9, 0.9),
    "Erfinv": (-0.9, 0.9),
    "Acosh": (1.2, 3),
    "Log": (0.2, 3),
    "Log10": (0.2, 3),
    "Log1p": (0.2, 3),
    "Log2": (0.2, 3),
    "Rsqrt": (0.2, 3),
    "Sqrt": (0.2, 3),
    "Reciprocal": (0.2, 3),
    "Divide": (0.2, 3),
    "NLLLoss": (-3, -0.1),
}
#: Arguments of the layers in order.
ARGUMENTS = {row["name"]: [arg["name"] for arg in row["args"]] for row in ml._core.layer_definitions()}
ALL = sorted({getattr(layers, name).__name__ for name in layers.__all__})
CASES = [(name, args, text) for name in ALL for args, text in LAYERS.get(name, [((), "")])]


def draw(name: str, word: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Draw an input of a layer from its description."""
    prefix, _, rest = word.partition("[")
    sizes, _, tail = rest.partition("]")
    shape = tuple(int(n) for n in sizes.split(",") if n)
    if prefix == "spd":
        a = rng.uniform(-1, 1, shape)
        return a @ a.T + shape[0] * np.eye(shape[0])
    if prefix == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if prefix == "i64":
        return rng.integers(0 if tail else -4, int(tail[1:]) if tail else 5, shape)
    # All different and apart, so that differences do not cross a kink of max or sort.
    low, high = RANGES.get(name, {"p": (0.1, 0.9), "q": (0.5, 2.5)}.get(prefix, (-2, 2)))
    count = int(np.prod(shape))
    spread = (high - low) / (count + 1) / 20
    values = rng.permutation(np.linspace(low, high, count) + rng.uniform(-spread, spread, count))
    if prefix == "up":
        values.sort()
    if prefix == "nan":
        values[::3] = np.nan
    return values.reshape(shape)


def build(name: str, args: tuple[Any, ...], text: str) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    """Make the layer of a use, and its inputs."""
    rng = np.random.default_rng(len(name) * 100 + len(text))
    # By name: some of them PyTorch takes in another order, which is refused.
    layer = getattr(ml, name)(**dict(zip(ARGUMENTS[name], args, strict=False)))
    inputs = ml.compile(layer, ml.NumpyBackend()).input_keys
    words = text.split() or ["[2,3]"] * len(inputs)
    assert len(words) == len(inputs), inputs
    return layer, {n: draw(name, w, rng) for n, w in zip(inputs, words, strict=True)}
