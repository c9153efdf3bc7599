//! Convolutions of each channel by itself, between row-major tensors: any kernel, stride, dilation and padding. There are too
//! few products per pixel for products of matrices: vectors of pixels are multiplied by one weight after the other.

use crate::c::ir::kernel::{Argument, Call, Kernel};
use crate::c::kernels::common::library::{Library, substitute};
use crate::c::kernels::spec::conv::Conv;
use crate::c::target::Target;

/// Most vectors of sums of a tile: as many as hide the latency of a multiplication.
const MOST: usize = 8;

/// Most rows of weights that stay in registers beside a tile.
const MOST_WEIGHTS: usize = 8;

/// Elements of the rows of a band: they, and the rows of the copy under them, stay in the first-level cache.
const BAND: usize = 4096;

impl Conv {
    /// Puts the kernel's functions into the library. The weights are read as they are.
    pub(super) fn build_depth(&self, library: &mut Library) -> Kernel {
        let plan = Plan::new(self, library.target());
        let template = if plan.lanes > 1 { include_str!("depth.c") } else { include_str!("depth_scalar.c") };
        let function = self.add_depth(template, library, &plan);
        let operands = (0..self.epilogue.operands.len()).map(Argument::Operand);
        let terms = self.kernel.iter().product();
        let few = self.few_bits.map(|scheme| self.in_few_bits(scheme, terms, 0, library));
        let weights = if few.is_some() { Argument::Shared } else { Argument::B };
        let mut arguments = vec![Argument::Thread, Argument::Threads, Argument::A, weights, Argument::Out];
        arguments.extend(operands.chain([Argument::Scratch]));
        let kernel = Kernel {
            pack: None,
            packed_bytes: 0,
            panel_start: None,
            phases: vec![vec![Call { function, arguments }]],
            shared_bytes: 0,
            scratch_bytes: (plan.scratch(self) * self.element.bytes()).next_multiple_of(64),
        };
        match few {
            Some(few) => few.before(kernel),
            None => kernel,
        }
    }

    fn add_depth(&self, template: &str, library: &mut Library, plan: &Plan) -> String {
        let [height, width] = self.result();
        let [kernel_height, kernel_width] = self.kernel;
        let strings = [
            ("sum_up", plan.sum_up(self)),
            ("terms", self.terms()),
            ("phases", Plan::phases(self)),
            ("products", plan.products(self)),
            ("lines", plan.lines(self)),
            ("copy", plan.copy(self)),
            (
                "rows",
                if plan.is_compacted {
                    format!(", *const rows = sums + {}", plan.sums)
                } else {
                    String::new()
                },
            ),
            ("results", if plan.is_compacted { "rows" } else { "sums" }.to_owned()),
        ];
        let numbers = [
            ("n", self.batch),
            ("channels", self.channels),
            ("filters", self.filters),
            ("top", self.padding[0][0]),
            ("left", self.padding[1][0]),
            ("h", self.image[0]),
            ("w", self.image[1]),
            ("kh", kernel_height),
            ("kw", kernel_width),
            ("oh", height),
            ("ow", width),
            ("stride_y", self.stride[0]),
            ("lanes", plan.lanes),
            ("padded_width", self.padded_width()),
            ("padded_plane", self.padded(0) * self.padded_width()),
            ("phase_width", plan.phase[1]),
            ("plane", plan.plane),
            ("step", plan.step),
            ("out_step", plan.out_step),
            ("most", MOST),
            ("band", plan.band),
            ("tiles", plan.tiles),
            ("across", plan.vectors / plan.tiles),
            ("remainder", plan.vectors % plan.tiles),
        ];
        self.add(template, library, &strings, &numbers)
    }

    /// The products of one channel's kernel, written out: compilers take pixels a vector at a time only then. In groups
    /// that do not wait for each other.
    fn terms(&self) -> String {
        let [height, width] = self.kernel;
        let row = |y: usize| {
            let term = |x: usize| {
                let place = y * self.dilation[0] * self.padded_width() + x * self.dilation[1];
                format!("kernel[{}] * line[x * {} + {place}]", y * width + x, self.stride[1])
            };
            let terms: Vec<String> = (0..width).map(term).collect();
            terms
                .chunks(8)
                .map(|group| format!("({})", group.join(" + ")))
                .collect::<Vec<_>>()
                .join("\n    + ")
        };
        (0..height).map(row).collect::<Vec<_>>().join("\n    + ")
    }
}

