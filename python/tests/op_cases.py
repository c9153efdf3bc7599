"""Uses of ops for tests: those that the rows list, further ones, and the places where functions bend."""

import mithril as ml
import numpy as np
from mithril import _core
from mithril.testing import cases

#: Where terms cancel: the size of the terms instead of that of the gradient.
TERMS = {
    # Two elements normalize to -1 and 1 whatever they are; what is left of the gradient is a matter of eps.
    "group_norm [2,4] [4] num_groups=2: gradient of x0": 1.0,
    # The derivative is exp(x - y), and both of them are about 1000.
    "logsumexp [[1000.0, 1000.0, -1000.0], None, False]: gradient of x0": 1000.0,
}

#: More uses than the rows list: combinations of arguments that have gone wrong in other libraries.
MORE = {
    "clip": [
        "[2,3] min=-0.5 max=0.75",
        "[2,3] [3] [2,1]",
        "[2,3] min=0.25",
        "[2,3] none [2,3]",
        "[4] min=1.0 max=-1.0",
    ],
    "where": ["bool[] [2,3] [1]", "bool[2,3] i64[3] [2,3]"],
    "power": ["[2,3] right=2.0", "[2,3] right=0.5", "[2,3] right=0", "left=2.0 [2,3]", "[2,3] right=-1"],
    "softmax": ["[3,1]", "[2,3,4,2] axis=-2"],
    "reshape": ["[2,0,3] shape=(3,0)", "[2,3,4] shape=(4,-1,3)"],
    "transpose": ["[2,3,4,5] axes=(3,1,0,2)"],
    "squeeze": ["[1,1]", "[2,1,3] axis=1"],
    "slice": [
        "[5,4] starts=(-1,-1) stops=(none,none) steps=(-3,-1)",
        "[5] starts=(1,) stops=(-7,) steps=(-1,)",
    ],
    "pad": [
        '[3,4] pads=((2,2),(3,3)) mode="reflect"',
        '[2,3] pads=((2,1),(0,3)) mode="symmetric"',
        '[2,3] pads=((2,1),(0,3)) mode="circular"',
        "[2,3] pads=((-1,2),(1,-2)) value=3.0",
    ],
    "roll": ["[2,3] shift=-7 axis=1", "[2,3,4] shift=(1,-1,5) axis=(0,1,2)"],
    "concat": ["axis=-2 [2,0,3] [2,1,3] [2,2,3]", "axis=0 [2] i64[3]"],
    "take": ["[6,3,2] i64[2,1,3]<3 axis=-2", "[6] i64[] axis=0"],
    "getitem": ['[6,5,4] key=(...,"tensor",1:3:1) i64[2,2]<5', "[4,5] key=(none:none:-2,none,-1)"],
    "scatter_add": ["[2,3,6] i64[2,3,4]<6 [2,3,4] axis=2"],
    "diagonal": ["[3,4,2,2] offset=-1 axis1=1 axis2=3"],
    "matmul": ["[2,1,3,4] [1,5,4,2]", "[1,1] [1,1]", "[4] [3,4,0]", "[3,2,4] [1,4,2]"],
    "tensordot": ["[2,3,4] [4,3,2] axes=((2,1,0),(0,1,2))"],
    "einsum": [
        'equation="ijk,ikj->i" [2,3,4] [2,4,3]',
        'equation="...i,...i->..." [2,1,3] [4,3]',
        'equation="iji->j" [3,2,3]',
        'equation="a,b,c->cab" [2] [3] [4]',
        'equation="ij,kj->ik" [2,3] [4,3]',
        'equation="ij,ij->j" [2,3] [2,3]',
    ],
    "sum": [
        "[2,0,3] axis=1",
        "[2,3,4] axis=()",
        "[2,3,4] axis=(0,1,2) keepdim=true",
        "bool[3,4] axis=0",
        "i32[3,4]",
    ],
    "mean": ["i64[3,4] axis=0", "[2,3,4] axis=(0,1,2) keepdim=true"],
    "prod": ["[2,0,3] axis=1", "i64[5]<4", "[2,3,4] axis=(1,2) keepdim=true"],
    "max": ["i64[4,5]<9 axis=0", "[2,3,4] axis=(0,1,2) keepdim=true"],
    "var": ["[6] correction=0.5", "[2,3,4] axis=(0,2) keepdim=true"],
    "std": ["[6] correction=0.5", "[2,3,4] axis=(0,2) keepdim=true"],
    "any": ["bool[2,0,3] axis=1", "[0,3]"],
    "all": ["bool[2,0,3] axis=1", "[0,3] axis=0"],
    "count_nonzero": ["[2,0,3] axis=1"],
    "norm": ["[2,0,3] p=2 axis=1", "[2,3,4] p=3 axis=(0,2) keepdim=true", "[2,3] p=2 axis=0", "[2,3] p=-1.5"],
    "cumsum": ["[2,3,4] axis=1 exclusive=true reverse=true", "bool[5] axis=0"],
    "cumprod": ["[2,3,4] axis=1 exclusive=true reverse=true"],
    "topk": ["[2,3,4] k=2 axis=0 largest=false"],
    "conv1d": ["[1,2,5] [4,2,5] [4]", "[2,4,7] [4,1,3] groups=4 padding=((2,0),) dilation=3"],
    "conv2d": [
        "[2,3,7,6] [4,3,3,2] [4] stride=(3,2) padding=(2,1) dilation=(2,1)",
        '[2,4,5,5] [8,1,3,3] [8] groups=4 padding="same" stride=2',
        "[1,1,3,3] [1,1,3,3] padding=2",
        "[2,3,4,4] [5,3,1,1] stride=2",
    ],
    "conv3d": ["[1,2,4,3,5] [4,1,2,2,2] [4] groups=2 stride=2 padding=1 dilation=(1,2,1)"],
    "conv_transpose1d": ["[2,4,5] [4,3,3] [6] stride=3 padding=2 output_padding=1 groups=2 dilation=2"],
    "conv_transpose2d": [
        "[1,2,3,4] [2,3,3,2] [3] stride=(3,2) padding=(1,0) output_padding=(2,1)",
        '[1,2,3,4] [2,3,3,3] padding="same" stride=2',
        "[1,2,3,4] [2,3,1,1] stride=2",
    ],
    "max_pool2d": [
        "[2,3,7,6] kernel_size=(3,2) stride=(1,2) padding=(1,1) dilation=(2,1) ceil_mode=true",
        "[1,1,5,5] kernel_size=2 stride=3 ceil_mode=true",
    ],
    "avg_pool2d": [
        "[2,3,7,6] kernel_size=(3,2) stride=(2,3) padding=(1,1) ceil_mode=true count_include_pad=false",
        "[2,3,7,6] kernel_size=(3,2) stride=(2,3) padding=(1,1) ceil_mode=true",
        "[1,1,5,5] kernel_size=2 stride=3 ceil_mode=true",
        '[1,2,5,5] kernel_size=3 padding="same" stride=2 count_include_pad=false',
    ],
    "max_pool3d": ["[1,2,5,4,5] kernel_size=(2,3,2) stride=2 padding=1 dilation=(1,1,2) ceil_mode=true"],
    "avg_pool3d": ["[1,2,5,4,5] kernel_size=(2,3,2) stride=2 padding=1 ceil_mode=true count_include_pad=false"],
    "adaptive_avg_pool2d": ["[2,3,5,7] output_size=(7,3)"],
    "adaptive_max_pool2d": ["[2,3,5,7] output_size=(7,3)"],
    "layer_norm": ["[2,3,4] [3,4] none eps=0.1", "[2,3,4] none [4]"],
    "scaled_dot_product_attention": [
        "[2,2,5,4] [2,2,3,4] [2,2,3,6] is_causal=true",
        "[2,2,3,4] [2,2,5,4] [2,2,5,4] [2,1,3,5] is_causal=true scale=0.3",
        "[2,4,3,4] [2,1,5,4] [2,1,5,2] is_causal=true enable_gqa=true",
    ],
    "rope": ["[2,4] base=10.0", "[2,3,5,6] i64[5]<99"],
    "interpolate": [
        '[1,2,4,6] size=(7,3) mode="bicubic"',
        '[1,2,4,6] size=(7,3) mode="bicubic" align_corners=true',
        '[1,1,5] scale_factor=2.6 mode="linear"',
        '[1,1,5] size=1 mode="linear" align_corners=true',
        '[1,1,7] scale_factor=0.4 mode="nearest-exact"',
        '[1,1,2,3,4] size=(3,2,6) mode="nearest"',
    ],
    "huber_loss": ["[3,4] [3,4] delta=0.3"],
    "smooth_l1_loss": ["[3,4] [3,4] beta=0.3"],
    "nll_loss": ["[2,3,4] i64[2,4]<3 [3] ignore_index=1", '[4,3] i64[4]<3 [3] reduction="sum"'],
    "cross_entropy": [
        "[2,3,4] i64[2,4]<3 [3] ignore_index=1 label_smoothing=0.3",
        '[2,3,4] [2,3,4] [3] reduction="sum" label_smoothing=0.3',
        '[2,3,4] [2,3,4] reduction="none"',
        '[2,3,4,2] i64[2,4,2]<3 [3] reduction="none" label_smoothing=0.5',
    ],
    "kl_div": ["[2,3] [2,3] log_target=true"],
    "binary_cross_entropy_with_logits": ["[2,3] [2,3] [2,3] [3]"],
    "batch_norm": [
        "[4,3] none [3] [3] [3] training=true momentum=1.0",
        "[2,3,4] [3] none [3] [3] training=false",
    ],
    "rms_norm": ["[2,3,4] [3,4]"],
    "group_norm": ["[2,6,3,2] none [6] num_groups=2", "[2,6,4] [6] [6] num_groups=1 eps=0.5"],
    "instance_norm": ["[2,3,5] none [3] eps=0.5"],
    "embedding": ["i64[3,2]<5 [5,2] padding_idx=2"],
    "one_hot": ["i64[2,2]<3 depth=3 dtype=f64"],
    "irfft": ["[2,3] [2,3]", '[4,2] [4,2] axis=0 n=7 norm="ortho"'],
    "matrix_power": ["spd[3,3] n=3", "spd[2,2] n=-1"],
}


