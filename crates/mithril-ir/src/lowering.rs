//! Lowerings: how each target writes an op.
//!
//! A [`Lowering`] has one [`LoweringRule`] per target, a template or a function. A function sees the use of the op through a
//! [`LoweringCx`]: expressions, literals and types as the target needs them. Names and brackets are decided later, by the
//! code generator. So the text of a tensor input, and of a symbol in a size, is a mark that stands for it ([`arg_mark`],
//! [`symbol_mark`]); a function inserts marks like any expression and need not put brackets around them.

use std::fmt::Write as _;

use crate::dim::{Dim, DimFactor, Symbol};
use crate::dtype::DType;
use crate::graph::{Def, Graph, Node, Role, TensorType, ValueId};
use crate::literal::Lit;
use crate::op::OpDef;
use crate::rules::Attrs;
use crate::tensor::Scalar;

/// How one target writes an op.
#[derive(Debug, Clone, Copy)]
pub enum LoweringRule {
    /// The target has no code for the op.
    None,
    /// A template: `{0}` is the expression of input 0 (a tensor, or a literal in Python's syntax), `{name}` that of the port
    /// of this name, `{*}` all inputs of the variadic last port separated by commas, `{xp}` the array module, `{dtype}` the
    /// dtype of the first output, `{shape}` its shape as a tuple; `{{` and `}}` are braces. Operands get brackets where they
    /// need them. A name with a leading underscore (`_erf({0})`) is a helper of the target's prelude. The template of an op
    /// with several outputs is a tuple of them.
    Template(&'static str),
    /// A function that returns the code, in which braces are plain text; `None` if the target cannot express this use of
    /// the op.
    Function(fn(&LoweringCx<'_>) -> Option<String>),
}

/// How the targets write an op.
#[derive(Debug, Clone, Copy)]
pub struct Lowering {
    /// All Python targets, where they have no rule of their own.
    pub py: LoweringRule,
    /// NumPy.
    pub numpy: LoweringRule,
    /// NumPy, where the memory of input 0 may be reused for the result: the caller donated it and nothing else reads it. The
    /// value of the expression is the result.
    pub numpy_in_place: LoweringRule,
    /// PyTorch.
    pub torch: LoweringRule,
    /// PyTorch, where the memory of input 0 may be reused for the result.
    pub torch_in_place: LoweringRule,
    /// PyTorch, for many uses of the op in one call: operands are lists of tensors of one shape each, or what all uses
    /// share, which has no dimensions; the value is a list. The text starts with the name of the function, to which an
    /// underscore is added where the memory of input 0 may be reused.
    pub torch_foreach: LoweringRule,
    /// JAX.
    pub jax: LoweringRule,
    /// JAX, where the tensors of the variadic input are the items of one array along its first axis, which is what its first
    /// place stands for.
    pub jax_stacked: LoweringRule,
    /// MLX.
    pub mlx: LoweringRule,
    /// A user-defined backend, which has no array module.
    pub custom: LoweringRule,
    /// A scalar expression of C over elements; [`crate::loops`] lists the placeholders.
    pub c: LoweringRule,
    /// A call of ggml.
    pub ggml: LoweringRule,
    /// Ops of ONNX; `mithril-onnx` `export/parse.rs` has the grammar.
    pub onnx: LoweringRule,
}

impl Lowering {
    /// No target has code for the op: all of them expand it.
    pub const NONE: Self = Self {
        py: LoweringRule::None,
        numpy: LoweringRule::None,
        numpy_in_place: LoweringRule::None,
        torch: LoweringRule::None,
        torch_in_place: LoweringRule::None,
        torch_foreach: LoweringRule::None,
        jax: LoweringRule::None,
        jax_stacked: LoweringRule::None,
        mlx: LoweringRule::None,
        custom: LoweringRule::None,
        c: LoweringRule::None,
        ggml: LoweringRule::None,
        onnx: LoweringRule::None,
    };
    /// One template for all Python targets.
    pub const fn py(template: &'static str) -> Self {
        Self { py: LoweringRule::Template(template), ..Self::NONE }
    }
    /// One template for NumPy alone.
    pub const fn numpy(template: &'static str) -> Self {
        Self { numpy: LoweringRule::Template(template), ..Self::NONE }
    }
}

/// Opens a mark.
pub const MARK: char = '\u{1}';
/// Closes a mark.
pub const MARK_END: char = '\u{2}';

/// Argument of [`LoweringRule::Function`].
#[derive(Debug)]
pub struct LoweringCx<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
    /// Expressions of the inputs, in brackets where needed: tensors, or literals as Python writes them.
    pub args: &'a [String],
    /// The array module (`np`, `torch`, `jnp`, `mx`).
    pub xp: &'a str,
    /// The target's names of dtypes; empty for a dtype that it does not have.
    pub dtypes: fn(DType) -> &'static str,
    /// Whether many uses of the op are written in one call for a CPU.
    pub on_cpu: bool,
    /// Inputs that many uses of the op in one call may write into.
    pub donated: &'a [usize],
}

impl Attrs for LoweringCx<'_> {
    fn op(&self) -> &'static OpDef {
        self.node.op
    }
    fn lit(&self, i: usize) -> Lit {
        self.node.inputs.get(i).and_then(|&v| self.graph.lit(v)).cloned().unwrap_or(Lit::None)
    }
}

