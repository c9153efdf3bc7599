//! BERT (Devlin et al. 2018) with the names of transformers.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{DType, Lit, Place, Result};

use super::cache::{Scope, stack, tokens};
use super::layout::{Layout, renamed};
use super::parts::{depth, features, linear, table, turned};
use super::{Config, Reader, ZooModel};
use crate::connection::{Arg, Connection, Spec};
use crate::init::Init;
use crate::key::{IOKey, Size};
use crate::layers::expr::{call, layer, op, parameter, size, tuple};
use crate::layers::{LayerArg, LayerArgs, LayerDef, arg};
use crate::model::Model;

const HEADS: &[&str] = &["none", "pooler", "masked_lm", "classification"];
const ACTIVATIONS: &[&str] = &["gelu", "gelu_new", "relu"];

static ARGS: &[LayerArg] = &[
    arg("vocab_size", Attr::Int, DefaultLit::Int(30522), "Number of different tokens."),
    arg("dims", Attr::Int, DefaultLit::Int(768), "Number of features of a token."),
    arg("num_heads", Attr::Int, DefaultLit::Int(12), "Heads of the attention; a divisor of `dims`."),
    arg("num_layers", Attr::Int, DefaultLit::Int(12), "Number of blocks."),
    arg("hidden", Attr::Int, DefaultLit::Int(3072), "Features between the two linear layers of a block."),
    arg("max_length", Attr::Int, DefaultLit::Int(512), "Largest number of tokens of a text."),
    arg("type_vocab", Attr::Int, DefaultLit::Int(2), "Number of types of tokens."),
    arg("eps", Attr::Float, DefaultLit::Float(1e-12), "Added to the variance in the normalizations."),
    arg(
        "activation",
        Attr::Choice(ACTIVATIONS),
        DefaultLit::Str("gelu"),
        "Between the linear layers; `gelu_new` is its approximation by tanh.",
    ),
    arg("head", Attr::Choice(HEADS), DefaultLit::Str("pooler"), "What comes behind the last block."),
    arg("num_classes", Attr::Int, DefaultLit::Int(2), "Number of logits with the head `classification`."),
    arg("mask", Attr::Bool, DefaultLit::Bool(false), "Whether there is an input that says what is padding."),
    arg(
        "types",
        Attr::Bool,
        DefaultLit::Bool(false),
        "Whether there is an input of types; all are 0 otherwise.",
    ),
];

/// What older files call the weight and the bias of a normalization.
static LAYOUTS: &[Layout] = &[
    TRANSFORMERS,
    Layout {
        rules: &[
            renamed("*.LayerNorm.weight", &["*.LayerNorm.gamma"]),
            renamed("*.LayerNorm.bias", &["*.LayerNorm.beta"]),
        ],
        ..TRANSFORMERS
    },
];

/// The matrix of the last layer is the table of tokens, and its bias stands in the file twice. Files of the whole
/// pretraining have both heads.
const TRANSFORMERS: Layout = Layout {
    prefixes: &["bert."],
    ignored: &["*.position_ids", "cls.*", "pooler.*"],
    ..Layout::of("transformers")
};

pub(super) static MODELS: &[ZooModel] = &[ZooModel {
    def: LayerDef {
        name: "create_bert",
        doc: "BERT.\n\nInputs are `input`, tokens `[batch, length]`; with `mask=True` also `mask`, of the same shape, \
              where 0 says that a token is padding; with `types=True` also `types`, which sentence a token belongs to. \
              The head decides what `output` is: features `[batch, length, dims]` (`none`, and `pooler`, which has a \
              second output `pooled` `[batch, dims]`), logits of tokens `[batch, length, vocab_size]` \
              (`masked_lm`), or logits of classes `[batch, num_classes]` (`classification`). Parameters are called \
              as in transformers, without `bert.` in front \
              (`encoder.layer.0.attention.self.query.weight`). (Devlin et al. 2018)",
        args: ARGS,
        build,
        aliases: &[],
        arg_aliases: &[
            ("hidden_size", "dims"),
            ("num_attention_heads", "num_heads"),
            ("num_hidden_layers", "num_layers"),
            ("intermediate_size", "hidden"),
            ("max_position_embeddings", "max_length"),
            ("type_vocab_size", "type_vocab"),
            ("layer_norm_eps", "eps"),
            ("hidden_act", "activation"),
            ("num_labels", "num_classes"),
        ],
    },
    example: "vocab_size=100, dims=32, num_heads=4, num_layers=2, hidden=64",
    layouts: LAYOUTS,
    config: Some(("bert", READ)),
}];

