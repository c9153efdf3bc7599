//! What values an index can have where it is computed.

use crate::c::ir::expr::{Atom, BufferId, Expr, Index, Var, Within};

/// Places at which an index is computed that intervals do not settle.
const PLACES: u64 = 192;

/// Where an expression is computed: the loops and the choices around it.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Variables of the loops.
    pub vars: Vec<Var>,
    /// Tests, and whether all of them pass there; else one does not.
    pub choices: Vec<(Vec<Within>, bool)>,
}

/// Values of variables, by number.
#[derive(Clone, Debug)]
pub struct Point(Vec<(u32, i64)>);

impl Point {
    /// The point of these values.
    pub fn new(values: Vec<(u32, i64)>) -> Self {
        Self(values)
    }
    /// With the values of further variables.
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.iter().chain(&other.0).copied().collect())
    }
    /// The index there; `None` if it depends on what is in a tensor.
    pub fn index(&self, index: &Index) -> Option<i64> {
        index.terms.iter().try_fold(index.constant, |sum, (atom, factor)| {
            let value = match atom {
                Atom::Var(v) => self.0.iter().find(|(id, _)| *id == v.id)?.1,
                Atom::Div(inner, by) => self.index(inner)?.div_euclid(*by),
                Atom::Mod(inner, by) => self.index(inner)?.rem_euclid(*by),
                Atom::Value { .. } => return None,
            };
            Some(sum + factor * value)
        })
    }
    /// Whether the scope's expression is computed there, as far as is known.
    pub fn is_in(&self, scope: &Scope) -> bool {
        scope.choices.iter().all(|(tests, passes)| {
            let results: Option<Vec<bool>> = tests
                .iter()
                .map(|test| Some((test.from..test.to).contains(&self.index(&test.index)?)))
                .collect();
            results.is_some_and(|results| results.into_iter().all(|passed| passed) == *passes)
        })
    }
    /// For messages.
    pub fn text(&self) -> String {
        self.0.iter().map(|(id, value)| format!("i{id} = {value}")).collect::<Vec<_>>().join(", ")
    }
}

/// Some points of the ranges of variables: corners, and others among them; always the same ones.
pub fn points(vars: &[Var]) -> impl Iterator<Item = Point> + '_ {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..PLACES).filter(|_| vars.iter().all(|v| v.size > 0)).map(move |n| {
        let values = vars.iter().enumerate().map(|(i, v)| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let corner = n < 64 && (n >> (i % 6)) & 1 == 1;
            let value = match (n, state >> 61) {
                (0..64, _) => {
                    if corner {
                        v.size - 1
                    } else {
                        0
                    }
                }
                (_, 0) => 0,
                (_, 1) => v.size - 1,
                _ => ((state >> 20) % v.size as u64) as i64,
            };
            (v.id, value)
        });
        Point(values.collect())
    })
}

/// Calls `f` with every element that an expression reads, and with the scope there. Elements that say where to read are not
/// counted.
pub fn each_load(e: &Expr, scope: &mut Scope, f: &mut dyn FnMut(&Scope, BufferId, &[Index])) {
    match e {
        Expr::Load { from, at, .. } => f(scope, *from, at),
        Expr::Select { when, yes, no } => {
            for (side, passes) in [(yes, true), (no, false)] {
                scope.choices.push((when.clone(), passes));
                each_load(side, scope, f);
                scope.choices.pop();
            }
        }
        Expr::Reduce { vars, body, .. } => {
            let known = scope.vars.len();
            scope.vars.extend(vars);
            each_load(body, scope, f);
            scope.vars.truncate(known);
        }
        _ => e.children().into_iter().for_each(|child| each_load(child, scope, f)),
    }
}

impl Scope {
    /// Whether nothing is computed there, since a loop has no iteration.
    pub fn is_empty(&self) -> bool {
        self.vars.iter().any(|v| v.size <= 0)
    }
    /// A place where the index is below 0, or `size` or more; `None` if none is known.
    pub fn outside(&self, index: &Index, size: i64) -> Option<(Point, i64)> {
        if self.is_empty() {
            return None;
        }
        let (low, high) = self.range(index);
        if low >= 0 && high < size {
            return None;
        }
        points(&self.vars).find_map(|point| {
            let value = point.index(index)?;
            (point.is_in(self) && !(0..size).contains(&value)).then_some((point, value))
        })
    }
    /// Between which numbers an index surely lies.
    fn range(&self, index: &Index) -> (i64, i64) {
        let mut range =
            index.terms.iter().fold((index.constant, index.constant), |(low, high), (atom, factor)| {
                let (a, b) = self.atom(atom);
                let (a, b) = (a.saturating_mul(*factor), b.saturating_mul(*factor));
                (low.saturating_add(a.min(b)), high.saturating_add(a.max(b)))
            });
        for test in self.choices.iter().filter(|(_, passes)| *passes).flat_map(|(tests, _)| tests) {
            // index = times · test + rest
            let Some((atom, of_test)) = test.index.terms.first() else { continue };
            let Some((_, of_index)) = index.terms.iter().find(|(other, _)| other == atom) else { continue };
            if of_index % of_test != 0 {
                continue;
            }
            let times = of_index / of_test;
            let (low, high) = (index.clone() - test.index.clone() * times).range();
            let ends = [test.from, test.to.saturating_sub(1)].map(|end| end.saturating_mul(times));
            range.0 = range.0.max(ends[0].min(ends[1]).saturating_add(low));
            range.1 = range.1.min(ends[0].max(ends[1]).saturating_add(high));
        }
        range
    }
    fn atom(&self, atom: &Atom) -> (i64, i64) {
        match atom {
            Atom::Var(v) => (0, (v.size - 1).max(0)),
            Atom::Div(inner, by) => {
                let (low, high) = self.range(inner);
                (low.div_euclid(*by), high.div_euclid(*by))
            }
            Atom::Mod(inner, by) => {
                let (low, high) = self.range(inner);
                if low.div_euclid(*by) == high.div_euclid(*by) {
                    (low.rem_euclid(*by), high.rem_euclid(*by))
                } else {
                    (0, by - 1)
                }
            }
            Atom::Value { size, .. } => (0, (size - 1).max(0)),
        }
    }
}
