//! T5 (Raffel et al. 2020), its encoder and its decoder, with the names of transformers.

use std::sync::Arc;

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{Lit, Place, Result, Tensor};

use super::cache::{CACHE, LAST_ONLY, Places, Remembered, Scope, stack_behind, tokens};
use super::layout::{Layout, renamed};
use super::parts::{depth, features, last, linear, table, turned};
use super::{Config, ZooModel};
use crate::connection::{Arg, Connection, Spec};
use crate::init::Init;
use crate::key::{IOKey, Size};
use crate::layers::expr::{call, layer, op, parameter, size, tuple};
use crate::layers::{LayerArg, LayerArgs, LayerDef, arg};
use crate::model::Model;

/// Feed-forward layers: those of T5, and those of its version 1.1.
const PROJECTIONS: &[&str] = &["relu", "gated-gelu"];
/// Largest distance that has a bucket of its own: one entry of a table each.
const FARTHEST: i64 = 1 << 14;

const SIZES: [LayerArg; 10] = [
    arg("vocab_size", Attr::Int, DefaultLit::Int(32128), "Number of different tokens."),
    arg("d_model", Attr::Int, DefaultLit::Int(512), "Number of features of a token."),
    arg("d_kv", Attr::Int, DefaultLit::Int(64), "Number of features of a head."),
    arg("d_ff", Attr::Int, DefaultLit::Int(2048), "Features between the linear layers of a block."),
    arg("num_layers", Attr::Int, DefaultLit::Int(6), "Number of blocks."),
    arg("num_heads", Attr::Int, DefaultLit::Int(8), "Heads of the attention."),
    arg(
        "relative_attention_num_buckets",
        Attr::Int,
        DefaultLit::Int(32),
        "Number of distances between tokens that are told apart.",
    ),
    arg(
        "relative_attention_max_distance",
        Attr::Int,
        DefaultLit::Int(128),
        "Distance from which on all are alike.",
    ),
    arg("layer_norm_epsilon", Attr::Float, DefaultLit::Float(1e-6), "Added to the mean square."),
    arg(
        "feed_forward_proj",
        Attr::Choice(PROJECTIONS),
        DefaultLit::Str("relu"),
        "Activation between the linear layers; `gated-gelu` is that of version 1.1.",
    ),
];

static ENCODER: &[LayerArg] = &[
    SIZES[0],
    SIZES[1],
    SIZES[2],
    SIZES[3],
    SIZES[4],
    SIZES[5],
    SIZES[6],
    SIZES[7],
    SIZES[8],
    SIZES[9],
    arg("mask", Attr::Bool, DefaultLit::Bool(false), "Whether there is an input that says what is padding."),
];

static DECODER: &[LayerArg] = &[
    SIZES[0],
    SIZES[1],
    SIZES[2],
    SIZES[3],
    SIZES[4],
    SIZES[5],
    SIZES[6],
    SIZES[7],
    SIZES[8],
    SIZES[9],
    arg(
        "tie_word_embeddings",
        Attr::Bool,
        DefaultLit::Bool(true),
        "Whether the table of tokens is also the matrix of the last layer, whose input is then divided by √d_model. \
         Otherwise, as in version 1.1, that has a matrix of its own, `lm_head.weight`.",
    ),
    arg(
        "memory_mask",
        Attr::Bool,
        DefaultLit::Bool(false),
        "Whether there is an input that says what of `memory` is padding.",
    ),
    arg(
        "memory_cache",
        Attr::Bool,
        DefaultLit::Bool(false),
        "Whether keys and values of `memory`, which do not change from token to token, are given instead of it: \
         `memory_key_0`, `memory_value_0` `[batch, heads, source, d_kv]` and so on, as `t5_memory` computes them.",
    ),
    CACHE,
    LAST_ONLY,
];

/// The sizes of the decoder, so that both are built from one set; what does not matter here is not looked at.
static MEMORY: &[LayerArg] = &SIZES;

