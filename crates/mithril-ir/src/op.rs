//! The form of an op: one row of static data that says everything about it, in one place.
//!
//! A row ([`OpDef`]) holds the ports, the shape and dtype rules, the reference evaluation and/or the expansion
//! into other ops, the gradient as a formula in ops, and how each target spells it. Rows are `static` literals
//! with functional update from the `const fn` constructors below (`..unary("tanh", doc, f64::tanh)`); the
//! closures in them capture nothing. [`crate::ops`] lists all rows.
//!
//! A target finds an op in this order: its own table, the row's spelling (of a target that writes loops: the row's
//! loops), the row's expansion, an error.

use crate::build::{Call, GradCall, V};
use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::Result;
use crate::forms::Form;
use crate::graph::{Graph, Node};
use crate::interp::HostCall;
use crate::literal::Lit;
use crate::loops::LoopsFn;
use crate::rules::{DTypeCx, DTypes, ShapeCx};
use crate::shape::{Shape, normalize_axis};
use crate::spell::SpellCx;
use crate::tensor::Scalar;

/// One op.
#[derive(Debug)]
pub struct OpDef {
    /// Canonical name, snake_case as in the array API standard.
    pub name: &'static str,
    /// Documentation: a sentence, then the formula, edge cases and source. Becomes the docs of every face.
    pub doc: &'static str,
    /// Inputs in order; a variadic port comes last.
    pub ports: &'static [Port],
    /// Names of the outputs; [`EACH`] where each tensor of the variadic port has one.
    pub outputs: &'static [&'static str],
    /// How the shapes of the outputs follow from the inputs.
    pub shape: ShapeRule,
    /// How dtypes promote and what comes out.
    pub dtype: DTypeRule,
    /// The reference evaluation, which is the definition of a primitive.
    pub eval: Option<Eval>,
    /// The expansion into other ops, which is the definition of a composite (no `eval`) and the fall-back of a
    /// target without a spelling.
    pub expand: Option<ExpandFn>,
    /// Other formulas for the op, by which the pass `raise` recognizes it in graphs that were written in small pieces.
    pub forms: &'static [Form],
    /// The gradient.
    pub grad: Grad,
    /// How the targets write the op.
    pub spell: Spell,
    /// What it computes element by element ([`crate::loops`]), for targets that write loops. An elementwise op with a
    /// `Spell.c` needs none.
    pub loops: Option<LoopsFn>,
    /// Which input holds positions in another one; where they lie is checked before a call, as far as they are known.
    pub indexed: Option<Indexed>,
    /// What elements in the padding of the port `padding` are: a pad of the input by it says the same.
    pub padded_with: Option<f64>,
    /// How exact a target must be.
    pub tolerance: Tolerance,
    /// Where it is computed in mixed precision; `None`: as its tolerance suggests ([`OpDef::precision`]).
    pub precision: Option<Precision>,
    /// Of a product: the weight that may be kept in 8 bits.
    pub low_bit: Option<LowBit>,
    /// Range from which tests draw float inputs, away from poles and kinks of the op.
    pub domain: (f64, f64),
    /// Test cases as text, e.g. `"[2,3] axis=1 keepdim=true"` or `"[5,3] i64[4]<5 axis=0"`: tensors by shape in
    /// port order (`i64[4]<5`: integers below 5), arguments by name. Empty: derived from the ports.
    pub cases: &'static [&'static str],
    /// Name of the layer class (`LeakyRelu`); empty if the op has none.
    pub layer: &'static str,
    /// Other names under which users look for the op (`pow`, `reduce_sum`).
    pub aliases: &'static [&'static str],
}

/// Of an op that looks something up: the inputs with the positions and with what is looked at, by place.
#[derive(Clone, Copy, Debug)]
pub struct Indexed {
    /// What is looked at; or the number of places, as a literal.
    pub table: usize,
    /// The positions, counted from either end.
    pub indices: usize,
    /// The literal that says the axis; without one it is the first.
    pub axis: Option<usize>,
}

