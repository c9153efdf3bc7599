//! Windows over divided axes: random convolutions and poolings of images whose axes are divided over meshes equal one device,
//! values and gradients, with nothing but rows of the neighbors exchanged.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use mithril::compile::partition::{Layout, Mesh, partition, virtual_mesh};
use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::graph::{Graph, Role, TensorType};
use mithril::ir::literal::Lit;
use mithril::ir::tensor::Tensor;
use mithril::ir::{interp, ops};
use mithril_testing::program::Program;
use mithril_testing::random::{Check, request, with_gradients};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};

use super::partition_random::compare;

const MESHES: &[&[(&str, usize)]] =
    &[&[("a", 2)], &[("a", 2)], &[("a", 3)], &[("a", 4)], &[("a", 2), ("b", 2)]];

/// Random numbers from bytes.
struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    /// A number from `low` to `high`.
    fn next(&mut self, low: i64, high: i64) -> i64 {
        low + i64::from(self.0.next().copied().unwrap_or(0)) % (high - low + 1)
    }
    fn each(&mut self, n: usize, low: i64, high: i64) -> Vec<i64> {
        (0..n).map(|_| self.next(low, high)).collect()
    }
}

fn ty(sizes: &[i64]) -> TensorType {
    TensorType { dtype: DType::F64, shape: sizes.iter().copied().collect() }
}

/// A use of an op with windows over the axes of an image, some of which are divided.
struct Case {
    text: String,
    op: &'static str,
    program: Program,
    layout: Layout,
}

#[expect(clippy::too_many_lines, reason = "one draw after the other, with what they share")]
fn case(bytes: &[u8]) -> Option<Case> {
    let mut bytes = Bytes(bytes.iter());
    let axes = MESHES[bytes.next(0, MESHES.len() as i64 - 1) as usize];
    let rank = if axes.len() > 1 { bytes.next(2, 3) } else { bytes.next(1, 3) } as usize;
    // Which axes of the image the axes of the mesh divide.
    let first = bytes.next(0, rank as i64 - 1) as usize;
    let divided: Vec<usize> = (0..axes.len()).map(|k| 2 + (first + k) % rank).collect();
    let groups = bytes.next(1, 2);
    let channels = groups * bytes.next(1, 2);
    let mut image = vec![bytes.next(1, 2), channels];
    let most = [12, 6, 3][rank - 1];
    for axis in 2..2 + rank {
        let parts = divided.iter().position(|k| *k == axis).map_or(1, |k| axes[k].1 as i64);
        image.push(parts * bytes.next(1, most));
    }
    let kernel = bytes.each(rank, 1, if rank == 3 { 3 } else { 4 });
    let stride = bytes.each(rank, 1, 3);
    let dilation: Vec<i64> = bytes.each(rank, 1, 6).into_iter().map(|d| (d - 3).max(1)).collect();
    let pads: Vec<[i64; 2]> = (0..rank).map(|_| [bytes.next(0, 3), bytes.next(0, 3)]).collect();
    let is_usual = bytes.next(0, 1) == 0;
    let pair = |p: &[i64; 2]| Lit::tuple(*p);
    // Most often that of a layer that keeps sizes, or divides them by the stride.
    let padding = if is_usual { Lit::from("same") } else { Lit::tuple(pads.iter().map(pair)) };
    let flag = bytes.next(0, 1) == 1;
    let (stride, dilation, kernel_lit) =
        (Lit::tuple(stride), Lit::tuple(dilation), Lit::tuple(kernel.clone()));
    let name = ["conv", "conv", "conv", "conv_transpose", "max_pool", "avg_pool", "windows"]
        [bytes.next(0, 6) as usize];
    let mut builder = Builder::new(DType::F64);
    let x = builder.graph.add_input("x", Role::Data, ty(&image));
    let weight = |b: &mut Builder, sizes: [i64; 2]| {
        b.graph.add_input("weight", Role::Param, ty(&[&sizes, kernel.as_slice()].concat()))
    };
    let bias = |b: &mut Builder, size: i64| {
        if flag { b.graph.add_input("bias", Role::Param, ty(&[size])) } else { b.lit(Lit::None) }
    };
    let (op, args, more) = match name {
        "conv" => {
            let w = weight(&mut builder, [2 * groups, channels / groups]);
            let args = vec![x, w, bias(&mut builder, 2 * groups)];
            (format!("conv{rank}d"), args, vec![stride, padding, dilation, groups.into()])
        }
        "conv_transpose" => {
            let w = weight(&mut builder, [channels, 2]);
            let args = vec![x, w, bias(&mut builder, 2 * groups)];
            (format!("conv_transpose{rank}d"), args, vec![stride, padding, 0.into(), groups.into(), dilation])
        }
        "max_pool" => {
            (format!("max_pool{rank}d"), vec![x], vec![kernel_lit, stride, padding, dilation, flag.into()])
        }
        "avg_pool" => {
            let ceil = bytes.next(0, 2) == 0;
            (format!("avg_pool{rank}d"), vec![x], vec![kernel_lit, stride, padding, ceil.into(), flag.into()])
        }
        _ => {
            let pads = Lit::tuple(pads.iter().map(pair));
            ("windows".to_owned(), vec![x], vec![kernel_lit, stride, pads, dilation, 0.5.into()])
        }
    };
    let op = ops::find(&op)?;
    let text = format!("{} {image:?} kernel {kernel:?} {more:?} {divided:?} of {axes:?}", op.name);
    let mut args = args;
    args.extend(more.into_iter().map(|lit| builder.lit(lit)));
    // Geometry that does not fit is no use.
    let y = builder.push(op, &args).ok()?[0];
    if builder.graph.ty(y)?.shape.known()?.contains(&0) {
        return None;
    }
    builder.graph.outputs.insert("y".into(), y);
    let graph = builder.graph;
    let sizes = |k: usize| graph.ty(graph.inputs[k]).unwrap().shape.known().unwrap();
    let element = |i: usize, k: usize| (((i * 37 + k * 11) % 101) as f64 * 0.63).sin().into();
    let inputs = (0..graph.inputs.len())
        .map(|k| Arc::new(Tensor::build(DType::F64, &sizes(k), |i| element(i, k))))
        .collect();
    let mut spec = vec![Vec::new(); 2 + rank];
    for (axis, (mesh_axis, _)) in divided.iter().zip(axes) {
        spec[*axis].push((*mesh_axis).to_owned());
    }
    let layout =
        Layout { patterns: vec![("x".into(), spec)], ..Layout::new(Mesh::new(axes.iter().copied()).ok()?) };
    Some(Case { text, op: name, program: Program { graph, inputs }, layout })
}

