//! What follows from what: shapes through patterns, broadcasting, functions; dtypes and literals.

use std::sync::Arc;

use mithril_ir::dtype::Kinds;
use mithril_ir::{Code, DType, Dim, Lit, Result, Shape};
use mithril_solve::{Answer, Fact, Facts, Relation, Rule, ShapeTerm, Slot, Solver, Why};

fn why() -> Why {
    Why::default()
}

/// `"batch 3 ? 64"` and `"a *.. 64"`: `?` is a fresh variable, `..` a fresh run.
fn term(s: &mut Solver, text: &str) -> ShapeTerm {
    let mut out = ShapeTerm::default();
    for word in text.split_whitespace() {
        if word == ".." {
            out.rest = Some(s.fresh_seq());
            continue;
        }
        let dim = match word {
            "?" => s.fresh_dim(),
            _ => word.parse::<i64>().map_or_else(|_| Dim::symbol(word), Dim::Const),
        };
        if out.rest.is_some() { out.suffix.push(dim) } else { out.prefix.push(dim) }
    }
    out
}

fn slots<const N: usize>(s: &mut Solver, names: [&str; N]) -> [Slot; N] {
    names.map(|name| s.slot(name))
}

fn set(s: &mut Solver, slot: Slot, text: &str) -> Result<()> {
    let shape = term(s, text);
    s.set_shape(slot, shape, why())
}

fn relate(s: &mut Solver, rule: Rule, inputs: &[Slot], outputs: &[Slot]) -> Result<()> {
    let relation = Relation::new("op", rule, inputs.iter().copied(), outputs.iter().copied());
    s.relate(relation, why())
}

fn shown(s: &Solver, slot: Slot) -> String {
    s.shape(slot).to_string()
}

const LINEAR: Rule = Rule::Pattern("*b k, n k, n -> *b n");

#[test]
fn linear_layers_of_unknown_rank_get_it_later() {
    let mut s = Solver::default();
    let input = s.slot("input");
    let mut x = input;
    let mut biases = Vec::new();
    for n in [32, 16, 10] {
        let [w, b, y] = slots(&mut s, ["w", "b", "y"]);
        relate(&mut s, LINEAR, &[x, w, b], &[y]).unwrap();
        set(&mut s, w, &format!("{n} ?")).unwrap();
        biases.push(b);
        x = y;
    }
    assert_eq!(shown(&s, x), "[..., 10]");
    assert_eq!(shown(&s, biases[1]), "[16]");
    set(&mut s, input, "batch time 64").unwrap();
    assert_eq!(shown(&s, x), "[batch, time, 10]");
}

#[test]
fn a_pattern_flows_backwards_into_the_weight() {
    let mut s = Solver::default();
    let [x, w, b, y] = slots(&mut s, ["x", "w", "b", "y"]);
    relate(&mut s, LINEAR, &[x, w, b], &[y]).unwrap();
    set(&mut s, y, "5 7").unwrap();
    set(&mut s, x, ".. 3").unwrap();
    assert_eq!(shown(&s, w), "[7, 3]");
    assert_eq!(shown(&s, b), "[7]");
    assert_eq!(shown(&s, x), "[5, 3]");
}

#[test]
fn an_absent_input_is_skipped() {
    let mut s = Solver::default();
    let [x, w, b, y] = slots(&mut s, ["x", "w", "b", "y"]);
    s.set_literal(b, Lit::None, why()).unwrap();
    set(&mut s, x, "2 3").unwrap();
    relate(&mut s, LINEAR, &[x, w, b], &[y]).unwrap();
    set(&mut s, w, "4 3").unwrap();
    assert_eq!(shown(&s, y), "[2, 4]");
    // Also if it turns out to be absent only afterwards.
    let c = s.slot("c");
    let z = s.slot("z");
    relate(&mut s, LINEAR, &[y, w, c], &[z]).unwrap_err();
    let v = s.slot("v");
    relate(&mut s, LINEAR, &[y, v, c], &[z]).unwrap();
    s.set_literal(c, Lit::None, why()).unwrap();
    assert_eq!(shown(&s, v), "[?, 4]");
}

