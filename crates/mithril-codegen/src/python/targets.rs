//! What differs between the Python targets, as data.

use std::sync::{Arc, LazyLock};

use mithril_ir::DType;
use mithril_ir::lowering::{Lowering, LoweringRule};

use super::overlay::Overlay;
use super::prelude::{self, Prelude};

/// A Python framework.
#[derive(Clone, Debug)]
pub struct PythonTarget {
    /// Name of the target, as in error messages.
    pub name: &'static str,
    /// Name of the framework as its makers write it.
    pub title: &'static str,
    /// Name of the array module.
    pub xp: &'static str,
    /// Imports: the name each binds, and the line. The first is always written, the others when used.
    pub imports: &'static [(&'static str, &'static str)],
    /// How dtypes are written; empty for one that the framework lacks.
    pub dtypes: fn(DType) -> &'static str,
    /// Dtypes beside which a plain Python number would change the dtype of the result; it is written with its dtype.
    pub typed_numbers: &'static [DType],
    /// Spellings of an op in the order in which they are tried.
    pub rules: fn(&Lowering) -> [LoweringRule; 2],
    /// The rule for an op that writes into the memory of its first input.
    pub in_place: fn(&Lowering) -> LoweringRule,
    /// The rule for many uses of an op in one call.
    pub foreach: fn(&Lowering) -> LoweringRule,
    /// The rule for operands that are the items of one array.
    pub stacked: fn(&Lowering) -> LoweringRule,
    /// Helpers that lowerings may call.
    pub prelude: &'static LazyLock<Prelude>,
    /// A number as a value of a dtype: `{value}`, `{dtype}`.
    pub scalar: &'static str,
    /// A nested list as an array: `{value}`, `{dtype}`.
    pub array: &'static str,
    /// Whether it takes integers beyond int64; if not, constants are written as int64 and converted.
    pub takes_wide_integers: bool,
    /// Makes an array of a result without dimensions, where ops return something else: `{value}`.
    pub result: &'static str,
    /// A copy of an array that later calls read, for a caller, who may write into it: `{value}`.
    pub copy: &'static str,
    /// Takes integers that follow from other numbers out of what the framework differentiates: `{value}`; empty where it
    /// does so by itself.
    pub detached: &'static str,
    /// Line above each function; may be empty.
    pub decorator: &'static str,
    /// What `_CONSTANTS` is read from, the file beside the module: lines, indented by four; may be empty.
    pub load: &'static str,
    /// Whether arrays are computed when they are read, which has to be by the thread that made them.
    pub is_lazy: bool,
    /// Line that binds the name `device`, which lowerings may use, to a device; empty if none does.
    pub device: &'static str,
    /// In which dtype it computes one that it stores and converts, but has few kernels of; the wider one holds all numbers
    /// of the other, and its low part is what wraps around. For uint64 it is int64, as op definitions say (`unsigned`).
    pub computed_as: fn(DType) -> DType,
    /// How loops are written.
    pub iteration: Iteration,
    /// What a backend of a user's own adds.
    pub overlay: Option<Arc<Overlay>>,
}

/// How a target writes statements that repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iteration {
    /// `for t in range(n):`
    Statement,
    /// `jax.lax.scan(step, initial, items)`: a loop of Python would be traced iteration by iteration.
    Scan,
}

impl PythonTarget {
    /// The target with the methods of a user's backend.
    #[must_use]
    pub fn with(&self, overlay: Overlay) -> Self {
        Self { overlay: Some(Arc::new(overlay)), ..self.clone() }
    }
}

/// All of them.
pub static TARGETS: [&PythonTarget; 5] = [&NUMPY, &TORCH, &JAX, &MLX, &CUSTOM];