/// Files hold encoder and decoder, and the table of tokens under up to three names.
static ENCODER_LAYOUTS: &[Layout] = &[
    IN_ENCODER,
    Layout { rules: &[renamed("shared.weight", &["encoder.embed_tokens.weight"])], ..IN_ENCODER },
];
const IN_ENCODER: Layout = Layout {
    ignored: &["decoder.*", "lm_head.weight", "encoder.embed_tokens.weight", "shared.weight"],
    ..Layout::of("transformers")
};
static DECODER_LAYOUTS: &[Layout] = &[Layout {
    ignored: &[
        "encoder.*",
        "lm_head.weight",
        "decoder.embed_tokens.weight",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        // With `memory_cache`, these belong to `t5_memory`.
        "decoder.block.*.layer.1.EncDecAttention.k.weight",
        "decoder.block.*.layer.1.EncDecAttention.v.weight",
    ],
    ..Layout::of("transformers")
}];
static MEMORY_LAYOUTS: &[Layout] = &[Layout {
    ignored: &["encoder.*", "decoder.*", "shared.weight", "lm_head.weight"],
    ..Layout::of("transformers")
}];

static ALIASES: &[(&str, &str)] = &[
    ("num_decoder_layers", "num_layers"),
    ("num_encoder_layers", "num_layers"),
    ("eps", "layer_norm_epsilon"),
];

pub(super) static MODELS: &[ZooModel] = &[
    ZooModel {
        def: LayerDef {
            name: "t5_encode",
            doc: "Encoder of T5. From `input`, tokens `[batch, length]`, to `output`, features \
                  `[batch, length, d_model]`, which are the `memory` of `t5_decode`. With `mask=True` there is an input \
                  `mask` of the same shape, where 0 says that a token is padding. Parameters are called as in \
                  transformers (`encoder.block.0.layer.0.SelfAttention.q.weight`). (Raffel et al. 2020)",
            args: ENCODER,
            build: |a| T5::read(a, Part::Encoder)?.encoder(),
            aliases: &[],
            arg_aliases: ALIASES,
        },
        example: "vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4",
        layouts: ENCODER_LAYOUTS,
        config: Some(("t5/encoder", |c| configuration(c, c.int_or("num_layers", 6)?))),
    },
    ZooModel {
        def: LayerDef {
            name: "t5_decode",
            doc: "Decoder of T5. From `input`, tokens `[batch, length]`, and `memory`, what the encoder made of a text, \
                  to `output`, logits `[batch, length, vocab_size]`. With `memory_mask=True` there is an input \
                  `memory_mask`, where 0 says that a token of the encoder was padding. Parameters are called as in \
                  transformers (`decoder.block.0.layer.1.EncDecAttention.q.weight`). (Raffel et al. 2020)",
            args: DECODER,
            build: |a| T5::read(a, Part::Decoder)?.decoder(),
            aliases: &[],
            arg_aliases: ALIASES,
        },
        example: "vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4",
        layouts: DECODER_LAYOUTS,
        config: Some(("t5/decoder", |c| {
            let mut args = configuration(c, c.int_or("num_decoder_layers", c.int_or("num_layers", 6)?)?)?;
            // Newer files say that the matrices are one also where only the scaling tells version 1.1 apart.
            let tied = c.bool_or("tie_word_embeddings", true)? && c.bool_or("scale_decoder_outputs", true)?;
            args.push(("tie_word_embeddings", tied.into()));
            Ok(args)
        })),
    },
    ZooModel {
        def: LayerDef {
            name: "t5_memory",
            doc: "Keys and values that a decoder of T5 with `memory_cache=True` takes, computed once for each text: from \
                  `memory`, what the encoder made of it, to `memory_key_0`, `memory_value_0` and so on for each layer, \
                  `[batch, heads, source, d_kv]`. Takes the sizes of the decoder, and parameters of its attention \
                  (`decoder.block.0.layer.1.EncDecAttention.k.weight`).",
            args: MEMORY,
            build: |a| T5::read(a, Part::Memory)?.memory(),
            aliases: &[],
            arg_aliases: ALIASES,
        },
        example: "vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4",
        layouts: MEMORY_LAYOUTS,
        config: Some(("t5/memory", |c| {
            configuration(c, c.int_or("num_decoder_layers", c.int_or("num_layers", 6)?)?)
        })),
    },
];

