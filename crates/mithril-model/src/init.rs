//! Initial values of parameters, the same on every backend.

use std::sync::Arc;

use mithril_ir::{Code, DType, Error, Lit, Result, Tensor, TensorType, memory, ops, random};
use serde::{Deserialize, Serialize};

/// The initial values of a parameter.
#[derive(Clone, Debug)]
pub struct Values(pub Arc<Tensor>);

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        self.0.dtype() == other.0.dtype() && self.0.same_bits(&other.0)
    }
}

/// How a parameter starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// All that number.
    Constant(f64),
    /// Uniform between minus and plus that bound.
    Uniform(f64),
    /// Normal with mean 0 and that standard deviation.
    Normal(f64),
    /// Normal with mean 0 and that standard deviation, drawn again beyond two standard deviations.
    TruncatedNormal(f64),
    /// Uniform with bound `1/√fan_in`, the default of linear and convolution layers.
    FanIn,
    /// Uniform with bound `1/√fan_in` of the parameter at that port of the same layer, for biases.
    FanInOf(Arc<str>),
    /// With a variance that depends on the sizes.
    VarianceScaling(VarianceScaling),
    /// A matrix `[out, …]` whose rows, or columns if there are fewer of them, are orthogonal vectors of that length, uniform
    /// among all of these (Saxe et al. 2013).
    Orthogonal(f64),
    /// These values, whatever the seed.
    Value(Values),
    /// The key of the random ops: the seed, and stream 0.
    Key,
}

/// Random numbers with mean 0 and variance `scale/fan`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VarianceScaling {
    /// Times the reciprocal of the fan, the variance.
    pub scale: f64,
    /// The size that keeps signals (of inputs) or gradients (of outputs) at their scale.
    pub fan: Fan,
    /// How numbers are distributed.
    pub distribution: Distribution,
}

/// How many numbers are summed; a weight is `[out, in, window…]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fan {
    /// Inputs of an output.
    In,
    /// Outputs that an input reaches.
    Out,
    /// The mean of both.
    Average,
}

/// The shape of a distribution with mean 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Uniform.
    Uniform,
    /// Normal.
    Normal,
    /// Normal, drawn again beyond two standard deviations; the variance is that of what is left.
    TruncatedNormal,
}

/// The standard deviation of a normal distribution that is cut at two standard deviations.
const TRUNCATED_DEVIATION: f64 = 0.879_625_661_034_239_8;

impl VarianceScaling {
    /// Uniform with bound `√(6/(fan_in + fan_out))` (Glorot and Bengio 2010).
    pub const XAVIER_UNIFORM: Self =
        Self { scale: 1.0, fan: Fan::Average, distribution: Distribution::Uniform };
    /// Normal with standard deviation `√(2/(fan_in + fan_out))`.
    pub const XAVIER_NORMAL: Self =
        Self { scale: 1.0, fan: Fan::Average, distribution: Distribution::Normal };

    fn variance(self, shape: &[usize]) -> f64 {
        let (fan_in, fan_out) = fans(shape);
        let fan = match self.fan {
            Fan::In => fan_in as f64,
            Fan::Out => fan_out as f64,
            Fan::Average => (fan_in + fan_out) as f64 / 2.0,
        };
        if fan == 0.0 { 0.0 } else { self.scale / fan }
    }
}

impl Init {
    /// The initial value that a literal describes: a number, which fills any shape, or a tensor.
    pub(crate) fn of(lit: &Lit) -> Option<Self> {
        match lit {
            Lit::Tensor(t) => Some(Self::Value(Values(t.clone()))),
            Lit::Tuple(_) => {
                let (shape, values) = elements(lit)?;
                let tensor = Tensor::from_f64s(DType::F64, &shape, &values);
                Some(Self::Value(Values(Arc::new(tensor))))
            }
            _ => Self::of_number(lit).map(Self::Constant),
        }
    }
    fn of_number(lit: &Lit) -> Option<f64> {
        match lit {
            Lit::Bool(b) => Some(f64::from(u8::from(*b))),
            Lit::Int(n) => Some(n.known()? as f64),
            Lit::Float(x) => Some(*x),
            _ => None,
        }
    }
    fn check(&self) -> Result<()> {
        let (Self::Constant(x)
        | Self::Uniform(x)
        | Self::Normal(x)
        | Self::TruncatedNormal(x)
        | Self::Orthogonal(x)
        | Self::VarianceScaling(VarianceScaling { scale: x, .. })) = self
        else {
            return Ok(());
        };
        if matches!(self, Self::VarianceScaling(_)) && *x < 0.0 {
            return Err(Error::new(Code::BadArgument, format!("the scale {x} of a variance is negative")));
        }
        if x.is_finite() {
            return Ok(());
        }
        Err(Error::new(Code::BadArgument, format!("the initial value {x} is not a finite number")))
    }
}

