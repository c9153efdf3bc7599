//! Whether an op on shards computes the shard of the result: the proof behind [`super::rule`].
//!
//! The expressions of the whole op and of the op on shards are brought to the same variables: `n · o + p · c + i` for a
//! divided variable of the whole op, `o + i` for that of the shard, where `o` is where a section of the axis begins in
//! the shard, `c` the size of a shard of the section and `p` the device. Loads from divided tensors correspond in the
//! same way. If the expressions are equal for all sections with `p` a variable, each device computes its shard.
//! A sum over a divided variable gives partial results, and so does what is linear in partial operands.

use std::cell::Cell;

use mithril_ir::DType;
use mithril_ir::loops::{Binary, Expr, Index, IndexTerm, ReduceOp, Var};
use mithril_ir::op::OpDef;
use mithril_ir::tensor::Scalar;
use rustc_hash::{FxHashMap, FxHashSet};

use super::halo::Halo;
use super::rows::{self, Guarded};
use super::rule::{Arg, Placement, Reduction, Use, sizes};
use super::sections::{Section, Sections};

/// The tensor expressions of a use.
pub(super) struct Loops {
    pub(super) vars: Vec<Vec<Var>>,
    pub(super) values: Vec<Expr>,
    pub(super) computed: Vec<(usize, Vec<Var>, Expr)>,
    pub(super) temporaries: Vec<Vec<i64>>,
}

impl Loops {
    pub(super) fn each_expression(&self) -> impl Iterator<Item = (&[Var], &Expr)> {
        let temporaries = self.computed.iter().map(|(_, vars, value)| (vars.as_slice(), value));
        temporaries.chain(self.vars.iter().map(Vec::as_slice).zip(&self.values))
    }
    /// The same without temporaries; `None` if one of them is a sum, or the like.
    pub(super) fn inlined(self) -> Option<Self> {
        let Self { vars, mut values, computed, .. } = self;
        for (to, own, value) in computed.into_iter().rev() {
            if value.reduces() {
                return None;
            }
            let inline = |from: usize, at: Vec<Index>, stored: DType| {
                if from != to {
                    return Expr::Load { from, at, stored };
                }
                let place = |var: Var| own.iter().position(|v| *v == var).map(|i| at[i].clone());
                value.substitute(&|var| place(var).unwrap_or_else(|| Index::var(var)))
            };
            values = values.iter().map(|e| e.map_loads(&inline)).collect();
        }
        Some(Self { vars, values, computed: Vec::new(), temporaries: Vec::new() })
    }
    /// Whether elements of the operands only move: nothing is computed.
    pub(super) fn only_moves(&self) -> bool {
        let mut moves = self.computed.is_empty();
        for value in &self.values {
            value.walk(&mut |e| {
                moves &= matches!(e, Expr::Load { .. } | Expr::Number(..) | Expr::Select { .. });
            });
        }
        moves
    }
}

/// How one axis of a tensor is divided: by section, of which there is one where nothing is fused.
#[derive(Clone, Debug)]
struct Cut {
    axis: usize,
    sections: Vec<Section>,
}

/// Compares the expressions of the whole op with those of a shard.
pub(super) struct Comparison {
    op: &'static OpDef,
    devices: i64,
    /// Which device it is.
    device: Var,
    /// Sizes of the variables on a device, by number.
    local: FxHashMap<u32, i64>,
    /// By tensor how it is divided.
    cuts: FxHashMap<usize, Cut>,
    /// Tensors that are the reduction of what the devices hold.
    partial: FxHashMap<usize, Reduction>,
    /// Variables over an axis of several sections.
    sectioned: Vec<(u32, Vec<Section>)>,
    /// Operands that are extended by rows of the neighbors.
    halos: Vec<(usize, Halo)>,
    fails: Cell<bool>,
}

/// What is called with a section for each variable.
type EachCase<'f> = dyn FnMut(&[(u32, Section)]) -> bool + 'f;

/// What is known of a part of an expression: how the devices' values come together, if they are partial.
type Root = Option<Reduction>;

