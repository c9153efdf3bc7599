//! The Python extension module of Mithril: the only crate that names PyO3.
//!
//! It translates and holds no logic of its own: arguments ([`convert`]), calls ([`calls`]), errors ([`errors`]), models
//! ([`model`], [`connection`]), compiling ([`compile`]), checkpoints ([`weights`]) and the definitions from which the Python
//! classes are generated ([`definitions`]).

#![allow(
    clippy::needless_pass_by_value,
    clippy::unused_self,
    reason = "PyO3 hands over owned values and wants methods to take self"
)]

mod c;
mod calls;
mod compile;
mod connection;
mod convert;
mod definitions;
mod eager;
mod errors;
mod ggml;
mod gguf;
mod inspect;
mod model;
mod onnx;
mod optimizers;
mod partition;
mod runner;
mod source;
mod target;
mod weights;

use pyo3::prelude::*;

#[pymodule]
#[expect(clippy::too_many_lines, reason = "a line for each function")]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    classes(module)?;
    module.add_function(wrap_pyfunction!(connection::apply_op, module)?)?;
    module.add_function(wrap_pyfunction!(connection::apply_called, module)?)?;
    module.add_function(wrap_pyfunction!(model::connections, module)?)?;
    module.add_function(wrap_pyfunction!(model::converted_line, module)?)?;
    module.add_function(wrap_pyfunction!(convert::parse_dtype, module)?)?;
    module.add_function(wrap_pyfunction!(convert::parse_literal, module)?)?;
    module.add_function(wrap_pyfunction!(compile::compile, module)?)?;
    module.add_function(wrap_pyfunction!(compile::roles, module)?)?;
    module.add_function(wrap_pyfunction!(c::c_program, module)?)?;
    module.add_function(wrap_pyfunction!(c::c_compiler, module)?)?;
    module.add_function(wrap_pyfunction!(c::c_flags, module)?)?;
    module.add_function(wrap_pyfunction!(c::c_options, module)?)?;
    module.add_function(wrap_pyfunction!(c::c_peak, module)?)?;
    module.add_function(wrap_pyfunction!(c::c_cache_refusal, module)?)?;
    module.add_function(wrap_pyfunction!(ggml::ggml_program, module)?)?;
    module.add_function(wrap_pyfunction!(ggml::ggml_devices, module)?)?;
    module.add_function(wrap_pyfunction!(ggml::ggml_instructions, module)?)?;
    module.add_function(wrap_pyfunction!(ggml::ggml_version, module)?)?;
    module.add_function(wrap_pyfunction!(ggml::ggml_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(ggml::ggml_rounded, module)?)?;
    module.add_function(wrap_pyfunction!(ggml::ggml_types, module)?)?;
    module.add_function(wrap_pyfunction!(eager::eager_source, module)?)?;
    module.add_function(wrap_pyfunction!(eager::eager_runner, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::exposed, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::with_gradients, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::single, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::graph_text, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::nodes, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::parse_graph, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::output_values, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::uses, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::passed_over, module)?)?;
    module.add_function(wrap_pyfunction!(eager::eager_types, module)?)?;
    module.add_function(wrap_pyfunction!(target::op_support, module)?)?;
    module.add_function(wrap_pyfunction!(onnx::onnx_file, module)?)?;
    module.add_function(wrap_pyfunction!(weights::read_onnx, module)?)?;
    module.add_function(wrap_pyfunction!(weights::onnx_ops, module)?)?;
    module.add_function(wrap_pyfunction!(weights::save_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(weights::plan_weights, module)?)?;
    module.add_function(wrap_pyfunction!(weights::publish_weights, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::block_formats, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::quantize_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::dequantize_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::save_gguf, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::op_definitions, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::layer_definitions, module)?)?;
    module.add_function(wrap_pyfunction!(optimizers::optimizer_definitions, module)?)?;
    module.add_function(wrap_pyfunction!(optimizers::optimizer_rule, module)?)?;
    module.add_function(wrap_pyfunction!(optimizers::optimizer_step, module)?)?;
    module.add_function(wrap_pyfunction!(partition::best_layout, module)?)?;
    module.add_function(wrap_pyfunction!(partition::named_layout, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::port_aliases, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::library_signatures, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::resolve_arguments, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::check_layer, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::check_layer_keywords, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::check_op_keywords, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::foreign_keywords, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::zoo_definitions, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::zoo_model, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::zoo_from_config, module)?)?;
    module.add_function(wrap_pyfunction!(definitions::error_codes, module)?)?;
    Ok(())
}

fn classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<model::PyModel>()?;
    module.add_class::<model::PyUse>()?;
    module.add_class::<onnx::PyOnnxFile>()?;
    module.add_class::<connection::PyConnection>()?;
    module.add_class::<connection::PyIOKey>()?;
    module.add_class::<connection::PyMethod>()?;
    module.add_class::<compile::PyCompiled>()?;
    module.add_class::<compile::PyPositions>()?;
    module.add_class::<source::PySource>()?;
    module.add_class::<runner::PyRunner>()?;
    module.add_class::<partition::PyPartitioned>()?;
    module.add_class::<c::PyCProgram>()?;
    module.add_class::<calls::PyPacked>()?;
    module.add_class::<ggml::PyGgmlProgram>()?;
    module.add_class::<target::PyTarget>()?;
    module.add_class::<weights::PyCheckpoint>()?;
    module.add_class::<weights::PyWeight>()
}
