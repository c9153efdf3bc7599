//! Kernels against naive loops: all specifications of one vector width go into one C program, which is compiled and
//! run once. Inputs are small whole numbers, so that sums are exact and the comparison is for equality; arrays have
//! exactly the size they need, so that the sanitizers see every access beyond them.

mod gemm;
mod program;

use mithril_codegen::c::kernels::Target;

/// A vector is 64, 32 or 16 bytes, or one element.
const TARGETS: [Target; 4] = [Target::avx512(), Target::avx2(), Target::neon(), Target::plain()];

#[test]
fn gemm_equals_naive_loops() {
    for target in [Target::avx512(), Target::plain()] {
        program::check(&gemm::cases(target), target, &["-O2"]);
    }
}

#[test]
fn gemm_stays_within_its_arrays() {
    for target in TARGETS {
        program::check(
            &gemm::cases(target),
            target,
            &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover"],
        );
    }
}
