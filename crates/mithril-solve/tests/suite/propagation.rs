//! What becomes known later reaches everything that was said before: sizes inside literals, sizes that are differences,
//! relations that wait for several arguments at once.

use std::sync::Arc;

use mithril_ir::{Code, Dim, Lit, Shape};
use mithril_solve::{Answer, Fact, Facts, Relation, Rule, Slot, Solver, Why};

fn why() -> Why {
    Why::default()
}

/// A relation whose output has as many axes as `argument` has numbers, once all of them are known.
fn numbers_of_an_argument(s: &mut Solver, argument: Slot, output: Slot) {
    fn numbers(lit: &Lit) -> Option<Vec<Dim>> {
        match lit {
            Lit::Int(dim) => dim.known().map(|_| vec![dim.clone()]),
            Lit::Tuple(items) => {
                Some(items.iter().map(numbers).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
            }
            Lit::Slice(parts) => {
                Some(parts.iter().map(numbers).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
            }
            _ => Some(Vec::new()),
        }
    }
    let rule = Rule::When(Arc::new(|facts: &[Fact]| match facts[0].literal.as_ref().and_then(numbers) {
        Some(dims) => Ok(Answer::Now(Facts::outputs([Fact::shape(Shape::of(dims))]))),
        None => Ok(Answer::Later),
    }));
    let mut relation = Relation::new("of_numbers", rule, [argument], [output]);
    relation.tensor_ports = [false].into_iter().collect();
    s.relate(relation, why()).unwrap();
}

fn slice(start: &str, stop: &str) -> Lit {
    Lit::Slice(Arc::new([Lit::Int(Dim::symbol(start)), Lit::Int(Dim::symbol(stop)), Lit::None]))
}

#[test]
fn only_equated_slots_are_the_same() {
    let mut s = Solver::default();
    let [a, b, c] = ["a", "b", "c"].map(|name| s.slot(name));
    s.equate(a, b, why()).unwrap();
    assert!(s.is_same(a, b) && s.is_same(b, a) && s.is_same(c, c));
    assert!(!s.is_same(a, c) && !s.is_same(c, b));
}

#[test]
fn sizes_inside_of_literals_become_numbers() {
    let mut s = Solver::default();
    let [single, pair, range] = ["single", "pair", "range"].map(|name| s.slot(name));
    s.set_literal(single, Lit::Int(Dim::symbol("n")), why()).unwrap();
    s.set_literal(pair, Lit::tuple([Lit::Int(Dim::symbol("n")), Lit::Int(Dim::symbol("m"))]), why()).unwrap();
    s.set_literal(range, slice("n", "m"), why()).unwrap();
    s.equate_dims(&Dim::symbol("n"), &Dim::Const(3), why()).unwrap();
    assert_eq!(s.literal(single), Some(Lit::int(3)));
    assert_eq!(s.literal(pair), Some(Lit::tuple([Lit::int(3), Lit::Int(Dim::symbol("m"))])));
    s.equate_dims(&Dim::symbol("m"), &Dim::Const(5), why()).unwrap();
    assert_eq!(s.literal(pair), Some(Lit::from(vec![3, 5])));
    assert_eq!(s.literal(range), Some(Lit::Slice(Arc::new([Lit::int(3), Lit::int(5), Lit::None]))));
}

#[test]
fn literals_of_one_slot_are_equal_part_by_part() {
    let size = |name: &str| Lit::Int(Dim::symbol(name));
    let shapes: [fn(Lit, Lit) -> Lit; 4] = [
        |a, b| Lit::tuple([a, b]),
        |a, b| Lit::Slice(Arc::new([a, b, Lit::None])),
        |a, b| Lit::Slice(Arc::new([Lit::tuple([a]), Lit::None, b])),
        |a, b| Lit::tuple([Lit::Slice(Arc::new([Lit::None, a, Lit::None])), b]),
    ];
    for of in shapes {
        let mut s = Solver::default();
        let [x, y] = ["x", "y"].map(|name| s.slot(name));
        s.set_literal(x, of(size("n"), Lit::int(7)), why()).unwrap();
        s.set_literal(y, of(Lit::int(3), size("m")), why()).unwrap();
        s.equate(x, y, why()).unwrap();
        assert_eq!(
            [s.resolve(&Dim::symbol("n")), s.resolve(&Dim::symbol("m"))],
            [Dim::Const(3), Dim::Const(7)]
        );
        let other = s.set_literal(x, of(Lit::int(3), Lit::int(8)), why()).unwrap_err();
        assert_eq!(other.code(), Code::ConflictingOptions);
    }
}

#[test]
fn relations_wait_for_every_size_inside_of_a_literal() {
    let pair = || Lit::tuple([Lit::Int(Dim::symbol("n")), Lit::Int(Dim::symbol("m"))]);
    for (literal, names) in [
        (Lit::Int(Dim::symbol("n")), vec!["n"]),
        (pair(), vec!["n", "m"]),
        (pair(), vec!["m", "n"]),
        (Lit::tuple([pair(), Lit::Int(Dim::symbol("k"))]), vec!["k", "n", "m"]),
        (slice("n", "m"), vec!["n", "m"]),
        (slice("n", "m"), vec!["m", "n"]),
    ] {
        let mut s = Solver::default();
        let [argument, output] = ["argument", "output"].map(|name| s.slot(name));
        numbers_of_an_argument(&mut s, argument, output);
        s.set_literal(argument, literal, why()).unwrap();
        for name in &names {
            assert_eq!(s.shape(output).to_string(), "[...]", "before {name}");
            s.equate_dims(&Dim::symbol(name), &Dim::Const(3), why()).unwrap();
        }
        assert_eq!(s.shape(output).rank(), Some(names.len()));
    }
}

#[test]
fn a_difference_of_sizes_may_not_become_negative() {
    for (n, m, valid) in [(5, 2, true), (2, 2, true), (2, 5, false)] {
        let mut s = Solver::default();
        let x = s.slot("x");
        let size = s.fresh_dim();
        s.set_shape(x, mithril_solve::ShapeTerm::known(Shape::of([size.clone()])), why()).unwrap();
        let difference = &Dim::symbol("n") - &Dim::symbol("m");
        s.equate_dims(&size, &difference, why()).unwrap();
        s.equate_dims(&Dim::symbol("n"), &Dim::Const(n), why()).unwrap();
        let last = s.equate_dims(&Dim::symbol("m"), &Dim::Const(m), why());
        assert_eq!(last.is_ok(), valid, "{n} - {m}: {last:?}");
        if let Err(error) = last {
            assert_ne!(error.code(), Code::Internal);
        }
    }
}

#[test]
fn what_is_taken_from_a_number_may_not_make_it_negative() {
    for (number, times, m, valid) in [(5, 1, 5, true), (5, 1, 6, false), (6, 2, 3, true), (6, 2, 4, false)] {
        let mut s = Solver::default();
        let size = s.fresh_dim();
        let taken = &Dim::symbol("m") * &Dim::Const(times);
        s.equate_dims(&size, &(&Dim::Const(number) - &taken), why()).unwrap();
        let last = s.equate_dims(&Dim::symbol("m"), &Dim::Const(m), why());
        assert_eq!(last.is_ok(), valid, "{number} - {times} * {m}: {last:?}");
    }
}

#[test]
fn sizes_with_factors_near_the_largest_integer_neither_overflow_nor_bind_wrongly() {
    let large = |name: &str, factor: i64| &Dim::symbol(name) * &Dim::Const(factor);
    for factor in [1 << 60, (1 << 60) + 1, 1 << 61, i64::MAX] {
        let mut s = Solver::default();
        s.equate_dims(&large("n", factor), &large("m", 3), why()).unwrap();
        s.equate_dims(&Dim::symbol("m"), &Dim::Const(7), why()).unwrap_or_default();
        // 21 is no multiple of the factor: a number would be a wrong one.
        assert_eq!(s.resolve(&Dim::symbol("n")).known().filter(|n| *n != 0), None, "factor {factor}");
    }
}
