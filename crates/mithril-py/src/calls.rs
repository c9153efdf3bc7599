//! Calls of compiled functions: the arrays that go in and out are NumPy's, without a copy. What a function is (generated
//! C, or a plan of ggml) is left open.

use std::ffi::CStr;
use std::fmt::Debug;
use std::sync::Arc;

use mithril::compile::compiled::{Compiled, gradient_of};
use mithril::ir::DType;
use mithril::ir::error::{Code, Error, Result};
use mithril::ir::graph::Role;
use mithril::ir::interp::Symbols;
use mithril::runtime::c::{Address, AddressMut, Array, EntryPoint, TensorSpec};
use mithril::runtime::ggml::{BorrowedWeights as Blocks, Element};
pub use mithril::runtime::host_calls::Callable;
use mithril::runtime::host_calls::{self, HostArrays, HostFunction, Passed, Recent};
use mithril::runtime::recycled::{Recycled, is_large};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyString, PyTuple};

use crate::convert::pairs;
use crate::errors::{Failure, Outcome};

mod packed;
mod recycled;

pub use packed::PyPacked;
use recycled::Memory;

/// A compiled model that becomes a function for each choice of sizes.
pub trait Source: Send + Sync {
    /// The function, with what is known of it.
    type Function: ReadsBlocks + 'static;
    /// The model.
    fn compiled(&self) -> &Compiled;
    /// Whether new states are written into the memory of the old ones.
    fn is_in_place(&self) -> bool;
    /// Values of the symbols, from the sizes of inputs by name.
    fn symbols(&self, shapes: Vec<(String, Vec<usize>)>) -> Result<Symbols>;
    /// The function for these sizes, and for weights that are given in blocks; the same for the same.
    fn specialize(&self, symbols: &Symbols, blocks: &Blocks) -> Result<Arc<Self::Function>>;
}

/// A function whose parameters may be given in blocks.
pub trait ReadsBlocks: Callable {
    /// Whether parameters that are given in blocks are read so, rather than as the floats that they stand for.
    const READS_BLOCKS: bool = false;
    /// The elements of the blocks in which an input is given, if it is.
    fn blocks(&self, _input: usize) -> Option<Element> {
        None
    }
}

/// An array that stays alive with the description of its memory.
type Held = Array<Py<PyAny>>;
/// Per input what is passed; `None`: what is kept, if anything.
type Arguments = Passed<Py<PyAny>>;
/// Parameters as they were packed.
pub type Kept<F> = host_calls::Kept<F, Py<PyAny>, Py<PyAny>>;
/// The inputs, the packed parameters if there are any, and the number of rows where that is an argument.
type Gathered<F> = host_calls::Gathered<F, Py<PyAny>, Py<PyAny>>;

/// A program with the choices of sizes that it was called with; the latest is the last.
#[derive(Debug)]
pub struct Calls<S: Source> {
    pub program: S,
    /// Whether a call returns several dicts: outputs and gradients.
    pub many: bool,
    ready: Recent<Ready<S::Function>>,
}

/// One choice of sizes with what calls need of it, made once.
#[derive(Debug)]
pub struct Ready<F: Callable> {
    call: HostFunction<F, Py<PyAny>, Py<PyAny>>,
    inputs: Vec<(Role, Py<PyString>)>,
    outputs: Vec<Output>,
    many: bool,
}

/// Where an output goes: the number of the dict, its name there, and the arguments of `numpy.empty` for it.
#[derive(Debug)]
struct Output {
    dict: usize,
    name: Py<PyString>,
    arguments: Py<PyTuple>,
    recycled: Recycled<Memory>,
}

impl Output {
    /// An array for it, which has this shape and dtype.
    fn array<'py>(
        &self,
        py: Python<'py>,
        arguments: &Bound<'py, PyTuple>,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        if is_large(bytes) {
            return recycled::array(&self.recycled, py, arguments, bytes);
        }
        let empty = EMPTY.get_or_try_init(py, || numpy(py)?.getattr("empty").map(Bound::unbind))?;
        empty.bind(py).call1(arguments)
    }
}

