//! Broadcasting, propagated in all directions.
//!
//! Shapes are aligned at the right. Only facts that hold for all values of the unknowns are derived: a size other than 1 is that
//! of the output; a single operand that is not 1 equals the output; operands that have the same shape, or rank 0, pass through
//! as a whole, so that residual connections keep unknown ranks.

use mithril_ir::Dim;

use crate::report::{Clash, Step};
use crate::store::Store;
use crate::term::{Size, Term};
use crate::why::WhyId;

/// The sizes that are aligned along one axis.
struct Axis<'a> {
    operands: Vec<&'a Size>,
    /// Whether there is an operand whose size on this axis, or whose rank, is unknown.
    open: bool,
    from_right: usize,
}

impl Axis<'_> {
    /// The size of the output, if it is decided.
    fn joined(&self, why: WhyId) -> Step<Option<Size>> {
        let mut number: Option<&Size> = None;
        let mut distinct: Vec<&Size> = Vec::new();
        for &size in &self.operands {
            if size.dim.is(1) {
                continue;
            }
            if size.dim.known().is_some() {
                if let Some(old) = number.filter(|old| old.dim != size.dim) {
                    return Err(Box::new(Clash::Axis(old.clone(), size.clone(), self.from_right)));
                }
                number = Some(size);
            }
            if !distinct.iter().any(|old| old.dim == size.dim) {
                distinct.push(size);
            }
        }
        Ok(match (number, distinct.as_slice()) {
            (Some(size), _) => Some(size.clone()),
            _ if self.open => None,
            (None, [one]) => Some((*one).clone()),
            (None, []) => Some(self.operands.first().map_or(Size { dim: Dim::ONE, why }, |s| (*s).clone())),
            (None, _) => None,
        })
    }
    /// Whether the axis is decided: every operand is 1 or equal to the output.
    fn settled(&self, out: &Size) -> bool {
        !self.open && self.operands.iter().all(|s| s.dim.is(1) || s.dim == out.dim)
    }
}

impl Store {
    /// Derives the consequences of operands that are resolved and distinct; returns whether everything is decided.
    pub fn broadcast(&mut self, operands: &[&Term], output: &Term, why: WhyId) -> Step<bool> {
        match operands {
            [] => return self.unify_term(output, &Term::known(Vec::new(), why)).map(|()| true),
            [only] => return self.unify_term(output, only).map(|()| true),
            _ => {}
        }
        self.broadcast_ranks(operands, output, why)?;
        let aligned = self.broadcast_template(operands, output, why)?;
        let out = self.resolve_term(output);
        let mut settled = aligned;
        for placed in axes(operands, aligned) {
            let size = match placed.left {
                Some(i) => out.prefix.get(i),
                None => out.at_right(placed.axis.from_right),
            };
            settled &= self.broadcast_axis(&placed.axis, size, why)?;
        }
        self.pass_back(operands, &out, why)?;
        Ok(settled)
    }
    /// The rank of the output is the largest one.
    fn broadcast_ranks(&mut self, operands: &[&Term], output: &Term, why: WhyId) -> Step {
        let Some(rank) = output.rank() else { return Ok(()) };
        for term in operands {
            if term.min_rank() > rank {
                return Err(Box::new(Clash::Ranks((*term).clone(), output.clone())));
            }
        }
        if rank == 0 {
            return operands.iter().try_for_each(|term| self.unify_term(term, output));
        }
        let mut open = operands.iter().filter(|t| t.rest.is_some());
        let reaches = operands.iter().any(|t| t.rank() == Some(rank));
        if let (Some(only), None, false) = (open.next(), open.next(), reaches) {
            let full = self.unknown_sizes(rank, why);
            self.unify_term(only, &Term::known(full, why))?;
        }
        Ok(())
    }
    fn unknown_sizes(&mut self, n: usize, why: WhyId) -> Vec<Size> {
        (0..n).map(|_| Size { dim: self.add_var(), why }).collect()
    }
    /// Gives the output the axes that it must have; returns whether it has no others.
    fn broadcast_template(&mut self, operands: &[&Term], output: &Term, why: WhyId) -> Step<bool> {
        let shared = shared_run(operands);
        let right = operands.iter().map(|t| t.right().len()).max().unwrap_or(0);
        let complete = shared.is_some() || operands.iter().all(|t| t.rest.is_none());
        let out = self.resolve_term(output);
        let has = match (shared, out.rest) {
            (Some(large), _) => {
                out.rest.is_none()
                    || (out.rest == large.rest
                        && (out.prefix.len(), out.suffix.len()) == (large.prefix.len(), large.suffix.len()))
            }
            (None, Some(_)) => !complete && (out.suffix.len() >= right || !out.prefix.is_empty()),
            // Unification reports a known rank that is too small or too large.
            (None, None) => !complete || out.prefix.len() == right,
        };
        if has {
            // The rank of the output determines that of the shared run.
            if let (Some(large), None) = (shared, out.rest) {
                let full = self.unknown_sizes(out.prefix.len(), why);
                self.unify_term(large, &Term::known(full, why))?;
                return Ok(false);
            }
            return Ok(complete);
        }
        let axes = axes(operands, complete);
        let mut template = Term { prefix: Vec::new(), rest: None, suffix: Vec::new(), why };
        let mut from_right = Vec::new();
        for axis in &axes {
            let size = match axis.axis.joined(why)? {
                Some(size) => size,
                None => Size { dim: self.add_var(), why },
            };
            if axis.left.is_some() { template.prefix.push(size) } else { from_right.push(size) }
        }
        from_right.reverse();
        match (shared, complete) {
            (Some(large), _) => template.rest = large.rest,
            (None, true) => {}
            (None, false) => template.rest = Some(self.add_seq()),
        }
        let end = if template.rest.is_some() { &mut template.suffix } else { &mut template.prefix };
        end.extend(from_right);
        if let Some(longest) = operands.iter().find(|t| t.right().len() == right) {
            template.why = longest.why;
        }
        self.unify_term(&out, &template).map(|()| complete)
    }
    /// Propagates along one axis in both directions; returns whether the axis is decided.
    fn broadcast_axis(&mut self, axis: &Axis<'_>, out: Option<&Size>, why: WhyId) -> Step<bool> {
        let joined = axis.joined(why)?;
        let Some(out) = out else { return Ok(false) };
        let out = self.resolve_size(out);
        if let Some(joined) = joined {
            self.unify_axis(&joined, &out, axis.from_right)?;
            return Ok(axis.settled(&joined));
        }
        let Some(n) = out.dim.known() else { return Ok(false) };
        if n == 1 {
            for size in &axis.operands {
                self.unify_axis(size, &out, axis.from_right)?;
            }
        }
        Ok(false)
    }
    fn unify_axis(&mut self, a: &Size, b: &Size, from_right: usize) -> Step {
        self.unify_size(a, b).map_err(|clash| match *clash {
            Clash::Sizes(a, b) => Box::new(Clash::Axis(a, b, from_right)),
            other => Box::new(other),
        })
    }
    /// If only one operand has an unknown rank, it equals the output beyond the axes of the others.
    fn pass_back(&mut self, operands: &[&Term], out: &Term, why: WhyId) -> Step {
        let mut open = operands.iter().filter(|t| t.rest.is_some());
        let (Some(large), None) = (open.next(), open.next()) else { return Ok(()) };
        let small = operands.iter().filter_map(|t| t.rank()).max().unwrap_or(0);
        if out.rest.is_none() || out.suffix.len() < small || out.min_rank() <= small {
            return Ok(());
        }
        if large.rest == out.rest && large.suffix.len() >= small {
            return Ok(());
        }
        let mut template = out.clone();
        let kept = template.suffix.len() - small;
        template.suffix.truncate(kept);
        let have = large.suffix.len().min(small);
        let missing = self.unknown_sizes(small - have, why);
        template.suffix.extend(missing);
        template.suffix.extend(large.suffix[large.suffix.len() - have..].iter().cloned());
        self.unify_term(large, &template)
    }
}

