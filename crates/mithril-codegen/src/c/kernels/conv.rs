//! Convolutions of images (of lines as images of height 1): any kernel, stride, dilation, margins and groups.

use super::epilogue::place;
use super::gemm::{Gemm, Packing};
use super::library::{PanelUse, substitute};
use super::quantized::{Columns, Panels};
use super::rows::RowGroups;
use super::{Argument, Call, Element, Epilogue, Kernel, Library, Scheme, Strides, Target, winograd};

/// How a convolution is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// What is estimated to be fastest.
    Fastest,
    /// Every product of the definition, in the order of the definition.
    Direct,
    /// Winograd's way with output tiles of so many rows and pixels, 2 or 4, where it can be used, else the direct one.
    Winograd([usize; 2]),
}

/// `out[n, filters, oh, ow] = epilogue(convolution of image[n, channels, h, w] by weights[filters, channels / groups,
/// kh, kw])`, all row-major. In the epilogue `batch` is the image, `row` the filter and `column` the pixel
/// (`y * ow + x`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conv {
    /// What image, weights and sums hold.
    pub element: Element,
    /// Images.
    pub batch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Channels of the result.
    pub filters: usize,
    /// Groups of channels that do not mix; divides both.
    pub groups: usize,
    /// Height and width of an image.
    pub image: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Steps between two pixels of the result, down and to the right.
    pub stride: [usize; 2],
    /// Steps between two weights, down and to the right.
    pub dilation: [usize; 2],
    /// Zeros before and after, for height and width.
    pub padding: [[usize; 2]; 2],
    /// Where the result lies: one batch axis, `row` along filters, `column` along pixels.
    pub out: Strides,
    /// The C type of the result, which the epilogue's expression has.
    pub out_element: String,
    /// How it is done.
    pub algorithm: Algorithm,
    /// When the weights are packed.
    pub packing: Packing,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
    /// How weights that are packed ahead are kept, if in few bits: they become float at the start of a call.
    pub few_bits: Option<Scheme>,
}

impl Conv {
    /// One group, steps of 1, no padding, weights packed ahead, no epilogue. Where other fields are changed after,
    /// [`Conv::row_major`] brings `out` in line.
    pub fn new(
        element: Element,
        batch: usize,
        [channels, filters]: [usize; 2],
        image: [usize; 2],
        kernel: [usize; 2],
    ) -> Self {
        Self {
            element,
            batch,
            channels,
            filters,
            groups: 1,
            image,
            kernel,
            stride: [1, 1],
            dilation: [1, 1],
            padding: [[0, 0], [0, 0]],
            out: Strides::default(),
            out_element: element.c().to_owned(),
            algorithm: Algorithm::Fastest,
            packing: Packing::Ahead,
            epilogue: Epilogue::none(),
            few_bits: None,
        }
        .row_major()
    }

    /// The same with a row-major result.
    #[must_use]
    pub fn row_major(mut self) -> Self {
        let [height, width] = self.result();
        self.out = Strides { batch: vec![self.filters * height * width], row: height * width, column: 1 };
        self
    }