/// Shape and elements of nested tuples of numbers.
fn elements(lit: &Lit) -> Option<(Vec<usize>, Vec<f64>)> {
    if let Some(x) = Init::of_number(lit) {
        return Some((Vec::new(), vec![x]));
    }
    let Lit::Tuple(items) = lit else { return None };
    let rows: Vec<(Vec<usize>, Vec<f64>)> = items.iter().map(elements).collect::<Option<_>>()?;
    let inner = rows.first().map_or_else(Vec::new, |(shape, _)| shape.clone());
    if rows.iter().any(|(shape, _)| *shape != inner) {
        return None;
    }
    let shape = std::iter::once(items.len()).chain(inner).collect();
    Some((shape, rows.into_iter().flat_map(|(_, values)| values).collect()))
}

/// `1/√fan_in` of a weight `[out, in, ...]`; a weight of fewer dimensions counts as all inputs.
pub(crate) fn fan_in_bound(shape: &[usize]) -> f64 {
    let fan_in = fans(shape).0;
    if fan_in == 0 { 0.0 } else { 1.0 / (fan_in as f64).sqrt() }
}

fn fans(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [n] => (*n, *n),
        [out, inner, window @ ..] => {
            let window: usize = window.iter().product();
            (inner * window, out * window)
        }
    }
}

/// Values for parameters: the same name, type and seed give the same values, on every backend.
pub fn init_parameters(parameters: &[(Arc<str>, TensorType, Init)], seed: u64) -> Result<Vec<Tensor>> {
    parameters.iter().map(|(name, ty, init)| initial(name, ty, init, seed)).collect()
}

fn initial(name: &str, ty: &TensorType, init: &Init, seed: u64) -> Result<Tensor> {
    init.check()?;
    let shape = ty.shape.known().ok_or_else(|| {
        Error::new(Code::UnknownShape, format!("the shape {} of `{name}` is not known", ty.shape))
            .help("pass the shapes of the inputs when compiling, or call evaluate once")
    })?;
    ty.shape.check()?;
    memory::check(ty.dtype, &shape)?;
    let mut stream = stream(name, seed);
    Ok(match init {
        Init::Zeros => Tensor::full(ty.dtype, &shape, 0.0),
        Init::Ones => Tensor::full(ty.dtype, &shape, 1.0),
        Init::Constant(x) => Tensor::full(ty.dtype, &shape, *x),
        Init::Uniform(bound) => stream.uniform(ty, &shape, *bound),
        Init::Normal(std) => stream.normal(ty, &shape, *std),
        Init::TruncatedNormal(std) => stream.truncated_normal(ty, &shape, *std),
        Init::VarianceScaling(scaling) => {
            let variance = scaling.variance(&shape);
            match scaling.distribution {
                Distribution::Uniform => stream.uniform(ty, &shape, (3.0 * variance).sqrt()),
                Distribution::Normal => stream.normal(ty, &shape, variance.sqrt()),
                Distribution::TruncatedNormal => {
                    stream.truncated_normal(ty, &shape, variance.sqrt() / TRUNCATED_DEVIATION)
                }
            }
        }
        Init::Orthogonal(gain) => stream.orthogonal(name, ty, &shape, *gain)?,
        Init::FanIn | Init::FanInOf(_) => stream.uniform(ty, &shape, fan_in_bound(&shape)),
        Init::Value(Values(value)) => {
            if value.shape() != shape {
                return Err(Error::new(
                    Code::BadArgument,
                    format!(
                        "the initial value of `{name}` has shape {:?}, but the parameter has shape {:?}",
                        value.shape(),
                        shape
                    ),
                )
                .help("give an initial value of the shape of the parameter"));
            }
            value.cast(ty.dtype)
        }
        Init::Key => {
            Tensor::build(ty.dtype, &shape, |i| if i == 0 { (seed as i64).into() } else { 0_i64.into() })
        }
    })
}