/// The relevant operands: without those of rank 0, and without duplicates.
pub(crate) fn operands(inputs: &[Term]) -> Vec<&Term> {
    let mut operands: Vec<&Term> = Vec::with_capacity(inputs.len());
    for term in inputs {
        if term.rank() != Some(0) && !operands.iter().any(|old| old.same(term)) {
            operands.push(term);
        }
    }
    operands
}

/// An axis with its position in the output, from the left or from the right.
struct Placed<'a> {
    axis: Axis<'a>,
    left: Option<usize>,
}

/// If all operands of unknown rank share one run at the same position, and the others do not extend to it: one of them.
fn shared_run<'a>(operands: &[&'a Term]) -> Option<&'a Term> {
    let mut open = operands.iter().filter(|t| t.rest.is_some());
    let first = *open.next()?;
    let same = |t: &&Term| {
        t.rest == first.rest && t.prefix.len() == first.prefix.len() && t.suffix.len() == first.suffix.len()
    };
    let reach = operands.iter().filter_map(|t| t.rank()).max().unwrap_or(0);
    (open.all(same) && reach <= first.suffix.len()).then_some(first)
}

/// The axes on which a size is known: those left of a shared run, then those counted from the right.
fn axes<'a>(operands: &[&'a Term], complete: bool) -> Vec<Placed<'a>> {
    let mut all = Vec::new();
    if let (true, Some(large)) = (complete, shared_run(operands)) {
        for i in 0..large.prefix.len() {
            let open = operands.iter().filter(|t| t.rest.is_some());
            let operands = open.filter_map(|t| t.prefix.get(i)).collect();
            let from_right = large.min_rank() - i - 1;
            all.push(Placed { axis: Axis { operands, open: false, from_right }, left: Some(i) });
        }
    }
    let right = operands.iter().map(|t| t.right().len()).max().unwrap_or(0);
    for j in 0..right {
        let sizes = operands.iter().filter_map(|t| t.at_right(j)).collect();
        let open = operands.iter().any(|t| t.rest.is_some() && t.suffix.len() <= j);
        all.push(Placed { axis: Axis { operands: sizes, open, from_right: j }, left: None });
    }
    all
}
