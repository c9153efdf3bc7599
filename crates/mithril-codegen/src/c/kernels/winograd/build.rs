//! Winograd's algorithm for kernels of 3 by 3 with steps of 1 or 2: fewer products than terms, for some additions.

use std::fmt::Write as _;

use crate::c::ir::kernel::{Argument, Call, Kernel, PanelStart};
use crate::c::kernels::common::library::{Library, PanelUse, substitute, unroll};
use crate::c::kernels::common::row_groups::RowGroups;
use crate::c::kernels::common::tuning::TuningTask;
use crate::c::kernels::spec::blocked_conv::{Blocked, Image};
use crate::c::kernels::spec::conv::{Algorithm, Conv};
use crate::c::kernels::spec::epilogue::place;
use crate::c::kernels::spec::gemm::Packing;
use crate::c::kernels::spec::strides::Stored;
use crate::c::kernels::winograd::transforms::{
    Tile, add_lines, extent, mark, pair, plain, points_of, weights_of,
};
use crate::c::target::{Element, Target};

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub batch: usize,
    pub channels: usize,
    pub filters: usize,
    /// Height and width of the result.
    pub result: [usize; 2],
    /// Steps between two pixels of the result.
    pub steps: [usize; 2],
    /// Height and width of an image that is copied into blocks, its padding among them.
    pub padded: [usize; 2],
    /// Whether the weights change from call to call, so that they are transformed each time.
    pub changing: bool,
}

/// Where a tile's pixels come from and go to.
struct Ends {
    /// The C expression of where the image of `batch` begins.
    start: String,
    /// Elements from one block of channels and row to the next.
    image: [usize; 2],
    /// Size and halo of the row-major image that is copied into blocks before, if it is not in blocks.
    copied: Option<([usize; 2], [[usize; 2]; 2])>,
    epilogue: &'static str,
    strings: Vec<(&'static str, String)>,
    operands: usize,
    /// Elements of `epilogue`'s scratch memory.
    scratch: usize,
}

/// The size of the output tile, if this convolution is to be done so.
pub(crate) fn tile(conv: &Conv, library: &mut Library) -> Option<Tile> {
    let fits = fits(conv.element, conv.kernel, conv.stride, conv.dilation) && conv.groups == 1;
    if !fits {
        return None;
    }
    let shape = shape(conv);
    if conv.algorithm == Algorithm::Fastest {
        library.add_tuning_task(task(&shape, "", library.target()));
    }
    chosen(conv.algorithm, &shape, "", library)
}

/// As [`tile`], of one that reads and writes blocks.
pub(crate) fn blocked_tile(conv: &Blocked, library: &Library) -> Option<Tile> {
    let place = blocked_place(conv, library.target())?;
    chosen(conv.algorithm, &blocked_shape(conv), place, library)
}

/// Asks for the candidates of [`blocked_tile`], where there are some.
pub(crate) fn ask_blocked(conv: &Blocked, library: &mut Library) {
    if conv.algorithm == Algorithm::Fastest
        && let Some(place) = blocked_place(conv, library.target())
    {
        library.add_tuning_task(task(&blocked_shape(conv), place, library.target()));
    }
}

/// How the specification ends of a convolution that can be done so. Row-major images of fewer channels than fill a vector
/// are not brought into blocks.
fn blocked_place(conv: &Blocked, target: &Target) -> Option<&'static str> {
    let place = match conv.image {
        Image::Blocks(_) => Some(" in blocks"),
        // Frames of volumes are brought into another order.
        Image::Plain(..) => (conv.channels >= target.lanes && conv.depth.is_none()).then_some(" into blocks"),
    };
    place.filter(|_| {
        conv.stored == Stored::Same && fits(conv.element, conv.kernel, conv.stride, conv.dilation)
    })
}

/// The direct way, and output tiles. Those with 4 pixels round more: in a training, where a sum that is almost 0 decides
/// what gets a gradient, the direct way and tiles of 2 by 2 are all.
fn tiles(shape: &Shape) -> &'static [Option<Tile>] {
    if shape.changing { &[None, Some([2, 2])] } else { &[None, Some([2, 2]), Some([4, 2]), Some([4, 4])] }
}

