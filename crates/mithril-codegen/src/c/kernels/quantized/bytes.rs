//! Int8 activations between quantized convolutions: a convolution writes its output quantized, in the layout that the
//! next one reads: four channels of a pixel in a word.

use crate::c::ir::kernel::{Argument, Call};
use crate::c::kernels::spec::blocked_conv::Blocked;
use crate::c::kernels::spec::bytes::Numbers;

/// A call that every thread makes.
pub(crate) fn call(function: String, arguments: Vec<Argument>) -> Call {
    Call { function, arguments: [vec![Argument::Thread, Argument::Threads], arguments].concat() }
}

/// Pairs as templates take them.
pub(crate) fn borrowed<'a>(pairs: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    pairs.iter().map(|(key, text)| (*key, text.as_str())).collect()
}

/// Sums of a vector of filters.
const VECTOR: &str = "const long lane = 0, filter = block * LANES;
const mithril_i32 sum = MITHRIL_LOAD(i32, sums + part * LANES) - zero * MITHRIL_LOAD(i32, totals + filter);
const mithril_f32 filter_scale = scale * MITHRIL_LOAD(f32, scales + filter);
const mithril_f32 accumulator = __builtin_convertvector(sum, mithril_f32) * filter_scale;";

/// The same, filter by filter.
const LANES: &str = "for (long lane = 0; lane < @lanes_end@; lane++) {
    const long filter = block * LANES + lane;
    const int32_t sum = sums[part * LANES + lane] - zero * totals[filter];
    const float accumulator = (float)sum * (scale * scales[filter]);@coordinates@
    @number@ = @expression@;
}";

/// Stores a vector of numbers as bytes.
const STORE_BYTES: &str = "
*none |= ((mithril_u32)numbers & INT32_MAX) + 0x7fffff; /* beyond the infinity lies NaN */
mithril_store_words(out + @out_place@, numbers * @inverse@ + @offset@);";

impl Blocked {
    /// What the functions that multiply are called with.
    pub(crate) fn arguments(&self, image: Argument) -> Vec<Argument> {
        let operands = (0..self.operands.len()).map(Argument::Operand);
        [image, Argument::Packed, Argument::Out].into_iter().chain(operands).collect()
    }

    /// The template of what stores finished sums: a vector at a time where the epilogue can be said with vectors, and bytes
    /// in any case.
    pub(crate) fn epilogue_text(&self, lanes: usize) -> String {
        let [note, place] = match self.bytes.out {
            None => ["", "@out@"],
            Some(_) => [
                " Where a number\n   is none, the highest bits of `none` are set.",
                "mithril_u32 *restrict none, uint8_t",
            ],
        };
        let vectors = self.vector_value(lanes);
        // A value of a single number is the same for all lanes.
        let finish = match (vectors, self.bytes.out) {
            (Some(value), None) if self.out_element == "float" => {
                format!("{VECTOR}\nMITHRIL_STORE(f32, out + @out_place@, {value});\n(void)accumulator;")
            }
            (Some(value), Some(_)) => {
                format!("{VECTOR}\nconst mithril_f32 numbers = {value};\n(void)accumulator;{STORE_BYTES}")
            }
            (_, None) => LANES.replace("@number@", "out[@out_place@]"),
            (None, Some(_)) => {
                let lanes = LANES.replace("@number@", "finished[lane]").replace("@lanes_end@", "LANES");
                format!(
                    "float finished[LANES] __attribute__((aligned(64)));\n{lanes}\n\
                     const mithril_f32 numbers = MITHRIL_LOAD(f32, finished);\nconst long lane = 0;{STORE_BYTES}"
                )
            }
        };
        include_str!("conv_epilogue.c")
            .replace("@note@", note)
            .replace("@place@", place)
            .replace("@finish@", &finish.replace('\n', "\n                "))
    }

    /// The statement that stores a tile.
    pub(crate) fn epilogue_call(&self, down: usize, across: usize) -> String {
        let none = if self.bytes.out.is_some() { "&none, " } else { "" };
        format!(
            "@name@_epilogue(sums, scale, @zero@, filter_scales, batch, y, x, {down}, {across}, panel, {none}out@arguments@);\n"
        )
    }

    /// What the templates say of scales and zeros, where the image has them and where the result is stored; of an image whose
    /// rows are one strip, if `is_one_row`.
    pub(crate) fn whole_strings(&self, lanes: usize, is_one_row: bool) -> Vec<(&'static str, String)> {
        let panel_blocks = 2;
        let [declaration, scale, zero] = match self.bytes.image {
            None => self.scales_of_floats(),
            Some(image) => [
                format!("const uint8_t *const nan_flags = (const uint8_t *)image + {}L;", image.nan_flags),
                format!(
                    "scale = {:e}f;\nfor (long i = 0; i < {of}; i++)\n    scale = nan_flags[batch * {of} + i] ? NAN : scale;",
                    Numbers::of(image.range).scale,
                    of = image.nan_flags_of
                ),
                image.zero(),
            ],
        };
        let mut pairs = vec![("given", declaration), ("scale", scale), ("zero", zero)];
        let [none, note] = match self.bytes.out {
            None => [String::new(), String::new()],
            Some(out) => {
                let rows = if is_one_row {
                    format!("0; row < {}", self.result[0])
                } else {
                    "y; row < y + DOWN && row < OUT_HEIGHT".to_owned()
                };
                [
                    "\nmithril_u32 none = {0};".to_owned(),
                    format!(
                        "\nuint32_t is_none = 0;\n\
                     for (long lane = 0; lane < {lanes}; lane++)\n    is_none |= none[lane];\n\
                     for (long row = {rows}; row++)\n    \
                     for (long block = panel * {panel_blocks}; block < (panel + 1) * {panel_blocks} && block < {blocks}; block++)\n        \
                     (out + {}L)[(batch * {height} + row) * {blocks} + block] = (uint8_t)(is_none >> 31);",
                        out.nan_flags,
                        height = self.result[0],
                        blocks = self.filters / lanes
                    ),
                ]
            }
        };
        pairs.extend([("none", none), ("note", note)]);
        if let Some(out) = self.bytes.out {
            let Numbers { inverse, zero, .. } = Numbers::of(out.range);
            pairs.extend([("inverse", format!("{inverse:e}f")), ("offset", format!("{:e}f", zero + 0.5))]);
        }
        let are_whole = self.filters.is_multiple_of(panel_blocks * lanes);
        let skip = if are_whole { "" } else { "\nif (block * LANES >= FILTERS)\n    break;" };
        pairs.push(("skip", skip.to_owned()));
        let filled = self.filters.next_multiple_of(panel_blocks * lanes);
        let numbers = [
            ("filters", self.filters),
            ("ow", self.result[1]),
            ("panel_blocks", panel_blocks),
            ("filled", filled),
        ];
        pairs.extend(numbers.map(|(key, number)| (key, number.to_string())));
        pairs
    }
}
