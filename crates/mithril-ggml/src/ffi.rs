//! What is used of ggml's C interface, apart from the functions that make operations (`operations.rs`): declared by
//! hand from `ggml.h`, `ggml-cpu.h` and `ggml-backend.h` of version 0.26.

#![expect(non_camel_case_types, reason = "as in the headers")]

use std::ffi::{c_char, c_int, c_void};

/// `GGML_MAX_DIMS`.
pub const MAX_DIMS: usize = 4;
/// `GGML_MAX_SRC`.
pub const MAX_SRC: usize = 10;
/// `GGML_MAX_N_THREADS`.
pub const MAX_THREADS: usize = 512;
/// `GGML_TENSOR_FLAG_OUTPUT`.
pub const FLAG_OUTPUT: i32 = 2;
/// `GGML_OP_NONE`.
pub const OP_NONE: c_int = 0;
/// `GGML_N_TASKS_MAX`: as many as there are threads.
pub const ALL_THREADS: c_int = -1;
/// `GGML_STATUS_SUCCESS`.
pub const SUCCESS: c_int = 0;

#[repr(C)]
pub struct ggml_context {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ggml_cgraph {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ggml_threadpool {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ggml_backend_device {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ggml_backend_reg {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ggml_backend_buffer_type {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ggml_backend_buffer {
    _opaque: [u8; 0],
}

/// What a device gives beside its own memory; a null ends the list.
pub type ggml_backend_dev_get_extra_bufts_t =
    unsafe extern "C" fn(*mut ggml_backend_device) -> *mut *mut ggml_backend_buffer_type;

#[repr(C)]
pub struct ggml_init_params {
    pub mem_size: usize,
    pub mem_buffer: *mut c_void,
    pub no_alloc: bool,
}

#[repr(C)]
pub struct ggml_tensor {
    pub kind: c_int,
    pub buffer: *mut c_void,
    pub ne: [i64; MAX_DIMS],
    pub nb: [usize; MAX_DIMS],
    pub op: c_int,
    pub op_params: [i32; 16],
    pub flags: i32,
    pub src: [*mut ggml_tensor; MAX_SRC],
    pub view_src: *mut ggml_tensor,
    pub view_offs: usize,
    pub data: *mut c_void,
    pub name: [c_char; 64],
    pub extra: *mut c_void,
    pub padding: [u8; 8],
}

#[repr(C)]
pub struct ggml_cplan {
    pub work_size: usize,
    pub work_data: *mut u8,
    pub n_threads: c_int,
    pub threadpool: *mut ggml_threadpool,
    pub abort_callback: Option<unsafe extern "C" fn(*mut c_void) -> bool>,
    pub abort_callback_data: *mut c_void,
    pub use_ref: bool,
}

#[repr(C)]
pub struct ggml_threadpool_params {
    pub cpumask: [bool; MAX_THREADS],
    pub n_threads: c_int,
    pub prio: c_int,
    pub poll: u32,
    pub strict_cpu: bool,
    pub paused: bool,
}

#[repr(C)]
pub struct ggml_type_traits {
    pub type_name: *const c_char,
    pub blck_size: i64,
    pub blck_size_interleave: i64,
    pub type_size: usize,
    pub is_quantized: bool,
    pub to_float: Option<unsafe extern "C" fn(*const c_void, *mut f32, i64)>,
    pub from_float_ref: Option<unsafe extern "C" fn(*const f32, *mut c_void, i64)>,
}

pub type ggml_custom_op_t = unsafe extern "C" fn(*mut ggml_tensor, c_int, c_int, *mut c_void);

pub type ggml_log_callback = Option<unsafe extern "C" fn(c_int, *const c_char, *mut c_void)>;

unsafe extern "C" {
    pub fn ggml_version() -> *const c_char;
    pub fn ggml_log_set(callback: ggml_log_callback, data: *mut c_void);
    pub fn ggml_cpu_init();
    pub fn mithril_ggml_choose(index: usize);

    #[cfg(test)]
    pub fn ggml_type_name(kind: c_int) -> *const c_char;
    pub fn ggml_op_name(op: c_int) -> *const c_char;
    pub fn ggml_get_type_traits(kind: c_int) -> *const ggml_type_traits;
    pub fn ggml_tensor_overhead() -> usize;
    pub fn ggml_graph_overhead_custom(size: usize, grads: bool) -> usize;

    pub fn ggml_init(params: ggml_init_params) -> *mut ggml_context;
    pub fn ggml_free(context: *mut ggml_context);
    pub fn ggml_used_mem(context: *const ggml_context) -> usize;
    pub fn ggml_new_tensor(
        context: *mut ggml_context,
        kind: c_int,
        n_dims: c_int,
        ne: *const i64,
    ) -> *mut ggml_tensor;
    pub fn ggml_custom_4d(
        context: *mut ggml_context,
        kind: c_int,
        ne0: i64,
        ne1: i64,
        ne2: i64,
        ne3: i64,
        args: *mut *mut ggml_tensor,
        n_args: c_int,
        fun: ggml_custom_op_t,
        n_tasks: c_int,
        userdata: *mut c_void,
    ) -> *mut ggml_tensor;
    pub fn ggml_nbytes(tensor: *const ggml_tensor) -> usize;
    pub fn ggml_is_contiguous(tensor: *const ggml_tensor) -> bool;
    pub fn ggml_are_same_stride(a: *const ggml_tensor, b: *const ggml_tensor) -> bool;
    pub fn ggml_are_same_shape(a: *const ggml_tensor, b: *const ggml_tensor) -> bool;

    pub fn ggml_new_graph_custom(context: *mut ggml_context, size: usize, grads: bool) -> *mut ggml_cgraph;
    pub fn ggml_build_forward_expand(graph: *mut ggml_cgraph, tensor: *mut ggml_tensor);
    pub fn ggml_graph_n_nodes(graph: *mut ggml_cgraph) -> c_int;
    pub fn ggml_graph_node(graph: *mut ggml_cgraph, i: c_int) -> *mut ggml_tensor;

    pub fn ggml_threadpool_params_default(n_threads: c_int) -> ggml_threadpool_params;
    pub fn ggml_threadpool_new(params: *mut ggml_threadpool_params) -> *mut ggml_threadpool;
    pub fn ggml_graph_plan(
        graph: *const ggml_cgraph,
        n_threads: c_int,
        pool: *mut ggml_threadpool,
    ) -> ggml_cplan;
    pub fn ggml_graph_compute(graph: *mut ggml_cgraph, plan: *mut ggml_cplan) -> c_int;

    pub fn ggml_quantize_chunk(
        kind: c_int,
        src: *const f32,
        dst: *mut c_void,
        start: i64,
        nrows: i64,
        n_per_row: i64,
        imatrix: *const f32,
    ) -> usize;

    pub fn ggml_backend_cpu_reg() -> *mut ggml_backend_reg;
    pub fn ggml_backend_reg_dev_get(reg: *mut ggml_backend_reg, index: usize) -> *mut ggml_backend_device;
    pub fn ggml_backend_reg_get_proc_address(reg: *mut ggml_backend_reg, name: *const c_char) -> *mut c_void;
    pub fn ggml_backend_buft_name(kind: *mut ggml_backend_buffer_type) -> *const c_char;
    pub fn ggml_backend_buft_alloc_buffer(
        kind: *mut ggml_backend_buffer_type,
        size: usize,
    ) -> *mut ggml_backend_buffer;
    pub fn ggml_backend_buffer_init_tensor(
        buffer: *mut ggml_backend_buffer,
        tensor: *mut ggml_tensor,
    ) -> c_int;
    pub fn ggml_backend_tensor_set(tensor: *mut ggml_tensor, data: *const c_void, offset: usize, size: usize);
    pub fn ggml_backend_dev_count() -> usize;
    pub fn ggml_backend_dev_get(index: usize) -> *mut ggml_backend_device;
    pub fn ggml_backend_dev_name(device: *mut ggml_backend_device) -> *const c_char;
    pub fn ggml_backend_dev_description(device: *mut ggml_backend_device) -> *const c_char;
    pub fn ggml_backend_dev_memory(device: *mut ggml_backend_device, free: *mut usize, total: *mut usize);
}
