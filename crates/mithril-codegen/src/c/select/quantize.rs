//! Which products are computed with low-bit weights, and why others are not: a product with a fixed factor may be, if
//! the user's patterns of names take it.

use mithril_ir::error::{Code, Error, Result};

use crate::c::analysis::contraction::LEAST_WORK;
use crate::c::ir::expr::{Binary, BufferId, Expr, ReduceOp};
use crate::c::ir::kernel::Kernel;
use crate::c::ir::program::{KernelProgram, KernelStep, KernelWork, Level, Nest, Program, Start, Step};
use crate::c::kernels::quantized::gemm::MOST_TERMS;
use crate::c::kernels::spec::blocked_conv::Blocked;
use crate::c::kernels::spec::conv::Conv;
use crate::c::kernels::spec::gemm::{Gemm, Packing};
use crate::c::kernels::spec::strides::{Stored, Strides};
use crate::c::options::{Quantize, Scheme};
use crate::c::request::Request;
use crate::c::select::context::{SelectionContext, is_fixed};
use crate::c::select::decision::{Decision, Matrix, Reason};
use crate::c::target::{Element, Target};

/// The kernel of a product, quantized if that is requested and possible; and whether the factors are exchanged.
pub fn product(
    program: &KernelProgram,
    factors: [Start; 2],
    gemm: &Gemm,
    making: &mut SelectionContext<'_>,
) -> (Kernel, bool) {
    if let Some(call) = of_integers(program, factors, gemm, making) {
        return call;
    }
    let Some(quantize) = &making.request.options.quantize else { return (gemm.build(making.library), false) };
    let is_fixed = |side: usize| is_fixed(program, factors[side].0, making.request);
    let exchanged = if is_fixed(1) { None } else { exchanged(gemm).filter(|_| is_fixed(0)) };
    if exchanged.is_none() && (gemm.packing == Packing::Running || !is_fixed(1)) {
        return (gemm.build(making.library), false);
    }
    let weight = factors[usize::from(exchanged.is_none())];
    let one = exchanged.as_ref().unwrap_or(gemm);
    let name = name_of(program, weight.0).to_owned();
    let scheme = quantize.scheme(&name).and_then(|scheme| {
        if one.k > MOST_TERMS {
            return Err(Reason::cannot("its sums have too many terms"));
        }
        Ok((scheme, one.quantized(scheme, making.library).map_err(Reason::cannot)?))
    });
    let batch = one.batch.iter().copied().zip(one.b.batch.iter().copied());
    let matrix = Matrix {
        start: weight.1,
        n: one.n,
        column: one.b.column,
        terms: vec![(one.k, one.b.row)],
        batch: batch.filter(|(_, stride)| *stride > 0).collect(),
    };
    let is_quantised = scheme.is_ok();
    let (outcome, kernel) = match scheme {
        Ok((scheme, kernel)) => (Ok(scheme), kernel),
        Err(reason) => (Err(reason), gemm.build(making.library)),
    };
    let (bytes, is_convolution, range) = (kernel.packed_bytes, false, None);
    making.decisions.push(Decision { weight: name, outcome, matrix, bytes, is_convolution, range });
    (kernel, is_quantised && exchanged.is_some())
}

/// The kernel of a product that the model itself quantizes, and whether the factors are exchanged; `None` if it does not.
fn of_integers(
    program: &KernelProgram,
    factors: [Start; 2],
    gemm: &Gemm,
    making: &mut SelectionContext<'_>,
) -> Option<(Kernel, bool)> {
    let (range, weights) = program.integer_factors(factors.map(|(buffer, _)| buffer))?;
    let suits = gemm.k <= MOST_TERMS && gemm.element == Element::F32 && gemm.stored == [Stored::Same; 2];
    let exchanged = if weights == 0 { Some(exchanged(gemm)?) } else { None };
    let one = exchanged.as_ref().unwrap_or(gemm);
    (suits && one.packing == Packing::Ahead)
        .then(|| (one.of_integers(range, making.library), exchanged.is_some()))
}

