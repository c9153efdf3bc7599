//! Winograd's algorithm for kernels of 3 by 3 with step 1: fewer products than terms, for some additions.

use super::blocked::{Blocked, Image};
use super::conv::Conv;
use super::epilogue::place;
use super::library::substitute;
use super::rows::RowGroups;
use super::{Algorithm, Argument, Call, Element, First, Kernel, Library, Packing, Question, Target};

/// The text for lines of output tiles of one length.
struct Transform {
    line: &'static str,
    line_back: &'static str,
    factors: &'static str,
}

/// Lines of 4 pixels.
static FOUR: Transform = Transform {
    line: "const mithril_f32 a = d[4] - 4.0f * d[2], b = d[3] - 4.0f * d[1], p = d[4] - d[2], q = 2.0f * (d[3] - d[1]);
r[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
r[1] = a + b;
r[2] = a - b;
r[3] = p + q;
r[4] = p - q;
r[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];",
    line_back: "const mithril_f32 a = d[1] + d[2], b = d[3] + d[4], p = d[1] - d[2], q = d[3] - d[4];
r[0] = d[0] + a + b;
r[1] = p + 2.0f * q;
r[2] = a + 4.0f * b;
r[3] = p + 8.0f * q + d[5];",
    factors: "{1.0 / 4, 0, 0}, {-1.0 / 6, -1.0 / 6, -1.0 / 6}, {-1.0 / 6, 1.0 / 6, -1.0 / 6},
        {1.0 / 24, 1.0 / 12, 1.0 / 6}, {1.0 / 24, -1.0 / 12, 1.0 / 6}, {0, 0, 1}",
};

/// Lines of 2 pixels.
static TWO: Transform = Transform {
    line: "r[0] = d[0] - d[2];
r[1] = d[1] + d[2];
r[2] = d[2] - d[1];
r[3] = d[1] - d[3];",
    line_back: "r[0] = d[0] + d[1] + d[2];
r[1] = d[1] - d[2] - d[3];",
    factors: "{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}",
};

/// Rows and pixels of an output tile.
pub(crate) type Tile = [usize; 2];

fn transform(pixels: usize) -> &'static Transform {
    if pixels == 4 { &FOUR } else { &TWO }
}

/// Adds the functions that transform lines of a tile, down and across.
fn add_lines(tile: Tile, library: &mut Library) {
    for pixels in tile {
        let (m, points, transform) = (pixels.to_string(), (pixels + 2).to_string(), transform(pixels));
        let pairs =
            [("m", &*m), ("tile", &*points), ("line_back", transform.line_back), ("line", transform.line)];
        let text = substitute(include_str!("winograd_line.c"), &pairs);
        library.add(&format!("mithril_winograd{pixels}_line"), &text);
    }
}

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub batch: usize,
    pub channels: usize,
    pub filters: usize,
    /// Height and width of the result.
    pub result: [usize; 2],
    /// Whether the weights change from call to call, so that they are transformed each time.
    pub changing: bool,
}

/// Where a tile's pixels come from and go to.
struct Ends {
    /// Elements from one image, block of channels and row to the next.
    image: [usize; 3],
    /// Size and margins of the row-major image that is copied into blocks before, if it is not in blocks.
    copied: Option<([usize; 2], [[usize; 2]; 2])>,
    finish: &'static str,
    strings: Vec<(&'static str, String)>,
    operands: usize,
    /// Elements of `finish`'s scratch memory.
    scratch: usize,
}

/// The size of the output tile, if this convolution is to be done so.
pub(crate) fn tile(conv: &Conv, library: &mut Library) -> Option<Tile> {
    let fits = fits(conv.element, conv.kernel, [conv.stride, conv.dilation]) && conv.groups == 1;
    if !fits {
        return None;
    }
    let shape = shape(conv);
    if conv.algorithm == Algorithm::Fastest {
        library.ask(question(&shape, "", library.target()));
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
        library.ask(question(&blocked_shape(conv), place, library.target()));
    }
}

/// How the specification ends of a convolution that can be done so. Row-major images of fewer channels than fill a vector
/// are not brought into blocks.
fn blocked_place(conv: &Blocked, target: &Target) -> Option<&'static str> {
    let place = match conv.image {
        Image::Blocks(_) => Some(" in blocks"),
        Image::Plain(..) => (conv.channels >= target.lanes).then_some(" into blocks"),
    };
    place.filter(|_| fits(conv.element, conv.kernel, [conv.stride, conv.dilation]))
}

