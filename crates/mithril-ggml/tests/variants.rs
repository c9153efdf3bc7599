//! What was compiled for a set of instructions is never executed by a processor that lacks them.
//!
//! The archives that `build.rs` wrote are read with `nm` and `objdump`, and products are computed with each variant, and in
//! QEMU as on processors with less. A test is skipped where its programs are not installed.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use mithril_codegen::ggml::{Element, Type};
use mithril_ggml::{Argument, Context};

/// Which instructions an object may contain: those of its variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// Those that every processor has, and SSE4.2.
    Sse,
    Avx2,
    Avx512,
}

/// An archive, and the member in it.
struct Object {
    name: String,
    text: String,
}

fn archives() -> Vec<PathBuf> {
    let folder = Path::new(env!("OUT_DIR"));
    ["c", "cpp"].map(|language| folder.join(format!("libmithril_ggml_{language}.a"))).to_vec()
}

/// What a program prints about the objects in the archives; `None` where there is no such program.
fn printed(program: &str, arguments: &[&str]) -> Option<Vec<Object>> {
    let mut objects = Vec::new();
    for archive in archives() {
        let done = Command::new(program).args(arguments).arg(&archive).output().ok()?;
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let mut name = String::new();
        let mut lines = String::new();
        for line in text.lines() {
            // `objdump` names a member as `name.o:     file format elf64-x86-64`, `nm` as `archive.a[name.o]:`.
            let member = line.replace(".o]:", ".o:");
            let member = member.split_once(".o:").filter(|(name, _)| !name.contains(' '));
            let member = member.map(|(name, rest)| (name.rsplit('[').next().unwrap_or(name), rest));
            if let Some((member, _)) = member {
                objects.push(Object { name: std::mem::replace(&mut name, member.into()), text: lines });
                lines = String::new();
            } else {
                lines += line;
                lines += "\n";
            }
        }
        objects.push(Object { name, text: lines });
    }
    objects.retain(|object| !object.name.is_empty());
    assert!(objects.len() > 20, "{program} lists {} objects", objects.len());
    Some(objects)
}

/// The variant that an object belongs to.
fn variant(object: &Object) -> Option<&'static str> {
    env!("MITHRIL_GGML_VARIANTS").split(' ').find(|name| object.name.starts_with(&format!("mithril_{name}_")))
}

/// The least processor that executes an instruction, by its registers.
fn level(instruction: &str) -> Level {
    // AVX-512 alone has registers of 512 bits, masks, and more than 16 registers.
    let is_high = |register: &str| {
        let digits: String = register.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().is_ok_and(|number| number > 15)
    };
    let has_high = |kind: &str| instruction.split(kind).skip(1).any(is_high);
    let has_mask = instruction.split("%k").skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if instruction.contains("%zmm") || has_mask || has_high("%ymm") || has_high("%xmm") {
        return Level::Avx512;
    }
    // Names of all others that came with AVX begin with `v`: `verr` and `verw`, of the system, do not occur.
    if instruction.trim_start().starts_with('v') { Level::Avx2 } else { Level::Sse }
}

#[test]
fn instructions_are_told_by_their_registers() {
    for (text, expected) in [
        ("addps  %xmm1,%xmm15", Level::Sse),
        ("vaddps %ymm1,%ymm15,%ymm0", Level::Avx2),
        ("vaddps %ymm1,%ymm16,%ymm0", Level::Avx512),
        ("vpdpbusd %xmm31,%xmm1,%xmm0", Level::Avx512),
        ("kmovd  %k1,%eax", Level::Avx512),
        ("vaddps %zmm1,%zmm2,%zmm0", Level::Avx512),
    ] {
        assert_eq!(level(text), expected, "{text}");
    }
}

