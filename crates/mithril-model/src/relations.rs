//! What a model says to the solver: the relations of its ops, level by level, and what was declared.

use std::sync::Arc;

use mithril_ir::error::Line;
use mithril_ir::op::{DTypeRule, OpDef, PortKind, ShapeRule};
use mithril_ir::rules::{DTypeArg, DTypeCx, ShapeArg, ShapeCx};
use mithril_ir::{
    Builder, Code, DType, Dim, Error, Kinds, Lit, Place, Result, Role, Shape, Tensor, TensorType,
};
use mithril_solve::{Answer, Fact, Facts, Relation, Rule, ShapeTerm, Slot, Solver, WhenFn, Why};
use smallvec::SmallVec;

use crate::key::{Declared, Size};
use crate::leaf::is_random_key;
use crate::literal_fn::LiteralFn;
use crate::model::{Body, Bound, Composite, Leaf, Model, Prim};

/// What stands at a port, for the solver.
#[derive(Clone, Debug)]
pub(crate) enum Term {
    Slot(Slot),
    Lit(Lit),
}

/// Enters the relations of a model whose ports are these. Recursion is as deep as models nest.
pub(crate) fn instantiate(
    solver: &mut Solver,
    model: &Model,
    ins: &[Term],
    outs: &[Slot],
    path: &Arc<str>,
    line: Option<&Line>,
) -> Result<()> {
    match &model.0.body {
        Body::Leaf(leaf) => {
            let place = Place { path: Some(path.clone()), line: line.cloned() };
            for (port, term) in leaf.ports.iter().zip(ins) {
                if let Term::Slot(slot) = term
                    && port.declared != Declared::default()
                {
                    declare(solver, *slot, &port.declared, &format!("{path}.{}", port.name), &place)?;
                }
            }
            relate(solver, leaf, ins, outs, path, place)
        }
        Body::Composite(c) => instantiate_composite(solver, c, ins, outs, path, line),
    }
}

fn instantiate_composite(
    solver: &mut Solver,
    c: &Composite,
    ins: &[Term],
    outs: &[Slot],
    path: &Arc<str>,
    line: Option<&Line>,
) -> Result<()> {
    let mut env: Vec<Option<Term>> = vec![None; c.edges.len()];
    for (&e, term) in c.ports().iter().zip(ins) {
        env[e.index()] = Some(term.clone());
    }
    for ((name, e), &out) in c.outputs().iter().zip(outs) {
        match &env[e.index()] {
            None => env[e.index()] = Some(Term::Slot(out)),
            Some(Term::Slot(slot)) => solver.equate(*slot, out, why(format!("both are `{path}.{name}`")))?,
            Some(Term::Lit(lit)) => set_literal(solver, out, lit, &format!("{path}.{name}"))?,
        }
    }
    let mut terms: Vec<Term> = Vec::with_capacity(env.len());
    for (i, (term, edge)) in env.into_iter().zip(&c.edges).enumerate() {
        let name = || format!("{path}.{}", c.edge_name(crate::model::EdgeId(i as u32)));
        let term = term.unwrap_or_else(|| Term::Slot(solver.slot(name())));
        if let Term::Slot(slot) = term
            && (edge.declared.shape.is_some() || edge.declared.dtype.is_some())
        {
            declare(solver, slot, &edge.declared, &name(), &Place::default())?;
        }
        terms.push(term);
    }
    for child in &c.children {
        let ins: Vec<Term> = child
            .inputs
            .iter()
            .enumerate()
            .map(|(i, bound)| match bound {
                Bound::Edge(e) => terms[e.index()].clone(),
                Bound::Lit(lit) => Term::Lit(lit.clone()),
                Bound::Default => Term::Lit(child.model.port_default(i).cloned().unwrap_or(Lit::None)),
            })
            .collect();
        let outs: Vec<Slot> = child
            .outputs
            .iter()
            .map(|e| match &terms[e.index()] {
                Term::Slot(slot) => *slot,
                Term::Lit(_) => solver.slot(path.clone()),
            })
            .collect();
        let path: Arc<str> = format!("{path}.{}", child.name).into();
        instantiate(solver, &child.model, &ins, &outs, &path, child.line.as_ref().or(line))?;
    }
    Ok(())
}

