//! Convolutions of odd sizes, with strides, dilation, groups and uneven padding.

use std::fmt::Write as _;

use mithril_codegen::c::kernels::{
    Algorithm, Conv, Element, Epilogue, Library, Operand, Packing, Scheme, Strides, Target,
};

use super::program::{Cases, calls};
use super::quantized_conv::exact;

pub fn cases(target: Target) -> Cases {
    written(&specifications(), target)
}

/// Those that go Winograd's way.
pub fn winograd_cases(target: Target) -> Cases {
    written(&winograd(), target)
}

fn written(specifications: &[Conv], target: Target) -> Cases {
    let mut library = Library::new(target);
    let mut bodies = Vec::new();
    for (index, conv) in specifications.iter().enumerate() {
        let kernel = conv.build(&mut library);
        // Sixths are not exact, but results are integers: a wrong place is off by far more.
        let tolerance = if matches!(conv.algorithm, Algorithm::Winograd([4, _])) { 1e-2 } else { 0.0 };
        bodies.push(body(conv, &calls(&kernel, 1 + index % 3), tolerance));
    }
    Cases { source: library.source(), bodies }
}

fn specifications() -> Vec<Conv> {
    let plain = |channels: [usize; 2], image, kernel| Conv::new(Element::F32, 1, channels, image, kernel);
    let mut all = vec![
        plain([1, 1], [1, 1], [1, 1]),
        plain([17, 33], [7, 9], [1, 1]),
        plain([20, 40], [7, 7], [1, 1]),
        plain([16, 32], [8, 8], [3, 3]),
        plain([3, 7], [17, 5], [3, 5]),
        plain([5, 65], [1, 40], [1, 7]),
    ];
    // The first layer of a network, and its shape with everything uneven.
    all.push(Conv { stride: [2, 2], padding: [[3, 3], [3, 3]], ..plain([3, 64], [33, 34], [7, 7]) });
    all.push(Conv {
        batch: 2,
        stride: [2, 3],
        dilation: [1, 2],
        padding: [[2, 0], [1, 4]],
        packing: Packing::Running,
        ..plain([6, 10], [15, 21], [4, 3])
    });
    // Groups, and one group for each channel.
    all.push(Conv { batch: 2, groups: 3, padding: [[1, 1], [1, 1]], ..plain([9, 51], [7, 7], [3, 3]) });
    all.push(Conv { groups: 17, padding: [[1, 1], [1, 1]], ..plain([17, 34], [9, 11], [3, 3]) });
    all.push(Conv {
        groups: 5,
        stride: [2, 2],
        padding: [[0, 2], [1, 1]],
        ..plain([5, 5], [10, 23], [3, 5])
    });
    all.extend(by_channels());
    all.push(Conv { stride: [2, 2], ..plain([8, 12], [9, 9], [1, 1]) });
    all.push(Conv { padding: [[1, 1], [0, 2]], ..Conv::new(Element::F64, 1, [3, 9], [6, 35], [3, 3]) });
    for conv in &mut all {
        *conv = conv.clone().row_major();
    }
    // Bias, residual and activation.
    let mut fused =
        Conv { batch: 2, padding: [[1, 1], [1, 1]], ..plain([4, 18], [7, 7], [3, 3]) }.row_major();
    let operand = |strides: &Strides| Operand { element: "float".to_owned(), strides: strides.clone() };
    let bias = Strides { batch: vec![0], row: 1, column: 0 };
    fused.epilogue = Epilogue {
        operands: vec![operand(&bias), operand(&fused.out)],
        expression: "relu_f32({acc} + {0} + {1})".to_owned(),
        vectors: None,
    };
    all.push(fused);
    for conv in &mut all {
        conv.algorithm = Algorithm::Direct;
    }
    for scheme in [Scheme::Int8Weights, Scheme::Int4Weights] {
        let takes = |conv: &&Conv| conv.groups > 1 && conv.element == Element::F32 && conv.few_bits.is_none();
        let grouped = all.iter().filter(takes);
        all.extend(grouped.map(|conv| Conv { few_bits: Some(scheme), ..conv.clone() }).collect::<Vec<_>>());
    }
    all.extend(winograd());
    all
}

/// One group for each channel: bands of rows, rows of all widths, one long row, steps and gaps of all kinds.
fn by_channels() -> Vec<Conv> {
    let mut all = Vec::new();
    for (element, channels, image, kernel, stride, dilation) in [
        (Element::F32, [3, 3], [93, 50], [3, 3], [1, 1], [1, 1]),
        (Element::F32, [2, 4], [101, 99], [5, 3], [2, 2], [1, 1]),
        (Element::F32, [4, 4], [23, 31], [3, 4], [2, 3], [3, 2]),
        (Element::F32, [3, 3], [31, 16], [4, 2], [3, 1], [1, 5]),
        (Element::F32, [3, 3], [30, 11], [11, 3], [1, 1], [1, 1]),
        (Element::F32, [2, 2], [40, 21], [12, 2], [2, 2], [1, 2]),
        (Element::F32, [5, 5], [1, 77], [1, 9], [1, 2], [1, 1]),
        (Element::F32, [5, 5], [1, 77], [1, 3], [1, 1], [1, 4]),
        (Element::F64, [3, 6], [19, 22], [3, 5], [1, 2], [1, 1]),
    ] {
        let conv = Conv::new(element, 2, channels, image, kernel);
        let padding = [[kernel[0] / 2, 0], [1, kernel[1] / 2]];
        all.push(Conv { groups: channels[0], stride, dilation, padding, ..conv });
    }
    all
}

