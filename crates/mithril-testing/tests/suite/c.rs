//! Every op that C can express, against the interpreter: all cases of all ops are one graph, one C file, one call.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;

use mithril::compile::c::{C, COptions, compile_c, request};
use mithril::compile::passes::differentiate::{Request, differentiate};
use mithril::compile::pipeline::{Target, lower};
use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::graph::{Graph, Role, TensorType};
use mithril::ir::op::Tolerance;
use mithril::ir::tensor::Tensor;
use mithril::ir::{Code, Shape, interp, ops};
use mithril::runtime::c::{Address, AddressMut, Cache, Function, Interface, Tool};
use mithril_testing::case::{Case, cases, read};
use mithril_testing::matrix::Matrix;
use mithril_testing::{run, tolerance};

/// Ops that C cannot write yet: what is still to be done. An op that became writable must be taken off.
const NOT_YET: &[&str] = &[];

/// Cases of sizes at which functions of the prelude take paths that the cases of the op definitions do not reach.
const LARGER: &[(&str, &str)] = &[
    ("argsort", "[2,100,3] axis=1"),
    ("argsort", "i64[150]<9 descending=true"),
    ("sort", "[33] descending=true"),
    ("topk", "[3,200] k=70"),
    ("topk", "i64[2,100,2]<9 k=20 axis=1 largest=false"),
    ("cumsum", "[2,70,3] axis=1 reverse=true"),
    ("fft", "[2,16,2] [2,16,2] axis=1"),
    ("fft", "[60] [60]"),
    ("ifft", "[2,67] [2,67] norm=\"ortho\""),
    ("rfft", "[134]"),
    ("irfft", "[64] [64] n=127"),
    ("solve", "spd[2,37,37] [37,21]"),
    ("inv", "spd[40,40]"),
    ("cholesky", "spd[12,12]"),
    ("scatter_add", "[4,6,2] i64[4,90,2] [4,90,2] axis=1"),
    ("index_add", "[6,50] i64[40] [40,50]"),
    ("solve", "spd[5,4,4] [5,4,2]"),
];

/// The ops of the graph, brought to what C can write, that it cannot write.
fn missing(graph: &Graph, float: DType) -> Vec<&'static str> {
    let lowered = lower(graph, &C, float, &mut |_, _| {}).expect("lowering");
    let bad = lowered.nodes().filter(|&(n, _)| !C.can_lower(&lowered, n));
    bad.map(|(_, node)| node.op.name).collect()
}

/// All cases of all ops, with the primitives that they lack.
fn all_cases(float: DType) -> (Vec<Case>, BTreeMap<&'static str, BTreeSet<&'static str>>) {
    let (mut good, mut lacking) = (Vec::new(), BTreeMap::new());
    for op in ops::all() {
        let larger = LARGER.iter().filter(|(name, _)| *name == op.name);
        let larger = larger.zip(100..).map(|((_, line), seed)| read(op, line, float, seed).expect("a case"));
        for case in cases(op, float).expect("cases").into_iter().chain(larger) {
            let Ok((graph, _)) = run::graph_of(&case, float) else { continue };
            let missing = missing(&graph, float);
            if missing.is_empty() {
                good.push(case);
            } else {
                lacking.entry(op.name).or_insert_with(BTreeSet::new).extend(missing);
            }
        }
    }
    (good, lacking)
}

/// Compiles a graph and calls it.
fn call(graph: &Graph, inputs: &[Arc<Tensor>], float: DType, threads: usize) -> Vec<Tensor> {
    compile(graph, float, threads).run(inputs).unwrap_or_else(|e| panic!("{e}"))
}

fn compile(graph: &Graph, float: DType, threads: usize) -> Function {
    compile_for(graph, float, threads, None, None)
}

/// With vectors of so many floats (none: what this machine has), at a level of optimization.
fn compile_for(
    graph: &Graph,
    float: DType,
    threads: usize,
    lanes: Option<usize>,
    level: Option<&str>,
) -> Function {
    let lowered = lower(graph, &C, float, &mut |_, _| {}).expect("lowering");
    let options = COptions { prefix: "cases".to_owned(), pack: threads > 1, lanes, ..COptions::default() };
    let source = compile_c(&lowered, &request(options).expect("a processor")).expect("C");
    if let Ok(path) = std::env::var("MITHRIL_TEST_KEEP") {
        std::fs::write(format!("{path}.{float}.{threads}.c"), &source.c).expect("the C file");
    }
    let interface = Interface::of(&source, "cases");
    // Optimizing this much C takes most of the time of the test; in one dtype it is enough. That one, and kernels, are
    // tested as they are used: what optimizes most may be wrong, too. MITHRIL_TEST_LEVEL is for all of them.
    let value = std::env::var("MITHRIL_TEST_LEVEL");
    let level = match float {
        _ if value.is_ok() => value.as_deref().unwrap_or_default(),
        _ if threads > 1 || float == DType::F32 => level.unwrap_or("-O3"),
        _ => level.unwrap_or("-O0"),
    };
    let flags = ["-Wall", "-Wextra", "-Werror"].into_iter().chain(level.split_whitespace());
    let tool = Tool { flags: flags.map(str::to_owned).collect(), ..Tool::default() };
    let folder = tempfile::tempdir().expect("a folder");
    Function::new(&tool, &Cache::at(folder.path()), &source.c, interface, threads)
        .unwrap_or_else(|e| panic!("{e}"))
}

