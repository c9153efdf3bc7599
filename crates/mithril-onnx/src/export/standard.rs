//! What the ONNX standard says about the ops that lowerings use: since which opset they are what is meant, of which
//! dtypes their tensors may be, and of which their outputs are.
//!
//! Where the standard, or what implements it widely, lacks a dtype, the tensors are converted to a wider one that holds
//! the same numbers, and the result back: integers wrap around as they would.

use mithril_ir::DType;

/// The dtype of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    /// That of the constrained inputs.
    Same,
    /// That of input number `0`, whatever it is.
    Of(usize),
    /// This one.
    Is(DType),
    /// What the attribute `to` says.
    To,
}

/// An op of ONNX.
#[derive(Clone, Copy, Debug)]
pub struct Standard {
    /// Name.
    pub name: &'static str,
    /// The opset of its newest form that is used.
    pub since: i64,
    /// Dtypes of the constrained inputs; nothing: any.
    pub dtypes: &'static [DType],
    /// Which inputs are constrained, and of one dtype: a bit for each.
    pub inputs: u8,
    /// Its outputs.
    pub outputs: &'static [Out],
}

use DType::{BF16, Bool, F16, F32, F64, I8, I32, I64, U8};
use Out::{Is, Of, Same, To};

const ANY: &[DType] = &[];
const FLOATS: &[DType] = &[F16, BF16, F32, F64];
/// Ops that know bfloat16 only since opset 22.
const COMMON: &[DType] = &[F16, F32, F64];
const NUMBERS: &[DType] = &[F16, BF16, F32, F64, I32, I64];
const COMMON_NUMBERS: &[DType] = &[F16, F32, F64, I32, I64];
const TRUTH: &[DType] = &[Bool];
const WHOLE: &[DType] = &[I32, I64, U8, DType::U64];
/// Ops of integers that wrap around, whose bits do not depend on the sign.
const MODULAR: &[&str] = &["Add", "CumSum", "Equal", "MatMul", "Mul", "ReduceSum", "Sub", "Where"];
const ALL: u8 = 0xff;

const fn op(
    name: &'static str,
    since: i64,
    dtypes: &'static [DType],
    inputs: u8,
    outputs: &'static [Out],
) -> Standard {
    Standard { name, since, dtypes, inputs, outputs }
}

/// Elementwise, of one dtype.
const fn map(name: &'static str, dtypes: &'static [DType]) -> Standard {
    op(name, 14, dtypes, ALL, &[Same])
}

/// A test of elements.
const fn test(name: &'static str, dtypes: &'static [DType]) -> Standard {
    op(name, 14, dtypes, ALL, &[Is(Bool)])
}

