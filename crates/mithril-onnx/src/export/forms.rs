//! The forms of lowerings: words in small letters that stand for constants, sizes, conversions or several nodes.
//!
//! | form | what it is |
//! |---|---|
//! | `ints({i})`, `int({i})` | a literal, possibly symbolic, as a tensor of int64 with one axis, or none |
//! | `sizes()`, `sizes({i})` | the shape of the first output, or of an input |
//! | `size(axis)`, `size({i}, axis)` | one of these sizes, with one axis |
//! | `list(a, b, …)` | tensors of one axis, joined |
//! | `i64(x)`, `f32(x)`, `bool(x)` … | in another dtype |
//! | `cast(x)`, `like(x, y)` | in the dtype of the first output, or of `y` |
//! | `least()`, `most()` | the ends of the range of the first output's integers |
//! | `lowest(x)`, `highest(x)` | the least and the largest number of the dtype of `x` |
//! | `symbol_…()`, `quotient(a, b)` | a symbol, by its name in hexadecimal, and a size divided by another one |
//! | `reshape(x)`, `reshape(x, sizes)` | in the shape of the first output, or another one |

use mithril_ir::{DType, Dim, Lit, Shape, Tensor};

use super::lower::Node;
use super::parse::{Attribute, Tree};
use super::writer::{Made, Val, Writer};

/// Writes a form.
///
/// # Errors
/// When there is none of that name, or its arguments do not do.
pub fn form(node: &Node<'_>, w: &mut Writer, name: &str, args: &[Tree]) -> Made<Val> {
    let shape = |arg: Option<&Tree>| match arg {
        None => node.output(0).map(|t| t.shape.clone()),
        Some(Tree::Input(i)) => node.ty(*i).map(|t| t.shape.clone()).ok_or_else(|| "no shape".to_owned()),
        Some(_) => Err(format!("`{name}` is of an input")),
    };
    match (name, args) {
        ("ints", [Tree::Input(i)]) => w.sizes(&dims(&node.lit(*i))?),
        ("int", [Tree::Input(i)]) => match dims(&node.lit(*i))?.as_slice() {
            [one] => scalar(w, one, DType::I64),
            _ => Err("one integer is needed".into()),
        },
        ("sizes", []) => w.sizes(&shape(None)?),
        ("sizes", [of]) => w.sizes(&shape(Some(of))?),
        ("size", [axis]) => one_size(w, &shape(None)?, axis),
        ("size", [of, axis]) => one_size(w, &shape(Some(of))?, axis),
        ("list", parts) => {
            let parts = parts.iter().map(|part| vector(node, w, part)).collect::<Made<Vec<_>>>()?;
            w.concat(&parts)
        }
        ("cast", [x]) => {
            let x = node.tree(w, x, Some(node.output(0)?.dtype))?;
            w.cast(&x, node.output(0)?.dtype)
        }
        ("like", [x, y]) => {
            let y = node.tree(w, y, None)?;
            let x = node.tree(w, x, Some(y.dtype))?;
            w.cast(&x, y.dtype)
        }
        ("reshape", [x]) => {
            let x = node.tree(w, x, None)?;
            w.reshape(&x, &shape(None)?)
        }
        ("reshape", [x, Tree::List(sizes)]) => {
            let x = node.tree(w, x, None)?;
            w.reshape(&x, &Shape::of(sizes.iter().copied()))
        }
        ("reshape", [x, sizes]) => {
            let (x, sizes) = (node.tree(w, x, None)?, vector(node, w, sizes)?);
            let zero = [("allowzero".to_owned(), Attribute::Int(1))];
            w.op("Reshape", &zero, &[Some(x), Some(sizes)], 0)
        }
        ("least" | "most" | "lowest" | "highest" | "quotient", _) => constant(node, w, name, args),
        (symbol, []) => symbol_size(w, symbol),
        (dtype, [x]) => {
            let dtype = DType::parse(dtype).map_err(|_| format!("there is no form `{name}`"))?;
            let x = node.tree(w, x, Some(dtype))?;
            w.cast(&x, dtype)
        }
        _ => Err(format!("there is no form `{name}` of {} arguments", args.len())),
    }
}

/// The ends of ranges, and quotients of sizes.
fn constant(node: &Node<'_>, w: &mut Writer, name: &str, args: &[Tree]) -> Made<Val> {
    match (name, args) {
        ("quotient", [a, b]) => {
            let (a, b) = (vector(node, w, a)?, vector(node, w, b)?);
            w.divide(&a, &b, false)
        }
        (_, [] | [_]) => {
            let dtype = match args {
                [x] => node.tree(w, x, None)?.dtype,
                _ => node.output(0)?.dtype,
            };
            let is_least = matches!(name, "least" | "lowest");
            Ok(w.constant(&match dtype.int_range() {
                Some((least, most)) => Tensor::scalar(dtype, if is_least { least } else { most }),
                None => Tensor::scalar(dtype, if is_least { f64::NEG_INFINITY } else { f64::INFINITY }),
            }))
        }
        _ => Err(format!("there is no form `{name}` of {} arguments", args.len())),
    }
}

/// A symbol, whose name is written in hexadecimal, since it may be any text.
fn symbol_size(w: &mut Writer, form: &str) -> Made<Val> {
    let hex = form.strip_prefix("symbol_").ok_or_else(|| format!("there is no form `{form}`"))?.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let name: Option<Vec<u8>> = hex.chunks(2).map(byte).collect();
    let name = name.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or("no symbol")?;
    w.size(&Dim::symbol(&name))
}

/// A tree as a tensor of int64 with one axis.
fn vector(node: &Node<'_>, w: &mut Writer, tree: &Tree) -> Made<Val> {
    match tree {
        Tree::Number(n) => Ok(w.ints(&[*n as i64])),
        other => node.tree(w, other, Some(DType::I64)),
    }
}

fn one_size(w: &mut Writer, shape: &Shape, axis: &Tree) -> Made<Val> {
    let Tree::Number(axis) = axis else { return Err("an axis is a number".into()) };
    let rank = shape.rank() as i64;
    let axis = *axis as i64;
    let at = usize::try_from(if axis < 0 { axis + rank } else { axis }).unwrap_or(usize::MAX);
    w.size(shape.get(at).ok_or("no such axis")?)
}

/// Sizes of a literal.
fn dims(lit: &Lit) -> Made<Vec<Dim>> {
    match lit {
        Lit::Int(d) => Ok(vec![d.clone()]),
        Lit::Tuple(items) => items.iter().map(dims).collect::<Made<Vec<_>>>().map(|all| all.concat()),
        Lit::Tensor(t) if !t.dtype().is_float() => Ok(t.to_i64s().into_iter().map(Dim::Const).collect()),
        other => Err(format!("{other} are not integers")),
    }
}

/// A size as a tensor without axes, of another dtype.
pub fn scalar(w: &mut Writer, dim: &Dim, dtype: DType) -> Made<Val> {
    if let Some(n) = dim.known() {
        return Ok(w.constant(&Tensor::scalar(dtype, n)));
    }
    let size = w.size(dim)?;
    let axes = w.ints(&[0]);
    let size = w.simple("Squeeze", &[&size, &axes])?;
    w.cast(&size, dtype)
}
