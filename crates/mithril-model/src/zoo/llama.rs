//! Llama (Touvron et al. 2023) and decoders like it, with the names of transformers.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{DType, Lit, Result, Role, Tensor};

use super::cache::{self, CACHE, LAST_ONLY, Places, Remembered, Scope, stack};
use super::layout::{Layout, paired, renamed};
use super::parts::{depth, features, last, linear, table, tokens, turned};
use super::{Config, ZooModel};
use crate::connection::{Arg, Connection, Spec};
use crate::init::Init;
use crate::key::IOKey;
use crate::layers::expr::{call, input, layer, op, size, tuple};
use crate::layers::{LayerArg, LayerArgs, LayerDef, arg};
use crate::model::Model;

const BIASES: &[&str] = &["none", "qkv", "attention", "all"];

static ARGS: &[LayerArg] = &[
    arg("vocab_size", Attr::Int, DefaultLit::Int(32000), "Number of different tokens."),
    arg("dims", Attr::Int, DefaultLit::Int(2048), "Number of features of a token."),
    arg("num_heads", Attr::Int, DefaultLit::Int(32), "Heads of the queries."),
    arg(
        "num_kv_heads",
        Attr::OptInt,
        DefaultLit::None,
        "Heads of keys and values, a divisor of `num_heads`; as many if not given.",
    ),
    arg("num_layers", Attr::Int, DefaultLit::Int(22), "Number of blocks."),
    arg("hidden", Attr::Int, DefaultLit::Int(5632), "Features between the linear layers of a block."),
    arg("rope_base", Attr::Float, DefaultLit::Float(10000.0), "Base of the speeds of the rotary embedding."),
    arg("eps", Attr::Float, DefaultLit::Float(1e-5), "Added to the mean square in the normalizations."),
    arg(
        "tied",
        Attr::Bool,
        DefaultLit::Bool(false),
        "Whether the table of token embeddings is also the matrix of the output layer.",
    ),
    arg("head_dim", Attr::OptInt, DefaultLit::None, "Features of a head; `dims / num_heads` if not given."),
    arg("biases", Attr::Choice(BIASES), DefaultLit::Str("none"), "Which linear layers have biases."),
    arg(
        "rope_factor",
        Attr::OptFloat,
        DefaultLit::None,
        "By how much the slow pairs of the rotary embedding are slowed down, as in Llama 3.1.",
    ),
    arg(
        "rope_low_frequency",
        Attr::Float,
        DefaultLit::Float(1.0),
        "Turns in `rope_length` below which a pair is slow.",
    ),
    arg(
        "rope_high_frequency",
        Attr::Float,
        DefaultLit::Float(4.0),
        "Turns in `rope_length` above which a pair stays as it is.",
    ),
    arg("rope_length", Attr::Int, DefaultLit::Int(8192), "Length of the texts before the slowing down."),
    CACHE,
    LAST_ONLY,
];

/// Some files hold the stack alone, others it beside its head.
static LAYOUTS: &[Layout] = &[
    Layout { prefixes: &["model."], ignored: &["*.rotary_emb.inv_freq"], ..Layout::of("transformers") },
    Layout {
        ignored: &["rope_freqs.weight"],
        rules: &[
            renamed("model.embed_tokens.weight", &["token_embd.weight"]),
            renamed("model.norm.weight", &["output_norm.weight"]),
            renamed("lm_head.weight", &["output.weight"]),
            renamed("model.layers.*.input_layernorm.weight", &["blk.*.attn_norm.weight"]),
            paired("model.layers.*.self_attn.q_proj.*", &["blk.*.attn_q.*"]),
            paired("model.layers.*.self_attn.k_proj.*", &["blk.*.attn_k.*"]),
            renamed("model.layers.*.self_attn.v_proj.*", &["blk.*.attn_v.*"]),
            renamed("model.layers.*.self_attn.o_proj.*", &["blk.*.attn_output.*"]),
            renamed("model.layers.*.post_attention_layernorm.weight", &["blk.*.ffn_norm.weight"]),
            renamed("model.layers.*.mlp.gate_proj.*", &["blk.*.ffn_gate.*"]),
            renamed("model.layers.*.mlp.up_proj.*", &["blk.*.ffn_up.*"]),
            renamed("model.layers.*.mlp.down_proj.*", &["blk.*.ffn_down.*"]),
        ],
        ..Layout::of("llama.cpp")
    },
];

