//! The nodes of a file as they are written: values with their dtypes, constants, equal nodes only once.

use indexmap::IndexMap;
use mithril_ir::dim::{DimFactor, Symbol};
use mithril_ir::unique_names::UniqueNames;
use mithril_ir::{DType, Dim, Shape, Tensor};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::parse::Attribute;
use super::standard::{self, Out, Standard};
use crate::proto::{AttributeProto, NodeProto, TensorProto};

/// The result of writing something: what was made, or why ONNX cannot say it.
pub type Made<T> = Result<T, String>;

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Val {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
}

/// What is written so far.
#[derive(Debug)]
pub struct Writer {
    /// The opset.
    pub opset: i64,
    /// Nodes in order.
    pub nodes: Vec<NodeProto>,
    /// Constants by name.
    pub constants: IndexMap<String, Tensor, FxBuildHasher>,
    /// Where a symbol is read: the name of an input, its axis.
    pub symbols: FxHashMap<Symbol, (String, usize)>,
    /// Path of the part of the model that is being written.
    pub path: String,
    /// Outputs by what computes them.
    known: FxHashMap<String, Vec<Val>>,
    /// Names of constants by dtype, shape and bytes.
    interned: FxHashMap<(DType, Vec<usize>, Vec<u8>), String>,
    names: UniqueNames,
}

impl Writer {
    /// An empty file, in which these names are taken.
    pub fn new(opset: i64, names: UniqueNames) -> Self {
        Self {
            opset,
            nodes: Vec::new(),
            constants: IndexMap::default(),
            symbols: FxHashMap::default(),
            path: String::new(),
            known: FxHashMap::default(),
            interned: FxHashMap::default(),
            names,
        }
    }

    /// A name like this one that nothing has yet.
    pub fn fresh(&mut self, base: &str) -> String {
        self.names.fresh(base)
    }

    // --- constants ----------------------------------------------------------------------------------------------

    /// A constant; equal ones are one.
    pub fn constant(&mut self, tensor: &Tensor) -> Val {
        let dtype = tensor.dtype();
        let key = (dtype, tensor.shape().to_vec(), tensor.to_bytes());
        if let Some(name) = self.interned.get(&key) {
            return Val { name: name.clone(), dtype };
        }
        let name = self.fresh("constant");
        self.interned.insert(key, name.clone());
        self.constants.insert(name.clone(), tensor.clone());
        Val { name, dtype }
    }
    /// A constant of int64 with one axis.
    pub fn ints(&mut self, items: &[i64]) -> Val {
        self.constant(&Tensor::from_parts(&[items.len()], items.to_vec()))
    }
    /// The values of a constant.
    pub fn known(&self, val: &Val) -> Option<&Tensor> {
        self.constants.get(&val.name)
    }

    // --- nodes --------------------------------------------------------------------------------------------------

    /// Output `which` of an op of these inputs.
    ///
    /// # Errors
    /// When the opset or a dtype does not do.
    pub fn op(
        &mut self,
        name: &str,
        attributes: &[(String, Attribute)],
        inputs: &[Option<Val>],
        which: usize,
    ) -> Made<Val> {
        let op = standard::find(name).ok_or_else(|| format!("`{name}` is not in the table of ONNX's ops"))?;
        let since = if self.opset < 18 && LATE_AXES.contains(&name) { 13 } else { op.since };
        if since > self.opset {
            return Err(format!("{name} needs opset {since}"));
        }
        let constrained =
            inputs.iter().enumerate().filter(|(i, _)| op.constrains(*i)).find_map(|(_, v)| v.as_ref());
        let dtype = constrained.map(|v| v.dtype);
        let wide = match dtype {
            Some(d) => Some(op.computed_as(d).ok_or_else(|| format!("{name} takes no {d}"))?),
            None => None,
        };
        let is_rounded = |(_, value): &(String, Attribute)| matches!(value, Attribute::Float(x) if f64::from(*x as f32) != *x);
        if dtype == Some(DType::F64) && attributes.iter().any(is_rounded) {
            return Err(format!("attributes of {name} are float32"));
        }
        let mut operands = Vec::with_capacity(inputs.len());
        for (i, input) in inputs.iter().enumerate() {
            operands.push(match (input, wide) {
                (Some(v), Some(wide)) if op.constrains(i) => Some(self.cast(v, wide)?),
                (v, _) => v.clone(),
            });
        }
        let outputs = self.node(op, attributes, operands, wide)?;
        let output = outputs.get(which).cloned().ok_or_else(|| format!("{name} has no output {which}"))?;
        match (op.outputs.get(which), dtype) {
            (Some(Out::Same), Some(dtype)) => self.cast(&output, dtype),
            _ => Ok(output),
        }
    }

