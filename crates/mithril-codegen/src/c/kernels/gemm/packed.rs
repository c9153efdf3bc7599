//! Matrix products: batched, with any strides, an epilogue, and the right matrix packed ahead or when it runs.

use crate::c::ir::kernel::{Argument, Call, Kernel};
use crate::c::kernels::common::library::{Library, PanelUse, substitute};
use crate::c::kernels::common::row_groups::RowGroups;
use crate::c::kernels::common::tiles::{LEAST_TILE_ROWS, TILE_ROWS, Tiles, tile_configuration, tile_groups};
use crate::c::kernels::common::tuning::TuningTask;
use crate::c::kernels::spec::epilogue::{Epilogue, place};
use crate::c::kernels::spec::gemm::{Gemm, Packing};
use crate::c::kernels::spec::strides::{Stored, Strides, batch_offset};
use crate::c::target::{Element, Factor, Target};

/// Vectors of columns in a panel of the micro-kernels.
pub(super) const PANEL_VECTORS: usize = 2;

impl Gemm {
    /// Puts the kernel's functions into the library.
    pub fn build(&self, library: &mut Library) -> Kernel {
        let folded = self.fold_rows();
        if let Some(kernel) = folded.of_one_row(library) {
            return kernel;
        }
        let blocking = folded.blocking(library);
        let pack = folded.pack(library, blocking.lanes, PANEL_VECTORS);
        let function = folded.multiply(library, &blocking);
        let width = PANEL_VECTORS * blocking.lanes;
        let panels =
            folded.packed_batches() * folded.n.div_ceil(width) * folded.steps(library.target()) * width;
        let packed_bytes = (panels * self.element.bytes()).next_multiple_of(64);
        let ahead = self.packing == Packing::Ahead;
        let packed = if ahead { Argument::Packed } else { Argument::Shared };
        let mut arguments = vec![Argument::Thread, Argument::Threads, Argument::A, packed, Argument::Out];
        arguments.extend((0..self.epilogue.operands.len()).map(Argument::Operand));
        arguments.push(Argument::Scratch);
        let multiply = Call { function, arguments };
        Kernel {
            packed_bytes: if ahead { packed_bytes } else { 0 },
            panel_start: None,
            shared_bytes: if ahead { 0 } else { packed_bytes },
            scratch_bytes: blocking.scratch_elements * self.element.bytes(),
            phases: if ahead { vec![vec![multiply]] } else { vec![vec![pack.clone()], vec![multiply]] },
            pack: ahead.then_some(pack),
        }
    }

    /// What the factors are packed as.
    pub(crate) fn factor(&self, target: &Target) -> Factor {
        if target.has_bf16 && self.element == Element::F32 && self.stored == [Stored::BF16; 2] {
            Factor::Pairs
        } else {
            Factor::Float(self.element)
        }
    }

    /// Steps of k, each of as many terms as a factor has side by side; for tiles those that fill them.
    fn steps(&self, target: &Target) -> usize {
        let steps = self.k.div_ceil(self.factor(target).terms());
        if self.is_for_tiles(target) { steps.next_multiple_of(TILE_ROWS) } else { steps }
    }

    /// Whether panels are packed so that tiles can read them: alike for any number of rows.
    fn is_for_tiles(&self, target: &Target) -> bool {
        self.factor(target) == Factor::Pairs && Tiles::Pairs.are_packed(self.k, target)
    }

    /// Whether tiles multiply.
    fn uses_tiles(&self, target: &Target) -> bool {
        self.is_for_tiles(target) && self.m >= LEAST_TILE_ROWS
    }

    /// How the product is cut up: for the cache as it is said to be, or for half or twice as much of it.
    fn blocking(&self, library: &mut Library) -> Blocking {
        let target = *library.target();
        let of = |cache: usize| Blocking::new(self, &Target { cache, ..target });
        let mut blockings = vec![(target.cache, of(target.cache))];
        if self.m * self.n * self.k < WORTH_MEASURING {
            return blockings.remove(0).1;
        }
        for cache in [target.cache / 2, target.cache * 2] {
            let other = of(cache);
            if blockings.iter().all(|(_, known)| *known != other) {
                blockings.push((cache, other));
            }
        }
        let plain = Self { epilogue: Epilogue::none(), ..self.clone() };
        let task = TuningTask {
            specification: format!("{plain:?} for {target:?}"),
            candidates: blockings.iter().map(|(cache, _)| format!("cache of {cache}")).collect(),
            estimate: 0,
        };
        let chosen = library.chosen(&task);
        library.add_tuning_task(task);
        blockings.swap_remove(chosen).1
    }

