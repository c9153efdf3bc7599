//! What is heavy to build can be left out.

use std::process::Command;

fn tree(flags: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    command.args(["tree", "--offline", "--locked", "-p", "mithril", "-e", "normal"]).args(flags);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn ggml_is_built_by_default_and_can_be_left_out() {
    assert!(tree(&[]).contains("mithril-ggml"));
    assert!(!tree(&["--no-default-features"]).contains("ggml"));
}
