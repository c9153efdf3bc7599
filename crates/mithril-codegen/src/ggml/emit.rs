//! Calls of ggml on views: which tensor a function is handed, and when a view must be copied for it.

use std::sync::Arc;

use mithril_ir::tensor::Tensor;
use mithril_ir::{DType, Scalar};
use rustc_hash::FxHashMap;

use super::functions::{Arrangement, Function, Kind, Operand, find};
use super::plan::{Argument, CUSTOM, Call, Custom, Host, HostInput, PlanValueId, Source, Value};
use super::types::{DIMENSIONS, Element, Type};
use super::views::{View, common, joined, natural};
use crate::ids::{Table, id};

id!(
    /// A call that was made so far.
    CallId
);

/// What an expression gives.
#[derive(Clone, Debug)]
pub enum Item {
    /// A tensor.
    View(View),
    /// A number.
    Number(f64),
    /// No tensor.
    Null,
    /// Integers.
    List(Vec<i64>),
    /// A type of elements.
    Element(Element),
}

/// How a weight is kept: in which elements, where a function takes them.
#[derive(Debug, Default)]
pub struct Weights {
    /// Whether weights may be kept in another order than they are given in.
    pub pack: bool,
    /// Weights (values) with the types of elements that are requested for them.
    pub elements: FxHashMap<PlanValueId, Element>,
    /// Why weights could not be kept as wanted.
    pub refused: Vec<(PlanValueId, String)>,
}

/// Values and calls so far.
#[derive(Debug, Default)]
pub struct Emitter {
    /// Values.
    pub values: Table<PlanValueId, Value>,
    /// Calls in order.
    pub calls: Table<CallId, Call>,
    /// Weights.
    pub weights: Weights,
    /// Results of calls, by function and arguments.
    done: FxHashMap<(&'static str, String), PlanValueId>,
    /// Tensors made of views.
    tensors: FxHashMap<View, PlanValueId>,
    /// Copies of views.
    copies: FxHashMap<View, PlanValueId>,
    /// Values that are kept otherwise: the value, its axes, its elements.
    kept: FxHashMap<(PlanValueId, Vec<usize>, Element), PlanValueId>,
    /// Numbers as tensors.
    numbers: FxHashMap<u64, PlanValueId>,
}

/// How far a plan is.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// The values from this one on come after it.
    pub values: PlanValueId,
    calls: CallId,
    refused: usize,
}

type Made<T> = Result<T, String>;

