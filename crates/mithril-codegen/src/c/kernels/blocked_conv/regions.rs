//! Convolutions most of whose weights meet nothing but the zeros around the image, as where the dilation is about as large as
//! the image: pixels under which the same weights meet the image are computed together, by these weights alone.

use crate::c::ir::kernel::{Kernel, PanelStart};
use crate::c::kernels::blocked_conv::direct::{FEW_TERMS, Taps, WEIGHTS, epilogue, section, tile_of};
use crate::c::kernels::common::library::{Library, substitute};
use crate::c::kernels::common::tiling::Tiling;
use crate::c::kernels::spec::blocked_conv::{Blocked, Image};
use crate::c::kernels::winograd::build;
use crate::c::target::Target;

/// Weights are skipped where at most so many eighths of the time remain.
const LIVE_OF_8: usize = 6;

/// Tiles of fewer pixels take as long as one of so many: they wait for weights.
const LEAST_PIXELS: usize = 6;

/// Pixels along an axis, from one to before another, and the weights that meet the image under them, likewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    pixels: [usize; 2],
    taps: [usize; 2],
}

/// A rectangle of pixels under which the same weights meet the image: rows and pixels of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Region([Span; 2]);

/// How the pixels of a result are divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Regions {
    all: Vec<Region>,
    /// Along which axes all pixels read the image alone, not its halo.
    is_inside: [bool; 2],
}

impl Span {
    fn pixels(&self) -> usize {
        self.pixels[1] - self.pixels[0]
    }
    fn taps(&self) -> usize {
        self.taps[1] - self.taps[0]
    }
}

impl Region {
    fn tiling(&self, most: usize) -> Tiling {
        Tiling::new(self.0.map(|span| span.pixels()), most)
    }

    /// About how long its products take.
    fn cost(&self, most: usize) -> usize {
        let tiling = self.tiling(most);
        let height = self.0[0].pixels();
        let strip = |down: usize| -> usize {
            let sizes = tiling.across.sizes();
            sizes.map(|(count, across)| count * (down * across).max(LEAST_PIXELS)).sum()
        };
        let (whole, last) = (height / tiling.down, height % tiling.down);
        let tiles = whole * strip(tiling.down) + if last > 0 { strip(last) } else { 0 };
        tiles * self.0[0].taps() * self.0[1].taps()
    }

    fn strips(&self, most: usize) -> usize {
        self.0[0].pixels().div_ceil(self.tiling(most).down)
    }
}

/// The regions as the kernel finds them.
struct Table {
    /// The text of a row of the table for each.
    rows: Vec<String>,
    /// Of an image.
    strips: usize,
    /// Weights that all tiles of an image meet.
    steps: usize,
    /// Rows and pixels of the tiles that occur.
    shapes: Vec<[usize; 2]>,
}

impl Regions {
    fn table(&self, most: usize) -> Table {
        let mut table = Table { rows: Vec::new(), strips: 0, steps: 0, shapes: Vec::new() };
        for region in &self.all {
            let [y, x] = region.0;
            let Tiling { down, across, .. } = region.tiling(most);
            let pixels = [table.strips, y.pixels[0], y.pixels[1], down, x.pixels[0]];
            let groups = [across.groups, across.rows, across.remainder];
            let taps = [y.taps[0], y.taps(), x.taps[0], x.taps()];
            let numbers = pixels.iter().chain(&groups).chain(&taps).map(ToString::to_string);
            table.rows.push(format!("{{{}}}", numbers.collect::<Vec<_>>().join(", ")));
            table.strips += region.strips(most);
            table.steps += region.strips(most) * across.groups * y.taps() * x.taps();
            let last = (y.pixels() - 1) % down + 1;
            let sizes = across.sizes().filter(|&(count, _)| count > 0);
            table.shapes.extend(sizes.flat_map(|(_, across)| [[down, across], [last, across]]));
        }
        table.shapes.sort_unstable();
        table.shapes.dedup();
        table
    }
}

/// Where the kernel's pointer to the image points, by whether each axis begins with the image.
fn origin(is_inside: [bool; 2]) -> &'static str {
    match is_inside {
        [false, false] => "what lies under the first weight at the first pixel",
        [true, true] => "the first pixel of the image",
        [true, false] => "what lies in the first row of the image under the first weight of a row",
        [false, true] => "the first pixel of the row that lies under the first row of weights",
    }
}