#[test]
fn patterns_know_numbers_and_anything() {
    let mut s = Solver::default();
    let [x, y] = slots(&mut s, ["x", "y"]);
    relate(&mut s, Rule::Pattern("_ 3 h -> h h 2"), &[x], &[y]).unwrap();
    assert_eq!(shown(&s, x), "[?, 3, ?]");
    set(&mut s, y, "8 ? ?").unwrap();
    assert_eq!(shown(&s, x), "[?, 3, 8]");
    assert_eq!(shown(&s, y), "[8, 8, 2]");
    assert_eq!(set(&mut s, x, "1 4 8").unwrap_err().code(), Code::ShapeMismatch);
    assert_eq!(set(&mut s, x, "3 8").unwrap_err().code(), Code::RankMismatch);
}

fn broadcast(inputs: &[&str], output: &str) -> Result<Vec<String>> {
    let mut s = Solver::default();
    let operands: Vec<Slot> = inputs.iter().map(|_| s.slot("x")).collect();
    let y = s.slot("y");
    relate(&mut s, Rule::Broadcast, &operands, &[y])?;
    for (slot, text) in operands.iter().zip(inputs).chain([(&y, &output)]) {
        set(&mut s, *slot, text)?;
    }
    Ok(operands.iter().chain([&y]).map(|slot| shown(&s, *slot)).collect())
}

#[test]
fn broadcasting_forwards() {
    let out = |inputs: &[&str]| broadcast(inputs, "..").map(|all| all.last().unwrap().clone()).unwrap();
    assert_eq!(out(&["2 1 4", "3 1"]), "[2, 3, 4]");
    assert_eq!(out(&["", "n m"]), "[n, m]");
    assert_eq!(out(&["batch 64", "batch 64"]), "[batch, 64]");
    assert_eq!(out(&["batch 1", "1 k"]), "[batch, k]");
    // Either symbol may turn out to be 1.
    assert_eq!(out(&["n 4", "m 4"]), "[?, 4]");
    assert_eq!(out(&["n", "64"]), "[64]");
    assert_eq!(out(&["0", "1"]), "[0]");
    assert_eq!(out(&["..", "64"]), "[..., 64]");
    assert_eq!(out(&["..", "1"]), "[..., ?]");
    assert_eq!(out(&["2 ..", "64"]), "[..., 64]");
    assert_eq!(out(&[".. 3 4", "1 4"]), "[..., 3, 4]");
    assert_eq!(out(&["1 1", "1"]), "[1, 1]");
    assert_eq!(out(&["2", "1", "1 1 1"]), "[1, 1, 2]");
}

#[test]
fn broadcasting_backwards() {
    let all = |inputs: &[&str], output| broadcast(inputs, output).unwrap().join(" ");
    assert_eq!(all(&["? ?", "1"], "3 4"), "[3, 4] [1] [3, 4]");
    assert_eq!(all(&["..", "4"], "2 3 4"), "[2, 3, ?] [4] [2, 3, 4]");
    assert_eq!(all(&["?", "?"], "1"), "[1] [1] [1]");
    assert_eq!(all(&["..", ".."], ""), "[] [] []");
    assert_eq!(all(&["..", "3"], "n .. 3"), "[n, ..., ?] [3] [n, ..., 3]");
    // The unknown one is 1 or 3.
    assert_eq!(all(&["?", "3"], "3"), "[?] [3] [3]");
    assert_eq!(all(&["?", "?"], "3"), "[?] [?] [3]");
}

#[test]
fn broadcasting_refuses() {
    for (inputs, output) in [
        (&["2", "3"][..], ".."),
        (&["2 3", "3"], "3"),
        (&["2", "1"], "3"),
        (&["2", "?"], "1"),
        (&["1", "1"], "4"),
        (&[".. 2", "3"], ".."),
        (&["2 2 2", ".."], "2 2"),
    ] {
        let error = broadcast(inputs, output).unwrap_err();
        assert!(matches!(error.code(), Code::ShapeMismatch | Code::RankMismatch), "{error}");
    }
}