/// NumPy.
pub static NUMPY: PythonTarget = PythonTarget {
    name: "numpy",
    title: "NumPy",
    xp: "np",
    imports: &[("np", "import numpy as np"), ("bfloat16", "from ml_dtypes import bfloat16")],
    dtypes: |dtype| match dtype {
        DType::Bool => "np.bool_",
        DType::U8 => "np.uint8",
        DType::U16 => "np.uint16",
        DType::U32 => "np.uint32",
        DType::U64 => "np.uint64",
        DType::I8 => "np.int8",
        DType::I16 => "np.int16",
        DType::I32 => "np.int32",
        DType::I64 => "np.int64",
        DType::F16 => "np.float16",
        DType::BF16 => "bfloat16",
        DType::F32 => "np.float32",
        DType::F64 => "np.float64",
    },
    // bfloat16 is not NumPy's own: beside it, a Python float counts as float32.
    typed_numbers: &[DType::BF16],
    rules: |lowering| [lowering.numpy, lowering.py],
    in_place: |lowering| lowering.numpy_in_place,
    foreach: |_| LoweringRule::None,
    stacked: |_| LoweringRule::None,
    prelude: &NUMPY_PRELUDE,
    scalar: "{dtype}({value})",
    array: "np.array({value}, dtype={dtype})",
    takes_wide_integers: true,
    // Ufuncs return NumPy scalars where the result has no dimensions.
    result: "np.asarray({value})",
    copy: "{value}.copy()",
    detached: "",
    // Infinities and NaN are ordinary results here, not a reason to warn.
    decorator: "@np.errstate(all=\"ignore\")",
    load: "    _CONSTANTS = np.load(__file__.removesuffix(\".py\") + \".npz\")",
    is_lazy: false,
    device: "",
    computed_as: |dtype| dtype,
    iteration: Iteration::Statement,
    overlay: None,
};

/// PyTorch.
pub static TORCH: PythonTarget = PythonTarget {
    name: "torch",
    title: "PyTorch",
    xp: "torch",
    imports: &[("torch", "import torch"), ("F", "import torch.nn.functional as F"), ("math", "import math")],
    dtypes: |dtype| match dtype {
        DType::Bool => "torch.bool",
        DType::U8 => "torch.uint8",
        DType::U16 => "torch.uint16",
        DType::U32 => "torch.uint32",
        DType::U64 => "torch.uint64",
        DType::I8 => "torch.int8",
        DType::I16 => "torch.int16",
        DType::I32 => "torch.int32",
        DType::I64 => "torch.int64",
        DType::F16 => "torch.float16",
        DType::BF16 => "torch.bfloat16",
        DType::F32 => "torch.float32",
        DType::F64 => "torch.float64",
    },
    typed_numbers: &[],
    rules: |lowering| [lowering.torch, lowering.py],
    in_place: |lowering| lowering.torch_in_place,
    foreach: |lowering| lowering.torch_foreach,
    stacked: |_| LoweringRule::None,
    prelude: &TORCH_PRELUDE,
    // Not `torch.tensor`, which would wait for the copy to the device.
    scalar: "torch.full((), {value}, dtype={dtype}, device=device)",
    array: "torch.tensor({value}, dtype={dtype}, device=device)",
    takes_wide_integers: true,
    result: "{value}",
    copy: "{value}.clone()",
    detached: "",
    decorator: "",
    load: "    import numpy as np\n\n    _CONSTANTS = {\n        name: torch.from_numpy(array).to(device)\n        if array.dtype.kind != \"V\"\n        else torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)\n        for name, array in np.load(__file__.removesuffix(\".py\") + \".npz\").items()\n    }",
    is_lazy: false,
    device: "device = torch.device({device})",
    computed_as: |dtype| {
        if matches!(dtype, DType::U16 | DType::U32 | DType::U64) { DType::I64 } else { dtype }
    },
    iteration: Iteration::Statement,
    overlay: None,
};

/// JAX.
pub static JAX: PythonTarget = PythonTarget {
    name: "jax",
    title: "JAX",
    xp: "jnp",
    imports: &[("jnp", "import jax.numpy as jnp"), ("jax", "import jax")],
    dtypes: |dtype| match dtype {
        DType::Bool => "jnp.bool_",
        DType::U8 => "jnp.uint8",
        DType::U16 => "jnp.uint16",
        DType::U32 => "jnp.uint32",
        DType::U64 => "jnp.uint64",
        DType::I8 => "jnp.int8",
        DType::I16 => "jnp.int16",
        DType::I32 => "jnp.int32",
        DType::I64 => "jnp.int64",
        DType::F16 => "jnp.float16",
        DType::BF16 => "jnp.bfloat16",
        DType::F32 => "jnp.float32",
        DType::F64 => "jnp.float64",
    },
    // A larger Python number than int32 holds is none that JAX takes.
    typed_numbers: &[DType::U32, DType::U64],
    rules: |lowering| [lowering.jax, lowering.py],
    in_place: |_| LoweringRule::None,
    foreach: |_| LoweringRule::None,
    stacked: |lowering| lowering.jax_stacked,
    prelude: &JAX_PRELUDE,
    scalar: "jnp.array({value}, dtype={dtype})",
    array: "jnp.array({value}, dtype={dtype})",
    takes_wide_integers: true,
    result: "{value}",
    copy: "{value}",
    detached: "",
    decorator: "",
    load: "    _CONSTANTS = {\n        name: jnp.asarray(array.view(jnp.bfloat16) if array.dtype.kind == \"V\" else array)\n        for name, array in jnp.load(__file__.removesuffix(\".py\") + \".npz\").items()\n    }",
    is_lazy: false,
    device: "",
    computed_as: |dtype| dtype,
    iteration: Iteration::Scan,
    overlay: None,
};

