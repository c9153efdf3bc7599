//! The command `export`: weights are given, or random numbers are asked for.

use std::path::Path;
use std::process::{Command, Output};

use mithril::prelude::*;

fn mithril(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mithril")).args(words).output().unwrap()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn weights_are_never_drawn_without_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("model.json"), folder.path().join("out"));
    let mut model = Model::new();
    let layer = layers::linear(2, true).unwrap();
    model.extend(&layer, [("input", "input"), ("output", "output")], Place::default()).unwrap();
    std::fs::write(&file, model.to_json().unwrap()).unwrap();
    let (file, target) = (text(&file), text(&out));
    let words = ["export", &file, &target, "--shape", "input=1,3"];
    let refused = mithril(&words);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("without weights"), "{told}");
    assert!(told.contains("--random-weights") && !out.exists(), "{told}");
    let drawn = mithril(&[&words[..], &["--random-weights"]].concat());
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    assert!(String::from_utf8_lossy(&drawn.stdout).contains("random numbers"));
    assert!(std::fs::read_to_string(out.join("README.md")).unwrap().contains("random numbers"));
    // Protocol buffers keep texts as they are.
    let onnx = text(&folder.path().join("drawn.onnx"));
    let drawn = mithril(&["export", &file, &onnx, "--shape", "input=1,3", "--random-weights"]);
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    let bytes = std::fs::read(&onnx).unwrap();
    assert!(String::from_utf8_lossy(&bytes).contains("weights are random numbers"));
    let both = mithril(&[&words[..], &["--random-weights", "--weights", "x"]].concat());
    assert!(String::from_utf8_lossy(&both.stderr).contains("contradict"));
}

#[test]
fn products_in_bfloat16_are_checked_as_exactly_as_they_compute() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("model.json"), folder.path().join("out"));
    let mut model = Model::new();
    let layer = layers::linear(64, true).unwrap();
    model.extend(&layer, [("input", "input"), ("output", "output")], Place::default()).unwrap();
    std::fs::write(&file, model.to_json().unwrap()).unwrap();
    let words = ["export", &text(&file), &text(&out), "--shape", "input=4,64", "--random-weights"];
    let output = mithril(&[&words[..], &["--precision", "bfloat16"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read_to_string(out.join("model.c")).unwrap().contains("bfloat16"));
    assert!(!mithril(&[&words[..], &["--precision", "float8"]].concat()).status.success());
}

#[test]
fn a_command_that_is_misspelled_is_guessed() {
    let output = mithril(&["exprot", "x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean export?"));
}

#[test]
fn commands_that_need_python_say_how_to_get_it() {
    for words in [&["view", "model.json", "--depth", "2"][..], &["bench", "--help"]] {
        let output = mithril(words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("needs Python") && told.contains("pip install mithril-compiler"), "{told}");
        assert!(told.contains(&format!("python -m mithril {}", words[0])), "{told}");
    }
    for (words, part) in [
        (&["export", "m.json", "out", "--quantize", "int8"][..], "--quantize needs Python"),
        (&["export", "m.json", "out", "--target", "web"], "--target web needs Python"),
        (&["export", "m.json", "out", "--target", "wep"], "did you mean web? Available: c, web"),
        (&["summary", "m.json", "--shape", "input=3x4"], "numbers or names, separated by commas"),
        (&["export", "m.json", "o.onnx", "--lanes", "8"], "--lanes is for C, and the target is onnx"),
        (&["export", "m.json", "out", "--opset", "18"], "--opset is for files of ONNX"),
        (&["export", "m.json", "out", "--shape", "a=1", "--shape", "a=2"], "gives \"a\" twice"),
        (&["export", "m.json", "out", "--shape", "input=1;4"], "--shape input=1,4"),
        (&["export", "m.json", "out", "--lanes", "many"], "--lanes is \"many\""),
    ] {
        let output = mithril(words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(part), "{told}");
    }
    let output = mithril(&["export", "m.json", "out", "--shpae", "x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean --shape? Available: --json"));
}

#[test]
fn tables_are_json_too_and_shells_complete_all_commands() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.json");
    let mut model = Model::new();
    let layer = layers::linear(2, true).unwrap();
    model.extend(&layer, [("input", "input"), ("output", "output")], Place::default()).unwrap();
    model.set_shapes([("input", vec![Size::from(1), Size::from(3)])], &Place::default()).unwrap();
    std::fs::write(&file, model.to_json().unwrap()).unwrap();
    let json = |words: &[&str]| -> serde_json::Value {
        let output = mithril(words);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    };
    let summary = json(&["summary", &text(&file), "--json"]);
    assert_eq!((&summary["schema"], &summary["parameters"]), (&"mithril.summary/1".into(), &8.into()));
    assert_eq!(
        (&summary["rows"][0]["path"], &summary["rows"][0]["layer"]),
        (&"linear".into(), &"Linear".into())
    );
    assert_eq!(json(&["ops", "mm", "--json"])["name"], "matmul");
    assert!(json(&["ops", "--json"])["families"].as_object().unwrap().len() > 5);
    let out = text(&folder.path().join("out"));
    let exported = json(&["export", &text(&file), &out, "--random-weights", "--json", "--weights-inside"]);
    assert_eq!((&exported["schema"], &exported["is_random"]), (&"mithril.export/1".into(), &true.into()));
    assert!(exported["check"].as_str().unwrap().trim_end().ends_with("ok"));
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(mithril(&["completions", shell]).stdout).unwrap();
        for part in ["export", "bench", "minutes", "no-weights-inside"] {
            assert!(script.contains(part), "{shell}: {part}");
        }
    }
    let help = String::from_utf8(mithril(&["help", "bench"]).stdout).unwrap();
    assert!(help.contains("--minutes") && help.contains("needs Python"), "{help}");
}