impl Indexed {
    /// How many places there are for a node; `None` if its arguments do not say.
    pub fn size(&self, graph: &Graph, node: &Node) -> Option<Dim> {
        let table = *node.inputs.get(self.table)?;
        if let Some(Lit::Int(size)) = graph.lit(table) {
            return Some(size.clone());
        }
        let shape = &graph.ty(table)?.shape;
        let axis = match self.axis.map(|i| node.inputs.get(i).and_then(|&v| graph.lit(v))) {
            None => 0,
            Some(Some(Lit::Int(axis))) => normalize_axis(axis.known()?, shape.rank()).ok()?,
            // All elements are one axis.
            Some(Some(Lit::None)) => return Some(shape.numel()),
            Some(_) => return None,
        };
        shape.get(axis).cloned()
    }
}

/// The weight of a product that may be kept in 8 bits, with a scale for each output.
#[derive(Clone, Copy, Debug)]
pub struct LowBit {
    /// The port of the weight.
    pub weight: usize,
    /// The axis of the weight that counts outputs.
    pub outputs: usize,
    /// Whether the last axis of the first port is multiplied by the other axis of a weight of two axes, and the third
    /// port, if there is one, is added: such a product can be done in integers.
    pub is_product: bool,
}

/// An input of an op.
#[derive(Debug)]
pub struct Port {
    /// Name.
    pub name: &'static str,
    /// What it takes.
    pub kind: PortKind,
    /// What it is when not given.
    pub default: DefaultLit,
}

/// What a port takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PortKind {
    /// A tensor of one of these kinds, or a number.
    Tensor(Kinds),
    /// Such a tensor, or `none`.
    Optional(Kinds),
    /// Any number of tensors; the last port.
    Variadic(Kinds),
    /// A literal known when compiling.
    Attr(Attr),
}

/// What a literal argument may be.
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
    /// Number or truth value: an element of a tensor of any dtype.
    Scalar,
    /// Truth value (or [`Lit::Training`], until the mode is known).
    Bool,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// Data type or `none`.
    DType,
    /// A shape: tuple of integers.
    Shape,
    /// Anything; the rules check it.
    Any,
}

