//! Attention and transformers. Everything is `[n, length, features]`; parameters are named and laid out as in
//! PyTorch.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{Lit, Result};

use super::expr::{call, input, layer, op, optional, parameter, size, split, tuple};
use super::{LayerArg, LayerArgs, LayerDef, arg};
use crate::connection::{Arg, Connection};
use crate::init::{Init, VarianceScaling};
use crate::key::{IOKey, Size};
use crate::model::Model;

const EMBED: LayerArg = arg("embed_dim", Attr::Int, DefaultLit::Required, "Number of features.");
const HEADS: LayerArg =
    arg("num_heads", Attr::Int, DefaultLit::Required, "Heads; a divisor of the features.");
const BIAS: LayerArg = arg("bias", Attr::Bool, DefaultLit::Bool(true), "Whether biases are added.");
const CAUSAL: LayerArg = arg(
    "causal",
    Attr::Bool,
    DefaultLit::Bool(false),
    "Whether a position attends only to itself and earlier ones.",
);

static BLOCK_ARGS: &[LayerArg] = &[
    EMBED,
    HEADS,
    arg("dim_feedforward", Attr::Int, DefaultLit::Int(2048), "Features between the two linear layers."),
    arg("dropout", Attr::Float, DefaultLit::Float(0.1), "Fraction of values dropped in training."),
    arg("activation", Attr::Any, DefaultLit::Str("relu"), "Layer between the two linear layers, by name."),
    arg("eps", Attr::Float, DefaultLit::Float(1e-5), "Added to the variance in the normalizations."),
    arg("norm_first", Attr::Bool, DefaultLit::Bool(false), "Whether normalization comes before, not after."),
    CAUSAL,
];

static STACK_ARGS: &[LayerArg] = &[
    arg("num_layers", Attr::Int, DefaultLit::Required, "Number of layers."),
    EMBED,
    HEADS,
    arg("dim_feedforward", Attr::Int, DefaultLit::Int(2048), "Features between the two linear layers."),
    arg("dropout", Attr::Float, DefaultLit::Float(0.1), "Fraction of values dropped in training."),
    arg("activation", Attr::Any, DefaultLit::Str("relu"), "Layer between the two linear layers, by name."),
    arg("eps", Attr::Float, DefaultLit::Float(1e-5), "Added to the variance in the normalizations."),
    arg("norm_first", Attr::Bool, DefaultLit::Bool(false), "Whether normalization comes before, not after."),
    CAUSAL,
    arg("norm", Attr::Bool, DefaultLit::Bool(false), "Whether a normalization comes last."),
];

static ARG_ALIASES: &[(&str, &str)] = &[
    ("d_model", "embed_dim"),
    ("dimension", "embed_dim"),
    ("nhead", "num_heads"),
    ("heads", "num_heads"),
    ("layer_norm_eps", "eps"),
    ("is_causal", "causal"),
];

pub(super) static LAYERS: &[LayerDef] = &[
    LayerDef {
        name: "MultiHeadAttention",
        doc: "Attention with several heads (Vaswani et al. 2017).\n\nInputs `query` `[n, l, embed_dim]`, `key` and \
              `value` `[n, s, embed_dim]`, and an optional `mask` that broadcasts to `[n, heads, l, s]` (true where \
              a query may attend, or numbers that are added). Parameters `in_proj_weight`, `in_proj_bias`, \
              `out_proj.weight`, `out_proj.bias`.",
        args: &[EMBED, HEADS, BIAS, CAUSAL],
        build: multi_head,
        aliases: &["MultiheadAttention"],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "SelfAttention",
        doc: "As MultiHeadAttention, where `input` is query, key and value.",
        args: &[EMBED, HEADS, BIAS, CAUSAL],
        build: self_attention,
        aliases: &["MultiHeadSelfAttention"],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "TransformerEncoderLayer",
        doc: "Self-attention and two linear layers, each with a residual and a normalization.\n\nInputs `input` \
              `[n, length, embed_dim]` and an optional `mask`.",
        args: BLOCK_ARGS,
        build: encoder_layer,
        aliases: &[],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "TransformerDecoderLayer",
        doc: "Causal self-attention, attention to `memory`, and two linear layers, each with a residual and a \
              normalization.\n\nInputs `input` `[n, l, embed_dim]`, `memory` `[n, s, embed_dim]`, optional `mask` and \
              `memory_mask`.",
        args: BLOCK_ARGS,
        build: decoder_layer,
        aliases: &[],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "TransformerEncoder",
        doc: "Several TransformerEncoderLayer, called `layers.0`, `layers.1` …",
        args: STACK_ARGS,
        build: |a| stack(a, false),
        aliases: &[],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "TransformerDecoder",
        doc: "Several TransformerDecoderLayer, called `layers.0`, `layers.1` …",
        args: STACK_ARGS,
        build: |a| stack(a, true),
        aliases: &[],
        arg_aliases: ARG_ALIASES,
    },
];

