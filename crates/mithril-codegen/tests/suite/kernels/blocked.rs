//! Convolutions that read or write blocks of channels: halo that are there already, odd numbers of blocks, strides,
//! dilation, one group for each channel, long sums, threads. What lies around image and result is poisoned: NaN before, and
//! a number that must be there afterwards.

use std::fmt::Write as _;

use mithril_codegen::c::kernels::{
    Algorithm, Blocked, Element, Epilogue, Image, InBytes, Library, Operand, Places, Scheme, Stored, Strides,
    Target, TileFeatures,
};

use super::program::{Cases, calls};
use super::quantized_conv::exact;

/// A convolution of row-major tensors, and which of them lie in blocks.
#[derive(Clone, Copy)]
struct Case {
    element: Element,
    /// How image and result are stored in blocks.
    stored: Stored,
    batch: usize,
    channels: usize,
    filters: usize,
    groups: usize,
    image: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: [[usize; 2]; 2],
    /// Image, result.
    in_blocks: [bool; 2],
    algorithm: Algorithm,
    few_bits: Option<Scheme>,
    /// Whether sums are finished a vector at a time.
    in_vectors: bool,
}

impl Case {
    fn new([channels, filters]: [usize; 2], image: [usize; 2], kernel: [usize; 2]) -> Self {
        Self {
            element: Element::F32,
            stored: Stored::Same,
            batch: 1,
            channels,
            filters,
            groups: 1,
            image,
            kernel,
            stride: [1, 1],
            dilation: [1, 1],
            padding: [[0; 2]; 2],
            in_blocks: [true, true],
            algorithm: Algorithm::Direct,
            few_bits: None,
            in_vectors: false,
        }
    }
    fn result(&self) -> [usize; 2] {
        [0, 1].map(|i| {
            let reach = (self.kernel[i] - 1) * self.dilation[i] + 1;
            (self.image[i] + self.padding[i][0] + self.padding[i][1] - reach) / self.stride[i] + 1
        })
    }
}

pub fn cases(target: Target) -> Cases {
    written(&specifications(target.lanes), target)
}

/// Those that go Winograd's way.
pub fn winograd_cases(target: Target) -> Cases {
    written(&winograd(target.lanes), target)
}

fn written(specifications: &[Case], target: Target) -> Cases {
    let mut library = Library::new(target);
    let mut bodies = Vec::new();
    for (index, case) in specifications.iter().enumerate() {
        bodies.push(body(case, &mut library, 1 + index % 3));
    }
    Cases { source: library.source(), bodies }
}

/// Where most weights meet nothing but zeros.
fn mostly_zeros(lanes: usize) -> Vec<Case> {
    vec![
        // Weights that meet nothing but the zeros of a margin for most rows of the result.
        Case {
            dilation: [5, 3],
            padding: [[5, 5], [3, 3]],
            ..Case::new([9 * lanes, 2 * lanes], [6, 9], [3, 3])
        },
        Case {
            batch: 2,
            stride: [2, 1],
            dilation: [4, 1],
            padding: [[9, 6], [1, 1]],
            ..Case::new([13 * lanes, lanes], [7, 5], [4, 3])
        },
        // Along rows alone, and along both axes, from whose regions some weights are missing, or all.
        Case {
            dilation: [1, 9],
            padding: [[1, 1], [9, 9]],
            ..Case::new([5 * lanes, 2 * lanes], [5, 12], [3, 3])
        },
        Case {
            batch: 2,
            dilation: [12, 12],
            padding: [[12, 12], [12, 12]],
            ..Case::new([9 * lanes, 3 * lanes], [14, 15], [3, 3])
        },
        Case {
            stride: [2, 3],
            dilation: [6, 11],
            padding: [[7, 4], [11, 12]],
            in_blocks: [true, false],
            ..Case::new([5 * lanes, lanes + 3], [9, 16], [2, 3])
        },
        Case {
            in_blocks: [false, true],
            dilation: [8, 7],
            padding: [[8, 8], [7, 7]],
            ..Case::new([17, 2 * lanes], [9, 9], [3, 3])
        },
    ]
}

