//! Products with low-bit weights. Numbers are such that quantizing changes none of them: every scale is 1, so that
//! the result is exactly that of the naive loop.

use mithril_codegen::c::kernels::{Element, GROUP, Gemm, Library, Scheme, Strides, Target};

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
