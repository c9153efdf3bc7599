//! Programs of generated C: arrays in and out without a copy.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use mithril::compile::c::{Cost, Decision, Quantize, Scheme};
use mithril::compile::compiled::gradient_of;
use mithril::ir::DType;
use mithril::ir::error::{Code, Error};
use mithril::ir::graph::Role;
use mithril::ir::interp::Symbols;
use mithril::runtime::c::export::{Export, export};
use mithril::runtime::c::peak::peak;
use mithril::runtime::c::program::SECONDS;
use mithril::runtime::c::{
    Address, Array, Buffer, Cache, Interface, Options, Packed, Program, Specialised, Tool, Wanted,
};
use mithril::runtime::interpreter::Tensors;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyString, PyTuple};

use crate::compile::PyCompiled;
use crate::convert::{pairs, tensor};
use crate::errors::{Failure, Outcome};

mod packed;

pub use packed::PyCPacked;

/// Addresses of the inputs, the packed parameters if there are any, and the number of rows where that is an argument.
type Gathered = (Vec<Address>, Option<Arc<Kept>>, Option<usize>);
/// Name, path, what is computed, operations, bytes.
type StepRow = (String, String, String, Option<u64>, u64);
/// Arrays that live until a call is over.
type Held<'py> = Vec<Bound<'py, PyAny>>;

/// A program in C, compiled for each choice of sizes when it is called with them.
#[pyclass(name = "CProgram", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyCProgram {
    program: Program,
    many: bool,
    ready: Mutex<Vec<Arc<Ready>>>,
}

/// One choice of sizes with what calls need of it, made once.
#[derive(Debug)]
struct Ready {
    made: Arc<Specialised>,
    inputs: Vec<(Role, Py<PyString>)>,
    outputs: Vec<Output>,
    kept: Mutex<Option<Arc<Kept>>>,
}

/// Where an output goes: the number of the dict, its name there, and the arguments of `numpy.empty` for it.
#[derive(Debug)]
struct Output {
    dict: usize,
    name: Py<PyString>,
    arguments: Py<PyTuple>,
}

/// Parameters as they were packed. Arrays that are held keep their addresses.
#[derive(Debug)]
struct Kept {
    /// Per input, if it is the same at every call.
    arrays: Vec<Option<Py<PyAny>>>,
    addresses: Vec<Address>,
    /// Keeps copies alive that were made of arrays that lie in another way.
    _held: Vec<Py<PyAny>>,
    packed: Option<Packed>,
}

