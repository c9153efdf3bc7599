//! Gradients of the weights of convolutions in groups, depthwise ones among them: few channels and filters meet each other,
//! so that vectors are of pixels.

use super::correlation::Correlation;
use crate::c::ir::kernel::{Argument, Call, Kernel};
use crate::c::kernels::common::library::{Library, substitute};
use crate::c::kernels::spec::epilogue::place;
use crate::c::target::Target;

/// [`Correlation`] of each group of channels with its own filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupedCorrelation {
    /// Of one group with the filters of all of them: `channels` are those of a group.
    pub of: Correlation,
    /// Groups.
    pub groups: usize,
    /// Elements of the image from one group to the next.
    pub group_stride: usize,
}

/// How it is cut up.
struct Plan {
    lanes: usize,
    /// Rows of a phase that weights meet, and elements from one to the next.
    rows: usize,
    pitch: usize,
    /// Elements of the line of a filter in an image, of a phase, and of all phases of a channel.
    length: usize,
    phase: usize,
    under: usize,
    /// Sums of a tile.
    most: usize,
    /// Filters of a unit.
    together: usize,
    /// Images whose lines are in the cache at the same time.
    block: usize,
}

impl Plan {
    fn new(grouped: &GroupedCorrelation, target: &Target) -> Self {
        let of = &grouped.of;
        let lanes = target.lanes_of(of.element);
        let reach = |axis: usize| {
            (of.result[axis] - 1) * of.stride[axis] + (of.kernel[axis] - 1) * of.dilation[axis] + 1
        };
        let [rows, pitch] = [0, 1].map(|axis| reach(axis).div_ceil(of.stride[axis]));
        let length = (of.result[0] * pitch).next_multiple_of(lanes);
        // The last vector of a line meets what lies behind the last row.
        let phase =
            (rows * pitch + pitch).max(length + (rows - of.result[0] + 1) * pitch).next_multiple_of(lanes);
        let under = of.stride[0] * of.stride[1] * phase;
        let bytes = of.element.bytes();
        let filters = of.filters / grouped.groups;
        let sums = of.channels * of.kernel.iter().product::<usize>() * lanes * bytes;
        // Neither their sums nor their lines of one image leave the cache.
        let fit = (target.cache / 4 / sums.max(1)).min(target.cache / 4 / (length * bytes).max(1));
        let together = fit.min(filters).max(1);
        let together = if together < filters && together > 1 { together & !1 } else { together };
        let images = target.cache / 2 / ((together * length + under) * bytes).max(1);
        Self {
            lanes,
            rows,
            pitch,
            length,
            phase,
            under,
            most: 2 * target.rows(),
            together,
            block: images.min(of.batch).max(1),
        }
    }
}

impl GroupedCorrelation {
    /// Puts the kernel's function into the library.
    pub fn build(&self, library: &mut Library) -> Kernel {
        let plan = Plan::new(self, library.target());
        let of = &self.of;
        let places: usize = of.kernel.iter().product();
        let elements = plan.block * (plan.together * plan.length + plan.under)
            + plan.together * of.channels * places * plan.lanes;
        let operands = (0..of.epilogue.operands.len()).map(Argument::Operand);
        let before = [Argument::Thread, Argument::Threads, Argument::A, Argument::B, Argument::Out];
        let arguments = before.into_iter().chain(operands).chain([Argument::Scratch]).collect();
        let function = self.add(library, &plan);
        Kernel {
            pack: None,
            packed_bytes: 0,
            panel_start: None,
            phases: vec![vec![Call { function, arguments }]],
            shared_bytes: 0,
            scratch_bytes: (elements * of.element.bytes()).next_multiple_of(64),
        }
    }

    fn add(&self, library: &mut Library, plan: &Plan) -> String {
        let of = &self.of;
        let strings = [
            ("pairs", tiles(of, plan, 2)),
            ("singles", tiles(of, plan, 1)),
            ("type", of.element.c().to_owned()),
            ("t", of.element.suffix().to_owned()),
            ("out", of.out_element.clone()),
            ("out_place", place(&of.out, &[of.channels])),
            ("expression", of.epilogue.text(&[of.channels])),
            ("parameters", of.epilogue.parameters()),
        ];
        let numbers = [
            ("n", of.batch),
            ("groups", self.groups),
            ("channels", of.channels),
            ("group_filters", of.filters / self.groups),
            ("h", of.image[0]),
            ("w", of.image[1]),
            ("kh", of.kernel[0]),
            ("kw", of.kernel[1]),
            ("oh", of.result[0]),
            ("ow", of.result[1]),
            ("top", of.padding[0][0]),
            ("left", of.padding[1][0]),
            ("stride_y", of.stride[0]),
            ("stride_x", of.stride[1]),
            ("dilation_y", of.dilation[0]),
            ("dilation_x", of.dilation[1]),
            ("image_batch", of.image_strides[0]),
            ("plane", of.image_strides[1]),
            ("group", self.group_stride),
            ("result_batch", of.result_strides[0]),
            ("filter", of.result_strides[1]),
            ("lanes", plan.lanes),
            ("rows", plan.rows),
            ("pitch", plan.pitch),
            ("length", plan.length),
            ("phase", plan.phase),
            ("under", plan.under),
            ("most", plan.most),
            ("together", plan.together),
            ("block", plan.block),
        ];
        let numbers = numbers.iter().map(|(key, number)| (*key, number.to_string()));
        let strings: Vec<(&str, String)> = strings.into_iter().chain(numbers).collect();
        let pairs: Vec<(&str, &str)> = strings.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let text = substitute(include_str!("grouped.c"), &pairs);
        let [height, width] = of.kernel;
        let name = format!("mithril_grouped_gradient_{}_{}_{height}x{width}", self.groups, of.channels);
        library.add(&name, &text)
    }
}

/// A call for each tile of weights of so many filters.
fn tiles(of: &Correlation, plan: &Plan, filters: usize) -> String {
    let places: usize = of.kernel.iter().product();
    let count = (places * filters).div_ceil(plan.most);
    let calls = (0..count).map(|i| {
        let (first, end) = (places * i / count, places * (i + 1) / count);
        format!("@name@_tile({first}, {}, {filters}, under, from, count, to);", end - first)
    });
    calls.collect::<Vec<_>>().join("\n")
}
