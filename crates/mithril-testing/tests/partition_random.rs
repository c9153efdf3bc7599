//! Random graphs on random meshes with random layouts equal one device, values and gradients.

use mithril::compile::partition::{Layout, Mesh, partition, virtual_mesh};
use mithril::compile::passes::specialize::specialize;
use mithril::ir::dtype::DType;
use mithril::ir::interp;
use mithril_testing::program::{Program, Style};
use mithril_testing::random::{Check, for_programs, request, with_gradients};
use mithril_testing::tolerance::{error, magnitude};

const MESHES: &[&[(&str, usize)]] =
    &[&[("a", 2)], &[("a", 3)], &[("a", 2), ("b", 2)], &[("a", 2), ("b", 3), ("c", 2)]];

/// Divides every input along an axis that the extra bytes choose, where it divides.
fn check(program: &Program, extra: &[u8]) -> Check {
    let symbols = interp::bind(&program.graph, &program.inputs).map_err(|e| e.to_string())?;
    let graph = specialize(&program.graph, &symbols, DType::F64).map_err(|e| e.to_string())?;
    let program = Program { graph, inputs: program.inputs.clone() };
    let choose = |i: usize| extra.get(i % extra.len().max(1)).map_or(i, |&b| b as usize + i);
    let axes = MESHES[choose(0) % MESHES.len()];
    let mesh = Mesh::new(axes.iter().copied()).map_err(|e| e.to_string())?;
    let mut patterns = Vec::new();
    for (i, (&v, t)) in program.graph.inputs.iter().zip(&program.inputs).enumerate() {
        let mut spec = vec![Vec::new(); t.rank()];
        for (k, (name, n)) in axes.iter().enumerate() {
            let axis = choose(i + k + 1);
            if t.rank() > 0 {
                let axis = axis % t.rank();
                let parts: usize =
                    spec[axis].iter().map(|a: &String| mesh.axes()[mesh.axis(a).unwrap()].1).product();
                if t.shape()[axis] > 0 && t.shape()[axis] % (parts * n) == 0 {
                    spec[axis].push((*name).to_owned());
                }
            }
        }
        let name = program.graph.value(v).name.as_deref().unwrap_or("input");
        patterns.push((name.to_owned(), spec));
    }
    let layout = Layout { patterns, ..Layout::new(mesh.clone()) };
    let wanted = interp::run(&program.graph, &program.inputs).map_err(|e| e.to_string())?;
    let divided = partition(&program.graph, &layout, DType::F64, &|_| None).map_err(|e| e.to_string())?;
    let found = virtual_mesh::run(&divided, &program.inputs).map_err(|e| e.to_string())?;
    for ((name, found), wanted) in program.graph.outputs.keys().zip(&found).zip(&wanted) {
        if found.shape() != wanted.shape() || found.dtype() != wanted.dtype() {
            return Err(format!("{name} is {:?}, not {:?}", found.shape(), wanted.shape()));
        }
        let off = error(found, wanted, Some(magnitude(wanted).max(1.0)));
        // Sums in another order; NaN counts as no difference where both have it.
        if off > 1e6 {
            return Err(format!("{name} is off by {off} eps on {mesh}\n{found:?}\n{wanted:?}"));
        }
    }
    Ok(())
}

#[test]
fn values_of_random_graphs() {
    for_programs(400, (Style::Smooth, 4..24), DType::F64, check);
    for_programs(400, (Style::Any, 4..24), DType::F64, |program, extra| {
        match interp::run(&program.graph, &program.inputs) {
            Ok(_) => check(program, extra),
            Err(_) => Ok(()),
        }
    });
    for_programs(100, (Style::Products, 4..16), DType::F64, check);
}

#[test]
fn gradients_of_random_graphs() {
    for_programs(200, (Style::Smooth, 4..16), DType::F64, |program, extra| {
        let request = request(&program.graph);
        if request.outputs.is_empty() || request.inputs.is_empty() {
            return Ok(());
        }
        match with_gradients(program, &request, DType::F64) {
            Ok(program) => check(&program, extra),
            Err(_) => Ok(()),
        }
    });
}