/// Sizes that all attentions share.
struct Heads {
    features: i64,
    count: i64,
    bias: bool,
    causal: Lit,
}

impl Heads {
    fn read(a: &LayerArgs<'_>, bias: bool) -> Result<Self> {
        let (features, heads) = (a.count("embed_dim")?, a.count("num_heads")?);
        if features % heads != 0 {
            return Err(a.bad("num_heads", &format!("a divisor of the {features} features")));
        }
        Ok(Self { features, count: heads, bias, causal: a.lit("causal") })
    }
    fn sequence(&self, name: &str) -> Connection {
        let features = Size::from(self.features);
        Connection::input(IOKey::new(name).shape([Size::Unknown, Size::Unknown, features]))
    }
    fn in_proj(&self) -> (Connection, Option<Connection>) {
        let rows = Size::from(self.features.saturating_mul(3));
        let weight = parameter(
            "in_proj_weight",
            [rows.clone(), Size::from(self.features)],
            Init::VarianceScaling(VarianceScaling::XAVIER_UNIFORM),
        );
        (weight, self.bias.then(|| parameter("in_proj_bias", [rows], Init::Zeros)))
    }
    /// `[n, length, features]` as `[n, heads, length, features / heads]`.
    fn apart(&self, x: &Connection) -> Result<Connection> {
        let each = self.features / self.count;
        let shape = tuple([size(x, 0)?.into(), size(x, 1)?.into(), self.count.into(), each.into()]);
        op("transpose", [op("reshape", [x.into(), shape])?.into(), Lit::from([0, 2, 1, 3]).into()])
    }
    /// The attention, and the projection behind it.
    fn attend(&self, parts: &[Connection], mask: &Connection) -> Result<Connection> {
        let [q, k, v] = [self.apart(&parts[0])?, self.apart(&parts[1])?, self.apart(&parts[2])?];
        let args = [(&q).into(), (&k).into(), (&v).into(), mask.into(), self.causal.clone().into()];
        let y = op("scaled_dot_product_attention", args)?;
        let y = op("transpose", [y.into(), Lit::from([0, 2, 1, 3]).into()])?;
        let x = &parts[0];
        let y =
            op("reshape", [y.into(), tuple([size(x, 0)?.into(), size(x, 1)?.into(), self.features.into()])])?;
        let out = layer("Linear", "out_proj", vec![self.features.into()], vec![("bias", self.bias.into())])?;
        call(&out, &y)
    }
}

fn multi_head(a: &LayerArgs<'_>) -> Result<Model> {
    let heads = Heads::read(a, a.bool("bias")?)?;
    let (weight, bias) = heads.in_proj();
    let weights = split(&weight, 3, 0)?;
    let biases = bias.map(|b| split(&b, 3, 0)).transpose()?;
    let parts = ["query", "key", "value"]
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let bias = biases.as_ref().map_or(Arg::Lit(Lit::None), |b| (&b[i]).into());
            op("linear", [heads.sequence(name).into(), (&weights[i]).into(), bias])
        })
        .collect::<Result<Vec<_>>>()?;
    Model::from_outputs([("output", heads.attend(&parts, &optional("mask", Lit::None))?)])
}

fn self_attention(a: &LayerArgs<'_>) -> Result<Model> {
    self_attention_of(&Heads::read(a, a.bool("bias")?)?)
}

fn self_attention_of(heads: &Heads) -> Result<Model> {
    let (weight, bias) = heads.in_proj();
    let bias = bias.map_or(Arg::Lit(Lit::None), Arg::from);
    let all = op("linear", [heads.sequence("input").into(), weight.into(), bias])?;
    let parts = split(&all, 3, -1)?;
    let y = heads.attend(&parts, &optional("mask", Lit::None))?;
    Ok(Model::from_outputs([("output", y)])?.of_class("SelfAttention"))
}

/// The parts of a block around its attentions.
struct Block<'a> {
    a: &'a LayerArgs<'a>,
    norm_first: bool,
}

