//! Writing a model as JSON.

use std::sync::Arc;

use mithril_ir::error::Code;
use mithril_ir::ops::host::HOST_CALL;
use mithril_ir::{Error, Lit, Result};
use rustc_hash::FxHashMap;

use crate::file::{
    BodyFile, BoundFile, ChildFile, CompositeFile, DeclaredFile, EdgeFile, FORMAT, File, LeafFile, LitFile,
    ModelFile, PortFile, VERSION,
};
use crate::model::{Body, Bound, Composite, Inner, Label, Leaf, Model, Prim};

impl Model {
    /// The model as JSON: names, numbers and literals, no code. [`Model::from_json`] reads it.
    ///
    /// ```
    /// use mithril_model::{Model, layers};
    /// let text = layers::linear(4, true)?.to_json()?;
    /// assert_eq!(Model::from_json(&text)?.to_json()?, text);
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    pub fn to_json(&self) -> Result<String> {
        let mut writer = Writer { models: Vec::new(), seen: FxHashMap::default(), function: None };
        writer.model(self);
        if let Some(function) = writer.function {
            let message = format!("a model with {function} cannot be saved");
            return Err(Error::new(Code::BadFile, message)
                .help("files hold no code; write the function with ops, so that it can be traced"));
        }
        let file = File { format: FORMAT.into(), version: VERSION, models: writer.models };
        serde_json::to_string(&file).map_err(|e| Error::internal(format!("a model cannot be written: {e}")))
    }
}

struct Writer {
    models: Vec<ModelFile>,
    /// Sub-models that are written already, by identity.
    seen: FxHashMap<*const Inner, usize>,
    /// A function of the host program that the model calls.
    function: Option<String>,
}

impl Writer {
    /// Position of the model in the file. Recursion is as deep as models nest.
    fn model(&mut self, model: &Model) -> usize {
        let identity = Arc::as_ptr(&model.0);
        if let Some(&i) = self.seen.get(&identity) {
            return i;
        }
        let body = match &model.0.body {
            Body::Leaf(leaf) => {
                if matches!(leaf.prim, Prim::Op(op) if op == &HOST_CALL) {
                    self.function = Some(host_function(leaf));
                }
                write_leaf(leaf)
            }
            Body::Composite(c) => BodyFile::Parts(self.composite(c)),
        };
        let name = model.name().map(ToOwned::to_owned);
        self.models.push(ModelFile { class: model.class().to_owned(), name, body });
        self.seen.insert(identity, self.models.len() - 1);
        self.models.len() - 1
    }
    fn composite(&mut self, c: &Composite) -> CompositeFile {
        let children = c
            .children
            .iter()
            .map(|child| ChildFile {
                name: child.name.to_string(),
                model: self.model(&child.model),
                inputs: child
                    .inputs
                    .iter()
                    .map(|b| match b {
                        Bound::Default => BoundFile::Default,
                        Bound::Lit(lit) => BoundFile::Value(LitFile::of(lit)),
                        Bound::Edge(e) => BoundFile::From(e.0),
                    })
                    .collect(),
                outputs: child.outputs.iter().map(|e| e.0).collect(),
            })
            .collect();
        let connections = c
            .edges
            .iter()
            .map(|edge| EdgeFile {
                name: if let Label::Name(name) = &edge.label { Some(name.to_string()) } else { None },
                value: edge.value.as_ref().map(LitFile::of),
                expose: edge.expose,
                input: match edge.label {
                    Label::Input { child, port } if edge.source.is_some() => Some((child, port)),
                    _ => None,
                },
                declared: DeclaredFile::of(&edge.declared),
            })
            .collect();
        CompositeFile {
            connections,
            children,
            outputs: c.chosen.as_ref().map(|all| all.iter().map(|(n, e)| (n.to_string(), e.0)).collect()),
            last: c.last.map(|e| e.0),
            updates: c.updates.iter().map(|(a, b)| (a.0, b.0)).collect(),
        }
    }
}

/// What a leaf calls, for messages.
fn host_function(leaf: &Leaf) -> String {
    match leaf.ports.first().and_then(|port| port.default.as_ref()) {
        Some(Lit::Str(name)) => format!("the Python function `{name}`"),
        _ => "a Python function".into(),
    }
}

fn write_leaf(leaf: &Leaf) -> BodyFile {
    let file = |is: &str| LeafFile {
        is: is.to_owned(),
        ports: leaf
            .ports
            .iter()
            .map(|port| PortFile {
                name: port.name.to_string(),
                default: port.default.as_ref().map(LitFile::of),
                declared: DeclaredFile::of(&port.declared),
            })
            .collect(),
        outputs: leaf.outputs.iter().map(ToString::to_string).collect(),
        updates: leaf.updates.clone(),
    };
    match leaf.prim {
        Prim::Op(op) => BodyFile::Op(file(op.name)),
        Prim::Literal(f) => BodyFile::Shape(file(f.name())),
    }
}