/// What becomes of the sums makes hardly a difference between candidates, and nothing else than these sizes does.
fn task(shape: &Shape, place: &str, target: &Target) -> TuningTask {
    let names = tiles(shape)
        .iter()
        .map(|tile| tile.map_or_else(|| "direct".to_owned(), |tile| format!("winograd {}", pair(tile))));
    let candidates = names.collect();
    let best = best(shape, target);
    let estimate = tiles(shape).iter().position(|tile| *tile == best).unwrap_or(0);
    let Shape { batch, channels, filters, result: [height, width], steps, changing, .. } = shape;
    let steps = if *steps == [1, 1] { String::new() } else { format!(" step {}", pair(*steps)) };
    let changing = if *changing { " changing" } else { "" };
    TuningTask {
        specification: format!(
            "3x3 {batch}x{channels}x{height}x{width} to {filters}{steps}{changing}{place} for {target:?}"
        ),
        candidates,
        estimate,
    }
}

fn chosen(algorithm: Algorithm, shape: &Shape, place: &str, library: &Library) -> Option<Tile> {
    match algorithm {
        Algorithm::Winograd(tile) => Some(tile),
        Algorithm::Direct => None,
        Algorithm::Fastest => tiles(shape)[library.chosen(&task(shape, place, library.target()))],
    }
}

fn shape(conv: &Conv) -> Shape {
    let changing = conv.packing == Packing::Running;
    Shape {
        batch: conv.batch,
        channels: conv.channels,
        filters: conv.filters,
        result: conv.result(),
        steps: conv.stride,
        padded: [conv.padded(0), conv.padded(1)],
        changing,
    }
}

fn blocked_shape(conv: &Blocked) -> Shape {
    let padded = match conv.image {
        Image::Blocks(_) => [0, 0],
        Image::Plain(size, padding) => [0, 1].map(|axis| size[axis] + padding[axis].iter().sum::<usize>()),
    };
    Shape {
        batch: conv.batch,
        channels: conv.channels,
        filters: conv.filters,
        result: conv.result,
        steps: conv.stride,
        padded,
        changing: false,
    }
}

/// Whether a convolution of one group can be done so at all: kernels of 3 by 3 with steps of 1 or 2, of `float`, since
/// the transforms lose about a digit, which nobody who asks for `double` wants to lose.
fn fits(element: Element, kernel: [usize; 2], stride: [usize; 2], dilation: [usize; 2]) -> bool {
    let is_near = stride.iter().all(|step| (1..=2).contains(step));
    element == Element::F32 && kernel == [3, 3] && is_near && dilation == [1, 1]
}

/// How much faster products of pairs of bfloat16 in vectors are than those of floats.
const GAIN_OF_PAIRS: f64 = 1.8;

/// Cycles for a vector of bfloat16 that becomes float first.
const CONVERSION: f64 = 3.0;

/// Whether a convolution between blocks of bfloat16 is estimated to be faster in pairs than with float copies, for which
/// there may be a tile.
pub(crate) fn gains_by_pairs(conv: &Blocked, target: &Target) -> bool {
    if !fits(conv.element, conv.kernel, conv.stride, conv.dilation) || conv.groups > 1 || conv.depth.is_some()
    {
        return true;
    }
    let shape = blocked_shape(conv);
    let cycles = |tile: Option<Tile>| {
        let costs = costs(&shape, target);
        costs.into_iter().find(|(_, size)| *size == tile).map_or(f64::INFINITY, |(cost, _)| cost)
    };
    let read: usize = conv.result.iter().zip(conv.stride).map(|(size, step)| size * step).product();
    let copies = (conv.batch * conv.channels * read / target.lanes) as f64 * CONVERSION;
    best(&shape, target).is_none_or(|tile| cycles(None) / GAIN_OF_PAIRS <= cycles(Some(tile)) + copies)
}

/// The size of the output tile that is estimated to be fastest; none where the direct way is.
pub(crate) fn best(conv: &Shape, target: &Target) -> Option<Tile> {
    // Processors without vectors are small, and points take several times the memory of the pixels.
    if target.lanes == 1 {
        return None;
    }
    let fastest = costs(conv, target).into_iter().min_by(|left, right| left.0.total_cmp(&right.0));
    fastest.and_then(|(_, size)| size)
}

