//! Convolutions between tensors whose channels lie in blocks of a vector's lanes, with margins of zeros that are
//! there already: nothing is copied, and a vector of filters is one of the result.

use std::fmt::Write as _;

use super::bytes::InBytes;
use super::epilogue::Epilogue;
use super::library::{substitute, unroll};
use super::quantized::{Columns, Panels};
use super::rows::RowGroups;
use super::{Algorithm, Argument, Call, Element, First, Kernel, Library, Scheme, Target, winograd};

/// Weights that are so many times as large as the cache are not read by every thread.
const WEIGHTS_FOR_ALL: usize = 4;

/// Sums of at most so many terms are finished in the registers that hold them: for longer ones the way by memory costs
/// little, and it is quicker to compile.
const FEW_TERMS: usize = 64;

/// Where the elements of an image-like tensor lie, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Places {
    /// From one image to the next.
    pub batch: usize,
    /// From one block of channels to the next.
    pub block: usize,
    /// From one channel of a block to the next.
    pub lane: usize,
    /// From one row of pixels to the next.
    pub y: usize,
    /// From one pixel to the next.
    pub x: usize,
    /// Where the first is.
    pub base: usize,
}

impl Places {
    /// The C expression of the place at `batch`, `block`, `lane`, `y`, `x`.
    pub(crate) fn text(&self) -> String {
        let factors =
            [("batch", self.batch), ("block", self.block), ("y", self.y), ("x", self.x), ("lane", self.lane)];
        let mut terms: Vec<String> = Vec::new();
        for (name, factor) in factors {
            match factor {
                0 => {}
                1 => terms.push(name.to_owned()),
                n => terms.push(format!("{name} * {n}")),
            }
        }
        if self.base > 0 || terms.is_empty() {
            terms.push(self.base.to_string());
        }
        terms.join(" + ")
    }
}

/// What is read under the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    /// Blocks of channels with margins that suffice; the pointer is to what lies under the first weight.
    Blocks(Places),
    /// Row-major, of this height and width, with zeros before and after.
    Plain([usize; 2], [[usize; 2]; 2]),
}

/// `out = epilogue(convolution of image by weights[filters, channels / groups, kh, kw])`.
#[derive(Debug, Clone, PartialEq)]
pub struct Blocked {
    /// What image, weights and sums hold.
    pub element: Element,
    /// Images.
    pub batch: usize,
    /// Channels of an image, a multiple of the lanes if it lies in blocks.
    pub channels: usize,
    /// Channels of the result, a multiple of the lanes.
    pub filters: usize,
    /// 1, or as many as there are channels and filters.
    pub groups: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Steps between two pixels of the result.
    pub stride: [usize; 2],
    /// Steps between two weights.
    pub dilation: [usize; 2],
    /// Height and width of the result.
    pub result: [usize; 2],
    /// What is read.
    pub image: Image,
    /// Where the result lies.
    pub out: Places,
    /// The C type of the result.
    pub out_element: String,
    /// What becomes of the sums; the strides of its operands are in `operands`.
    pub epilogue: Epilogue,
    /// Where the operands of the epilogue lie.
    pub operands: Vec<Places>,
    /// How it is done.
    pub algorithm: Algorithm,
    /// How the weights are kept, if in few bits: they become float a panel at a time.
    pub few_bits: Option<Scheme>,
    /// What lies in bytes, for convolutions in whole numbers.
    pub bytes: InBytes,
}

/// How the image is walked through, in elements.
pub(crate) struct Walk {
    pub batch: usize,
    pub plane: usize,
    /// From a row of weights to the next, from a weight to the next.
    pub row: usize,
    pub column: usize,
    /// From a pixel of the result to the next, from a row of them to the next.
    pub step: usize,
    pub line: usize,
}

impl Blocked {
    /// Puts the kernel's functions into the library.
    pub fn build(&self, library: &mut Library) -> Kernel {
        if self.groups > 1 {
            return self.build_depth(library);
        }
        if self.few_bits.is_some() {
            return self.build_direct(library);
        }
        winograd::ask_blocked(self, library);
        match winograd::blocked_tile(self, library) {
            Some(tile) => winograd::build_blocked(self, tile, library),
            None => self.build_direct(library),
        }
    }

