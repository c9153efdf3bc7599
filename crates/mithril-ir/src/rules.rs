//! Evaluation of shape and dtype rules, and access to literal arguments, for a use of an op.

use std::cell::RefCell;

use smallvec::{SmallVec, smallvec};

use crate::dim::Dim;
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result};
use crate::literal::Lit;
use crate::op::{DTypeRule, OpDef, PortKind};
use crate::shape::{self, Shape, normalize_axis};

/// Access to the literal arguments of a use of an op; all contexts implement it.
pub trait Attrs {
    /// The op.
    fn op(&self) -> &'static OpDef;
    /// Literal at port `i`.
    fn lit(&self, i: usize) -> Lit;

    /// An integer, possibly symbolic.
    fn dim(&self, i: usize) -> Result<Dim> {
        match self.lit(i) {
            Lit::Int(d) => Ok(d),
            Lit::Bool(b) => Ok(Dim::Const(b.into())),
            other => Err(self.bad(i, &other, "an integer")),
        }
    }
    /// A known integer.
    fn int(&self, i: usize) -> Result<i64> {
        let dim = self.dim(i)?;
        dim.known().ok_or_else(|| self.symbolic(i, &dim))
    }
    /// A tuple of known integers; one integer counts as a tuple of one.
    fn ints(&self, i: usize) -> Result<Vec<i64>> {
        self.dims(i)?.iter().map(|d| d.known().ok_or_else(|| self.symbolic(i, d))).collect()
    }
    /// `n` integers: a tuple of `n`, or one for all.
    fn ints_n(&self, i: usize, n: usize) -> Result<Vec<i64>> {
        let all = self.ints(i)?;
        match all.len() {
            1 => Ok(vec![all[0]; n]),
            len if len == n => Ok(all),
            _ => Err(self.bad(i, &self.lit(i), &format!("one integer or {n}"))),
        }
    }
    /// A tuple of integers, possibly symbolic; one integer counts as a tuple of one.
    fn dims(&self, i: usize) -> Result<Vec<Dim>> {
        let lit = self.lit(i);
        match &lit {
            Lit::Int(d) => Ok(vec![d.clone()]),
            Lit::Tuple(items) => items
                .iter()
                .map(|item| match item {
                    Lit::Int(d) => Ok(d.clone()),
                    _ => Err(self.bad(i, &lit, "a tuple of integers")),
                })
                .collect(),
            Lit::Tensor(t) if t.dtype().kind() == Kind::Int && t.rank() <= 1 => {
                Ok(t.to_i64s().into_iter().map(Dim::Const).collect())
            }
            _ => Err(self.bad(i, &lit, "an integer or a tuple of integers")),
        }
    }
    /// A number.
    fn f64(&self, i: usize) -> Result<f64> {
        match self.lit(i) {
            Lit::Float(x) => Ok(x),
            Lit::Int(Dim::Const(n)) => Ok(n as f64),
            Lit::Bool(b) => Ok(f64::from(u8::from(b))),
            Lit::Tensor(t) if t.len() == 1 => Ok(t.get(0).f64()),
            other => Err(self.bad(i, &other, "a number")),
        }
    }
    /// A boolean.
    fn bool(&self, i: usize) -> Result<bool> {
        match self.lit(i) {
            Lit::Bool(b) => Ok(b),
            Lit::Int(Dim::Const(n @ (0 | 1))) => Ok(n == 1),
            // Shapes and dtypes are inferred before the mode is known, and do not depend on it.
            Lit::Training => Ok(true),
            other => Err(self.bad(i, &other, "true or false")),
        }
    }
    /// A text.
    fn text(&self, i: usize) -> Result<String> {
        match self.lit(i) {
            Lit::Str(s) => Ok(s.to_string()),
            other => Err(self.bad(i, &other, "a text")),
        }
    }
    /// Whether the argument at port `i` is `none`.
    fn absent(&self, i: usize) -> bool {
        self.lit(i).is_none()
    }
    /// Axes counted from the front, sorted and unique; `none` means all.
    fn axes(&self, i: usize, rank: usize) -> Result<Vec<usize>> {
        if self.absent(i) {
            return Ok((0..rank).collect());
        }
        let mut axes = Vec::new();
        for a in self.ints(i)? {
            axes.push(normalize_axis(a, rank).map_err(|e| self.explain(e))?);
        }
        axes.sort_unstable();
        let count = axes.len();
        axes.dedup();
        if axes.len() < count {
            return Err(self.bad(i, &self.lit(i), "axes that differ"));
        }
        Ok(axes)
    }
    /// One axis counted from the front.
    fn axis(&self, i: usize, rank: usize) -> Result<usize> {
        normalize_axis(self.int(i)?, rank).map_err(|e| self.explain(e))
    }
    /// The error that port `i` has an invalid value; `expected` says what it must be.
    fn bad(&self, i: usize, lit: &Lit, expected: &str) -> Error {
        let port = self.op().port_of(i).map_or("?", |p| p.name);
        Error::new(Code::BadArgument, format!("`{port}` of {} is {lit}", self.op().name))
            .help(format!("`{port}` must be {expected}"))
    }
    /// The error that port `i` must be a number but is symbolic.
    fn symbolic(&self, i: usize, dim: &Dim) -> Error {
        let port = self.op().port_of(i).map_or("?", |p| p.name);
        let message = format!("`{port}` of {} must be a number, but is {dim}", self.op().name);
        Error::new(Code::UnknownShape, message)
            .help("pass the shapes of the inputs to compile, so that it becomes a number")
    }
    /// Adds the name of the op to an error of a general check.
    fn explain(&self, e: Error) -> Error {
        e.note(format!("in the arguments of {}", self.op().name))
    }
}

