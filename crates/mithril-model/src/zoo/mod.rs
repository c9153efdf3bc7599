//! The zoo: whole models that people know, each defined once, with the names of their published weights.
//!
//! A model is a definition ([`ZooModel`]): what a layer has, the layouts of its checkpoints, and how it is read from the
//! `config.json` beside them.
//!
//! ```
//! use mithril_model::zoo;
//! let model = zoo::build("resnet18", vec![], vec![("num_classes", 10.into())])?;
//! assert_eq!(model.parameters()[0].as_ref(), "conv1.weight");
//!
//! // From the configuration of a checkpoint, and typed for images of one size in batches of any.
//! use mithril_model::{FlattenOptions, flatten};
//! let model = zoo::from_config(r#"{"model_type": "vit", "num_labels": 10}"#, None, vec![("num_layers", 2.into())])?;
//! let shapes = vec![("input".into(), vec!["batch".into(), 3.into(), 224.into(), 224.into()])];
//! let graph = flatten(&model, &FlattenOptions { shapes, ..Default::default() })?.graph;
//! let output = graph.ty(graph.outputs[0]).map(ToString::to_string);
//! assert_eq!(output.as_deref(), Some("f32[batch, 10]"));
//! # Ok::<(), mithril_ir::Error>(())
//! ```

mod bert;
mod cache;
mod clip;
mod clip_resnet;
mod config;
mod gpt;
pub mod layout;
mod llama;
pub mod names;
mod parts;
pub mod plan;
mod resnet;
mod t5;
mod vision;
mod vit;

use std::sync::LazyLock;

use mithril_ir::{Code, Error, Lit, Result};

pub use config::Config;
pub use layout::{Layout, Rule};

use crate::layers::{Layer, LayerDef};
use crate::model::{Model, unknown};

/// A model of the zoo.
#[derive(Debug)]
pub struct ZooModel {
    /// Name, arguments, documentation, and the function that builds it.
    pub def: LayerDef,
    /// Arguments of a small or usual one, as they are written in Python: the example of the documentation.
    pub example: &'static str,
    /// Layouts of its published checkpoints.
    pub layouts: &'static [Layout],
    /// The `model_type` of the `config.json` that describes it, and what its arguments are there. Where one file
    /// describes several models, their parts stand behind it: `t5/encoder`. Several types stand apart: `llama|mistral`.
    pub config: Option<(&'static str, Reader)>,
}

/// Reads the arguments of a model from a `config.json`.
pub type Reader = fn(&Config<'_>) -> Result<Vec<(&'static str, Lit)>>;

/// A model of the zoo as a layer.
#[derive(Debug)]
pub struct Entry {
    /// The definition.
    pub definition: &'static ZooModel,
    /// Name, arguments and documentation in the form of the layers.
    pub layer: Layer,
}

static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let families =
        [resnet::MODELS, vit::MODELS, clip::MODELS, gpt::MODELS, llama::MODELS, bert::MODELS, t5::MODELS];
    let definitions = families.into_iter().flatten();
    definitions.map(|definition| Entry { definition, layer: Layer::of_def(&definition.def) }).collect()
});

/// All models in the order of the documentation.
pub fn all() -> &'static [Entry] {
    &ENTRIES
}

/// The model of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|e| e.layer.name == name)
}

/// Builds a model by name; arguments by place, then by name.
pub fn build(name: &str, args: Vec<Lit>, named: Vec<(&str, Lit)>) -> Result<Model> {
    let names = || all().iter().map(|e| e.layer.name);
    find(name).ok_or_else(|| unknown("model", name, "the zoo", names()))?.build(args, named)
}

impl Entry {
    /// A user may add a loss to it, so that its outputs stay open.
    fn build(&self, args: Vec<Lit>, named: Vec<(&str, Lit)>) -> Result<Model> {
        self.layer.build(args, named).map(Model::open)
    }
}

/// Builds the model that a `config.json` describes: `model_type` says which, as in the checkpoints of transformers.
/// Where it describes several, `part` says which of them; `args` are further arguments, which go before what the file
/// says.
///
/// ```
/// # use mithril_model::zoo;
/// let error = zoo::from_config(r#"{"model_type": "perceptron"}"#, None, vec![]).unwrap_err();
/// assert!(error.to_string().contains("perceptron"));
/// ```
pub fn from_config(json: &str, part: Option<&str>, args: Vec<(&str, Lit)>) -> Result<Model> {
    let config = config::parse(json)?;
    let config = Config::new(&config);
    let (entry, read) = described(config.text("model_type")?, part)?;
    let called = |name: &str| entry.layer.arg_aliases.iter().find(|(alias, _)| *alias == name).map(|a| a.1);
    let mut named: Vec<(&str, Lit)> = read(&config)?;
    named.retain(|(name, _)| !args.iter().any(|(passed, _)| passed == name || called(passed) == Some(name)));
    named.extend(args);
    entry.build(Vec::new(), named)
}

/// The model of that type and part, and how its arguments are read.
fn described(kind: &str, part: Option<&str>) -> Result<(&'static Entry, Reader)> {
    let known = || {
        let configs = all().iter().filter_map(|e| e.definition.config.map(|(types, read)| (types, e, read)));
        configs.flat_map(|(types, e, read)| types.split('|').map(move |known| (known, e, read)))
    };
    let key = part.map_or(kind.to_owned(), |part| format!("{kind}/{part}"));
    if let Some((_, entry, read)) = known().find(|(known, ..)| *known == key) {
        return Ok((entry, read));
    }
    let parts: Vec<&str> =
        known().filter_map(|(known, ..)| known.strip_prefix(kind)?.strip_prefix('/')).collect();
    if !parts.is_empty() {
        let message = format!("a configuration of type {kind:?} describes several models");
        return Err(Error::new(Code::BadArgument, message)
            .help(format!("say which one with part: {}", parts.join(" or "))));
    }
    if known().any(|(known, ..)| known == kind) {
        let message = format!("a model of type {kind:?} has no part {:?}", part.unwrap_or_default());
        return Err(Error::new(Code::BadArgument, message).help("leave the part out"));
    }
    let mut types: Vec<&str> = known().map(|(known, ..)| known.split('/').next().unwrap_or(known)).collect();
    types.dedup();
    let message = format!("the configuration describes a model of type {kind:?}, which is not in the zoo");
    Err(Error::new(Code::BadArgument, message)
        .help(format!("it knows {}; build others with Model()", types.join(", "))))
}
