//! Movement, slicing, joining, look-up, creation and random numbers against values worked out by hand.

mod create;
mod index;
mod joining;
mod random;
mod shapes;
mod slicing;

use std::sync::Arc;

use mithril_ir::{
    Builder, Code, DType, Error, Lit, OpDef, Result, Role, Shape, Tensor, TensorType, interp, ops,
};

/// An argument of an op.
#[derive(Debug)]
pub enum Arg {
    /// A tensor, as an input of the graph.
    X(Tensor),
    /// A literal.
    L(Lit),
}

impl From<Tensor> for Arg {
    fn from(t: Tensor) -> Self {
        Self::X(t)
    }
}
impl From<Lit> for Arg {
    fn from(lit: Lit) -> Self {
        Self::L(lit)
    }
}

/// Arguments of any kinds.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { &[$($crate::movement::Arg::from($arg)),*] };
}
pub(crate) use args;

fn op(name: &str) -> &'static OpDef {
    ops::find(name).unwrap_or_else(|| panic!("no op is called {name}"))
}

/// All outputs of an op.
pub fn run_all(name: &str, args: &[Arg]) -> Result<Vec<Arc<Tensor>>> {
    let mut b = Builder::default();
    let (mut ids, mut inputs) = (Vec::new(), Vec::new());
    for arg in args {
        ids.push(match arg {
            Arg::L(lit) => b.lit(lit.clone()),
            Arg::X(t) => {
                inputs.push(Arc::new(t.clone()));
                let shape = Shape::of(t.shape().iter().copied());
                b.graph.add_input("x", Role::Data, TensorType { dtype: t.dtype(), shape })
            }
        });
    }
    for (i, v) in b.push(op(name), &ids)?.into_iter().enumerate() {
        b.graph.outputs.insert(format!("y{i}").into(), v);
    }
    interp::run(&b.graph, &inputs)
}

/// The first output.
pub fn run(name: &str, args: &[Arg]) -> Tensor {
    match run_all(name, args) {
        Ok(out) => (*out[0]).clone(),
        Err(error) => panic!("{name}: {error}"),
    }
}

/// The error that an op ends in.
pub fn refused(name: &str, args: &[Arg]) -> Error {
    match run_all(name, args) {
        Ok(_) => panic!("{name} is not refused"),
        Err(error) => error,
    }
}

/// The output's type for one `f32` input of that shape.
pub fn infer(name: &str, shape: Shape, more: &[Lit]) -> Result<TensorType> {
    let mut b = Builder::default();
    let mut ids = vec![b.graph.add_input("x", Role::Data, TensorType { dtype: DType::F32, shape })];
    ids.extend(more.iter().map(|lit| b.lit(lit.clone())));
    let y = b.push(op(name), &ids)?[0];
    Ok(b.graph.ty(y).cloned().unwrap_or_else(|| panic!("{name} gives a literal")))
}

/// `0, 1, 2, ...` in that shape.
pub fn range(shape: &[usize]) -> Tensor {
    Tensor::build(DType::F32, shape, |i| (i as f64).into())
}

/// Integers in that shape.
pub fn ints(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_parts(shape, values.to_vec())
}

/// A literal.
pub fn lit(lit: impl Into<Lit>) -> Lit {
    lit.into()
}

/// Asserts shape and values.
pub fn is(t: &Tensor, shape: &[usize], values: &[i64]) {
    assert_eq!((t.shape(), t.to_i64s().as_slice()), (shape, values));
}

/// Every refusal has that code, a message and a help.
pub fn is_refused(name: &str, args: &[Arg], code: Code) {
    let error = refused(name, args);
    assert_eq!(error.code(), code, "{error}");
    assert!(error.hint().is_some(), "no help in {error}");
}