#[pymethods]
impl PyCProgram {
    /// The generated C of the sizes that were used last.
    #[getter]
    fn text(&self) -> String {
        match self.latest() {
            Some(ready) => ready.made.source.c.clone(),
            None => "/* C is generated at the first call: some sizes are not known yet. */\n".into(),
        }
    }
    /// Text of the stages from the legalised graph to C.
    #[getter]
    fn stages(&self) -> Vec<(String, String)> {
        self.latest().map(|ready| ready.made.source.stages.clone()).unwrap_or_default()
    }
    /// Whether the call returns several dicts.
    #[getter]
    fn many(&self) -> bool {
        self.many
    }
    /// Number of choices of sizes that were compiled.
    #[getter]
    fn specialisations(&self) -> usize {
        self.lock().len()
    }
    /// Bytes of scratch memory of a call.
    #[getter]
    fn arena_bytes(&self) -> Option<usize> {
        self.latest().map(|ready| ready.made.function.arena_bytes())
    }
    /// Bytes of the packed parameters.
    #[getter]
    fn packed_bytes(&self) -> Option<usize> {
        self.latest().map(|ready| ready.made.function.packed_bytes())
    }
    /// What became of the weights that were to be quantised: dicts with the path, the scheme or None, the reason, the
    /// matrix in elements of the weight (`start`, `n`, `k`, `column`, `row`), and bytes.
    #[getter]
    fn decisions<'py>(&self, py: Python<'py>) -> Outcome<Vec<Bound<'py, PyDict>>> {
        let Some(ready) = self.latest() else { return Ok(Vec::new()) };
        let one = |d: &Decision| {
            let found = PyDict::new(py);
            found.set_item("weight", &d.weight)?;
            found.set_item("scheme", d.outcome.as_ref().ok().map(|scheme| scheme.name()))?;
            found.set_item("reason", d.outcome.as_ref().err().map(|reason| &*reason.text))?;
            found.set_item(
                "matrix",
                [d.matrix.start, d.matrix.n, d.matrix.k, d.matrix.column, d.matrix.row],
            )?;
            found.set_item("bytes", d.bytes)?;
            Ok(found)
        };
        ready.made.source.decisions.iter().map(one).collect()
    }
    /// Compiles for these sizes of inputs; nothing is run.
    fn prepare(&self, py: Python<'_>, shapes: &Bound<'_, PyDict>) -> Outcome<()> {
        let shapes: Vec<(String, Vec<usize>)> = pairs(shapes.as_any())?
            .iter()
            .map(|(n, s)| Ok((n.clone(), s.extract()?)))
            .collect::<Outcome<_>>()?;
        let symbols = self.program.symbols(shapes.iter().map(|(n, s)| (n.as_str(), s.clone())))?;
        self.specialise(py, &symbols)?;
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
        let tensors = |dict: &Bound<'_, PyDict>| -> Outcome<Tensors> {
            pairs(dict.as_any())?
                .iter()
                .map(|(n, t)| Ok((n.as_str().into(), Arc::new(tensor(t, None)?))))
                .collect()
        };
        let given = Export { title, values: tensors(values)?, expected: tensors(expected)?, calls, inside };
        let shapes = given.values.iter().map(|(name, t)| (&**name, t.shape().to_vec()));
        let symbols = self.program.symbols(shapes)?;
        let report = py.detach(|| export(&self.program, &symbols, &given, &folder))?;
        let found = PyDict::new(py);
        found.set_item("files", report.files)?;
        found.set_item("weight_bytes", report.weight_bytes)?;
        found.set_item("packed_bytes", report.packed_bytes)?;
        found.set_item("pack_bytes", report.pack_bytes)?;
        found.set_item("arena_bytes", report.arena_bytes)?;
        found.set_item("check", report.check)?;
        Ok(found)
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
        let symbols = self.bind(&groups)?;
        let made = Arc::new(py.detach(|| self.program.profiled(&symbols))?);
        let ready = Ready::new(py, made.clone(), self.many)?;
        let mut held = Held::new();
        let (addresses, kept, rows) = ready
            .gather(py, &groups, &mut held)?
            .ok_or_else(|| Error::new(Code::BadParameter, "the shapes of the arrays do not fit together"))?;
        let run = || {
            // Into new memory: the states of the caller stay as they are.
            let results = ready.run(py, &addresses, kept.as_deref(), rows, None, None)?;
            // The seconds are an output behind the new states, so that there are several dicts.
            let states = results.get_item(-1)?;
            Ok(states.get_item(SECONDS)?)
        };
        let seconds = (0..runs).map(|_| run()).collect::<Outcome<_>>()?;
        let row = |c: &Cost| (c.name.clone(), c.path.clone(), c.what.clone(), c.operations, c.bytes);
        Ok((seconds, made.source.costs.iter().map(row).collect()))
    }
    /// Packs parameters and states for these sizes of data.
    fn pack<'py>(
        &self,
        py: Python<'py>,
        params: Bound<'py, PyAny>,
        state: Bound<'py, PyAny>,
        shapes: &Bound<'py, PyDict>,
    ) -> Outcome<PyCPacked> {
        let sizes: Vec<(String, Vec<usize>)> = pairs(shapes.as_any())?
            .iter()
            .map(|(n, s)| Ok((n.clone(), s.extract()?)))
            .collect::<Outcome<_>>()?;
        let symbols = self.program.symbols(sizes.iter().map(|(n, s)| (n.as_str(), s.clone())))?;
        let ready = self.specialise(py, &symbols)?;
        // What calls with arrays have packed would be there twice.
        *ready.kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let groups = Groups { params, data: shapes.clone().into_any(), state, cotangents: None };
        let kept = Arc::new(ready.keep(py, &groups)?);
        Ok(PyCPacked::new(ready, kept))
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
        let groups = Groups { params, data, state, cotangents };
        let mut held = Held::new();
        if let Ok(packed) = groups.params.cast::<PyCPacked>() {
            let (ready, kept) = packed.get().parts();
            if !self.lock().iter().any(|mine| Arc::ptr_eq(mine, ready)) {
                return Err(Error::new(Code::BadParameter, "the parameters are packed for another model")
                    .help("pack them with this one: compiled.pack(params)")
                    .into());
            }
            let (addresses, rows) = ready.beside(py, kept, &groups, &mut held)?;
            return ready.run(py, &addresses, Some(kept), rows, self.states(&groups), Some(&groups));
        }
        if let Some(ready) = self.latest()
            && let Some((addresses, kept, rows)) = ready.gather(py, &groups, &mut held)?
        {
            return ready.run(py, &addresses, kept.as_deref(), rows, self.states(&groups), Some(&groups));
        }
        let ready = self.specialise(py, &self.bind(&groups)?)?;
        held.clear();
        let (addresses, kept, rows) = ready
            .gather(py, &groups, &mut held)?
            .ok_or_else(|| Error::new(Code::BadParameter, "the shapes of the arrays do not fit together"))?;
        ready.run(py, &addresses, kept.as_deref(), rows, self.states(&groups), Some(&groups))
    }
}

