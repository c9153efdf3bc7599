//! Initial values of parameters, the same on every backend.

use std::sync::Arc;

use mithril_ir::{Code, Error, Result, Tensor, TensorType};

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
    /// Uniform with bound `1/√fan_in`, the default of linear and convolution layers (Kaiming uniform, a = √5).
    KaimingUniform,
    /// Uniform with bound `1/√fan_in` of the parameter at that port of the same layer, for biases.
    FanInOf(Arc<str>),
    /// Uniform with bound `√(6/(fan_in + fan_out))` (Glorot and Bengio 2010).
    XavierUniform,
    /// Normal with standard deviation `√(2/(fan_in + fan_out))`.
    XavierNormal,
}
impl Init {
    fn check(&self) -> Result<()> {
        let (Self::Constant(x) | Self::Uniform(x) | Self::Normal(x)) = self else { return Ok(()) };
        if x.is_finite() {
            return Ok(());
        }
        Err(Error::new(Code::BadArgument, format!("the initial value {x} is no finite number")))
    }
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
    let (fan_in, fan_out) = fans(&shape);
    let sum = ((fan_in + fan_out) as f64).max(1.0);
    let mut stream = Stream::new(name, seed);
    Ok(match init {
        Init::Zeros => Tensor::full(ty.dtype, &shape, 0.0),
        Init::Ones => Tensor::full(ty.dtype, &shape, 1.0),
        Init::Constant(x) => Tensor::full(ty.dtype, &shape, *x),
        Init::Uniform(bound) => stream.uniform(ty, &shape, *bound),
        Init::Normal(std) => stream.normal(ty, &shape, *std),
        Init::KaimingUniform | Init::FanInOf(_) => stream.uniform(ty, &shape, fan_in_bound(&shape)),
        Init::XavierUniform => stream.uniform(ty, &shape, (6.0 / sum).sqrt()),
        Init::XavierNormal => stream.normal(ty, &shape, (2.0 / sum).sqrt()),
    })
}

/// Random numbers of one parameter: Philox 4x32-10 (Salmon et al. 2011) keyed by the seed, with the name in the
/// counter, so that no parameter's values depend on which others there are.
struct Stream {
    key: [u32; 2],
    name: u64,
    block: u64,
    buffer: [u32; 4],
    left: usize,
}

impl Stream {
    fn new(name: &str, seed: u64) -> Self {
        // FNV-1a
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Self { key: [seed as u32, (seed >> 32) as u32], name: hash, block: 0, buffer: [0; 4], left: 0 }
    }
    fn next(&mut self) -> f64 {
        if self.left == 0 {
            let counter =
                [self.block as u32, (self.block >> 32) as u32, self.name as u32, (self.name >> 32) as u32];
            self.buffer = philox(counter, self.key);
            self.block += 1;
            self.left = 4;
        }
        self.left -= 1;
        (f64::from(self.buffer[3 - self.left]) + 0.5) / 4_294_967_296.0
    }
    fn uniform(&mut self, ty: &TensorType, shape: &[usize], bound: f64) -> Tensor {
        Tensor::build(ty.dtype, shape, |_| ((self.next() * 2.0 - 1.0) * bound).into())
    }
    fn normal(&mut self, ty: &TensorType, shape: &[usize], std: f64) -> Tensor {
        // Box and Muller 1958.
        Tensor::build(ty.dtype, shape, |_| {
            let (u, v) = (self.next(), self.next());
            (std * (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()).into()
        })
    }
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_answers() {
        // Known answers of Random123.
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = u32::MAX;
        assert_eq!(philox([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn values_depend_on_name_and_seed_alone() {
        use mithril_ir::{DType, Shape};
        let ty = TensorType { dtype: DType::F32, shape: Shape::of([64, 32]) };
        let one = |name: &str, seed| {
            init_parameters(&[(name.into(), ty.clone(), Init::KaimingUniform)], seed).unwrap().remove(0)
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
