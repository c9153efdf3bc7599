//! Names and orders of arguments in other libraries.

use super::find;
use crate::op::OpDef;
use crate::signature::{ForeignKeyword, LibrarySignature, When};

/// Other names for the ports of ops. Each stands for the first of the listed ports that an op has.
pub static PORT_ALIASES: &[(&str, &[&str])] = &[
    ("a_max", &["max"]),
    ("a_min", &["min"]),
    ("alpha", &["alpha", "slope"]),
    ("attn_mask", &["mask"]),
    ("axes", &["axes", "axis"]),
    ("axis", &["axis", "axes"]),
    ("beta", &["beta", "bias"]),
    ("causal", &["is_causal"]),
    ("chunks", &["sections"]),
    ("ddof", &["correction"]),
    ("diagonal", &["k"]),
    ("dilations", &["dilation"]),
    ("dim", &["axis", "axes"]),
    ("dims", &["axis", "axes"]),
    ("end_dim", &["end_axis"]),
    ("epsilon", &["eps"]),
    ("filters", &["weight"]),
    ("gamma", &["weight"]),
    ("index", &["indices"]),
    ("indices_or_sections", &["sections"]),
    ("input", &["input", "left", "real"]),
    ("keep_dims", &["keepdim"]),
    ("keepdims", &["keepdim"]),
    ("kernel", &["weight"]),
    ("max_val", &["max"]),
    ("min_val", &["min"]),
    ("negative_slope", &["slope"]),
    ("new_shape", &["shape"]),
    ("newshape", &["shape"]),
    ("num_classes", &["depth"]),
    ("ord", &["p"]),
    ("other", &["other", "right"]),
    ("pad_width", &["pads"]),
    ("perm", &["axes"]),
    ("permutation", &["axes"]),
    ("pool_size", &["kernel_size"]),
    ("shifts", &["shift"]),
    ("split_size_or_sections", &["sections"]),
    ("src", &["source"]),
    ("start_dim", &["start_axis"]),
    ("strides", &["stride"]),
    ("window", &["window", "kernel_size"]),
    ("x", &["input"]),
];

/// Position of the port of this name or alias.
pub fn port(op: &OpDef, name: &str) -> Option<usize> {
    op.port(name).or_else(|| {
        let (_, ports) = PORT_ALIASES.iter().find(|(alias, _)| *alias == name)?;
        ports.iter().find_map(|p| op.port(p))
    })
}

/// A name that has the library's order besides ours; a call uses the one that it matches.
const fn both(name: &'static str, library: &'static str, params: &'static str) -> LibrarySignature {
    LibrarySignature { name, library, params, is_only: false, rejected: "", hint: "" }
}

/// An alias that has only the library's order.
const fn only(name: &'static str, library: &'static str, params: &'static str) -> LibrarySignature {
    LibrarySignature { name, library, params, is_only: true, rejected: "", hint: "" }
}

impl LibrarySignature {
    const fn hint(self, hint: &'static str) -> Self {
        Self { hint, ..self }
    }
}

const SUMMED: &str = "reduction=\"mean\", \"sum\" or \"none\" says how the losses are brought together";
const LENGTH: &str = "pad or slice the input to the length";
const PLACES: &str = "places are int64; cast makes them int32";
const TORCH: &str = "PyTorch";

