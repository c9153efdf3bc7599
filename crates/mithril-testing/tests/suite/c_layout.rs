//! Convolutions that hand blocks of channels to each other, and what stands between them, against the interpreter.

use std::sync::Arc;

use mithril::compile::c::{C, COptions, compile_c, request};
use mithril::compile::pipeline::lower;
use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::graph::{Role, TensorType};
use mithril::ir::op::Tolerance;
use mithril::ir::tensor::Tensor;
use mithril::ir::{Shape, ValueId, interp, ops};
use mithril::runtime::c::{Cache, Function, Interface, Tool};
use mithril_testing::case::{Arg, read};
use mithril_testing::tolerance;

/// A graph that grows, and its inputs.
struct Net {
    b: Builder,
    inputs: Vec<Arc<Tensor>>,
    float: DType,
}

impl Net {
    /// The first tensors are `given`, the others become parameters.
    fn op(&mut self, name: &str, inputs: &[ValueId], rest: &str) -> ValueId {
        let op = ops::find(name).expect("an op");
        let sizes = |v: &ValueId| {
            let shape = &self.b.graph.ty(*v).expect("a type").shape;
            let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
            format!("[{}] ", sizes.join(","))
        };
        let line = format!("{}{rest}", inputs.iter().map(sizes).collect::<String>());
        let case = read(op, &line, self.float, self.inputs.len() as u64).expect("a case");
        let mut inputs = inputs.iter();
        let mut args = Vec::new();
        for arg in case.args {
            args.push(match arg {
                Arg::Lit(lit) => self.b.lit(lit),
                Arg::Tensor(t) => inputs.next().copied().unwrap_or_else(|| self.input(t, Role::Param)),
            });
        }
        self.b.push(op, &args).unwrap_or_else(|e| panic!("{name} {line}: {e}"))[0]
    }
    fn input(&mut self, t: Tensor, role: Role) -> ValueId {
        let ty = TensorType { dtype: t.dtype(), shape: Shape::of(t.shape().iter().copied()) };
        self.inputs.push(Arc::new(t));
        self.b.graph.add_input(format!("x{}", self.inputs.len()), role, ty)
    }
    fn output(&mut self, v: ValueId) {
        let name = format!("y{}", self.b.graph.outputs.len());
        self.b.graph.outputs.insert(name.into(), v);
    }
}

/// A first layer, pooling, a residual, every channel by itself, steps, dilation, upsampling, joined branches, channels
/// that do not fill a pair of vectors, a mean, an output in row-major order, and one that is flattened.
fn network(float: DType) -> Net {
    let mut net = Net { b: Builder::new(float), inputs: Vec::new(), float };
    let pixels: Vec<f64> = (0..2 * 3 * 37 * 45).map(|i| f64::from(i * 37 % 101 - 50) / 50.0).collect();
    let image = net.input(Tensor::from_f64s(float, &[2, 3, 37, 45], &pixels), Role::Data);
    let first = net.op("conv2d", &[image], "[32,3,7,7] [32] stride=2 padding=3");
    let first = net.op("relu", &[first], "");
    let pooled = net.op("max_pool2d", &[first], "kernel_size=3 stride=2 padding=1");
    let branch = net.op("conv2d", &[pooled], "[32,32,3,3] [32] padding=1");
    let branch = net.op("relu", &[branch], "");
    let branch = net.op("conv2d", &[branch], "[32,32,3,3] padding=1");
    let sum = net.op("add", &[branch, pooled], "");
    let sum = net.op("relu", &[sum], "");
    let depth = net.op("conv2d", &[sum], "[32,1,3,3] [32] padding=1 stride=2 groups=32");
    let depth = net.op("silu", &[depth], "");
    let small = net.op("conv2d", &[depth], "[32,32,1,1]");
    let large = net.op("interpolate", &[small], "scale_factor=2 mode=\"nearest\"");
    let joined = net.op("concat", &[large, sum], "axis=1");
    let wide = net.op("conv2d", &[joined], "[48,64,3,3] [48] padding=2 dilation=2");
    let strided = net.op("conv2d", &[wide], "[64,48,1,1] stride=2");
    let last = net.op("conv2d", &[wide], "[5,48,1,1] [5]");
    let mean = net.op("mean", &[strided], "axis=(2,3)");
    // Given row-major, of more channels than a vector has lanes.
    let values: Vec<f64> = (0..2 * 32 * 9 * 11).map(|i| f64::from(i * 53 % 97 - 48) / 48.0).collect();
    let features = net.input(Tensor::from_f64s(float, &[2, 32, 9, 11], &values), Role::Data);
    let features = net.op("conv2d", &[features], "[32,32,3,3] [32] padding=1");
    let features = net.op("relu", &[features], "");
    let features = net.op("conv2d", &[features], "[32,32,3,3] padding=1");
    let flat = net.op("conv2d", &[features], "[16,32,3,3]");
    let flat = net.op("relu", &[flat], "");
    let flat = net.op("flatten", &[flat], "start_axis=1");
    let flat = net.op("linear", &[flat], "[10,1008]");
    net.output(last);
    net.output(mean);
    net.output(features);
    net.output(flat);
    net
}

/// `lanes` of a vector of float; how many of the temporaries lie in blocks.
fn check(lanes: usize, float: DType, blocks: usize) {
    let net = network(float);
    let graph = net.b.graph;
    let expected = interp::run(&graph, &net.inputs).expect("the interpreter");
    let lowered = lower(&graph, &C, float, &mut |_, _| {}).expect("lowering");
    let options =
        COptions { prefix: "net".to_owned(), pack: true, lanes: Some(lanes), ..COptions::default() };
    let source = compile_c(&lowered, &request(options).expect("a processor")).expect("C");
    let layout = source.stages.iter().find(|(stage, _)| stage == "blocked_layout").expect("the stage");
    assert_eq!(layout.1.matches("in blocks").count(), blocks, "lanes {lanes} of {float}\n{}", layout.1);
    let kernels = source.stages.iter().find(|(stage, _)| stage == "kernel_selection").expect("the stage");
    assert_eq!(kernels.1.matches("= convolution of").count(), 11, "{}", kernels.1);
    let flags = ["-Wall", "-Wextra", "-Werror", "-O1"].map(str::to_owned).to_vec();
    let tool = Tool { flags, ..Tool::default() };
    let folder = tempfile::tempdir().expect("a folder");
    let interface = Interface::of(&source, "net");
    let function = Function::new(&tool, &Cache::at(folder.path()), &source.c, interface, 2)
        .unwrap_or_else(|e| panic!("{e}"));
    let run = || function.run(&net.inputs).unwrap_or_else(|e| panic!("{e}"));
    // The second call finds what the first has left in the arena.
    let actual = [run(), run()].concat();
    for (a, b) in actual.iter().zip(expected.iter().chain(&expected)) {
        let error = tolerance::error(a, b, Some(tolerance::magnitude(b).max(1.0)));
        let allowed = 8.0 * tolerance::units(Tolerance::Contraction);
        assert!(error <= allowed, "lanes {lanes} of {float}: differs by {error} epsilon");
    }
}

#[test]
fn blocks_of_any_width_agree_with_the_interpreter() {
    for (lanes, float, blocks) in [
        (16, DType::F32, 10),
        (8, DType::F32, 10),
        (4, DType::F32, 10),
        (1, DType::F32, 0),
        (16, DType::F64, 10),
    ] {
        check(lanes, float, blocks);
    }
}
