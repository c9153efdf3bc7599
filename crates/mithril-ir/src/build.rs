//! Builder of typed graphs: every new node gets its dtype and shape at once.
//!
//! [`Builder::push`] is the forward half of inference: it fills in defaults, promotes dtypes (inserting `cast`
//! nodes), applies the shape rule and checks sizes. Expansions and gradients are formulas ([`crate::formula`]).

use std::sync::Arc;

use smallvec::SmallVec;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Place, Result};
use crate::formula::{Cx, ExpandCx, V};
use crate::graph::{Graph, OriginId, TensorType, ValueId, Values};
use crate::literal::Lit;
use crate::op::{Attr, DTypeRule, Eval, ExpandFn, OpDef, Port, PortKind, ShapeRule};
use crate::ops::{elementwise as e, find};
use crate::pattern;
use crate::rules::{Attrs, DTypeArg, DTypeCx, DTypes, ShapeArg, ShapeCx};
use crate::shape::{self, Shape};
use crate::tensor::{Scalar, Tensor};

/// Largest depth of nested expansions (attention → softmax → exp); more means that an op expands into itself.
const MAX_DEPTH: usize = 32;

/// Builds a typed graph.
#[derive(Debug)]
pub struct Builder {
    /// The graph so far.
    pub graph: Graph,
    /// The default float, to which integers and numbers are converted.
    pub float: DType,
    origin: OriginId,
    depth: usize,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new(DType::F32)
    }
}

impl Builder {
    /// An empty graph with that default float.
    pub fn new(float: DType) -> Self {
        Self::extend(Graph::new(), float)
    }
    /// Continues a graph.
    pub fn extend(mut graph: Graph, float: DType) -> Self {
        let origin = graph.add_origin(Place::default());
        Self { graph, float, origin, depth: 0 }
    }
    /// The place that new nodes belong to.
    pub fn set_origin(&mut self, place: Place) {
        self.origin = self.graph.add_origin(place);
    }
    /// The place that new nodes belong to.
    pub fn place(&self) -> Place {
        self.graph.origins()[self.origin.index()].clone()
    }
    /// The value of a literal.
    pub fn lit(&mut self, lit: impl Into<Lit>) -> ValueId {
        self.graph.add_literal(lit.into())
    }
    /// Adds a use of `op` and returns its outputs. Missing trailing arguments take their defaults.
    pub fn push(&mut self, op: &'static OpDef, args: &[ValueId]) -> Result<Values> {
        let place = self.graph.origins()[self.origin.index()].clone();
        self.push_inner(op, args).map_err(|error| error.at(&place))
    }

    /// Adds a use of `op` with known types, as passes do that copy nodes; nothing is checked.
    pub fn push_typed(
        &mut self,
        op: &'static OpDef,
        inputs: Values,
        types: impl IntoIterator<Item = TensorType>,
    ) -> Values {
        let node = self.graph.add_node(op, inputs, types, self.origin);
        self.graph.node(node).outputs.clone()
    }

    fn push_inner(&mut self, op: &'static OpDef, args: &[ValueId]) -> Result<Values> {
        let mut inputs = self.complete(op, args)?;
        let dtypes = self.dtypes(op, &inputs)?;
        self.convert(op, &mut inputs, &dtypes)?;
        let types = self.types(op, &inputs, &dtypes)?;
        for ty in &types {
            ty.shape.check()?;
        }
        let node = self.graph.add_node(op, inputs, types, self.origin);
        Ok(self.graph.node(node).outputs.clone())
    }

    /// Fills in defaults and checks the kind of the value at each port.
    fn complete(&mut self, op: &'static OpDef, args: &[ValueId]) -> Result<Values> {
        if args.len() > op.ports.len() && !op.is_variadic() {
            let message =
                format!("{} takes {} inputs, but {} are given", op.name, op.ports.len(), args.len());
            return Err(Error::new(Code::BadArgument, message));
        }
        let mut inputs = Values::from_slice(args);
        for port in op.ports.iter().skip(args.len()) {
            if matches!(port.kind, PortKind::Variadic(_)) {
                break;
            }
            let lit = port.default.lit().ok_or_else(|| missing(op, port))?;
            inputs.push(self.graph.add_literal(lit));
        }
        for (i, v) in inputs.iter_mut().enumerate() {
            let Some(port) = op.port_of(i) else { continue };
            if let (PortKind::Attr(kind), Some(lit @ Lit::Str(_))) = (port.kind, self.graph.lit(*v)) {
                let read = kind.read(lit.clone())?;
                if read != *lit {
                    *v = self.graph.add_literal(read);
                }
            }
            let lit = self.graph.lit(*v);
            let fits = match port.kind {
                PortKind::Attr(kind) => lit.is_some_and(|l| attr_fits(kind, l)),
                PortKind::Optional(_) => lit.is_none_or(|l| l.is_numeric() || l.is_none()),
                PortKind::Tensor(_) | PortKind::Variadic(_) => lit.is_none_or(Lit::is_numeric),
            };
            if !fits {
                return Err(match lit {
                    Some(Lit::None) => missing(op, port),
                    _ => invalid_argument(op, port, lit),
                });
            }
        }
        Ok(inputs)
    }

