//! GPT-2 (Radford et al. 2019) with the names of transformers.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{Lit, Place, Result};

use super::cache::{self, CACHE, LAST_ONLY, Places, Remembered, Scope, stack};
use super::layout::{Layout, renamed, transposed};
use super::parts::{depth, features, last, linear, table, tokens, turned};
use super::{Config, ZooModel};
use crate::connection::{Arg, Connection, Spec};
use crate::init::Init;
use crate::key::IOKey;
use crate::layers::expr::{call, layer, op, parameter, size, split, tuple};
use crate::layers::{LayerArg, LayerArgs, LayerDef, arg};
use crate::model::Model;

const SIZES: [LayerArg; 2] = [
    arg("dims", Attr::Int, DefaultLit::Int(768), "Number of features of a token."),
    arg("num_heads", Attr::Int, DefaultLit::Int(12), "Heads of the attention; a divisor of `dims`."),
];
const BIAS: LayerArg =
    arg("bias", Attr::Bool, DefaultLit::Bool(true), "Whether linear layers and normalizations have biases.");

static ARGS: &[LayerArg] = &[
    BIAS,
    arg("block_size", Attr::Int, DefaultLit::Int(128), "Largest number of tokens of a text."),
    SIZES[0],
    SIZES[1],
    arg("num_layers", Attr::Int, DefaultLit::Int(12), "Number of blocks."),
    arg("vocab_size", Attr::Int, DefaultLit::Int(50304), "Number of different tokens."),
    arg(
        "tied",
        Attr::Bool,
        DefaultLit::Bool(true),
        "Whether the table of token embeddings is also the matrix of the output layer, as in GPT-2; otherwise that has \
         a matrix of its own, `lm_head.weight`.",
    ),
    CACHE,
    LAST_ONLY,
];

/// The matrices of transformers are `[in, out]`. Some files hold the stack alone, others it beside its head.
static LAYOUTS: &[Layout] = &[
    Layout {
        prefixes: &["transformer."],
        ignored: &["*.attn.bias", "*.attn.masked_bias"],
        rules: &[
            transposed("*.attn.c_attn.weight", &["*.attn.c_attn.weight"]),
            transposed("*.c_proj.weight", &["*.c_proj.weight"]),
            transposed("*.mlp.c_fc.weight", &["*.mlp.c_fc.weight"]),
        ],
        ..Layout::of("transformers")
    },
    Layout {
        rules: &[
            renamed("transformer.wte.weight", &["token_embd.weight"]),
            renamed("transformer.wpe.weight", &["position_embd.weight"]),
            renamed("transformer.ln_f.*", &["output_norm.*"]),
            renamed("lm_head.weight", &["output.weight"]),
            renamed("transformer.h.*.ln_1.*", &["blk.*.attn_norm.*"]),
            renamed("transformer.h.*.attn.c_attn.*", &["blk.*.attn_qkv.*"]),
            renamed("transformer.h.*.attn.c_proj.*", &["blk.*.attn_output.*"]),
            renamed("transformer.h.*.ln_2.*", &["blk.*.ffn_norm.*"]),
            renamed("transformer.h.*.mlp.c_fc.*", &["blk.*.ffn_up.*"]),
            renamed("transformer.h.*.mlp.c_proj.*", &["blk.*.ffn_down.*"]),
        ],
        ..Layout::of("llama.cpp")
    },
];

pub(super) static MODELS: &[ZooModel] = &[ZooModel {
    def: LayerDef {
        name: "create_gpt",
        doc: "GPT-2; the defaults are its smallest size, 124 million parameters, for short texts. From `input`, \
              integers `[batch, length]`, to `output`, logits `[batch, length, vocab_size]`. Parameters are called as \
              in the published weights (`transformer.h.0.attn.c_attn.weight`); matrices are laid out as those of \
              `Linear`, `[out, in]`. (Radford et al. 2019)",
        args: ARGS,
        build: |a| Gpt::read(a)?.build(),
        aliases: &[],
        arg_aliases: &[],
    },
    example: "block_size=16, dims=32, num_heads=4, num_layers=2, vocab_size=100",
    layouts: LAYOUTS,
    config: Some(("gpt2", configuration)),
}];

