//! Random graphs whose nodes are in random layers on random devices, cut into the steps of a pipeline whose stages are
//! divided over a mesh: the steps give what one device gives, values and gradients.

use std::collections::HashMap;
use std::sync::Arc;

use mithril::compile::partition::stages::{Exchange, Step};
use mithril::compile::partition::{Layout, Mesh, Partitioned, partition, stages, virtual_mesh};
use mithril::compile::passes::specialize::specialize;
use mithril::compile::rewrite::{Rewrite, types};
use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::error::{Place, Result};
use mithril::ir::graph::{Def, Graph, Role, TensorType};
use mithril::ir::ops::collective;
use mithril::ir::shape::Shape;
use mithril::ir::tensor::Tensor;
use mithril::ir::{Lit, interp};
use mithril_testing::program::{Program, Style};
use mithril_testing::random::{Check, for_programs};

use crate::partition_random::{check_gradients, compare, divide};

const DEVICES: usize = 3;

/// The same graph with each node in one of so many layers.
fn in_layers(graph: &Graph, choose: &dyn Fn(usize) -> usize) -> Result<Graph> {
    let mut rewrite = Rewrite::new(graph, DType::F64);
    for (n, node) in graph.nodes() {
        let path = format!("layer{}", choose(n.index()) % DEVICES);
        rewrite.builder.set_origin(Place { path: Some(path.into()), ..Place::default() });
        let inputs = rewrite.inputs(node)?;
        let outputs = rewrite.builder.push_typed(node.op, inputs, types(graph, node));
        rewrite.set_outputs(node, &outputs);
    }
    rewrite.finish()
}

/// The graph of a collective along time.
fn collective_of(exchange: &Exchange, input: Option<&Arc<Tensor>>, count: usize) -> Result<Graph> {
    let mut builder = Builder::new(DType::F64);
    let mut args = Vec::new();
    if let Some(t) = input {
        let ty = TensorType { dtype: t.dtype(), shape: Shape::of(t.shape().iter().copied()) };
        args.push(builder.graph.add_input("x", Role::Data, ty));
    }
    args.push(builder.lit(Lit::text("time")));
    args.push(builder.lit(Lit::int(count as i64)));
    match exchange.op {
        "mesh_index" => {}
        "all_reduce" => args.push(builder.lit(Lit::text(&exchange.reduction))),
        _ => args.push(builder.lit(Lit::int(exchange.axis as i64))),
    }
    if exchange.op == "all_to_all" {
        args.push(builder.lit(Lit::int(exchange.joined as i64)));
    }
    let op = collective::OPS.iter().find(|op| op.name == exchange.op).expect("a collective");
    let result = builder.push(op, &args)?[0];
    builder.graph.outputs.insert("y".into(), result);
    Ok(builder.graph)
}

