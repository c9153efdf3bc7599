//! Every elementwise op in C, on numbers from everywhere: NaN, infinities, subnormal numbers, the ends of integers.
//!
//! One program contains all ops for all dtypes. It is compiled with the flags of the target, and once more with the
//! sanitizer for undefined behavior; the interpreter says what has to come out.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use mithril_codegen::c::{FLAGS, Options, Request, can_lower, emit};
use mithril_ir::dtype::Kind;
use mithril_ir::lowering::LoweringRule;
use mithril_ir::op::{PortKind, ShapeRule, Tolerance};
use mithril_ir::ops::elementwise::{CAST, POWER};
use mithril_ir::ops::{all, find};
use mithril_ir::random::words;
use mithril_ir::tensor::Scalar;
use mithril_ir::{Builder, DType, Graph, Lit, OpDef, Role, Shape, Tensor, TensorType, ValueId, interp};

const SANITIZER: &[&str] = &[
    "-O1",
    "-ffp-contract=off",
    "-fsanitize=undefined",
    "-fsanitize=float-cast-overflow",
    "-fno-sanitize-recover=all",
];

/// Elements of each input.
const COUNT: usize = 4096;

/// Dtypes of operands. Halves are computed as float32.
const DTYPES: &[DType] = &[DType::F32, DType::F64, DType::I64, DType::I32, DType::I8, DType::U8, DType::Bool];

/// Numbers of all sizes, with what is special first; `stream` tells apart inputs.
fn numbers(dtype: DType, stream: i64) -> Tensor {
    let mut random = words([7, stream]);
    let mut word = || random.next().unwrap_or(0);
    let special: &[f64] = &[
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        2.0,
        3.0,
        -3.0,
        10.0,
        64.0,
        100.0,
        -100.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e-45,
        1e-40,
        f32::MIN_POSITIVE as f64,
        f32::MAX as f64,
        16_777_217.0,
        65_504.0,
        65_520.0,
        1e30,
        -1e30,
        0.1,
        88.7,
        -87.4,
        -103.9,
    ];
    Tensor::build(dtype, &[COUNT], |i| {
        let (a, b) = (word(), word());
        let pick = if stream % 2 == 0 { i % special.len() } else { i / special.len() };
        if dtype.is_float() {
            return Scalar::Float(match i {
                0..1024 => special[pick],
                1024..2048 => f64::from(f32::from_bits(a)),
                2048..3072 => f64::from(b as i32) / f64::from(1_u32 << 27),
                _ => f64::from(a as i32) / f64::from(1_u32 << 30),
            });
        }
        let wide = (i64::from(a) << 32) | i64::from(b);
        let ends =
            [0, 1, -1, 2, -2, 7, 63, 64, i64::MAX, i64::MIN, 127, -128, 31, i64::from(i32::MIN), 255, 5];
        Scalar::from(match i {
            0..256 => ends[if stream % 2 == 0 { i % 16 } else { i / 16 }],
            256..2048 => wide,
            _ => wide % 20,
        })
    })
}

/// Angles up to 8192, for which sines are computed in a quicker way, with those that are nearest to quarter turns.
fn angles() -> Tensor {
    let mut random = words([7, 3]);
    Tensor::build(DType::F32, &[COUNT], |i| {
        let word = random.next().unwrap_or(0);
        let x = match i {
            0..2048 => f32::from_bits(0x2000_0000 + word % 0x2600_0001),
            _ => (f64::from(word % 5216) * std::f64::consts::FRAC_PI_2) as f32,
        };
        Scalar::Float(f64::from(if word >> 31 == 0 { x } else { -x }))
    })
}

/// All numbers of a half precision.
fn halves(dtype: DType) -> Tensor {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    Tensor::from_bytes(dtype, vec![1 << 16], &bytes).unwrap()
}

/// What lies in the middle between a number of half precision and the next, and a little beside that.
fn ties(half: DType, dtype: DType) -> Tensor {
    let all = halves(half).to_f64s();
    let beside = if dtype == DType::F32 { 2.0_f64.powi(-23) } else { 2.0_f64.powi(-40) };
    Tensor::build(dtype, &[1 << 16], |i| {
        let middle = all[i].midpoint(all[i ^ 1]);
        Scalar::Float(middle * (1.0 + beside * (i / 2 % 3) as f64 - beside))
    })
}

/// A graph of everything, and its ops, one for each output.
struct Everything {
    graph: Graph,
    inputs: Vec<Arc<Tensor>>,
    rows: Vec<&'static OpDef>,
}

fn is_elementwise(op: &OpDef) -> bool {
    let is_shaped = matches!(op.shape, ShapeRule::Same | ShapeRule::Broadcast);
    is_shaped && op.loops.is_none() && !matches!(op.lowering.c, LoweringRule::None) && op.outputs.len() == 1
}

