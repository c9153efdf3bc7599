//! Matrix products whose right matrix is quantized: it is read once from memory and becomes float in registers,
//! which is what a product with a vector takes its time for.

use crate::c::ir::kernel::{Argument, Call, Kernel};
use crate::c::kernels::common::library::{Library, PanelUse, substitute};
use crate::c::kernels::common::row_groups::RowGroups;
use crate::c::kernels::common::tiles::{LEAST_TILE_ROWS, TILE_ROWS, Tiles, tile_configuration, tile_groups};
use crate::c::kernels::common::tuning::TuningTask;
use crate::c::kernels::gemm::packed::{COLUMNS, ROWS, WORTH_MEASURING, batched};
use crate::c::kernels::spec::bytes::Numbers;
use crate::c::kernels::spec::epilogue::{Epilogue, place};
use crate::c::kernels::spec::gemm::Gemm;
use crate::c::kernels::spec::strides::{Stored, batch_offset};
use crate::c::options::Scheme;
use crate::c::target::{Element, Target};

/// Steps of k that share a scale in 4 bits.
pub const GROUP: usize = 32;

/// More terms than this could overflow a sum of 32 bits.
pub const MOST_TERMS: usize = 1 << 16;

/// A quantized right matrix: `k` by `n`, in panels of two vectors of columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panels {
    pub scheme: Scheme,
    pub lanes: usize,
    pub n: usize,
    pub k: usize,
    /// How many such matrices there are.
    pub matrices: usize,
    /// Whether zeros fill columns of 8 bits up to whole tiles: alike for any number of rows.
    pub fills_tiles: bool,
}

impl Panels {
    /// Panels of one matrix.
    pub fn count(self) -> usize {
        self.n.div_ceil(2 * self.lanes)
    }

    /// Terms that share a scale in 4 bits: of short columns all, which fill whole words.
    pub fn group(self) -> usize {
        self.k.next_multiple_of(8).clamp(8, GROUP)
    }

    /// What a micro-kernel counts: words, or groups.
    pub fn steps(self) -> usize {
        match self.scheme {
            Scheme::Int4Weights => self.k.div_ceil(self.group()),
            _ if self.fills_tiles => self.k.div_ceil(4).next_multiple_of(TILE_ROWS),
            _ => self.k.div_ceil(4),
        }
    }

    /// The C expression of the words of a column of 8 bits.
    fn column_words(self) -> String {
        if self.fills_tiles { self.steps().to_string() } else { "(K + 3) / 4".to_owned() }
    }

    /// `k` with what is added to fill the last word or group.
    pub fn k_padded(self) -> usize {
        self.steps() * if self.scheme == Scheme::Int4Weights { self.group() } else { 4 }
    }

    /// Words of one panel.
    pub fn words(self) -> usize {
        match self.scheme {
            Scheme::Int4Weights => self.steps() * (1 + 2 * self.group() / 8) * self.lanes,
            _ => self.steps() * 2 * self.lanes,
        }
    }

    /// Bytes of all panels and of what belongs to each column: a scale, and for integers its sum.
    pub fn bytes(self) -> usize {
        let of_columns = match self.scheme {
            Scheme::Int8 => 2,
            Scheme::Int8Weights => 1,
            Scheme::Int4Weights => 0,
        };
        (self.matrices * self.count() * (self.words() + of_columns * 2 * self.lanes) * 4).next_multiple_of(64)
    }

    /// The function that makes them of matrices that lie so.
    pub fn pack(self, library: &mut Library, from: &Columns) -> String {
        self.pack_as(false, library, from)
    }

