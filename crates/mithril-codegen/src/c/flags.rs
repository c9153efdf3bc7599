//! How generated code is meant to be compiled.

/// Flags of GCC and Clang for every compilation. NaN, infinities and subnormals keep their meaning: sums may be taken in
/// another order, nothing else. So `(a + b) - a` may become `b`, which differs where `a` is infinite or much larger than `b`.
/// `-ffast-math` is never among them: merely loading such a library changes the whole process.
pub const FLAGS: &[&str] = &[
    "-std=c11",
    "-O3",
    // Without it `-std=c11` forbids fused multiply-adds, which are half the speed and more exact.
    "-ffp-contract=fast",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-fno-math-errno",
];
