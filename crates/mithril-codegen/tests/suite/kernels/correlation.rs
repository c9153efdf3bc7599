//! Gradients of the weights of convolutions: tiles split along channels, rows of weights and weights of a row, with
//! strides, dilation, padding and orders of all kinds.

use std::fmt::Write as _;

use mithril_codegen::c::kernels::{
    Correlation, Element, Epilogue, GroupedCorrelation, Library, Operand, Strides, Target,
};

use super::program::{Cases, calls};

pub fn cases(target: Target) -> Cases {
    let mut library = Library::new(target);
    let mut bodies = Vec::new();
    for (index, of) in specifications().iter().enumerate() {
        let kernel = of.build(&mut library).expect("planes lie one after the other");
        bodies.push(body(of, 1, 0, &calls(&kernel, 1 + index % 3)));
    }
    for (index, grouped) in in_groups().iter().enumerate() {
        let kernel = grouped.build(&mut library);
        let GroupedCorrelation { of, groups, group_stride } = grouped;
        bodies.push(body(of, *groups, *group_stride, &calls(&kernel, 1 + index % 3)));
    }
    Cases { source: library.source(), bodies }
}

/// Images of channels to filters, with a kernel, one step everywhere and no padding.
fn plain(
    batch: usize,
    [channels, filters]: [usize; 2],
    result: [usize; 2],
    kernel: [usize; 2],
) -> Correlation {
    let image = [0, 1].map(|i| result[i] + kernel[i] - 1);
    let [plane, pixels, places] = [image, result, kernel].map(|size| size[0] * size[1]);
    Correlation {
        element: Element::F32,
        batch,
        channels,
        filters,
        image,
        kernel,
        result,
        stride: [1, 1],
        dilation: [1, 1],
        padding: [[0, 0], [0, 0]],
        image_strides: [channels * plane, plane],
        result_strides: [filters * pixels, pixels],
        out: Strides { batch: vec![places], row: channels * places, column: 1 },
        out_element: "float".to_owned(),
        epilogue: Epilogue::none(),
    }
}

fn specifications() -> Vec<Correlation> {
    let mut all = vec![
        plain(1, [1, 1], [1, 1], [1, 1]),
        plain(2, [17, 33], [3, 5], [1, 1]),
        plain(3, [5, 40], [7, 7], [3, 3]),
        // Many pixels: several parts, and lines in pieces.
        plain(2, [3, 20], [40, 30], [2, 2]),
        plain(1, [2, 16], [2, 1030], [1, 3]),
        // Many channels: several blocks of them.
        plain(1, [1300, 4], [3, 2], [3, 3]),
    ];
    // The first layer of a network, and everything uneven.
    all.push(Correlation {
        stride: [2, 2],
        padding: [[3, 2], [3, 2]],
        image: [16, 18],
        image_strides: [3 * 16 * 18, 16 * 18],
        ..plain(2, [3, 64], [8, 9], [7, 7])
    });
    all.push(Correlation {
        element: Element::F64,
        out_element: "double".to_owned(),
        stride: [2, 3],
        dilation: [1, 2],
        padding: [[2, 0], [1, 4]],
        image: [15, 21],
        image_strides: [315, 2 * 315],
        ..plain(2, [6, 19], [7, 6], [4, 5])
    });
    // What becomes of the sums, in another order of the result.
    let step = Strides { batch: vec![9], row: 4 * 9, column: 1 };
    all.push(Correlation {
        out: Strides { batch: vec![9 * 18], row: 9, column: 1 },
        epilogue: Epilogue {
            operands: vec![Operand { element: "float".to_owned(), strides: step }],
            expression: "relu_f32({acc} + {0})".to_owned(),
            vectors: None,
        },
        ..plain(2, [4, 18], [9, 5], [3, 3])
    });
    all
}

