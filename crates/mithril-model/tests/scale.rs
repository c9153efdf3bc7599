//! Time of large models: it has to grow with their size and no faster.

use std::time::{Duration, Instant};

use mithril_ir::Place;
use mithril_model::{FlattenOptions, Model, flatten, layers};

fn chain(n: usize) -> (Model, Duration, Duration) {
    let (linear, relu) = (layers::linear(64, true).unwrap(), layers::build("Relu", vec![], vec![]).unwrap());
    let start = Instant::now();
    let mut m = Model::new();
    for _ in 0..n {
        m.chain(&linear, (), Place::default()).unwrap();
        m.chain(&relu, (), Place::default()).unwrap();
    }
    let extend = start.elapsed();
    let options = FlattenOptions {
        shapes: vec![("input".into(), vec![2.into(), 64.into()])],
        ..FlattenOptions::default()
    };
    let start = Instant::now();
    let flat = flatten(&m, &options).unwrap();
    assert_eq!(flat.graph.nodes().len(), 2 * n);
    (m, extend, start.elapsed())
}

#[test]
fn time_grows_with_the_size_of_the_model() {
    chain(100);
    // The shortest of several times: others may be using the processors.
    let shortest = |n: usize| {
        let times = [chain(n), chain(n), chain(n)];
        let extend = times.iter().map(|(_, extend, _)| *extend).min().unwrap();
        (extend, times.iter().map(|(.., flat)| *flat).min().unwrap())
    };
    let ((small, small_flat), (large, large_flat)) = (shortest(1000), shortest(8000));
    // Eight times as much; a quadratic part would make it 64.
    assert!(large < small * 24, "extend: {small:?} for 1000, {large:?} for 8000");
    assert!(large_flat < small_flat * 24, "flatten: {small_flat:?} for 1000, {large_flat:?} for 8000");
}

#[test]
fn a_deep_model_is_copied_lazily() {
    let (part, ..) = chain(50);
    let mut m = Model::new();
    for _ in 0..20 {
        m.chain(&part, (), Place::default()).unwrap();
    }
    assert_eq!(m.parameters().len(), 2000);
    assert_eq!(m.parameters()[1999].as_ref(), "model_19.linear_49.bias");
}
