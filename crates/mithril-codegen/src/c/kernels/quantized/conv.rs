//! Convolutions in 8-bit integers: the image becomes bytes first, four channels of a pixel in a word, between the
//! the padding that the kernel needs; then a step multiplies a word of each pixel by two vectors of filters.

use crate::c::ir::kernel::{Argument, Call, Kernel};
use crate::c::kernels::common::library::{Library, substitute};
use crate::c::kernels::common::tiles::TILE_ROWS;
use crate::c::kernels::common::tiling::Tiling;
use crate::c::kernels::quantized::bytes::{borrowed, call};
use crate::c::kernels::spec::blocked_conv::{Blocked, Image, Places};
use crate::c::kernels::spec::bytes::Numbers;
use crate::c::target::Target;

/// The image as bytes.
struct Bytes {
    /// Rows and pixels of it, with its halo.
    size: [usize; 2],
    /// Words of a pixel.
    words: usize,
    /// From one of its rows and pixels to the next, in rows and pixels of the given image: a kernel of one weight leaves
    /// out what it steps over.
    take: [usize; 2],
    /// Steps between two pixels of the result.
    stride: [usize; 2],
}

impl Bytes {
    fn new(conv: &Blocked) -> Self {
        let is_one = [0, 1].map(|axis| conv.kernel[axis] == 1);
        let reach = |axis: usize| {
            (conv.result[axis] - 1) * conv.stride[axis] + (conv.kernel[axis] - 1) * conv.dilation[axis] + 1
        };
        Self {
            size: [0, 1].map(|axis| if is_one[axis] { conv.result[axis] } else { reach(axis) }),
            words: conv.channels.div_ceil(4),
            take: [0, 1].map(|axis| if is_one[axis] { conv.stride[axis] } else { 1 }),
            stride: [0, 1].map(|axis| if is_one[axis] { 1 } else { conv.stride[axis] }),
        }
    }

    /// Words of a row.
    fn line(&self) -> usize {
        self.size[1] * self.words
    }
}

/// How words are walked through.
pub(super) struct Reading {
    /// From a pixel, a row and an image to the next.
    pub pixel: usize,
    pub row: usize,
    pub batch: usize,
    /// Steps between two pixels of the result.
    pub stride: [usize; 2],
}

/// What is read under a pixel for a row of weights: runs of words that lie together.
pub(super) struct Runs {
    /// Runs of a row of weights, and places of the kernel in each.
    pub count: usize,
    pub places: usize,
    /// Words of a run.
    pub words: usize,
    /// Words that weights are packed for: tiles read as many in each step, and those that are left are multiplied by zeros.
    pub filled: usize,
    /// Words that tiles read in a step, where there are tiles.
    pub chunk: Option<usize>,
}

/// The layout of the image that is read, in elements.
struct ImageLayout {
    batch: usize,
    /// Channels, or blocks of them, and how far they lie apart.
    parts: usize,
    plane: usize,
    /// From a row to the next.
    row: usize,
    /// What of a part is looked at for its range: lines, and elements of one.
    lines: usize,
    elements: usize,
}

impl Blocked {
    /// Whether groups of so many channels and filters fill the words and the vectors of a convolution in integers.
    pub fn fill_words(channels: usize, filters: usize, target: &Target) -> bool {
        channels.is_multiple_of(4) && filters.is_multiple_of(2 * target.lanes)
    }

    /// Puts the functions of the convolution in integers into the library. Numbers of the image are
    /// taken to lie in the range; without one it is found at every call.
    pub fn quantized(&self, range: Option<[f32; 2]>, library: &mut Library) -> Kernel {
        let lanes = library.target().lanes;
        library.add_dot();
        library.add("mithril_order", include_str!("order.c"));
        library.add("mithril_filter", include_str!("filter.c"));
        if matches!(self.image, Image::Blocks(_)) || self.bytes.out.is_some() {
            library.add("mithril_store_bytes", include_str!("store.c"));
        }
        match (self.bytes.image, self.image) {
            (Some(_), Image::Blocks(places)) => self.of_bytes(&places, lanes, library),
            _ => self.of_floats(range, lanes, library),
        }
    }

