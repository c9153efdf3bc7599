//! What this processor can do, as a text: code compiled for one processor must not run on another.

use std::sync::OnceLock;

/// Architecture, model and features.
pub(super) fn processor() -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(|| {
        let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let fields = ["model name", "flags", "Features", "CPU implementer", "CPU part", "isa", "uarch"];
        let mut lines: Vec<&str> = Vec::new();
        for line in about.lines().filter(|line| fields.iter().any(|start| line.starts_with(start))) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        format!("{} {}\n{}", std::env::consts::ARCH, std::env::consts::OS, lines.join("\n"))
    })
}
