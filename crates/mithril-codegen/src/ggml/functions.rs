//! The functions of ggml that are called: what each takes, what it would assert, and what it returns.
//!
//! ggml ends the process where an assertion fails, when a graph is built or when it runs. [`Function::check`] says the
//! same before, as an error; nothing calls ggml without it. The checks are those of `ggml.c` (builders) and
//! `ggml-cpu/*` (kernels) together, for tensors in the memory of this machine.

use super::shapes;
use super::types::{DIMENSIONS, Element, Type};

/// What an argument of a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor.
    Tensor,
    /// A tensor, or `NULL`.
    Optional,
    /// An integer: a size, an axis, a count of bytes.
    Int,
    /// A float.
    Float,
    /// `true` or `false`.
    Bool,
    /// An `enum ggml_type`.
    Element,
}

/// An argument as a check sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand<'a> {
    /// A tensor of this type.
    Tensor(&'a Type),
    /// `NULL`
    Null,
    /// A number; a boolean is 0 or 1.
    Number(f64),
    /// A type of elements.
    Element(Element),
}

/// How tensors of more than four dimensions, or of different ones, are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Element by element: dimensions that lie behind each other in memory may be one.
    Elements,
    /// As `Elements`, of two tensors, the second of which is repeated; `true` if they may change places.
    Repeats(bool),
    /// As `Elements`, of tensors all of which are repeated to what they have in common.
    Broadcast,
    /// Along the last dimension; those before it may be one.
    Rows,
    /// A product of matrices with batches in front, which are folded together.
    Matrices,
    /// Rows of a table: nothing is folded.
    Table,
    /// Nothing is folded; what it returns is memory that is written over, or may be.
    Writes,
    /// Nothing is folded.
    Never,
}

/// A function of ggml, or one of ours that runs inside of its graphs (`mithril_…`).
#[derive(Debug)]
pub struct Function {
    /// Its name in C.
    pub name: &'static str,
    /// What it takes after the context, in order.
    pub takes: &'static [Kind],
    /// How tensors are handed over.
    pub arrangement: Arrangement,
    check: fn(&Arguments<'_>) -> Result<Type, String>,
}

impl Function {
    /// The type of what the function returns for these arguments, or why ggml would refuse them.
    ///
    /// # Errors
    /// A reason, in words.
    pub fn check(&self, operands: &[Operand<'_>]) -> Result<Type, String> {
        let arguments = Arguments::new(self, operands)?;
        let result = (self.check)(&arguments)?;
        if result.sizes.iter().any(|&n| n < 1) {
            return Err(format!("the result would be {result}, which has no elements"));
        }
        if result.elements() >= i64::MAX / 64 || result.sizes.iter().any(|&n| n > i64::from(i32::MAX)) {
            return Err(format!("the result would be {result}, which is too large"));
        }
        Ok(result)
    }
}

/// The function of a name.
pub fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|f| f.name == name)
}

/// The arguments of a call, by what they are.
pub(super) struct Arguments<'a> {
    tensors: Vec<Option<&'a Type>>,
    numbers: Vec<f64>,
    /// The type of elements that was given.
    pub element: Option<Element>,
}

impl<'a> Arguments<'a> {
    /// All tensors that are given.
    pub fn tensors(&self) -> impl Iterator<Item = &'a Type> {
        self.tensors.iter().copied().flatten()
    }
}

