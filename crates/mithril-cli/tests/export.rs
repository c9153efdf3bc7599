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
    let both = mithril(&[&words[..], &["--random-weights", "--weights", "x"]].concat());
    assert!(String::from_utf8_lossy(&both.stderr).contains("contradict"));
}

#[test]
fn a_command_that_is_misspelled_is_guessed() {
    let found = mithril(&["exprot", "x"]);
    assert_eq!(found.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&found.stderr).contains("did you mean export?"));
}