/// Depthwise ones, few and many channels in a group, more filters than fit into the cache, strides and dilation.
fn in_groups() -> Vec<GroupedCorrelation> {
    // Images are [channel of a group, group, image], results [filter, image].
    let grouped = |groups: usize, of: Correlation| {
        let [plane, pixels, places] = [of.image, of.result, of.kernel].map(|size| size[0] * size[1]);
        let group_stride = of.batch * plane;
        let of = Correlation {
            image_strides: [plane, groups * group_stride],
            result_strides: [pixels, of.batch * pixels],
            out: Strides { batch: vec![places], row: of.channels * places, column: 1 },
            ..of
        };
        GroupedCorrelation { of, groups, group_stride }
    };
    let stepped = |step: [usize; 2], dilation: [usize; 2], padding: [[usize; 2]; 2], of: Correlation| {
        let reach = |i: usize| (of.result[i] - 1) * step[i] + (of.kernel[i] - 1) * dilation[i] + 1;
        let image = [0, 1].map(|i| reach(i).saturating_sub(padding[i][0] + padding[i][1]).max(1));
        Correlation { image, stride: step, dilation, padding, ..of }
    };
    let same = [[1, 1], [1, 1]];
    vec![
        grouped(5, stepped([1, 1], [1, 1], same, plain(3, [1, 5], [7, 9], [3, 3]))),
        grouped(4, stepped([2, 2], [1, 1], same, plain(2, [1, 4], [6, 20], [3, 3]))),
        // An image with a last row and column that no weight meets.
        grouped(
            3,
            Correlation {
                image: [12, 16],
                ..stepped([2, 2], [1, 1], same, plain(2, [2, 9], [6, 8], [3, 3]))
            },
        ),
        grouped(2, stepped([1, 1], [1, 1], [[3, 3], [3, 3]], plain(2, [1, 2], [5, 11], [7, 7]))),
        grouped(2, stepped([3, 2], [2, 3], [[2, 1], [0, 4]], plain(3, [3, 10], [4, 6], [4, 3]))),
        grouped(2, stepped([1, 1], [1, 1], same, plain(2, [40, 96], [9, 4], [3, 3]))),
        grouped(3, plain(4, [2, 3], [1, 17], [1, 4])),
        grouped(
            2,
            Correlation {
                element: Element::F64,
                out_element: "double".to_owned(),
                ..stepped([2, 1], [1, 2], [[0, 2], [2, 2]], plain(2, [3, 6], [5, 6], [5, 3]))
            },
        ),
    ]
}

/// Fills, calls, and compares with the definition.
fn body(of: &Correlation, groups: usize, group_stride: usize, calls: &str) -> String {
    let ([h, w], [oh, ow], [kh, kw]) = (of.image, of.result, of.kernel);
    let (n, c, f, element) = (of.batch, of.channels, of.filters, of.element.c());
    let weights = f * c * kh * kw;
    let mut text = String::new();
    let _ = writeln!(text, "FILLED({element}, a, {});", n * groups * c * h * w);
    let _ = writeln!(text, "FILLED({element}, b, {});", n * f * oh * ow);
    let _ = writeln!(text, "FILLED({element}, out, {weights}); FILLED({element}, operand0, {weights});");
    text.push_str(calls);
    let _ = writeln!(
        text,
        "for (long batch = 0; batch < {c}; batch++) for (long row = 0; row < {f}; row++)\n\
         for (long ky = 0; ky < {kh}; ky++) for (long kx = 0; kx < {kw}; kx++) {{ double sum = 0;\n\
         for (long i = 0; i < {n}; i++) for (long oy = 0; oy < {oh}; oy++) for (long ox = 0; ox < {ow}; ox++) {{\n\
         long y = oy * {} + ky * {} - {}, x = ox * {} + kx * {} - {};\n\
         if (y < 0 || y >= {h} || x < 0 || x >= {w}) continue;\n\
         sum += (double)a[i * {} + row / {} * {group_stride} + batch * {} + y * {w} + x] * b[i * {} + row * {} + oy * {ow} + ox]; }}",
        of.stride[0],
        of.dilation[0],
        of.padding[0][0],
        of.stride[1],
        of.dilation[1],
        of.padding[1][0],
        of.image_strides[0],
        f / groups,
        of.image_strides[1],
        of.result_strides[0],
        of.result_strides[1],
    );
    let place = |strides: &Strides| {
        format!(
            "batch * {} + row * {} + (ky * {kw} + kx) * {}",
            strides.batch[0], strides.row, strides.column
        )
    };
    let mut expected = of.epilogue.expression.replace("{acc}", "sum");
    if let Some(operand) = of.epilogue.operands.first() {
        expected = expected.replace("{0}", &format!("operand0[{}]", place(&operand.strides)));
    }
    let _ = writeln!(
        text,
        "double expected = {expected}, actual = (double)out[{}]; if (actual != expected) {{ failures++; \
         printf(\"gradient {c} {f} %ld %ld %ld %ld: %g, not %g\\n\", batch, row, ky, kx, actual, expected); return; }} }}\n\
         free(a); free(b); free(out); free(operand0);",
        place(&of.out)
    );
    text
}