/// The mappings of a call.
struct Groups<'py> {
    params: Bound<'py, PyAny>,
    data: Bound<'py, PyAny>,
    state: Bound<'py, PyAny>,
    cotangents: Option<Bound<'py, PyAny>>,
}

impl<'py> Groups<'py> {
    fn get(&self, role: Role, name: &Bound<'py, PyString>) -> Outcome<Bound<'py, PyAny>> {
        let group = match role {
            Role::Param => Some(&self.params),
            Role::Data => Some(&self.data),
            Role::State => Some(&self.state),
            Role::Cotangent => self.cotangents.as_ref(),
        };
        let group = group.ok_or_else(|| Error::internal("no cotangents are given"))?;
        if let Ok(dict) = group.cast::<PyDict>()
            && let Some(found) = dict.get_item(name)?
        {
            return Ok(found);
        }
        Ok(group.get_item(name)?)
    }
}

impl PyCProgram {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Ready>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The mappings, if the states in them are changed.
    fn states<'a, 'py>(&self, groups: &'a Groups<'py>) -> Option<&'a Groups<'py>> {
        self.program.options().in_place.then_some(groups)
    }
    fn latest(&self) -> Option<Arc<Ready>> {
        self.lock().last().cloned()
    }
    /// Sizes of the symbols in these arrays.
    fn bind(&self, groups: &Groups<'_>) -> Outcome<Symbols> {
        let mut shapes = Vec::new();
        let py = groups.params.py();
        for input in &self.program.compiled().inputs {
            let array = groups.get(input.role, &PyString::new(py, &input.name))?;
            shapes.push((&*input.name, array.getattr(intern!(py, "shape"))?.extract::<Vec<usize>>()?));
        }
        Ok(self.program.symbols(shapes)?)
    }
    /// The program for these sizes; it becomes the latest.
    fn specialise(&self, py: Python<'_>, symbols: &Symbols) -> Outcome<Arc<Ready>> {
        let made = py.detach(|| self.program.specialise(symbols))?;
        let position = |all: &[Arc<Ready>]| all.iter().position(|r| Arc::ptr_eq(&r.made, &made));
        let known = position(&self.lock());
        let fresh = match known {
            None => Some(Arc::new(Ready::new(py, made.clone(), self.many)?)),
            Some(_) => None,
        };
        let mut all = self.lock();
        // Another thread may have added it meanwhile.
        let ready = match (position(&all), fresh) {
            (Some(at), _) => all.remove(at),
            (None, Some(fresh)) => fresh,
            (None, None) => return Err(Error::internal("a specialisation is lost").into()),
        };
        all.push(ready.clone());
        Ok(ready)
    }
}

impl Ready {
    fn new(py: Python<'_>, made: Arc<Specialised>, many: bool) -> Outcome<Self> {
        let interface = made.function.interface();
        let names = interface.inputs.iter().map(|b| PyString::intern(py, &b.name).unbind());
        let inputs = interface.roles.iter().copied().zip(names).collect();
        let mut outputs = Vec::new();
        for (i, buffer) in interface.outputs.iter().enumerate() {
            let (dict, name) = match gradient_of(&buffer.name) {
                _ if i >= interface.results().len() => (1 + usize::from(many), &*buffer.name),
                Some(input) if many => (1, input),
                _ => (0, &*buffer.name),
            };
            let shape = PyTuple::new(py, &buffer.shape)?;
            let arguments = PyTuple::new(py, [shape.into_any(), native(py, buffer.dtype)?])?.unbind();
            outputs.push(Output { dict, name: PyString::intern(py, name).unbind(), arguments });
        }
        Ok(Self { made, inputs, outputs, kept: Mutex::default() })
    }
    /// How many rows are given, where that is an argument.
    fn rows(&self, py: Python<'_>, groups: &Groups<'_>) -> Outcome<Option<usize>> {
        self.made.function.interface().count_rows(|i| {
            let (role, name) = &self.inputs[i];
            Ok(groups.get(*role, name.bind(py))?.getattr(intern!(py, "shape"))?.extract()?)
        })
    }
    /// Addresses of the inputs, and the packed parameters; `None` if a shape is that of another choice of sizes.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        groups: &Groups<'py>,
        held: &mut Held<'py>,
    ) -> Outcome<Option<Gathered>> {
        let packs = self.made.function.packed_bytes() > 0;
        let kept =
            if packs { self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone() } else { None };
        let own = self.made.function.interface();
        let rows = self.rows(py, groups)?;
        let scaled = rows.map(|count| own.of_rows(count));
        let Interface { inputs: buffers, fixed, .. } = scaled.as_ref().unwrap_or(own);
        let mut addresses = Vec::with_capacity(buffers.len());
        let mut is_same = true;
        for (i, ((role, name), buffer)) in self.inputs.iter().zip(buffers).enumerate() {
            let is_fixed = fixed[i];
            let array = groups.get(*role, name.bind(py))?;
            if packs && is_fixed {
                if let Some(kept) = &kept
                    && kept.arrays[i].as_ref().is_some_and(|known| known.is(&array))
                {
                    addresses.push(kept.addresses[i]);
                    continue;
                }
                is_same = false;
            }
            let Some(address) = find(py, array, buffer, held)? else { return Ok(None) };
            addresses.push(address);
        }
        if !packs || (is_same && kept.is_some()) {
            return Ok(Some((addresses, kept, rows)));
        }
        drop(kept);
        let kept = self.pack(py, &addresses, groups, held)?;
        Ok(Some((addresses, kept, rows)))
    }
    /// Packs parameters that were not seen before.
    fn pack(
        &self,
        py: Python<'_>,
        addresses: &[Address],
        groups: &Groups<'_>,
        held: &Held<'_>,
    ) -> Outcome<Option<Arc<Kept>>> {
        // The old ones go first: their memory is needed.
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let mut arrays = Vec::with_capacity(self.inputs.len());
        for ((role, name), is_fixed) in self.inputs.iter().zip(&self.made.function.interface().fixed) {
            arrays.push(match is_fixed {
                true => {
                    let array = groups.get(*role, name.bind(py))?;
                    lock(&array)?;
                    Some(array.unbind())
                }
                false => None,
            });
        }
        let packed = py.detach(|| self.made.function.pack(addresses))?;
        let held = held.iter().map(|array| array.clone().unbind()).collect();
        let addresses = addresses.to_vec();
        let kept = packed.map(|p| Arc::new(Kept { arrays, addresses, _held: held, packed: Some(p) }));
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&kept);
        Ok(kept)
    }
    /// The array that was donated for output `i`, if the output may be written into it.
    fn donated<'py>(
        &self,
        py: Python<'py>,
        i: usize,
        inputs: &[Address],
        groups: &Groups<'py>,
    ) -> Option<Bound<'py, PyAny>> {
        let interface = self.made.function.interface();
        let (input, _) = interface.shared.iter().find(|(_, output)| *output == i)?;
        let (role, name) = &self.inputs[*input];
        let array = groups.get(*role, name.bind(py)).ok()?;
        let address = describe(&array).ok()?.fits_writing(&interface.outputs[i])?;
        (address == inputs[*input]).then_some(array)
    }
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &[Address],
        kept: Option<&Kept>,
        rows: Option<usize>,
        states: Option<&Groups<'py>>,
        given: Option<&Groups<'py>>,
    ) -> Outcome<Bound<'py, PyAny>> {
        let own = self.made.function.interface();
        let scaled = rows.map(|count| own.of_rows(count));
        let interface = scaled.as_ref().unwrap_or(own);
        // States that are changed where they lie are no results.
        let count = if states.is_some() { interface.results().len() } else { self.outputs.len() };
        let dicts = self.outputs[..count].iter().map(|o| o.dict).max().unwrap_or(0) + 1;
        let dicts: Vec<Bound<'py, PyDict>> = (0..dicts).map(|_| PyDict::new(py)).collect();
        let empty = numpy(py)?.getattr(intern!(py, "empty"))?;
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for (i, (output, buffer)) in self.outputs[..count].iter().zip(&interface.outputs).enumerate() {
            let array = match (given.and_then(|groups| self.donated(py, i, inputs, groups)), rows) {
                (Some(array), _) => array,
                (None, None) => empty.call1(output.arguments.bind(py))?,
                (None, Some(_)) => {
                    empty.call1((PyTuple::new(py, &buffer.shape)?, native(py, buffer.dtype)?))?
                }
            };
            let address = describe(&array)?.fits_writing(buffer);
            outputs.push(address.ok_or_else(|| Error::internal("numpy.empty makes arrays of another kind"))?);
            dicts[output.dict].set_item(output.name.bind(py), array)?;
        }
        for (output, buffer) in self.outputs.iter().zip(&interface.outputs).skip(count) {
            let array = states.map(|groups| groups.get(Role::State, output.name.bind(py))).transpose()?;
            let found = array.and_then(|array| describe(&array).ok()?.fits_writing(buffer));
            let found = found.filter(|address| inputs.contains(address)).ok_or_else(|| {
                let text = format!("the state `{}` cannot be changed where it lies", buffer.name);
                Error::new(Code::BadParameter, text)
                    .help("it has to be contiguous, writeable, and of the dtype of the program")
            })?;
            outputs.push(found);
        }
        let function = &self.made.function;
        let packed = kept.and_then(|k| k.packed.as_ref());
        py.detach(|| function.call_rows(inputs, &outputs, packed, rows))?;
        match <[_; 1]>::try_from(dicts) {
            Ok([one]) => Ok(one.into_any()),
            Err(several) => Ok(PyTuple::new(py, several)?.into_any()),
        }
    }
}

