//! Compiles ggml (the core, the scheduler and the backend of the CPU) from the sources that the pinned package
//! `llama-cpp-sys-2` carries. That package itself is never built: it would need cmake and libclang.
//!
//! On x86-64 with Linux the backend of the CPU is compiled once for each of several instruction sets (`Variant`), of which
//! `src/processor.rs` chooses one.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package of the sources.
const CARRIER: &str = "llama-cpp-sys-2";

/// What is compiled once, for any processor of the architecture, below `ggml/src`.
const CORE: &[&str] = &[
    "ggml.c",
    "ggml-alloc.c",
    "ggml-quants.c",
    "ggml.cpp",
    "ggml-backend.cpp",
    "ggml-backend-meta.cpp",
    "ggml-backend-reg.cpp",
    "ggml-backend-dl.cpp",
    "ggml-threading.cpp",
];

/// The backend of the CPU, which is compiled for each instruction set.
const CPU: &[&str] = &[
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

/// A set of instructions that the backend of the CPU is compiled for. `src/processor.rs` checks that a processor has
/// them.
struct Variant {
    /// The name by which it is chosen, which also begins its symbols: letters and digits.
    name: &'static str,
    flags: &'static [&'static str],
    optimization: u32,
}

const SSE42: Variant = Variant { name: "sse42", flags: &["-msse4.2"], optimization: 1 };
const AVX2: Variant =
    Variant { name: "avx2", flags: &["-mavx2", "-mfma", "-mf16c", "-mbmi2"], optimization: 3 };
const AVX512: Variant = Variant {
    name: "avx512",
    flags: &[
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mbmi2",
        "-mavx512f",
        "-mavx512cd",
        "-mavx512vl",
        "-mavx512dq",
        "-mavx512bw",
        "-mavx512vnni",
    ],
    optimization: 3,
};
/// What every processor of the architecture has.
const PLAIN: Variant = Variant { name: "plain", flags: &[], optimization: 3 };

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=Cargo.toml");
    println!("cargo::rerun-if-changed=src/variants.c");
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
    let cpu: Vec<PathBuf> = CPU.iter().chain(own).map(|s| ggml.join("src").join(s)).collect();
    let core: Vec<PathBuf> = CORE.iter().map(|s| ggml.join("src").join(s)).collect();
    let compiler = Compiler { ggml, out: out.clone() };

    let renaming = Renaming::of(&compiler);
    let variants = match (architecture.as_str(), &renaming) {
        ("x86_64", Some(_)) => vec![SSE42, AVX2, AVX512],
        ("x86_64", None) => vec![AVX2],
        _ => vec![PLAIN],
    };
    let mut c_objects = Vec::new();
    let mut cpp_objects = Vec::new();
    for variant in &variants {
        let mut objects = compiler.objects(&cpu, variant);
        if let Some(renaming) = renaming.as_ref().filter(|_| variants.len() > 1) {
            renaming.separate(&mut objects, &out.join(variant.name), &format!("mithril_{}_", variant.name));
        }
        c_objects.extend(objects.c);
        cpp_objects.extend(objects.cpp);
    }
    // One variant is for the processors that it is compiled for, and so is what it calls.
    let shared = if variants.len() > 1 { &PLAIN } else { &variants[0] };
    let names: Vec<&str> = variants.iter().map(|v| v.name).collect();
    let list: Vec<String> = names.iter().map(|name| format!("X({name})")).collect();
    let mut header = format!("#define VARIANTS {}\n", list.join(" "));
    if variants.len() > 1 {
        header += "#define HAS_SEVERAL_VARIANTS\n";
    }
    std::fs::write(out.join("variants-list.h"), header).expect("OUT_DIR can be written");
    for (name, is_cpp, objects) in
        [("mithril_ggml_c", false, c_objects), ("mithril_ggml_cpp", true, cpp_objects)]
    {
        let mut build = compiler.build(is_cpp, shared);
        build.files(core.iter().filter(|path| is_cpp_source(path) == is_cpp)).objects(objects);
        if !is_cpp {
            build.file("src/variants.c");
        }
        build.compile(name);
    }
    println!("cargo::rustc-env=MITHRIL_GGML_VARIANTS={}", names.join(" "));
    println!("cargo::rustc-link-lib=static=mithril_ggml_c");
    println!("cargo::rustc-link-lib=pthread");
}

fn is_cpp_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "cpp")
}

/// How ggml is compiled.
struct Compiler {
    ggml: PathBuf,
    out: PathBuf,
}