    /// As [`Self::pack`]; of integers, if they are such, the scales are 1.
    fn pack_as(self, of_integers: bool, library: &mut Library, from: &Columns) -> String {
        let template = match self.scheme {
            Scheme::Int4Weights => include_str!("pack_grouped.c"),
            _ => include_str!("pack.c"),
        };
        let is_whole = self.scheme == Scheme::Int8;
        let text = substitute(
            template,
            &[
                ("sums_too", if is_whole { ", and the sums of their numbers" } else { "" }),
                ("sums", if is_whole { "sums[panel * WIDTH + lane] = sum;" } else { "(void)sum;" }),
                ("words", &self.column_words()),
                ("filled", if self.fills_tiles { "\nzeros fill the last tile;" } else { "" }),
                ("offset", if is_whole { "0" } else { "128" }),
                (
                    "inverse",
                    if of_integers { "1" } else { "largest > 1e-30f && is_finite ? 127 / largest : 0" },
                ),
                ("scale", if of_integers { "1" } else { "is_finite ? largest / 127 : NAN" }),
                ("search", &if of_integers { String::new() } else { SEARCH.replace("@b_term@", &from.term) }),
                ("lanes", &self.lanes.to_string()),
                ("group", &self.group().to_string()),
                ("n", &self.n.to_string()),
                ("k", &self.k.to_string()),
                ("matrices", &self.matrices.to_string()),
                ("batched", &batched(self.matrices)),
                ("b_batch", &from.batch),
                ("b_term", &from.term),
                ("b_column", &from.column.to_string()),
            ],
        );
        library.add(&format!("mithril_pack_{}_{}x{}", self.scheme.name(), self.k, self.n), &text)
    }

    /// A statement that makes floats of the panel `number`, whose place in `packed` this counts, in `to`:
    /// [k][two vectors].
    pub fn unpack(self, library: &mut Library, number: &str, to: &str) -> String {
        let (steps, words) = (self.steps(), self.words());
        let panel = format!("(const uint32_t *)packed + ({number}) * {words}");
        let (unpack, width) = (add_unpack(self, true, library), 2 * self.lanes);
        if self.scheme == Scheme::Int4Weights {
            return format!("{unpack}({steps}, {panel}, {to});");
        }
        let scales = format!("(const float *)packed + {}L + ({number}) * {width}", self.count() * words);
        format!("{unpack}({steps}, {panel}, {scales}, {to});")
    }
}

/// Where the columns of matrices lie.
pub(crate) struct Columns {
    /// The C expression of where the matrix `batch` starts.
    pub batch: String,
    /// Elements from a column to the next.
    pub column: usize,
    /// The C expression of where the term `k` of a column lies.
    pub term: String,
}

impl Gemm {
    /// Puts the kernel's functions into the library, with a quantized `b`; the reason if that cannot be.
    pub fn quantized(&self, scheme: Scheme, library: &mut Library) -> Result<Kernel, String> {
        if self.element != Element::F32 {
            return Err("it is not of float32".to_owned());
        }
        if self.stored != [Stored::Same; 2] {
            return Err("a factor is stored in 16 bits".to_owned());
        }
        let folded = self.fold_rows();
        Ok(match scheme {
            Scheme::Int8 => folded.in_whole_numbers(None, library),
            Scheme::Int8Weights | Scheme::Int4Weights => folded.weights_only(scheme, library),
        })
    }

    /// Puts the kernel's functions into the library for `b` of integers, and `a` of this range.
    pub fn of_integers(&self, range: [f32; 2], library: &mut Library) -> Kernel {
        self.fold_rows().in_whole_numbers(Some(range), library)
    }

    fn columns(&self) -> Columns {
        let (sizes, strides, _) = self.packed_axes();
        let batch = batch_offset(&sizes, &strides);
        Columns { batch, column: self.b.column, term: format!("k * {}", self.b.row) }
    }