/// An argument of a shape rule.
#[derive(Clone, Debug)]
pub enum ShapeArg {
    /// A tensor (`[]` for a number in place of one).
    Shape(Shape),
    /// A literal; `none` for an absent tensor.
    Lit(Lit),
}

/// Argument of a shape function.
#[derive(Debug)]
pub struct ShapeCx<'a> {
    op: &'static OpDef,
    args: &'a [ShapeArg],
    /// Equations between dimensions that cannot be decided yet, collected for the solver; `None` if everything must be decided
    /// now.
    equations: Option<RefCell<Vec<(Dim, Dim)>>>,
}

impl Attrs for ShapeCx<'_> {
    fn op(&self) -> &'static OpDef {
        self.op
    }
    fn lit(&self, i: usize) -> Lit {
        match self.args.get(i) {
            Some(ShapeArg::Lit(lit)) => lit.clone(),
            _ => Lit::None,
        }
    }
}

impl<'a> ShapeCx<'a> {
    /// For a typed graph, in which symbols are equal only if they are identical.
    pub fn new(op: &'static OpDef, args: &'a [ShapeArg]) -> Self {
        Self { op, args, equations: None }
    }
    /// For the solver: comparisons that cannot be decided become equations.
    pub fn solving(op: &'static OpDef, args: &'a [ShapeArg]) -> Self {
        Self { op, args, equations: Some(RefCell::default()) }
    }
    /// The collected equations.
    pub fn into_equations(self) -> Vec<(Dim, Dim)> {
        self.equations.map(RefCell::into_inner).unwrap_or_default()
    }
    /// Number of arguments.
    pub fn len(&self) -> usize {
        self.args.len()
    }
    /// Whether there is no argument.
    pub fn is_empty(&self) -> bool {
        self.args.is_empty()
    }
    /// Shape of the tensor at argument `i`; `[]` if it is absent or a literal.
    pub fn shape(&self, i: usize) -> &Shape {
        static SCALAR: std::sync::LazyLock<Shape> = std::sync::LazyLock::new(Shape::scalar);
        match self.args.get(i) {
            Some(ShapeArg::Shape(s)) => s,
            _ => &SCALAR,
        }
    }
    /// Whether argument `i` is a tensor.
    pub fn has(&self, i: usize) -> bool {
        matches!(self.args.get(i), Some(ShapeArg::Shape(_)))
    }
    /// Shapes of all tensors from argument `i` on, for a variadic port.
    pub fn shapes_from(&self, i: usize) -> Vec<&Shape> {
        self.args
            .iter()
            .skip(i)
            .filter_map(|a| if let ShapeArg::Shape(s) = a { Some(s) } else { None })
            .collect()
    }
    /// Checks the rank of argument `i`.
    pub fn rank(&self, i: usize, allowed: &[usize]) -> Result<usize> {
        let shape = self.shape(i);
        if allowed.contains(&shape.rank()) {
            return Ok(shape.rank());
        }
        let expected = allowed.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        let message = format!(
            "{} of {} has {} dimensions: {shape}",
            self.op.argument_name(i),
            self.op.name,
            shape.rank()
        );
        Err(Error::new(Code::RankMismatch, message).help(format!("it must have {expected}")))
    }
    /// Requires two dimensions to be equal; `what` describes them, e.g. "inner sizes".
    pub fn same(&self, a: &Dim, b: &Dim, what: &str) -> Result<()> {
        if a == b {
            return Ok(());
        }
        if let Some(equations) = &self.equations
            && (a.known().is_none() || b.known().is_none())
        {
            equations.borrow_mut().push((a.clone(), b.clone()));
            return Ok(());
        }
        let shapes = self.shapes_from(0).iter().map(|s| s.to_string()).collect::<Vec<_>>().join(", ");
        let help = match self.owners(a, b) {
            [Some(i), Some(j)] if i == j => {
                format!("change {a} to {b}, or {b} to {a}, in {}", self.op.argument_name(i))
            }
            owners => {
                let [of_a, of_b] = owners
                    .map(|i| i.map_or_else(String::new, |i| format!(" in {}", self.op.argument_name(i))));
                format!("change {a} to {b}{of_a}, or {b} to {a}{of_b}")
            }
        };
        Err(Error::new(Code::ShapeMismatch, format!("{what} of {} differ: {a} and {b}", self.op.name))
            .note(format!("the shapes are {shapes}"))
            .help(help))
    }
    /// The arguments that two sizes belong to. Rules mostly pass sizes of the arguments themselves; of what was computed
    /// the value tells, and two sizes are rather those of two arguments.
    fn owners(&self, a: &Dim, b: &Dim) -> [Option<usize>; 2] {
        let having = |is_it: &dyn Fn(&Dim) -> bool| -> Vec<usize> {
            let has = |a: &ShapeArg| matches!(a, ShapeArg::Shape(shape) if shape.iter().any(is_it));
            (0..self.args.len()).filter(|&i| has(&self.args[i])).collect()
        };
        let candidates = |size: &Dim| {
            let own = having(&|d| std::ptr::eq(d, size));
            if own.is_empty() { having(&|d| d == size) } else { own }
        };
        let [of_a, of_b] = [candidates(a), candidates(b)];
        let i = of_a.iter().find(|i| of_b.iter().any(|j| j != *i)).or(of_a.first()).copied();
        let j = of_b.iter().find(|j| Some(**j) != i).or(of_b.first()).copied();
        [i, j]
    }
    /// The error of a rule that needs sizes which are not known yet; the solver evaluates the rule again later.
    pub fn unknown(&self) -> Error {
        unknown(self.op)
    }
    /// Broadcasts shapes. While solving, undecided sizes are [`Code::UnknownShape`]; the solver evaluates the rule again later.
    pub fn broadcast(&self, shapes: &[&Shape]) -> Result<Shape> {
        shape::broadcast(shapes).map_err(|e| {
            let undecided = shapes.iter().any(|s| s.iter().any(Dim::has_var));
            if self.equations.is_some() && undecided { unknown(self.op) } else { self.explain(e) }
        })
    }
}

