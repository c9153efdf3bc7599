//! Calls of compiled functions with arrays of a host language, such as NumPy's: which of them are packed once and kept,
//! which are passed at each call, and which function is for their sizes. What an array is, the host says
//! ([`HostArrays`]); what a function is (generated C, a plan of ggml) is left open ([`Callable`]).

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mithril_ir::{Code, Error, Role};

use crate::c::{Address, AddressMut, Array, Interface, TensorSpec};

/// A function of buffers.
pub trait Callable: Send + Sync + Debug {
    /// Parameters as it reads them.
    type Packed: Send + Sync + Debug + 'static;
    /// What is being packed.
    type Packing: Send;
    /// What it reads and writes.
    fn interface(&self) -> &Interface;
    /// Whether parameters are kept between calls: packed, and copied once if they lie in another way.
    fn keeps(&self) -> bool;
    /// Whether a call is over before other threads of the host could do anything.
    fn is_quick(&self) -> bool {
        false
    }
    /// The inputs that each part of packing reads, in the order of the parts.
    fn parts(&self) -> Vec<Vec<usize>>;
    /// Starts to pack what is the same at every call.
    fn start_packing(&self) -> Result<Self::Packing, Error>;
    /// Packs the next part, for which the inputs are there that it reads.
    fn pack_part(&self, packing: &mut Self::Packing, inputs: &[Address<'_>]) -> Result<(), Error>;
    /// What was packed, when all parts are; `None` if there is nothing to pack.
    fn finish_packing(&self, packing: Self::Packing) -> Result<Option<Self::Packed>, Error>;
    /// Bytes of packed parameters.
    fn bytes(packed: &Self::Packed) -> usize;
    /// Runs it, for so many rows where that is an argument.
    fn call(
        &self,
        inputs: &[Address<'_>],
        outputs: &mut [AddressMut<'_>],
        packed: Option<&Self::Packed>,
        rows: Option<usize>,
    ) -> Result<(), Error>;
}

/// The arrays of one call, by the numbers of the inputs of its function.
pub trait HostArrays {
    /// An array during a call.
    type Array: Clone;
    /// An array that is kept from call to call.
    type Kept: Send + Sync + Debug;
    /// What keeps the memory of an array alive.
    type Owner: Send + Sync + Debug;
    /// What the host fails with.
    type Error: From<Error>;
    /// An input.
    fn get(&self, input: usize) -> Result<Self::Array, Self::Error>;
    /// Sizes of an input.
    fn shape(&self, input: usize) -> Result<Vec<usize>, Self::Error>;
    /// The memory of an input, or of a copy if it does not lie as the function reads it; `None`: it is for a function of
    /// other sizes.
    fn describe(
        &self,
        input: usize,
        array: Self::Array,
        buffer: &TensorSpec,
    ) -> Result<Option<Array<Self::Owner>>, Self::Error>;
    /// Keeps an array that nobody may write into from now on: packed parameters would not see what is written there.
    fn keep(&self, array: Self::Array) -> Result<Self::Kept, Self::Error>;
    /// Whether an array is one that was kept.
    fn is_kept(&self, kept: &Self::Kept, array: &Self::Array) -> bool;
    /// Says that an input is not needed any more.
    fn release(&self, input: usize) -> Result<(), Self::Error>;
    /// Works without holding the host up.
    fn detached<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T;
}

/// Per input what is passed; `None`: what is kept, if anything.
pub type Passed<O> = Vec<Option<Array<O>>>;

/// The inputs, the packed parameters if there are any, and the number of rows where that is an argument.
pub type Gathered<F, K, O> = (Passed<O>, LastKept<F, K, O>, Option<usize>);

/// Parameters, and states that are not replaced, as they were packed.
#[derive(Debug)]
pub struct Kept<F: Callable, K, O> {
    /// Per input, if it is the same at every call.
    pub arrays: Vec<Option<K>>,
    /// Their memory, or that of copies that were made of arrays that lie in another way.
    pub memory: Passed<O>,
    /// What the function has made of them.
    pub packed: Option<F::Packed>,
}

/// What was packed, if anything was.
type LastKept<F, K, O> = Option<Arc<Kept<F, K, O>>>;

/// A function, with the parameters that were packed for it at the last call.
#[derive(Debug)]
pub struct HostFunction<F: Callable, K, O> {
    /// The function.
    pub function: Arc<F>,
    kept: Mutex<LastKept<F, K, O>>,
}

impl<F: Callable, K, O> HostFunction<F, K, O> {
    /// A function for which nothing is packed yet.
    pub fn new(function: Arc<F>) -> Self {
        Self { function, kept: Mutex::default() }
    }
    fn lock(&self) -> MutexGuard<'_, LastKept<F, K, O>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Forgets what calls have packed.
    pub fn forget(&self) {
        *self.lock() = None;
    }
    /// How many rows are given, where that is an argument.
    fn rows<H: HostArrays>(&self, host: &H) -> Result<Option<usize>, H::Error> {
        self.function.interface().count_rows(|i| host.shape(i))
    }
    /// The inputs, and the packed parameters; `None` if a shape is that of a function of other sizes.
    ///
    /// # Errors
    /// What the host or packing fails with.
    pub fn gather<H>(&self, host: &H) -> Result<Option<Gathered<F, K, O>>, H::Error>
    where
        H: HostArrays<Kept = K, Owner = O>,
    {
        let keeps = self.function.keeps();
        let own = self.function.interface();
        let rows = self.rows(host)?;
        let scaled = rows.map(|count| own.of_rows(count));
        let Interface { inputs: buffers, fixed, .. } = scaled.as_ref().unwrap_or(own);
        let kept = if keeps { self.unchanged(host)? } else { None };
        let mut passed = Passed::with_capacity(buffers.len());
        for (i, buffer) in buffers.iter().enumerate() {
            if keeps && fixed[i] {
                passed.push(None);
                continue;
            }
            let Some(memory) = host.describe(i, host.get(i)?, buffer)? else { return Ok(None) };
            passed.push(Some(memory));
        }
        if !keeps || kept.is_some() {
            return Ok(Some((passed, kept, rows)));
        }
        // The old ones go first: their memory is needed.
        self.forget();
        let Some(kept) = self.pack(host, true)?.map(Arc::new) else { return Ok(None) };
        *self.lock() = Some(kept.clone());
        Ok(Some((passed, Some(kept), rows)))
    }
    /// What was packed, if all of it came from these arrays.
    fn unchanged<H>(&self, host: &H) -> Result<LastKept<F, K, O>, H::Error>
    where
        H: HostArrays<Kept = K, Owner = O>,
    {
        let Some(kept) = self.lock().clone() else { return Ok(None) };
        for (i, known) in kept.arrays.iter().enumerate() {
            if let Some(known) = known
                && !host.is_kept(known, &host.get(i)?)
            {
                return Ok(None);
            }
        }
        Ok(Some(kept))
    }
    /// Packs what is the same at every call, part by part: an array that neither a later part nor a call reads goes at
    /// once, unless all are to be known again. States stay known: one that is replaced is noticed. `None`: a shape is that
    /// of a function of other sizes.
    ///
    /// # Errors
    /// What the host or packing fails with.
    pub fn pack<H>(&self, host: &H, knows_all: bool) -> Result<Option<Kept<F, K, O>>, H::Error>
    where
        H: HostArrays<Kept = K, Owner = O>,
    {
        let Interface { inputs, fixed, read, roles, .. } = self.function.interface();
        let parts = self.function.parts();
        let mut last = vec![0; inputs.len()];
        parts.iter().enumerate().for_each(|(part, reads)| reads.iter().for_each(|&i| last[i] = part));
        let mut taken = Taken { arrays: vec![None; inputs.len()], memory: Passed::new() };
        taken.memory.resize_with(inputs.len(), || None);
        let give_back = |i: usize| if roles[i] == Role::Param { host.release(i) } else { Ok(()) };
        let function = &*self.function;
        let mut packing = function.start_packing()?;
        for (part, reads) in parts.iter().enumerate() {
            if !taken.take(host, reads, inputs)? {
                return Ok(None);
            }
            let spans = taken.memory.iter().zip(inputs).map(|(memory, buffer)| memory.as_ref()?.fits(buffer));
            let addresses: Vec<Address<'_>> = spans.map(|spans| spans.unwrap_or(Address::none())).collect();
            host.detached(|| function.pack_part(&mut packing, &addresses))?;
            for &i in reads.iter().filter(|&&i| last[i] == part) {
                if !read[i] {
                    (taken.arrays[i], taken.memory[i]) = (None, None);
                }
                give_back(i)?;
            }
        }
        let packed = function.finish_packing(packing)?;
        let is_known = |i: &usize| fixed[*i] && (knows_all || read[*i] || roles[*i] == Role::State);
        let known: Vec<usize> = (0..inputs.len()).filter(is_known).collect();
        let read: Vec<usize> = known.iter().copied().filter(|&i| read[i]).collect();
        if !taken.take(host, &read, inputs)? {
            return Ok(None);
        }
        let mut arrays: Vec<Option<K>> = Vec::new();
        arrays.resize_with(inputs.len(), || None);
        for i in known {
            let array = taken.arrays[i].take().map_or_else(|| host.get(i), Ok)?;
            arrays[i] = Some(host.keep(array)?);
            give_back(i)?;
        }
        Ok(Some(Kept { arrays, memory: taken.memory, packed }))
    }
    /// The inputs beside those that are kept, and the number of rows where that is an argument.
    ///
    /// # Errors
    /// If a state was replaced after it was packed, or an input has other sizes.
    pub fn beside<H>(&self, host: &H, kept: &Kept<F, K, O>) -> Result<(Passed<O>, Option<usize>), H::Error>
    where
        H: HostArrays<Kept = K, Owner = O>,
    {
        let own = self.function.interface();
        let rows = self.rows(host)?;
        let scaled = rows.map(|count| own.of_rows(count));
        let Interface { inputs, fixed, roles, .. } = scaled.as_ref().unwrap_or(own);
        let mut passed: Passed<O> = Passed::new();
        passed.resize_with(inputs.len(), || None);
        for (i, buffer) in inputs.iter().enumerate() {
            if fixed[i] && roles[i] == Role::Param {
                continue;
            }
            let array = host.get(i)?;
            if fixed[i] {
                if kept.arrays[i].as_ref().is_none_or(|known| !host.is_kept(known, &array)) {
                    let text = format!("the state `{}` was replaced after it was packed", buffer.name);
                    return Err(Error::new(Code::BadParameter, text).help("pack again").into());
                }
                continue;
            }
            passed[i] = Some(host.describe(i, array, buffer)?.ok_or_else(|| {
                let text = format!("the parameters are packed for another size of `{}`", buffer.name);
                Error::new(Code::BadParameter, text).help(format!("its shape is {:?}", buffer.shape))
            })?);
        }
        Ok((passed, rows))
    }
}

/// Inputs that are there while others are packed.
struct Taken<A, O> {
    arrays: Vec<Option<A>>,
    memory: Passed<O>,
}

impl<A: Clone, O> Taken<A, O> {
    /// Takes inputs that are not there yet; false if one has another shape.
    fn take<H>(&mut self, host: &H, indices: &[usize], buffers: &[TensorSpec]) -> Result<bool, H::Error>
    where
        H: HostArrays<Array = A, Owner = O>,
    {
        for &i in indices {
            if self.memory[i].is_some() {
                continue;
            }
            let array = host.get(i)?;
            self.memory[i] = host.describe(i, array.clone(), &buffers[i])?;
            if self.memory[i].is_none() {
                return Ok(false);
            }
            self.arrays[i] = Some(array);
        }
        Ok(true)
    }
}

/// Functions in the order in which they were used: the latest is the last.
#[derive(Debug)]
pub struct Recent<T>(Mutex<Vec<Arc<T>>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Recent<T> {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }
    /// What was used or made last.
    pub fn latest(&self) -> Option<Arc<T>> {
        self.lock().last().cloned()
    }
    /// Whether it is one of them.
    pub fn contains(&self, one: &Arc<T>) -> bool {
        self.lock().iter().any(|mine| Arc::ptr_eq(mine, one))
    }
    /// The one that is meant, made if it is not there; it becomes the latest.
    ///
    /// # Errors
    /// What `make` fails with.
    pub fn find<E: From<Error>>(
        &self,
        is_meant: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let position = |all: &[Arc<T>]| all.iter().position(|one| is_meant(one));
        let known = position(&self.lock());
        let fresh = if known.is_none() { Some(Arc::new(make()?)) } else { None };
        let mut all = self.lock();
        // Another thread may have added it meanwhile.
        let index = match (position(&all), fresh) {
            (Some(at), _) => all.remove(at),
            (None, Some(fresh)) => fresh,
            (None, None) => return Err(Error::internal("a specialization is lost").into()),
        };
        all.push(index.clone());
        Ok(index)
    }
}