    /// Rows above and below, pixels to the left and to the right of an image of this size that are read.
    pub fn margins(&self, image: [usize; 2], padding: [[usize; 2]; 2], library: &Library) -> [[usize; 2]; 2] {
        let is_free = self.groups == 1 && self.few_bits.is_none();
        let tile = if is_free { winograd::blocked_tile(self, library) } else { None };
        [0, 1].map(|axis| {
            let [before, after] = padding[axis];
            let reach =
                tile.map_or(0, |tile| winograd::reach(tile[axis], self.stride[axis], self.result[axis]));
            [before, after.max(reach.saturating_sub(image[axis] + before))]
        })
    }

    fn build_direct(&self, library: &mut Library) -> Kernel {
        let lanes = library.target().lanes_of(self.element);
        let walk = self.walk(lanes);
        let tiling = Tiling::new(self.result, library.target().rows());
        let [kernel_height, kernel_width] = self.kernel;
        // Elements that lie together under a pixel: channels of a block, or weights of a row.
        let (block, outer, run, width) = match self.image {
            Image::Blocks(_) => (lanes, self.channels / lanes, lanes, kernel_width),
            Image::Plain(..) if self.dilation[1] == 1 => (1, self.channels, kernel_width, 1),
            Image::Plain(..) => (1, self.channels, 1, kernel_width),
        };
        let k = self.channels * kernel_height * kernel_width;
        let panels = self.filters.div_ceil(2 * lanes);
        let bytes = self.strip_bytes(&tiling);
        let sections =
            self.sections(library.target(), &tiling, panels, [bytes, k * 2 * lanes * self.element.bytes()]);
        let stays = k <= FEW_TERMS && self.filters.is_multiple_of(lanes);
        let mut tile = |down: usize, across: usize| {
            let Walk { step, line, plane, row, column, .. } = walk;
            let micro = if stays {
                let micro = tile_inside(library, self.element);
                format!(
                    "{micro}({down}, {across}, {step}, {run}, line + x * {step}, {line}, {outer}, {plane}, \
                     {kernel_height}, {row}, {width}, {column}, right, sums, 0, next, stride);"
                )
            } else {
                let micro = tile_of(library, self.element, [down, across, step, run], [kernel_height, width]);
                format!(
                    "{micro}(line + x * {step}, {line}, {outer}, {plane}, {row}, {column}, right, sums, next, stride);"
                )
            };
            format!(
                "{micro}\n@name@_finish(sums, batch, y, x, {down}, {across}, panel, out@arguments@);\nx += {across};"
            )
        };
        let tiles = tiling.text(&mut tile);
        let few = self.few_bits.map(|scheme| self.in_few_bits(scheme, block, library));
        let weights = few.as_ref().map_or(WEIGHTS, |few| &few.direct);
        let text = include_str!("blocked.c")
            .replace("@weights@", weights)
            .replace("@finish@", &tiling.finish(stays));
        let mut numbers = vec![("k", k), ("panels", panels), ("sections", sections), ("panel_blocks", 2)];
        let step_bytes = few.as_ref().map_or(2 * lanes * self.element.bytes(), |few| few.step_bytes);
        numbers.push(("step_bytes", step_bytes));
        let text = self.fill(&text, &tiles, &tiling, &walk, lanes, &numbers);
        let name = library.add(&self.wish("conv"), &text);
        let first = First { units: sections * panels, panels, bytes: k * step_bytes };
        self.kernel(library, name, few, Some(Box::new(first)), |library| {
            let elements = panels * 2 * lanes * k;
            (self.pack(library, include_str!("blocked_pack.c"), lanes, block), elements)
        })
    }