const READ: Reader = |config| {
    config.only("position_embedding_type", &["absolute"], "absolute")?;
    config.only("hidden_act", ACTIVATIONS, "gelu")?;
    for name in ["is_decoder", "add_cross_attention"] {
        if config.bool_or(name, false)? {
            return Err(config.bad(name, "false"));
        }
    }
    Ok(vec![
        ("vocab_size", config.int_or("vocab_size", 30522)?.into()),
        ("dims", config.int_or("hidden_size", 768)?.into()),
        ("num_heads", config.int_or("num_attention_heads", 12)?.into()),
        ("num_layers", config.int_or("num_hidden_layers", 12)?.into()),
        ("hidden", config.int_or("intermediate_size", 3072)?.into()),
        ("max_length", config.int_or("max_position_embeddings", 512)?.into()),
        ("type_vocab", config.int_or("type_vocab_size", 2)?.into()),
        ("eps", config.float_or("layer_norm_eps", 1e-12)?.into()),
        ("activation", config.get("hidden_act").map_or(Ok("gelu"), |_| config.text("hidden_act"))?.into()),
        ("head", head(config)?.into()),
        ("num_classes", config.labels(2)?.into()),
    ])
};

/// The head, by the class of transformers that the file was written by.
fn head(config: &Config<'_>) -> Result<&'static str> {
    let Some(architectures) = config.get("architectures") else { return Ok("pooler") };
    match architectures.as_array().map(Vec::as_slice) {
        Some([one]) => {
            match one.as_str() {
                Some("BertModel") => Ok("pooler"),
                Some("BertForMaskedLM" | "BertForPreTraining") => Ok("masked_lm"),
                Some("BertForSequenceClassification") => Ok("classification"),
                _ => Err(config
                    .bad("architectures", "BertModel, BertForMaskedLM or BertForSequenceClassification")),
            }
        }
        _ => Err(config.bad("architectures", "a list of one name")),
    }
}

/// Sizes of the blocks.
struct Bert<'a> {
    a: &'a LayerArgs<'a>,
    dims: i64,
    heads: i64,
}

fn build(a: &LayerArgs<'_>) -> Result<Model> {
    let (dims, heads) = (a.count("dims")?, a.count("num_heads")?);
    if dims % heads != 0 {
        return Err(a.bad("num_heads", &format!("a divisor of the {dims} dims")));
    }
    Bert { a, dims, heads }.model()
}

/// How matrices and tables start.
const START: Init = Init::Normal(0.02);

/// A part of the model: an expression under a name.
fn part(name: &str, output: Connection) -> Result<Model> {
    Model::from_outputs([("output", output)])?.named(name)
}

/// What is called so where the part is used.
fn data(name: &str) -> Connection {
    Connection::input(IOKey::new(name).trainable(false))
}

/// The only output of a part whose inputs are called as in `scope`.
fn within(scope: &mut Scope, part: &Model) -> Result<Connection> {
    Ok(scope.call(part)?.swap_remove(0).1)
}