fn configuration(c: &Config<'_>, layers: i64) -> Result<Vec<(&'static str, Lit)>> {
    c.only("feed_forward_proj", PROJECTIONS, "relu")?;
    let projection = if c.get("feed_forward_proj").is_some() { c.text("feed_forward_proj")? } else { "relu" };
    Ok(vec![
        ("vocab_size", c.int_or("vocab_size", 32128)?.into()),
        ("d_model", c.int_or("d_model", 512)?.into()),
        ("d_kv", c.int_or("d_kv", 64)?.into()),
        ("d_ff", c.int_or("d_ff", 2048)?.into()),
        ("num_layers", layers.into()),
        ("num_heads", c.int_or("num_heads", 8)?.into()),
        ("relative_attention_num_buckets", c.int_or("relative_attention_num_buckets", 32)?.into()),
        ("relative_attention_max_distance", c.int_or("relative_attention_max_distance", 128)?.into()),
        ("layer_norm_epsilon", c.float_or("layer_norm_epsilon", 1e-6)?.into()),
        ("feed_forward_proj", projection.into()),
    ])
}

// --- relative positions ------------------------------------------------------------------------------------

/// Which distances between tokens are alike: near ones each for itself, far ones the more at once the farther.
struct Buckets {
    count: i64,
    farthest: i64,
    /// Whether later tokens have buckets of their own; otherwise they share that of distance 0.
    both_ways: bool,
}

impl Buckets {
    fn read(a: &LayerArgs<'_>, both_ways: bool) -> Result<Self> {
        let [count, farthest] = ["relative_attention_num_buckets", "relative_attention_max_distance"];
        let buckets = Self { count: a.count(count)?, farthest: a.count(farthest)?, both_ways };
        if buckets.near() < 1 || buckets.count > FARTHEST {
            let least = if both_ways { 4 } else { 2 };
            return Err(a.bad("relative_attention_num_buckets", &format!("from {least} to {FARTHEST}")));
        }
        if buckets.farthest <= buckets.near() || buckets.farthest > FARTHEST {
            let from = buckets.near() + 1;
            return Err(a.bad("relative_attention_max_distance", &format!("from {from} to {FARTHEST}")));
        }
        Ok(buckets)
    }
    /// Buckets of one direction.
    fn each(&self) -> i64 {
        if self.both_ways { self.count / 2 } else { self.count }
    }
    /// How many of them are for one distance.
    fn near(&self) -> i64 {
        self.each() / 2
    }
    /// The bucket of a distance in one direction. Rounding is that of the published models, float32, which decides
    /// where a distance lies on the border of two buckets.
    fn of(&self, distance: i64) -> i64 {
        let near = self.near();
        if distance < near {
            return distance;
        }
        let far = (distance as f32 / near as f32).ln() / (self.farthest as f64 / near as f64).ln() as f32;
        let far = (far * (self.each() - near) as f32) as i64;
        (near + far).min(self.each() - 1)
    }
    /// The bucket of each place of a key relative to its query, from the farthest before it on.
    fn table(&self) -> Lit {
        let after = |d: i64| if self.both_ways && d > 0 { self.each() + self.of(d) } else { 0 };
        let places = -self.farthest..=if self.both_ways { self.farthest } else { 0 };
        let buckets: Vec<i64> = places.map(|d| if d <= 0 { self.of(-d) } else { after(d) }).collect();
        Lit::Tensor(Arc::new(Tensor::from_parts(&[buckets.len()], buckets)))
    }
    /// What is added to the scores `[heads, queries, keys]`, from the places of queries and keys.
    fn bias(&self, queries: &Connection, keys: &Connection, heads: i64) -> Result<Connection> {
        let shape = [self.count, heads].map(Size::from);
        let weight = parameter("weight", shape, Init::Normal(0.02));
        let values = op("take", [weight.into(), self.table().into(), 0.into()])?;
        let weights = Model::from_outputs([("output", op("transpose", [values.into()])?)])?;
        let values = weights.named("relative_attention_bias")?.call([] as [Arg; 0])?;
        let place = (keys - &op("expand_dims", [queries.into(), 1.into()])?)?;
        let last = if self.both_ways { self.farthest } else { 0 };
        let place = op("clip", [place.into(), (-self.farthest).into(), last.into()])?;
        op("take", [values.into(), op("add", [place.into(), self.farthest.into()])?.into(), 1.into()])
    }
}

