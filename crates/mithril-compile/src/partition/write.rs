//! Writes what a device computes of a use into its program.

use mithril_ir::Lit;
use mithril_ir::build::Builder;
use mithril_ir::error::{Error, Result};
use mithril_ir::graph::ValueId;
use mithril_ir::ops::{movement, slicing};

use super::rule::{Around, Local, sizes};
use super::{halo, indexed};

/// Writes what a device computes of a use; the results.
///
/// # Errors
/// If the op refuses its arguments, which is a bug.
pub fn write(
    builder: &mut Builder,
    axis: &str,
    devices: i64,
    local: &Local,
    inputs: &[ValueId],
) -> Result<Vec<ValueId>> {
    match &local.around {
        Around::Nothing => {
            let outputs = builder.push_typed(local.call.op, inputs.into(), local.call.outputs.clone());
            Ok(outputs.to_vec())
        }
        Around::Lookup(lookup) => Ok(vec![indexed::write(builder, axis, devices, local, lookup, inputs)?]),
        Around::Halo(halos) => {
            let mut inputs = inputs.to_vec();
            for (i, own) in halos {
                inputs[*i] = halo::write(builder, axis, devices, own, inputs[*i])?;
            }
            let outputs = builder.push_typed(local.call.op, inputs.into(), local.call.outputs.clone());
            Ok(outputs.to_vec())
        }
        Around::Slices(all) => {
            let tensor = inputs.iter().find(|v| builder.graph.ty(**v).is_some_and(|ty| ty.shape.rank() > 0));
            let tensor = *tensor.ok_or_else(|| Error::internal("slices of nothing"))?;
            let mut results = Vec::new();
            for ((starts, lengths), ty) in all.iter().zip(&local.call.outputs) {
                let stops = starts.iter().zip(lengths).map(|(start, length)| start + length);
                let stops: Vec<i64> = stops.collect();
                let args = [builder.lit(Lit::tuple(starts.clone())), builder.lit(Lit::tuple(stops))];
                let slice = builder.push(&slicing::SLICE, &[tensor, args[0], args[1]])?[0];
                let has_shape = builder.graph.ty(slice).is_some_and(|own| own.shape == ty.shape);
                results.push(if has_shape {
                    slice
                } else {
                    let shape = builder.lit(Lit::tuple(sizes(ty)));
                    builder.push(&movement::RESHAPE, &[slice, shape])?[0]
                });
            }
            Ok(results)
        }
    }
}
