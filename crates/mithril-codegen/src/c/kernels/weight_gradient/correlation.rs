//! Gradients of the weights of convolutions: every weight meets all pixels of all images. No matrix of what lies under the
//! weights is stored; pixels are brought into vectors of filters strip by strip, and images are read as they are.

use crate::c::ir::kernel::{Argument, Call, Kernel};
use crate::c::kernels::common::library::{Library, substitute};
use crate::c::kernels::common::pad::pad;
use crate::c::kernels::common::row_groups::RowGroups;
use crate::c::kernels::spec::epilogue::{Epilogue, place};
use crate::c::kernels::spec::strides::Strides;
use crate::c::target::{Element, Target};

/// Pixels of a strip: their vectors stay in the second-level cache, and sums of so many terms are added to one another.
const STRIP: usize = 512;

/// `out[channel, filter, ky, kx] = epilogue(sum over n, y, x of image[n, channel, y * step + ky * dilation - padding, …] ·
/// result[n, filter, y, x])`. In the epilogue `batch` is the channel, `row` the filter and `column` the place
/// (`ky * kw + kx`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correlation {
    /// What image, result and sums hold.
    pub element: Element,
    /// Images.
    pub batch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Channels of the result of the convolution.
    pub filters: usize,
    /// Height and width of an image.
    pub image: [usize; 2],
    /// Height and width of the weights.
    pub kernel: [usize; 2],
    /// Height and width of the result of the convolution.
    pub result: [usize; 2],
    /// Steps between two pixels of the result, down and to the right.
    pub stride: [usize; 2],
    /// Steps between two weights, down and to the right.
    pub dilation: [usize; 2],
    /// Zeros before and after, for height and width.
    pub padding: [[usize; 2]; 2],
    /// Elements from one image to the next, and from one channel to the next; rows and pixels lie together.
    pub image_strides: [usize; 2],
    /// The same of the result.
    pub result_strides: [usize; 2],
    /// Where the sums go: one batch axis along channels, `row` along filters, `column` along weights of a channel.
    pub out: Strides,
    /// The C type of what is written, which the epilogue's expression has.
    pub out_element: String,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
}

/// How it is cut up. A tile of sums is of several channels, or of several rows of weights of one channel, or of
/// several weights of one row: one of these three is split into groups.
struct Plan {
    lanes: usize,
    panels: usize,
    /// Which of channels, rows of weights and weights of a row is split into groups.
    split: usize,
    groups: [RowGroups; 3],
    /// Groups of channels of a unit.
    block: usize,
    /// Lines of a strip, pixels of a piece of a line.
    strip: usize,
    piece: usize,
    /// Parts of the lines that units share.
    parts: usize,
}

impl Plan {
    fn new(of: &Correlation, target: &Target) -> Self {
        let (lanes, most) = (target.lanes_of(of.element), target.rows());
        let width = 2 * lanes;
        let [height, across] = of.kernel;
        let whole = |size: usize| RowGroups { groups: 1, rows: size, remainder: 0 };
        let single = |size: usize| RowGroups { groups: size, rows: 1, remainder: 0 };
        let (split, groups) = if height * across <= most {
            let channels = RowGroups::of(of.channels, most / (height * across));
            (0, [channels, whole(height), whole(across)])
        } else if across <= most {
            (1, [single(of.channels), RowGroups::of(height, most / across), whole(across)])
        } else {
            (2, [single(of.channels), single(height), RowGroups::of(across, most)])
        };
        let bytes = groups[0].most() * height * across * width * of.element.bytes();
        let block = (target.cache / 2 / bytes.max(1)).clamp(1, groups[0].groups);
        let blocks = groups[0].groups.div_ceil(block);
        let block = groups[0].groups.div_ceil(blocks);
        let lines = of.batch * of.result[0];
        let pieces = of.result[1].div_ceil(STRIP).max(1);
        let strip = if pieces > 1 { 1 } else { (STRIP / of.result[1].max(1)).clamp(1, lines) };
        let strip = lines.div_ceil(lines.div_ceil(strip));
        let panels = of.filters.div_ceil(width);
        // Enough units for every thread to have about as much as any other.
        let parts = (4 * target.threads).div_ceil(panels * blocks).min(lines.div_ceil(strip) * pieces);
        Self { lanes, panels, split, groups, block, strip, piece: of.result[1].div_ceil(pieces), parts }
    }

