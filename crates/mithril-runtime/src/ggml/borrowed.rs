//! Weights that are given in blocks or in 16 bits, as files hold them: ggml reads them where they lie if it keeps them that way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mithril_codegen::ggml::plan::{PlanValueId, Source, Value};
use mithril_codegen::ids::{Id as _, InputId};
use mithril_compile::ggml::{Element, Plan};
use mithril_ir::{DType, Error, Result, Tensor};

use crate::c::Interface;

/// Paths of weights that are given in blocks or in 16 bits, with their elements.
pub type BorrowedWeights = BTreeMap<Arc<str>, Element>;

/// Per input of a function the elements of its blocks, if it is given so.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    elements: Vec<Option<Element>>,
    /// Values that are copied, so that their rows can be interleaved, although an input holds them.
    copied: BTreeSet<PlanValueId>,
}

impl Blocks {
    /// The inputs that are given in blocks, which become bytes in the interface. `copied` are values that are not read where
    /// they lie.
    pub(super) fn new(
        weights: &BorrowedWeights,
        plan: &Plan,
        interface: &mut Interface,
        copied: BTreeSet<PlanValueId>,
    ) -> Self {
        let mut positions = vec![None; interface.inputs.len()];
        for (i, buffer) in interface.inputs.iter_mut().enumerate().filter(|(i, _)| interface.fixed[*i]) {
            let Some(&element) = weights.get(&buffer.name) else { continue };
            buffer.dtype = match (element, buffer.shape.last_mut()) {
                (Element::F16, _) => DType::F16,
                (Element::BF16, _) => DType::BF16,
                (_, Some(row)) => {
                    *row = *row / element.block() as usize * element.bytes() as usize;
                    DType::U8
                }
                (_, None) => continue,
            };
            positions[i] = Some(element);
        }
        let blocks = Self { elements: positions, copied };
        for i in plan.values.ids().filter_map(|v| blocks.borrowed(plan, v)) {
            interface.read[i.index()] = true;
        }
        blocks
    }
    /// The elements of an input that is given in blocks.
    pub fn of(&self, input: InputId) -> Option<Element> {
        self.elements.get(input.index()).copied().flatten()
    }
    /// The input in which ggml reads a weight, since that holds it exactly as it is kept.
    pub(super) fn borrowed(&self, plan: &Plan, v: PlanValueId) -> Option<InputId> {
        self.whole(plan, &plan.values[v]).filter(|_| !self.copied.contains(&v))
    }
    /// The input that holds a weight exactly as it is kept.
    pub(super) fn whole(&self, plan: &Plan, value: &Value) -> Option<InputId> {
        let (Source::Permuted { of, axes }, Some(ty)) = (&value.source, value.ty) else { return None };
        let Source::Input(i) = plan.values[*of].source else { return None };
        (self.of(i) == Some(ty.element) && axes.is_sorted()).then_some(i)
    }
    /// The values of blocks.
    pub(super) fn read(element: Element, bytes: &[u8], shape: &[usize]) -> Result<Tensor> {
        let mut shape = shape.to_vec();
        if element.is_quantized() {
            let row = shape.last_mut().ok_or_else(|| Error::internal("blocks without a row"))?;
            *row = *row / element.bytes() as usize * element.block() as usize;
        }
        let mut values = vec![0.0; shape.iter().product()];
        mithril_ggml::dequantize(element, bytes, &mut values)?;
        Ok(Tensor::from_parts(&shape, values))
    }
}
