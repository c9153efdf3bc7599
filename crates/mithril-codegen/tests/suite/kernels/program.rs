//! One C program of many cases: filling, calling and comparing.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use mithril_codegen::c::kernels::{Argument, Kernel, Target};

/// The cases of one program.
pub struct Cases {
    /// Definitions of all kernels.
    pub source: String,
    /// For each case a block of C statements that adds to `failures`.
    pub bodies: Vec<String>,
}

const HELPERS: &str = r"
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int failures;
static unsigned state = 1;
/* Whole numbers from -4 to 4. */
__attribute__((unused)) static int number(void) { state = state * 1664525u + 1013904223u; return (int)((state >> 16) % 9) - 4; }
#define FILLED(type, name, count) \
    type *name = malloc(sizeof(type) * (size_t)(count)); \
    for (long fill = 0; fill < (count); fill++) name[fill] = (type)number();
#define FILLED_BF16(name, count) \
    uint16_t *name = malloc(2 * (size_t)(count)); \
    for (long fill = 0; fill < (count); fill++) { float x = (float)number(); memcpy(name + fill, (char *)&x + 2, 2); }
__attribute__((unused)) static float from_bf16(uint16_t half) { uint32_t bits = (uint32_t)half << 16; float x; memcpy(&x, &bits, 4); return x; }
__attribute__((unused)) static void *allocate(size_t bytes) { char *p = aligned_alloc(64, (bytes + 127) / 64 * 64); memset(p, 0xff, bytes); return p; }
__attribute__((unused)) static float relu_f32(float x) { return x < 0 ? 0 : x; }
__attribute__((unused)) static double relu_f64(double x) { return x < 0 ? 0 : x; }
";

/// The calls of a kernel, by `threads` threads one after another: what a barrier between the phases allows.
pub fn calls(kernel: &Kernel, threads: usize) -> String {
    let mut text = format!(
        "char *packed = allocate({}), *shared = allocate({});\n",
        kernel.packed_bytes, kernel.shared_bytes
    );
    for call in kernel.pack.iter().chain(kernel.phases.iter().flatten()) {
        for thread in 0..threads {
            let line = call.text(|argument| match argument {
                Argument::Thread => thread.to_string(),
                Argument::Threads => threads.to_string(),
                Argument::A => "a".to_owned(),
                Argument::B => "b".to_owned(),
                Argument::Packed | Argument::PackedB | Argument::NextWeights => "(void *)packed".to_owned(),
                Argument::Out => "out".to_owned(),
                Argument::Operand(index) => format!("operand{index}"),
                Argument::Shared => "(void *)shared".to_owned(),
                Argument::SharedAt(bytes) => format!("(void *)(shared + {bytes})"),
                Argument::Scratch => "(void *)scratch".to_owned(),
            });
            let _ = writeln!(
                text,
                "{{ char *scratch = allocate({}); {line} free(scratch); }}",
                kernel.scratch_bytes
            );
        }
    }
    text.push_str("free(packed); free(shared);\n");
    text
}

/// What the prelude gives every file.
const ONCE: &str = include_str!("../../../src/c/prelude/once.c");

/// Ends the program at the first undefined behavior. Without the text that says what it was, the compiler takes three
/// quarters of the time.
const TRAPPING: [&str; 2] = ["-fsanitize=address,undefined", "-fsanitize-undefined-trap-on-error"];
/// The same with that text, for a program that has failed.
const EXPLAINING: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover"];

/// Compiles the program and demands that it finds no difference.
pub fn check(cases: &Cases, target: Target) {
    check_for(cases, target, &[]);
}

/// The same with further flags, as for a processor.
pub fn check_for(cases: &Cases, target: Target, flags: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut text = format!("#include <stdint.h>\n{ONCE}{HELPERS}\n{}\n", cases.source);
    for (index, body) in cases.bodies.iter().enumerate() {
        let _ = writeln!(text, "static void case_{index}(void) {{\n{body}\n}}");
    }
    let calls = (0..cases.bodies.len()).fold(String::new(), |text, index| format!("{text}case_{index}();\n"));
    // Flushed, since a sanitizer that finds leaks ends the program at once.
    let _ = writeln!(text, "int main(void) {{\n{calls}fflush(stdout);\nreturn failures != 0;\n}}");
    let (source, program) = (folder.path().join("kernels.c"), folder.path().join("kernels"));
    std::fs::write(&source, text).expect("the program is written");
    if let Ok(keep) = std::env::var("MITHRIL_KEEP_C") {
        std::fs::copy(&source, format!("{keep}/kernels_{}_{}.c", target.lanes, cases.bodies.len()))
            .expect("a copy");
    }
    if let Some(output) = failure(&source, &program, target, TRAPPING, flags) {
        let explained = failure(&source, &program, target, EXPLAINING, flags).unwrap_or(output);
        panic!("lanes {}: {}", target.lanes, explained.chars().take(3000).collect::<String>());
    }
}

/// Compiles a program with all warnings and sanitizers and runs it: what it prints if it fails. `CC` and
/// `MITHRIL_TEST_LEVEL` (such as `-O3`) choose another compiler and how much it optimizes.
fn failure(
    source: &Path,
    program: &Path,
    target: Target,
    sanitizers: [&str; 2],
    flags: &[&str],
) -> Option<String> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let level = std::env::var("MITHRIL_TEST_LEVEL").unwrap_or_else(|_| "-O1".to_owned());
    let built = Command::new(compiler)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-ffp-contract=fast", &level])
        .args(sanitizers)
        .args(flags)
        .arg(source)
        .args(["-lm", "-o"])
        .arg(program)
        .output()
        .expect("cc runs");
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(
        built.status.success(),
        "lanes {}: {}",
        target.lanes,
        errors.chars().take(3000).collect::<String>()
    );
    let output = Command::new(program).output().expect("the program runs");
    let text = format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (!output.status.success()).then_some(text)
}

#[test]
#[should_panic(expected = "signed integer overflow")]
fn undefined_behavior_is_found_and_explained() {
    let source = "static int next(int x) { return x + 1; }".to_owned();
    let bodies = vec!["volatile int x = 2147483647; failures += next(x) > 0;".to_owned()];
    check(&Cases { source, bodies }, Target::avx2());
}