impl Blocked {
    /// The regions, if it pays to skip weights.
    pub(super) fn regions(&self, library: &Library) -> Option<Regions> {
        let target = library.target();
        let may_skip = self.groups == 1 && !self.stays(target) && !self.uses_tiles(target);
        let edges = self.edges.filter(|_| may_skip)?;
        if self.few_bits.is_none() && build::blocked_tile(self, library).is_some() {
            return None;
        }
        let all = [0, 1].map(|axis| Span { pixels: [0, self.result[axis]], taps: [0, self.kernel[axis]] });
        let spans = [0, 1].map(|axis| self.spans(axis, edges[axis]));
        let regions = |[rows, columns]: [&[Span]; 2], is_inside: [bool; 2]| Regions {
            all: rows.iter().flat_map(|&y| columns.iter().map(move |&x| Region([y, x]))).collect(),
            is_inside,
        };
        let candidates = [
            regions([&spans[0], &all[1..]], [true, false]),
            regions([&spans[0], &spans[1]], [true, true]),
            regions([&all[..1], &spans[1]], [false, true]),
        ];
        let most = target.rows();
        let cost = |regions: &Regions| regions.all.iter().map(|region| region.cost(most)).sum::<usize>();
        let best = candidates.into_iter().min_by_key(cost)?;
        (cost(&best) * 8 <= Region(all).cost(most) * LIVE_OF_8).then_some(best)
    }

    /// Whether sums are finished in the registers that hold them.
    pub(super) fn stays(&self, target: &Target) -> bool {
        let k = self.channels * self.kernel.iter().product::<usize>();
        k <= FEW_TERMS && self.filters.is_multiple_of(target.lanes_of(self.element))
    }

    /// Zeros above and to the left of an image with this padding that the kernel starts at.
    pub fn zeros_before(&self, padding: [[usize; 2]; 2], library: &Library) -> [usize; 2] {
        let is_inside = self.reads_inside(library);
        [0, 1].map(|axis| if is_inside[axis] { 0 } else { padding[axis][0] })
    }

    /// Along which axes no halo is read.
    pub(super) fn reads_inside(&self, library: &Library) -> [bool; 2] {
        // Copies of row-major images have their padding, and integers a kernel of their own.
        let may_skip = matches!(self.image, Image::Blocks(_)) && self.few_bits.is_none();
        let regions = if may_skip { self.regions(library) } else { None };
        regions.map_or([false; 2], |regions| regions.is_inside)
    }

    /// Runs of pixels that meet the same weights along an axis with an image of this size behind so many zeros.
    fn spans(&self, axis: usize, [image, before]: [usize; 2]) -> Vec<Span> {
        let [stride, dilation] = [self.stride[axis], self.dilation[axis]];
        let mut spans: Vec<Span> = Vec::new();
        for pixel in 0..self.result[axis] {
            let meets = |tap: &usize| {
                let place = pixel * stride + tap * dilation;
                place >= before && place < before + image
            };
            let live = (0..self.kernel[axis]).find(meets);
            let taps = live.map_or([0; 2], |first| {
                let count = (first..self.kernel[axis]).take_while(meets).count();
                [first, first + count]
            });
            match spans.last_mut() {
                Some(span) if span.taps == taps => span.pixels[1] += 1,
                _ => spans.push(Span { pixels: [pixel, pixel + 1], taps }),
            }
        }
        spans
    }

