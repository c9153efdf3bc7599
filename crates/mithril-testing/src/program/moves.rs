//! Steps of programs that move elements and add them up: axes of 2 to 30, of whose loops compilers write some out and make
//! vectors of others.

use mithril::ir::graph::{Role, ValueId, Values};
use mithril::ir::literal::Lit;

use super::{Make, Maker, binary, pick};

/// What programs are made of.
pub(super) static STEPS: &[Make] =
    &[roll, sum, flip, transpose, roll, join, cut, pad, sum, choose, element, binary, merge, roll, sum, join];

/// Values larger than this feed no further step.
pub(super) const MAX_ELEMENTS: i64 = 1 << 12;

/// What is given.
pub(super) const GIVEN: &[(&str, Role, &[i64])] = &[
    ("state", Role::State, &[9, 10]),
    ("row", Role::Data, &[12]),
    ("matrix", Role::Data, &[4, 7]),
    ("wide", Role::Data, &[5, 30]),
    ("tall", Role::Data, &[14, 3]),
    ("cube", Role::Data, &[2, 5, 9]),
    ("block", Role::Data, &[3, 8, 12]),
    ("images", Role::Data, &[2, 3, 7, 14]),
];

const ELEMENT: &[&str] = &["sin", "negative", "square", "relu", "sigmoid", "exp"];

/// An axis of a value that has some.
fn axis(m: &Maker, x: ValueId, choice: u8) -> Option<usize> {
    let rank = m.rank(x);
    (rank > 0).then(|| usize::from(choice) % rank)
}

/// One or two axes, rolled.
fn roll(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let (first, second) = (axis(m, x, a)?, axis(m, x, a / 4 + 1)?);
    let shifts = [i64::from(c % 5) - 2, i64::from(c / 5 % 3) + 1];
    let count = if first == second { 1 } else { 2 };
    let axes = [first as i64, second as i64];
    m.apply("roll", x, [Lit::tuple(shifts[..count].to_vec()), Lit::tuple(axes[..count].to_vec())])
}

/// The sum, product, mean or extreme over one axis, the last ones, or all.
fn sum(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let rank = m.rank(x) as i64;
    let axes = match c % 4 {
        0 => 0..rank,
        1 => (rank - 2).max(0)..rank,
        _ => {
            let one = axis(m, x, c / 4)? as i64;
            one..one + 1
        }
    };
    let name = pick(&["sum", "mean", "sum", "max", "prod", "sum", "min"], a);
    m.apply(name, x, [Lit::tuple(axes), Lit::Bool(a % 2 == 0)])
}

fn flip(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let axes = if a % 3 == 0 { Lit::None } else { Lit::int(axis(m, x, c)? as i64) };
    m.apply("flip", x, [axes])
}

fn transpose(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let mut axes: Vec<i64> = (0..m.rank(x) as i64).collect();
    axes.swap(axis(m, x, a)?, axis(m, x, c)?);
    m.apply("transpose", x, [Lit::tuple(axes)])
}

/// Two values of the same sizes but along one axis, one behind the other.
fn join(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let along = axis(m, x, a)?;
    let dims = m.dims(x);
    let rank = dims.len();
    let like =
        m.find(c, |t| t.shape.rank() == rank && (0..rank).all(|i| i == along || t.shape[i] == dims[i]))?;
    let at = m.b.lit(along as i64);
    m.push(if a % 7 == 6 && like == x { "stack" } else { "concat" }, &[at, x, like])
}

/// From the second element on, without the last one, every second one, or from the end.
fn cut(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let (along, rank) = (axis(m, x, a)?, m.rank(x));
    let (mut starts, mut stops, mut steps) =
        (vec![Lit::None; rank], vec![Lit::None; rank], vec![1_i64; rank]);
    match c % 4 {
        0 => starts[along] = Lit::int(1),
        1 => stops[along] = Lit::int(-1),
        2 => steps[along] = 2,
        _ => steps[along] = -1,
    }
    m.apply("slice", x, [starts.into(), stops.into(), Lit::tuple(steps)])
}

fn pad(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let along = axis(m, x, c)?;
    let width = |i: usize| if i == along { [i64::from(a % 3), 2] } else { [i64::from(a / 3 % 2), 0] };
    let pads: Vec<Lit> = (0..m.rank(x)).map(|i| Lit::tuple(width(i))).collect();
    let mode = pick(&["constant", "constant", "edge", "circular"], a / 6);
    m.apply("pad", x, [pads.into(), mode.into(), Lit::Float(0.5)])
}

/// One of two values, element by element.
fn choose(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let y = m.partner(x, c)?;
    let is_large = m.apply("greater", x, [Lit::Float(f64::from(a % 3) * 0.25)])?[0];
    m.push("where", &[is_large, x, y])
}

fn element(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    m.push(pick(ELEMENT, a), &[x])
}

/// Two neighbouring axes become one, or one of even size two.
fn merge(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let at = axis(m, x, a)?;
    let mut sizes = m.sizes(x);
    if c % 2 == 0 && at + 1 < sizes.len() {
        let merged = sizes[at] * sizes[at + 1];
        sizes.splice(at..at + 2, [merged]);
    } else if sizes[at] % 2 == 0 && sizes.len() < 5 {
        let half = sizes[at] / 2;
        sizes.splice(at..=at, if c % 4 < 2 { [2, half] } else { [half, 2] });
    }
    m.apply("reshape", x, [Lit::tuple(sizes)])
}