/// Random numbers of one parameter: those of the common generator whose stream is the name's, so that no
/// parameter's values depend on which others there are.
struct Stream<I>(I);

fn stream(name: &str, seed: u64) -> Stream<impl Iterator<Item = u32>> {
    Stream(random::words(random::stream_key(seed, name)))
}

impl<I: Iterator<Item = u32>> Stream<I> {
    /// A number between 0 and 1, both excluded.
    fn next(&mut self) -> f64 {
        (f64::from(self.0.next().unwrap_or(0)) + 0.5) / 4_294_967_296.0
    }
    fn uniform(&mut self, ty: &TensorType, shape: &[usize], bound: f64) -> Tensor {
        Tensor::build(ty.dtype, shape, |_| ((self.next() * 2.0 - 1.0) * bound).into())
    }
    /// Numbers of the standard normal distribution.
    fn standard_normal(&mut self) -> impl FnMut() -> f64 {
        let mut second = None;
        move || {
            second.take().unwrap_or_else(|| {
                let (x, y) = random::normal_pair(self.next(), self.next());
                second = Some(y);
                x
            })
        }
    }
    fn normal(&mut self, ty: &TensorType, shape: &[usize], std: f64) -> Tensor {
        let mut next = self.standard_normal();
        Tensor::build(ty.dtype, shape, |_| (std * next()).into())
    }
    fn truncated_normal(&mut self, ty: &TensorType, shape: &[usize], std: f64) -> Tensor {
        let mut next = self.standard_normal();
        Tensor::build(ty.dtype, shape, |_| {
            let mut x = next();
            while x.abs() > 2.0 {
                x = next();
            }
            (std * x).into()
        })
    }
    /// The first factor of a random matrix, whose second one has a positive diagonal, is uniform among orthogonal ones
    /// (Mezzadri 2007).
    fn orthogonal(&mut self, name: &str, ty: &TensorType, shape: &[usize], gain: f64) -> Result<Tensor> {
        let [rows, rest @ ..] = shape else { return Err(no_matrix(name, ty)) };
        if rest.is_empty() {
            return Err(no_matrix(name, ty));
        }
        let (rows, columns) = (*rows, rest.iter().product::<usize>());
        let (long, short) = (rows.max(columns), rows.min(columns));
        let mut next = self.standard_normal();
        let normal: Vec<f64> = (0..long * short).map(|_| next()).collect();
        let q = ops::factor::qr(&normal, long, short, false)
            .and_then(|factors| factors.into_iter().next())
            .ok_or_else(|| Error::internal("a random matrix has no QR decomposition"))?;
        let at = |i: usize| if rows >= columns { q[i] } else { q[i % columns * short + i / columns] };
        Ok(Tensor::build(ty.dtype, shape, |i| (gain * at(i)).into()))
    }
}

fn no_matrix(name: &str, ty: &TensorType) -> Error {
    Error::new(
        Code::BadArgument,
        format!(
            "the initial value of `{name}` is orthogonal, but its shape {} has fewer than 2 axes",
            ty.shape
        ),
    )
    .help("choose another initial value for it: patterns in front of others take precedence")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_depend_on_name_and_seed_alone() {
        use mithril_ir::{DType, Shape};
        let ty = TensorType { dtype: DType::F32, shape: Shape::of([64, 32]) };
        let one = |name: &str, seed| {
            init_parameters(&[(name.into(), ty.clone(), Init::FanIn)], seed).unwrap().remove(0)
        };
        let w = one("weight", 7);
        assert!(
            w.same_bits(&one("weight", 7)) && !w.same_bits(&one("weight", 8)) && !w.same_bits(&one("w", 7))
        );
        let bound = 1.0 / 32.0_f64.sqrt();
        let values = w.to_f64s();
        assert!(values.iter().all(|x| x.abs() <= bound));
        // The variance of a uniform distribution is bound²/3.
        let variance = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
        assert!((variance / (bound * bound / 3.0) - 1.0).abs() < 0.1);
        let open = TensorType { dtype: DType::F32, shape: Shape::of(["n"]) };
        assert_eq!(
            init_parameters(&[("b".into(), open, Init::Ones)], 0).unwrap_err().code(),
            Code::UnknownShape
        );
    }
}