#[test]
fn an_operand_of_broadcasting_counts_once() {
    // Of `where(c, x, x)`, x alone can have the rank of the result.
    let mut s = Solver::default();
    let [c, x, y] = slots(&mut s, ["c", "x", "y"]);
    relate(&mut s, Rule::Broadcast, &[c, x, x], &[y]).unwrap();
    set(&mut s, c, "4").unwrap();
    set(&mut s, y, "2 3 4").unwrap();
    assert_eq!(shown(&s, x), "[2, 3, ?]");
}

#[test]
fn a_residual_connection_keeps_an_unknown_rank() {
    let mut s = Solver::default();
    let [x, w, b, y, z] = slots(&mut s, ["x", "w", "b", "y", "z"]);
    relate(&mut s, LINEAR, &[x, w, b], &[y]).unwrap();
    relate(&mut s, Rule::Broadcast, &[x, y], &[z]).unwrap();
    set(&mut s, b, "64").unwrap();
    assert_eq!(shown(&s, z), "[..., 64]");
    set(&mut s, z, "batch time ?").unwrap();
    assert_eq!(shown(&s, x), "[batch, time, ?]");
    assert_eq!(shown(&s, y), "[batch, time, 64]");
}

/// `[.., n]` to `[.., (n - k) // 2 + 1]`, as a window would.
fn window(k: i64) -> Rule {
    Rule::When(Arc::new(move |facts: &[Fact]| {
        let Some(shape) = facts[0].shape.as_ref().and_then(ShapeTerm::to_shape) else {
            return Ok(Answer::Later);
        };
        let mut dims = shape.0;
        if let Some(last) = dims.last_mut() {
            *last = &(&*last - &Dim::Const(k)).floor_div(&Dim::Const(2)) + &Dim::ONE;
        }
        Ok(Answer::Now(Facts::outputs([Fact::shape(Shape(dims))])))
    }))
}

#[test]
fn a_function_is_asked_when_the_rank_is_known_and_again_for_numbers() {
    let mut s = Solver::default();
    let [x, y, z] = slots(&mut s, ["x", "y", "z"]);
    relate(&mut s, window(3), &[y], &[z]).unwrap();
    relate(&mut s, window(2), &[x], &[y]).unwrap();
    assert_eq!(shown(&s, z), "[...]");
    set(&mut s, x, "batch width").unwrap();
    assert_eq!(shown(&s, y), "[batch, width//2]");
    s.equate_dims(&Dim::symbol("width"), &Dim::Const(20), why()).unwrap();
    // 20 -> 10 -> (10 - 3) // 2 + 1 = 4
    assert_eq!(shown(&s, z), "[batch, 4]");
}

#[test]
fn equations_of_a_function_bind() {
    let rule = Rule::When(Arc::new(|facts: &[Fact]| {
        let shapes: Option<Vec<Shape>> =
            facts.iter().map(|f| f.shape.as_ref().and_then(ShapeTerm::to_shape)).collect();
        let Some(shapes) = shapes else { return Ok(Answer::Later) };
        let sum = &shapes[0][0] + &shapes[1][0];
        let outputs = vec![Fact::shape(Shape::of([sum]))];
        let equations = vec![(shapes[0][1].clone(), shapes[1][1].clone())];
        Ok(Answer::Now(Facts { outputs, equations, inputs: Vec::new() }))
    }));
    let mut s = Solver::default();
    let [a, b, y] = slots(&mut s, ["a", "b", "y"]);
    relate(&mut s, rule, &[a, b], &[y]).unwrap();
    set(&mut s, a, "3 n").unwrap();
    set(&mut s, b, "? 7").unwrap();
    assert_eq!(shown(&s, a), "[3, 7]");
    set(&mut s, y, "10").unwrap();
    assert_eq!(shown(&s, b), "[7, 7]");
}

