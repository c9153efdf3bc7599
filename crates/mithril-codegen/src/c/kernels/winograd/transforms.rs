//! Lines of Winograd's tiles: how so many pixels, so many apart, become points and come back, as C.
//!
//! With step 2, even pixels of a line meet the outer two weights, which is a convolution of two weights with step 1, and odd
//! pixels the one between, which is a product each.

use crate::c::kernels::common::library::{Library, substitute};

/// The text for lines of output tiles of one length and step.
struct Transform {
    line: &'static str,
    /// The last one belongs to all points that are left.
    line_weights: &'static str,
    weights: usize,
    line_back: &'static str,
    /// Points for which one of the three weights is taken as it is, and which.
    plain: &'static [(usize, usize)],
}

/// Lines of 4 pixels.
static FOUR: Transform = Transform {
    line: "const mithril_f32 a = d[4] - 4.0f * d[2], b = d[3] - 4.0f * d[1], p = d[4] - d[2], q = 2.0f * (d[3] - d[1]);
r[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
r[1] = a + b;
r[2] = a - b;
r[3] = p + q;
r[4] = p - q;
r[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];",
    line_weights: "const mithril_f32 a = d[0] + d[2], b = d[0] + 4.0f * d[2];
r[0] = d[0];
r[1] = a + d[1];
r[2] = a - d[1];
r[3] = b + 2.0f * d[1];
r[4] = b - 2.0f * d[1];
r[5] = d[2];",
    weights: 6,
    line_back: "const mithril_f32 a = (d[1] + d[2]) * (-1.0f / 6), b = d[3] + d[4];
const mithril_f32 p = (d[1] - d[2]) * (-1.0f / 6), q = d[3] - d[4];
r[0] = d[0] * 0.25f + a + b * (1.0f / 24);
r[1] = p + q * (1.0f / 12);
r[2] = a + b * (1.0f / 6);
r[3] = p + q * (1.0f / 3) + d[5];",
    plain: &[(0, 0), (5, 2)],
};

/// Lines of 4 pixels, 2 apart: five points of the even pixels, then the odd ones.
static FOUR_APART: Transform = Transform {
    line: "const mithril_f32 a = d[6] - d[2];
r[0] = 2.0f * (d[0] - d[4]) + a;
r[1] = 2.0f * d[2] + d[4] - d[6];
r[2] = 2.0f * d[2] - 3.0f * d[4] + d[6];
r[3] = a;
r[4] = d[8] - d[4] - 2.0f * a;
r[5] = d[1];
r[6] = d[3];
r[7] = d[5];
r[8] = d[7];",
    line_weights: "r[0] = d[0];
r[1] = d[0] + d[2];
r[2] = d[0] - d[2];
r[3] = d[0] + 2.0f * d[2];
r[4] = d[2];
r[5] = d[1];",
    weights: 6,
    line_back: "const mithril_f32 a = d[1] * 0.5f, b = d[2] * (1.0f / 6), p = a - b, q = a + b;
r[0] = d[0] * 0.5f + p + d[3] * (1.0f / 6) + d[5];
r[1] = q + d[3] * (1.0f / 3) + d[6];
r[2] = p + d[3] * (2.0f / 3) + d[7];
r[3] = q + d[3] * (4.0f / 3) + d[4] + d[8];",
    plain: &[(0, 0), (4, 2), (5, 1), (6, 1), (7, 1), (8, 1)],
};

/// Lines of 2 pixels, 2 apart: three points of the even pixels, then the odd ones.
static TWO_APART: Transform = Transform {
    line: "r[0] = d[0] - d[2];
r[1] = d[2];
r[2] = d[4] - d[2];
r[3] = d[1];
r[4] = d[3];",
    line_weights: "r[0] = d[0];
r[1] = d[0] + d[2];
r[2] = d[2];
r[3] = d[1];",
    weights: 4,
    line_back: "r[0] = d[0] + d[1] + d[3];
r[1] = d[1] + d[2] + d[4];",
    plain: &[(0, 0), (2, 2), (3, 1), (4, 1)],
};

/// Lines of 2 pixels.
static TWO: Transform = Transform {
    line: "r[0] = d[0] - d[2];
r[1] = d[1] + d[2];
r[2] = d[2] - d[1];
r[3] = d[1] - d[3];",
    line_weights: "const mithril_f32 a = d[0] + d[2];
r[0] = d[0];
r[1] = a + d[1];
r[2] = a - d[1];
r[3] = d[2];",
    weights: 4,
    line_back: "r[0] = d[0] + (d[1] + d[2]) * 0.5f;
r[1] = (d[1] - d[2]) * 0.5f - d[3];",
    plain: &[(0, 0), (3, 2)],
};

/// Rows and pixels of an output tile.
pub(crate) type Tile = [usize; 2];

fn transform(pixels: usize, step: usize) -> &'static Transform {
    match (pixels, step) {
        (4, 1) => &FOUR,
        (4, _) => &FOUR_APART,
        (_, 1) => &TWO,
        (..) => &TWO_APART,
    }
}

/// Adds the functions that transform lines of a tile, down and across.
pub(crate) fn add_lines(tile: Tile, steps: [usize; 2], library: &mut Library) {
    for axis in [0, 1] {
        let (pixels, step) = (tile[axis], steps[axis]);
        let (m, points) = (mark([pixels; 2], [step; 2]), extent(pixels, step).to_string());
        let (written, transform) = (pixels.to_string(), transform(pixels, step));
        let pairs = [
            ("m", &*m),
            ("pixels", &*written),
            ("tile", &*points),
            ("step", if step == 1 { "" } else { ", 2 apart" }),
            ("line_back", transform.line_back),
            ("line_weights", transform.line_weights),
            ("line", transform.line),
        ];
        let text = substitute(include_str!("line.c"), &pairs);
        library.add(&format!("mithril_winograd{m}_line"), &text);
    }
}

/// Which weight is that of a point as it is, if one is.
pub(crate) fn plain(pixels: usize, step: usize, point: usize) -> Option<usize> {
    transform(pixels, step).plain.iter().find(|(at, _)| *at == point).map(|(_, weight)| *weight)
}

/// How names say two sizes.
pub(crate) fn pair([down, across]: [usize; 2]) -> String {
    if down == across { down.to_string() } else { format!("{down}x{across}") }
}

/// How names of functions say the size of a tile and the steps between its pixels.
pub(crate) fn mark(tile: Tile, steps: [usize; 2]) -> String {
    let steps = if steps == [1, 1] { String::new() } else { format!("s{}", pair(steps)) };
    format!("{}{steps}", pair(tile))
}

/// Points of a line of so many pixels; so many pixels are read for them.
pub(crate) fn extent(pixels: usize, step: usize) -> usize {
    (pixels - 1) * step + 3
}

/// Weights of a tile, down and across. Points of a line that are behind its last weight have that one, too: those of the
/// odd pixels.
pub(crate) fn weights_of(tile: Tile, steps: [usize; 2]) -> [usize; 2] {
    [0, 1].map(|axis| transform(tile[axis], steps[axis]).weights)
}

/// Points of a tile, down and across.
pub(crate) fn points_of(tile: Tile, steps: [usize; 2]) -> [usize; 2] {
    [0, 1].map(|axis| extent(tile[axis], steps[axis]))
}