    /// The kernel for an image of floats, which becomes bytes first.
    fn of_floats(&self, range: Option<[f32; 2]>, lanes: usize, library: &mut Library) -> Kernel {
        let (bytes, image_layout) = (Bytes::new(self), self.image_layout(lanes));
        let (bytes_words, rows) = (self.batch * bytes.size[0] * bytes.line(), self.batch * bytes.size[0]);
        let ranges = Argument::SharedAt((bytes_words + rows + self.batch) * 4);
        let mut phases = Vec::new();
        let mut make = vec![Argument::A, Argument::Shared];
        if range.is_none() {
            let find = self.find_range(&image_layout, library);
            phases.push(vec![call(find, vec![Argument::A, ranges.clone()])]);
            make.push(ranges);
        }
        if matches!(self.image, Image::Plain(..)) {
            make.push(Argument::Scratch);
        }
        phases.push(vec![call(self.make_bytes(&bytes, &image_layout, range, lanes, library), make)]);
        let read = Reading {
            pixel: bytes.words,
            row: bytes.line(),
            batch: bytes.size[0] * bytes.line(),
            stride: bytes.stride,
        };
        // Tiles read words behind a run, which need not be words of the image.
        let words = bytes_words + rows + self.batch * (1 + 2 * image_layout.parts) + TILE_ROWS;
        let shared_bytes = words * 4;
        Kernel {
            shared_bytes: shared_bytes.next_multiple_of(64),
            scratch_bytes: (bytes.size[1] * 4).next_multiple_of(64),
            ..self.of_words(Argument::Shared, &read, phases, lanes, library)
        }
    }

    /// The kernel for an image of bytes, which lies at these places.
    fn of_bytes(&self, places: &Places, lanes: usize, library: &mut Library) -> Kernel {
        let [pixel, row, batch] = [places.x, places.y, places.batch].map(|bytes| bytes / 4);
        let read = Reading { pixel, row, batch, stride: self.stride };
        self.of_words(Argument::A, &read, Vec::new(), lanes, library)
    }

    /// The kernel that reads words of bytes behind these phases.
    fn of_words(
        &self,
        image: Argument,
        read: &Reading,
        mut phases: Vec<Vec<Call>>,
        lanes: usize,
        library: &mut Library,
    ) -> Kernel {
        let runs = self.runs(read.pixel, library.target());
        let pack = call(self.pack_words(&runs, lanes, library), vec![Argument::B, Argument::Packed]);
        let multiply = match runs.chunk {
            Some(chunk) => self.multiply_tiles(read, &runs, chunk, library),
            None => self.multiply_words(read, &runs, lanes, library),
        };
        phases.push(vec![call(multiply, self.arguments(image))]);
        let filled = self.filters.next_multiple_of(2 * lanes);
        let k = self.kernel[0] * runs.count * runs.filled;
        Kernel {
            pack: Some(pack),
            packed_bytes: (filled * (k + 2) * 4).next_multiple_of(64),
            panel_start: None,
            phases,
            shared_bytes: 0,
            scratch_bytes: 0,
        }
    }

    /// Statements that find what [`Self::make_bytes`] wrote behind the bytes: first, and for an image; and its zero.
    pub(crate) fn scales_of_floats(&self) -> [String; 3] {
        let bytes = Bytes::new(self);
        let (rows, words) = (bytes.size[0], self.batch * bytes.size[0] * bytes.line());
        [
            format!(
                "const float *const row_scales = (const float *)image + {words}L;\n\
                 const int32_t *const zeros = (const int32_t *)row_scales + {};",
                self.batch * rows
            ),
            format!(
                "scale = row_scales[batch * {rows}]; /* an image with a number that is none has NaN among its scales */\n\
                 for (long row = 1; row < {rows}; row++)\n    \
                 scale = row_scales[batch * {rows} + row] == scale ? scale : NAN;"
            ),
            "zeros[batch]".to_owned(),
        ]
    }

    fn image_layout(&self, lanes: usize) -> ImageLayout {
        match self.image {
            Image::Blocks(places) => {
                let Bytes { size, take, .. } = Bytes::new(self);
                let [lines, pixels] = [0, 1].map(|axis| (size[axis] - 1) * take[axis] + 1);
                ImageLayout {
                    batch: places.batch,
                    parts: self.channels / lanes,
                    plane: places.block,
                    row: places.y,
                    lines,
                    elements: pixels * lanes,
                }
            }
            Image::Plain([height, width], _) => {
                let (plane, row) = (height * width, width);
                let batch = self.channels * plane;
                ImageLayout { batch, parts: self.channels, plane, row, lines: 1, elements: plane }
            }
        }
    }

    fn find_range(&self, image_layout: &ImageLayout, library: &mut Library) -> String {
        let text = substitute(
            include_str!("conv_range.c"),
            &[
                ("n", &self.batch.to_string()),
                ("parts", &image_layout.parts.to_string()),
                ("channels", &(self.channels / image_layout.parts).to_string()),
                ("image_batch", &image_layout.batch.to_string()),
                ("plane", &image_layout.plane.to_string()),
                ("image_row", &image_layout.row.to_string()),
                ("lines", &image_layout.lines.to_string()),
                ("line_elements", &image_layout.elements.to_string()),
            ],
        );
        library.add(
            &format!("mithril_range_{}x{}", image_layout.parts, image_layout.lines * image_layout.elements),
            &text,
        )
    }