/// The direct way, and output tiles. Those with 4 pixels round more: in a training, where a sum that is almost 0 decides
/// what gets a gradient, the direct way and tiles of 2 by 2 are all.
fn tiles(shape: &Shape) -> &'static [Option<Tile>] {
    if shape.changing { &[None, Some([2, 2])] } else { &[None, Some([2, 2]), Some([4, 2]), Some([4, 4])] }
}

/// How names of functions and candidates say the size of a tile.
fn mark([high, wide]: Tile) -> String {
    if high == wide { high.to_string() } else { format!("{high}x{wide}") }
}

/// Points of a tile, down and across: so many pixels are read for its pixels.
fn points_of(tile: Tile) -> [usize; 2] {
    tile.map(|pixels| pixels + 2)
}

/// What becomes of the sums makes hardly a difference between candidates, and nothing else than these sizes does.
fn question(shape: &Shape, place: &str, target: &Target) -> Question {
    let names = tiles(shape)
        .iter()
        .map(|tile| tile.map_or_else(|| "direct".to_owned(), |tile| format!("winograd {}", mark(tile))));
    let candidates = names.collect();
    let best = best(shape, target);
    let estimate = tiles(shape).iter().position(|tile| *tile == best).unwrap_or(0);
    let points =
        tiles(shape).iter().map(|tile| tile.map_or(9, |tile| points_of(tile).iter().product::<usize>()));
    let bytes = points.map(|points| points * shape.channels * shape.filters * 4).collect();
    let Shape { batch, channels, filters, result: [height, width], changing } = shape;
    let changing = if *changing { " changing" } else { "" };
    Question {
        specification: format!(
            "3x3 {batch}x{channels}x{height}x{width} to {filters}{changing}{place} for {target:?}"
        ),
        candidates,
        estimate,
        bytes: if shape.changing { Vec::new() } else { bytes },
    }
}

fn chosen(algorithm: Algorithm, shape: &Shape, place: &str, library: &Library) -> Option<Tile> {
    match algorithm {
        Algorithm::Winograd(tile) => Some(tile),
        Algorithm::Direct => None,
        Algorithm::Fastest => tiles(shape)[library.chosen(&question(shape, place, library.target()))],
    }
}

fn shape(conv: &Conv) -> Shape {
    let changing = conv.packing == Packing::Running;
    Shape {
        batch: conv.batch,
        channels: conv.channels,
        filters: conv.filters,
        result: conv.result(),
        changing,
    }
}

fn blocked_shape(conv: &Blocked) -> Shape {
    Shape {
        batch: conv.batch,
        channels: conv.channels,
        filters: conv.filters,
        result: conv.result,
        changing: false,
    }
}

/// Whether a convolution of one group can be done so at all: kernels of 3 by 3 with step 1, of `float`, since the
/// transforms lose about a digit, which nobody who asks for `double` wants to lose.
fn fits(element: Element, kernel: [usize; 2], steps: [[usize; 2]; 2]) -> bool {
    element == Element::F32 && kernel == [3, 3] && steps == [[1, 1], [1, 1]]
}

