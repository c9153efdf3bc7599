//! The tensor expressions of ops, evaluated one element at a time, against their reference evaluations.

use std::collections::HashMap;

use mithril::ir::dtype::{DType, Kind};
use mithril::ir::loops::{Binary, Expr, Index, IndexTerm, LoopArg, LoopCx, ReduceOp, Step, Var};
use mithril::ir::ops;
use mithril::ir::tensor::{Scalar, Tensor};
use mithril_testing::case::{Arg, Case, cases};
use mithril_testing::run::run;
use mithril_testing::tolerance::{error, magnitude};

/// Values of the variables.
type Place = HashMap<u32, i64>;

struct Machine {
    tensors: Vec<Option<Tensor>>,
}

impl Machine {
    fn index(&self, index: &Index, place: &Place) -> i64 {
        let atom = |atom: &IndexTerm| match atom {
            IndexTerm::Var(v) => place[&v.id],
            IndexTerm::Div(inner, by) => self.index(inner, place).div_euclid(*by),
            IndexTerm::Mod(inner, by) => self.index(inner, place).rem_euclid(*by),
            IndexTerm::Value { value, size, wraps } => {
                let n = self.value(value, place).i64();
                assert!(n < *size && n >= if *wraps { -size } else { 0 }, "{n} on an axis of {size}");
                if n < 0 { n + size } else { n }
            }
        };
        index.terms.iter().map(|(a, factor)| atom(a) * factor).sum::<i64>() + index.constant
    }

    fn value(&self, expr: &Expr, place: &Place) -> Scalar {
        match expr {
            Expr::Load { from, at, stored } => {
                let tensor = self.tensors[*from].as_ref().unwrap();
                assert_eq!((tensor.dtype(), tensor.rank()), (*stored, at.len()));
                let mut position = 0;
                for (index, &size) in at.iter().zip(tensor.shape()) {
                    let i = self.index(index, place);
                    assert!((0..size as i64).contains(&i), "{i} on an axis of {size}: {expr}");
                    position = position * size + i as usize;
                }
                tensor.get(position)
            }
            Expr::Number(x, _) => *x,
            Expr::Index(at) => Scalar::from(self.index(at, place)),
            Expr::Binary(op, a, b) => {
                assert_eq!(a.dtype(), b.dtype(), "{expr}");
                binary(*op, self.value(a, place), self.value(b, place))
            }
            Expr::Cast(x, dtype) => Tensor::scalar(*dtype, self.value(x, place)).get(0),
            Expr::Select { when, yes, no } => {
                let passes = when.iter().all(|w| (w.from..w.to).contains(&self.index(&w.index, place)));
                self.value(if passes { yes } else { no }, place)
            }
            Expr::Reduce { op, vars, body } => {
                let values: Vec<Scalar> = places(vars, place).map(|p| self.value(body, &p)).collect();
                reduce(*op, body.dtype(), &values)
            }
            Expr::Apply { .. } => panic!("a template has no value here: {expr}"),
        }
    }

    /// The tensor of an expression over the coordinates `vars`.
    fn tensor(&self, vars: &[Var], value: &Expr, dtype: DType, shape: &[usize]) -> Tensor {
        let nowhere = Place::new();
        let mut places = places(vars, &nowhere);
        Tensor::build(dtype, shape, |_| self.value(value, &places.next().unwrap()))
    }
}

/// All values of `vars`, the last one running fastest.
fn places<'a>(vars: &'a [Var], base: &'a Place) -> impl Iterator<Item = Place> + 'a {
    let count: i64 = vars.iter().map(|v| v.size).product();
    (0..count).map(move |mut n| {
        let mut place = base.clone();
        for v in vars.iter().rev() {
            place.insert(v.id, n % v.size);
            n /= v.size;
        }
        place
    })
}

fn binary(op: Binary, a: Scalar, b: Scalar) -> Scalar {
    let arithmetic = |float: fn(f64, f64) -> f64, int: fn(i128, i128) -> i128| match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => Scalar::Float(float(a, b)),
        _ => Scalar::Int(int(a.int(), b.int())),
    };
    match op {
        Binary::Add => arithmetic(|a, b| a + b, i128::wrapping_add),
        Binary::Subtract => arithmetic(|a, b| a - b, i128::wrapping_sub),
        Binary::Multiply => arithmetic(|a, b| a * b, i128::wrapping_mul),
        Binary::Divide => arithmetic(|a, b| a / b, |a, _| a),
        Binary::Max => arithmetic(|a, b| if a > b || a.is_nan() { a } else { b }, i128::max),
        Binary::Min => arithmetic(|a, b| if a < b || a.is_nan() { a } else { b }, i128::min),
        Binary::Less => Scalar::Bool(a.f64() < b.f64()),
        Binary::LessEqual => Scalar::Bool(a.f64() <= b.f64()),
        Binary::Equal => Scalar::Bool(a.f64() == b.f64()),
        Binary::And => Scalar::Bool(a.bool() && b.bool()),
        Binary::Or => Scalar::Bool(a.bool() || b.bool()),
    }
}