// --- the model ---------------------------------------------------------------------------------------------

struct T5 {
    vocabulary: i64,
    dims: i64,
    each: i64,
    hidden: i64,
    heads: i64,
    /// Features of all heads.
    inner: i64,
    layers: i64,
    buckets: Buckets,
    eps: Lit,
    gated: bool,
    /// Whether there is an input that says what of the encoder's tokens is padding.
    masked: bool,
    /// What only a decoder has.
    decoder: Option<Decoder>,
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Encoder,
    Decoder,
    Memory,
}

#[allow(clippy::struct_excessive_bools, reason = "they are the arguments")]
#[derive(Clone, Copy)]
struct Decoder {
    tied: bool,
    /// Whether keys and values of the encoder's features are given.
    memory_cache: bool,
    cache: bool,
    last_only: bool,
}

impl Decoder {
    fn read(a: &LayerArgs<'_>) -> Result<Self> {
        Ok(Self {
            tied: a.bool("tie_word_embeddings")?,
            memory_cache: a.bool("memory_cache")?,
            cache: a.bool("cache")?,
            last_only: a.bool("last_only")?,
        })
    }
}

impl T5 {
    /// Whether this is a decoder to which that applies.
    fn decodes(&self, and: impl Fn(Decoder) -> bool) -> bool {
        self.decoder.is_some_and(and)
    }
    fn read(a: &LayerArgs<'_>, part: Part) -> Result<Self> {
        let masked = match part {
            Part::Encoder => a.bool("mask")?,
            Part::Decoder => a.bool("memory_mask")?,
            Part::Memory => false,
        };
        let (heads, each) = (a.count("num_heads")?, a.count("d_kv")?);
        Ok(Self {
            vocabulary: a.count("vocab_size")?,
            dims: a.count("d_model")?,
            each,
            hidden: a.count("d_ff")?,
            heads,
            inner: heads.saturating_mul(each),
            layers: depth(a, "num_layers")?,
            buckets: Buckets::read(a, part == Part::Encoder)?,
            eps: a.lit("layer_norm_epsilon"),
            gated: a.text("feed_forward_proj")? != "relu",
            masked,
            decoder: if part == Part::Decoder { Some(Decoder::read(a)?) } else { None },
        })
    }

    fn encoder(&self) -> Result<Model> {
        let mut scope = Scope::default();
        if self.masked {
            scope.set("mask", seen("mask", "length")?);
        }
        scope.set("input", call(&self.table()?, &tokens())?);
        Model::from_outputs(scope.call(&self.blocks()?.named("encoder")?)?)
    }

    fn decoder(&self) -> Result<Model> {
        let tokens = tokens();
        let mut scope = Scope::default();
        if self.masked {
            scope.set("memory_mask", seen("memory_mask", "source")?);
        }
        if self.decodes(|d| d.cache) {
            Places::of(&tokens)?.enter(&mut scope)?;
        }
        scope.set("memory", self.features_of_encoder());
        scope.set("input", call(&self.table()?, &tokens)?);
        let mut outputs = scope.call(&self.blocks()?.named("decoder")?)?;
        "features".clone_into(&mut outputs[0].0);
        let mut model = Model::from_outputs(outputs)?.open();
        let spec = Spec::from([("input", "features"), ("output", "output")]);
        let spec = if self.decodes(|d| d.tied) { spec.with("weight", "shared.weight") } else { spec };
        model.extend(&self.logits()?, spec, Place::default())?;
        Ok(model)
    }

    fn features_of_encoder(&self) -> Connection {
        let shape: [Size; 3] = ["batch".into(), "source".into(), self.dims.into()];
        Connection::input(IOKey::new("memory").shape(shape))
    }

