//! Convolutions in integers whose images or results lie as bytes. The range of both is -100 to 155 and the largest weight
//! of each filter 127, so that every scale is 1, a byte stands for its number and 100 less, and results are exact.

use std::fmt::Write as _;

use mithril_codegen::c::kernels::{AsBytes, Blocked, Image, InBytes, Library, Places, Target, TileFeatures};

use super::program::{Cases, calls};
use super::quantized_conv::{Case, PLAIN, Random};

const RANGE: [f32; 2] = [-100.0, 155.0];

/// How a tensor lies.
#[derive(Clone, Copy, PartialEq)]
enum Lies {
    /// Floats, in rows or blocks.
    Floats,
    /// Bytes, all channels of a pixel together.
    Bytes,
}

pub fn cases(target: Target) -> Cases {
    written(specifications(target.lanes), target)
}

/// Those for a processor with tiles: random ones, runs of which words are left, and pixels as if in one row.
pub fn cases_of_tiles(target: Target) -> Cases {
    use Lies::{Bytes, Floats};
    let target = Target { tiles: TileFeatures { bf16: false, int8: true }, ..target };
    let lanes = target.lanes;
    let mut specifications = specifications(lanes);
    let point = Case { kernel: [1, 1], padding: [[0; 2]; 2], ..PLAIN };
    specifications.extend([
        (Case { channels: [17 * lanes, 4 * lanes], image: [7, 7], batch: 2, ..point }, [Bytes, Bytes]),
        (Case { channels: [5 * lanes, 4 * lanes], image: [7, 7], batch: 2, ..point }, [Floats, Bytes]),
        (Case { channels: [4 * lanes, 4 * lanes], image: [9, 9], ..point }, [Bytes, Floats]),
        (Case { channels: [4 * lanes, 2 * lanes], image: [6, 61], ..PLAIN }, [Bytes, Bytes]),
    ]);
    let mut random = Random(5);
    specifications.extend((0..10).map(|index| {
        let groups = [1, 1, 2][random.below(3)];
        let channels = [random.below(6) + 1, random.below(4) + 1].map(|blocks| blocks * lanes);
        let channels = if groups == 1 { channels } else { channels.map(|channels| 4 * channels) };
        let lies = [if index % 4 == 3 { Floats } else { Bytes }, if index % 3 == 2 { Floats } else { Bytes }];
        (Case { channels, groups, ..random.case() }, lies)
    }));
    let cases = written(specifications, target);
    assert!(cases.source.contains("_tile_dpbusd(3, 5, 7)"), "no kernel of tiles");
    cases
}

fn written(specifications: Vec<(Case, [Lies; 2])>, target: Target) -> Cases {
    let mut library = Library::new(target);
    let mut bodies = Vec::new();
    for (index, (case, lies)) in specifications.into_iter().enumerate() {
        let mut conv = in_bytes(&case, lies, target.lanes);
        if index % 2 == 1 {
            // What can be said with vectors.
            let value = "{acc} / 8192 + {0}";
            value.clone_into(&mut conv.epilogue.expression);
            conv.epilogue.vectors = Some(value.to_owned());
        }
        let kernel = conv.quantized(Some(RANGE), &mut library);
        bodies.push(body(&case, &conv, lies[0], &calls(&kernel, 1 + index % 3)));
    }
    Cases { source: library.source(), bodies }
}

fn specifications(lanes: usize) -> Vec<(Case, [Lies; 2])> {
    use Lies::{Bytes, Floats};
    let wide = Case { batch: 2, channels: [2 * lanes, 2 * lanes], ..PLAIN };
    let point = |stride, filters| Case {
        channels: [lanes, filters],
        kernel: [1, 1],
        stride,
        padding: [[0; 2]; 2],
        ..PLAIN
    };
    vec![
        (Case { ..wide }, [Bytes, Bytes]),
        (Case { image: [7, 5], ..wide }, [Floats, Bytes]),
        (Case { stride: [2, 2], padding: [[1, 0], [0, 1]], ..wide }, [Bytes, Bytes]),
        (Case { dilation: [2, 3], stride: [1, 2], padding: [[0, 2], [3, 0]], ..wide }, [Bytes, Floats]),
        (Case { channels: [2 * lanes, 4 * lanes], groups: 2, ..wide }, [Bytes, Bytes]),
        (point([1, 1], 3 * lanes), [Bytes, Bytes]),
        (point([2, 3], 5), [Bytes, Floats]),
        (Case { channels: [3, 3 * lanes], kernel: [5, 5], ..PLAIN }, [Floats, Bytes]),
    ]
}

