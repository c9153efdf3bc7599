//! Arrays that somebody else owns, described by the array interface that NumPy and others share.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use mithril_ir::{Code, DType, Error, Result};

use super::call::Buffer;

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

/// Where the values of a tensor are that fit a [`Buffer`]. Whoever makes one keeps the memory alive while it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(usize);

impl Address {
    /// Of what is not read.
    pub fn none() -> Self {
        Self(0)
    }
    /// The memory of a slice.
    pub fn of<T>(values: &[T]) -> Self {
        Self(values.as_ptr().expose_provenance())
    }
    /// The memory of a slice that is written.
    pub fn of_mut<T>(values: &mut [T]) -> Self {
        Self(values.as_mut_ptr().expose_provenance())
    }
    pub(super) fn read(self) -> *const c_void {
        std::ptr::with_exposed_provenance(self.0)
    }
    pub(super) fn written(self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// How an array lies in memory.
#[derive(Debug)]
pub struct Array {
    address: Address,
    kind: u8,
    item: usize,
    flags: c_int,
    shape: smallvec::SmallVec<[usize; 6]>,
}

impl Array {
    /// Reads the contents of a capsule `__array_struct__`. The pointer has to be that of such a capsule, which is
    /// still alive.
    pub fn read(capsule: NonNull<c_void>) -> Result<Self> {
        // SAFETY: the pointer is that of a capsule `__array_struct__`, whose contents have this form by the protocol;
        // its first field, which has to be 2, is looked at before anything is read through other pointers.
        let found = unsafe { capsule.cast::<Interface>().as_ref() };
        let rank = usize::try_from(found.rank).unwrap_or(usize::MAX);
        if found.two != 2 || rank > mithril_ir::shape::MAX_RANK {
            return Err(Error::new(
                Code::BadArgument,
                "the array does not describe its memory as the protocol says",
            ));
        }
        let mut shape = smallvec::SmallVec::new();
        for axis in 0..rank {
            // SAFETY: `shape` has `rank` entries by the protocol.
            shape.push(unsafe { *found.shape.add(axis) } as usize);
        }
        Ok(Self {
            address: Address(found.data.expose_provenance()),
            kind: found.kind as u8,
            item: found.item as usize,
            flags: found.flags,
            shape,
        })
    }
    /// The sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// Where the values are, if they lie as generated code reads them: of this dtype and shape, one after the other,
    /// aligned, in the byte order of the machine.
    pub fn fits(&self, buffer: &Buffer) -> Option<Address> {
        let lies_well = self.flags & (CONTIGUOUS | ALIGNED | NATIVE) == CONTIGUOUS | ALIGNED | NATIVE;
        let is_of_dtype = self.item == buffer.dtype.size() && self.kind == kind(buffer.dtype);
        (lies_well && is_of_dtype && *self.shape == *buffer.shape).then_some(self.address)
    }
    /// As [`Array::fits`], for memory that is written.
    pub fn fits_writing(&self, buffer: &Buffer) -> Option<Address> {
        self.fits(buffer).filter(|_| self.flags & WRITEABLE != 0)
    }
}

/// The letter of the protocol.
fn kind(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => b'b',
        DType::U8 => b'u',
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => b'i',
        DType::F16 | DType::F32 | DType::F64 => b'f',
        // `ml_dtypes` describes it as bytes without meaning.
        DType::BF16 => b'V',
    }
}
