//! Two products with what lies between them, in C, against the interpreter: where they are done part by part (attention),
//! and where they must not be, since what one part makes is needed by all.

use std::sync::Arc;

use mithril::compile::c::{C, COptions, compile_c, request};
use mithril::compile::pipeline::lower;
use mithril::ir::dtype::DType;
use mithril::ir::op::Tolerance;
use mithril::ir::tensor::Tensor;
use mithril::ir::{interp, text};
use mithril::runtime::c::{Cache, Function, Interface, Tool};
use mithril_testing::tolerance;

/// The unit of a ShuffleNet: half of the channels go through a convolution, then all are shuffled and go through another one.
const SHUFFLE: &str = "
    data %0 \"a\": F[1, 16, 4, 4]
    data %1 \"b\": F[1, 16, 4, 4]
    param %2 \"v\": F[16, 16, 1, 1]
    param %3 \"w\": F[64, 32, 1, 1]
    %4: F[1, 16, 4, 4] = conv_general(%1, %2, (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1) in \"\"
    %5: F[1, 16, 4, 4] = relu(%4) in \"\"
    %6: F[1, 32, 4, 4] = concat(1, %0, %5) in \"\"
    %7: F[1, 2, 16, 4, 4] = reshape(%6, (1, 2, 16, 4, 4)) in \"\"
    %8: F[1, 16, 2, 4, 4] = transpose(%7, (0, 2, 1, 3, 4)) in \"\"
    %9: F[1, 32, 4, 4] = reshape(%8, (1, 32, 4, 4)) in \"\"
    %10: F[1, 64, 4, 4] = conv_general(%9, %3, (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1) in \"\"
    return \"output\" = %10";

/// The same of matrices, more than one of them.
const JOINED: &str = "
    data %0 \"a\": F[4, 16, 40]
    data %1 \"b\": F[4, 16, 40]
    param %2 \"v\": F[16, 16]
    param %3 \"w\": F[48, 32]
    %4: F[4, 16, 40] = matmul(%2, %1) in \"\"
    %5: F[4, 16, 40] = tanh(%4) in \"\"
    %6: F[4, 32, 40] = concat(1, %5, %0) in \"\"
    %7: F[4, 2, 16, 40] = reshape(%6, (4, 2, 16, 40)) in \"\"
    %8: F[4, 16, 2, 40] = transpose(%7, (0, 2, 1, 3)) in \"\"
    %9: F[4, 32, 40] = reshape(%8, (4, 32, 40)) in \"\"
    %10: F[4, 48, 40] = matmul(%3, %9) in \"\"
    return \"output\" = %10";

/// Both factors of the second product are made of the first.
const SQUARED: &str = "
    data %0 \"a\": F[6, 24, 32]
    data %1 \"b\": F[6, 32, 24]
    %2: F[6, 24, 24] = matmul(%0, %1) in \"\"
    %3: F[6, 24, 24] = sigmoid(%2) in \"\"
    %4: F[6, 24, 24] = sin(%2) in \"\"
    %5: F[6, 24, 24] = transpose(%4, (0, 2, 1)) in \"\"
    %6: F[6, 24, 24] = matmul(%3, %5) in \"\"
    %7: F[6, 24, 24] = add(%6, %3) in \"\"
    return \"output\" = %7";

/// Queries and keys are turned by their positions after one product has made them.
const ROTARY: &str = "
    data %0 \"x\": F[1, 24, 32]
    param %1 \"weight\": F[32, 96]
    param %2 \"cos\": F[24, 1, 16]
    param %3 \"sin\": F[24, 1, 16]
    %4: F[1, 24, 96] = matmul(%0, %1) in \"\"
    %5: F[1, 24, 6, 16] = reshape(%4, (1, 24, 6, 16)) in \"\"
    %6: F[1, 24, 2, 16] = slice(%5, (0, 0, 0, 0), (1, 24, 2, 16), (1, 1, 1, 1)) in \"\"
    %7: F[1, 24, 2, 16] = slice(%5, (0, 0, 2, 0), (1, 24, 4, 16), (1, 1, 1, 1)) in \"\"
    %8: F[1, 24, 2, 16] = slice(%5, (0, 0, 4, 0), (1, 24, 6, 16), (1, 1, 1, 1)) in \"\"
    %9: F[1, 24, 2, 8] = slice(%6, (0, 0, 0, 0), (1, 24, 2, 8), (1, 1, 1, 1)) in \"\"
    %10: F[1, 24, 2, 8] = slice(%6, (0, 0, 0, 8), (1, 24, 2, 16), (1, 1, 1, 1)) in \"\"
    %11: F[1, 24, 2, 8] = negative(%10) in \"\"
    %12: F[1, 24, 2, 16] = concat(-1, %11, %9) in \"\"
    %13: F[1, 24, 2, 16] = multiply(%6, %2) in \"\"
    %14: F[1, 24, 2, 16] = multiply(%12, %3) in \"\"
    %15: F[1, 24, 2, 16] = add(%13, %14) in \"\"
    %16: F[1, 24, 2, 8] = slice(%7, (0, 0, 0, 0), (1, 24, 2, 8), (1, 1, 1, 1)) in \"\"
    %17: F[1, 24, 2, 8] = slice(%7, (0, 0, 0, 8), (1, 24, 2, 16), (1, 1, 1, 1)) in \"\"
    %18: F[1, 24, 2, 8] = negative(%17) in \"\"
    %19: F[1, 24, 2, 16] = concat(-1, %18, %16) in \"\"
    %20: F[1, 24, 2, 16] = multiply(%7, %2) in \"\"
    %21: F[1, 24, 2, 16] = multiply(%19, %3) in \"\"
    %22: F[1, 24, 2, 16] = add(%20, %21) in \"\"
    %23: F[1, 2, 24, 16] = transpose(%15, (0, 2, 1, 3)) in \"\"
    %24: F[1, 2, 16, 24] = transpose(%22, (0, 2, 3, 1)) in \"\"
    %25: F[1, 2, 24, 24] = matmul(%23, %24) in \"\"
    %26: F[1, 2, 24, 24] = multiply(%25, 0.25) in \"\"
    %27: F[1, 2, 24, 24] = softmax(%26, -1) in \"\"
    %28: F[1, 2, 24, 16] = transpose(%8, (0, 2, 1, 3)) in \"\"
    %29: F[1, 2, 24, 16] = matmul(%27, %28) in \"\"
    return \"output\" = %29";

/// Attention as it is most of the time.
const ATTENTION: &str = "
    data %0 \"q\": F[2, 4, 32, 16]
    data %1 \"k\": F[2, 4, 16, 40]
    data %2 \"v\": F[2, 4, 40, 16]
    %3: F[2, 4, 32, 40] = matmul(%0, %1) in \"\"
    %4: F[2, 4, 32, 40] = multiply(%3, 0.25) in \"\"
    %5: F[2, 4, 32, 40] = softmax(%4, -1) in \"\"
    %6: F[2, 4, 32, 16] = matmul(%5, %2) in \"\"
    return \"output\" = %6";

/// Attention in windows, most of whose pairs are masked by a number for which the exponential is subnormal.
const MASKED: &str = "
    data %0 \"q\": F[4, 2, 49, 16]
    data %1 \"k\": F[4, 2, 16, 49]
    data %2 \"v\": F[4, 2, 49, 16]
    data %3 \"mask\": F[4, 1, 49, 49]
    %4: F[4, 2, 49, 49] = matmul(%0, %1) in \"\"
    %5: F[4, 1, 49, 49] = floor(%3) in \"\"
    %6: F[4, 1, 49, 49] = multiply(%5, 100.0) in \"\"
    %7: F[4, 2, 49, 49] = add(%4, %6) in \"\"
    %8: F[4, 2, 49, 49] = softmax(%7, -1) in \"\"
    %9: F[4, 2, 49, 16] = matmul(%8, %2) in \"\"
    return \"output\" = %9";

/// The keys are the same for the batch, of which there are as many as rows in a part.
const SHARED_KEYS: &str = "
    data %0 \"q\": F[16, 32, 16]
    data %1 \"k\": F[16, 40]
    data %2 \"v\": F[40, 16]
    %3: F[16, 32, 40] = matmul(%0, %1) in \"\"
    %4: F[16, 32, 40] = softmax(%3, -1) in \"\"
    %5: F[16, 32, 16] = matmul(%4, %2) in \"\"
    return \"output\" = %5";

/// The queries are the same for the batch, which is longer than they are many; as many of them as rows of the batch in a part.
const SHARED_QUERIES: &str = "
    data %0 \"k\": F[32, 16, 1100]
    data %1 \"v\": F[32, 1100, 16]
    param %2 \"q\": F[16, 16]
    %3: F[32, 16, 1100] = matmul(%2, %0) in \"\"
    %4: F[32, 16, 1100] = softmax(%3, -1) in \"\"
    %5: F[32, 16, 16] = matmul(%4, %1) in \"\"
    return \"output\" = %5";

/// One sequence of one head: all of it is one part, however many threads there are.
const SINGLE: &str = "
    data %0 \"q\": F[193, 8]
    data %1 \"k\": F[8, 193]
    data %2 \"v\": F[193, 8]
    data %3 \"w\": F[8, 512]
    %4: F[193, 193] = matmul(%0, %1) in \"\"
    %5: F[193, 193] = softmax(%4, -1) in \"\"
    %6: F[193, 8] = matmul(%5, %2) in \"\"
    %7: F[193, 512] = matmul(%6, %3) in \"\"
    return \"output\" = %7";

/// A layer whose result goes through another one, both with weights that are data.
const LAYERS: &str = "
    data %0 \"x\": F[64, 48]
    data %1 \"v\": F[48, 96]
    data %2 \"w\": F[96, 48]
    %3: F[64, 96] = matmul(%0, %1) in \"\"
    %4: F[64, 96] = silu(%3) in \"\"
    %5: F[64, 96] = softmax(%4, -1) in \"\"
    %6: F[64, 48] = matmul(%5, %2) in \"\"
    %7: F[64, 48] = add(%6, %0) in \"\"
    return \"output\" = %7";

/// Compares a graph, with `pack` or without, for so many lanes of float; how many steps are done part by part.
fn check(lines: &str, float: DType, pack: bool, lanes: usize) -> usize {
    let name = if float == DType::F32 { "f32" } else { "f64" };
    let lines = lines.replace(": F[", &format!(": {name}["));
    let graph = text::parse(&format!("graph {{{lines}\n}}\n")).expect("a graph");
    let inputs: Vec<Arc<Tensor>> = graph
        .inputs
        .iter()
        .zip(3..)
        .filter_map(|(&v, seed)| {
            let ty = graph.ty(v)?;
            let shape: Vec<usize> = ty.shape.iter().filter_map(|d| Some(d.known()? as usize)).collect();
            let value = |i: usize| ((i * 37 + seed * 11) % 101) as f64 / 50.0 - 1.0;
            let values: Vec<f64> = (0..shape.iter().product()).map(value).collect();
            Some(Arc::new(Tensor::from_f64s(float, &shape, &values)))
        })
        .collect();
    let expected = interp::run(&graph, &inputs).expect("the interpreter");
    let lowered = lower(&graph, &C, float, &mut |_, _| {}).expect("lowering");
    let options = COptions { prefix: "net".to_owned(), pack, lanes: Some(lanes), ..COptions::default() };
    let source =
        compile_c(&lowered, &request(options).expect("a processor")).unwrap_or_else(|e| panic!("{e}"));
    let flags = ["-Wall", "-Wextra", "-Werror", "-O1"].map(str::to_owned).to_vec();
    let folder = tempfile::tempdir().expect("a folder");
    for threads in [1, 3] {
        let tool = Tool { flags: flags.clone(), ..Tool::default() };
        let interface = Interface::of(&source, "net");
        let function = Function::new(&tool, &Cache::at(folder.path()), &source.c, interface, threads)
            .unwrap_or_else(|e| panic!("{e}"));
        // The second call finds what the first has left in the arena.
        for _ in 0..2 {
            for (a, b) in function.run(&inputs).expect("a call").iter().zip(&expected) {
                let error = tolerance::error(a, b, Some(tolerance::magnitude(b).max(1.0)));
                let allowed = 8.0 * tolerance::units(Tolerance::Contraction);
                assert!(
                    error <= allowed,
                    "{error} epsilon of {float}, packed: {pack}, {threads} threads\n{lines}"
                );
            }
        }
    }
    let kernels = source.stages.iter().find(|(stage, _)| stage == "kernel_selection").expect("the stage");
    kernels.1.matches("for each of").count()
}

#[test]
fn products_of_what_others_make_agree_with_the_interpreter() {
    for lines in [SHUFFLE, JOINED, SQUARED, ROTARY, SHARED_KEYS, SHARED_QUERIES, SINGLE, LAYERS] {
        for (float, pack, lanes) in [(DType::F32, true, 8), (DType::F64, false, 8), (DType::F32, false, 16)] {
            check(lines, float, pack, lanes);
        }
    }
}

/// That is what makes long contexts quick.
#[test]
fn attention_is_done_part_by_part() {
    for lines in [ATTENTION, MASKED, ROTARY, SHARED_KEYS, SHARED_QUERIES, SINGLE, LAYERS] {
        for pack in [false, true] {
            assert_eq!(check(lines, DType::F32, pack, 8), 1, "{lines}");
        }
    }
    // What all parts need is not made by one of them.
    for lines in [SHUFFLE, JOINED, SQUARED] {
        assert_eq!(check(lines, DType::F32, true, 8), 0, "{lines}");
    }
}