/// Enters what was declared about a connection.
pub(crate) fn declare(
    solver: &mut Solver,
    slot: Slot,
    declared: &Declared,
    name: &str,
    place: &Place,
) -> Result<()> {
    if let Some(shape) = &declared.shape {
        set_shape(solver, slot, shape, name, place)?;
    }
    if let Some(dtype) = declared.dtype {
        let why = why(format!("`{name}` was declared {dtype}")).at(place.clone());
        solver.set_dtype(slot, dtype, why)?;
    }
    Ok(())
}

/// Enters a shape in which sizes may be unknown.
pub(crate) fn set_shape(
    solver: &mut Solver,
    slot: Slot,
    shape: &[Size],
    name: &str,
    place: &Place,
) -> Result<()> {
    let dims: Shape = shape
        .iter()
        .map(|size| match size {
            Size::Is(dim) => dim.clone(),
            Size::Unknown => solver.fresh_dim(),
        })
        .collect();
    dims.check().map_err(|e| e.note(format!("this is the shape declared for `{name}`")))?;
    let term = ShapeTerm::known(dims);
    let why = why(format!("`{name}` was declared {term}")).at(place.clone());
    solver.set_shape(slot, term, why)
}

/// Enters a constant value, and the shape and dtype that it has as a tensor.
pub(crate) fn set_literal(solver: &mut Solver, slot: Slot, lit: &Lit, name: &str) -> Result<()> {
    let reason = why(format!("`{name}` is a constant"));
    if let Lit::Tensor(t) = lit {
        let shape = Shape::of(t.shape().iter().copied());
        solver.set_shape(slot, shape.into(), reason.clone())?;
        solver.set_dtype(slot, t.dtype(), reason.clone())?;
    } else if lit.is_numeric() {
        solver.set_shape(slot, Shape::scalar().into(), reason.clone())?;
    }
    solver.set_literal(slot, lit.clone(), reason)
}

fn why(text: impl Into<Arc<str>>) -> Why {
    Why::new(text)
}

/// Where an argument of a rule is found.
#[derive(Clone, Debug)]
enum Source {
    Lit(Lit),
    /// Position among the inputs of the relation.
    Input(usize),
}

/// A use of an op, as its rules see it.
#[derive(Clone, Debug)]
struct Use {
    op: &'static OpDef,
    args: SmallVec<[Source; 4]>,
}

fn relate(
    solver: &mut Solver,
    leaf: &Leaf,
    ins: &[Term],
    outs: &[Slot],
    path: &Arc<str>,
    place: Place,
) -> Result<()> {
    let op = match leaf.prim {
        Prim::Op(op) => op,
        Prim::Literal(f) => return relate_literals(solver, f, ins, outs, path, place),
    };
    let native = matches!(op.shape, ShapeRule::Same | ShapeRule::Broadcast | ShapeRule::Pattern(_));
    let mut relation = Relation::new(path.clone(), Rule::Free, [], outs.iter().copied());
    let mut args = SmallVec::new();
    for (i, term) in ins.iter().enumerate() {
        let tensor = op.takes_tensor(i);
        if matches!(term, Term::Lit(Lit::None)) && is_random_key(op, i) {
            args.push(Source::Lit(Tensor::from_parts(&[2], vec![0_i64; 2]).into()));
            continue;
        }
        let slot = match term {
            Term::Slot(slot) => *slot,
            // A plain number bears on no shape; an absent tensor keeps its place in a pattern.
            Term::Lit(lit) if !tensor || !native || !needs_slot(op, lit) => {
                args.push(Source::Lit(lit.clone()));
                continue;
            }
            Term::Lit(lit) => {
                let slot = solver.slot(path.clone());
                set_literal(solver, slot, lit, op.port_of(i).map_or("?", |p| p.name))?;
                slot
            }
        };
        if tensor {
            kinds(solver, op, i, slot, &place)?;
        }
        args.push(Source::Input(relation.inputs.len()));
        relation.inputs.push(slot);
        relation.tensor_ports.push(tensor);
        relation.port_names.push(op.port_of(i).map_or("?", |p| p.name));
    }
    let usage = Arc::new(Use { op, args });
    relation.rule = match op.shape {
        ShapeRule::Same => Rule::Same,
        ShapeRule::Broadcast => Rule::Broadcast,
        ShapeRule::Pattern(text) => Rule::Pattern(text),
        ShapeRule::Fn(_) | ShapeRule::Expansion => {
            let usage = usage.clone();
            Rule::When(Arc::new(move |facts: &[Fact]| usage.shapes(facts)))
        }
    };
    if !matches!(op.dtype, DTypeRule::Expansion) {
        relation.dtype = Some(Arc::new(move |facts: &[Fact]| usage.dtypes(facts)) as WhenFn);
    }
    let text = format!("`{path}` is {}", op.name);
    solver.relate(relation, why(text).at(place))
}