/// MLX, which has `float64` on the CPU only.
pub static MLX: PythonTarget = PythonTarget {
    name: "mlx",
    title: "MLX",
    xp: "mx",
    imports: &[("mx", "import mlx.core as mx"), ("math", "import math")],
    dtypes: |dtype| match dtype {
        DType::Bool => "mx.bool_",
        DType::U8 => "mx.uint8",
        DType::U16 => "mx.uint16",
        DType::U32 => "mx.uint32",
        DType::U64 => "mx.uint64",
        DType::I8 => "mx.int8",
        DType::I16 => "mx.int16",
        DType::I32 => "mx.int32",
        DType::I64 => "mx.int64",
        DType::F16 => "mx.float16",
        DType::BF16 => "mx.bfloat16",
        DType::F32 => "mx.float32",
        DType::F64 => "mx.float64",
    },
    typed_numbers: &[],
    rules: |lowering| [lowering.mlx, lowering.py],
    in_place: |_| LoweringRule::None,
    foreach: |_| LoweringRule::None,
    stacked: |_| LoweringRule::None,
    prelude: &MLX_PRELUDE,
    scalar: "mx.array({value}, dtype={dtype})",
    array: "mx.array({value}, dtype={dtype})",
    takes_wide_integers: false,
    result: "{value}",
    copy: "mx.array({value})",
    // MLX refuses positions that depend on what it differentiates.
    detached: "mx.stop_gradient({value})",
    decorator: "",
    load: "    _CONSTANTS = mx.load(__file__.removesuffix(\".py\") + \".npz\")",
    is_lazy: true,
    device: "",
    computed_as: |dtype| dtype,
    iteration: Iteration::Statement,
    overlay: None,
};

static NUMPY_PRELUDE: LazyLock<Prelude> = LazyLock::new(|| Prelude::with_common(prelude::NUMPY_FILES, "np"));
static TORCH_PRELUDE: LazyLock<Prelude> =
    LazyLock::new(|| Prelude::with_common(prelude::TORCH_FILES, "torch"));
static JAX_PRELUDE: LazyLock<Prelude> = LazyLock::new(|| Prelude::with_common(prelude::JAX_FILES, "jnp"));
static MLX_PRELUDE: LazyLock<Prelude> = LazyLock::new(|| Prelude::with_common(prelude::MLX_FILES, "mx"));
static NO_PRELUDE: LazyLock<Prelude> = LazyLock::new(|| Prelude::parse(&[]));

/// A backend of a user's own that is built on none of ours: it has no lowerings, all ops are its methods. Dtypes are
/// texts, and numbers are arrays that it creates.
pub static CUSTOM: PythonTarget = PythonTarget {
    name: "custom",
    title: "its backend",
    xp: "",
    imports: &[],
    dtypes: |dtype| match dtype {
        DType::Bool => "\"bool\"",
        DType::U8 => "\"uint8\"",
        DType::U16 => "\"uint16\"",
        DType::U32 => "\"uint32\"",
        DType::U64 => "\"uint64\"",
        DType::I8 => "\"int8\"",
        DType::I16 => "\"int16\"",
        DType::I32 => "\"int32\"",
        DType::I64 => "\"int64\"",
        DType::F16 => "\"float16\"",
        DType::BF16 => "\"bfloat16\"",
        DType::F32 => "\"float32\"",
        DType::F64 => "\"float64\"",
    },
    typed_numbers: &[
        DType::Bool,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ],
    rules: |lowering| [lowering.custom, LoweringRule::None],
    in_place: |_| LoweringRule::None,
    foreach: |_| LoweringRule::None,
    stacked: |_| LoweringRule::None,
    prelude: &NO_PRELUDE,
    scalar: "backend.tensor({value}, {dtype})",
    array: "backend.tensor({value}, {dtype})",
    takes_wide_integers: true,
    result: "{value}",
    copy: "{value}",
    detached: "",
    decorator: "",
    load: "",
    is_lazy: false,
    device: "",
    computed_as: |dtype| dtype,
    iteration: Iteration::Statement,
    overlay: None,
};
