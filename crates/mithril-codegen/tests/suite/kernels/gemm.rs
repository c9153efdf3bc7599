//! Matrix products of odd sizes, strides, batches and epilogues.

use std::fmt::Write as _;

use mithril_codegen::c::kernels::{
    Element, Epilogue, Gemm, Kernel, Library, Operand, Packing, Stored, Strides, Target, TileFeatures,
};

use super::program::{Cases, calls};

pub fn cases(target: Target) -> Cases {
    let mut library = Library::new(target);
    let mut bodies = Vec::new();
    for (index, gemm) in specifications().iter().enumerate() {
        let kernel = gemm.build(&mut library);
        bodies.push(body(gemm, "", &calls(&kernel, 1 + index % 3)));
    }
    for gemm in same_rows(&target) {
        for threads in [1, 2, 3, 7] {
            bodies.push(body(&gemm, "", &calls(&gemm.build(&mut library), threads)));
        }
    }
    let (attention, parts) = part_by_part(&target);
    bodies.push(body(&attention, "", &parts(&attention.build(&mut library))));
    Cases { source: library.source(), bodies }
}

/// The same products of bfloat16, in pairs.
pub fn cases_of_pairs(target: Target) -> Cases {
    let target = Target { has_bf16: true, ..target };
    let mut library = Library::new(target);
    // Of one row in memory, of several pieces of k, with one term more than pairs.
    let sizes = [(1, 100, 700), (2, 70, 33), (40, 33, 4501)];
    let more = sizes.into_iter().map(|(m, n, k)| Gemm::new(Element::F32, m, n, k));
    let all = specifications().into_iter().chain(same_rows(&target)).chain(more);
    let mut bodies = Vec::new();
    for (index, gemm) in all.filter(|gemm| gemm.element == Element::F32).enumerate() {
        let gemm = Gemm { stored: [Stored::BF16; 2], ..gemm };
        bodies.push(body(&gemm, "", &calls(&gemm.build(&mut library), 1 + index % 3)));
    }
    let source = library.source();
    assert!(source.contains("MITHRIL_ADD_bf16(sum"), "no kernel of pairs");
    Cases { source, bodies }
}

/// Products of bfloat16 for a processor with tiles: random sizes, all that few rows, odd terms and last panels can be.
pub fn cases_of_tiles(target: Target) -> Cases {
    let target = Target { has_bf16: true, tiles: TileFeatures { bf16: true, int8: false }, ..target };
    let mut library = Library::new(target);
    let mut state = 7_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % 100 + 1
    };
    // One tile high, two, and with rows left over; of several pieces of k.
    let edges = [(5, 32, 16), (16, 33, 32), (17, 31, 33), (33, 64, 95), (49, 1, 64), (40, 33, 9001)];
    let sizes = edges.into_iter().chain((0..6).map(|_| (random(), random(), random())));
    let plain = sizes.collect::<Vec<_>>().into_iter().map(|(m, n, k)| Gemm::new(Element::F32, m, n, k));
    let mut bodies = Vec::new();
    let all = plain.chain(specifications()).chain(same_rows(&target));
    for (index, gemm) in all.filter(|gemm| gemm.element == Element::F32).enumerate() {
        let gemm = Gemm { stored: [Stored::BF16; 2], ..gemm };
        bodies.push(body(&gemm, "", &calls(&gemm.build(&mut library), 1 + index % 3)));
    }
    let source = library.source();
    assert!(source.contains("_tile_dpbf16ps(3, 5, 7)"), "no kernel of tiles");
    Cases { source, bodies }
}

/// Rows and columns of plain products, and the terms of each sum.
const SIZES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (3, 7, 17),
    (17, 65, 3),
    (65, 33, 7),
    (7, 64, 65),
    (1, 65, 130),
    // One row by panels of other widths, in several pieces of k.
    (1, 7, 2100),
    (1, 43, 300),
    (1, 256, 131),
    (31, 1, 40),
    (2, 34, 39),
    (300, 100, 16),
    (5, 40, 2100),
];