fn needs_slot(op: &OpDef, lit: &Lit) -> bool {
    match op.shape {
        ShapeRule::Broadcast => matches!(lit, Lit::Tensor(_)),
        _ => true,
    }
}

fn kinds(solver: &mut Solver, op: &'static OpDef, i: usize, slot: Slot, place: &Place) -> Result<()> {
    let Some(port) = op.port_of(i) else { return Ok(()) };
    let (PortKind::Tensor(kinds) | PortKind::Optional(kinds) | PortKind::Variadic(kinds)) = port.kind else {
        return Ok(());
    };
    if kinds == Kinds::ANY {
        return Ok(());
    }
    let text = format!("`{}` of {} must be {kinds}", port.name, op.name);
    solver.set_kinds(slot, kinds, why(text).at(place.clone()))
}

fn relate_literals(
    solver: &mut Solver,
    f: LiteralFn,
    ins: &[Term],
    outs: &[Slot],
    path: &Arc<str>,
    place: Place,
) -> Result<()> {
    let mut relation = Relation::new(path.clone(), Rule::Free, [], outs.iter().copied());
    let mut args: SmallVec<[Source; 4]> = SmallVec::new();
    for term in ins {
        match term {
            Term::Lit(lit) => args.push(Source::Lit(lit.clone())),
            Term::Slot(slot) => {
                args.push(Source::Input(relation.inputs.len()));
                relation.inputs.push(*slot);
                relation.tensor_ports.push(f == LiteralFn::Shape);
            }
        }
    }
    relation.rule = Rule::When(Arc::new(move |facts: &[Fact]| {
        let mut values = Vec::with_capacity(args.len());
        for arg in &args {
            let value = match arg {
                Source::Lit(lit) => Some(lit.clone()),
                Source::Input(i) if f == LiteralFn::Shape => {
                    facts[*i].shape.as_ref().and_then(ShapeTerm::to_shape).map(|s| shape_lit(&s))
                }
                Source::Input(i) => facts[*i].literal.clone(),
            };
            let Some(value) = value else { return Ok(Answer::Later) };
            values.push(value);
        }
        match f.eval(&values) {
            Ok(lit) => Ok(Answer::Now(Facts::outputs([Fact::literal(lit)]))),
            Err(error) if error.code() == Code::UnknownArgument => Ok(Answer::Later),
            Err(error) => Err(error),
        }
    }));
    solver.relate(relation, why(format!("`{path}` is computed from shapes")).at(place))
}

/// A shape as a tuple of sizes.
pub(crate) fn shape_lit(shape: &Shape) -> Lit {
    Lit::Tuple(shape.iter().map(|d| Lit::Int(d.clone())).collect())
}