/// Estimated cycles of each candidate.
fn costs(conv: &Shape, target: &Target) -> Vec<(f64, Option<Tile>)> {
    let [height, width] = conv.result;
    let per_cycle = (2 * target.lanes) as f64;
    let pairs = (conv.channels * conv.filters) as f64;
    // More weights than the cache holds come at a few bytes a cycle.
    let weights = pairs * 9.0 * 4.0;
    let reading = if weights > target.cache as f64 { weights / BYTES_PER_CYCLE } else { 0.0 };
    let direct = pairs * 9.0 * (conv.batch * height * width) as f64 / per_cycle;
    let cost = |tile: Tile| {
        let tiles = (conv.batch * height.div_ceil(tile[0]) * width.div_ceil(tile[1])) as f64;
        let points = points_of(tile, conv.steps).iter().product::<usize>() as f64;
        let [products, weights] = if few(conv.steps, tile, tiles as usize, target).is_some() {
            [points * pairs * tiles * MAKING / per_cycle, 0.0]
        } else {
            // A product of few rows waits for its weights.
            let products = points * pairs * tiles.max(FEWEST_ROWS) / per_cycle;
            let weights = weights_of(tile, conv.steps).iter().product::<usize>() as f64;
            [products, weights * pairs / target.lanes as f64 * WEIGHT_CYCLES]
        };
        // Loads, stores and sums of both transforms, for a vector of channels of one tile.
        let transforms = tiles * (conv.channels + conv.filters) as f64 / target.lanes as f64 * points * 5.0;
        let packing = pairs * 9.0 * PACKING_CYCLES;
        products.max(reading) + weights + transforms + if conv.changing { packing } else { 0.0 }
    };
    tiles(conv).iter().map(|&tile| (tile.map_or_else(|| direct.max(reading), cost), tile)).collect()
}

/// Channels at a time, of so many at most: chunks as even as whole vectors can be.
fn even(channels: usize, most: usize, lanes: usize) -> usize {
    channels.div_ceil(channels.div_ceil(most.max(lanes))).next_multiple_of(lanes)
}

/// How many points of a line have their weights made in registers: where tiles are few. All sums of those points are in
/// registers, too.
fn few(steps: [usize; 2], tile: Tile, tiles: usize, target: &Target) -> Option<usize> {
    let wide = points_of(tile, steps)[1];
    let part = wide.div_ceil(wide.div_ceil(6));
    (tiles <= FEW_TILES && target.accumulators() / part >= 4).then_some(part)
}

/// Tiles for which weights at points are made in registers, again for every group of tiles.
const FEW_TILES: usize = 8;

/// How much longer products take whose weights are made beside them.
const MAKING: f64 = 1.25;

/// What a product takes at least, in rows.
const FEWEST_ROWS: f64 = 6.0;

/// What a vector of weights at one point takes to make.
const WEIGHT_CYCLES: f64 = 1.3;

/// What a weight takes to be brought into panels.
const PACKING_CYCLES: f64 = 1.0;

/// What one core gets from memory beyond its own caches.
const BYTES_PER_CYCLE: f64 = 5.0;

/// How a convolution is cut up.
struct Plan {
    tile: Tile,
    steps: [usize; 2],
    lanes: usize,
    /// Tiles of an image, down and across, and of all images.
    down: usize,
    across: usize,
    tiles: usize,
    rows: RowGroups,
    /// Groups of tiles in one block of the fused form; none for the phased form.
    block: Option<usize>,
    /// Channels and panels whose weights are there as points at the same time.
    chunk: usize,
    held: usize,
    /// The most points of a line whose weights are made in registers; none where they are made in memory.
    few: Option<usize>,
}

impl Plan {
    fn new(conv: &Shape, tile: Tile, target: &Target) -> Self {
        let (lanes, steps) = (target.lanes, conv.steps);
        let [down, across] = [0, 1].map(|axis| conv.result[axis].div_ceil(tile[axis]));
        let points = points_of(tile, conv.steps).iter().product::<usize>();
        let tiles = conv.batch * down * across;
        let rows = RowGroups::new(tiles, target);
        let channel_bytes = weights_of(tile, steps).iter().product::<usize>() * 2 * lanes * 4;
        let panels = conv.filters.div_ceil(2 * lanes);
        // Weights whose points leave room for tiles become points once, others for every block of tiles.
        let (chunk, held) = if panels * conv.channels * channel_bytes <= target.cache * 5 / 8 {
            (conv.channels, panels)
        } else {
            (even(conv.channels, target.cache * 3 / 8 / channel_bytes, lanes), 1)
        };
        let tile_bytes = points * (conv.channels.next_multiple_of(lanes) + 2 * lanes) * 4;
        let left = target.cache.saturating_sub(held * chunk * channel_bytes);
        let fitting = left / (tile_bytes * rows.most());
        let block = fitting.min(rows.groups.div_ceil(target.threads));
        // Blocks of few tiles would wait for their weights.
        let block = (block >= 2).then_some(block);
        let held = if block.is_some() { held } else { 1 };
        let few = block.is_none().then(|| few(steps, tile, tiles, target)).flatten();
        let (rows, chunk) = few.map_or((rows, chunk), |points| {
            let most = target.cache / 6 / (9 * 2 * lanes * 4);
            (RowGroups::of(tiles, target.accumulators() / points), even(conv.channels, most, lanes))
        });
        Self { tile, steps, lanes, down, across, tiles, rows, block, chunk, held, few }
    }

