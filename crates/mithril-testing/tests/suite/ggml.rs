//! Every op on ggml, against the interpreter: all cases of all ops are one plan.

use std::sync::Arc;

use mithril::compile::compiled::Compiled;
use mithril::compile::ggml::{Element, Ggml, Options as PlanOptions, plan};
use mithril::compile::passes::differentiate::{Request, differentiate};
use mithril::compile::pipeline::lower;
use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::graph::{Graph, Role, TensorType};
use mithril::ir::tensor::Tensor;
use mithril::ir::{Code, Error, Place, Shape, interp, ops};
use mithril::model::{FlattenOptions, Model, layers};
use mithril::runtime::c::EntryPoint;
use mithril::runtime::ggml::program::interface;
use mithril::runtime::ggml::{Budget, Function, Options, Program, Quantize};
use mithril::runtime::interpreter::{Tensors, tensors};
use mithril_testing::case::{Arg, Case, cases, read};
use mithril_testing::matrix::Matrix;
use mithril_testing::{run, tolerance};

/// All cases of all ops.
fn all_cases(float: DType) -> Vec<Case> {
    let all = ops::all().flat_map(|op| cases(op, float).expect("cases"));
    all.filter(|case| run::graph_of(case, float).is_ok() && run::run(case, float).is_ok()).collect()
}

/// The function of a graph.
fn function(graph: &Graph, float: DType, options: &Options) -> Function {
    let lowered = lower(graph, &Ggml, float, &mut |_, _| {}).expect("lowering");
    let plan = plan(&lowered, &PlanOptions { pack: options.pack, ..PlanOptions::default() }).expect("a plan");
    if let Ok(path) = std::env::var("MITHRIL_TEST_KEEP") {
        std::fs::write(format!("{path}.{float}.plan"), plan.to_string()).expect("the plan");
    }
    let interface = interface(&lowered, &plan).expect("an interface");
    Function::new(plan, interface, options.pack, options.threads(), &Budget::new(options.memory_limit))
        .unwrap_or_else(|e| panic!("{e}"))
}

fn agrees(cases: Vec<Case>, float: DType, options: &Options) {
    let matrix = Matrix::new(cases, float);
    let function = function(&matrix.graph, float, options);
    matrix.agrees(&function.run(&matrix.inputs).unwrap_or_else(|e| panic!("{e}")));
}

#[test]
fn float32_agrees_with_the_interpreter() {
    agrees(all_cases(DType::F32), DType::F32, &Options { threads: 2, ..Options::default() });
}

#[test]
fn packed_float32_agrees_with_the_interpreter() {
    agrees(all_cases(DType::F32), DType::F32, &Options { pack: true, ..Options::default() });
}

#[test]
fn float64_agrees_with_the_interpreter() {
    agrees(all_cases(DType::F64), DType::F64, &Options::default());
}

#[test]
fn float16_agrees_with_the_interpreter() {
    agrees(all_cases(DType::F16), DType::F16, &Options::default());
}