impl Comparison {
    pub(super) fn new(
        call: &Use,
        whole: &Loops,
        part: &Loops,
        places: &[Placement],
        result: Option<(usize, Option<Sections>)>,
        devices: i64,
    ) -> Option<Self> {
        let mut local = FxHashMap::default();
        for (vars, value) in part.each_expression() {
            local.extend(vars.iter().map(|v| (v.id, v.size)));
            value.walk(&mut |e| {
                if let Expr::Reduce { vars, .. } = e {
                    local.extend(vars.iter().map(|v| (v.id, v.size)));
                }
            });
        }
        let (mut cuts, mut partial) = (FxHashMap::default(), FxHashMap::default());
        for (i, (arg, place)) in call.args.iter().zip(places).enumerate() {
            let Arg::Tensor(ty) = arg else { continue };
            match *place {
                Placement::Replicate => {}
                Placement::Partial(by) => {
                    partial.insert(i, by);
                }
                Placement::Shard(axis) => {
                    let size = *sizes(ty).get(axis)?;
                    cuts.insert(i, Cut { axis, sections: vec![Section { start: 0, size }] });
                }
                Placement::Sections(axis, sections) => {
                    cuts.insert(i, Cut { axis, sections: sections.iter().collect() });
                }
            }
        }
        let device = Var { id: u32::MAX, size: devices };
        let fails = Cell::new(false);
        let sectioned = Vec::new();
        let op = call.op;
        let halos = Vec::new();
        let mut comparison = Self { op, devices, device, local, cuts, partial, sectioned, halos, fails };
        comparison.find_sections(whole, result);
        let same_steps = whole.computed.len() == part.computed.len()
            && whole.temporaries.len() == part.temporaries.len()
            && whole.values.len() == part.values.len();
        if !same_steps {
            return None;
        }
        for ((to, _, whole_value), (part_to, _, part_value)) in whole.computed.iter().zip(&part.computed) {
            let i = to.checked_sub(call.args.len())?;
            if to != part_to {
                return None;
            }
            if let Some(by) = comparison.equal(whole_value, part_value)? {
                comparison.partial.insert(*to, by);
            }
            if let Some((axis, size)) = divided_axis(&whole.temporaries[i], &part.temporaries[i], devices)? {
                let sections = comparison.cuts.values().map(|cut| &cut.sections);
                let fused = sections
                    .filter(|s| s.iter().map(|s| s.size).sum::<i64>() == size)
                    .max_by_key(|s| s.len());
                let sections = fused.cloned().unwrap_or_else(|| vec![Section { start: 0, size }]);
                comparison.cuts.insert(*to, Cut { axis, sections });
            }
        }
        Some(comparison)
    }

    /// Finds the variables that run over several sections: those of the result, and those of sums over such an axis.
    fn find_sections(&mut self, whole: &Loops, result: Option<(usize, Option<Sections>)>) {
        if let Some((axis, Some(sections))) = result {
            for vars in &whole.vars {
                if let Some(var) = vars.get(axis).filter(|var| var.size == sections.total()) {
                    self.sectioned.push((var.id, sections.iter().collect()));
                }
            }
        }
        if self.cuts.values().all(|cut| cut.sections.len() == 1) {
            return;
        }
        let is_output: FxHashSet<u32> = whole.vars.iter().flatten().map(|v| v.id).collect();
        for (_, value) in whole.each_expression() {
            value.walk(&mut |e| {
                let Expr::Load { from, at, .. } = e else { return };
                let Some(cut) = self.cuts.get(from).filter(|cut| cut.sections.len() > 1) else { return };
                at[cut.axis].each_var(&mut |var| {
                    let known = |(id, _): &(u32, Vec<Section>)| *id == var.id;
                    let total: i64 = cut.sections.iter().map(|s| s.size).sum();
                    let is_divided = self.local.get(&var.id).is_some_and(|own| own * self.devices == total);
                    let is_new = !is_output.contains(&var.id) && !self.sectioned.iter().any(known);
                    if is_new && var.size == total && is_divided {
                        self.sectioned.push((var.id, cut.sections.clone()));
                    }
                });
            });
        }
    }

    /// Whether both are the same, and how the results of the devices are reduced if they are partial.
    #[expect(clippy::option_option, reason = "different, the same, or the same but partial")]
    pub(super) fn equal(&self, whole: &Expr, part: &Expr) -> Option<Option<Reduction>> {
        let mut chosen: Vec<(u32, Section)> = Vec::new();
        let mut result = None;
        self.each_case(&mut chosen, &mut |chosen| {
            let section = |var: Var| chosen.iter().find(|(id, _)| *id == var.id).map(|(_, section)| *section);
            let whole = whole.substitute(&|var| self.variable(var, section(var)));
            let part = part.substitute(&|var| self.own_variable(var, section(var)));
            let root = self.root(&whole, &part).filter(|_| !self.fails.get());
            match (&result, root) {
                (_, None) => result = Some(None),
                (None, root) => result = Some(root),
                (Some(before), root) if *before != root => result = Some(None),
                _ => {}
            }
            result != Some(None)
        });
        result.flatten()
    }