    fn points(&self) -> usize {
        points_of(self.tile, self.steps).iter().product()
    }

    fn weights(&self) -> usize {
        weights_of(self.tile, self.steps).iter().product()
    }

    fn form(&self) -> String {
        if self.block.is_some() {
            return include_str!("fused.c").to_owned();
        }
        let products = match self.few {
            Some(_) => include_str!("few.c"),
            None => include_str!("products.c"),
        };
        include_str!("phased.c").replace("@products_function@", products.trim_end())
    }

    /// Points of a line and its parts: how many parts, and how many points they have at most.
    fn parts(&self) -> [usize; 2] {
        let wide = points_of(self.tile, self.steps)[1];
        let most = self.few.unwrap_or(wide);
        [wide.div_ceil(most), most]
    }

    /// The functions of the products whose weights are made in registers, and their calls.
    fn lines(&self) -> (String, String) {
        let [high, wide] = points_of(self.tile, self.steps);
        let [parts, most] = self.parts();
        // Lines of plain weights are one case, so that the compiler has fewer loops to unroll.
        let weights = (0..high).map(|y| plain(self.tile[0], self.steps[0], y)).collect::<Vec<_>>();
        let (is_plain, is_made): (Vec<usize>, Vec<usize>) = (0..high).partition(|&y| weights[y].is_some());
        let mut lines = vec![("-1".to_owned(), is_plain)];
        lines.extend(is_made.into_iter().map(|y| (y.to_string(), vec![y])));
        let rows_of_weights: Vec<String> = weights.iter().map(|row| row.unwrap_or(0).to_string()).collect();
        let mut functions = Vec::new();
        let calls = self.rows.each(|rows| {
            let mut cases = String::new();
            for ((y, of), part) in lines.iter().flat_map(|line| (0..parts).map(move |part| (line, part))) {
                cases.extend(of.iter().map(|y| format!("case {}:\n", y * parts + part)));
                let from = part * most;
                let count = most.min(wide - from);
                let last = "channels, weights, in, products, accumulate, next, stride";
                let _ = writeln!(cases, "    @name@_points({rows}, {y}, {from}, {count}, {last});\n    break;");
            }
            functions.push(substitute(
                include_str!("few_line.c"),
                &[
                    ("rows", &rows.to_string()),
                    ("cases", cases.trim()),
                    ("weights", &rows_of_weights.join(", ")),
                ],
            ));
            format!("@name@_lines_{rows}(line, channels, kept + lane, left, tile_sums, channel > 0, next, stride);")
        });
        (functions.join("\n"), calls)
    }

    /// Where threads start in the packed weights; nothing is packed where weights change.
    fn first(&self, shape: &Shape) -> Option<Box<PanelStart>> {
        let panels = shape.filters.div_ceil(2 * self.lanes);
        let units = if self.block.is_some() { 0 } else { panels };
        let first = PanelStart { units, panels, bytes: shape.channels * 9 * 2 * self.lanes * 4 };
        (!shape.changing).then(|| Box::new(first))
    }

    /// Elements of the points of weights that a thread has at a time.
    fn factors(&self) -> usize {
        if self.few.is_some() { 0 } else { self.held * self.weights() * (self.chunk * 2 * self.lanes + PAD) }
    }