fn specifications(lanes: usize) -> Vec<Case> {
    let around = [[1, 1], [1, 1]];
    let mut all = vec![
        Case { padding: around, ..Case::new([3 * lanes, 3 * lanes], [7, 9], [3, 3]) },
        Case {
            batch: 2,
            stride: [2, 2],
            padding: [[0, 1], [1, 0]],
            ..Case::new([2 * lanes, lanes], [8, 11], [3, 3])
        },
        Case {
            stride: [1, 3],
            dilation: [2, 1],
            padding: [[2, 1], [0, 2]],
            ..Case::new([lanes, 2 * lanes], [9, 17], [3, 2])
        },
        Case { in_blocks: [true, false], ..Case::new([2 * lanes, 2 * lanes + 3], [5, 6], [1, 1]) },
        Case {
            in_blocks: [true, false],
            padding: around,
            batch: 3,
            ..Case::new([lanes, 1], [1, 40], [3, 3])
        },
        // Sums that are added up in pieces.
        Case { padding: [[2, 2], [2, 2]], ..Case::new([7 * lanes, lanes], [4, 5], [5, 5]) },
        Case { stride: [1, 2], padding: around, ..Case::new([17 * lanes, lanes], [4, 5], [3, 3]) },
        Case { groups: 3 * lanes, padding: around, ..Case::new([3 * lanes; 2], [7, 9], [3, 3]) },
        Case {
            groups: lanes,
            batch: 2,
            stride: [2, 3],
            dilation: [1, 2],
            padding: [[2, 0], [1, 4]],
            ..Case::new([lanes; 2], [10, 21], [5, 3])
        },
    ];
    all.extend(by_channels(lanes));
    all.extend(mostly_zeros(lanes));
    all.extend(row_major_images(lanes));
    let schemes = [Scheme::Int8Weights, Scheme::Int4Weights].into_iter().cycle();
    let few = |(case, scheme): (&Case, Scheme)| Case { few_bits: Some(scheme), ..*case };
    all.extend(all.iter().zip(schemes).map(few).collect::<Vec<_>>());
    let depth = Case { groups: 3 * lanes, padding: around, ..Case::new([3 * lanes; 2], [7, 9], [3, 3]) };
    all.push(Case { few_bits: Some(Scheme::Int8Weights), ..depth });
    all.extend(winograd(lanes));
    all.extend(grouped(lanes));
    let in_vectors = |case: &Case| Case { in_vectors: true, ..*case };
    all.extend(all.iter().filter(|case| case.in_blocks[1]).map(in_vectors).collect::<Vec<_>>());
    if lanes > 2 {
        all.push(Case { element: Element::F64, padding: around, ..Case::new([lanes; 2], [6, 7], [3, 3]) });
    }
    all
}

/// Each channel by itself: steps, gaps, and rows of weights that do not stay in registers.
fn by_channels(lanes: usize) -> Vec<Case> {
    vec![
        Case {
            groups: 2 * lanes,
            stride: [1, 2],
            dilation: [2, 3],
            padding: [[1, 1], [1, 1]],
            ..Case::new([2 * lanes; 2], [9, 31], [3, 5])
        },
        Case {
            groups: lanes,
            stride: [1, 2],
            padding: [[0, 0], [4, 5]],
            ..Case::new([lanes; 2], [3, 24], [2, 11])
        },
    ]
}

/// Groups that fill blocks, and smaller ones.
fn grouped(lanes: usize) -> Vec<Case> {
    let around = [[1, 1], [1, 1]];
    vec![
        Case { groups: 2, padding: around, ..Case::new([4 * lanes, 2 * lanes], [6, 9], [3, 3]) },
        Case {
            groups: lanes / 2,
            batch: 2,
            stride: [2, 1],
            padding: around,
            ..Case::new([2 * lanes, 2 * lanes], [7, 5], [3, 3])
        },
    ]
}