/// Arithmetic with weights behind a convolution goes into the weights of that, whatever its order is.
#[test]
fn arithmetic_behind_convolutions_agrees_with_the_interpreter() {
    let conv = ops::find("conv2d").expect("conv2d");
    for (line, steps) in [
        ("[2,5,9,8] [12,5,3,3] [12] padding=1", vec!["subtract", "divide", "multiply", "add", "add"]),
        ("[1,6,9,8] [6,1,3,3] padding=1 groups=6", vec!["add", "multiply", "subtract"]),
        ("[1,5,9,8] [12,5,3,3]", vec!["divide"]),
    ] {
        let case = read(conv, line, DType::F32, 3).expect("a case");
        let Matrix { mut graph, mut inputs, .. } = Matrix::new(vec![case], DType::F32);
        let (_, mut y) = graph.outputs.pop().expect("an output");
        for (i, name) in steps.into_iter().enumerate() {
            let filters = graph.ty(y).expect("a type").shape.known().expect("sizes")[1];
            let shape = [filters, 1, 1];
            let values: Vec<f64> = (0..filters).map(|c| 0.5 + ((c * 7 + i) % 5) as f64 / 3.0).collect();
            inputs.push(Arc::new(Tensor::from_f64s(DType::F32, &shape, &values)));
            let ty = TensorType { dtype: DType::F32, shape: Shape::of(shape.map(|n| n as i64)) };
            let number = graph.add_input(format!("number{i}"), Role::Param, ty);
            let mut b = Builder::new(DType::F32);
            b.graph = graph;
            y = b.push(ops::find(name).expect("an op"), &[y, number]).expect("arithmetic")[0];
            graph = b.graph;
        }
        graph.outputs.insert("y".into(), y);
        let function = function(&graph, DType::F32, &Options { pack: true, ..Options::default() });
        let calls: Vec<&str> = function.plan().calls().map(|call| call.function).collect();
        assert!(
            calls.iter().all(|f| f.contains("conv") || ["ggml_add", "ggml_reshape_4d"].contains(f)),
            "{calls:?}"
        );
        assert!(calls.iter().filter(|f| **f == "ggml_add").count() <= 1, "{calls:?}");
        let expected = interp::run(&graph, &inputs).expect("the interpreter");
        let actual = function.run(&inputs).unwrap_or_else(|e| panic!("{e}"));
        let error = tolerance::error(&actual[0], &expected[0], Some(tolerance::magnitude(&expected[0])));
        assert!(
            error <= 4.0 * tolerance::units(conv.tolerance).max(4.0),
            "{line}: differs by {error} epsilon"
        );
    }
}

/// Ops in which ggml's own functions lose NaN, since they compare; the standard tests of backends look at every op.
const COMPARING: &[(&str, &str)] = &[
    ("relu", "[3,40]"),
    ("relu6", "[3,40]"),
    ("hard_tanh", "[3,40] min=-0.5 max=0.75"),
    ("sign", "[3,40]"),
    ("elu", "[3,40]"),
    ("maximum", "[3,40] [40]"),
    ("minimum", "[3,1] [3,40]"),
    ("less", "[3,40] [3,1]"),
    ("greater_equal", "[3,40] [40]"),
    ("not_equal", "[3,40] [3,40]"),
    ("max", "[7,40] axis=1"),
    ("min", "[7,40] axis=0"),
    ("max_pool2d", "[1,2,9,12] kernel_size=3 stride=2 padding=1"),
    ("max_pool1d", "[2,3,20] kernel_size=2"),
];

#[test]
fn special_values_are_kept() {
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1e-40, -1e-40, 3e38];
    let read = |(i, (name, line)): (usize, &(&str, &str))| {
        let op = ops::find(name).unwrap_or_else(|| panic!("no op {name}"));
        let mut case = read(op, line, DType::F32, i as u64).unwrap_or_else(|e| panic!("{name} {line}: {e}"));
        for (k, arg) in case.args.iter_mut().enumerate() {
            let Arg::Tensor(tensor) = arg else { continue };
            let mut values = tensor.to_f64s();
            // One of eight, at other places in each operand.
            let places = values.iter_mut().skip(k).step_by(8 + k);
            places.zip(special.iter().cycle()).for_each(|(to, x)| *to = *x);
            *tensor = Tensor::from_f64s(DType::F32, tensor.shape(), &values);
        }
        case
    };
    let special: Vec<Case> = COMPARING.iter().enumerate().map(read).collect();
    let Matrix { graph, inputs, .. } = &Matrix::new(special, DType::F32);
    let expected = interp::run(graph, inputs).expect("the interpreter");
    let function = function(graph, DType::F32, &Options { threads: 2, ..Options::default() });
    assert!(function.plan().customs().is_empty(), "{}", function.plan());
    let actual = function.run(inputs).unwrap_or_else(|e| panic!("{e}"));
    for ((name, expected), actual) in graph.outputs.keys().zip(&expected).zip(&actual) {
        let is_same = |(a, b): (&f64, &f64)| (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-6 || a == b;
        let (expected, actual) = (expected.to_f64s(), actual.to_f64s());
        assert!(expected.iter().zip(&actual).all(is_same), "{name}\n{expected:?}\n{actual:?}");
    }
}

