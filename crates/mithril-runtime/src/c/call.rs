//! Calling generated C: what is passed is checked before, and what goes wrong is an error.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};

pub use mithril_compile::c::TensorSpec;
use mithril_compile::c::batch::Rows;
use mithril_compile::c::{CSource, Id as _, InputId};
use mithril_ir::graph::Role;
use mithril_ir::{Code, Error, Place, Result, Tensor, loops};
use smallvec::SmallVec;

use super::array::{Address, AddressMut, Misfit};
use super::cache::Cache;
use super::compiler::{Compiler, Tool};
use super::library::Library;
use super::memory::{Arenas, Memory, give_back};
use super::pool::{Lease, Pool};

/// What generated code reads and writes.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// What all its symbols start with.
    pub prefix: String,
    /// Inputs of the graph, in order.
    pub inputs: Vec<TensorSpec>,
    /// Outputs of the graph, in order, then the new states, called like the inputs that they replace.
    pub outputs: Vec<TensorSpec>,
    /// What each input is for.
    pub roles: Vec<Role>,
    /// Whether each input is the same at every call of a model that is not trained, so that it may be packed: parameters,
    /// and states that are not replaced.
    pub fixed: Vec<bool>,
    /// Whether a call reads each input; of others only packing knows.
    pub read: Vec<bool>,
    /// Numbers of the inputs that each part of packing reads, in the order of the parts.
    pub packing: Vec<Vec<usize>>,
    /// How many of the outputs are new states.
    pub updates: usize,
    /// Inputs, by number, with the outputs (new states too) that may lie in the same memory.
    pub shared: Vec<(usize, usize)>,
    /// If the number of rows is an argument of a call: their bytes, and how many the buffers here have.
    pub batch: Option<(Rows, usize)>,
    /// Where in the model the calls are that can fail, in the order of their numbers.
    pub failing: Vec<Place>,
}

impl Interface {
    /// The interface of generated C.
    pub fn of(source: &CSource, prefix: &str) -> Self {
        Self {
            prefix: prefix.into(),
            inputs: source.inputs.clone(),
            outputs: source.outputs.clone(),
            roles: source.roles.clone(),
            shared: source.shared.iter().map(|(input, output)| (input.index(), output.index())).collect(),
            fixed: source.fixed.clone(),
            read: (0..source.inputs.len()).map(|i| source.reads.contains(&InputId::new(i))).collect(),
            packing: source
                .packing
                .iter()
                .map(|part| part.iter().map(|input| input.index()).collect())
                .collect(),
            updates: source.updates,
            batch: None,
            failing: source.failing.clone(),
        }
    }
    /// The same for another number of rows.
    #[must_use]
    pub fn of_rows(&self, count: usize) -> Self {
        let mut other = self.clone();
        let Some((rows, block)) = &mut other.batch else { return other };
        let buffers = other.inputs.iter_mut().zip(&rows.inputs);
        for (buffer, row) in buffers.chain(other.outputs.iter_mut().zip(&rows.outputs)) {
            if row.is_some() {
                buffer.shape[0] = buffer.shape[0] / *block * count;
            }
        }
        *block = count;
        other
    }
    /// How many rows there are where the inputs have these shapes, looked up by the number of the input.
    pub fn count_rows<E>(
        &self,
        shape: impl Fn(usize) -> std::result::Result<Vec<usize>, E>,
    ) -> std::result::Result<Option<usize>, E> {
        let Some((rows, block)) = &self.batch else { return Ok(None) };
        let Some(input) = rows.inputs.iter().position(Option::is_some) else { return Ok(None) };
        let each = (self.inputs[input].shape[0] / block).max(1);
        Ok(shape(input)?.first().map(|size| size / each))
    }
    /// Bytes of a buffer where there are so many rows, each of which has the bytes that `row` looks up.
    fn bytes(
        &self,
        buffer: &TensorSpec,
        row: impl Fn(&Rows) -> Option<usize>,
        count: Option<usize>,
    ) -> usize {
        let each = self.batch.as_ref().and_then(|(batch, _)| row(batch));
        match (each, count) {
            (Some(each), Some(count)) => each * count,
            _ => buffer.bytes(),
        }
    }
    /// Calls a function of this interface on tensors: the outputs, then the new states.
    pub(crate) fn run(
        &self,
        inputs: &[Arc<Tensor>],
        call: impl FnOnce(&[Address<'_>], &mut [AddressMut<'_>]) -> Result<()>,
    ) -> Result<Vec<Tensor>> {
        self.count("inputs", inputs.len(), self.inputs.len())?;
        let mut addresses = Vec::with_capacity(inputs.len());
        for (tensor, TensorSpec { name, dtype, shape }) in inputs.iter().zip(&self.inputs) {
            if tensor.dtype() != *dtype || tensor.shape() != *shape {
                let actual = format!("`{name}` is {} of shape {:?}", tensor.dtype(), tensor.shape());
                return Err(Error::new(Code::BadParameter, actual)
                    .help(format!("it must be {dtype} of shape {shape:?}")));
            }
            addresses.push(Address::of_tensor(tensor));
        }
        // As many words as the bytes need: aligned for every dtype.
        let mut memory: Vec<Vec<i64>> = self.outputs.iter().map(|b| vec![0; b.bytes().div_ceil(8)]).collect();
        let mut outputs: Vec<AddressMut<'_>> = memory.iter_mut().map(|words| AddressMut::of(words)).collect();
        call(&addresses, &mut outputs)?;
        let tensors = self.outputs.iter().zip(memory).map(|(buffer, words)| {
            let bytes: Vec<u8> =
                words.iter().flat_map(|word| word.to_ne_bytes()).take(buffer.bytes()).collect();
            Tensor::from_bytes(buffer.dtype, buffer.shape.clone(), &bytes)
        });
        tensors.collect()
    }
    /// An error unless so many inputs or outputs are given as are needed.
    pub(crate) fn count(&self, what: &str, actual: usize, expected: usize) -> Result<()> {
        if actual == expected {
            return Ok(());
        }
        let text = format!("{actual} {what} are given to {}, {expected} are needed", self.prefix);
        Err(Error::new(Code::BadParameter, text))
    }
    /// The outputs that are not new states.
    pub fn results(&self) -> &[TensorSpec] {
        &self.outputs[..self.outputs.len() - self.updates]
    }
}

