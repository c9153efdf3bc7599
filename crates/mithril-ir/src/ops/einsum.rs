//! Einstein summation: the equation, its check against shapes, and its expansion into transposes and products.

use std::collections::BTreeMap;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::lowering::LoweringRule::Function;
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, OpDef, Port, Precision, ShapeRule, Tolerance, attr, variadic,
};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;

use super::create::ARANGE;
use super::elementwise::MULTIPLY;
use super::linalg::reshape;
use super::triangle::DIAGONAL;

static PORTS: &[Port] = &[attr("equation", Attr::Text, DefaultLit::Required), variadic("operands")];

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&EINSUM];

/// sums of products given by an equation
pub static EINSUM: OpDef = OpDef {
    name: "einsum",
    doc: "Sums of products in Einstein notation, e.g. `\"bij,bjk->bik\"` for a batch of matrix products.\n\n\
          The equation names each axis of each operand by a letter. Axes with the same letter are iterated \
          together and have equal sizes (a size 1 broadcasts); a letter that is repeated within an operand takes its diagonal; \
          letters that are not in the output are summed. `...` stands for the axes without a letter, which \
          broadcast. Without `->` the output is `...` and then, in alphabetical order, the letters that occur \
          once. Where the output leaves out the `...` of the operands, those axes are summed. Operands are \
          multiplied from left to right, so that their order decides the cost.",
    layer: "Einsum",
    ports: PORTS,
    shape: ShapeRule::Fn(shape),
    dtype: DTypeRule::Arith,
    expand: Some(expand),
    lowering: Lowering {
        numpy: Function(|s| {
            // NumPy's einsum does not support bfloat16.
            s.out(0).filter(|t| t.dtype != DType::BF16)?;
            call_text(s, "np.einsum", if s.args.len() > 2 { ", optimize=True" } else { "" })
        }),
        torch: Function(|s| {
            let (text, dtype) = (call_text(s, "torch.einsum", "")?, s.out(0)?.dtype);
            // For one operand PyTorch calls its `sum`, which returns int64 for integers, and on CUDA it multiplies no
            // matrices of them.
            dtype.is_float().then_some(text)
        }),
        jax: Function(|s| call_text(s, "jnp.einsum", "")),
        ..Lowering::NONE
    },
    cases: &[
        "equation=\"ij,jk->ik\" [2,3] [3,4]",
        "equation=\"bqhd,bkhd->bhqk\" [2,3,2,4] [2,5,2,4]",
        "equation=\"ij,jk\" [2,3] [3,4]",
        "equation=\"ij\" [2,3]",
        "equation=\"ba\" [2,3]",
        "equation=\"ii\" [3,3]",
        "equation=\"ii->i\" [3,3]",
        "equation=\"ij->\" [2,3]",
        "equation=\"i,j->ij\" [2] [3]",
        "equation=\"i,i->\" [3] [3]",
        "equation=\"...ij,...jk->...ik\" [2,1,3,4] [5,4,2]",
        "equation=\"i...->...\" [2,3,4]",
        "equation=\"ij,jk,kl->il\" [2,3] [3,4] [4,2]",
        "equation=\"ij,i,j->\" [2,3] [2] [3]",
        "equation=\"ij,jk->ik\" [2,0] [0,4]",
        "equation=\"iij,jk->ik\" [3,3,2] [2,4]",
        "equation=\"ij,jk->ik\" i32[2,3]<9 i32[3,4]<9",
    ],
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Low),
    ..BLANK
};

/// Name of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Label {
    /// An axis under `...`, counted from the right.
    Rest(usize),
    /// A letter.
    Letter(char),
}

/// A parsed equation, with `...` expanded for the ranks of the operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Equation {
    /// Labels of the axes of each operand.
    pub inputs: Vec<Vec<Label>>,
    /// Labels of the axes of the output.
    pub output: Vec<Label>,
}

const HELP: &str = "write the letters of each operand between commas and those of the output after `->`, \
                    e.g. \"bij,bjk->bik\"; `...` stands for any further axes";

fn malformed(text: &str, what: impl std::fmt::Display) -> Error {
    Error::new(Code::BadArgument, format!("einsum cannot read the equation {text:?}"))
        .note(what.to_string())
        .help(HELP)
}

