//! Compiles ggml (the core, the scheduler and the backend of the CPU) from the sources that the pinned package
//! `llama-cpp-sys-2` carries. That package itself is never built: it would need cmake and libclang.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package of the sources.
const CARRIER: &str = "llama-cpp-sys-2";

/// C and C++ of every processor, below `ggml/src`.
const COMMON: &[&str] = &[
    "ggml.c",
    "ggml-alloc.c",
    "ggml-quants.c",
    "ggml.cpp",
    "ggml-backend.cpp",
    "ggml-backend-meta.cpp",
    "ggml-backend-reg.cpp",
    "ggml-backend-dl.cpp",
    "ggml-threading.cpp",
    "ggml-cpu/ggml-cpu.c",
    "ggml-cpu/quants.c",
    "ggml-cpu/ggml-cpu.cpp",
    "ggml-cpu/repack.cpp",
    "ggml-cpu/hbm.cpp",
    "ggml-cpu/traits.cpp",
    "ggml-cpu/amx/amx.cpp",
    "ggml-cpu/amx/mmq.cpp",
    "ggml-cpu/tiled/tiled.cpp",
    "ggml-cpu/tiled/tiled-kernel.cpp",
    "ggml-cpu/binary-ops.cpp",
    "ggml-cpu/unary-ops.cpp",
    "ggml-cpu/vec.cpp",
    "ggml-cpu/ops.cpp",
    "ggml-cpu/llamafile/sgemm.cpp",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=Cargo.toml");
    let ggml = carrier().join("llama.cpp/ggml");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where"));
    let version = "#define GGML_VERSION \"0.26.0\"\n#define GGML_COMMIT \"unknown\"\n";
    std::fs::write(out.join("ggml-version.h"), version).expect("OUT_DIR can be written");
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo says for what");
    let own = match architecture.as_str() {
        "x86_64" => &["ggml-cpu/arch/x86/quants.c", "ggml-cpu/arch/x86/repack.cpp"][..],
        "aarch64" => &["ggml-cpu/arch/arm/quants.c", "ggml-cpu/arch/arm/repack.cpp"],
        _ => &[],
    };
    let sources: Vec<&str> = COMMON.iter().chain(own).copied().collect();
    let is_cpp = |source: &&str| Path::new(source).extension().is_some_and(|e| e == "cpp");
    for (name, cpp) in [("mithril_ggml_c", false), ("mithril_ggml_cpp", true)] {
        let mut build = cc::Build::new();
        build.debug(false).cpp(cpp).std(if cpp { "c++17" } else { "c11" }).opt_level(3).warnings(false);
        build.include(ggml.join("include")).include(ggml.join("src")).include(ggml.join("src/ggml-cpu"));
        build.include(&out);
        flags(&mut build, &architecture);
        build.files(sources.iter().filter(|s| is_cpp(s) == cpp).map(|s| ggml.join("src").join(s)));
        build.compile(name);
    }
    println!("cargo::rustc-link-lib=static=mithril_ggml_c");
    println!("cargo::rustc-link-lib=pthread");
}

/// What is defined, and what the processor must have: on x86-64 AVX2, FMA, F16C and BMI2, which is checked before use.
fn flags(build: &mut cc::Build, architecture: &str) {
    build.define("NDEBUG", None).define("_GNU_SOURCE", None).define("GGML_SCHED_MAX_COPIES", "4");
    build.define("GGML_USE_CPU", None).define("GGML_USE_CPU_REPACK", None).define("GGML_USE_LLAMAFILE", None);
    // Nothing but the entry point of the extension module is to be seen: another ggml may live in the process.
    build.flag_if_supported("-fvisibility=hidden").flag_if_supported("-ffunction-sections");
    if architecture == "x86_64" {
        for flag in ["-mavx2", "-mfma", "-mf16c", "-mbmi2"] {
            build.flag_if_supported(flag);
        }
    }
}

/// The folder of the package of the sources.
fn carrier() -> PathBuf {
    let manifest =
        Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where")).join("Cargo.toml");
    let cargo = env::var_os("CARGO").expect("cargo says who it is");
    let metadata = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version=1", "--manifest-path"])
        .arg(&manifest)
        .output()
        .expect("cargo runs");
    assert!(metadata.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let package = packages.iter().find(|p| p["name"] == CARRIER).expect("the package is in the lock file");
    let path = package["manifest_path"].as_str().expect("a path");
    Path::new(path).parent().expect("a manifest lies in a folder").to_owned()
}
