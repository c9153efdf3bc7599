//! Vision transformers (Dosovitskiy et al. 2020) with the topology and names of torchvision.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{Lit, Result};

use super::layout::{Layout, Rule, renamed};
use super::parts::depth;
use super::vision::{
    Transformer, first, gelu, grid, heads, images, norm, patches, three_channels, with_class,
};
use super::{Config, ZooModel};
use crate::connection::Connection;
use crate::init::Init;
use crate::layers::expr::{call, layer, parameter};
use crate::layers::{LayerArg, LayerArgs, LayerDef, arg};
use crate::model::Model;

const CLASSES: LayerArg =
    arg("num_classes", Attr::Int, DefaultLit::Int(1000), "Number of outputs of the last layer.");
const IMAGE: LayerArg = arg("image_size", Attr::Int, DefaultLit::Int(224), "Height and width of the images.");

static ANY_ARGS: &[LayerArg] = &[
    arg("image_size", Attr::Int, DefaultLit::Required, "Height and width of the images."),
    arg("patch_size", Attr::Int, DefaultLit::Required, "Height and width of the patches."),
    arg("num_layers", Attr::Int, DefaultLit::Required, "Number of blocks."),
    arg("num_heads", Attr::Int, DefaultLit::Required, "Heads of the attention; a divisor of `hidden_dim`."),
    arg("hidden_dim", Attr::Int, DefaultLit::Required, "Number of features of a patch."),
    arg("mlp_dim", Attr::Int, DefaultLit::Required, "Features between the two linear layers of a block."),
    CLASSES,
    arg("eps", Attr::Float, DefaultLit::Float(1e-6), "Added to the variance in the normalizations."),
];

static LAYOUTS: &[Layout] = &[
    Layout::of("torchvision"),
    // The files of torchvision are older than its names.
    Layout { rules: FILES, ..Layout::of("torchvision") },
    Layout { prefixes: &["vit."], rules: TRANSFORMERS_FILES, ..Layout::of("transformers") },
    // And so are those of transformers; these are the names that a model has in memory.
    Layout { prefixes: &["vit."], rules: TRANSFORMERS, ..Layout::of("transformers") },
];

static FILES: &[Rule] = &[
    renamed("encoder.layers.*.mlp.0.*", &["encoder.layers.*.mlp.linear_1.*"]),
    renamed("encoder.layers.*.mlp.3.*", &["encoder.layers.*.mlp.linear_2.*"]),
];

/// The rules of transformers: where the blocks are, and what is called what in them.
macro_rules! transformers {
    ($blocks:literal, [$query:literal, $key:literal, $value:literal, $out:literal], [$up:literal, $down:literal]) => {
        &[
            renamed("class_token", &["embeddings.cls_token"]),
            renamed("conv_proj.*", &["embeddings.patch_embeddings.projection.*"]),
            renamed("encoder.pos_embedding", &["embeddings.position_embeddings"]),
            renamed("encoder.ln.*", &["layernorm.*"]),
            renamed("heads.head.*", &["classifier.*"]),
            renamed("encoder.layers.encoder_layer_*.ln_1.*", &[concat!($blocks, ".*.layernorm_before.*")]),
            renamed("encoder.layers.encoder_layer_*.ln_2.*", &[concat!($blocks, ".*.layernorm_after.*")]),
            renamed(
                "encoder.layers.encoder_layer_*.self_attention.in_proj_*",
                &[
                    concat!($blocks, ".*.", $query, ".*"),
                    concat!($blocks, ".*.", $key, ".*"),
                    concat!($blocks, ".*.", $value, ".*"),
                ],
            ),
            renamed(
                "encoder.layers.encoder_layer_*.self_attention.out_proj.*",
                &[concat!($blocks, ".*.", $out, ".*")],
            ),
            renamed("encoder.layers.encoder_layer_*.mlp.0.*", &[concat!($blocks, ".*.", $up, ".*")]),
            renamed("encoder.layers.encoder_layer_*.mlp.3.*", &[concat!($blocks, ".*.", $down, ".*")]),
        ]
    };
}

static TRANSFORMERS: &[Rule] = transformers!(
    "layers",
    ["attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"],
    ["mlp.fc1", "mlp.fc2"]
);

static TRANSFORMERS_FILES: &[Rule] = transformers!(
    "encoder.layer",
    [
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense"
    ],
    ["intermediate.dense", "output.dense"]
);

