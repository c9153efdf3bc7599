//! What a backend of a user's own adds to a target: ops that are methods of the backend, and what becomes of ops
//! that have no lowering.
//!
//! A use of an op with a method is written `backend.matmul(a, b)`, where `backend` is a global that the caller
//! gives. A method need not take all that the op takes: a use that gives such an argument something else than its
//! default is left to the table of the target, or to the expansion, and the user is told ([`Overlay::obstacle`]). What
//! still has no lowering is then written `reference.erf(x)` if the overlay allows it: the global `reference` runs the op
//! on the host.

use mithril_ir::build::Builder;
use mithril_ir::graph::{Node, Role};
use mithril_ir::lowering::{arg_mark, symbol_mark, tuple};
use mithril_ir::op::{DefaultLit, OpDef, PortKind};
use mithril_ir::{Dim, Graph, Lit, ValueId};
use rustc_hash::FxHashMap;

use super::literal;
use super::targets::PythonTarget;
use super::template::argument;

/// Global name of the user's backend in generated code.
pub const BACKEND: &str = "backend";
/// Global name of the reference in generated code.
pub const REFERENCE: &str = "reference";

/// Methods that replace lowerings.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// Name of the backend's class.
    pub owner: String,
    /// The methods, by the canonical name of the op.
    pub methods: FxHashMap<String, Method>,
    /// Gradients of ops that are methods, by the canonical name of the op.
    pub backwards: FxHashMap<String, Backward>,
    /// Whether ops without a lowering are run by the reference.
    pub falls_back: bool,
}

/// A method that gives the gradient of an op.
#[derive(Clone, Debug)]
pub struct Backward {
    /// Its name in the table of host functions.
    pub function: String,
    /// Ports that it does not take; for other uses than their defaults the gradient is ours.
    pub absent: Vec<usize>,
    /// Ports that are passed on by name.
    pub options: Vec<usize>,
}

/// A method that runs an op.
#[derive(Clone, Debug)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// What it is given, in order.
    pub arguments: Vec<MethodArgument>,
    /// Ports that it does not take.
    pub absent: Vec<usize>,
}

/// An argument of a method.
#[derive(Clone, Debug)]
pub struct MethodArgument {
    /// The keyword; none if it is given by place.
    pub keyword: Option<String>,
    /// What is given.
    pub value: Value,
    /// The form in which a literal is given.
    pub form: Form,
}

/// What is passed for an argument of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// What stands at a port.
    Port(usize),
    /// What stands at a port; the argument is left out where that is `None`.
    Optional(usize),
    /// All tensors from a port on.
    Rest(usize),
    /// A list of all tensors from a port on.
    List(usize),
    /// Sizes of the tensor at a port, from its third axis on.
    KernelSize(usize),
}

/// The form of a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it is.
    Plain,
    /// An integer becomes a tuple of so many.
    Tuple(usize),
    /// A text in capitals; nothing else fits.
    Upper,
    /// A text in small letters; nothing else fits.
    Lower,
}

impl Overlay {
    /// The text of a use of an op by its method; `None` if there is none that fits.
    pub(super) fn lower(&self, graph: &Graph, node: &Node) -> Option<String> {
        let method = self.methods.get(node.op.name)?;
        if !method.absent.iter().all(|&i| is_default(graph, node, i)) {
            return None;
        }
        let mut parts = Vec::with_capacity(method.arguments.len());
        for argument in &method.arguments {
            let text = argument.text(graph, node)?;
            parts.push(match &argument.keyword {
                Some(keyword) if !text.is_empty() => format!("{keyword}={text}"),
                _ => text,
            });
        }
        parts.retain(|part| !part.is_empty());
        Some(format!("{BACKEND}.{}({})", method.name, parts.join(", ")))
    }

    /// Whether the method runs a use of an op.
    pub fn runs(&self, graph: &Graph, node: &Node) -> bool {
        self.lower(graph, node).is_some()
    }