/// Where channels of this size lie.
fn places(channels: usize, size: [usize; 2], lies: Lies, lanes: usize) -> Places {
    if lies != Lies::Bytes {
        return Case::places(channels, size, lanes, channels.is_multiple_of(lanes));
    }
    Places { block: lanes, ..Case::places(channels, size, channels, true) }
}

fn in_bytes(case: &Case, [image, out]: [Lies; 2], lanes: usize) -> Blocked {
    let [channels, filters] = case.channels;
    let mut conv = case.conv(lanes, image != Lies::Floats);
    let of_image = places(channels, case.padded(), image, lanes);
    if image != Lies::Floats {
        conv.image = Image::Blocks(of_image);
    }
    conv.out = places(filters, case.result(), out, lanes);
    let as_bytes = |lies: Lies, batch: usize, nan_flags_of: usize| {
        let nan_flags = case.batch * batch;
        (lies == Lies::Bytes).then_some(AsBytes { range: RANGE, nan_flags, nan_flags_of })
    };
    conv.bytes = InBytes {
        of_integers: false,
        image: as_bytes(image, of_image.batch, channels / lanes * case.image[0]),
        out: as_bytes(out, conv.out.batch, filters / lanes * case.result()[0]),
    };
    if out != Lies::Floats {
        "uint8_t".clone_into(&mut conv.out_element);
    }
    "{acc} / 8192 + {0} + (float)(column % 3)".clone_into(&mut conv.epilogue.expression);
    conv
}

/// Fills, calls, and compares with the sums over the image in rows. Of several images the second holds a NaN.
fn body(case: &Case, conv: &Blocked, image_lies: Lies, calls: &str) -> String {
    let Case { batch, channels: [channels, filters], image: [height, width], .. } = *case;
    let terms = channels / case.groups * case.kernel[0] * case.kernel[1];
    let images = batch * channels * height * width;
    let mut text = format!(
        "FILLED(float, image, {images}); FILLED(float, b, {}); FILLED(float, operand0, {filters});\n\
         for (long f = 0; f < {filters}; f++) {{ b[f * {terms}] = 127; b[f * {terms} + {terms} / 2] -= 64; }}\n\
         for (long i = 0; i < {images}; i++) image[i] = (float)(i * 37 % 256 - 100);\n",
        filters * terms,
    );
    text.push_str(&image_code(case, conv, image_lies));
    let (element, nan_flags) =
        conv.bytes.out.map_or(("float", 0), |out| ("uint8_t", batch * out.nan_flags_of));
    let _ =
        writeln!(text, "{element} *out = malloc(({} + {nan_flags}) * sizeof *out);", batch * conv.out.batch);
    text + calls + &comparison(case, conv, element)
}