    fn build_depth(&self, library: &mut Library) -> Kernel {
        let lanes = library.target().lanes_of(self.element);
        let walk = self.walk(lanes);
        let mut tiling = Tiling::new(self.result, library.target().rows());
        tiling.down = 1;
        let mut tile = |_: usize, across: usize| {
            format!(
                "@name@_line({across}, line + x * {}, right, sums);\n\
                 @name@_finish(sums, batch, y, x, 1, {across}, panel, out@arguments@);\nx += {across};",
                walk.step
            )
        };
        let tiles = tiling.text(&mut tile);
        let few = self.few_bits.map(|scheme| self.in_few_bits(scheme, 1, library));
        let weights = few.as_ref().map_or(DEPTH_WEIGHTS, |few| &few.depth);
        let text = include_str!("blocked_depth.c")
            .replace("@weights@", weights)
            .replace("@finish@", &tiling.finish(true));
        let pitch = if few.is_some() { 2 * lanes } else { lanes };
        let numbers = [("panel_blocks", 1), ("pitch", pitch)];
        let text = self.fill(&text, &tiles, &tiling, &walk, lanes, &numbers);
        let name = library.add(&self.wish("depth"), &text);
        self.kernel(library, name, few, None, |library| {
            let elements = self.filters * self.kernel[0] * self.kernel[1];
            (self.pack(library, include_str!("blocked_depth_pack.c"), lanes, 1), elements)
        })
    }

    /// The order of the terms of a filter, as the kernel meets them: sizes and steps of the axes that count them, whose
    /// channels come in blocks of so many.
    pub(crate) fn terms(&self, block: usize) -> Vec<(usize, usize)> {
        let (channels, places) = (self.channels / self.groups, self.kernel[0] * self.kernel[1]);
        if block == 1 {
            return vec![(channels * places, 1)];
        }
        vec![(channels / block, block * places), (places, 1), (block, places)]
    }

    /// How many channels come together under a place of the kernel.
    pub(crate) fn together(&self, lanes: usize) -> usize {
        if self.groups == 1 && matches!(self.image, Image::Blocks(_)) { lanes } else { 1 }
    }

    fn in_few_bits(&self, scheme: Scheme, block: usize, library: &mut Library) -> FewBits {
        let lanes = library.target().lanes;
        let k = self.channels / self.groups * self.kernel[0] * self.kernel[1];
        let panels = Panels { scheme, lanes, n: self.filters, k, matrices: 1 };
        let term = match self.terms(block)[..] {
            [(_, blocks), (places, _), _] => {
                format!("k / {blocks} * {blocks} + k % {block} * {places} + k / {block} % {places}")
            }
            _ => "k".to_owned(),
        };
        let pack = panels.pack(library, &Columns { batch: "0".to_owned(), column: k, term });
        let unpack = |library: &mut Library, panel: &str, each: &str| {
            let statement = panels.unpack(library, panel, "own");
            format!("if ({each} != known)\n            {statement}\n        known = {each};\n        ")
        };
        let words = panels.words();
        let direct = format!(
            "{}const float *const right = own;\n        const char *next = unit + 1 < end ? (const char *)((const uint32_t *)packed + (panel + 1) % PANELS * {words}) : ahead;",
            unpack(library, "panel", "panel")
        );
        let depth = format!(
            "{}const float *const right = own + panel % 2 * LANES;",
            unpack(library, "panel / 2", "panel / 2")
        );
        let own_bytes = (panels.k_padded() * 2 * lanes * 4).next_multiple_of(64);
        FewBits { pack, packed_bytes: panels.bytes(), own_bytes, direct, depth, step_bytes: words * 4 / k }
    }

    /// The kernel of one function, behind a copy with margins where the image is plain; and what packs so many elements,
    /// unless they are kept in few bits.
    fn kernel(
        &self,
        library: &mut Library,
        function: String,
        few: Option<FewBits>,
        first: Option<Box<First>>,
        floats: impl FnOnce(&mut Library) -> (String, usize),
    ) -> Kernel {
        let work = |function: String, arguments: Vec<Argument>| Call {
            function,
            arguments: [vec![Argument::Thread, Argument::Threads], arguments].concat(),
        };
        let operands = (0..self.operands.len()).map(Argument::Operand);
        let (mut image, mut phases, mut shared_bytes) = (Argument::A, Vec::new(), 0);
        if let Image::Plain(size, padding) = self.image
            && padding != [[0, 0], [0, 0]]
        {
            let pad = super::conv::pad(library, self.element, self.batch * self.channels, size, padding, 1);
            phases.push(vec![work(pad, vec![Argument::A, Argument::Shared])]);
            image = Argument::Shared;
            let elements = self.batch * self.channels * padded(size, padding).iter().product::<usize>();
            shared_bytes = (elements * self.element.bytes()).next_multiple_of(64);
        }
        let own = few.iter().map(|_| Argument::Own);
        let ahead = first.iter().map(|_| Argument::Ahead);
        let arguments = [image, Argument::Packed, Argument::Out].into_iter().chain(operands);
        let arguments = arguments.chain(own).chain(ahead).collect();
        phases.push(vec![work(function, arguments)]);
        let (pack, packed_bytes, own_bytes) = if let Some(few) = few {
            (few.pack, few.packed_bytes, few.own_bytes)
        } else {
            let (pack, elements) = floats(library);
            (pack, (elements * self.element.bytes()).next_multiple_of(64), 0)
        };
        let pack = Some(work(pack, vec![Argument::B, Argument::Packed]));
        Kernel { pack, packed_bytes, first, phases, shared_bytes, own_bytes }
    }

