//! The texts of contradictions, whole.

use std::sync::Arc;

use mithril_ir::error::Line;
use mithril_ir::{Code, DType, Dim, Error, Lit, Place, Shape};
use mithril_solve::{Answer, Fact, Facts, Relation, Rule, Slot, Solver, Why};

fn why(text: &str, path: &str, line: u32) -> Why {
    let line = (line > 0).then(|| Line { file: "model.py".into(), line });
    Why::new(text).at(Place { path: Some(path.into()), line })
}

fn relation(label: &str, rule: Rule, ports: &[&'static str], inputs: &[Slot], output: Slot) -> Relation {
    let port_names = ports.iter().copied().collect();
    Relation { port_names, ..Relation::new(label, rule, inputs.iter().copied(), [output]) }
}

fn declare(s: &mut Solver, name: &str, shape: Shape, line: u32) -> Slot {
    let slot = s.slot(name);
    let text = format!("`{name}` was declared {shape}");
    s.set_shape(slot, shape.into(), why(&text, "", line)).unwrap();
    slot
}

fn mixed<const N: usize>(dims: [&str; N]) -> Shape {
    dims.iter().map(|d| d.parse::<i64>().map_or_else(|_| Dim::symbol(d), Dim::Const)).collect()
}

const LINEAR: Rule = Rule::Pattern("*b k, n k, n -> *b n");

fn check(error: &Error, text: &str) {
    assert_eq!(error.to_string(), text.trim(), "\n{error}\n");
}

#[test]
fn broadcasting_names_both_sources() {
    let mut s = Solver::default();
    let x = declare(&mut s, "input", mixed(["batch", "784"]), 3);
    let [w, b, y, z] = ["block.fc1.weight", "block.fc1.bias", "hidden", "sum"].map(|n| s.slot(n));
    s.set_shape(w, Shape::of([64, 784]).into(), why("`block.fc1.weight` is [64, 784]", "block.fc1", 12))
        .unwrap();
    let linear = relation("linear", LINEAR, &["input", "weight", "bias"], &[x, w, b], y);
    s.relate(linear, why("linear", "block.fc1", 12)).unwrap();
    let skip = declare(&mut s, "skip", mixed(["batch", "32"]), 9);
    let add = relation("add", Rule::Broadcast, &["left", "right"], &[y, skip], z);
    check(
        &s.relate(add, why("add", "block.add", 14)).unwrap_err(),
        "
error[M0301]: incompatible shapes in `block.add`
  at model.py:14
  left   [batch, 64]   because `block.fc1.weight` is [64, 784]   model.py:12
  right  [batch, 32]   because `skip` was declared [batch, 32]   model.py:9
  add needs equal sizes, or 1, along axis 1
  help: change 64 to 32 where `block.fc1.weight` is [64, 784] (model.py:12), or 32 to 64 where `skip` was declared [batch, 32] (model.py:9); or insert an axis of size 1 with expand_dims",
    );
}

#[test]
fn the_reason_is_the_same_when_the_relation_came_first() {
    let mut s = Solver::default();
    let [x, y, z] = ["x", "y", "z"].map(|n| s.slot(n));
    let add = relation("add", Rule::Broadcast, &["left", "right"], &[x, y], z);
    s.relate(add, why("add", "add", 1)).unwrap();
    s.set_shape(x, Shape::of([4, 2]).into(), why("`x` is [4, 2]", "", 2)).unwrap();
    check(
        &s.set_shape(y, Shape::of([3]).into(), why("`y` is [3]", "", 3)).unwrap_err(),
        "
error[M0301]: incompatible shapes in `add`
  at model.py:1
  left   [4, 2]   because `x` is [4, 2]   model.py:2
  right  [3]      because `y` is [3]      model.py:3
  add needs equal sizes, or 1, along axis -1
  help: change 2 to 3 where `x` is [4, 2] (model.py:2), or 3 to 2 where `y` is [3] (model.py:3); or insert an axis of size 1 with expand_dims",
    );
}

#[test]
fn patterns_name_the_ports_that_disagree() {
    let mut s = Solver::default();
    let x = declare(&mut s, "input", mixed(["batch", "100"]), 1);
    let w = declare(&mut s, "fc.weight", mixed(["10", "784"]), 2);
    let [b, y] = ["fc.bias", "y"].map(|n| s.slot(n));
    let linear = relation("linear", LINEAR, &["input", "weight", "bias"], &[x, w, b], y);
    check(
        &s.relate(linear, why("linear", "fc", 5)).unwrap_err(),
        "
error[M0301]: incompatible shapes in `fc`
  at model.py:5
  input   [batch, 100]   because `input` was declared [batch, 100]    model.py:1
  weight  [10, 784]      because `fc.weight` was declared [10, 784]   model.py:2
  linear takes shapes (*b k, n k, n), so 100 and 784 would have to be equal
  help: change 100 to 784 where `input` was declared [batch, 100] (model.py:1), or 784 to 100 where `fc.weight` was declared [10, 784] (model.py:2)",
    );
}

#[test]
fn ranks() {
    let mut s = Solver::default();
    let x = declare(&mut s, "image", mixed(["batch", "28"]), 1);
    let y = s.slot("y");
    let pool = relation("pool", Rule::Pattern("n c h w -> n c"), &["input"], &[x], y);
    check(
        &s.relate(pool, why("pool", "net.pool", 4)).unwrap_err(),
        "
error[M0302]: pool does not accept [batch, 28] in `net.pool`
  at model.py:4
  input  [batch, 28]   because `image` was declared [batch, 28]   model.py:1
  help: it must match [n, c, h, w]",
    );
    let z = declare(&mut s, "target", mixed(["batch"]), 7);
    check(
        &s.equate(x, z, why("they were connected", "", 8)).unwrap_err(),
        "
error[M0302]: incompatible shapes of `image` and `target`
  at model.py:8
  `image`   [batch, 28]   because `image` was declared [batch, 28]   model.py:1
  `target`  [batch]       because `target` was declared [batch]      model.py:7
  the numbers of dimensions differ: 2 and 1
  help: add or remove a dimension with expand_dims, squeeze or reshape",
    );
}

#[test]
fn a_second_declaration() {
    let mut s = Solver::default();
    let x = declare(&mut s, "x", mixed(["batch", "28"]), 1);
    check(
        &s.set_shape(x, Shape::of([5, 27]).into(), why("shapes={\"x\": [5, 27]} says so", "", 30))
            .unwrap_err(),
        "
error[M0301]: incompatible shapes of `x`
  at model.py:30
  `x`    [5, 28]   because `x` was declared [batch, 28]    model.py:1
  given  [5, 27]   because shapes={\"x\": [5, 27]} says so   model.py:30
  28 and 27 would have to be equal
  help: change 28 to 27 where `x` was declared [batch, 28] (model.py:1), or 27 to 28 where shapes={\"x\": [5, 27]} says so (model.py:30)",
    );
}

#[test]
fn dtypes_and_literals() {
    let mut s = Solver::default();
    let [x, y] = ["x", "y"].map(|n| s.slot(n));
    s.set_dtype(x, DType::F32, why("`x` was declared float32", "", 1)).unwrap();
    s.set_dtype(y, DType::F16, why("`fc.weight` is float16", "", 2)).unwrap();
    check(
        &s.equate(x, y, why("", "", 3)).unwrap_err(),
        "
error[M0401]: incompatible dtypes of `x` and `y`
  at model.py:3
  float32   because `x` was declared float32   model.py:1
  float16   because `fc.weight` is float16     model.py:2
  help: convert one of them with cast",
    );
    let axis = s.slot("axis");
    s.set_literal(axis, Lit::from(1), why("axis=1 was given", "", 4)).unwrap();
    check(
        &s.set_literal(axis, Lit::from(-1), why("axis=-1 was given", "", 5)).unwrap_err(),
        "
error[M0503]: incompatible values of `axis`
  at model.py:5
  1    because axis=1 was given    model.py:4
  -1   because axis=-1 was given   model.py:5
  help: give one value only",
    );
}

#[test]
fn an_error_of_a_function_gets_the_reasons() {
    let rule = Rule::When(Arc::new(|facts: &[Fact]| {
        let known = facts[0].shape.as_ref().is_some_and(|s| s.rank() == Some(1));
        if known {
            return Err(Error::new(Code::ShapeMismatch, "conv needs channels").help("add an axis"));
        }
        Ok(Answer::Now(Facts::default()))
    }));
    let mut s = Solver::default();
    let x = declare(&mut s, "x", mixed(["3"]), 1);
    let y = s.slot("y");
    let conv = relation("conv", rule, &["input"], &[x], y);
    check(
        &s.relate(conv, why("conv", "stem.conv", 2)).unwrap_err(),
        "
error[M0301]: conv needs channels in `stem.conv`
  at model.py:2
  input  [3]   because `x` was declared [3]   model.py:1
  help: add an axis",
    );
}

#[test]
fn negative_sizes() {
    let mut s = Solver::default();
    let n = Dim::symbol("n");
    check(
        &s.equate_dims(&(&n + &Dim::Const(5)), &Dim::Const(3), why("`pad` adds 5", "", 2)).unwrap_err(),
        "
error[M0301]: incompatible shapes
  size  n+5   because `pad` adds 5   model.py:2
  size  3     because `pad` adds 5   model.py:2
  n+5 and 3 would have to be equal
  help: make n+5 and 3 equal",
    );
}

#[test]
fn a_renamed_slot_has_its_new_name() {
    let mut s = Solver::default();
    let x = declare(&mut s, "x", mixed(["3"]), 1);
    let dropped = s.transaction(|s| {
        s.rename(x, "y".into());
        Err::<(), _>(Error::internal("give up"))
    });
    assert!(dropped.is_err());
    assert_eq!(&*s.name(x), "x");
    s.rename(x, "image".into());
    assert!(
        s.set_shape(x, Shape::of([4]).into(), Why::default()).unwrap_err().to_string().contains("`image`")
    );
}

#[test]
fn only_ports_that_disagree_are_named() {
    let mut s = Solver::default();
    let x = declare(&mut s, "x", mixed(["2", "3"]), 1);
    let y = declare(&mut s, "y", mixed(["4", "5"]), 2);
    let z = declare(&mut s, "z", mixed(["5", "6"]), 3);
    let rule = Rule::Pattern("a b, b c, c d -> a d");
    let out = s.slot("out");
    let chain = relation("chain", rule, &["first", "second", "third"], &[x, y, z], out);
    check(
        &s.relate(chain, why("chain", "net.chain", 9)).unwrap_err(),
        "
error[M0301]: incompatible shapes in `net.chain`
  at model.py:9
  first   [2, 3]   because `x` was declared [2, 3]   model.py:1
  second  [4, 5]   because `y` was declared [4, 5]   model.py:2
  chain takes shapes (a b, b c, c d), so 3 and 4 would have to be equal
  help: change 3 to 4 where `x` was declared [2, 3] (model.py:1), or 4 to 3 where `y` was declared [4, 5] (model.py:2)",
    );
}
