//! The form of a saved model: JSON of literals, names and numbers, no code.
//!
//! Sub-models are stored once and referred to by index, always to earlier ones, so that no cycle can be written.

use mithril_ir::dim::DimFactor;
use mithril_ir::{Code, DType, Dim, Error, Lit, Result, Role, Symbol, Tensor, text};
use serde::{Deserialize, Serialize};

use crate::init::{Distribution, Fan, Init, Values, VarianceScaling};
use crate::key::{Declared, Size};
use crate::limits::Limit;

/// The version that is written.
pub(crate) const VERSION: u32 = 1;
/// What the file says it is.
pub(crate) const FORMAT: &str = "mithril-model";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub format: String,
    pub version: u32,
    pub models: Vec<ModelFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelFile {
    pub class: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub body: BodyFile,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BodyFile {
    Op(LeafFile),
    Shape(LeafFile),
    Parts(CompositeFile),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeafFile {
    pub is: String,
    pub ports: Vec<PortFile>,
    pub outputs: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<(usize, usize)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PortFile {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<LitFile>,
    #[serde(default, skip_serializing_if = "DeclaredFile::is_empty")]
    pub declared: DeclaredFile,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompositeFile {
    pub connections: Vec<EdgeFile>,
    pub children: Vec<ChildFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<(String, u32)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<(u32, u32)>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EdgeFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<LitFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expose: Option<bool>,
    /// The input (child, port) whose name a connection keeps that got a source later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<(u32, u32)>,
    #[serde(default, skip_serializing_if = "DeclaredFile::is_empty")]
    pub declared: DeclaredFile,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChildFile {
    pub name: String,
    pub model: usize,
    pub inputs: Vec<BoundFile>,
    pub outputs: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BoundFile {
    Default,
    Value(LitFile),
    From(u32),
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeclaredFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<Option<DimFile>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dtype: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<RoleFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    init: Option<InitFile>,
    /// Axis, smallest and largest size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limits: Vec<(usize, i64, Option<i64>)>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RoleFile {
    Param,
    Data,
    State,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum InitFile {
    Zeros,
    Ones,
    Constant(FloatFile),
    Uniform(FloatFile),
    Normal(FloatFile),
    TruncatedNormal(FloatFile),
    #[serde(rename = "kaiming_uniform")]
    FanIn,
    FanInOf(String),
    XavierUniform,
    XavierNormal,
    VarianceScaling(FloatFile, Fan, Distribution),
    Orthogonal(FloatFile),
    Value(TensorFile),
    Key,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LitFile {
    None,
    Bool(bool),
    Int(DimFile),
    Float(FloatFile),
    Text(String),
    Dtype(String),
    Tuple(Vec<LitFile>),
    Slice(Box<[LitFile; 3]>),
    Ellipsis,
    Tensor(TensorFile),
    Training,
}

/// A number; JSON has none that are not finite.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum FloatFile {
    Finite(f64),
    Special(Special),
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Special {
    #[serde(rename = "nan")]
    Nan,
    #[serde(rename = "inf")]
    Inf,
    #[serde(rename = "-inf")]
    MinusInf,
}

/// A size: a number, or a sum of products.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum DimFile {
    Number(i64),
    Symbol(String),
    Sum(SumFile),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SumFile {
    terms: Vec<(i64, Vec<AtomFile>)>,
    plus: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum AtomFile {
    Symbol(String),
    Quotient(Box<[DimFile; 2]>),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorFile {
    dtype: String,
    shape: Vec<usize>,
    /// The elements in row-major order, little-endian, two hexadecimal digits a byte.
    data: String,
}

#[cold]
pub(crate) fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::BadFile, message)
        .help("the file is damaged, or was not written by Mithril; save the model again")
}

impl DeclaredFile {
    fn is_empty(&self) -> bool {
        self.shape.is_none()
            && self.dtype.is_none()
            && self.role.is_none()
            && self.init.is_none()
            && self.limits.is_empty()
    }
    pub fn of(declared: &Declared) -> Self {
        let size = |s: &Size| match s {
            Size::Unknown => None,
            Size::Is(dim) => Some(DimFile::of(dim)),
        };
        Self {
            shape: declared.shape.as_ref().map(|s| s.iter().map(size).collect()),
            dtype: declared.dtype.map(|d| d.name().to_owned()),
            role: declared.role.and_then(|r| match r {
                Role::Param => Some(RoleFile::Param),
                Role::Data => Some(RoleFile::Data),
                Role::State => Some(RoleFile::State),
                Role::Cotangent => None,
            }),
            init: declared.init.as_ref().map(InitFile::of),
            limits: declared.limits.iter().map(|l| (l.axis, l.min, l.max)).collect(),
        }
    }
    pub fn read(self) -> Result<Declared> {
        let size = |s: Option<DimFile>| s.map_or(Ok(Size::Unknown), |d| d.read().map(Size::Is));
        Ok(Declared {
            shape: self.shape.map(|s| s.into_iter().map(size).collect::<Result<_>>()).transpose()?,
            dtype: self.dtype.as_deref().map(dtype).transpose()?,
            role: self.role.map(|r| match r {
                RoleFile::Param => Role::Param,
                RoleFile::Data => Role::Data,
                RoleFile::State => Role::State,
            }),
            init: self.init.map(InitFile::read).transpose()?,
            limits: self.limits.into_iter().map(|(axis, min, max)| Limit { axis, min, max }).collect(),
        })
    }
}

fn dtype(name: &str) -> Result<DType> {
    DType::ALL
        .iter()
        .copied()
        .find(|d| d.name() == name)
        .ok_or_else(|| bad(format!("there is no dtype {name:?}")))
}

impl InitFile {
    fn of(init: &Init) -> Self {
        match init {
            Init::Zeros => Self::Zeros,
            Init::Ones => Self::Ones,
            Init::Constant(x) => Self::Constant(FloatFile::of(*x)),
            Init::Uniform(x) => Self::Uniform(FloatFile::of(*x)),
            Init::Normal(x) => Self::Normal(FloatFile::of(*x)),
            Init::TruncatedNormal(x) => Self::TruncatedNormal(FloatFile::of(*x)),
            Init::FanIn => Self::FanIn,
            Init::FanInOf(port) => Self::FanInOf(port.to_string()),
            Init::VarianceScaling(VarianceScaling::XAVIER_UNIFORM) => Self::XavierUniform,
            Init::VarianceScaling(VarianceScaling::XAVIER_NORMAL) => Self::XavierNormal,
            Init::VarianceScaling(VarianceScaling { scale, fan, distribution }) => {
                Self::VarianceScaling(FloatFile::of(*scale), *fan, *distribution)
            }
            Init::Orthogonal(x) => Self::Orthogonal(FloatFile::of(*x)),
            Init::Value(Values(tensor)) => Self::Value(TensorFile::of(tensor)),
            Init::Key => Self::Key,
        }
    }
    fn read(self) -> Result<Init> {
        Ok(match self {
            Self::Zeros => Init::Zeros,
            Self::Ones => Init::Ones,
            Self::Constant(x) => Init::Constant(x.read()),
            Self::Uniform(x) => Init::Uniform(x.read()),
            Self::Normal(x) => Init::Normal(x.read()),
            Self::TruncatedNormal(x) => Init::TruncatedNormal(x.read()),
            Self::FanIn => Init::FanIn,
            Self::FanInOf(port) => Init::FanInOf(port.into()),
            Self::XavierUniform => Init::VarianceScaling(VarianceScaling::XAVIER_UNIFORM),
            Self::XavierNormal => Init::VarianceScaling(VarianceScaling::XAVIER_NORMAL),
            Self::VarianceScaling(scale, fan, distribution) => {
                Init::VarianceScaling(VarianceScaling { scale: scale.read(), fan, distribution })
            }
            Self::Orthogonal(x) => Init::Orthogonal(x.read()),
            Self::Value(tensor) => Init::Value(Values(tensor.read()?.into())),
            Self::Key => Init::Key,
        })
    }
}

impl FloatFile {
    fn of(x: f64) -> Self {
        if x.is_nan() {
            Self::Special(Special::Nan)
        } else if x.is_infinite() {
            Self::Special(if x > 0.0 { Special::Inf } else { Special::MinusInf })
        } else {
            Self::Finite(x)
        }
    }
    fn read(self) -> f64 {
        match self {
            Self::Finite(x) => x,
            Self::Special(Special::Nan) => f64::NAN,
            Self::Special(Special::Inf) => f64::INFINITY,
            Self::Special(Special::MinusInf) => f64::NEG_INFINITY,
        }
    }
}

impl DimFile {
    fn of(dim: &Dim) -> Self {
        if let Some(Symbol::Named(name)) = dim.as_symbol() {
            return Self::Symbol(name.to_string());
        }
        let (terms, plus) = dim.parts();
        if terms.is_empty() {
            return Self::Number(plus);
        }
        let atom = |a: &DimFactor| match a {
            DimFactor::Symbol(s) => AtomFile::Symbol(s.to_string()),
            DimFactor::Div(a, b) => AtomFile::Quotient(Box::new([Self::of(a), Self::of(b)])),
        };
        let terms = terms.iter().map(|(factors, c)| (*c, factors.iter().map(atom).collect())).collect();
        Self::Sum(SumFile { terms, plus })
    }
    fn read(self) -> Result<Dim> {
        match self {
            Self::Number(n) => Ok(Dim::Const(n)),
            Self::Symbol(name) => symbol(&name),
            Self::Sum(sum) => {
                let mut dim = Dim::Const(sum.plus);
                if sum.terms.len() > 64 {
                    return Err(bad("a size has more than 64 terms"));
                }
                for (coefficient, factors) in sum.terms {
                    if factors.len() > 8 {
                        return Err(bad("a size has a product of more than 8 factors"));
                    }
                    let mut product = Dim::Const(coefficient);
                    for factor in factors {
                        product = &product * &factor.read()?;
                        // Quotients may come apart into sums, whose products grow.
                        if product.parts().0.len() > 64 {
                            return Err(bad("a size has more than 64 terms"));
                        }
                    }
                    dim = &dim + &product;
                }
                Ok(dim)
            }
        }
    }
}

fn symbol(name: &str) -> Result<Dim> {
    // What the text form of graphs reads back as one symbol.
    match text::parse_dim(name) {
        Ok(dim) if name.len() <= 1000 && dim == Dim::symbol(name) => Ok(dim),
        _ => Err(bad(format!("{name:?} is not a symbol of a size"))),
    }
}

impl AtomFile {
    fn read(self) -> Result<Dim> {
        match self {
            Self::Symbol(name) => symbol(&name),
            Self::Quotient(parts) => {
                let [a, b] = *parts;
                let (a, b) = (a.read()?, b.read()?);
                if b.is(0) {
                    return Err(bad("a size is divided by zero"));
                }
                Ok(a.floor_div(&b))
            }
        }
    }
}

impl LitFile {
    pub fn of(lit: &Lit) -> Self {
        match lit {
            Lit::None => Self::None,
            Lit::Bool(b) => Self::Bool(*b),
            Lit::Int(d) => Self::Int(DimFile::of(d)),
            Lit::Float(x) => Self::Float(FloatFile::of(*x)),
            Lit::Str(s) => Self::Text(s.to_string()),
            Lit::DType(d) => Self::Dtype(d.name().to_owned()),
            Lit::Tuple(items) => Self::Tuple(items.iter().map(Self::of).collect()),
            Lit::Slice(parts) => Self::Slice(Box::new([&parts[0], &parts[1], &parts[2]].map(Self::of))),
            Lit::Ellipsis => Self::Ellipsis,
            Lit::Tensor(t) => Self::Tensor(TensorFile::of(t)),
            Lit::Training => Self::Training,
        }
    }
    pub fn read(self) -> Result<Lit> {
        Ok(match self {
            Self::None => Lit::None,
            Self::Bool(b) => Lit::Bool(b),
            Self::Int(d) => Lit::Int(d.read()?),
            Self::Float(x) => Lit::Float(x.read()),
            Self::Text(s) => Lit::text(&s),
            Self::Dtype(name) => Lit::DType(dtype(&name)?),
            Self::Tuple(items) => {
                Lit::Tuple(items.into_iter().map(Self::read).collect::<Result<Vec<_>>>()?.into())
            }
            Self::Slice(parts) => {
                let [a, b, c] = *parts;
                Lit::Slice([a.read()?, b.read()?, c.read()?].into())
            }
            Self::Ellipsis => Lit::Ellipsis,
            Self::Tensor(t) => t.read()?.into(),
            Self::Training => Lit::Training,
        })
    }
}

impl TensorFile {
    fn of(t: &Tensor) -> Self {
        use std::fmt::Write;
        let mut data = String::with_capacity(t.len() * t.dtype().size() * 2);
        for byte in t.to_bytes() {
            // Writing to a text cannot fail.
            let _ = write!(data, "{byte:02x}");
        }
        Self { dtype: t.dtype().name().to_owned(), shape: t.shape().to_vec(), data }
    }
    fn read(self) -> Result<Tensor> {
        let dtype = dtype(&self.dtype)?;
        let count = self.shape.iter().try_fold(1_usize, |n, &s| n.checked_mul(s));
        let bytes = count.and_then(|n| n.checked_mul(dtype.size()));
        if bytes.and_then(|n| n.checked_mul(2)) != Some(self.data.len()) || self.shape.len() > 64 {
            return Err(bad(format!(
                "a tensor of shape {:?} has {} digits of data",
                self.shape,
                self.data.len()
            )));
        }
        let digits = self.data.as_bytes();
        let bytes = digits
            .chunks_exact(2)
            .map(|pair| Some(hex(pair[0])? * 16 + hex(pair[1])?))
            .collect::<Option<Vec<u8>>>()
            .ok_or_else(|| bad("the data of a tensor is not hexadecimal"))?;
        Tensor::from_bytes(dtype, self.shape, &bytes).map_err(|e| bad(e.message().to_owned()))
    }
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|d| d as u8)
}