/// Those between blocks of bfloat16, in pairs of channels unless each is by itself.
pub fn cases_of_pairs(target: Target) -> Cases {
    let of_float = specifications(target.lanes);
    let is_between = |case: &&Case| {
        case.in_blocks[0]
            && case.few_bits.is_none()
            && case.element == Element::F32
            && case.algorithm == Algorithm::Direct
    };
    let halves = |case: &Case| Case { stored: Stored::BF16, ..*case };
    let mut cases = written(&of_float.iter().filter(is_between).map(halves).collect::<Vec<_>>(), target);
    cases.source = format!("{HALF}{ROUNDED}{}", cases.source);
    cases
}

/// Those of one group, with tiles: several rows of pixels and rows of several groups, an odd row at the end, images of one row, and
/// pixels that lie as if in one row.
pub fn cases_of_tiles(target: Target) -> Cases {
    let target = Target { tiles: TileFeatures { bf16: true, int8: false }, ..target };
    let (lanes, around) = (target.lanes, [[1, 1], [1, 1]]);
    let specifications = [
        Case { padding: around, batch: 2, ..Case::new([3 * lanes, 3 * lanes], [7, 9], [3, 3]) },
        Case { stride: [2, 3], padding: [[0, 1], [1, 0]], ..Case::new([2 * lanes, lanes], [8, 61], [3, 3]) },
        Case {
            dilation: [2, 3],
            padding: [[2, 1], [0, 2]],
            ..Case::new([lanes, 2 * lanes], [9, 71], [3, 2])
        },
        Case { in_blocks: [true, false], ..Case::new([2 * lanes, 2 * lanes + 3], [5, 6], [1, 1]) },
        Case { in_blocks: [true, false], padding: around, ..Case::new([lanes, 1], [1, 40], [3, 3]) },
        Case { in_vectors: true, ..Case::new([4 * lanes, 2 * lanes], [7, 7], [1, 1]) },
        Case {
            dilation: [12, 12],
            padding: [[12, 12], [12, 12]],
            ..Case::new([2 * lanes, lanes], [14, 15], [3, 3])
        },
        Case { padding: [[0; 2], [1, 1]], ..Case::new([lanes, lanes], [5, 1], [1, 3]) },
    ];
    let halves = |case: &Case| Case { stored: Stored::BF16, ..*case };
    let mut cases = written(&specifications.iter().map(halves).collect::<Vec<_>>(), target);
    cases.source = format!("{HALF}{ROUNDED}{}", cases.source);
    cases
}

/// What the prelude says of 16 bits.
const HALF: &str = include_str!("../../../src/c/prelude/half.c");

/// Rounding to 8 bits, as the definition says.
const ROUNDED: &str = "
__attribute__((unused)) static double rounded(double x) {
    int exponent;
    const double part = frexp(x, &exponent);
    return ldexp(rint(ldexp(part, 8)), exponent - 8);
}
";

/// Images that do not lie in blocks.
fn row_major_images(lanes: usize) -> Vec<Case> {
    vec![
        // The first layer of a network, one that brings an image into blocks, weights apart.
        Case {
            in_blocks: [false, true],
            stride: [2, 2],
            padding: [[3, 3], [3, 3]],
            ..Case::new([3, 2 * lanes], [13, 22], [7, 7])
        },
        Case {
            in_blocks: [false, true],
            batch: 2,
            stride: [2, 1],
            ..Case::new([2 * lanes + 1, lanes], [5, 7], [1, 1])
        },
        Case {
            in_blocks: [false, true],
            dilation: [1, 2],
            padding: [[0, 0], [3, 1]],
            ..Case::new([2, lanes], [6, 8], [2, 3])
        },
    ]
}