    /// Height and width of the result.
    pub fn result(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1;
            (self.padded(axis).saturating_sub(reach)) / self.stride[axis] + 1
        })
    }

    /// Puts the kernel's functions into the library.
    pub fn build(&self, library: &mut Library) -> Kernel {
        let tile = if self.few_bits.is_none() { winograd::tile(self, library) } else { None };
        match tile {
            Some(tile) => winograd::build(self, tile, library),
            _ if self.groups == self.channels && self.channels > 1 => self.build_depth(library),
            _ if self.few_bits.is_none() && self.wastes_columns(library.target()) => {
                self.as_rows_of_pixels().build(library)
            }
            _ => self.build_direct(library),
        }
    }

    /// Every channel by itself: the weights are read as they are.
    fn build_depth(&self, library: &mut Library) -> Kernel {
        let plan = Plan::new(self, library.target());
        let function = self.add(include_str!("conv_depth.c"), library, &plan);
        let operands = (0..self.epilogue.operands.len()).map(Argument::Operand);
        let few = self.few_bits.map(|scheme| self.in_few_bits(scheme, plan.k, 0, library));
        let weights = if few.is_some() { Argument::Shared } else { Argument::B };
        let mut arguments = vec![Argument::Thread, Argument::Threads, Argument::A, weights, Argument::Out];
        arguments.extend(operands.chain([Argument::Own]));
        let bytes = |elements: usize| (elements * self.element.bytes()).next_multiple_of(64);
        let kernel = Kernel {
            pack: None,
            packed_bytes: 0,
            first: None,
            phases: vec![vec![Call { function, arguments }]],
            shared_bytes: 0,
            own_bytes: bytes(self.padded(0) * self.padded_width() + self.result()[1]),
        };
        match few {
            Some(few) => few.before(kernel),
            None => kernel,
        }
    }

    /// Weights in few bits, of `k` terms each, which become float from this byte of the shared memory on.
    fn in_few_bits(&self, scheme: Scheme, k: usize, at: usize, library: &mut Library) -> FewBits {
        let lanes = library.target().lanes;
        let panels = Panels { scheme, lanes, n: self.filters, k, matrices: 1 };
        let columns = Columns { batch: "0".to_owned(), column: k, term: "k".to_owned() };
        let pack = panels.pack(library, &columns);
        let statement = panels.unpack(library, "panel", "own");
        let numbers = [("n", self.filters), ("k", k), ("lanes", lanes)].map(|(key, n)| (key, n.to_string()));
        let mut pairs: Vec<(&str, &str)> = numbers.iter().map(|(key, n)| (*key, n.as_str())).collect();
        pairs.push(("unpack", &statement));
        let wish = format!("mithril_float_weights_{}x{k}", self.filters);
        let unpack = library.add(&wish, &substitute(include_str!("quantized_filters.c"), &pairs));
        let work = |function: String, arguments: Vec<Argument>| Call {
            function,
            arguments: [vec![Argument::Thread, Argument::Threads], arguments].concat(),
        };
        FewBits {
            pack: work(pack, vec![Argument::B, Argument::Packed]),
            packed_bytes: panels.bytes(),
            unpack: work(unpack, vec![Argument::Packed, Argument::SharedAt(at), Argument::Own]),
            shared_bytes: (self.filters * k * 4).next_multiple_of(64),
            own_bytes: (panels.k_padded() * 2 * lanes * 4).next_multiple_of(64),
        }
    }

    /// Whether pixels do not fill their panels, and would fill groups of rows: a kernel of one weight on a small image.
    fn wastes_columns(&self, target: &Target) -> bool {
        let pixels: usize = self.result().iter().product();
        let columns = pixels.next_multiple_of(2 * target.lanes_of(self.element));
        let names = ["row", "column"].iter().any(|name| self.epilogue.expression.contains(name));
        self.is_point() && self.groups == 1 && pixels >= target.rows() && columns * 10 > pixels * 11 && !names
    }

    /// The same as a product whose rows are pixels and whose columns are filters.
    fn as_rows_of_pixels(&self) -> Gemm {
        let pixels = self.result().iter().product();
        let turned = |strides: &Strides| Strides {
            batch: strides.batch.clone(),
            row: strides.column,
            column: strides.row,
        };
        let mut epilogue = self.epilogue.clone();
        for operand in &mut epilogue.operands {
            operand.strides = turned(&operand.strides);
        }
        Gemm {
            batch: vec![self.batch],
            a: Strides { batch: vec![self.channels * pixels], row: 1, column: pixels },
            b: Strides { batch: vec![0], row: 1, column: self.channels },
            out: turned(&self.out),
            out_element: self.out_element.clone(),
            packing: self.packing,
            epilogue,
            ..Gemm::new(self.element, pixels, self.filters, self.channels)
        }
    }

    fn build_direct(&self, library: &mut Library) -> Kernel {
        let plan = Plan::new(self, library.target());
        let function = self.multiply(library, &plan);
        let pack = plan.rows.pack(library, self.element, [self.groups, self.filters / self.groups, plan.k]);
        let bytes = |elements: usize| (elements * self.element.bytes()).next_multiple_of(64);
        let weights = bytes(self.filters * plan.k.next_multiple_of(plan.lanes));
        let padded = if self.is_point() { 0 } else { bytes(self.padded_elements(plan.lanes)) };
        // What is kept in few bits is packed as if it came with every call.
        let ahead = self.packing == Packing::Ahead && self.few_bits.is_none();
        let packed = if ahead { Argument::Packed } else { Argument::SharedAt(padded) };
        let image = if self.is_point() { Argument::A } else { Argument::Shared };
        let work = |function: String, [from, to]: [Argument; 2]| Call {
            function,
            arguments: vec![Argument::Thread, Argument::Threads, from, to],
        };
        let behind = padded + if ahead { 0 } else { weights };
        let few = self.few_bits.map(|scheme| self.in_few_bits(scheme, plan.k, behind, library));
        let given = if few.is_some() { Argument::SharedAt(behind) } else { Argument::B };
        let pack = work(pack, [given, packed.clone()]);
        let mut arguments = vec![Argument::Thread, Argument::Threads, image, packed, Argument::Out];
        arguments.extend((0..self.epilogue.operands.len()).map(Argument::Operand));
        arguments.push(Argument::Own);
        let mut first = Vec::new();
        if !self.is_point() {
            first.push(work(self.pad(library), [Argument::A, Argument::Shared]));
        }
        first.extend((!ahead).then(|| pack.clone()));
        let mut phases: Vec<Vec<Call>> = vec![vec![Call { function, arguments }]];
        if !first.is_empty() {
            phases.insert(0, first);
        }
        let kernel = Kernel {
            packed_bytes: if ahead { weights } else { 0 },
            first: None,
            shared_bytes: behind,
            own_bytes: bytes((plan.panel_block * plan.k + 1 + plan.rows.most()) * 2 * plan.lanes),
            phases,
            pack: ahead.then_some(pack),
        };
        match few {
            Some(few) => few.before(kernel),
            None => kernel,
        }
    }

    /// Width of the image with margins, in whole steps.
    fn padded_width(&self) -> usize {
        self.padded(1).next_multiple_of(self.stride[1])
    }

    pub(super) fn padded(&self, axis: usize) -> usize {
        self.image[axis] + self.padding[axis][0] + self.padding[axis][1]
    }

    /// A pixel of the result is a pixel of the image.
    fn is_point(&self) -> bool {
        self.kernel == [1, 1] && self.stride == [1, 1] && self.padding == [[0, 0], [0, 0]]
    }

    /// Elements of the copy with margins, and of what may be read beyond.
    fn padded_elements(&self, lanes: usize) -> usize {
        self.batch * self.channels * self.padded(0) * self.padded_width() + 2 * lanes
    }

    fn numbers(&self, plan: &Plan) -> [(&'static str, usize); 28] {
        let [height, width] = self.result();
        let group_channels = self.channels / self.groups;
        let plane = if self.is_point() { height * width } else { self.padded(0) * self.padded_width() };
        [
            ("n", self.batch),
            ("channels", self.channels),
            ("filters", self.filters),
            ("groups", self.groups),
            ("group_channels", group_channels),
            ("group_elements", group_channels * plane),
            ("top", self.padding[0][0]),
            ("left", self.padding[1][0]),
            ("h", self.image[0]),
            ("w", self.image[1]),
            ("kh", self.kernel[0]),
            ("kw", self.kernel[1]),
            ("oh", height),
            ("ow", width),
            ("run", width.next_multiple_of(plan.lanes).min(2 * plan.lanes)),
            ("k", plan.k),
            ("lanes", plan.lanes),
            ("padded_width", self.padded_width()),
            ("padded_plane", plane),
            ("stride_y", self.stride[0]),
            ("stride_x", self.stride[1]),
            ("dilation_y", self.dilation[0]),
            ("dilation_x", self.dilation[1]),
            ("row_groups", plan.rows.groups),
            ("rows", plan.rows.rows),
            ("longer", plan.rows.longer),
            ("row_block", plan.row_block),
            ("panel_block", plan.panel_block),
        ]
    }

    /// The products of one channel's kernel, written out: compilers take pixels a vector at a time only then.
    fn terms(&self) -> String {
        let [height, width] = self.kernel;
        let row = |y: usize| {
            let term = |x: usize| {
                let place = y * self.dilation[0] * self.padded_width() + x * self.dilation[1];
                format!("kernel[{}] * line[x * {} + {place}]", y * width + x, self.stride[1])
            };
            (0..width).map(term).collect::<Vec<_>>().join(" + ")
        };
        (0..height).map(row).collect::<Vec<_>>().join("\n    + ")
    }

    fn pad(&self, library: &mut Library) -> String {
        pad(library, self.element, self.batch * self.channels, self.image, self.padding, self.stride[1])
    }

    fn multiply(&self, library: &mut Library, plan: &Plan) -> String {
        let gather =
            if self.is_point() { include_str!("conv_point.c") } else { include_str!("conv_gather.c") };
        self.add(&include_str!("conv.c").replace("@gather@", gather), library, plan)
    }

    fn add(&self, template: &str, library: &mut Library, plan: &Plan) -> String {
        let micro = "{micro}(K, left, right, tile, 0, fetch, stride);";
        let micro_calls = if template.contains("@micro_calls@") {
            plan.rows.calls(micro, library, self.element, PanelUse::Shared)
        } else {
            String::new()
        };
        let [height, width] = self.result();
        let what = match (self.groups, self.dilation) {
            (1, [1, 1]) => "convolution",
            (1, _) => "dilated convolution",
            _ => "grouped convolution",
        };
        let strings = [
            ("what", what.to_owned()),
            ("micro_calls", micro_calls),
            ("terms", self.terms()),
            ("type", self.element.c().to_owned()),
            ("t", self.element.suffix().to_owned()),
            ("out", self.out_element.clone()),
            ("out_place", place(&self.out, &[self.batch])),
            ("expression", self.epilogue.text(&[self.batch])),
            ("parameters", self.epilogue.parameters()),
            ("arguments", self.epilogue.arguments()),
        ];
        let numbers = self.numbers(plan);
        let numbers = numbers.map(|(key, number)| (key, number.to_string()));
        let pairs: Vec<(&str, &str)> =
            strings.iter().chain(&numbers).map(|(key, value)| (*key, value.as_str())).collect();
        let text = substitute(template, &pairs);
        let [kernel_height, kernel_width] = self.kernel;
        let wish = format!(
            "mithril_conv_{}_{}_{kernel_height}x{kernel_width}_{height}x{width}",
            self.channels, self.filters
        );
        library.add(&wish, &text)
    }
}