fn specifications() -> Vec<Gemm> {
    let mut all: Vec<Gemm> = SIZES.iter().map(|&(m, n, k)| Gemm::new(Element::F32, m, n, k)).collect();
    all.push(Gemm::new(Element::F64, 17, 35, 19));
    all.push(Gemm { packing: Packing::Running, ..Gemm::new(Element::F64, 30, 7, 5) });
    let mut row = Gemm::new(Element::F64, 1, 59, 270);
    row.a = Strides { batch: vec![], row: 0, column: 3 };
    row.b = Strides { batch: vec![], row: 1, column: 270 };
    row.out = Strides { batch: vec![], row: 0, column: 2 };
    row.epilogue = with("{acc} * 2 + {0}", vec![(vec![], 0, 1)]);
    all.push(row);
    // The result, and an operand with an element for each of its own, are larger than caches.
    let mut far = Gemm::new(Element::F32, 370, 373, 2);
    far.epilogue = with("{acc} + {0} * {1}", vec![(vec![], 373, 1), (vec![], 0, 1)]);
    all.push(far);
    all.extend(in_columns());
    all.push(Gemm {
        batch: vec![2],
        a: Strides { batch: vec![0], row: 2107, column: 1 },
        out: Strides { batch: vec![650], row: 65, column: 1 },
        ..Gemm::new(Element::F32, 10, 65, 2107)
    });
    let mut across = Gemm { packing: Packing::Running, ..Gemm::new(Element::F32, 33, 40, 50) };
    across.a = Strides { batch: vec![], row: 1, column: 33 };
    across.b = Strides { batch: vec![], row: 1, column: 50 };
    all.push(across);
    // A batch of heads: [2, 9, 3 heads, 8] by [2, 3 heads, 8, 11], the second repeated over the first axis.
    let mut heads = Gemm::new(Element::F32, 9, 11, 8);
    heads.batch = vec![2, 3];
    heads.a = Strides { batch: vec![216, 8], row: 24, column: 1 };
    heads.b = Strides { batch: vec![0, 88], row: 11, column: 1 };
    heads.out = Strides { batch: vec![297, 99], row: 11, column: 1 };
    heads.packing = Packing::Running;
    heads.epilogue =
        with("column <= row ? {acc} * 0.5f + {0} : {1}", vec![(vec![0, 1], 0, 0), (vec![1, 0], 0, 0)]);
    all.push(heads);
    // Rows of a batch that fold into one matrix, with an operand for each row.
    let mut folding = Gemm::new(Element::F32, 5, 34, 12);
    folding.batch = vec![4];
    folding.a.batch = vec![60];
    folding.b.batch = vec![0];
    folding.out.batch = vec![170];
    folding.epilogue = with("{acc} + {0} + {1}", vec![(vec![5], 1, 0), (vec![], 0, 1)]);
    all.push(folding.clone());
    folding.epilogue = with("{acc} + {0}", vec![(vec![], 1, 0)]);
    all.push(folding);
    all
}

