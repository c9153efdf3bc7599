//! Convolutions in 8-bit integers with tiles (AMX): the bytes of pixels of a row, or of two rows, lie as far apart as the rows of
//! a tile may, and weights are packed as tiles of the right factor are. The sums are those of vectors, bit for bit.

use std::fmt::Write as _;

use crate::c::kernels::common::library::{Library, substitute};
use crate::c::kernels::common::row_groups::RowGroups;
use crate::c::kernels::common::tiles::{LEAST_TILE_ROWS, PixelCut, TILE_ROWS, Tiles, add_tiles};
use crate::c::kernels::common::tiling::Tiling;
use crate::c::kernels::quantized::bytes::borrowed;
use crate::c::kernels::quantized::conv::{Reading, Runs, strips, tile_of};
use crate::c::kernels::spec::blocked_conv::{Blocked, Places};
use crate::c::target::Target;

/// In front of the loops over strips.
const SETUP: &str = "\nconst int has_tiles = mithril_shape_tiles(@top@, @bottom@, @chunk@);";

/// What a strip needs to know: whether it has all rows, and where the second tile is.
const AHEAD: &str = "
        const int is_whole = y + DOWN <= OUT_HEIGHT;
        const long second = DOWN == 1 ? @top@ * @step@ : is_whole ? @image_line@ : 0;";

/// Tiles of fewer words are mostly empty: vectors are faster.
const LEAST_WORDS: usize = 4;

impl Blocked {
    /// How many words tiles read of each pixel in a step, for runs of so many words; `None` if vectors multiply.
    pub(super) fn tile_words(&self, run: usize, pixel: usize, target: &Target) -> Option<usize> {
        let steps = run.div_ceil(TILE_ROWS);
        let chunk = run.div_ceil(steps);
        let pixels = self.result.iter().product::<usize>();
        // Behind each image lies another pixel at least, so that the words that are read in vain are in the same memory.
        let is_inside = steps * chunk - run <= pixel;
        let suits = pixels >= LEAST_TILE_ROWS && chunk >= LEAST_WORDS && is_inside;
        (Tiles::Bytes.are_in(target) && suits).then_some(chunk)
    }

    /// The same with all pixels in one row, where rows follow each other without a halo and that takes a fifth fewer tiles.
    fn bytes_in_one_row(&self, read: &Reading, target: &Target) -> Option<Self> {
        let [height, width] = self.result;
        let continues = |places: &Places| places.y == width * places.x;
        let is_point = self.kernel == [1, 1] && read.stride == [1, 1] && read.row == width * read.pixel;
        let lie_so = is_point && continues(&self.out) && self.operands.iter().all(continues);
        let tiles = |result: [usize; 2]| {
            let cut = PixelCut::new(result);
            result[0].div_ceil(cut.down) * cut.groups
        };
        let flat = [1, height * width];
        // Threads share panels alone then.
        let has_panels = self.filters / (2 * target.lanes) >= 2 * target.threads;
        (height > 1 && lie_so && has_panels && 5 * tiles(flat) < 4 * tiles(self.result))
            .then(|| Self { result: flat, ..self.clone() })
    }

    /// The function that multiplies with tiles.
    pub(super) fn multiply_tiles(
        &self,
        read: &Reading,
        runs: &Runs,
        chunk: usize,
        library: &mut Library,
    ) -> String {
        add_tiles(library);
        let target = *library.target();
        let lanes = target.lanes;
        let flat = self.bytes_in_one_row(read, &target);
        let one = flat.as_ref().unwrap_or(self);
        let cut = PixelCut::new(one.result);
        let step = read.stride[1] * read.pixel;
        let (line, row) = (read.stride[0] * read.row, self.dilation[0] * read.row);
        let column = self.dilation[1] * read.pixel;
        let k = self.kernel[0] * runs.count * runs.filled;
        let panels = self.filters.div_ceil(2 * lanes);
        let mut tiling = Tiling::new(one.result, 2 * TILE_ROWS);
        tiling.down = cut.down;
        let strip_words = if flat.is_some() { read.batch } else { line * cut.down };
        let sections = one.sections(&target, &tiling, panels, [strip_words * 4, k * 2 * lanes * 4]);
        let none = if self.bytes.out.is_some() { "&none, " } else { "" };
        let store = format!(
            "@name@_epilogue(sums + stored * WIDTH, scale, @zero@, filter_scales, batch, y, x + stored, is_whole ? DOWN : 1,\n    \
             ACROSS - stored, panel, {none}out@arguments@);"
        );
        let numbers = [
            ("n", self.batch),
            ("channels", self.channels / self.groups),
            ("kh", self.kernel[0]),
            ("kw", self.kernel[1]),
            ("oh", one.result[0]),
            ("lanes", lanes),
            ("k", k),
            ("panels", panels),
            ("image_batch", read.batch),
            ("image_line", line),
            ("row", row),
            ("column", column),
            ("step", step),
            ("down", cut.down),
            ("groups", cut.groups),
            ("across", cut.across),
            ("top", cut.tiles[0]),
            ("bottom", cut.tiles[1]),
            ("places", runs.count),
            ("chunk", chunk),
            ("chunks", runs.filled / chunk),
            ("sections", sections),
        ];
        let parts = self.vector_parts(&cut, [step, row, column], runs, library).replace('\n', "\n    ");
        let mut pairs = vec![("parts", parts), ("group_words", self.group_words(read.pixel, panels))];
        // The width is that of the row.
        pairs.extend(self.whole_strings(lanes, flat.is_some()).into_iter().filter(|(key, _)| *key != "ow"));
        pairs.push(("ow", one.result[1].to_string()));
        pairs.extend(one.epilogue_strings(lanes));
        pairs.extend(numbers.map(|(key, number)| (key, number.to_string())));
        let ([kernel_height, kernel_width], [height, width]) = (self.kernel, self.result);
        let wish = format!(
            "mithril_int8_conv_tiled_{}_{}_{kernel_height}x{kernel_width}_{height}x{width}",
            self.channels, self.filters
        );
        let text = include_str!("conv_tiled.c")
            .replace("@strips@", &strips(SETUP, AHEAD, include_str!("conv_tiles.c")))
            .replace("@epilogue@", &self.epilogue_text(lanes))
            .replace("@store_tiles@", &store.replace('\n', "\n                "));
        library.add(&wish, &substitute(&text, &borrowed(&pairs)))
    }

    /// The calls that compute both tiles with vectors, some pixels at a time.
    fn vector_parts(
        &self,
        cut: &PixelCut,
        [step, row, column]: [usize; 3],
        runs: &Runs,
        library: &mut Library,
    ) -> String {
        let mut calls = String::new();
        for (place, sums, count) in
            [("image", 0, cut.tiles[0]), ("image + second", cut.tiles[0], cut.tiles[1])]
        {
            let mut first = 0;
            for (groups, across) in RowGroups::new(count, library.target()).sizes() {
                for _ in 0..if across > 0 { groups } else { 0 } {
                    let micro = tile_of(library, [1, across, step], runs, 2);
                    let _ = writeln!(
                        calls,
                        "{micro}({place} + {}, 0, {}, {row}, {}, {column}, weights, sums + {}, (const char *)weights, 0);",
                        first * step,
                        self.kernel[0],
                        runs.count,
                        (sums + first) * 32
                    );
                    first += across;
                }
            }
        }
        calls.trim_end().to_owned()
    }
}