    fn dtypes(&self, op: &'static OpDef, inputs: &[ValueId]) -> Result<DTypes> {
        let args: SmallVec<[DTypeArg; 4]> = inputs
            .iter()
            .map(|&v| match self.graph.lit(v) {
                Some(lit) if !matches!(lit, Lit::Tensor(_)) => DTypeArg::Lit(lit.clone()),
                _ => DTypeArg::Tensor(self.graph.ty(v).map_or(self.float, |t| t.dtype)),
            })
            .collect();
        DTypeCx::new(op, &args, self.float).apply(op.dtype)
    }

    /// Inserts casts, and converts numbers to tensors where they cannot stay literals: targets agree on the dtype of a number
    /// only if there is a tensor of its kind or a wider one.
    fn convert(&mut self, op: &'static OpDef, inputs: &mut Values, dtypes: &DTypes) -> Result<()> {
        let elementwise = matches!(op.eval, Some(Eval::F1(_) | Eval::F2(..) | Eval::Scalar(_)))
            || matches!(op.shape, ShapeRule::Broadcast);
        let to = |i: usize| dtypes.cast.get(i).copied().flatten();
        for i in 0..inputs.len() {
            let Some(ty) = self.graph.ty(inputs[i]) else { continue };
            if let Some(to) = to(i).filter(|to| *to != ty.dtype && op.takes_tensor(i)) {
                inputs[i] = self.cast(inputs[i], to)?;
            }
        }
        for i in 0..inputs.len() {
            let Some(lit) = self.graph.lit(inputs[i]) else { continue };
            let Some(weak) = lit.weak_dtype(self.float).filter(|_| op.takes_tensor(i)) else { continue };
            let beside = |v: &ValueId| self.graph.ty(*v).is_some_and(|t| t.dtype.kind() >= weak.kind());
            if !(elementwise && inputs.iter().any(beside)) {
                inputs[i] = self.materialize(lit.clone(), to(i).unwrap_or(weak))?;
            }
        }
        Ok(())
    }

    fn cast(&mut self, v: ValueId, to: DType) -> Result<ValueId> {
        if let Some(Lit::Tensor(t)) = self.graph.lit(v) {
            let cast = t.cast(to);
            return Ok(self.graph.add_literal(cast.into()));
        }
        let to = self.graph.add_literal(Lit::DType(to));
        Ok(self.push_inner(&e::CAST, &[v, to])?[0])
    }

    /// A 0-d tensor of a number.
    pub(crate) fn materialize(&mut self, lit: Lit, dtype: DType) -> Result<ValueId> {
        let scalar = match lit {
            Lit::Bool(b) => Scalar::Bool(b),
            Lit::Float(x) => Scalar::Float(x),
            Lit::Int(Dim::Const(n)) => Scalar::from(n),
            Lit::Int(dim) => {
                // A size that is known only at run time: a 0-d tensor filled with it.
                let shape = self.lit(Lit::Tuple([].into()));
                let value = self.lit(dim);
                let dtype = self.lit(dtype);
                let full = find("full").ok_or_else(|| Error::internal("there is no op `full`"))?;
                return Ok(self.push_inner(full, &[shape, value, dtype])?[0]);
            }
            other => return Err(Error::internal(format!("{other} is used as a tensor"))),
        };
        Ok(self.graph.add_literal(Tensor::scalar(dtype, scalar).into()))
    }

    fn types(&mut self, op: &'static OpDef, inputs: &[ValueId], dtypes: &DTypes) -> Result<Vec<TensorType>> {
        let by_expansion =
            matches!(op.shape, ShapeRule::Expansion) || matches!(op.dtype, DTypeRule::Expansion);
        let expanded = if by_expansion { self.expansion_types(op, inputs)? } else { Vec::new() };
        let shapes = if matches!(op.shape, ShapeRule::Expansion) {
            expanded.iter().map(|t| t.shape.clone()).collect()
        } else {
            self.shapes(op, inputs)?
        };
        let outs: Vec<DType> = if matches!(op.dtype, DTypeRule::Expansion) {
            expanded.iter().map(|t| t.dtype).collect()
        } else {
            dtypes.out.to_vec()
        };
        // An op may have fewer outputs than its dtype rule lists (`split`); the shapes decide.
        let last = outs.last().copied().unwrap_or(self.float);
        Ok(shapes
            .into_iter()
            .enumerate()
            .map(|(i, shape)| TensorType { dtype: outs.get(i).copied().unwrap_or(last), shape })
            .collect())
    }