static OPS: &[Standard] = &[
    map("Abs", NUMBERS),
    map("Acos", COMMON),
    map("Acosh", COMMON),
    map("Add", NUMBERS),
    test("And", TRUTH),
    op("ArgMax", 13, &[F16, F32, F64, I32, I64], 1, &[Is(I64)]),
    op("ArgMin", 13, &[F16, F32, F64, I32, I64], 1, &[Is(I64)]),
    map("Asin", COMMON),
    map("Asinh", COMMON),
    map("Atan", COMMON),
    map("Atanh", COMMON),
    op("Attention", 23, FLOATS, 7, &[Same]),
    op("AveragePool", 11, COMMON, 1, &[Same]),
    op("BatchNormalization", 15, FLOATS, ALL, &[Same]),
    op("BitShift", 11, &[DType::U32, DType::U64, U8], ALL, &[Same]),
    op("BitwiseAnd", 18, WHOLE, ALL, &[Same]),
    op("BitwiseNot", 18, WHOLE, ALL, &[Same]),
    op("BitwiseOr", 18, WHOLE, ALL, &[Same]),
    op("BitwiseXor", 18, WHOLE, ALL, &[Same]),
    op("Cast", 13, ANY, 0, &[To]),
    map("Ceil", FLOATS),
    map("Celu", &[F32]),
    map("Clip", NUMBERS),
    op("Concat", 13, ANY, ALL, &[Of(0)]),
    op("Conv", 11, COMMON, ALL, &[Same]),
    op("ConvTranspose", 11, COMMON, ALL, &[Same]),
    map("Cos", COMMON),
    map("Cosh", COMMON),
    op("CumSum", 14, NUMBERS, 1, &[Same]),
    op("DequantizeLinear", 13, ANY, 0, &[Of(1)]),
    op("Det", 11, COMMON, 1, &[Same]),
    map("Div", NUMBERS),
    map("Elu", COMMON),
    test("Equal", &[Bool, F16, BF16, F32, F64, I32, I64]),
    map("Erf", FLOATS),
    map("Exp", FLOATS),
    op("Expand", 13, ANY, 0, &[Of(0)]),
    map("Floor", FLOATS),
    op("Gather", 13, ANY, 0, &[Of(0)]),
    op("GatherElements", 13, ANY, 0, &[Of(0)]),
    op("GatherND", 13, ANY, 0, &[Of(0)]),
    op("Gelu", 20, &[F16, BF16, F32], ALL, &[Same]),
    op("Gemm", 13, FLOATS, ALL, &[Same]),
    test("Greater", NUMBERS),
    test("GreaterOrEqual", NUMBERS),
    op("GridSample", 20, COMMON, 3, &[Same]),
    map("HardSigmoid", COMMON),
    map("HardSwish", &[F16, F32]),
    op("Identity", 14, ANY, 0, &[Of(0)]),
    op("InstanceNormalization", 6, COMMON, ALL, &[Same]),
    test("IsInf", &[F32, F64]),
    test("IsNaN", FLOATS),
    op("LayerNormalization", 17, FLOATS, ALL, &[Same]),
    map("LeakyRelu", FLOATS),
    test("Less", NUMBERS),
    test("LessOrEqual", NUMBERS),
    map("Log", FLOATS),
    op("LogSoftmax", 13, FLOATS, 1, &[Same]),
    op("MatMul", 13, NUMBERS, ALL, &[Same]),
    map("Max", NUMBERS),
    op("MaxPool", 12, COMMON, 1, &[Same]),
    map("Min", NUMBERS),
    op("Mish", 18, COMMON, ALL, &[Same]),
    map("Mod", NUMBERS),
    map("Mul", NUMBERS),
    map("Neg", NUMBERS),
    op("NonZero", 13, ANY, 0, &[Is(I64)]),
    test("Not", TRUTH),
    op("OneHot", 11, ANY, 0, &[Of(2)]),
    test("Or", TRUTH),
    map("PRelu", FLOATS),
    op("Pad", 18, ANY, 0, &[Of(0)]),
    op("Pow", 15, NUMBERS, 3, &[Same]),
    op("QuantizeLinear", 13, ANY, 0, &[Of(2)]),
    op("RMSNormalization", 23, FLOATS, ALL, &[Same]),
    op("Range", 11, &[F32, F64, I32, I64], ALL, &[Same]),
    map("Reciprocal", FLOATS),
    op("ReduceL1", 18, NUMBERS, 1, &[Same]),
    op("ReduceL2", 18, NUMBERS, 1, &[Same]),
    op("ReduceLogSumExp", 18, FLOATS, 1, &[Same]),
    op("ReduceMax", 18, COMMON_NUMBERS, 1, &[Same]),
    op("ReduceMean", 18, NUMBERS, 1, &[Same]),
    op("ReduceMin", 18, COMMON_NUMBERS, 1, &[Same]),
    op("ReduceProd", 18, NUMBERS, 1, &[Same]),
    op("ReduceSum", 13, NUMBERS, 1, &[Same]),
    map("Relu", FLOATS),
    op("Reshape", 14, ANY, 0, &[Of(0)]),
    op("Resize", 18, COMMON, 1, &[Same]),
    map("Round", COMMON),
    op("ScatterElements", 18, ANY, 0, &[Of(0)]),
    op("ScatterND", 18, ANY, 0, &[Of(0)]),
    map("Selu", COMMON),
    op("Shape", 15, ANY, 0, &[Is(I64)]),
    map("Sigmoid", FLOATS),
    map("Sign", NUMBERS),
    map("Sin", COMMON),
    map("Sinh", COMMON),
    op("Slice", 13, ANY, 0, &[Of(0)]),
    op("Softmax", 13, FLOATS, 1, &[Same]),
    map("Softplus", COMMON),
    map("Softsign", COMMON),
    map("Sqrt", FLOATS),
    op("Squeeze", 13, ANY, 0, &[Of(0)]),
    map("Sub", NUMBERS),
    map("Tan", COMMON),
    map("Tanh", FLOATS),
    op("TopK", 11, &[F16, F32, F64, I32, I64], 1, &[Same, Is(I64)]),
    op("Transpose", 13, ANY, 0, &[Of(0)]),
    op("Trilu", 14, ANY, 0, &[Of(0)]),
    op("Unsqueeze", 13, ANY, 0, &[Of(0)]),
    op("Where", 16, ANY, 6, &[Same]),
    test("Xor", TRUTH),
];

/// The op of this name.
pub fn find(name: &str) -> Option<&'static Standard> {
    OPS.binary_search_by(|op| op.name.cmp(name)).ok().map(|i| &OPS[i])
}

impl Standard {
    /// Whether input `i` is constrained.
    pub fn constrains(&self, i: usize) -> bool {
        i >= 8 && self.inputs == ALL || i < 8 && self.inputs >> i & 1 == 1
    }
    /// The dtype in which the op is computed on tensors of `dtype`: the same, or one that holds its numbers.
    pub fn computed_as(&self, dtype: DType) -> Option<DType> {
        let fits = |d: &DType| self.dtypes.is_empty() || self.dtypes.contains(d);
        let wider: &[DType] = match dtype {
            Bool => &[U8, I32, F32],
            U8 | I8 | DType::I16 | DType::U16 => &[I32, I64, F32, F64],
            I32 | DType::U32 => &[I64, F64],
            F16 | BF16 => &[F32],
            F32 => &[F64],
            // The bits of the result are the same.
            DType::U64 if MODULAR.contains(&self.name) => &[I64],
            DType::U64 | I64 | F64 => &[],
        };
        [dtype].iter().chain(wider).copied().find(fits)
    }
}

/// The number that ONNX gives a dtype.
pub fn number(dtype: DType) -> i32 {
    match dtype {
        F32 => 1,
        U8 => 2,
        I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        I32 => 6,
        I64 => 7,
        Bool => 9,
        F16 => 10,
        F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        BF16 => 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_complete() {
        assert!(OPS.is_sorted_by_key(|op| op.name));
        let add = find("Add").unwrap();
        assert_eq!(add.computed_as(I8), Some(I32));
        assert_eq!(add.computed_as(DType::U32), Some(I64));
        assert_eq!(add.computed_as(F64), Some(F64));
        assert_eq!(find("Sin").unwrap().computed_as(BF16), Some(F32));
        assert!(find("add").is_none());
        for &dtype in DType::ALL {
            assert_eq!(crate::tensor::dtype(number(dtype)).unwrap(), dtype);
        }
    }
}