    /// Elements of the sums of a unit.
    fn sums(&self, of: &Correlation) -> usize {
        self.block * self.groups[0].most() * of.kernel.iter().product::<usize>() * 2 * self.lanes
    }
}

impl Correlation {
    /// Whether this many filters fill vectors well enough.
    pub fn suits(filters: usize, element: Element, target: &Target) -> bool {
        2 * filters >= filters.next_multiple_of(2 * target.lanes_of(element))
    }

    /// Puts the kernel's functions into the library. `None` if the image needs padding and its planes do not lie one
    /// after the other.
    pub fn build(&self, library: &mut Library) -> Option<Kernel> {
        let plan = Plan::new(self, library.target());
        let bytes = |elements: usize| (elements * self.element.bytes()).next_multiple_of(64);
        let (mut phases, mut image, mut padded_bytes) = (Vec::new(), Argument::A, 0);
        let work = |function: String, arguments: Vec<Argument>| Call {
            function,
            arguments: [vec![Argument::Thread, Argument::Threads], arguments].concat(),
        };
        if self.has_padding() {
            let planes = self.batch * self.channels;
            let plane = self.image[0] * self.image[1];
            let mut strides = [(self.image_strides[0], self.batch), (self.image_strides[1], self.channels)];
            strides.sort_unstable();
            if strides[0].0 != plane || strides[1].0 != plane * strides[0].1 {
                return None;
            }
            let pad = pad(library, self.element, planes, self.image, self.padding, 1);
            phases.push(vec![work(pad, vec![Argument::A, Argument::Shared])]);
            image = Argument::Shared;
            padded_bytes = bytes(planes * self.plane());
        }
        let operands = || (0..self.epilogue.operands.len()).map(Argument::Operand);
        let function = self.add("gradient", include_str!("correlation.c"), library, &plan);
        let mut arguments = vec![image, Argument::B];
        let panel = plan.panels * self.channels * self.kernel[0] * self.kernel[1] * 2 * plan.lanes;
        let mut parts_bytes = 0;
        if plan.parts == 1 {
            arguments.push(Argument::Out);
            arguments.extend(operands());
        } else {
            arguments.push(Argument::SharedAt(padded_bytes));
            parts_bytes = bytes(plan.parts * panel);
        }
        arguments.push(Argument::Scratch);
        phases.push(vec![work(function, arguments)]);
        if plan.parts > 1 {
            let function = self.add("sum", include_str!("sum.c"), library, &plan);
            let mut arguments = vec![Argument::SharedAt(padded_bytes), Argument::Out];
            arguments.extend(operands().chain([Argument::Scratch]));
            phases.push(vec![work(function, arguments)]);
        }
        Some(Kernel {
            pack: None,
            packed_bytes: 0,
            panel_start: None,
            phases,
            shared_bytes: padded_bytes + parts_bytes,
            scratch_bytes: bytes(plan.strip * plan.piece * 2 * plan.lanes + plan.sums(self)),
        })
    }

    fn has_padding(&self) -> bool {
        self.padding != [[0, 0], [0, 0]]
    }

    fn padded(&self, axis: usize) -> usize {
        self.image[axis] + self.padding[axis][0] + self.padding[axis][1]
    }

    fn plane(&self) -> usize {
        self.padded(0) * self.padded(1)
    }

    /// From one image to the next and from one channel to the next, in what the kernel reads.
    fn read_strides(&self) -> [usize; 2] {
        let plane = self.image[0] * self.image[1];
        self.image_strides.map(|s| if self.has_padding() { s / plane * self.plane() } else { s })
    }

    /// Whether sums of a filter go where they lie together, as they are.
    fn writes_rows(&self, lanes: usize) -> bool {
        let places: usize = self.kernel.iter().product();
        let together = self.out.column == 1 && self.out.batch == [places];
        lanes > 1 && together && self.epilogue == Epilogue::none() && self.out_element == self.element.c()
    }