impl<S: Source> Calls<S> {
    /// Calls of a program. Where all sizes are known, it is made now unless `is_lazy`.
    pub fn new(py: Python<'_>, program: S, many: bool, is_lazy: bool) -> Outcome<Self> {
        let mut dims = program.compiled().inputs.iter().flat_map(|i| i.ty.shape.iter());
        let is_open = dims.any(|d| d.known().is_none());
        let calls = Self { program, many, ready: Recent::default() };
        if !is_open && !is_lazy {
            calls.specialize(py, &Symbols::default(), &Blocks::new())?;
        }
        Ok(calls)
    }
    /// Number of choices of sizes.
    pub fn count(&self) -> usize {
        self.ready.count()
    }
    /// What was called or made last.
    pub fn latest(&self) -> Option<Arc<Ready<S::Function>>> {
        self.ready.latest()
    }
    /// The mappings, if the states in them are changed.
    fn states<'a, 'py>(&self, groups: &'a Groups<'py>) -> Option<&'a Groups<'py>> {
        self.program.is_in_place().then_some(groups)
    }
    /// Sizes of the symbols in these arrays; packed parameters have no shapes.
    pub fn bind(&self, groups: &Groups<'_>) -> Outcome<Symbols> {
        let mut shapes = Vec::new();
        let py = groups.params.py();
        let is_packed = groups.params.cast::<PyPacked>().is_ok();
        for input in self.program.compiled().inputs.iter().filter(|i| !is_packed || i.role != Role::Param) {
            let array = groups.get(input.role, &PyString::new(py, &input.name))?;
            shapes.push((input.name.to_string(), array.getattr(intern!(py, "shape"))?.extract()?));
        }
        Ok(self.program.symbols(shapes)?)
    }
    /// The parameters that are given in blocks, where those are read so.
    fn blocks(&self, params: &Bound<'_, PyAny>) -> Outcome<Blocks> {
        let mut quantized = Blocks::new();
        if S::Function::READS_BLOCKS {
            let is_weight = |role, dtype| role == Role::Param && dtype == DType::F32;
            let inputs = self.program.compiled().inputs.iter();
            for input in inputs.filter(|input| is_weight(input.role, input.ty.dtype)) {
                if let Some((element, _)) = blocks(&params.get_item(&*input.name)?)? {
                    quantized.insert(input.name.clone(), element);
                }
            }
        }
        Ok(quantized)
    }
    /// The function for these sizes; it becomes the latest.
    pub fn specialize(
        &self,
        py: Python<'_>,
        symbols: &Symbols,
        blocks: &Blocks,
    ) -> Outcome<Arc<Ready<S::Function>>> {
        let specialized = py.detach(|| self.program.specialize(symbols, blocks))?;
        let is_made = |ready: &Ready<S::Function>| Arc::ptr_eq(ready.function(), &specialized);
        self.ready.find(is_made, || Ready::new(py, specialized.clone(), self.many))
    }
    /// Makes the function for these sizes of inputs, and for these parameters; nothing is run.
    pub fn prepare(
        &self,
        py: Python<'_>,
        shapes: &Bound<'_, PyDict>,
        params: Option<&Bound<'_, PyAny>>,
    ) -> Outcome<Arc<Ready<S::Function>>> {
        let shapes = pairs(shapes.as_any())?
            .iter()
            .map(|(name, sizes)| Ok((name.clone(), sizes.extract()?)))
            .collect::<Outcome<_>>()?;
        let symbols = self.program.symbols(shapes)?;
        let blocks = params.map(|params| self.blocks(params)).transpose()?.unwrap_or_default();
        self.specialize(py, &symbols, &blocks)
    }
    /// Packs parameters and states for these sizes of data.
    pub fn pack<'py>(
        &self,
        py: Python<'py>,
        params: Bound<'py, PyAny>,
        state: Bound<'py, PyAny>,
        shapes: &Bound<'py, PyDict>,
    ) -> Outcome<PyPacked> {
        let ready = self.prepare(py, shapes, Some(&params))?;
        // What calls with arrays have packed would be there twice.
        ready.call.forget();
        let groups = Groups { params, data: shapes.clone().into_any(), state, cotangents: None };
        let kept = ready.call.pack(&ready.arrays(py, &groups), false)?.ok_or_else(misfit)?;
        Ok(PyPacked::new(ready, Arc::new(kept)))
    }
    /// What packed parameters are made of, if they were packed by this program.
    fn own<'a>(&self, packed: &'a PyPacked) -> Outcome<&'a packed::For<S::Function>> {
        let parts = packed.parts::<S::Function>();
        let parts = parts.filter(|f| self.ready.contains(&f.ready));
        Ok(parts.ok_or_else(|| {
            Error::new(Code::BadParameter, "the parameters are packed for another model")
                .help("pack them with this one: compiled.pack(params)")
        })?)
    }
    /// The inputs and the packed parameters for a function whose parameters are packed as those of this program are.
    pub fn gather<'py>(
        &self,
        py: Python<'py>,
        ready: &Ready<S::Function>,
        groups: &Groups<'py>,
    ) -> Outcome<Gathered<S::Function>> {
        if let Ok(packed) = groups.params.cast::<PyPacked>() {
            let kept = &self.own(packed.get())?.kept;
            let (inputs, rows) = ready.call.beside(&ready.arrays(py, groups), kept)?;
            return Ok((inputs, Some(kept.clone()), rows));
        }
        Ok(ready.call.gather(&ready.arrays(py, groups))?.ok_or_else(misfit)?)
    }
    /// Outputs by name, further dicts (gradients, new states) beside them.
    pub fn call<'py>(&self, py: Python<'py>, groups: &Groups<'py>) -> Outcome<Bound<'py, PyAny>> {
        if let Ok(packed) = groups.params.cast::<PyPacked>() {
            let packed::For { ready, kept } = self.own(packed.get())?;
            let (inputs, rows) = ready.call.beside(&ready.arrays(py, groups), kept)?;
            return ready.run(py, &inputs, Some(kept), rows, self.states(groups), Some(groups));
        }
        if let Some(ready) = self.latest()
            && let Some((inputs, kept, rows)) = ready.call.gather(&ready.arrays(py, groups))?
        {
            return ready.run(py, &inputs, kept.as_deref(), rows, self.states(groups), Some(groups));
        }
        let ready = self.specialize(py, &self.bind(groups)?, &self.blocks(&groups.params)?)?;
        let (inputs, kept, rows) = ready.call.gather(&ready.arrays(py, groups))?.ok_or_else(misfit)?;
        ready.run(py, &inputs, kept.as_deref(), rows, self.states(groups), Some(groups))
    }
}

