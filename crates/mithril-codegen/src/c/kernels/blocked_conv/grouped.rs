//! Convolutions in groups of channels between tensors in blocks: a block of filters reads only some blocks of channels. Where
//! groups are smaller than blocks, weights between channels of two groups are zeros that are multiplied, too; that takes less
//! time than to bring the channels of every group together.

use crate::c::ir::kernel::Kernel;
use crate::c::kernels::blocked_conv::direct::epilogue;
use crate::c::kernels::common::library::{Library, substitute};
use crate::c::kernels::common::tiling::Tiling;
use crate::c::kernels::spec::blocked_conv::Blocked;
use crate::c::target::Factor;

impl Blocked {
    /// The kernel of groups that are neither one nor of one channel each, which read so many blocks.
    pub(super) fn build_grouped(&self, span: usize, library: &mut Library) -> Kernel {
        let lanes = library.target().lanes_of(self.element);
        let walk = self.walk(lanes);
        let tiling = Tiling::new(self.result, library.target().pixels());
        let mut tile = |down: usize, across: usize| {
            format!(
                "@name@_tile({down}, {across}, line + x * {}, right, sums);\n\
                 @name@_epilogue(sums, batch, y, x, {down}, {across}, panel, out@arguments@);\nx += {across};",
                walk.step
            )
        };
        let tiles = tiling.text(&mut tile);
        let (channels, filters) = (self.channels / self.groups, self.filters / self.groups);
        let first = format!("panel * {lanes} / {filters} * {channels} / {lanes}");
        let text = include_str!("grouped.c")
            .replace("@first_block@", &first)
            .replace("@epilogue@", &epilogue(&tiling, self.vectors(lanes).is_some()));
        let factor = self.factor();
        let run = lanes / factor.terms();
        let numbers = [("panel_blocks", 1), ("span", span), ("group_channels", channels), ("run", run)];
        let text = self.fill(&text, &tiles, &tiling, &walk, lanes, &numbers);
        if factor == Factor::Pairs {
            library.add_pairs();
        }
        let name = library.add(&self.wish("grouped"), &text);
        self.kernel(library, name, None, None, |library| {
            let numbers = [
                ("filters", self.filters),
                ("group_channels", channels),
                ("group_filters", filters),
                ("kh", self.kernel[0]),
                ("kw", self.kernel[1]),
                ("lanes", lanes),
                ("span", span),
            ];
            let numbers = numbers.map(|(key, number)| (key, number.to_string()));
            let mut pairs: Vec<(&str, &str)> =
                numbers.iter().map(|(key, text)| (*key, text.as_str())).collect();
            let is_paired = factor == Factor::Pairs;
            pairs.extend([
                ("type", self.element.c()),
                ("packed", if is_paired { "uint16_t" } else { self.element.c() }),
                ("place", if is_paired { PLACE_OF_PAIRS } else { PLACE }),
                ("weight", if is_paired { "mithril_to_bf16(weight)" } else { "weight" }),
                ("of_pairs", if is_paired { ", channels in pairs of bfloat16" } else { "" }),
                ("first_block", &first),
            ]);
            let pack = substitute(include_str!("grouped_pack.c"), &pairs);
            let elements = self.filters * span * run * self.kernel[0] * self.kernel[1];
            (library.add(&self.wish("pack_grouped"), &pack), elements)
        })
    }
}

/// Where the weight of a channel and a filter is packed, alone and in pairs of two channels.
const PLACE: &str = "(((panel * SPAN + i / LANES) * PLACES + place) * LANES + i % LANES) * LANES + lane";
const PLACE_OF_PAIRS: &str =
    "((((panel * SPAN + i / LANES) * PLACES + place) * LANES + i % LANES) / 2 * LANES + lane) * 2 + i % 2";