    /// Height and width of the image with halo, in vectors, and the elements from one plane to the next.
    fn blocked(&self, padded: [usize; 2]) -> [usize; 3] {
        let tiles = [self.down, self.across];
        let reach = |axis: usize| extent(tiles[axis] * self.tile[axis], self.steps[axis]);
        // Steps of 2 may leave a last line unread.
        let [height, width] = [0, 1].map(|axis| reach(axis).max(padded[axis]));
        // One vector more, so that planes are not powers of two apart.
        [height, width, (height * width + 1) * self.lanes]
    }

    /// Elements from one image, block of channels and row to the next of the image with halo.
    fn copy_strides(&self, shape: &Shape) -> [usize; 3] {
        let [_, width, plane] = self.blocked(shape.padded);
        [shape.channels.div_ceil(self.lanes) * plane, plane, width * self.lanes]
    }

    /// Elements of `epilogue`'s scratch memory.
    fn strip(&self) -> usize {
        (self.tile[0] + 1) * (self.across * self.tile[1]).next_multiple_of(self.lanes) * self.lanes
    }
}

/// Puts the kernel's functions into the library.
pub(crate) fn build(conv: &Conv, tile: Tile, library: &mut Library) -> Kernel {
    let shape = shape(conv);
    let plan = Plan::new(&shape, tile, library.target());
    library.transpose(Element::F32);
    let [batch, plane, row] = plan.copy_strides(&shape);
    let ends = Ends {
        start: format!("batch * {batch}"),
        image: [plane, row],
        copied: Some((conv.image, conv.padding)),
        epilogue: include_str!("epilogue.c"),
        strings: vec![
            ("out", conv.out_element.clone()),
            ("out_place", place(&conv.out, &[conv.batch])),
            ("expression", conv.epilogue.text(&[conv.batch])),
            ("parameters", conv.epilogue.parameters()),
            ("arguments", conv.epilogue.arguments()),
            ("channel_of_weights", "channel".to_owned()),
        ],
        operands: conv.epilogue.operands.len(),
        scratch: plan.strip(),
    };
    make(&shape, &plan, &ends, library)
}

/// As [`build`], of one that reads and writes blocks.
pub(crate) fn build_blocked(conv: &Blocked, tile: Tile, library: &mut Library) -> Kernel {
    let shape = blocked_shape(conv);
    let plan = Plan::new(&shape, tile, library.target());
    let (start, image, copied) = match conv.image {
        Image::Blocks(places) => (conv.walk(plan.lanes).image, [places.block, places.y], None),
        Image::Plain(size, padding) => {
            library.transpose(Element::F32);
            let [batch, plane, row] = plan.copy_strides(&shape);
            (format!("batch * {batch}"), [plane, row], Some((size, padding)))
        }
    };
    let mut strings = conv.epilogue_strings(plan.lanes);
    strings.push(("channel_of_weights", conv.channel_of_weights()));
    let ends = Ends {
        start,
        image,
        copied,
        epilogue: include_str!("epilogue_blocked.c"),
        strings,
        operands: conv.operands.len(),
        scratch: tile[0] * tile[1] * plan.lanes,
    };
    make(&shape, &plan, &ends, library)
}

/// How many rows or columns of the image, its halo among them, tiles of so many read for so many pixels.
pub(crate) fn reach(tile: usize, step: usize, pixels: usize) -> usize {
    extent(pixels.div_ceil(tile) * tile, step)
}

/// A call for all threads.
fn work(function: &str, middle: &[Argument]) -> Call {
    let arguments = [&[Argument::Thread, Argument::Threads], middle].concat();
    Call { function: function.to_owned(), arguments }
}

fn bytes(elements: usize) -> usize {
    (elements * 4).next_multiple_of(64)
}

/// What is done before there are tiles, and where that leaves things.
struct Begun {
    /// Copies the image into blocks, and brings weights into panels where they change.
    calls: Vec<Call>,
    shared_bytes: usize,
    image: Argument,
    /// Weights in panels; what brings them there when parameters are packed, and their bytes.
    weights: Argument,
    pack: Option<Call>,
    packed_bytes: usize,
}