#[test]
fn linear_equations() {
    let n = Dim::symbol("n");
    let m = Dim::symbol("m");
    let twice = &(&n * &Dim::Const(2)) + &m;
    let mut s = Solver::default();
    // 2n + m = 7 and n + 2m = 8: n = 2, m = 3
    s.equate_dims(&twice, &Dim::Const(7), why()).unwrap();
    s.equate_dims(&(&n + &(&m * &Dim::Const(2))), &Dim::Const(8), why()).unwrap();
    assert_eq!((s.resolve(&n), s.resolve(&m)), (Dim::Const(2), Dim::Const(3)));

    // 2n + 3m = 12 alone decides nothing; m = n - 1 makes it 5n = 15.
    let mut s = Solver::default();
    let sum = &(&n * &Dim::Const(2)) + &(&m * &Dim::Const(3));
    s.equate_dims(&sum, &Dim::Const(12), why()).unwrap();
    assert_eq!(s.resolve(&n), n);
    s.equate_dims(&m, &(&n - &Dim::ONE), why()).unwrap();
    assert_eq!((s.resolve(&n), s.resolve(&m)), (Dim::Const(3), Dim::Const(2)));
}

#[test]
fn products_are_divided_where_they_divide() {
    let mut s = Solver::default();
    let [b, k] = ["b", "k"].map(Dim::symbol);
    s.equate_dims(&(&b * &Dim::Const(12)), &(&b * &(&k * &Dim::Const(3))), why()).unwrap();
    assert_eq!(s.resolve(&k), Dim::Const(4));
    assert!(s.equate_dims(&(&b * &Dim::Const(12)), &(&b * &Dim::Const(13)), why()).is_err());
}

#[test]
fn equations_without_a_solution() {
    let n = Dim::symbol("n");
    let plus = |k: i64| &n + &Dim::Const(k);
    let times = |k: i64| &n * &Dim::Const(k);
    for (a, b) in [
        (n.clone(), plus(1)),
        (times(2), Dim::Const(3)),
        (&times(2) + &Dim::ONE, &times(4) + &Dim::Const(2)),
        (plus(5), Dim::Const(3)),
        (times(2), &times(3) + &Dim::Const(1)),
        (n.clone(), Dim::Const(-1)),
        (times(2), times(3)),
    ] {
        let mut s = Solver::default();
        let error = s.equate_dims(&a, &b, why()).unwrap_err();
        assert!(matches!(error.code(), Code::ShapeMismatch | Code::BadSize), "{a} = {b}: {error}");
        assert_eq!(s.resolve(&n), n);
    }
    // n = m - 5 is negative only once m is known.
    let m = Dim::symbol("m");
    for known_first in [true, false] {
        let mut s = Solver::default();
        let mut facts = [(n.clone(), &m - &Dim::Const(5)), (m.clone(), Dim::Const(4))];
        if known_first {
            facts.reverse();
        }
        s.equate_dims(&facts[0].0, &facts[0].1, why()).unwrap();
        assert_eq!(s.equate_dims(&facts[1].0, &facts[1].1, why()).unwrap_err().code(), Code::BadSize);
    }
    let mut s = Solver::default();
    s.equate_dims(&times(2), &Dim::Const(0), why()).unwrap();
    assert_eq!(s.resolve(&n), Dim::Const(0));
}

#[test]
fn what_contains_itself_is_an_error() {
    let mut s = Solver::default();
    let x = s.slot("x");
    let seq = s.fresh_seq();
    s.set_shape(x, ShapeTerm { rest: Some(seq), ..ShapeTerm::default() }, why()).unwrap();
    let longer = ShapeTerm { prefix: vec![Dim::ONE], rest: Some(seq), suffix: vec![] };
    assert_eq!(s.set_shape(x, longer, why()).unwrap_err().code(), Code::RankMismatch);
    // x -> [1, *x] -> x
    let y = s.slot("y");
    relate(&mut s, Rule::Pattern("*b -> 1 *b"), &[x], &[y]).unwrap();
    assert_eq!(s.equate(x, y, why()).unwrap_err().code(), Code::RankMismatch);
    // Three equations in a circle: a = b + 1, b = c + 1, c = a.
    let [a, b, c] = [(); 3].map(|()| s.fresh_dim());
    s.equate_dims(&a, &(&b + &Dim::ONE), why()).unwrap();
    s.equate_dims(&b, &(&c + &Dim::ONE), why()).unwrap();
    assert!(s.equate_dims(&c, &a, why()).is_err());
    s.equate_dims(&(&c + &Dim::Const(2)), &a, why()).unwrap();
}

