//! Leaves: models of one op, made from its definition.

use std::sync::Arc;

use mithril_ir::op::{OpDef, PortKind};
use mithril_ir::{Lit, Result, Role, ops};

use crate::init::Init;
use crate::key::{Declared, Size};
use crate::literal_fn::LiteralFn;
use crate::model::{Body, Leaf, LeafPort, Model, Prim};
use crate::names;

/// Port `i` of a use of `op`: those of a variadic port are numbered from 1.
pub(crate) fn port_name(op: &OpDef, i: usize) -> String {
    let fixed = op.ports.len().saturating_sub(1);
    match op.port_of(i) {
        Some(port) if op.is_variadic() && i >= fixed => format!("{}{}", port.name, i - fixed + 1),
        Some(port) => port.name.to_owned(),
        None => format!("input{i}"),
    }
}

/// Whether argument `i` is the key of a random op. Left open, it is fed by the model's own key.
pub(crate) fn is_random_key(op: &OpDef, i: usize) -> bool {
    let random = || ops::FAMILIES.iter().filter(|(family, _)| *family == "random").flat_map(|(_, ops)| *ops);
    op.ports.get(i).is_some_and(|p| p.name == "key") && random().any(|other| other.name == op.name)
}

/// `max_pool2d` → `MaxPool2d`.
fn camel_case(name: &str) -> String {
    name.split('_')
        .map(|part| {
            let mut chars = part.chars();
            chars.next().map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
        })
        .collect()
}

impl Model {
    /// A model of one op; `variadic` tensors at its variadic port, if it has one. All arguments are ports, with the
    /// defaults of the op.
    pub fn leaf(op: &'static OpDef, variadic: usize) -> Self {
        let fixed = op.ports.len() - usize::from(op.is_variadic());
        let count = if op.is_variadic() { fixed + variadic } else { fixed };
        let ports = (0..count)
            .map(|i| LeafPort {
                name: port_name(op, i).into(),
                default: match op.ports.get(i) {
                    Some(_) if is_random_key(op, i) => Some(Lit::None),
                    Some(port) if i < fixed => port.default.lit(),
                    _ => None,
                },
                declared: Declared::default(),
            })
            .collect();
        let outputs = if op.has_output_for_each() && variadic > 1 {
            (1..=variadic).map(|i| format!("output{i}").into()).collect()
        } else {
            op.outputs.iter().map(|&n| n.into()).collect()
        };
        let leaf = Leaf { prim: Prim::Op(op), ports, outputs, updates: Vec::new() };
        let class = if op.layer.is_empty() { camel_case(op.name) } else { op.layer.to_owned() };
        Self::from_body(&class, Body::Leaf(leaf))
    }
    /// A model of one function of literals with `n` arguments.
    pub(crate) fn literal(f: LiteralFn, n: usize) -> Self {
        let ports = f
            .ports(n)
            .into_iter()
            .map(|name| LeafPort { name: name.into(), default: None, declared: Declared::default() })
            .collect();
        let outputs = vec![Arc::from("output")];
        let leaf = Leaf { prim: Prim::Literal(f), ports, outputs, updates: Vec::new() };
        Self::from_body(&camel_case(f.name()), Body::Leaf(leaf))
    }
    /// The function, if the model is a single one of literals.
    pub(crate) fn literal_fn(&self) -> Option<LiteralFn> {
        match &self.0.body {
            Body::Leaf(Leaf { prim: Prim::Literal(f), .. }) => Some(*f),
            _ => None,
        }
    }
    fn leaf_port(&mut self, name: &str) -> Result<&mut LeafPort> {
        let i = self.find_port(name).ok_or_else(|| self.no_port(name))?;
        match &mut self.inner_mut().body {
            Body::Leaf(leaf) => Ok(&mut leaf.ports[i]),
            Body::Composite(_) => Err(mithril_ir::Error::internal("a port of a composite is not a setting")),
        }
    }
    /// The leaf with a fixed value at a port (a setting such as `axis`).
    pub fn setting(mut self, port: &str, value: impl Into<Lit>) -> Result<Self> {
        self.leaf_port(port)?.default = Some(value.into());
        Ok(self)
    }
    /// The leaf with a port that is learned.
    pub fn learned(mut self, port: &str, shape: impl IntoIterator<Item = Size>, init: Init) -> Result<Self> {
        let port = self.leaf_port(port)?;
        port.default = None;
        port.declared = Declared {
            shape: Some(shape.into_iter().collect()),
            role: Some(Role::Param),
            init: Some(init),
            ..Declared::default()
        };
        Ok(self)
    }
    /// The leaf with another name of a port.
    pub fn port_called(mut self, port: &str, name: &str) -> Result<Self> {
        self.leaf_port(port)?.name = name.into();
        Ok(self)
    }
    /// Gives the leaf as many outputs as its literal `sections` says, if the op has such an argument: a number of
    /// parts, or a tuple of their sizes.
    pub(crate) fn count_outputs(&mut self) {
        let Body::Leaf(leaf) = &mut self.inner_mut().body else { return };
        let Prim::Op(op) = leaf.prim else { return };
        let sections = op.port("sections").and_then(|i| leaf.ports.get(i)).and_then(|p| p.default.as_ref());
        let n = match sections {
            Some(Lit::Int(d)) => d.known().and_then(|n| usize::try_from(n).ok()),
            Some(Lit::Tuple(items)) => Some(items.len()),
            _ => None,
        };
        // An absurd number is left to the rule of the op, which says what is wrong with it.
        if let Some(n) = n.filter(|n| (1..=1 << 16).contains(n)) {
            leaf.outputs = (1..=n).map(|i| format!("output{i}").into()).collect();
        }
    }
    /// The leaf with what is declared about a port.
    pub fn declared(mut self, port: &str, declared: Declared) -> Result<Self> {
        self.leaf_port(port)?.declared = declared;
        Ok(self)
    }
    /// The leaf with an input that is kept from call to call; output number `output` of the op, which is not an output
    /// of the layer, replaces it when training.
    pub fn state(mut self, port: &str, shape: Vec<Size>, init: Init, output: usize) -> Result<Self> {
        let i = self.find_port(port).ok_or_else(|| self.no_port(port))?;
        let place = self.leaf_port(port)?;
        place.default = None;
        place.declared =
            Declared { shape: Some(shape), role: Some(Role::State), init: Some(init), ..Declared::default() };
        if let Body::Leaf(leaf) = &mut self.inner_mut().body {
            leaf.updates.push((i, output));
            leaf.outputs.truncate(output.max(1).min(leaf.outputs.len()));
        }
        Ok(self)
    }
    /// Name that a child of this model gets where it has none of its own.
    pub(crate) fn base_name(&self) -> Arc<str> {
        match (self.name(), &self.0.body) {
            (Some(name), _) => name.into(),
            (None, Body::Leaf(Leaf { prim: Prim::Literal(f), .. })) => f.name().into(),
            (None, _) => {
                let name = names::snake_case(self.class());
                if names::check_child(&name).is_ok() { name.into() } else { "model".into() }
            }
        }
    }
    /// Whether the leaf's argument `i` is a tensor.
    pub(crate) fn takes_tensor(&self, i: usize) -> bool {
        !matches!(self.port_kind(i), PortKind::Attr(_))
    }
}