fn winograd(lanes: usize) -> Vec<Case> {
    let mut all = Vec::new();
    let around = [[1, 1], [1, 1]];
    // Few tiles (in phases) and many (fused), no multiples of a tile.
    let (one, two) = ([1, 1], [2, 2]);
    for (tile, stride, batch, blocks, image, padding) in [
        ([2, 2], one, 1, [1, 3], [5, 7], around),
        ([2, 2], one, 2, [2, 1], [40, 27], [[0, 2], [1, 0]]),
        ([4, 2], one, 1, [2, 1], [14, 13], around),
        ([4, 2], one, 2, [1, 2], [38, 27], [[2, 0], [1, 1]]),
        ([4, 4], one, 1, [3, 2], [7, 14], around),
        ([4, 4], one, 2, [1, 3], [57, 30], [[0, 0], [2, 2]]),
        ([2, 2], two, 1, [1, 3], [14, 14], around),
        ([2, 2], two, 2, [2, 1], [41, 28], [[0, 2], [1, 0]]),
        ([4, 2], two, 1, [2, 1], [28, 13], around),
        ([4, 4], two, 1, [3, 2], [7, 14], around),
        ([4, 4], two, 2, [1, 3], [57, 60], [[0, 0], [2, 2]]),
        ([2, 4], [1, 2], 1, [2, 2], [14, 29], around),
    ] {
        let algorithm = Algorithm::Winograd(tile);
        let case = Case::new(blocks.map(|n| n * lanes), image, [3, 3]);
        all.push(Case { batch, stride, padding, algorithm, ..case });
    }
    let case = Case::new([lanes + 1, 2 * lanes], [9, 13], [3, 3]);
    all.push(Case {
        in_blocks: [false, true],
        batch: 2,
        padding: [[1, 0], [2, 1]],
        algorithm: Algorithm::Winograd([4, 2]),
        ..case
    });
    let case = Case::new([lanes, 2 * lanes], [10, 18], [3, 3]);
    all.push(Case { in_blocks: [false, true], stride: two, algorithm: Algorithm::Winograd([4, 2]), ..case });
    all
}

/// How `channels` planes of this size lie, behind halo if they lie in blocks, and how many elements that takes.
fn lie(
    channels: usize,
    [height, width]: [usize; 2],
    batch: usize,
    halo: Option<[[usize; 2]; 2]>,
    lanes: usize,
) -> (Places, usize) {
    let Some([[above, below], [left, right]]) = halo else {
        let plane = height * width;
        let image = channels * plane;
        let places = Places {
            batch: image,
            block: lanes * plane,
            lane: plane,
            y: width,
            x: 1,
            base: 0,
            frames: [0; 2],
        };
        return (places, batch * image);
    };
    let row = (left + width + right) * lanes;
    let plane = (above + height + below) * row + lanes;
    let base = above * row + left * lanes;
    let image = plane * (channels / lanes);
    (Places { batch: image, block: plane, lane: 1, y: row, x: lanes, base, frames: [0; 2] }, batch * image)
}

/// The C expression of a place.
fn place(at: &Places, [image, channel, y, x]: [&str; 4], lanes: usize) -> String {
    let Places { batch, block, lane, y: row, x: pixel, base, .. } = at;
    format!(
        "({image}) * {batch} + ({channel}) / {lanes} * {block} + ({channel}) % {lanes} * {lane} + ({y}) * {row} + ({x}) * {pixel} + {base}"
    )
}

