//! The functions of ggml that make operations, with their parameters as in `ggml.h`: one list, from which both the
//! declarations and the calls by name are made.

use std::ffi::c_int;

use crate::ffi::{ggml_context, ggml_tensor};

/// What is passed to an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passed {
    Tensor(*mut ggml_tensor),
    /// An optional tensor that is absent.
    Null,
    /// A number, a truth value, or the number of a type of elements.
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
    fn tensor(self) -> *mut ggml_tensor {
        match self {
            Self::Tensor(t) => t,
            _ => std::ptr::null_mut(),
        }
    }
    fn number(self) -> f64 {
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
    ggml_dup(tensor);
    ggml_add(tensor tensor);
    ggml_sub(tensor tensor);
    ggml_mul(tensor tensor);
    ggml_div(tensor tensor);
    ggml_acc(tensor tensor size size size size);
    ggml_set(tensor tensor size size size size);
    ggml_sqr(tensor);
    ggml_sqrt(tensor);
    ggml_log(tensor);
    ggml_exp(tensor);
    ggml_expm1(tensor);
    ggml_softplus(tensor);
    ggml_sin(tensor);
    ggml_cos(tensor);
    ggml_abs(tensor);
    ggml_sgn(tensor);
    ggml_neg(tensor);
    ggml_step(tensor);
    ggml_tanh(tensor);
    ggml_elu(tensor);
    ggml_relu(tensor);
    ggml_leaky_relu(tensor float flag);
    ggml_sigmoid(tensor);
    ggml_gelu(tensor);
    ggml_gelu_erf(tensor);
    ggml_gelu_quick(tensor);
    ggml_silu(tensor);
    ggml_silu_back(tensor tensor);
    ggml_hardswish(tensor);
    ggml_hardsigmoid(tensor);
    ggml_floor(tensor);
    ggml_ceil(tensor);
    ggml_round(tensor);
    ggml_trunc(tensor);
    ggml_clamp(tensor float float);
    ggml_scale(tensor float);
    ggml_scale_bias(tensor float float);
    ggml_fill(tensor float);
    ggml_arange(float float float);
    ggml_swiglu_split(tensor tensor);
    ggml_geglu_split(tensor tensor);
    ggml_geglu_erf_split(tensor tensor);
    ggml_reglu_split(tensor tensor);

    ggml_sum(tensor);
    ggml_sum_rows(tensor);
    ggml_mean(tensor);
    ggml_cumsum(tensor);
    ggml_argmax(tensor);
    ggml_count_equal(tensor tensor);
    ggml_argsort(tensor int);
    ggml_top_k(tensor int);

    ggml_norm(tensor float);
    ggml_rms_norm(tensor float);
    ggml_rms_norm_back(tensor tensor float);
    ggml_group_norm(tensor int float);
    ggml_l2_norm(tensor float);
    ggml_soft_max(tensor);
    ggml_soft_max_ext(tensor optional float float);
    ggml_soft_max_ext_back(tensor tensor float float);

    ggml_mul_mat(tensor tensor);
    ggml_mul_mat_id(tensor tensor tensor);
    ggml_out_prod(tensor tensor);
    ggml_flash_attn_ext(tensor tensor tensor optional float float float);
    ggml_rope(tensor tensor int int);
    ggml_rope_ext(tensor tensor optional int int int float float float float float float);
    ggml_rope_ext_back(tensor tensor optional int int int float float float float float float);

    ggml_cpy(tensor tensor);
    ggml_cast(tensor kind);
    ggml_cont(tensor);
    ggml_cont_1d(tensor long);
    ggml_cont_2d(tensor long long);
    ggml_cont_3d(tensor long long long);
    ggml_cont_4d(tensor long long long long);
    ggml_reshape(tensor tensor);
    ggml_reshape_1d(tensor long);
    ggml_reshape_2d(tensor long long);
    ggml_reshape_3d(tensor long long long);
    ggml_reshape_4d(tensor long long long long);
    ggml_view_1d(tensor long size);
    ggml_view_2d(tensor long long size size);
    ggml_view_3d(tensor long long long size size size);
    ggml_view_4d(tensor long long long long size size size size);
    ggml_permute(tensor int int int int);
    ggml_transpose(tensor);
    ggml_repeat(tensor tensor);
    ggml_repeat_4d(tensor long long long long);
    ggml_repeat_back(tensor tensor);
    ggml_concat(tensor tensor int);
    ggml_get_rows(tensor tensor);
    ggml_get_rows_back(tensor tensor tensor);
    ggml_set_rows(tensor tensor tensor);
    ggml_diag(tensor);
    ggml_diag_mask_inf(tensor int);
    ggml_diag_mask_zero(tensor int);
    ggml_tri(tensor int);
    ggml_roll(tensor int int int int);
    ggml_pad(tensor int int int int);
    ggml_pad_ext(tensor int int int int int int int int);
    ggml_pad_circular(tensor int int int int);
    ggml_pad_ext_circular(tensor int int int int int int int int);
    ggml_pad_reflect_1d(tensor int int);
    ggml_upscale(tensor int int);
    ggml_upscale_ext(tensor int int int int int);
    ggml_interpolate(tensor long long long long int);
    ggml_solve_tri(tensor tensor flag flag flag);

    ggml_im2col(tensor tensor int int int int int int flag kind);
    ggml_conv_1d(tensor tensor int int int);
    ggml_conv_1d_dw(tensor tensor int int int);
    ggml_conv_transpose_1d(tensor tensor int int int);
    ggml_conv_2d(tensor tensor int int int int int int);
    ggml_conv_2d_direct(tensor tensor int int int int int int);
    ggml_conv_2d_dw(tensor tensor int int int int int int);
    ggml_conv_2d_dw_direct(tensor tensor int int int int int int);
    ggml_conv_transpose_2d_p0(tensor tensor int);
    ggml_conv_3d_direct(tensor tensor int int int int int int int int int int int int);
    ggml_pool_1d(tensor int int int int);
    ggml_pool_2d(tensor int int int int int float float);
    ggml_pool_2d_back(tensor tensor int int int int int float float);
    ggml_cross_entropy_loss(tensor tensor);
    ggml_cross_entropy_loss_back(tensor tensor tensor);
}

/// The function of that name.
pub(crate) fn find(name: &str) -> Option<&'static Operation> {
    OPERATIONS.iter().find(|o| o.name == name)
}
