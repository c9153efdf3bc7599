//! The `mithril` command line.
fn main() {}