fn begin(shape: &Shape, plan: &Plan, ends: &Ends, library: &mut Library) -> Begun {
    let channels = shape.channels.next_multiple_of(plan.lanes);
    let filters = shape.filters.next_multiple_of(2 * plan.lanes);
    let (mut calls, mut image, mut shared_bytes) = (Vec::new(), Argument::A, 0);
    if let Some(([height, width], _)) = ends.copied {
        let text = fill(include_str!("block.c"), shape, plan, ends, library);
        let block = library.add(&format!("mithril_block_{}_{height}x{width}", shape.channels), &text);
        calls.push(work(&block, &[Argument::A, Argument::Shared]));
        shared_bytes = bytes(shape.batch * channels / plan.lanes * plan.blocked(shape.padded)[2]);
        image = Argument::Shared;
    }
    let text = fill(include_str!("pack.c"), shape, plan, ends, library);
    let pack = library.add(&format!("mithril_winograd_pack_{}_{}", shape.channels, shape.filters), &text);
    let weight_bytes = bytes(9 * shape.channels * filters);
    if !shape.changing {
        let pack = Some(work(&pack, &[Argument::B, Argument::Packed]));
        let weights = Argument::Packed;
        return Begun { calls, shared_bytes, image, weights, pack, packed_bytes: weight_bytes };
    }
    let weights = Argument::SharedAt(shared_bytes);
    calls.push(work(&pack, &[Argument::B, weights.clone()]));
    Begun { calls, shared_bytes: shared_bytes + weight_bytes, image, weights, pack: None, packed_bytes: 0 }
}

fn make(shape: &Shape, plan: &Plan, ends: &Ends, library: &mut Library) -> Kernel {
    let Begun { calls, mut shared_bytes, image, weights, pack, packed_bytes } =
        begin(shape, plan, ends, library);
    let m = mark(plan.tile, plan.steps);
    let sizes = format!("{}_{}_{}x{}", shape.channels, shape.filters, shape.result[0], shape.result[1]);
    add_lines(plan.tile, plan.steps, library);
    let mut parts = vec![("tile", include_str!("tile.c"))];
    if plan.few.is_none() {
        parts.push(("weights", include_str!("weights.c")));
        if plan.weights() < plan.points() {
            parts.push(("weight", include_str!("weight_of.c")));
        }
    }
    for (part, text) in parts {
        let text = fill(text, shape, plan, ends, library);
        library.add(&format!("mithril_winograd{m}_{part}"), &text);
    }
    let text = fill(&format!("{}\n{}", ends.epilogue, plan.form()), shape, plan, ends, library);
    let name = library.add(&format!("mithril_winograd{m}_{sizes}"), &text);
    let first = plan.first(shape);
    let ahead = if first.is_some() { Argument::NextWeights } else { weights.clone() };
    let operands: Vec<Argument> = (0..ends.operands).map(Argument::Operand).collect();
    let channels = shape.channels.next_multiple_of(plan.lanes);
    let mut phases: Vec<Vec<Call>> = Some(calls).filter(|calls| !calls.is_empty()).into_iter().collect();
    if let Some(block) = plan.block {
        let tiles = block * plan.rows.most();
        let elements = plan.points() * (tiles * (channels + 2 * plan.lanes) + 2 * PAD);
        let scratch_bytes = bytes(elements + plan.factors() + ends.scratch);
        let last = vec![Argument::Scratch, ahead];
        let arguments = [vec![image, weights, Argument::Out], operands, last].concat();
        phases.push(vec![work(&name, &arguments)]);
        return Kernel { pack, packed_bytes, panel_start: first, phases, shared_bytes, scratch_bytes };
    }
    let mut matrices = |columns: usize| {
        let place = Argument::SharedAt(shared_bytes);
        shared_bytes += bytes(plan.points() * (plan.tiles * columns + PAD));
        place
    };
    let (inside, products) = (matrices(channels), matrices(shape.filters.next_multiple_of(2 * plan.lanes)));
    let last = [vec![products.clone(), Argument::Out], operands, vec![Argument::Scratch]].concat();
    let scratch = plan.few.is_none().then_some(Argument::Scratch);
    let factors = [inside.clone(), weights, products].into_iter().chain(scratch).chain([ahead]);
    phases.extend([
        vec![work(&format!("{name}_in"), &[image, inside])],
        vec![work(&format!("{name}_products"), &factors.collect::<Vec<_>>())],
        vec![work(&format!("{name}_out"), &last)],
    ]);
    let scratch_bytes = bytes(ends.scratch.max(plan.factors()));
    Kernel { pack, packed_bytes, panel_start: first, phases, shared_bytes, scratch_bytes }
}

/// Elements between the matrices of two points, so that they are not powers of two apart.
const PAD: usize = 48;

/// Tiles of at most so many points are transformed without loops: most of them stay in registers.
const UNROLLED: usize = 36;

