//! Convolutions between blocks of bfloat16 with tiles (AMX): pixels of a row, or of two rows, lie as far apart as the rows of a
//! tile may, and the weights of a block of channels are packed in pairs as tiles of the right factor are.

use std::fmt::Write as _;

use crate::c::ir::kernel::{Kernel, PanelStart};
use crate::c::kernels::blocked_conv::direct::{Taps, WEIGHTS, epilogue, section, tile_of};
use crate::c::kernels::common::library::Library;
use crate::c::kernels::common::row_groups::RowGroups;
use crate::c::kernels::common::tiles::{PixelCut, TILE_ROWS, Tiles, add_tiles};
use crate::c::kernels::common::tiling::Tiling;
use crate::c::kernels::spec::blocked_conv::{Blocked, Image, Places};
use crate::c::target::{Factor, Target};

/// Stores the sums of a group of pixels.
const STORE: &str = "@name@_epilogue(sums, batch, y, x, is_whole ? DOWN : 1, ACROSS, panel, out@arguments@);";

/// The same where the last group overlaps the one before it: `out` may be what the sums are added to, so that no pixel is
/// stored twice.
const STORE_ONCE: &str = "enum { STORED = GROUPS * ACROSS - OUT_WIDTH }; /* by the group before the last */
                if (group + 1 < GROUPS)
                    @name@_epilogue(sums, batch, y, x, is_whole ? DOWN : 1, ACROSS, panel, out@arguments@);
                else
                    for (long j = 0; j < (is_whole ? DOWN : 1); j++)
                        @name@_epilogue(sums + (j * ACROSS + STORED) * WIDTH, batch, y + j, x + STORED, 1, ACROSS - STORED,
                                panel, out@arguments@);";

impl Blocked {
    /// Whether tiles multiply.
    pub(crate) fn uses_tiles(&self, target: &Target) -> bool {
        let has_pixels = self.result.iter().product::<usize>() > 1;
        Tiles::Pairs.are_in(target) && has_pixels && self.groups == 1 && self.factor() == Factor::Pairs
    }

    /// The same with all pixels in one row, where rows follow each other without a halo.
    fn in_one_row(&self) -> Option<Self> {
        let Image::Blocks(image) = self.image else { return None };
        let [height, width] = self.result;
        let continues = |places: &Places| places.y == width * places.x;
        let is_point = self.kernel == [1, 1] && self.stride == [1, 1];
        let lie_so = continues(&image) && continues(&self.out) && self.operands.iter().all(continues);
        (is_point && lie_so).then(|| Self { result: [1, height * width], ..self.clone() })
    }

    /// The kernel of tiles.
    pub(super) fn build_tiled(&self, library: &mut Library) -> Kernel {
        if self.result[0] > 1
            && let Some(flat) = self.in_one_row()
        {
            return flat.build_tiled(library);
        }
        add_tiles(library);
        let target = *library.target();
        let (lanes, factor) = (target.lanes, self.factor());
        let walk = self.walk(lanes);
        let cut = PixelCut::new(self.result);
        let (outer, run) = (self.channels / lanes, lanes / factor.terms());
        let k = self.channels * self.kernel.iter().product::<usize>() / factor.terms();
        let panels = self.filters.div_ceil(2 * lanes);
        let strips = self.batch * self.result[0].div_ceil(cut.down);
        let are_even = self.result[0].is_multiple_of(cut.down) && strips.is_multiple_of(target.threads);
        let mut tiling = Tiling::new(self.result, 2 * TILE_ROWS);
        tiling.down = cut.down;
        let step_bytes = 2 * lanes * 4;
        let bytes = [self.strip_bytes(&tiling), k * step_bytes];
        let sections = self.sections_of(&target, strips, are_even, panels, bytes);
        let parts = self.parts(&cut, [walk.step, run, outer], library);
        let text = include_str!("tiled.c")
            .replace("@section@", &section(WEIGHTS))
            .replace("@parts@", &parts.replace('\n', "\n    "))
            .replace("@store@", if cut.groups * cut.across == self.result[1] { STORE } else { STORE_ONCE })
            .replace("@epilogue@", &epilogue(&tiling, false))
            .replace("@groups@", &cut.groups.to_string())
            .replace("@across@", &cut.across.to_string());
        let numbers = [
            ("k", k),
            ("panels", panels),
            ("sections", sections),
            ("panel_blocks", 2),
            ("step_bytes", step_bytes),
            ("top", cut.tiles[0]),
            ("bottom", cut.tiles[1]),
            ("outer", outer),
            ("run", run),
        ];
        let text = self.fill(&text, "", &tiling, &walk, lanes, &numbers);
        let name = library.add(&self.wish("tiled"), &text);
        let first = PanelStart { units: sections * panels, panels, bytes: k * step_bytes };
        self.kernel(library, name, None, Some(Box::new(first)), |library| {
            (self.pack(library, include_str!("pack.c"), lanes, lanes), panels * 2 * lanes * k)
        })
    }

    /// The calls that compute both tiles with vectors, some pixels at a time.
    fn parts(&self, cut: &PixelCut, [step, run, outer]: [usize; 3], library: &mut Library) -> String {
        let mut calls = String::new();
        for (place, sums, count) in
            [("image", 0, cut.tiles[0]), ("image + second", cut.tiles[0], cut.tiles[1])]
        {
            let parts = RowGroups::new(count, library.target());
            let mut first = 0;
            for (groups, across) in parts.sizes().filter(|(_, across)| *across > 0) {
                for _ in 0..groups {
                    let micro =
                        tile_of(library, self.factor(), [1, across, step, run], self.kernel, (2, Taps::All));
                    let _ = writeln!(
                        calls,
                        "{micro}({place} + {}, 0, {outer}, @plane@, @row@, @column@, weights, sums + {}, \
                         (const char *)weights, 0);",
                        first * step,
                        (sums + first) * 32
                    );
                    first += across;
                }
            }
        }
        calls.trim_end().to_owned()
    }
}
