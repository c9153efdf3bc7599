//! Residual networks (He et al. 2015) with the topology, names and layouts of torchvision.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{Lit, Result};

use super::layout::{Layout, Rule, renamed};
use super::vision::{MOST_LAYERS, images, three_channels};
use super::{Config, ZooModel};
use crate::connection::Connection;
use crate::key::{IOKey, Size};
use crate::layers::expr::{call, layer, op};
use crate::layers::{LayerArg, LayerArgs, LayerDef, arg};
use crate::model::Model;

const CLASSES: LayerArg =
    arg("num_classes", Attr::Int, DefaultLit::Int(1000), "Number of outputs of the last layer.");

static ANY_ARGS: &[LayerArg] = &[
    arg("depths", Attr::Ints, DefaultLit::Required, "Blocks of each of one to four stages."),
    arg(
        "block",
        Attr::Choice(&["basic", "bottleneck"]),
        DefaultLit::Str("bottleneck"),
        "\"basic\", two convolutions, or \"bottleneck\", three of which the last has four times the channels.",
    ),
    arg(
        "width",
        Attr::Int,
        DefaultLit::Int(64),
        "Channels inside the blocks of the first stage; then doubled.",
    ),
    CLASSES,
];

/// The count of batches has no place here: the momentum of the statistics is a constant.
const IGNORED: &[&str] = &["*.num_batches_tracked"];

static LAYOUTS: &[Layout] = &[
    Layout { ignored: IGNORED, ..Layout::of("torchvision") },
    Layout { source: "transformers", prefixes: &["resnet."], ignored: IGNORED, rules: RULES },
];

/// The rules of transformers, whose stages count from 0.
macro_rules! rules {
    ($(($ours:literal, $theirs:literal)),*) => {
        &[
            renamed("conv1.weight", &["embedder.embedder.convolution.weight"]),
            renamed("bn1.*", &["embedder.embedder.normalization.*"]),
            renamed("fc.*", &["classifier.1.*"]),
            $(
                rules!($ours, "conv1.weight", $theirs, "layer.0.convolution.weight"),
                rules!($ours, "bn1.*", $theirs, "layer.0.normalization.*"),
                rules!($ours, "conv2.weight", $theirs, "layer.1.convolution.weight"),
                rules!($ours, "bn2.*", $theirs, "layer.1.normalization.*"),
                rules!($ours, "conv3.weight", $theirs, "layer.2.convolution.weight"),
                rules!($ours, "bn3.*", $theirs, "layer.2.normalization.*"),
                rules!($ours, "downsample.0.weight", $theirs, "shortcut.convolution.weight"),
                rules!($ours, "downsample.1.*", $theirs, "shortcut.normalization.*"),
            )*
        ]
    };
    ($ours:literal, $ours_inside:literal, $theirs:literal, $theirs_inside:literal) => {
        renamed(
            concat!("layer", $ours, ".*.", $ours_inside),
            &[concat!("encoder.stages.", $theirs, ".layers.*.", $theirs_inside)],
        )
    };
}

static RULES: &[Rule] = rules![(1, 0), (2, 1), (3, 2), (4, 3)];

macro_rules! resnet {
    ($name:literal, $title:literal, $block:expr, $depths:expr) => {
        ZooModel {
            def: LayerDef {
                name: $name,
                doc: concat!(
                    $title,
                    ". From `input`, images `[batch, 3, height, width]`, to `output`, logits \
                     `[batch, num_classes]`. Parameters and running statistics are called as in torchvision \
                     (`layer1.0.conv1.weight`). (He et al. 2015)"
                ),
                args: &[CLASSES],
                build: |a| network($block, &$depths, 64, a.count("num_classes")?),
                aliases: &[],
                arg_aliases: ARG_ALIASES,
            },
            example: "num_classes=10",
            layouts: LAYOUTS,
            config: None,
        }
    };
}

static ARG_ALIASES: &[(&str, &str)] = &[("n_classes", "num_classes")];

pub(super) static MODELS: &[ZooModel] = &[
    ZooModel {
        def: LayerDef {
            name: "resnet",
            doc: "A residual network of any size. From `input`, images `[batch, 3, height, width]`, to `output`, \
                  logits `[batch, num_classes]`. Parameters and running statistics are called as in torchvision \
                  (`layer1.0.conv1.weight`). (He et al. 2015)",
            args: ANY_ARGS,
            build: any,
            aliases: &[],
            arg_aliases: ARG_ALIASES,
        },
        example: "depths=(1, 1, 1, 1), block=\"basic\", width=8, num_classes=10",
        layouts: LAYOUTS,
        config: Some(("resnet", read)),
    },
    resnet!("resnet18", "ResNet-18", Block::Basic, [2, 2, 2, 2]),
    resnet!("resnet34", "ResNet-34", Block::Basic, [3, 4, 6, 3]),
    resnet!("resnet50", "ResNet-50", Block::Bottleneck, [3, 4, 6, 3]),
    resnet!("resnet101", "ResNet-101", Block::Bottleneck, [3, 4, 23, 3]),
    resnet!("resnet152", "ResNet-152", Block::Bottleneck, [3, 8, 36, 3]),
];