    /// Rows of `a` become bytes in a first phase, which all threads share. Where their range is known, `b` is of integers.
    fn in_whole_numbers(&self, range: Option<[f32; 2]>, library: &mut Library) -> Kernel {
        let target = *library.target();
        let panels = Panels {
            scheme: Scheme::Int8,
            lanes: target.lanes,
            n: self.n,
            k: self.k,
            matrices: self.packed_batches(),
            fills_tiles: Tiles::Bytes.are_packed(self.k, &target),
        };
        let rows =
            if self.uses_byte_tiles(panels) { tile_groups(self.m) } else { RowGroups::new(self.m, &target) };
        let copy = rows.most() * panels.k_padded();
        let block = self.block(copy, rows, panels, library, target.cache / 2);
        let call = |function: String, arguments: Vec<Argument>| {
            let threads = [Argument::Thread, Argument::Threads];
            Call { function, arguments: threads.into_iter().chain(arguments).collect() }
        };
        let pack = panels.pack_as(range.is_some(), library, &self.columns());
        library.add_dot();
        library.add("mithril_order", include_str!("order.c"));
        let rows_text = self.rows_text(range, panels, library);
        let bytes = self.fill(&rows_text, "mithril_bytes", panels, rows, block, library);
        let product = self.fill(include_str!("gemm.c"), "mithril_int8", panels, rows, block, library);
        let mut arguments = vec![Argument::Shared, Argument::Packed, Argument::Out];
        arguments.extend((0..self.epilogue.operands.len()).map(Argument::Operand));
        arguments.push(Argument::Scratch);
        Kernel {
            pack: Some(call(pack, vec![Argument::B, Argument::Packed])),
            packed_bytes: panels.bytes(),
            panel_start: None,
            phases: vec![
                vec![call(bytes, vec![Argument::A, Argument::Shared, Argument::Scratch])],
                vec![call(product, arguments)],
            ],
            shared_bytes: (self.lefts().0.iter().product::<usize>() * self.m * (panels.steps() + 2) * 4)
                .next_multiple_of(64),
            scratch_bytes: panels.k_padded().max(rows.most() * 2 * target.lanes * 4).next_multiple_of(64),
        }
    }

    /// The template of the function that makes bytes of rows.
    fn rows_text(&self, range: Option<[f32; 2]>, panels: Panels, library: &mut Library) -> String {
        let find = range.map_or_else(
            || FIND_RANGE.to_owned(),
            |range| format!("float scale, inverse, zero;\n{}", Numbers::of(range).text()),
        );
        let in_tiles = self.uses_byte_tiles(panels);
        let store = if in_tiles && self.a.column == 1 {
            library.add("mithril_store_bytes", include_str!("store.c"));
            include_str!("row_tiles.c")
        } else {
            include_str!("row_words.c")
        };
        let [order, place] = if in_tiles {
            ["[group][word / 16][row][16 words]", "(word / 16 * rows + row) * 16 + word % 16"]
        } else {
            ["[group][word][row]", "word * rows + row"]
        };
        let pairs = [
            ("range", find.as_str()),
            ("bytes", store.trim_end()),
            ("words", &panels.column_words()),
            ("row_order", order),
            ("row_place", place),
        ];
        substitute(include_str!("rows.c"), &pairs)
    }

    fn weights_only(&self, scheme: Scheme, library: &mut Library) -> Kernel {
        let lanes = library.target().lanes;
        let matrices = self.packed_batches();
        let panels = Panels { scheme, lanes, n: self.n, k: self.k, matrices, fills_tiles: false };
        let pack = Call {
            function: panels.pack(library, &self.columns()),
            arguments: vec![Argument::Thread, Argument::Threads, Argument::B, Argument::Packed],
        };
        let (function, scratch) = if self.is_unpacked(scheme, library) {
            self.unpacked(panels, library)
        } else {
            self.in_registers(panels, library)
        };
        let mut arguments =
            vec![Argument::Thread, Argument::Threads, Argument::A, Argument::Packed, Argument::Out];
        arguments.extend((0..self.epilogue.operands.len()).map(Argument::Operand));
        arguments.push(Argument::Scratch);
        Kernel {
            pack: Some(pack),
            packed_bytes: panels.bytes(),
            panel_start: None,
            phases: vec![vec![Call { function, arguments }]],
            shared_bytes: 0,
            scratch_bytes: (scratch * 4).next_multiple_of(64),
        }
    }

    /// Whether weights become float once for many rows, rather than in registers for each group of rows.
    fn is_unpacked(&self, scheme: Scheme, library: &mut Library) -> bool {
        let target = *library.target();
        let plain = Self { epilogue: Epilogue::none(), ..self.clone() };
        // With one group of rows nothing is done twice.
        let has_groups = groups(self.m, &target).groups > 1;
        let task = TuningTask {
            specification: format!("{plain:?} with {} for {target:?}", scheme.name()),
            candidates: vec!["weights become float in registers".into(), "in pieces".into()],
            estimate: usize::from(has_groups),
        };
        let chosen = library.chosen(&task);
        if has_groups && self.m * self.n * self.k >= WORTH_MEASURING {
            library.add_tuning_task(task);
        }
        chosen == 1
    }

