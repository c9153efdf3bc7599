//! Calls of compiled functions: the arrays that go in and out are NumPy's, without a copy. What a function is (generated
//! C, or a plan of ggml) is left open.

use std::ffi::CStr;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mithril::compile::compiled::{Compiled, gradient_of};
use mithril::ir::DType;
use mithril::ir::error::{Code, Error, Result};
use mithril::ir::graph::Role;
use mithril::ir::interp::Symbols;
use mithril::runtime::c::{Address, AddressMut, Array, Buffer, Interface, Wanted};
use mithril::runtime::ggml::{Element, Given as Blocks};
use mithril::runtime::recycled::{Recycled, is_large};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyString, PyTuple};

use crate::convert::pairs;
use crate::errors::Outcome;

mod packed;
mod recycled;

pub use packed::PyPacked;
use recycled::Memory;

/// A compiled model that becomes a function for each choice of sizes.
pub trait Source: Send + Sync {
    /// The function, with what is known of it.
    type Function: Callable + 'static;
    /// The model.
    fn compiled(&self) -> &Compiled;
    /// Whether new states are written into the memory of the old ones.
    fn is_in_place(&self) -> bool;
    /// Values of the symbols, from the sizes of inputs by name.
    fn symbols(&self, shapes: Vec<(String, Vec<usize>)>) -> Result<Symbols>;
    /// The function for these sizes, and for weights that are given in blocks; the same for the same.
    fn specialise(&self, symbols: &Symbols, blocks: &Blocks) -> Result<Arc<Self::Function>>;
}

