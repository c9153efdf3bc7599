//! The functions of ggml that make operations, with their parameters as in `ggml.h`: one list, from which both the
//! declarations and the calls by name are made.

use std::ffi::c_int;

use crate::ffi::{ggml_context, ggml_tensor};
use crate::loops::OWN;

/// What is passed to an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passed {
    Tensor(*mut ggml_tensor),
    /// An optional tensor that is absent.
    Null,
    /// A number, a boolean, or the number of a type of elements.
    Number(f64),
}

/// What a parameter is.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "written in lower case in the list")]
pub(crate) enum Parameter {
    tensor,
    optional,
    int,
    long,
    size,
    float,
    kind,
    flag,
}

/// A function of ggml.
pub(crate) struct Operation {
    pub name: &'static str,
    /// Compared with what [`mithril_codegen::ggml::functions`] says, which checks what is passed.
    #[cfg(test)]
    pub parameters: &'static [Parameter],
    /// The arguments must have been found to fit the parameters.
    pub call: unsafe fn(*mut ggml_context, &[Passed]) -> *mut ggml_tensor,
}

impl Passed {
    pub fn tensor(self) -> *mut ggml_tensor {
        match self {
            Self::Tensor(t) => t,
            _ => std::ptr::null_mut(),
        }
    }
    pub fn number(self) -> f64 {
        match self {
            Self::Number(x) => x,
            _ => 0.0,
        }
    }
}

macro_rules! declared {
    (tensor) => { *mut ggml_tensor };
    (optional) => { *mut ggml_tensor };
    (int) => { c_int };
    (long) => { i64 };
    (size) => { usize };
    (float) => { f32 };
    (kind) => { c_int };
    (flag) => { bool };
}

macro_rules! converted {
    (tensor, $passed:expr) => {
        $passed.tensor()
    };
    (optional, $passed:expr) => {
        $passed.tensor()
    };
    (int, $passed:expr) => {
        $passed.number() as c_int
    };
    (long, $passed:expr) => {
        $passed.number() as i64
    };
    (size, $passed:expr) => {
        $passed.number() as usize
    };
    (float, $passed:expr) => {
        $passed.number() as f32
    };
    (kind, $passed:expr) => {
        $passed.number() as c_int
    };
    (flag, $passed:expr) => {
        $passed.number() != 0.0
    };
}

macro_rules! operations {
    ($($name:ident($($parameter:ident)*);)*) => {
        unsafe extern "C" {
            $(fn $name(context: *mut ggml_context $(, _: declared!($parameter))*) -> *mut ggml_tensor;)*
        }
        /// All of them.
        pub(crate) static OPERATIONS: &[Operation] = &[$(Operation {
            name: stringify!($name),
            #[cfg(test)]
            parameters: &[$(Parameter::$parameter),*],
            call: |context, passed| {
                let mut passed = passed.iter().copied();
                let mut next = || passed.next().unwrap_or(Passed::Null);
                // SAFETY: the caller vouches for the context and for tensors of it, and for what ggml asserts.
                unsafe { $name(context $(, converted!($parameter, next()))*) }
            },
        }),*];
    };
}

operations! {
    ggml_add(tensor tensor);
    ggml_sub(tensor tensor);
    ggml_mul(tensor tensor);
    ggml_div(tensor tensor);
    ggml_sqr(tensor);
    ggml_sqrt(tensor);
    ggml_log(tensor);
    ggml_exp(tensor);
    ggml_sin(tensor);
    ggml_cos(tensor);
    ggml_abs(tensor);
    ggml_neg(tensor);
    ggml_step(tensor);
    ggml_tanh(tensor);
    ggml_elu(tensor);
    ggml_leaky_relu(tensor float flag);
    ggml_sigmoid(tensor);
    ggml_gelu_erf(tensor);
    ggml_silu(tensor);
    ggml_hardswish(tensor);
    ggml_floor(tensor);
    ggml_ceil(tensor);
    ggml_trunc(tensor);
    ggml_scale(tensor float);
    ggml_scale_bias(tensor float float);
    ggml_sum_rows(tensor);
    ggml_mean(tensor);
    ggml_cumsum(tensor);
    ggml_norm(tensor float);
    ggml_rms_norm(tensor float);
    ggml_soft_max_ext(tensor optional float float);
    ggml_flash_attn_ext(tensor tensor tensor optional float float float);
    ggml_mul_mat(tensor tensor);
    ggml_out_prod(tensor tensor);
    ggml_cpy(tensor tensor);
    ggml_cast(tensor kind);
    ggml_cont(tensor);
    ggml_reshape_4d(tensor long long long long);
    ggml_view_4d(tensor long long long long size size size size);
    ggml_permute(tensor int int int int);
    ggml_repeat_4d(tensor long long long long);
    ggml_concat(tensor tensor int);
    ggml_get_rows(tensor tensor);
    ggml_set_rows(tensor tensor tensor);
    ggml_pad_ext(tensor int int int int int int int int);
    ggml_conv_2d_direct(tensor tensor int int int int int int);
    ggml_conv_2d_dw_direct(tensor tensor int int int int int int);
    ggml_pool_2d(tensor int int int int int float float);
}

/// The function of that name, of ggml or of ours.
pub(crate) fn find(name: &str) -> Option<&'static Operation> {
    OPERATIONS.iter().chain(OWN).find(|o| o.name == name)
}