    fn node(
        &mut self,
        op: &Standard,
        attributes: &[(String, Attribute)],
        mut inputs: Vec<Option<Val>>,
        dtype: Option<DType>,
    ) -> Made<Vec<Val>> {
        let mut attributes = attributes.to_vec();
        if self.opset < 18 && LATE_AXES.contains(&op.name) {
            self.axes_as_attribute(&mut attributes, &mut inputs)?;
        }
        while inputs.last().is_some_and(Option::is_none) {
            inputs.pop();
        }
        let names: Vec<String> =
            inputs.iter().map(|v| v.as_ref().map_or(String::new(), |v| v.name.clone())).collect();
        let key = format!("{} {attributes:?} {names:?}", op.name);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let of = |i: usize| inputs.get(i).and_then(Option::as_ref).map(|v| v.dtype);
        let to = attributes.iter().find_map(|(name, value)| match value {
            Attribute::DType(d) if name == "to" => Some(*d),
            _ => None,
        });
        let base =
            if self.path.is_empty() { op.name.to_owned() } else { format!("{}/{}", self.path, op.name) };
        let mut outputs = Vec::with_capacity(op.outputs.len());
        for out in op.outputs {
            let dtype = match out {
                Out::Same => dtype,
                Out::Of(i) => of(*i),
                Out::Is(d) => Some(*d),
                Out::To => to,
            };
            let dtype = dtype.ok_or_else(|| format!("{} has no dtype", op.name))?;
            outputs.push(Val { name: self.fresh(&base), dtype });
        }
        let node = NodeProto {
            input: names,
            output: outputs.iter().map(|v| v.name.clone()).collect(),
            name: outputs[0].name.clone(),
            op_type: op.name.to_owned(),
            attribute: attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
            ..NodeProto::default()
        };
        self.nodes.push(node);
        self.known.insert(key, outputs.clone());
        Ok(outputs)
    }

    /// Until opset 18 the axes of most reductions are an attribute.
    fn axes_as_attribute(
        &self,
        attributes: &mut Vec<(String, Attribute)>,
        inputs: &mut Vec<Option<Val>>,
    ) -> Made<()> {
        if let Some(Some(axes)) = inputs.get(1) {
            let axes = self.known(axes).ok_or("axes that are computed need opset 18")?.to_i64s();
            attributes.push(("axes".into(), Attribute::Ints(axes)));
            inputs.truncate(1);
        }
        Ok(())
    }

    /// An op without attributes.
    pub fn simple(&mut self, name: &str, inputs: &[&Val]) -> Made<Val> {
        let inputs: Vec<_> = inputs.iter().map(|&v| Some(v.clone())).collect();
        self.op(name, &[], &inputs, 0)
    }

    /// A value in another dtype, wrapped around or rounded as ONNX does.
    pub fn cast(&mut self, v: &Val, to: DType) -> Made<Val> {
        if v.dtype == to {
            return Ok(v.clone());
        }
        if let Some(tensor) = self.known(v).filter(|t| t.len() <= 1 << 10) {
            let cast = tensor.cast(to);
            return Ok(self.constant(&cast));
        }
        self.op("Cast", &[("to".into(), Attribute::DType(to))], &[Some(v.clone())], 0)
    }

    // --- sizes --------------------------------------------------------------------------------------------------