/// Runs the steps, all micro-batches at once: they are the coordinates of the devices along the first axis.
fn run(
    program: &Partitioned,
    inputs: &[Arc<Tensor>],
    layers: &[(String, usize)],
) -> Result<Vec<Arc<Tensor>>> {
    let (mesh, graph) = (&program.mesh, &program.graph);
    let (count, all) = (mesh.axes()[0].1, mesh.devices());
    let inner = all / count;
    let staged = stages(program, layers)?;
    let mut values: HashMap<String, Vec<Arc<Tensor>>> = HashMap::new();
    for ((&v, whole), placements) in graph.inputs.iter().zip(inputs).zip(&program.inputs) {
        let kind = match graph.value(v).def {
            Def::Input(Role::Param) => "param",
            Def::Input(Role::State) => "state",
            Def::Input(Role::Cotangent) => "cotangent",
            _ => "data",
        };
        let parts = (0..all).map(|i| virtual_mesh::part(program, placements, whole, &mesh.coordinates(i)));
        let name = format!("{kind}:{}", graph.value(v).name.as_deref().unwrap_or(""));
        values.insert(name, parts.collect());
    }
    let mut level = 0;
    for Step { exchange, graph, reads, makes, is_shared, level: own, .. } in &staged.steps {
        assert!(level <= *own, "steps are in the order of their levels");
        level = *own;
        let of = |i: usize| reads.iter().map(|name| Arc::clone(&values[name][i])).collect();
        // What is the same for all micro-batches is computed for the first one.
        let all_inputs: Vec<Vec<_>> = (0..all).map(|i| of(if *is_shared { i % inner } else { i })).collect();
        let results = match exchange {
            Some(exchange) => {
                let graph = collective_of(exchange, all_inputs[0].first(), count)?;
                let time = Mesh::new(
                    std::iter::once(("time", count))
                        .chain(mesh.axes()[1..].iter().map(|(name, n)| (name.as_str(), *n))),
                )?;
                virtual_mesh::on_devices(&graph, &time, all_inputs)?
            }
            None => virtual_mesh::on_devices(graph, mesh, all_inputs)?,
        };
        for (k, name) in makes.iter().enumerate() {
            values.insert(name.clone(), results.iter().map(|of_device| of_device[k].clone()).collect());
        }
    }
    let counts: Vec<usize> = mesh.axes().iter().map(|(_, n)| *n).collect();
    let whole = |(name, placements): (&String, &Vec<_>)| {
        virtual_mesh::whole(values[name].clone(), placements, &counts)
    };
    Ok(staged.results.iter().zip(&program.outputs).map(whole).collect())
}

fn check(program: &Program, extra: &[u8]) -> Check {
    let symbols = interp::bind(&program.graph, &program.inputs).map_err(|e| e.to_string())?;
    let graph = specialize(&program.graph, &symbols, DType::F64).map_err(|e| e.to_string())?;
    let choose = |i: usize| extra.get(i % extra.len().max(1)).map_or(i, |&b| b as usize + i);
    let graph = in_layers(&graph, &choose).map_err(|e| e.to_string())?;
    let axes: &[(&str, usize)] =
        [&[("time", 2)][..], &[("time", 2), ("a", 2)], &[("time", 3), ("a", 2), ("b", 2)]][choose(0) % 3];
    let mesh = Mesh::new(axes.iter().copied()).map_err(|e| e.to_string())?;
    let mut patterns = Vec::new();
    for (i, (&v, t)) in graph.inputs.iter().zip(&program.inputs).enumerate() {
        let mut spec = vec![Vec::new(); t.rank()];
        let is_data = matches!(graph.value(v).def, Def::Input(Role::Data | Role::Cotangent));
        for (k, (name, _)) in axes.iter().enumerate() {
            // Time divides the first axis of data; the others what the extra bytes choose.
            let axis = if k == 0 { 0 } else { choose(i + k + 1) % t.rank().max(1) };
            if t.rank() > 0 && (k > 0 || is_data) {
                divide(&mut spec, t, axis, &mesh, name);
            }
        }
        patterns.push((graph.value(v).name.as_deref().unwrap_or("input").to_owned(), spec));
    }
    let layout = Layout { patterns, ..Layout::new(mesh.clone()) };
    let expected = interp::run(&graph, &program.inputs).map_err(|e| e.to_string())?;
    let divided = partition(&graph, &layout, DType::F64, &|_| None).map_err(|e| e.to_string())?;
    let layers: Vec<(String, usize)> =
        (0..DEVICES).map(|i| (format!("layer{i}"), choose(i) % DEVICES)).collect();
    let actual = run(&divided, &program.inputs, &layers).map_err(|e| e.to_string())?;
    compare(&graph, &actual, &expected).map_err(|text| format!("on {mesh}: {text}"))
}

#[test]
fn steps_of_random_graphs() {
    for_programs(200, (Style::Smooth, 4..24), DType::F64, check);
    for_programs(100, (Style::Products, 4..16), DType::F64, check);
}

#[test]
fn steps_of_gradients_of_random_graphs() {
    check_gradients(150, check);
}