    /// Batch axes that all share `b` and whose matrices lie row after row are more rows of one matrix.
    pub(crate) fn fold_rows(&self) -> Self {
        let mut folded = self.clone();
        while let Some(&size) = folded.batch.last() {
            let rows = folded.m;
            let last = |strides: &Strides| strides.batch.last().copied().unwrap_or(0);
            let continues = |strides: &Strides| last(strides) == rows * strides.row;
            let operands = folded.epilogue.operands.iter().all(|operand| continues(&operand.strides));
            let shared = last(&folded.b) == 0;
            let names = ["batch", "row"].iter().any(|name| self.epilogue.expression.contains(name));
            if !(shared && operands && continues(&folded.a) && continues(&folded.out)) || names {
                break;
            }
            folded.batch.pop();
            folded.m *= size;
            let operands = folded.epilogue.operands.iter_mut().map(|operand| &mut operand.strides);
            for strides in [&mut folded.a, &mut folded.b, &mut folded.out].into_iter().chain(operands) {
                strides.batch.pop();
            }
        }
        folded
    }

    /// How many different right matrices there are.
    pub(crate) fn packed_batches(&self) -> usize {
        self.batch
            .iter()
            .zip(&self.b.batch)
            .filter(|(_, stride)| **stride != 0)
            .map(|(size, _)| size)
            .product()
    }

    /// The batch axes along which `b` changes: their sizes, their strides in `b`, and, over all axes, their strides
    /// in the packed panels (counted in matrices).
    pub(crate) fn packed_axes(&self) -> (Vec<usize>, Vec<usize>, Vec<usize>) {
        let mut packed = vec![0; self.batch.len()];
        let mut count = 1;
        for axis in (0..self.b.batch.len()).rev() {
            if self.b.batch[axis] != 0 {
                packed[axis] = count;
                count *= self.batch[axis];
            }
        }
        let changing = self.batch.iter().zip(&self.b.batch).filter(|(_, stride)| **stride != 0);
        let (sizes, strides) = changing.map(|(&size, &stride)| (size, stride)).unzip();
        (sizes, strides, packed)
    }

    /// How many matrices after another have the same `a` and may be mixed.
    fn same_a(&self) -> usize {
        if self.one_by_one {
            return 1;
        }
        let inner = self.batch.iter().zip(&self.a.batch).rev().take_while(|(_, stride)| **stride == 0);
        inner.map(|(&size, _)| size).product()
    }

    pub(crate) fn shape(&self) -> String {
        let batch = self.batch.iter().fold(String::new(), |text, size| format!("{text}{size}x"));
        let element = if self.element == Element::F64 { "f64_" } else { "" };
        format!("{element}{batch}{}x{}x{}", self.m, self.n, self.k)
    }