    /// Sizes as a tensor of int64 with one axis.
    pub fn sizes(&mut self, dims: &[Dim]) -> Made<Val> {
        if let Some(known) = dims.iter().map(Dim::known).collect::<Option<Vec<i64>>>() {
            return Ok(self.ints(&known));
        }
        let mut parts: Vec<Val> = Vec::new();
        let mut run: Vec<i64> = Vec::new();
        for dim in dims {
            if let Some(n) = dim.known() {
                run.push(n);
                continue;
            }
            if !run.is_empty() {
                parts.push(self.ints(&std::mem::take(&mut run)));
            }
            parts.push(self.size(dim)?);
        }
        if !run.is_empty() {
            parts.push(self.ints(&run));
        }
        self.concat(&parts)
    }
    /// Tensors one after the other along the first axis; constants become one.
    pub fn concat(&mut self, parts: &[Val]) -> Made<Val> {
        if let [one] = parts {
            return Ok(one.clone());
        }
        let known: Option<Vec<Vec<i64>>> = parts.iter().map(|v| Some(self.known(v)?.to_i64s())).collect();
        if let Some(known) = known {
            return Ok(self.ints(&known.concat()));
        }
        let inputs: Vec<_> = parts.iter().cloned().map(Some).collect();
        self.op("Concat", &[("axis".into(), Attribute::Int(0))], &inputs, 0)
    }
    /// A size as a tensor of int64 with one element.
    pub fn size(&mut self, dim: &Dim) -> Made<Val> {
        if let Some(n) = dim.known() {
            return Ok(self.ints(&[n]));
        }
        let (terms, constant) = dim.parts();
        let mut sum: Option<Val> = None;
        for (factors, coefficient) in terms {
            let mut product: Option<Val> = None;
            for factor in factors {
                let factor = match factor {
                    DimFactor::Symbol(symbol) => self.symbol(symbol)?,
                    DimFactor::Div(a, b) => self.quotient(a, b)?,
                };
                product = Some(self.joined("Mul", product, factor)?);
            }
            let mut term = product.ok_or("a size without factors")?;
            if *coefficient != 1 {
                let by = self.ints(&[*coefficient]);
                term = self.simple("Mul", &[&term, &by])?;
            }
            sum = Some(self.joined("Add", sum, term)?);
        }
        let sum = sum.ok_or("a size without terms")?;
        if constant == 0 {
            return Ok(sum);
        }
        let constant = self.ints(&[constant]);
        self.simple("Add", &[&sum, &constant])
    }
    fn joined(&mut self, op: &str, left: Option<Val>, right: Val) -> Made<Val> {
        match left {
            Some(left) => self.simple(op, &[&left, &right]),
            None => Ok(right),
        }
    }
    /// That of ONNX is rounded towards 0, which differs below it.
    fn quotient(&mut self, a: &Dim, b: &Dim) -> Made<Val> {
        let (left, right) = (self.size(a)?, self.size(b)?);
        let is_positive = |d: &Dim| {
            let (terms, constant) = d.parts();
            constant >= 0 && terms.iter().all(|(_, c)| *c >= 0)
        };
        let is_positive = is_positive(a) && is_positive(b);
        self.divide(&left, &right, is_positive)
    }
    /// The quotient of sizes rounded down.
    pub fn divide(&mut self, left: &Val, right: &Val, is_positive: bool) -> Made<Val> {
        if is_positive {
            return self.simple("Div", &[left, right]);
        }
        let rest = self.simple("Mod", &[left, right])?;
        let whole = self.simple("Sub", &[left, &rest])?;
        self.simple("Div", &[&whole, right])
    }
    fn symbol(&mut self, symbol: &Symbol) -> Made<Val> {
        let (name, axis) = self
            .symbols
            .get(symbol)
            .cloned()
            .ok_or_else(|| format!("the size `{symbol}` is that of no input"))?;
        let axis = axis as i64;
        let attributes = [("start".into(), Attribute::Int(axis)), ("end".into(), Attribute::Int(axis + 1))];
        let path = std::mem::take(&mut self.path);
        // The dtype of the input does not matter here.
        let shape = self.op("Shape", &attributes, &[Some(Val { name, dtype: DType::F32 })], 0);
        self.path = path;
        shape
    }
    /// A tensor in another shape.
    pub fn reshape(&mut self, v: &Val, shape: &Shape) -> Made<Val> {
        if let (Some(tensor), Some(sizes)) = (self.known(v), shape.known())
            && sizes.iter().product::<usize>() == tensor.len()
        {
            let reshaped = tensor.reshaped(&sizes);
            return Ok(self.constant(&reshaped));
        }
        let open = shape.iter().filter(|d| d.known().is_none()).count();
        let others = shape.iter().filter_map(Dim::known);
        let is_empty = others.clone().any(|n| n == 0);
        let sizes = if open == 1 && !is_empty {
            let sizes: Vec<i64> = shape.iter().map(|d| d.known().unwrap_or(-1)).collect();
            self.ints(&sizes)
        } else {
            self.sizes(shape)?
        };
        // A size of 0 would be that of the input otherwise.
        let attributes =
            if is_empty || open > 1 { vec![("allowzero".to_owned(), Attribute::Int(1))] } else { Vec::new() };
        self.op("Reshape", &attributes, &[Some(v.clone()), Some(sizes)], 0)
    }
}

/// Reductions whose axes are an attribute until opset 18.
const LATE_AXES: &[&str] =
    &["ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"];

fn attribute(name: &str, value: &Attribute) -> AttributeProto {
    let proto = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    match value {
        Attribute::Float(x) => AttributeProto { f: Some(*x as f32), r#type: 1, ..proto },
        Attribute::Int(n) => AttributeProto { i: Some(*n), r#type: 2, ..proto },
        Attribute::DType(d) => AttributeProto { i: Some(standard::number(*d).into()), r#type: 2, ..proto },
        Attribute::Text(s) => AttributeProto { s: Some(s.clone().into_bytes().into()), r#type: 3, ..proto },
        Attribute::Ints(all) => AttributeProto { ints: all.clone(), r#type: 7, ..proto },
    }
}

/// A tensor of the file with its values inside.
pub fn tensor(name: &str, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        dims: shape.iter().map(|&n| n as i64).collect(),
        data_type: standard::number(dtype),
        name: name.to_owned(),
        raw_data: Some(bytes.into()),
        ..TensorProto::default()
    }
}