/// Labels of one term; `None` stands for `...`.
fn term(text: &str, part: &str) -> Result<Vec<Option<char>>> {
    let mut labels = Vec::new();
    let mut rest = part;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            if labels.contains(&None) {
                return Err(malformed(text, format!("`...` occurs twice in `{part}`")));
            }
            labels.push(None);
            rest = after;
        } else if c.is_ascii_alphabetic() {
            labels.push(Some(c));
            rest = &rest[1..];
        } else if c == '.' {
            return Err(malformed(text, format!("in `{part}` a point stands alone; `...` has three")));
        } else {
            return Err(malformed(text, format!("{c:?} in `{part}` is not a letter from a to z or A to Z")));
        }
    }
    Ok(labels)
}

impl Equation {
    /// Parses `text` for operands of these ranks.
    pub fn parse(text: &str, ranks: &[usize]) -> Result<Self> {
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match compact.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (compact.as_str(), None),
        };
        let parts: Vec<&str> = left.split(',').collect();
        if parts.len() != ranks.len() {
            let count = ranks.len();
            let message = format!("it names {} operands, but {count} are given", parts.len());
            return Err(malformed(text, message));
        }
        let terms = parts.iter().map(|part| term(text, part)).collect::<Result<Vec<_>>>()?;
        let mut inputs = Vec::new();
        for ((labels, part), &rank) in terms.iter().zip(&parts).zip(ranks) {
            let open = labels.contains(&None);
            let letters = labels.len() - usize::from(open);
            if rank < letters || (!open && rank > letters) {
                let message = format!("`{part}` names {letters} axes, but the operand has {rank}");
                return Err(malformed(text, message));
            }
            inputs.push(expand_ellipsis(labels, rank - letters));
        }
        let widest = inputs.iter().map(|l| l.iter().filter(|l| matches!(l, Label::Rest(_))).count()).max();
        let widest = widest.unwrap_or(0);
        let output = match right {
            Some(right) => explicit_output(text, right, &inputs, widest)?,
            None => implicit_output(&inputs, widest),
        };
        Ok(Self { inputs, output })
    }
}

/// Expands `...` to `n` axes.
fn expand_ellipsis(labels: &[Option<char>], n: usize) -> Vec<Label> {
    let mut out = Vec::new();
    for label in labels {
        match label {
            Some(c) => out.push(Label::Letter(*c)),
            None => out.extend((0..n).rev().map(Label::Rest)),
        }
    }
    out
}

fn explicit_output(text: &str, right: &str, inputs: &[Vec<Label>], widest: usize) -> Result<Vec<Label>> {
    let output = expand_ellipsis(&term(text, right)?, widest);
    for (i, label) in output.iter().enumerate() {
        let Label::Letter(c) = label else { continue };
        if output[..i].contains(label) {
            return Err(malformed(text, format!("`{c}` occurs twice in the output")));
        }
        if !inputs.iter().any(|labels| labels.contains(label)) {
            return Err(malformed(text, format!("`{c}` of the output is in no operand")));
        }
    }
    Ok(output)
}

fn implicit_output(inputs: &[Vec<Label>], widest: usize) -> Vec<Label> {
    let mut counts: BTreeMap<Label, usize> = BTreeMap::new();
    for label in inputs.iter().flatten().filter(|l| matches!(l, Label::Letter(_))) {
        *counts.entry(*label).or_default() += 1;
    }
    let once = counts.into_iter().filter(|(_, n)| *n == 1).map(|(label, _)| label);
    (0..widest).rev().map(Label::Rest).chain(once).collect()
}

type Sizes<'s> = BTreeMap<Label, &'s Dim>;

/// Size of every label; 1 broadcasts. `same` is called with sizes that must be equal.
fn sizes<'s>(
    equation: &Equation,
    shapes: impl IntoIterator<Item = &'s Shape>,
    mut same: impl FnMut(&Dim, &Dim, &str) -> Result<()>,
) -> Result<Sizes<'s>> {
    let mut sizes = Sizes::new();
    for (labels, shape) in equation.inputs.iter().zip(shapes) {
        let mut own = Sizes::new();
        for (label, size) in labels.iter().zip(shape.iter()) {
            let what = match label {
                Label::Letter(c) => format!("sizes `{c}`"),
                Label::Rest(_) => "sizes under `...`".into(),
            };
            // Within an operand 1 does not broadcast: a matrix [1, 3] has no diagonal.
            match own.get(label) {
                Some(old) => same(old, size, &what)?,
                None => _ = own.insert(*label, size),
            }
            match sizes.get(label) {
                Some(old) if size.is(1) || *old == size => {}
                Some(old) if !old.is(1) => same(old, size, &what)?,
                _ => _ = sizes.insert(*label, size),
            }
        }
    }
    Ok(sizes)
}