    /// Calls `f` for each choice of a section for each variable that has several, until it returns false.
    fn each_case(&self, chosen: &mut Vec<(u32, Section)>, f: &mut EachCase<'_>) -> bool {
        let Some((id, sections)) = self.sectioned.get(chosen.len()) else { return f(chosen) };
        for section in sections {
            chosen.push((*id, *section));
            let goes_on = self.each_case(chosen, f);
            chosen.pop();
            if !goes_on {
                return false;
            }
        }
        true
    }

    /// A variable of the whole op, in terms of the device and the variable of a shard.
    fn variable(&self, var: Var, section: Option<Section>) -> Index {
        if let Some(Section { start, size }) = section {
            let size = size / self.devices;
            return Index::number(start)
                + Index::var(self.device) * size
                + Index::var(Var { id: var.id, size });
        }
        let local = self.local.get(&var.id).copied().unwrap_or(var.size);
        let own = Index::var(Var { id: var.id, size: local });
        if local == var.size {
            return own;
        }
        if local * self.devices != var.size {
            self.fails.set(true);
        }
        Index::var(self.device) * local + own
    }

    /// A variable of a shard.
    fn own_variable(&self, var: Var, section: Option<Section>) -> Index {
        match section {
            Some(Section { start, size }) => {
                Index::number(start / self.devices)
                    + Index::var(Var { id: var.id, size: size / self.devices })
            }
            None => Index::var(var),
        }
    }

    /// The same with operands that are extended by rows of the neighbors.
    pub(super) fn with_halos(mut self, halos: &[(usize, Halo)]) -> Self {
        self.halos = halos.to_vec();
        self
    }

    /// Whether both read the same element of an operand that has rows of the neighbors, or take the same number where it has
    /// none; `None` if they do not read such an operand.
    fn in_halo(&self, whole: &Expr, part: &Expr) -> Option<bool> {
        let (whole, part) = (Guarded::of(whole)?, Guarded::of(part)?);
        let (_, halo) = self.halos.iter().find(|(i, _)| *i == whole.from)?;
        let cut = self.cuts.get(&whole.from)?;
        let is_alike = whole.from == part.from
            && whole.stored == part.stored
            && whole.at.len() == part.at.len()
            && whole.at.iter().zip(part.at).enumerate().all(|(k, (a, b))| k == cut.axis || self.index(a, b));
        let size = cut.sections.iter().map(|section| section.size).sum();
        Some(is_alike && rows::agree(&whole, &part, halo, size, self.device))
    }

    /// Whether a position on a divided axis and one in the shard are the same element.
    fn is_place(&self, cut: &Cut, whole: &Index, part: &Index) -> bool {
        let corresponds = |section: &Section| {
            let (start, size) = (section.start / self.devices, section.size / self.devices);
            let place = part.clone() - Index::number(start) + Index::var(self.device) * size;
            *whole == place + Index::number(section.start)
        };
        match cut.sections.as_slice() {
            [only] => corresponds(only),
            all => all.iter().any(|section| {
                let (start, size) = (section.start / self.devices, section.size / self.devices);
                let (low, high) = part.range();
                start <= low && high < start + size && corresponds(section)
            }),
        }
    }

    /// Whether two positions, with what they read, are the same.
    fn index(&self, whole: &Index, part: &Index) -> bool {
        if !whole.reads() && !part.reads() {
            return whole == part;
        }
        // Read values may come from divided tensors.
        whole.constant == part.constant
            && whole.terms.len() == part.terms.len()
            && whole.terms.iter().zip(&part.terms).all(|((a, m), (b, n))| m == n && self.term(a, b))
    }

    fn term(&self, whole: &IndexTerm, part: &IndexTerm) -> bool {
        match (whole, part) {
            (
                IndexTerm::Value { value, size, wraps },
                IndexTerm::Value { value: other, size: n, wraps: w },
            ) => size == n && wraps == w && self.same(value, other),
            (IndexTerm::Div(a, m), IndexTerm::Div(b, n)) | (IndexTerm::Mod(a, m), IndexTerm::Mod(b, n)) => {
                m == n && self.index(a, b)
            }
            _ => whole == part,
        }
    }