/// What is computed: the outputs, or gradients of those that are named by the inputs that are.
pub fn entry_point(outputs: Option<Vec<String>>, inputs: Option<Vec<String>>) -> EntryPoint {
    let names = |list: Vec<String>| list.into_iter().map(Arc::from).collect::<Vec<Arc<str>>>();
    match (outputs, inputs) {
        (Some(outputs), Some(inputs)) => {
            EntryPoint::Gradients { outputs: names(outputs), inputs: names(inputs) }
        }
        _ => EntryPoint::Outputs,
    }
}

/// The error for weights that are to be quantized and to be trained.
pub fn quantized_training() -> Error {
    Error::new(Code::ConflictingOptions, "quantize needs inference=True: training changes weights")
        .help("add inference=True to ml.compile, or train on a backend without quantize")
}

/// The error for arrays that fit no choice of sizes.
pub fn misfit() -> Error {
    Error::new(Code::BadParameter, "the shapes of the arrays are inconsistent")
}

/// The mappings of a call.
pub struct Groups<'py> {
    pub params: Bound<'py, PyAny>,
    pub data: Bound<'py, PyAny>,
    pub state: Bound<'py, PyAny>,
    pub cotangents: Option<Bound<'py, PyAny>>,
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
            && let Some(value) = dict.get_item(name)?
        {
            return Ok(value);
        }
        Ok(group.get_item(name)?)
    }
}

impl<F: Callable> Ready<F> {
    /// The function.
    pub fn function(&self) -> &Arc<F> {
        &self.call.function
    }
}