#[test]
fn known_prefix_meets_known_suffix() {
    let mut s = Solver::default();
    let [x, w, b, y] = slots(&mut s, ["x", "w", "b", "y"]);
    set(&mut s, x, "batch ..").unwrap();
    relate(&mut s, LINEAR, &[x, w, b], &[y]).unwrap();
    set(&mut s, w, "5 7").unwrap();
    // Whether `batch` is the last size of x is open until the rank is known.
    set(&mut s, y, "? ? ?").unwrap();
    assert_eq!(shown(&s, x), "[batch, ?, 7]");
    assert_eq!(shown(&s, y), "[batch, ?, 5]");

    let mut s = Solver::default();
    let x = s.slot("x");
    set(&mut s, x, "batch ..").unwrap();
    set(&mut s, x, ".. 7").unwrap();
    set(&mut s, x, "?").unwrap();
    assert_eq!(shown(&s, x), "[7]");
    assert_eq!(s.resolve(&Dim::symbol("batch")), Dim::Const(7));

    // The same in both orders, for the other end too.
    for order in [["2 ..", ".. 3", "n .."], [".. 3", "n ..", "2 .."], ["n ..", ".. 3", "2 .."]] {
        let mut s = Solver::default();
        let x = s.slot("x");
        for text in order {
            set(&mut s, x, text).unwrap();
        }
        assert_eq!(s.resolve(&Dim::symbol("n")), Dim::Const(2));
    }
}

#[test]
fn shapes_that_equal_one_shape_are_equal() {
    // `[a, ...]` and `[..., b]` may overlap in any way, but two that equal a third one end alike.
    for (shared, [one, other]) in [("a ..", [".. b", ".. c"]), (".. a", ["b ..", "c .."])] {
        for (swaps_first, swaps_second) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut s = Solver::default();
            let [shared, one, other] = [shared, one, other].map(|text| term(&mut s, text));
            for (shape, swaps) in [(one, swaps_first), (other, swaps_second)] {
                let slot = s.slot("x");
                let mut pair = [shared.clone(), shape];
                if swaps {
                    pair.reverse();
                }
                for shape in pair {
                    s.set_shape(slot, shape, why()).unwrap();
                }
            }
            let [b, c] = ["b", "c"].map(|name| s.resolve(&Dim::symbol(name)));
            assert_eq!(b, c, "{shared} {swaps_first} {swaps_second}");
        }
    }
}

#[test]
fn dtypes_follow_and_contradict() {
    let promote = Arc::new(|facts: &[Fact]| {
        let all: Option<Vec<DType>> = facts.iter().map(|f| f.dtype).collect();
        Ok(match all {
            None => Answer::Later,
            Some(all) => Answer::Now(Facts::outputs([Fact::dtype(
                all.into_iter().reduce(DType::promote).unwrap_or(DType::F32),
            )])),
        })
    });
    let mut s = Solver::default();
    let [a, b, y, z] = slots(&mut s, ["a", "b", "y", "z"]);
    for (inputs, output) in [([y, b], z), ([a, b], y)] {
        let relation = Relation {
            dtype: Some(promote.clone()),
            ..Relation::new("add", Rule::Broadcast, inputs, [output])
        };
        s.relate(relation, why()).unwrap();
    }
    s.set_dtype(a, DType::F16, why()).unwrap();
    assert_eq!(s.dtype(z), None);
    s.set_dtype(b, DType::I64, why()).unwrap();
    assert_eq!(s.dtype(z), Some(DType::F16));
    assert_eq!(s.set_dtype(z, DType::F32, why()).unwrap_err().code(), Code::DTypeMismatch);

    let w = s.slot("w");
    s.set_kinds(w, Kinds::NUMBER, why()).unwrap();
    s.set_kinds(w, Kinds::DISCRETE, why()).unwrap();
    assert_eq!(s.kinds(w), Kinds::INT);
    assert_eq!(s.equate(w, z, why()).unwrap_err().code(), Code::DTypeMismatch);
    assert_eq!(s.set_kinds(w, Kinds::FLOAT, why()).unwrap_err().code(), Code::DTypeMismatch);
    s.equate(w, b, why()).unwrap();
    assert_eq!(s.dtype(w), Some(DType::I64));
}

