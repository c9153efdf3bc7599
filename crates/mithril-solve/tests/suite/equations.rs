//! Random systems of equations that are true under a known assignment: never refused, never solved wrongly, and
//! solved alike in every order.

use mithril_ir::dim::{DimFactor, Symbol};
use mithril_ir::{Dim, Error};
use mithril_solve::{Solver, Why};
use proptest::prelude::*;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// How an expression is built from symbols and numbers.
#[derive(Clone, Debug)]
enum Form {
    /// Coefficients of the symbols.
    Linear(Vec<i64>),
    /// `k * x * y`
    Product(i64, usize, usize),
    /// `(x + n) // k`
    Quotient(usize, i64, i64),
}

impl Form {
    fn dim(&self) -> Dim {
        let symbol = |i: usize| Dim::symbol(NAMES[i]);
        match self {
            Self::Linear(c) => {
                c.iter().enumerate().fold(Dim::Const(0), |sum, (i, c)| &sum + &(&symbol(i) * &Dim::Const(*c)))
            }
            Self::Product(k, x, y) => &(&Dim::Const(*k) * &symbol(*x)) * &symbol(*y),
            Self::Quotient(x, n, k) => (&symbol(*x) + &Dim::Const(*n)).floor_div(&Dim::Const(*k)),
        }
    }
}

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![
        4 => proptest::collection::vec(-2_i64..=2, NAMES.len()).prop_map(Form::Linear),
        1 => (1_i64..4, 0..NAMES.len(), 0..NAMES.len()).prop_map(|(k, x, y)| Form::Product(k, x, y)),
        1 => (0..NAMES.len(), 0_i64..4, 1_i64..4).prop_map(|(x, n, k)| Form::Quotient(x, n, k)),
    ]
}

/// The value under the assignment.
fn value(dim: &Dim, truth: &[i64]) -> i64 {
    let by_name = |s: &Symbol| match s {
        Symbol::Named(name) => NAMES.iter().position(|n| **n == **name).map(|i| Dim::Const(truth[i])),
        Symbol::Var(_) => None,
    };
    dim.substitute(&by_name).known().unwrap_or(i64::MIN)
}

fn solve<'a>(equations: impl IntoIterator<Item = &'a (Dim, Dim)>) -> Result<Solver, Error> {
    let mut s = Solver::default();
    for (a, b) in equations {
        s.equate_dims(a, b, Why::default())?;
    }
    Ok(s)
}

fn solved(s: &Solver) -> Vec<String> {
    NAMES
        .iter()
        .map(|n| s.resolve(&Dim::symbol(n)).known().map_or("?".to_owned(), |n| n.to_string()))
        .collect()
}

fn config() -> ProptestConfig {
    // A fixed seed, so that a failure is one of a change; PROPTEST_RNG_SEED asks for other equations.
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = proptest::test_runner::RngSeed::Fixed(1);
    }
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn true_equations_are_solved_truly(
        truth in proptest::collection::vec(1_i64..9, NAMES.len()),
        forms in proptest::collection::vec((form(), form()), 1..7),
    ) {
        let equations: Vec<(Dim, Dim)> = forms
            .iter()
            .map(|(a, b)| {
                let (a, b) = (a.dim(), b.dim());
                let shift = value(&a, &truth) - value(&b, &truth);
                (a, &b + &Dim::Const(shift))
            })
            .collect();
        let s = solve(&equations).map_err(|e| TestCaseError::fail(format!("{truth:?} {equations:?} {e}")))?;
        for (name, n) in NAMES.iter().zip(&truth) {
            let actual = s.resolve(&Dim::symbol(name));
            prop_assert_eq!(value(&actual, &truth), *n, "{} = {} in {:?}", name, actual, equations);
        }
    }

    /// Sizes by sizes, as layers say it: `out = 2*in + 1`, each by one other, some of them known. (Simultaneous
    /// equations in which no symbol has a coefficient of 1, `2*a = 3*b + 1` beside `3*a = 2*b + 4`, may stay open, and
    /// whether they do may depend on the order; see the limits in the documentation of the crate.)
    #[test]
    fn sizes_by_sizes_are_solved_alike_in_every_order(
        truth in proptest::collection::vec(1_i64..9, NAMES.len()),
        links in proptest::collection::vec(proptest::option::of((1_i64..=6, 0_usize..4)), NAMES.len()),
        known in proptest::collection::vec(0..NAMES.len(), 0..3),
        keys in proptest::collection::vec(any::<u32>(), 8),
    ) {
        let link = |(x, link): (usize, &Option<(i64, usize)>)| {
            let (k, skip) = (*link)?;
            let k = if k > 3 { 3 - k } else { k };
            let y = x + 1 + skip % (NAMES.len() - 1 - x).max(1);
            let by = &Dim::symbol(NAMES.get(y)?) * &Dim::Const(k);
            Some((Dim::symbol(NAMES[x]), &by + &Dim::Const(truth[x] - k * truth[y])))
        };
        let mut equations: Vec<(Dim, Dim)> = links.iter().enumerate().filter_map(link).collect();
        equations.extend(known.iter().map(|&x| (Dim::symbol(NAMES[x]), Dim::Const(truth[x]))));
        let s = solve(&equations).map_err(|e| TestCaseError::fail(format!("{truth:?} {equations:?} {e}")))?;
        let mut order: Vec<usize> = (0..equations.len()).collect();
        order.sort_by_key(|i| keys[*i]);
        let other = solve(order.iter().map(|i| &equations[*i]))
            .map_err(|e| TestCaseError::fail(format!("{order:?} {truth:?} {equations:?} {e}")))?;
        prop_assert_eq!(solved(&s), solved(&other), "{:?} {:?}", order, equations);
    }

    #[test]
    fn any_equations_end_without_a_panic(
        equations in proptest::collection::vec((form(), any::<i64>(), form(), -9_i64..9), 1..9),
    ) {
        let mut s = Solver::default();
        for (a, n, b, m) in &equations {
            let a = &a.dim() + &Dim::Const(*m);
            let b = &b.dim() * &Dim::Const(if m % 3 == 0 { *n } else { *m });
            // Variables in the place of some names.
            let var = s.fresh_dim();
            let a = a.substitute(&|s| matches!(s, Symbol::Named(n) if &**n == "a").then(|| var.clone()));
            let _ = s.equate_dims(&a, &b, Why::default());
        }
        for name in NAMES {
            let actual = s.resolve(&Dim::symbol(name));
            prop_assert!(actual.known().is_none_or(|n| n >= 0), "{name} = {actual}");
            let deep = actual.parts().0.iter().flat_map(|t| &t.0).any(|f| matches!(f, DimFactor::Div(..)));
            prop_assert!(deep || actual.to_string().len() < 10_000);
        }
    }
}
