//! The inputs of a graph: their types from the solver, symbols for sizes that stay open, roles and initial values.

use std::sync::Arc;

use mithril_ir::{Code, Dim, Error, Lit, Result, Role, Shape, Symbol, TensorType, ValueId};
use mithril_solve::Solver;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::flatten::{FlattenOptions, Walk, decided, default_dtype};
use crate::init::Init;
use crate::model::{Composite, EdgeId, unknown};
use crate::relations;

struct Open {
    edge: EdgeId,
    name: Arc<str>,
    role: Role,
    shape: Option<Shape>,
}

/// Enters every input that a needed child reads, and the values of constants.
pub(crate) fn enter(
    c: &Composite,
    solver: &Solver,
    options: &FlattenOptions,
    needed: &[bool],
    walk: &mut Walk,
    env: &mut [Option<ValueId>],
) -> Result<()> {
    check_keys(c, options)?;
    let mut open = Vec::new();
    for &e in c.ports() {
        let edge = c.edge(e);
        let used = edge.users.iter().any(|&(child, _)| needed[child as usize]);
        let is_output = c.outputs().iter().any(|(_, o)| *o == e);
        if !used && !is_output {
            continue;
        }
        let name = c.edge_name(e);
        let constant = options.constants.iter().find(|(n, _)| c.find(n) == Some(e));
        if let Some((_, tensor)) = constant {
            env[e.index()] = Some(walk.b.lit(Lit::Tensor(tensor.clone())));
        } else if let Some(value) = &edge.value {
            env[e.index()] = Some(walk.lit(value));
        } else if is_literal(c, e) {
            let lit = solver.literal(edge.slot).filter(|l| !relations::lit_has_var(l));
            env[e.index()] = Some(walk.lit(&lit.ok_or_else(|| relations::no_value(&name))?));
        } else {
            let role = role(c, e, options);
            open.push(Open { edge: e, name, role, shape: solver.shape(edge.slot).to_shape() });
        }
    }
    let symbols = name_sizes(&open);
    check_shapes(&open)?;
    for input in open {
        let shape = input.shape.unwrap_or_default();
        let shape: Shape = shape.iter().map(|d| d.substitute(&|s| symbols.get(s).cloned())).collect();
        shape.check().map_err(|e| e.note(format!("this is the shape of `{}`", input.name)))?;
        let edge = c.edge(input.edge);
        let kind = edge
            .users
            .first()
            .map(|&(child, port)| c.children[child as usize].model.port_kind(port as usize));
        let dtype = solver
            .dtype(edge.slot)
            .unwrap_or_else(|| kind.map_or(options.float, |k| default_dtype(k, options.float)));
        let chosen = options.initial.iter().find(|(n, _)| *n == input.name).map(|(_, init)| init);
        let is_frozen = input.role == Role::Param
            && (options.frozen.contains(&input.name)
                || (edge.is_frozen() && !listed(c, input.edge, &options.trainable)));
        let v = walk.b.graph.add_input(input.name, input.role, TensorType { dtype, shape });
        env[input.edge.index()] = Some(v);
        if is_frozen {
            walk.frozen.insert(v);
        }
        let init = chosen.or(edge.declared.init.as_ref()).or(edge.inherited.init.as_ref());
        if input.role != Role::Data {
            walk.inits.insert(v, init.cloned().unwrap_or(Init::Normal(1.0)));
        }
    }
    Ok(())
}

fn check_keys(c: &Composite, options: &FlattenOptions) -> Result<()> {
    let constants = options.constants.iter().map(|(n, _)| n);
    for name in options.trainable.iter().chain(&options.data).chain(constants) {
        let is_open = c.find(name).is_some_and(|e| c.edge(e).source.is_none());
        if !is_open {
            let names: Vec<Arc<str>> = c.ports().iter().map(|&e| c.edge_name(e)).collect();
            return Err(unknown("input", name, "the model", names.iter().map(|n| &**n)));
        }
    }
    Ok(())
}

fn listed(c: &Composite, e: EdgeId, names: &[Arc<str>]) -> bool {
    names.iter().any(|n| c.find(n) == Some(e))
}

fn role(c: &Composite, e: EdgeId, options: &FlattenOptions) -> Role {
    if listed(c, e, &options.trainable) {
        Role::Param
    } else if listed(c, e, &options.data) {
        Role::Data
    } else {
        c.edge(e).role()
    }
}

/// Whether an input is a literal argument rather than a tensor.
fn is_literal(c: &Composite, e: EdgeId) -> bool {
    let mut users = c.edge(e).users.iter();
    users.any(|&(child, port)| !c.children[child as usize].model.takes_tensor(port as usize))
}

/// Sizes of data that nothing decides become symbols: `input_0`.
fn name_sizes(open: &[Open]) -> FxHashMap<Symbol, Dim> {
    let mut taken: FxHashSet<String> = FxHashSet::default();
    let mut symbols: FxHashMap<Symbol, Dim> = FxHashMap::default();
    let shapes = || open.iter().filter_map(|i| i.shape.as_ref().map(|s| (i, s)));
    for dim in shapes().flat_map(|(_, s)| s.iter()) {
        dim.each_symbol(&mut |s| {
            if let Symbol::Named(name) = s {
                taken.insert(name.to_string());
            }
        });
    }
    // Sizes that are a variable first, then those in which variables occur.
    for whole in [true, false] {
        for (input, shape) in shapes().filter(|(i, _)| i.role == Role::Data) {
            for (axis, dim) in shape.iter().enumerate() {
                if whole != dim.as_symbol().is_some() {
                    continue;
                }
                dim.each_symbol(&mut |s| {
                    if matches!(s, Symbol::Var(_)) && !symbols.contains_key(s) {
                        let base: String = input
                            .name
                            .chars()
                            .map(|ch| if ch.is_ascii_alphanumeric() { ch } else { '_' })
                            .collect();
                        let mut name = format!("{base}_{axis}");
                        while !taken.insert(name.clone()) {
                            name.push('_');
                        }
                        symbols.insert(s.clone(), Dim::symbol(&name));
                    }
                });
            }
        }
    }
    symbols
}

/// Every input whose shape is missing, in one error.
fn check_shapes(open: &[Open]) -> Result<()> {
    let missing = |i: &&Open| match &i.shape {
        None => true,
        Some(shape) => i.role != Role::Data && !decided(shape),
    };
    let missing: Vec<&Open> = open.iter().filter(missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut names: Vec<String> = missing.iter().take(20).map(|i| format!("`{}`", i.name)).collect();
    if missing.len() > 20 {
        names.push(format!("{} more", missing.len() - 20));
    }
    let (noun, verb) = if missing.len() == 1 { ("shape", "is") } else { ("shapes", "are") };
    let data = open.iter().find(|i| i.role == Role::Data).map_or(&missing[0].name, |i| &i.name);
    Err(Error::new(Code::UnknownShape, format!("the {noun} of {} {verb} not known", names.join(", ")))
        .help(format!("pass shapes={{'{data}': [...]}} or call evaluate once")))
}