    /// The call that brings `b` into panels of so many vectors of columns.
    pub(crate) fn pack(&self, library: &mut Library, lanes: usize, vectors: usize) -> Call {
        let (sizes, strides, _) = self.packed_axes();
        let across = self.b.row == 1 && self.b.column > 1 && lanes > 1;
        let stored = self.stored[1];
        if across {
            library.transpose(self.element);
        }
        let factor = self.factor(library.target());
        if factor == Factor::Pairs {
            library.add_pairs();
        }
        let (is_for_tiles, steps) = (self.is_for_tiles(library.target()), self.steps(library.target()));
        let text = substitute(
            include_str!("pack.c"),
            &[
                (
                    "fill",
                    match (factor, across) {
                        (Factor::Pairs, true) => FILL_PAIRS_ACROSS,
                        (Factor::Pairs, false) => FILL_PAIRS,
                        (_, false) => FILL,
                        (_, true) if stored == Stored::Same => FILL_ACROSS,
                        (_, true) => FILL_CONVERTED,
                    },
                ),
                ("stored", stored.c(self.element)),
                ("open", stored.open()),
                ("close", stored.close()),
                ("t", self.element.suffix()),
                ("type", self.element.c()),
                ("lanes", &lanes.to_string()),
                ("vectors", &vectors.to_string()),
                ("n", &self.n.to_string()),
                ("k", &self.k.to_string()),
                ("factor", factor.c()),
                ("steps", &self.k.div_ceil(factor.terms()).to_string()),
                ("filled", &if is_for_tiles { format!(" STEPS = {steps},") } else { String::new() }),
                ("panel_steps", if is_for_tiles { "STEPS" } else { "K" }),
                ("zeros", if is_for_tiles { PANEL_ZEROS } else { "" }),
                ("of_pairs", of_pairs(factor)),
                ("batches", &self.packed_batches().to_string()),
                ("batched", &batched(self.packed_batches())),
                ("b_batch", &batch_offset(&sizes, &strides)),
                ("b_row", &self.b.row.to_string()),
                ("b_column", &self.b.column.to_string()),
            ],
        );
        let element = if self.element == Element::F64 { "f64_" } else { "" };
        let wish = format!("mithril_gemm_pack_{element}{}{}x{}", stored.mark(), self.k, self.n);
        let to = if self.packing == Packing::Ahead { Argument::Packed } else { Argument::Shared };
        Call {
            function: library.add(&wish, &text),
            arguments: vec![Argument::Thread, Argument::Threads, Argument::B, to],
        }
    }

    /// The function that prefetches the lines that the epilogue of a tile reads and writes, where these are not in the cache:
    /// those of the result, and of operands of the same size; and its call.
    fn prefetch(&self, cache: usize) -> [String; 2] {
        let is_uncached = |strides: &Strides| {
            let sizes = self.batch.iter().chain([&self.m, &self.n]);
            let own = strides.batch.iter().chain([&strides.row, &strides.column]);
            let count: usize =
                sizes.zip(own).filter(|(_, stride)| **stride != 0).map(|(size, _)| size).product();
            strides.column == 1 && strides.row != 0 && count * self.element.bytes() >= cache
        };
        let mut lines = String::new();
        let (mut parameters, mut arguments) = (String::new(), String::new());
        let mut fetch = |how: &str, name: &str, element: &str, strides: &Strides| {
            let place = place(strides, &self.batch);
            lines += &substitute(LINES, &[("how", how), ("array", name), ("place", &place)]);
            parameters.extend([", const ", element, " *restrict ", name]);
            arguments.extend([", ", name]);
        };
        if is_uncached(&self.out) {
            fetch("MITHRIL_PREFETCH_WRITE", "out", &self.out_element, &self.out);
        }
        for (i, operand) in self.epilogue.operands.iter().enumerate() {
            if is_uncached(&operand.strides) {
                fetch("MITHRIL_PREFETCH_L2", &format!("operand{i}"), &operand.element, &operand.strides);
            }
        }
        if lines.is_empty() {
            return [String::new(), String::new()];
        }
        let text = substitute(include_str!("prefetch.c"), &[("lines", &lines), ("arrays", &parameters)]);
        [text, format!("@name@_prefetch(batch, row, rows, panel * WIDTH{arguments});\n")]
    }

    /// The template of the kernel, with what depends on the kind of its factors, and the function that prefetches.
    fn template(&self, factor: Factor, across: bool, prefetch: &str) -> String {
        let copy = match factor {
            Factor::Pairs => include_str!("copy_pairs.c"),
            Factor::Float(_) if across => include_str!("copy_across.c"),
            Factor::Float(_) => include_str!("copy.c"),
        };
        let is_paired = factor == Factor::Pairs;
        substitute(
            include_str!("packed.c"),
            &[
                ("copy", &(copy.to_owned() + prefetch)),
                ("copy_pairs", if self.a.column == 1 { COPY_TOGETHER } else { COPY_APART }),
                ("factor", factor.c()),
                ("terms", &self.k.to_string()),
                ("pairs_too", if is_paired { PAIRS_TOO } else { "" }),
                ("of_pairs", of_pairs(factor)),
                ("scratch", if is_paired { "(uint32_t *)scratch" } else { "scratch" }),
                ("a_row", &self.a.row.to_string()),
                ("a_column", &self.a.column.to_string()),
            ],
        )
    }

