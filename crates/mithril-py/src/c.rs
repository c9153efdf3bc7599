//! Programs of generated C.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use mithril::compile::c::{Cost, Decision, FLAGS, Quantize, Scheme};
use mithril::compile::compiled::Compiled;
use mithril::ir::Tensor;
use mithril::ir::error::{Code, Error};
use mithril::ir::interp::Symbols;
use mithril::runtime::c::export::{Export, Port, Values, export};
use mithril::runtime::c::peak::peak;
use mithril::runtime::c::program::SECONDS;
use mithril::runtime::c::{Cache, OptionKind, Options, Program, Specialized, Tool, Value};
use mithril::runtime::ggml::BorrowedWeights;
use mithril::runtime::interpreter::Tensors;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::calls::{Calls, Groups, PyPacked, ReadsBlocks, Ready, Source, entry_point, quantized_training};
use crate::compile::PyCompiled;
use crate::convert::{pairs, tensor};
use crate::errors::{Failure, Outcome};
use crate::inspect::role_name;

/// Name, path, what is computed, operations, bytes.
type StepRow = (String, String, String, Option<u64>, u64);

/// Arrays by name, which become tensors when they are asked for.
#[derive(Debug)]
struct Arrays(Py<PyDict>);

impl Values for Arrays {
    fn value(&self, name: &str) -> mithril::ir::Result<Option<Arc<Tensor>>> {
        let value = Python::attach(|py| -> Outcome<_> {
            let value = self.0.bind(py).get_item(name)?;
            value.map(|array| Ok(Arc::new(tensor(&array, None)?))).transpose()
        });
        value.map_err(|failure| match failure {
            Failure::Core(error) => error,
            Failure::Python(error) => Error::new(Code::BadParameter, format!("`{name}`: {error}")),
        })
    }
}

/// A program in C, compiled for each choice of sizes when it is called with them.
#[pyclass(name = "CProgram", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyCProgram(Calls<Program>);

impl Source for Program {
    type Function = Specialized;
    fn compiled(&self) -> &Compiled {
        self.compiled()
    }
    fn is_in_place(&self) -> bool {
        self.options().in_place
    }
    fn symbols(&self, shapes: Vec<(String, Vec<usize>)>) -> Result<Symbols, Error> {
        self.symbols(shapes.iter().map(|(name, sizes)| (name.as_str(), sizes.clone())))
    }
    fn specialize(&self, symbols: &Symbols, _blocks: &BorrowedWeights) -> Result<Arc<Specialized>, Error> {
        self.specialize(symbols)
    }
}

impl ReadsBlocks for Specialized {}