/// What the devices send of a program, by op.
fn sent(graph: &Graph, layout: &Layout) -> BTreeMap<&'static str, usize> {
    let program = partition(graph, layout, DType::F64, &|_| None).unwrap();
    let mut all = BTreeMap::new();
    for exchange in &program.communications {
        *all.entry(exchange.op).or_default() += 1;
    }
    all
}

fn check(program: &Program, layout: &Layout) -> Check {
    let expected = interp::run(&program.graph, &program.inputs).map_err(|e| e.to_string())?;
    let divided = partition(&program.graph, layout, DType::F64, &|_| None).map_err(|e| e.to_string())?;
    let actual = virtual_mesh::run(&divided, &program.inputs).map_err(|e| e.to_string())?;
    compare(&program.graph, &actual, &expected)
}

/// Whether a result divides as the image does.
fn divides(case: &Case, axes: &[String], size: usize) -> bool {
    let devices =
        |name: &String| case.layout.mesh.axes().iter().find(|(own, _)| own == name).map_or(1, |(_, n)| *n);
    size.is_multiple_of(axes.iter().map(devices).product())
}

#[test]
fn random_windows() {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 400;
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(1);
    }
    let divided: RefCell<BTreeMap<&str, [usize; 2]>> = RefCell::default();
    let result = TestRunner::new(config).run(&vec(any::<u8>(), 40), |bytes| {
        let Some(case) = case(&bytes) else { return Ok(()) };
        let fails = |text: String| TestCaseError::fail(format!("{}: {text}", case.text));
        let exchanges = sent(&case.program.graph, &case.layout);
        let y = case.program.graph.ty(case.program.graph.outputs["y"]).and_then(|ty| ty.shape.known());
        if case.layout.patterns[0]
            .1
            .iter()
            .zip(y.unwrap_or_default())
            .all(|(axes, size)| divides(&case, axes, size))
        {
            let counts = &mut *divided.borrow_mut();
            let count = counts.entry(case.op).or_default();
            count[usize::from(exchanges.contains_key("all_gather"))] += 1;
        }
        check(&case.program, &case.layout).map_err(&fails)?;
        let request = request(&case.program.graph);
        let gradients =
            with_gradients(&case.program, &request, DType::F64).map_err(|e| fails(e.to_string()))?;
        check(&gradients, &case.layout).map_err(&fails)
    });
    result.unwrap();
    let divided = divided.into_inner();
    for op in ["conv", "conv_transpose", "max_pool", "avg_pool", "windows"] {
        let [exchanged, gathered] = divided.get(op).copied().unwrap_or_default();
        assert!(exchanged > gathered, "{op} is gathered: {divided:?}");
    }
}