/// The size of the output tile that is estimated to be fastest; none where the direct way is.
pub(crate) fn best(conv: &Shape, target: &Target) -> Option<Tile> {
    let [height, width] = conv.result;
    let per_cycle = (2 * target.lanes) as f64;
    let pairs = (conv.channels * conv.filters) as f64;
    let direct = pairs * 9.0 * (conv.batch * height * width) as f64 / per_cycle;
    let cost = |tile: Tile| {
        let tiles = (conv.batch * height.div_ceil(tile[0]) * width.div_ceil(tile[1])) as f64;
        let points = points_of(tile).iter().product::<usize>() as f64;
        // A product of few rows waits for its weights; more weights than the cache holds come at a few bytes a cycle.
        let products = points * pairs * tiles.max(6.0) / per_cycle;
        let weights = points * pairs * 4.0;
        let reading = if weights > target.cache as f64 { weights / BYTES_PER_CYCLE } else { 0.0 };
        // Loads, stores and sums of both transforms, for a vector of channels of one tile.
        let transforms = tiles * (conv.channels + conv.filters) as f64 / target.lanes as f64 * points * 5.0;
        let packing = pairs * points * PACKING_CYCLES + reading;
        products.max(reading) + transforms + if conv.changing { packing } else { 0.0 }
    };
    let candidates = tiles(conv).iter().map(|&tile| (tile.map_or(direct, cost), tile));
    let fastest = candidates.min_by(|left, right| left.0.total_cmp(&right.0));
    fastest.and_then(|(_, size)| size)
}

/// What a transformed weight takes to make.
const PACKING_CYCLES: f64 = 1.0;

/// What one core gets from memory beyond its own caches.
const BYTES_PER_CYCLE: f64 = 5.0;

/// How a convolution is cut up.
struct Plan {
    tile: Tile,
    lanes: usize,
    /// Tiles of an image, down and across, and of all images.
    down: usize,
    across: usize,
    tiles: usize,
    rows: RowGroups,
    /// Groups of tiles in one block of the fused form; none for the phased form.
    block: Option<usize>,
}

impl Plan {
    fn new(conv: &Shape, tile: Tile, target: &Target) -> Self {
        let lanes = target.lanes;
        let [down, across] = [0, 1].map(|axis| conv.result[axis].div_ceil(tile[axis]));
        let points = points_of(tile).iter().product::<usize>();
        let tiles = conv.batch * down * across;
        let rows = RowGroups::new(tiles, target);
        let tile_bytes = points * (conv.channels.next_multiple_of(lanes) + 2 * lanes) * 4;
        // Weights that fit into the cache stay there for all blocks; others pass through it once for each.
        let weight_bytes = points * conv.channels * conv.filters * 4;
        let left = target.cache.checked_sub(weight_bytes).map_or(target.cache, |n| n.max(target.cache / 2));
        let fitting = left / (tile_bytes * rows.most());
        let block = fitting.min(rows.groups.div_ceil(target.threads));
        // Blocks of few tiles would wait for their weights.
        let block = (block >= 2).then_some(block);
        Self { tile, lanes, down, across, tiles, rows, block }
    }

    fn points(&self) -> usize {
        points_of(self.tile).iter().product()
    }

    fn form(&self) -> &'static str {
        match self.block {
            Some(_) => include_str!("winograd_fused.c"),
            None => include_str!("winograd_phased.c"),
        }
    }

    /// Where threads start in the packed weights; nothing is packed where weights change.
    fn first(&self, shape: &Shape) -> Option<Box<First>> {
        let panels = self.points() * shape.filters.div_ceil(2 * self.lanes);
        let units = if self.block.is_some() { 0 } else { panels };
        let first = First { units, panels, bytes: shape.channels * 2 * self.lanes * 4 };
        (!shape.changing).then(|| Box::new(first))
    }

    /// Height and width of the image with margins, in vectors, and the elements from one plane to the next.
    fn blocked(&self) -> [usize; 3] {
        let [height, width] = [self.down * self.tile[0] + 2, self.across * self.tile[1] + 2];
        // One vector more, lest planes lie powers of two apart.
        [height, width, (height * width + 1) * self.lanes]
    }

    /// Elements from one image, block of channels and row to the next of the image with margins.
    fn copy_strides(&self, channels: usize) -> [usize; 3] {
        let [_, width, plane] = self.blocked();
        [channels.div_ceil(self.lanes) * plane, plane, width * self.lanes]
    }

    /// Elements of `finish`'s scratch memory.
    fn strip(&self) -> usize {
        (self.tile[0] + 1) * (self.across * self.tile[1]).next_multiple_of(self.lanes) * self.lanes
    }
}