fn unknown(op: &OpDef) -> Error {
    Error::new(Code::UnknownShape, format!("the shapes of {} are not known yet", op.name))
        .help("declare the shapes of the inputs, or pass shapes={...} when compiling")
}

/// An argument of a dtype rule.
#[derive(Clone, Debug)]
pub enum DTypeArg {
    /// A tensor of that dtype.
    Tensor(DType),
    /// A literal.
    Lit(Lit),
}

/// Argument of a dtype function.
#[derive(Debug)]
pub struct DTypeCx<'a> {
    op: &'static OpDef,
    args: &'a [DTypeArg],
    /// The default float, to which integers are converted.
    pub float: DType,
}

impl Attrs for DTypeCx<'_> {
    fn op(&self) -> &'static OpDef {
        self.op
    }
    fn lit(&self, i: usize) -> Lit {
        match self.args.get(i) {
            Some(DTypeArg::Lit(lit)) => lit.clone(),
            _ => Lit::None,
        }
    }
}

/// Result of a dtype rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DTypes {
    /// For each argument the dtype that it is converted to; `None` leaves it unchanged.
    pub cast: SmallVec<[Option<DType>; 4]>,
    /// Dtypes of the outputs.
    pub out: SmallVec<[DType; 1]>,
}

impl DTypes {
    /// Nothing is converted.
    pub fn keep(out: impl IntoIterator<Item = DType>) -> Self {
        Self { cast: smallvec![], out: out.into_iter().collect() }
    }
    /// All tensors are converted to `to`.
    pub fn all(cx: &DTypeCx<'_>, to: DType, out: impl IntoIterator<Item = DType>) -> Self {
        let cast = (0..cx.args.len()).map(|i| cx.is_tensor(i).then_some(to)).collect();
        Self { cast, out: out.into_iter().collect() }
    }
}

