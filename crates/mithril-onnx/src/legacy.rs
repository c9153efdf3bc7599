//! Opsets before 7: what their ops say otherwise is rewritten as later ones say it, or refused.

use mithril_ir::{Dim, Result, Tensor};

use crate::context::{Value, malformed};
use crate::node::{Use, op};

/// The first opset with the rules of NumPy for broadcasting.
const MODERN: i64 = 7;

/// Makes a use of an old op one of its later version.
pub fn modernize(u: &mut Use<'_>) -> Result<()> {
    if u.opset >= MODERN {
        return Ok(());
    }
    // Which inputs share memory with outputs.
    u.ignore(&["consumed_inputs"]);
    match u.node.op_type.as_str() {
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "And" | "Or" | "Xor" | "Equal" | "Greater" | "Less" => {
            let (broadcasts, axis) = (u.flag("broadcast", false)?, u.optional_int("axis")?);
            if broadcasts && let Some(axis) = axis {
                aligned(u, axis)?;
            }
        }
        // A slope for each channel.
        "PRelu" => {
            let slope = u.x(1)?;
            if u.rank(slope) == 1 && !u.shape(slope)[0].is(1) {
                aligned(u, 1)?;
            }
        }
        "Gemm" => {
            u.flag("broadcast", false)?;
        }
        "BatchNormalization" | "Dropout" if !u.flag("is_test", false)? => {
            return Err(Use::refuse("it is in training mode: export the model for inference"));
        }
        "Cast" if u.attribute("to").is_some_and(|a| a.s.is_some()) => {
            return Err(Use::refuse("dtypes as text, before opset 6, are not supported"));
        }
        "Reshape" if u.opset < 5 => {
            let shape = u.ints("shape")?.ok_or_else(|| malformed("`shape` is missing"))?;
            let shape = u.cx.lit(Tensor::of(&[shape.len()], shape)?);
            u.inputs.resize(1, None);
            u.inputs.push(Some(Value::Graph(shape)));
        }
        "Tile" if u.opset < 6 => {
            return Err(Use::refuse("repeats of one axis, before opset 6, are not supported"));
        }
        _ => {}
    }
    Ok(())
}

/// Puts the axes of the second input beside those of the first from `axis` on.
fn aligned(u: &mut Use<'_>, axis: i64) -> Result<()> {
    let (x, y) = (u.x(0)?, u.x(1)?);
    let (rank, own) = (u.rank(x), u.shape(y));
    let axis = Use::axis(axis, rank)?;
    let Some(after) = rank.checked_sub(axis + own.rank()) else {
        return Err(malformed("the second input has more axes than the first one from `axis` on"));
    };
    if after > 0 {
        let sizes: Vec<Dim> = own.iter().cloned().chain(std::iter::repeat_n(Dim::ONE, after)).collect();
        let y = op!(u, "reshape", y, sizes)?;
        u.inputs[1] = Some(Value::Graph(y));
    }
    Ok(())
}