pub(super) static MODELS: &[ZooModel] = &[ZooModel {
    def: LayerDef {
        name: "create_llama",
        doc: "Llama, and decoders like it: normalization by the root mean square, rotary embedding, grouped-query \
              attention, gated linear layers. From `input`, integers `[batch, length]`, to `output`, logits `[batch, \
              length, vocab_size]`. Parameters are called and laid out as in transformers \
              (`model.layers.0.self_attn.q_proj.weight`). The defaults have 1.1 billion parameters. (Touvron et al. \
              2023)",
        args: ARGS,
        build: |a| Llama::read(a)?.build(),
        aliases: &[],
        arg_aliases: &[
            ("hidden_size", "dims"),
            ("num_attention_heads", "num_heads"),
            ("num_key_value_heads", "num_kv_heads"),
            ("num_hidden_layers", "num_layers"),
            ("intermediate_size", "hidden"),
            ("rope_theta", "rope_base"),
            ("rms_norm_eps", "eps"),
            ("tie_word_embeddings", "tied"),
        ],
    },
    example: "vocab_size=100, dims=32, num_heads=4, num_kv_heads=2, num_layers=2, hidden=64",
    layouts: LAYOUTS,
    config: Some(("llama|mistral|qwen2", configuration)),
}];

// --- configurations ----------------------------------------------------------------------------------------

fn configuration(c: &Config<'_>) -> Result<Vec<(&'static str, Lit)>> {
    c.only("hidden_act", &["silu", "swish"], "silu")?;
    let kind = c.text("model_type")?;
    let mut args = vec![
        ("vocab_size", c.int("vocab_size")?.into()),
        ("dims", c.int("hidden_size")?.into()),
        ("num_heads", c.int("num_attention_heads")?.into()),
        ("num_layers", c.int("num_hidden_layers")?.into()),
        ("hidden", c.int("intermediate_size")?.into()),
        ("eps", c.float_or("rms_norm_eps", 1e-6)?.into()),
        ("tied", c.bool_or("tie_word_embeddings", false)?.into()),
        ("biases", biases(c, kind)?.into()),
    ];
    if kind != "llama" || c.get("num_key_value_heads").is_some() {
        args.push(("num_kv_heads", c.int("num_key_value_heads")?.into()));
    }
    if c.get("head_dim").is_some() {
        args.push(("head_dim", c.int("head_dim")?.into()));
    }
    check_window(c, kind)?;
    args.extend(rotary(c)?);
    Ok(args)
}

/// Refuses attention within a window, unless the window is as long as the positions: it then masks nothing.
fn check_window(c: &Config<'_>, kind: &str) -> Result<()> {
    // What transformers takes for entries that a file leaves out.
    let (window, positions) = match kind {
        "mistral" => (4096, 131_072),
        "qwen2" if c.bool_or("use_sliding_window", false)? => (4096, 32_768),
        _ => return Ok(()),
    };
    if c.has("sliding_window") && c.get("sliding_window").is_none() {
        return Ok(());
    }
    let window = c.int_or("sliding_window", window)?;
    // Qwen leaves the first layers without a window.
    let layers = c.int("num_hidden_layers")?;
    let is_whole = kind == "qwen2" && c.int_or("max_window_layers", 28)? >= layers;
    let positions = c.int_or("max_position_embeddings", positions)?;
    if is_whole || window >= positions {
        return Ok(());
    }
    let expected = format!(
        "null, or at least `max_position_embeddings`, {positions}: attention within a window is not here yet"
    );
    Err(c.bad("sliding_window", &expected))
}