fn reduce(op: ReduceOp, dtype: DType, values: &[Scalar]) -> Scalar {
    let all = |start: f64, op: Binary| {
        let start =
            if dtype.kind() == Kind::Float { Scalar::Float(start) } else { Scalar::Int(start as i128) };
        values.iter().fold(start, |sum, &x| binary(op, sum, x))
    };
    let position = |op: fn(f64, f64) -> bool| {
        let better = |best: usize, i: usize| {
            let (old, new) = (values[best].f64(), values[i].f64());
            if !old.is_nan() && (new.is_nan() || op(new, old)) { i } else { best }
        };
        Scalar::Int((0..values.len()).fold(0, better) as i128)
    };
    match op {
        ReduceOp::Sum => all(0.0, Binary::Add),
        ReduceOp::Prod => all(1.0, Binary::Multiply),
        ReduceOp::Max => all(f64::NEG_INFINITY, Binary::Max),
        ReduceOp::Min => all(f64::INFINITY, Binary::Min),
        ReduceOp::Any => Scalar::Bool(values.iter().any(|x| x.bool())),
        ReduceOp::All => Scalar::Bool(values.iter().all(|x| x.bool())),
        ReduceOp::ArgMax => position(|new, old| new > old),
        ReduceOp::ArgMin => position(|new, old| new < old),
    }
}

/// Evaluates the expressions of a case; `None` if they hold what only C can do.
fn evaluate(case: &Case, expected: &[std::sync::Arc<Tensor>]) -> Option<Vec<Tensor>> {
    let sizes = |t: &Tensor| t.shape().iter().map(|&n| n as i64).collect::<Vec<_>>();
    let args: Vec<LoopArg> = case
        .args
        .iter()
        .map(|arg| match arg {
            Arg::Tensor(t) => LoopArg::Tensor(t.dtype(), sizes(t)),
            Arg::Lit(lit) => LoopArg::Lit(lit.clone()),
        })
        .collect();
    let outputs: Vec<(DType, Vec<i64>)> = expected.iter().map(|t| (t.dtype(), sizes(t))).collect();
    let cx = LoopCx::new(case.op, &args, &outputs, 0);
    let values = case.op.loops?(&cx).ok()?;
    assert_eq!(values.len(), expected.len());
    let (vars, temporaries, steps, _) = cx.finish();
    let tensor = |arg: &Arg| if let Arg::Tensor(t) = arg { Some(t.clone()) } else { None };
    let mut machine = Machine { tensors: case.args.iter().map(tensor).collect() };
    for step in steps {
        let Step::Compute { to, vars, value } = step else { return None };
        let temporary = &temporaries[to - case.args.len()];
        let shape: Vec<usize> = temporary.shape.iter().map(|&n| n as usize).collect();
        let tensor = machine.tensor(&vars, &value, temporary.dtype, &shape);
        machine.tensors.resize(to, None);
        machine.tensors.push(Some(tensor));
    }
    let mut holds_template = false;
    for value in &values {
        value.walk(&mut |e| holds_template |= matches!(e, Expr::Apply { .. }));
    }
    let output = |(i, value): (usize, &Expr)| {
        let arithmetic = mithril::ir::loops::arithmetic(expected[i].dtype());
        assert_eq!(value.dtype(), arithmetic, "output {i} of {} has another dtype", case.op.name);
        machine.tensor(&vars[i], value, expected[i].dtype(), expected[i].shape())
    };
    (!holds_template).then(|| values.iter().enumerate().map(output).collect())
}

#[test]
fn expressions_are_what_the_rows_say() {
    let mut checked = Vec::new();
    for op in ops::all().filter(|op| op.loops.is_some()) {
        for case in cases(op, DType::F64).unwrap() {
            let expected = run(&case, DType::F64).unwrap();
            let Some(actual) = evaluate(&case, &expected) else { continue };
            for (actual, expected) in actual.iter().zip(&expected) {
                let off = error(actual, expected, Some(magnitude(expected)));
                assert!(off <= 8.0, "{} {}: {actual} is not {expected}", op.name, case.text);
            }
            checked.push(op.name);
        }
    }
    checked.dedup();
    for name in ["add", "concat", "conv_general", "fold_windows", "slice_update", "take", "one_hot"] {
        assert!(checked.contains(&name), "{name} is not checked");
    }
}
