//! The definition of an op: static data that says everything about it, in one place.
//!
//! An op definition ([`OpDef`]) holds the name and documentation, the ports, the shape and dtype rules, the reference
//! evaluation and/or the expansion into other ops, the gradient as a formula in ops, and the lowering for each target.
//! Definitions are `static` struct literals; what a family has in common comes from a base constant without a name, such
//! as [`UNARY`]:
//!
//! ```ignore
//! pub static TANH: OpDef = OpDef {
//!     name: "tanh",
//!     doc: "Hyperbolic tangent.",
//!     eval: Some(Eval::F1(libm::tanh)),
//!     grad: Grad::Formula(|v| vec![v.g * (1.0 - v.y * v.y)]),
//!     lowering: Lowering::py("{xp}.tanh({0})"),
//!     ..UNARY
//! };
//! ```
//!
//! The fields stand in the order in which [`OpDef`] declares them, so that all definitions read alike; a test checks it.
//! Closures in them capture nothing. [`crate::ops`] lists all definitions.
//!
//! A target looks for an op in this order: its own table, the lowering in the definition (a target that writes loops: the
//! `loops`), the expansion. If there is none of them, compilation fails.

use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::Result;
use crate::forms::Form;
use crate::formula::{ExpandCx, GradCx, V};
use crate::graph::{Graph, Node};
use crate::interp::EvalCx;
use crate::literal::Lit;
use crate::loops::{LoopCx, LoopsFn};
use crate::lowering::Lowering;
use crate::rules::{DTypeCx, DTypes, ShapeCx};
use crate::shape::{Shape, normalize_axis};
use crate::tensor::Scalar;

/// The definition of an op.
#[derive(Debug)]
pub struct OpDef {
    /// Canonical name, in snake case as in the array API standard.
    pub name: &'static str,
    /// Documentation: a sentence, then the formula, edge cases and the source. It becomes the documentation in Rust, in
    /// Python and in `docs/ops.md`.
    pub doc: &'static str,
    /// Other names under which users look for the op (`pow`, `reduce_sum`).
    pub aliases: &'static [&'static str],
    /// Name of the layer class (`LeakyRelu`); empty if the op has none.
    pub layer: &'static str,
    /// Inputs in order; a variadic port comes last.
    pub ports: &'static [Port],
    /// Names of the outputs; [`EACH`] if there is one for each tensor of the variadic port.
    pub outputs: &'static [&'static str],
    /// Shapes of the outputs.
    pub shape: ShapeRule,
    /// Promotion of the inputs and dtypes of the outputs.
    pub dtype: DTypeRule,
    /// The reference evaluation, which defines a primitive op.
    pub eval: Option<Eval>,
    /// The expansion into other ops. It defines a composite op (one without `eval`), and is what a target without a
    /// lowering uses.
    pub expand: Option<ExpandFn>,
    /// Other formulas for the op, by which the pass `raise` recognizes it in graphs that consist of smaller ops.
    pub forms: &'static [Form],
    /// The computation of one element ([`crate::loops`]), for targets that write loops. An elementwise op with a
    /// lowering to C needs none.
    pub loops: Option<LoopsFn>,
    /// Which input holds indices into another one; they are checked before a call, as far as they are known.
    pub indexed: Option<Indexed>,
    /// Value of the elements in the padding that the port `padding` asks for: padding the input with it beforehand gives
    /// the same result.
    pub padding_value: Option<f64>,
    /// Of an op that slides windows over axes: its literals on some of the rows of its operand. Dividing an image over
    /// devices needs it, since the literals also say how far the windows reach beyond its edges.
    pub on_rows: Option<RowsFn>,
    /// Of an elementwise op: the inputs in which, together, it is linear, where no tensor expression says so.
    pub linear: &'static [usize],
    /// How a target with arithmetic of `i64` alone computes the op on `u64`.
    pub unsigned: Unsigned,
    /// The gradient.
    pub grad: Grad,
    /// The code for each target.
    pub lowering: Lowering,
    /// Range from which tests draw float inputs, away from poles and kinks of the op.
    pub domain: (f64, f64),
    /// Test cases as text, e.g. `"[2,3] axis=1 keepdim=true"` or `"[5,3] i64[4]<5 axis=0"`: tensors by shape in
    /// port order (`i64[4]<5`: integers below 5), arguments by name. Empty: derived from the ports.
    pub cases: &'static [&'static str],
    /// How accurate a target must be.
    pub tolerance: Tolerance,
    /// Its dtype in mixed precision; `None`: derived from the tolerance ([`OpDef::precision`]).
    pub precision: Option<Precision>,
    /// The weight of a product that may be stored in 8 bits.
    pub low_bit: Option<LowBit>,
}