/// Address of an input; a copy is made of what does not lie as generated code reads it. `None`: another shape.
fn find<'py>(
    py: Python<'py>,
    array: Bound<'py, PyAny>,
    buffer: &Buffer,
    held: &mut Held<'py>,
) -> Outcome<Option<Address>> {
    if let Ok(found) = describe(&array) {
        if found.shape() != buffer.shape {
            return Ok(None);
        }
        if let Some(address) = found.fits(buffer) {
            held.push(array);
            return Ok(Some(address));
        }
    }
    let options = PyDict::new(py);
    options.set_item("order", "C")?;
    let copy = numpy(py)?.getattr("array")?.call((array, native(py, buffer.dtype)?), Some(&options))?;
    let found = describe(&copy)?;
    let address = found.fits(buffer);
    held.push(copy);
    Ok(address)
}

fn describe(array: &Bound<'_, PyAny>) -> Outcome<Array> {
    let capsule = array.getattr(intern!(array.py(), "__array_struct__"))?;
    let capsule = capsule.cast::<PyCapsule>().map_err(PyErr::from)?;
    Ok(Array::read(capsule.pointer_checked(None::<&CStr>)?)?)
}

/// Makes an array, and what it is a view of, read-only: packed parameters would not see what is written there.
fn lock(array: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = array.py();
    let kind = numpy(py)?.getattr(intern!(py, "ndarray"))?;
    let mut array = array.clone();
    while array.is_instance(&kind)? {
        array.call_method1(intern!(py, "setflags"), (false,))?;
        array = array.getattr(intern!(py, "base"))?;
    }
    Ok(())
}