fn shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let shapes = cx.shapes_from(1);
    let ranks: Vec<usize> = shapes.iter().map(|s| s.rank()).collect();
    let equation = Equation::parse(&cx.text(0)?, &ranks)?;
    let sizes = sizes(&equation, shapes, |a, b, what| cx.same(a, b, what))?;
    Ok(vec![equation.output.iter().filter_map(|l| sizes.get(l).copied().cloned()).collect()])
}

/// An intermediate result with the labels of its axes.
#[derive(Clone)]
struct Term<'a> {
    value: V<'a>,
    labels: Vec<Label>,
}

fn expand<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let operands = &c.x[1..];
    let shapes: Vec<Shape> = operands.iter().map(|v| v.shape()).collect();
    let ranks: Vec<usize> = shapes.iter().map(Shape::rank).collect();
    let plan = c.text(0).and_then(|text| {
        let equation = Equation::parse(&text, &ranks)?;
        let sizes = sizes(&equation, &shapes, |_, _, _| Ok(()))?;
        Ok((equation, sizes))
    });
    let (equation, sizes) = match plan {
        Ok(plan) => plan,
        Err(error) => {
            c.cx.fail(error);
            return vec![c.cx.lit(0.0)];
        }
    };
    let terms = equation.inputs.iter().zip(operands);
    let mut terms = terms
        .map(|(labels, &value)| Term { value, labels: labels.clone() }.simple(&sizes))
        .rev()
        .collect::<Vec<_>>();
    let Some(mut product) = terms.pop() else { return vec![c.cx.lit(0.0)] };
    while let Some(next) = terms.pop() {
        let later = |l: &Label| equation.output.contains(l) || terms.iter().any(|t| t.labels.contains(l));
        let left = product.sum_except(|l| later(l) || next.labels.contains(l));
        let right = next.sum_except(|l| later(l) || left.labels.contains(l));
        product = left.times(&right, &sizes, later);
    }
    let product = product.sum_except(|l| equation.output.contains(l));
    vec![product.ordered(&equation.output)]
}

impl<'a> Term<'a> {
    /// Takes diagonals of repeated labels and drops axes of size 1 that broadcast.
    fn simple(mut self, sizes: &Sizes) -> Self {
        while let Some((i, j)) = self.repeated() {
            self.value = diagonal(self.value, i, j);
            let label = self.labels.remove(j);
            self.labels.remove(i);
            self.labels.push(label);
        }
        let shape = self.value.shape();
        let broadcasts =
            |i: usize, label: &Label| shape[i].is(1) && sizes.get(label).is_some_and(|d| !d.is(1));
        let keep: Vec<usize> = (0..self.labels.len()).filter(|&i| !broadcasts(i, &self.labels[i])).collect();
        self.labels = keep.iter().map(|&i| self.labels[i]).collect();
        self.value = reshape(self.value, keep.iter().map(|&i| shape[i].clone()));
        self
    }

    fn repeated(&self) -> Option<(usize, usize)> {
        let first = |j: usize| self.labels[..j].iter().position(|l| *l == self.labels[j]).map(|i| (i, j));
        (0..self.labels.len()).find_map(first)
    }

    /// Sums over the labels that are no longer needed.
    fn sum_except(self, needed: impl Fn(&Label) -> bool) -> Self {
        let (kept, summed): (Vec<usize>, Vec<usize>) =
            (0..self.labels.len()).partition(|&i| needed(&self.labels[i]));
        if summed.is_empty() {
            return self;
        }
        // A sum of integers is int64; an equation keeps the dtype of its operands.
        let sum = self.value.sum(summed, false).cast(self.value.dtype());
        Self { value: sum, labels: kept.into_iter().map(|i| self.labels[i]).collect() }
    }