/// What a rule is given for one argument while not everything is known.
enum Known<T> {
    Yes(T),
    Not,
}

impl Use {
    fn shape_arg(&self, i: usize, facts: &[Fact]) -> Known<ShapeArg> {
        let tensor = self.op.takes_tensor(i);
        let of_literal = |lit: &Lit| match lit {
            Lit::Tensor(t) if tensor => ShapeArg::Shape(Shape::of(t.shape().iter().copied())),
            lit if tensor && lit.is_numeric() => ShapeArg::Shape(Shape::scalar()),
            lit => ShapeArg::Lit(lit.clone()),
        };
        match &self.args[i] {
            Source::Lit(lit) => Known::Yes(of_literal(lit)),
            Source::Input(n) => {
                let fact = &facts[*n];
                match (&fact.literal, fact.shape.as_ref().and_then(ShapeTerm::to_shape)) {
                    (Some(lit), _) => Known::Yes(of_literal(lit)),
                    (None, Some(shape)) if tensor => Known::Yes(ShapeArg::Shape(shape)),
                    _ => Known::Not,
                }
            }
        }
    }

    /// The shape rule, as far as it can say something.
    fn shapes(&self, facts: &[Fact]) -> Result<Answer> {
        let mut args: SmallVec<[ShapeArg; 4]> = SmallVec::new();
        for i in 0..self.args.len() {
            match self.shape_arg(i, facts) {
                Known::Yes(arg) => args.push(arg),
                Known::Not => return Ok(Answer::Later),
            }
        }
        let undecided = args.iter().any(has_var);
        let result = match self.op.shape {
            ShapeRule::Fn(f) => {
                let cx = ShapeCx::solving(self.op, &args);
                let shapes = f(&cx);
                let equations = cx.into_equations();
                match shapes {
                    Ok(shapes) => Ok(Facts {
                        outputs: shapes.into_iter().map(Fact::shape).collect(),
                        equations,
                        inputs: Vec::new(),
                    }),
                    // What it demanded before it failed holds in any case. It may decide the sizes that are unknown:
                    // the rule is then asked again, and its error is the one that the user sees.
                    Err(error) if undecided && can_wait(&error) && !equations.is_empty() => {
                        Ok(Facts { equations, ..Facts::default() })
                    }
                    Err(error) => Err(error),
                }
            }
            _ if undecided => return Ok(Answer::Later),
            _ => self.expansion(&args, facts),
        };
        match result {
            Ok(facts) => Ok(Answer::Now(facts)),
            // With sizes still unknown the rule may not be able to decide; it is asked again.
            Err(error) if undecided && can_wait(&error) => Ok(Answer::Later),
            // A size that must be a number is one when data comes.
            Err(error) if matches!(error.code(), Code::UnknownArgument | Code::UnknownShape) => {
                Ok(Answer::Later)
            }
            Err(error) => Err(error),
        }
    }

    /// Shapes and dtypes by building the op in a graph of its own.
    fn expansion(&self, args: &[ShapeArg], facts: &[Fact]) -> Result<Facts> {
        let run = |float: DType| -> Result<Vec<TensorType>> {
            let mut b = Builder::new(float);
            let ids: Vec<_> = args
                .iter()
                .enumerate()
                .map(|(i, arg)| match (arg, &self.args[i]) {
                    (ShapeArg::Lit(lit), _) | (ShapeArg::Shape(_), Source::Lit(lit)) => b.lit(lit.clone()),
                    (ShapeArg::Shape(shape), Source::Input(n)) => {
                        let dtype = facts[*n].dtype.unwrap_or_else(|| self.likely_dtype(i, float));
                        let ty = TensorType { dtype, shape: shape.clone() };
                        b.graph.add_input("input", Role::Data, ty)
                    }
                })
                .collect();
            let outs = b.push(self.op, &ids)?;
            Ok(outs.iter().filter_map(|&v| b.graph.ty(v).cloned()).collect())
        };
        let typed = (0..self.args.len()).all(|i| match &self.args[i] {
            Source::Lit(_) => true,
            Source::Input(n) => !self.op.takes_tensor(i) || facts[*n].dtype.is_some(),
        });
        let (half, double) = (run(DType::F16)?, if typed { run(DType::F64)? } else { Vec::new() });
        let outputs = half.into_iter().enumerate().map(|(i, ty)| {
            let agreed = double.get(i).is_some_and(|d| d.dtype == ty.dtype);
            Fact { dtype: agreed.then_some(ty.dtype), ..Fact::shape(ty.shape) }
        });
        Ok(Facts::outputs(outputs))
    }
    fn likely_dtype(&self, i: usize, float: DType) -> DType {
        match self.op.port_of(i).map(|p| p.kind) {
            Some(PortKind::Tensor(k) | PortKind::Optional(k) | PortKind::Variadic(k)) => {
                default_dtype(k, float)
            }
            _ => float,
        }
    }