#[pymethods]
impl PyCProgram {
    /// The generated C of the sizes that were used last.
    #[getter]
    fn text(&self) -> String {
        match self.0.latest() {
            Some(ready) => ready.function().source.c.clone(),
            None => "/* C is generated at the first call: some sizes are not known yet. */\n".into(),
        }
    }
    /// Text of the stages from the legalized graph to C.
    #[getter]
    fn stages(&self) -> Vec<(String, String)> {
        self.0.latest().map(|ready| ready.function().source.stages.clone()).unwrap_or_default()
    }
    /// Whether the call returns several dicts.
    #[getter]
    fn many(&self) -> bool {
        self.0.many
    }
    /// Number of choices of sizes that were compiled.
    #[getter]
    fn specializations(&self) -> usize {
        self.0.count()
    }
    /// Bytes of scratch memory of a call.
    #[getter]
    fn arena_bytes(&self) -> Option<usize> {
        self.0.latest().map(|ready| ready.function().function.arena_bytes())
    }
    /// Bytes of the packed parameters.
    #[getter]
    fn packed_bytes(&self) -> Option<usize> {
        self.0.latest().map(|ready| ready.function().function.packed_bytes())
    }
    /// What became of the weights that were to be quantized: dicts with the path, the scheme or None, the reason, the
    /// matrix in elements of the weight (`start`, columns and how far they lie apart, pairs of such for the axes of its
    /// terms and of several matrices), bytes, and the range that is known ahead.
    #[getter]
    fn decisions<'py>(&self, py: Python<'py>) -> Outcome<Vec<Bound<'py, PyDict>>> {
        let Some(ready) = self.0.latest() else { return Ok(Vec::new()) };
        let one = |d: &Decision| {
            let dict = PyDict::new(py);
            dict.set_item("weight", &d.weight)?;
            dict.set_item("scheme", d.outcome.as_ref().ok().map(|scheme| scheme.name()))?;
            dict.set_item("reason", d.outcome.as_ref().err().map(|reason| &*reason.text))?;
            dict.set_item("matrix", [d.matrix.start, d.matrix.n, d.matrix.column])?;
            dict.set_item("terms", &d.matrix.terms)?;
            dict.set_item("batch", &d.matrix.batch)?;
            dict.set_item("bytes", d.bytes)?;
            dict.set_item("is_convolution", d.is_convolution)?;
            dict.set_item("range", d.range)?;
            Ok(dict)
        };
        ready.function().source.decisions.iter().map(one).collect()
    }
    /// Compiles for these sizes of inputs; nothing is run.
    fn prepare(&self, py: Python<'_>, shapes: &Bound<'_, PyDict>) -> Outcome<()> {
        self.0.prepare(py, shapes, None)?;
        Ok(())
    }
    /// Writes the program for these sizes as a folder of C, with the values of all inputs by name and the outputs
    /// that belong to them, builds it there and compares.
    #[pyo3(signature = (folder, title, values, expected, inside=None, calls=1))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn export<'py>(
        &self,
        py: Python<'py>,
        folder: PathBuf,
        title: &str,
        values: &Bound<'py, PyDict>,
        expected: &Bound<'py, PyDict>,
        inside: Option<bool>,
        calls: usize,
    ) -> Outcome<Bound<'py, PyDict>> {
        let shape = |value: &Bound<'_, PyAny>| value.getattr("shape")?.extract::<Vec<usize>>();
        let named = pairs(values.as_any())?;
        let shapes =
            named.iter().map(|(name, t)| Ok((name.as_str(), shape(t)?))).collect::<Outcome<Vec<_>>>()?;
        let symbols = self.0.program.symbols(shapes)?;
        let expected = pairs(expected.as_any())?
            .iter()
            .map(|(n, t)| Ok((n.as_str().into(), Arc::new(tensor(t, None)?))))
            .collect::<Outcome<Tensors>>()?;
        let values = Arrays(values.clone().unbind());
        let request = Export { title, values: &values, expected, calls, inside };
        let report = py.detach(|| export(&self.0.program, &symbols, &request, &folder))?;
        let dict = PyDict::new(py);
        dict.set_item("files", report.files)?;
        dict.set_item("weight_bytes", report.weight_bytes)?;
        dict.set_item("packed_bytes", report.packed_bytes)?;
        dict.set_item("pack_bytes", report.pack_bytes)?;
        dict.set_item("arena_bytes", report.arena_bytes)?;
        dict.set_item("check", report.check)?;
        dict.set_item("is_packed", report.is_packed)?;
        dict.set_item("flags", FLAGS.to_vec())?;
        let (inputs, outputs) = report.ports;
        for (key, ports) in [("inputs", inputs), ("outputs", outputs)] {
            let described: Vec<_> =
                ports.into_iter().map(|port| described(py, port)).collect::<Outcome<_>>()?;
            dict.set_item(key, described)?;
        }
        Ok(dict)
    }
    /// Runs the program so many times, measuring its steps: the seconds of each step in each run, and what the steps
    /// are: name, path in the model, what is computed, operations (`None`: not known), bytes.
    #[pyo3(signature = (params, data, state, cotangents=None, runs=1))]
    fn profile<'py>(
        &self,
        py: Python<'py>,
        params: Bound<'py, PyAny>,
        data: Bound<'py, PyAny>,
        state: Bound<'py, PyAny>,
        cotangents: Option<Bound<'py, PyAny>>,
        runs: usize,
    ) -> Outcome<(Vec<Bound<'py, PyAny>>, Vec<StepRow>)> {
        let groups = Groups { params, data, state, cotangents };
        let symbols = self.0.bind(&groups)?;
        let profiled = Arc::new(py.detach(|| self.0.program.profiled(&symbols))?);
        let ready = Ready::new(py, profiled.clone(), self.0.many)?;
        let (inputs, kept, rows) = self.0.gather(py, &ready, &groups)?;
        let run = || {
            // Into new memory: the states of the caller stay as they are.
            let results = ready.run(py, &inputs, kept.as_deref(), rows, None, None)?;
            // The seconds are an output behind the new states, so that there are several dicts.
            let states = results.get_item(-1)?;
            Ok(states.get_item(SECONDS)?)
        };
        let seconds = (0..runs).map(|_| run()).collect::<Outcome<_>>()?;
        let row = |c: &Cost| (c.name.clone(), c.path.clone(), c.what.clone(), c.operations, c.bytes);
        Ok((seconds, profiled.source.costs.iter().map(row).collect()))
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

/// How C is made: [`Options`] by their names.
#[derive(Debug)]
pub struct COptions(Options);

impl<'py> FromPyObject<'_, 'py> for COptions {
    type Error = Failure;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> Outcome<Self> {
        let mut options = Options::default();
        for (name, object) in object.cast::<PyDict>().map_err(|e| Failure::Python(e.into()))?.iter() {
            let name: String = name.extract()?;
            let is_quantize = Options::named(&name).is_some_and(|o| o.kind() == OptionKind::Quantize);
            let value = match object.extract::<Option<Quantization>>() {
                Ok(quantization) if is_quantize => {
                    quantization.map_or(Ok(Value::None), |q| q.read().map(Value::Quantize))?
                }
                _ => plain_value(&object),
            };
            options.set(&name, value, &format!("{name} is {}", object.repr()?))?;
        }
        options.check()?;
        Ok(Self(options))
    }
}

