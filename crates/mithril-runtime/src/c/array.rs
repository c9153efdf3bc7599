//! The memory that calls read and write: of slices, of tensors, and of arrays that somebody else owns, described by the
//! array interface that NumPy and others share.

use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;

use mithril_ir::tensor::{Data, Element};
use mithril_ir::{Code, DType, Error, Tensor};

use super::call::TensorSpec;

const CONTIGUOUS: c_int = 0x1;
const ALIGNED: c_int = 0x100;
const NATIVE: c_int = 0x200;
const WRITEABLE: c_int = 0x400;

/// What the capsule `__array_struct__` holds.
#[repr(C)]
struct Interface {
    two: c_int,
    rank: c_int,
    kind: c_char,
    item: c_int,
    flags: c_int,
    shape: *const isize,
    strides: *const isize,
    data: *mut c_void,
}

/// Memory that a call reads; it stays borrowed as long as the address is there. What ends before does not compile:
///
/// ```compile_fail,E0716
/// # use mithril_runtime::c::Address;
/// let address = Address::of(&[std::env::args().count() as i64]);
/// drop([address]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Address<'a> {
    start: usize,
    bytes: usize,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> Address<'a> {
    /// Of what is not read.
    pub fn none() -> Self {
        Self { start: 0, bytes: 0, borrowed: PhantomData }
    }
    /// The memory of a slice.
    pub fn of<T: Element>(values: &'a [T]) -> Self {
        let start = values.as_ptr().expose_provenance();
        Self { start, bytes: size_of_val(values), borrowed: PhantomData }
    }
    /// The memory of a tensor.
    pub fn of_tensor(tensor: &'a Tensor) -> Self {
        match tensor.data() {
            Data::Bool(v) => Self::of(v),
            Data::U8(v) => Self::of(v),
            Data::U16(v) => Self::of(v),
            Data::U32(v) => Self::of(v),
            Data::U64(v) => Self::of(v),
            Data::I8(v) => Self::of(v),
            Data::I16(v) => Self::of(v),
            Data::I32(v) => Self::of(v),
            Data::I64(v) => Self::of(v),
            Data::F16(v) => Self::of(v),
            Data::BF16(v) => Self::of(v),
            Data::F32(v) => Self::of(v),
            Data::F64(v) => Self::of(v),
        }
    }
    /// What lies there.
    pub(crate) fn bytes(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: it is the memory of a slice or an array that stays borrowed, all of which are numbers.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.start), self.bytes) }
    }
    /// Where it starts, if a tensor of so many bytes fits there.
    pub(crate) fn read(self, bytes: usize, dtype: DType) -> Result<*const c_void, Misfit> {
        fits((self.start, self.bytes), bytes, dtype)?;
        Ok(std::ptr::with_exposed_provenance(self.start))
    }
}

/// Memory that a call writes; nobody else has it as long as the address is there, and what is only read has none:
///
/// ```compile_fail,E0308
/// # use mithril_runtime::c::AddressMut;
/// let values = [1.0_f32];
/// let address = AddressMut::of(&values);
/// ```
#[derive(Debug)]
pub struct AddressMut<'a> {
    start: usize,
    bytes: usize,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> AddressMut<'a> {
    /// The memory of a slice.
    pub fn of<T: Element>(values: &'a mut [T]) -> Self {
        let bytes = size_of_val(values);
        Self { start: values.as_mut_ptr().expose_provenance(), bytes, borrowed: PhantomData }
    }
    /// Whether it starts where the other does: arrays that somebody else owns may be one.
    pub fn is_at(&self, other: &Address<'_>) -> bool {
        self.start == other.start
    }
    /// Where it starts, if a tensor of so many bytes fits there.
    pub(crate) fn written(&mut self, bytes: usize, dtype: DType) -> Result<*mut c_void, Misfit> {
        fits((self.start, self.bytes), bytes, dtype)?;
        Ok(std::ptr::with_exposed_provenance_mut(self.start))
    }
}

/// Why a tensor does not fit into memory, to be said behind its name.
pub(crate) type Misfit = String;

fn fits((start, available): (usize, usize), bytes: usize, dtype: DType) -> Result<(), Misfit> {
    if available < bytes {
        return Err(format!("has {available} bytes of memory, {bytes} are needed"));
    }
    if bytes > 0 && !start.is_multiple_of(dtype.size()) {
        return Err(format!("is not aligned to the {} bytes of {dtype}", dtype.size()));
    }
    Ok(())
}

/// How an array lies in memory, which its owner keeps alive.
#[derive(Debug)]
pub struct Array<Owner> {
    start: usize,
    kind: u8,
    item: usize,
    flags: c_int,
    shape: smallvec::SmallVec<[usize; 6]>,
    // Its memory is read and written where addresses of it are passed.
    _owner: Owner,
}

impl<Owner> Array<Owner> {
    /// Reads the contents of a capsule `__array_struct__`. The pointer must be that of such a capsule, which is
    /// still alive; the owner, which is kept, is the array that gave it: the memory described lives as long as that.
    /// This is the one place where the compiler of Rust believes what it is told.
    pub fn read(capsule: NonNull<c_void>, owner: Owner) -> mithril_ir::Result<Self> {
        // SAFETY: the pointer is that of a capsule `__array_struct__`, whose contents have this form by the protocol;
        // its first field, which must be 2, is looked at before anything is read through other pointers.
        let interface = unsafe { capsule.cast::<Interface>().as_ref() };
        let rank = usize::try_from(interface.rank).unwrap_or(usize::MAX);
        if interface.two != 2 || rank > mithril_ir::shape::MAX_RANK {
            return Err(Error::new(
                Code::BadArgument,
                "the array does not describe its memory as the protocol says",
            ));
        }
        let mut shape = smallvec::SmallVec::new();
        for axis in 0..rank {
            // SAFETY: `shape` has `rank` entries by the protocol.
            shape.push(unsafe { *interface.shape.add(axis) } as usize);
        }
        Ok(Self {
            start: interface.data.expose_provenance(),
            kind: interface.kind as u8,
            item: interface.item as usize,
            flags: interface.flags,
            shape,
            _owner: owner,
        })
    }
    /// The sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// Where the values are, if they lie as generated code reads them: of this dtype and shape, one after the other,
    /// aligned, in the byte order of the machine.
    pub fn fits(&self, buffer: &TensorSpec) -> Option<Address<'_>> {
        let lies_well = self.flags & (CONTIGUOUS | ALIGNED | NATIVE) == CONTIGUOUS | ALIGNED | NATIVE;
        let is_of_dtype = self.item == buffer.dtype.size() && self.kind == kind(buffer.dtype);
        let fits = lies_well && is_of_dtype && *self.shape == *buffer.shape;
        fits.then_some(Address { start: self.start, bytes: buffer.bytes(), borrowed: PhantomData })
    }
    /// As [`Array::fits`], for memory that is written.
    pub fn fits_writing(&self, buffer: &TensorSpec) -> Option<AddressMut<'_>> {
        let Address { start, bytes, .. } = self.fits(buffer).filter(|_| self.flags & WRITEABLE != 0)?;
        Some(AddressMut { start, bytes, borrowed: PhantomData })
    }
}

/// The letter of the protocol.
fn kind(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => b'b',
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => b'u',
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => b'i',
        DType::F16 | DType::F32 | DType::F64 => b'f',
        // `ml_dtypes` describes it as bytes without meaning.
        DType::BF16 => b'V',
    }
}