/// The same product with rows and columns exchanged, if its epilogue does not count them.
fn exchanged(gemm: &Gemm) -> Option<Gemm> {
    if ["row", "column"].iter().any(|name| gemm.epilogue.expression.contains(name)) {
        return None;
    }
    let turned = |s: &Strides| Strides { batch: s.batch.clone(), row: s.column, column: s.row };
    let mut one = Gemm { m: gemm.n, n: gemm.m, packing: Packing::Ahead, ..gemm.clone() };
    (one.a, one.b, one.out) = (turned(&gemm.b), turned(&gemm.a), turned(&gemm.out));
    for operand in &mut one.epilogue.operands {
        operand.strides = turned(&operand.strides);
    }
    Some(one)
}

/// How a convolution quantizes its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InFewBits {
    /// It is done in 8-bit integers, with this range of its image if that is known ahead.
    Whole(Option<[f32; 2]>),
    /// It is done in 8-bit integers, which the weights are, with this range of its image.
    Integers([f32; 2]),
    /// They become float when it is done.
    Weights(Scheme),
}

impl InFewBits {
    /// Whether the convolution is done in integers.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Whole(_) | Self::Integers(_))
    }

    /// The range of the image, if that is known ahead.
    pub fn range(self) -> Option<[f32; 2]> {
        match self {
            Self::Whole(range) => range,
            Self::Integers(range) => Some(range),
            Self::Weights(_) => None,
        }
    }

    /// How weights are kept that become float.
    pub fn weights(self) -> Scheme {
        match self {
            Self::Whole(_) | Self::Integers(_) => Scheme::Int8Weights,
            Self::Weights(scheme) => scheme,
        }
    }
}

/// How a convolution is to quantize this weight; why it cannot; `None` if nothing is asked of it.
pub fn convolution<L: Level>(
    program: &Program<L>,
    [image, weight]: [BufferId; 2],
    conv: &Conv,
    request: &Request,
) -> Option<std::result::Result<InFewBits, Reason>> {
    if let Some((range, 1)) = program.integer_factors([image, weight])
        && conv.element == Element::F32
        && conv.depth.is_none()
        && is_quick(conv, &request.target)
    {
        return Some(Ok(InFewBits::Integers(range)));
    }
    let quantize = request.options.quantize.as_ref().filter(|_| is_fixed(program, weight, request))?;
    let name = of_convolution(program, weight);
    Some(quantize.scheme(name).and_then(|scheme| {
        if name != name_of(program, weight) {
            return Err(Reason::cannot(
                "parts of it are brought into another order, as for a transposed convolution",
            ));
        }
        if conv.element != Element::F32 {
            return Err(Reason::cannot("it is not of float32"));
        }
        Ok(match scheme {
            Scheme::Int8 if is_quick(conv, &request.target) => {
                InFewBits::Whole(quantize.ranges.get(name).copied())
            }
            Scheme::Int8 => InFewBits::Weights(Scheme::Int8Weights),
            scheme => InFewBits::Weights(scheme),
        })
    }))
}

/// Whether integers are faster than floats: sums of many terms, by instructions that multiply four bytes at once,
/// for whole vectors of filters. A convolution by channels would take as long to make bytes of its image as it takes.
pub fn is_quick(conv: &Conv, target: &Target) -> bool {
    let (channels, filters) = (conv.channels / conv.groups, conv.filters / conv.groups);
    let fills = conv.groups == 1 || Blocked::fill_words(channels, filters, target);
    target.has_bytes && fills && channels * conv.kernel[0] * conv.kernel[1] <= MOST_TERMS
}

/// Whether sums of so many products of bytes fit.
pub fn fits_integers(terms: usize) -> bool {
    terms <= MOST_TERMS
}

/// Notes what became of the weight of a convolution, whose kernel reads its terms in this order.
pub fn decided(
    program: &KernelProgram,
    weight: BufferId,
    conv: &Conv,
    outcome: std::result::Result<InFewBits, Reason>,
    (terms, bytes): (Vec<(usize, usize)>, usize),
    decisions: &mut Vec<Decision>,
) {
    let k = conv.channels / conv.groups * conv.kernel[0] * conv.kernel[1];
    let matrix = Matrix { n: conv.filters, column: k, terms, ..Matrix::default() };
    let (weight, is_convolution) = (of_convolution(program, weight).to_owned(), true);
    let (outcome, range) = match outcome {
        Ok(InFewBits::Whole(range)) => (Ok(Scheme::Int8), range),
        Ok(InFewBits::Integers(range)) => (Ok(Scheme::Int8), Some(range)),
        Ok(InFewBits::Weights(scheme)) => (Ok(scheme), None),
        Err(reason) => (Err(reason), None),
    };
    decisions.push(Decision { weight, outcome, matrix, bytes, is_convolution, range });
}

