//! How generated code is meant to be compiled.

/// Flags of GCC and Clang for every compilation. NaN, infinities, subnormals and signs of zeros keep their meaning, and so
/// does the order of operations: where a sum may be taken in another order, the code says so in a pragma of OpenMP.
/// `-ffast-math` is never among them: merely loading such a library changes the whole process.
pub const FLAGS: &[&str] = &[
    "-std=c11",
    "-O3",
    // Without it `-std=c11` forbids fused multiply-adds, which are half the speed and more exact.
    "-ffp-contract=fast",
    "-fopenmp-simd",
    "-fno-trapping-math",
    "-fno-math-errno",
];
