//! Checks that memory is available before it is allocated, since a failed allocation would abort the process.

use crate::dtype::DType;
use crate::error::{Code, Error, Result};

/// Smaller tensors are not checked.
const CHECKED_BYTES: usize = 1 << 24;

/// Checks that there is memory for a tensor.
///
/// # Errors
/// [`Code::OutOfMemory`] if the allocator cannot provide that much.
pub fn check(dtype: DType, shape: &[usize]) -> Result<()> {
    let bytes = shape.iter().fold(dtype.size(), |n, &size| n.saturating_mul(size));
    if bytes < CHECKED_BYTES || Vec::<u8>::new().try_reserve_exact(bytes).is_ok() {
        return Ok(());
    }
    let gigabytes = bytes as f64 / 1e9;
    Err(Error::new(
        Code::OutOfMemory,
        format!("there is no memory for a tensor {dtype}{shape:?} of {gigabytes:.1} GB"),
    )
    .help("make the sizes or the batch smaller"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_an_error() {
        assert!(check(DType::F32, &[1 << 20, 2]).is_ok());
        let error = check(DType::F64, &[1 << 30, 1 << 29]).unwrap_err();
        assert_eq!(error.code(), Code::OutOfMemory);
        assert!(error.message().contains("GB"));
    }
}
