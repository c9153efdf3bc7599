//! Programs of ggml: plans of its calls.

use std::sync::Arc;

use mithril::codegen::ggml::plan::{self, Plan};
use mithril::codegen::ids::{Id as _, InputId};
use mithril::compile::compiled::Compiled;
use mithril::ir::error::{Code, Error};
use mithril::ir::interp::Symbols;
use mithril::runtime::ggml::{
    self, BorrowedWeights, Decision, Element, Options, Program, Quantize, Specialized,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::calls::{Calls, Groups, PyPacked, ReadsBlocks, Source, entry_point, quantized_training};
use crate::compile::PyCompiled;
use crate::errors::{Failure, Outcome};

/// A program of ggml, planned for each choice of sizes when it is called with them.
#[pyclass(name = "GgmlProgram", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyGgmlProgram(Calls<Program>);

impl Source for Program {
    type Function = Specialized;
    fn compiled(&self) -> &Compiled {
        self.compiled()
    }
    fn is_in_place(&self) -> bool {
        false
    }
    fn symbols(&self, shapes: Vec<(String, Vec<usize>)>) -> Result<Symbols, Error> {
        self.symbols(shapes.iter().map(|(name, sizes)| (name.as_str(), sizes.clone())))
    }
    fn specialize(&self, symbols: &Symbols, blocks: &BorrowedWeights) -> Result<Arc<Specialized>, Error> {
        self.specialize_blocks(symbols, blocks)
    }
}

impl ReadsBlocks for Specialized {
    const READS_BLOCKS: bool = true;
    fn blocks(&self, input: usize) -> Option<Element> {
        self.function.blocks().of(InputId::new(input))
    }
}

#[pymethods]
impl PyGgmlProgram {
    /// The plan of the sizes that were used last.
    #[getter]
    fn text(&self) -> String {
        match self.0.latest() {
            Some(ready) => ready.function().function.plan().to_string(),
            None => "the plan is made at the first call: some sizes are not known yet\n".into(),
        }
    }
    /// Text of the stages from the legalized graph to the plan.
    #[getter]
    fn stages(&self) -> Vec<(String, String)> {
        self.0.latest().map(|ready| ready.function().stages.clone()).unwrap_or_default()
    }
    /// Whether the call returns several dicts.
    #[getter]
    fn many(&self) -> bool {
        self.0.many
    }
    /// Number of choices of sizes that were planned.
    #[getter]
    fn specializations(&self) -> usize {
        self.0.count()
    }
    /// Names of the ops that the reference interpreter runs between two graphs of ggml.
    #[getter]
    fn hosted(&self) -> Vec<&'static str> {
        self.0.latest().map(|ready| ready.function().function.plan().hosted()).unwrap_or_default()
    }
    /// Bytes of the weights as they are kept.
    #[getter]
    fn weight_bytes(&self) -> Option<usize> {
        self.0.latest().map(|ready| ready.function().function.needs().weights())
    }
    /// Bytes of what is computed: graphs, and what threads work in.
    #[getter]
    fn work_bytes(&self) -> Option<usize> {
        self.0.latest().map(|ready| ready.function().function.needs()).map(|needs| needs.graphs + needs.work)
    }
    /// Bytes by what they are for; `all_sizes` is what all choices of sizes have together.
    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> Outcome<Option<Bound<'py, PyDict>>> {
        let Some(needs) = self.0.latest().map(|ready| ready.function().function.needs()) else {
            return Ok(None);
        };
        let dict = PyDict::new(py);
        dict.set_item("weights", needs.borrowed)?;
        dict.set_item("prepared", needs.prepared)?;
        dict.set_item("graph", needs.graphs)?;
        dict.set_item("work", needs.work)?;
        dict.set_item("packing", needs.packing)?;
        dict.set_item("total", needs.total())?;
        dict.set_item("all_sizes", self.0.program.budget().taken())?;
        Ok(Some(dict))
    }
    /// What became of the weights: dicts with the path, the type or None (`scheme`), the reason, bytes, and the order of
    /// the dimensions in which it is kept.
    #[getter]
    fn decisions<'py>(&self, py: Python<'py>) -> Outcome<Vec<Bound<'py, PyDict>>> {
        let Some(ready) = self.0.latest() else { return Ok(Vec::new()) };
        let one = |d: &Decision| {
            let dict = PyDict::new(py);
            dict.set_item("weight", &*d.weight)?;
            dict.set_item("scheme", d.outcome.as_ref().ok().map(|element| element.name()))?;
            dict.set_item("reason", d.outcome.as_ref().err())?;
            dict.set_item("bytes", d.bytes)?;
            dict.set_item("axes", axes(ready.function().function.plan(), d))?;
            Ok(dict)
        };
        ready.function().decisions.iter().map(one).collect()
    }
    /// Plans for these sizes of inputs, and for parameters that may be given in blocks; nothing is run.
    #[pyo3(signature = (shapes, params=None))]
    fn prepare<'py>(
        &self,
        py: Python<'py>,
        shapes: &Bound<'py, PyDict>,
        params: Option<Bound<'py, PyAny>>,
    ) -> Outcome<()> {
        self.0.prepare(py, shapes, params.as_ref())?;
        Ok(())
    }
    /// Packs parameters and states for these sizes of data.
    fn pack<'py>(
        &self,
        py: Python<'py>,
        params: Bound<'py, PyAny>,
        state: Bound<'py, PyAny>,
        shapes: &Bound<'py, PyDict>,
    ) -> Outcome<PyPacked> {
        self.0.pack(py, params, state, shapes)
    }
    /// Runs the program: outputs by name, further dicts (gradients, new states) beside them.
    #[pyo3(signature = (params, data, state, cotangents=None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        params: Bound<'py, PyAny>,
        data: Bound<'py, PyAny>,
        state: Bound<'py, PyAny>,
        cotangents: Option<Bound<'py, PyAny>>,
    ) -> Outcome<Bound<'py, PyAny>> {
        self.0.call(py, &Groups { params, data, state, cotangents })
    }
}