impl<'a> LoweringCx<'a> {
    /// A context that knows the attributes and types of a node, and nothing about a target.
    pub fn of(graph: &'a Graph, node: &'a Node) -> Self {
        Self { graph, node, args: &[], xp: "", dtypes: |_| "", on_cpu: false, donated: &[] }
    }
    /// Expression of input `i`.
    pub fn arg(&self, i: usize) -> &str {
        self.args.get(i).map_or("None", String::as_str)
    }
    /// Type of input `i`, if it is a tensor.
    pub fn ty(&self, i: usize) -> Option<&TensorType> {
        self.node.inputs.get(i).and_then(|&v| self.graph.ty(v))
    }
    /// Type of output `i`.
    pub fn out(&self, i: usize) -> Option<&TensorType> {
        self.node.outputs.get(i).and_then(|&v| self.graph.ty(v))
    }
    /// Whether input `i` is a list where the op is applied to many tensors in one call, not something that they share.
    pub fn is_list(&self, i: usize) -> bool {
        is_list(self.graph, self.node, i)
    }
    /// Whether no gradient with respect to input `i` is needed, since it depends on no parameter of the model. False for an
    /// op that is applied eagerly: its graph has no parameters, so that this is not known.
    pub fn is_constant(&self, i: usize) -> bool {
        let is_param = |v: &ValueId| self.graph.value(*v).def == Def::Input(Role::Param);
        let mut open: Vec<ValueId> = self.node.inputs.get(i).copied().into_iter().collect();
        let mut seen = vec![false; self.graph.values().len()];
        while let Some(v) = open.pop() {
            if is_param(&v) {
                return false;
            }
            if !std::mem::replace(&mut seen[v.index()], true)
                && let Some(id) = self.graph.producer(v)
            {
                open.extend(&self.graph.node(id).inputs);
            }
        }
        self.graph.inputs.iter().any(is_param)
    }
    /// A dtype as the target writes it (`np.float32`).
    pub fn dtype(&self, dtype: DType) -> &'static str {
        (self.dtypes)(dtype)
    }
    /// A size as an expression (`2 * batch + 1`). The names of symbols are chosen later, so use this rather than the symbol's
    /// own name.
    pub fn dim(&self, dim: &Dim) -> String {
        dim_text(dim, &symbol_mark)
    }
    /// Input `i` as a tensor of PyTorch, some of whose functions do not accept numbers; a number becomes a tensor of `dtype`.
    pub fn torch_tensor(&self, i: usize, dtype: DType) -> String {
        let float = |x: f64| match x {
            x if x.is_nan() => "torch.nan".into(),
            x if x.is_infinite() => format!("{}torch.inf", if x < 0.0 { "-" } else { "" }),
            x => format!("{x:?}"),
        };
        let number = match self.lit(i) {
            Lit::Tensor(t) if t.rank() == 0 => match t.get(0) {
                Scalar::Bool(b) => i64::from(b).to_string(),
                Scalar::Int(n) => n.to_string(),
                Scalar::Float(x) => float(x),
            },
            Lit::Bool(b) => i64::from(b).to_string(),
            Lit::Int(n) => self.dim(&n),
            Lit::Float(x) => float(x),
            _ => return self.arg(i).to_owned(),
        };
        format!("torch.full((), {number}, dtype={}, device=device)", self.dtype(dtype))
    }
    /// Input `i` as an array of MLX, for helpers that do not accept numbers; a number gets the dtype of the output.
    pub fn mlx_array(&self, i: usize) -> String {
        let lit = self.lit(i);
        let is_number = lit.is_numeric() && !matches!(lit, Lit::Tensor(t) if t.rank() > 0);
        let dtype = self.out(0).filter(|_| is_number).map(|t| self.dtype(t.dtype));
        dtype.map_or(self.arg(i).to_owned(), |dtype| format!("mx.array({}, dtype={dtype})", self.arg(i)))
    }
    /// Sizes as a tuple.
    pub fn dims(&self, dims: &[Dim]) -> String {
        tuple(dims.iter().map(|d| self.dim(d)))
    }
}