    /// The function for few rows, and the elements of scratch memory of a thread.
    fn in_registers(&self, panels: Panels, library: &mut Library) -> (String, usize) {
        let rows = groups(self.m, library.target());
        let copy = rows.most() * panels.k_padded();
        let block = self.block(4 * copy, rows, panels, library, library.target().cache / 2);
        let function = format!("mithril_{}", panels.scheme.name());
        let template = include_str!("weights.c").replace("@epilogue@", EPILOGUE);
        let function = self.fill(&template, &function, panels, rows, block, library);
        (function, block * copy + rows.most() * 2 * panels.lanes)
    }

    /// The function for many rows, and the elements of scratch memory of a thread.
    fn unpacked(&self, panels: Panels, library: &mut Library) -> (String, usize) {
        let (scheme, lanes) = (panels.scheme, panels.lanes);
        let rows = RowGroups::new(self.m, library.target());
        // As even as can be.
        let pieces = self.k.div_ceil(LONGEST_PIECE).max(1);
        let piece = self.k.div_ceil(pieces).next_multiple_of(GROUP).max(GROUP);
        let copy = rows.most() * pieces * piece;
        // The copies are read so slowly that they may come from the next cache.
        let block = self.block(4 * copy, rows, panels, library, library.target().cache * 2);
        let is_grouped = scheme == Scheme::Int4Weights;
        let unpack = add_unpack(panels, false, library);
        let micro = rows.calls(
            "{micro}(steps, left, right, tile, k > 0, fetch, stride);",
            library,
            Element::F32,
            PanelUse::of(piece * 2 * lanes * 4, rows.groups),
        );
        let words = panels.words() / panels.steps().max(1);
        let template = substitute(
            include_str!("unpacked.c"),
            &[
                ("epilogue", EPILOGUE),
                ("copy", include_str!("../gemm/copy.c")),
                (
                    "copy_calls",
                    &rows.each(|rows| format!("@name@_copy(a + @a_batch@, row, {rows}, k, steps, left);")),
                ),
                ("micro_calls", &micro),
                ("unpack", &unpack),
                ("step", if is_grouped { "group" } else { "word" }),
                ("step_terms", if is_grouped { panels.group() } else { 4 }.to_string().as_str()),
                ("step_words", &words.to_string()),
                ("piece", &piece.to_string()),
                ("stored", "float"),
                ("type", "float"),
                ("open", ""),
                ("close", ""),
                ("a_place", &format!("row * {} + k * {}", self.a.row, self.a.column)),
                ("a_column", &self.a.column.to_string()),
            ],
        );
        let function = format!("mithril_{}_in_pieces", scheme.name());
        let function = self.fill(&template, &function, panels, rows, block, library);
        (function, block * (copy + rows.most() * 2 * lanes) + piece * 2 * lanes)
    }

    /// How many groups of rows, a copy of each having so many bytes, a unit of work has, of which copies fill so much.
    fn block(&self, copy: usize, rows: RowGroups, panels: Panels, library: &Library, fill: usize) -> usize {
        let fitting = (fill / copy.max(1)).clamp(1, rows.groups);
        let batches = self.batch.iter().product::<usize>();
        // Enough units for every thread to have about as much as any other, and all as long as can be.
        let parts = (4 * library.target().threads).div_ceil((batches * panels.count()).max(1));
        let blocks = rows.groups.div_ceil(fitting).max(parts.min(rows.groups));
        rows.groups.div_ceil(blocks)
    }

    /// The batch axes along which `a` changes: their sizes, their strides in `a`, and, over all axes, the number of the
    /// left matrix.
    fn lefts(&self) -> (Vec<usize>, Vec<usize>, Vec<usize>) {
        Self { b: self.a.clone(), ..self.clone() }.packed_axes()
    }

    /// Whether tiles multiply.
    fn uses_byte_tiles(&self, panels: Panels) -> bool {
        panels.fills_tiles && self.m >= LEAST_TILE_ROWS
    }