/// The field `on_rows` of an op definition: from the whole use and that on a part of the rows along an axis of the first
/// operand, and from how many rows that part has in front of row 0, the literals that differ, by port. The sizes of the
/// part are known; whether it computes what it has to is proved afterwards.
pub type RowsFn =
    fn(whole: &LoopCx<'_>, part: &LoopCx<'_>, axis: usize, before: i64) -> Result<Vec<(usize, Lit)>>;

/// How a target with arithmetic of `i64` alone computes an op on `u64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsigned {
    /// By its expansion; without one it is not supported.
    Expand,
    /// As `i64`: the bits of the result are the same.
    Bits,
    /// As `i64` with the highest bit flipped, which keeps the order; that of the result is flipped back.
    Order,
    /// Its lowering computes with `u64`.
    Lowering,
}

/// The inputs of an op that looks elements up by index, as positions among its ports.
#[derive(Clone, Copy, Debug)]
pub struct Indexed {
    /// The tensor that is indexed, or the number of its elements as a literal.
    pub table: usize,
    /// The indices; negative ones count from the end.
    pub indices: usize,
    /// The literal for the axis; the first axis if there is none.
    pub axis: Option<usize>,
    /// What the op does there.
    pub effect: Effect,
}

/// What an op does at positions of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It reads.
    Read,
    /// It adds this input.
    Add(usize),
    /// It changes what is there by this input in another way.
    Change(usize),
}

impl Indexed {
    /// Size of the axis that a node indexes; `None` if its arguments do not determine it.
    pub fn size(&self, graph: &Graph, node: &Node) -> Option<Dim> {
        let table = *node.inputs.get(self.table)?;
        if let Some(Lit::Int(size)) = graph.lit(table) {
            return Some(size.clone());
        }
        let shape = &graph.ty(table)?.shape;
        let axis = match self.axis.map(|i| node.inputs.get(i).and_then(|&v| graph.lit(v))) {
            None => 0,
            Some(Some(Lit::Int(axis))) => normalize_axis(axis.known()?, shape.rank()).ok()?,
            // Without an axis the indices refer to the flattened tensor.
            Some(Some(Lit::None)) => return Some(shape.numel()),
            Some(_) => return None,
        };
        shape.get(axis).cloned()
    }
}

/// The weight of a product that may be stored in 8 bits, with a scale for each output.
#[derive(Clone, Copy, Debug)]
pub struct LowBit {
    /// The port of the weight.
    pub weight: usize,
    /// The axis of the weight that belongs to the outputs.
    pub outputs: usize,
    /// Whether the op contracts the last axis of the first port with the other axis of a two-dimensional weight, and adds
    /// the third port, if there is one. Such a product can be computed in integers.
    pub is_product: bool,
}

/// An input of an op.
#[derive(Debug)]
pub struct Port {
    /// Name.
    pub name: &'static str,
    /// What it accepts.
    pub kind: PortKind,
    /// Its value if the argument is omitted.
    pub default: DefaultLit,
}

/// What a port accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PortKind {
    /// A tensor of one of these kinds, or a number.
    Tensor(Kinds),
    /// Such a tensor, or `none`.
    Optional(Kinds),
    /// Any number of tensors; the last port.
    Variadic(Kinds),
    /// A literal that is known at compile time.
    Attr(Attr),
}

/// Kind of a literal argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attr {
    /// Integer, possibly symbolic.
    Int,
    /// Integer or tuple of integers (stride, axis …).
    Ints,
    /// Integers or `none`.
    OptInts,
    /// Integer or `none`.
    OptInt,
    /// Number.
    Float,
    /// Number or `none`.
    OptFloat,
    /// Number or boolean: an element of a tensor of any dtype.
    Scalar,
    /// Boolean (or [`Lit::Training`], until the mode is known).
    Bool,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// Data type or `none`.
    DType,
    /// A shape: tuple of integers.
    Shape,
    /// Any literal; the shape and dtype rules check it.
    Any,
}

impl Attr {
    /// Canonical form of a literal: the dtype for its name, a choice in lower case.
    ///
    /// # Errors
    /// If a dtype of that name does not exist.
    pub fn read(self, lit: Lit) -> Result<Lit> {
        Ok(match (self, lit) {
            (Self::DType, Lit::Str(name)) => Lit::DType(DType::parse(&name)?),
            (Self::Choice(all), Lit::Str(s)) => match all.iter().find(|c| c.eq_ignore_ascii_case(&s)) {
                Some(c) => Lit::text(c),
                None => Lit::Str(s),
            },
            (_, lit) => lit,
        })
    }
    /// What the argument must be, for messages.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Int => "an integer",
            Self::Ints => "an integer or a tuple of integers",
            Self::OptInts => "an integer, a tuple of integers, or none",
            Self::OptInt => "an integer or none",
            Self::Float => "a number",
            Self::OptFloat => "a number or none",
            Self::Scalar => "a number, true or false",
            Self::Bool => "true or false",
            Self::Choice(_) | Self::Text => "a text",
            Self::DType => "a dtype or none",
            Self::Shape => "a shape: a tuple of integers",
            Self::Any => "a value",
        }
    }
}

