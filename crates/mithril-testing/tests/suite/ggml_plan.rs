//! Plans for ggml: every case of every op has one, known models are one graph of ggml each, and weights are kept in the
//! elements that are wanted for them.

use std::sync::Arc;

use mithril::codegen::ggml::plan::{PlanValueId, Source};
use mithril::compile::compiled::Compiled;
use mithril::compile::ggml::{Element, Ggml, Options, Plan, plan};
use mithril::compile::pipeline::lower;
use mithril::ir::{DType, Graph, Lit, ops};
use mithril::model::{FlattenOptions, zoo};
use mithril_testing::case::{Case, cases, read};
use mithril_testing::run;

/// Ops that a trained model runs forward: their first case needs nothing of the host.
const IN_GGML: &[&str] = &[
    "add",
    "subtract",
    "multiply",
    "divide",
    "negative",
    "abs",
    "sqrt",
    "rsqrt",
    "square",
    "exp",
    "log",
    "sin",
    "cos",
    "tanh",
    "floor",
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "gelu",
    "sigmoid",
    "silu",
    "hard_swish",
    "greater",
    "softmax",
    "log_softmax",
    "reshape",
    "transpose",
    "slice",
    "split",
    "concat",
    "stack",
    "pad",
    "tile",
    "take",
    "embedding",
    "matmul",
    "linear",
    "einsum",
    "sum",
    "mean",
    "var",
    "cumsum",
    "batch_norm",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "instance_norm",
    "conv1d",
    "conv2d",
    "max_pool2d",
    "avg_pool2d",
    "scaled_dot_product_attention",
    "rope",
    "rotate_pairs",
];

fn graph_of(case: &Case) -> Option<Graph> {
    let (graph, _) = run::graph_of(case, DType::F32).ok()?;
    Some(lower(&graph, &Ggml, DType::F32, &mut |_, _| {}).expect("lowering"))
}