fn biases(c: &Config<'_>, kind: &str) -> Result<&'static str> {
    Ok(match (c.bool_or("attention_bias", false)?, c.bool_or("mlp_bias", false)?) {
        (false, false) if kind == "qwen2" => "qkv",
        (false, false) => "none",
        (true, false) => "attention",
        (true, true) => "all",
        (false, true) => return Err(c.bad("mlp_bias", "false where attention_bias is")),
    })
}

/// The rotary embedding: older files write `rope_theta` and `rope_scaling`, newer ones `rope_parameters`.
fn rotary(c: &Config<'_>) -> Result<Vec<(&'static str, Lit)>> {
    let scaling = ["rope_parameters", "rope_scaling"].into_iter().find(|name| c.get(name).is_some());
    let scaling = scaling.map(|name| c.inside(name)).transpose()?;
    let default = c.float_or("rope_theta", 10000.0)?;
    let Some(scaling) = scaling else { return Ok(vec![("rope_base", default.into())]) };
    let mut args = vec![("rope_base", scaling.float_or("rope_theta", default)?.into())];
    let kind = if scaling.get("rope_type").is_some() { "rope_type" } else { "type" };
    scaling.only(kind, &["default", "llama3"], "default")?;
    if scaling.get(kind).is_some_and(|kind| kind == "llama3") {
        args.extend([
            ("rope_factor", scaling.float("factor")?.into()),
            ("rope_low_frequency", scaling.float("low_freq_factor")?.into()),
            ("rope_high_frequency", scaling.float("high_freq_factor")?.into()),
            ("rope_length", scaling.int("original_max_position_embeddings")?.into()),
        ]);
    }
    Ok(args)
}

// --- the model ---------------------------------------------------------------------------------------------

struct Llama {
    vocabulary: i64,
    dims: i64,
    heads: i64,
    kv_heads: i64,
    each: i64,
    layers: i64,
    hidden: i64,
    eps: f64,
    tied: bool,
    biases: String,
    /// Radians per token by which each pair of features is turned.
    speeds: Vec<f64>,
    cache: bool,
    last_only: bool,
}

impl Llama {
    fn read(a: &LayerArgs<'_>) -> Result<Self> {
        let (dims, heads) = (a.count("dims")?, a.count("num_heads")?);
        let kv_heads = a.opt_count("num_kv_heads")?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(a.bad("num_kv_heads", &format!("a divisor of the {heads} heads of the queries")));
        }
        let each = match a.opt_count("head_dim")? {
            Some(each) => each,
            None if dims % heads == 0 => dims / heads,
            None => {
                return Err(a.bad("num_heads", &format!("a divisor of the {dims} dims, or give head_dim")));
            }
        };
        if each % 2 != 0 || each > 65536 {
            let name = if a.lit("head_dim").is_none() { "num_heads" } else { "head_dim" };
            let expected = format!("such that heads have an even number of features, not {each}");
            return Err(a.bad(name, &expected));
        }
        Ok(Self {
            vocabulary: a.count("vocab_size")?,
            dims,
            heads,
            kv_heads,
            each,
            layers: depth(a, "num_layers")?,
            hidden: a.count("hidden")?,
            eps: a.f64("eps")?,
            tied: a.bool("tied")?,
            biases: a.text("biases")?,
            speeds: speeds(a, each)?,
            cache: a.bool("cache")?,
            last_only: a.bool("last_only")?,
        })
    }
    fn build(&self) -> Result<Model> {
        let stack = self.stack()?.named("model")?;
        let mut llama = Model::new();
        let ports = stack.inputs_of(Role::Data).into_iter().chain(stack.outputs());
        let spec = ports.fold(Spec::new(), |spec, name| {
            let here = if *name == *"output" { "features" } else { &*name };
            spec.with(&name, IOKey::new(here))
        });
        llama.extend(&stack, spec, mithril_ir::Place::default())?;
        let head = linear("lm_head", [self.vocabulary, self.dims], false, START)?;
        let spec = Spec::from([("input", "features"), ("output", "output")]);
        let spec = if self.tied { spec.with("weight", "model.embed_tokens.weight") } else { spec };
        llama.extend(&head, spec, mithril_ir::Place::default())?;
        Ok(llama)
    }
    /// From tokens to the normalized features.
    fn stack(&self) -> Result<Model> {
        let tokens = if self.cache { cache::tokens() } else { tokens() };
        let mut scope = Scope::default();
        let positions = if self.cache {
            let places = Places::of(&tokens)?;
            places.enter(&mut scope)?;
            op("expand_dims", [places.positions()?.into(), 1.into()])?
        } else {
            op("arange", [size(&tokens, 1)?.into()])?
        };
        // Angles are not rounded to half precision: [length, pairs], or [batch, 1, length, pairs].
        let positions = op("cast", [positions.into(), DType::F32.into()])?;
        let speeds = Tensor::from_f64s(DType::F32, &[self.speeds.len()], &self.speeds);
        let angles = (&op("expand_dims", [positions.into(), (-1).into()])? * speeds)?;
        scope.set("cos", op("cos", [(&angles).into()])?);
        scope.set("sin", op("sin", [angles.into()])?);
        scope.set("input", call(&table("embed_tokens", [self.vocabulary, self.dims], START)?, &tokens)?);
        let mut outputs = scope.call(&stack(self.layers, || self.block())?.named("layers")?)?;
        let mut x = outputs[0].1.clone();
        if self.last_only {
            x = last(&x)?;
        }
        outputs[0].1 = call(&self.norm("norm")?, &x)?;
        Model::from_outputs(outputs)
    }
    fn norm(&self, name: &str) -> Result<Model> {
        layer("RMSNorm", name, vec![], vec![("eps", self.eps.into())])
    }
    fn linear(&self, name: &str, sizes: [i64; 2]) -> Result<Model> {
        let bias = match name {
            "q_proj" | "k_proj" | "v_proj" => self.biases != "none",
            "o_proj" => matches!(&*self.biases, "attention" | "all"),
            _ => self.biases == "all",
        };
        linear(name, sizes, bias, START)
    }
    /// Attention and gated linear layers, each behind a normalization and beside a shortcut.
    fn block(&self) -> Result<Model> {
        let mut scope = Scope::default();
        let x = features(self.dims);
        scope.set("input", call(&self.norm("input_layernorm")?, &x)?);
        let mut outputs = scope.call(&self.attention()?.named("self_attn")?)?;
        let x = (&x + &outputs[0].1)?;
        let y = call(&self.norm("post_attention_layernorm")?, &x)?;
        outputs[0].1 = (&x + &call(&self.perceptron()?.named("mlp")?, &y)?)?;
        Model::from_outputs(outputs)
    }
    fn attention(&self) -> Result<Model> {
        let x = features(self.dims);
        let (batch, length) = (size(&x, 0)?, size(&x, 1)?);
        let heads = |name: &str, count: i64| {
            let y = call(&self.linear(name, [count * self.each, self.dims])?, &x)?;
            let shape = tuple([(&batch).into(), (&length).into(), count.into(), self.each.into()]);
            turned(&op("reshape", [y.into(), shape])?)
        };
        let (cos, sin) = (input("cos"), input("sin"));
        let rotated = |x: Connection| op("rotate_pairs", [x.into(), (&cos).into(), (&sin).into()]);
        let query = rotated(heads("q_proj", self.heads)?)?;
        let key = rotated(heads("k_proj", self.kv_heads)?)?;
        let value = heads("v_proj", self.kv_heads)?;
        let mut outputs = Vec::new();
        let (key, value, mask, causal): (_, _, Arg, bool) = if self.cache {
            let all = Remembered::with(&key, &value, [self.kv_heads, self.each])?;
            outputs = vec![("key", all.key.clone()), ("value", all.value.clone())];
            (all.key, all.value, all.mask.into(), false)
        } else {
            (key, value, Lit::None.into(), true)
        };
        let mut args = vec![query.into(), key.into(), value.into(), mask, causal.into()];
        if self.heads != self.kv_heads {
            args.extend([Lit::None.into(), true.into()]);
        }
        let attended = turned(&Connection::op("scaled_dot_product_attention", args, Vec::new())?)?;
        let wide = self.heads * self.each;
        let merged = op("reshape", [attended.into(), tuple([batch.into(), length.into(), wide.into()])])?;
        outputs.insert(0, ("output", call(&self.linear("o_proj", [self.dims, wide])?, &merged)?));
        Model::from_outputs(outputs)
    }
    fn perceptron(&self) -> Result<Model> {
        let x = input("input");
        let wide = |name: &str| call(&self.linear(name, [self.hidden, self.dims])?, &x);
        let gated = (&op("silu", [wide("gate_proj")?.into()])? * &wide("up_proj")?)?;
        let y = call(&self.linear("down_proj", [self.dims, self.hidden])?, &gated)?;
        Model::from_outputs([("output", y)])
    }
}