/// Code that lays the image out as the kernel reads it.
fn image_code(case: &Case, conv: &Blocked, lies: Lies) -> String {
    let Case { batch, channels: [channels, _], image: [height, width], .. } = *case;
    let [top, left] = [case.padding[0][0], case.padding[1][0]];
    let (lanes, plain) = (conv.operands[0].block, channels * height * width);
    let Some(bytes) = conv.bytes.image else {
        assert!(!matches!(conv.image, Image::Blocks(_)), "floats lie in rows here");
        return format!(
            "float *whole = malloc({0} * sizeof(float)), *a = whole;\nmemcpy(a, image, {0} * sizeof(float));\n\
             if ({batch} > 1) a[{plain} + {plain} / 2] = NAN;\n",
            batch * plain
        );
    };
    let at = places(channels, case.padded(), lies, lanes);
    format!(
        "uint8_t *whole = aligned_alloc(64, ({nan_flags} + {batch} * {of_nan_flags} + 127) / 64 * 64), *a = whole;\n\
         memset(whole, 100 - MITHRIL_DOT_OFFSET, {nan_flags}); memset(whole + {nan_flags}, 0, {batch} * {of_nan_flags});\n\
         if ({batch} > 1) whole[{nan_flags} + {of_nan_flags} + {of_nan_flags} / 2] = 1;\n\
         for (long n = 0; n < {batch}; n++) for (long c = 0; c < {channels}; c++)\n\
         for (long y = 0; y < {height}; y++) for (long x = 0; x < {width}; x++)\n\
         a[n * {} + c / {lanes} * {} + (y + {top}) * {} + (x + {left}) * {} + c % {lanes}] =\n\
         (uint8_t)((int)image[((n * {channels} + c) * {height} + y) * {width} + x] + 100 - MITHRIL_DOT_OFFSET);\n",
        at.batch,
        at.block,
        at.y,
        at.x,
        nan_flags = bytes.nan_flags,
        of_nan_flags = bytes.nan_flags_of,
    )
}

/// Statements that compare the result, of such elements.
fn comparison(case: &Case, conv: &Blocked, element: &str) -> String {
    let Case { batch, channels: [channels, filters], image: [height, width], .. } = *case;
    let ([kernel_height, kernel_width], [out_height, out_width]) = (case.kernel, case.result());
    let [top, left] = [case.padding[0][0], case.padding[1][0]];
    let (of, per_filter) = (channels / case.groups, filters / case.groups);
    let lanes = conv.operands[0].block;
    let Places { batch: out_batch, block, lane, y, x, .. } = conv.out;
    let compare = match conv.bytes.out {
        None => "const int differs = n == 1 ? actual == actual : actual != expected;".to_owned(),
        Some(out) => format!(
            "const uint8_t *const nan_flags = out + {} + n * {of};\n\
             int flagged = 0;\nfor (long i = 0; i < {of}; i++) flagged += nan_flags[i] != 0;\n\
             const float number = expected + 100.5f;\n\
             const uint8_t byte = (uint8_t)((number > 0 ? number < 255 ? (int)number : 255 : 0) - MITHRIL_DOT_OFFSET);\n\
             const int differs = n == 1 ? flagged != {of} : flagged || actual != byte;",
            out.nan_flags,
            of = out.nan_flags_of
        ),
    };
    let column = match conv.epilogue.vectors {
        None => format!(" + (float)((y * {out_width} + x) % 3)"),
        Some(_) => String::new(),
    };
    format!(
        "for (long n = 0; n < {batch}; n++) for (long f = 0; f < {filters}; f++)\n\
         for (long y = 0; y < {out_height}; y++) for (long x = 0; x < {out_width}; x++) {{\n\
         long sum = 0;\n\
         for (long c = 0; c < {of}; c++) for (long i = 0; i < {kernel_height}; i++) for (long j = 0; j < {kernel_width}; j++) {{\n\
         const long row = y * {} + i * {} - {top}, pixel = x * {} + j * {} - {left};\n\
         if (row >= 0 && row < {height} && pixel >= 0 && pixel < {width})\n\
         sum += (long)image[((n * {channels} + f / {per_filter} * {of} + c) * {height} + row) * {width} + pixel]\n\
         * (long)b[((f * {of} + c) * {kernel_height} + i) * {kernel_width} + j]; }}\n\
         const float expected = (float)sum / 8192 + operand0[f]{column};\n\
         const {element} actual = out[n * {out_batch} + f / {lanes} * {block} + f % {lanes} * {lane} + y * {y} + x * {x}];\n\
         {compare}\n\
         if (differs) {{ failures++; printf(\"{channels} to {filters}, {kernel_height}x{kernel_width}: \
         %ld %ld %ld %ld: %g, not %g\\n\", n, f, y, x, (double)actual, (double)expected); return; }}\n}}\n\
         free(whole); free(image); free(b); free(out); free(operand0);\n",
        case.stride[0], case.dilation[0], case.stride[1], case.dilation[1],
    )
}