/// A function of buffers.
pub trait Callable: Send + Sync + Debug {
    /// Parameters as it reads them.
    type Packed: Send + Sync + Debug + 'static;
    /// What it reads and writes.
    fn interface(&self) -> &Interface;
    /// Whether parameters that are given in blocks are read so, rather than as the floats that they stand for.
    const READS_BLOCKS: bool = false;
    /// The elements of the blocks in which an input is given, if it is.
    fn blocks(&self, _input: usize) -> Option<Element> {
        None
    }
    /// Whether parameters are kept between calls: packed, and copied once if they lie in another way.
    fn keeps(&self) -> bool;
    /// Whether a call is over before other threads of Python could do anything.
    fn is_quick(&self) -> bool {
        false
    }
    /// What is being packed.
    type Packing: Send;
    /// The inputs that each part of packing reads, in the order of the parts.
    fn parts(&self) -> Vec<Vec<usize>>;
    /// Starts to pack what is the same at every call.
    fn start_packing(&self) -> Result<Self::Packing>;
    /// Packs the next part, for which the inputs are there that it reads.
    fn pack_part(&self, packing: &mut Self::Packing, inputs: &[Address<'_>]) -> Result<()>;
    /// What was packed, when all parts are; `None` if there is nothing to pack.
    fn finish_packing(&self, packing: Self::Packing) -> Result<Option<Self::Packed>>;
    /// Bytes of packed parameters.
    fn bytes(packed: &Self::Packed) -> usize;
    /// Runs it, for so many rows where that is an argument.
    fn call(
        &self,
        inputs: &[Address<'_>],
        outputs: &mut [AddressMut<'_>],
        packed: Option<&Self::Packed>,
        rows: Option<usize>,
    ) -> Result<()>;
}

/// An array that stays alive with the description of its memory.
type Held = Array<Py<PyAny>>;
/// Per input what is passed; `None`: what is kept, if anything.
type Given = Vec<Option<Held>>;
/// The inputs, the packed parameters if there are any, and the number of rows where that is an argument.
type Gathered<F> = (Given, Option<Arc<Kept<F>>>, Option<usize>);

/// A program with the choices of sizes that it was called with; the latest is the last.
#[derive(Debug)]
pub struct Calls<S: Source> {
    pub program: S,
    /// Whether a call returns several dicts: outputs and gradients.
    pub many: bool,
    ready: Mutex<Vec<Arc<Ready<S::Function>>>>,
}

/// One choice of sizes with what calls need of it, made once.
#[derive(Debug)]
pub struct Ready<F: Callable> {
    pub made: Arc<F>,
    inputs: Vec<(Role, Py<PyString>)>,
    outputs: Vec<Output>,
    kept: Mutex<Option<Arc<Kept<F>>>>,
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

/// Parameters as they were packed.
#[derive(Debug)]
pub struct Kept<F: Callable> {
    /// Per input, if it is the same at every call.
    arrays: Vec<Option<Py<PyAny>>>,
    /// Their memory, or that of copies that were made of arrays that lie in another way.
    held: Given,
    packed: Option<F::Packed>,
}

impl<S: Source> Calls<S> {
    /// Calls of a program. Where all sizes are known, it is made now unless `is_lazy`.
    pub fn new(py: Python<'_>, program: S, many: bool, is_lazy: bool) -> Outcome<Self> {
        let mut dims = program.compiled().inputs.iter().flat_map(|i| i.ty.shape.iter());
        let is_open = dims.any(|d| d.known().is_none());
        let calls = Self { program, many, ready: Mutex::default() };
        if !is_open && !is_lazy {
            calls.specialise(py, &Symbols::default(), &Blocks::new())?;
        }
        Ok(calls)
    }
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Ready<S::Function>>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Number of choices of sizes.
    pub fn count(&self) -> usize {
        self.lock().len()
    }
    /// What was called or made last.
    pub fn latest(&self) -> Option<Arc<Ready<S::Function>>> {
        self.lock().last().cloned()
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
        let mut found = Blocks::new();
        if S::Function::READS_BLOCKS {
            let is_weight = |role, dtype| role == Role::Param && dtype == DType::F32;
            let inputs = self.program.compiled().inputs.iter();
            for input in inputs.filter(|input| is_weight(input.role, input.ty.dtype)) {
                if let Some((element, _)) = blocks(&params.get_item(&*input.name)?)? {
                    found.insert(input.name.clone(), element);
                }
            }
        }
        Ok(found)
    }
    /// The function for these sizes; it becomes the latest.
    pub fn specialise(
        &self,
        py: Python<'_>,
        symbols: &Symbols,
        blocks: &Blocks,
    ) -> Outcome<Arc<Ready<S::Function>>> {
        let made = py.detach(|| self.program.specialise(symbols, blocks))?;
        let position = |all: &[Arc<Ready<S::Function>>]| all.iter().position(|r| Arc::ptr_eq(&r.made, &made));
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
        self.specialise(py, &symbols, &blocks)
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
        *ready.kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let groups = Groups { params, data: shapes.clone().into_any(), state, cotangents: None };
        let kept = ready.keep(py, &groups, false)?.ok_or_else(misfit)?;
        Ok(PyPacked::new(ready, Arc::new(kept)))
    }
    /// What packed parameters are made of, if they were packed by this program.
    fn own<'a>(&self, packed: &'a PyPacked) -> Outcome<&'a packed::For<S::Function>> {
        let found = packed.parts::<S::Function>();
        let found = found.filter(|f| self.lock().iter().any(|mine| Arc::ptr_eq(mine, &f.ready)));
        Ok(found.ok_or_else(|| {
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
            let (inputs, rows) = ready.beside(py, kept, groups)?;
            return Ok((inputs, Some(kept.clone()), rows));
        }
        Ok(ready.gather(py, groups)?.ok_or_else(misfit)?)
    }
    /// Outputs by name, further dicts (gradients, new states) beside them.
    pub fn call<'py>(&self, py: Python<'py>, groups: &Groups<'py>) -> Outcome<Bound<'py, PyAny>> {
        if let Ok(packed) = groups.params.cast::<PyPacked>() {
            let packed::For { ready, kept } = self.own(packed.get())?;
            let (inputs, rows) = ready.beside(py, kept, groups)?;
            return ready.run(py, &inputs, Some(kept), rows, self.states(groups), Some(groups));
        }
        if let Some(ready) = self.latest()
            && let Some((inputs, kept, rows)) = ready.gather(py, groups)?
        {
            return ready.run(py, &inputs, kept.as_deref(), rows, self.states(groups), Some(groups));
        }
        let ready = self.specialise(py, &self.bind(groups)?, &self.blocks(&groups.params)?)?;
        let (inputs, kept, rows) = ready.gather(py, groups)?.ok_or_else(misfit)?;
        ready.run(py, &inputs, kept.as_deref(), rows, self.states(groups), Some(groups))
    }
}

/// What is computed: the outputs, or gradients of those that are named by the inputs that are.
pub fn wanted(outputs: Option<Vec<String>>, inputs: Option<Vec<String>>) -> Wanted {
    let names = |list: Vec<String>| list.into_iter().map(Arc::from).collect::<Vec<Arc<str>>>();
    match (outputs, inputs) {
        (Some(outputs), Some(inputs)) => Wanted::Gradients { outputs: names(outputs), inputs: names(inputs) },
        _ => Wanted::Outputs,
    }
}

/// The error for weights that are to be kept in few bits and to be trained.
pub fn quantized_training() -> Error {
    Error::new(Code::ConflictingOptions, "quantize needs inference=True: training changes weights")
        .help("add inference=True to ml.compile, or train on a backend without quantize")
}

/// The error for arrays that fit no choice of sizes.
pub fn misfit() -> Error {
    Error::new(Code::BadParameter, "the shapes of the arrays do not fit together")
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
            && let Some(found) = dict.get_item(name)?
        {
            return Ok(found);
        }
        Ok(group.get_item(name)?)
    }
}

impl<F: Callable> Ready<F> {
    pub fn new(py: Python<'_>, made: Arc<F>, many: bool) -> Outcome<Self> {
        let interface = made.interface();
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
        Ok(Self { made, inputs, outputs, kept: Mutex::default() })
    }
    /// An input; a copy is made of what does not lie as the function reads it. `None`: it is of another choice.
    fn find<'py>(
        &self,
        py: Python<'py>,
        i: usize,
        array: Bound<'py, PyAny>,
        buffer: &Buffer,
    ) -> Outcome<Option<Held>> {
        let known = self.made.blocks(i);
        let is_plain = known.is_none() && buffer.dtype != DType::F32;
        if !F::READS_BLOCKS || !self.made.keeps() || self.inputs[i].0 != Role::Param || is_plain {
            return find(py, array, buffer);
        }
        match (blocks(&array)?, known) {
            (None, None) => find(py, array, buffer),
            (Some((found, memory)), Some(wanted)) if found == wanted => find(py, aligned(memory)?, buffer),
            _ => Ok(None),
        }
    }
    /// How many rows are given, where that is an argument.
    fn rows(&self, py: Python<'_>, groups: &Groups<'_>) -> Outcome<Option<usize>> {
        self.made.interface().count_rows(|i| {
            let (role, name) = &self.inputs[i];
            Ok(groups.get(*role, name.bind(py))?.getattr(intern!(py, "shape"))?.extract()?)
        })
    }
    /// The inputs, and the packed parameters; `None` if a shape is that of another choice of sizes.
    pub fn gather(&self, py: Python<'_>, groups: &Groups<'_>) -> Outcome<Option<Gathered<F>>> {
        let keeps = self.made.keeps();
        let own = self.made.interface();
        let rows = self.rows(py, groups)?;
        let scaled = rows.map(|count| own.of_rows(count));
        let Interface { inputs: buffers, fixed, .. } = scaled.as_ref().unwrap_or(own);
        let kept = if keeps { self.unchanged(py, groups)? } else { None };
        let mut given = Given::with_capacity(buffers.len());
        for (i, ((role, name), buffer)) in self.inputs.iter().zip(buffers).enumerate() {
            if keeps && fixed[i] {
                given.push(None);
                continue;
            }
            let array = groups.get(*role, name.bind(py))?;
            let Some(found) = self.find(py, i, array, buffer)? else { return Ok(None) };
            given.push(Some(found));
        }
        if !keeps || kept.is_some() {
            return Ok(Some((given, kept, rows)));
        }
        // The old ones go first: their memory is needed.
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let Some(kept) = self.keep(py, groups, true)?.map(Arc::new) else { return Ok(None) };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept.clone());
        Ok(Some((given, Some(kept), rows)))
    }
    /// What was packed, if all of it came from these arrays.
    fn unchanged(&self, py: Python<'_>, groups: &Groups<'_>) -> Outcome<Option<Arc<Kept<F>>>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(kept) = kept else { return Ok(None) };
        for ((role, name), known) in self.inputs.iter().zip(&kept.arrays) {
            if let Some(known) = known
                && !known.is(&groups.get(*role, name.bind(py))?)
            {
                return Ok(None);
            }
        }
        Ok(Some(kept))
    }
    /// The array that was donated for output `i`, if the output may be written into it.
    fn donated<'py>(
        &self,
        py: Python<'py>,
        i: usize,
        inputs: &[Address<'_>],
        groups: &Groups<'py>,
    ) -> Option<Bound<'py, PyAny>> {
        let interface = self.made.interface();
        let (input, _) = interface.shared.iter().find(|(_, output)| *output == i)?;
        let (role, name) = &self.inputs[*input];
        let array = groups.get(*role, name.bind(py)).ok()?;
        let found = describe(&array).ok()?;
        found.fits_writing(&interface.outputs[i])?.is_at(&inputs[*input]).then_some(array)
    }
    pub fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Given,
        kept: Option<&Kept<F>>,
        rows: Option<usize>,
        states: Option<&Groups<'py>>,
        given: Option<&Groups<'py>>,
    ) -> Outcome<Bound<'py, PyAny>> {
        let own = self.made.interface();
        let scaled = rows.map(|count| own.of_rows(count));
        let interface = scaled.as_ref().unwrap_or(own);
        let addresses = inputs.iter().enumerate().zip(&interface.inputs).map(|((i, found), buffer)| {
            let found = found.as_ref().or_else(|| kept?.held[i].as_ref());
            found.and_then(|found| found.fits(buffer)).unwrap_or(Address::none())
        });
        let inputs: Vec<Address<'_>> = addresses.collect();
        // States that are changed where they lie are no results.
        let count = if states.is_some() { interface.results().len() } else { self.outputs.len() };
        let dicts = self.outputs[..count].iter().map(|o| o.dict).max().unwrap_or(0) + 1;
        let dicts: Vec<Bound<'py, PyDict>> = (0..dicts).map(|_| PyDict::new(py)).collect();
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for (i, (output, buffer)) in self.outputs[..count].iter().zip(&interface.outputs).enumerate() {
            let array = match (given.and_then(|groups| self.donated(py, i, &inputs, groups)), rows) {
                (Some(array), _) => array,
                (None, None) => output.array(py, output.arguments.bind(py), buffer.bytes())?,
                (None, Some(_)) => output.array(py, &arguments(py, buffer)?, buffer.bytes())?,
            };
            outputs.push(describe(&array)?);
            dicts[output.dict].set_item(output.name.bind(py), array)?;
        }
        for (output, buffer) in self.outputs.iter().zip(&interface.outputs).skip(count) {
            let array = states.map(|groups| groups.get(Role::State, output.name.bind(py))).transpose()?;
            let found = array.and_then(|array| describe(&array).ok());
            let is_given = |found: &Held| {
                found.fits_writing(buffer).is_some_and(|place| inputs.iter().any(|input| place.is_at(input)))
            };
            outputs.push(found.filter(is_given).ok_or_else(|| {
                let text = format!("the state `{}` cannot be changed where it lies", buffer.name);
                Error::new(Code::BadParameter, text)
                    .help("it has to be contiguous, writeable, and of the dtype of the program")
            })?);
        }
        let places = outputs.iter().zip(&interface.outputs).map(|(array, buffer)| array.fits_writing(buffer));
        let mut places = places
            .collect::<Option<Vec<AddressMut<'_>>>>()
            .ok_or_else(|| Error::internal("numpy.empty makes arrays of another kind"))?;
        let packed = kept.and_then(|k| k.packed.as_ref());
        let mut call = || self.made.call(&inputs, &mut places, packed, rows);
        if self.made.is_quick() { call() } else { py.detach(call) }?;
        match <[_; 1]>::try_from(dicts) {
            Ok([one]) => Ok(one.into_any()),
            Err(several) => Ok(PyTuple::new(py, several)?.into_any()),
        }
    }
}

/// An input; a copy is made of what does not lie as generated code reads it. `None`: another shape.
fn find<'py>(py: Python<'py>, array: Bound<'py, PyAny>, buffer: &Buffer) -> Outcome<Option<Held>> {
    if let Ok(found) = describe(&array) {
        if found.shape() != buffer.shape {
            return Ok(None);
        }
        if found.fits(buffer).is_some() {
            return Ok(Some(found));
        }
    }
    let options = PyDict::new(py);
    options.set_item("order", "C")?;
    let copy = numpy(py)?.getattr("array")?.call((array, native(py, buffer.dtype)?), Some(&options))?;
    let found = describe(&copy)?;
    Ok(found.fits(buffer).is_some().then_some(found))
}

/// The arguments of `numpy.empty`.
fn arguments<'py>(py: Python<'py>, buffer: &Buffer) -> PyResult<Bound<'py, PyTuple>> {
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
    let element = Element::parse(&name("format")?).filter(|element| element.is_quantised());
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