    /// The argument that the method of an op cannot be given in this use: a name, and whether it has no parameter for it.
    pub fn obstacle(&self, graph: &Graph, node: &Node) -> Option<(&'static str, bool)> {
        let method = self.methods.get(node.op.name)?;
        let name = |i: usize| node.op.port_of(i).map(|port| port.name);
        let absent: Vec<usize> =
            method.absent.iter().copied().filter(|&i| !is_default(graph, node, i)).collect();
        // A bias is added behind the method, so that a literal is what stands in the way.
        let literal = absent.iter().find(|&&i| !node.op.takes_tensor(i));
        if let Some(&i) = literal.or(absent.first()) {
            return Some((name(i)?, true));
        }
        let argument = method.arguments.iter().find(|argument| argument.text(graph, node).is_none())?;
        match argument.value {
            Value::Port(i) | Value::Optional(i) | Value::Rest(i) | Value::List(i) | Value::KernelSize(i) => {
                Some((name(i)?, false))
            }
        }
    }

    /// Whether the expansion of a use of an op comes to a use of an op that is a method: it is then what is written,
    /// so that a method is called wherever its op occurs.
    pub(super) fn method_inside(&self, graph: &Graph, node: &Node) -> bool {
        !self.methods.is_empty()
            && is_inside(graph, node.op, &node.inputs, &|g, n| self.lower(g, n).is_some())
    }

    /// The same of methods that give gradients.
    pub fn gradient_inside(&self, graph: &Graph, op: &'static OpDef, inputs: &[ValueId]) -> bool {
        !self.backwards.is_empty() && is_inside(graph, op, inputs, &|g, n| self.backward(g, n).is_some())
    }

    /// The method that gives the gradient of a use of an op, and the literals that it is given by name.
    pub fn backward(&self, graph: &Graph, node: &Node) -> Option<(&str, Vec<(&'static str, Lit)>)> {
        let method = self.backwards.get(node.op.name)?;
        if !method.absent.iter().all(|&i| is_default(graph, node, i)) {
            return None;
        }
        let option = |&i: &usize| {
            let lit = node.inputs.get(i).and_then(|&v| graph.lit(v))?;
            Some((node.op.port_of(i)?.name, lit.clone()))
        };
        Some((&method.function, method.options.iter().filter_map(option).collect()))
    }

    /// The text of a use of an op by the reference: tensors by place, literals by name.
    pub(super) fn refer(&self, graph: &Graph, node: &Node) -> Option<String> {
        if !self.falls_back || node.op.eval.is_none() {
            return None;
        }
        let mut parts = Vec::with_capacity(node.inputs.len());
        for (i, &v) in node.inputs.iter().enumerate() {
            let text = argument(&super::targets::CUSTOM, graph, node, i)?;
            let absent = graph.lit(v).is_some_and(Lit::is_none);
            match node.op.port_of(i) {
                _ if node.op.takes_tensor(i) => parts.push(text),
                Some(_) if absent => {}
                Some(port) => parts.push(format!("{}={text}", port.name)),
                None => return None,
            }
        }
        // A literal in front of tensors would stand before arguments by place.
        let (named, placed): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| part.contains('=') && !part.starts_with('\u{1}'));
        Some(format!("{REFERENCE}.{}({})", node.op.name, [placed, named].concat().join(", ")))
    }
}

