//! Convolutions of images (of lines as images of height 1): any kernel, stride, dilation, padding and groups.

use crate::c::ir::kernel::{Argument, Call, Kernel};
use crate::c::kernels::common::library::{Library, PanelUse, substitute};
use crate::c::kernels::common::pad::pad;
use crate::c::kernels::common::row_groups::RowGroups;
use crate::c::kernels::quantized::gemm::{Columns, Panels};
use crate::c::kernels::spec::conv::Conv;
use crate::c::kernels::spec::epilogue::place;
use crate::c::kernels::spec::gemm::{Gemm, Packing};
use crate::c::kernels::spec::strides::Strides;
use crate::c::kernels::winograd::build;
use crate::c::options::Scheme;
use crate::c::target::Target;

impl Conv {
    /// Puts the kernel's functions into the library.
    pub fn build(&self, library: &mut Library) -> Kernel {
        let tile = if self.few_bits.is_none() { build::tile(self, library) } else { None };
        match tile {
            Some(tile) => build::build(self, tile, library),
            _ if self.is_depth() => self.build_depth(library),
            _ if self.few_bits.is_none() && self.wastes_columns(library.target()) => {
                self.as_rows_of_pixels().build(library)
            }
            _ => self.build_direct(library),
        }
    }

    /// Quantized weights, of `k` terms each, which become float from this byte of the shared memory on.
    pub(super) fn in_few_bits(&self, scheme: Scheme, k: usize, at: usize, library: &mut Library) -> FewBits {
        let lanes = library.target().lanes;
        let panels = Panels { scheme, lanes, n: self.filters, k, matrices: 1, fills_tiles: false };
        let columns = Columns { batch: "0".to_owned(), column: k, term: "k".to_owned() };
        let pack = panels.pack(library, &columns);
        let statement = panels.unpack(library, "panel", "scratch");
        let numbers = [("n", self.filters), ("k", k), ("lanes", lanes)].map(|(key, n)| (key, n.to_string()));
        let mut pairs: Vec<(&str, &str)> = numbers.iter().map(|(key, n)| (*key, n.as_str())).collect();
        pairs.push(("unpack", &statement));
        let wish = format!("mithril_float_weights_{}x{k}", self.filters);
        let unpack = library.add(&wish, &substitute(include_str!("../quantized/filters.c"), &pairs));
        let work = |function: String, arguments: Vec<Argument>| Call {
            function,
            arguments: [vec![Argument::Thread, Argument::Threads], arguments].concat(),
        };
        FewBits {
            pack: work(pack, vec![Argument::B, Argument::Packed]),
            packed_bytes: panels.bytes(),
            unpack: work(unpack, vec![Argument::Packed, Argument::SharedAt(at), Argument::Scratch]),
            shared_bytes: (self.filters * k * 4).next_multiple_of(64),
            scratch_bytes: (panels.k_padded() * 2 * lanes * 4).next_multiple_of(64),
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
        // What is quantized is packed as if it came with every call.
        let ahead = self.packing == Packing::Ahead && self.few_bits.is_none();
        let packed = if ahead { Argument::Packed } else { Argument::SharedAt(padded) };
        let image = if self.is_point() { Argument::A } else { Argument::Shared };
        let work = |function: String, [from, to]: [Argument; 2]| Call {
            function,
            arguments: vec![Argument::Thread, Argument::Threads, from, to],
        };
        let behind = padded + if ahead { 0 } else { weights };
        let few = self.few_bits.map(|scheme| self.in_few_bits(scheme, plan.k, behind, library));
        let source = if few.is_some() { Argument::SharedAt(behind) } else { Argument::B };
        let pack = work(pack, [source, packed.clone()]);
        let mut arguments = vec![Argument::Thread, Argument::Threads, image, packed, Argument::Out];
        arguments.extend((0..self.epilogue.operands.len()).map(Argument::Operand));
        arguments.push(Argument::Scratch);
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
            panel_start: None,
            shared_bytes: behind,
            scratch_bytes: bytes((plan.panel_block * plan.k + 1 + plan.rows.most()) * 2 * plan.lanes),
            phases,
            pack: ahead.then_some(pack),
        };
        match few {
            Some(few) => few.before(kernel),
            None => kernel,
        }
    }

