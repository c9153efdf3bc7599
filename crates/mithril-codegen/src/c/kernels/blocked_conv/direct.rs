//! Convolutions between tensors whose channels lie in blocks of a vector's lanes, with halo of zeros that are
//! there already: nothing is copied, and a vector of filters is one of the result.

use std::fmt::Write as _;

use crate::c::ir::kernel::{Argument, Call, Kernel, PanelStart};
use crate::c::kernels::common::library::{Library, substitute, unroll};
use crate::c::kernels::common::pad::{pad, pad_frames};
use crate::c::kernels::common::tiling::Tiling;
use crate::c::kernels::quantized::gemm::{Columns, Panels};
use crate::c::kernels::spec::blocked_conv::{Blocked, Image, Places, span};
use crate::c::kernels::spec::conv::Depth;
use crate::c::kernels::spec::strides::Stored;
use crate::c::kernels::winograd::build;
use crate::c::options::Scheme;
use crate::c::target::{Element, Factor, Target};

/// Weights that are so many times as large as the cache are not read by every thread.
const WEIGHTS_FOR_ALL: usize = 4;

/// Sums of at most so many terms are finished in the registers that hold them: for longer ones the way by memory costs
/// little, and it is quicker to compile.
pub(super) const FEW_TERMS: usize = 64;

/// Most weights of a row that stay in registers beside the sums of a line, where each channel is by itself.
const MOST_WEIGHTS: usize = 8;

