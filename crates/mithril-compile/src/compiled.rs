//! A model compiled as far as no target is needed: typed, optimized, ready to be differentiated and lowered.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Graph, Role};
use mithril_ir::interp::Symbols;
use mithril_ir::{DType, Tensor};
use mithril_model::{FlattenOptions, Input, Model, SizeLimit, flatten, init_parameters};

use crate::partition::pass::communications;
use crate::partition::{Found, Hardware, Layout, Mesh, Padded, Partitioned, Training, named, pad, search};
use crate::passes::differentiate::{GRADIENT, Request};
use crate::passes::quantize::{Decision, Schemes};
use crate::passes::specialize::specialize;
use crate::pipeline::{
    Observer, Target, check, differentiated, divided, join, lower, mixed, optimize_for, quantize,
};
use crate::segments::segments;

/// A compiled model.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The optimized graph.
    pub graph: Graph,
    /// Its inputs: names, roles, types, initial values.
    pub inputs: Vec<Input>,
    /// The default float.
    pub float: DType,
    /// Whether gradients compute intermediate results again instead of keeping them.
    pub checkpoint: bool,
    /// Data whose memory a target may write results into.
    pub donated: Vec<Arc<str>>,
    /// Whether it is a step of an optimizer, whose like ops a target may compute together.
    pub is_optimizer_step: bool,
    /// Weights that are kept in 8 bits, for targets that have no kernels of their own for them.
    pub schemes: Schemes,
    /// How programs are divided over a mesh of devices.
    pub layout: Option<Arc<Layout>>,
    /// Sizes that the model holds for.
    pub limits: Vec<SizeLimit>,
}

