//! CLIP (Radford et al. 2021): images and texts mapped to one space, with the topology and names of OpenAI.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{DType, Lit, Result};

use super::layout::{Layout, Rule, renamed, transposed};
use super::parts::depth;
use super::vision::{
    Transformer, first, gelu, grid, heads, images, norm, patches, quick_gelu, three_channels, with_class,
};
use super::{Config, ZooModel, clip_resnet};
use crate::connection::Connection;
use crate::init::Init;
use crate::key::{IOKey, Size};
use crate::layers::expr::{call, layer, op, parameter, size, tuple};
use crate::layers::{LayerArg, LayerArgs, LayerDef, arg};
use crate::model::Model;

/// Features of a head of the vision towers.
const HEAD: i64 = 64;

const fn required(name: &'static str, kind: Attr, doc: &'static str) -> LayerArg {
    arg(name, kind, DefaultLit::Required, doc)
}

static ARGS: &[LayerArg] = &[
    required("embed_dim", Attr::Int, "Number of features of the common space."),
    required("image_resolution", Attr::Int, "Height and width of the images."),
    required(
        "vision_layers",
        Attr::Ints,
        "Blocks of a vision transformer, or those of the four stages of a residual network.",
    ),
    required(
        "vision_width",
        Attr::Int,
        "Features of the vision transformer, or channels of the residual network's first stage.",
    ),
    required("vision_patch_size", Attr::OptInt, "Height and width of the patches of a vision transformer."),
    required("context_length", Attr::Int, "Largest number of tokens of a text."),
    required("vocab_size", Attr::Int, "Number of different tokens."),
    required("transformer_width", Attr::Int, "Features of a token."),
    required("transformer_heads", Attr::Int, "Heads of the text's attention; a divisor of its features."),
    required("transformer_layers", Attr::Int, "Blocks of the text's transformer."),
    arg(
        "vision_heads",
        Attr::OptInt,
        DefaultLit::None,
        "Heads of the vision tower; one for 64 features if none.",
    ),
    arg(
        "vision_mlp",
        Attr::OptInt,
        DefaultLit::None,
        "Features inside its blocks; 4 `vision_width` if none.",
    ),
    arg(
        "transformer_mlp",
        Attr::OptInt,
        DefaultLit::None,
        "Features inside the text's blocks; 4 `transformer_width` if none.",
    ),
    arg(
        "activation",
        Attr::Choice(&["quick_gelu", "gelu"]),
        DefaultLit::Str("quick_gelu"),
        "\"quick_gelu\", which is `x * sigmoid(1.702 * x)`, or \"gelu\".",
    ),
    arg("eps", Attr::Float, DefaultLit::Float(1e-5), "Added to the variance in the normalizations."),
];

static LAYOUTS: &[Layout] = &[
    Layout {
        ignored: &["*.num_batches_tracked", "input_resolution", "context_length", "vocab_size"],
        ..Layout::of("openai")
    },
    Layout { ignored: &["*.position_ids"], rules: TRANSFORMERS, ..Layout::of("transformers") },
];

/// The rules of transformers, which has no tower that is a residual network: towers by our and their names.
macro_rules! rules {
    ($(($ours:literal, $theirs:literal)),*) => {
        &[
            renamed("token_embedding.weight", &["text_model.embeddings.token_embedding.weight"]),
            renamed("positional_embedding", &["text_model.embeddings.position_embedding.weight"]),
            renamed("ln_final.*", &["text_model.final_layer_norm.*"]),
            transposed("text_projection", &["text_projection.weight"]),
            renamed("visual.conv1.weight", &["vision_model.embeddings.patch_embedding.weight"]),
            renamed("visual.class_embedding", &["vision_model.embeddings.class_embedding"]),
            renamed("visual.positional_embedding", &["vision_model.embeddings.position_embedding.weight"]),
            renamed("visual.ln_pre.*", &["vision_model.pre_layrnorm.*"]),
            renamed("visual.ln_post.*", &["vision_model.post_layernorm.*"]),
            transposed("visual.proj", &["visual_projection.weight"]),
            $(
                rules!($ours, "attn.in_proj_*", $theirs, "self_attn.q_proj.*", "self_attn.k_proj.*", "self_attn.v_proj.*"),
                rules!($ours, "attn.out_proj.*", $theirs, "self_attn.out_proj.*"),
                rules!($ours, "ln_1.*", $theirs, "layer_norm1.*"),
                rules!($ours, "ln_2.*", $theirs, "layer_norm2.*"),
                rules!($ours, "mlp.c_fc.*", $theirs, "mlp.fc1.*"),
                rules!($ours, "mlp.c_proj.*", $theirs, "mlp.fc2.*"),
            )*
        ]
    };
    ($ours:literal, $ours_inside:literal, $theirs:literal, $($theirs_inside:literal),*) => {
        renamed(
            concat!($ours, "transformer.resblocks.*.", $ours_inside),
            &[$(concat!($theirs, ".encoder.layers.*.", $theirs_inside)),*],
        )
    };
}