/// A value of an option that is no mapping.
fn plain_value(object: &Bound<'_, PyAny>) -> Value {
    if object.is_none() {
        return Value::None;
    }
    // Those of NumPy are switches too, but no number.
    let is_switch = object.get_type().name().is_ok_and(|name| name == "bool" || name == "bool_");
    if is_switch {
        return object.is_truthy().map_or(Value::Other, Value::Switch);
    }
    if let Ok(text) = object.extract() {
        return Value::Text(text);
    }
    if let Ok(number) = object.extract() {
        return Value::Number(number);
    }
    let texts = object.try_iter().and_then(|items| items.map(|item| item?.extract()).collect());
    texts.map_or(Value::Other, Value::Texts)
}

/// All options of C with their values, those that are given among them; an error for one that is wrong.
#[pyfunction]
pub fn c_options(py: Python<'_>, options: COptions) -> Outcome<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in options.0.values() {
        match value {
            Value::Switch(value) => dict.set_item(name, value)?,
            Value::Number(value) => dict.set_item(name, value)?,
            Value::Text(value) => dict.set_item(name, value)?,
            Value::Texts(values) => dict.set_item(name, PyTuple::new(py, values)?)?,
            Value::None | Value::Quantize(_) | Value::Other => dict.set_item(name, py.None())?,
        }
    }
    Ok(dict)
}

/// Low-bit weights: patterns of names with schemes, ranges of what they are multiplied by, and whether what cannot be
/// is an error.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
struct Quantization {
    rules: Vec<(String, Option<String>)>,
    ranges: BTreeMap<String, [f32; 2]>,
    strict: bool,
}

impl Quantization {
    fn read(self) -> Result<Quantize, Error> {
        let rule = |(pattern, name): (String, Option<String>)| {
            let scheme = name.as_deref().map(|name| {
                Scheme::of(name).ok_or_else(|| Error::new(Code::BadArgument, format!("quantize is {name:?}")))
            });
            Ok((pattern, scheme.transpose()?))
        };
        let rules = self.rules.into_iter().map(rule).collect::<Result<_, Error>>()?;
        Ok(Quantize { rules, ranges: self.ranges, strict: self.strict })
    }
}

/// The program of a compiled model in C: outputs, or with `outputs` and `inputs` gradients. Where all sizes are known,
/// it is compiled now unless `is_lazy`.
#[pyfunction]
#[pyo3(signature = (compiled, options, outputs=None, inputs=None, is_lazy=false))]
pub fn c_program(
    py: Python<'_>,
    compiled: &PyCompiled,
    options: COptions,
    outputs: Option<Vec<String>>,
    inputs: Option<Vec<String>>,
    is_lazy: bool,
) -> Outcome<PyCProgram> {
    let many = outputs.is_some();
    let entry = entry_point(outputs, inputs);
    // Parameters of a model in training change from call to call.
    let options = Options { pack: !many && !compiled.is_training(), ..options.0 };
    if options.quantize.is_some() && !options.pack {
        return Err(quantized_training().into());
    }
    let program = Program::new(compiled.compiled.clone(), entry, options);
    Ok(PyCProgram(Calls::new(py, program, many, is_lazy)?))
}

/// An input or output of exported code as Python reads it.
fn described(py: Python<'_>, port: Port) -> Outcome<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", &*port.name)?;
    dict.set_item("dtype", port.dtype.name())?;
    dict.set_item("shape", port.shape)?;
    dict.set_item("role", port.role.map(role_name))?;
    dict.set_item("offset", port.offset)?;
    dict.set_item("replaces", port.replaces)?;
    dict.set_item("has_rows", port.has_rows)?;
    dict.set_item("allowed", port.allowed)?;
    Ok(dict)
}

/// What this processor can do at most with the threads of these options: operations on float32 and bytes from memory in
/// a second, and their number.
#[pyfunction]
pub fn c_peak(py: Python<'_>, options: COptions) -> Result<(f64, f64, usize), Failure> {
    let options = options.0;
    py.detach(|| {
        let lanes = mithril::compile::c::target(options.lanes)?.lanes;
        let measured = peak(&Tool::of(&options), &Cache::default(), lanes, options.threads())?;
        Ok((measured.operations, measured.bandwidth, options.threads()))
    })
}

/// Flags that generated code is compiled with, but for the processor.
#[pyfunction]
pub fn c_flags() -> Vec<&'static str> {
    FLAGS.to_vec()
}

/// First line of what the C compiler that would be used says of itself.
#[pyfunction]
#[pyo3(signature = (cc=None, python=None))]
pub fn c_compiler(py: Python<'_>, cc: Option<String>, python: Option<String>) -> Result<String, Failure> {
    let tool = Tool { command: cc, python, flags: vec![] };
    py.detach(|| Ok(mithril::runtime::c::Compiler::find(&tool)?.version().to_owned()))
}

/// Why the cache of compiled code is not used, and how to mend that; None if it is.
#[pyfunction]
pub fn c_cache_refusal() -> Option<String> {
    let error = Cache::default().refusal()?;
    let lines = [error.message()].into_iter().chain(error.notes().iter().map(|note| &**note));
    let text = lines.collect::<Vec<_>>().join("\n  ");
    Some(format!("{text}\n  help: {}", error.hint().unwrap_or_default()))
}