impl Attr {
    /// Brings other spellings of a literal to the canonical one: a dtype by its name, a choice in capitals.
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
    /// What it takes, for messages.
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
    /// Has to be given.
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

/// How shapes follow.
#[derive(Debug, Clone, Copy)]
pub enum ShapeRule {
    /// All outputs have the shape of the first input.
    Same,
    /// All tensor inputs broadcast to the output.
    Broadcast,
    /// Input shapes and output shapes as a pattern, e.g. `"*b k, n k, n -> *b n"`: `*b` any number of dimensions,
    /// equal wherever it occurs; a name a dimension; a number itself; `_` any dimension. Patterns stand for the
    /// tensor ports in order, those of absent optional inputs are skipped.
    Pattern(&'static str),
    /// A function of the input shapes and arguments.
    Fn(fn(&ShapeCx<'_>) -> Result<Vec<Shape>>),
    /// As the expansion says.
    Expansion,
}

/// How dtypes follow.
#[derive(Debug, Clone, Copy)]
pub enum DTypeRule {
    /// Inputs promote to a common dtype, booleans to `i64`; so is the output.
    Arith,
    /// Inputs promote to a common dtype of any kind; so is the output.
    Promote,
    /// As `Arith`, but integers become the default float.
    Float,
    /// Inputs promote (to `i64` where a number would not fit otherwise); the output is `bool`.
    Compare,
    /// Inputs become `bool`; so is the output.
    Logical,
    /// No promotion; the output has the dtype of that input.
    Same(usize),
    /// A function.
    Fn(fn(&DTypeCx<'_>) -> Result<DTypes>),
    /// As the expansion says; nothing promotes.
    Expansion,
}

/// Reference evaluation.
#[derive(Debug, Clone, Copy)]
pub enum Eval {
    /// Elementwise on floats, computed in `f64` and rounded once.
    F1(fn(f64) -> f64),
    /// Elementwise on two inputs: floats in `f64`, integers in `i64` (wrapped to the dtype).
    F2(fn(f64, f64) -> f64, fn(i64, i64) -> i64),
    /// Elementwise on any number of broadcast inputs.
    Scalar(fn(&[Scalar]) -> Scalar),
    /// A function of whole tensors.
    Host(fn(&HostCall<'_>) -> Result<Vec<crate::tensor::Tensor>>),
}

/// Expansion: the outputs as formulas of the inputs.
pub type ExpandFn = for<'a> fn(&Call<'a>) -> Vec<V<'a>>;

/// Gradient formula: for each input the cotangent, or `none()`; trailing ones may be left out.
pub type GradFn = for<'a> fn(&GradCall<'a>) -> Vec<V<'a>>;

/// Gradient of an op.
#[derive(Debug, Clone, Copy)]
pub enum Grad {
    /// By this formula.
    Formula(GradFn),
    /// By differentiating the expansion.
    Expansion,
    /// The derivative is zero wherever it exists (`floor`, comparisons, `argmax`).
    Zero,
    /// There is none; asking for it is an error with this reason.
    Refuse(&'static str),
}

/// A spelling.
#[derive(Debug, Clone, Copy)]
pub enum Text {
    /// Cannot be spelled.
    No,
    /// A template: `{0}` is the expression of input 0 (a tensor, or a literal as Python writes it), `{name}` the
    /// one of the port of that name, `{*}` all inputs of the variadic last port with commas between, `{xp}` the
    /// array module, `{dtype}` the first output's dtype, `{shape}` its shape as a tuple; `{{` and `}}` are braces.
    /// Brackets around operands are put where needed. A name with a leading underscore (`_erf({0})`) is a helper
    /// of the target's prelude. An op whose row lists several outputs is spelled as a tuple of them.
    T(&'static str),
    /// A function; `None` if this use of the op cannot be spelled. Its text is taken as it is, braces too.
    F(fn(&SpellCx<'_>) -> Option<String>),
}

/// Spellings per target.
#[derive(Debug, Clone, Copy)]
pub struct Spell {
    /// Common to the Python targets.
    pub py: Text,
    /// NumPy, before `py`.
    pub numpy: Text,
    /// PyTorch, before `py`.
    pub torch: Text,
    /// NumPy, where the caller gives away input 0 and nothing else reads it: its memory takes the result, which the
    /// expression is.
    pub numpy_in_place: Text,
    /// PyTorch, likewise.
    pub torch_in_place: Text,
    /// JAX, before `py`.
    pub jax: Text,
    /// MLX, before `py`.
    pub mlx: Text,
    /// A backend of a user's own, which has nothing but its methods.
    pub custom: Text,
    /// A scalar C expression over elements; [`crate::loops`] lists the placeholders.
    pub c: Text,
    /// A ggml call.
    pub ggml: Text,
    /// Uses of ONNX's ops; the grammar is in `mithril-onnx` `export/parse.rs`.
    pub onnx: Text,
}

impl Spell {
    /// No spelling at all: every target expands the op.
    pub const NONE: Self = Self {
        py: Text::No,
        numpy: Text::No,
        torch: Text::No,
        numpy_in_place: Text::No,
        torch_in_place: Text::No,
        jax: Text::No,
        mlx: Text::No,
        custom: Text::No,
        c: Text::No,
        ggml: Text::No,
        onnx: Text::No,
    };
    /// One template for all Python targets.
    pub const fn py(template: &'static str) -> Self {
        Self { py: Text::T(template), ..Self::NONE }
    }
    /// One template for NumPy alone.
    pub const fn numpy(template: &'static str) -> Self {
        Self { numpy: Text::T(template), ..Self::NONE }
    }
    /// `infix("+")`: the operator of Python and C.
    pub const fn both(template: &'static str) -> Self {
        Self { py: Text::T(template), c: Text::T(template), ..Self::NONE }
    }
}

/// How far a target may be from the reference evaluated in `f64`, in units of the dtype's epsilon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// Not at all: movement, comparison, integers.
    Exact,
    /// Correctly rounded: add, multiply, divide, sqrt.
    Rounded,
    /// 4: elementwise functions.
    Elementwise,
    /// 8 relative to the op on absolute values: sums and contractions.
    Contraction,
    /// 256: matrix decompositions.
    Decomposition,
    /// Bits of the common generator.
    Random,
}

/// In which dtype an op is computed in mixed precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// In the compute dtype: products, where the time goes and sums are kept wide by the hardware.
    Low,
    /// In the dtype of its operands; the widest, where they differ.
    Follow,
    /// In float32 at least: sums, norms, losses, and what grows fast or cancels.
    Wide,
}

/// Rows are the same if they are one row.
impl PartialEq for OpDef {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl OpDef {
    /// Where the op is computed in mixed precision: what sums up is wide unless the row says otherwise.
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
    /// Whether there is an output for each tensor of the variadic port.
    pub fn has_output_for_each(&self) -> bool {
        self.is_variadic() && self.outputs == EACH
    }
    /// The port that argument `i` belongs to.
    pub fn port_of(&self, i: usize) -> Option<&'static Port> {
        if i >= self.ports.len() && self.is_variadic() { self.ports.last() } else { self.ports.get(i) }
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

/// The row that all constructors start from: one output called `output`, nothing else.
pub const BLANK: OpDef = OpDef {
    name: "",
    doc: "",
    ports: &[],
    outputs: &["output"],
    shape: ShapeRule::Expansion,
    dtype: DTypeRule::Expansion,
    eval: None,
    expand: None,
    forms: &[],
    grad: Grad::Expansion,
    spell: Spell::NONE,
    loops: None,
    indexed: None,
    padded_with: None,
    tolerance: Tolerance::Elementwise,
    precision: None,
    low_bit: None,
    domain: (-2.0, 2.0),
    cases: &[],
    layer: "",
    aliases: &[],
};

const INPUT: &[Port] = &[tensor_of("input", Kinds::ANY)];
const LEFT_RIGHT: &[Port] = &[tensor("left"), tensor("right")];

/// Elementwise function of one float input (integers become the default float).
pub const fn unary(name: &'static str, doc: &'static str, f: fn(f64) -> f64) -> OpDef {
    OpDef {
        name,
        doc,
        ports: INPUT,
        shape: ShapeRule::Same,
        dtype: DTypeRule::Float,
        eval: Some(Eval::F1(f)),
        ..BLANK
    }
}

/// Elementwise function of two inputs that broadcast and promote.
pub const fn binary(
    name: &'static str,
    doc: &'static str,
    float: fn(f64, f64) -> f64,
    int: fn(i64, i64) -> i64,
) -> OpDef {
    OpDef {
        name,
        doc,
        ports: LEFT_RIGHT,
        shape: ShapeRule::Broadcast,
        dtype: DTypeRule::Arith,
        eval: Some(Eval::F2(float, int)),
        tolerance: Tolerance::Rounded,
        ..BLANK
    }
}

/// Elementwise function of one float input, defined by other ops.
pub const fn composite(name: &'static str, doc: &'static str, expand: ExpandFn) -> OpDef {
    OpDef {
        name,
        doc,
        ports: INPUT,
        shape: ShapeRule::Same,
        dtype: DTypeRule::Float,
        expand: Some(expand),
        ..BLANK
    }
}

/// Converts a default into the literal.
impl DefaultLit {
    /// The literal, `None` when the port must be given.
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

/// The dtype of a `dtype` argument, or the default.
pub fn dtype_or(lit: &Lit, default: DType) -> DType {
    match lit {
        Lit::DType(d) => *d,
        _ => default,
    }
}