    /// Bytes of the image that a strip of `down` rows reads anew.
    pub(super) fn strip_bytes(&self, tiling: &Tiling) -> usize {
        // Pixels between those under the weights are not read.
        let steps = [0, 1].map(|axis| self.stride[axis].min(self.kernel[axis]));
        self.channels * self.result[1] * tiling.down * steps[0] * steps[1] * self.element.bytes()
    }

    /// Strips are taken in so many sections: the image of one stays in the cache, unless all weights once more were more
    /// to read than the image for every panel.
    pub(super) fn sections(
        &self,
        target: &Target,
        tiling: &Tiling,
        panels: usize,
        [strip_bytes, panel_bytes]: [usize; 2],
    ) -> usize {
        let strips = self.batch * self.result[0].div_ceil(tiling.down);
        let (image, weights) = (strips * strip_bytes, panels * panel_bytes);
        let room = (target.cache * 3 / 4).saturating_sub(panel_bytes).max(target.cache / 4);
        let fitting = strips.div_ceil((room / strip_bytes.max(1)).clamp(1, strips));
        let once = weights + panels * image;
        let sections = if fitting * weights + image < once { fitting } else { 1 };
        let sections = sections.max((8 * target.threads).div_ceil(panels));
        // A thread that takes whole sections reads few pixels that another one wrote; instead it reads all weights.
        let are_even = self.result[0].is_multiple_of(tiling.down) && strips.is_multiple_of(target.threads);
        let whole = are_even && self.few_bits.is_none() && weights <= WEIGHTS_FOR_ALL * target.cache;
        let sections = if whole { sections.next_multiple_of(target.threads) } else { sections };
        sections.min(strips)
    }

    pub(crate) fn walk(&self, lanes: usize) -> Walk {
        let (batch, plane, y, x) = match self.image {
            Image::Blocks(places) => (places.batch, places.block, places.y, lanes),
            Image::Plain(size, padding) => {
                let [height, width] = padded(size, padding);
                (self.channels * height * width, height * width, width, 1)
            }
        };
        Walk {
            batch,
            plane,
            row: self.dilation[0] * y,
            column: self.dilation[1] * x,
            step: self.stride[1] * x,
            line: self.stride[0] * y,
        }
    }

    fn pack(&self, library: &mut Library, template: &str, lanes: usize, block: usize) -> String {
        let text = substitute(
            template,
            &[
                ("type", self.element.c()),
                ("filters", &self.filters.to_string()),
                ("channels", &self.channels.to_string()),
                ("kh", &self.kernel[0].to_string()),
                ("kw", &self.kernel[1].to_string()),
                ("block", &block.to_string()),
                ("lanes", &lanes.to_string()),
            ],
        );
        library.add(&self.wish("pack_conv"), &text)
    }

    fn wish(&self, what: &str) -> String {
        let ([kernel_height, kernel_width], [height, width]) = (self.kernel, self.result);
        let shape = format!("{}_{}_{kernel_height}x{kernel_width}", self.channels, self.filters);
        if what.starts_with("pack") {
            return format!("mithril_{what}_{shape}");
        }
        format!("mithril_{what}_{shape}_{height}x{width}")
    }