    /// The calls of micro-kernels for groups of these rows.
    fn micro_calls(&self, rows: RowGroups, panels: PanelUse, library: &mut Library) -> String {
        if !self.uses_tiles(library.target()) {
            let call = "{micro}(steps, left, right, tile, k > 0, fetch, stride);";
            let factor = self.factor(library.target());
            return rows.calls_of_columns(call, library, factor, panels, (self.n, "N - panel * WIDTH"));
        }
        rows.each(|size| {
            let micro = Tiles::Pairs.micro(library, [size, rows.most()], panels);
            format!("{micro}(has_tiles, steps, left, right, tile, k > 0, fetch, stride);")
        })
    }

    /// Statements that configure tiles, and release them.
    fn configuration(&self, rows: RowGroups, library: &mut Library) -> [String; 2] {
        if !self.uses_tiles(library.target()) {
            return [String::new(), String::new()];
        }
        tile_configuration(library, rows.most())
    }

    fn multiply(&self, library: &mut Library, blocking: &Blocking) -> String {
        let batches: usize = self.batch.iter().product();
        let (_, _, packed) = self.packed_axes();
        let stored = self.stored[0];
        let across = self.a.row == 1
            && self.a.column > 1
            && blocking.lanes > 1
            && self.m >= blocking.lanes
            && stored == Stored::Same;
        if across {
            library.transpose(self.element);
        }
        let factor = self.factor(library.target());
        let steps = self.steps(library.target());
        let panels = PanelUse::of(steps * self.n * self.element.bytes(), blocking.rows.groups);
        let [prefetch, prefetch_call] = self.prefetch(library.target().cache);
        let rows = blocking.rows;
        let copy_calls =
            rows.each(|rows| format!("@name@_copy(a + @a_batch@, row, {rows}, k, steps, copy);"));
        let [start, stop] = self.configuration(rows, library);
        let micro_calls = self.micro_calls(rows, panels, library);
        let epilogue = self.store(library, blocking.lanes, &blocking.rows);
        let text = substitute(
            &self.template(factor, across, &prefetch),
            &[
                ("epilogue", epilogue.trim_end()),
                ("start", &start),
                ("stop", &stop),
                ("stored", stored.c(self.element)),
                ("open", stored.open()),
                ("close", stored.close()),
                ("t", self.element.suffix()),
                ("copy_calls", &copy_calls),
                ("micro_calls", &(prefetch_call + &micro_calls)),
                ("type", self.element.c()),
                ("out", &self.out_element),
                ("lanes", &blocking.lanes.to_string()),
                ("m", &self.m.to_string()),
                ("n", &self.n.to_string()),
                ("k", &steps.to_string()),
                ("batches", &batches.to_string()),
                ("batched", &batched(batches)),
                ("same_a", &self.same_a().to_string()),
                ("groups", &blocking.rows.groups.to_string()),
                ("rows", &blocking.rows.rows.to_string()),
                ("remainder", &blocking.rows.remainder.to_string()),
                ("block", &blocking.block.to_string()),
                ("k_block", &blocking.k_block.to_string()),
                ("stretch", &blocking.stretch.to_string()),
                ("a_batch", &batch_offset(&self.batch, &self.a.batch)),
                ("a_place", &format!("row * {} + k * {}", self.a.row, self.a.column)),
                ("b_batch", &batch_offset(&self.batch, &packed)),
                ("out_place", &place(&self.out, &self.batch)),
                ("expression", &self.epilogue.text(&self.batch)),
                ("parameters", &self.epilogue.parameters()),
                ("arguments", &self.epilogue.arguments()),
            ],
        );
        library.add(&format!("mithril_gemm_{}{}", stored.mark(), self.shape()), &text)
    }
}