impl<'a> Arguments<'a> {
    fn new(function: &Function, operands: &[Operand<'a>]) -> Result<Self, String> {
        let Function { name, takes, .. } = function;
        if operands.len() != takes.len() {
            return Err(format!("{name} takes {} arguments, {} are given", takes.len(), operands.len()));
        }
        let mut arguments = Self { tensors: Vec::new(), numbers: Vec::new(), element: None };
        for (i, (kind, operand)) in takes.iter().zip(operands).enumerate() {
            match (kind, *operand) {
                (Kind::Tensor | Kind::Optional, Operand::Tensor(ty)) => {
                    shapes::is_sound(ty).map_err(|e| format!("argument {i} of {name}: {e}"))?;
                    arguments.tensors.push(Some(ty));
                }
                (Kind::Optional, Operand::Null) => arguments.tensors.push(None),
                (Kind::Int, Operand::Number(n)) if n.fract() == 0.0 && n.abs() < 9e15 => {
                    arguments.numbers.push(n);
                }
                (Kind::Bool, Operand::Number(n)) if n == 0.0 || n == 1.0 => arguments.numbers.push(n),
                (Kind::Float, Operand::Number(x)) => arguments.numbers.push(x),
                (Kind::Element, Operand::Element(element)) => arguments.element = Some(element),
                _ => return Err(format!("argument {i} of {name} must be {kind:?}, {operand:?} is given")),
            }
        }
        Ok(arguments)
    }
    /// Tensor `i`, which is not an optional one.
    pub fn tensor(&self, i: usize) -> &'a Type {
        self.tensors[i].expect("a tensor that must be given was checked")
    }
    /// Tensor `i`, if given.
    pub fn optional(&self, i: usize) -> Option<&'a Type> {
        self.tensors[i]
    }
    /// Number `i`, an integer.
    pub fn int(&self, i: usize) -> i64 {
        self.numbers[i] as i64
    }
    /// Number `i`.
    pub fn float(&self, i: usize) -> f64 {
        self.numbers[i]
    }
    /// Integers `from..to`, each of which C holds in an `int`.
    pub fn ints<const N: usize>(&self, from: usize) -> Result<[i64; N], String> {
        let mut out = [0; N];
        for (i, to) in out.iter_mut().enumerate() {
            *to = self.int(from + i);
            if i32::try_from(*to).is_err() {
                return Err(format!("{to} does not fit into an int"));
            }
        }
        Ok(out)
    }
}

const T: Kind = Kind::Tensor;
const I: Kind = Kind::Int;
const F: Kind = Kind::Float;