/// What follows from the parameters, in the order in which the kernels read it.
#[derive(Debug)]
pub struct Packed {
    memory: Memory,
    bytes: usize,
}

impl Packed {
    /// The block.
    pub fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.bytes]
    }
}

/// Parameters that are being packed, part by part.
#[derive(Debug)]
pub struct Packing {
    packed: Packed,
    next: usize,
}

/// Generated code that can be called, by any number of threads at once.
#[derive(Debug)]
pub struct Function {
    interface: Interface,
    library: Library,
    pool: Option<&'static Pool>,
    together: Arenas,
    alone: Arenas,
    arena_bytes: usize,
    is_new: bool,
    kept: Mutex<Option<Kept>>,
}

/// What the last run on tensors has packed, and of which tensors that are the same at every call. These may go: their
/// memory is not kept, and nobody changes or takes their place as long as they are known here.
type Kept = (Vec<Weak<Tensor>>, Arc<Packed>);

impl Function {
    /// Compiles (or finds compiled) and loads generated code, to run on so many threads.
    pub fn new(
        tool: &Tool,
        cache: &Cache,
        source: &str,
        interface: Interface,
        threads: usize,
    ) -> Result<Self> {
        let compiler = Compiler::find(tool)?;
        let object = cache.object(&compiler, source)?;
        let mut is_new = object.is_new;
        let library = match Library::open(&object.path, &interface.prefix, interface.batch.is_some()) {
            Ok(library) => library,
            // Another process may have removed it meanwhile, to make room.
            Err(_) if !object.path.exists() => {
                is_new = true;
                Library::open(
                    &cache.object(&compiler, source)?.path,
                    &interface.prefix,
                    interface.batch.is_some(),
                )?
            }
            Err(error) => return Err(error),
        };
        let pool = (threads > 1).then(|| Pool::of(threads));
        let together = library.arena_bytes(pool.map_or(1, Pool::threads) as c_int);
        let alone = library.arena_bytes(1);
        Ok(Self {
            interface,
            library,
            pool,
            together: Arenas::new(together),
            alone: Arenas::new(alone),
            arena_bytes: together,
            is_new,
            kept: Mutex::default(),
        })
    }
    /// What it reads and writes.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }
    /// Bytes of scratch memory of a call.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }
    /// Bytes of the packed parameters.
    pub fn packed_bytes(&self) -> usize {
        self.library.packed_bytes()
    }
    /// Whether the C compiler ran, rather than that its work was found in the cache.
    pub fn is_new(&self) -> bool {
        self.is_new
    }
    /// Packs what is the same at every call among the inputs; `None` if there is nothing to pack.
    pub fn pack(&self, inputs: &[Address<'_>]) -> Result<Option<Packed>> {
        let Some(mut packing) = self.start_packing()? else { return Ok(None) };
        for _ in &self.interface.packing {
            self.pack_part(&mut packing, inputs)?;
        }
        self.finish_packing(packing).map(Some)
    }
    /// Packing part by part, so that not all inputs must be there at once; `None` if there is nothing to pack.
    pub fn start_packing(&self) -> Result<Option<Packing>> {
        let bytes = self.library.packed_bytes();
        if bytes == 0 {
            return Ok(None);
        }
        let packed = Packed { memory: Memory::new(bytes)?, bytes };
        Ok(Some(Packing { packed, next: 0 }))
    }
    /// Does the next part; inputs that it does not read ([`Interface::packing`]) may be nowhere.
    pub fn pack_part(&self, packing: &mut Packing, inputs: &[Address<'_>]) -> Result<()> {
        let Packing { packed, next } = packing;
        let Some(reads) = self.interface.packing.get(*next) else {
            return Err(Error::internal("there is no further part to pack"));
        };
        self.interface.count("inputs", inputs.len(), self.interface.inputs.len())?;
        if packed.bytes != self.library.packed_bytes() {
            return Err(Error::internal("the parameters are packed for another function"));
        }
        let inputs = self.read(inputs, None, |i| reads.contains(&i))?;
        let part = c_int::try_from(*next).map_err(|_| Error::internal("too many parts to pack"))?;
        // Memory that a part does not touch is none.
        let mut scratch = Memory::new(self.library.pack_bytes())?;
        // SAFETY: there is an address per input, and what this part reads has the memory for it. Both memories have as
        // many bytes as the library asks for, at multiples of 64.
        let code = unsafe { self.library.pack_part(part, &inputs, packed.memory.start(), scratch.start()) };
        *next += 1;
        self.judge(code)
    }
    /// The packed parameters, when all parts are done.
    pub fn finish_packing(&self, packing: Packing) -> Result<Packed> {
        let Packing { packed, next } = packing;
        let is_done = next == self.interface.packing.len();
        give_back();
        if is_done { Ok(packed) } else { Err(Error::internal("not all parts are packed")) }
    }
    /// Writes a byte everywhere into the scratch memory of the next call.
    pub(super) fn fill_arena(&self, byte: u8) -> Result<()> {
        self.together.fill(byte)?;
        self.alone.fill(byte)
    }
    /// Runs the code on inputs into outputs, each at an address that fits its buffer.
    pub fn call(
        &self,
        inputs: &[Address<'_>],
        outputs: &mut [AddressMut<'_>],
        packed: Option<&Packed>,
    ) -> Result<()> {
        let rows = self.interface.batch.as_ref().map(|(_, block)| *block);
        self.call_rows(inputs, outputs, packed, rows)
    }
    /// The same for so many rows, where that is an argument; addresses fit the buffers of [`Interface::of_rows`].
    pub fn call_rows(
        &self,
        inputs: &[Address<'_>],
        outputs: &mut [AddressMut<'_>],
        packed: Option<&Packed>,
        rows: Option<usize>,
    ) -> Result<()> {
        self.interface.count("inputs", inputs.len(), self.interface.inputs.len())?;
        self.interface.count("outputs", outputs.len(), self.interface.outputs.len())?;
        if packed.map_or(0, |p| p.bytes) != self.library.packed_bytes() {
            return Err(Error::internal("the parameters are not packed for this function"));
        }
        let Interface { outputs: buffers, fixed, read, .. } = &self.interface;
        let inputs = self.read(inputs, rows, |i| read[i] || !fixed[i])?;
        let outputs = outputs.iter_mut().zip(buffers).enumerate().map(|(i, (address, buffer))| {
            let bytes = self.interface.bytes(buffer, |batch| batch.outputs[i], rows);
            address.written(bytes, buffer.dtype).map_err(|misfit| misfits(buffer, &misfit))
        });
        let outputs = outputs.collect::<Result<SmallVec<[*mut c_void; 8]>>>()?;
        let packed = packed.map_or(std::ptr::null(), |p| p.memory.address());
        let lease = self.pool.and_then(Pool::lease);
        let (arenas, pool) = match &lease {
            Some(lease) => (&self.together, Lease::raw(lease)),
            None => (&self.alone, std::ptr::null()),
        };
        // SAFETY: counts were checked here, and that every buffer has its memory, which is borrowed until the end of the
        // call, the outputs by nobody else. Packed parameters have as many bytes as `pack` of this function writes. The arena has as many
        // bytes as the library asks for with the threads of that pool, and the pool is leased until the call is over.
        let code =
            arenas.with(|arena| unsafe { self.library.run(&inputs, &outputs, packed, arena, pool, rows) })?;
        drop(lease);
        self.judge(code)
    }
    /// What follows from these tensors; that of the last run if it had the same.
    fn packed(&self, inputs: &[Arc<Tensor>], addresses: &[Address<'_>]) -> Result<Option<Arc<Packed>>> {
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let all = inputs.iter().zip(&self.interface.fixed);
        let fixed: Vec<Weak<Tensor>> = all.filter(|(_, is)| **is).map(|(t, _)| Arc::downgrade(t)).collect();
        let is_known = |(known, _): &&Kept| known.iter().zip(&fixed).all(|(a, b)| a.ptr_eq(b));
        if let Some((_, packed)) = lock().as_ref().filter(is_known) {
            return Ok(Some(packed.clone()));
        }
        // The old one goes first: its memory is needed.
        *lock() = None;
        let packed = self.pack(addresses)?.map(Arc::new);
        *lock() = packed.clone().map(|packed| (fixed, packed));
        Ok(packed)
    }
    /// Runs the code on tensors: the outputs, then the new states. What is the same at every call is packed again only
    /// when other tensors are given for it.
    pub fn run(&self, inputs: &[Arc<Tensor>]) -> Result<Vec<Tensor>> {
        self.interface.run(inputs, |addresses, outputs| {
            let packed = self.packed(inputs, addresses)?;
            self.call(addresses, outputs, packed.as_deref())
        })
    }
    /// Where inputs start that have the memory for their buffers; those that are not needed may have none.
    fn read(
        &self,
        inputs: &[Address<'_>],
        rows: Option<usize>,
        is_needed: impl Fn(usize) -> bool,
    ) -> Result<SmallVec<[*const c_void; 16]>> {
        let all = inputs.iter().zip(&self.interface.inputs).enumerate();
        all.map(|(i, (address, buffer))| {
            let own = || self.interface.bytes(buffer, |batch| batch.inputs[i], rows);
            let bytes = if is_needed(i) { own() } else { 0 };
            address.read(bytes, buffer.dtype).map_err(|misfit| misfits(buffer, &misfit))
        })
        .collect()
    }
    fn judge(&self, code: c_int) -> Result<()> {
        match code {
            0 => Ok(()),
            code => Err(failed(code, self.library.message(code), &self.interface.failing)),
        }
    }
}

/// The error of a code that generated functions return ([`loops::ERRORS`]).
fn failed(code: c_int, message: String, places: &[Place]) -> Error {
    let (kind, help) = match loops::ERRORS
        .iter()
        .find(|(number, ..)| *number == code % loops::ERROR_PLACES)
        .map(|(_, name, _)| *name)
    {
        Some("MITHRIL_ERROR_INDEX") => (
            Code::IndexOutOfRange,
            "compare tokens, classes and other positions in the data with the sizes of their tables",
        ),
        Some("MITHRIL_ERROR_MESH") => (Code::Unavailable, "look at what the other ranks print"),
        Some("MITHRIL_ERROR_ARGUMENT") | None => return Error::internal(message),
        Some(_) => (Code::Numerics, "a small multiple of the identity added to the matrix may help"),
    };
    let error = Error::new(kind, message).help(help);
    // Which of several positions it was is found afterwards, by who has the data.
    let number = (code / loops::ERROR_PLACES) as usize;
    match places.get(number.wrapping_sub(1)) {
        Some(place) if kind == Code::Numerics => error.at(place),
        _ => error,
    }
}

fn misfits(buffer: &TensorSpec, misfit: &Misfit) -> Error {
    Error::new(Code::BadParameter, format!("`{}` {misfit}", buffer.name))
}