/// Orders of arguments that differ from those of the ports.
pub static SIGNATURES: &[LibrarySignature] = &[
    only("gather", TORCH, "input dim=axis index=indices"),
    only("index_select", TORCH, "input dim=axis index=indices"),
    both("scatter_add", TORCH, "input dim=axis index=indices src=source"),
    both("index_add", TORCH, "input dim=axis index=indices source"),
    both("index_copy", TORCH, "input dim=axis index=indices source"),
    both("select", TORCH, "input dim:int index:int")
        .hint("an index takes one place of an axis, x[:, 1]; where(condition, a, b) chooses"),
    both("repeat", "a tensor of PyTorch", "input sizes:ints size:int? size:int? size:int?")
        .hint("tile(x, (2, 1)) repeats the whole, repeat(x, 2, axis=0) each element"),
    both("transpose", TORCH, "input dim0:int dim1:int")
        .hint("swapaxes(x, 0, 1) exchanges two axes, transpose(x, (1, 0, 2)) gives the order of all"),
    only("permute", TORCH, "input dims=axes"),
    both("pad", TORCH, "input pad:pairs mode? value?")
        .hint("a pair for each axis, in order, is clear: pad(x, ((0, 0), (1, 1)))"),
    both("std", TORCH, "input dim=axis? unbiased:bool? keepdim?").hint("correction=0 is unbiased=False"),
    both("var", TORCH, "input dim=axis? unbiased:bool? keepdim?").hint("correction=0 is unbiased=False"),
    both("top_k", "TensorFlow", "input k sorted?"),
    both("dropout", TORCH, "input p? training?"),
    both("feature_dropout", TORCH, "input p? training?"),
    both("fft", "PyTorch and NumPy", "input=real n:int? dim=axis? norm?").hint(LENGTH),
    both("ifft", "PyTorch and NumPy", "input=real n:int? dim=axis? norm?").hint(LENGTH),
    both("rfft", "PyTorch and NumPy", "input n:int? dim=axis? norm?").hint(LENGTH),
    both("irfft", "PyTorch and NumPy", "input=real n? dim=axis? norm?"),
    only(
        "conv_general_dilated",
        "JAX",
        "lhs=input rhs=weight window_strides=stride padding=pads lhs_dilation=input_dilation? rhs_dilation=dilation? \
         dimension_numbers:any? feature_group_count=groups?",
    ),
    both(
        "conv1d",
        "a backend of one's own",
        "x=input filters=weight kernel_size:kernel strides=stride? padding?",
    ),
    both(
        "conv2d",
        "a backend of one's own",
        "x=input filters=weight kernel_size:kernel strides=stride? padding?",
    ),
    both(
        "conv3d",
        "a backend of one's own",
        "x=input filters=weight kernel_size:kernel strides=stride? padding?",
    ),
    both("bucketize", TORCH, "input boundaries out_int32:bool? right?").hint(PLACES),
    both("searchsorted", TORCH, "sorted_sequence=sequence input=values out_int32:bool? right?").hint(PLACES),
    both("triangular_solve", TORCH, "b=right A=left upper:bool transpose? unitriangular:bool?")
        .hint("lower=True or lower=False says which half of the first is meant"),
    only("resize", "JAX and Keras", "image=input size method=mode"),
    both("batch_norm", TORCH, "input running_mean running_var weight? bias? training? momentum? eps?"),
    both(
        "instance_norm",
        TORCH,
        "input running_mean:tensor? running_var:tensor? weight? bias? use_input_stats:bool? momentum:float? eps?",
    ),
    both("layer_norm", TORCH, "input normalized_shape weight? bias? eps?"),
    both("rms_norm", TORCH, "input normalized_shape weight? eps?"),
    both("group_norm", TORCH, "input num_groups weight? bias? eps?"),
    both("normalize", TORCH, "input p:float? dim=axis? eps?").hint("it divides by the norm with p=2"),
    both(
        "scaled_dot_product_attention",
        TORCH,
        "query key value attn_mask=mask? dropout_p:float? is_causal? scale? enable_gqa?",
    ),
    both("mse_loss", TORCH, "input target size_average:bool? reduce:bool? reduction?").hint(SUMMED),
    both("l1_loss", TORCH, "input target size_average:bool? reduce:bool? reduction?").hint(SUMMED),
    both("smooth_l1_loss", TORCH, "input target size_average:bool? reduce:bool? reduction? beta?")
        .hint(SUMMED),
    both("kl_div", TORCH, "input target size_average:bool? reduce:bool? reduction? log_target?").hint(SUMMED),
    both("binary_cross_entropy", TORCH, "input target weight? size_average:bool? reduce:bool? reduction?")
        .hint(SUMMED),
    both(
        "binary_cross_entropy_with_logits",
        TORCH,
        "input target weight? size_average:bool? reduce:bool? reduction? pos_weight?",
    )
    .hint(SUMMED),
    both("nll_loss", TORCH, "input target weight? size_average:bool? ignore_index? reduce:bool? reduction?")
        .hint(SUMMED),
    both(
        "cross_entropy",
        TORCH,
        "input target weight? size_average:bool? ignore_index? reduce:bool? reduction? label_smoothing?",
    )
    .hint(SUMMED),
];

