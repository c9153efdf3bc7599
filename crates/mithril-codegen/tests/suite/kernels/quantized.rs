//! Products with low-bit weights. Numbers are such that quantizing changes none of them: every scale is 1, so that
//! the result is exactly that of the naive loop.

use mithril_codegen::c::kernels::{Element, GROUP, Gemm, Library, Scheme, Strides, Target, TileFeatures};

use super::gemm::{body, with};
use super::program::{Cases, calls};

pub fn cases(target: Target) -> Cases {
    let mut library = Library::new(target);
    let mut bodies = Vec::new();
    for scheme in [Scheme::Int8, Scheme::Int8Weights, Scheme::Int4Weights] {
        for (index, gemm) in specifications().iter().enumerate() {
            let kernel = gemm.quantized(scheme, &mut library).expect("it can be quantized");
            bodies.push(body(gemm, &fill(gemm, scheme), &calls(&kernel, 1 + index % 3)));
        }
    }
    Cases { source: library.source(), bodies }
}

/// Products in integers for a processor with tiles: random sizes, all that few rows, rest of columns and terms can be, and
/// rows in two parts, one of which has a row more than the other.
pub fn cases_of_tiles(target: Target) -> Cases {
    let target = Target { tiles: TileFeatures { bf16: false, int8: true }, ..target };
    let mut library = Library::new(target);
    let mut state = 7_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % 150 + 1
    };
    let edges = [
        (3, 33, 64),
        (4, 32, 32),
        (5, 1, 31),
        (16, 33, 65),
        (17, 31, 128),
        (32, 64, 63),
        (33, 65, 129),
        (1, 40, 2),
    ];
    let mut sizes = edges.to_vec();
    sizes.extend((0..4).map(|_| (random(), random(), random() + 1)));
    // Long sums, whose panels do not stay in the second-level cache, of one group of rows and of several.
    sizes.extend([(20, 70, 4100), (70, 600, 2100)]);
    let plain = sizes.into_iter().map(|(m, n, k)| Gemm::new(Element::F32, m, n, k));
    let mut bodies = Vec::new();
    for (index, gemm) in plain.chain(specifications()).enumerate() {
        let kernel = gemm.quantized(Scheme::Int8, &mut library).expect("it can be quantized");
        bodies.push(body(&gemm, &fill(&gemm, Scheme::Int8), &calls(&kernel, 1 + index % 3)));
    }
    let source = library.source();
    assert!(source.contains("_tile_dpbusd(3, 5, 7)"), "no kernel of tiles");
    Cases { source, bodies }
}

fn specifications() -> Vec<Gemm> {
    let sizes = [(1, 65, 130), (2, 34, 33), (29, 43, 21), (7, 3, 64), (17, 20, 530)];
    let mut all = sizes.map(|(m, n, k)| Gemm::new(Element::F32, m, n, k)).to_vec();
    let mut transposed = Gemm::new(Element::F32, 13, 40, 35);
    transposed.a = Strides { batch: vec![], row: 1, column: 13 };
    transposed.b = Strides { batch: vec![], row: 1, column: 35 };
    transposed.out = Strides { batch: vec![], row: 1, column: 13 };
    transposed.epilogue = with("relu_f32({acc} + {0}) * 2 + {1}", vec![(vec![], 0, 1), (vec![], 1, 13)]);
    all.push(transposed);
    // Every other of five rows: these do not fold into one matrix.
    let mut batched = Gemm::new(Element::F32, 3, 9, 10);
    batched.batch = vec![2];
    batched.a = Strides { batch: vec![70], row: 20, column: 1 };
    batched.b.batch = vec![0];
    batched.out.batch = vec![27];
    all.push(batched);
    // The same rows by three matrices, whose columns lie side by side.
    let mut heads = Gemm::new(Element::F32, 5, 6, 12);
    heads.batch = vec![3];
    heads.a.batch = vec![0];
    heads.b = Strides { batch: vec![72], row: 1, column: 12 };
    heads.out = Strides { batch: vec![30], row: 6, column: 1 };
    all.push(heads);
    all
}

/// The largest numbers of each row of a and each column (or group) of b are what makes their scales 1.
fn fill(gemm: &Gemm, scheme: Scheme) -> String {
    let [a, b] = [(gemm.a.row, gemm.a.column), (gemm.b.row, gemm.b.column)];
    let (largest, each) = if scheme == Scheme::Int4Weights { (-8, GROUP) } else { (127, gemm.k) };
    let stride = gemm.batch.first().map_or(0, |_| gemm.a.batch[0]);
    format!(
        "for (long i = 0; i < {}; i++) for (long row = 0; row < {}; row++) {{\n\
         a[i * {stride} + row * {}] = 155; a[i * {stride} + row * {} + {}] = -100; }}\n\
         for (long i = 0; i < {}; i++) for (long k = 0; k < {}; k += {each}) for (long column = 0; column < {}; column++)\n\
         b[i * {} + k * {} + column * {}] = {largest};\n",
        gemm.batch.first().unwrap_or(&1),
        gemm.m,
        a.0,
        a.0,
        a.1,
        gemm.batch.first().unwrap_or(&1),
        gemm.k,
        gemm.n,
        gemm.b.batch.first().unwrap_or(&0),
        b.0,
        b.1
    )
}
