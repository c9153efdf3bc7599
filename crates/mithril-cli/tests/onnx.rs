//! Files of ONNX on the command line: read with their weights, written, and refused where they are damaged.

use std::path::Path;
use std::process::{Command, Output};

use mithril::onnx::{self, OnnxOptions};
use mithril::prelude::*;

fn mithril(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mithril")).args(words).output().unwrap()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn succeeds(words: &[&str]) -> String {
    let output = mithril(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn fails(words: &[&str]) -> String {
    let output = mithril(words);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{words:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A file with `output = input · [1, 2, 3]ᵀ`, and a batch of any size.
fn write(path: &Path) {
    let shapes = vec![("input".into(), vec!["batch".into(), 3.into()])];
    let options = FlattenOptions { shapes, training: false, ..FlattenOptions::default() };
    let compiled = Compiled::new(&layers::linear(1, false).unwrap(), &options).unwrap();
    let file = onnx::onnx(&compiled, &OnnxOptions::default()).unwrap();
    let weight = Tensor::of(&[1, 3], vec![1.0_f32, 2.0, 3.0]).unwrap();
    onnx::save_onnx(path, file, None, |_, out| out.write_all(&weight.to_bytes())).unwrap();
}

/// What a file computes for one row.
fn computed(path: &Path) -> Vec<f64> {
    let (model, weights) = onnx::read_onnx(path, &onnx::Options::default()).unwrap();
    let options = FlattenOptions { training: false, ..FlattenOptions::default() };
    let program = Executable::new(&model, &options).unwrap();
    let params = program.load_named(&weights).unwrap();
    let data = tensors([("input", Tensor::of(&[1, 3], vec![1.0_f32, -1.0, 0.5]).unwrap())]);
    program.evaluate(&[&params, &data]).unwrap().outputs["output"].to_f64s()
}

#[test]
fn a_file_is_read_with_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let file = place("linear.onnx");
    write(&file);
    assert_eq!(computed(&file), [0.5]);
    assert!(succeeds(&["summary", &text(&file)]).contains('3'));
    // The check compares what the C computes with the interpreter on the weights of the file.
    let words = ["export", &text(&file), &text(&place("c")), "--shape", "input=2,3", "--weights-inside"];
    assert!(succeeds(&words).contains("ok"));
    assert!(!std::fs::read_to_string(place("c").join("README.md")).unwrap().contains("random"));
    // As a file again, for another number of rows.
    let again = place("again.onnx");
    succeeds(&["export", &text(&file), &text(&again), "--opset", "18"]);
    assert_eq!(computed(&again), [0.5]);
}

#[test]
fn sizes_that_stay_open_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("linear.onnx");
    write(&file);
    let told = fails(&["export", &text(&file), &text(&folder.path().join("c"))]);
    assert!(told.contains("--shape input=1,3"), "{told}");
}

#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("linear.onnx"), text(&folder.path().join("out")));
    assert!(fails(&["export", &text(&file), &out]).contains("linear.onnx"));
    write(&file);
    let whole = std::fs::read(&file).unwrap();
    for length in [0, 1, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file, &whole[..length]).unwrap();
        let told = fails(&["export", &text(&file), &out, "--shape", "input=1,3"]);
        assert!(told.starts_with("error[M") && !told.contains("panicked"), "{length}: {told}");
    }
    std::fs::write(&file, "no model").unwrap();
    assert!(fails(&["summary", &text(&file)]).starts_with("error[M"));
}
