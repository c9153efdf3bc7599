//! Dead-tap elimination: weights of a convolution that only ever meet the zeros around its image, as the outer ones do
//! whose dilation is as large as the image, or those of a volume of one frame, are left out. What stays is a convolution
//! with fewer weights, which are copied (once, where weights may be packed), and less padding.

use crate::c::analysis::contraction::{contraction, loaded, replaced, the_sum};
use crate::c::analysis::convolution::shape;
use crate::c::ir::expr::{Expr, Index, StepId, Var};
use crate::c::ir::program::{LoopBuffer, LoopProgram, LoopStep, LoopWork, Nest};
use crate::c::kernels::spec::conv::Conv;
use crate::ids::Id as _;

/// Leaves out dead weights of all convolutions.
pub fn eliminate(program: &mut LoopProgram) {
    let mut step = StepId::new(0);
    while let Some(step_before) = program.steps.get(step).cloned() {
        if let LoopWork::Nest(nest) = &step_before.work
            && let Some((copy, nest)) = without_dead_taps(program, nest)
        {
            program.steps[step].work = LoopWork::Nest(nest);
            let copy =
                LoopStep { name: "weights".to_owned(), work: LoopWork::Nest(copy), ..step_before.clone() };
            program.steps.insert(step, copy);
            step = step.next();
        }
        step = step.next();
    }
}

/// The nest that copies the other weights, and the one that reads them; `None` where no weight is dead.
fn without_dead_taps(program: &mut LoopProgram, nest: &Nest) -> Option<(Nest, Nest)> {
    let c = contraction(nest)?;
    let (conv, [_, weights], _) = shape(program, nest, &c)?;
    let places = &c.vars[1..];
    let axes = axes(&conv);
    let live: Vec<[usize; 2]> = axes[axes.len() - places.len()..].iter().map(Axis::live).collect();
    if live.iter().zip(places).all(|(&[from, to], v)| to - from == v.size as usize) {
        return None;
    }
    let (_, at) = loaded(c.factors[1], c.element)?;
    let LoopBuffer { name, dtype, shape, .. } = program.buffers[weights].clone();
    let mut sizes = shape.clone();
    for (size, [from, to]) in sizes[2..].iter_mut().zip(&live) {
        *size = (to - from) as i64;
    }
    let to = program.buffers.end();
    program.buffers.push(LoopBuffer::temporary(format!("{name}_live"), dtype, sizes.clone()));
    let all = program.fresh_vars(sizes.iter().copied());
    let inner = program.fresh_vars(sizes[1..].iter().copied());
    let shifted = |v: Var, axis: usize| {
        let from = axis.checked_sub(2).map_or(0, |i| live[i][0]);
        Index::var(v) + Index::number(from as i64)
    };
    let from_all = all.iter().enumerate().map(|(axis, &v)| shifted(v, axis)).collect();
    let copy = Nest { to, vars: all, value: Expr::Load { from: weights, at: from_all, stored: dtype } };
    // The same sum over what is left of the variables.
    let sum = the_sum(&nest.value)?;
    let Expr::Reduce { op, body, .. } = sum else { return None };
    let index = |v: Var| match c.vars.iter().position(|&w| w == v) {
        Some(i) => shifted(inner[i], i + 1),
        None => Index::var(v),
    };
    let read = Expr::Load { from: weights, at: at.to_vec(), stored: dtype }.substitute(&index);
    let kept: Vec<Index> = at[..1].iter().cloned().chain(inner.iter().map(|&v| Index::var(v))).collect();
    let body = replaced(&body.substitute(&index), &read, &Expr::Load { from: to, at: kept, stored: dtype });
    let new = Expr::Reduce { op: *op, vars: inner, body: Box::new(body) };
    Some((copy, Nest { value: replaced(&nest.value, sum, &new), ..nest.clone() }))
}

/// An axis along which weights slide over an image.
struct Axis {
    image: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    before: usize,
    result: usize,
}

/// Depth, height and width.
fn axes(conv: &Conv) -> Vec<Axis> {
    let result = conv.result();
    let mut axes: Vec<Axis> = [0, 1]
        .iter()
        .map(|&i| Axis {
            image: conv.image[i],
            kernel: conv.kernel[i],
            stride: conv.stride[i],
            dilation: conv.dilation[i],
            before: conv.padding[i][0],
            result: result[i],
        })
        .collect();
    if let Some(depth) = conv.depth {
        let axis = Axis {
            image: depth.image,
            kernel: depth.kernel,
            stride: depth.stride,
            dilation: depth.dilation,
            before: depth.padding[0],
            result: depth.result,
        };
        axes.insert(0, axis);
    }
    axes
}

impl Axis {
    /// The first weight that meets the image for some pixel of the result, and the one after the last; at least one, and
    /// none in front of it that reaches further than the margin does.
    fn live(&self) -> [usize; 2] {
        let meets = |tap: &usize| {
            let reach = tap * self.dilation;
            let first = self.before.saturating_sub(reach).div_ceil(self.stride);
            first < self.result && first * self.stride + reach < self.image + self.before
        };
        let first = (0..self.kernel).find(meets).unwrap_or(0);
        let last = (0..self.kernel).rfind(meets).unwrap_or(0);
        [first.min(self.before / self.dilation), last + 1]
    }
}