macro_rules! vit {
    ($name:literal, $title:literal, $patch:literal, $layers:literal, $heads:literal, $width:literal, $mlp:literal) => {
        ZooModel {
            def: LayerDef {
                name: $name,
                doc: concat!(
                    $title,
                    ". From `input`, images `[batch, 3, image_size, image_size]`, to `output`, logits \
                     `[batch, num_classes]`. Parameters are called as in torchvision \
                     (`encoder.layers.encoder_layer_0.mlp.0.weight`). (Dosovitskiy et al. 2020)"
                ),
                args: &[CLASSES, IMAGE],
                build: |a| {
                    // As in torchvision; those of transformers leave out what is beside the last patch.
                    let size = a.count("image_size")?;
                    if size % $patch != 0 {
                        return Err(a.bad("image_size", concat!("a multiple of ", $patch)));
                    }
                    let blocks = transformer($width, $heads, $mlp, 1e-6);
                    network(a, &blocks, [$patch, size / $patch, $layers])
                },
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
            name: "vit",
            doc: "A vision transformer of any size. From `input`, images `[batch, 3, image_size, image_size]`, to \
                  `output`, logits `[batch, num_classes]`. Parameters are called as in torchvision \
                  (`encoder.layers.encoder_layer_0.mlp.0.weight`). (Dosovitskiy et al. 2020)",
            args: ANY_ARGS,
            build: any,
            aliases: &[],
            arg_aliases: ARG_ALIASES,
        },
        example: "image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64",
        layouts: LAYOUTS,
        config: Some(("vit", read)),
    },
    vit!("vit_b_16", "ViT-B/16", 16, 12, 12, 768, 3072),
    vit!("vit_b_32", "ViT-B/32", 32, 12, 12, 768, 3072),
    vit!("vit_l_16", "ViT-L/16", 16, 24, 16, 1024, 4096),
    vit!("vit_l_32", "ViT-L/32", 32, 24, 16, 1024, 4096),
    vit!("vit_h_14", "ViT-H/14", 14, 32, 16, 1280, 5120),
];

/// The `config.json` of transformers.
fn read(config: &Config<'_>) -> Result<Vec<(&'static str, Lit)>> {
    three_channels(config)?;
    config.only("hidden_act", &["gelu"], "gelu")?;
    if !config.bool_or("qkv_bias", true)? {
        return Err(config.bad("qkv_bias", "true"));
    }
    Ok(vec![
        ("image_size", config.int_or("image_size", 224)?.into()),
        ("patch_size", config.int_or("patch_size", 16)?.into()),
        ("num_layers", config.int_or("num_hidden_layers", 12)?.into()),
        ("num_heads", config.int_or("num_attention_heads", 12)?.into()),
        ("hidden_dim", config.int_or("hidden_size", 768)?.into()),
        ("mlp_dim", config.int_or("intermediate_size", 3072)?.into()),
        ("num_classes", config.labels(2)?.into()),
        ("eps", config.float_or("layer_norm_eps", 1e-12)?.into()),
    ])
}

fn transformer(width: i64, heads: i64, mlp: i64, eps: f64) -> Transformer {
    let names = ["self_attention", "0", "3"];
    Transformer { width, heads, mlp, eps, activation: gelu, causal: false, names }
}

fn any(a: &LayerArgs<'_>) -> Result<Model> {
    let (width, mlp) = (a.count("hidden_dim")?, a.count("mlp_dim")?);
    let blocks = transformer(width, heads(a, "num_heads", width)?, mlp, a.f64("eps")?);
    let grid = grid(a, "image_size", "patch_size")?;
    network(a, &blocks, [a.count("patch_size")?, grid, depth(a, "num_layers")?])
}

/// Blocks over the patches of an image, `grid` on each side, and a token of the class, which is then classified.
fn network(a: &LayerArgs<'_>, blocks: &Transformer, [patch, grid, layers]: [i64; 3]) -> Result<Model> {
    let width = blocks.width;
    let x = images("input", Some(a.count("image_size")?));
    let x = patches(&x, "conv_proj", [width, patch], true)?;
    let x = with_class(&x, "class_token", &[1, 1, width], width)?;

    let length = grid.saturating_mul(grid).saturating_add(1);
    let shape = [1.into(), length.into(), width.into()];
    let y = (&Connection::input("input") + parameter("pos_embedding", shape, Init::Normal(0.02)))?;
    let y = call(&blocks.stack("layers", layers, "encoder_layer_")?, &y)?;
    let encoder = Model::from_outputs([("output", norm(&y, "ln", blocks.eps)?)])?.named("encoder")?;

    let head = layer("Linear", "head", vec![a.count("num_classes")?.into()], vec![])?;
    let heads =
        Model::from_outputs([("output", call(&head, &Connection::input("input"))?)])?.named("heads")?;
    Model::from_outputs([("output", call(&heads, &first(&call(&encoder, &x)?)?)?)])
}