fn configuration(c: &Config<'_>) -> Result<Vec<(&'static str, Lit)>> {
    c.only("activation_function", &["gelu_new", "gelu_pytorch_tanh"], "gelu_new")?;
    let options = [
        ("scale_attn_weights", true),
        ("scale_attn_by_inverse_layer_idx", false),
        ("add_cross_attention", false),
    ];
    for (name, expected) in options {
        if c.bool_or(name, expected)? != expected {
            return Err(c.bad(name, if expected { "true" } else { "false" }));
        }
    }
    let dims = c.int_or("n_embd", 768)?;
    if c.int_or("n_inner", dims.saturating_mul(4))? != dims.saturating_mul(4) {
        return Err(c.bad("n_inner", "four times n_embd"));
    }
    if c.float_or("layer_norm_epsilon", 1e-5)? != 1e-5 {
        return Err(c.bad("layer_norm_epsilon", "1e-5"));
    }
    Ok(vec![
        ("block_size", c.int_or("n_positions", 1024)?.into()),
        ("dims", dims.into()),
        ("num_heads", c.int_or("n_head", 12)?.into()),
        ("num_layers", c.int_or("n_layer", 12)?.into()),
        ("vocab_size", c.int_or("vocab_size", 50257)?.into()),
        ("tied", c.bool_or("tie_word_embeddings", true)?.into()),
    ])
}

#[allow(clippy::struct_excessive_bools, reason = "they are the arguments")]
struct Gpt {
    bias: bool,
    block_size: i64,
    dims: i64,
    heads: i64,
    layers: i64,
    vocabulary: i64,
    tied: bool,
    cache: bool,
    last_only: bool,
}