/// The arguments of an op on tensors of one dtype; `None` if it takes others.
fn arguments(
    b: &mut Builder,
    op: &OpDef,
    dtype: DType,
    tensors: [ValueId; 2],
    condition: ValueId,
) -> Option<Vec<ValueId>> {
    let mut next = 0;
    let mut argument = |port: &mithril_ir::op::Port| match port.kind {
        PortKind::Tensor(kinds) if kinds.has(dtype.kind()) => {
            next += 1;
            Some(tensors[(next - 1) % 2])
        }
        PortKind::Tensor(kinds) if kinds.has(Kind::Bool) => Some(condition),
        PortKind::Attr(_) => port.default.lit().map(|lit| b.lit(lit)),
        _ => None,
    };
    op.ports.iter().map(&mut argument).collect()
}

impl Everything {
    fn new() -> Self {
        let mut b = Builder::default();
        let mut inputs = Vec::new();
        let mut input = |b: &mut Builder, tensor: Tensor| {
            let ty = TensorType { dtype: tensor.dtype(), shape: Shape::of(tensor.shape().iter().copied()) };
            inputs.push(Arc::new(tensor));
            b.graph.add_input(format!("x{}", inputs.len()), Role::Data, ty)
        };
        let pairs: Vec<(DType, [ValueId; 2])> =
            DType::ALL.iter().map(|&d| (d, [0, 1].map(|i| input(&mut b, numbers(d, i))))).collect();
        let mut casts = Vec::new();
        for half in [DType::F16, DType::BF16] {
            casts.push((input(&mut b, halves(half)), DType::F32));
            casts.extend([DType::F32, DType::F64].map(|d| (input(&mut b, ties(half, d)), half)));
        }
        let angles = input(&mut b, angles());
        let condition = pairs[0].1[0];
        let mut rows = Vec::new();
        let mut add = |b: &mut Builder, op: &'static OpDef, args: &[ValueId]| {
            // What promotes is tested in the dtype that it promotes to.
            let mut trial = Builder::extend(b.graph.clone(), DType::F32);
            let before = trial.graph.nodes().count();
            let is_one = trial.push(op, args).is_ok() && trial.graph.nodes().count() == before + 1;
            // Ops on integers without a lowering to C are expanded before.
            let is_float = |&v: &ValueId| b.graph.ty(v).is_some_and(|ty| ty.dtype.is_float());
            let has_lowering = || trial.graph.nodes().last().is_some_and(|(n, _)| can_lower(&trial.graph, n));
            if is_one && (args.first().is_some_and(is_float) || has_lowering()) {
                let y = b.push(op, args).unwrap()[0];
                b.graph.outputs.insert(format!("y{}", rows.len()).into(), y);
                rows.push(op);
            }
        };
        for name in ["sin", "cos", "tan"] {
            add(&mut b, find(name).unwrap(), &[angles]);
        }
        for (tensor, to) in casts {
            let to = b.lit(Lit::DType(to));
            add(&mut b, &CAST, &[tensor, to]);
        }
        for &(dtype, tensors) in &pairs {
            for &to in DType::ALL {
                let to = b.lit(Lit::DType(to));
                add(&mut b, &CAST, &[tensors[0], to]);
            }
            for op in all().filter(|op| DTYPES.contains(&dtype) && is_elementwise(op)) {
                if let Some(args) = arguments(&mut b, op, dtype, tensors, condition) {
                    add(&mut b, op, &args);
                }
            }
            for exponent in [-1.0, 2.0, 3.0, 0.5].into_iter().filter(|_| dtype == DType::F32) {
                let exponent = b.lit(exponent);
                add(&mut b, &POWER, &[tensors[0], exponent]);
            }
        }
        Self { graph: b.graph, inputs, rows }
    }
    /// Dtypes and numbers of elements of the outputs.
    fn outputs(&self) -> impl Iterator<Item = (DType, usize)> {
        let types = self.graph.outputs.values().filter_map(|&v| self.graph.ty(v));
        types.map(|ty| (ty.dtype, ty.shape[0].known().unwrap() as usize))
    }
    /// Writes the program: it reads the inputs and writes the outputs.
    fn write(&self, folder: &Path) {
        let options = Options { prefix: "all".into(), ..Options::default() };
        let source = emit(&self.graph, &Request { options, ..Request::default() }).unwrap();
        let sizes: Vec<String> = self.inputs.iter().map(|t| t.to_bytes().len().to_string()).collect();
        let outputs: Vec<String> =
            self.outputs().map(|(dtype, count)| (dtype.size() * count).to_string()).collect();
        let main = format!(
            "#include <stdio.h>\n#include <stdlib.h>\n\
             int main(void) {{\n  static const size_t in[] = {{{}}}, out[] = {{{}}};\n  \
             const void *inputs[{n}];\n  void *outputs[{m}];\n  \
             for (int i = 0; i < {n}; i++) {{\n    void *p = malloc(in[i]);\n    \
             if (fread(p, 1, in[i], stdin) != in[i]) return 1;\n    inputs[i] = p;\n  }}\n  \
             for (int i = 0; i < {m}; i++) outputs[i] = malloc(out[i]);\n  \
             void *arena = aligned_alloc(64, (all_arena_bytes(1) + 64) / 64 * 64);\n  \
             if (all_run(inputs, outputs, NULL, arena, NULL)) return 2;\n  \
             for (int i = 0; i < {m}; i++) fwrite(outputs[i], 1, out[i], stdout);\n  return 0;\n}}\n",
            sizes.join(", "),
            outputs.join(", "),
            n = sizes.len(),
            m = outputs.len(),
        );
        std::fs::write(folder.join("all.c"), source.c + &main).unwrap();
    }
    /// Compiles and runs it; what comes out.
    fn run(&self, folder: &Path, flags: &[&str]) -> Vec<Tensor> {
        let program = folder.join(format!("all{}", flags.len()));
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror"]).args(flags).arg(folder.join("all.c"));
        let built = cc.arg("-o").arg(&program).arg("-lm").output().unwrap();
        let errors = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{}", &errors[..errors.len().min(4000)]);
        let bytes: Vec<u8> = self.inputs.iter().flat_map(|t| t.to_bytes()).collect();
        std::fs::write(folder.join("inputs"), bytes).unwrap();
        let file = std::fs::File::open(folder.join("inputs")).unwrap();
        let ran = Command::new(&program).stdin(Stdio::from(file)).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let mut rest = ran.stdout.as_slice();
        let read = |(dtype, count): (DType, usize)| {
            let (own, others) = rest.split_at(dtype.size() * count);
            rest = others;
            Tensor::from_bytes(dtype, vec![count], own).unwrap()
        };
        self.outputs().map(read).collect()
    }
}

