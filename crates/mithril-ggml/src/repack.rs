//! Weights in the order in which ggml's fastest products read them: the blocks of several rows are interleaved.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

use mithril_codegen::ggml::{DIMENSIONS, Type};
use mithril_ir::{Error, Result};

use crate::context::Pool;
use crate::ffi::{self, ggml_backend_buffer, ggml_backend_buffer_type, ggml_tensor};
use crate::processor;

/// ggml's name of the memory whose matrices are interleaved.
const NAME: &CStr = c"CPU_REPACK";

/// A buffer of that kind of memory. Only its kind counts: the elements lie elsewhere.
struct Tag(*mut ggml_backend_buffer);

// SAFETY: it is never changed after it was made.
unsafe impl Send for Tag {}
// SAFETY: as above.
unsafe impl Sync for Tag {}

/// The tag of interleaved matrices, if ggml has kernels for them here.
fn tag() -> Result<Option<*mut ggml_backend_buffer>> {
    static TAG: OnceLock<Option<Tag>> = OnceLock::new();
    processor::ready()?;
    Ok(TAG.get_or_init(find).as_ref().map(|tag| tag.0))
}

fn find() -> Option<Tag> {
    // SAFETY: there is a device, that of the CPU. The function has the form that ggml's header says, and returns a list
    // that a null ends; its entries and their names live as long as the program.
    unsafe {
        let registry = ffi::ggml_backend_cpu_reg();
        let address =
            ffi::ggml_backend_reg_get_proc_address(registry, c"ggml_backend_dev_get_extra_bufts".as_ptr());
        if address.is_null() {
            return None;
        }
        let kinds = std::mem::transmute::<*mut c_void, ffi::ggml_backend_dev_get_extra_bufts_t>(address);
        let mut kind: *mut *mut ggml_backend_buffer_type = kinds(ffi::ggml_backend_reg_dev_get(registry, 0));
        while !kind.is_null() && !(*kind).is_null() {
            if CStr::from_ptr(ffi::ggml_backend_buft_name(*kind)) == NAME {
                let buffer = ffi::ggml_backend_buft_alloc_buffer(*kind, 64);
                return (!buffer.is_null()).then_some(Tag(buffer));
            }
            kind = kind.add(1);
        }
        None
    }
}

/// Says that a matrix is interleaved; whether it can be.
///
/// # Safety
/// The tensor lives, and nobody else uses it.
pub(crate) unsafe fn mark(tensor: *mut ggml_tensor) -> Result<bool> {
    let Some(tag) = tag()? else { return Ok(false) };
    // SAFETY: as the caller vouches; what interleaves it is looked up by its type and sizes.
    unsafe {
        let status = ffi::ggml_backend_buffer_init_tensor(tag, tensor);
        if status != ffi::SUCCESS || (*tensor).extra.is_null() {
            (*tensor).extra = std::ptr::null_mut();
            return Ok(false);
        }
        (*tensor).buffer = tag.cast();
    }
    Ok(true)
}

/// A description of a matrix, marked if it can be.
fn described(ty: &Type) -> Result<Option<(Pool, *mut ggml_tensor)>> {
    let is_matrix = ty.element.is_quantized() && ty.sizes[1] > 1 && ty.sizes[2..] == [1, 1];
    if !is_matrix || *ty != Type::contiguous(ty.element, ty.sizes) {
        return Ok(None);
    }
    processor::ready()?;
    // SAFETY: returns a constant.
    let pool = Pool::new(2 * unsafe { ffi::ggml_tensor_overhead() } + 64)?;
    // SAFETY: the pool has room for a tensor; the type exists, and rows hold whole blocks, as a type says.
    let tensor =
        unsafe { ffi::ggml_new_tensor(pool.raw(), ty.element.code(), DIMENSIONS as i32, ty.sizes.as_ptr()) };
    if tensor.is_null() {
        return Err(Error::internal("ggml gives no tensor"));
    }
    // SAFETY: the tensor was just made.
    Ok(unsafe { mark(tensor) }?.then_some((pool, tensor)))
}

/// Whether ggml has products for a matrix of this type whose rows are interleaved, on this processor.
///
/// ```
/// use mithril_codegen::ggml::{Element, Type};
/// let odd = Type::contiguous(Element::Q4_0, [64, 7, 1, 1]);
/// assert!(!mithril_ggml::can_repack(&odd)?);
/// # Ok::<(), mithril_ir::Error>(())
/// ```
pub fn can_repack(ty: &Type) -> Result<bool> {
    Ok(described(ty)?.is_some())
}

/// Interleaves the rows of a matrix where they lie; as many bytes as before.
///
/// # Errors
/// If ggml has no products for such matrices (see [`can_repack`]), or if the bytes are not those of the type.
pub fn repack(ty: &Type, bytes: &mut [u8]) -> Result<()> {
    let Some((_pool, tensor)) = described(ty)? else {
        return Err(Error::internal(format!("ggml cannot interleave the rows of {ty}")));
    };
    // SAFETY: the tensor lives in the pool.
    let length = unsafe { ffi::ggml_nbytes(tensor) };
    if length != bytes.len() {
        return Err(Error::internal(format!("{ty} has {length} bytes, not {}", bytes.len())));
    }
    let rows = bytes.to_vec();
    // SAFETY: the tensor is marked, so that its rows are a multiple of what is interleaved; source and target have its
    // bytes, and do not overlap.
    unsafe {
        (*tensor).data = bytes.as_mut_ptr().cast();
        ffi::ggml_backend_tensor_set(tensor, rows.as_ptr().cast(), 0, length);
    }
    Ok(())
}