/// The order of the dimensions in which a weight is kept.
fn axes(plan: &Plan, decision: &Decision) -> Vec<usize> {
    let is_weight = |v: plan::PlanValueId| plan.values[v].name == decision.weight;
    let stored = plan.values.iter().find_map(|value| match (&value.source, &value.ty) {
        (plan::Source::Permuted { of, axes }, Some(ty)) if is_weight(*of) => {
            decision.outcome.as_ref().is_ok_and(|element| ty.element == *element).then(|| axes.clone())
        }
        _ => None,
    });
    stored.unwrap_or_else(|| (0..decision.shape.len()).collect())
}

/// Rows of so many floats in a type of ggml; how much each column counts, as bytes of float32.
#[pyfunction]
#[pyo3(signature = (name, values, columns, importance=None))]
pub fn ggml_blocks<'py>(
    py: Python<'py>,
    name: &str,
    values: &[u8],
    columns: usize,
    importance: Option<&[u8]>,
) -> Outcome<Bound<'py, PyBytes>> {
    let element = element(name)?;
    let importance = importance.map(floats);
    let packed = py.detach(|| blocks(element, &floats(values), columns, importance.as_deref()))?;
    Ok(PyBytes::new(py, &packed))
}

/// Rows of so many floats as they are after they were kept in a type of ggml.
#[pyfunction]
pub fn ggml_rounded<'py>(
    py: Python<'py>,
    name: &str,
    values: &[u8],
    columns: usize,
) -> Outcome<Bound<'py, PyBytes>> {
    let element = element(name)?;
    let errors = py.detach(|| {
        let mut floats = floats(values);
        ggml::dequantize(element, &blocks(element, &floats, columns, None)?, &mut floats)?;
        Ok::<_, Error>(floats.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>())
    })?;
    Ok(PyBytes::new(py, &errors))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn blocks(
    element: Element,
    values: &[f32],
    columns: usize,
    importance: Option<&[f32]>,
) -> Result<Vec<u8>, Error> {
    let rows = values.len() / columns.max(1);
    let mut content = vec![0; ggml::bytes(element, rows, columns)?];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let each = rows.div_ceil(threads).max(1);
    let size = content.len() / rows.max(1);
    let parts = values.chunks(each * columns).zip(content.chunks_mut((each * size).max(1)));
    std::thread::scope(|scope| {
        let make =
            |(values, out): (&[f32], &mut [u8])| ggml::quantize(element, values, columns, importance, out);
        let started: Vec<_> = parts.map(|part| scope.spawn(move || make(part))).collect();
        let failed = || Err(Error::internal("quantizing failed"));
        started.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| failed()))
    })?;
    Ok(content)
}

/// How programs of ggml are made, as Python says it.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub struct GgmlOptions {
    threads: usize,
    memory_limit: Option<usize>,
    quantize: Option<Vec<(String, Option<String>)>>,
    strict: bool,
    repack: Option<bool>,
}

fn element(name: &str) -> Result<Element, Error> {
    Element::parse(name).ok_or_else(|| Error::new(Code::BadArgument, format!("quantize is {name:?}")))
}

impl GgmlOptions {
    fn options(self, pack: bool) -> Result<Options, Error> {
        let Self { threads, memory_limit, quantize, strict, repack } = self;
        let rule = |(pattern, name): (String, Option<String>)| {
            Ok((pattern, name.as_deref().map(element).transpose()?))
        };
        let rules =
            quantize.map(|rules| rules.into_iter().map(rule).collect::<Result<_, Error>>()).transpose()?;
        let quantize = rules.map(|rules| Quantize { rules, strict });
        Ok(Options { threads, memory_limit, quantize, pack, repack })
    }
}

/// The program of a compiled model on ggml: outputs, or with `outputs` and `inputs` gradients. Where all sizes are known,
/// it is planned now.
#[pyfunction]
#[pyo3(signature = (compiled, options, outputs=None, inputs=None))]
pub fn ggml_program(
    py: Python<'_>,
    compiled: &PyCompiled,
    options: GgmlOptions,
    outputs: Option<Vec<String>>,
    inputs: Option<Vec<String>>,
) -> Outcome<PyGgmlProgram> {
    let many = outputs.is_some();
    let entry = entry_point(outputs, inputs);
    // Parameters of a model in training change from call to call.
    let options = options.options(!many && !compiled.is_training())?;
    if options.quantize.is_some() && !options.pack {
        return Err(quantized_training().into());
    }
    let program = Program::new(compiled.compiled.clone(), entry, options);
    Ok(PyGgmlProgram(Calls::new(py, program, many, false)?))
}

/// Names and descriptions of the devices that ggml finds; an error if the processor lacks what this ggml was built for.
#[pyfunction]
pub fn ggml_devices() -> Result<Vec<(String, String)>, Failure> {
    Ok(ggml::devices()?.into_iter().map(|device| (device.name, device.description)).collect())
}

/// Version of ggml.
#[pyfunction]
pub fn ggml_version() -> String {
    ggml::version()
}

/// The set of instructions that ggml uses; an error if the processor has none of those that it was built for.
#[pyfunction]
pub fn ggml_instructions() -> Result<&'static str, Failure> {
    Ok(ggml::instructions()?)
}

/// Names of the types in which ggml keeps weights.
#[pyfunction]
pub fn ggml_types() -> Vec<&'static str> {
    Element::all().filter(|element| element.is_computed()).map(Element::name).collect()
}
