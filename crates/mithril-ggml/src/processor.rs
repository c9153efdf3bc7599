//! Which instructions ggml uses on this processor, and what ggml knows of the machine.

use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use mithril_ir::{Code, Error, Result};

use crate::ffi;

/// The variable of the environment that names the set of instructions.
const VARIABLE: &str = "MITHRIL_GGML_CPU";

/// The sets of instructions that `build.rs` compiled the backend of the CPU for: each executes what those before it do.
fn variants() -> Vec<(usize, &'static str)> {
    env!("MITHRIL_GGML_VARIANTS").split(' ').enumerate().collect()
}

/// What the processor, or the system, lacks of what a variant needs.
fn lacking(variant: &str) -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let needed = {
        let sse42 =
            [("SSE4.2", is_x86_feature_detected!("sse4.2")), ("POPCNT", is_x86_feature_detected!("popcnt"))];
        let avx2 = [
            ("AVX2", is_x86_feature_detected!("avx2")),
            ("FMA", is_x86_feature_detected!("fma")),
            ("F16C", is_x86_feature_detected!("f16c")),
            ("BMI2", is_x86_feature_detected!("bmi2")),
        ];
        let avx512 = [
            ("AVX512F", is_x86_feature_detected!("avx512f")),
            ("AVX512CD", is_x86_feature_detected!("avx512cd")),
            ("AVX512VL", is_x86_feature_detected!("avx512vl")),
            ("AVX512DQ", is_x86_feature_detected!("avx512dq")),
            ("AVX512BW", is_x86_feature_detected!("avx512bw")),
            ("AVX512_VNNI", is_x86_feature_detected!("avx512vnni")),
        ];
        match variant {
            "sse42" => sse42.to_vec(),
            "avx2" => [&sse42[..], &avx2].concat(),
            _ => [&sse42[..], &avx2, &avx512].concat(),
        }
    };
    #[cfg(not(target_arch = "x86_64"))]
    let needed: Vec<(&'static str, bool)> = {
        let _ = variant;
        Vec::new()
    };
    needed.into_iter().filter(|n| !n.1).map(|n| n.0).collect()
}

/// The variant that is used: the one that is requested, or else the last that the processor can execute.
fn chosen(requested: Option<&str>) -> Result<(usize, &'static str)> {
    let Some(requested) = requested else {
        let last = variants().into_iter().rfind(|(_, name)| lacking(name).is_empty());
        return last.ok_or_else(|| {
            let lacking = lacking(variants()[0].1);
            let text =
                format!("ggml was compiled for processors with {}, which this one lacks", lacking.join(", "));
            Error::new(Code::Unavailable, text).help("use the C backend, which adapts to the processor")
        });
    };
    let Some(variant) = variants().into_iter().find(|(_, name)| *name == requested) else {
        let names: Vec<_> = variants().into_iter().map(|(_, name)| name).collect();
        let text = format!("{VARIABLE} is {requested:?}, for which ggml was not compiled");
        return Err(Error::new(Code::BadArgument, text)
            .help(format!("use one of {}, or unset the variable", names.join(", "))));
    };
    let lacking = lacking(variant.1);
    if lacking.is_empty() {
        return Ok(variant);
    }
    let text =
        format!("{VARIABLE} is {requested:?}, which needs {}; the processor lacks it", lacking.join(", "));
    Err(Error::new(Code::Unavailable, text).help("unset the variable: the best set of instructions is used"))
}

/// The set of instructions that ggml uses: that of the variable `MITHRIL_GGML_CPU` when ggml is first used, or else the
/// best of those that it was compiled for and that the processor has.
///
/// ```
/// assert!(["sse42", "avx2", "avx512", "plain"].contains(&mithril_ggml::instructions()?));
/// # Ok::<(), mithril_ir::Error>(())
/// ```
pub fn instructions() -> Result<&'static str> {
    static CHOSEN: OnceLock<Result<&'static str>> = OnceLock::new();
    let choose = || {
        let requested = env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let (index, name) = chosen(requested.as_ref().map(|value| value.to_string_lossy()).as_deref())?;
        // SAFETY: there are so many variants, and the processor can execute this one; the callback has the form that
        // ggml asks for; tables are filled before anyone else uses ggml.
        unsafe {
            ffi::mithril_ggml_choose(index);
            ffi::ggml_log_set(Some(quiet), std::ptr::null_mut());
            ffi::ggml_cpu_init();
        }
        Ok(name)
    };
    CHOSEN.get_or_init(choose).clone()
}

/// Chooses the instructions, and prepares ggml once.
pub fn ready() -> Result<()> {
    instructions().map(|_| ())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_variant_is_chosen_unless_another_is_requested() {
        let (index, best) = chosen(None).expect("this processor can execute one");
        for (i, name) in variants() {
            match chosen(Some(name)) {
                Ok(variant) => assert!(variant == (i, name) && i <= index),
                Err(error) => {
                    assert!(i > index && error.code() == Code::Unavailable, "{name} before {best}: {error}");
                }
            }
        }
        let error = chosen(Some("mmx")).expect_err("there is no such variant");
        assert_eq!(error.code(), Code::BadArgument);
        assert!(error.to_string().contains(best), "{error}");
    }
}