def every_case(row):
    yield from cases(row)
    if row["name"] in MORE:
        yield from cases({**row, "cases": MORE[row["name"]]})


class Single:
    """A model of one op: its arrays are inputs, floats among them trainable."""

    def __init__(self, case, backend, shapes=None, **options):
        self.arrays = {f"x{i}": a for i, a in enumerate(case.args) if isinstance(a, np.ndarray)}
        args = [ml.IOKey(f"x{i}") if isinstance(a, np.ndarray) else a for i, a in enumerate(case.args)]
        outputs = _core.apply_op(case.op, args)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        self.names = [f"output{i}" for i in range(len(outputs))]
        self.trainable = [name for name, a in self.arrays.items() if a.dtype == np.float64]
        self.backend = backend
        self.compiled = ml.compile(
            ml.Model.create(**dict(zip(self.names, outputs, strict=True))),
            backend,
            shapes={name: a.shape for name, a in self.arrays.items()} | (shapes or {}),
            dtypes={name: str(a.dtype) for name, a in self.arrays.items() if name not in self.trainable},
            trainable_keys=self.trainable,
            **options,
        )

    def run(self, cotangents):
        params = {name: self.backend.array(self.arrays[name]) for name in self.trainable}
        data = {name: self.backend.array(a) for name, a in self.arrays.items() if name not in params}
        if not cotangents or not params:
            return self.compiled.evaluate(params, data), {}
        return self.compiled.evaluate(params, data, {name: self.backend.array(g) for name, g in cotangents.items()})