fn agrees(cases: Vec<Case>, float: DType, threads: usize) {
    let matrix = Matrix::new(cases, float);
    agrees_with(&matrix, &compile(&matrix.graph, float, threads));
}

fn agrees_with(matrix: &Matrix, function: &Function) {
    matrix.agrees(&function.run(&matrix.inputs).unwrap_or_else(|e| panic!("{e}")));
}

#[test]
fn float32_agrees_with_the_interpreter() {
    agrees(all_cases(DType::F32).0, DType::F32, 1);
}

#[test]
fn float64_agrees_with_the_interpreter() {
    agrees(all_cases(DType::F64).0, DType::F64, 1);
}

#[test]
fn float16_agrees_with_the_interpreter() {
    agrees(all_cases(DType::F16).0, DType::F16, 1);
}

#[test]
fn bfloat16_agrees_with_the_interpreter() {
    agrees(all_cases(DType::BF16).0, DType::BF16, 1);
}

/// Sizes for which sums of products become kernels, on several threads and with packed parameters.
const LARGE: &[(&str, &str)] = &[
    ("matmul", "[37,45] [45,29]"),
    ("matmul", "[2,3,16,20] [2,3,20,40]"),
    ("matmul", "[2,3,16,20] [20,40]"),
    ("matmul", "[200] [200,90]"),
    ("matmul", "[90,200] [200]"),
    ("linear", "[3,17,70] [50,70] [50]"),
    // With this one, there is enough work for all threads.
    ("linear", "[64,256] [256,256] [256]"),
    ("linear", "[1,200] [130,200] [130]"),
    ("linear", "[1,200] [1030,200]"),
    ("einsum", "[5,20,9] [5,30,9] equation=\"bik,bjk->bji\""),
    ("einsum", "[4,12,3,16] [4,15,3,16] equation=\"bihd,bjhd->bhij\""),
    ("conv1d", "[2,8,40] [16,8,5] [16] padding=2 stride=2"),
    ("conv2d", "[2,5,14,13] [12,5,3,3] [12] padding=1"),
    ("conv2d", "[1,8,17,15] [12,4,3,2] [12] padding=((0,1),(2,1)) dilation=(1,2) groups=2 stride=(2,1)"),
    ("conv2d", "[2,16,9,9] [24,16,1,1] [24]"),
    ("conv2d", "[4,32,8,8] [64,32,1,1] stride=2"),
    ("conv2d", "[1,24,12,12] [24,1,3,3] padding=1 groups=24"),
    ("conv2d", "[2,16,9,9] [24,16,3,3] [24] padding=1 stride=2"),
    // Their gradients in phases: some without weights, results that are not multiples of the steps.
    ("conv2d", "[2,16,11,13] [32,16,5,4] padding=2 stride=(3,2)"),
    ("conv2d", "[2,16,12,11] [32,16,2,1] stride=(3,4)"),
    ("conv3d", "[1,2,6,6,6] [16,2,3,3,3]"),
    ("conv_transpose2d", "[1,8,6,6] [8,16,3,3] stride=2"),
    ("conv_transpose2d", "[2,16,5,7] [16,32,4,2] stride=(2,3)"),
    ("max_pool2d", "[2,8,11,11] kernel_size=3 stride=2 padding=1"),
    ("scaled_dot_product_attention", "[2,4,20,16] [2,4,20,16] [2,4,20,16] is_causal=true"),
    ("softmax", "[40,300]"),
    ("layer_norm", "[40,300] normalized_shape=(300,)"),
    ("sum", "[300,400] axis=0"),
    ("mean", "[30,40,50] axis=(0,2)"),
    ("max", "[300,400] axis=1"),
    ("gelu", "[3,30000]"),
    ("mean", "[2,65600] axis=1"),
    ("var", "[512,300]"),
    ("max", "[140000]"),
];

