//! Arithmetic on literals: what is computed from shapes while compiling (`x.shape[0] // 2`).
//!
//! These are the only parts of a model that are not ops: they take and give literals, never tensors, except
//! [`LiteralFn::Shape`], which reads the shape of one. Sizes may be symbolic and stay exact.

use mithril_ir::{Code, Dim, Error, Lit, Result};

/// A function of literals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LiteralFn {
    /// Shape of a tensor, a tuple.
    Shape,
    /// An item of a tuple.
    Item,
    /// A tuple of its arguments.
    Tuple,
    /// Sum, or two tuples joined.
    Add,
    /// Difference.
    Subtract,
    /// Product.
    Multiply,
    /// Quotient, rounded down.
    FloorDivide,
    /// Remainder of the quotient rounded down.
    Remainder,
    /// The opposite number.
    Negative,
    /// Quotient of known numbers.
    Divide,
    /// Power of known numbers.
    Power,
    /// Product of the items of a tuple.
    Product,
    /// Number of items of a tuple.
    Length,
    /// `start:stop:step`
    Slice,
}

impl LiteralFn {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Shape,
        Self::Item,
        Self::Tuple,
        Self::Add,
        Self::Subtract,
        Self::Multiply,
        Self::FloorDivide,
        Self::Remainder,
        Self::Negative,
        Self::Divide,
        Self::Power,
        Self::Product,
        Self::Length,
        Self::Slice,
    ];

    /// Name, as saved and as children are called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shape => "shape",
            Self::Item => "shape_item",
            Self::Tuple => "shape_tuple",
            Self::Add => "shape_add",
            Self::Subtract => "shape_subtract",
            Self::Multiply => "shape_multiply",
            Self::FloorDivide => "shape_floor_divide",
            Self::Remainder => "shape_remainder",
            Self::Negative => "shape_negative",
            Self::Divide => "shape_divide",
            Self::Power => "shape_power",
            Self::Product => "shape_product",
            Self::Length => "shape_length",
            Self::Slice => "shape_slice",
        }
    }
    /// The function of that name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|f| f.name() == name)
    }
    /// Names of the inputs; `Tuple` takes `n`.
    pub fn ports(self, n: usize) -> Vec<String> {
        match self {
            Self::Tuple => (1..=n).map(|i| format!("input{i}")).collect(),
            Self::Shape | Self::Negative | Self::Product | Self::Length => vec!["input".into()],
            Self::Item => vec!["input".into(), "index".into()],
            Self::Slice => ["start", "stop", "step"].map(String::from).into(),
            _ => vec!["left".into(), "right".into()],
        }
    }
    /// The value for these arguments. The one of [`LiteralFn::Shape`] is the shape as a tuple already.
    pub fn eval(self, args: &[Lit]) -> Result<Lit> {
        let two = || match args {
            [a, b] => Ok((a, b)),
            _ => Err(self.bad(args)),
        };
        match self {
            Self::Shape => args.first().cloned().ok_or_else(|| self.bad(args)),
            Self::Tuple => Ok(Lit::Tuple(args.into())),
            Self::Item => {
                let (tuple, index) = two()?;
                self.item(tuple, index)
            }
            Self::Add => match two()? {
                (Lit::Tuple(a), Lit::Tuple(b)) => Ok(Lit::Tuple(a.iter().chain(&**b).cloned().collect())),
                (a, b) => self.number(a, b, |a, b| a + b, |a, b| a + b),
            },
            Self::Subtract => two().and_then(|(a, b)| self.number(a, b, |a, b| a - b, |a, b| a - b)),
            Self::Multiply => two().and_then(|(a, b)| self.number(a, b, |a, b| a * b, |a, b| a * b)),
            Self::FloorDivide | Self::Remainder => {
                let (a, b) = two()?;
                if matches!(b, Lit::Int(d) if d.is(0)) || matches!(b, Lit::Float(x) if *x == 0.0) {
                    return Err(Error::new(Code::BadArgument, format!("{a} is divided by zero"))
                        .help("divide by a size that is not 0"));
                }
                if self == Self::FloorDivide {
                    self.number(a, b, Dim::floor_div, |a, b| (a / b).floor())
                } else {
                    self.number(a, b, Dim::remainder, |a, b| a - (a / b).floor() * b)
                }
            }
            Self::Negative => match args {
                [Lit::Int(d)] => Ok(Lit::Int(-d)),
                [Lit::Float(x)] => Ok(Lit::Float(-x)),
                _ => Err(self.bad(args)),
            },
            Self::Divide => two().and_then(|(a, b)| self.float(a, b, |a, b| a / b)),
            Self::Power => match two()? {
                (Lit::Int(a), Lit::Int(Dim::Const(n @ 0..=64))) => {
                    Ok(Lit::Int((0..*n).fold(Dim::ONE, |p, _| &p * a)))
                }
                (a, b) => self.float(a, b, f64::powf),
            },
            Self::Product => {
                self.dims(args)?.into_iter().try_fold(Dim::ONE, |p, d| Ok(&p * &d?)).map(Lit::Int)
            }
            Self::Slice => match args {
                [a, b, c] => Ok(Lit::Slice([a.clone(), b.clone(), c.clone()].into())),
                _ => Err(self.bad(args)),
            },
            Self::Length => match args {
                [Lit::Tuple(items)] => Ok(items.len().into()),
                _ => Err(self.bad(args)),
            },
        }
    }
    fn dims(self, args: &[Lit]) -> Result<Vec<Result<Dim>>> {
        let [Lit::Tuple(items)] = args else { return Err(self.bad(args)) };
        Ok(items
            .iter()
            .map(|item| match item {
                Lit::Int(d) => Ok(d.clone()),
                _ => Err(self.bad(args)),
            })
            .collect())
    }
    fn item(self, tuple: &Lit, index: &Lit) -> Result<Lit> {
        let Lit::Tuple(items) = tuple else { return Err(self.bad(std::slice::from_ref(tuple))) };
        let n = items.len() as i64;
        match index {
            Lit::Int(Dim::Const(i)) if *i >= -n && *i < n => {
                let i = if *i < 0 { i + n } else { *i };
                Ok(items[i as usize].clone())
            }
            Lit::Int(Dim::Const(i)) => Err(Error::new(
                Code::IndexOutOfRange,
                format!("item {i} is asked of a tuple of {n}: {tuple}"),
            )
            .help(if n == 0 {
                "the tuple is empty".to_owned()
            } else {
                format!("use {} to {}", -n, n - 1)
            })),
            Lit::Slice(parts) => slice(items, parts).ok_or_else(|| self.bad(std::slice::from_ref(index))),
            _ => Err(self.bad(std::slice::from_ref(index))),
        }
    }
    fn number(
        self,
        a: &Lit,
        b: &Lit,
        dims: impl Fn(&Dim, &Dim) -> Dim,
        floats: impl Fn(f64, f64) -> f64,
    ) -> Result<Lit> {
        match (as_dim(a), as_dim(b)) {
            (Some(a), Some(b)) => Ok(Lit::Int(dims(&a, &b))),
            _ => self.float(a, b, floats),
        }
    }
    fn float(self, a: &Lit, b: &Lit, f: impl Fn(f64, f64) -> f64) -> Result<Lit> {
        match (as_f64(a), as_f64(b)) {
            (Some(a), Some(b)) => Ok(Lit::Float(f(a, b))),
            _ if as_number(a) && as_number(b) => Err(Error::new(
                Code::UnknownArgument,
                format!("{} of {a} and {b} needs numbers, but a size is symbolic", self.name()),
            )
            .help("give the shapes of the inputs when compiling, so that it becomes a number")),
            _ => Err(self.bad(&[a.clone(), b.clone()])),
        }
    }
    #[cold]
    fn bad(self, args: &[Lit]) -> Error {
        let args = args.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Error::new(Code::BadArgument, format!("{} cannot take ({args})", self.name()))
            .help("arithmetic with shapes takes sizes, numbers and tuples of them")
    }
}