/// The sizes that are written into templates, by name.
fn numbers(shape: &Shape, plan: &Plan, ends: &Ends) -> Vec<(&'static str, String)> {
    let [high, wide] = plan.tile;
    let [tile_high, tile_wide] = points_of(plan.tile, plan.steps);
    let [weights_high, weights_wide] = weights_of(plan.tile, plan.steps);
    let [_, blocked_width, blocked_plane] = plan.blocked(shape.padded);
    let [height, width] = shape.result;
    let [parts, line_points] = plan.parts();
    let [_, row] = ends.image;
    let (image, padding) = ends.copied.unwrap_or_default();
    [
        ("n", shape.batch),
        ("high", high),
        ("wide", wide),
        ("tile_high", tile_high),
        ("tile_wide", tile_wide),
        ("points", plan.points()),
        ("weight_points", plan.weights()),
        ("weights_high", weights_high),
        ("weights_wide", weights_wide),
        ("products", 9 * high * wide),
        ("channels", shape.channels),
        ("filters", shape.filters),
        ("h", image[0]),
        ("w", image[1]),
        ("top", padding[0][0]),
        ("left", padding[1][0]),
        ("oh", height),
        ("ow", width),
        ("row", row),
        ("lines", parts * tile_high),
        ("parts", parts),
        ("line_points", line_points),
        ("most", plan.rows.most()),
        ("step_down", plan.steps[0]),
        ("step_across", plan.steps[1]),
        ("lanes", plan.lanes),
        ("width", 2 * plan.lanes),
        ("blocked_width", blocked_width),
        ("blocked_plane", blocked_plane),
        ("across", plan.across),
        ("down", plan.down),
        ("tiles", plan.tiles),
        ("groups", plan.rows.groups),
        ("rows", plan.rows.rows),
        ("remainder", plan.rows.remainder),
        ("block", plan.block.unwrap_or(1)),
        ("chunk", plan.chunk),
        ("held", plan.held),
        ("pad", PAD),
    ]
    .map(|(key, number)| (key, number.to_string()))
    .to_vec()
}

fn fill(template: &str, shape: &Shape, plan: &Plan, ends: &Ends, library: &mut Library) -> String {
    let [high, wide] = plan.tile;
    let micro = "{micro}(channels, left, right, tile_sums, channel > 0, fetch, stride);";
    let columns = (shape.filters, "@filters@ - panel * WIDTH");
    let (start, [plane, row]) = (&ends.start, ends.image);
    let tile_place = format!(
        "{start} + channels * {plane} + t / ACROSS % DOWN * {} + t % ACROSS * {}",
        row * high * plan.steps[0],
        wide * plan.steps[1] * plan.lanes
    );
    let [tile_high, tile_wide] = points_of(plan.tile, plan.steps);
    let [_, weights_wide] = weights_of(plan.tile, plan.steps);
    // Larger tiles do not stay in registers anyway, and take long to compile.
    let side_by_side = plan.points() <= UNROLLED;
    let weight = if plan.weights() < plan.points() { "mithril_winograd@m@_weight(point)" } else { "point" };
    let weight_across = match weights_wide {
        wide if wide < tile_wide => format!("from + point < {wide} ? from + point : {wide} - 1"),
        _ => "from + point".to_owned(),
    };
    let (line_functions, line_calls) = plan.few.map(|_| plan.lines()).unwrap_or_default();
    let strings = [
        ("line_functions", line_functions),
        ("line_calls", line_calls),
        ("unroll_rows", unroll(tile_high, side_by_side)),
        ("unroll_columns", unroll(tile_wide, side_by_side)),
        ("weight", weight.to_owned()),
        ("weight_across", weight_across),
        ("m", mark(plan.tile, plan.steps)),
        ("size", pair(plan.tile)),
        ("line_down", mark([high; 2], [plan.steps[0]; 2])),
        ("line_across", mark([wide; 2], [plan.steps[1]; 2])),
        ("micro_calls", plan.rows.calls_of_columns(micro, library, Element::F32, PanelUse::Shared, columns)),
        ("tile_place", tile_place),
    ];
    let numbers = numbers(shape, plan, ends);
    let pairs: Vec<(&str, &str)> = strings
        .iter()
        .chain(&ends.strings)
        .chain(&numbers)
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    substitute(template, &pairs)
}
