//! What the stages of the C target make of small graphs, against what was written by hand.

use mithril_codegen::c::pipeline::{LOWERING, passes};
use mithril_codegen::c::{Options, Request, Source, emit};
use mithril_ir::error::Code;
use mithril_ir::graph::OriginId;
use mithril_ir::op::{Eval, OpDef, UNARY};
use mithril_ir::ops::find;
use mithril_ir::{Builder, DType, Place, Role, Shape, TensorType, ValueId};

fn ty(sizes: &[i64]) -> TensorType {
    TensorType { dtype: DType::F32, shape: Shape::of(sizes.iter().copied()) }
}

fn op(name: &str) -> &'static OpDef {
    find(name).unwrap_or_else(|| panic!("no op {name}"))
}

fn output(b: &mut Builder, v: ValueId) -> Source {
    b.graph.outputs.insert("y".into(), v);
    let options = Options { prefix: "small".into(), ..Options::default() };
    emit(&b.graph, &Request { options, ..Request::default() }).unwrap()
}

/// The steps that a stage has left, without the list of buffers, and without their place in the model and names.
fn steps(source: &Source, stage: &str) -> Vec<String> {
    let text = &source.stages.iter().find(|(name, _)| name == stage).expect("a stage").1;
    let is_step = |line: &&str| line.contains(" = ");
    let step = |line: &str| line.split(" in \"the model\"").next().unwrap_or(line).to_owned();
    text.lines().filter(is_step).map(step).collect()
}

#[test]
fn elementwise_values_go_into_their_reader() {
    let mut b = Builder::default();
    let x = b.graph.add_input("x", Role::Data, ty(&[4, 8]));
    let sum = b.push(op("add"), &[x, x]).unwrap()[0];
    let flipped = b.push(op("transpose"), &[sum]).unwrap()[0];
    let product = b.push(op("multiply"), &[flipped, flipped]).unwrap()[0];
    let axis = b.lit(0_i64);
    let total = b.push(op("sum"), &[product, axis]).unwrap()[0];
    let source = output(&mut b, total);
    assert_eq!(steps(&source, "lowering").len(), 4);
    // The transpose of the sum is read twice, so that it is computed once; the rest is one nest.
    assert_eq!(
        steps(&source, "fusion"),
        [
            "x2[i2 < 8, i3 < 4] = (x0[i3, i2] + x0[i3, i2])",
            "x4[i6 < 4] = sum[i7 < 8]((x2[i7, i6] * x2[i7, i6]))"
        ]
    );
}

#[test]
fn every_pass_is_a_stage_in_order() {
    let mut b = Builder::default();
    let x = b.graph.add_input("x", Role::Data, ty(&[4, 8]));
    let sum = b.push(op("add"), &[x, x]).unwrap()[0];
    let source = output(&mut b, sum);
    let stages: Vec<&str> = source.stages.iter().map(|(name, _)| name.as_str()).collect();
    let names = passes().map(|(name, _)| name);
    assert_eq!(stages, [LOWERING].into_iter().chain(names).collect::<Vec<_>>());
    assert!(passes().all(|(_, description)| description.len() > 20));
}

#[test]
fn a_product_takes_what_follows_along() {
    let mut b = Builder::default();
    let x = b.graph.add_input("x", Role::Data, ty(&[32, 48]));
    let weight = b.graph.add_input("weight", Role::Param, ty(&[40, 48]));
    let bias = b.graph.add_input("bias", Role::Param, ty(&[40]));
    let turned = b.push(op("transpose"), &[weight]).unwrap()[0];
    let y = b.push(op("matmul"), &[x, turned]).unwrap()[0];
    let y = b.push(op("add"), &[y, bias]).unwrap()[0];
    let y = b.push(op("relu"), &[y]).unwrap()[0];
    let source = output(&mut b, y);
    assert_eq!(steps(&source, "kernel_selection"), ["x6 = 32x40x48 product(x0, x1, x2)"]);
    let arena = source.stages.iter().find(|(name, _)| name == "memory_planning").expect("a plan");
    assert!(arena.1.starts_with("arena: "), "{}", arena.1);
    assert!(source.h.contains("inputs[1]: float[40][48] weight"), "{}", source.h);
}

/// `exp(x - max) / sum(exp(x - max))` along an axis of `x`.
fn softmax(b: &mut Builder, x: ValueId, axis: i64) -> ValueId {
    let (axis, keep) = (b.lit(axis), b.lit(true));
    let top = b.push(op("max"), &[x, axis, keep]).unwrap()[0];
    let rest = b.push(op("subtract"), &[x, top]).unwrap()[0];
    let each = b.push(op("exp"), &[rest]).unwrap()[0];
    let total = b.push(op("sum"), &[each, axis, keep]).unwrap()[0];
    b.push(op("divide"), &[each, total]).unwrap()[0]
}