impl Block<'_> {
    fn norm(&self, name: &str, x: &Connection) -> Result<Connection> {
        call(&layer("LayerNorm", name, vec![], vec![("eps", self.a.lit("eps"))])?, x)
    }
    fn dropout(&self, name: &str, x: Connection) -> Result<Connection> {
        if self.a.f64("dropout")? == 0.0 {
            return Ok(x);
        }
        call(&layer("Dropout", name, vec![self.a.lit("dropout")], vec![])?, &x)
    }
    /// `x` with what `f` makes of it, and the normalization before or after.
    fn residual(
        &self,
        x: &Connection,
        [norm, dropout]: [&str; 2],
        f: impl FnOnce(&Connection) -> Result<Connection>,
    ) -> Result<Connection> {
        if self.norm_first {
            let y = f(&self.norm(norm, x)?)?;
            return x + &self.dropout(dropout, y)?;
        }
        let y = f(x)?;
        self.norm(norm, &(x + &self.dropout(dropout, y)?)?)
    }
    fn feed_forward(&self, x: &Connection, features: i64) -> Result<Connection> {
        let wide = self.a.count("dim_feedforward")?;
        let mut y = call(&layer("Linear", "linear1", vec![wide.into()], vec![])?, x)?;
        if let Some(f) = super::basic::activation(self.a, "activation", &self.a.lit("activation"))? {
            y = call(&f, &y)?;
        }
        let y = self.dropout("dropout", y)?;
        call(&layer("Linear", "linear2", vec![features.into()], vec![])?, &y)
    }
}

fn encoder_layer(a: &LayerArgs<'_>) -> Result<Model> {
    let heads = Heads::read(a, true)?;
    let block = Block { a, norm_first: a.bool("norm_first")? };
    let (x, mask) = (heads.sequence("input"), optional("mask", Lit::None));
    let attention = self_attention_of(&heads)?.named("self_attn")?;
    let x = block.residual(&x, ["norm1", "dropout1"], |x| {
        Ok(attention.call_with(vec![x.into()], vec![("mask", (&mask).into())], None)?.swap_remove(0))
    })?;
    let x = block.residual(&x, ["norm2", "dropout2"], |x| block.feed_forward(x, heads.features))?;
    Model::from_outputs([("output", x)])
}

fn decoder_layer(a: &LayerArgs<'_>) -> Result<Model> {
    let heads = Heads { causal: true.into(), ..Heads::read(a, true)? };
    let block = Block { a, norm_first: a.bool("norm_first")? };
    let (x, memory) = (heads.sequence("input"), heads.sequence("memory"));
    let (mask, memory_mask) = (optional("mask", Lit::None), optional("memory_mask", Lit::None));
    let attention = self_attention_of(&heads)?.named("self_attn")?;
    let cross = layer(
        "MultiHeadAttention",
        "multihead_attn",
        vec![heads.features.into(), heads.count.into()],
        vec![],
    )?;
    let x = block.residual(&x, ["norm1", "dropout1"], |x| {
        Ok(attention.call_with(vec![x.into()], vec![("mask", (&mask).into())], None)?.swap_remove(0))
    })?;
    let x = block.residual(&x, ["norm2", "dropout2"], |x| {
        let args = vec![x.into(), (&memory).into(), (&memory).into()];
        Ok(cross.call_with(args, vec![("mask", (&memory_mask).into())], None)?.swap_remove(0))
    })?;
    let x = block.residual(&x, ["norm3", "dropout3"], |x| block.feed_forward(x, heads.features))?;
    Model::from_outputs([("output", x)])
}

fn stack(a: &LayerArgs<'_>, decoder: bool) -> Result<Model> {
    let n = a.count("num_layers")?;
    if n > 10_000 {
        return Err(a.bad("num_layers", "at most 10000"));
    }
    let one = if decoder {
        decoder_layer(a)?.of_class("TransformerDecoderLayer")
    } else {
        encoder_layer(a)?.of_class("TransformerEncoderLayer")
    };
    let (mut x, memory) = (input("input"), input("memory"));
    let (mask, memory_mask) = (optional("mask", Lit::None), optional("memory_mask", Lit::None));
    for i in 0..n {
        let block = one.clone().named(i.to_string())?;
        let mut named: Vec<(&str, Arg)> = vec![("input", (&x).into()), ("mask", (&mask).into())];
        if decoder {
            named.push(("memory", (&memory).into()));
            named.push(("memory_mask", (&memory_mask).into()));
        }
        x = block.call_with(vec![], named, None)?.swap_remove(0);
    }
    let layers = Model::from_outputs([("output", x)])?.named("layers")?;
    let mut args: Vec<(&str, Arg)> =
        vec![("input", input("input").into()), ("mask", optional("mask", Lit::None).into())];
    if decoder {
        args.push(("memory", input("memory").into()));
        args.push(("memory_mask", optional("memory_mask", Lit::None).into()));
    }
    let mut y = layers.call_with(vec![], args, None)?.swap_remove(0);
    if a.bool("norm")? {
        y = call(&layer("LayerNorm", "norm", vec![], vec![("eps", a.lit("eps"))])?, &y)?;
    }
    Model::from_outputs([("output", y)])
}
