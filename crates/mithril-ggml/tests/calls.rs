//! Random calls of every function: what the checks let through is built and computed, and the process lives. A failed
//! assertion of ggml ends it, and this test with it; MITHRIL_TEST_KEEP=1 prints each call before it is made.

use mithril_codegen::ggml::functions::{FUNCTIONS, Function, Kind};
use mithril_codegen::ggml::{Element, Type};
use mithril_ggml::{Argument, Context, Graph, TensorId};

/// Numbers that look random and are the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

const ELEMENTS: &[Element] = &[
    Element::F32,
    Element::F32,
    Element::F32,
    Element::F32,
    Element::F16,
    Element::BF16,
    Element::I32,
    Element::I64,
    Element::Q8_0,
    Element::Q4_K,
    Element::IQ4_XS,
];
const SIZES: &[i64] = &[1, 1, 2, 3, 4, 6, 32, 64, 256];
const NUMBERS: &[f64] = &[
    0.0,
    1.0,
    2.0,
    3.0,
    4.0,
    6.0,
    -1.0,
    -2.0,
    8.0,
    24.0,
    32.0,
    128.0,
    0.5,
    1e-5,
    -1e30,
    f64::INFINITY,
    f64::NAN,
    1_048_576.0,
    4_294_967_296.0,
    9e15,
];

/// A tensor: of some elements, perhaps turned or part of another. Often as large as one that is there.
fn tensor(
    c: &mut Context,
    random: &mut Random,
    leaves: &mut Vec<Type>,
    known: Option<[i64; 4]>,
) -> Option<TensorId> {
    let element = random.of(ELEMENTS);
    let mut sizes = [random.of(SIZES), random.of(SIZES), random.of(&SIZES[..6]), random.of(&SIZES[..4])];
    if let Some(known) = known {
        match random.below(4) {
            0 => sizes = known,
            1 => sizes[0] = known[0],
            2 => sizes[2] = known[2],
            _ => sizes[1] = known[1],
        }
    }
    let ty = Type::contiguous(element, sizes);
    let leaf = c.leaf(&ty).ok()?;
    leaves.push(ty);
    let number = |n: i64| Argument::Number(n as f64);
    match random.below(5) {
        0 => {
            let mut axes = [0, 1, 2, 3];
            axes.swap(random.below(4), random.below(4));
            let axes = axes.map(number);
            c.call("ggml_permute", &[Argument::Tensor(leaf), axes[0], axes[1], axes[2], axes[3]])
                .ok()
                .or(Some(leaf))
        }
        1 => {
            let part = sizes.map(|n| (n + 1) / 2);
            let offset = ty.element.bytes() * random.below(3) as i64;
            let arguments =
                [part[0], part[1], part[2], part[3], ty.strides[1], ty.strides[2], ty.strides[3], offset];
            let arguments: Vec<_> =
                [Argument::Tensor(leaf)].into_iter().chain(arguments.map(number)).collect();
            c.call("ggml_view_4d", &arguments).ok().or(Some(leaf))
        }
        2 => c.call("ggml_cont", &[Argument::Tensor(leaf)]).ok().or(Some(leaf)),
        _ => Some(leaf),
    }
}

fn argument(
    c: &mut Context,
    random: &mut Random,
    leaves: &mut Vec<Type>,
    kind: Kind,
    first: &mut Option<[i64; 4]>,
) -> Option<Argument> {
    Some(match kind {
        Kind::Optional if random.below(2) == 0 => Argument::Null,
        Kind::Tensor | Kind::Optional => {
            let id = tensor(c, random, leaves, *first)?;
            first.get_or_insert(c.ty(id).sizes);
            Argument::Tensor(id)
        }
        // Sizes of what is there, or their products, as reshaping and repeating want them.
        Kind::Int if random.below(3) == 0 => match first {
            Some(sizes) => Argument::Number((sizes[random.below(4)] * random.of(&[1, 1, 2])) as f64),
            None => Argument::Number(1.0),
        },
        Kind::Int => {
            // Mostly small ones.
            let count = 5 + random.below(NUMBERS.len() - 4);
            Argument::Number(random.of(&NUMBERS[..count]))
        }
        Kind::Float => Argument::Number(random.of(NUMBERS)),
        Kind::Bool => Argument::Number(random.below(2) as f64),
        Kind::Element => Argument::Element(random.of(ELEMENTS)),
    })
}