fn numpy(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static NUMPY: pyo3::sync::PyOnceLock<Py<PyAny>> = pyo3::sync::PyOnceLock::new();
    let module = NUMPY.get_or_try_init(py, || Ok::<_, PyErr>(py.import("numpy")?.into_any().unbind()))?;
    Ok(module.bind(py).clone())
}

/// NumPy's dtype.
fn native(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    match dtype {
        DType::BF16 => numpy(py)?.call_method1("dtype", (py.import("ml_dtypes")?.getattr("bfloat16")?,)),
        dtype => numpy(py)?.call_method1("dtype", (dtype.name(),)),
    }
}

/// How C is made, as Python says it.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub struct COptions {
    prefix: String,
    threads: usize,
    cc: Option<String>,
    flags: Vec<String>,
    python: Option<String>,
    memory_limit: Option<usize>,
    lanes: Option<usize>,
    in_place: bool,
    autotune: bool,
    quantize: Option<Quantization>,
    batch: Option<(String, usize)>,
}

/// Weights in few bits: patterns of names with schemes, and whether what cannot be is an error.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
struct Quantization {
    rules: Vec<(String, Option<String>)>,
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
        Ok(Quantize { rules, strict: self.strict })
    }
}

impl COptions {
    fn options(self, pack: bool) -> Result<Options, Error> {
        let Self { prefix, threads, cc, flags, python, memory_limit, .. } = self;
        let Self { lanes, in_place, autotune, quantize, batch, .. } = self;
        let quantize = quantize.map(Quantization::read).transpose()?;
        let batch = batch.map(|(name, block)| (name.into(), block));
        let tool = Tool { command: cc, flags, python };
        Ok(Options { prefix, pack, in_place, lanes, threads, tool, memory_limit, autotune, quantize, batch })
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
    let names = |list: Vec<String>| list.into_iter().map(Arc::from).collect::<Vec<Arc<str>>>();
    let many = outputs.is_some();
    let wanted = match (outputs, inputs) {
        (Some(outputs), Some(inputs)) => Wanted::Gradients { outputs: names(outputs), inputs: names(inputs) },
        _ => Wanted::Outputs,
    };
    // Parameters of a model in training change from call to call.
    let options = options.options(!many && !compiled.is_training())?;
    if options.quantize.is_some() && !options.pack {
        let text = "quantize needs inference=True: training changes weights";
        return Err(Error::new(Code::ConflictingOptions, text)
            .help("add inference=True to ml.compile, or train on a backend without quantize")
            .into());
    }
    let program = Program::new(compiled.compiled.clone(), wanted, options);
    let is_open = program.is_open();
    let made = PyCProgram { program, many, ready: Mutex::default() };
    if !is_open && !is_lazy {
        made.specialise(py, &Symbols::default())?;
    }
    Ok(made)
}

/// What this processor can do at most with the threads of these options: operations on float32 and bytes from memory in
/// a second, and their number.
#[pyfunction]
pub fn c_peak(py: Python<'_>, options: COptions) -> Result<(f64, f64, usize), Failure> {
    let options = options.options(false)?;
    py.detach(|| {
        let lanes = mithril::compile::c::lanes(options.lanes)?;
        let found = peak(&options.tool, &Cache::default(), lanes, options.threads())?;
        Ok((found.operations, found.bandwidth, options.threads()))
    })
}

/// First line of what the C compiler that would be used says of itself.
#[pyfunction]
#[pyo3(signature = (cc=None, python=None))]
pub fn c_compiler(py: Python<'_>, cc: Option<String>, python: Option<String>) -> Result<String, Failure> {
    let tool = Tool { command: cc, python, flags: vec![] };
    py.detach(|| Ok(mithril::runtime::c::Compiler::find(&tool)?.version().to_owned()))
}