impl Compiled {
    /// Flattens and optimizes a model.
    pub fn new(model: &Model, options: &FlattenOptions) -> Result<Self> {
        Self::observed(model, options, &mut |_, _| {})
    }
    /// As [`Compiled::new`], showing every stage.
    pub fn observed(model: &Model, options: &FlattenOptions, observe: &mut Observer<'_>) -> Result<Self> {
        let flat = flatten(model, options)?;
        if !options.scalar_promotion {
            refuse_scalars(&flat.graph)?;
        }
        // What is computed in another precision is not what a formula says.
        let keeps_formulas = options.keep_formulas && options.precision.is_none();
        let mut graph = optimize_for(flat.graph, options.float, keeps_formulas, observe)?;
        if let Some(compute) = options.precision.filter(|compute| *compute != options.float) {
            graph = mixed(&graph, options.float, compute, observe)?;
        }
        let (float, checkpoint, donated) = (options.float, options.checkpoint, options.donated.clone());
        Ok(Self {
            graph,
            inputs: flat.inputs,
            float,
            checkpoint,
            donated,
            is_optimizer_step: model.is_optimizer_step(),
            schemes: Schemes::new(),
            layout: None,
            limits: flat.limits,
        })
    }
    /// The same model for these values of its symbols.
    pub fn specialize(&self, symbols: &Symbols) -> Result<Self> {
        self.check_limits(symbols)?;
        Ok(Self { graph: specialize(&self.graph, symbols, self.float)?, ..self.clone() })
    }
    /// The same model for a larger batch that divides, with the same results; and for which data, which are to have copies of
    /// the last example at their end.
    ///
    /// # Errors
    /// If the model mixes the examples of a batch in another way than by sums, or there is no layout.
    pub fn padded(&self) -> Result<(Self, Padded)> {
        let layout = self.layout.as_ref().ok_or_else(|| Error::internal("there is no layout"))?;
        let padded = pad(&self.graph, layout, self.float)?;
        check("padding", &padded.graph, self.float)?;
        Ok((Self { graph: padded.graph.clone(), ..self.clone() }, padded))
    }
    /// Checks that the model holds for these sizes.
    ///
    /// # Errors
    /// If one is out of the range that was declared with an input.
    pub fn check_limits(&self, symbols: &Symbols) -> Result<()> {
        self.limits.iter().try_for_each(|limit| limit.check(&|s| symbols.get(s).copied()))
    }
    /// The graph that evaluates the model on a target.
    pub fn forward(&self, target: &dyn Target, observe: &mut Observer<'_>) -> Result<Graph> {
        let quantized = self.quantized(observe)?;
        self.lowered(quantized.as_ref().map_or(&self.graph, |(graph, _)| graph), target, observe)
    }
    /// What [`Compiled::forward`] gives, with how inputs and outputs are divided.
    ///
    /// # Errors
    /// If there is no layout, or it does not fit.
    pub fn partitioned_forward(
        &self,
        target: &dyn Target,
        observe: &mut Observer<'_>,
    ) -> Result<Partitioned> {
        let quantized = self.quantized(observe)?;
        self.partitioned(quantized.as_ref().map_or(&self.graph, |(graph, _)| graph), target, observe)
    }
    /// Divides a graph over the mesh if there is one, and lowers it.
    fn lowered(&self, graph: &Graph, target: &dyn Target, observe: &mut Observer<'_>) -> Result<Graph> {
        match self.layout {
            Some(_) => Ok(self.partitioned(graph, target, observe)?.graph),
            None => lower(self.joined(graph, observe)?.as_ref(), target, self.float, observe),
        }
    }
    /// The graph with sums of thin products joined, unless it is to save memory.
    fn joined<'g>(&self, graph: &'g Graph, observe: &mut Observer<'_>) -> Result<Cow<'g, Graph>> {
        if self.checkpoint {
            Ok(Cow::Borrowed(graph))
        } else {
            join(graph, self.float, observe).map(Cow::Owned)
        }
    }
    fn partitioned(
        &self,
        graph: &Graph,
        target: &dyn Target,
        observe: &mut Observer<'_>,
    ) -> Result<Partitioned> {
        let layout = self.layout.as_ref().ok_or_else(|| Error::internal("there is no layout"))?;
        let mut program = divided(graph, layout, self.float, observe)?;
        program.graph = lower(self.joined(&program.graph, observe)?.as_ref(), target, self.float, observe)?;
        // Equal collectives have become one.
        program.communications = communications(&program.graph);
        Ok(program)
    }
    /// Looks for the layout over a mesh of the shortest step that fits in memory, or else of the one that needs the least;
    /// of a step with gradients if there are `inputs`.
    ///
    /// # Errors
    /// If sizes are not known.
    pub fn best_layout(
        &self,
        target: &dyn Target,
        mesh: &Mesh,
        hardware: &Hardware,
        training: Training,
        outputs: &[Arc<str>],
        inputs: &[Arc<str>],
    ) -> Result<Found> {
        search(&self.searched(target, outputs, inputs)?, mesh, hardware, training, self.float)
    }
    /// The layout of strategies, one for each axis of a mesh, for a step with gradients if there are `inputs`.
    ///
    /// # Errors
    /// If sizes are not known or do not divide.
    pub fn named_layout(
        &self,
        target: &dyn Target,
        mesh: &Mesh,
        names: &[String],
        outputs: &[Arc<str>],
        inputs: &[Arc<str>],
    ) -> Result<Layout> {
        named(&self.searched(target, outputs, inputs)?, mesh, names, self.float)
    }
    /// The graph that a layout is searched for.
    fn searched(&self, target: &dyn Target, outputs: &[Arc<str>], inputs: &[Arc<str>]) -> Result<Graph> {
        let graph = match inputs {
            [] => self.graph.clone(),
            _ => self.differentiated(target, outputs, inputs, &mut |_, _| {})?,
        };
        // What the passes remove from the program of a device costs nothing.
        lower(&graph, target, self.float, &mut |_, _| {})
    }
    /// The graph with weights in 8 bits, and what became of each, if some are to be.
    fn quantized(&self, observe: &mut Observer<'_>) -> Result<Option<(Graph, Vec<Decision>)>> {
        if self.schemes.is_empty() {
            return Ok(None);
        }
        quantize(&self.graph, self.float, &self.schemes, observe).map(Some)
    }
    /// What became of the weights that are to be kept in 8 bits.
    pub fn decisions(&self) -> Result<Vec<Decision>> {
        Ok(self.quantized(&mut |_, _| {})?.map_or_else(Vec::new, |(_, decisions)| decisions))
    }
    /// The graph that evaluates the model on a target, and the segments that checkpoints divide it into.
    pub fn segmented(
        &self,
        target: &dyn Target,
        observe: &mut Observer<'_>,
    ) -> Result<(Graph, Vec<Range<usize>>)> {
        let graph = self.forward(target, observe)?;
        let segments = segments(&graph, graph.nodes().len());
        Ok((graph, segments))
    }
    /// The graph that gives outputs and gradients on a target: cotangents of `outputs` come in, gradients of
    /// `inputs` follow the outputs, named with the prefix [`GRADIENT`].
    pub fn gradient(
        &self,
        target: &dyn Target,
        outputs: &[Arc<str>],
        inputs: &[Arc<str>],
        observe: &mut Observer<'_>,
    ) -> Result<Graph> {
        self.lowered(&self.differentiated(target, outputs, inputs, observe)?, target, observe)
    }
    /// What [`Compiled::gradient`] gives, with how inputs and outputs are divided.
    ///
    /// # Errors
    /// If there is no layout, or it does not fit.
    pub fn partitioned_gradient(
        &self,
        target: &dyn Target,
        outputs: &[Arc<str>],
        inputs: &[Arc<str>],
        observe: &mut Observer<'_>,
    ) -> Result<Partitioned> {
        self.partitioned(&self.differentiated(target, outputs, inputs, observe)?, target, observe)
    }
    fn differentiated(
        &self,
        target: &dyn Target,
        outputs: &[Arc<str>],
        inputs: &[Arc<str>],
        observe: &mut Observer<'_>,
    ) -> Result<Graph> {
        let request =
            Request { outputs: outputs.to_vec(), inputs: inputs.to_vec(), recompute: self.checkpoint };
        differentiated(&self.graph, &request, target, self.float, observe)
    }
    /// Inputs of that role.
    pub fn inputs_of(&self, role: Role) -> impl Iterator<Item = &Input> {
        self.inputs.iter().filter(move |i| i.role == role)
    }
    /// Parameters that have gradients: those of floats that are not frozen.
    pub fn trained(&self) -> impl Iterator<Item = &Input> {
        self.inputs_of(Role::Param).filter(|i| i.ty.dtype.is_float() && !i.is_frozen)
    }
    /// Initial values of the inputs with these names.
    pub fn initial(&self, names: &[&str], seed: u64) -> Result<Vec<Tensor>> {
        let inputs: Vec<_> = self
            .inputs
            .iter()
            .filter(|i| names.contains(&&*i.name))
            .map(|i| (i.name.clone(), i.ty.clone(), i.init.clone()))
            .collect();
        init_parameters(&inputs, seed)
    }
}

/// Refuses plain numbers in the places of tensors.
fn refuse_scalars(graph: &Graph) -> Result<()> {
    for (id, node) in graph.nodes() {
        let operands = node.inputs.iter().enumerate().filter(|(i, _)| node.op.takes_tensor(*i));
        let mut numbers = operands.filter_map(|(_, &v)| graph.lit(v)).filter(|lit| lit.is_numeric());
        if let Some(number) = numbers.next() {
            return Err(Error::new(
                Code::DTypeMismatch,
                format!("the number {number} stands where {} takes a tensor", node.op.name),
            )
            .help("make it a tensor with a dtype, or compile with auto_scalar_promotion=True")
            .at(graph.place(id)));
        }
    }
    Ok(())
}

/// The name of the input that a gradient output belongs to.
pub fn gradient_of(output: &str) -> Option<&str> {
    output.strip_prefix(GRADIENT)
}