/// The name of a weight as users know it: what is made of one parameter when parameters are packed has its name.
fn name_of<L: Level>(program: &Program<L>, buffer: BufferId) -> &str {
    let of = &program.buffers[buffer];
    let made = program.prepacking.iter().filter(|_| of.is_prepacked());
    let reads: Vec<BufferId> =
        made.filter(|step| step.writes().contains(&buffer)).flat_map(Step::reads).collect();
    let alike = |b: &&BufferId| **b != buffer && program.buffers[**b].shape == of.shape;
    match reads.iter().filter(alike).collect::<Vec<_>>()[..] {
        [one] => name_of(program, *one),
        _ => &of.name,
    }
}

/// The name of a convolution's weight; that of the parameter, too, of which some elements are copied in another order.
fn of_convolution<L: Level>(program: &Program<L>, buffer: BufferId) -> &str {
    let of = &program.buffers[buffer];
    let made = program.prepacking.iter().filter(|_| of.is_prepacked());
    let made = made.filter(|step| step.writes().contains(&buffer));
    let reads: Vec<BufferId> = made.flat_map(Step::reads).filter(|read| *read != buffer).collect();
    let alike: Vec<BufferId> =
        reads.iter().copied().filter(|&read| program.buffers[read].shape == of.shape).collect();
    match (&alike[..], &reads[..]) {
        (&[one], _) | (_, &[one]) => of_convolution(program, one),
        _ => &of.name,
    }
}

/// Adds weights of products that no low-bit kernel is made for: those of other kernels, and of loops.
pub fn others(program: &KernelProgram, request: &Request, decisions: &mut Vec<Decision>) {
    let Some(quantize) = &request.options.quantize else { return };
    for (start, text, bytes) in program.steps.iter().flat_map(|step| left(program, step)) {
        let weight = name_of(program, start.0).to_owned();
        if !is_fixed(program, start.0, request) || decisions.iter().any(|d| d.weight == weight) {
            continue;
        }
        let outcome = quantize.scheme(&weight).and_then(|_| Err(Reason::cannot(text)));
        let matrix = Matrix { start: start.1, ..Matrix::default() };
        decisions.push(Decision { weight, outcome, matrix, bytes, is_convolution: false, range: None });
    }
}

/// What the products of a step have as factors, why those stay float, and bytes in which they are kept.
fn left(program: &KernelProgram, step: &KernelStep) -> Vec<(Start, String, usize)> {
    match &step.work {
        KernelWork::Kernel(k) => {
            let text = format!("it is used in a {}", k.what);
            let is_matrix = |start: &&Start| is_matrix(program, start.0);
            let inputs = k.inputs[..1].iter().filter(is_matrix).chain(&k.inputs[1..]);
            inputs.map(|&start| (start, text.clone(), k.kernel.packed_bytes)).collect()
        }
        KernelWork::Nest(nest) => in_loops(program, nest),
        KernelWork::Parts(parts) => parts.steps.iter().flat_map(|step| left(program, step)).collect(),
        KernelWork::Call(_) | KernelWork::Rows(_) | KernelWork::Pack(_) => Vec::new(),
    }
}

/// Matrices in sums of products that stay loops.
fn in_loops(program: &KernelProgram, nest: &Nest) -> Vec<(Start, String, usize)> {
    let mut weights = Vec::new();
    nest.value.walk(&mut |e| {
        let Expr::Reduce { op: ReduceOp::Sum, vars, body } = e else { return };
        if !matches!(&**body, Expr::Binary(Binary::Multiply, ..)) {
            return;
        }
        let work = nest.vars.iter().chain(vars).fold(1_i64, |n, v| n.saturating_mul(v.size));
        let text = if work < LEAST_WORK {
            format!(
                "its product has {work} multiplications, and below {LEAST_WORK} it is done by plain loops"
            )
        } else {
            "its product is done by plain loops".to_owned()
        };
        body.walk(&mut |factor| {
            let Expr::Load { from, .. } = factor else { return };
            let mut is_summed = false;
            factor.each_free_var(&mut |v| is_summed |= vars.contains(&v));
            if is_summed && is_matrix(program, *from) {
                weights.push(((*from, 0), text.clone(), program.buffers[*from].bytes()));
            }
        });
    });
    weights
}

