//! Normalizations with their parameters and running statistics.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{Lit, Result};

use super::args::op;
use super::{LayerArg, LayerArgs, LayerDef, arg};
use crate::init::Init;
use crate::key::{Declared, Size};
use crate::model::Model;

const EPS: LayerArg = arg("eps", Attr::Float, DefaultLit::Float(1e-5), "Added to the variance.");
const AFFINE: LayerArg =
    arg("affine", Attr::Bool, DefaultLit::Bool(true), "Whether a weight and a bias are learned.");

static BATCH_ARGS: &[LayerArg] = &[
    arg("num_features", Attr::OptInt, DefaultLit::None, "Number of channels; inferred if not given."),
    EPS,
    arg("momentum", Attr::Float, DefaultLit::Float(0.1), "Weight of the new statistics in the running ones."),
    AFFINE,
];

static INSTANCE_ARGS: &[LayerArg] = &[
    arg("num_features", Attr::OptInt, DefaultLit::None, "Number of channels; inferred if not given."),
    EPS,
    arg("affine", Attr::Bool, DefaultLit::Bool(false), "Whether a weight and a bias are learned."),
];

static ARG_ALIASES: &[(&str, &str)] = &[
    ("epsilon", "eps"),
    ("num_channels", "num_features"),
    ("dimension", "num_features"),
    ("dims", "num_features"),
];

macro_rules! batch_norm {
    ($name:literal, $ranks:expr, $over:literal) => {
        LayerDef {
            name: $name,
            doc: concat!(
                "Normalizes each channel over the batch, for ", $over, ".\n\nParameters: `weight` (starts as 1) and \
                 `bias` (0), both `[c]`; state: `running_mean` and `running_var`, which are updated when training and \
                 used otherwise."
            ),
            args: BATCH_ARGS,
            build: |a| batch_norm(a, $ranks),
            aliases: &[],
            arg_aliases: ARG_ALIASES,
        }
    };
}

macro_rules! instance_norm {
    ($name:literal, $rank:expr, $over:literal) => {
        LayerDef {
            name: $name,
            doc: concat!("Normalizes each channel of each example, for ", $over, "."),
            args: INSTANCE_ARGS,
            build: |a| {
                let model = rank(Model::leaf(op("instance_norm")?, 0).setting("eps", a.lit("eps"))?, $rank)?;
                affine(model, a.bool("affine")?, &[size(a, "num_features")?])
            },
            aliases: &[],
            arg_aliases: ARG_ALIASES,
        }
    };
}