    fn make_bytes(
        &self,
        bytes: &Bytes,
        image_layout: &ImageLayout,
        range: Option<[f32; 2]>,
        lanes: usize,
        library: &mut Library,
    ) -> String {
        let [height, width] = bytes.size;
        let [take_y, take_x] = bytes.take;
        let (line, padding, [h, w], [top, left]) = match self.image {
            Image::Blocks(_) => (include_str!("conv_blocks.c"), "The halo is filled", [0, 0], [0, 0]),
            Image::Plain(size, padding) => {
                let before = [padding[0][0], padding[1][0]];
                (include_str!("conv_plain.c"), "Padding is added", size, before)
            }
        };
        let (ranges, scratch) = (", const int32_t *restrict ranges", ", uint32_t *restrict scratch");
        let is_plain = matches!(self.image, Image::Plain(..));
        let parameters =
            [if range.is_none() { ranges } else { "" }, if is_plain { scratch } else { "" }].concat();
        let numbers = [
            ("channels", self.channels),
            ("n", self.batch),
            ("height", height),
            ("width", width),
            ("words", bytes.words),
            ("lanes", lanes),
            ("image_batch", image_layout.batch),
            ("plane", image_layout.plane),
            ("image_row", if is_plain { image_layout.row } else { take_y * image_layout.row }),
            ("image_step", take_x * lanes),
            ("take_y", take_y),
            ("take_x", take_x),
            ("top", top),
            ("left", left),
            ("h", h),
            ("first", left.div_ceil(take_x).min(width)),
            ("last", (w + left).div_ceil(take_x).min(width)),
            ("parts", image_layout.parts),
        ];
        let range = range.map_or_else(|| FIND_RANGE.to_owned(), |range| Numbers::of(range).text());
        let mut pairs = vec![("padding", padding.to_owned()), ("parameters", parameters)];
        pairs.extend(numbers.map(|(key, number)| (key, number.to_string())));
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, text)| (*key, text.as_str())).collect();
        let text = include_str!("conv_bytes.c")
            .replace("@range@", &indented(&range, 12))
            .replace("@line@", &indented(line, 8));
        library.add(&format!("mithril_bytes_{}_{height}x{width}", self.channels), &substitute(&text, &pairs))
    }

    /// The runs of words of pixels of so many words.
    fn runs(&self, pixel: usize, target: &Target) -> Runs {
        let words = pixel.div_ceil(self.groups);
        // Those of all weights of a row lie together, unless there are others in between.
        let is_row = self.dilation[1] == 1 && self.groups == 1;
        let (count, places) = if is_row { (1, self.kernel[1]) } else { (self.kernel[1], 1) };
        let words = places * words;
        let chunk = self.tile_words(words, pixel, target);
        let filled = chunk.map_or(words, |chunk| words.next_multiple_of(chunk));
        Runs { count, places, words, filled, chunk }
    }

    fn pack_words(&self, runs: &Runs, lanes: usize, library: &mut Library) -> String {
        let numbers = [
            ("filters", self.filters),
            ("channels", self.channels / self.groups),
            ("kh", self.kernel[0]),
            ("kw", self.kernel[1]),
            ("lanes", lanes),
            ("run_places", runs.places),
            ("run_filled", runs.filled),
        ];
        let numbers = numbers.map(|(key, number)| (key, number.to_string()));
        let mut pairs: Vec<(&str, &str)> = numbers.iter().map(|(key, text)| (*key, text.as_str())).collect();
        pairs.extend(if self.bytes.of_integers {
            [("what", "integers, whose scale is 1"), ("inverse", "1;\nscales[filter] = 1;")]
        } else {
            [
                ("what", "for each filter the scale that brings its largest weight to 127"),
                ("inverse", "mithril_filter_inverse(from, terms, scales + filter);"),
            ]
        });
        let [height, width] = self.kernel;
        let wish = format!("mithril_pack_int8_conv_{}_{}_{height}x{width}", self.channels, self.filters);
        library.add(&wish, &substitute(include_str!("conv_pack.c"), &pairs))
    }

    fn multiply_words(&self, read: &Reading, runs: &Runs, lanes: usize, library: &mut Library) -> String {
        let tiling = Tiling::new(self.result, library.target().rows());
        let ([kernel_height, kernel_width], words) = (self.kernel, read.pixel);
        let (run, places) = (runs.words, runs.count);
        let step = read.stride[1] * words;
        let (line, row, column) =
            (read.stride[0] * read.row, self.dilation[0] * read.row, self.dilation[1] * words);
        let mut tile = |down: usize, across: usize| {
            let micro = self.of_panels(lanes, |vectors| {
                let micro = tile_of(library, [down, across, step], runs, vectors);
                format!(
                    "{micro}(line + x * {step}, {line}, {kernel_height}, {row}, {places}, {column}, right, sums, next, \
                     stride);"
                )
            });
            format!("{micro}\n{}x += {across};", self.epilogue_call(down, across))
        };
        let tiles = tiling.text(&mut tile);
        let panels = self.filters.div_ceil(2 * lanes);
        let k = kernel_height * places * run;
        let target = *library.target();
        let strip_bytes = line * tiling.down * 4;
        let sections = self.sections(&target, &tiling, panels, [strip_bytes, k * 2 * lanes * 4]);
        let numbers = [
            ("n", self.batch),
            ("channels", self.channels / self.groups),
            ("kh", kernel_height),
            ("kw", kernel_width),
            ("oh", self.result[0]),
            ("lanes", lanes),
            ("k", k),
            ("panels", panels),
            ("image_batch", read.batch),
            ("image_line", line),
            ("down", tiling.down),
            ("groups", tiling.across.groups),
            ("across", tiling.across.rows),
            ("remainder", tiling.across.remainder),
            ("most", tiling.down * tiling.across.most()),
            ("sections", sections),
        ];
        let mut pairs = vec![("tiles", tiles), ("group_words", self.group_words(words, panels))];
        pairs.extend(self.whole_strings(lanes, false));
        pairs.extend(self.epilogue_strings(lanes));
        pairs.extend(numbers.map(|(key, number)| (key, number.to_string())));
        let [height, width] = self.result;
        let wish = format!(
            "mithril_int8_conv_{}_{}_{kernel_height}x{kernel_width}_{height}x{width}",
            self.channels, self.filters
        );
        let text = include_str!("conv.c")
            .replace("@strips@", &strips("", "", PIXELS))
            .replace("@epilogue@", &self.epilogue_text(lanes));
        library.add(&wish, &substitute(&text, &borrowed(&pairs)))
    }

    /// What is added to the place of an image for the group of a panel: groups of filters are whole panels.
    pub(super) fn group_words(&self, words: usize, panels: usize) -> String {
        match self.groups {
            1 => String::new(),
            groups => format!(" + panel / {} * {}", panels / groups, words.div_ceil(groups)),
        }
    }
}

