//! The zoo: whole models that people know, each defined once, with the names of their published weights.
//!
//! A model is a row ([`ZooModel`]): what a layer has, the layouts of its checkpoints, and how it is read from the
//! `config.json` beside them.
//!
//! ```
//! use mithril_model::zoo;
//! let model = zoo::build("resnet18", vec![], vec![("num_classes", 10.into())])?;
//! assert_eq!(model.parameters()[0].as_ref(), "conv1.weight");
//! # Ok::<(), mithril_ir::Error>(())
//! ```

mod config;
pub mod layout;
mod resnet;

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
    /// The `model_type` of the `config.json` that describes it, and what its arguments are there.
    pub config: Option<(&'static str, Reader)>,
}

/// Reads the arguments of a model from a `config.json`.
pub type Reader = fn(&Config<'_>) -> Result<Vec<(&'static str, Lit)>>;

/// A model of the zoo as a layer.
#[derive(Debug)]
pub struct Entry {
    /// The row.
    pub row: &'static ZooModel,
    /// Name, arguments and documentation in the form of the layers.
    pub layer: Layer,
}

static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let families = [resnet::MODELS];
    let rows = families.into_iter().flatten();
    rows.map(|row| Entry { row, layer: Layer::of_def(&row.def) }).collect()
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
///
/// ```
/// # use mithril_model::zoo;
/// let error = zoo::from_config(r#"{"model_type": "perceptron"}"#).unwrap_err();
/// assert!(error.to_string().contains("perceptron"));
/// ```
pub fn from_config(json: &str) -> Result<Model> {
    let config = config::parse(json)?;
    let config = Config::new(&config);
    let kind = config.text("model_type")?;
    let known = |e: &&Entry| e.row.config.is_some_and(|(known, _)| known == kind);
    let Some(entry) = all().iter().find(known) else {
        let known: Vec<&str> = all().iter().filter_map(|e| e.row.config).map(|(kind, _)| kind).collect();
        let message =
            format!("the configuration describes a model of type {kind:?}, which is not in the zoo");
        return Err(Error::new(Code::BadArgument, message)
            .help(format!("it knows {}; build others with Model()", known.join(", "))));
    };
    let named = entry.row.config.map_or(Ok(Vec::new()), |(_, read)| read(&config))?;
    entry.build(Vec::new(), named)
}
