//! Weights whose rows are interleaved when they are packed, since products are then faster: those that nothing but products
//! reads.

use std::collections::BTreeSet;

use mithril_codegen::ggml::plan::{Argument, PlanValueId, Step};
use mithril_compile::ggml::Plan;
use mithril_ir::Result;

/// The function of ggml that reads interleaved rows, as its first argument.
const PRODUCT: &str = "ggml_mul_mat";

/// The values that can be interleaved on this processor.
pub(super) fn candidates(plan: &Plan) -> Result<BTreeSet<PlanValueId>> {
    let mut read_by_products = BTreeSet::new();
    let mut read_otherwise: BTreeSet<PlanValueId> = plan.results().collect();
    read_otherwise.extend(plan.prepared.iter().flat_map(Step::reads));
    read_otherwise.extend(plan.values.iter().filter_map(|value| value.source.of()));
    for step in &plan.steps {
        let Step::Segment(calls) = step else {
            read_otherwise.extend(step.reads());
            continue;
        };
        for call in calls {
            for (i, argument) in call.arguments.iter().enumerate() {
                let Argument::Value(v) = argument else { continue };
                let is_product = i == 0 && call.function == PRODUCT;
                if is_product {
                    read_by_products.insert(*v)
                } else {
                    read_otherwise.insert(*v)
                };
            }
        }
    }
    let mut candidates = BTreeSet::new();
    for &v in read_by_products.difference(&read_otherwise) {
        if let Some(ty) = &plan.values[v].ty
            && mithril_ggml::can_repack(ty)?
        {
            candidates.insert(v);
        }
    }
    Ok(candidates)
}
