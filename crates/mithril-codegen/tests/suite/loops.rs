//! Loops in generated Python, against texts written by hand.

use std::sync::Arc;

use mithril_codegen::python::{EVALUATE, Function, JAX, NUMPY, PythonTarget, Results, Source, emit};
use mithril_ir::ops::find;
use mithril_ir::{Builder, DType, Lit, Place, Role, Shape, Tensor, TensorType, ValueId};

/// Steps of the recurrences.
const STEPS: i64 = 16;

fn input(b: &mut Builder, name: &str, shape: &[i64]) -> ValueId {
    let ty = TensorType { dtype: DType::F32, shape: Shape::of(shape.iter().copied()) };
    b.graph.add_input(name, Role::Data, ty)
}

fn push(b: &mut Builder, op: &str, inputs: &[ValueId]) -> ValueId {
    b.push(find(op).unwrap(), inputs).unwrap()[0]
}

fn write(target: &PythonTarget, b: &Builder) -> Source {
    let (graph, results) = (&b.graph, Results::Dict);
    let function =
        Function { name: "evaluate", graph, arguments: EVALUATE, results, donated: &[], foreach: false };
    emit(target, &[function]).unwrap()
}

/// The lines of the function itself.
fn body(source: &Source) -> String {
    let start = source.text.find("def evaluate(").unwrap();
    source.text[start..].lines().skip(1).collect::<Vec<_>>().join("\n")
}

/// Two states that change places at each step: `(a, b) ← (exp(b) + x[t], sin(a))`.
fn two_states() -> Builder {
    let mut b = Builder::default();
    let x = input(&mut b, "x", &[STEPS, 3]);
    let (mut first, mut second) = (input(&mut b, "first", &[3]), input(&mut b, "second", &[3]));
    let mut all = vec![b.lit(Lit::Int(0.into()))];
    for t in 0..STEPS {
        let key = b.lit(Lit::Int(t.into()));
        b.set_origin(Place { path: Some(format!("step{t}").into()), line: None });
        let item = push(&mut b, "getitem", &[x, key]);
        let exp = push(&mut b, "exp", &[second]);
        let sum = push(&mut b, "add", &[exp, item]);
        (first, second) = (sum, push(&mut b, "sin", &[first]));
        all.push(first);
    }
    let whole = push(&mut b, "stack", &all);
    b.graph.outputs.insert("all".into(), whole);
    b.graph.outputs.insert("last".into(), second);
    b
}

#[test]
fn states_may_change_places() {
    let expected = "    x = data[\"x\"]
    previous_step0_sin = data[\"second\"]
    previous_step0_add = data[\"first\"]
    every_step0_add = []
    for t in range(16):
        step0_add = np.exp(previous_step0_sin) + x[t]
        step0_sin = np.sin(previous_step0_add)
        every_step0_add.append(step0_add)
        previous_step0_sin, previous_step0_add = step0_sin, step0_add
    all_ = np.stack(every_step0_add, axis=0)
    return {\"all\": all_, \"last\": step0_sin}";
    assert_eq!(body(&write(&NUMPY, &two_states())), expected);
}

#[test]
fn jax_scans() {
    let expected = "@jax.jit
def loop(initial, items):
    def step(carry, x_item):
        previous_step0_sin, previous_step0_add = carry
        step0_add = jnp.exp(previous_step0_sin) + x_item
        step0_sin = jnp.sin(previous_step0_add)
        return (step0_sin, step0_add), step0_add

    return jax.lax.scan(step, initial, items, length=16)


def evaluate(params, data, state):
    x = data[\"x\"]
    (last_step0_sin, _), every_step0_add = loop((data[\"second\"], data[\"first\"]), x)
    all_ = every_step0_add
    return {\"all\": all_, \"last\": last_step0_sin}
";
    let source = write(&JAX, &two_states());
    assert_eq!(&source.text[source.text.find("@jax.jit").unwrap()..], expected);
}

#[test]
fn lines_of_a_loop_know_where_they_come_from() {
    let source = write(&NUMPY, &two_states());
    let line = 1 + source.text.lines().position(|l| l.contains("np.exp")).unwrap() as u32;
    let origin = source.origin(line).unwrap();
    // The first iteration stands for all of them.
    assert_eq!((origin.op, origin.place.path.as_deref()), ("add", Some("step0")));
}

#[test]
fn what_differs_by_more_than_an_index_stays_as_it_is() {
    let mut b = Builder::default();
    let mut state = input(&mut b, "x", &[3]);
    for t in 0..STEPS {
        let factor = b.lit(Lit::Float((t * t) as f64));
        let exp = push(&mut b, "exp", &[state]);
        state = push(&mut b, "multiply", &[exp, factor]);
    }
    b.graph.outputs.insert("y".into(), state);
    let text = body(&write(&NUMPY, &b));
    assert!(!text.contains("for "), "{text}");
}

#[test]
fn a_loop_reads_what_an_earlier_one_computed_backwards() {
    let mut b = Builder::default();
    let x = input(&mut b, "x", &[STEPS, 3]);
    let mut state = input(&mut b, "state", &[3]);
    let mut states = Vec::new();
    for t in 0..STEPS {
        let key = b.lit(Lit::Int(t.into()));
        let item = push(&mut b, "getitem", &[x, key]);
        let sum = push(&mut b, "add", &[state, item]);
        state = push(&mut b, "sin", &[sum]);
        states.push(state);
    }
    let mut back = input(&mut b, "back", &[3]);
    for state in states.into_iter().rev() {
        let product = push(&mut b, "multiply", &[back, state]);
        back = push(&mut b, "cos", &[product]);
    }
    b.graph.outputs.insert("y".into(), back);
    let text = body(&write(&NUMPY, &b));
    assert!(text.contains("for t in range(16):"), "{text}");
    assert!(text.contains("for t in reversed(range(16)):"), "{text}");
    assert!(text.contains("every_sin[t]"), "{text}");
}

#[test]
fn what_follows_from_the_first_iteration_stands_behind_the_loop() {
    let mut b = Builder::default();
    let x = input(&mut b, "x", &[STEPS, 3]);
    let ty = TensorType { dtype: DType::F32, shape: Shape::of([3, 3]) };
    let weight = b.graph.add_input("weight", Role::Param, ty);
    let zeros = Tensor::of(&[3], vec![0.0_f32; 3]).unwrap();
    let mut state = b.lit(Lit::Tensor(Arc::new(zeros)));
    for t in 0..STEPS {
        let product = push(&mut b, "matmul", &[state, weight]);
        if t == 0 {
            // It depends on a parameter alone, but on one that the loop computes with.
            let exp = push(&mut b, "exp", &[product]);
            b.graph.outputs.insert("first".into(), exp);
        }
        let key = b.lit(Lit::Int(t.into()));
        let item = push(&mut b, "getitem", &[x, key]);
        let sum = push(&mut b, "add", &[product, item]);
        state = push(&mut b, "sin", &[sum]);
    }
    b.graph.outputs.insert("last".into(), state);
    for target in [&NUMPY, &JAX] {
        let text = body(&write(target, &b));
        assert!(text.contains("first = "), "{text}");
    }
}