/// Two linear layers: rows of 64 values, and of 40, which do not hold whole blocks of 32.
fn two_layers(options: Options) -> Program {
    let mut model = Model::new();
    let mut add = |size, from, to| {
        let layer = layers::linear(size, true).expect("a layer");
        model.extend(&layer, [("input", from), ("output", to)], Place::default()).expect("a model");
    };
    add(40, "input", "hidden");
    add(8, "hidden", "output");
    let shapes = vec![("input".into(), vec!["batch".into(), 64.into()])];
    let flat = FlattenOptions { shapes, ..Default::default() };
    let compiled = Compiled::new(&model, &flat).expect("compiled");
    Program::new(compiled, EntryPoint::Outputs, options)
}

/// Outputs for parameters that are the same every time, of so many rows.
fn evaluated(program: &Program, rows: usize) -> Result<Vec<f64>, Error> {
    let names: Vec<_> = program.compiled().inputs_of(Role::Param).map(|i| i.name.clone()).collect();
    let values =
        program.compiled().initial(&names.iter().map(|n| &**n).collect::<Vec<_>>(), 7).expect("values");
    let params = names.into_iter().zip(values.into_iter().map(Arc::new)).collect();
    let input: Vec<f64> = (0..rows * 64).map(|i| ((i * 37 % 101) as f64 - 50.0) / 50.0).collect();
    let data = tensors([("input", Tensor::from_f64s(DType::F32, &[rows, 64], &input))]);
    Ok(program.evaluate(&[&params, &data], &Tensors::new())?.outputs["output"].to_f64s())
}

fn quantized(element: Element, strict: bool) -> Options {
    let quantize = Some(Quantize { rules: vec![("*".into(), Some(element))], strict });
    Options { pack: true, quantize, ..Options::default() }
}

#[test]
fn weights_are_kept_in_few_bits_and_what_is_not_is_reported() {
    let exact = evaluated(&two_layers(Options::default()), 3).expect("outputs");
    for (element, allowed) in
        [(Element::Q8_0, 0.02), (Element::Q4_0, 0.2), (Element::F16, 2e-3), (Element::BF16, 0.02)]
    {
        let program = two_layers(quantized(element, false));
        let first = evaluated(&program, 3).expect("outputs");
        let scale = exact.iter().fold(0.0_f64, |a, x| a.max(x.abs()));
        let error = exact.iter().zip(&first).fold(0.0_f64, |a, (x, y)| a.max((x - y).abs())) / scale;
        assert!(error > 0.0 && error < allowed, "{element}: {error}");
        let compiled =
            program.specialize(&program.symbols([("input", vec![3, 64])]).expect("sizes")).expect("made");
        let kept: Vec<_> = compiled.decisions.iter().filter(|d| d.outcome == Ok(element)).collect();
        let halves = matches!(element, Element::F16 | Element::BF16);
        assert_eq!(kept.len(), if halves { 2 } else { 1 }, "{:?}", compiled.decisions);
        assert_eq!(kept[0].bytes as i64, 40 * 64 / element.block() * element.bytes());
        let left = compiled.decisions.iter().filter(|d| d.shape.len() == 2 && d.outcome.is_err());
        assert!(
            left.clone().all(|d| d.outcome.as_ref().is_err_and(|e| e.contains("block"))),
            "{:?}",
            compiled.decisions
        );
        assert_eq!(left.count(), usize::from(!halves));
    }
    let mut strict = quantized(Element::Q8_0, true);
    let error = evaluated(&two_layers(strict.clone()), 3).expect_err("strict");
    assert_eq!(error.code(), Code::Unsupported);
    let program = two_layers(Options::default());
    let narrow = program.compiled().inputs_of(Role::Param).find(|i| i.ty.shape.known() == Some(vec![8, 40]));
    let rule = (narrow.expect("the second layer").name.to_string(), None);
    strict.quantize.as_mut().expect("few bits").rules.insert(0, rule);
    assert!(evaluated(&two_layers(strict), 3).is_ok());
}

