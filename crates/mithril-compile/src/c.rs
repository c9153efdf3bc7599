//! The C target: a graph whose sizes are numbers becomes one C file and a header.

use std::sync::Arc;

use mithril_codegen::c;
use mithril_codegen::c::kernels::Target as Shape;
#[cfg(target_arch = "x86_64")]
use mithril_codegen::c::kernels::TileFeatures;
pub use mithril_codegen::c::kernels::{Choices, Scheme, TuningTask};
pub use mithril_codegen::c::{
    Cost, Decision, Matrix, Mesh as CMesh, OptionDef, OptionKind, Options as COptions, Quantize, Reason,
    Request as CRequest, Source as CSource, TensorSpec, Value, c_type, emit as compile_c,
};
pub use mithril_codegen::c::{FLAGS, batch, block, units};
pub use mithril_codegen::ids::{Id, InputId, OutputId};
use mithril_ir::ValueId;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Graph, NodeId};

use crate::partition::{Partitioned, Placement};
use crate::pipeline::Target;

/// The C target as the pipeline sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct C;

impl Target for C {
    fn name(&self) -> &'static str {
        "c"
    }
    fn can_lower(&self, graph: &Graph, node: NodeId) -> bool {
        c::can_lower(graph, node)
    }
}

/// The processor that code is for, by the number of floats in its vectors: 16, 8, 4, or 1 for plain C; `None`: this one.
pub fn target(lanes: Option<usize>) -> Result<Shape> {
    lanes.map_or_else(|| Ok(native()), shape)
}

/// What a compilation with these options is asked for: code for the processor that they name.
pub fn request(options: COptions) -> Result<CRequest> {
    let target = target(options.lanes)?;
    let registers = options.registers.unwrap_or(target.registers);
    let target = Shape { registers, packs_alike: options.packs_alike, ..target };
    Ok(CRequest { options, target, ..CRequest::default() })
}

/// The mesh of a partitioned program, and in words how its tensors are divided.
pub fn mesh(program: &Partitioned) -> CMesh {
    let axes = program.mesh.axes();
    let words = |placements: &Vec<Placement>| {
        let divided = axes.iter().zip(placements).filter_map(|((name, _), placement)| match placement {
            Placement::Shard(axis) => Some(format!("axis {axis} divided along {name}")),
            Placement::Sections(axis, sections) => {
                Some(format!("sections {sections:?} of axis {axis} divided along {name}"))
            }
            Placement::Replicate | Placement::Partial(_) => None,
        });
        divided.collect::<Vec<_>>().join(", ")
    };
    CMesh {
        axes: axes.to_vec(),
        inputs: program.inputs.iter().map(words).collect(),
        outputs: program.outputs.iter().map(words).collect(),
    }
}

/// The inputs of a graph that have these names, as [`CRequest`] takes those that are donated.
pub fn donated(graph: &Graph, names: &[Arc<str>]) -> Vec<InputId> {
    let is_donated = |v: ValueId| graph.value(v).name.as_ref().is_some_and(|name| names.contains(name));
    graph.inputs.iter().enumerate().filter(|(_, v)| is_donated(**v)).map(|(i, _)| InputId::new(i)).collect()
}

/// The vectors of the processor that this runs on. Other processors run the same C, if not as fast.
fn native() -> Shape {
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if has!("avx512f") {
            let (has_bytes, has_bf16) = (has!("avx512vnni"), has!("avx512bf16"));
            return Shape { has_bytes, has_bf16, tiles: tiles(), ..Shape::avx512() };
        }
        if has!("avx2") && has!("fma") {
            return Shape { has_bytes: has!("avxvnni"), ..Shape::avx2() };
        }
        Shape { has_bytes: false, ..Shape::neon() }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        Shape { has_bytes: has!("dotprod"), has_bf16: has!("bf16"), ..Shape::neon() }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        Shape::plain()
    }
}

/// What tiles the processor multiplies (AMX). Only Linux is known to permit them.
#[cfg(target_arch = "x86_64")]
fn tiles() -> TileFeatures {
    let leaf = raw_cpuid::CpuId::new().get_extended_feature_info();
    let leaf = leaf.filter(|leaf| cfg!(target_os = "linux") && leaf.has_amx_tile());
    leaf.map(|leaf| TileFeatures { bf16: leaf.has_amx_bf16(), int8: leaf.has_amx_int8() }).unwrap_or_default()
}

/// What the kernels are shaped for where a vector has so many lanes.
fn shape(lanes: usize) -> Result<Shape> {
    match lanes {
        own if own == native().lanes => Ok(native()),
        16 => Ok(Shape::avx512()),
        8 => Ok(Shape::avx2()),
        4 => Ok(Shape::neon()),
        1 => Ok(Shape::plain()),
        other => Err(Error::new(Code::BadArgument, format!("no processor has vectors of {other} floats"))
            .help("give 16 (AVX-512), 8 (AVX2), 4 (SSE2, NEON, WebAssembly), or 1 for plain C")),
    }
}
