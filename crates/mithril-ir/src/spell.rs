//! What a spelling function sees of a use of an op: expressions, literals and types as a target needs them.
//!
//! The writer decides about names and brackets after the spelling is known. So the text of a tensor input, and of
//! a symbol in a size, is a mark that stands for it ([`arg_mark`], [`symbol_mark`]); a spelling function pastes
//! them like any expression and need not put brackets around them.

use std::fmt::Write as _;

use crate::dim::{Atom, Dim, Symbol};
use crate::dtype::DType;
use crate::graph::{Def, Graph, Node, Role, TensorType, ValueId};
use crate::literal::Lit;
use crate::op::OpDef;
use crate::rules::Attrs;
use crate::tensor::Scalar;

/// Opens a mark.
pub const MARK: char = '\u{1}';
/// Closes a mark.
pub const MARK_END: char = '\u{2}';

/// Argument of [`crate::op::Text::F`].
#[derive(Debug)]
pub struct SpellCx<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
    /// Expressions of the inputs, in brackets where needed: tensors, or literals as Python writes them.
    pub args: &'a [String],
    /// The array module (`np`, `torch`, `jnp`, `mx`).
    pub xp: &'a str,
    /// How the target writes dtypes; empty for one that it lacks.
    pub dtypes: fn(DType) -> &'static str,
}

impl Attrs for SpellCx<'_> {
    fn op(&self) -> &'static OpDef {
        self.node.op
    }
    fn lit(&self, i: usize) -> Lit {
        self.node.inputs.get(i).and_then(|&v| self.graph.lit(v)).cloned().unwrap_or(Lit::None)
    }
}

impl SpellCx<'_> {
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
    /// Whether nobody differentiates with respect to input `i`: it depends on no parameter of the model. An op that
    /// is applied at once has no parameters; there nothing is certain.
    pub fn is_fixed(&self, i: usize) -> bool {
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
    /// A size as an expression (`2 * batch + 1`); never write a symbol's name yourself.
    pub fn dim(&self, dim: &Dim) -> String {
        dim_text(dim, &symbol_mark)
    }
    /// Input `i` as a tensor of PyTorch, some of whose functions take no numbers; `dtype` is what a number becomes.
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
    /// Input `i` as an array of MLX, for helpers that take no numbers; those get the dtype of the output.
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

/// The mark of tensor input `i`.
pub fn arg_mark(i: usize) -> String {
    format!("{MARK}{i}{MARK_END}")
}

/// The mark of a symbol. Hexadecimal, since a symbol may have any name.
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
        // Only a quotient that is the whole term needs no brackets.
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

fn atom_text(atom: &Atom, alone: bool, symbol: &dyn Fn(&Symbol) -> String) -> String {
    match atom {
        Atom::Symbol(s) => symbol(s),
        Atom::Div(a, b) => {
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