/// The heads of the loops that write a tile.
pub(crate) const ROWS: &str = "long row = first_row; row < first_row + rows; row++";

pub(crate) const COLUMNS: &str = "long column = first_column; column < first_column + columns; column++";

/// A panel from rows of `b` that lie anyhow.
const FILL: &str = "for (long k = 0; k < K; k++, from += @b_row@, to += WIDTH)
    for (long column = 0; column < WIDTH; column++)
        to[column] = column < columns ? @open@from[column * @b_column@]@close@ : 0;";

/// A panel from columns of `b` whose elements lie side by side, in squares; the last columns and steps one by one.
const FILL_ACROSS: &str = "for (long column = 0; column < WIDTH; column += LANES)
    for (long k = 0; k < K; k += LANES) {
        if (column + LANES <= columns && k + LANES <= K) {
            mithril_transpose_@t@(from + column * @b_column@ + k, @b_column@, to + k * WIDTH + column, WIDTH);
            continue;
        }
        for (long step = k; step < k + LANES && step < K; step++) {
            MITHRIL_UNROLL_BY(1)
            for (long lane = column; lane < column + LANES; lane++)
                to[step * WIDTH + lane] = lane < columns ? from[lane * @b_column@ + step] : 0;
        }
    }";

/// As [`FILL_ACROSS`], of elements that are converted first.
const FILL_CONVERTED: &str = "for (long column = 0; column < WIDTH; column += LANES)
    for (long k = 0; k < K; k += LANES) {
        if (column + LANES <= columns && k + LANES <= K) {
            @type@ square[LANES * LANES] __attribute__((aligned(64)));
            for (long lane = 0; lane < LANES; lane++)
                for (long step = 0; step < LANES; step++)
                    square[lane * LANES + step] = @open@from[(column + lane) * @b_column@ + k + step]@close@;
            mithril_transpose_@t@(square, LANES, to + k * WIDTH + column, WIDTH);
            continue;
        }
        for (long step = k; step < k + LANES && step < K; step++)
            for (long lane = column; lane < column + LANES; lane++)
                to[step * WIDTH + lane] = lane < columns ? @open@from[lane * @b_column@ + step]@close@ : 0;
    }";

/// As [`FILL`], of pairs; the last one may have no second element.
const FILL_PAIRS: &str = "for (long k = 0; k < K; k++, from += 2 * @b_row@, to += WIDTH) {
    const int is_pair = 2 * k + 1 < @k@;
    const @stored@ *restrict const second = from + is_pair * @b_row@;
    if (columns == WIDTH && is_pair)
        for (long column = 0; column < WIDTH; column++)
            to[column] = mithril_pair(from[column * @b_column@], second[column * @b_column@]);
    else
        for (long column = 0; column < WIDTH; column++)
            to[column] = column < columns ? mithril_pair(from[column * @b_column@], is_pair ? second[column * @b_column@] : 0) : 0;
}";

/// As [`FILL_ACROSS`], of pairs.
const FILL_PAIRS_ACROSS: &str = "for (long column = 0; column < WIDTH; column += LANES)
    for (long k = 0; k < K; k += LANES) {
        if (column + LANES <= columns && 2 * (k + LANES) <= @k@) {
            float square[LANES * LANES] __attribute__((aligned(64)));
            for (long lane = 0; lane < LANES; lane++)
                memcpy(square + lane * LANES, from + (column + lane) * @b_column@ + 2 * k, 4 * LANES);
            mithril_transpose_f32(square, LANES, (float *)(to + k * WIDTH + column), WIDTH);
            continue;
        }
        for (long step = k; step < k + LANES && step < K; step++)
            for (long lane = column; lane < column + LANES; lane++) {
                const @stored@ *const pair = from + lane * @b_column@ + 2 * step;
                to[step * WIDTH + lane] = lane < columns ? mithril_pair(pair[0], 2 * step + 1 < @k@ ? pair[1] : 0) : 0;
            }
    }";

/// What fills the last tile.
const PANEL_ZEROS: &str = "memset(to + K * WIDTH, 0, (STEPS - K) * WIDTH * sizeof *to);\n";