const fn unary(name: &'static str) -> Function {
    Function { name, takes: &[T], arrangement: Arrangement::Elements, check: shapes::unary }
}
const fn binary(name: &'static str, swaps: bool) -> Function {
    Function { name, takes: &[T, T], arrangement: Arrangement::Repeats(swaps), check: shapes::binary }
}
const fn broadcast(name: &'static str, takes: &'static [Kind]) -> Function {
    Function { name, takes, arrangement: Arrangement::Broadcast, check: shapes::broadcast }
}
const fn rows(
    name: &'static str,
    takes: &'static [Kind],
    check: fn(&Arguments<'_>) -> Result<Type, String>,
) -> Function {
    Function { name, takes, arrangement: Arrangement::Rows, check }
}
const fn whole(
    name: &'static str,
    takes: &'static [Kind],
    check: fn(&Arguments<'_>) -> Result<Type, String>,
) -> Function {
    Function { name, takes, arrangement: Arrangement::Never, check }
}

/// All of them.
pub static FUNCTIONS: &[Function] = &[
    unary("ggml_abs"),
    unary("ggml_neg"),
    unary("ggml_step"),
    unary("ggml_tanh"),
    unary("ggml_elu"),
    unary("ggml_sigmoid"),
    unary("ggml_gelu_erf"),
    unary("ggml_silu"),
    unary("ggml_hardswish"),
    unary("ggml_exp"),
    unary("ggml_floor"),
    unary("ggml_ceil"),
    unary("ggml_trunc"),
    unary("ggml_sqr"),
    unary("ggml_sqrt"),
    unary("ggml_log"),
    unary("ggml_sin"),
    unary("ggml_cos"),
    Function {
        name: "ggml_scale",
        takes: &[T, F],
        arrangement: Arrangement::Elements,
        check: shapes::unary_contiguous,
    },
    Function {
        name: "ggml_scale_bias",
        takes: &[T, F, F],
        arrangement: Arrangement::Elements,
        check: shapes::unary_contiguous,
    },
    Function {
        name: "ggml_leaky_relu",
        takes: &[T, F, Kind::Bool],
        arrangement: Arrangement::Elements,
        check: shapes::leaky_relu,
    },
    binary("ggml_add", true),
    binary("ggml_sub", false),
    binary("ggml_mul", true),
    binary("ggml_div", false),
    Function {
        name: "ggml_mul_mat",
        takes: &[T, T],
        arrangement: Arrangement::Matrices,
        check: shapes::mul_mat,
    },
    whole("ggml_out_prod", &[T, T], shapes::out_prod),
    rows("ggml_norm", &[T, F], shapes::norm),
    rows("ggml_rms_norm", &[T, F], shapes::norm),
    rows("ggml_soft_max_ext", &[T, Kind::Optional, F, F], shapes::soft_max),
    whole("ggml_flash_attn_ext", &[T, T, T, Kind::Optional, F, F, F], shapes::flash_attention),
    rows("ggml_sum_rows", &[T], shapes::sum_rows),
    rows("ggml_mean", &[T], shapes::sum_rows),
    rows("ggml_cumsum", &[T], shapes::cumsum),
    Function {
        name: "ggml_get_rows",
        takes: &[T, T],
        arrangement: Arrangement::Table,
        check: shapes::get_rows,
    },
    Function {
        name: "ggml_set_rows",
        takes: &[T, T, T],
        arrangement: Arrangement::Writes,
        check: shapes::set_rows,
    },
    whole("ggml_concat", &[T, T, I], shapes::concat),
    whole("ggml_pad_ext", &[T, I, I, I, I, I, I, I, I], shapes::pad),
    whole("ggml_conv_2d_direct", &[T, T, I, I, I, I, I, I], shapes::conv_2d),
    whole("ggml_conv_2d_dw_direct", &[T, T, I, I, I, I, I, I], shapes::conv_2d_depthwise),
    whole("ggml_pool_2d", &[T, I, I, I, I, I, F, F], shapes::pool_2d),
    whole("ggml_repeat_4d", &[T, I, I, I, I], shapes::repeat),
    Function { name: "ggml_cont", takes: &[T], arrangement: Arrangement::Writes, check: shapes::cont },
    whole("ggml_cast", &[T, Kind::Element], shapes::cast),
    whole("ggml_reshape_4d", &[T, I, I, I, I], shapes::reshape),
    whole("ggml_view_4d", &[T, I, I, I, I, I, I, I, I], shapes::view),
    whole("ggml_permute", &[T, I, I, I, I], shapes::permute),
    // Ours, which keep NaN or which ggml lacks.
    broadcast("mithril_clamp", &[T, F, F]),
    broadcast("mithril_sign", &[T]),
    broadcast("mithril_gelu_tanh", &[T]),
    broadcast("mithril_max", &[T, T]),
    broadcast("mithril_min", &[T, T]),
    broadcast("mithril_less", &[T, T]),
    broadcast("mithril_less_equal", &[T, T]),
    broadcast("mithril_equal", &[T, T]),
    broadcast("mithril_select", &[T, T, T]),
    rows("mithril_max_rows", &[T], shapes::sum_rows),
    rows("mithril_min_rows", &[T], shapes::sum_rows),
    rows("mithril_prod_rows", &[T], shapes::sum_rows),
    whole("mithril_max_pool", &[T, I, I, I, I, I, I], shapes::max_pool),
    whole("mithril_reverse", &[T, I], shapes::reverse),
    whole("mithril_rotate_pairs", &[T, T, T, Kind::Bool], shapes::rotate_pairs),
];

/// The sizes of a type with other elements, without gaps.
pub(super) fn like(ty: &Type, element: Element) -> Type {
    Type::contiguous(element, ty.sizes)
}

/// The sizes as four integers.
pub(super) fn sizes(arguments: &Arguments<'_>) -> Result<[i64; DIMENSIONS], String> {
    arguments.ints(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32(shape: &[i64]) -> Type {
        Type::of_shape(Element::F32, shape).expect("at most four dimensions")
    }

    /// What a function says of tensors followed by numbers.
    fn say(name: &str, tensors: &[Type], numbers: &[f64]) -> Result<String, String> {
        let tensors = tensors.iter().map(Operand::Tensor);
        let operands: Vec<_> = tensors.chain(numbers.iter().map(|&x| Operand::Number(x))).collect();
        find(name).expect("a function").check(&operands).map(|ty| ty.to_string())
    }

    #[test]
    fn results_have_the_sizes_that_ggml_gives_them() {
        let image = f32(&[1, 3, 32, 32]);
        for (name, tensors, numbers, expected) in [
            ("ggml_add", vec![f32(&[2, 3]), f32(&[3])], vec![], "f32[3, 2]"),
            ("ggml_mul_mat", vec![f32(&[5, 8]), f32(&[2, 4, 8])], vec![], "f32[5, 4, 2]"),
            ("ggml_out_prod", vec![f32(&[2, 5, 8]), f32(&[4, 5, 1])], vec![], "f32[8, 1, 4]"),
            ("ggml_sum_rows", vec![f32(&[4, 8])], vec![], "f32[1, 4]"),
            ("ggml_concat", vec![f32(&[2, 3]), f32(&[4, 3])], vec![1.0], "f32[3, 6]"),
            (
                "ggml_conv_2d_direct",
                vec![f32(&[8, 3, 3, 3]), image],
                vec![2.0, 2.0, 1.0, 1.0, 1.0, 1.0],
                "f32[16, 16, 8]",
            ),
            ("ggml_pool_2d", vec![image], vec![0.0, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0], "f32[16, 16, 3]"),
            ("mithril_less", vec![f32(&[2, 1]), f32(&[1, 3])], vec![], "f32[3, 2]"),
            ("mithril_reverse", vec![f32(&[2, 3])], vec![3.0], "f32[3, 2]"),
            (
                "mithril_rotate_pairs",
                vec![f32(&[2, 5, 4]), f32(&[5, 2]), f32(&[5, 2])],
                vec![0.0],
                "f32[4, 5, 2]",
            ),
            ("ggml_permute", vec![f32(&[2, 3, 4])], vec![0.0, 2.0, 1.0, 3.0], "f32[4, 2, 3] by [4, 48, 16]"),
        ] {
            assert_eq!(say(name, &tensors, &numbers).as_deref(), Ok(expected), "{name}");
        }
    }

    #[test]
    fn what_would_end_the_process_is_refused() {
        let turned = Type { sizes: [4, 3, 1, 1], strides: [12, 4, 48, 48], ..f32(&[3, 4]) };
        let positions = Type::of_shape(Element::I32, &[2]).expect("a vector");
        let quantized = Type::of_shape(Element::Q8_0, &[4, 64]).expect("a matrix");
        for (name, tensors, numbers) in [
            ("ggml_tanh", vec![positions], vec![]),
            ("ggml_tanh", vec![turned], vec![]),
            ("ggml_tanh", vec![f32(&[0, 3])], vec![]),
            ("ggml_scale", vec![turned], vec![2.0]),
            ("ggml_add", vec![f32(&[3]), f32(&[2, 3])], vec![]),
            ("ggml_add", vec![f32(&[2, 64]), quantized], vec![]),
            ("ggml_mul_mat", vec![f32(&[5, 8]), f32(&[4, 9])], vec![]),
            ("ggml_mul_mat", vec![f32(&[2, 5, 8]), f32(&[3, 4, 8])], vec![]),
            ("ggml_out_prod", vec![f32(&[5, 8]), f32(&[4, 8])], vec![]),
            ("ggml_out_prod", vec![turned, f32(&[4, 1])], vec![]),
            ("ggml_mul_mat", vec![turned, f32(&[2, 4])], vec![]),
            ("ggml_mul_mat", vec![f32(&[2, 64]), quantized], vec![]),
            ("ggml_norm", vec![f32(&[2, 3])], vec![-1.0]),
            ("ggml_get_rows", vec![f32(&[4, 8]), f32(&[2])], vec![]),
            ("ggml_concat", vec![f32(&[2, 3]), f32(&[2, 4])], vec![1.0]),
            ("ggml_concat", vec![f32(&[2, 3]), f32(&[2, 3])], vec![4.0]),
            ("ggml_pad_ext", vec![f32(&[2])], vec![0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
            ("ggml_conv_2d_direct", vec![f32(&[8, 4, 3, 3]), f32(&[1, 3, 9, 9])], vec![1.0; 6]),
            (
                "ggml_conv_2d_direct",
                vec![f32(&[8, 3, 9, 9]), f32(&[1, 3, 4, 4])],
                vec![1.0, 1.0, 0.0, 0.0, 1.0, 1.0],
            ),
            ("ggml_pool_2d", vec![f32(&[1, 4, 4])], vec![2.0, 2.0, 2.0, 1.0, 1.0, 0.0, 0.0]),
            ("ggml_reshape_4d", vec![f32(&[2, 3])], vec![5.0, 1.0, 1.0, 1.0]),
            ("ggml_view_4d", vec![f32(&[2, 3])], vec![3.0, 2.0, 1.0, 1.0, 12.0, 24.0, 24.0, 4.0]),
            ("ggml_permute", vec![f32(&[2, 3])], vec![0.0, 0.0, 2.0, 3.0]),
            ("ggml_permute", vec![f32(&[2, 3])], vec![0.5, 1.0, 2.0, 3.0]),
            ("ggml_cont", vec![quantized], vec![]),
            ("ggml_tanh", vec![], vec![]),
            ("mithril_less", vec![f32(&[2, 3]), f32(&[4, 3])], vec![]),
            ("mithril_max_pool", vec![f32(&[1, 4, 4])], vec![2.0, 2.0, 1.0, 1.0, 2.0, 0.0]),
            ("mithril_reverse", vec![f32(&[2, 3])], vec![16.0]),
            ("mithril_rotate_pairs", vec![f32(&[2, 3]), f32(&[1]), f32(&[1])], vec![0.0]),
            ("mithril_rotate_pairs", vec![f32(&[2, 4]), f32(&[3, 2]), f32(&[3, 2])], vec![0.0]),
        ] {
            assert!(say(name, &tensors, &numbers).is_err(), "{name} {tensors:?} {numbers:?}");
        }
    }

    #[test]
    fn attention_takes_what_ggml_takes() {
        let [q, k, v] = [f32(&[2, 4, 5, 8]), f32(&[2, 2, 7, 8]), f32(&[2, 2, 7, 6])];
        let mask = |shape: &[i64]| Type::of_shape(Element::F16, shape).expect("at most four dimensions");
        let say = |tensors: [&Type; 3], mask: Option<&Type>, bias: f64| {
            let mask = mask.map_or(Operand::Null, Operand::Tensor);
            let tensors = tensors.map(Operand::Tensor);
            let numbers = [0.5, bias, 0.0].map(Operand::Number);
            let all: Vec<_> = tensors.into_iter().chain([mask]).chain(numbers).collect();
            find("ggml_flash_attn_ext").expect("a function").check(&all).map(|ty| ty.to_string())
        };
        assert_eq!(say([&q, &k, &v], None, 0.0).as_deref(), Ok("f32[6, 4, 5, 2]"));
        assert_eq!(say([&q, &k, &v], Some(&mask(&[5, 7])), 0.0).as_deref(), Ok("f32[6, 4, 5, 2]"));
        let three = f32(&[2, 3, 5, 8]);
        let (short, halves) = (f32(&[2, 2, 6, 6]), mask(&[2, 2, 7, 6]));
        for tensors in [[&three, &k, &v], [&k, &q, &v], [&q, &k, &halves], [&q, &k, &short]] {
            assert!(say(tensors, None, 0.0).is_err(), "{tensors:?}");
        }
        for shape in [&[4_i64, 7][..], &[5, 6], &[3, 5, 7]] {
            assert!(say([&q, &k, &v], Some(&mask(shape)), 0.0).is_err(), "{shape:?}");
        }
        assert!(say([&q, &k, &v], Some(&f32(&[5, 7])), 0.0).is_err(), "a mask of float32");
        assert!(say([&q, &k, &v], None, 8.0).is_err(), "a bias without a mask");
    }
}