/// How matrices and tables start.
const START: Init = Init::Normal(0.02);

/// Radians per token of each pair of features: `base^(-2i/d)`, and slower for pairs that turn less than
/// `rope_high_frequency` times in `rope_length` tokens.
fn speeds(a: &LayerArgs<'_>, each: i64) -> Result<Vec<f64>> {
    let positive = |name: &str| match a.f64(name)? {
        x if x > 0.0 && x.is_finite() => Ok(x),
        _ => Err(a.bad(name, "a positive number")),
    };
    let base = positive("rope_base")?;
    let plain = (0..each / 2).map(|i| base.powf(-(2 * i) as f64 / each as f64));
    if a.lit("rope_factor").is_none() {
        return Ok(plain.collect());
    }
    let factor = positive("rope_factor")?;
    let (low, high) = (positive("rope_low_frequency")?, positive("rope_high_frequency")?);
    if low >= high {
        return Err(a.bad("rope_low_frequency", "less than rope_high_frequency"));
    }
    let length = a.count("rope_length")? as f64;
    Ok(plain
        .map(|speed| {
            let turns = length * speed / std::f64::consts::TAU;
            // From slowed down to as it is, between the two frequencies.
            let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            speed * (share + (1.0 - share) / factor)
        })
        .collect())
}