impl Gpt {
    fn read(a: &LayerArgs<'_>) -> Result<Self> {
        let (dims, heads) = (a.count("dims")?, a.count("num_heads")?);
        if dims % heads != 0 {
            return Err(a.bad("num_heads", &format!("a divisor of the {dims} dims")));
        }
        Ok(Self {
            bias: a.bool("bias")?,
            block_size: a.count("block_size")?,
            dims,
            heads,
            layers: depth(a, "num_layers")?,
            vocabulary: a.count("vocab_size")?,
            tied: a.bool("tied")?,
            cache: a.bool("cache")?,
            last_only: a.bool("last_only")?,
        })
    }
    fn build(&self) -> Result<Model> {
        let transformer = self.transformer()?.named("transformer")?;
        let mut gpt = Model::new();
        let ports = transformer.inputs_of(mithril_ir::Role::Data).into_iter().chain(transformer.outputs());
        let spec = ports.fold(Spec::new(), |spec, name| {
            let here = if *name == *"output" { "features" } else { &*name };
            spec.with(&name, IOKey::new(here))
        });
        gpt.extend(&transformer, spec, Place::default())?;
        let head = linear("lm_head", [self.vocabulary, self.dims], false, START)?;
        let spec = Spec::from([("input", "features"), ("output", "output")]);
        let spec = if self.tied { spec.with("weight", "transformer.wte.weight") } else { spec };
        gpt.extend(&head, spec, Place::default())?;
        Ok(gpt)
    }
    /// From tokens to the normalized features.
    fn transformer(&self) -> Result<Model> {
        let tokens = if self.cache { cache::tokens() } else { tokens() };
        let mut scope = Scope::default();
        let positions = if self.cache {
            let places = Places::of(&tokens)?;
            places.enter(&mut scope)?;
            call(&table("wpe", [self.block_size, self.dims], START)?, &places.positions()?)?
        } else {
            call(&self.positions()?, &tokens)?
        };
        scope.set(
            "input",
            (&call(&table("wte", [self.vocabulary, self.dims], START)?, &tokens)? + &positions)?,
        );
        let mut outputs = scope.call(&stack(self.layers, || self.block())?.named("h")?)?;
        let mut x = outputs[0].1.clone();
        if self.last_only {
            x = last(&x)?;
        }
        outputs[0].1 = call(&self.norm("ln_f")?, &x)?;
        Model::from_outputs(outputs)
    }
    /// The vectors of the first positions, as many as there are tokens.
    fn positions(&self) -> Result<Model> {
        let weight = parameter("weight", [self.block_size.into(), self.dims.into()], START);
        let bounds = [tuple([0.into()]), tuple([size(&tokens(), 1)?.into()])];
        let [start, stop] = bounds;
        Model::from_outputs([("output", op("slice", [weight.into(), start, stop])?)])?.named("wpe")
    }
    fn norm(&self, name: &str) -> Result<Model> {
        layer("LayerNorm", name, vec![], vec![("bias", self.bias.into())])
    }
    /// Attention and two linear layers, each behind a normalization and beside a shortcut.
    fn block(&self) -> Result<Model> {
        let mut scope = Scope::default();
        let x = features(self.dims);
        scope.set("input", call(&self.norm("ln_1")?, &x)?);
        let mut outputs = scope.call(&self.attention()?.named("attn")?)?;
        let x = (&x + &outputs[0].1)?;
        outputs[0].1 = (&x + &call(&self.perceptron()?.named("mlp")?, &call(&self.norm("ln_2")?, &x)?)?)?;
        Model::from_outputs(outputs)
    }
    fn attention(&self) -> Result<Model> {
        let each = self.dims / self.heads;
        let x = features(self.dims);
        let all = call(&linear("c_attn", [3 * self.dims, self.dims], self.bias, START)?, &x)?;
        let sizes = [size(&x, 0)?, size(&x, 1)?];
        let shape = tuple([(&sizes[0]).into(), (&sizes[1]).into(), self.heads.into(), each.into()]);
        let mut parts = split(&all, 3, -1)?;
        for part in &mut parts {
            *part = turned(&op("reshape", [(&*part).into(), shape.clone()])?)?;
        }
        let (query, mut outputs) = (&parts[0], Vec::new());
        let attended = if self.cache {
            let all = Remembered::with(&parts[1], &parts[2], [self.heads, each])?;
            let y = op(
                "scaled_dot_product_attention",
                [query.into(), (&all.key).into(), (&all.value).into(), all.mask.into()],
            )?;
            outputs = vec![("key", all.key), ("value", all.value)];
            y
        } else {
            let rest = [Arg::Lit(Lit::None), true.into()];
            let [mask, causal] = rest;
            op(
                "scaled_dot_product_attention",
                [query.into(), (&parts[1]).into(), (&parts[2]).into(), mask, causal],
            )?
        };
        let [batch, length] = sizes;
        let merged = op(
            "reshape",
            [turned(&attended)?.into(), tuple([batch.into(), length.into(), self.dims.into()])],
        )?;
        let y = call(&linear("c_proj", [self.dims, self.dims], self.bias, self.residual())?, &merged)?;
        outputs.insert(0, ("output", y));
        Model::from_outputs(outputs)
    }
    fn perceptron(&self) -> Result<Model> {
        let x = Connection::input("input");
        let wide = call(&linear("c_fc", [4 * self.dims, self.dims], self.bias, START)?, &x)?;
        let wide = op("gelu", [wide.into(), "tanh".into()])?;
        let y = call(&linear("c_proj", [self.dims, 4 * self.dims], self.bias, self.residual())?, &wide)?;
        Model::from_outputs([("output", y)])
    }
    /// How the layers before a sum start: less, the more terms the sum has.
    fn residual(&self) -> Init {
        Init::Normal(0.02 / (2.0 * self.layers as f64).sqrt())
    }
}

/// How matrices and tables start.
const START: Init = Init::Normal(0.02);
