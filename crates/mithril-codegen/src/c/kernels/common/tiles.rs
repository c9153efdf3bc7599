//! Products with tiles (AMX), and the vectors that multiply the same where there are none.

use std::fmt::Write as _;

use crate::c::kernels::common::library::{Library, PanelUse, substitute};
use crate::c::kernels::common::row_groups::RowGroups;
use crate::c::target::Target;

/// Rows of a tile, and words in each of them.
pub(crate) const TILE_ROWS: usize = 16;

/// Fewer rows are multiplied about as fast with vectors.
pub(crate) const LEAST_TILE_ROWS: usize = 4;

/// Groups of rows, each of which two tiles hold.
pub(crate) fn tile_groups(rows: usize) -> RowGroups {
    RowGroups::of(rows, 2 * TILE_ROWS)
}

/// How the pixels of an image are cut into two tiles at a time.
pub(crate) struct PixelCut {
    /// Rows of a strip: 2 have a tile each.
    pub down: usize,
    /// Groups of a row, and pixels of each.
    pub groups: usize,
    pub across: usize,
    /// Pixels of both tiles.
    pub tiles: [usize; 2],
}

impl PixelCut {
    pub fn new([height, width]: [usize; 2]) -> Self {
        if width <= TILE_ROWS && height > 1 {
            return Self { down: 2, groups: 1, across: width, tiles: [width, width] };
        }
        let groups = width.div_ceil(2 * TILE_ROWS);
        let across = width.div_ceil(groups);
        Self { down: 1, groups, across, tiles: [across.div_ceil(2), across / 2] }
    }
}

/// What tiles hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tiles {
    /// Pairs of bfloat16, and sums in float.
    Pairs,
    /// Bytes, four steps of k in a word: unsigned ones of the left factor, signed ones of the right; and sums in integers.
    Bytes,
}

impl Tiles {
    /// Whether a processor multiplies such tiles, and its vectors are as wide.
    pub(crate) fn are_in(self, target: &Target) -> bool {
        let has_them = match self {
            Self::Pairs => target.tiles.bf16,
            Self::Bytes => target.tiles.int8,
        };
        has_them && target.lanes == TILE_ROWS
    }

    /// Whether panels of so many terms are packed so that tiles can read them: alike for any number of rows.
    pub(crate) fn are_packed(self, terms: usize, target: &Target) -> bool {
        // Shorter sums would mostly consist of what fills their tiles.
        let least = match self {
            Self::Pairs => 16,
            Self::Bytes => 32,
        };
        self.are_in(target) && terms >= least
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Pairs => "bf16",
            Self::Bytes => "int8",
        }
    }

    fn sum(self) -> &'static str {
        match self {
            Self::Pairs => "float",
            Self::Bytes => "int32_t",
        }
    }

    /// The suffixes of the functions for vectors of factors and of sums.
    fn vectors(self) -> [&'static str; 2] {
        match self {
            Self::Pairs => ["bf16", "f32"],
            Self::Bytes => ["u32", "i32"],
        }
    }

    fn multiply(self) -> &'static str {
        match self {
            Self::Pairs => "_tile_dpbf16ps",
            Self::Bytes => "_tile_dpbusd",
        }
    }

    /// What multiplies tiles for groups of this many rows and others of at most `most`, in the order of `factor`.
    pub(crate) fn micro(self, library: &mut Library, [rows, most]: [usize; 2], panels: PanelUse) -> String {
        add_tiles(library);
        let name = format!("mithril_tiles_{}{}", self.suffix(), panels.mark());
        let micro = substitute(
            include_str!("micro_tiles.c"),
            &[("sum", self.sum()), ("multiply", self.multiply()), ("fetch", fetch(panels))],
        );
        let micro = library.add(&name, &micro);
        let parts = RowGroups::new(rows, library.target());
        let mut first = 0;
        let mut calls = String::new();
        for (count, rows) in parts.sizes().filter(|(count, rows)| count * rows > 0) {
            let part = self.micro_part(library, rows);
            let call = format!("{part}(@rows@, k, a + 16 * row, panel, tile + 32 * row, accumulate);");
            let last = first + count * rows;
            let _ = write!(calls, "\nfor (long row = {first}; row < {last}; row += {rows})\n    {call}");
            first = last;
        }
        let text = substitute(
            include_str!("tiles_rows.c"),
            &[
                ("sum", self.sum()),
                ("tiles", &micro),
                ("parts", calls.trim_start()),
                ("rows", &rows.to_string()),
                ("most", &most.to_string()),
            ],
        );
        library.add(&format!("{name}_{rows}"), &text)
    }

    /// The micro-kernel of vectors for so many rows of a group of any height.
    fn micro_part(self, library: &mut Library, rows: usize) -> String {
        match self {
            Tiles::Pairs => library.add_pairs(),
            Tiles::Bytes => library.add_dot(),
        }
        let ([factors, sums], panels) = (self.vectors(), PanelUse::Cached);
        let (lanes, most_rows) = (library.target().lanes.to_string(), library.target().rows().to_string());
        let fill = |template: &str| {
            substitute(
                template,
                &[
                    ("type", self.sum()),
                    ("factor", "uint32_t"),
                    ("p", factors),
                    ("t", sums),
                    ("lanes", &lanes),
                    ("fetch", panels.fetch(false)),
                    ("panels", panels.mark()),
                    ("rows", &rows.to_string()),
                    ("most_rows", &most_rows),
                ],
            )
        };
        library.add(&format!("mithril_micro_{factors}{}", panels.mark()), &fill(include_str!("micro.c")));
        let name = format!("mithril_micro_{}_part_{rows}", self.suffix());
        library.add(&name, &fill(include_str!("micro_part.c")))
    }
}

/// What 16 steps ask for with tiles.
fn fetch(panels: PanelUse) -> &'static str {
    match panels {
        PanelUse::Cached => "(void)next, (void)stride;",
        PanelUse::Once => {
            "for (long i = 0; i < 2048; i += 64)\n    \
             MITHRIL_PREFETCH_L2((const char *)panel + 8192 + i);\n(void)next, (void)stride;"
        }
        PanelUse::Shared => {
            "for (long i = 0; i < 16 * stride; i += 64)\n    MITHRIL_PREFETCH_L2(next + i);\n\
             next += 16 * stride;"
        }
    }
}

/// What configures tiles.
pub(crate) fn add_tiles(library: &mut Library) {
    library.add("mithril_tiles", include_str!("tiles.c"));
}

/// Statements that configure tiles for groups of at most so many rows, and release them.
pub(crate) fn tile_configuration(library: &mut Library, rows: usize) -> [String; 2] {
    add_tiles(library);
    let start = format!("\nconst int has_tiles = mithril_start_tiles({rows});");
    [start, "\nmithril_stop_tiles(has_tiles);".to_owned()]
}