    /// The dtype rule. What depends on the default float, which the backend decides, stays open.
    fn dtypes(&self, facts: &[Fact]) -> Result<Answer> {
        let mut args: SmallVec<[DTypeArg; 4]> = SmallVec::new();
        for (i, source) in self.args.iter().enumerate() {
            let arg = match source {
                Source::Lit(Lit::Tensor(t)) if self.op.takes_tensor(i) => Some(DTypeArg::Tensor(t.dtype())),
                Source::Lit(lit) => Some(DTypeArg::Lit(lit.clone())),
                Source::Input(n) => match (&facts[*n].literal, facts[*n].dtype) {
                    (Some(Lit::Tensor(t)), _) if self.op.takes_tensor(i) => Some(DTypeArg::Tensor(t.dtype())),
                    (Some(lit), _) => Some(DTypeArg::Lit(lit.clone())),
                    (None, dtype) => dtype.map(DTypeArg::Tensor),
                },
            };
            let Some(arg) = arg else { return Ok(Answer::Later) };
            args.push(arg);
        }
        let out = |float| DTypeCx::new(self.op, &args, float).apply(self.op.dtype).map(|d| d.out);
        let double = out(DType::F64)?;
        // What half precision alone is refused for depends on the default float as well.
        let is_settled = out(DType::F16).is_ok_and(|half| half == double);
        Ok(if is_settled {
            Answer::Now(Facts::outputs(double.into_iter().map(Fact::dtype)))
        } else {
            Answer::Later
        })
    }
}

/// The dtype of an input about which nothing is said.
pub(crate) fn default_dtype(kinds: Kinds, float: DType) -> DType {
    use mithril_ir::Kind;
    if kinds.has(Kind::Float) {
        float
    } else if kinds.has(Kind::Int) {
        DType::I64
    } else {
        DType::Bool
    }
}

/// Whether an error may go away when more sizes are known.
fn can_wait(error: &Error) -> bool {
    matches!(error.code(), Code::UnknownShape | Code::UnknownArgument | Code::ShapeMismatch | Code::BadSize)
}

fn has_var(arg: &ShapeArg) -> bool {
    match arg {
        ShapeArg::Shape(shape) => shape.iter().any(Dim::has_var),
        ShapeArg::Lit(lit) => lit_has_var(lit),
    }
}

/// Whether a variable of the solver occurs.
pub(crate) fn lit_has_var(lit: &Lit) -> bool {
    match lit {
        Lit::Int(dim) => dim.has_var(),
        Lit::Tuple(items) => items.iter().any(lit_has_var),
        Lit::Slice(parts) => parts.iter().any(lit_has_var),
        _ => false,
    }
}

/// The error that an argument has no value.
#[cold]
pub(crate) fn no_value(path: &str) -> Error {
    Error::new(Code::UnknownArgument, format!("`{path}` needs a value when compiling and has none"))
        .help("give it a value: a literal, `set_values`, or something computed from shapes")
}