    fn fill(
        &self,
        template: &str,
        tiles: &str,
        tiling: &Tiling,
        walk: &Walk,
        lanes: usize,
        more: &[(&'static str, usize)],
    ) -> String {
        let [height, width] = self.result;
        let numbers = [
            ("n", self.batch),
            ("channels", self.channels),
            ("filters", self.filters),
            ("kh", self.kernel[0]),
            ("kw", self.kernel[1]),
            ("oh", height),
            ("ow", width),
            ("lanes", lanes),
            ("down", tiling.down),
            ("groups", tiling.across.groups),
            ("across", tiling.across.rows),
            ("longer", tiling.across.longer),
            ("most", tiling.down * tiling.across.most()),
            ("image_batch", walk.batch),
            ("image_line", walk.line),
            ("plane", walk.plane),
            ("row", walk.row),
            ("column", walk.column),
            ("step", walk.step),
        ];
        let is_few = self.few_bits.is_some();
        let [stored, own, known] = if is_few {
            ["void", ", float *restrict own", "\nlong known = -1;"]
        } else {
            [self.element.c(), "", ""]
        };
        let strings = [
            ("tiles", tiles.to_owned()),
            ("type", self.element.c().to_owned()),
            ("stored", stored.to_owned()),
            ("own", own.to_owned()),
            ("known", known.to_owned()),
        ];
        let numbers = numbers.iter().chain(more).map(|(key, number)| (*key, number.to_string()));
        let strings: Vec<(&str, String)> =
            strings.into_iter().chain(self.epilogue_strings(lanes)).chain(numbers).collect();
        let pairs: Vec<(&str, &str)> = strings.iter().map(|(key, value)| (*key, value.as_str())).collect();
        substitute(template, &pairs)
    }

    /// What the templates say of the epilogue and the result.
    pub(crate) fn epilogue_strings(&self, lanes: usize) -> Vec<(&'static str, String)> {
        let whole = self.filters.is_multiple_of(lanes);
        let mut expression = self.epilogue.expression.replace("{acc}", "accumulator");
        for (i, places) in self.operands.iter().enumerate() {
            expression = expression.replace(&format!("{{{i}}}"), &format!("operand{i}[{}]", places.text()));
        }
        let mut finish_lanes = String::new();
        for (place, factor) in [("y", self.out.y), ("x", self.out.x)] {
            if factor == 0 {
                let _ = writeln!(finish_lanes, "(void){place};");
            }
        }
        finish_lanes.push_str(&self.vectors(lanes).unwrap_or_else(|| {
            include_str!("blocked_lanes.c").trim_end().replace("@type@", self.element.c())
        }));
        let names = |name: &str| self.epilogue.expression.contains(name);
        let mut coordinates = String::new();
        if names("row") {
            coordinates.push_str("\nconst long row = block * LANES + lane;");
        }
        if names("column") {
            let _ = write!(coordinates, "\nconst long column = y * {} + x;", self.result[1]);
        }
        vec![
            ("finish_lanes", finish_lanes),
            ("coordinates", coordinates),
            ("expression", expression),
            ("t", self.element.suffix().to_owned()),
            ("out", self.out_element.clone()),
            ("out_place", self.out.text()),
            ("lanes_end", if whole { "LANES" } else { "LANES && block * LANES + lane < FILTERS" }.to_owned()),
            ("parameters", self.epilogue.parameters()),
            ("arguments", self.epilogue.arguments()),
        ]
    }

    /// What finishes and stores a vector of sums at once, if that can be said with vectors.
    fn vectors(&self, lanes: usize) -> Option<String> {
        let is_whole = self.filters.is_multiple_of(lanes) && self.out.lane == 1 && lanes > 1;
        if self.element != Element::F32 || self.out_element != "float" || !is_whole {
            return None;
        }
        let mut value = self.epilogue.vectors.as_ref()?.replace("{acc}", "accumulator");
        for (i, places) in self.operands.iter().enumerate() {
            let first = Places { lane: 0, ..*places }.text();
            let vector = match places.lane {
                0 => format!("MITHRIL_BROADCAST_f32(operand{i}[{first}])"),
                1 => format!("MITHRIL_LOAD(f32, operand{i} + {first})"),
                _ => return None,
            };
            value = value.replace(&format!("{{{i}}}"), &vector);
        }
        let place = Places { lane: 0, ..self.out }.text();
        Some(format!(
            "const mithril_f32 accumulator = MITHRIL_LOAD(f32, from);\nMITHRIL_STORE(f32, out + {place}, {value});"
        ))
    }
}

/// What there is to weights that are kept in few bits.
struct FewBits {
    pack: String,
    packed_bytes: usize,
    own_bytes: usize,
    /// What makes floats of a panel, for all channels together and for each by itself.
    direct: String,
    depth: String,
    /// Bytes of a term of a panel.
    step_bytes: usize,
}

/// The weights of a panel, and those that come next.
const WEIGHTS: &str = "const @type@ *const right = packed + panel * K * WIDTH;
        const char *next = unit + 1 < end ? (const char *)(packed + (panel + 1) % PANELS * K * WIDTH) : ahead;";

/// The weights of a block of channels.
const DEPTH_WEIGHTS: &str = "const @type@ *const right = packed + panel * @kh@ * @kw@ * LANES;";

/// Height and width with margins.
fn padded([height, width]: [usize; 2], padding: [[usize; 2]; 2]) -> [usize; 2] {
    [height + padding[0][0] + padding[0][1], width + padding[1][0] + padding[1][1]]
}

/// How the pixels of a result are cut into tiles whose sums fit into registers.
pub(super) struct Tiling {
    /// Rows of a strip.
    pub down: usize,
    /// Of the last strip of an image.
    last: usize,
    /// Pixels of a row.
    pub across: RowGroups,
}

impl Tiling {
    pub fn new([height, width]: [usize; 2], most: usize) -> Self {
        let across = RowGroups::of(width, most);
        let down = if across.groups == 1 { (most / width.max(1)).clamp(1, height) } else { 1 };
        Self { down, last: (height - 1) % down + 1, across }
    }

    /// What finishes a tile: rows and pixels side by side where the sums stay in registers, whose numbers are constants.
    fn finish(&self, stays: bool) -> String {
        include_str!("blocked_finish.c")
            .replace("@unroll_rows@", &unroll(self.down, stays))
            .replace("@unroll_pixels@", &unroll(self.across.most(), stays))
    }

    /// A statement for each size of tile that occurs.
    pub fn text(&self, tile: &mut dyn FnMut(usize, usize) -> String) -> String {
        let RowGroups { rows, longer, .. } = self.across;
        let either = |test: &str, yes: String, no: String| {
            let [yes, no] = [yes, no].map(|text| text.replace('\n', "\n    "));
            format!("if ({test}) {{\n    {yes}\n}} else {{\n    {no}\n}}")
        };
        if longer > 0 {
            return either("group < LONGER", tile(self.down, rows + 1), tile(self.down, rows));
        }
        if self.down != self.last {
            let whole = tile(self.down, rows);
            return either(&format!("y + {} <= OUT_HEIGHT", self.down), whole, tile(self.last, rows));
        }
        tile(self.down, rows)
    }
}

/// The micro-kernel of a tile as a function of its own: rows, pixels of a row, how far they lie apart, and what lies
/// together under one; rows and columns of weights.
fn tile_of(
    library: &mut Library,
    element: Element,
    [down, across, step, run]: [usize; 4],
    [height, width]: [usize; 2],
) -> String {
    tile_inside(library, element);
    let numbers = [
        ("down", down),
        ("across", across),
        ("step", step),
        ("run", run),
        ("height", height),
        ("width", width),
    ];
    let numbers = numbers.map(|(key, number)| (key, number.to_string()));
    let lanes = library.target().lanes_of(element).to_string();
    let mut pairs: Vec<(&str, &str)> = numbers.iter().map(|(key, text)| (*key, text.as_str())).collect();
    pairs.extend([("lanes", lanes.as_str()), ("type", element.c()), ("t", element.suffix())]);
    let wish = format!("mithril_tile_{}_{down}x{across}_{step}_{run}_of_{height}x{width}", element.suffix());
    library.add(&wish, &substitute(include_str!("tile_of.c"), &pairs))
}

/// The micro-kernel of any tile, which becomes a part of who calls it.
fn tile_inside(library: &mut Library, element: Element) -> String {
    let target = *library.target();
    let [lanes, most] = [target.lanes_of(element), target.rows()].map(|number| number.to_string());
    let pairs =
        [("lanes", lanes.as_str()), ("most_rows", &most), ("type", element.c()), ("t", element.suffix())];
    library.add(&format!("mithril_tile_{}", element.suffix()), &substitute(include_str!("tile.c"), &pairs))
}