/// Compiled sources.
struct Objects {
    c: Vec<PathBuf>,
    cpp: Vec<PathBuf>,
}

impl Compiler {
    fn build(&self, is_cpp: bool, variant: &Variant) -> cc::Build {
        let mut build = cc::Build::new();
        build.debug(false).cpp(is_cpp).std(if is_cpp { "c++17" } else { "c11" }).warnings(false);
        build.opt_level(variant.optimization);
        for folder in ["include", "src", "src/ggml-cpu"] {
            build.include(self.ggml.join(folder));
        }
        build.include(&self.out);
        build.define("NDEBUG", None).define("_GNU_SOURCE", None).define("GGML_SCHED_MAX_COPIES", "4");
        build.define("GGML_USE_CPU", None).define("GGML_USE_CPU_REPACK", None);
        build.define("GGML_USE_LLAMAFILE", None);
        // Nothing but the entry point of the extension module is to be seen: another ggml may live in the process.
        build.flag_if_supported("-fvisibility=hidden").flag_if_supported("-ffunction-sections");
        for flag in variant.flags {
            build.flag_if_supported(flag);
        }
        build
    }
    fn objects(&self, sources: &[PathBuf], variant: &Variant) -> Objects {
        let folder = self.out.join(variant.name);
        let compile = |is_cpp: bool| {
            let mut build = self.build(is_cpp, variant);
            build.out_dir(&folder).files(sources.iter().filter(|path| is_cpp_source(path) == is_cpp));
            build.compile_intermediates()
        };
        Objects { c: compile(false), cpp: compile(true) }
    }
}

/// The programs that give the symbols of a variant names of its own.
///
/// The linker keeps one of several definitions of an inline function or an instance of a template, those of the C++
/// library included: that of any variant, which a processor might not be able to execute. With names of their own,
/// variants have nothing in common.
struct Renaming {
    objcopy: PathBuf,
    nm: PathBuf,
}

impl Renaming {
    /// Where the compiler looks for them; `None` where there are none, or where objects are not those of Linux.
    fn of(compiler: &Compiler) -> Option<Self> {
        if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os != "linux") {
            return None;
        }
        let compiler = compiler.build(false, &PLAIN).get_compiler();
        let find = |name: &str| {
            let printed = compiler.to_command().arg(format!("-print-prog-name={name}")).output().ok()?;
            let path = PathBuf::from(String::from_utf8(printed.stdout).ok()?.trim());
            let works = Command::new(&path).arg("--version").output().is_ok_and(|done| done.status.success());
            works.then_some(path)
        };
        let tools = find("objcopy").zip(find("nm"));
        if tools.is_none() {
            println!("cargo::warning=ggml is compiled for AVX2 alone: objcopy and nm are not installed");
        }
        tools.map(|(objcopy, nm)| Self { objcopy, nm })
    }
    /// Begins the names of all symbols that the objects define with a prefix, wherever they occur in them.
    fn separate(&self, objects: &mut Objects, folder: &Path, prefix: &str) {
        let all = || objects.c.iter().chain(&objects.cpp);
        let listed = Command::new(&self.nm).args(["--defined-only", "--format=posix"]).args(all()).output();
        let listed = listed.expect("nm runs");
        assert!(listed.status.success(), "nm: {}", String::from_utf8_lossy(&listed.stderr));
        let text = String::from_utf8(listed.stdout).expect("symbols are ASCII");
        // Lines without a second word name the file.
        let names = text.lines().filter_map(|line| line.split_once(' ').map(|(name, _)| name));
        let names: BTreeSet<&str> = names.filter(|name| !name.starts_with('.')).collect();
        assert!(names.contains("ggml_backend_cpu_reg"), "nm does not list what is defined");
        let list: Vec<String> = names.iter().map(|name| format!("{name} {prefix}{name}\n")).collect();
        let path = folder.join("renamed.txt");
        std::fs::write(&path, list.concat()).expect("OUT_DIR can be written");
        for object in objects.c.iter_mut().chain(&mut objects.cpp) {
            let name = object.file_name().expect("an object is a file").to_string_lossy();
            let renamed = folder.join(format!("{prefix}{name}"));
            let mut command = Command::new(&self.objcopy);
            command.arg(format!("--redefine-syms={}", path.display())).arg(&*object).arg(&renamed);
            assert!(command.status().is_ok_and(|status| status.success()), "{command:?} fails");
            *object = renamed;
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