    /// The value with its axes in the order of `labels`.
    fn ordered(&self, labels: &[Label]) -> V<'a> {
        let order: Vec<usize> =
            labels.iter().filter_map(|l| self.labels.iter().position(|m| m == l)).collect();
        if order.iter().copied().eq(0..self.labels.len()) {
            return self.value;
        }
        self.value.transpose(order)
    }

    /// The product, summed over the labels that both have and that are not needed later.
    fn times(&self, other: &Self, sizes: &Sizes, later: impl Fn(&Label) -> bool) -> Self {
        let (shared, left): (Vec<Label>, Vec<Label>) =
            self.labels.iter().partition(|l| other.labels.contains(l));
        let (batch, inner): (Vec<Label>, Vec<Label>) = shared.into_iter().partition(|l| later(l));
        let right: Vec<Label> = other.labels.iter().filter(|l| !self.labels.contains(l)).copied().collect();
        let dims = |labels: &[Label]| {
            labels.iter().filter_map(|l| sizes.get(l).copied().cloned()).collect::<Vec<Dim>>()
        };
        let merged = |labels: &[Label]| Shape::of(dims(labels)).numel();
        let a = self.ordered(&[&batch[..], &left, &inner].concat());
        let labels = [&batch[..], &left, &right].concat();
        if inner.is_empty() {
            // Without a sum it is an elementwise product, with axes of size 1 for missing labels.
            let b = other.ordered(&[&batch[..], &right].concat());
            let ones = vec![Dim::ONE; right.len()];
            let a = reshape(a, [dims(&batch), dims(&left), ones].concat());
            let ones = vec![Dim::ONE; left.len()];
            let b = reshape(b, [dims(&batch), ones, dims(&right)].concat());
            return Self { value: a.op(&MULTIPLY, &[b]), labels };
        }
        let b = other.ordered(&[&batch[..], &inner, &right].concat());
        let a = reshape(a, [dims(&batch), vec![merged(&left), merged(&inner)]].concat());
        let b = reshape(b, [dims(&batch), vec![merged(&inner), merged(&right)]].concat());
        Self { value: reshape(a.matmul(b), dims(&labels)), labels }
    }
}

/// The diagonal of axes `i` and `j`, as the last axis.
fn diagonal(x: V<'_>, i: usize, j: usize) -> V<'_> {
    let size = x.dim(i as i64);
    if size.known().is_some() {
        return x.op(&DIAGONAL, &[x.lit(0), x.lit(i), x.lit(j)]);
    }
    // The size is symbolic: sum over the matrix with zeros off the diagonal.
    let count = x.lit(size.clone()).op(&ARANGE, &[]);
    let along = |axis| {
        let one = |k| if k == axis { size.clone() } else { Dim::ONE };
        reshape(count, (0..x.rank()).map(one))
    };
    let masked = along(i).equal(along(j)).select(x, 0);
    let sum = masked.sum(i, false).cast(x.dtype());
    sum.moveaxis(j - 1, -1)
}

/// `np.einsum("ij,jk->ik", a, b)`; equations that frameworks interpret differently are expanded.
fn call_text(s: &LoweringCx<'_>, function: &str, options: &str) -> Option<String> {
    let text = s.text(0).ok()?;
    let shapes: Vec<Shape> =
        (1..s.args.len()).map(|i| s.ty(i).map(|t| t.shape.clone())).collect::<Option<_>>()?;
    let ranks: Vec<usize> = shapes.iter().map(Shape::rank).collect();
    let equation = Equation::parse(&text, &ranks).ok()?;
    let sizes = sizes(&equation, &shapes, |_, _, _| Ok(())).ok()?;
    let broadcasts = equation.inputs.iter().zip(&shapes).any(|(labels, shape)| {
        labels
            .iter()
            .zip(shape.iter())
            .any(|(l, d)| matches!(l, Label::Letter(_)) && sizes.get(l) != Some(&d))
    });
    let rest_is_summed = sizes.keys().any(|l| matches!(l, Label::Rest(_)) && !equation.output.contains(l));
    if broadcasts || rest_is_summed {
        return None;
    }
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    Some(format!("{function}({}, {}{options})", Lit::text(&text), s.args[1..].join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implicit_outputs_are_sorted() {
        let output = |text: &str, ranks: &[usize]| Equation::parse(text, ranks).unwrap().output;
        let letters = |text: &str| text.chars().map(Label::Letter).collect::<Vec<_>>();
        assert_eq!(output("ij,jk", &[2, 2]), letters("ik"));
        assert_eq!(output("ba", &[2]), letters("ab"));
        assert_eq!(output("ii", &[2]), letters(""));
        assert_eq!(output("bA", &[2]), letters("Ab"));
        let rest = [Label::Rest(1), Label::Rest(0), Label::Letter('i')];
        assert_eq!(output("i...", &[3]), rest);
        assert_eq!(output(" i j , j -> i ", &[2, 1]), letters("i"));
    }

    #[test]
    fn malformed_equations_say_why() {
        for (text, ranks, why) in [
            ("ij,jk->ik", &[2][..], "2 operands"),
            ("ij->ik", &[2], "in no operand"),
            ("ij->ii", &[2], "twice in the output"),
            ("ij->i", &[3], "names 2 axes"),
            ("i1->i", &[2], "'1'"),
            ("i..->i", &[2], "point"),
            ("......->", &[2], "twice"),
            ("ij->i->j", &[2], "'-'"),
            ("é->", &[1], "not a letter"),
        ] {
            let error = Equation::parse(text, ranks).unwrap_err();
            assert_eq!(error.code(), Code::BadArgument);
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.hint().is_some());
        }
    }
}