#[test]
fn literals() {
    let mut s = Solver::default();
    let [a, b, c] = slots(&mut s, ["a", "b", "c"]);
    s.set_literal(a, Lit::from(2.5), why()).unwrap();
    assert_eq!(shown(&s, a), "[]");
    s.equate(b, a, why()).unwrap();
    assert_eq!(s.literal(b), Some(Lit::from(2.5)));
    assert_eq!(s.set_literal(b, Lit::from(3), why()).unwrap_err().code(), Code::ConflictingOptions);
    let n = s.fresh_dim();
    s.set_literal(c, Lit::tuple([Lit::Int(n.clone()), Lit::int(4)]), why()).unwrap();
    s.set_literal(c, Lit::from(vec![3, 4]), why()).unwrap();
    assert_eq!(s.literal(c), Some(Lit::from(vec![3, 4])));
    assert_eq!(s.resolve(&n), Dim::Const(3));
    assert!(s.set_literal(c, Lit::from(vec![3, 5]), why()).is_err());
    assert!(s.set_literal(c, Lit::from(vec![3]), why()).is_err());
}

#[test]
fn an_argument_is_read_once_it_is_known() {
    let rule = Rule::When(Arc::new(|facts: &[Fact]| match (&facts[0].shape, &facts[1].literal) {
        (Some(shape), Some(Lit::Bool(keep))) if shape.rest.is_none() => {
            let dims = if *keep { vec![Dim::ONE; shape.prefix.len()] } else { vec![] };
            Ok(Answer::Now(Facts::outputs([Fact::shape(Shape::of(dims))])))
        }
        _ => Ok(Answer::Later),
    }));
    let mut s = Solver::default();
    let [x, keep, y] = slots(&mut s, ["x", "keep", "y"]);
    let mut relation = Relation::new("sum", rule, [x, keep], [y]);
    relation.tensor_ports = [true, false].into_iter().collect();
    s.relate(relation, why()).unwrap();
    set(&mut s, x, "2 n").unwrap();
    assert_eq!(shown(&s, y), "[...]");
    s.set_literal(keep, true.into(), why()).unwrap();
    assert_eq!(shown(&s, y), "[1, 1]");
}

#[test]
fn a_failed_transaction_leaves_no_trace() {
    let mut s = Solver::default();
    let [x, w, b, y] = slots(&mut s, ["x", "w", "b", "y"]);
    relate(&mut s, LINEAR, &[x, w, b], &[y]).unwrap();
    let shapes = |s: &Solver| [x, w, b, y].map(|slot| shown(s, slot));
    let before = shapes(&s);
    let failed: Result<()> = s.transaction(|s| {
        let z = s.slot("z");
        set(s, x, "batch 3")?;
        s.set_dtype(x, DType::F32, why())?;
        s.transaction(|s| relate(s, Rule::Broadcast, &[x, y], &[z]))?;
        assert_eq!(shown(s, y), "[batch, ?]");
        s.set_literal(z, Lit::None, why())?;
        set(s, w, "5 4")
    });
    assert_eq!(failed.unwrap_err().code(), Code::ShapeMismatch);
    assert_eq!(shapes(&s), before);
    assert_eq!(s.dtype(x), None);
    // Everything still works, with other values.
    set(&mut s, w, "5 4").unwrap();
    set(&mut s, x, "batch ?").unwrap();
    assert_eq!(shapes(&s), ["[batch, 4]", "[5, 4]", "[5]", "[batch, 5]"]);
    s.equate_dims(&Dim::symbol("batch"), &Dim::Const(2), why()).unwrap();
    assert_eq!(shown(&s, y), "[2, 5]");
}

#[test]
fn foreign_slots_and_variables_are_refused() {
    let mut other = Solver::default();
    let foreign = slots(&mut other, ["a", "b", "c"])[2];
    let mut s = Solver::default();
    let x = s.slot("x");
    assert_eq!(s.equate(x, foreign, why()).unwrap_err().code(), Code::Internal);
    assert_eq!(s.set_dtype(foreign, DType::F32, why()).unwrap_err().code(), Code::Internal);
    assert_eq!(s.dtype(foreign), None);
    assert!(s.equate_dims(&Dim::var(77), &Dim::Const(3), why()).is_err());
    assert!(set(&mut s, x, "-3").is_err());
}