    /// The calls of micro-kernels for groups of these rows, what stands before them, and at the start and the end of the
    /// kernel.
    fn quantized_micro_calls(&self, panels: Panels, rows: RowGroups, library: &mut Library) -> [String; 4] {
        if !self.uses_byte_tiles(panels) {
            let arguments = if panels.scheme == Scheme::Int8 {
                "WORDS, left, words, scratch"
            } else {
                "STEPS, copy, words, tile"
            };
            let calls = rows.each(|rows| format!("{}({arguments});", add_micro(panels, rows, library)));
            return [calls, String::new(), String::new(), String::new()];
        }
        let [start, stop] = tile_configuration(library, rows.most());
        let panel_use = PanelUse::of(panels.words() * panels.count() * 4, rows.groups);
        let calls = rows.each(|size| {
            let micro = Tiles::Bytes.micro(library, [size, rows.most()], panel_use);
            format!("{micro}(has_tiles, WORDS, left, words, scratch, 0, fetch, stride);")
        });
        [calls, FETCH.to_owned(), start, stop]
    }

    /// A function by its template; the name starts with `wish`.
    fn fill(
        &self,
        template: &str,
        wish: &str,
        panels: Panels,
        rows: RowGroups,
        block: usize,
        library: &mut Library,
    ) -> String {
        let batches: usize = self.batch.iter().product();
        let (_, _, matrix) = self.packed_axes();
        let (left_sizes, left_strides, left) = self.lefts();
        let lefts = left_sizes.iter().product::<usize>();
        let is_grouped = panels.scheme == Scheme::Int4Weights;
        let [micro_calls, fetch, start, stop] = if template.contains("@micro_calls@") {
            self.quantized_micro_calls(panels, rows, library)
        } else {
            Default::default()
        };
        let copy_calls = rows.each(|rows| format!("@name@_copy(a + @a_batch@, row, {rows}, copy);"));
        let by_columns = self.out.row < self.out.column;
        let text = substitute(
            template,
            &[
                ("unit", include_str!("unit.c").trim_end()),
                ("outer", if by_columns { COLUMNS } else { ROWS }),
                ("inner", if by_columns { ROWS } else { COLUMNS }),
                ("copy_calls", &copy_calls),
                ("micro_calls", &micro_calls),
                ("fetch", &fetch),
                ("start", &start),
                ("stop", &stop),
                ("bits", &(32 / panels.scheme.fields()).to_string()),
                ("batched", &batched(batches)),
                ("matrices", &panels.matrices.to_string()),
                ("matrix", &batch_offset(&self.batch, &matrix)),
                ("lefts_batched", &batched(lefts)),
                ("lefts", &lefts.to_string()),
                ("left_batch", &batch_offset(&left_sizes, &left_strides)),
                ("left", &batch_offset(&self.batch, &left)),
                ("scaled", if is_grouped { "" } else { " * scales[column]" }),
                ("step", if is_grouped { "groups" } else { "words" }),
                ("steps", &panels.steps().to_string()),
                ("panel", &panels.words().to_string()),
                ("k_padded", &panels.k_padded().to_string()),
                ("out", &self.out_element),
                ("lanes", &panels.lanes.to_string()),
                ("m", &self.m.to_string()),
                ("n", &self.n.to_string()),
                ("k", &self.k.to_string()),
                ("batches", &batches.to_string()),
                ("groups", &rows.groups.to_string()),
                ("rows", &rows.rows.to_string()),
                ("remainder", &rows.remainder.to_string()),
                ("block", &block.to_string()),
                ("a_batch", &batch_offset(&self.batch, &self.a.batch)),
                ("a_row", &self.a.row.to_string()),
                ("a_column", &self.a.column.to_string()),
                ("out_place", &place(&self.out, &self.batch)),
                ("expression", &self.epilogue.text(&self.batch)),
                ("parameters", &self.epilogue.parameters()),
                ("arguments", &self.epilogue.arguments()),
            ],
        );
        library.add(&format!("{wish}_{}", self.shape()), &text)
    }
}

/// Statements that find how a row becomes bytes by its own range.
const FIND_RANGE: &str = "int32_t low = 0, high = 0;
for (long k = 0; k < K; k++) {
    union { float value; int32_t bits; } number = {.value = from[k * @a_column@]};
    const int32_t order = mithril_order(number.bits);
    low = order < low ? order : low;
    high = order > high ? order : high;
}
float scale, inverse, zero;
mithril_bytes(low, high, &scale, &inverse, &zero);";

