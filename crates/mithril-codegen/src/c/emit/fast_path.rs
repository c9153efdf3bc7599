//! Functions that are quick for most arguments and slow for a few, such as a sine, which is hard to compute for large
//! angles only. Loops have no branch inside, so that a compiler makes vectors of them: they are written twice. The first
//! time every argument is taken as one of the many, and it is noted if one is not; then the second ones do it again.

use mithril_ir::DType;

use crate::c::ir::expr::{Expr, arithmetic};
use crate::c::ir::program::{KernelStep, Nest};
use crate::c::syntax::expr::Writer;
use crate::c::syntax::template::{FAR, Form};

/// Loops of fewer elements are not written twice.
const FEWEST: i64 = 256;

/// Whether the loops of a step are written twice: that is worth it, and they may be. Loops that add to what they have
/// written, or write where they read, cannot be done again.
pub fn is_written_twice(step: &KernelStep, nest: &Nest) -> bool {
    let is_large = nest.vars.iter().map(|v| v.size).product::<i64>() >= FEWEST;
    is_large && has_quick(&nest.value) && !step.reads().contains(&nest.to) && !has_sum(&nest.value)
}

/// Writes the quick loops, and that this is all unless an argument is beyond what they can do.
pub fn write_quick(writer: &mut Writer<'_>, write: impl FnOnce(&mut Writer<'_>)) {
    writer.line(format!("uint32_t {FAR} = 0; /* not 0: a number is beyond what these loops can do */"));
    writer.open("{");
    writer.form = Form::Quick;
    write(writer);
    writer.form = Form::Plain;
    writer.close();
    writer.line(format!("if (!{FAR}) return;"));
}

fn has_sum(e: &Expr) -> bool {
    matches!(e, Expr::Reduce { .. }) || e.children().into_iter().any(has_sum)
}

/// Whether a function in it has a quick form: there are some for floats.
fn has_quick(e: &Expr) -> bool {
    let mut found = false;
    e.walk(&mut |e| {
        let Expr::Apply { text, args, .. } = e else { return };
        let is_float = args.first().is_some_and(|x| arithmetic(x.dtype()) == DType::F32);
        found |= is_float && text.contains(&format!("{{{FAR}}}"));
    });
    found
}