/// Few tiles (in phases) and many (fused), sizes that are not multiples of the tile or of a vector, padding of all kinds.
fn winograd() -> Vec<Conv> {
    let mut all = Vec::new();
    let (one, two) = ([1, 1], [2, 2]);
    for (tile, stride, batch, channels, image, padding) in [
        ([2, 2], one, 1, [3, 5], [5, 7], [[1, 1], [1, 1]]),
        ([2, 2], one, 2, [17, 33], [7, 7], [[1, 1], [1, 1]]),
        ([2, 2], one, 3, [16, 32], [40, 26], [[0, 2], [1, 0]]),
        ([4, 2], one, 1, [5, 17], [15, 9], [[1, 1], [0, 2]]),
        ([4, 4], one, 1, [16, 40], [7, 14], [[1, 1], [1, 1]]),
        ([4, 4], one, 2, [20, 9], [17, 65], [[0, 0], [2, 2]]),
        ([4, 4], one, 2, [32, 32], [56, 30], [[1, 1], [1, 1]]),
        // All filters in one panel, too many channels for its points to stay.
        ([4, 4], one, 1, [160, 20], [30, 22], [[1, 1], [1, 1]]),
        // Few tiles, in groups of two lengths, and too many channels for one time.
        ([4, 4], one, 1, [100, 20], [4, 18], [[1, 1], [1, 1]]),
        // Steps of 2, also where a last line is not read.
        ([2, 2], two, 1, [3, 5], [5, 8], [[1, 1], [1, 1]]),
        ([2, 2], two, 2, [17, 33], [14, 14], [[1, 1], [1, 1]]),
        ([4, 2], two, 1, [16, 20], [28, 15], [[1, 0], [0, 2]]),
        ([4, 4], two, 1, [5, 17], [18, 10], [[0, 0], [0, 0]]),
        ([4, 4], two, 3, [32, 32], [56, 31], [[1, 1], [1, 1]]),
        ([4, 4], [2, 1], 1, [16, 40], [28, 14], [[1, 1], [1, 1]]),
    ] {
        let conv = Conv::new(Element::F32, batch, channels, image, [3, 3]);
        let mut conv = Conv { padding, stride, algorithm: Algorithm::Winograd(tile), ..conv }.row_major();
        conv.epilogue = Epilogue {
            operands: vec![Operand { element: "float".to_owned(), strides: conv.out.clone() }],
            expression: "relu_f32({acc} + {0})".to_owned(),
            vectors: None,
        };
        all.push(conv);
    }
    all
}

/// Fills, calls, and compares with the definition.
fn body(conv: &Conv, calls: &str, tolerance: f64) -> String {
    let [oh, ow] = conv.result();
    let [h, w] = conv.image;
    let [kh, kw] = conv.kernel;
    let (n, c, f) = (conv.batch, conv.channels, conv.filters);
    let (gc, gf) = (c / conv.groups, f / conv.groups);
    let element = conv.element.c();
    let mut text = String::new();
    let _ = writeln!(text, "FILLED({element}, a, {});", n * c * h * w);
    let _ = writeln!(text, "FILLED({element}, b, {});", f * gc * kh * kw);
    let terms = [(gc, kh * kw), (kh * kw, 1), (1, 1)];
    text.push_str(&conv.few_bits.map(|scheme| exact(scheme, f, terms)).unwrap_or_default());
    let _ = writeln!(text, "FILLED({element}, out, {});", n * f * oh * ow);
    for (index, operand) in conv.epilogue.operands.iter().enumerate() {
        let elements = if operand.strides.column == 0 { f } else { n * f * oh * ow };
        let _ = writeln!(text, "FILLED(float, operand{index}, {elements});");
    }
    text.push_str(calls);
    let _ = writeln!(text, "for (long batch = 0; batch < {n}; batch++) for (long row = 0; row < {f}; row++)");
    let _ = writeln!(
        text,
        "for (long oy = 0; oy < {oh}; oy++) for (long ox = 0; ox < {ow}; ox++) {{ double sum = 0;"
    );
    let _ = writeln!(
        text,
        "for (long k = 0; k < {gc}; k++) for (long ky = 0; ky < {kh}; ky++) for (long kx = 0; kx < {kw}; kx++) {{"
    );
    let _ = writeln!(
        text,
        "long y = oy * {} + ky * {} - {}, x = ox * {} + kx * {} - {}; if (y < 0 || y >= {h} || x < 0 || x >= {w}) continue;",
        conv.stride[0],
        conv.dilation[0],
        conv.padding[0][0],
        conv.stride[1],
        conv.dilation[1],
        conv.padding[1][0]
    );
    let _ = writeln!(
        text,
        "sum += (double)a[((batch * {c} + row / {gf} * {gc} + k) * {h} + y) * {w} + x] * b[((row * {gc} + k) * {kh} + ky) * {kw} + kx]; }}"
    );
    let _ = writeln!(text, "long place = (batch * {f} + row) * {} + oy * {ow} + ox;", oh * ow);
    let mut expected = conv.epilogue.expression.replace("{acc}", "sum");
    for (index, operand) in conv.epilogue.operands.iter().enumerate() {
        let element = if operand.strides.column == 0 { "[row]" } else { "[place]" };
        expected = expected.replace(&format!("{{{index}}}"), &format!("operand{index}{element}"));
    }
    let _ = writeln!(
        text,
        "double expected = {expected}; if (!(fabs((double)out[place] - expected) <= {tolerance})) {{ failures++; \
         printf(\"conv {c} {f} %ld %ld %ld %ld: %g, not %g\\n\", batch, row, oy, ox, (double)out[place], expected); return; }} }}"
    );
    let operands = (0..conv.epilogue.operands.len())
        .fold(String::new(), |text, index| format!("{text}free(operand{index}); "));
    let _ = writeln!(text, "free(a); free(b); free(out); {operands}");
    text
}