/// Units in the last place between two floats; 0 of two NaN.
fn distance(dtype: DType, actual: f64, expected: f64) -> f64 {
    if actual == expected || (actual.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    if !actual.is_finite() || !expected.is_finite() {
        return f64::INFINITY;
    }
    let (digits, least) = if dtype == DType::F32 { (23, -126) } else { (52, -1022) };
    let exponent = (expected.abs().log2().floor() as i32).max(least);
    (actual - expected).abs() / 2.0_f64.powi(exponent - digits)
}

/// Allowed error of an op in units.
fn allowed(op: &OpDef, expected: f64) -> f64 {
    match (op.tolerance, op.name) {
        // Products with an exponential that is subnormal itself.
        (_, "silu" | "mish" | "gelu") if expected.abs() < f64::from(f32::MIN_POSITIVE) => 128.0,
        (Tolerance::Exact, _) => 0.0,
        // The interpreter rounds once.
        (Tolerance::Rounded, _) | (_, "exp" | "log" | "tanh" | "erf" | "sin" | "cos") => 2.0,
        _ => 5.0,
    }
}

/// Errors above the limit: the op, the first index, and their number.
fn differences(all: &Everything, actual: &[Tensor], expected: &[Arc<Tensor>]) -> Vec<String> {
    let mut report = Vec::new();
    for (i, ((op, actual), expected)) in all.rows.iter().zip(actual).zip(expected).enumerate() {
        let dtype = expected.dtype();
        let off = |k: &usize| match (actual.get(*k), expected.get(*k)) {
            (Scalar::Float(a), Scalar::Float(b)) => distance(dtype, a, b) > allowed(op, b),
            (a, b) => a.int() != b.int(),
        };
        let wrong: Vec<usize> = (0..expected.len()).filter(off).collect();
        if let Some(&k) = wrong.first() {
            let node = all.graph.producer(all.graph.outputs[i]).unwrap();
            let args = all.graph.node(node).inputs.iter().filter_map(|v| {
                all.graph.inputs.iter().position(|input| input == v).map(|at| all.inputs[at].get(k))
            });
            let args: Vec<String> = args.map(|x| format!("{x:?}")).collect();
            let (actual, expected) = (actual.get(k), expected.get(k));
            let name = format!("{} of {}", op.name, args.join(", "));
            report.push(format!("{name} is {actual:?}, not {expected:?} ({dtype}; {} places)", wrong.len()));
        }
    }
    report
}

#[test]
fn rows_in_c_are_what_the_interpreter_says() {
    let all = Everything::new();
    for name in ["exp", "gelu", "where", "left_shift", "atan2", "floor_divide", "softplus", "isnan"] {
        assert!(all.rows.iter().any(|op| *op == find(name).unwrap()), "{name} is not tested");
    }
    let expected = interp::run(&all.graph, &all.inputs).unwrap();
    let folder = tempfile::tempdir().unwrap();
    all.write(folder.path());
    let usual = [FLAGS, &["-march=native"]].concat();
    for flags in [&usual, SANITIZER] {
        let report = differences(&all, &all.run(folder.path(), flags), &expected);
        assert!(report.is_empty(), "with {flags:?}:\n{}", report.join("\n"));
    }
}