/// Default of a port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DefaultLit {
    /// The argument is required.
    Required,
    /// `none`
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text.
    Str(&'static str),
    /// The compile mode: true when compiled for training.
    Training,
}

/// How the shapes of the outputs follow from the inputs.
#[derive(Debug, Clone, Copy)]
pub enum ShapeRule {
    /// All outputs have the shape of the first input.
    Same,
    /// All tensor inputs broadcast to the output.
    Broadcast,
    /// Input shapes and output shapes as a pattern, e.g. `"*b k, n k, n -> *b n"`: `*b` is any number of dimensions,
    /// the same wherever it occurs; a name is a dimension; a number is itself; `_` is any dimension. The patterns belong
    /// to the tensor ports in order; those of absent optional inputs are skipped.
    Pattern(&'static str),
    /// A function of the input shapes and arguments.
    Fn(fn(&ShapeCx<'_>) -> Result<Vec<Shape>>),
    /// The shapes of the expansion.
    Expansion,
}

/// How inputs promote, and how the dtypes of the outputs follow.
#[derive(Debug, Clone, Copy)]
pub enum DTypeRule {
    /// Inputs promote to a common dtype, booleans to `i64`; the output has it too.
    Arith,
    /// Inputs promote to a common dtype of any kind; the output has it too.
    Promote,
    /// As `Arith`, but integers become the default float.
    Float,
    /// Inputs promote (to `i64` where a number would not fit otherwise); the output is `bool`.
    Compare,
    /// Inputs become `bool`; the output is `bool`.
    Logical,
    /// No promotion; the output has the dtype of that input.
    Same(usize),
    /// A function.
    Fn(fn(&DTypeCx<'_>) -> Result<DTypes>),
    /// The dtypes of the expansion; inputs do not promote.
    Expansion,
}

/// Reference evaluation.
#[derive(Debug, Clone, Copy)]
pub enum Eval {
    /// Elementwise on floats, computed in `f64` and rounded once.
    F1(fn(f64) -> f64),
    /// Elementwise on two inputs: floats in `f64`, integers in `i128` (wrapped to the dtype).
    F2(fn(f64, f64) -> f64, fn(i128, i128) -> i128),
    /// Elementwise on any number of broadcast inputs.
    Scalar(fn(&[Scalar]) -> Scalar),
    /// A function of whole tensors.
    Tensors(fn(&EvalCx<'_>) -> Result<Vec<crate::tensor::Tensor>>),
}

/// Expansion: the outputs as formulas of the inputs.
pub type ExpandFn = for<'a> fn(&ExpandCx<'a>) -> Vec<V<'a>>;

/// Gradient formula: for each input the cotangent, or `none()`; trailing ones may be omitted.
pub type GradFn = for<'a> fn(&GradCx<'a>) -> Vec<V<'a>>;

/// Gradient of an op.
#[derive(Debug, Clone, Copy)]
pub enum Grad {
    /// By this formula.
    Formula(GradFn),
    /// By this formula where the target has a loop for the op; else by differentiating its steps.
    Loop(GradFn),
    /// By differentiating the expansion.
    Expansion,
    /// The derivative is zero wherever it exists (`floor`, comparisons, `argmax`).
    Zero,
    /// There is none; asking for it is an error with this reason.
    Unsupported(&'static str),
}

/// How far a target may differ from the reference evaluated in `f64`, in units of the dtype's epsilon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// 0: movement, comparison, integers.
    Exact,
    /// Correctly rounded: add, multiply, divide, sqrt.
    Rounded,
    /// 4: elementwise functions.
    Elementwise,
    /// 8, relative to the op on absolute values: sums and contractions.
    Contraction,
    /// 256: matrix decompositions.
    Decomposition,
    /// The bits of the common generator.
    Random,
}

/// The dtype in which an op is computed in mixed precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// The compute dtype: products, which take most of the time and whose sums the hardware keeps in float32.
    Low,
    /// The dtype of its operands; the widest one if they differ.
    Follow,
    /// At least float32: sums, norms, losses, and functions that grow fast or cancel.
    Wide,
    /// That of each op of its expansion.
    Expanded,
}

/// Definitions are compared by address: there is one per op.
impl PartialEq for OpDef {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl OpDef {
    /// The dtype of the op in mixed precision: unless the definition says otherwise, sums are computed in float32.
    pub fn precision(&self) -> Precision {
        self.precision.unwrap_or(match self.tolerance {
            Tolerance::Contraction | Tolerance::Decomposition => Precision::Wide,
            _ => Precision::Follow,
        })
    }
    /// Position of the port called `name`.
    pub fn port(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|p| p.name == name)
    }
    /// Whether the last port takes any number of tensors.
    pub fn is_variadic(&self) -> bool {
        self.ports.last().is_some_and(|p| matches!(p.kind, PortKind::Variadic(_)))
    }
    /// Whether there is one output for each tensor of the variadic port.
    pub fn has_output_for_each(&self) -> bool {
        self.is_variadic() && self.outputs == EACH
    }
    /// The port that argument `i` belongs to.
    pub fn port_of(&self, i: usize) -> Option<&'static Port> {
        if i >= self.ports.len() && self.is_variadic() { self.ports.last() } else { self.ports.get(i) }
    }
    /// How messages name argument `i`: "`weight`", or "`inputs[1]`" for one of any number of tensors.
    pub fn argument_name(&self, i: usize) -> String {
        let name = self.port_of(i).map_or("?", |port| port.name);
        let first = self.ports.len().saturating_sub(1);
        if self.is_variadic() && i >= first {
            format!("`{name}[{}]`", i - first)
        } else {
            format!("`{name}`")
        }
    }
    /// Whether argument `i` is a tensor, as opposed to a literal.
    pub fn takes_tensor(&self, i: usize) -> bool {
        self.port_of(i).is_some_and(|p| !matches!(p.kind, PortKind::Attr(_)))
    }
}

/// A tensor input.
pub const fn tensor(name: &'static str) -> Port {
    Port { name, kind: PortKind::Tensor(Kinds::ANY), default: DefaultLit::Required }
}
/// A tensor input of these kinds.
pub const fn tensor_of(name: &'static str, kinds: Kinds) -> Port {
    Port { name, kind: PortKind::Tensor(kinds), default: DefaultLit::Required }
}
/// A tensor input that may be absent.
pub const fn optional(name: &'static str) -> Port {
    Port { name, kind: PortKind::Optional(Kinds::ANY), default: DefaultLit::None }
}
/// Any number of tensors; the last port.
pub const fn variadic(name: &'static str) -> Port {
    Port { name, kind: PortKind::Variadic(Kinds::ANY), default: DefaultLit::Required }
}
/// A literal argument.
pub const fn attr(name: &'static str, kind: Attr, default: DefaultLit) -> Port {
    Port { name, kind: PortKind::Attr(kind), default }
}

/// The outputs of an op that has one for each tensor of its variadic port.
pub const EACH: &[&str] = &["outputs"];

/// The definition that all others start from: one output called `output`, and nothing else.
pub const BLANK: OpDef = OpDef {
    name: "",
    doc: "",
    aliases: &[],
    layer: "",
    ports: &[],
    outputs: &["output"],
    shape: ShapeRule::Expansion,
    dtype: DTypeRule::Expansion,
    eval: None,
    expand: None,
    forms: &[],
    loops: None,
    indexed: None,
    padding_value: None,
    on_rows: None,
    linear: &[],
    unsigned: Unsigned::Expand,
    grad: Grad::Expansion,
    lowering: Lowering::NONE,
    domain: (-2.0, 2.0),
    cases: &[],
    tolerance: Tolerance::Elementwise,
    precision: None,
    low_bit: None,
};

/// An elementwise function of one float input; integers become the default float.
pub const UNARY: OpDef = OpDef {
    ports: &[tensor_of("input", Kinds::ANY)],
    shape: ShapeRule::Same,
    dtype: DTypeRule::Float,
    ..BLANK
};

/// An elementwise function of two inputs that broadcast and promote.
pub const BINARY: OpDef = OpDef {
    ports: &[tensor("left"), tensor("right")],
    shape: ShapeRule::Broadcast,
    dtype: DTypeRule::Arith,
    tolerance: Tolerance::Rounded,
    ..BLANK
};

impl DefaultLit {
    /// The literal; `None` if the argument is required.
    pub fn lit(self) -> Option<Lit> {
        use crate::literal::Lit;
        Some(match self {
            Self::Required => return None,
            Self::None => Lit::None,
            Self::Bool(b) => Lit::Bool(b),
            Self::Int(n) => Lit::int(n),
            Self::Float(x) => Lit::Float(x),
            Self::Str(s) => Lit::text(s),
            Self::Training => Lit::Training,
        })
    }
}

/// The dtype of a `dtype` argument, or `default` without one.
pub fn dtype_or(lit: &Lit, default: DType) -> DType {
    match lit {
        Lit::DType(d) => *d,
        _ => default,
    }
}