/// Pairs of a row whose elements lie side by side, or apart.
const COPY_TOGETHER: &str = "memcpy(copy, from, 4 * LANES);";

const COPY_APART: &str = "for (long lane = 0; lane < LANES; lane++)
    copy[lane] = mithril_pair(from[2 * lane * @a_column@], from[(2 * lane + 1) * @a_column@]);";

/// What the comment of the kernel says about pairs.
const PAIRS_TOO: &str = "\n   Factors are pairs of bfloat16, two steps of k in a word: k counts words.";

/// What K counts, where it is not terms.
fn of_pairs(factor: Factor) -> &'static str {
    if factor == Factor::Pairs { " /* pairs */" } else { "" }
}

pub(crate) fn batched(batches: usize) -> String {
    if batches == 1 { String::new() } else { format!(", {batches} times") }
}

/// Prefetches the cache lines of a row of a tile, which need not begin with a line.
const LINES: &str = "
        for (long column = first_column; column < end; column += 64 / (long)sizeof *@array@)
            @how@(&@array@[@place@]);
        {
            const long column = end - 1;
            @how@(&@array@[@place@]);
        }";

/// Products below this many are not worth measuring.
pub(crate) const WORTH_MEASURING: usize = 1 << 20;

/// How a product is cut up.
#[derive(PartialEq)]
struct Blocking {
    lanes: usize,
    rows: RowGroups,
    /// Groups whose copies one thread keeps in its cache.
    block: usize,
    /// Steps of k between two visits of the next group.
    k_block: usize,
    /// Panels to which a block's rows go before more of k is copied.
    stretch: usize,
    /// Scratch memory of a thread: the copies and the unfinished sums.
    scratch_elements: usize,
}

/// Steps of k for which a panel surely stays in the second-level cache.
const LONGEST_K: usize = 2048;

/// Panels for which rows are worth copying.
const FEWEST_PANELS: usize = 16;

impl Blocking {
    fn new(gemm: &Gemm, target: &Target) -> Self {
        let lanes = target.lanes_of(gemm.element);
        let rows = if gemm.uses_tiles(target) { tile_groups(gemm.m) } else { RowGroups::new(gemm.m, target) };
        // One group reads a panel once: there is nothing to keep in the cache.
        let k = gemm.steps(target);
        let k_block = if k <= LONGEST_K || rows.groups == 1 {
            k.max(1)
        } else {
            k.div_ceil(k.div_ceil(LONGEST_K / 2)).next_multiple_of(lanes)
        };
        let bytes = gemm.element.bytes();
        let copy = rows.most() * k_block.next_multiple_of(lanes);
        let fitting = |cache: usize| (cache / (copy * bytes).max(1)).clamp(1, rows.groups);
        // Where not all rows stay in the cache, half of it is left to the panels and to what is written.
        let fitting = match fitting(target.cache) {
            all if all == rows.groups => all,
            _ => fitting(target.cache / 2),
        };
        // Enough units for every thread to have about as much as any other.
        let panels = gemm.n.div_ceil(2 * lanes).max(1);
        let others = gemm.batch.iter().product::<usize>() * panels;
        let min_blocks = (8 * target.threads).div_ceil(others.max(1)).clamp(1, rows.groups);
        // All as long as can be: threads share them by number.
        let blocks = rows.groups.div_ceil(fitting).max(min_blocks);
        let block = rows.groups.div_ceil(blocks);
        let tile = (rows.rows + 1) * 2 * lanes;
        let unfinished = k_block < k;
        // The copies have to be worth making anew for every stretch.
        let fitting = (target.cache / (block * tile * bytes)).max(FEWEST_PANELS);
        let stretch = if unfinished { fitting.min(panels) } else { panels };
        let tiles = if unfinished { stretch * block } else { 1 };
        // The last tile, too, is transposed in whole squares.
        let squares = rows.most().next_multiple_of(lanes) * 2 * lanes;
        let last_tile = if gemm.out.row < gemm.out.column { tile.max(squares) } else { tile };
        let scratch_elements = (block * copy + (tiles - 1) * tile + last_tile).next_multiple_of(64);
        Self { lanes, rows, block, k_block, stretch, scratch_elements }
    }
}
