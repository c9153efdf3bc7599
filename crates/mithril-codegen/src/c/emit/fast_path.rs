//! Functions that are fast for most arguments and slow for a few, such as a sine, which is hard to compute for large
//! angles only. So that a compiler can vectorize the loops, these have no branches: they are written twice. The first loops
//! call the fast forms and record whether an argument is out of their range; if one is, the second loops compute all
//! elements again.

use mithril_ir::DType;

use crate::c::ir::expr::{Expr, arithmetic};
use crate::c::ir::program::{KernelStep, Nest};
use crate::c::syntax::expr::Writer;
use crate::c::syntax::template::{Form, SLOW};

/// Loops of fewer elements are not written twice.
const FEWEST: i64 = 256;

/// Whether the loops of a step are written twice: that is worth it, and they may be. Loops that add to what they have
/// written, or write where they read, cannot be done again.
pub fn is_written_twice(step: &KernelStep, nest: &Nest) -> bool {
    let is_large = nest.vars.iter().map(|v| v.size).product::<i64>() >= FEWEST;
    is_large && has_fast(&nest.value) && !step.reads().contains(&nest.to) && !has_sum(&nest.value)
}

/// Writes the fast loops, and the return behind them unless an argument is out of their range.
pub fn write_fast(writer: &mut Writer<'_>, write: impl FnOnce(&mut Writer<'_>)) {
    writer.line(format!(
        "uint32_t {SLOW} = 0; /* 1 if an argument is out of the range of the fast functions */"
    ));
    writer.open("{");
    writer.form = Form::Fast;
    write(writer);
    writer.form = Form::Plain;
    writer.close();
    writer.line(format!("if (!{SLOW}) return;"));
}

fn has_sum(e: &Expr) -> bool {
    matches!(e, Expr::Reduce { .. }) || e.children().into_iter().any(has_sum)
}

/// Whether a function in it has a fast form: there are some for floats.
fn has_fast(e: &Expr) -> bool {
    let mut has_fast = false;
    e.walk(&mut |e| {
        let Expr::Apply { text, args, .. } = e else { return };
        let is_float = args.first().is_some_and(|x| arithmetic(x.dtype()) == DType::F32);
        has_fast |= is_float && text.contains(&format!("{{{SLOW}}}"));
    });
    has_fast
}
