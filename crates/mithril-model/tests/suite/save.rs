//! Save and load: what is written comes back, and what is not ours is refused.

use std::fmt::Write;

use mithril_ir::{Code, DType, Lit, Place, Tensor};
use mithril_model::{Connection, FlattenOptions, IOKey, Model, Spec, flatten, layers};

fn rich() -> Model {
    let mut m = Model::new().named("naïve \"net\"").unwrap();
    let mlp = layers::build("MLP", vec![[8, 4].into()], vec![]).unwrap();
    let at = Place::default;
    m.extend(
        &mlp,
        [("input", IOKey::new("x").shape([None, Some(6)]).dtype(DType::F32)), ("output", IOKey::new("h"))],
        at(),
    )
    .unwrap();
    m.extend(&mlp, [("input", "h"), ("output", "again")], at()).unwrap();
    let weird = Tensor::from_f64s(DType::F32, &[4], &[f64::NAN, f64::NEG_INFINITY, -0.0, 0.1]);
    m.extend(
        &Model::leaf(mithril_ir::ops::find("add").unwrap(), 0),
        Spec::new().with("left", "again").with("right", weird).with("output", "sum"),
        at(),
    )
    .unwrap();
    let rows = m.connection("sum").unwrap().shape().unwrap().item(0).unwrap();
    let shape = Connection::tuple([rows.into(), 2.into(), 2.into()]).unwrap();
    let y =
        Connection::op("reshape", vec![m.connection("sum").unwrap().into(), shape.into()], vec![]).unwrap();
    m.add_outputs(&[("output".into(), y)], &at()).unwrap();
    m.set_shapes([("x", vec!["batch".into(), 6.into()])], &at()).unwrap();
    m
}

#[test]
fn what_is_saved_comes_back() {
    for m in [
        rich(),
        layers::build("BatchNorm2d", vec![], vec![]).unwrap(),
        layers::build("LSTM", vec![3.into()], vec![("length", 2.into())]).unwrap(),
        layers::build("Conv2d", vec![3.into(), 2.into()], vec![("padding", Lit::text("same"))]).unwrap(),
        Model::new(),
    ] {
        let text = m.to_json().unwrap();
        let back = Model::from_json(&text).unwrap();
        assert_eq!(back.to_json().unwrap(), text);
        assert_eq!(
            (back.to_string(), back.inputs(), back.outputs()),
            (m.to_string(), m.inputs(), m.outputs())
        );
    }
    let flat = |m: &Model| flatten(m, &FlattenOptions::default()).unwrap();
    let (m, back) = (rich(), Model::from_json(&rich().to_json().unwrap()).unwrap());
    let (a, b) = (flat(&m), flat(&back));
    assert_eq!(a.inputs, b.inputs);
    assert_eq!(mithril_ir::text::print(&a.graph), mithril_ir::text::print(&b.graph));
    assert_eq!(b.graph.ty(b.graph.outputs["output"]).unwrap().to_string(), "f32[batch, 2, 2]");
}

#[test]
fn shared_parts_are_written_once() {
    let linear = layers::linear(4, true).unwrap();
    let mut m = Model::new();
    for _ in 0..50 {
        m.chain(&linear, (), Place::default()).unwrap();
    }
    assert_eq!(
        m.to_json().unwrap().matches("\"weight\"").count(),
        2,
        "the port, and the bias that refers to it"
    );
}

#[test]
fn a_loaded_model_goes_on() {
    let mut m = Model::from_json(&rich().to_json().unwrap()).unwrap();
    m.extend(&layers::linear(2, true).unwrap(), [("input", "again")], Place::default()).unwrap();
    let e = m.extend(&layers::linear(2, true).unwrap(), [("output", "h")], Place::default()).unwrap_err();
    assert_eq!(e.code(), Code::TwoSources);
}

#[test]
fn every_cut_and_every_flipped_byte_is_an_error_or_a_model() {
    let text = rich().to_json().unwrap();
    for end in (0..text.len()).step_by(7).filter(|&n| text.is_char_boundary(n)) {
        assert_eq!(Model::from_json(&text[..end]).unwrap_err().code(), Code::BadFile);
    }
    let bytes = text.as_bytes();
    for i in (0..bytes.len()).step_by(11) {
        for b in [b'0', b'9', b'"', b'[', b'-', b'z'] {
            let mut changed = bytes.to_vec();
            changed[i] = b;
            if let Ok(text) = String::from_utf8(changed)
                && let Err(e) = Model::from_json(&text)
            {
                assert_eq!(e.code(), Code::BadFile, "{e}");
            }
        }
    }
}