impl MethodArgument {
    fn text(&self, graph: &Graph, node: &Node) -> Option<String> {
        match self.value {
            Value::Rest(first) => Some(tensors(node, first)),
            Value::List(first) => Some(format!("[{}]", tensors(node, first))),
            Value::Optional(i)
                if node.inputs.get(i).is_none_or(|&v| graph.lit(v).is_some_and(Lit::is_none)) =>
            {
                Some(String::new())
            }
            Value::KernelSize(i) => {
                let shape = &graph.ty(*node.inputs.get(i)?)?.shape;
                let sizes = shape.iter().skip(2);
                Some(tuple(sizes.map(|d| mithril_ir::lowering::dim_text(d, &symbol_mark))))
            }
            Value::Port(i) | Value::Optional(i) => {
                let lit = node.inputs.get(i).and_then(|&v| graph.lit(v)).filter(|_| !node.op.takes_tensor(i));
                match (self.form, lit) {
                    (Form::Plain, _) | (_, None) => argument(&super::targets::CUSTOM, graph, node, i),
                    (Form::Tuple(n), Some(Lit::Int(d))) => {
                        literal_text(&Lit::Tuple(vec![Lit::Int(d.clone()); n].into()))
                    }
                    (Form::Tuple(_), Some(lit)) => literal_text(lit),
                    (Form::Upper, Some(Lit::Str(s))) => literal_text(&Lit::text(&s.to_uppercase())),
                    (Form::Lower, Some(Lit::Str(s))) => literal_text(&Lit::text(&s.to_lowercase())),
                    // No padding has a name too.
                    (Form::Upper | Form::Lower, Some(lit)) => {
                        let is_padding = node.op.port_of(i).is_some_and(|p| p.name == "padding");
                        let name = if self.form == Form::Upper { "VALID" } else { "valid" };
                        (is_padding && all_are(lit, 0)).then(|| literal_text(&Lit::text(name))).flatten()
                    }
                }
            }
        }
    }
}

/// All tensors from a port on.
fn tensors(node: &Node, first: usize) -> String {
    (first..node.inputs.len()).map(arg_mark).collect::<Vec<_>>().join(", ")
}

fn literal_text(lit: &Lit) -> Option<String> {
    literal::argument(&super::targets::CUSTOM, lit, &symbol_mark)
}

/// Whether a use of an op expands into something for which `found` holds.
fn is_inside(
    graph: &Graph,
    op: &'static OpDef,
    inputs: &[ValueId],
    matches: &dyn Fn(&Graph, &Node) -> bool,
) -> bool {
    if op.expand.is_none() {
        return false;
    }
    let mut scratch = Builder::default();
    let mut args = Vec::with_capacity(inputs.len());
    for &v in inputs {
        args.push(match (graph.lit(v), graph.ty(v)) {
            (None, Some(ty)) => scratch.graph.add_input("x", Role::Data, ty.clone()),
            (lit, _) => scratch.lit(lit.cloned().unwrap_or(Lit::None)),
        });
    }
    if scratch.expand(op, &args).is_err() {
        return false;
    }
    let graph = &scratch.graph;
    graph.nodes().any(|(_, n)| matches(graph, n) || is_inside(graph, n.op, &n.inputs, matches))
}

/// Whether input `i` is what its port is when nothing is given.
fn is_default(graph: &Graph, node: &Node, i: usize) -> bool {
    let Some(lit) = node.inputs.get(i).map(|&v| graph.lit(v)) else { return true };
    let Some((lit, port)) = lit.zip(node.op.port_of(i)) else { return false };
    match (port.default, &port.kind) {
        (DefaultLit::Required, _) => false,
        (DefaultLit::Int(n), PortKind::Attr(_)) => all_are(lit, n),
        (default, _) => default.lit().is_some_and(|default| default == *lit),
    }
}

/// Whether a literal is an integer, or nothing but tuples of it.
fn all_are(lit: &Lit, n: i64) -> bool {
    match lit {
        Lit::Int(Dim::Const(size)) => *size == n,
        Lit::Tuple(items) => items.iter().all(|item| all_are(item, n)),
        _ => false,
    }
}

/// Whether the op is run by a method of the target's backend.
pub fn is_method(target: &PythonTarget, op: &OpDef) -> bool {
    target.overlay.as_ref().is_some_and(|overlay| overlay.methods.contains_key(op.name))
}