    fn load(&self, from: usize, whole: &[Index], part: &[Index]) -> bool {
        whole.len() == part.len()
            && whole.iter().zip(part).enumerate().all(|(k, (a, b))| match self.cuts.get(&from) {
                Some(cut) if cut.axis == k => self.is_place(cut, a, b),
                _ => self.index(a, b),
            })
    }

    /// Whether both are the same on every device, with no partial value inside.
    fn same(&self, whole: &Expr, part: &Expr) -> bool {
        if let Some(is_same) = self.in_halo(whole, part) {
            return is_same;
        }
        match (whole, part) {
            (Expr::Load { from, at, stored }, Expr::Load { from: other, at: place, stored: kind }) => {
                from == other
                    && stored == kind
                    && !self.partial.contains_key(from)
                    && self.load(*from, at, place)
            }
            (Expr::Number(Scalar::Float(a), dtype), Expr::Number(Scalar::Float(b), other)) => {
                dtype == other && (a == b || a.is_nan() && b.is_nan())
            }
            (Expr::Number(..), _) => whole == part,
            (Expr::Index(a), Expr::Index(b)) => self.index(a, b),
            (Expr::Binary(op, a, b), Expr::Binary(other, c, d)) => {
                op == other && self.same(a, c) && self.same(b, d)
            }
            (Expr::Apply { text, args, dtype }, Expr::Apply { text: other, args: more, dtype: kind }) => {
                text == other
                    && dtype == kind
                    && args.len() == more.len()
                    && args.iter().zip(more).all(|(a, b)| self.same(a, b))
            }
            (Expr::Cast(a, dtype), Expr::Cast(b, other)) => dtype == other && self.same(a, b),
            (Expr::Select { when, yes, no }, Expr::Select { when: tests, yes: then, no: other }) => {
                self.tests(when, tests) && self.same(yes, then) && self.same(no, other)
            }
            (Expr::Reduce { op, vars, body }, Expr::Reduce { op: other, vars: own, body: inner }) => {
                op == other && Self::divided(vars, own) == Some(0) && self.same(body, inner)
            }
            _ => false,
        }
    }

    fn tests(&self, whole: &[mithril_ir::loops::Within], part: &[mithril_ir::loops::Within]) -> bool {
        whole.len() == part.len()
            && whole
                .iter()
                .zip(part)
                .all(|(a, b)| self.index(&a.index, &b.index) && a.from == b.from && a.to == b.to)
    }

    /// How many of the variables of a reduction are divided; `None` if they do not correspond.
    fn divided(whole: &[Var], part: &[Var]) -> Option<usize> {
        let paired = whole.len() == part.len() && whole.iter().zip(part).all(|(a, b)| a.id == b.id);
        paired.then(|| whole.iter().zip(part).filter(|(a, b)| a.size != b.size).count())
    }