/// Puts the kernel's functions into the library.
pub(crate) fn build(conv: &Conv, tile: Tile, library: &mut Library) -> Kernel {
    let shape = shape(conv);
    let plan = Plan::new(&shape, tile, library.target());
    library.transpose(Element::F32);
    let ends = Ends {
        image: plan.copy_strides(conv.channels),
        copied: Some((conv.image, conv.padding)),
        finish: include_str!("winograd_finish.c"),
        strings: vec![
            ("out", conv.out_element.clone()),
            ("out_place", place(&conv.out, &[conv.batch])),
            ("expression", conv.epilogue.text(&[conv.batch])),
            ("parameters", conv.epilogue.parameters()),
            ("arguments", conv.epilogue.arguments()),
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
    let (image, copied) = match conv.image {
        Image::Blocks(places) => ([places.batch, places.block, places.y], None),
        Image::Plain(size, padding) => {
            library.transpose(Element::F32);
            (plan.copy_strides(conv.channels), Some((size, padding)))
        }
    };
    let ends = Ends {
        image,
        copied,
        finish: include_str!("winograd_finish_blocked.c"),
        strings: conv.epilogue_strings(plan.lanes),
        operands: conv.operands.len(),
        scratch: tile[0] * tile[1] * plan.lanes,
    };
    make(&shape, &plan, &ends, library)
}

/// How many rows or columns of the image, its margins among them, tiles of so many read for so many pixels.
pub(crate) fn reach(tile: usize, pixels: usize) -> usize {
    pixels.div_ceil(tile) * tile + 2
}

fn make(shape: &Shape, plan: &Plan, ends: &Ends, library: &mut Library) -> Kernel {
    let m = mark(plan.tile);
    let fill = |template: &str, library: &mut Library| fill(template, shape, plan, ends, library);
    let sizes = format!("{}_{}_{}x{}", shape.channels, shape.filters, shape.result[0], shape.result[1]);
    let text = fill(include_str!("winograd_pack.c"), library);
    let pack = library.add(&format!("mithril_winograd{m}_pack_{}_{}", shape.channels, shape.filters), &text);
    add_lines(plan.tile, library);
    let text = fill(include_str!("winograd_tile.c"), library);
    library.add(&format!("mithril_winograd{m}_tile"), &text);
    let work = |function: &str, middle: &[Argument]| Call {
        function: function.to_owned(),
        arguments: [&[Argument::Thread, Argument::Threads], middle].concat(),
    };
    let bytes = |elements: usize| (elements * 4).next_multiple_of(64);
    let channels = shape.channels.next_multiple_of(plan.lanes);
    let filters = shape.filters.next_multiple_of(2 * plan.lanes);
    let (mut phases, mut image, mut copied) = (Vec::new(), Argument::A, 0);
    if let Some(([height, width], _)) = ends.copied {
        let text = fill(include_str!("winograd_block.c"), library);
        let block = library.add(&format!("mithril_block_{}_{height}x{width}", shape.channels), &text);
        phases.push(vec![work(&block, &[Argument::A, Argument::Shared])]);
        copied = bytes(shape.batch * channels / plan.lanes * plan.blocked()[2]);
        image = Argument::Shared;
    }
    let text = fill(&format!("{}\n{}", ends.finish, plan.form()), library);
    let name = library.add(&format!("mithril_winograd{m}_{sizes}"), &text);
    let operands: Vec<Argument> = (0..ends.operands).map(Argument::Operand).collect();
    let mut packed_bytes = bytes(plan.points() * shape.channels * filters);
    let mut packed = Argument::Packed;
    let mut pack = Some(work(&pack, &[Argument::B, Argument::Packed]));
    if shape.changing {
        packed = Argument::SharedAt(copied);
        copied += std::mem::take(&mut packed_bytes);
        phases.resize(1, Vec::new());
        phases[0].extend(pack.take().map(|call| work(&call.function, &[Argument::B, packed.clone()])));
    }
    let first = plan.first(shape);
    let ahead = if first.is_some() { Argument::Ahead } else { packed.clone() };
    if let Some(block) = plan.block {
        let tiles = block * plan.rows.most();
        let own = plan.points() * (tiles * (channels + 2 * plan.lanes) + 96) + ends.scratch;
        let last = vec![Argument::Own, ahead];
        let arguments = [vec![image, packed, Argument::Out], operands, last].concat();
        phases.push(vec![work(&name, &arguments)]);
        return Kernel { pack, packed_bytes, first, phases, shared_bytes: copied, own_bytes: bytes(own) };
    }
    let products = copied + bytes(plan.points() * (plan.tiles * channels + 48));
    let (inside, outside) = (Argument::SharedAt(copied), Argument::SharedAt(products));
    let last = [vec![outside.clone(), Argument::Out], operands, vec![Argument::Own]].concat();
    phases.extend([
        vec![work(&format!("{name}_in"), &[image, inside.clone()])],
        vec![work(&format!("{name}_products"), &[inside, packed, outside, ahead])],
        vec![work(&format!("{name}_out"), &last)],
    ]);
    let shared_bytes = products + bytes(plan.points() * (plan.tiles * filters + 48));
    Kernel { pack, packed_bytes, first, phases, shared_bytes, own_bytes: bytes(ends.scratch) }
}

fn fill(template: &str, shape: &Shape, plan: &Plan, ends: &Ends, library: &mut Library) -> String {
    let [high, wide] = plan.tile;
    let [tile_high, tile_wide] = points_of(plan.tile);
    let [_, blocked_width, blocked_plane] = plan.blocked();
    let [height, width] = shape.result;
    let micro = "{micro}(CHANNELS, left, right, tile_sums, 0, fetch, stride);";
    let [batch, plane, row] = ends.image;
    let tile_place = format!(
        "batch * {batch} + channels * {plane} + t / ACROSS % DOWN * {} + t % ACROSS * {}",
        row * high,
        wide * plan.lanes
    );
    let strings = [
        ("m", mark(plan.tile)),
        ("factors_down", transform(high).factors.to_owned()),
        ("factors_across", transform(wide).factors.to_owned()),
        ("micro_calls", plan.rows.calls(micro, library, Element::F32, usize::MAX)),
        ("tile_place", tile_place),
    ];
    let (image, padding) = ends.copied.unwrap_or_default();
    let numbers = [
        ("n", shape.batch),
        ("high", high),
        ("wide", wide),
        ("tile_high", tile_high),
        ("tile_wide", tile_wide),
        ("points", plan.points()),
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
        ("lanes", plan.lanes),
        ("blocked_width", blocked_width),
        ("blocked_plane", blocked_plane),
        ("across", plan.across),
        ("down", plan.down),
        ("tiles", plan.tiles),
        ("groups", plan.rows.groups),
        ("rows", plan.rows.rows),
        ("longer", plan.rows.longer),
        ("block", plan.block.unwrap_or(1)),
    ];
    let numbers = numbers.map(|(key, number)| (key, number.to_string()));
    let pairs: Vec<(&str, &str)> = strings
        .iter()
        .chain(&ends.strings)
        .chain(&numbers)
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    substitute(template, &pairs)
}