impl Emitter {
    /// Of nothing.
    pub fn new(weights: Weights) -> Self {
        Self { weights, ..Self::default() }
    }
    /// Adds a value.
    pub fn add(&mut self, value: Value) -> PlanValueId {
        self.values.push(value)
    }
    /// Adds a constant of floats.
    pub fn constant(&mut self, name: &str, tensor: &Arc<Tensor>) -> PlanValueId {
        let shape: Vec<i64> = tensor.shape().iter().map(|&n| n as i64).collect();
        self.add(Value {
            name: name.into(),
            dtype: tensor.dtype(),
            ty: (!tensor.is_empty()).then(|| flat_type(Element::of(tensor.dtype()), &shape)),
            shape,
            source: Source::Constant(tensor.clone()),
        })
    }
    fn number(&mut self, x: f64) -> View {
        let known = self.numbers.get(&x.to_bits()).copied();
        let value = known.unwrap_or_else(|| {
            self.constant("number", &Arc::new(Tensor::scalar(DType::F32, Scalar::Float(x))))
        });
        self.numbers.insert(x.to_bits(), value);
        View::whole(value, &[])
    }
    fn ty(&self, value: PlanValueId) -> Made<Type> {
        self.values[value].ty.ok_or_else(|| format!("%{value} has no elements"))
    }
    /// How far the plan is.
    pub fn mark(&self) -> Mark {
        let refused = self.weights.refused.len();
        Mark { values: self.values.end(), calls: self.calls.end(), refused }
    }
    /// Per value the one call that reads it, if nothing else does.
    pub fn readers(&self, hosts: &[Host], results: &[PlanValueId]) -> FxHashMap<PlanValueId, CallId> {
        let mut readers: FxHashMap<PlanValueId, Option<CallId>> = FxHashMap::default();
        for (i, call) in self.calls.entries() {
            for v in call.arguments.iter().filter_map(Argument::value) {
                readers.entry(v).and_modify(|reader| *reader = None).or_insert(Some(i));
            }
        }
        let by_hosts = hosts.iter().flat_map(|h| &h.inputs).filter_map(HostInput::value);
        let sources = self.values.iter().filter_map(|value| value.source.of());
        for v in by_hosts.chain(sources).chain(results.iter().copied()) {
            readers.insert(v, None);
        }
        readers.into_iter().filter_map(|(v, reader)| Some((v, reader?))).collect()
    }
    /// Makes anew what is asked for from here on, even if a call of it was seen: calls are put into another order.
    pub fn forget_calls(&mut self) {
        self.done.clear();
        self.tensors.clear();
        self.copies.clear();
    }
    /// Forgets what was made since.
    pub fn reset(&mut self, mark: Mark) {
        self.values.truncate(mark.values);
        self.calls.truncate(mark.calls);
        self.weights.refused.truncate(mark.refused);
        for map in [&mut self.tensors, &mut self.copies] {
            map.retain(|view, v| *v < mark.values && view.value < mark.values);
        }
        self.kept.retain(|key, v| *v < mark.values && key.0 < mark.values);
        self.numbers.retain(|_, v| *v < mark.values);
        self.done.retain(|_, v| *v < mark.values);
    }
    fn attempt<T>(&mut self, f: impl FnOnce(&mut Self) -> Made<T>) -> Made<T> {
        let mark = self.mark();
        let result = f(self);
        if result.is_err() {
            self.reset(mark);
        }
        result
    }
    pub fn push(&mut self, function: &'static Function, arguments: Vec<Argument>) -> Made<PlanValueId> {
        let types = arguments.iter().map(|a| match a {
            Argument::Value(v) => self.ty(*v).map(Some),
            _ => Ok(None),
        });
        let types = types.collect::<Made<Vec<_>>>()?;
        let operands: Vec<Operand<'_>> = arguments
            .iter()
            .zip(&types)
            .map(|(argument, ty)| match (argument, ty) {
                (_, Some(ty)) => Operand::Tensor(ty),
                (Argument::Number(x), _) => Operand::Number(*x),
                (Argument::Element(e), _) => Operand::Element(*e),
                _ => Operand::Null,
            })
            .collect();
        let key = (function.name, arguments.iter().map(|a| a.to_string()).collect::<Vec<_>>().join(", "));
        if let Some(&known) = self.done.get(&key) {
            return Ok(known);
        }
        let ty = function.check(&operands).map_err(|e| format!("{}: {e}", function.name))?;
        let rank = (1..DIMENSIONS).rev().find(|&i| ty.sizes[i] != 1).unwrap_or(0) + 1;
        let shape = ty.sizes[..rank].iter().rev().copied().collect();
        // What is moved stays what it is.
        let moved = arguments.iter().filter_map(Argument::value).map(|v| self.values[v].dtype);
        let dtype = match ty.element {
            Element::F32 | Element::F16 | Element::BF16 => DType::F32,
            element => moved.into_iter().find(|&d| element.holds(d)).unwrap_or(DType::I32),
        };
        let result =
            self.add(Value { name: function.name.into(), dtype, shape, ty: Some(ty), source: Source::Call });
        self.calls.push(Call { function: function.name, arguments, result, custom: None });
        // A copy may be written over: each who asks for one gets one.
        if !matches!(function.arrangement, Arrangement::Writes) {
            self.done.insert(key, result);
        }
        Ok(result)
    }
    /// A custom op that reads values and makes one.
    pub fn custom(&mut self, custom: Custom, reads: &[PlanValueId], value: Value) -> PlanValueId {
        let key = match custom {
            Custom::Positions { rows, distinct } => Some((CUSTOM, format!("{rows} {distinct} {reads:?}"))),
            Custom::Node(_) => None,
        };
        if let Some(&known) = key.as_ref().and_then(|key| self.done.get(key)) {
            return known;
        }
        let result = self.add(value);
        let arguments = reads.iter().map(|&v| Argument::Value(v)).collect();
        let custom = Some(Box::new(custom));
        self.calls.push(Call { function: CUSTOM, arguments, result, custom });
        if let Some(key) = key {
            self.done.insert(key, result);
        }
        result
    }
    fn movement(&mut self, name: &str, value: PlanValueId, numbers: &[i64]) -> Made<PlanValueId> {
        let function = find(name).ok_or_else(|| format!("{name} is not known"))?;
        let numbers = numbers.iter().map(|&n| Argument::Number(n as f64));
        self.push(function, [Argument::Value(value)].into_iter().chain(numbers).collect())
    }
    /// The tensor that shows a view of at most four dimensions.
    pub fn tensor(&mut self, view: &View) -> Made<PlanValueId> {
        if let Some(&known) = self.tensors.get(view) {
            return Ok(known);
        }
        let base = self.ty(view.value)?;
        let target = Type::of_shape(base.element, &view.shape)
            .ok_or_else(|| format!("{:?} has more than four dimensions", view.shape))?;
        let is_whole = view.is_contiguous() && view.offset == 0 && view.elements() == base.elements();
        let tensor = if is_whole && target.sizes == base.sizes {
            view.value
        } else if is_whole {
            self.movement("ggml_reshape_4d", view.value, &target.sizes)?
        } else if base.element.is_quantized() {
            return Err(format!("a part of {base} cannot be seen"));
        } else if view.once().shape != view.shape {
            let once = self.tensor(&view.once())?;
            self.movement("ggml_repeat_4d", once, &target.sizes)?
        } else {
            self.part(view, &base)?
        };
        self.tensors.insert(view.clone(), tensor);
        Ok(tensor)
    }
    /// The tensor that shows a part of a value, or its dimensions in another order.
    fn part(&mut self, view: &View, base: &Type) -> Made<PlanValueId> {
        let rank = view.shape.len();
        // Dimensions of the view (from the last) in the order of memory; those of one element stay free.
        let at = |i: usize| rank - 1 - i;
        let mut order: Vec<usize> = (0..rank).filter(|&i| view.shape[at(i)] != 1).collect();
        order.sort_by_key(|&i| view.strides[at(i)]);
        let mut free = (0..DIMENSIONS).filter(|i| !order.contains(i)).collect::<Vec<_>>().into_iter();
        let gap = order.first().is_some_and(|&i| view.strides[at(i)] != 1);
        let mut places: Vec<usize> = Vec::new();
        if gap {
            places.push(free.next().ok_or_else(|| format!("a view of {base} has gaps in its rows"))?);
        }
        places.extend(&order);
        places.extend(free);
        // Where nothing moves, dimensions of one element stay where they are.
        let sorted = order.windows(2).all(|pair| pair[0] < pair[1]);
        if sorted && !gap {
            places = (0..DIMENSIONS).collect();
        }
        let bytes = base.element.bytes();
        let (mut sizes, mut strides) = ([1; DIMENSIONS], [bytes; DIMENSIONS]);
        let mut next = bytes;
        for (to, &from) in places.iter().enumerate() {
            let size = if from < rank { view.shape[at(from)] } else { 1 };
            strides[to] = if size == 1 { next } else { view.strides[at(from)] * bytes };
            sizes[to] = size;
            next = strides[to] * size;
        }
        let [n0, n1, n2, n3] = sizes;
        let numbers = [n0, n1, n2, n3, strides[1], strides[2], strides[3], view.offset * bytes];
        let whole = Type { element: base.element, sizes, strides };
        let same = sizes == base.sizes && strides == base.strides && view.offset == 0;
        let seen = if same { view.value } else { self.movement("ggml_view_4d", view.value, &numbers)? };
        if whole.strides[0] != bytes {
            return Err(format!("a view of {base} has gaps in its rows"));
        }
        let axes: Vec<i64> = places.iter().map(|&p| p as i64).collect();
        if axes.iter().copied().eq(0..DIMENSIONS as i64) {
            return Ok(seen);
        }
        self.movement("ggml_permute", seen, &axes)
    }
    /// The view as a value of its own, without gaps.
    pub fn contiguous(&mut self, view: &View) -> Made<View> {
        let base = self.ty(view.value)?;
        if view.is_contiguous() && view.elements() == base.elements() && view.offset == 0 {
            return Ok(view.clone());
        }
        if let Some(&known) = self.copies.get(view) {
            return Ok(View::whole(known, &view.shape));
        }
        if let Some(value) = self.kept(view, Element::F32) {
            return Ok(View::whole(value, &view.shape));
        }
        let value = match self.attempt(|e| e.copied(view)) {
            Ok(value) => value,
            Err(_) => self.attempt(|e| e.copied(&view.coalesced())).or_else(|_| self.moved(view))?,
        };
        self.copies.insert(view.clone(), value);
        Ok(View::whole(value, &view.shape))
    }
    /// A copy of a view without gaps.
    fn copied(&mut self, view: &View) -> Made<PlanValueId> {
        let folded = folded(view).ok_or_else(|| format!("{:?} has more than four dimensions", view.shape))?;
        let is_repeated = folded.once().shape != folded.shape;
        let seen = self.tensor(&folded)?;
        let is_new = is_repeated && self.ty(seen)?.is_contiguous();
        if is_new { Ok(seen) } else { self.movement("ggml_cont", seen, &[]) }
    }
    /// A copy of a value with more than four dimensions in another order: one dimension after the other goes to its place.
    fn moved(&mut self, view: &View) -> Made<PlanValueId> {
        let view = view.coalesced();
        let rank = view.shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(view.strides[i]));
        let sizes: Vec<i64> = order.iter().map(|&i| view.shape[i]).collect();
        let whole = View { offset: view.offset, ..View::whole(view.value, &sizes) };
        if order.iter().zip(&whole.strides).any(|(&i, &s)| view.strides[i] != s) {
            return Err(format!("{:?} by {:?} has gaps", view.shape, view.strides));
        }
        let mut now = whole;
        for place in 0..rank {
            let at = order.iter().position(|&i| i == place).ok_or("a dimension is missing")?;
            let axis = order.remove(at);
            order.insert(place, axis);
            let product = |from: usize, to: usize| now.shape[from..to].iter().product::<i64>();
            let four = [product(0, place), product(place, at), now.shape[at], product(at + 1, rank)];
            let mut shape = now.shape.clone();
            let size = shape.remove(at);
            shape.insert(place, size);
            if at > place {
                let seen = now.reshaped(&four).and_then(|v| v.permuted(&[0, 2, 1, 3]));
                let seen = seen.ok_or("a value cannot be folded")?;
                now = View::whole(self.copied(&seen)?, &shape);
            }
        }
        Ok(now.value)
    }
    /// Whether a view can be copied, where it is not without gaps already.
    pub fn check(&mut self, view: &View) -> Made<()> {
        let mark = self.mark();
        let result = self.contiguous(view);
        self.reset(mark);
        result.map(|_| ())
    }
    /// A weight whose dimensions are seen in another order, or that is wanted in other elements: kept that way.
    fn kept(&mut self, view: &View, element: Element) -> Option<PlanValueId> {
        let weight = &self.values[view.value];
        let is_weight = matches!(weight.source, Source::Input(_)) && self.weights.pack;
        if !is_weight || !self.weights.elements.contains_key(&view.value) {
            return None;
        }
        let own = natural(&weight.shape);
        let axes: Option<Vec<usize>> = if view.shape.len() == own.len() && view.offset == 0 {
            let mut used = vec![false; own.len()];
            let axis = |i: usize| {
                let fits = |&a: &usize| {
                    !used[a]
                        && weight.shape[a] == view.shape[i]
                        && (own[a] == view.strides[i] || view.shape[i] == 1)
                };
                let axis = (0..own.len()).find(fits);
                if let Some(a) = axis {
                    used[a] = true;
                }
                axis
            };
            (0..own.len()).map(axis).collect()
        } else {
            None
        };
        let key = (view.value, axes?, element);
        if let Some(&known) = self.kept.get(&key) {
            return Some(known);
        }
        let ty = Type::of_shape(element, &view.shape)?;
        let value = Value {
            name: weight.name.clone(),
            dtype: weight.dtype,
            shape: view.shape.clone(),
            ty: Some(ty),
            source: Source::Permuted { of: view.value, axes: key.1.clone() },
        };
        let value = self.add(value);
        self.kept.insert(key, value);
        Some(value)
    }
    /// The weight that a view shows, in the elements wanted for it.
    fn stored(&mut self, view: &View) -> View {
        let element = self.weights.elements.get(&view.value).copied().filter(|&e| e != Element::F32);
        let Some(element) = element else { return view.clone() };
        let row = view.shape.last().copied().unwrap_or(1);
        if row % element.block() != 0 {
            let reason = format!("rows of {row} elements are not blocks of {}", element.block());
            self.weights.refused.push((view.value, reason));
            return view.clone();
        }
        match self.kept(view, element) {
            Some(value) => View::whole(value, &view.shape),
            None => view.clone(),
        }
    }
    /// A call, as its function takes its tensors.
    pub fn call(&mut self, function: &'static Function, items: Vec<Item>) -> Made<View> {
        if items.len() != function.takes.len() {
            return Err(format!("{} takes {} arguments", function.name, function.takes.len()));
        }
        if let (Arrangement::Matrices, [Item::View(a), Item::View(b)]) =
            (function.arrangement, items.as_slice())
            && let Some(result) = self.one_row(a, b)
        {
            return Ok(result);
        }
        let mut views = Vec::new();
        let mut rest = Vec::new();
        for (kind, item) in function.takes.iter().zip(items) {
            match (kind, item) {
                (Kind::Tensor | Kind::Optional, Item::View(view)) => {
                    views.push(view);
                    rest.push(None);
                }
                (Kind::Tensor, Item::Number(x)) => {
                    views.push(self.number(x));
                    rest.push(None);
                }
                (Kind::Optional, Item::Null) => rest.push(Some(Argument::Null)),
                (Kind::Int | Kind::Float | Kind::Bool, Item::Number(x)) => {
                    rest.push(Some(Argument::Number(x)));
                }
                (Kind::Element, Item::Element(e)) => rest.push(Some(Argument::Element(e))),
                (kind, item) => return Err(format!("{} takes {kind:?}, not {item:?}", function.name)),
            }
        }
        let shape = self.arrange(function, &mut views)?;
        // As they are; else with copies of those that have gaps.
        let mut last = String::new();
        for copied in 0..1_usize << views.len() {
            let result = self.attempt(|e| {
                let mut views = views.clone();
                for (i, view) in views.iter_mut().enumerate().filter(|(i, _)| copied >> i & 1 == 1) {
                    let keeps = matches!(function.arrangement, Arrangement::Repeats(_)) && i == 1;
                    *view = e.contiguous(&if keeps { view.once() } else { view.clone() })?;
                }
                let mut tensors = Vec::new();
                for view in &views {
                    tensors.push(e.tensor(view)?);
                }
                let mut tensors = tensors.into_iter();
                let arguments = rest.iter().map(|r| r.or_else(|| tensors.next().map(Argument::Value)));
                e.push(function, arguments.collect::<Option<_>>().ok_or("too few tensors")?)
            });
            match result {
                Ok(value) => return self.result(value, shape, &views),
                Err(e) => last = e,
            }
        }
        Err(last)
    }
    /// The result of a call in the shape of the graph.
    fn result(&self, value: PlanValueId, shape: Option<Vec<i64>>, views: &[View]) -> Made<View> {
        let ty = self.ty(value)?;
        let shape = match shape {
            // Of rows, what became of them.
            Some(mut shape) if shape.iter().product::<i64>() != ty.elements() => {
                let rank = shape.len();
                shape[rank - 1] = ty.sizes[0];
                shape
            }
            Some(shape) => shape,
            None => {
                let rank = views.iter().map(|v| v.shape.len()).max().unwrap_or(1).max(1);
                ty.sizes[..rank].iter().rev().copied().collect()
            }
        };
        let view = View::whole(value, &shape);
        if view.elements() == ty.elements() { Ok(view) } else { Err(format!("{ty} is not {shape:?}")) }
    }
    /// A product with one row of values, of a matrix whose columns lie one behind the other: the values of an attention
    /// to one query, which would have to be copied otherwise.
    fn one_row(&mut self, a: &View, b: &View) -> Option<View> {
        let rank = a.shape.len();
        let (columns, rows) = (rank.checked_sub(1)?, rank.checked_sub(2)?);
        let is_turned = rank <= DIMENSIONS
            && b.shape.len() == rank
            && b.shape[rows] == 1
            && a.shape[..rows] == b.shape[..rows]
            && a.shape[columns] > 1
            && (a.strides[rows], a.strides[columns]) == (1, a.shape[rows])
            // A weight is kept as products read it.
            && !self.weights.elements.contains_key(&a.value);
        let function = find("ggml_out_prod").filter(|_| is_turned)?;
        let mut axes: Vec<i64> = (0..rank as i64).collect();
        axes.swap(rows, columns);
        let items = [a, b].map(|view| view.permuted(&axes).map(Item::View));
        let items = items.into_iter().collect::<Option<Vec<_>>>()?;
        self.attempt(|e| e.call(function, items)).ok()
    }
    /// Brings tensors to what a function takes: four dimensions, the second repeated. The shape of the result where
    /// it does not follow from its type.
    fn arrange(&mut self, function: &Function, views: &mut [View]) -> Made<Option<Vec<i64>>> {
        match function.arrangement {
            Arrangement::Elements => {
                let shape = views[0].shape.clone();
                views[0] = self.folded(&views[0])?;
                Ok(Some(shape))
            }
            Arrangement::Rows => {
                let shape = views[0].shape.clone();
                if views.len() == 1 {
                    views[0] = self.folded(&views[0])?;
                }
                Ok(Some(shape))
            }
            Arrangement::Repeats(swaps) => {
                let shapes: Vec<&[i64]> = views.iter().map(|v| v.shape.as_slice()).collect();
                let shape = common(&shapes).ok_or_else(|| format!("{shapes:?} do not broadcast"))?;
                if swaps && views[0].once().elements() < views[1].once().elements() {
                    views.swap(0, 1);
                }
                let whole = |v: &View| v.broadcast(&shape).ok_or("operands do not broadcast");
                views[0] = whole(&views[0])?;
                views[1] = whole(&views[1])?.once();
                self.join(views, DIMENSIONS, 0)?;
                Ok(Some(shape))
            }
            Arrangement::Broadcast => {
                let shapes: Vec<&[i64]> = views.iter().map(|v| v.shape.as_slice()).collect();
                let shape = common(&shapes).ok_or_else(|| format!("{shapes:?} do not broadcast"))?;
                for view in views.iter_mut() {
                    *view = view.broadcast(&shape).ok_or("operands do not broadcast")?;
                }
                let once: Vec<View> = views.iter().map(View::once).collect();
                let covers = (0..shape.len()).all(|i| once.iter().any(|v| v.shape[i] == shape[i]));
                views.iter_mut().zip(once).skip(usize::from(!covers)).for_each(|(v, once)| *v = once);
                self.join(views, DIMENSIONS, 0)?;
                Ok(Some(shape))
            }
            Arrangement::Matrices => self.matrices(views).map(Some),
            Arrangement::Table => {
                views[0] = self.stored(&views[0]);
                Ok(None)
            }
            Arrangement::Writes | Arrangement::Never => Ok(None),
        }
    }
    /// Puts neighboring dimensions, apart from the last `own`, together until there are at most `limit`.
    fn join(&mut self, views: &mut [View], limit: usize, own: usize) -> Made<()> {
        let rank = views[0].shape.len();
        if rank - own <= limit {
            return Ok(());
        }
        let shapes: Vec<&[i64]> = views.iter().map(|v| &v.shape[..rank - own]).collect();
        let shapes =
            joined(&shapes, limit).ok_or_else(|| format!("{shapes:?} need more than four dimensions"))?;
        for (view, mut shape) in views.iter_mut().zip(shapes) {
            shape.extend(&view.shape[rank - own..]);
            *view = if let Some(seen) = view.reshaped(&shape) {
                seen
            } else {
                self.contiguous(view)?.reshaped(&shape).ok_or("a copy cannot be folded")?
            };
        }
        Ok(())
    }
    /// Operands of a product: batches broadcast, those of the second as many as there are.
    fn matrices(&mut self, views: &mut [View]) -> Made<Vec<i64>> {
        let weights = self.stored(&views[0]);
        let (a, b) = (&weights, &views[1]);
        if a.shape.len() < 2 || b.shape.len() < 2 {
            return Err("a product needs matrices".into());
        }
        let (batch_a, matrix_a) = a.shape.split_at(a.shape.len() - 2);
        let (batch_b, matrix_b) = b.shape.split_at(b.shape.len() - 2);
        let batch = common(&[batch_a, batch_b]).ok_or("batches do not broadcast")?;
        let shape: Vec<i64> = batch.iter().copied().chain([matrix_b[0], matrix_a[0]]).collect();
        let padded = |view: &View, matrix: &[i64]| {
            let ones = shape.len() - view.shape.len();
            let sizes: Vec<i64> = std::iter::repeat_n(1, ones).chain(view.shape.iter().copied()).collect();
            let whole: Vec<i64> = batch.iter().copied().chain(matrix.iter().copied()).collect();
            (view.reshaped(&sizes), whole)
        };
        let (first, _) = padded(a, matrix_a);
        let (_, whole) = padded(b, matrix_b);
        let first = first.ok_or("a product of no matrices")?.once_batches();
        let second = b.broadcast(&whole).ok_or("batches do not broadcast")?;
        (views[0], views[1]) = (first, second);
        if views[0].shape[..batch.len()].iter().all(|&n| n == 1) {
            // One matrix of weights meets all rows.
            let rows = batch.iter().product::<i64>() * matrix_b_rows(&views[1]);
            let matrix = views[0].shape[batch.len()..].to_vec();
            if let (Some(weights), Some(all)) = (
                views[0].reshaped(&matrix),
                views[1].reshaped(&[rows, views[1].shape[views[1].shape.len() - 1]]),
            ) {
                (views[0], views[1]) = (weights, all);
                return Ok(shape);
            }
        }
        self.join(views, DIMENSIONS - 2, 2)?;
        Ok(shape)
    }
    /// With the leading dimensions put together where there are more than four.
    fn folded(&mut self, view: &View) -> Made<View> {
        if let Some(view) = folded(view) {
            return Ok(view);
        }
        folded(&self.contiguous(view)?).ok_or_else(|| "a copy cannot be folded".into())
    }
}

