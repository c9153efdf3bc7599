//! Large and hostile inputs: time stays near-linear, nothing overflows the stack, nothing hangs.

use std::sync::Arc;

use mithril_ir::{Code, Dim, Lit, Shape};
use mithril_solve::{Answer, Fact, Facts, Relation, Rule, ShapeTerm, Slot, Solver, Why};

const LINEAR: Rule = Rule::Pattern("*b k, n k, n -> *b n");

fn why() -> Why {
    Why::default()
}

#[test]
fn a_hundred_thousand_connections() {
    let n = 100_000;
    for backwards in [false, true] {
        let mut s = Solver::default();
        let slots: Vec<Slot> = (0..n).map(|_| s.slot("x")).collect();
        let mut pairs: Vec<_> = slots.windows(2).map(|w| (w[0], w[1])).collect();
        if backwards {
            pairs.reverse();
        }
        for (a, b) in pairs {
            s.equate(a, b, why()).unwrap();
        }
        s.set_shape(slots[n / 2], Shape::of([2, 3]).into(), why()).unwrap();
        assert_eq!(s.shape(slots[0]).to_string(), "[2, 3]");
        assert_eq!(s.shape(slots[n - 1]).to_string(), "[2, 3]");
    }
}

#[test]
fn a_hundred_thousand_equal_sizes() {
    let n = 100_000;
    let mut s = Solver::default();
    let dims: Vec<Dim> = (0..n).map(|_| s.fresh_dim()).collect();
    for pair in dims.windows(2) {
        s.equate_dims(&pair[0], &pair[1], why()).unwrap();
    }
    // A circle changes nothing.
    s.equate_dims(&dims[n - 1], &dims[0], why()).unwrap();
    s.equate_dims(&dims[77], &Dim::Const(5), why()).unwrap();
    assert!(dims.iter().all(|d| s.resolve(d) == Dim::Const(5)));
}

#[test]
fn a_hundred_thousand_equations() {
    let n = 100_000;
    let mut s = Solver::default();
    let dims: Vec<Dim> = (0..n).map(|_| s.fresh_dim()).collect();
    for pair in dims.windows(2) {
        s.equate_dims(&pair[1], &(&pair[0] + &Dim::ONE), why()).unwrap();
    }
    s.equate_dims(&dims[0], &Dim::Const(5), why()).unwrap();
    assert_eq!(s.resolve(&dims[n - 1]), Dim::Const(5 + n as i64 - 1));
}

#[test]
fn expressions_that_grow_without_end_are_refused_not_computed() {
    // Each size is the square of the one before: 2^60 factors.
    let mut s = Solver::default();
    let mut last = s.fresh_dim();
    let mut refused = false;
    for _ in 0..60 {
        let next = s.fresh_dim();
        if s.equate_dims(&next, &(&last * &last), why()).is_err() {
            refused = true;
            break;
        }
        last = next;
    }
    let shown = s.resolve(&last).to_string();
    assert!(refused || shown.len() < 10_000, "{}", shown.len());
    // A sum of ever more symbols.
    let mut s = Solver::default();
    let mut last = s.fresh_dim();
    let grows = (0..5_000).try_for_each(|_| {
        let (next, more) = (s.fresh_dim(), s.fresh_dim());
        s.equate_dims(&next, &(&last + &more), why())?;
        last = next;
        Ok::<_, mithril_ir::Error>(())
    });
    if let Err(error) = grows {
        assert_eq!(error.code(), Code::BadSize);
    }
    assert!(s.resolve(&last).parts().0.len() < 5_000);
}

#[test]
fn long_chains_of_windows_stay_one_division() {
    let halve = Rule::When(Arc::new(|facts: &[Fact]| {
        let Some(mut shape) = facts[0].shape.as_ref().and_then(ShapeTerm::to_shape) else {
            return Ok(Answer::Later);
        };
        shape.0[0] = (&shape.0[0] + &Dim::ONE).floor_div(&Dim::Const(2));
        Ok(Answer::Now(Facts::outputs([Fact::shape(shape)])))
    }));
    let mut s = Solver::default();
    let mut x = s.slot("x");
    s.set_shape(x, Shape::of(["n"]).into(), why()).unwrap();
    let mut halved = 0;
    let grown = (0..50_000).try_for_each(|_| {
        let y = s.slot("y");
        s.relate(Relation::new("halve", halve.clone(), [x], [y]), why())?;
        (x, halved) = (y, halved + 1);
        Ok::<_, mithril_ir::Error>(())
    });
    // 2^62 is the last divisor that is a number; beyond it divisions nest, up to the limit.
    assert!(halved > 62);
    assert_eq!(grown.unwrap_err().code(), Code::BadSize);
}

#[test]
fn ranks_are_limited() {
    let mut s = Solver::default();
    let mut x = s.slot("x");
    let grown = (0..1_000).try_for_each(|_| {
        let y = s.slot("y");
        s.relate(Relation::new("grow", Rule::Pattern("*b -> 1 *b"), [x], [y]), why())?;
        x = y;
        Ok::<_, mithril_ir::Error>(())
    });
    assert_eq!(grown.unwrap_err().code(), Code::BadSize);
}

#[test]
fn deep_tuples_do_not_overflow_the_stack() {
    let mut s = Solver::default();
    let nest = || (0..2_000).fold(Lit::int(1), |inner, _| Lit::tuple([inner]));
    let [a, b] = ["a", "b"].map(|n| s.slot(n));
    s.set_literal(a, nest(), why()).unwrap();
    s.set_literal(b, nest(), why()).unwrap();
    s.equate(a, b, why()).unwrap();
}

/// Adds `n` layers one at a time, each of a pattern, an addition and a function; returns the last output.
fn chain(s: &mut Solver, n: usize, input: Slot) -> Slot {
    let same: Rule = Rule::When(Arc::new(|facts: &[Fact]| {
        let shape = facts[0].shape.as_ref().and_then(ShapeTerm::to_shape);
        Ok(shape.map_or(Answer::Later, |s| Answer::Now(Facts::outputs([Fact::shape(s)]))))
    }));
    let mut x = input;
    for i in 0..n {
        let [w, b, y, z] = ["w", "b", "y", "z"].map(|n| s.slot(n));
        let (rule, inputs) = match i % 3 {
            0 => (LINEAR, vec![x, w, b]),
            1 => (Rule::Broadcast, vec![x, w]),
            _ => (same.clone(), vec![x]),
        };
        if i % 3 == 1 {
            s.set_shape(w, Shape::of([64]).into(), why()).unwrap();
        }
        s.relate(Relation::new("op", rule, inputs, [y]), why()).unwrap();
        let _ = z;
        x = y;
    }
    x
}

#[test]
fn late_knowledge_runs_through_a_long_chain() {
    let mut s = Solver::default();
    let x = s.slot("x");
    let y = chain(&mut s, 30_000, x);
    assert_eq!(s.shape(y).rank(), None);
    s.set_shape(x, Shape::of(["batch", "k"]).into(), why()).unwrap();
    assert_eq!(s.shape(y).rank(), Some(2));
    assert_eq!(s.shape(y).to_string(), "[batch, 64]");
    s.equate_dims(&Dim::symbol("batch"), &Dim::Const(8), why()).unwrap();
    assert_eq!(s.shape(y).to_string(), "[8, 64]");
}