/// Products whose results have contiguous columns.
fn in_columns() -> Vec<Gemm> {
    let mut all = Vec::new();
    // Both transposed, the result too.
    let mut transposed = Gemm::new(Element::F32, 29, 43, 21);
    transposed.a = Strides { batch: vec![], row: 1, column: 29 };
    transposed.b = Strides { batch: vec![], row: 1, column: 21 };
    transposed.out = Strides { batch: vec![], row: 1, column: 29 };
    transposed.epilogue = with("relu_f32({acc} + {0}) * 2 + {1}", vec![(vec![], 0, 1), (vec![], 1, 29)]);
    all.push(transposed.clone());
    // With an operand for each column, or none; of several groups of rows, with columns apart from one another.
    transposed.epilogue = with("relu_f32({acc} + {0}) * 2 + row - column", vec![(vec![], 0, 1)]);
    all.push(transposed.clone());
    transposed.epilogue = Epilogue::none();
    all.push(transposed.clone());
    all.push(Gemm { element: Element::F64, out_element: "double".to_owned(), ..transposed });
    let mut apart = Gemm::new(Element::F32, 47, 70, 2107);
    apart.batch = vec![2];
    apart.a.batch = vec![47 * 2107];
    apart.b.batch = vec![0];
    apart.out = Strides { batch: vec![70 * 51], row: 1, column: 51 };
    all.push(apart.clone());
    apart.epilogue = with("{acc} + {0} * {1}", vec![(vec![70], 0, 1), (vec![47 * 70], 70, 1)]);
    all.push(apart.clone());
    apart.out = Strides { batch: vec![70 * 96], row: 2, column: 96 };
    all.push(apart);
    all
}

/// Matrices that have the same rows in common, in several blocks of rows: threads begin and end inside a block, in the
/// middle of such matrices.
fn same_rows(target: &Target) -> Vec<Gemm> {
    let lanes = target.lanes;
    let (m, n, k) = (61, 2 * lanes - 1, 33);
    let mut gemm = Gemm::new(Element::F32, m, n, k);
    gemm.batch = vec![2, 2, 3];
    gemm.a = Strides { batch: vec![m * (k + 2), 0, 0], row: k + 2, column: 1 };
    gemm.b = Strides { batch: vec![0, 3 * n * k, n * k], row: n, column: 1 };
    gemm.out = Strides { batch: vec![6 * m * n, 3 * m * n, m * n], row: n, column: 1 };
    gemm.epilogue = with("{acc} + {0} + {1}", vec![(vec![0, 0, n], 0, 1), (vec![m, 0, 0], 1, 0)]);
    let running = Gemm { packing: Packing::Running, ..gemm.clone() };
    let mut inner = gemm.clone();
    inner.a.batch = vec![0, m * (k + 2), 0];
    let mut none = gemm.clone();
    none.a.batch = vec![0, 0, m * (k + 2)];
    let mut across = running.clone();
    across.a = Strides { batch: vec![0, k * (m + 1), 0], row: 1, column: m + 1 };
    // Few matrices, each of several panels.
    let wide = 4 * lanes + 3;
    let mut panels = Gemm { batch: vec![3], ..Gemm::new(Element::F32, m, wide, k) };
    panels.a.batch = vec![0];
    panels.b.batch = vec![wide * k];
    panels.out.batch = vec![m * wide];
    vec![gemm, running, inner, none, across, panels]
}

/// As in attention: a left matrix that all parts make at the same place, and as many threads as parts. Each may write
/// its own matrix only: what is written elsewhere is spoilt again before the next one.
fn part_by_part(target: &Target) -> (Gemm, impl Fn(&Kernel) -> String) {
    let (m, n, k) = (61, 2 * target.lanes - 1, 33);
    let mut gemm = Gemm { packing: Packing::Running, one_by_one: true, ..Gemm::new(Element::F32, m, n, k) };
    gemm.batch = vec![2, 3];
    gemm.a.batch = vec![0, 0];
    gemm.b.batch = vec![3 * n * k, n * k];
    gemm.out.batch = vec![3 * m * n, m * n];
    let size = m * n;
    let parts = move |kernel: &Kernel| {
        let mut part = 0;
        let lines = calls(kernel, 6);
        let packing = kernel.phases[0][0].function.as_str();
        let spoilt = lines.lines().map(|line| {
            let (own, multiplies) = (part * size, line.starts_with('{') && !line.contains(packing));
            part += usize::from(multiplies);
            if multiplies {
                format!("{line}\nfor (long i = {}; i < {}; i++) out[i] = NAN;\n", own + size, 6 * size)
            } else {
                format!("{line}\n")
            }
        });
        spoilt.collect()
    };
    (gemm, parts)
}