fn matrix_b_rows(view: &View) -> i64 {
    view.shape[view.shape.len() - 2]
}

impl View {
    /// Without repetitions in front of the matrix.
    fn once_batches(&self) -> Self {
        let mut out = self.clone();
        let batches = out.shape.len() - 2;
        for i in 0..batches {
            if out.strides[i] == 0 {
                out.shape[i] = 1;
            }
        }
        out
    }
}

/// A view in at most four dimensions, if that needs no copy: dimensions before the last are put together.
fn folded(view: &View) -> Option<View> {
    let rank = view.shape.len();
    if rank <= DIMENSIONS {
        return Some(view.clone());
    }
    let leading = view.shape.iter().zip(&view.strides).take(rank - 1).filter(|(n, _)| **n != 1);
    let mut groups: Vec<(i64, i64)> = leading.map(|(&n, &s)| (n, s)).collect();
    while groups.len() >= DIMENSIONS {
        let at = (1..groups.len()).find(|&i| groups[i - 1].1 == groups[i].0 * groups[i].1)?;
        let (size, stride) = groups.remove(at);
        groups[at - 1] = (groups[at - 1].0 * size, stride);
    }
    let sizes: Vec<i64> = groups.iter().map(|g| g.0).chain([view.shape[rank - 1]]).collect();
    view.reshaped(&sizes)
}

/// The type of a value of any number of dimensions: of more than four, one row.
pub fn flat_type(element: Element, shape: &[i64]) -> Type {
    Type::of_shape(element, shape)
        .unwrap_or_else(|| Type::contiguous(element, [shape.iter().product(), 1, 1, 1]))
}