#[test]
fn what_is_made_of_a_row_stays_with_the_thread() {
    for (axis, variables) in [(2, 2), (1, 1)] {
        let mut b = Builder::default();
        let x = b.graph.add_input("x", Role::Data, ty(&[12, 16, 24]));
        let y = softmax(&mut b, x, axis);
        let source = output(&mut b, y);
        let text = &source.stages.iter().find(|(name, _)| name == "row_fusion").expect("a stage").1;
        assert!(text.contains("for ["), "{text}");
        // Lanes beside each other are never a row each: they are what a loop goes through.
        let rows = text.lines().find(|line| line.starts_with("for [")).unwrap();
        assert_eq!(rows.matches('<').count(), variables, "{rows}");
        let memory = &source.stages.iter().find(|(name, _)| name == "memory_planning").expect("a stage").1;
        assert!(memory.starts_with("arena: 0 bytes"), "{memory}");
    }
}

#[test]
fn what_depends_on_parameters_is_computed_once() {
    let mut b = Builder::default();
    let x = b.graph.add_input("x", Role::Data, ty(&[32, 48]));
    let weight = b.graph.add_input("weight", Role::Param, ty(&[40, 48]));
    let [mean, scale] = ["mean", "scale"].map(|n| b.graph.add_input(n, Role::State, ty(&[40])));
    let turned = b.push(op("transpose"), &[weight]).unwrap()[0];
    let y = b.push(op("matmul"), &[x, turned]).unwrap()[0];
    let y = b.push(op("subtract"), &[y, mean]).unwrap()[0];
    let scale_root = b.push(op("sqrt"), &[scale]).unwrap()[0];
    let y = b.push(op("multiply"), &[y, scale_root]).unwrap()[0];
    let y = b.push(op("relu"), &[y]).unwrap()[0];
    b.graph.outputs.insert("y".into(), y);
    let options = Options { prefix: "small".into(), pack: true, ..Options::default() };
    let request = Request { options, ..Request::default() };
    let listing = steps(&emit(&b.graph, &request).unwrap(), "memory_planning");
    assert_eq!(
        listing,
        [
            "x7[i7 < 40] = `sqrt{f}({0})`(x3[i7])",
            "x10[i12 < 40, i13 < 48] = (x1[i12, i13] * x7[i12])",
            "packed 0 = mithril_gemm_pack_48x40(x10)",
            "x11[i14 < 40] = ((0.0 - x2[i14]) * x7[i14])",
            "x9 = 32x40x48 product(x0, x10, x11)",
        ]
    );
    // A state that is replaced changes from call to call.
    b.graph.updates.push((scale, scale));
    let listing = steps(&emit(&b.graph, &request).unwrap(), "memory_planning");
    assert!(listing.len() == 4 && listing[0].starts_with("packed 0 ="), "{listing:#?}");
}

#[test]
fn all_that_is_missing_is_said_at_once() {
    static ODD: OpDef =
        OpDef { name: "odd", doc: "It has no lowering.", eval: Some(Eval::F1(f64::abs)), ..UNARY };
    static ODDER: OpDef =
        OpDef { name: "odder", doc: "It has no lowering.", eval: Some(Eval::F1(f64::abs)), ..UNARY };
    let mut b = Builder::default();
    let x = b.graph.add_input("x", Role::Data, ty(&[2]));
    let at = b.graph.add_origin(Place { path: Some("block.odd".into()), line: None });
    let mut v = x;
    for (op, origin) in [(&ODD, at), (&ODDER, OriginId::new(0))] {
        let n = b.graph.add_node(op, [v].into_iter().collect(), [ty(&[2])], origin);
        v = b.graph.node(n).outputs[0];
    }
    b.graph.outputs.insert("y".into(), v);
    let error = emit(&b.graph, &Request::default()).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    assert!(error.message().contains("odd, odder"), "{}", error.message());
    assert!(error.to_string().contains("block.odd"), "{error}");
}

#[test]
fn hostile_names_stay_in_comments() {
    let mut b = Builder::default();
    let x = b.graph.add_input("*/ int main; /*", Role::Data, ty(&[2]));
    let y = b.push(op("exp"), &[x]).unwrap()[0];
    b.graph.name_value(y, "int\n#error");
    let source = output(&mut b, y);
    for text in [&source.c, &source.h] {
        assert!(!text.contains("*/ int main") && !text.contains("\n#error"), "{text}");
    }
}

#[test]
fn a_call_writes_the_output_that_copies_its_result() {
    let mut b = Builder::default();
    let ty = TensorType { dtype: DType::F64, shape: Shape::of([4, 4]) };
    let x = b.graph.add_input("x", Role::Data, ty);
    let factor = b.push(op("cholesky"), &[x]).unwrap()[0];
    let source = output(&mut b, factor);
    let text = &source.stages.iter().find(|(name, _)| name == "fusion").expect("a stage").1;
    assert!(text.contains("mithril_cholesky(x0, out x2, 1, 4)"), "{text}");
    assert!(!text.contains(" = "), "a copy is left: {text}");
}
