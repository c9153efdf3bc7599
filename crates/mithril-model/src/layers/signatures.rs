//! Layers that PyTorch has under the same name, with other arguments.

use mithril_ir::signature::{ForeignKeyword, LibrarySignature, When};

const INFERRED: &str = "here the size of the input is inferred";

/// A layer whose arguments differ.
const fn torch(name: &'static str, params: &'static str) -> LibrarySignature {
    LibrarySignature { name, library: "PyTorch", params, is_only: false, rejected: "", hint: "" }
}

/// A recurrent layer.
const fn steps(name: &'static str, params: &'static str) -> LibrarySignature {
    LibrarySignature {
        hint: "`length` is the number of elements of the sequence, any if not given",
        ..sized(name, params)
    }
}

/// A loss with the two switches that `reduction` has replaced.
const fn loss(name: &'static str, params: &'static str) -> LibrarySignature {
    LibrarySignature {
        hint: "reduction=\"mean\", \"sum\" or \"none\" says how the losses are brought together",
        ..torch(name, params)
    }
}

/// A layer whose first argument in PyTorch is the size of its input.
const fn sized(name: &'static str, params: &'static str) -> LibrarySignature {
    LibrarySignature { name, library: "PyTorch", params, is_only: false, rejected: INFERRED, hint: "" }
}

const CONV: &str = "in_channels out_channels=filters kernel_size stride? padding? dilation? groups? bias?";
const TRANSPOSED: &str =
    "in_channels out_channels=filters kernel_size stride? padding? output_padding? groups? bias? dilation?";
const RECURRENT: &str = "input_size hidden_size num_layers? bias? batch_first? dropout:float? bidirectional?";
const CELL: &str = "input_size hidden_size bias?";
const INSTANCE: &str = "num_features? eps? momentum:float? affine? track_running_stats:bool?";
const POOL: &str = "kernel_size stride? padding? dilation? return_indices:bool? ceil_mode?";
const TRANSFORMER: &str = "d_model=embed_dim nhead=num_heads dim_feedforward? dropout? activation? \
                           layer_norm_eps=eps? batch_first:bool? norm_first? bias:bool?";

/// Orders of arguments that differ from ours.
pub static SIGNATURES: &[LibrarySignature] = &[
    sized("Linear", "in_features out_features=dimension bias?"),
    sized("Conv1d", CONV),
    sized("Conv2d", CONV),
    sized("Conv3d", CONV),
    sized("ConvTranspose1d", TRANSPOSED),
    sized("ConvTranspose2d", TRANSPOSED),
    sized("ConvTranspose3d", TRANSPOSED),
    sized("RNNCell", "input_size hidden_size bias? nonlinearity?"),
    sized("LSTMCell", CELL),
    sized("GRUCell", CELL),
    steps(
        "RNN",
        "input_size hidden_size num_layers? nonlinearity? bias? batch_first? dropout:float? bidirectional?",
    ),
    steps("LSTM", RECURRENT),
    steps("GRU", RECURRENT),
    torch("InstanceNorm1d", INSTANCE),
    torch("InstanceNorm2d", INSTANCE),
    torch("InstanceNorm3d", INSTANCE),
    torch("MultiHeadAttention", "embed_dim num_heads dropout:float? bias?"),
    torch("TransformerEncoderLayer", TRANSFORMER),
    torch("TransformerDecoderLayer", TRANSFORMER),
    torch("TransformerEncoder", "encoder_layer:never num_layers norm?"),
    torch("TransformerDecoder", "decoder_layer:never num_layers norm?"),
    torch("MaxPool1d", POOL),
    torch("MaxPool2d", POOL),
    torch("MaxPool3d", POOL),
    torch("Dropout", "p? inplace:bool?"),
    torch("FeatureDropout", "p? inplace:bool?"),
    loss("MSELoss", "size_average:bool? reduce:bool? reduction?"),
    loss("L1Loss", "size_average:bool? reduce:bool? reduction?"),
    loss("SmoothL1Loss", "size_average:bool? reduce:bool? reduction? beta?"),
    loss("NLLLoss", "weight:tensor? size_average:bool? ignore_index? reduce:bool? reduction?"),
];

/// Keywords that mean something else in another library.
pub static FOREIGN_KEYWORDS: &[ForeignKeyword] = &[ForeignKeyword {
    names: &["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"],
    keyword: "epsilon",
    when: When::With("momentum"),
    meaning: "in Keras, which has this keyword, `momentum` is the part of the old statistics that stays; in Mithril, as in \
              PyTorch, it is the part of the new ones: 0.01 instead of 0.99",
    help: "write eps=... with the momentum as PyTorch means it",
}];

/// The signature of that layer in PyTorch, if it differs.
pub fn signature(layer: &str) -> Option<&'static LibrarySignature> {
    SIGNATURES.iter().find(|s| s.name == layer)
}
