//! What the models for images share: images as sequences of patches, and transformers with the normalization first.

use mithril_ir::{Lit, Result};

use super::Config;
use crate::connection::Connection;
use crate::init::Init;
use crate::key::{IOKey, Size};
use crate::layers::LayerArgs;
use crate::layers::expr::{call, layer, op, parameter, size, tuple};
use crate::model::Model;

/// More layers than this are a mistake.
pub(super) const MOST_LAYERS: i64 = 10_000;

/// Square images with three channels, of any size or of the given one.
pub(super) fn images(name: &str, resolution: Option<i64>) -> Connection {
    let side = Size::from(resolution);
    Connection::input(IOKey::new(name).shape([Size::Unknown, 3.into(), side.clone(), side]))
}

/// Heads of an attention.
pub(super) fn heads(a: &LayerArgs<'_>, name: &str, features: i64) -> Result<i64> {
    let heads = a.count(name)?;
    if features % heads != 0 {
        return Err(a.bad(name, &format!("a divisor of the {features} features")));
    }
    Ok(heads)
}

/// Patches along one side of an image.
pub(super) fn grid(a: &LayerArgs<'_>, image: &str, patch: &str) -> Result<i64> {
    let (image_size, patch_size) = (a.count(image)?, a.count(patch)?);
    if patch_size > image_size {
        return Err(a.bad(patch, &format!("at most `{image}`, {image_size}")));
    }
    Ok(image_size / patch_size)
}

/// The places of a feature map as a sequence: `[n, c, height, width]` to `[n, height * width, c]`.
pub(super) fn sequence(x: &Connection) -> Result<Connection> {
    op("transpose", [op("flatten", [x.into(), 2.into()])?.into(), Lit::from([0, 2, 1]).into()])
}

/// Non-overlapping patches of images as a sequence, each mapped to `width` features.
pub(super) fn patches(
    x: &Connection,
    name: &str,
    [width, patch]: [i64; 2],
    bias: bool,
) -> Result<Connection> {
    let named = vec![("stride", patch.into()), ("bias", bias.into())];
    sequence(&call(&layer("Conv2d", name, vec![width.into(), patch.into()], named)?, x)?)
}

/// A sequence with a learned vector, `shape` of which the last size is `width`, before it.
pub(super) fn with_class(x: &Connection, name: &str, shape: &[i64], width: i64) -> Result<Connection> {
    let token = parameter(name, shape.iter().map(|&n| n.into()), Init::Normal((width as f64).powf(-0.5)));
    let each = op("broadcast_to", [token.into(), tuple([size(x, 0)?.into(), 1.into(), width.into()])])?;
    Connection::op("concat", vec![1.into(), each.into(), x.into()], vec![])
}

/// The first of each sequence.
pub(super) fn first(x: &Connection) -> Result<Connection> {
    let all = Lit::Slice([Lit::None, Lit::None, Lit::None].into());
    x.item(vec![all.into(), 0.into()])
}

/// A normalization of the last axis.
pub(super) fn norm(x: &Connection, name: &str, eps: f64) -> Result<Connection> {
    call(&layer("LayerNorm", name, vec![], vec![("eps", eps.into())])?, x)
}

/// `x · sigmoid(1.702 x)`, an approximation of GELU.
pub(super) fn quick_gelu(x: &Connection) -> Result<Connection> {
    x * op("sigmoid", [(x * 1.702)?.into()])?
}

/// GELU.
pub(super) fn gelu(x: &Connection) -> Result<Connection> {
    op("gelu", [x.into()])
}

/// A stack of equal blocks: attention and two linear layers, each behind a normalization and beside a shortcut.
#[derive(Debug)]
pub(super) struct Transformer {
    /// Features.
    pub width: i64,
    /// Heads of the attention, a divisor of the features.
    pub heads: i64,
    /// Features between the two linear layers.
    pub mlp: i64,
    /// Added to the variance in the normalizations.
    pub eps: f64,
    /// Between the two linear layers.
    pub activation: fn(&Connection) -> Result<Connection>,
    /// Whether a position attends only to itself and earlier ones.
    pub causal: bool,
    /// Names of the attention and of the two linear layers.
    pub names: [&'static str; 3],
}

impl Transformer {
    fn block(&self) -> Result<Model> {
        let [attention, up, down] = self.names;
        let shape = [Size::Unknown, Size::Unknown, self.width.into()];
        let x = Connection::input(IOKey::new("input").shape(shape));
        let sizes = vec![self.width.into(), self.heads.into()];
        let attention = layer("SelfAttention", attention, sizes, vec![("causal", self.causal.into())])?;
        let x = (&x + call(&attention, &norm(&x, "ln_1", self.eps)?)?)?;
        let inside = Connection::input("input");
        let y = call(&layer("Linear", up, vec![self.mlp.into()], vec![])?, &inside)?;
        let y = (self.activation)(&y)?;
        let y = call(&layer("Linear", down, vec![self.width.into()], vec![])?, &y)?;
        let mlp = Model::from_outputs([("output", y)])?.named("mlp")?;
        let x = (&x + call(&mlp, &norm(&x, "ln_2", self.eps)?)?)?;
        Model::from_outputs([("output", x)])
    }
    /// A part called `name` of blocks called by a prefix and their number.
    pub fn stack(&self, name: &str, layers: i64, prefix: &str) -> Result<Model> {
        let block = self.block()?;
        let mut x = Connection::input("input");
        for i in 0..layers {
            x = call(&block.clone().named(format!("{prefix}{i}"))?, &x)?;
        }
        Model::from_outputs([("output", x)])?.named(name)
    }
}

/// What all configurations of models for images have in common: images with three channels.
pub(super) fn three_channels(config: &Config<'_>) -> Result<()> {
    if config.int_or("num_channels", 3)? == 3 { Ok(()) } else { Err(config.bad("num_channels", "3")) }
}
