//! Convolutions with their parameters.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{Lit, Result};

use super::args::op;
use super::{LayerArg, LayerArgs, LayerDef, arg};
use crate::init::Init;
use crate::key::Size;
use crate::model::Model;

const IN_CHANNELS: LayerArg =
    arg("in_channels", Attr::OptInt, DefaultLit::None, "Number of input channels; inferred if not given.");

static ARGS: &[LayerArg] = &[
    arg("filters", Attr::Int, DefaultLit::Required, "Number of output channels."),
    arg(
        "kernel_size",
        Attr::Ints,
        DefaultLit::Required,
        "Size of the kernel, one for all axes or one per axis.",
    ),
    arg("stride", Attr::Ints, DefaultLit::Int(1), "Step of the window."),
    arg(
        "padding",
        Attr::Any,
        DefaultLit::Int(0),
        "Zeros around the input: a number, one per axis, pairs, \"same\" or \"valid\".",
    ),
    arg("dilation", Attr::Ints, DefaultLit::Int(1), "Distance between neighboring kernel elements."),
    arg("groups", Attr::Int, DefaultLit::Int(1), "Groups of channels that are convolved separately."),
    arg("bias", Attr::Bool, DefaultLit::Bool(true), "Whether a bias is added."),
    IN_CHANNELS,
];

static TRANSPOSED_ARGS: &[LayerArg] = &[
    arg("filters", Attr::Int, DefaultLit::Required, "Number of output channels."),
    arg(
        "kernel_size",
        Attr::Ints,
        DefaultLit::Required,
        "Size of the kernel, one for all axes or one per axis.",
    ),
    arg("stride", Attr::Ints, DefaultLit::Int(1), "Step of the window."),
    arg("padding", Attr::Any, DefaultLit::Int(0), "Elements removed around the output."),
    arg("output_padding", Attr::Ints, DefaultLit::Int(0), "Elements added at the end of the output."),
    arg("groups", Attr::Int, DefaultLit::Int(1), "Groups of channels that are convolved separately."),
    arg("bias", Attr::Bool, DefaultLit::Bool(true), "Whether a bias is added."),
    arg("dilation", Attr::Ints, DefaultLit::Int(1), "Distance between neighboring kernel elements."),
    IN_CHANNELS,
];

static ARG_ALIASES: &[(&str, &str)] = &[
    ("out_channels", "filters"),
    ("num_filters", "filters"),
    ("strides", "stride"),
    ("use_bias", "bias"),
    ("kernel", "kernel_size"),
];

macro_rules! conv {
    ($name:literal, $alias:literal, $op:literal, $n:literal, $over:literal) => {
        LayerDef {
            name: $name,
            doc: concat!(
                "Convolution over ", $over, ".\n\nParameters: `weight` `[filters, in/groups, *kernel_size]`, `bias` \
                 `[filters]`; the number of input channels is inferred. Both start uniform within `1/√fan_in`."
            ),
            args: ARGS,
            build: |a| conv(a, $op, $n),
            aliases: &[$alias],
            arg_aliases: ARG_ALIASES,
        }
    };
}

macro_rules! transposed {
    ($name:literal, $alias:literal, $op:literal, $n:literal, $over:literal) => {
        LayerDef {
            name: $name,
            doc: concat!(
                "Transposed convolution over ", $over, ": the adjoint of a convolution.\n\nParameters: `weight` \
                 `[in, filters/groups, *kernel_size]`, `bias` `[filters]`; the number of input channels is inferred."
            ),
            args: TRANSPOSED_ARGS,
            build: |a| transposed(a, $op, $n),
            aliases: &[$alias],
            arg_aliases: ARG_ALIASES,
        }
    };
}

pub(super) static LAYERS: &[LayerDef] = &[
    conv!("Conv1d", "Convolution1D", "conv1d", 1, "sequences `[n, c, length]`"),
    conv!("Conv2d", "Convolution2D", "conv2d", 2, "images `[n, c, height, width]`"),
    conv!("Conv3d", "Convolution3D", "conv3d", 3, "volumes `[n, c, depth, height, width]`"),
    transposed!("ConvTranspose1d", "Convolution1DTranspose", "conv_transpose1d", 1, "sequences"),
    transposed!("ConvTranspose2d", "Convolution2DTranspose", "conv_transpose2d", 2, "images"),
    transposed!("ConvTranspose3d", "Convolution3DTranspose", "conv_transpose3d", 3, "volumes"),
];

/// `padding` with texts in lower case ("SAME").
fn padding(a: &LayerArgs<'_>) -> Lit {
    match a.lit("padding") {
        Lit::Str(s) => Lit::text(&s.to_lowercase()),
        other => other,
    }
}

fn settings(mut model: Model, a: &LayerArgs<'_>, names: &[&str]) -> Result<Model> {
    for &name in names {
        let value = if name == "padding" { padding(a) } else { a.lit(name) };
        model = model.setting(name, value)?;
    }
    Ok(model)
}

fn bias(model: Model, a: &LayerArgs<'_>, filters: i64) -> Result<Model> {
    if a.bool("bias")? {
        model.learned("bias", [Size::from(filters)], Init::FanInOf("weight".into()))
    } else {
        model.setting("bias", Lit::None)
    }
}

/// Channels of the input that a filter reads.
fn in_channels(a: &LayerArgs<'_>, groups: i64) -> Result<Size> {
    match a.opt_count("in_channels")? {
        Some(n) if n % groups != 0 => Err(a.bad("in_channels", &format!("a multiple of `groups`, {groups}"))),
        n => Ok(n.map_or(Size::Unknown, |n| Size::from(n / groups))),
    }
}

fn conv(a: &LayerArgs<'_>, name: &str, n: usize) -> Result<Model> {
    let (filters, kernel, groups) = (a.count("filters")?, a.counts("kernel_size", n)?, a.count("groups")?);
    if filters % groups != 0 {
        return Err(a.bad("groups", &format!("a divisor of `filters`, {filters}")));
    }
    let shape =
        [Size::from(filters), in_channels(a, groups)?].into_iter().chain(kernel.into_iter().map(Size::from));
    let model = Model::leaf(op(name)?, 0).learned("weight", shape, Init::FanIn)?;
    let model = settings(model, a, &["stride", "padding", "dilation", "groups"])?;
    bias(model, a, filters)
}

fn transposed(a: &LayerArgs<'_>, name: &str, n: usize) -> Result<Model> {
    let (filters, kernel, groups) = (a.count("filters")?, a.counts("kernel_size", n)?, a.count("groups")?);
    if filters % groups != 0 {
        return Err(a.bad("groups", &format!("a divisor of `filters`, {filters}")));
    }
    let shape = [a.opt_size("in_channels")?, Size::from(filters / groups)]
        .into_iter()
        .chain(kernel.into_iter().map(Size::from));
    let model = Model::leaf(op(name)?, 0).learned("weight", shape, Init::FanIn)?;
    let model = settings(model, a, &["stride", "padding", "output_padding", "groups", "dilation"])?;
    bias(model, a, filters)
}