    fn shapes(&self, op: &'static OpDef, inputs: &[ValueId]) -> Result<Vec<Shape>> {
        let args: SmallVec<[ShapeArg; 4]> =
            inputs.iter().enumerate().map(|(i, &v)| self.shape_arg(op, i, v)).collect();
        let cx = ShapeCx::new(op, &args);
        match op.shape {
            ShapeRule::Same => Ok(vec![cx.shape(0).clone(); op.outputs.len()]),
            ShapeRule::Broadcast => {
                let shapes: SmallVec<[&Shape; 4]> = cx.shapes_from(0).into();
                let out = shape::broadcast(&shapes).map_err(|err| cx.explain(err))?;
                Ok(vec![out; op.outputs.len()])
            }
            ShapeRule::Pattern(text) => pattern::apply(text, &cx),
            ShapeRule::Fn(f) => f(&cx),
            ShapeRule::Expansion => Ok(Vec::new()),
        }
    }

    fn shape_arg(&self, op: &'static OpDef, i: usize, v: ValueId) -> ShapeArg {
        match (self.graph.ty(v), self.graph.lit(v)) {
            (Some(ty), _) if op.takes_tensor(i) => ShapeArg::Shape(ty.shape.clone()),
            (_, Some(lit)) if op.takes_tensor(i) && lit.is_numeric() => ShapeArg::Shape(Shape::scalar()),
            (_, Some(lit)) => ShapeArg::Lit(lit.clone()),
            _ => ShapeArg::Lit(Lit::None),
        }
    }

    fn expansion_types(&mut self, op: &'static OpDef, inputs: &[ValueId]) -> Result<Vec<TensorType>> {
        let expand = op.expand.ok_or_else(|| Error::internal(format!("{} has no shape rule", op.name)))?;
        // On a scratch graph, so that this one is not changed.
        let mut scratch = Self::new(self.float);
        scratch.depth = self.depth + 1;
        let args: Values = inputs
            .iter()
            .map(|&v| match (self.graph.lit(v), self.graph.ty(v)) {
                (Some(lit), _) => scratch.graph.add_literal(lit.clone()),
                (None, Some(ty)) => scratch.graph.add_input("x", crate::graph::Role::Data, ty.clone()),
                (None, None) => scratch.graph.add_literal(Lit::None),
            })
            .collect();
        let outs = scratch.expand_with(op, expand, &args)?;
        outs.iter()
            .map(|&v| match (scratch.graph.ty(v), scratch.graph.lit(v)) {
                (Some(ty), _) => Ok(ty.clone()),
                _ => Err(Error::internal(format!("{} expands to a literal", op.name))),
            })
            .collect()
    }

    /// Adds the expansion of a use of `op` instead of the op itself; `args` are complete.
    pub fn expand(&mut self, op: &'static OpDef, args: &[ValueId]) -> Result<Values> {
        let expand = op.expand.ok_or_else(|| Error::internal(format!("{} has no expansion", op.name)))?;
        self.expand_with(op, expand, args)
    }

    fn expand_with(&mut self, op: &'static OpDef, expand: ExpandFn, args: &[ValueId]) -> Result<Values> {
        if self.depth > MAX_DEPTH {
            return Err(Error::internal(format!("{} expands into itself", op.name)));
        }
        let float = self.float;
        let args = self.complete(op, args)?;
        let builder = std::mem::replace(self, Self::new(float));
        let cx = Cx::new(builder);
        let outs: Values = {
            let x = args.iter().map(|&id| cx.value(id)).collect();
            let call = ExpandCx { cx: &cx, op, x };
            let outs = expand(&call);
            outs.iter().map(|v| cx.tensor_of(v.id())).collect()
        };
        let (builder, error) = cx.into_parts();
        *self = builder;
        match error {
            Some(error) => Err(error.note(format!("in the definition of {}", op.name))),
            None => Ok(outs),
        }
    }

    /// Runs a formula over this graph.
    pub fn formula(&mut self, f: impl for<'a> FnOnce(&'a Cx) -> Vec<V<'a>>) -> Result<Values> {
        let float = self.float;
        let builder = std::mem::replace(self, Self::new(float));
        let cx = Cx::new(builder);
        let outs: Values = f(&cx).iter().map(|v| v.id()).collect();
        let (builder, error) = cx.into_parts();
        *self = builder;
        error.map_or(Ok(outs), Err)
    }
}

fn missing(op: &OpDef, port: &Port) -> Error {
    Error::new(Code::Unconnected, format!("`{}` of {} is missing", port.name, op.name))
        .help(format!("give `{}` a connection or a value", port.name))
}