impl<F: ReadsBlocks> Ready<F> {
    pub fn new(py: Python<'_>, function: Arc<F>, many: bool) -> Outcome<Self> {
        let interface = function.interface();
        let names = interface.inputs.iter().map(|b| PyString::intern(py, &b.name).unbind());
        let inputs = interface.roles.iter().copied().zip(names).collect();
        let mut outputs = Vec::new();
        for (i, buffer) in interface.outputs.iter().enumerate() {
            let (dict, name) = match gradient_of(&buffer.name) {
                _ if i >= interface.results().len() => (1 + usize::from(many), &*buffer.name),
                Some(input) if many => (1, input),
                _ => (0, &*buffer.name),
            };
            let arguments = arguments(py, buffer)?.unbind();
            let recycled = Recycled::default();
            outputs.push(Output { dict, name: PyString::intern(py, name).unbind(), arguments, recycled });
        }
        Ok(Self { call: HostFunction::new(function), inputs, outputs, many })
    }
    /// The arrays of a call.
    fn arrays<'a, 'py>(&'a self, py: Python<'py>, groups: &'a Groups<'py>) -> CallArrays<'a, 'py, F> {
        CallArrays { py, function: self.function(), inputs: &self.inputs, groups }
    }
    /// The array that was donated for output `i`, if the output may be written into it.
    fn donated<'py>(
        &self,
        py: Python<'py>,
        i: usize,
        inputs: &[Address<'_>],
        groups: &Groups<'py>,
    ) -> Option<Bound<'py, PyAny>> {
        let interface = self.function().interface();
        let (input, _) = interface.shared.iter().find(|(_, output)| *output == i)?;
        let (role, name) = &self.inputs[*input];
        let array = groups.get(*role, name.bind(py)).ok()?;
        let held = describe(&array).ok()?;
        held.fits_writing(&interface.outputs[i])?.is_at(&inputs[*input]).then_some(array)
    }
    pub fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Arguments,
        kept: Option<&Kept<F>>,
        rows: Option<usize>,
        states: Option<&Groups<'py>>,
        donated: Option<&Groups<'py>>,
    ) -> Outcome<Bound<'py, PyAny>> {
        let own = self.function().interface();
        let scaled = rows.map(|count| own.of_rows(count));
        let interface = scaled.as_ref().unwrap_or(own);
        let addresses = inputs.iter().enumerate().zip(&interface.inputs).map(|((i, held), buffer)| {
            let held = held.as_ref().or_else(|| kept?.memory[i].as_ref());
            held.and_then(|held| held.fits(buffer)).unwrap_or(Address::none())
        });
        let inputs: Vec<Address<'_>> = addresses.collect();
        // States that are changed where they lie are not results.
        let count = if states.is_some() { interface.results().len() } else { self.outputs.len() };
        // That of the gradients is there also where nothing has a gradient.
        let last = self.outputs[..count].iter().map(|o| o.dict).fold(usize::from(self.many), usize::max);
        let dicts = last + 1;
        let dicts: Vec<Bound<'py, PyDict>> = (0..dicts).map(|_| PyDict::new(py)).collect();
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for (i, (output, buffer)) in self.outputs[..count].iter().zip(&interface.outputs).enumerate() {
            let array = match (donated.and_then(|groups| self.donated(py, i, &inputs, groups)), rows) {
                (Some(array), _) => array,
                (None, None) => output.array(py, output.arguments.bind(py), buffer.bytes())?,
                (None, Some(_)) => output.array(py, &arguments(py, buffer)?, buffer.bytes())?,
            };
            outputs.push(describe(&array)?);
            dicts[output.dict].set_item(output.name.bind(py), array)?;
        }
        for (output, buffer) in self.outputs.iter().zip(&interface.outputs).skip(count) {
            let array = states.map(|groups| groups.get(Role::State, output.name.bind(py))).transpose()?;
            let held = array.and_then(|array| describe(&array).ok());
            let is_passed = |held: &Held| {
                held.fits_writing(buffer).is_some_and(|place| inputs.iter().any(|input| place.is_at(input)))
            };
            outputs.push(held.filter(is_passed).ok_or_else(|| {
                let text = format!("the state `{}` cannot be changed where it lies", buffer.name);
                Error::new(Code::BadParameter, text)
                    .help("it must be contiguous, writeable, and of the dtype of the program")
            })?);
        }
        let places = outputs.iter().zip(&interface.outputs).map(|(array, buffer)| array.fits_writing(buffer));
        let mut places = places
            .collect::<Option<Vec<AddressMut<'_>>>>()
            .ok_or_else(|| Error::internal("numpy.empty makes arrays of another kind"))?;
        let packed = kept.and_then(|k| k.packed.as_ref());
        let mut call = || self.function().call(&inputs, &mut places, packed, rows);
        if self.function().is_quick() { call() } else { py.detach(call) }?;
        match <[_; 1]>::try_from(dicts) {
            Ok([one]) => Ok(one.into_any()),
            Err(several) => Ok(PyTuple::new(py, several)?.into_any()),
        }
    }
}

/// The arrays of one call, in the mappings that Python passes.
struct CallArrays<'a, 'py, F> {
    py: Python<'py>,
    function: &'a F,
    inputs: &'a [(Role, Py<PyString>)],
    groups: &'a Groups<'py>,
}