#[test]
fn a_limit_of_memory_is_checked_before() {
    let program = two_layers(Options::default());
    let needs = |rows| {
        let symbols = program.symbols([("input", vec![rows, 64])]).expect("sizes");
        program.specialize(&symbols).expect("made").function.needs()
    };
    let (few, many) = (needs(3), needs(3000));
    assert_eq!(few.weights(), many.weights());
    assert!(few.weights() >= (40 * 64 + 8 * 40) * 4 && many.graphs >= 3000 * 40 * 4, "{few:?} {many:?}");
    let limited = two_layers(Options { memory_limit: Some(few.total()), ..Options::default() });
    assert!(evaluated(&limited, 3).is_ok());
    let error = evaluated(&limited, 3000).expect_err("too much");
    assert_eq!(error.code(), Code::OutOfMemory);
    // The sizes before keep what they have, and both read the same weights.
    let both = few.total() + many.total() - few.borrowed;
    assert!(error.to_string().contains(&format!("needs {both} bytes")), "{error}");
    assert!(error.to_string().contains("1 other choice"), "{error}");
    let limited = two_layers(Options { memory_limit: Some(both), ..Options::default() });
    assert!(evaluated(&limited, 3).is_ok() && evaluated(&limited, 3000).is_ok());
    let error = evaluated(&limited, 4).expect_err("each fits alone, but not beside the others");
    assert_eq!(error.code(), Code::OutOfMemory);
}

#[test]
fn threads_call_one_function_at_once() {
    let program = two_layers(Options { threads: 2, ..Options::default() });
    let expected = evaluated(&two_layers(Options::default()), 5).expect("outputs");
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert_eq!(evaluated(&program, 5).expect("outputs"), expected);
                }
            });
        }
    });
}

/// What data can make wrong is an error, and the next call works.
#[test]
fn positions_out_of_range_are_an_error() {
    let mut b = Builder::new(DType::F32);
    let mut input = |name: &str, dtype: DType, sizes: &[i64]| {
        b.graph.add_input(name, Role::Data, TensorType { dtype, shape: Shape::of(sizes.iter().copied()) })
    };
    let (table, index) = (input("table", DType::F32, &[4, 8]), input("index", DType::I64, &[2]));
    let zero = b.lit(mithril::ir::Lit::int(0));
    let y = b.push(ops::find("take").expect("take"), &[table, index, zero]).expect("rows")[0];
    b.graph.outputs.insert("y".into(), y);
    let function = function(&b.graph, DType::F32, &Options::default());
    let table = Arc::new(Tensor::from_parts(&[4, 8], (0..32).map(|i| i as f32).collect::<Vec<_>>()));
    let call =
        |index: [i64; 2]| function.run(&[table.clone(), Arc::new(Tensor::from_parts(&[2], index.to_vec()))]);
    for index in [[0, 4], [-5, 0], [i64::MAX, 0]] {
        let error = call(index).expect_err("outside");
        assert_eq!((error.code(), error.hint()), (Code::IndexOutOfRange, Some("give numbers from 0 to 3")));
    }
    let outputs = call([-1, 1]).expect("rows");
    assert_eq!(outputs[0].to_f64s()[7..9], [31.0, 8.0]);
}