#[test]
fn every_case_of_every_row_has_a_plan() {
    let mut failures = Vec::new();
    for op in ops::all() {
        for case in cases(op, DType::F32).expect("cases") {
            let Some(graph) = graph_of(&case) else { continue };
            if let Err(e) = plan(&graph, &Options::default()) {
                failures.push(format!("{} {}: {e}", op.name, case.text));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn what_models_consist_of_runs_in_ggml() {
    for name in IN_GGML {
        let op = ops::find(name).unwrap_or_else(|| panic!("no op {name}"));
        let all = cases(op, DType::F32).expect("cases");
        // Batch norm begins with one that is trained.
        let case = all.iter().find(|c| !c.text.contains("training=true")).expect("a case");
        let lowered = plan(&graph_of(case).expect("a graph"), &Options::default()).expect("a plan");
        assert!(lowered.hosted().is_empty(), "{name} {}\n{lowered}", case.text);
    }
}

/// The plan of a case.
fn plan_of(name: &str, line: &str) -> Plan {
    let case = read(ops::find(name).expect("an op"), line, DType::F32, 0).expect("a case");
    plan(&graph_of(&case).expect("a graph"), &Options::default()).expect("a plan")
}

fn functions(plan: &Plan) -> Vec<&str> {
    plan.calls().map(|c| c.function).collect()
}

#[test]
fn products_read_operands_as_they_are() {
    assert_eq!(
        functions(&plan_of("linear", "[2,5,64] [32,64] [32]")).iter().filter(|f| **f == "ggml_cont").count(),
        0
    );
    // One call; its result is copied once, into the order of the graph.
    let attention = plan_of("scaled_dot_product_attention", "[1,2,5,8] [1,2,5,8] [1,2,5,8] is_causal=true");
    assert_eq!(
        functions(&attention),
        ["ggml_cast", "ggml_flash_attn_ext", "ggml_permute", "ggml_cont"],
        "{attention}"
    );
}

#[test]
fn values_of_one_query_are_not_copied() {
    let attention = plan_of("scaled_dot_product_attention", "[1,2,1,8] [1,2,600,8] [1,2,600,8]");
    let called = functions(&attention);
    assert!(called.contains(&"ggml_out_prod") && !called.contains(&"ggml_cont"), "{attention}");
}

type Sizes = Vec<(&'static str, Vec<i64>)>;

/// The plan of a model of the zoo.
fn model(name: &str, arguments: Vec<(&'static str, Lit)>, shapes: Sizes, options: &Options<'_>) -> Plan {
    let model = zoo::build(name, vec![], arguments).unwrap_or_else(|e| panic!("{e}"));
    let sized = |(name, shape): (&str, Vec<i64>)| (name.into(), shape.into_iter().map(Into::into).collect());
    let shapes = shapes.into_iter().map(sized).collect();
    let compiled = Compiled::new(&model, &FlattenOptions { shapes, ..Default::default() });
    let graph = compiled.unwrap_or_else(|e| panic!("{e}")).forward(&Ggml, &mut |_, _| {}).expect("lowering");
    plan(&graph, options).expect("a plan")
}

fn gpt() -> Vec<(&'static str, Lit)> {
    let sizes = [("block_size", 16), ("dims", 32), ("num_heads", 4), ("num_layers", 2), ("vocab_size", 100)];
    sizes.into_iter().map(|(name, size)| (name, size.into())).collect()
}

fn llama() -> Vec<(&'static str, Lit)> {
    let sizes = [
        ("vocab_size", 100),
        ("dims", 32),
        ("num_heads", 4),
        ("num_kv_heads", 2),
        ("num_layers", 2),
        ("hidden", 64),
    ];
    sizes.into_iter().map(|(name, size)| (name, size.into())).collect()
}

#[test]
fn known_models_are_one_graph() {
    let t5 = [
        ("vocab_size", 100),
        ("d_model", 32),
        ("d_kv", 8),
        ("d_ff", 64),
        ("num_layers", 2),
        ("num_heads", 4),
    ];
    let bert = [("vocab_size", 100), ("dims", 32), ("num_heads", 4), ("num_layers", 2), ("hidden", 64)];
    let vit = [
        ("image_size", 32),
        ("patch_size", 8),
        ("num_layers", 2),
        ("num_heads", 4),
        ("hidden_dim", 32),
        ("mlp_dim", 64),
    ];
    let named = |sizes: &[(&'static str, i64)]| sizes.iter().map(|&(n, s)| (n, s.into())).collect::<Vec<_>>();
    let text = || vec![("input", vec![2, 5])];
    for (name, arguments, shapes) in [
        ("resnet18", vec![("num_classes", 10.into())], vec![("input", vec![1, 3, 64, 64])]),
        ("vit", named(&vit), vec![("input", vec![2, 3, 32, 32])]),
        ("create_gpt", gpt(), text()),
        ("create_llama", llama(), text()),
        ("create_bert", named(&bert), text()),
        ("t5_encode", named(&t5), text()),
    ] {
        let planned = model(name, arguments, shapes, &Options { pack: true, ..Options::default() });
        assert_eq!((planned.segments(), planned.hosted()), (1, vec![]), "{name}");
    }
}

#[test]
fn what_follows_from_weights_is_prepared() {
    let image = || vec![("input", vec![1, 3, 64, 64])];
    let resnet = |options| model("resnet18", vec![("num_classes", 10.into())], image(), &options);
    let planned = resnet(Options { pack: true, ..Options::default() });
    let named = |name: &str| functions(&planned).iter().filter(|f| **f == name).count();
    // A convolution with its norm is a convolution and a sum; blocks add their inputs.
    let counts = ["ggml_conv_2d_direct", "ggml_add", "ggml_mul", "ggml_sqrt"].map(named);
    assert_eq!(counts, [20, 20 + 8 + 1, 0, 0], "{planned}");
    // Each weight by itself, so that one can go before the next.
    assert_eq!(planned.prepared.len(), 20, "{planned}");
    assert!(resnet(Options::default()).prepared.is_empty());
}

/// How many inputs are copied as they are.
fn copied(plan: &Plan) -> usize {
    let is_input = |v: PlanValueId| matches!(plan.values[v].source, Source::Input(_));
    let copies = plan.calls().filter(|c| c.function == "ggml_cont");
    copies.filter(|c| c.arguments[0].value().is_some_and(is_input)).count()
}

#[test]
fn decoders_count_on_the_host_before_one_graph() {
    for (name, mut arguments, heads) in [("create_gpt", gpt(), 4), ("create_llama", llama(), 2)] {
        arguments.push(("cache", true.into()));
        let mut shapes = vec![("input", vec![1, 1]), ("padding", vec![1])];
        for cache in ["past_key_0", "past_value_0", "past_key_1", "past_value_1"] {
            shapes.push((cache, vec![1, heads, 16, 8]));
        }
        let planned =
            model(name, arguments.clone(), shapes.clone(), &Options { pack: true, ..Options::default() });
        assert_eq!(planned.segments(), 1, "{name}\n{planned}");
        assert_eq!(functions(&planned).iter().filter(|f| **f == "ggml_set_rows").count(), 4, "{name}");
        assert_eq!((copied(&planned), planned.donated.len()), (4, 0), "{name}\n{planned}");
        let caches = ["past_key_0", "past_value_0", "past_key_1", "past_value_1"].map(Arc::from);
        let planned =
            model(name, arguments, shapes, &Options { pack: true, donated: &caches, ..Options::default() });
        assert_eq!((copied(&planned), planned.donated.len()), (0, 4), "{name}\n{planned}");
    }
}

#[test]
fn weights_are_kept_as_wanted_where_their_rows_are_blocks() {
    let element_of = |name: &str| name.ends_with("weight").then_some(Element::Q8_0);
    let options = Options { pack: true, elements: Some(&element_of), ..Options::default() };
    let mut arguments = gpt();
    arguments.retain(|(name, _)| *name != "dims");
    arguments.push(("dims", 32.into()));
    let planned = model("create_gpt", arguments, vec![("input", vec![1, 5])], &options);
    let kept = |v: &PlanValueId| planned.values[*v].ty.map(|ty| ty.element);
    for call in planned.calls().filter(|c| c.function == "ggml_mul_mat") {
        let weights = call.arguments.iter().find_map(|a| a.value());
        let element = weights.as_ref().and_then(kept);
        let is_weight = planned.values[weights.expect("an operand")].name.ends_with("weight");
        assert_eq!(element == Some(Element::Q8_0), is_weight, "{planned}");
    }
    assert!(planned.calls().any(|c| c.function == "ggml_get_rows"), "{planned}");
    let refused = model(
        "create_gpt",
        gpt(),
        vec![("input", vec![1, 5])],
        &Options { pack: true, elements: Some(&|_| Some(Element::Q4_K)), ..Options::default() },
    );
    assert!(!refused.refused.is_empty());
    assert!(refused.refused.iter().all(|(_, reason)| reason.contains("256")), "{:?}", refused.refused);
}