/// Keywords that mean something else in another library.
pub static FOREIGN_KEYWORDS: &[ForeignKeyword] = &[
    ForeignKeyword {
        names: &["split"],
        keyword: "dim",
        when: When::IsInt("sections"),
        meaning: "in PyTorch, which has this keyword, the number is the size of a piece; in Mithril it is the number of parts",
        help: "split(x, n, axis=...) and chunk(x, n, dim=...) make n parts; for pieces give all sizes: split(x, (2, 2), dim=...)",
    },
    ForeignKeyword {
        names: &["split"],
        keyword: "split_size_or_sections",
        when: When::IsInt("sections"),
        meaning: "in PyTorch, which has this keyword, the number is the size of a piece; in Mithril it is the number of parts",
        help: "split(x, n, axis=...) and chunk(x, n, dim=...) make n parts; for pieces give all sizes: split(x, (2, 2), dim=...)",
    },
    ForeignKeyword {
        names: &["split"],
        keyword: "indices_or_sections",
        when: When::IsNotInt("sections"),
        meaning: "in NumPy, JAX and MLX, which have this keyword, the numbers are where parts begin; in Mithril they are the \
                  sizes of the parts",
        help: "give the sizes of the parts: split(x, (2, 3), axis=...)",
    },
    ForeignKeyword {
        names: &["max", "min"],
        keyword: "dim",
        when: When::Always,
        meaning: "in PyTorch, which has this keyword, it gives the values and their positions; in Mithril only the values",
        help: "axis=..., or amax(x, dim=...) and amin(x, dim=...), gives the values; argmax and argmin give the positions",
    },
    ForeignKeyword {
        names: &["sort"],
        keyword: "dim",
        when: When::Always,
        meaning: "in PyTorch, which has this keyword, it gives the values and their positions; in Mithril only the values",
        help: "sort(x, axis=...) gives the values, argsort(x, dim=...) the positions",
    },
    ForeignKeyword {
        names: &["median", "nanmedian"],
        keyword: "dim",
        when: When::Always,
        meaning: "in PyTorch, which has this keyword, it gives positions too, and of an even number of elements the smaller of \
                  the two in the middle; in Mithril it gives their mean",
        help: "median(x, axis=...) gives the mean, quantile(x, 0.5, axis=..., interpolation=\"lower\") the smaller",
    },
    ForeignKeyword {
        names: &["std", "var", "nanstd", "nanvar"],
        keyword: "keepdims",
        when: When::Without("correction"),
        meaning: "NumPy, JAX, MLX and Keras, which have this keyword, divide by n; Mithril, as PyTorch does, by n - 1",
        help: "add correction=0 to divide by n, or correction=1 to divide by n - 1",
    },
    ForeignKeyword {
        names: &["norm"],
        keyword: "ord",
        when: When::IsNotInt("axis"),
        meaning: "NumPy and torch.linalg, which have this keyword, take the norm of a matrix, such as its largest singular value; \
                  Mithril that of all elements",
        help: "matrix_norm(x, ord=...) is that of matrices, norm(x, p=...) that of all elements",
    },
];

/// The signature of that name in another library, if it differs; an alias without one has that of the op.
pub fn signature(name: &str) -> Option<&'static LibrarySignature> {
    let listed = |name: &str| SIGNATURES.iter().find(|s| s.name == name);
    listed(name).or_else(|| listed(find(name)?.name))
}

/// Whether `count` arguments after the first stand for one tuple: `x.reshape(2, -1)` is `x.reshape((2, -1))`, but
/// `x.transpose(0, 1)` is not `x.transpose((0, 1))` in all libraries.
pub fn packs(name: &str, count: usize) -> bool {
    signature(name).is_none_or(|s| s.params.split_whitespace().count() != count + 1)
}