/// How the image is walked through, in elements.
pub(crate) struct Walk {
    /// The C expression of where the image of `batch` begins.
    pub image: String,
    pub plane: usize,
    /// From a frame of weights to the next, where each channel is by itself.
    pub frame: usize,
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
            let sizes = [self.channels, self.filters, self.groups];
            let lanes = library.target().lanes_of(self.element);
            return match span(sizes, self.kernel.iter().product(), lanes) {
                Some(span) if self.groups < self.channels => self.build_grouped(span, library),
                _ => self.build_depth(library),
            };
        }
        if self.few_bits.is_some() {
            return self.build_direct(library);
        }
        build::ask_blocked(self, library);
        match build::blocked_tile(self, library) {
            Some(tile) => build::build_blocked(self, tile, library),
            None => self.build_direct(library),
        }
    }

    /// Rows above and below, pixels to the left and to the right of an image of this size that are read.
    pub fn halo(&self, image: [usize; 2], padding: [[usize; 2]; 2], library: &Library) -> [[usize; 2]; 2] {
        let is_free = self.groups == 1 && self.few_bits.is_none();
        let is_inside = self.reads_inside(library);
        let tile = if is_free { build::blocked_tile(self, library) } else { None };
        [0, 1].map(|axis| {
            let [before, after] = if is_inside[axis] { [0, 0] } else { padding[axis] };
            let reach = tile.map_or(0, |tile| build::reach(tile[axis], self.stride[axis], self.result[axis]));
            [before, after.max(reach.saturating_sub(image[axis] + before))]
        })
    }

    fn build_direct(&self, library: &mut Library) -> Kernel {
        if self.uses_tiles(library.target()) {
            return self.build_tiled(library);
        }
        if let Some(regions) = self.regions(library) {
            return self.build_regions(&regions, library);
        }
        let lanes = library.target().lanes_of(self.element);
        let walk = self.walk(lanes);
        let tiling = Tiling::new(self.result, library.target().rows());
        let factor = self.factor();
        let [kernel_height, kernel_width] = self.kernel;
        // Elements that lie together under a pixel: channels of a block, or weights of a row.
        let (block, outer, run, width) = match self.image {
            Image::Blocks(_) => (lanes, self.channels / lanes, lanes / factor.terms(), kernel_width),
            Image::Plain(..) if self.dilation[1] == 1 => (1, self.channels, kernel_width, 1),
            Image::Plain(..) => (1, self.channels, 1, kernel_width),
        };
        let k = self.channels * kernel_height * kernel_width / factor.terms();
        let panels = self.filters.div_ceil(2 * lanes);
        let bytes = self.strip_bytes(&tiling);
        let sections =
            self.sections(library.target(), &tiling, panels, [bytes, k * 2 * lanes * self.element.bytes()]);
        let stays = self.stays(library.target());
        let mut tile = |down: usize, across: usize| {
            let Walk { step, line, plane, row, column, .. } = walk;
            let micro = self.of_panels(lanes, |vectors| {
                if stays {
                    let micro = tile_inside(library, factor);
                    return format!(
                        "{micro}({vectors}, {down}, {across}, {step}, {run}, line + x * {step}, {line}, {outer}, {plane}, \
                         {kernel_height}, {row}, {width}, {column}, right, 0, 0, sums, 0, next, stride);"
                    );
                }
                let size = [kernel_height, width];
                let micro = tile_of(library, factor, [down, across, step, run], size, (vectors, Taps::All));
                format!(
                    "{micro}(line + x * {step}, {line}, {outer}, {plane}, {row}, {column}, right, sums, next, stride);"
                )
            });
            format!(
                "{micro}\n@name@_epilogue(sums, batch, y, x, {down}, {across}, panel, out@arguments@);\nx += {across};"
            )
        };
        let tiles = tiling.text(&mut tile);
        let few = self.few_bits.map(|scheme| self.in_few_bits(scheme, block, library));
        let weights = few.as_ref().map_or(WEIGHTS, |few| &few.direct);
        let text = include_str!("direct.c")
            .replace("@section@", &section(weights))
            .replace("@epilogue@", &epilogue(&tiling, stays && self.vectors(lanes).is_some()));
        let mut numbers = vec![("k", k), ("panels", panels), ("sections", sections), ("panel_blocks", 2)];
        let step_bytes = few.as_ref().map_or(2 * lanes * self.element.bytes(), |few| few.step_bytes);
        numbers.push(("step_bytes", step_bytes));
        let text = self.fill(&text, &tiles, &tiling, &walk, lanes, &numbers);
        let name = library.add(&self.wish("conv"), &text);
        let first = PanelStart { units: sections * panels, panels, bytes: k * step_bytes };
        self.kernel(library, name, few, Some(Box::new(first)), |library| {
            let elements = panels * 2 * lanes * k;
            (self.pack(library, include_str!("pack.c"), lanes, block), elements)
        })
    }

    /// A statement for panels of two vectors of filters, and one for the last where only the first of its two has filters.
    pub(crate) fn of_panels(&self, lanes: usize, mut statement: impl FnMut(usize) -> String) -> String {
        match self.filters.div_ceil(lanes) {
            1 => statement(1),
            blocks if blocks.is_multiple_of(2) => statement(2),
            _ => {
                let [whole, half] = [2, 1].map(|vectors| statement(vectors).replace('\n', "\n    "));
                format!("if (panel < PANELS - 1) {{\n    {whole}\n}} else {{\n    {half}\n}}")
            }
        }
    }

    fn build_depth(&self, library: &mut Library) -> Kernel {
        let lanes = library.target().lanes_of(self.element);
        let walk = self.walk(lanes);
        let mut tiling = Tiling::new(self.result, library.target().rows());
        tiling.down = 1;
        let mut tile = |_: usize, across: usize| {
            format!(
                "@name@_line({across}, line + x * {}, right, sums);\n\
                 @name@_epilogue(sums, batch, y, x, 1, {across}, panel, out@arguments@);\nx += {across};",
                walk.step
            )
        };
        let tiles = tiling.text(&mut tile);
        let few = self.few_bits.map(|scheme| self.in_few_bits(scheme, 1, library));
        let weights = few.as_ref().map_or(DEPTH_WEIGHTS, |few| &few.depth);
        // Vectors that are under one or two weights are not worth keeping.
        let shares = self.kernel[1] > 2 * self.stride[1];
        let products = if shares && self.kernel[1] <= MOST_WEIGHTS {
            include_str!("depth_columns.c")
        } else {
            include_str!("depth_taps.c")
        };
        let text = include_str!("depth.c")
            .replace("@products@", &products.trim_end().replace('\n', "\n    "))
            .replace("@weights@", weights)
            .replace(
                "@load@",
                if self.stored == Stored::BF16 { "MITHRIL_LOAD_BF16(" } else { "MITHRIL_LOAD(@t@, " },
            )
            .replace(
                "@line_of_weights@",
                if self.frames_of_kernel() == 1 {
                    "y * @row@"
                } else {
                    "y / @kh@ * @frame@ + y % @kh@ * @row@"
                },
            )
            .replace("@epilogue@", &epilogue(&tiling, self.vectors(lanes).is_some()));
        let pitch = if few.is_some() { 2 * lanes } else { lanes };
        let (stride, gap) = (self.stride[1], self.dilation[1]);
        let reach = (self.kernel[1] - 1) * gap + 1;
        let most_columns = (tiling.across.most() - 1) * stride + reach;
        let numbers = [
            ("panel_blocks", 1),
            ("pitch", pitch),
            ("stride", stride),
            ("gap", gap),
            ("reach", reach),
            ("most_columns", most_columns),
        ];
        let text = self.fill(&text, &tiles, &tiling, &walk, lanes, &numbers);
        let name = library.add(&self.wish("depth"), &text);
        self.kernel(library, name, few, None, |library| {
            let elements = self.filters * self.frames_of_kernel() * self.kernel[0] * self.kernel[1];
            (self.pack(library, include_str!("depth_pack.c"), lanes, 1), elements)
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

    pub(super) fn in_few_bits(&self, scheme: Scheme, block: usize, library: &mut Library) -> FewBits {
        let lanes = library.target().lanes;
        let k = self.channels / self.groups * self.kernel[0] * self.kernel[1];
        let panels = Panels { scheme, lanes, n: self.filters, k, matrices: 1, fills_tiles: false };
        let term = match self.terms(block)[..] {
            [(_, blocks), (places, _), _] => {
                format!("k / {blocks} * {blocks} + k % {block} * {places} + k / {block} % {places}")
            }
            _ => "k".to_owned(),
        };
        let pack = panels.pack(library, &Columns { batch: "0".to_owned(), column: k, term });
        let unpack = |library: &mut Library, panel: &str, each: &str| {
            let statement = panels.unpack(library, panel, "scratch");
            format!("if ({each} != known)\n            {statement}\n        known = {each};\n        ")
        };
        let words = panels.words();
        let direct = format!(
            "{}const float *const right = scratch;\n        const char *next = unit + 1 < end ? (const char *)((const uint32_t *)packed + (panel + 1) % PANELS * {words}) : next_step;",
            unpack(library, "panel", "panel")
        );
        let depth = format!(
            "{}const float *const right = scratch + panel % 2 * LANES;",
            unpack(library, "panel / 2", "panel / 2")
        );
        let scratch_bytes = (panels.k_padded() * 2 * lanes * 4).next_multiple_of(64);
        FewBits {
            pack,
            packed_bytes: panels.bytes(),
            scratch_bytes,
            direct,
            depth,
            step_bytes: words * 4 / k,
        }
    }

    /// The kernel of one function, behind a copy with halo where the image is plain; and what packs so many elements,
    /// unless they are quantized.
    pub(super) fn kernel(
        &self,
        library: &mut Library,
        function: String,
        few: Option<FewBits>,
        first: Option<Box<PanelStart>>,
        floats: impl FnOnce(&mut Library) -> (String, usize),
    ) -> Kernel {
        let work = |function: String, arguments: Vec<Argument>| Call {
            function,
            arguments: [vec![Argument::Thread, Argument::Threads], arguments].concat(),
        };
        let operands = (0..self.operands.len()).map(Argument::Operand);
        let (mut image, mut phases, mut shared_bytes) = (Argument::A, Vec::new(), 0);
        if let Some((copy, elements)) = self.copy(library) {
            phases.push(vec![work(copy, vec![Argument::A, Argument::Shared])]);
            image = Argument::Shared;
            shared_bytes = (elements * self.element.bytes()).next_multiple_of(64);
        }
        let scratch = few.iter().map(|_| Argument::Scratch);
        let ahead = first.iter().map(|_| Argument::NextWeights);
        let arguments = [image, Argument::Packed, Argument::Out].into_iter().chain(operands);
        let arguments = arguments.chain(scratch).chain(ahead).collect();
        phases.push(vec![work(function, arguments)]);
        let (pack, packed_bytes, scratch_bytes) = if let Some(few) = few {
            (few.pack, few.packed_bytes, few.scratch_bytes)
        } else {
            let (pack, elements) = floats(library);
            (pack, (elements * self.element.bytes()).next_multiple_of(64), 0)
        };
        let pack = Some(work(pack, vec![Argument::B, Argument::Packed]));
        Kernel { pack, packed_bytes, panel_start: first, phases, shared_bytes, scratch_bytes }
    }

    /// Bytes of the image that a strip of `down` rows reads anew.
    pub(crate) fn strip_bytes(&self, tiling: &Tiling) -> usize {
        // Pixels between those under the weights are not read.
        let steps = [0, 1].map(|axis| self.stride[axis].min(self.kernel[axis]));
        self.channels * self.result[1] * tiling.down * steps[0] * steps[1] * self.image_bytes()
    }

    /// Strips are taken in so many sections: the image of one stays in the cache, unless all weights once more were more
    /// to read than the image for every panel.
    pub(crate) fn sections(
        &self,
        target: &Target,
        tiling: &Tiling,
        panels: usize,
        [strip_bytes, panel_bytes]: [usize; 2],
    ) -> usize {
        let strips = self.batch * self.result[0].div_ceil(tiling.down);
        let are_even = self.result[0].is_multiple_of(tiling.down) && strips.is_multiple_of(target.threads);
        self.sections_of(target, strips, are_even, panels, [strip_bytes, panel_bytes])
    }

    /// As [`Blocked::sections`], of so many strips, which threads may be able to share evenly.
    pub(super) fn sections_of(
        &self,
        target: &Target,
        strips: usize,
        are_even: bool,
        panels: usize,
        [strip_bytes, panel_bytes]: [usize; 2],
    ) -> usize {
        let (image, weights) = (strips * strip_bytes, panels * panel_bytes);
        let room = (target.cache * 3 / 4).saturating_sub(panel_bytes).max(target.cache / 4);
        let fitting = strips.div_ceil((room / strip_bytes.max(1)).clamp(1, strips));
        let once = weights + panels * image;
        let sections = if fitting * weights + image < once { fitting } else { 1 };
        let sections = sections.max((8 * target.threads).div_ceil(panels));
        // A thread that takes whole sections reads few pixels that another one wrote; instead it reads all weights.
        let whole = are_even && self.few_bits.is_none() && weights <= WEIGHTS_FOR_ALL * target.cache;
        let sections = if whole { sections.next_multiple_of(target.threads) } else { sections };
        sections.min(strips)
    }

    pub(crate) fn walk(&self, lanes: usize) -> Walk {
        let (places, plane, y, x) = match self.image {
            Image::Blocks(places) => {
                let places = places.in_words_of(self.factor().terms());
                (places, places.block, places.y, lanes / self.factor().terms())
            }
            Image::Plain(size, padding) => {
                let [height, width] = padded(size, padding);
                (self.places_of_copy(height * width), height * width, width, 1)
            }
        };
        Walk {
            image: Places { batch: places.batch, frames: places.frames, ..Places::default() }.text(),
            plane,
            frame: self.depth.map_or(0, |depth| places.frames[1] / depth.stride * depth.dilation),
            row: self.dilation[0] * y,
            column: self.dilation[1] * x,
            step: self.stride[1] * x,
            line: self.stride[0] * y,
        }
    }

    /// How the images of a copy with halo lie, whose frames come before their channels, that are planes of so many
    /// elements.
    fn places_of_copy(&self, plane: usize) -> Places {
        let Some(depth) = self.depth else {
            return Places { batch: self.channels * plane, ..Places::default() };
        };
        let frame = self.channels / depth.kernel * plane;
        let frames = depth.padding[0] + depth.image + depth.padding[1];
        Places { batch: frames * frame, frames: [depth.result, depth.stride * frame], ..Places::default() }
    }

    /// What copies a row-major image between halo of zeros, and how many elements that takes; none where it is read as
    /// it is.
    fn copy(&self, library: &mut Library) -> Option<(String, usize)> {
        let Image::Plain(size, padding) = self.image else { return None };
        let plane = padded(size, padding).iter().product::<usize>();
        let Some(depth) = self.depth else {
            let planes = self.batch * self.channels;
            return (padding != [[0, 0], [0, 0]])
                .then(|| (pad(library, self.element, planes, size, padding, 1), planes * plane));
        };
        let (images, channels) = (self.batch / depth.result, self.channels / depth.kernel);
        let frames = depth.padding[0] + depth.image + depth.padding[1];
        let function = pad_frames(
            library,
            self.element,
            [images, channels],
            (depth.image, depth.padding),
            (size, padding),
        );
        Some((function, images * frames * channels * plane))
    }

    /// The channel of the weights that is this one of the sum: those of a frame come together.
    pub(crate) fn channel_of_weights(&self) -> String {
        match self.depth {
            Some(Depth { kernel, .. }) if kernel > 1 && self.groups == 1 => {
                let channels = self.channels / kernel;
                format!("channel % {channels} * {kernel} + channel / {channels}")
            }
            _ => "channel".to_owned(),
        }
    }

    /// Frames of the kernel, where each channel is by itself.
    fn frames_of_kernel(&self) -> usize {
        self.depth.map_or(1, |depth| depth.kernel)
    }

    pub(super) fn pack(&self, library: &mut Library, template: &str, lanes: usize, block: usize) -> String {
        let is_paired = self.factor() == Factor::Pairs;
        let text = substitute(
            template,
            &[
                ("place", if is_paired { PLACE_OF_PAIRS } else { PLACE }),
                ("lane", if is_paired { "2 * i" } else { "i" }),
                ("weight", if is_paired { "mithril_to_bf16(weight)" } else { "weight" }),
                ("packed", if is_paired { "uint16_t" } else { self.element.c() }),
                ("of_pairs", if is_paired { ", channels in pairs of bfloat16" } else { "" }),
                ("type", self.element.c()),
                ("filters", &self.filters.to_string()),
                ("channels", &self.channels.to_string()),
                ("kh", &self.kernel[0].to_string()),
                ("kw", &self.kernel[1].to_string()),
                ("kd", &self.frames_of_kernel().to_string()),
                ("channel_of_weights", &self.channel_of_weights()),
                ("block", &block.to_string()),
                ("lanes", &lanes.to_string()),
            ],
        );
        if self.factor() == Factor::Pairs {
            library.add_pairs();
        }
        library.add(&self.wish("pack_conv"), &text)
    }

    pub(super) fn wish(&self, what: &str) -> String {
        let ([kernel_height, kernel_width], [height, width]) = (self.kernel, self.result);
        let stored = self.stored.mark();
        // Of volumes, the number of channels counts those of all frames under the kernel.
        let shape = format!("{stored}{}_{}_{kernel_height}x{kernel_width}", self.channels, self.filters);
        if what.starts_with("pack") {
            return format!("mithril_{what}_{shape}");
        }
        format!("mithril_{what}_{shape}_{height}x{width}")
    }

    pub(super) fn fill(
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
            ("remainder", tiling.across.remainder),
            ("most", tiling.down * tiling.across.most()),
            ("image_line", walk.line),
            ("plane", walk.plane),
            ("row", walk.row),
            ("column", walk.column),
            ("step", walk.step),
            ("kd", self.frames_of_kernel()),
            ("frame", walk.frame),
        ];
        let is_few = self.few_bits.is_some();
        let [stored, scratch, known] = if is_few {
            ["void", ", float *restrict scratch", "\nlong known = -1;"]
        } else {
            [self.factor_type(), "", ""]
        };
        let words = if self.factor() == Factor::Pairs { "(const mithril_word *)" } else { "" };
        let strings = [
            ("tiles", tiles.to_owned()),
            ("image", walk.image.clone()),
            ("type", self.element.c().to_owned()),
            ("factor", self.factor_type().to_owned()),
            ("image_type", self.stored.c(self.element).to_owned()),
            ("words", words.to_owned()),
            ("p", self.factor().suffix().to_owned()),
            ("stored", stored.to_owned()),
            ("scratch", scratch.to_owned()),
            ("known", known.to_owned()),
        ];
        let numbers = numbers.iter().chain(more).map(|(key, number)| (*key, number.to_string()));
        let strings: Vec<(&str, String)> =
            strings.into_iter().chain(self.epilogue_strings(lanes)).chain(numbers).collect();
        let pairs: Vec<(&str, &str)> = strings.iter().map(|(key, value)| (*key, value.as_str())).collect();
        substitute(template, &pairs)
    }

    /// The C type of what is multiplied.
    fn factor_type(&self) -> &'static str {
        words(self.factor())
    }

    /// What the templates say of the epilogue and the result.
    pub(crate) fn epilogue_strings(&self, lanes: usize) -> Vec<(&'static str, String)> {
        let whole = self.filters.is_multiple_of(lanes);
        let mut expression = self.epilogue.expression.replace("{acc}", "accumulator");
        for (i, places) in self.operands.iter().enumerate() {
            expression = expression.replace(&format!("{{{i}}}"), &format!("operand{i}[{}]", places.text()));
        }
        let mut epilogue_lanes = String::new();
        for (place, factor) in [("y", self.out.y), ("x", self.out.x)] {
            if factor == 0 {
                let _ = writeln!(epilogue_lanes, "(void){place};");
            }
        }
        epilogue_lanes.push_str(
            &self
                .vectors(lanes)
                .unwrap_or_else(|| include_str!("lanes.c").trim_end().replace("@type@", self.element.c())),
        );
        let names = |name: &str| self.epilogue.expression.contains(name);
        let mut coordinates = String::new();
        if names("row") {
            coordinates.push_str("\nconst long row = block * LANES + lane;");
        }
        if names("column") {
            let _ = write!(coordinates, "\nconst long column = y * {} + x;", self.result[1]);
        }
        vec![
            ("epilogue_lanes", epilogue_lanes),
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
    pub(super) fn vectors(&self, lanes: usize) -> Option<String> {
        let is_float = self.out_element == "float";
        let value = self.vector_value(lanes).filter(|_| is_float || self.out_is_bf16)?;
        let place = Places { lane: 0, ..self.out }.text();
        let store = if is_float { "MITHRIL_STORE(f32, " } else { "MITHRIL_STORE_BF16(" };
        Some(format!(
            "const mithril_f32 accumulator = MITHRIL_LOAD(f32, from);\n{store}out + {place}, {value});"
        ))
    }

    /// What becomes of a vector of sums, the accumulator, if that can be said with vectors.
    pub(crate) fn vector_value(&self, lanes: usize) -> Option<String> {
        let is_whole = self.filters.is_multiple_of(lanes) && self.out.lane == 1 && lanes > 1;
        if self.element != Element::F32 || !is_whole {
            return None;
        }
        let mut value = self.epilogue.vectors.as_ref()?.replace("{acc}", "accumulator");
        for (i, places) in self.operands.iter().enumerate() {
            let first = Places { lane: 0, ..*places }.text();
            let is_half = self.epilogue.operands[i].element != "float";
            let vector = match (places.lane, is_half) {
                (0, false) => format!("MITHRIL_BROADCAST_f32(operand{i}[{first}])"),
                (0, true) => format!("MITHRIL_BROADCAST_f32(mithril_from_bf16(operand{i}[{first}]))"),
                (1, false) => format!("MITHRIL_LOAD(f32, operand{i} + {first})"),
                (1, true) => format!("MITHRIL_LOAD_BF16(operand{i} + {first})"),
                _ => return None,
            };
            value = value.replace(&format!("{{{i}}}"), &vector);
        }
        Some(value)
    }
}

/// What finishes a tile: rows and pixels side by side where the sums stay in registers, whose numbers are constants. An
/// epilogue that is not said in vectors takes them from memory: a copy of it for each pixel would only be compiled longer.
pub(super) fn epilogue(tiling: &Tiling, stays: bool) -> String {
    include_str!("epilogue.c")
        .replace("@unroll_rows@", &unroll(tiling.down, stays))
        .replace("@unroll_pixels@", &unroll(tiling.across.most(), stays))
}

/// What there is to weights that are quantized.
pub(super) struct FewBits {
    pack: String,
    packed_bytes: usize,
    scratch_bytes: usize,
    /// What makes floats of a panel, for all channels together and for each by itself.
    pub(super) direct: String,
    depth: String,
    /// Bytes of a term of a panel.
    pub(super) step_bytes: usize,
}

/// What a unit of work is: a panel of filters, and a section of strips of pixels; and the weights of the panel.
pub(super) fn section(weights: &str) -> String {
    format!(
        "const long section = unit / PANELS, panel = unit % PANELS;
        const long first = STRIPS * section / SECTIONS, last = STRIPS * (section + 1) / SECTIONS;
        {weights}"
    )
}

/// The weights of a panel, and those that come next.
pub(super) const WEIGHTS: &str = "const @factor@ *const right = packed + panel * K * WIDTH;
        const char *next = unit + 1 < end ? (const char *)(packed + (panel + 1) % PANELS * K * WIDTH) : next_step;";

/// The weights of a block of channels.
const DEPTH_WEIGHTS: &str = "const @type@ *const right = packed + panel * @kd@ * @kh@ * @kw@ * LANES;";

/// Height and width with halo.
fn padded([height, width]: [usize; 2], padding: [[usize; 2]; 2]) -> [usize; 2] {
    [height + padding[0][0] + padding[0][1], width + padding[1][0] + padding[1][1]]
}

/// The C type of factors as a kernel reads them: pairs lie in memory as two elements.
pub(super) fn words(factor: Factor) -> &'static str {
    match factor {
        Factor::Pairs => "mithril_word",
        Factor::Float(element) => element.c(),
    }
}

/// Where the weights of a channel are packed, alone and in pairs of two channels.
const PLACE: &str = "((block * PLACES + place) * BLOCK + channel % BLOCK) * WIDTH";
const PLACE_OF_PAIRS: &str =
    "((block * PLACES + place) * BLOCK + channel % BLOCK) / 2 * 2 * WIDTH + channel % 2";

/// Which rows and columns of weights a micro-kernel takes.
#[derive(Clone, Copy)]
pub(super) enum Taps {
    All,
    /// Those that it is called with.
    Some,
}

/// The micro-kernel of a tile as a function of its own: rows, pixels of a row, how far they lie apart, and what lies
/// together under one; rows and columns of weights; how many of two vectors of filters it computes.
pub(super) fn tile_of(
    library: &mut Library,
    factor: Factor,
    [down, across, step, run]: [usize; 4],
    [height, width]: [usize; 2],
    (vectors, taps): (usize, Taps),
) -> String {
    tile_inside(library, factor);
    let element = factor.sums();
    let numbers = [
        ("down", down),
        ("across", across),
        ("vectors", vectors),
        ("step", step),
        ("run", run),
        ("height", height),
        ("width", width),
    ];
    let numbers = numbers.map(|(key, number)| (key, number.to_string()));
    let lanes = library.target().lanes_of(element).to_string();
    let mut pairs: Vec<(&str, &str)> = numbers.iter().map(|(key, text)| (*key, text.as_str())).collect();
    pairs.extend([("lanes", lanes.as_str()), ("type", element.c()), ("t", element.suffix())]);
    pairs.extend([("factor", words(factor)), ("p", factor.suffix())]);
    let (mark, template) = match taps {
        Taps::All => ("of", include_str!("tile_of.c")),
        Taps::Some => ("some_of", include_str!("tile_of_some.c")),
    };
    let half = if vectors == 1 { "_half" } else { "" };
    pairs.push(("vectors_of", if vectors == 1 { "the first vector of filters, " } else { "" }));
    let wish = format!(
        "mithril_tile_{}{half}_{down}x{across}_{step}_{run}_{mark}_{height}x{width}",
        factor.suffix()
    );
    library.add(&wish, &substitute(template, &pairs))
}

/// The micro-kernel of any tile, which becomes a part of who calls it.
fn tile_inside(library: &mut Library, factor: Factor) -> String {
    if factor == Factor::Pairs {
        library.add_pairs();
    }
    let element = factor.sums();
    let target = *library.target();
    let [lanes, most] = [target.lanes_of(element), target.rows()].map(|number| number.to_string());
    let pairs = [
        ("lanes", lanes.as_str()),
        ("most_rows", &most),
        ("type", element.c()),
        ("t", element.suffix()),
        ("factor", words(factor)),
        ("p", factor.suffix()),
    ];
    library.add(&format!("mithril_tile_{}", factor.suffix()), &substitute(include_str!("tile.c"), &pairs))
}
