//! Collectives in C, of every dtype and along every axis, equal those of the virtual mesh. The ranks are threads of one process
//! (`c_mesh.c`).

use std::process::Command;
use std::sync::Arc;

use mithril::compile::c::{C, COptions, CRequest, TensorSpec, compile_c, mesh, request};
use mithril::compile::partition::{Mesh, Partitioned, Placement, virtual_mesh};
use mithril::compile::pipeline::lower;
use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::graph::{Role, TensorType, ValueId};
use mithril::ir::literal::Lit;
use mithril::ir::op::OpDef;
use mithril::ir::ops::collective::{
    ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, COLLECTIVE_PERMUTE, MESH_INDEX, REDUCE_SCATTER, SHARD, pairs_literal,
};
use mithril::ir::shape::Shape;
use mithril::ir::tensor::Tensor;
use mithril::runtime::c::{Compiler, Tool};

/// The axes of the mesh.
const AXES: [(&str, usize); 2] = [("a", 2), ("b", 3)];

/// A program with a collective of each kind, of each dtype, along each axis of the mesh and of a tensor.
struct Program {
    builder: Builder,
    inputs: Vec<Vec<Placement>>,
    values: Vec<Arc<Tensor>>,
}

impl Program {
    /// An input of which each rank holds a block along both axes of the mesh.
    fn input(&mut self, dtype: DType) -> ValueId {
        let (whole, own) = ([12, 18], [6, 6]);
        let number = |i: usize| match dtype {
            DType::Bool => f64::from(u8::from(i.is_multiple_of(7))),
            // Sums of these are exact in 16 bits.
            _ => ((i * 37) % 41) as f64,
        };
        self.values.push(Arc::new(Tensor::build(dtype, &whole, |i| number(i).into())));
        self.inputs.push(vec![Placement::Shard(0), Placement::Shard(1)]);
        let shape = Shape::of(own.map(i64::from));
        self.builder.graph.add_input(dtype.name(), Role::Data, TensorType { dtype, shape })
    }
    fn output(&mut self, op: &'static OpDef, x: Option<ValueId>, axis: (&str, usize), rest: &[Lit]) {
        let mut args: Vec<ValueId> = x.into_iter().collect();
        args.push(self.builder.lit(axis.0));
        args.push(self.builder.lit(axis.1 as i64));
        args.extend(rest.iter().map(|lit| self.builder.lit(lit.clone())));
        let y = self.builder.push(op, &args).expect("a collective")[0];
        let name = format!("y{}", self.builder.graph.outputs.len());
        self.builder.graph.outputs.insert(name.into(), y);
    }
}

fn program() -> (Partitioned, Vec<Arc<Tensor>>) {
    let mut p = Program { builder: Builder::new(DType::F32), inputs: Vec::new(), values: Vec::new() };
    for &dtype in DType::ALL {
        let x = p.input(dtype);
        for axis in AXES {
            for reduction in ["SUM", "MAX", "MIN", "MEAN"] {
                if reduction != "MEAN" || matches!(dtype, DType::F32 | DType::F64) {
                    p.output(&ALL_REDUCE, Some(x), axis, &[Lit::text(reduction)]);
                }
            }
            for along in [0, 1] {
                p.output(&ALL_GATHER, Some(x), axis, &[Lit::int(along)]);
                p.output(&REDUCE_SCATTER, Some(x), axis, &[Lit::int(along)]);
                p.output(&SHARD, Some(x), axis, &[Lit::int(along)]);
                p.output(&ALL_TO_ALL, Some(x), axis, &[Lit::int(along), Lit::int(1 - along)]);
            }
            for pairs in [vec![(0, 1)], vec![(0, 1), (1, 0)], vec![(1, 1)]] {
                p.output(&COLLECTIVE_PERMUTE, Some(x), axis, &[pairs_literal(pairs)]);
            }
        }
    }
    for axis in AXES {
        p.output(&MESH_INDEX, None, axis, &[]);
    }
    // Every rank shows what it has: results are not divided, but joined rank by rank.
    let outputs = vec![vec![Placement::Replicate; AXES.len()]; p.builder.graph.outputs.len()];
    let mesh = Mesh::new(AXES).expect("a mesh");
    let graph = p.builder.graph;
    (Partitioned { graph, mesh, inputs: p.inputs, outputs, communications: Vec::new() }, p.values)
}

fn bytes_of(specs: &[TensorSpec]) -> String {
    specs.iter().map(|spec| spec.bytes().to_string()).collect::<Vec<_>>().join(", ")
}

#[test]
fn collectives_agree_with_the_virtual_mesh() {
    let (mut program, values) = program();
    let expected = virtual_mesh::parts(&program, &values).expect("the virtual mesh");
    program.graph = lower(&program.graph, &C, DType::F32, &mut |_, _| {}).expect("lowering");
    let plain = request(COptions { lanes: Some(1), ..COptions::default() }).expect("a processor");
    let request = CRequest { mesh: Some(mesh(&program)), ..plain };
    let source = compile_c(&program.graph, &request).expect("C");
    let driver = include_str!("c_mesh.c")
        .replace("@input_bytes@", &bytes_of(&source.inputs))
        .replace("@output_bytes@", &bytes_of(&source.outputs));
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("model.c"), &source.c).expect("the model");
    std::fs::write(at("model.h"), &source.h).expect("the header");
    std::fs::write(at("main.c"), driver).expect("the driver");
    let mut data = Vec::new();
    for rank in 0..program.mesh.devices() {
        for (whole, placements) in values.iter().zip(&program.inputs) {
            let part = virtual_mesh::part(&program, placements, whole, &program.mesh.coordinates(rank));
            data.extend(part.to_bytes());
        }
    }
    std::fs::write(at("in"), data).expect("the inputs");
    let tool = Tool { flags: vec!["-O1".to_owned()], ..Tool::default() };
    let compiler = Compiler::find(&tool).expect("a compiler");
    let flags = ["-Wall", "-Wextra", "-Werror"];
    compiler
        .build(&[at("main.c"), at("model.c")], &at("run"), &flags, &["-lm", "-lpthread"])
        .expect("a program");
    let done = Command::new(at("run")).args([at("in"), at("out")]).status().expect("a run");
    assert!(done.success(), "{done}");
    let mut actual = &std::fs::read(at("out")).expect("the outputs")[..];
    for (rank, results) in expected.iter().enumerate() {
        for ((spec, expected), (name, _)) in source.outputs.iter().zip(results).zip(&program.graph.outputs) {
            let (own, rest) = actual.split_at(spec.bytes());
            actual = rest;
            assert_eq!(
                own,
                expected.to_bytes(),
                "{name}, {} of rank {rank}\n{:?}",
                spec.dtype,
                program.graph.outputs
            );
        }
    }
}