fn slice(items: &[Lit], parts: &[Lit; 3]) -> Option<Lit> {
    let n = items.len() as i64;
    let bound = |lit: &Lit| match lit {
        Lit::None => Some(None),
        Lit::Int(Dim::Const(i)) => Some(Some(*i)),
        _ => None,
    };
    let step = bound(&parts[2])?.unwrap_or(1);
    if step == 0 {
        return None;
    }
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let clip = |i: i64| (if i < 0 { i.saturating_add(n) } else { i }).clamp(low, high);
    let start = bound(&parts[0])?.map_or(if step > 0 { 0 } else { n - 1 }, clip);
    let stop = bound(&parts[1])?.map_or(if step > 0 { n } else { -1 }, clip);
    let mut out = Vec::new();
    let mut i = start;
    while if step > 0 { i < stop } else { i > stop } {
        out.push(items[i as usize].clone());
        i = i.saturating_add(step);
    }
    Some(Lit::Tuple(out.into()))
}

fn as_dim(lit: &Lit) -> Option<Dim> {
    match lit {
        Lit::Int(d) => Some(d.clone()),
        Lit::Bool(b) => Some(Dim::Const((*b).into())),
        _ => None,
    }
}

fn as_f64(lit: &Lit) -> Option<f64> {
    match lit {
        Lit::Float(x) => Some(*x),
        _ => as_dim(lit)?.known().map(|n| n as f64),
    }
}

fn as_number(lit: &Lit) -> bool {
    matches!(lit, Lit::Float(_) | Lit::Int(_) | Lit::Bool(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Lit {
        Lit::Tuple([Lit::Int("n".into()), Lit::int(6), Lit::int(4)].into())
    }

    #[test]
    fn sizes_stay_exact() {
        let n = LiteralFn::Item.eval(&[shape(), 0.into()]).unwrap();
        let half = LiteralFn::FloorDivide.eval(&[n, 2.into()]).unwrap();
        assert_eq!(half.to_string(), "n//2");
        assert_eq!(LiteralFn::Product.eval(&[shape()]).unwrap().to_string(), "24*n");
        assert_eq!(LiteralFn::Remainder.eval(&[Lit::int(-7), 4.into()]).unwrap(), Lit::int(1));
    }

    #[test]
    fn slices_as_in_python() {
        let part = |a: Lit, b: Lit, c: Lit| {
            LiteralFn::Item.eval(&[shape(), Lit::Slice([a, b, c].into())]).unwrap().to_string()
        };
        assert_eq!(part(1.into(), Lit::None, Lit::None), "(6, 4)");
        assert_eq!(part(Lit::None, (-1).into(), Lit::None), "(n, 6)");
        assert_eq!(part(Lit::None, Lit::None, (-1).into()), "(4, 6, n)");
        assert_eq!(part(5.into(), 9.into(), Lit::None), "()");
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        assert_eq!(LiteralFn::Item.eval(&[shape(), 3.into()]).unwrap_err().code(), Code::IndexOutOfRange);
        assert_eq!(LiteralFn::FloorDivide.eval(&[6.into(), 0.into()]).unwrap_err().code(), Code::BadArgument);
        let symbolic = LiteralFn::Divide.eval(&[Lit::Int("n".into()), 2.into()]).unwrap_err();
        assert_eq!(symbolic.code(), Code::UnknownArgument);
    }
}