/// What there is to weights that are kept in few bits.
struct FewBits {
    pack: Call,
    packed_bytes: usize,
    /// Makes floats of them, in this shared memory.
    unpack: Call,
    shared_bytes: usize,
    own_bytes: usize,
}

impl FewBits {
    /// The kernel of the floats, after they are made.
    fn before(self, mut kernel: Kernel) -> Kernel {
        kernel.phases.insert(0, vec![self.unpack]);
        Kernel {
            pack: Some(self.pack),
            packed_bytes: self.packed_bytes,
            shared_bytes: kernel.shared_bytes + self.shared_bytes,
            own_bytes: kernel.own_bytes.max(self.own_bytes),
            ..kernel
        }
    }
}

/// The function that copies planes of an image between margins of zeros, columns apart by `step` side by side.
pub(crate) fn pad(
    library: &mut Library,
    element: Element,
    planes: usize,
    [height, width]: [usize; 2],
    padding: [[usize; 2]; 2],
    step: usize,
) -> String {
    let padded_height = height + padding[0][0] + padding[0][1];
    let padded_width = width + padding[1][0] + padding[1][1];
    let text = substitute(
        include_str!("conv_pad.c"),
        &[
            ("type", element.c()),
            ("planes", &planes.to_string()),
            ("h", &height.to_string()),
            ("w", &width.to_string()),
            ("padded_height", &padded_height.to_string()),
            ("padded_width", &padded_width.next_multiple_of(step).to_string()),
            ("stride_x", &step.to_string()),
            ("top", &padding[0][0].to_string()),
            ("left", &padding[1][0].to_string()),
        ],
    );
    library.add(&format!("mithril_pad_{padded_height}x{padded_width}"), &text)
}

/// How a convolution is cut up.
struct Plan {
    lanes: usize,
    /// Terms of a sum.
    k: usize,
    rows: RowGroups,
    /// Groups of filters, and panels of pixels, of one unit of work.
    row_block: usize,
    panel_block: usize,
}

impl Plan {
    fn new(conv: &Conv, target: &Target) -> Self {
        let lanes = target.lanes_of(conv.element);
        let k = conv.channels / conv.groups * conv.kernel[0] * conv.kernel[1];
        let rows = RowGroups::new(conv.filters / conv.groups, target);
        let panels = conv.result().iter().product::<usize>().div_ceil(2 * lanes).max(1);
        let fitting = (target.cache / (k * 2 * lanes * conv.element.bytes()).max(1)).clamp(1, panels);
        // Enough units for every thread to have about as much as any other: fewer panels, then fewer filters each.
        let wanted = (8 * target.threads).div_ceil((conv.batch * conv.groups).max(1));
        let panel_block = fitting.min((panels / wanted).max(1));
        let row_block =
            rows.groups.div_ceil(wanted.div_ceil(panels.div_ceil(panel_block)).clamp(1, rows.groups));
        Self { lanes, k, rows, row_block, panel_block }
    }
}
