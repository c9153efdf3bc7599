//! Linear, embedding, and stacks of them.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{Lit, Place, Result};

use super::args::op;
use super::{LayerArgs, LayerDef, arg};
use crate::init::Init;
use crate::key::Size;
use crate::model::Model;

pub(super) static LAYERS: &[LayerDef] = &[
    LayerDef {
        name: "Linear",
        doc: "Affine map of the last axis: `output = input @ weightᵀ + bias`.\n\nParameters: `weight` `[dimension, \
              in]`, `bias` `[dimension]`; the number of input features is inferred. Both start uniform within \
              `1/√in`.",
        args: &[
            arg("dimension", Attr::Int, DefaultLit::Required, "Number of output features."),
            arg("bias", Attr::Bool, DefaultLit::Bool(true), "Whether a bias is added."),
            arg(
                "in_features",
                Attr::OptInt,
                DefaultLit::None,
                "Number of input features; inferred if not given.",
            ),
        ],
        build: |a| linear_layer(a.count("dimension")?, a.bool("bias")?, a.opt_size("in_features")?),
        aliases: &["Dense"],
        arg_aliases: &[("out_features", "dimension"), ("units", "dimension"), ("use_bias", "bias")],
    },
    LayerDef {
        name: "Embedding",
        doc: "Rows of a table by integer index: `output[...] = weight[input[...]]`.\n\nParameter: `weight` \
              `[num_embeddings, dimension]`, which starts standard normal.",
        args: &[
            arg("num_embeddings", Attr::Int, DefaultLit::Required, "Number of rows."),
            arg("dimension", Attr::Int, DefaultLit::Required, "Length of a row."),
            arg("padding_idx", Attr::OptInt, DefaultLit::None, "A row that is not learned."),
        ],
        build: embedding,
        aliases: &[],
        arg_aliases: &[
            ("embedding_dim", "dimension"),
            ("dim", "dimension"),
            ("output_dim", "dimension"),
            ("input_dim", "num_embeddings"),
        ],
    },
    LayerDef {
        name: "Prelu",
        doc: "`x` above 0, `weight * x` below, with learned slopes: one, or one per channel (axis 1).\n\nParameter: \
              `weight` `[num_parameters]`, which starts at 0.25.",
        args: &[arg("num_parameters", Attr::Int, DefaultLit::Int(1), "1, or the number of channels.")],
        build: |a| {
            let slopes = [Size::from(a.count("num_parameters")?)];
            Model::leaf(op("prelu")?, 0).learned("weight", slopes, Init::Constant(0.25))
        },
        aliases: &["PReLU"],
        arg_aliases: &[],
    },
    LayerDef {
        name: "MLP",
        doc: "Linear layers, each followed by an activation.\n\n`dimensions` are their output features; \
              `activations` one name for all (the last layer then has none), or one per layer (`none` for none).",
        args: &[
            arg("dimensions", Attr::Ints, DefaultLit::Required, "Output features of the layers."),
            arg("activations", Attr::Any, DefaultLit::Str("Relu"), "Layers by name: one, or one per layer."),
            arg("bias", Attr::Bool, DefaultLit::Bool(true), "Whether biases are added."),
        ],
        build: mlp,
        aliases: &[],
        arg_aliases: &[("dims", "dimensions"), ("activation", "activations")],
    },
    LayerDef {
        name: "Identity",
        doc: "The input.",
        args: &[],
        build: |_| identity(),
        aliases: &[],
        arg_aliases: &[],
    },
];

/// A linear layer; `dimension` must be positive.
pub fn linear(dimension: i64, bias: bool) -> Result<Model> {
    super::build("Linear", vec![dimension.into()], vec![("bias", bias.into())])
}

fn linear_layer(dimension: i64, bias: bool, features: Size) -> Result<Model> {
    let model = Model::leaf(op("linear")?, 0).of_class("Linear").learned(
        "weight",
        [Size::from(dimension), features],
        Init::FanIn,
    )?;
    if bias {
        model.learned("bias", [Size::from(dimension)], Init::FanInOf("weight".into()))
    } else {
        model.setting("bias", Lit::None)
    }
}

fn embedding(a: &LayerArgs<'_>) -> Result<Model> {
    let shape = [a.count("num_embeddings")?, a.count("dimension")?].map(Size::from);
    let row = op("embedding")?;
    let model = Model::leaf(row, 0).setting("padding_idx", a.lit("padding_idx"))?;
    model.port_called("indices", "input")?.learned("weight", shape, Init::Normal(1.0))
}

/// The layer of an activation: its name in any notation, or `none`.
pub(super) fn activation(a: &LayerArgs<'_>, name: &str, value: &Lit) -> Result<Option<Model>> {
    match value {
        Lit::None => Ok(None),
        Lit::Str(s) if s.eq_ignore_ascii_case("none") || s.eq_ignore_ascii_case("identity") => Ok(None),
        Lit::Str(s) => {
            let plain = |t: &str| t.replace('_', "").to_lowercase();
            let layer = super::find(s)
                .or_else(|| super::all().iter().find(|l| plain(l.name) == plain(s)))
                .ok_or_else(|| a.bad(name, "the name of a layer such as \"relu\""))?;
            layer.build(Vec::new(), Vec::new()).map(Some)
        }
        _ => Err(a.bad(name, "the name of a layer such as \"relu\", or none")),
    }
}

fn mlp(a: &LayerArgs<'_>) -> Result<Model> {
    let dimensions = a.counts_any("dimensions")?;
    let activations: Vec<Lit> = match a.lit("activations") {
        Lit::Tuple(items) if items.len() == dimensions.len() => items.to_vec(),
        Lit::Tuple(_) => return Err(a.bad("activations", &format!("one name, or {}", dimensions.len()))),
        one => (0..dimensions.len())
            .map(|i| if i + 1 < dimensions.len() { one.clone() } else { Lit::None })
            .collect(),
    };
    let bias = a.bool("bias")?;
    let mut model = Model::with_class("MLP");
    for (dimension, name) in dimensions.into_iter().zip(&activations) {
        model.chain(&linear_layer(dimension, bias, Size::Unknown)?, (), Place::default())?;
        if let Some(layer) = activation(a, "activations", name)? {
            model.chain(&layer, (), Place::default())?;
        }
    }
    Ok(model)
}

fn identity() -> Result<Model> {
    // A reshape to the shape it has, which every pass removes: the identity needs no op of its own.
    let x = crate::Connection::input("input");
    let y = crate::Connection::op("reshape", vec![(&x).into(), x.shape()?.into()], Vec::new())?;
    Model::from_outputs([("output", y)])
}