/// Of as many queries as ggml computes in tiles, where a mask lets some see nothing.
#[test]
fn attention_of_many_queries_keeps_nan() {
    let line = "[2,4,70,16] [2,2,90,16] [2,2,90,8] bool[70,90] enable_gqa=true";
    let op = ops::find("scaled_dot_product_attention").expect("a row");
    let case = read(op, line, DType::F32, 3).unwrap_or_else(|e| panic!("{e}"));
    let (graph, mut inputs) = run::graph_of(&case, DType::F32).expect("a graph");
    let mut mask = vec![true; 70 * 90];
    mask[90..180].fill(false);
    mask[180..220].fill(false);
    inputs[3] = Arc::new(Tensor::from_parts(&[70, 90], mask));
    let mut query: Vec<f32> = inputs[0].to_f64s().iter().map(|&x| x as f32).collect();
    query[5 * 16] = f32::NAN;
    inputs[0] = Arc::new(Tensor::from_parts(inputs[0].shape(), query));
    let expected = interp::run(&graph, &inputs).expect("the interpreter");
    let actual = function(&graph, DType::F32, &Options::default()).run(&inputs).expect("a call");
    let (actual, expected) = (actual[0].to_f64s(), expected[0].to_f64s());
    assert_eq!(expected.iter().filter(|x| x.is_nan()).count(), 8, "a query of one head");
    for (i, (a, b)) in actual.iter().zip(&expected).enumerate() {
        let is_same = a.is_nan() && b.is_nan() || (a - b).abs() <= 8.0 * f64::from(f32::EPSILON);
        assert!(is_same, "{i}: {a} {b}");
    }
}

/// Ops whose gradients are compared, at sizes that ggml's kernels for many elements take.
const DIFFERENTIATED: &[(&str, &str)] = &[
    ("matmul", "[37,45] [45,29]"),
    ("matmul", "[2,3,16,20] [2,3,20,40]"),
    ("linear", "[3,17,70] [50,70] [50]"),
    ("conv2d", "[2,5,14,13] [12,5,3,3] [12] padding=1"),
    ("conv2d", "[1,24,12,12] [24,1,3,3] padding=1 groups=24"),
    ("max_pool2d", "[2,8,11,11] kernel_size=3 stride=2 padding=1"),
    ("scaled_dot_product_attention", "[2,4,20,16] [2,4,20,16] [2,4,20,16] is_causal=true"),
    ("layer_norm", "[40,300] normalized_shape=(300,)"),
    ("softmax", "[40,300]"),
    ("gelu", "[3,300]"),
];

#[test]
fn gradients_agree_with_the_interpreter() {
    let mut failures = Vec::new();
    for (seed, (name, line)) in DIFFERENTIATED.iter().enumerate() {
        let op = ops::find(name).unwrap_or_else(|| panic!("no op {name}"));
        let case = read(op, line, DType::F32, seed as u64).unwrap_or_else(|e| panic!("{name} {line}: {e}"));
        let (graph, mut inputs) = run::graph_of(&case, DType::F32).expect("a graph");
        let names = graph.inputs.iter().map(|&v| graph.value(v).name.clone().expect("a name")).collect();
        let request = Request { outputs: vec!["y0".into()], inputs: names, recompute: false };
        let graph = differentiate(&graph, &request, DType::F32).expect("gradients");
        let y = run::run(&case, DType::F32).expect("the interpreter");
        // A cotangent that depends on the place.
        let values: Vec<f64> = (0..y[0].len()).map(|i| ((i * 37 % 101) as f64 - 50.0) / 50.0).collect();
        inputs.push(Arc::new(Tensor::from_f64s(DType::F32, y[0].shape(), &values)));
        let expected = interp::run(&graph, &inputs).expect("the interpreter");
        let actual =
            function(&graph, DType::F32, &Options::default()).run(&inputs).unwrap_or_else(|e| panic!("{e}"));
        for (a, b) in actual.iter().zip(&expected) {
            let error = tolerance::error(a, b, Some(tolerance::magnitude(b).max(1.0)));
            if error > tolerance::GRADIENT {
                failures.push(format!("{name} {line:?}: differs by {error} epsilon"));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}