#[test]
fn variants_have_no_symbol_in_common() {
    let several = env!("MITHRIL_GGML_VARIANTS").contains(' ');
    let (true, Some(objects)) = (several, printed("nm", &["--format=posix"])) else { return };
    let mut count = 0;
    for object in &objects {
        let own = variant(object).map(|name| format!("mithril_{name}_"));
        for line in object.text.lines() {
            let mut words = line.split(' ');
            let (Some(name), Some(kind)) = (words.next(), words.next()) else { continue };
            if name.starts_with('.') || name == "_GLOBAL_OFFSET_TABLE_" {
                continue;
            }
            let is_defined = !matches!(kind, "U" | "w" | "v");
            let of_variant = name.starts_with("mithril_") && name != "mithril_ggml_choose";
            count += usize::from(of_variant && is_defined);
            match &own {
                // Definitions, weak ones too, have names of their own, and what is used is of this variant or of none.
                Some(own) => {
                    let is_own = name.starts_with(own);
                    assert!(is_own || !is_defined, "{} defines {name}", object.name);
                    assert!(is_own || !of_variant, "{} uses {name}", object.name);
                }
                None => assert!(
                    !of_variant || (!is_defined && object.name.ends_with("variants")),
                    "{} is of no variant and refers to {name}",
                    object.name
                ),
            }
        }
    }
    assert!(count > 1000, "only {count} symbols of variants");
}

#[test]
fn objects_contain_the_instructions_of_their_variant() {
    let several = env!("MITHRIL_GGML_VARIANTS").contains(' ');
    let arguments = ["--disassemble", "--no-show-raw-insn", "--section-headers"];
    let (true, Some(objects)) = (several, printed("objdump", &arguments)) else { return };
    let mut highest = Level::Sse;
    for object in &objects {
        let most = match variant(object) {
            None | Some("sse42") => Level::Sse,
            Some("avx2") => Level::Avx2,
            Some(_) => Level::Avx512,
        };
        // Constructors would run when the module is loaded, before anything is chosen.
        let has_constructors = object.text.contains(" .init_array") || object.text.contains(" .ctors");
        assert!(variant(object).is_none() || !has_constructors, "{} runs when it is loaded", object.name);
        for line in object.text.lines() {
            let Some((_, instruction)) = line.split_once(":\t") else { continue };
            let level = level(instruction);
            highest = highest.max(level);
            assert!(level <= most, "{}: {instruction}", object.name);
        }
    }
    assert_eq!(highest, Level::Avx512);
}

/// Columns of the weights: two of the longest blocks.
const COLUMNS: usize = 512;
const ROWS: usize = 24;
/// Types of weights whose blocks are quick to find.
const ELEMENTS: &[Element] = &[
    Element::F32,
    Element::F16,
    Element::BF16,
    Element::Q8_0,
    Element::Q4_0,
    Element::Q4_1,
    Element::Q5_0,
    Element::Q5_1,
    Element::Q2_K,
    Element::Q3_K,
    Element::Q4_K,
    Element::Q5_K,
    Element::Q6_K,
    Element::IQ4_NL,
    Element::IQ4_XS,
];

/// Products of weights, whose rows may be interleaved, with so many columns of numbers, on one thread.
fn product(element: Element, weights: &[u8], is_repacked: bool, numbers: &[f32]) -> Vec<f32> {
    let count = (numbers.len() / COLUMNS) as i64;
    let mut context = Context::new().expect("a processor");
    let kept = Type::contiguous(element, [COLUMNS as i64, ROWS as i64, 1, 1]);
    let a = if is_repacked { context.repacked_leaf(&kept) } else { context.leaf(&kept) }.expect("a leaf");
    let b = context.leaf(&Type::contiguous(Element::F32, [COLUMNS as i64, count, 1, 1])).expect("a leaf");
    let c = context.call("ggml_mul_mat", &[Argument::Tensor(a), Argument::Tensor(b)]).expect("a call");
    let mut graph = context.finish(&[c]).expect("a graph");
    let memory = |bytes: usize| vec![[0_u32; 16]; bytes / 64 + 2];
    let start = |m: &mut Vec<[u32; 16]>| {
        let start = m.as_mut_ptr().cast::<u8>();
        start.wrapping_add(start.align_offset(64)).cast::<std::ffi::c_void>()
    };
    let (mut arena, mut work) = (memory(graph.bytes()), memory(graph.work_bytes(1)));
    let mut out = vec![0.0_f32; ROWS * count as usize];
    let leaves = [weights.as_ptr().cast_mut().cast(), numbers.as_ptr().cast_mut().cast()];
    let outputs = [out.as_mut_ptr().cast()];
    // SAFETY: vectors with room for each tensor, and for what the graph asks for.
    unsafe { graph.compute(&leaves, &outputs, start(&mut arena), start(&mut work), None) }.expect("computed");
    out
}

