//! Whether this processor has what ggml was compiled for, and what ggml knows of the machine.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;

use mithril_ir::{Code, Error, Result};

use crate::ffi;

/// What the processor lacks, of what `build.rs` compiles for.
fn lacking() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let needed = [
            ("AVX2", is_x86_feature_detected!("avx2")),
            ("FMA", is_x86_feature_detected!("fma")),
            ("F16C", is_x86_feature_detected!("f16c")),
            ("BMI2", is_x86_feature_detected!("bmi2")),
        ];
        needed.into_iter().filter(|n| !n.1).map(|n| n.0).collect()
    }
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

/// Checks the processor, and prepares ggml once.
pub fn ready() -> Result<()> {
    static ONCE: Once = Once::new();
    let lacking = lacking();
    if !lacking.is_empty() {
        let text =
            format!("ggml was compiled for processors with {}, which this one lacks", lacking.join(", "));
        return Err(
            Error::new(Code::Unavailable, text).help("use the C backend, which adapts to the processor")
        );
    }
    ONCE.call_once(|| {
        // SAFETY: the callback has the form that ggml asks for; tables are filled before anyone else uses ggml.
        unsafe {
            ffi::ggml_log_set(Some(quiet), std::ptr::null_mut());
            ffi::ggml_cpu_init();
        }
    });
    Ok(())
}

/// What goes wrong is our error; nothing else is printed.
unsafe extern "C" fn quiet(_: c_int, _: *const c_char, _: *mut c_void) {}

/// A device that ggml computes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, such as `CPU`.
    pub name: String,
    /// What it is.
    pub description: String,
    /// Bytes of its memory.
    pub memory: usize,
}

/// The devices, from ggml itself.
///
/// ```
/// assert_eq!(mithril_ggml::devices()?[0].name, "CPU");
/// # Ok::<(), mithril_ir::Error>(())
/// ```
pub fn devices() -> Result<Vec<Device>> {
    ready()?;
    // SAFETY: indices are below the count; the texts live as long as the program.
    let device = |index| unsafe {
        let device = ffi::ggml_backend_dev_get(index);
        let (mut free, mut memory) = (0, 0);
        ffi::ggml_backend_dev_memory(device, &raw mut free, &raw mut memory);
        let name = text(ffi::ggml_backend_dev_name(device));
        Device { name, description: text(ffi::ggml_backend_dev_description(device)), memory }
    };
    // SAFETY: returns a number.
    Ok((0..unsafe { ffi::ggml_backend_dev_count() }).map(device).collect())
}

/// The version of ggml.
pub fn version() -> String {
    // SAFETY: a text that lives as long as the program.
    unsafe { text(ffi::ggml_version()) }
}

/// # Safety
/// A text of C, or null.
unsafe fn text(of: *const c_char) -> String {
    if of.is_null() {
        return String::new();
    }
    // SAFETY: as said.
    unsafe { CStr::from_ptr(of) }.to_string_lossy().into_owned()
}