    /// Keys and values of all layers, with the names that they have in the decoder.
    fn memory(&self) -> Result<Model> {
        let memory = data("memory");
        let parts = [("key", self.apart("k", &memory)?), ("value", self.apart("v", &memory)?)];
        let attention = Model::from_outputs(parts)?.named("EncDecAttention")?;
        let layer = Model::from_outputs(Scope::default().call(&attention)?)?.named("1")?;
        let block = Model::from_outputs(Scope::default().call(&layer)?)?.named("layer")?;
        let block = Model::from_outputs(Scope::default().call(&block)?)?;
        let mut scope = Scope::default();
        let mut outputs = Vec::new();
        for i in 0..self.layers {
            let output = scope.call(&block.clone().named(i.to_string())?)?;
            outputs.extend(output.into_iter().map(|(name, value)| (format!("memory_{name}_{i}"), value)));
        }
        let decoder = Model::from_outputs(outputs)?.named("block")?;
        let decoder = Model::from_outputs(Scope::default().call(&decoder)?)?.named("decoder")?;
        let mut scope = Scope::default();
        scope.set("memory", self.features_of_encoder());
        Model::from_outputs(scope.call(&decoder)?)
    }

    fn table(&self) -> Result<Model> {
        table("shared", [self.vocabulary, self.dims], Init::Normal(1.0))
    }

    fn logits(&self) -> Result<Model> {
        let x = features(self.dims);
        let weight = parameter("weight", [self.vocabulary, self.dims].map(Size::from), Init::Normal(1.0));
        let x =
            if self.decodes(|d| d.tied) { op("multiply", [x.into(), root(self.dims).into()])? } else { x };
        Model::from_outputs([("output", op("linear", [x.into(), weight.into()])?)])?.named("lm_head")
    }

    /// All blocks and the last normalization. The first block says what is added to the scores of all.
    fn blocks(&self) -> Result<Model> {
        let blocks = stack_behind(&self.block(true)?, &self.block(false)?, self.layers, "bias")?;
        let blocks = blocks.named("block")?;
        let mut outputs = Scope::default().call(&blocks)?;
        let x = if self.decodes(|d| d.last_only) { last(&outputs[0].1)? } else { outputs[0].1.clone() };
        outputs[0].1 = call(&self.norm("final_layer_norm")?, &x)?;
        Model::from_outputs(outputs)
    }

    fn block(&self, first: bool) -> Result<Model> {
        let mut layers = vec![self.layer("SelfAttention", &self.self_attention(first)?)?];
        if self.decoder.is_some() {
            layers.push(self.layer("EncDecAttention", &self.cross_attention()?)?);
        }
        layers.push(self.layer("DenseReluDense", &self.feed_forward()?)?);
        let mut scope = Scope::default();
        let mut outputs = Vec::new();
        for (i, layer) in layers.into_iter().enumerate() {
            for (name, value) in scope.call(&layer.named(i.to_string())?)? {
                if name == "output" {
                    scope.set("input", value);
                } else {
                    outputs.push((name, value));
                }
            }
        }
        outputs.insert(0, ("output".to_owned(), scope.get("input")));
        let layers = Model::from_outputs(outputs)?.named("layer")?;
        Model::from_outputs(Scope::default().call(&layers)?)
    }

    /// Something behind a normalization and beside a shortcut.
    fn layer(&self, name: &str, inner: &Model) -> Result<Model> {
        let mut scope = Scope::default();
        let x = features(self.dims);
        scope.set("input", call(&self.norm("layer_norm")?, &x)?);
        let mut outputs = scope.call(&inner.clone().named(name)?)?;
        outputs[0].1 = (&x + &outputs[0].1)?;
        Model::from_outputs(outputs)
    }

    fn norm(&self, name: &str) -> Result<Model> {
        layer("RMSNorm", name, vec![self.dims.into()], vec![("eps", self.eps.clone())])
    }

    fn self_attention(&self, first: bool) -> Result<Model> {
        let x = features(self.dims);
        let query = self.apart("q", &x)?;
        let (mut key, mut value) = (self.apart("k", &x)?, self.apart("v", &x)?);
        let (mut slots, mut seen) = (None, None);
        let mut outputs = Vec::new();
        if self.decodes(|d| d.cache) {
            let all = Remembered::with(&key, &value, [self.heads, self.each])?;
            (key, value) = (all.key, all.value);
            (slots, seen) = (Some(all.slots), Some(all.mask));
            outputs = vec![("key", key.clone()), ("value", value.clone())];
        } else if self.masked && self.decoder.is_none() {
            seen = Some(data("mask"));
        }
        let bias = if first {
            let keys = op("arange", [size(&key, 2)?.into()])?;
            let queries = match slots {
                Some(slots) => slots,
                None => keys.clone(),
            };
            let bias = self.buckets.bias(&queries, &keys, self.heads)?;
            if self.decoder.is_some() && !self.decodes(|d| d.cache) {
                let queries = op("expand_dims", [queries.into(), 1.into()])?;
                seen = Some(op("less_equal", [keys.into(), queries.into()])?);
            }
            let bias = op("expand_dims", [bias.into(), 0.into()])?;
            let bias = match seen {
                Some(seen) => op("where", [seen.into(), bias.into(), f64::NEG_INFINITY.into()])?,
                None => bias,
            };
            outputs.push(("bias", bias.clone()));
            bias
        } else {
            data("bias")
        };
        let y = self.attend(&x, [&query, &key, &value], bias.into())?;
        outputs.insert(0, ("output", y));
        Model::from_outputs(outputs)
    }