impl<'py, F: ReadsBlocks> HostArrays for CallArrays<'_, 'py, F> {
    type Array = Bound<'py, PyAny>;
    type Kept = Py<PyAny>;
    type Owner = Py<PyAny>;
    type Error = Failure;
    fn get(&self, input: usize) -> Outcome<Bound<'py, PyAny>> {
        let (role, name) = &self.inputs[input];
        self.groups.get(*role, name.bind(self.py))
    }
    fn shape(&self, input: usize) -> Outcome<Vec<usize>> {
        Ok(self.get(input)?.getattr(intern!(self.py, "shape"))?.extract()?)
    }
    fn describe(&self, input: usize, array: Bound<'py, PyAny>, buffer: &TensorSpec) -> Outcome<Option<Held>> {
        let known = self.function.blocks(input);
        let is_plain = known.is_none() && buffer.dtype != DType::F32;
        if !F::READS_BLOCKS || !self.function.keeps() || self.inputs[input].0 != Role::Param || is_plain {
            return find(self.py, array, buffer);
        }
        match (blocks(&array)?, known) {
            (None, None) => find(self.py, array, buffer),
            (Some((key, memory)), Some(current)) if key == current => find(self.py, aligned(memory)?, buffer),
            _ => Ok(None),
        }
    }
    fn keep(&self, array: Bound<'py, PyAny>) -> Outcome<Py<PyAny>> {
        lock(&array)?;
        Ok(array.unbind())
    }
    fn is_kept(&self, kept: &Py<PyAny>, array: &Bound<'py, PyAny>) -> bool {
        kept.is(array)
    }
    fn release(&self, input: usize) -> Outcome<()> {
        let release = self.groups.params.getattr_opt(intern!(self.py, "_release"))?;
        release.map_or(Ok(()), |release| Ok(release.call1((&self.inputs[input].1,)).map(drop)?))
    }
    fn detached<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.py.detach(work)
    }
}

/// An input; a copy is made of what does not lie as generated code reads it. `None`: another shape.
fn find<'py>(py: Python<'py>, array: Bound<'py, PyAny>, buffer: &TensorSpec) -> Outcome<Option<Held>> {
    if let Ok(held) = describe(&array) {
        if held.shape() != buffer.shape {
            return Ok(None);
        }
        if held.fits(buffer).is_some() {
            return Ok(Some(held));
        }
    }
    let options = PyDict::new(py);
    options.set_item("order", "C")?;
    let copy = numpy(py)?.getattr("array")?.call((array, native(py, buffer.dtype)?), Some(&options))?;
    let held = describe(&copy)?;
    Ok(held.fits(buffer).is_some().then_some(held))
}

/// The arguments of `numpy.empty`.
fn arguments<'py>(py: Python<'py>, buffer: &TensorSpec) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, [PyTuple::new(py, &buffer.shape)?.into_any(), native(py, buffer.dtype)?])
}

/// The elements and the memory of what is given in blocks that ggml knows, or in 16 bits.
fn blocks<'py>(array: &Bound<'py, PyAny>) -> Outcome<Option<(Element, Bound<'py, PyAny>)>> {
    let py = array.py();
    let name = |of: &str| array.getattr(of)?.getattr(intern!(py, "name"))?.extract::<String>();
    let Some(memory) = array.getattr_opt(intern!(py, "blocks"))? else {
        let element = match name("dtype")?.as_str() {
            "float16" => Some(Element::F16),
            "bfloat16" => Some(Element::BF16),
            _ => None,
        };
        return Ok(element.map(|element| (element, array.clone())));
    };
    let element = Element::parse(&name("format")?).filter(|element| element.is_quantized());
    Ok(element.map(|element| (element, memory)))
}

/// Blocks, which are copied if they begin where no number of 16 bits may.
fn aligned(memory: Bound<'_, PyAny>) -> Outcome<Bound<'_, PyAny>> {
    let described = memory.getattr(intern!(memory.py(), "__array_interface__"))?;
    let (start, _): (usize, bool) = described.get_item("data")?.extract()?;
    Ok(if start.is_multiple_of(2) { memory } else { memory.call_method0(intern!(memory.py(), "copy"))? })
}

fn describe(array: &Bound<'_, PyAny>) -> Outcome<Held> {
    let capsule = array.getattr(intern!(array.py(), "__array_struct__"))?;
    let capsule = capsule.cast::<PyCapsule>().map_err(PyErr::from)?;
    Ok(Array::read(capsule.pointer_checked(None::<&CStr>)?, array.clone().unbind())?)
}

/// Makes an array, and what it is a view of, read-only: packed parameters would not see what is written there.
fn lock(array: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = array.py();
    let kind = numpy(py)?.getattr(intern!(py, "ndarray"))?;
    let mut array = array.getattr_opt(intern!(py, "blocks"))?.unwrap_or_else(|| array.clone());
    while array.is_instance(&kind)? {
        array.call_method1(intern!(py, "setflags"), (false,))?;
        array = array.getattr(intern!(py, "base"))?;
    }
    Ok(())
}

fn numpy(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static NUMPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
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