/// Whether a random call was let through; it is computed then.
fn is_called(function: &Function, random: &mut Random) -> bool {
    let mut c = Context::new().expect("a processor");
    let (mut leaves, mut first) = (Vec::new(), None);
    let mut arguments = Vec::new();
    for &kind in function.takes {
        let Some(argument) = argument(&mut c, random, &mut leaves, kind, &mut first) else { return false };
        arguments.push(argument);
    }
    if std::env::var_os("MITHRIL_TEST_KEEP").is_some() {
        let types = arguments.iter().map(|a| match a {
            Argument::Tensor(id) => c.ty(*id).to_string(),
            other => format!("{other:?}"),
        });
        eprintln!("{} {:?}", function.name, types.collect::<Vec<_>>());
    }
    let Ok(result) = c.call(function.name, &arguments) else { return false };
    let bytes = c.ty(result).elements() as usize * c.ty(result).element.bytes() as usize;
    if bytes > 1 << 22 {
        return false;
    }
    // The same of copies without gaps: where both are let through, both give the same.
    let copied = arguments.iter().map(|argument| match argument {
        Argument::Tensor(id) => {
            c.call("ggml_cont", &[*argument]).map_or(Argument::Tensor(*id), Argument::Tensor)
        }
        other => *other,
    });
    let copied: Vec<_> = copied.collect();
    let again = c.call(function.name, &copied).ok().filter(|id| c.ty(*id).element == Element::F32);
    let outputs: Vec<_> = [result].into_iter().chain(again).collect();
    let results = compute(c.finish(&outputs).expect("a graph"), &leaves, &vec![bytes; outputs.len()]);
    if let [one, two] = results.as_slice() {
        let scale = one.iter().filter(|x| x.is_finite()).fold(1e-3_f32, |a, x| a.max(x.abs()));
        let differ = |(x, y): (&f32, &f32)| x.is_finite() && y.is_finite() && (x - y).abs() > 1e-4 * scale;
        let is_same = !one.iter().zip(two).any(differ);
        assert!(
            is_same,
            "{} of {arguments:?} of {leaves:?} reads what has gaps in another way",
            function.name
        );
    }
    true
}

/// Computes a graph of leaves with values that differ from place to place.
fn compute(mut graph: Graph, leaves: &[Type], outputs: &[usize]) -> Vec<Vec<f32>> {
    let memory = |bytes: usize| vec![[0_u32; 16]; bytes / 64 + 2];
    let start = |m: &mut Vec<[u32; 16]>| {
        let start = m.as_mut_ptr().cast::<u8>();
        start.wrapping_add(start.align_offset(64)).cast::<std::ffi::c_void>()
    };
    let mut memories: Vec<_> = leaves.iter().map(|ty| memory(ty.bytes() as usize)).collect();
    for (leaf, ty) in memories.iter_mut().zip(leaves) {
        let value = |i: usize| match ty.element {
            Element::F32 => (((i * 37) % 101) as f32 / 50.0 - 1.0).to_bits(),
            // Every table has the first row.
            Element::I32 | Element::I64 => 0,
            // Small numbers as halves and as scales.
            _ => 0x2c00_2c01 + (i % 7) as u32,
        };
        leaf.iter_mut().flatten().enumerate().for_each(|(i, word)| *word = value(i));
    }
    let mut results: Vec<_> = outputs.iter().map(|&bytes| memory(bytes)).collect();
    let (mut arena, mut work) = (memory(graph.bytes()), memory(graph.work_bytes(1)));
    let leaves: Vec<_> = memories.iter_mut().map(start).collect();
    let places: Vec<_> = results.iter_mut().map(start).collect();
    // SAFETY: vectors with room for each tensor, and for what the graph asks for.
    unsafe { graph.compute(&leaves, &places, start(&mut arena), start(&mut work), None) }.expect("computed");
    // SAFETY: as many bytes as were asked for, all of which are numbers.
    let read = |(&place, &bytes): (&*mut std::ffi::c_void, &usize)| unsafe {
        std::slice::from_raw_parts(place.cast::<f32>(), bytes / 4).to_vec()
    };
    places.iter().zip(outputs).map(read).collect()
}

/// What is given to a graph belongs to the caller.
#[test]
fn leaves_are_not_written() {
    let mut c = Context::new().expect("a processor");
    let table = c.leaf(&Type::contiguous(Element::F32, [4, 8, 1, 1])).expect("a leaf");
    let rows = c.leaf(&Type::contiguous(Element::F32, [4, 2, 1, 1])).expect("a leaf");
    let at = c.leaf(&Type::contiguous(Element::I32, [2, 1, 1, 1])).expect("a leaf");
    let [table, rows, at] = [table, rows, at].map(Argument::Tensor);
    let error = c.call("ggml_set_rows", &[table, rows, at]).expect_err("the leaf would be written");
    assert!(error.to_string().contains("write into"), "{error}");
    let copy = Argument::Tensor(c.call("ggml_cont", &[table]).expect("a copy"));
    assert!(c.call("ggml_set_rows", &[copy, rows, at]).is_ok());
}

#[test]
fn what_is_let_through_does_not_end_the_process() {
    let mut random = Random(1);
    let mut never = Vec::new();
    for function in FUNCTIONS {
        let called = (0..100).filter(|_| is_called(function, &mut random)).count();
        if called == 0 {
            never.push(function.name);
        }
    }
    // Functions whose arguments must fit each other in many ways are rarely met by chance; they must be few.
    assert!(never.len() * 5 < FUNCTIONS.len(), "never called: {never:?}");
}