pub fn with(expression: &str, strides: Vec<(Vec<usize>, usize, usize)>) -> Epilogue {
    let operand = |(batch, row, column)| Operand {
        element: "float".to_owned(),
        strides: Strides { batch, row, column },
    };
    Epilogue {
        operands: strides.into_iter().map(operand).collect(),
        expression: expression.to_owned(),
        vectors: None,
    }
}

/// How many elements an array with these strides has.
fn count(batch: &[usize], strides: &Strides, rows: usize, columns: usize) -> usize {
    let outer: usize = batch.iter().zip(&strides.batch).map(|(size, stride)| (size - 1) * stride).sum();
    outer + (rows - 1) * strides.row + (columns - 1) * strides.column + 1
}

/// Fills, calls, and compares with a loop that knows nothing of blocks.
/// `fill` are statements that change what a and b hold.
pub fn body(gemm: &Gemm, fill: &str, calls: &str) -> String {
    let (m, n, k) = (gemm.m, gemm.n, gemm.k);
    let element = gemm.element.c();
    let mut text = String::new();
    let is_half = gemm.stored == [Stored::BF16; 2];
    let filled = if is_half { "FILLED_BF16(".to_owned() } else { format!("FILLED({element}, ") };
    let _ = writeln!(text, "{filled}a, {});", count(&gemm.batch, &gemm.a, m, k));
    let _ = writeln!(text, "{filled}b, {});", count(&gemm.batch, &gemm.b, k, n));
    let _ = writeln!(text, "FILLED({element}, out, {});", count(&gemm.batch, &gemm.out, m, n));
    for (index, operand) in gemm.epilogue.operands.iter().enumerate() {
        let _ =
            writeln!(text, "FILLED(float, operand{index}, {});", count(&gemm.batch, &operand.strides, m, n));
    }
    text.push_str(fill);
    text.push_str(calls);
    // Index variables i0, i1, … run over the batch.
    for (axis, size) in gemm.batch.iter().enumerate() {
        let _ = writeln!(text, "for (long i{axis} = 0; i{axis} < {size}; i{axis}++)");
    }
    let _ = writeln!(
        text,
        "for (long row = 0; row < {m}; row++) for (long column = 0; column < {n}; column++) {{"
    );
    let place = |strides: &Strides, row: &str, column: &str| {
        let batch = strides.batch.iter().enumerate();
        let batch = batch.fold(String::new(), |text, (axis, stride)| format!("{text}i{axis} * {stride} + "));
        format!("{batch}{row} * {} + {column} * {}", strides.row, strides.column)
    };
    let from = if is_half { "from_bf16" } else { "" };
    let _ = writeln!(text, "double sum = 0; for (long t = 0; t < {k}; t++)");
    let _ = writeln!(
        text,
        "sum += (double){from}(a[{}]) * {from}(b[{}]);",
        place(&gemm.a, "row", "t"),
        place(&gemm.b, "t", "column")
    );
    let mut expected = gemm.epilogue.expression.replace("{acc}", "sum");
    for (index, operand) in gemm.epilogue.operands.iter().enumerate() {
        expected = expected.replace(
            &format!("{{{index}}}"),
            &format!("operand{index}[{}]", place(&operand.strides, "row", "column")),
        );
    }
    let _ = writeln!(text, "if (out[{}] != (float)({expected})) {{", place(&gemm.out, "row", "column"));
    let _ = writeln!(
        text,
        "failures++; printf(\"gemm {:?} {m}x{n}x{k} at %ld, %ld: %g, not %g\\n\", row, column, (double)out[{}], (double)({expected})); return; }}",
        gemm.batch,
        place(&gemm.out, "row", "column")
    );
    let operands = (0..gemm.epilogue.operands.len())
        .fold(String::new(), |text, index| format!("{text}free(operand{index}); "));
    let _ = writeln!(text, "}}\nfree(a); free(b); free(out); {operands}");
    text
}
