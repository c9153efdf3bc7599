//! Where fused weights are cut: an axis of a parameter whose results are taken apart again (queries, keys and values; a
//! gate and what it multiplies) is divided within these parts, not across them.
//!
//! Axes that ops run over together are one class: those of a weight and of its products, of what is added to these, and
//! of the optimizer's states. What slices, splits, joins or reshapes such an axis cuts all of the class.

use mithril_ir::graph::{Def, Graph, Role, ValueId};
use mithril_ir::loops::{Expr, Index, Var};
use rustc_hash::FxHashMap;

use super::memo::Memo;
use super::rule::{Arg, Placement, Use, build, sizes};
use super::sections::Sections;

/// An axis of an argument, or of a result, of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Slot {
    Arg(usize, usize),
    Out(usize, usize),
}

/// What a use says of its axes.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    /// Axes that are run over together.
    same: Vec<(Slot, Slot)>,
    /// Positions at which an axis is cut.
    cuts: Vec<(Slot, i64)>,
}

/// Where the axes of a graph have seams.
pub(super) struct Seams(Classes);

impl Seams {
    /// Those of a graph.
    pub(super) fn of(graph: &Graph, devices: usize, memo: &Memo) -> Self {
        let mut classes = Classes::default();
        for (_, node) in graph.nodes() {
            let Some(call) = Use::of(graph, node) else { continue };
            let links = memo.links(&call, devices, || links(&call, devices as i64));
            let key = |slot: Slot| match slot {
                Slot::Arg(i, axis) => (node.inputs[i], axis),
                Slot::Out(i, axis) => (node.outputs[i], axis),
            };
            for &(a, b) in &links.same {
                classes.join(key(a), key(b));
            }
            for &(slot, at) in &links.cuts {
                classes.cut(key(slot), at);
            }
        }
        Self(classes)
    }

    /// Sections in the place of blocks, if an input is a parameter or a state whose divided axis has seams.
    pub(super) fn place(&mut self, graph: &Graph, v: ValueId, place: Placement, devices: usize) -> Placement {
        let (Placement::Shard(axis), Some(ty)) = (place, graph.ty(v)) else { return place };
        // What a call brings is divided as the layout says.
        if !matches!(graph.value(v).def, Def::Input(Role::Param | Role::State)) {
            return place;
        }
        let sections = self.0.sections((v, axis), sizes(ty)[axis], devices as i64);
        sections.map_or(place, |sections| Placement::Sections(axis, sections))
    }
}

/// Sections in the place of blocks for inputs whose divided axis has seams.
pub(super) fn sectioned(graph: &Graph, places: &[Placement], devices: usize, memo: &Memo) -> Vec<Placement> {
    if !places.iter().any(|place| matches!(place, Placement::Shard(_))) {
        return places.to_vec();
    }
    let mut seams = Seams::of(graph, devices, memo);
    graph.inputs.iter().zip(places).map(|(&v, place)| seams.place(graph, v, *place, devices)).collect()
}

/// Axes of values that are run over together.
#[derive(Default)]
struct Classes {
    parents: FxHashMap<(ValueId, usize), (ValueId, usize)>,
    cuts: FxHashMap<(ValueId, usize), Vec<i64>>,
}

impl Classes {
    fn find(&mut self, of: (ValueId, usize)) -> (ValueId, usize) {
        let mut root = of;
        while let Some(&parent) = self.parents.get(&root) {
            root = parent;
        }
        if root != of {
            self.parents.insert(of, root);
        }
        root
    }
    fn join(&mut self, a: (ValueId, usize), b: (ValueId, usize)) {
        let (a, b) = (self.find(a), self.find(b));
        if a != b {
            self.parents.insert(b, a);
            let cuts = self.cuts.remove(&b).unwrap_or_default();
            self.cuts.entry(a).or_default().extend(cuts);
        }
    }
    fn cut(&mut self, of: (ValueId, usize), at: i64) {
        let root = self.find(of);
        self.cuts.entry(root).or_default().push(at);
    }
    /// The sections of an axis; `None` if it has one, or they do not divide.
    fn sections(&mut self, of: (ValueId, usize), size: i64, devices: i64) -> Option<Sections> {
        let root = self.find(of);
        let mut cuts = self.cuts.get(&root)?.clone();
        cuts.extend([0, size]);
        cuts.sort_unstable();
        cuts.dedup();
        let sizes: Vec<i64> = cuts.windows(2).map(|two| two[1] - two[0]).collect();
        let is_inside = cuts.first() == Some(&0) && cuts.last() == Some(&size);
        (is_inside && sizes.len() > 1).then(|| Sections::new(&sizes, devices))?
    }
}