/// The `config.json` of transformers.
fn read(config: &Config<'_>) -> Result<Vec<(&'static str, Lit)>> {
    three_channels(config)?;
    config.only("hidden_act", &["relu"], "relu")?;
    config.only("layer_type", &["basic", "bottleneck"], "bottleneck")?;
    for name in ["downsample_in_first_stage", "downsample_in_bottleneck"] {
        if config.bool_or(name, false)? {
            return Err(config.bad(name, "false"));
        }
    }
    let basic = config.get("layer_type").is_some_and(|kind| kind == "basic");
    let (name, block) = if basic { ("basic", Block::Basic) } else { ("bottleneck", Block::Bottleneck) };
    let width = config.int_or("embedding_size", 64)?;
    let (depths, leaving) = (config.ints("depths")?, config.ints("hidden_sizes")?);
    let doubled = |i: usize| block.expansion().checked_mul(width)?.checked_mul(1 << i.min(62));
    let expected: Option<Vec<i64>> = (0..depths.len()).map(doubled).collect();
    if expected.as_ref() != Some(&leaving) {
        let expected = format!(
            "{} times `embedding_size`, {width}, then doubled, for each of `depths`",
            block.expansion()
        );
        return Err(config.bad("hidden_sizes", &expected));
    }
    Ok(vec![
        ("depths", depths.into()),
        ("block", name.into()),
        ("width", width.into()),
        ("num_classes", config.labels(2)?.into()),
    ])
}

fn any(a: &LayerArgs<'_>) -> Result<Model> {
    let depths = a.counts_any("depths")?;
    let sum = depths.iter().fold(0, |sum: i64, depth| sum.saturating_add(*depth));
    if !(1..=4).contains(&depths.len()) || sum > MOST_LAYERS {
        return Err(a.bad("depths", &format!("one to four integers, together at most {MOST_LAYERS}")));
    }
    let block = if a.text("block")? == "basic" { Block::Basic } else { Block::Bottleneck };
    network(block, &depths, a.count("width")?, a.count("num_classes")?)
}

/// What a network is made of.
#[derive(Clone, Copy, Debug)]
enum Block {
    /// Two convolutions of 3x3.
    Basic,
    /// 1x1, 3x3 and 1x1, the last with four times the channels. The stride is that of the 3x3.
    Bottleneck,
}

impl Block {
    /// Channels that come out, per channel inside.
    fn expansion(self) -> i64 {
        match self {
            Self::Basic => 1,
            Self::Bottleneck => 4,
        }
    }
    /// A block of `width` channels inside, beside a shortcut, which is projected where its shape changes.
    fn build(self, entering: i64, width: i64, stride: i64) -> Result<Model> {
        let convolutions: &[(i64, i64, i64)] = match self {
            Self::Basic => &[(width, 3, stride), (width, 3, 1)],
            Self::Bottleneck => &[(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)],
        };
        let x = Connection::input(IOKey::new("input").shape(vec![Size::Unknown; 4]));
        let mut y = x.clone();
        for (i, (filters, size, stride)) in (1..).zip(convolutions) {
            if i > 1 {
                y = op("relu", [(&y).into()])?;
            }
            y = unit(&y, [&format!("conv{i}"), &format!("bn{i}")], *filters, *size, *stride)?;
        }
        let leaving = self.expansion() * width;
        let shortcut = if stride == 1 && entering == leaving {
            x
        } else {
            let inside = Connection::input("input");
            let projected = unit(&inside, ["0", "1"], leaving, 1, stride)?;
            let projection = Model::from_outputs([("output", projected)])?.named("downsample")?;
            call(&projection, &x)?
        };
        let sum = op("relu", [(&y + &shortcut)?.into()])?;
        Model::from_outputs([("output", sum)])
    }
    /// Blocks one after the other, of which the first changes the shape.
    fn stage(self, depth: i64, entering: i64, width: i64, stride: i64) -> Result<Model> {
        let mut x = call(&self.build(entering, width, stride)?.named("0")?, &Connection::input("input"))?;
        if depth > 1 {
            let more = self.build(self.expansion() * width, width, 1)?;
            for i in 1..depth {
                x = call(&more.clone().named(i.to_string())?, &x)?;
            }
        }
        Model::from_outputs([("output", x)])
    }
}

/// A convolution that keeps the size, divided by its stride, and the normalization behind it.
pub(super) fn unit(
    x: &Connection,
    names: [&str; 2],
    filters: i64,
    size: i64,
    stride: i64,
) -> Result<Connection> {
    let named = vec![("stride", stride.into()), ("padding", (size / 2).into()), ("bias", false.into())];
    let convolution = layer("Conv2d", names[0], vec![filters.into(), size.into()], named)?;
    call(&layer("BatchNorm2d", names[1], vec![], vec![])?, &call(&convolution, x)?)
}

fn network(block: Block, depths: &[i64], width: i64, classes: i64) -> Result<Model> {
    let x = op("relu", [unit(&images("input", None), ["conv1", "bn1"], width, 7, 2)?.into()])?;
    let mut x = op("max_pool2d", [x.into(), 3.into(), 2.into(), 1.into()])?;
    let mut entering = width;
    for (i, &depth) in depths.iter().enumerate() {
        let (width, stride) = (width << i, if i > 0 { 2 } else { 1 });
        let stage = block.stage(depth, entering, width, stride)?;
        x = call(&stage.named(format!("layer{}", i + 1))?, &x)?;
        entering = block.expansion() * width;
    }
    let pooled = op("mean", [x.into(), Lit::from([2, 3]).into()])?;
    let y = call(&layer("Linear", "fc", vec![classes.into()], vec![])?, &pooled)?;
    Model::from_outputs([("output", y)])
}