impl<'a> DTypeCx<'a> {
    /// For a use of `op`.
    pub fn new(op: &'static OpDef, args: &'a [DTypeArg], float: DType) -> Self {
        Self { op, args, float }
    }
    /// Number of arguments.
    pub fn len(&self) -> usize {
        self.args.len()
    }
    /// Whether there is no argument.
    pub fn is_empty(&self) -> bool {
        self.args.is_empty()
    }
    /// Whether argument `i` is a tensor or a number in its place.
    pub fn is_tensor(&self, i: usize) -> bool {
        match &self.args[i] {
            DTypeArg::Tensor(_) => true,
            DTypeArg::Lit(lit) => self.op.takes_tensor(i) && lit.is_numeric(),
        }
    }
    /// Dtype of the tensor at argument `i` (of a number: the one it suggests).
    pub fn dtype(&self, i: usize) -> Option<DType> {
        match self.args.get(i)? {
            DTypeArg::Tensor(d) => Some(*d),
            DTypeArg::Lit(lit) if self.op.takes_tensor(i) => lit.weak_dtype(self.float),
            DTypeArg::Lit(_) => None,
        }
    }
    /// Whether argument `i` is a plain number in the place of a tensor.
    pub fn is_number(&self, i: usize) -> bool {
        matches!(self.args.get(i), Some(DTypeArg::Lit(lit)) if lit.is_numeric()) && self.op.takes_tensor(i)
    }
    /// The common dtype of all tensors and numbers; numbers never promote a tensor of their kind.
    pub fn promoted(&self) -> DType {
        let mut strong: Option<DType> = None;
        let mut weak: Option<DType> = None;
        for i in 0..self.args.len() {
            let (slot, dtype) = match &self.args[i] {
                DTypeArg::Tensor(d) => (&mut strong, Some(*d)),
                DTypeArg::Lit(_) => (&mut weak, self.dtype(i)),
            };
            if let Some(d) = dtype {
                *slot = Some(slot.map_or(d, |s| s.promote(d)));
            }
        }
        match (strong, weak) {
            (Some(s), Some(w)) if w.kind() <= s.kind() => s,
            (Some(s), Some(w)) => s.promote(w),
            (Some(d), None) | (None, Some(d)) => d,
            (None, None) => self.float,
        }
    }
    /// The dtype of a comparison; if the common dtype cannot represent one of the numbers, int64, or float64 for uint64, in
    /// which no number becomes negative.
    fn compared(&self) -> DType {
        let d = self.promoted();
        let fits = (0..self.args.len()).all(|i| self.known_int(i).is_none_or(|n| d.holds(n)));
        match d {
            d if fits => d,
            DType::U64 => DType::F64,
            _ => DType::I64,
        }
    }
    /// The integer at argument `i`, if it is a literal and known.
    fn known_int(&self, i: usize) -> Option<i128> {
        match self.args.get(i)? {
            DTypeArg::Lit(Lit::Int(n)) => n.known().map(i128::from),
            DTypeArg::Lit(Lit::Tensor(t)) if t.rank() == 0 && !t.dtype().is_float() => Some(t.get(0).int()),
            _ => None,
        }
    }
    /// An error if argument `i` is an integer that `dtype` cannot represent.
    pub fn check_int(&self, i: usize, dtype: DType) -> Result<()> {
        let Some(n) = self.known_int(i).filter(|&n| !dtype.holds(n)) else { return Ok(()) };
        let port = self.op.argument_name(i);
        let (least, most) = dtype.int_range().unwrap_or_default();
        let message = format!("{port} of {} is {n}, which {} cannot hold", self.op.name, dtype.name());
        let mut wider = [DType::I16, DType::I32, DType::I64, DType::U64].into_iter();
        let wider = wider.find(|d| d.holds(n) && d.holds(least) && d.holds(most)).unwrap_or(DType::I64);
        Err(Error::new(Code::Numerics, message)
            .note(format!("{} holds numbers from {least} to {most}", dtype.name()))
            .help(format!("use a number between these, or {} for the tensor: `cast`", wider.name())))
    }
    /// Evaluates a rule.
    pub fn apply(&self, rule: DTypeRule) -> Result<DTypes> {
        self.check_kinds()?;
        let dtypes = self.evaluate(rule)?;
        self.check_signs(&dtypes)?;
        // A number among tensors has their dtype.
        for (i, to) in dtypes.cast.iter().enumerate() {
            to.map_or(Ok(()), |to| self.check_int(i, to))?;
        }
        Ok(dtypes)
    }
    /// An error if tensors of `u64` and of a signed dtype are to promote.
    fn check_signs(&self, dtypes: &DTypes) -> Result<()> {
        let promoted: SmallVec<[(DType, DType); 4]> = (self.args.iter().zip(&dtypes.cast))
            .filter_map(|(arg, to)| match (arg, to) {
                (DTypeArg::Tensor(from), Some(to)) if to.kind() == Kind::Int => Some((*from, *to)),
                _ => None,
            })
            .collect();
        for (i, (a, to)) in promoted.iter().enumerate() {
            let mut later = promoted[i + 1..].iter().filter(|(_, other)| other == to);
            if let Some((b, _)) = later.find(|(b, _)| !a.mixes_with(*b)) {
                let message =
                    format!("{} of {} and {}: no dtype holds both", self.op.name, a.name(), b.name());
                return Err(Error::new(Code::BadDType, message)
                    .note("uint64 holds numbers from 0 to 18446744073709551615, signed integers hold negative ones")
                    .help("convert one of them: `cast`"));
            }
        }
        Ok(())
    }
    fn evaluate(&self, rule: DTypeRule) -> Result<DTypes> {
        let outputs = self.op.outputs.len();
        let all = |to: DType, out: DType| DTypes::all(self, to, std::iter::repeat_n(out, outputs));
        Ok(match rule {
            DTypeRule::Arith => {
                let d = Some(self.promoted()).filter(|d| d.kind() != Kind::Bool).unwrap_or(DType::I64);
                all(d, d)
            }
            DTypeRule::Promote => {
                let d = self.promoted();
                all(d, d)
            }
            DTypeRule::Float => {
                let d = Some(self.promoted()).filter(|d| d.is_float()).unwrap_or(self.float);
                all(d, d)
            }
            DTypeRule::Compare => all(self.compared(), DType::Bool),
            DTypeRule::Logical => all(DType::Bool, DType::Bool),
            DTypeRule::Same(i) => {
                DTypes::keep(std::iter::repeat_n(self.dtype(i).unwrap_or(self.float), outputs))
            }
            DTypeRule::Fn(f) => f(self)?,
            DTypeRule::Expansion => DTypes::keep([]),
        })
    }
    fn check_kinds(&self) -> Result<()> {
        for i in 0..self.args.len() {
            let Some(port) = self.op.port_of(i) else { continue };
            let (PortKind::Tensor(kinds) | PortKind::Optional(kinds) | PortKind::Variadic(kinds)) = port.kind
            else {
                continue;
            };
            if let Some(d) = self.dtype(i).filter(|d| !kinds.has(d.kind())) {
                let message = format!("{} of {} is {}", self.op.argument_name(i), self.op.name, d.name());
                return Err(Error::new(Code::DTypeMismatch, message)
                    .help(format!("it must be {kinds}; convert it with cast")));
            }
        }
        Ok(())
    }
}