fn links(call: &Use, devices: i64) -> Links {
    let mut links = Links::default();
    let Some(loops) = call.loops() else { return inner_links(call, devices) };
    // The axes that each variable runs over alone.
    let mut runs: FxHashMap<u32, Slot> = FxHashMap::default();
    for (i, vars) in loops.vars.iter().enumerate() {
        for (axis, var) in vars.iter().enumerate() {
            runs.insert(var.id, Slot::Out(i, axis));
        }
    }
    for (_, value) in loops.each_expression() {
        value.walk(&mut |e| match e {
            Expr::Load { from, at, .. } => {
                let Some(Arg::Tensor(ty)) = call.args.get(*from) else { return };
                for (axis, (index, size)) in at.iter().zip(sizes(ty)).enumerate() {
                    let slot = Slot::Arg(*from, axis);
                    match only_variable(index) {
                        Some((var, 0)) if var.size == size => {
                            let other = *runs.entry(var.id).or_insert(slot);
                            if other != slot {
                                links.same.push((other, slot));
                            }
                        }
                        Some((var, start)) => {
                            links.cuts.extend([start, start + var.size].map(|at| (slot, at)));
                        }
                        None => links.cuts.extend(split(index, size, devices).map(|at| (slot, at))),
                    }
                }
            }
            Expr::Select { when, .. } => {
                for test in when {
                    let Some((var, shift)) = only_variable(&test.index) else { continue };
                    let Some(&slot @ Slot::Out(..)) = runs.get(&var.id) else { continue };
                    for bound in [test.from, test.to] {
                        let at = bound.saturating_sub(shift);
                        if 0 < at && at < var.size {
                            links.cuts.push((slot, at));
                        }
                    }
                }
            }
            _ => {}
        });
    }
    links
}

/// A variable and what is added to it, if an index is nothing else.
fn only_variable(index: &Index) -> Option<(Var, i64)> {
    let mut own = None;
    index.each_var(&mut |var| own = Some(var));
    let var = own?;
    (index.terms.len() == 1 && index.factor(var) == Some(1)).then_some((var, index.constant))
}

/// Where an axis is cut of which a reshape makes several: between the blocks of the first, unless that divides itself.
fn split(index: &Index, size: i64, devices: i64) -> impl Iterator<Item = i64> + use<> {
    let mut vars = Vec::new();
    index.each_var(&mut |var| vars.push(var));
    let factors: Option<Vec<(i64, i64)>> =
        vars.iter().map(|var| Some((index.factor(*var)?, var.size))).collect();
    let outer = factors.unwrap_or_default().into_iter().max();
    let block = outer.filter(|(factor, count)| {
        vars.len() > 1 && factor * count == size && count % devices != 0 && *factor % devices == 0
    });
    let (block, count) = block.unwrap_or((0, 0));
    (1..count).map(move |i| i * block)
}

/// The links of an op that is made of others.
fn inner_links(call: &Use, devices: i64) -> Links {
    let mut all = Links::default();
    if call.op.expand.is_none() {
        return all;
    }
    let Some((graph, args, outputs)) = build(call, true) else { return all };
    let mut classes = Classes::default();
    for (_, node) in graph.nodes() {
        let Some(inner) = Use::of(&graph, node) else { continue };
        let links = links(&inner, devices);
        let key = |slot: Slot| match slot {
            Slot::Arg(i, axis) => (node.inputs[i], axis),
            Slot::Out(i, axis) => (node.outputs[i], axis),
        };
        for (a, b) in links.same {
            classes.join(key(a), key(b));
        }
        for (slot, at) in links.cuts {
            classes.cut(key(slot), at);
        }
    }
    let mut slots = Vec::new();
    for (i, (&v, arg)) in args.iter().zip(&call.args).enumerate() {
        if let Arg::Tensor(ty) = arg {
            slots.extend((0..ty.shape.rank()).map(|axis| (Slot::Arg(i, axis), (v, axis))));
        }
    }
    for (i, (&v, ty)) in outputs.iter().zip(&call.outputs).enumerate() {
        slots.extend((0..ty.shape.rank()).map(|axis| (Slot::Out(i, axis), (v, axis))));
    }
    let mut first: FxHashMap<(ValueId, usize), Slot> = FxHashMap::default();
    for (slot, of) in slots {
        let root = classes.find(of);
        if let Some(other) = first.get(&root) {
            all.same.push((*other, slot));
            continue;
        }
        first.insert(root, slot);
        let cuts = classes.cuts.get(&root).into_iter().flatten();
        all.cuts.extend(cuts.map(|at| (slot, *at)));
    }
    all
}
