//! Convolutions in integers, of images in rows and in blocks with halo. The range of each image is 255 and the
//! largest weight of each filter 127, so that every scale is 1 and the result exactly that of the naive loops.

use std::fmt::Write as _;

use mithril_codegen::c::kernels::{
    Algorithm, Blocked, Element, Epilogue, GROUP, Image, InBytes, Library, Operand, Places, Scheme, Stored,
    Strides, Target, TileFeatures,
};

use super::program::{Cases, calls};

/// Statements that make weights `b`, whose filters' terms are counted by axes of these sizes and steps, such that keeping
/// them in low precision changes none: every scale is 1.
pub fn exact(scheme: Scheme, filters: usize, terms: [(usize, usize); 3]) -> String {
    let [(_, blocks), (places, place), (block, channel)] = terms;
    let all: usize = terms.iter().map(|(size, _)| size).product();
    let (largest, each) = if scheme == Scheme::Int4Weights { (-8, GROUP) } else { (127, all) };
    format!(
        "for (long f = 0; f < {filters}; f++) for (long k = 0; k < {all}; k += {each})\n\
         b[f * {all} + k / {} * {blocks} + k / {block} % {places} * {place} + k % {block} * {channel}] = {largest};\n",
        places * block
    )
}

/// A convolution of plain images: what is tested in both layouts.
pub struct Case {
    pub batch: usize,
    pub channels: [usize; 2],
    pub groups: usize,
    pub image: [usize; 2],
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub padding: [[usize; 2]; 2],
}

pub const PLAIN: Case = Case {
    batch: 1,
    channels: [3, 7],
    groups: 1,
    image: [9, 11],
    kernel: [3, 3],
    stride: [1, 1],
    dilation: [1, 1],
    padding: [[1, 1], [1, 1]],
};

pub fn cases(target: Target) -> Cases {
    written(&specifications(target.lanes.max(4)), target)
}

/// Those for a processor with tiles: random ones, long runs of which words are left, a single row.
pub fn cases_of_tiles(target: Target) -> Cases {
    let target = Target { tiles: TileFeatures { bf16: false, int8: true }, ..target };
    let point = Case { kernel: [1, 1], padding: [[0; 2]; 2], ..PLAIN };
    let mut specifications = vec![
        Case { channels: [68, 64], image: [7, 7], batch: 2, ..point },
        Case { channels: [272, 70], image: [3, 5], ..point },
        Case { channels: [16, 32], image: [1, 33], kernel: [1, 17], padding: [[0, 0], [8, 8]], ..PLAIN },
        Case { channels: [3, 32], image: [1, 40], kernel: [1, 33], padding: [[0, 0], [16, 16]], ..PLAIN },
    ];
    let mut random = Random(11);
    specifications.extend((0..8).map(|_| {
        let channels = random.below(70) + 2;
        Case { channels: [channels, random.below(70) + 1], ..random.case() }
    }));
    specifications.extend((0..3).map(|_| {
        let groups = random.below(3) + 1;
        let channels = [4 * groups * (random.below(8) + 1), 32 * groups];
        Case { channels, groups, ..random.case() }
    }));
    let cases = written(&specifications, target);
    assert!(cases.source.contains("_tile_dpbusd(3, 5, 7)"), "no kernel of tiles");
    cases
}

/// Numbers in no order, the same at each run.
pub struct Random(pub u32);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 16) as usize % end
    }

    /// An image, a kernel that fits into it, and how it moves.
    pub fn case(&mut self) -> Case {
        let kernel = [0, 1].map(|_| [1, 2, 3, 3, 5][self.below(5)]);
        Case {
            batch: self.below(2) + 1,
            image: [self.below(9) + 9, self.below(34) + 9],
            kernel,
            stride: [self.below(3) + 1, self.below(3) + 1],
            dilation: [self.below(2) + 1, self.below(2) + 1],
            padding: kernel.map(|size| [self.below(size), self.below(size)]),
            ..PLAIN
        }
    }
}