    fn cross_attention(&self) -> Result<Model> {
        let x = features(self.dims);
        let query = self.apart("q", &x)?;
        let [key, value] = if self.decodes(|d| d.memory_cache) {
            ["memory_key", "memory_value"].map(|name| self.declared_input(name))
        } else {
            let memory = data("memory");
            [self.apart("k", &memory)?, self.apart("v", &memory)?]
        };
        let mask = if self.masked { data("memory_mask").into() } else { Arg::Lit(Lit::None) };
        Model::from_outputs([("output", self.attend(&x, [&query, &key, &value], mask)?)])
    }

    /// Keys or values of the encoder's features that are computed already.
    fn declared_input(&self, name: &str) -> Connection {
        let shape: [Size; 4] = ["batch".into(), self.heads.into(), "source".into(), self.each.into()];
        Connection::input(IOKey::new(name).shape(shape).trainable(false))
    }

    /// Queries, keys or values, `[batch, heads, length, d_kv]`.
    fn apart(&self, name: &str, x: &Connection) -> Result<Connection> {
        let scale = root(self.dims) * if name == "q" { root(self.each) } else { 1.0 };
        let y = call(&linear(name, [self.inner, self.dims], false, Init::Normal(scale))?, x)?;
        let shape = tuple([size(x, 0)?.into(), size(x, 1)?.into(), self.heads.into(), self.each.into()]);
        turned(&op("reshape", [y.into(), shape])?)
    }

    /// The attention, whose scores are not scaled, and the linear layer behind it.
    fn attend(&self, x: &Connection, parts: [&Connection; 3], mask: Arg) -> Result<Connection> {
        let [query, key, value] = parts.map(Arg::from);
        let y = op("scaled_dot_product_attention", [query, key, value, mask, false.into(), 1.0.into()])?;
        let shape = tuple([size(x, 0)?.into(), size(x, 1)?.into(), self.inner.into()]);
        let y = op("reshape", [turned(&y)?.into(), shape])?;
        call(&linear("o", [self.dims, self.inner], false, Init::Normal(root(self.inner)))?, &y)
    }

    fn feed_forward(&self) -> Result<Model> {
        let x = features(self.dims);
        let wide = |name: &str| {
            call(&linear(name, [self.hidden, self.dims], false, Init::Normal(root(self.dims)))?, &x)
        };
        let y = if self.gated {
            (&op("gelu", [wide("wi_0")?.into(), "tanh".into()])? * &wide("wi_1")?)?
        } else {
            op("relu", [wide("wi")?.into()])?
        };
        let out = linear("wo", [self.dims, self.hidden], false, Init::Normal(root(self.hidden)))?;
        Model::from_outputs([("output", call(&out, &y)?)])
    }
}

/// `1 / √n`
fn root(n: i64) -> f64 {
    1.0 / (n as f64).sqrt()
}

/// What is called so where the part is used.
fn data(name: &str) -> Connection {
    Connection::input(IOKey::new(name).trainable(false))
}

/// What all heads and queries of a text may attend to, `[batch, 1, 1, length]`: where the input of that name is not 0.
fn seen(name: &str, length: &str) -> Result<Connection> {
    let mask = Connection::input(IOKey::new(name).shape(["batch", length]));
    let seen = op("not_equal", [mask.into(), 0.into()])?;
    op("expand_dims", [seen.into(), Lit::from([1, 2]).into()])
}