    fn add(&self, what: &str, template: &str, library: &mut Library, plan: &Plan) -> String {
        let epilogue = match (plan.parts > 1, what) {
            (true, "gradient") => "",
            _ if self.writes_rows(plan.lanes) => include_str!("epilogue_rows.c"),
            _ => include_str!("epilogue.c"),
        };
        let transpose = if plan.lanes > 1 { library.transpose(self.element) } else { String::new() };
        let square = if plan.lanes > 1 { SQUARE } else { "" };
        let mut strings = vec![
            ("epilogue", epilogue.to_owned()),
            ("square", square.to_owned()),
            (
                "to_parameters",
                if plan.parts == 1 { "@out@ *restrict out@parameters@" } else { TO_PARTS }.to_owned(),
            ),
            ("last", if plan.parts == 1 { EPILOGUE } else { KEEP }.to_owned()),
            ("tiles", tiles(plan)),
            ("transpose", transpose),
            ("type", self.element.c().to_owned()),
            ("t", self.element.suffix().to_owned()),
            ("out", self.out_element.clone()),
            ("out_place", place(&self.out, &[self.channels])),
            ("expression", self.epilogue.text(&[self.channels])),
            ("parameters", self.epilogue.parameters()),
            ("arguments", self.epilogue.arguments()),
        ];
        strings.extend(split_texts(plan.split));
        let numbers = self.numbers(plan);
        let numbers = numbers.iter().map(|(key, number)| (*key, number.to_string()));
        let strings: Vec<(&str, String)> = strings.into_iter().chain(numbers).collect();
        let pairs: Vec<(&str, &str)> = strings.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let text = substitute(template, &pairs);
        let [height, width] = self.kernel;
        library.add(&format!("mithril_{what}_{}_{}_{height}x{width}", self.channels, self.filters), &text)
    }

    fn numbers(&self, plan: &Plan) -> Vec<(&'static str, usize)> {
        let [image_batch, plane] = self.read_strides();
        let row_elements = if self.has_padding() { self.padded(1) } else { self.image[1] };
        let [channels, down, across] = plan.groups;
        vec![
            ("n", self.batch),
            ("channels", self.channels),
            ("filters", self.filters),
            ("kh", self.kernel[0]),
            ("kw", self.kernel[1]),
            ("oh", self.result[0]),
            ("ow", self.result[1]),
            ("lanes", plan.lanes),
            ("most", plan.groups.iter().map(RowGroups::most).product()),
            ("plane", plane),
            ("image_batch", image_batch),
            ("row", self.dilation[0] * row_elements),
            ("column", self.dilation[1]),
            ("line", self.stride[0] * row_elements),
            ("step", self.stride[1]),
            ("result_batch", self.result_strides[0]),
            ("filter", self.result_strides[1]),
            ("out_row", self.out.row),
            ("channel_groups", channels.groups),
            ("group_channels", channels.rows),
            ("down_groups", down.groups),
            ("group_down", down.rows),
            ("across_groups", across.groups),
            ("group_across", across.rows),
            ("remainder", plan.groups[plan.split].remainder),
            ("block", plan.block),
            ("strip", plan.strip),
            ("piece", plan.piece),
            ("parts", plan.parts),
        ]
    }
}

const SQUARE: &str = "if (first + LANES <= filters && pixel + LANES <= pixels) {
    @transpose@(from + first * FILTER + pixel, FILTER, to + pixel * WIDTH + first, WIDTH);
    continue;
}";

const TO_PARTS: &str = "@type@ *restrict parts";

const EPILOGUE: &str =
    "@name@_epilogue(sums, first_channel, end_channel, panel * WIDTH, filters, out@arguments@);";

/// Where the sums of a part go until all are there.
const KEEP: &str =
    "memcpy(parts + ((part * PANELS + panel) * @channels@ + first_channel) * PLACES * WIDTH, sums,
       sizeof(@type@) * (end_channel - first_channel) * PLACES * WIDTH);";

/// A call for each size of tile.
fn tiles(plan: &Plan) -> String {
    plan.groups[plan.split].each(|size| {
        let mut sizes = plan.groups.map(|groups| groups.rows);
        sizes[plan.split] = size;
        let [channels, down, across] = sizes;
        format!("@name@_tile({channels}, {down}, {across}, under, lines, count, width, pixels, tile);")
    })
}

/// What the templates say of the axis that is split into groups.
fn split_texts(split: usize) -> [(&'static str, String); 7] {
    let more = |axis: usize| if axis == split { " + more" } else { "" }.to_owned();
    let before = |name: &str| {
        if split == 0 { format!("({name} < REMAINDER ? {name} : REMAINDER)") } else { "0".to_owned() }
    };
    let names = [("group", "channel"), ("down", "row of weights"), ("across", "weight")];
    [
        ("split", names[split].0.to_owned()),
        ("of_one", names[split].1.to_owned()),
        ("channel_more", more(0)),
        ("down_more", more(1)),
        ("across_more", more(2)),
        ("first_longer", before("first")),
        ("last_longer", before("last")),
    ]
}