fn written(specifications: &[Case], target: Target) -> Cases {
    let mut library = Library::new(target);
    let mut bodies = Vec::new();
    for (index, case) in specifications.iter().enumerate() {
        let in_blocks = target.lanes > 1 && case.channels[0].is_multiple_of(target.lanes);
        for blocks in [false, true].into_iter().filter(|blocks| !blocks || in_blocks) {
            let conv = case.conv(target.lanes, blocks);
            let range = (index % 2 == 1).then_some([-100.0, 155.0]);
            let kernel = conv.quantized(range, &mut library);
            bodies.push(case.body(&conv, &calls(&kernel, 1 + index % 3)));
        }
    }
    Cases { source: library.source(), bodies }
}

fn specifications(lanes: usize) -> Vec<Case> {
    vec![
        Case {
            channels: [3, 37],
            stride: [2, 2],
            image: [15, 18],
            kernel: [7, 7],
            padding: [[3, 3], [3, 2]],
            ..PLAIN
        },
        Case { batch: 2, channels: [2 * lanes, 2 * lanes], ..PLAIN },
        Case { channels: [lanes, 2 * lanes + 3], kernel: [1, 1], padding: [[0; 2]; 2], ..PLAIN },
        Case {
            batch: 2,
            channels: [lanes, 5],
            kernel: [1, 1],
            stride: [2, 3],
            padding: [[1, 0], [2, 0]],
            ..PLAIN
        },
        Case { channels: [lanes, 9], dilation: [2, 3], stride: [1, 2], padding: [[0, 2], [3, 0]], ..PLAIN },
        Case { channels: [6, 40], image: [1, 40], kernel: [1, 5], padding: [[0, 0], [2, 2]], ..PLAIN },
        Case { channels: [9, 33], image: [7, 7], ..PLAIN },
        Case { channels: [2 * lanes, 4 * lanes], groups: 2, batch: 2, ..PLAIN },
    ]
}