/// Runs on every variant below. What is multiplied with the weights is exact in 8 bits, in every type of blocks: whole
/// numbers up to 127, which each block holds.
#[test]
fn products_are_those_of_the_dequantized_weights() {
    let mut random = 1_u32;
    let mut next = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as f32 / 8_388_608.0 - 1.0
    };
    let values: Vec<f32> = (0..ROWS * COLUMNS).map(|_| next()).collect();
    let numbers: Vec<f32> =
        (0..ROWS * COLUMNS).map(|i| if i % 32 == 0 { 127.0 } else { (next() * 126.0).round() }).collect();
    for &element in ELEMENTS {
        let mut packed = vec![0; mithril_ggml::bytes(element, ROWS, COLUMNS).expect("whole blocks")];
        if element == Element::F32 {
            packed = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        } else {
            mithril_ggml::quantize(element, &values, COLUMNS, None, &mut packed).expect("quantized");
        }
        let mut weights = vec![0.0; values.len()];
        mithril_ggml::dequantize(element, &packed, &mut weights).expect("dequantized");
        let kept = Type::contiguous(element, [COLUMNS as i64, ROWS as i64, 1, 1]);
        let mut orders = vec![(false, packed.clone())];
        if mithril_ggml::can_repack(&kept).expect("a processor") {
            mithril_ggml::repack(&kept, &mut packed).expect("interleaved");
            assert_ne!(orders[0].1, packed, "{element}");
            orders.push((true, packed));
        }
        // A vector, and a matrix, which have kernels of their own; 3 and 7 columns are no multiple of theirs.
        for (count, (is_repacked, packed)) in
            [1, 3, 7, ROWS].into_iter().flat_map(|n| orders.iter().map(move |o| (n, o)))
        {
            let actual = product(element, packed, *is_repacked, &numbers[..count * COLUMNS]);
            for (i, actual) in actual.iter().enumerate() {
                let (row, column) = (i % ROWS, i / ROWS);
                let terms = || {
                    let row = &weights[row * COLUMNS..][..COLUMNS];
                    row.iter().zip(&numbers[column * COLUMNS..]).map(|(a, b)| f64::from(*a) * f64::from(*b))
                };
                let (sum, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
                let error = (f64::from(*actual) - sum).abs() / size;
                assert!(
                    error < 1e-6,
                    "{element}, interleaved: {is_repacked}, {count} columns, row {row}: {actual} is not {sum}"
                );
            }
        }
    }
}

/// Runs the test above with a variant: on this processor, or as on another.
fn run(variant: &str, emulator: &[&str]) {
    let own = std::env::current_exe().expect("this program is a file");
    let words: Vec<&OsStr> = emulator.iter().map(OsStr::new).chain([own.as_os_str()]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["--exact", "products_are_those_of_the_dequantized_weights"]);
    let done = command.env("MITHRIL_GGML_CPU", variant).output().expect("the program is there");
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    let lacks = text.contains("the processor lacks it");
    assert!(text.contains("1 passed") || (lacks && emulator.is_empty()), "{variant} {emulator:?}: {text}");
}

#[test]
fn every_variant_computes_the_same() {
    for variant in env!("MITHRIL_GGML_VARIANTS").split(' ') {
        run(variant, &[]);
    }
}

#[test]
fn older_processors_execute_what_is_chosen_for_them() {
    let several = env!("MITHRIL_GGML_VARIANTS").contains(' ');
    // QEMU emulates AVX2 since version 7.2, and does not emulate AVX-512: it ends a program that uses it.
    for model in ["Nehalem", "Haswell"] {
        let probe = Command::new("qemu-x86_64").args(["-cpu", model, "/bin/true"]).output();
        let emulates = probe.is_ok_and(|done| {
            done.status.success()
                && (model == "Nehalem" || !String::from_utf8_lossy(&done.stderr).contains("avx2"))
        });
        if several && emulates {
            run("", &["qemu-x86_64", "-cpu", model]);
        }
    }
}