#: Arguments at which functions bend, tie or vanish; the rows say that the gradient is the one torch has.
BENDS = [
    ("relu", [0.0, -0.0, 1.0, -1.0]),
    ("relu6", [0.0, 6.0, 3.0, 7.0]),
    ("leaky_relu", [0.0, 1.0, -1.0], 0.2),
    ("hard_sigmoid", [-3.0, 3.0, 0.0]),
    ("hard_tanh", [-1.0, 1.0, 0.0], -1.0, 1.0),
    ("hard_swish", [-3.0, 3.0, 0.0]),
    ("elu", [0.0, -0.0], 0.5),
    ("abs", [0.0, -0.0, 2.0]),
    ("sign", [0.0, 2.0]),
    ("softplus", [20.0, 20.5, -800.0, 800.0], 1.0, 20.0),
    ("log_sigmoid", [-800.0, 0.0, 800.0]),
    ("sigmoid", [-800.0, 0.0, 800.0]),
    ("silu", [-100.0, 100.0]),
    ("mish", [-100.0, 0.0, 100.0]),
    ("tanh", [-400.0, 0.0, 400.0]),
    ("gelu", [-40.0, 0.0, 40.0], "none"),
    ("gelu", [-40.0, 0.0, 40.0], "tanh"),
    ("clip", [-1.0, 0.5, 2.0], -1.0, 2.0),
    ("clip", [-1.0, 0.5, 2.0], [-1.0, 1.0, 0.0], [1.0, 2.0, 2.0]),
    ("maximum", [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]),
    ("minimum", [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]),
    ("max", [1.0, 3.0, 3.0], None, False),
    ("min", [[1.0, 1.0], [2.0, 1.0]], 1, False),
    ("prod", [2.0, 0.0, 3.0], None, False),
    ("prod", [0.0, 0.0, 3.0], None, False),
    ("cumprod", [2.0, 0.0, 3.0, 0.0, 5.0], 0, False, False),
    ("norm", [0.0, 0.0], 2.0, None, False),
    ("norm", [0.0, 1.0, -1.0], 1.0, None, False),
    ("norm", [0.0, 1.0, -2.0], float("inf"), None, False),
    ("norm", [0.0, 1.0, -2.0], 3.0, None, False),
    ("logsumexp", [1000.0, 1000.0, -1000.0], None, False),
    ("logsumexp", [float("-inf"), 0.0], None, False),
    ("softmax", [1000.0, -1000.0, 999.0], 0),
    ("log_softmax", [1000.0, -1000.0, 999.0], 0),
    ("power", [0.0, 2.0, 3.0], [2.0, 0.0, 1.0]),
    ("power", [0.0, 2.0, -3.0], 2.0),
    ("sqrt", [0.0, 4.0]),
    ("remainder", [5.0, -5.0, 4.0], [3.0, 3.0, -2.0]),
    ("where", np.array([True, False]), [0.0, 1.0], [1.0, float("inf")]),
    ("l1_loss", [1.0, 2.0], [1.0, 3.0], "sum"),
    ("huber_loss", [1.0, 2.0, 4.0], [1.0, 3.0, 2.0], "sum", 1.0),
    ("smooth_l1_loss", [1.0, 2.0, 4.0], [1.0, 3.0, 2.0], "sum", 1.0),
    ("binary_cross_entropy", [0.0, 1.0, 0.5], [0.0, 1.0, 1.0], None, "sum"),
    ("binary_cross_entropy_with_logits", [-500.0, 500.0], [1.0, 0.0], None, None, "sum"),
    ("cross_entropy", [[1000.0, 0.0], [0.0, -1000.0]], np.array([1, 0]), None, "mean", -100, 0.0),
    ("cross_entropy", [[1.0, 0.0], [0.0, 1.0]], np.array([1, -100]), None, "mean", -100, 0.1),
    ("kl_div", [-1.0, -2.0], [0.0, 1.0], "sum", False),
    ("sort", [2.0, 1.0, 2.0, 1.0], 0, False),
    ("max_pool1d", [[[1.0, 1.0, 0.0, 1.0]]], 2, None, 0, 1, False),
    ("normalize", [[3.0, 4.0], [1e-20, 0.0]], 1, 1e-12),
    ("atan2", [0.0, 0.0, 1.0], [1.0, -1.0, 0.0]),
    ("erfinv", [0.0, 0.999]),
    ("round", [0.5, 1.5]),
]