/// Whether it is a parameter with rows and columns, and not a bias or a norm's.
fn is_matrix(program: &KernelProgram, buffer: BufferId) -> bool {
    let buffer = &program.buffers[buffer];
    let is_fixed = buffer.is_param || buffer.is_prepacked();
    is_fixed && buffer.shape.iter().filter(|size| **size > 1).count() > 1
}

impl Quantize {
    /// How a weight is to be kept.
    fn scheme(&self, name: &str) -> std::result::Result<Scheme, Reason> {
        let rule = self.rules.iter().find(|(pattern, _)| matches(pattern, name));
        let text = if rule.is_some() { "kept in float32 by its name" } else { "no pattern takes its name" };
        rule.and_then(|(_, scheme)| *scheme)
            .ok_or_else(|| Reason { text: text.to_owned(), is_intended: true })
    }
}

/// Whether a pattern is a name: `*` stands for anything, `?` for one character.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => name.is_empty(),
        Some('*') => {
            let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.into_iter().any(|at| matches(rest.as_str(), &name[at..]))
        }
        Some(expected) => {
            let mut left = name.chars();
            left.next().is_some_and(|c| expected == '?' || c == expected)
                && matches(rest.as_str(), left.as_str())
        }
    }
}

/// Refuses patterns that are none of these names of parameters.
pub fn find_all<'a>(mut patterns: impl Iterator<Item = &'a str>, names: &[&str]) -> Result<()> {
    let known = |pattern: &str| pattern == "*" || names.iter().any(|name| matches(pattern, name));
    let Some(pattern) = patterns.find(|pattern| !known(pattern)) else { return Ok(()) };
    let text = format!("quantize: no parameter of the model has a name like {pattern:?}");
    Err(Error::new(Code::BadArgument, text).help(some(names)))
}

/// Refuses patterns and ranges for weights that are not there; and weights that could not be quantized, if that is asked
/// for.
pub fn check(program: &KernelProgram, quantize: Option<&Quantize>, decisions: &[Decision]) -> Result<()> {
    let Some(quantize) = quantize else { return Ok(()) };
    let names: Vec<&str> = program.buffers.iter().filter(|b| b.is_param).map(|b| &*b.name).collect();
    find_all(quantize.rules.iter().map(|(pattern, _)| &**pattern), &names)?;
    if let Some(weight) = quantize.ranges.keys().find(|weight| !names.contains(&weight.as_str())) {
        let text = format!("quantize_ranges: the model has no parameter {weight:?}");
        return Err(Error::new(Code::BadArgument, text).help(some(&names)));
    }
    if !quantize.strict {
        return Ok(());
    }
    let left = decisions.iter().filter_map(|d| {
        let reason = d.outcome.as_ref().err().filter(|reason| !reason.is_intended)?;
        Some(format!("{}: {}", d.weight, reason.text))
    });
    let mut left: Vec<String> = left.collect();
    left.dedup();
    if left.is_empty() {
        return Ok(());
    }
    let text = format!("{} of the weights cannot be quantized", left.len());
    let error = Error::new(Code::Unsupported, text).help(
        "exclude them by name, or leave quantize_strict out: they then stay in float32 and are reported",
    );
    Err(left.into_iter().fold(error, Error::note))
}

/// A few of these names.
fn some(names: &[&str]) -> String {
    let (first, more) = (names[..names.len().min(5)].join(", "), if names.len() > 5 { ", …" } else { "" });
    format!("its parameters are {first}{more}")
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_of_names() {
        assert!(matches("*", "") && matches("h.*.weight", "h.0.attention.weight") && matches("f?", "fc"));
        assert!(!matches("h.*.weight", "h.0.bias") && !matches("f?", "f") && !matches("", "f"));
        assert!(matches("**é*", "aéb") && !matches("fc", "fc.weight"));
    }
}