    /// Whether both are the same; how they are reduced where the devices hold partial values.
    #[expect(clippy::too_many_lines, reason = "one arm for each kind of expression")]
    fn root(&self, whole: &Expr, part: &Expr) -> Option<Root> {
        if let Some(is_same) = self.in_halo(whole, part) {
            return is_same.then_some(None);
        }
        match (whole, part) {
            (Expr::Load { from, at, stored }, Expr::Load { from: other, at: place, stored: kind }) => {
                let same = from == other && stored == kind && self.load(*from, at, place);
                same.then(|| self.partial.get(from).copied())
            }
            (Expr::Reduce { op, vars, body }, Expr::Reduce { op: other, vars: less, body: inner }) => {
                if op != other {
                    return None;
                }
                let own = reduction(*op);
                match Self::divided(vars, less)? {
                    0 => match self.root(body, inner)? {
                        Some(by) if own != Some(by) => None,
                        root => Some(root),
                    },
                    1 => (own.is_some() && self.same(body, inner)).then_some(own),
                    _ => None,
                }
            }
            (Expr::Cast(a, dtype), Expr::Cast(b, other)) => {
                if dtype != other {
                    return None;
                }
                // A sum of floats may be rounded before it is reduced, but not cut off.
                let keeps = a.dtype().is_float() && dtype.is_float() || a.dtype() == *dtype;
                self.root(a, b).filter(|root| root.is_none() || keeps)
            }
            (Expr::Select { when, yes, no }, Expr::Select { when: tests, yes: then, no: other }) => {
                if !self.tests(when, tests) {
                    return None;
                }
                let sides = [(&**yes, self.root(yes, then)?), (&**no, self.root(no, other)?)];
                together(&sides)
            }
            (Expr::Binary(op, a, b), Expr::Binary(other, c, d)) => {
                if op != other {
                    return None;
                }
                let (left, right) = (self.root(a, c)?, self.root(b, d)?);
                Self::binary(*op, (a, left), (b, right))
            }
            (Expr::Apply { text, args, dtype }, Expr::Apply { text: other, args: more, dtype: kind }) => {
                if text != other || dtype != kind || args.len() != more.len() {
                    return None;
                }
                if self.op.linear.is_empty() || **text != *self.op.name {
                    return self.same(whole, part).then_some(None);
                }
                let mut sides = Vec::new();
                for (i, (a, b)) in args.iter().zip(more).enumerate() {
                    if self.op.linear.contains(&i) {
                        // What is converted has to be kept.
                        let root = self.root(a, b)?;
                        if root.is_some() && !is_wider(*dtype, a.dtype()) {
                            return None;
                        }
                        sides.push((a, root));
                    } else if !self.same(a, b) {
                        return None;
                    }
                }
                let root = together(&sides)?;
                (root.is_none() || root == Some(Reduction::Sum)).then_some(root)
            }
            _ => self.same(whole, part).then_some(None),
        }
    }

    fn binary(op: Binary, left: (&Expr, Root), right: (&Expr, Root)) -> Option<Root> {
        if left.1.is_none() && right.1.is_none() {
            return Some(None);
        }
        let sum = Some(Reduction::Sum);
        match op {
            Binary::Add | Binary::Subtract => together(&[left, right]).filter(|root| *root == sum),
            Binary::Multiply => match (left.1, right.1) {
                (root, None) | (None, root) if root == sum => Some(root),
                _ => None,
            },
            Binary::Divide => (left.1 == sum && right.1.is_none()).then_some(sum),
            Binary::Max => together(&[left, right]).filter(|root| *root == Some(Reduction::Max)),
            Binary::Min => together(&[left, right]).filter(|root| *root == Some(Reduction::Min)),
            _ => None,
        }
    }
}

/// How values come together of which one or the other is taken, or which are added: all are partial, or none. A zero is
/// a part of any sum.
fn together(sides: &[(&Expr, Root)]) -> Option<Root> {
    let partial = sides.iter().find_map(|(_, root)| *root);
    let agrees = |(e, root): &(&Expr, Root)| {
        *root == partial || (partial == Some(Reduction::Sum) && is_zero_number(e))
    };
    sides.iter().all(agrees).then_some(partial)
}

/// Whether an expression is the number 0.
pub(super) fn is_zero_number(e: &Expr) -> bool {
    match e {
        Expr::Number(Scalar::Float(x), _) => *x == 0.0,
        Expr::Number(Scalar::Int(n), _) => *n == 0,
        Expr::Cast(inner, _) => is_zero_number(inner),
        _ => false,
    }
}

/// Whether a float holds what another one does, or both are integers of one kind.
fn is_wider(to: DType, from: DType) -> bool {
    to == from || to.is_float() && from.is_float() && to.size() >= from.size()
}

const fn reduction(op: ReduceOp) -> Option<Reduction> {
    match op {
        ReduceOp::Sum => Some(Reduction::Sum),
        ReduceOp::Max => Some(Reduction::Max),
        ReduceOp::Min => Some(Reduction::Min),
        _ => None,
    }
}

/// The axis along which a shape is divided and its size; the outer `None` if they differ otherwise.
#[expect(clippy::option_option, reason = "divided along an axis, not divided, or neither")]
fn divided_axis(whole: &[i64], part: &[i64], devices: i64) -> Option<Option<(usize, i64)>> {
    if whole.len() != part.len() {
        return None;
    }
    let mut differing = (0..whole.len()).filter(|&i| whole[i] != part[i]);
    match (differing.next(), differing.next()) {
        (None, _) => Some(None),
        (Some(axis), None) if part[axis] * devices == whole[axis] => Some(Some((axis, whole[axis]))),
        _ => None,
    }
}