/// Those whose gradients are compared, too.
const DIFFERENTIATED: &[&str] = &[
    "matmul",
    "linear",
    "conv1d",
    "conv2d",
    "conv_transpose2d",
    "max_pool2d",
    "scaled_dot_product_attention",
    "layer_norm",
];

/// Cases on several threads: kernels, and functions of the prelude that all threads call.
fn large(float: DType) -> Vec<Case> {
    let case = |(i, (name, line)): (usize, &(&str, &str))| {
        let op = ops::find(name).unwrap_or_else(|| panic!("no op {name}"));
        read(op, line, float, i as u64).unwrap_or_else(|e| panic!("{name} {line}: {e}"))
    };
    // Decompositions do not take halves.
    let takes =
        |(name, _): &&(&str, &str)| float != DType::F16 || !["solve", "inv", "cholesky"].contains(name);
    LARGE.iter().chain(LARGER.iter().filter(takes)).enumerate().map(case).collect()
}

#[test]
fn kernels_on_threads_agree_with_the_interpreter() {
    agrees(large(DType::F32), DType::F32, 3);
}

/// All ops and kernels with vectors of every width, also of those that this machine may not have, which the C compiler then
/// divides; 1 is plain C.
#[test]
fn any_width_agrees_with_the_interpreter() {
    let cases = all_cases(DType::F32).0.into_iter().chain(large(DType::F32)).collect();
    let matrix = Matrix::new(cases, DType::F32);
    for (lanes, level) in [(16, "-O0"), (8, "-O1"), (4, "-O0"), (1, "-O0")] {
        agrees_with(&matrix, &compile_for(&matrix.graph, DType::F32, 2, Some(lanes), Some(level)));
    }
}

/// Reads and writes outside of memory, and what C does not define: all ops and kernels again, in a process of their own
/// whose memory is watched.
#[cfg(target_os = "linux")]
#[test]
fn nothing_is_read_or_written_out_of_bounds() {
    let name = |library: &str| {
        let output = Command::new("gcc").arg(format!("-print-file-name={library}")).output().ok()?;
        let path = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        path.starts_with('/').then_some(path)
    };
    // Other compilers than gcc bring no library that can be loaded first; `make test-portability` has clang.
    let (Some(address), Some(undefined)) = (name("libasan.so"), name("libubsan.so")) else {
        let reason =
            "gcc with libasan.so and libubsan.so is not installed: generated C does not run sanitised here";
        // `.ci/run` asks for it.
        assert!(std::env::var_os("MITHRIL_TEST_SANITIZERS").is_none(), "{reason}");
        // Of a test that passes, only what goes past the macros is seen.
        writeln!(std::io::stderr(), "skipped: {reason}").expect("standard error");
        return;
    };
    for test in ["c::float32_agrees_with_the_interpreter", "c::kernels_on_threads_agree_with_the_interpreter"]
    {
        let output = Command::new(std::env::current_exe().expect("the program"))
            .args(["--exact", test])
            .env("LD_PRELOAD", format!("{address}:{undefined}"))
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env("CC", "gcc")
            .env("MITHRIL_TEST_LEVEL", "-O1 -fsanitize=address,undefined -fno-sanitize-recover=all")
            .output()
            .expect("a process");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
    }
}

#[test]
fn kernels_of_float64_agree_with_the_interpreter() {
    agrees(large(DType::F64), DType::F64, 1);
}

/// Halves are converted where kernels read them.
#[test]
fn kernels_of_float16_agree_with_the_interpreter() {
    agrees(large(DType::F16), DType::F16, 2);
}