    /// The kernel that skips weights.
    pub(super) fn build_regions(&self, regions: &Regions, library: &mut Library) -> Kernel {
        let target = *library.target();
        let (lanes, most) = (target.lanes_of(self.element), target.rows());
        let walk = self.walk(lanes);
        let terms = self.factor().terms();
        // A weight is a step by itself: of a row only some are multiplied.
        let (block, outer, pixel) = match self.image {
            Image::Blocks(_) => (lanes, self.channels / lanes, lanes / terms),
            Image::Plain(..) => (1, self.channels, 1),
        };
        let run = block / terms;
        let k = self.channels * self.kernel.iter().product::<usize>() / terms;
        let panels = self.filters.div_ceil(2 * lanes);
        let few = self.few_bits.map(|scheme| self.in_few_bits(scheme, block, library));
        let step_bytes = few.as_ref().map_or(2 * lanes * self.element.bytes(), |few| few.step_bytes);
        let Table { rows, strips, steps, shapes } = regions.table(most);
        let largest = shapes.iter().map(|[down, across]| down * across).max().unwrap_or(1);
        let tiles = self.tiles_of_shapes(&shapes, [walk.step, run, outer], library);
        let weights = few.as_ref().map_or(WEIGHTS, |few| &few.direct);
        let is_inside = self.reads_inside(library);
        let edges = self.edges.unwrap_or_default();
        let zeros = [0, 1].map(|axis| if is_inside[axis] { edges[axis][1] } else { 0 });
        let tiling = Tiling::new(self.result, most);
        let text = include_str!("regions.c")
            .replace("@section@", &section(weights))
            .replace("@origin@", origin(is_inside))
            .replace("@regions@", &rows.join(",\n        "))
            .replace("@epilogue@", &epilogue(&tiling, false));
        let panel_bytes = k * step_bytes;
        let sections = self.sections_of_regions(&target, strips, panels, panel_bytes);
        let numbers = [
            ("k", k),
            ("panels", panels),
            ("sections", sections),
            ("panel_blocks", 2),
            ("strips", strips),
            ("steps", (outer * run * steps).max(1)),
            ("step_bytes", step_bytes),
            ("most", largest),
            ("above", zeros[0]),
            ("before", zeros[1]),
            ("dilation_y", self.dilation[0]),
            ("dilation_x", self.dilation[1]),
            ("row_pitch", walk.row / self.dilation[0]),
            ("pixel", pixel),
            ("width", self.kernel[1]),
            ("run", run),
            ("outer", outer),
        ];
        let numbers = numbers.map(|(key, number)| (key, number.to_string()));
        let pairs: Vec<(&str, &str)> = numbers.iter().map(|(key, text)| (*key, text.as_str())).collect();
        let text = substitute(&text, &pairs);
        let text = self.fill(&text, &tiles, &tiling, &walk, lanes, &[]);
        let name = library.add(&self.wish("conv"), &text);
        let first = PanelStart { units: sections * panels, panels, bytes: panel_bytes };
        self.kernel(library, name, few, Some(Box::new(first)), |library| {
            let elements = panels * 2 * lanes * k;
            (self.pack(library, include_str!("pack.c"), lanes, block), elements)
        })
    }

    /// As [`Blocked::sections`], of so many strips of an image.
    fn sections_of_regions(
        &self,
        target: &Target,
        strips: usize,
        panels: usize,
        panel_bytes: usize,
    ) -> usize {
        let pixels: usize = self.edges.unwrap_or_default().iter().map(|[size, _]| size).product();
        let strip_bytes = self.channels * pixels * self.image_bytes() / strips;
        let are_even = strips.is_multiple_of(target.threads);
        self.sections_of(target, self.batch * strips, are_even, panels, [strip_bytes, panel_bytes])
    }

    /// The statement that computes a tile of one of these shapes, whose pixels are so far apart.
    fn tiles_of_shapes(
        &self,
        shapes: &[[usize; 2]],
        [step, run, outer]: [usize; 3],
        library: &mut Library,
    ) -> String {
        let arguments = format!(
            "(line + x * {step}, @image_line@, {outer}, @plane@, rows, @row@, columns, @column@, taps, sums, next, stride);"
        );
        let lanes = library.target().lanes_of(self.element);
        let mut calls = shapes.iter().map(|&[down, across]| {
            let call = self.of_panels(lanes, |vectors| {
                let (tile, taps) = ([down, across, step, run], (vectors, Taps::Some));
                format!("{}{arguments}", tile_of(library, self.factor(), tile, self.kernel, taps))
            });
            (down * 100 + across, call)
        });
        if shapes.len() == 1 {
            return calls.next().map(|(_, call)| call).unwrap_or_default();
        }
        let cases: Vec<String> = calls
            .map(|(shape, call)| format!("case {shape}:\n    {}\n    break;", call.replace('\n', "\n    ")))
            .collect();
        format!("switch (down * 100 + across) {{\n{}\n}}", cases.join("\n"))
    }
}