/// How the sums of a channel are cut up: into bands of rows, and these into tiles of vectors below one another, or side by
/// side in one long row with what lies between two rows of the copy.
struct Plan {
    lanes: usize,
    /// Lines of the copy that lie a stride apart, and pixels of one that do.
    phase: [usize; 2],
    /// Elements of the copy, and of what may be read beyond.
    plane: usize,
    /// Rows of a band.
    band: usize,
    /// Whether the rows of a band are one long row.
    is_flat: bool,
    /// Vectors of a column of vectors, and the tiles that they are divided into.
    vectors: usize,
    tiles: usize,
    /// Elements from one vector of a tile to the next, in the copy and among the sums.
    step: usize,
    out_step: usize,
    /// Elements of the sums.
    sums: usize,
    /// Whether rows are brought together behind the sums.
    is_compacted: bool,
}

impl Plan {
    fn new(of: &Conv, target: &Target) -> Self {
        let lanes = target.lanes_of(of.element);
        let [height, width] = of.result();
        let phase = [0, 1].map(|axis| of.padded(axis).div_ceil(of.stride[axis]));
        let bands = (height * phase[1]).div_ceil(BAND).clamp(1, height.div_ceil(MOST));
        let band = height.div_ceil(bands);
        let long_row = (band - 1) * phase[1] + width;
        // Rows below one another share what they read.
        let shares = band > 1 && of.kernel[0] <= MOST_WEIGHTS;
        let is_flat = !shares && (band == 1 || long_row.div_ceil(lanes) < band * width.div_ceil(lanes));
        let vectors = if is_flat { long_row.div_ceil(lanes) } else { band };
        Self {
            lanes,
            phase,
            plane: phase.iter().chain(&of.stride).product::<usize>() + lanes,
            band,
            is_flat,
            vectors,
            tiles: vectors.div_ceil(MOST),
            step: if is_flat { lanes } else { phase[1] },
            out_step: if is_flat { lanes } else { width },
            sums: if is_flat { (vectors + 1) * lanes } else { band * width + lanes },
            is_compacted: is_flat && band > 1 && phase[1] != width,
        }
    }

    /// Elements of scratch memory.
    fn scratch(&self, of: &Conv) -> usize {
        let width = of.result()[1];
        if self.lanes == 1 {
            return of.padded(0) * of.padded_width() + width;
        }
        self.plane + self.sums + if self.is_compacted { self.band * width + self.lanes } else { 0 }
    }

    /// What the function's comment says about the order of the copy.
    fn phases(of: &Conv) -> String {
        match of.stride {
            [1, 1] => String::new(),
            [y, x] => format!(
                ",\n   [y % {y}][x % {x}][y / {y}][x / {x}], so that pixels a stride apart are neighbors"
            ),
        }
    }

    /// The line of the copy of this row and pixel of the image with padding.
    fn line_of(&self, y: &str, x: &str, of: &Conv) -> String {
        let line = over(y, of.stride[0]);
        let phase = match of.stride {
            [1, 1] => return line,
            [_, 1] => rest(y, of.stride[0]),
            [1, _] => rest(x, of.stride[1]),
            [_, across] => format!("({} * {across} + {})", rest(y, of.stride[0]), rest(x, of.stride[1])),
        };
        format!("({phase} * {} + {line})", self.phase[0])
    }

    /// Copies a row of the image.
    fn copy(&self, of: &Conv) -> String {
        let ([top, left], stride) = (of.padding.map(|[before, _]| before), of.stride[1]);
        let y = shifted("lines", top);
        if stride == 1 {
            let line = self.line_of(&y, "0", of);
            return format!(
                "@type@ *const line = plane + {line} * @phase_width@ + @left@;\nfor (long x = 0; x < W; x++)\n    \
                 line[x] = from[lines * W + x];"
            );
        }
        let line = self.line_of(&y, "phase", of);
        format!(
            "for (long phase = 0; phase < {stride}; phase++) {{\n    const long start = (phase + {}) % {stride}; /* pixel of \
             this phase */\n    @type@ *const line = plane + {line} * @phase_width@ + (start + @left@) / {stride};\n    \
             for (long x = 0; x * {stride} + start < W; x++)\n        line[x] = from[lines * W + x * {stride} + start];\n}}",
            stride - left % stride
        )
    }

    /// Rows of the image under the rows of a band.
    fn lines(&self, of: &Conv) -> String {
        let reach = (self.band - 1) * of.stride[0] + (of.kernel[0] - 1) * of.dilation[0] + 1;
        let first = scaled("first", of.stride[0]);
        match reach.checked_sub(of.padding[0][0]) {
            Some(rows) => format!("{first} + {rows}"),
            None => format!("{first} - {}", of.padding[0][0] - reach),
        }
    }