impl Case {
    pub fn result(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let padded = self.image[axis] + self.padding[axis][0] + self.padding[axis][1];
            (padded - (self.kernel[axis] - 1) * self.dilation[axis] - 1) / self.stride[axis] + 1
        })
    }

    /// Places of `channels` planes of this size, in blocks of so many or one after another.
    pub fn places(channels: usize, [height, width]: [usize; 2], lanes: usize, in_blocks: bool) -> Places {
        let plane = height * width;
        let (lane, x) = if in_blocks { (1, lanes) } else { (plane, 1) };
        Places {
            batch: channels * plane,
            block: lanes * plane,
            lane,
            y: width * x,
            x,
            base: 0,
            frames: [0; 2],
        }
    }

    /// Height and width with halo.
    pub fn padded(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.image[axis] + self.padding[axis][0] + self.padding[axis][1])
    }

    pub fn conv(&self, lanes: usize, in_blocks: bool) -> Blocked {
        let [channels, filters] = self.channels;
        let image = if in_blocks {
            Image::Blocks(Self::places(channels, self.padded(), lanes, true))
        } else {
            Image::Plain(self.image, self.padding)
        };
        let out = Self::places(filters, self.result(), lanes, in_blocks && filters.is_multiple_of(lanes));
        let bias = Places { block: lanes, lane: 1, ..Places::default() };
        Blocked {
            element: Element::F32,
            stored: Stored::Same,
            batch: self.batch,
            channels,
            filters,
            groups: self.groups,
            kernel: self.kernel,
            stride: self.stride,
            dilation: self.dilation,
            result: self.result(),
            depth: None,
            edges: None,
            image,
            out,
            out_element: "float".to_owned(),
            out_is_bf16: false,
            epilogue: Epilogue {
                operands: vec![Operand { element: "float".to_owned(), strides: Strides::default() }],
                expression: "relu_f32(2 * {acc} + {0} + (float)(column % 3))".to_owned(),
                vectors: None,
            },
            operands: vec![bias],
            algorithm: Algorithm::Direct,
            few_bits: None,
            bytes: InBytes::default(),
        }
    }

    /// Fills, calls, and compares with the sums over the image in rows.
    fn body(&self, conv: &Blocked, calls: &str) -> String {
        let Self { batch, channels: [channels, filters], image: [height, width], .. } = *self;
        let ([kernel_height, kernel_width], [out_height, out_width]) = (self.kernel, self.result());
        let [padded_height, padded_width] = self.padded();
        let [top, left] = [self.padding[0][0], self.padding[1][0]];
        let (of, per_filter) = (channels / self.groups, filters / self.groups);
        let terms = of * kernel_height * kernel_width;
        let plain = channels * height * width;
        let mut text = format!(
            "FILLED(float, image, {}); FILLED(float, b, {}); FILLED(float, out, {}); FILLED(float, operand0, {filters});\n\
             for (long n = 0; n < {batch}; n++) {{ image[n * {plain}] = 155; image[n * {plain} + {}] = -100; }}\n\
             for (long f = 0; f < {filters}; f++) b[f * {terms}] = 127;\n",
            batch * plain,
            filters * terms,
            batch * filters * out_height * out_width,
            height * width
        );
        if let Image::Blocks(places) = conv.image {
            let count = batch * places.batch;
            let _ = writeln!(
                text,
                "float *a = calloc({count}, sizeof(float));\n\
                 for (long n = 0; n < {batch}; n++) for (long c = 0; c < {channels}; c++)\n\
                 for (long y = 0; y < {height}; y++) for (long x = 0; x < {width}; x++)\n\
                 a[n * {} + c / {lanes} * {} + (y + {top}) * {} + (x + {left}) * {lanes} + c % {lanes}] =\n\
                 image[((n * {channels} + c) * {height} + y) * {width} + x];",
                places.batch,
                places.block,
                places.y,
                lanes = places.x,
            );
        } else {
            text.push_str("float *a = image;\n");
        }
        text.push_str(calls);
        let lanes = conv.operands[0].block;
        let Places { batch: out_batch, block, lane, y, x, .. } = conv.out;
        let _ = writeln!(
            text,
            "for (long n = 0; n < {batch}; n++) for (long f = 0; f < {filters}; f++)\n\
             for (long y = 0; y < {out_height}; y++) for (long x = 0; x < {out_width}; x++) {{\n\
             double sum = 0;\n\
             for (long c = 0; c < {of}; c++) for (long i = 0; i < {kernel_height}; i++) for (long j = 0; j < {kernel_width}; j++) {{\n\
             const long row = y * {} + i * {} - {top}, pixel = x * {} + j * {} - {left};\n\
             if (row >= 0 && row < {height} && pixel >= 0 && pixel < {width})\n\
             sum += (double)image[((n * {channels} + f / {per_filter} * {of} + c) * {height} + row) * {width} + pixel]\n\
             * b[((f * {of} + c) * {kernel_height} + i) * {kernel_width} + j]; }}\n\
             const float expected = relu_f32((float)(2 * sum + operand0[f] + (double)((y * {out_width} + x) % 3)));\n\
             const float actual = out[n * {out_batch} + f / {lanes} * {block} + f % {lanes} * {lane} + y * {y} + x * {x}];\n\
             if (actual != expected) {{ failures++; printf(\"{channels} to {filters}, {kernel_height}x{kernel_width}, blocks {}: \
             %ld %ld %ld %ld: %g, not %g\\n\", n, f, y, x, (double)actual, (double)expected); return; }}\n}}\n\
             if (a != image) free(a);\nfree(image); free(b); free(out); free(operand0);",
            self.stride[0],
            self.dilation[0],
            self.stride[1],
            self.dilation[1],
            padded_height * padded_width * usize::from(matches!(conv.image, Image::Blocks(_))),
        );
        text
    }
}
