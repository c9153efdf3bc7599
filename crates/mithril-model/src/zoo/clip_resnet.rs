//! The residual network of CLIP: three convolutions first, averages where others stride, attention at the end.

use mithril_ir::Result;

use super::parts::turned;
use super::resnet::unit;
use super::vision::{MOST_LAYERS, first, sequence};
use crate::connection::Connection;
use crate::init::Init;
use crate::key::Size;
use crate::layers::LayerArgs;
use crate::layers::expr::{call, layer, op, parameter, size, tuple};
use crate::model::Model;

/// Channels that leave a block, per channel inside.
const EXPANSION: i64 = 4;

/// The tower for images, from `width` channels to the features of the common space.
pub(super) fn tower(a: &LayerArgs<'_>, width: i64, heads: i64) -> Result<Model> {
    let depths = a.counts_any("vision_layers")?;
    let sum = depths.iter().fold(0, |sum: i64, depth| sum.saturating_add(*depth));
    if depths.len() != 4 || sum > MOST_LAYERS {
        let expected = format!("an integer, or four that are together at most {MOST_LAYERS}");
        return Err(a.bad("vision_layers", &expected));
    }
    if width < 2 {
        return Err(a.bad("vision_width", "at least 2: the first convolutions have half as many channels"));
    }
    // The first convolution strides, then an average and three of the stages halve the image.
    let grid = (a.count("image_resolution")? + 1) / 2 / 16;
    if grid == 0 {
        return Err(a.bad("image_resolution", "at least 31"));
    }

    let mut x = Connection::input("input");
    for (i, (filters, stride)) in (1..).zip([(width / 2, 2), (width / 2, 1), (width, 1)]) {
        let y = unit(&x, [&format!("conv{i}"), &format!("bn{i}")], filters, 3, stride)?;
        x = op("relu", [y.into()])?;
    }
    x = halved(&x)?;
    let mut entering = width;
    for (i, depth) in depths.into_iter().enumerate() {
        let width = width << i;
        let stage = stage(depth, entering, width, i > 0)?;
        x = call(&stage.named(format!("layer{}", i + 1))?, &x)?;
        entering = EXPANSION * width;
    }
    call(&pool(entering, heads, grid, a.count("embed_dim")?)?.named("attnpool")?, &x)
        .and_then(|y| Model::from_outputs([("output", y)]))
}

/// The average of each two by two places.
fn halved(x: &Connection) -> Result<Connection> {
    op("avg_pool2d", [x.into(), 2.into()])
}

fn stage(depth: i64, entering: i64, width: i64, halves: bool) -> Result<Model> {
    let mut x = call(&block(entering, width, halves)?.named("0")?, &Connection::input("input"))?;
    if depth > 1 {
        let more = block(EXPANSION * width, width, false)?;
        for i in 1..depth {
            x = call(&more.clone().named(i.to_string())?, &x)?;
        }
    }
    Model::from_outputs([("output", x)])
}

/// Three convolutions beside a shortcut; where the image is halved, by averages and not by strides.
fn block(entering: i64, width: i64, halves: bool) -> Result<Model> {
    let leaving = EXPANSION * width;
    let x = Connection::input("input");
    let y = op("relu", [unit(&x, ["conv1", "bn1"], width, 1, 1)?.into()])?;
    let mut y = op("relu", [unit(&y, ["conv2", "bn2"], width, 3, 1)?.into()])?;
    if halves {
        y = halved(&y)?;
    }
    let y = unit(&y, ["conv3", "bn3"], leaving, 1, 1)?;
    let shortcut = if halves || entering != leaving {
        let mut inside = Connection::input("input");
        if halves {
            inside = halved(&inside)?;
        }
        let projected = unit(&inside, ["0", "1"], leaving, 1, 1)?;
        call(&Model::from_outputs([("output", projected)])?.named("downsample")?, &x)?
    } else {
        x
    };
    Model::from_outputs([("output", op("relu", [(&y + &shortcut)?.into()])?)])
}

/// Attention of the mean of all places to them and to itself, projected to `leaving` features.
fn pool(features: i64, heads: i64, grid: i64, leaving: i64) -> Result<Model> {
    let x = sequence(&Connection::input("input"))?;
    let mean = op("mean", [(&x).into(), 1.into(), true.into()])?;
    let x = Connection::op("concat", vec![1.into(), mean.into(), (&x).into()], vec![])?;
    let shape = [grid * grid + 1, features].map(Size::from);
    let scale = Init::Normal((features as f64).powf(-0.5));
    let x = (&x + parameter("positional_embedding", shape, scale))?;

    let linear = |name, n: i64, x: &Connection| call(&layer("Linear", name, vec![n.into()], vec![])?, x);
    let apart = |x: &Connection, length: Connection| {
        let shape = tuple([size(x, 0)?.into(), length.into(), heads.into(), (features / heads).into()]);
        turned(&op("reshape", [x.into(), shape])?)
    };
    let query = apart(&linear("q_proj", features, &first(&x)?)?, Connection::constant(1))?;
    let key = apart(&linear("k_proj", features, &x)?, size(&x, 1)?)?;
    let value = apart(&linear("v_proj", features, &x)?, size(&x, 1)?)?;
    let attended = op("scaled_dot_product_attention", [query.into(), key.into(), value.into()])?;
    let shape = tuple([size(&x, 0)?.into(), features.into()]);
    let joined = op("reshape", [attended.into(), shape])?;
    Model::from_outputs([("output", linear("c_proj", leaving, &joined)?)])
}