/// The tiles of the pixels of a strip.
const PIXELS: &str = "for (long group = 0, x = 0; group < GROUPS; group++, next += K * stride) {
    @tiles@
}";

/// The loops over sections, panels and strips around the tiles of the `pixels` of a strip; `setup` are statements in front of
/// the loops, `ahead` those of a strip.
pub(super) fn strips(setup: &str, ahead: &str, pixels: &str) -> String {
    let text = include_str!("conv_strips.c").replace("@setup@", setup).replace("@ahead@", ahead);
    indented(&text.replace("@pixels@", &indented(pixels, 8)), 4)
}

/// A text whose lines but the first stand further right; lines of the preprocessor do not.
fn indented(text: &str, by: usize) -> String {
    text.trim_end()
        .replace('\n', &format!("\n{}", " ".repeat(by)))
        .replace(&format!("{}#", " ".repeat(by)), "#")
}

/// The range of an image from those of its parts.
const FIND_RANGE: &str = "int32_t low = 0, high = 0;
for (long part = 0; part < @parts@; part++) {
    const int32_t *const range = ranges + 2 * (batch * @parts@ + part);
    low = range[0] < low ? range[0] : low;
    high = range[1] > high ? range[1] : high;
}
mithril_bytes(low, high, &scale, &inverse, &zero);";

/// The micro-kernel of a tile: rows, pixels of a row, how far they lie apart, what lies together under one, and how many of
/// two vectors of filters it computes.
pub(super) fn tile_of(
    library: &mut Library,
    [down, across, step]: [usize; 3],
    runs: &Runs,
    vectors: usize,
) -> String {
    let run = runs.words;
    let target = *library.target();
    let numbers = [
        ("down", down),
        ("across", across),
        ("step", step),
        ("run", run),
        ("unused", runs.filled - run),
        ("lanes", target.lanes),
        ("most_rows", target.rows()),
        ("vectors", vectors),
    ];
    let numbers = numbers.map(|(key, number)| (key, number.to_string()));
    let pairs: Vec<(&str, &str)> = numbers.iter().map(|(key, text)| (*key, text.as_str())).collect();
    library.add("mithril_tile_words", &substitute(include_str!("tile.c"), &pairs[5..7]));
    let half = if vectors == 1 { "_half" } else { "" };
    let wish = format!("mithril_tile_words{half}_{down}x{across}_{step}_{run}");
    library.add(&wish, &substitute(include_str!("tile_of.c"), &pairs))
}