/// With a bias, a residual that lies as the result, and a number that depends on the place unless it is of vectors.
fn kernel(case: &Case, out: Places, lanes: usize) -> Blocked {
    let (element, stored) = (case.element.c(), case.stored.c(case.element));
    let (open, close) = (case.stored.open(), case.stored.close());
    let bias = Places { block: lanes, lane: 1, ..Places::default() };
    let mut expression = format!("relu_{}({{acc}} + {{0}} + {open}{{1}}{close})", case.element.suffix());
    if !case.in_vectors {
        expression.push_str(" + (float)(row % 3 + column % 5)");
    }
    if case.stored == Stored::BF16 {
        expression = format!("mithril_to_bf16({expression})");
    }
    let operand = |element: &str| Operand { element: element.to_owned(), strides: Strides::default() };
    Blocked {
        element: case.element,
        stored: case.stored,
        batch: case.batch,
        channels: case.channels,
        filters: case.filters,
        groups: case.groups,
        kernel: case.kernel,
        stride: case.stride,
        dilation: case.dilation,
        result: case.result(),
        depth: None,
        edges: (case.batch < 3).then_some([0, 1].map(|axis| [case.image[axis], case.padding[axis][0]])),
        image: Image::Plain(case.image, case.padding),
        out,
        out_element: stored.to_owned(),
        out_is_bf16: case.stored == Stored::BF16,
        epilogue: Epilogue {
            operands: vec![operand(element), operand(stored)],
            expression,
            vectors: case.in_vectors.then(|| "mithril_relu_vector({acc} + {0} + {1})".to_owned()),
        },
        operands: vec![bias, out],
        algorithm: case.algorithm,
        few_bits: case.few_bits,
        bytes: InBytes::default(),
    }
}

/// Fills an array of what image and result hold.
fn filled(case: &Case, name: &str, count: usize) -> String {
    match case.stored {
        Stored::BF16 => format!("FILLED_BF16({name}, {count});"),
        _ => format!("FILLED({}, {name}, {count});", case.element.c()),
    }
}

/// Fills, calls, and compares with the definition.
fn body(case: &Case, library: &mut Library, threads: usize) -> String {
    let lanes = library.target().lanes_of(case.element);
    let Case { batch, channels, filters, image: [h, w], kernel: [kh, kw], .. } = *case;
    let ([oh, ow], element) = (case.result(), case.element.c());
    let out_margins = case.in_blocks[1].then_some([[1, 0], [2, 1]]);
    let (out, out_elements) = lie(filters, [oh, ow], batch, out_margins, lanes);
    let mut conv = kernel(case, out, lanes);
    let mut source = lie(channels, case.image, batch, None, lanes);
    let mut halo = None;
    if case.in_blocks[0] {
        conv.image = Image::Blocks(Places::default());
        let margins = conv.halo(case.image, case.padding, library);
        halo = Some(margins);
        source = lie(channels, case.image, batch, Some(margins), lanes);
        conv.image = Image::Blocks(Places { base: 0, ..source.0 });
    }
    let before = conv.zeros_before(case.padding, library);
    let kernel = conv.build(library);
    let places = kh * kw;
    let is_depth = case.groups > 1;
    let stored = case.stored.c(case.element);
    let terms = match (is_depth, case.in_blocks[0]) {
        (true, _) => [(1, places), (places, 1), (1, 1)],
        (false, true) => [(channels / lanes, lanes * places), (places, 1), (lanes, places)],
        (false, false) => [(channels, places), (places, 1), (1, 1)],
    };
    let (source, elements) = source;
    let per_filter = channels / case.groups;
    let mut text = String::new();
    let _ = writeln!(text, "FILLED({element}, plain, {});", batch * channels * h * w);
    let _ = writeln!(text, "FILLED({element}, b, {});", filters * per_filter * kh * kw);
    text.push_str(&case.few_bits.map(|scheme| exact(scheme, filters, terms)).unwrap_or_default());
    let _ = writeln!(text, "FILLED({element}, operand0, {});", filters.next_multiple_of(lanes));
    let _ = writeln!(text, "{}", filled(case, "operand1", out_elements));
    let _ = writeln!(text, "{}\n{}", filled(case, "out", out_elements), filled(case, "image", elements));
    let _ = writeln!(
        text,
        "for (long i = 0; i < {out_elements}; i++) out[i] = 12345;\nfor (long i = 0; i < {elements}; i++) image[i] = {};",
        if case.stored == Stored::BF16 { "0x7fff" } else { "NAN" }
    );
    let [[above, below], [left, right]] = halo.unwrap_or_default();
    // Counted from the halo' first element on, which `base` points behind.
    let at = place(&source, ["n", "c", "y", "x"], lanes);
    let _ = writeln!(
        text,
        "for (long n = 0; n < {batch}; n++) for (long c = 0; c < {channels}; c++) \
         for (long y = -{above}; y < {h} + {below}; y++) for (long x = -{left}; x < {w} + {right}; x++)\n\
         image[{at}] = y < 0 || y >= {h} || x < 0 || x >= {w} ? 0 : {}plain[((n * {channels} + c) * {h} + y) * {w} + x]{};",
        if case.stored == Stored::BF16 { "mithril_to_bf16(" } else { "" },
        case.stored.close()
    );
    let first = source.base - if case.in_blocks[0] { before[0] * source.y + before[1] * source.x } else { 0 };
    let _ = writeln!(text, "const {stored} *const a = image + {first};");
    text.push_str(&calls(&kernel, threads));
    text.push_str(&comparison(case, &out, lanes));
    let _ = writeln!(
        text,
        "for (long i = 0; i < {out_elements}; i++) if (out[i] != 12345) {{ failures++; \
         printf(\"blocked {channels} {filters}: %ld beside the result is written\\n\", i); return; }}\n\
         free(plain); free(b); free(operand0); free(operand1); free(out); free(image);"
    );
    text
}