impl Bert<'_> {
    fn model(&self) -> Result<Model> {
        let mut inputs = Spec::new().with("input", "input").with("output", "embedded");
        if self.a.bool("types")? {
            inputs = inputs.with("types", "types");
        }
        let mut blocks = Spec::new().with("input", "embedded").with("output", "features");
        if self.a.bool("mask")? {
            blocks = blocks.with("mask", "mask");
        }
        let mut bert = Model::new();
        bert.extend(&self.embeddings()?, inputs, Place::default())?;
        bert.extend(&self.encoder()?, blocks, Place::default())?;
        let mut add = |child: &Model, from: &str, to: &str| {
            bert.extend(child, [("input", from), ("output", to)], Place::default()).map(drop)
        };
        match self.a.text("head")?.as_str() {
            "none" => add(&layer("Identity", "last", vec![], vec![])?, "features", "output")?,
            "pooler" => {
                add(&layer("Identity", "last", vec![], vec![])?, "features", "output")?;
                add(&self.pooler()?, "features", "pooled")?;
            }
            "classification" => {
                add(&self.pooler()?, "features", "first")?;
                let classes = self.a.count("num_classes")?;
                add(&linear("classifier", [classes, self.dims], true, START)?, "first", "output")?;
            }
            _ => {
                let tied = [
                    ("input", "features"),
                    ("table", "embeddings.word_embeddings.weight"),
                    ("output", "output"),
                ];
                bert.extend(&self.masked_lm()?, tied, Place::default())?;
            }
        }
        Ok(bert)
    }

    fn embeddings(&self) -> Result<Model> {
        let x = tokens();
        let words = table("word_embeddings", [self.a.count("vocab_size")?, self.dims], START)?;
        let kinds = [self.a.count("type_vocab")?, self.dims];
        let kinds = if self.a.bool("types")? {
            let types = Connection::input(IOKey::new("types").shape(["batch", "length"]).dtype(DType::I64));
            call(&table("token_type_embeddings", kinds, START)?, &types)?
        } else {
            let weight = parameter("weight", kinds.map(Size::from), START);
            part("token_type_embeddings", weight.item(vec![0.into()])?)?.call([] as [Arg; 0])?
        };
        let positions = {
            let weight = parameter("weight", [self.a.count("max_length")?, self.dims].map(Size::from), START);
            let bounds = [tuple([0.into()]), tuple([size(&tokens(), 1)?.into()])];
            let [start, stop] = bounds;
            part("position_embeddings", op("slice", [weight.into(), start, stop])?)?
        };
        let sum = (&(&call(&words, &x)? + &kinds)? + &call(&positions, &x)?)?;
        part("embeddings", self.norm(&sum)?)
    }

    fn norm(&self, x: &Connection) -> Result<Connection> {
        call(&layer("LayerNorm", "LayerNorm", vec![self.dims.into()], vec![("eps", self.a.lit("eps"))])?, x)
    }

    fn activation(&self, x: &Connection) -> Result<Connection> {
        match self.a.text("activation")?.as_str() {
            "relu" => op("relu", [x.into()]),
            "gelu_new" => op("gelu", [x.into(), "tanh".into()]),
            _ => op("gelu", [x.into()]),
        }
    }

    /// All blocks, below the names `encoder.layer`.
    fn encoder(&self) -> Result<Model> {
        let mut scope = Scope::default();
        if self.a.bool("mask")? {
            // What may be attended to, for all heads and queries of a text.
            let mask = Connection::input(IOKey::new("mask").shape(["batch", "length"]));
            let token = op("not_equal", [mask.into(), 0.into()])?;
            scope.set("mask", op("expand_dims", [token.into(), Lit::from([1, 2]).into()])?);
        }
        let blocks = stack(depth(self.a, "num_layers")?, || self.block())?.named("layer")?;
        part("encoder", within(&mut scope, &blocks)?)
    }

    fn block(&self) -> Result<Model> {
        let x = within(&mut Scope::default(), &self.attention()?)?;
        let hidden = self.a.count("hidden")?;
        let wide = linear("dense", [hidden, self.dims], true, START)?;
        let wide = part("intermediate", self.activation(&call(&wide, &features(self.dims))?)?)?;
        let y = self.shortcut(hidden)?.call([&call(&wide, &x)?, &x])?;
        Model::from_outputs([("output", y)])
    }

    fn attention(&self) -> Result<Model> {
        let x = features(self.dims);
        let mut scope = Scope::default();
        scope.set("input", x.clone());
        let y = within(&mut scope, &self.heads()?)?;
        part("attention", self.shortcut(self.dims)?.call([&y, &x])?)
    }

    /// A linear layer, the sum with what it stands beside, and the normalization of it.
    fn shortcut(&self, inputs: i64) -> Result<Model> {
        let y = call(&linear("dense", [self.dims, inputs], true, START)?, &features(inputs))?;
        part("output", self.norm(&(&y + &data("beside"))?)?)
    }

    fn heads(&self) -> Result<Model> {
        let x = features(self.dims);
        let each = self.dims / self.heads;
        let sizes = [size(&x, 0)?, size(&x, 1)?];
        let heads = |name: &str| {
            let y = call(&linear(name, [self.dims, self.dims], true, START)?, &x)?;
            let shape = tuple([(&sizes[0]).into(), (&sizes[1]).into(), self.heads.into(), each.into()]);
            turned(&op("reshape", [y.into(), shape])?)
        };
        let mask = if self.a.bool("mask")? { data("mask").into() } else { Arg::Lit(Lit::None) };
        let parts = [heads("query")?.into(), heads("key")?.into(), heads("value")?.into(), mask];
        let y = turned(&op("scaled_dot_product_attention", parts)?)?;
        let shape = tuple([(&sizes[0]).into(), (&sizes[1]).into(), self.dims.into()]);
        part("self", op("reshape", [y.into(), shape])?)
    }

    /// The features of the first token, through a linear layer.
    fn pooler(&self) -> Result<Model> {
        let all = Lit::Slice([Lit::None, Lit::None, Lit::None].into());
        let first = features(self.dims).item(vec![all.into(), 0.into()])?;
        let y = call(&linear("dense", [self.dims, self.dims], true, START)?, &first)?;
        part("pooler", op("tanh", [y.into()])?)
    }

    /// The logits of all tokens; the matrix of the last layer is `table`.
    fn masked_lm(&self) -> Result<Model> {
        let y = call(&linear("dense", [self.dims, self.dims], true, START)?, &features(self.dims))?;
        let transform = part("transform", self.norm(&self.activation(&y)?)?)?;
        let bias = parameter("bias", [Size::from(self.a.count("vocab_size")?)], Init::Zeros);
        let y = call(&transform, &features(self.dims))?;
        let predictions = part("predictions", op("linear", [y.into(), data("table").into(), bias.into()])?)?;
        part("cls", within(&mut Scope::default(), &predictions)?)
    }
}