    /// Adds all products to the sums of a tile.
    fn products(&self, of: &Conv) -> String {
        let [down, across] = of.dilation;
        let x = scaled("x", across);
        if self.is_flat || of.kernel[0] > MOST_WEIGHTS {
            let line = self.line_of(&scaled("y", down), &x, of);
            let numbers = [("line", line), ("column", over(&x, of.stride[1]))];
            let numbers = numbers.each_ref().map(|(key, text)| (*key, text.as_str()));
            return substitute(include_str!("depth_vectors.c"), &numbers);
        }
        let [stride, stride_across] = of.stride;
        let phase_of_pixels = (stride_across > 1)
            .then(|| format!("{} * {} + ", rest(&x, stride_across), self.phase[0] * self.phase[1]));
        let column = phase_of_pixels.unwrap_or_default() + &over(&x, stride_across);
        let place = match stride {
            1 => "line".to_owned(),
            _ => format!("(phase * {} + line)", stride_across * self.phase[0]),
        };
        let of_phase = match stride {
            1 => String::new(),
            _ => format!("{} == phase && ", rest(&scaled("y", down), stride)),
        };
        let reach = (of.kernel[0] - 1) * down / stride;
        let text = substitute(
            include_str!("depth_rows.c"),
            &[
                ("place", &place),
                ("column", &column),
                ("of_phase", &of_phase),
                ("row", &format!("line - {}", over(&scaled("y", down), stride))),
                ("reach", &reach.to_string()),
                ("most_lines", &(MOST + reach).to_string()),
            ],
        );
        let each = match stride {
            1 => String::new(),
            _ => {
                format!("MITHRIL_UNROLL({stride})\n    for (long phase = 0; phase < {stride}; phase++)\n    ")
            }
        };
        text.replace("@each_phase@", &each)
    }

    /// Computes the sums of a channel.
    fn sum_up(&self, of: &Conv) -> String {
        let [height, width] = of.result();
        let tile = |across: &str, at: &str| {
            let from = if self.band == height { "i" } else { "(first + i)" };
            let (from, to) = if self.is_flat {
                ("first * @phase_width@ + i * @step@".to_owned(), at)
            } else {
                (format!("{at}{from} * @step@"), at)
            };
            format!("@name@_tile({across}, plane + {from}, kernel, sums + {to}i * @out_step@);")
        };
        let tiles = |at: &str| {
            let few = tile("ACROSS", at);
            if self.vectors.is_multiple_of(self.tiles) {
                return format!("for (long i = 0; i < TILES * ACROSS; i += ACROSS)\n    {few}");
            }
            format!(
                "for (long tile = 0, i = 0; tile < TILES; tile++) {{\n    if (tile < REMAINDER) {{\n        {}\n        \
                 i += ACROSS + 1;\n    }} else {{\n        {few}\n        i += ACROSS;\n    }}\n}}",
                tile("ACROSS + 1", at)
            )
        };
        if self.is_flat {
            let compact = "\nfor (long y = 0; y < BAND; y++)\n    for (long x = 0; x < OUT_WIDTH; x += LANES)\n        \
                           MITHRIL_STORE(@t@, rows + y * OUT_WIDTH + x, MITHRIL_LOAD(@t@, sums + y * @phase_width@ + x));";
            return tiles("") + if self.is_compacted { compact } else { "" };
        }
        if width <= self.lanes {
            return tiles("");
        }
        let left = if width.is_multiple_of(self.lanes) {
            "left"
        } else {
            "left + LANES <= OUT_WIDTH ? left : OUT_WIDTH - LANES"
        };
        format!(
            "for (long left = 0; left < OUT_WIDTH; left += LANES) {{\n    const long x = {left};\n    {}\n}}",
            tiles("x + ").replace('\n', "\n    ")
        )
    }
}

fn scaled(name: &str, by: usize) -> String {
    if by == 1 { name.to_owned() } else { format!("{name} * {by}") }
}

fn shifted(name: &str, by: usize) -> String {
    if by == 0 { name.to_owned() } else { format!("({name} + {by})") }
}

fn over(text: &str, by: usize) -> String {
    if by == 1 { text.to_owned() } else { format!("{text} / {by}") }
}

fn rest(text: &str, by: usize) -> String {
    format!("{text} % {by}")
}
