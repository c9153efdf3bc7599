//! Residual networks (He et al. 2015) with the topology, names and layouts of torchvision.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{Lit, Result};

use super::ZooModel;
use super::layout::Layout;
use crate::connection::Connection;
use crate::key::{IOKey, Size};
use crate::layers::expr::{call, layer, op};
use crate::layers::{LayerArg, LayerArgs, LayerDef, arg};
use crate::model::Model;

static ARGS: &[LayerArg] =
    &[arg("num_classes", Attr::Int, DefaultLit::Int(1000), "Number of outputs of the last layer.")];

/// The count of batches has no place here: the momentum of the statistics is a constant.
static LAYOUTS: &[Layout] = &[Layout { ignored: &["*.num_batches_tracked"], ..Layout::of("torchvision") }];

macro_rules! resnet {
    ($name:literal, $title:literal, $block:expr, $depths:expr, $config:expr) => {
        ZooModel {
            def: LayerDef {
                name: $name,
                doc: concat!(
                    $title,
                    ". From `input`, images `[batch, 3, height, width]`, to `output`, logits \
                     `[batch, num_classes]`. Parameters and running statistics are called as in torchvision \
                     (`layer1.0.conv1.weight`). (He et al. 2015)"
                ),
                args: ARGS,
                build: |a| network($block, $depths, a),
                aliases: &[],
                arg_aliases: &[("n_classes", "num_classes")],
            },
            example: "num_classes=10",
            layouts: LAYOUTS,
            config: $config,
        }
    };
}

pub(super) static MODELS: &[ZooModel] = &[
    resnet!("resnet18", "ResNet-18", Block::Basic, [2, 2, 2, 2], None),
    resnet!("resnet34", "ResNet-34", Block::Basic, [3, 4, 6, 3], None),
    resnet!("resnet50", "ResNet-50", Block::Bottleneck, [3, 4, 6, 3], None),
    resnet!("resnet101", "ResNet-101", Block::Bottleneck, [3, 4, 23, 3], None),
    resnet!("resnet152", "ResNet-152", Block::Bottleneck, [3, 8, 36, 3], None),
];

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
}

/// A convolution that keeps the size, divided by its stride, and the normalisation behind it.
fn unit(x: &Connection, names: [&str; 2], filters: i64, size: i64, stride: i64) -> Result<Connection> {
    call(
        &layer("BatchNorm2d", names[1], vec![], vec![])?,
        &call(&convolution(names[0], filters, size, stride)?, x)?,
    )
}

fn convolution(name: &str, filters: i64, size: i64, stride: i64) -> Result<Model> {
    let named = vec![("stride", stride.into()), ("padding", (size / 2).into()), ("bias", false.into())];
    layer("Conv2d", name, vec![filters.into(), size.into()], named)
}

fn network(block: Block, depths: [i64; 4], a: &LayerArgs<'_>) -> Result<Model> {
    let classes = a.count("num_classes")?;
    let x = Connection::input(IOKey::new("input").shape(vec![Size::Unknown; 4]));
    let x = op("relu", [unit(&x, ["conv1", "bn1"], 64, 7, 2)?.into()])?;
    let mut x = op("max_pool2d", [x.into(), 3.into(), 2.into(), 1.into()])?;
    let mut entering = 64;
    for (i, depth) in depths.into_iter().enumerate() {
        let width = 64 << i;
        let mut y = Connection::input("input");
        for j in 0..depth {
            let stride = if i > 0 && j == 0 { 2 } else { 1 };
            y = call(&block.build(entering, width, stride)?.named(j.to_string())?, &y)?;
            entering = block.expansion() * width;
        }
        x = call(&Model::from_outputs([("output", y)])?.named(format!("layer{}", i + 1))?, &x)?;
    }
    let pooled = op("mean", [x.into(), Lit::from([2, 3]).into()])?;
    let y = call(&layer("Linear", "fc", vec![classes.into()], vec![])?, &pooled)?;
    Model::from_outputs([("output", y)])
}