fn invalid_argument(op: &OpDef, port: &Port, lit: Option<&Lit>) -> Error {
    let Some(lit) = lit else {
        let message = format!("`{}` of {} is computed by the model", port.name, op.name);
        return Error::new(Code::UnknownArgument, message)
            .help("it must be known when compiling: a literal or a shape, not the value of a tensor");
    };
    let expected = match port.kind {
        PortKind::Attr(Attr::Choice(all)) => format!("one of {}", all.join(", ")),
        PortKind::Attr(kind) => kind.text().to_owned(),
        _ => "a tensor or a number".into(),
    };
    Error::new(Code::BadArgument, format!("`{}` of {} is {lit}", port.name, op.name))
        .help(format!("it must be {expected}"))
}

/// Whether a literal is valid for an argument of that kind.
pub fn attr_fits(kind: Attr, lit: &Lit) -> bool {
    // A boolean is not accepted as a number: it may be an argument in another library's order.
    let int = |l: &Lit| matches!(l, Lit::Int(_));
    let ints = |l: &Lit| match l {
        Lit::Tuple(items) => items.iter().all(int),
        Lit::Tensor(t) => t.rank() <= 1 && t.dtype().kind() == crate::dtype::Kind::Int,
        l => int(l),
    };
    let number = |l: &Lit| int(l) || matches!(l, Lit::Float(_));
    match kind {
        Attr::Int => int(lit),
        Attr::Ints | Attr::Shape => ints(lit),
        Attr::OptInts => lit.is_none() || ints(lit),
        Attr::OptInt => lit.is_none() || int(lit),
        Attr::Float => number(lit),
        Attr::OptFloat => lit.is_none() || number(lit),
        // An integer beyond int64 is a tensor.
        Attr::Scalar => match lit {
            Lit::Tensor(t) => t.rank() == 0 && t.dtype() == DType::U64,
            lit => number(lit) || matches!(lit, Lit::Bool(_)),
        },
        Attr::Bool => matches!(lit, Lit::Bool(_) | Lit::Training | Lit::Int(Dim::Const(0 | 1))),
        Attr::Choice(all) => matches!(lit, Lit::Str(s) if all.contains(&&**s)),
        Attr::Text => matches!(lit, Lit::Str(_)),
        Attr::DType => lit.is_none() || matches!(lit, Lit::DType(_)),
        Attr::Any => true,
    }
}

impl From<Arc<Tensor>> for Lit {
    fn from(t: Arc<Tensor>) -> Self {
        Self::Tensor(t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Role;
    use crate::interp;

    fn input(b: &mut Builder, dtype: DType, shape: &[i64]) -> ValueId {
        b.graph.add_input("x", Role::Data, TensorType { dtype, shape: Shape::of(shape.iter().copied()) })
    }

    #[test]
    fn promotes_by_inserting_casts() {
        let mut b = Builder::default();
        let (x, y) = (input(&mut b, DType::I32, &[2]), input(&mut b, DType::F16, &[3, 1]));
        let z = b.push(&e::ADD, &[x, y]).unwrap()[0];
        assert_eq!(b.graph.ty(z).unwrap().to_string(), "f16[3, 2]");
        assert_eq!(b.graph.nodes().len(), 2);
    }

    #[test]
    fn numbers_do_not_widen() {
        let mut b = Builder::default();
        let x = input(&mut b, DType::F16, &[2]);
        let z = b.formula(|cx| vec![1.0 - cx.value(x) * 2.0]).unwrap()[0];
        assert_eq!(b.graph.ty(z).unwrap().dtype, DType::F16);
        let i = input(&mut b, DType::I32, &[2]);
        let z = b.formula(|cx| vec![cx.value(i) * 0.5]).unwrap()[0];
        assert_eq!(b.graph.ty(z).unwrap().dtype, DType::F32);
    }

    #[test]
    fn errors_in_formulas_come_out() {
        let mut b = Builder::default();
        let (x, y) = (input(&mut b, DType::F32, &[2]), input(&mut b, DType::F32, &[3]));
        let error = b.formula(|cx| vec![cx.value(x) + cx.value(y) * 2.0]).unwrap_err();
        assert_eq!(error.code(), Code::ShapeMismatch);
    }

    #[test]
    fn runs_what_it_builds() {
        let mut b = Builder::default();
        let x = b.graph.add_input("x", Role::Data, TensorType { dtype: DType::F32, shape: Shape::of(["n"]) });
        let y = b.formula(|cx| vec![cx.value(x).tanh() / 2.0]).unwrap()[0];
        b.graph.outputs.insert("y".into(), y);
        let x = Arc::new(Tensor::from_parts(&[2], vec![0.5_f32, -1.0]));
        let y = interp::run(&b.graph, &[x]).unwrap();
        let expected = [(0.5_f64.tanh() as f32) / 2.0, (-1.0_f64).tanh() as f32 / 2.0];
        assert_eq!(y[0].as_slice::<f32>().unwrap(), expected);
    }
}