fn file(models: &str) -> String {
    format!("{{\"format\":\"mithril-model\",\"version\":1,\"models\":[{models}]}}")
}

const RELU: &str =
    r#"{"class":"Relu","body":{"op":{"is":"relu","ports":[{"name":"input"}],"outputs":["output"]}}}"#;

#[test]
fn hostile_files_are_refused_with_the_place() {
    let parts = |body: &str| file(&format!("{RELU},{{\"class\":\"Model\",\"body\":{{\"parts\":{body}}}}}"));
    let good = r#"{"connections":[{"name":"x"},{}],"children":[{"name":"a","model":0,"inputs":[{"from":0}],"outputs":[1]}],"last":1}"#;
    assert!(Model::from_json(&parts(good)).is_ok());
    let cases = [
        (file(&RELU.replace("\"relu\"", "\"os.system\"")), "no op \"os.system\""),
        (file(&RELU.replace("\"input\"", "\"\"")), "models[0]"),
        (file(&RELU.replace("\"class\":", "\"class\":\"X\",\"class\":")), "duplicate field"),
        (file(&RELU.replace("[\"output\"]", "[\"output\",\"output\"]")), "two outputs"),
        (file(""), "no model"),
        (file(RELU).replace("\"version\":1", "\"version\":99"), "version 99"),
        (file(RELU).replace("mithril-model", "pickle"), "pickle"),
        (
            parts(&good.replace("\"model\":0", "\"model\":1")),
            "models[1].children[0]: there is no earlier model 1",
        ),
        (parts(&good.replace("\"model\":0", "\"model\":99999999999999")), "no earlier model"),
        (parts(&good.replace("{\"from\":0}", "{\"from\":7}")), "no connection 7"),
        (parts(&good.replace("{\"from\":0}", "{\"from\":1}")), "circle"),
        (parts(&good.replace("\"outputs\":[1]", "\"outputs\":[]")), "0 are connected"),
        (parts(&good.replace("{\"name\":\"x\"}", "{\"name\":\"x\\u0000\"}")), "cannot be seen"),
        (
            parts(&good.replace(
                "{\"name\":\"x\"}",
                "{\"name\":\"x\",\"value\":{\"float\":1.0},\"declared\":{\"shape\":[3]}}",
            )),
            "connections[0]",
        ),
        (parts(&good.replace("\"last\":1", "\"last\":4000000000")), "no connection 4000000000"),
        (
            parts(&good.replace(
                "{\"name\":\"x\"}",
                "{\"name\":\"x\",\"declared\":{\"shape\":[9223372036854775807,9]}}",
            )),
            "too large",
        ),
        (parts(&good.replace("{\"name\":\"x\"}", "{\"name\":\"x\",\"declared\":{\"shape\":[1e400]}}")), ""),
    ];
    for (text, expected) in cases {
        let e = Model::from_json(&text).unwrap_err();
        assert_eq!(e.code(), Code::BadFile, "{e}");
        assert!(e.to_string().contains(expected), "{expected:?} in {e}");
    }
}

#[test]
fn files_that_explode_are_refused_before_they_do() {
    // Each model holds the one before it ten times: 10^30 ops in a few kilobytes.
    let mut models = RELU.to_owned();
    for i in 0..30 {
        let children: Vec<String> = (0..10)
            .map(|c| {
                format!(r#"{{"name":"c{c}","model":{i},"inputs":[{{"from":{c}}}],"outputs":[{}]}}"#, c + 1)
            })
            .collect();
        let edges = ["{}"; 10].join(",");
        let _ = write!(
            models,
            r#",{{"class":"M","body":{{"parts":{{"connections":[{{"name":"input"}},{edges}],"children":[{}],"last":10}}}}}}"#,
            children.join(",")
        );
    }
    assert_eq!(Model::from_json(&file(&models)).unwrap_err().code(), Code::BadFile);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(Model::from_json(&deep).unwrap_err().code(), Code::BadFile);
    let tuple = format!("{}{}", r#"{"tuple":["#.repeat(5000), "]}".repeat(5000));
    let text =
        file(&RELU.replace(r#"{"name":"input"}"#, &format!(r#"{{"name":"input","default":{tuple}}}"#)));
    assert_eq!(Model::from_json(&text).unwrap_err().code(), Code::BadFile);
}