/// The gradients of the same: products the other way round, convolutions of transposed and flipped tensors.
#[test]
fn gradients_agree_with_the_interpreter() {
    let mut failures = Vec::new();
    for case in large(DType::F32).iter().filter(|case| DIFFERENTIATED.contains(&case.op.name)) {
        let (graph, mut inputs) = run::graph_of(case, DType::F32).expect("a graph");
        let names = graph.inputs.iter().map(|&v| graph.value(v).name.clone().expect("a name")).collect();
        let request = Request { outputs: vec!["y0".into()], inputs: names, recompute: false };
        let graph = differentiate(&graph, &request, DType::F32).expect("gradients");
        let y = run::run(case, DType::F32).expect("the interpreter");
        // A cotangent that depends on the place.
        let values: Vec<f64> = (0..y[0].len()).map(|i| ((i * 37 % 101) as f64 - 50.0) / 50.0).collect();
        inputs.push(Arc::new(Tensor::from_f64s(DType::F32, y[0].shape(), &values)));
        let expected = interp::run(&graph, &inputs).expect("the interpreter");
        for (a, b) in call(&graph, &inputs, DType::F32, 2).iter().zip(&expected) {
            let error = tolerance::error(a, b, Some(tolerance::magnitude(b).max(1.0)));
            if error > tolerance::GRADIENT {
                failures.push(format!("{} {:?}: differs by {error} epsilon", case.op.name, case.text));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

/// The error of a sum does not grow with the number of its terms: 0.1 is not a float, and its errors are all alike.
#[test]
fn long_sums_stay_exact() {
    let mut b = Builder::new(DType::F32);
    let tenths = |rows: usize, columns: usize| {
        let shape = [rows, columns];
        Arc::new(Tensor::from_f64s(DType::F32, &shape, &vec![0.1; rows * columns]))
    };
    let inputs = [tenths(1, 300_001), tenths(30_001, 10), tenths(3000, 7)];
    for (i, (x, axis)) in inputs.iter().zip([1_i64, 0, -1]).enumerate() {
        let ty = TensorType { dtype: DType::F32, shape: Shape::of(x.shape().iter().copied()) };
        let x = b.graph.add_input(format!("x{i}"), Role::Data, ty);
        let axis = if axis < 0 { b.lit(mithril::ir::Lit::None) } else { b.lit(axis) };
        let y = b.push(ops::find("sum").expect("sum"), &[x, axis]).expect("a sum")[0];
        b.graph.outputs.insert(format!("y{i}").into(), y);
    }
    let expected = interp::run(&b.graph, &inputs).expect("the interpreter");
    for (a, b) in call(&b.graph, &inputs, DType::F32, 1).iter().zip(&expected) {
        let error = tolerance::error(a, b, None);
        assert!(error <= tolerance::units(Tolerance::Contraction), "{error} epsilon");
    }
}

/// The first of what is largest or smallest: of equal elements, of infinities, of NaN.
#[test]
fn positions_of_extremes_are_the_first() {
    let mut b = Builder::new(DType::F32);
    let (rows, size) = (6, 40);
    let mut values = vec![0.0; rows * size];
    for (i, x) in values.iter_mut().enumerate() {
        *x = ((i * 7) % 11) as f64 - 5.0;
    }
    values[size..2 * size].fill(f64::NEG_INFINITY);
    values[2 * size..3 * size].fill(f64::INFINITY);
    values[3 * size + 20..3 * size + 23].fill(f64::NAN);
    values[3 * size + 21] = -f64::NAN;
    values[4 * size..5 * size].fill(f64::NAN);
    values[5 * size..].fill(-0.0);
    values[5 * size + 9] = 0.0;
    let x = Arc::new(Tensor::from_f64s(DType::F32, &[rows, size], &values));
    let ty = TensorType { dtype: DType::F32, shape: Shape::of([rows, size]) };
    let input = b.graph.add_input("x", Role::Data, ty);
    let axis = b.lit(1_i64);
    for name in ["argmax", "argmin"] {
        let y = b.push(ops::find(name).expect("a row"), &[input, axis]).expect("positions")[0];
        b.graph.outputs.insert(name.into(), y);
    }
    let expected = interp::run(&b.graph, std::slice::from_ref(&x)).expect("the interpreter");
    for (a, b) in call(&b.graph, &[x], DType::F32, 2).iter().zip(&expected) {
        assert_eq!(a.to_i64s(), b.to_i64s());
    }
}

/// Memory that is not a multiple of the element away from the start, and memory that is too small.
#[test]
fn memory_that_does_not_fit_is_refused() {
    let mut b = Builder::new(DType::F32);
    let ty = TensorType { dtype: DType::F32, shape: Shape::of([2_usize]) };
    let x = b.graph.add_input("x", Role::Data, ty);
    let y = b.push(ops::find("exp").expect("exp"), &[x]).expect("a value")[0];
    b.graph.outputs.insert("y".into(), y);
    let function = compile(&b.graph, DType::F32, 1);
    let bytes = [0_u8; 24];
    let odd = (0..4).find(|i| (bytes[*i..].as_ptr() as usize) % 4 == 1).expect("an odd place");
    let cases: [(&[u8], usize, &str); 3] = [
        (&bytes[odd..], 2, "`x` is not aligned"),
        (&bytes[..4], 2, "`x` has 4 bytes of memory, 8 are needed"),
        (&bytes, 1, "`y` has 4 bytes of memory, 8 are needed"),
    ];
    for (inputs, count, words) in cases {
        let mut out = vec![0.0_f32; count];
        let inputs = [Address::of(inputs)];
        let error = function.call(&inputs, &mut [AddressMut::of(&mut out)], None).expect_err(words);
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// A buffer that is called like the function that fills it.
#[test]
fn names_do_not_hide_functions() {
    let mut b = Builder::new(DType::F32);
    let ty = TensorType { dtype: DType::F32, shape: Shape::of([2_usize]) };
    let x = b.graph.add_input("cases_add", Role::Data, ty);
    let y = b.push(ops::find("add").expect("add"), &[x, x]).expect("a sum")[0];
    b.graph.outputs.insert("cases_add".into(), y);
    let x = Arc::new(Tensor::from_parts(&[2], vec![1.0_f32, 2.0]));
    assert_eq!(call(&b.graph, &[x], DType::F32, 1)[0].to_f64s(), [2.0, 4.0]);
}

/// The float tensors of all cases as tensors of a dtype, as far as the ops take them.
fn cases_of(dtype: DType) -> Vec<Case> {
    let float = DType::F64;
    let mut good = Vec::new();
    for op in ops::all() {
        for (case, seed) in cases(op, float).expect("cases").into_iter().zip(0..) {
            let word =
                |w: &str| if w.starts_with('[') { format!("{}{w}", dtype.short()) } else { w.to_owned() };
            let line = case.text.split(' ').map(word).collect::<Vec<_>>().join(" ");
            let Ok(case) = read(op, &line, float, seed) else { continue };
            let takes_it =
                run::graph_of(&case, float).is_ok_and(|(graph, _)| missing(&graph, float).is_empty());
            if takes_it && run::run(&case, float).is_ok() {
                good.push(case);
            }
        }
    }
    good
}

#[test]
fn integers_agree_with_the_interpreter() {
    for dtype in [DType::I8, DType::Bool] {
        agrees(cases_of(dtype), DType::F64, 1);
    }
}

/// What data can make wrong is an error with its own message, and the next call works.
#[test]
fn bad_data_is_an_error() {
    let mut b = Builder::new(DType::F64);
    let mut input = |name: &str, dtype: DType, sizes: &[i64]| {
        b.graph.add_input(name, Role::Data, TensorType { dtype, shape: Shape::of(sizes.iter().copied()) })
    };
    let (matrix, index) = (input("matrix", DType::F64, &[2, 2]), input("index", DType::I64, &[1, 2]));
    let zero = b.lit(mithril::ir::Lit::int(0));
    let uses: [(&str, &[_]); 4] = [
        ("inv", &[matrix]),
        ("cholesky", &[matrix]),
        ("take", &[matrix, index, zero]),
        ("take_along_axis", &[matrix, index, zero]),
    ];
    for (name, args) in &uses {
        let y = b.push(ops::find(name).expect("a row"), args).expect(name)[0];
        b.graph.outputs.insert((*name).into(), y);
    }
    let function = compile(&b.graph, DType::F64, 1);
    let matrix = |values: [f64; 4]| Arc::new(Tensor::from_parts(&[2, 2], values.to_vec()));
    let index = |values: [i64; 2]| Arc::new(Tensor::from_parts(&[1, 2], values.to_vec()));
    let run = |m, i| function.run(&[matrix(m), index(i)]);
    let good = [2.0, 1.0, 1.0, 2.0];
    let wrong =
        [(good, [0, 2]), (good, [-3, 0]), ([1.0, 2.0, 2.0, 4.0], [0, 1]), ([1.0, 2.0, 2.0, 1.0], [0, 1])];
    let words = ["out of range", "out of range", "singular: inverse", "not positive definite: cholesky"];
    for ((m, i), word) in wrong.into_iter().zip(words) {
        let actual = run(m, i).expect_err(word);
        assert!(actual.message().contains(word) && actual.hint().is_some(), "{actual}");
        let expected = if word == "out of range" { Code::IndexOutOfRange } else { Code::Numerics };
        assert_eq!(actual.code(), expected, "{actual}");
    }
    assert!(run(good, [-2, 1]).is_ok());
}

#[test]
fn what_c_cannot_write_is_known() {
    let (_, lacking) = all_cases(DType::F32);
    let primitives: BTreeSet<&str> = lacking.values().flatten().copied().collect();
    let known: BTreeSet<&str> = NOT_YET.iter().copied().collect();
    let list = |set: Vec<&&str>| set.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", ");
    assert!(
        primitives == known,
        "C cannot write these, too: {}\nC can write these by now: {}",
        list(primitives.difference(&known).collect()),
        list(known.difference(&primitives).collect())
    );
}
