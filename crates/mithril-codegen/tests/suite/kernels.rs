//! Kernels against naive loops: all specifications of one vector width go into one C program, which is compiled and
//! run once. Inputs are small integers, so that sums are exact and the comparison is for equality; arrays have
//! exactly the size they need, so that the sanitizers see every access beyond them.

mod blocked;
mod bytes;
mod conv;
mod correlation;
mod functions;
mod gemm;
mod program;
mod quantized;
mod quantized_conv;

use mithril_codegen::c::kernels::Target;

/// A vector is 64, 32 or 16 bytes, or one element; few registers make short micro-kernels, which compile
/// quickly. One has more rows than lanes, the others fewer.
const TARGETS: [Target; 4] = [Target::new(16, 12), Target::avx2(), Target::new(4, 14), Target::new(1, 8)];

#[test]
fn gemm_equals_naive_loops() {
    for target in TARGETS {
        program::check(&gemm::cases(target), target);
    }
}

/// With the instructions of this machine, which may have some for pairs, and with none.
#[test]
fn products_of_bfloat16_equal_naive_loops() {
    for target in TARGETS {
        let cases = gemm::cases_of_pairs(target);
        let is_native = cfg!(target_arch = "x86_64") && target.lanes > 4;
        program::check_for(&cases, target, if is_native { &["-march=native"] } else { &[] });
    }
}

/// With tiles (AMX), where this machine has them; where the system does not permit them; and where the compiler knows none.
#[test]
fn products_with_tiles_equal_naive_loops() {
    check_tiles(gemm::cases_of_tiles(TARGETS[0]));
}

fn check_tiles(mut cases: program::Cases) {
    let target = TARGETS[0];
    program::check_for(&cases, target, &[]);
    if cfg!(not(all(target_arch = "x86_64", target_os = "linux"))) {
        return;
    }
    program::check_for(&cases, target, &["-march=native", "-DARCH_REQ_XCOMP_PERM=0xffff"]);
    if !std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("amx_int8")) {
        eprintln!("skipped: this processor has no tiles (AMX)");
        return;
    }
    cases.bodies.push("failures += !mithril_start_tiles(16); mithril_stop_tiles(1);".to_owned());
    program::check_for(&cases, target, &["-march=native"]);
}

#[test]
fn convolution_equals_naive_loops() {
    for target in TARGETS {
        program::check(&conv::cases(target), target);
    }
}

#[test]
fn gradient_of_weights_equals_naive_loops() {
    for target in TARGETS {
        program::check(&correlation::cases(target), target);
    }
}

#[test]
fn convolution_of_blocks_equals_naive_loops() {
    // With one lane nothing lies in blocks.
    for target in TARGETS.into_iter().filter(|target| target.lanes > 1) {
        program::check(&blocked::cases(target), target);
    }
}

/// With the instructions of this machine, which may have some for pairs, and with none.
#[test]
fn convolutions_of_bfloat16_equal_naive_loops() {
    for target in TARGETS.into_iter().filter(|target| target.lanes > 1) {
        let is_native = cfg!(target_arch = "x86_64") && target.lanes > 4;
        program::check_for(
            &blocked::cases_of_pairs(target),
            target,
            if is_native { &["-march=native"] } else { &[] },
        );
    }
}

/// With tiles (AMX), where this machine has them, and with vectors.
#[test]
fn convolutions_with_tiles_equal_naive_loops() {
    let (target, cases) = (TARGETS[0], blocked::cases_of_tiles(TARGETS[0]));
    program::check_for(&cases, target, &[]);
    if cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        program::check_for(&cases, target, &["-march=native"]);
    }
}

/// With as many registers as there are: few tiles have their weights' points made in them.
#[test]
fn winograd_in_registers_equals_naive_loops() {
    program::check(&conv::winograd_cases(Target::neon()), Target::neon());
    program::check(&blocked::winograd_cases(Target::avx512()), Target::avx512());
}

#[test]
fn functions_of_vectors_equal_those_of_numbers() {
    for target in TARGETS.into_iter().filter(|target| target.lanes > 1) {
        program::check(&functions::cases(target), target);
    }
}

#[test]
fn products_in_few_bits_equal_naive_loops() {
    for target in TARGETS {
        program::check(&quantized::cases(target), target);
    }
}

/// With tiles (AMX), where this machine has them; where the system does not permit them; and where the compiler knows none.
#[test]
fn products_of_bytes_with_tiles_equal_naive_loops() {
    check_tiles(quantized::cases_of_tiles(TARGETS[0]));
}

#[test]
fn convolutions_in_whole_numbers_equal_naive_loops() {
    for target in TARGETS {
        program::check(&quantized_conv::cases(target), target);
    }
}

/// With tiles (AMX), where this machine has them, and with vectors; images as floats and as bytes.
#[test]
fn convolutions_of_bytes_with_tiles_equal_naive_loops() {
    let target = TARGETS[0];
    for cases in [quantized_conv::cases_of_tiles(target), bytes::cases_of_tiles(target)] {
        program::check_for(&cases, target, &[]);
        if cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            program::check_for(&cases, target, &["-march=native"]);
        }
    }
}

#[test]
fn convolutions_of_bytes_equal_naive_loops() {
    for target in TARGETS.into_iter().filter(|target| target.lanes > 1) {
        program::check(&bytes::cases(target), target);
    }
}