static TRANSFORMERS: &[Rule] = rules![("visual.", "vision_model"), ("", "text_model")];

pub(super) static MODELS: &[ZooModel] = &[ZooModel {
    def: LayerDef {
        name: "clip",
        doc: "CLIP: images and texts in one space. From `image`, `[images, 3, image_resolution, image_resolution]`, \
              and `text`, tokens `[texts, length]` of which the largest ends the text, to `logits_per_image` \
              `[images, texts]`, `logits_per_text`, its transpose, and the features of length 1 that these are the \
              products of, `image_features` and `text_features` `[…, embed_dim]`. Parameters are called as those \
              of OpenAI (`visual.layer1.0.conv1.weight`). (Radford et al. 2021)",
        args: ARGS,
        build,
        aliases: &[],
        arg_aliases: &[],
    },
    example: "embed_dim=16, image_resolution=32, vision_layers=2, vision_width=64, vision_patch_size=8, \
              context_length=8, vocab_size=100, transformer_width=32, transformer_heads=4, transformer_layers=2",
    layouts: LAYOUTS,
    config: Some(("clip", read)),
}];

/// The `config.json` of transformers.
fn read(config: &Config<'_>) -> Result<Vec<(&'static str, Lit)>> {
    let (text, vision) = (config.inside("text_config")?, config.inside("vision_config")?);
    three_channels(&vision)?;
    let mut shared = Vec::new();
    for part in [&text, &vision] {
        part.only("hidden_act", &["quick_gelu", "gelu"], "quick_gelu")?;
        let activation = part.get("hidden_act").and_then(|f| f.as_str()).unwrap_or("quick_gelu");
        shared.push((activation, part.float_or("layer_norm_eps", 1e-5)?));
    }
    if shared[0] != shared[1] {
        return Err(vision.bad("hidden_act", "as in `text_config`, and `layer_norm_eps` too"));
    }
    let vocabulary = text.int_or("vocab_size", 49408)?;
    // The features are those of the largest token: the last of the vocabulary, which configurations that are
    // older call 2.
    let end = text.int_or("eos_token_id", 49407)?;
    if end != 2 && end.checked_add(1) != Some(vocabulary) {
        return Err(text.bad("eos_token_id", "the last token of the vocabulary"));
    }
    Ok(vec![
        ("embed_dim", config.int_or("projection_dim", 512)?.into()),
        ("image_resolution", vision.int_or("image_size", 224)?.into()),
        ("vision_layers", vision.int_or("num_hidden_layers", 12)?.into()),
        ("vision_width", vision.int_or("hidden_size", 768)?.into()),
        ("vision_patch_size", vision.int_or("patch_size", 32)?.into()),
        ("context_length", text.int_or("max_position_embeddings", 77)?.into()),
        ("vocab_size", vocabulary.into()),
        ("transformer_width", text.int_or("hidden_size", 512)?.into()),
        ("transformer_heads", text.int_or("num_attention_heads", 8)?.into()),
        ("transformer_layers", text.int_or("num_hidden_layers", 12)?.into()),
        ("vision_heads", vision.int_or("num_attention_heads", 12)?.into()),
        ("vision_mlp", vision.int_or("intermediate_size", 3072)?.into()),
        ("transformer_mlp", text.int_or("intermediate_size", 2048)?.into()),
        ("activation", shared[0].0.into()),
        ("eps", shared[0].1.into()),
    ])
}

fn build(a: &LayerArgs<'_>) -> Result<Model> {
    let resolution = a.count("image_resolution")?;
    let features = call(&vision(a)?.named("visual")?, &images("image", Some(resolution)))?;
    let image = unit_length(&features)?;
    let text = unit_length(&text(a)?)?;
    let scale = parameter("logit_scale", [], Init::Constant((1.0_f64 / 0.07).ln()));
    let turned = op("transpose", [(&text).into()])?;
    let per_image = (&op("exp", [scale.into()])? * op("matmul", [(&image).into(), turned.into()])?)?;
    let per_text = op("transpose", [(&per_image).into()])?;
    Model::from_outputs([
        ("logits_per_image", per_image),
        ("logits_per_text", per_text),
        ("image_features", image),
        ("text_features", text),
    ])
}