    /// Width of the image with padding, in whole steps.
    pub(super) fn padded_width(&self) -> usize {
        self.padded(1).next_multiple_of(self.stride[1])
    }

    /// A pixel of the result is a pixel of the image.
    fn is_point(&self) -> bool {
        self.kernel == [1, 1] && self.stride == [1, 1] && self.padding == [[0, 0], [0, 0]]
    }

    /// Elements of the copy with padding, and of what may be read beyond.
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
            ("remainder", plan.rows.remainder),
            ("row_block", plan.row_block),
            ("panel_block", plan.panel_block),
        ]
    }

    fn pad(&self, library: &mut Library) -> String {
        pad(library, self.element, self.batch * self.channels, self.image, self.padding, self.stride[1])
    }

    fn multiply(&self, library: &mut Library, plan: &Plan) -> String {
        let gather = if self.is_point() { include_str!("point.c") } else { include_str!("gather.c") };
        let micro = "{micro}(K, left, right, tile, 0, fetch, stride);";
        let left = (self.result().iter().product(), "PIXELS - column");
        let micro_calls = plan.rows.calls_of_columns(micro, library, self.element, PanelUse::Shared, left);
        let what = match (self.groups, self.dilation) {
            (1, [1, 1]) => "convolution",
            (1, _) => "dilated convolution",
            _ => "grouped convolution",
        };
        let strings = [
            ("what", what.to_owned()),
            ("micro_calls", micro_calls),
            ("arguments", self.epilogue.arguments()),
        ];
        let template = include_str!("direct.c").replace("@gather@", gather);
        self.add(&template, library, &strings, &self.numbers(plan))
    }

    /// Puts a function into the library: a template with these strings and numbers, and what every one of them says of
    /// elements, the epilogue and the result.
    pub(super) fn add(
        &self,
        template: &str,
        library: &mut Library,
        strings: &[(&str, String)],
        numbers: &[(&str, usize)],
    ) -> String {
        let common = [
            ("type", self.element.c().to_owned()),
            ("t", self.element.suffix().to_owned()),
            ("out", self.out_element.clone()),
            ("out_place", place(&self.out, &[self.batch])),
            ("expression", self.epilogue.text(&[self.batch])),
            ("parameters", self.epilogue.parameters()),
        ];
        let numbers: Vec<(&str, String)> =
            numbers.iter().map(|(key, number)| (*key, number.to_string())).collect();
        let pairs: Vec<(&str, &str)> = strings
            .iter()
            .chain(&common)
            .chain(&numbers)
            .map(|(key, value)| (*key, value.as_str()))
            .collect();
        let ([height, width], [kernel_height, kernel_width]) = (self.result(), self.kernel);
        let wish = format!(
            "mithril_conv_{}_{}_{kernel_height}x{kernel_width}_{height}x{width}",
            self.channels, self.filters
        );
        library.add(&wish, &substitute(template, &pairs))
    }
}

/// What there is to weights that are quantized.
pub(super) struct FewBits {
    pack: Call,
    packed_bytes: usize,
    /// Makes floats of them, in this shared memory.
    unpack: Call,
    shared_bytes: usize,
    scratch_bytes: usize,
}

impl FewBits {
    /// The kernel of the floats, after they are made.
    pub(super) fn before(self, mut kernel: Kernel) -> Kernel {
        kernel.phases.insert(0, vec![self.unpack]);
        Kernel {
            pack: Some(self.pack),
            packed_bytes: self.packed_bytes,
            shared_bytes: kernel.shared_bytes + self.shared_bytes,
            scratch_bytes: kernel.scratch_bytes.max(self.scratch_bytes),
            ..kernel
        }
    }
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
        let parts = (8 * target.threads).div_ceil((conv.batch * conv.groups).max(1));
        let panel_block = fitting.min((panels / parts).max(1));
        let row_block =
            rows.groups.div_ceil(parts.div_ceil(panels.div_ceil(panel_block)).clamp(1, rows.groups));
        Self { lanes, k, rows, row_block, panel_block }
    }
}