/// Compares the result with sums in `double`, and poisons it again.
fn comparison(case: &Case, out: &Places, lanes: usize) -> String {
    let Case { batch, channels: c, filters: f, image: [h, w], kernel: [kh, kw], .. } = *case;
    let [oh, ow] = case.result();
    let per_filter = c / case.groups;
    let first = format!("row / {} * {per_filter}", f / case.groups);
    let (open, close) = (case.stored.open(), case.stored.close());
    let rounded = if case.stored == Stored::BF16 { "rounded" } else { "" };
    // Sixths are not exact, but results are integers: a wrong place is off by far more.
    let tolerance = if matches!(case.algorithm, Algorithm::Winograd([4, _] | [_, 4])) { 1e-2 } else { 0.0 };
    let at = place(out, ["n", "row", "oy", "ox"], lanes);
    let [[top, _], [left, _]] = case.padding;
    let more = if case.in_vectors { "0" } else { "row % 3 + (oy * OW + ox) % 5" };
    let more = more.replace("OW", &ow.to_string());
    format!(
        "for (long n = 0; n < {batch}; n++) for (long row = 0; row < {f}; row++) for (long oy = 0; oy < {oh}; oy++) for (long ox = 0; ox < {ow}; ox++) {{
    double sum = 0;
    for (long k = {first}; k < {first} + {per_filter}; k++) for (long ky = 0; ky < {kh}; ky++) for (long kx = 0; kx < {kw}; kx++) {{
        long y = oy * {} + ky * {} - {top}, x = ox * {} + kx * {} - {left};
        if (y >= 0 && y < {h} && x >= 0 && x < {w})
            sum += (double)plain[((n * {c} + k) * {h} + y) * {w} + x] * b[((row * {per_filter} + (k - {first})) * {kh} + ky) * {kw} + kx];
    }}
    long place = {at};
    double expected = {rounded}(relu_f64(sum + operand0[row] + {open}operand1[place]{close}) + (double)({more}));
    if (!(fabs((double){open}out[place]{close} - expected) <= {tolerance})) {{
        failures++;
        printf(\"blocked {c} {f} {kh}x{kw} at %ld %ld %ld %ld: %g, not %g\\n\", n, row, oy, ox, (double){open}out[place]{close}, expected);
        return;
    }}
    out[place] = 12345;
}}
",
        case.stride[0], case.dilation[0], case.stride[1], case.dilation[1]
    )
}