/// Whether input `i` of a node is a tensor of its own where the op is applied to many tensors in one call: all that is not
/// a literal and has dimensions.
pub fn is_list(graph: &Graph, node: &Node, i: usize) -> bool {
    node.inputs
        .get(i)
        .is_some_and(|&v| graph.lit(v).is_none() && graph.ty(v).is_some_and(|ty| ty.shape.rank() > 0))
}

/// The mark of tensor input `i`.
pub fn arg_mark(i: usize) -> String {
    format!("{MARK}{i}{MARK_END}")
}

/// The mark of a symbol, in hexadecimal since a symbol may have any name.
pub fn symbol_mark(symbol: &Symbol) -> String {
    let mut mark = format!("{MARK}$");
    for byte in symbol.to_string().bytes() {
        let _ = write!(mark, "{byte:02x}");
    }
    mark.push(MARK_END);
    mark
}

/// A Python tuple of expressions.
pub fn tuple(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<String> = items.into_iter().collect();
    match items.as_slice() {
        [one] => format!("({one},)"),
        _ => format!("({})", items.join(", ")),
    }
}

/// A size as a Python expression, with symbols as `symbol` writes them.
pub fn dim_text(dim: &Dim, symbol: &dyn Fn(&Symbol) -> String) -> String {
    let (terms, constant) = dim.parts();
    if terms.is_empty() {
        return constant.to_string();
    }
    let mut out = String::new();
    for (factors, coefficient) in terms {
        out.push_str(match (out.is_empty(), *coefficient < 0) {
            (true, true) => "-",
            (true, false) => "",
            (false, true) => " - ",
            (false, false) => " + ",
        });
        let size = coefficient.unsigned_abs();
        // A quotient needs no brackets if it is the whole term.
        let alone = factors.len() == 1 && *coefficient == 1;
        let factors = factors.iter().map(|f| atom_text(f, alone, symbol));
        let number = (size != 1).then(|| size.to_string());
        out.push_str(&number.into_iter().chain(factors).collect::<Vec<_>>().join(" * "));
    }
    match constant {
        0 => {}
        c if c < 0 => _ = write!(out, " - {}", c.unsigned_abs()),
        c => _ = write!(out, " + {c}"),
    }
    out
}

fn atom_text(atom: &DimFactor, alone: bool, symbol: &dyn Fn(&Symbol) -> String) -> String {
    match atom {
        DimFactor::Symbol(s) => symbol(s),
        DimFactor::Div(a, b) => {
            let side = |d: &Dim| match d {
                Dim::Const(n) if *n >= 0 => n.to_string(),
                d if d.as_symbol().is_some() => dim_text(d, symbol),
                d => format!("({})", dim_text(d, symbol)),
            };
            let quotient = format!("{} // {}", side(a), side(b));
            if alone { quotient } else { format!("({quotient})") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_python_expressions() {
        let n = Dim::symbol("n");
        let text = |d: &Dim| dim_text(d, &ToString::to_string);
        let half = (&n + &Dim::ONE).floor_div(&Dim::Const(2));
        assert_eq!(text(&half), "(n + 1) // 2");
        assert_eq!(text(&(&half * &Dim::Const(2))), "2 * ((n + 1) // 2)");
        assert_eq!(text(&(&(&n * &Dim::Const(-3)) - &Dim::Const(4))), "-3 * n - 4");
        assert_eq!(text(&Dim::Const(-4)), "-4");
    }
}