pub(super) static LAYERS: &[LayerDef] = &[
    batch_norm!("BatchNorm1d", None, "features `[n, c]` or sequences `[n, c, length]`"),
    batch_norm!("BatchNorm2d", Some(4), "images `[n, c, height, width]`"),
    batch_norm!("BatchNorm3d", Some(5), "volumes `[n, c, depth, height, width]`"),
    LayerDef {
        name: "LayerNorm",
        doc: "Normalizes over the last axes.\n\nParameters: `weight` (starts as 1) and `bias` (0) of the shape \
              `normalized_shape`; by default the last axis, whose size is inferred.",
        args: &[
            arg(
                "normalized_shape",
                Attr::OptInts,
                DefaultLit::None,
                "Sizes of the axes; the last one if not given.",
            ),
            EPS,
            AFFINE,
            arg("bias", Attr::Bool, DefaultLit::Bool(true), "Whether a bias is learned."),
        ],
        build: |a| {
            let model = Model::leaf(op("layer_norm")?, 0).setting("eps", a.lit("eps"))?;
            let model = model.setting("normalized_shape", a.lit("normalized_shape"))?;
            let shape = feature_sizes(a)?;
            if a.bool("affine")? && !a.bool("bias")? {
                return weight(model, &shape)?.setting("bias", Lit::None);
            }
            affine(model, a.bool("affine")?, &shape)
        },
        aliases: &[],
        arg_aliases: &[("epsilon", "eps"), ("elementwise_affine", "affine"), ("use_bias", "bias")],
    },
    LayerDef {
        name: "RMSNorm",
        doc: "Divides by the root mean square over the last axes.\n\nParameter: `weight` (starts as 1) of the shape \
              `normalized_shape`; by default the last axis, whose size is inferred.",
        args: &[
            arg(
                "normalized_shape",
                Attr::OptInts,
                DefaultLit::None,
                "Sizes of the axes; the last one if not given.",
            ),
            arg(
                "eps",
                Attr::OptFloat,
                DefaultLit::None,
                "Added to the mean square; the dtype's epsilon if not given.",
            ),
            arg("affine", Attr::Bool, DefaultLit::Bool(true), "Whether a weight is learned."),
        ],
        build: |a| {
            let model = Model::leaf(op("rms_norm")?, 0).setting("eps", a.lit("eps"))?;
            let model = model.setting("normalized_shape", a.lit("normalized_shape"))?;
            if a.bool("affine")? { weight(model, &feature_sizes(a)?) } else { Ok(model) }
        },
        aliases: &[],
        arg_aliases: &[("epsilon", "eps"), ("elementwise_affine", "affine")],
    },
    LayerDef {
        name: "GroupNorm",
        doc: "Normalizes groups of neighboring channels of each example.\n\nParameters: `weight` (starts as 1) and \
              `bias` (0), both `[c]`.",
        args: &[
            arg("num_groups", Attr::Int, DefaultLit::Required, "Number of groups."),
            arg("num_channels", Attr::OptInt, DefaultLit::None, "Number of channels; inferred if not given."),
            EPS,
            AFFINE,
        ],
        build: |a| {
            let model = Model::leaf(op("group_norm")?, 0).setting("eps", a.lit("eps"))?;
            let model = model.setting("num_groups", a.count("num_groups")?)?;
            affine(model, a.bool("affine")?, &[size(a, "num_channels")?])
        },
        aliases: &[],
        arg_aliases: &[("epsilon", "eps"), ("num_features", "num_channels")],
    },
    instance_norm!("InstanceNorm1d", 3, "sequences `[n, c, length]`"),
    instance_norm!("InstanceNorm2d", 4, "images `[n, c, height, width]`"),
    instance_norm!("InstanceNorm3d", 5, "volumes `[n, c, depth, height, width]`"),
];

fn size(a: &LayerArgs<'_>, name: &str) -> Result<Size> {
    Ok(a.opt_count(name)?.map_or(Size::Unknown, Size::from))
}

fn feature_sizes(a: &LayerArgs<'_>) -> Result<Vec<Size>> {
    if a.lit("normalized_shape").is_none() {
        return Ok(vec![Size::Unknown]);
    }
    Ok(a.counts_any("normalized_shape")?.into_iter().map(Size::from).collect())
}

fn weight(model: Model, shape: &[Size]) -> Result<Model> {
    model.learned("weight", shape.iter().cloned(), Init::Ones)
}

fn affine(model: Model, learned: bool, shape: &[Size]) -> Result<Model> {
    if !learned {
        return Ok(model);
    }
    weight(model, shape)?.learned("bias", shape.iter().cloned(), Init::Zeros)
}

/// Declares the rank of the input.
fn rank(model: Model, rank: usize) -> Result<Model> {
    let declared = Declared { shape: Some(vec![Size::Unknown; rank]), ..Declared::default() };
    model.declared("input", declared)
}

fn batch_norm(a: &LayerArgs<'_>, ranks: Option<usize>) -> Result<Model> {
    let channels = size(a, "num_features")?;
    let mut model = Model::leaf(op("batch_norm")?, 0);
    for name in ["eps", "momentum"] {
        model = model.setting(name, a.lit(name))?;
    }
    if let Some(n) = ranks {
        model = rank(model, n)?;
    }
    let model = affine(model, a.bool("affine")?, std::slice::from_ref(&channels))?;
    let model = model.state("running_mean", vec![channels.clone()], Init::Zeros, 1)?;
    model.state("running_var", vec![channels], Init::Ones, 2)
}