fn unit_length(x: &Connection) -> Result<Connection> {
    x / op("norm", [x.into(), 2.0.into(), (-1).into(), true.into()])?
}

fn blocks(a: &LayerArgs<'_>, [width, heads]: [i64; 2], mlp: &str, causal: bool) -> Result<Transformer> {
    let mlp = a.opt_count(mlp)?.unwrap_or(4 * width);
    let activation = if a.text("activation")? == "gelu" { gelu } else { quick_gelu };
    let names = ["attn", "c_fc", "c_proj"];
    Ok(Transformer { width, heads, mlp, eps: a.f64("eps")?, activation, causal, names })
}

fn transformer(blocks: &Transformer, layers: i64) -> Result<Model> {
    let x = call(&blocks.stack("resblocks", layers, "")?, &Connection::input("input"))?;
    Model::from_outputs([("output", x)])?.named("transformer")
}

/// A tower for images: a transformer, or a residual network if the layers of stages are given.
fn vision(a: &LayerArgs<'_>) -> Result<Model> {
    let width = a.count("vision_width")?;
    if let Lit::Tuple(_) = a.lit("vision_layers") {
        return clip_resnet::tower(a, width, vision_heads(a, width.saturating_mul(32))?);
    }
    let blocks = blocks(a, [width, vision_heads(a, width)?], "vision_mlp", false)?;
    let grid = grid(a, "image_resolution", "vision_patch_size")?;
    let x = patches(&Connection::input("input"), "conv1", [width, a.count("vision_patch_size")?], false)?;
    let x = with_class(&x, "class_embedding", &[width], width)?;
    let scale = Init::Normal((width as f64).powf(-0.5));
    let shape = [grid.saturating_mul(grid).saturating_add(1), width].map(Size::from);
    let x = (&x + parameter("positional_embedding", shape, scale.clone()))?;
    let x = norm(&x, "ln_pre", blocks.eps)?;
    let x = call(&transformer(&blocks, depth(a, "vision_layers")?)?, &x)?;
    let x = norm(&first(&x)?, "ln_post", blocks.eps)?;
    let projection = parameter("proj", [width, a.count("embed_dim")?].map(Size::from), scale);
    Model::from_outputs([("output", op("matmul", [x.into(), projection.into()])?)])
}

fn vision_heads(a: &LayerArgs<'_>, features: i64) -> Result<i64> {
    if !a.lit("vision_heads").is_none() {
        return heads(a, "vision_heads", features);
    }
    let heads = features / HEAD;
    if heads == 0 || features % heads != 0 {
        return Err(a.bad("vision_width", "a multiple of 64, or `vision_heads` given"));
    }
    Ok(heads)
}

/// The features of a text, which are those of its largest token, the last.
fn text(a: &LayerArgs<'_>) -> Result<Connection> {
    let (width, context) = (a.count("transformer_width")?, a.count("context_length")?);
    let blocks = blocks(a, [width, heads(a, "transformer_heads", width)?], "transformer_mlp", true)?;
    let key = IOKey::new("text").shape(vec![Size::Unknown; 2]).dtype(DType::I64);
    let tokens = Connection::input(key);
    let table = vec![a.count("vocab_size")?.into(), width.into()];
    let x = call(&layer("Embedding", "token_embedding", table, vec![])?, &tokens)?;
    let shape = [context, width].map(Size::from);
    let positions = parameter("positional_embedding", shape, Init::Normal(0.01));
    let ends = tuple([size(&tokens, 1)?.into()]);
    let x = (&x + op("slice", [positions.into(), Lit::from([0]).into(), ends])?)?;
    let x = call(&transformer(&blocks, depth(a, "transformer_layers")?)?, &x)?;
    let x = norm(&x, "ln_final", blocks.eps)?;
    let rows = op("arange", [size(&tokens, 0)?.into()])?;
    let x = x.item(vec![rows.into(), op("argmax", [(&tokens).into(), (-1).into()])?.into()])?;
    let scale = Init::Normal((width as f64).powf(-0.5));
    let projection = parameter("text_projection", [width, a.count("embed_dim")?].map(Size::from), scale);
    op("matmul", [x.into(), projection.into()])
}