/// What tiles of each group of rows prefetch.
const FETCH: &str = "/* The words of the next panel are prefetched meanwhile. */
const long stride = WIDTH * (long)sizeof *words / (last - first);
const char *const fetch = (const char *)(words + (panel + 1 < PANELS ? PANEL : 0)) + (group - first) * WORDS * stride;
";

/// Statements that find the largest weight of a column.
const SEARCH: &str = "
            float largest = 0;
            int is_finite = 1;
            for (long k = 0; k < steps; k++) {
                const float size = fabsf(from[@b_term@]);
                largest = size > largest ? size : largest;
                is_finite &= size <= FLT_MAX;
            }";

/// Writes sums to their places, for the kernels that know the weights alone as quantized.
const EPILOGUE: &str = include_str!("weights_epilogue.c");

/// Steps of k whose weights become float at once: so many terms the micro-kernels add up in one chain.
const LONGEST_PIECE: usize = 256;

/// Rows whose sums, with two vectors of weights and what makes floats of them, stay in registers: with more the sums do
/// not, which takes half as long again.
fn groups(rows: usize, target: &Target) -> RowGroups {
    RowGroups::of(rows, (target.registers * 9 / 32).max(1))
}

/// The micro-kernel for so many rows.
fn add_micro(panels: Panels, rows: usize, library: &mut Library) -> String {
    let scheme = panels.scheme;
    let fields = scheme.fields();
    let bits = (32 / fields).to_string();
    words(library);
    if scheme != Scheme::Int8 {
        add_field(&bits, library);
    }
    let template = match scheme {
        Scheme::Int8 => include_str!("micro_dot.c"),
        Scheme::Int8Weights => include_str!("micro.c"),
        Scheme::Int4Weights => include_str!("micro_grouped.c"),
    };
    let text = substitute(
        template,
        &[
            ("bits", &bits),
            ("fields", &fields.to_string()),
            ("group", &panels.group().to_string()),
            ("chains", &(4 / rows).max(1).to_string()),
            ("lanes", &library.target().lanes.to_string()),
            ("rows", &rows.to_string()),
        ],
    );
    library.add(&format!("mithril_micro_{}_{rows}", scheme.name()), &text)
}

/// The function that makes floats of a piece of a panel, by the scales of its columns if they are wanted: with groups of
/// terms they always are.
fn add_unpack(panels: Panels, is_scaled: bool, library: &mut Library) -> String {
    let scheme = panels.scheme;
    let fields = scheme.fields();
    let bits = (32 / fields).to_string();
    words(library);
    add_field(&bits, library);
    let template = match scheme {
        Scheme::Int4Weights => include_str!("unpack_grouped.c"),
        _ => include_str!("unpack.c"),
    };
    let [parameter, load, left, right] = if is_scaled {
        [
            ", const float *restrict scales",
            "\nconst mithril_f32 left_scale = MITHRIL_LOAD(f32, scales), right_scale = MITHRIL_LOAD(f32, scales + LANES);",
            " * left_scale",
            " * right_scale",
        ]
    } else {
        [""; 4]
    };
    let text = substitute(
        template,
        &[
            ("scales", parameter),
            ("by_scales", if is_scaled { " by their scales" } else { "" }),
            ("load_scales", load),
            ("scaled_left", left),
            ("scaled_right", right),
            ("bits", &bits),
            ("fields", &fields.to_string()),
            ("group", &panels.group().to_string()),
            ("lanes", &library.target().lanes.to_string()),
        ],
    );
    let scaled = if is_scaled && scheme != Scheme::Int4Weights { "_scaled" } else { "" };
    library.add(&format!("mithril_unpack_{}{scaled}", scheme.name()), &text)
}

/// The function that makes floats of numbers of so many bits.
fn add_field(bits: &str, library: &mut Library) {
    let field = substitute(include_str!("field.c"), &[("bits", bits)]);
    library.add(&format!("mithril_field_{bits}"), &field);
}

/// The types of words.
fn words(library: &mut Library) {
    library.add("mithril_words", include_str!("../common/words.c"));
}
