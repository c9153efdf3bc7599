//! A backend of one's own: a toy device with a handful of ops, on which a whole model trains.
//!
//! The device knows `f32` arrays and seven ops. Everything else of the model (layers, cross entropy, gradients) is
//! expanded into these; what is left over, such as choosing the logit of a class, runs on the host.
//!
//! ```text
//! cargo run -p mithril --example custom_backend
//! ```

use std::cell::Cell;
use std::sync::Arc;

use mithril::prelude::*;

/// An array "on the device".
#[derive(Clone, Debug)]
pub struct Array {
    shape: Vec<usize>,
    data: Arc<Values>,
}

/// What the device holds: floats that it computes with, and other numbers that it only keeps.
#[derive(Debug)]
enum Values {
    Floats(Vec<f32>),
    Others(Tensor),
}

impl Array {
    fn new(shape: &[usize], data: Vec<f32>) -> Self {
        Self { shape: shape.to_vec(), data: Arc::new(Values::Floats(data)) }
    }
    fn floats(&self) -> &[f32] {
        match &*self.data {
            Values::Floats(data) => data,
            Values::Others(_) => &[],
        }
    }
    /// The element that broadcasting puts at a position of an array of this shape.
    fn at(&self, shape: &[usize], position: usize) -> f32 {
        let (mut rest, mut index, mut stride) = (position, 0, 1);
        for (axis, &size) in shape.iter().enumerate().rev() {
            let own = (axis + self.shape.len()).checked_sub(shape.len()).map_or(1, |a| self.shape[a]);
            if own > 1 {
                index += rest % size * stride;
                stride *= own;
            }
            rest /= size;
        }
        self.floats()[index]
    }
}

/// The device.
#[derive(Debug, Default)]
pub struct Toy {
    /// How many ops it has run.
    pub runs: Cell<usize>,
    /// Whether what it lacks may run on the host.
    pub alone: bool,
}

impl Backend for Toy {
    type Array = Array;

    fn name(&self) -> &'static str {
        "toy"
    }

    fn supports(&self, op: &Use<'_>) -> bool {
        let is_here = match op.name() {
            "add" | "subtract" | "multiply" | "divide" | "maximum" | "exp" => true,
            // Plain matrices only: other products are left to the host.
            "matmul" => (0..2).all(|i| op.input(i).is_some_and(|ty| ty.shape.rank() == 2)),
            _ => false,
        };
        is_here && op.is_of(&[DType::F32])
    }

    fn run(&self, call: &Call<'_, Array>) -> Result<Vec<Array>> {
        self.runs.set(self.runs.get() + 1);
        let shape = &call.outputs[0].1;
        let size = shape.iter().product();
        let a = call.array(0)?;
        let each = |f: fn(f32, f32) -> f32| -> Result<Vec<f32>> {
            let b = call.array(1)?;
            Ok((0..size).map(|i| f(a.at(shape, i), b.at(shape, i))).collect())
        };
        let data = match call.name() {
            "add" => each(|a, b| a + b)?,
            "subtract" => each(|a, b| a - b)?,
            "multiply" => each(|a, b| a * b)?,
            "divide" => each(|a, b| a / b)?,
            "maximum" => each(|a, b| if a.is_nan() || a > b { a } else { b })?,
            "exp" => a.floats().iter().map(|x| x.exp()).collect(),
            _ => matmul(a, call.array(1)?),
        };
        Ok(vec![Array::new(shape, data)])
    }

    fn upload(&self, tensor: &Tensor) -> Result<Array> {
        let data = match tensor.as_slice::<f32>() {
            Some(data) => Values::Floats(data.to_vec()),
            None => Values::Others(tensor.clone()),
        };
        Ok(Array { shape: tensor.shape().to_vec(), data: Arc::new(data) })
    }

    fn download(&self, array: &Array) -> Result<Tensor> {
        Ok(match &*array.data {
            Values::Floats(data) => Tensor::from_parts(&array.shape, data.clone()),
            Values::Others(tensor) => tensor.clone(),
        })
    }

    fn describe(&self, array: &Array) -> (DType, Vec<usize>) {
        let dtype = match &*array.data {
            Values::Floats(_) => DType::F32,
            Values::Others(tensor) => tensor.dtype(),
        };
        (dtype, array.shape.clone())
    }

    fn allows_host(&self) -> bool {
        !self.alone
    }
}

fn matmul(a: &Array, b: &Array) -> Vec<f32> {
    let (rows, inner, columns) = (a.shape[0], a.shape[1], b.shape[1]);
    let mut out = vec![0.0; rows * columns];
    for (i, row) in out.chunks_exact_mut(columns.max(1)).enumerate() {
        for k in 0..inner {
            let x = a.floats()[i * inner + k];
            for (y, &w) in row.iter_mut().zip(&b.floats()[k * columns..]) {
                *y += x * w;
            }
        }
    }
    out
}

/// A classifier with its loss.
///
/// # Errors
/// If the layers do not fit.
pub fn model() -> Result<Model> {
    let mut model = Model::new();
    let here = Place::default;
    model.extend(&layers::linear(16, true)?, [("input", "input"), ("output", "hidden")], here())?;
    model.extend(
        &layers::build("Relu", vec![], vec![])?,
        [("input", "hidden"), ("output", "active")],
        here(),
    )?;
    model.extend(&layers::linear(3, true)?, [("input", "active"), ("output", "logits")], here())?;
    let loss = layers::build("CrossEntropy", vec![], vec![])?;
    model.extend(&loss, [("input", "logits"), ("target", "target"), ("output", "loss")], here())?;
    Ok(model)
}

/// Shapes: any batch of points in the plane.
pub fn options() -> FlattenOptions {
    let shapes =
        vec![("input".into(), vec!["batch".into(), 2.into()]), ("target".into(), vec!["batch".into()])];
    FlattenOptions { shapes, dtypes: vec![("target".into(), DType::I64)], ..FlattenOptions::default() }
}

/// Points, and which of three sectors each is in.
pub fn data() -> [(&'static str, Tensor); 2] {
    let (mut points, mut classes) = (Vec::new(), Vec::new());
    for i in 0..48_u8 {
        let angle = f32::from(i) * 0.7;
        let radius = 0.5 + f32::from(i % 5) * 0.2;
        points.extend([radius * angle.cos(), radius * angle.sin()]);
        classes
            .push((angle.rem_euclid(std::f32::consts::TAU) / (std::f32::consts::TAU / 3.0)).min(2.0) as i64);
    }
    [("input", Tensor::from_parts(&[48, 2], points)), ("target", Tensor::from_parts(&[48], classes))]
}

/// Trains the model; the losses.
///
/// # Errors
/// If a step fails.
pub fn train(program: &Program<Toy>, steps: usize) -> Result<Vec<f32>> {
    let device = program.backend();
    let upload = |(name, t): (&str, Tensor)| Ok((name.into(), device.upload(&t)?));
    let data = data().into_iter().map(upload).collect::<Result<Arrays<Array>>>()?;
    let one = Arrays::from_iter([("loss".into(), Array::new(&[], vec![1.0]))]);
    let mut params = program.initial(0)?;
    let mut losses = Vec::new();
    for _ in 0..steps {
        let step = program.gradients(&[&params, &data], &one)?;
        losses.push(step.outputs["loss"].floats()[0]);
        for (name, gradient) in &step.gradients {
            let old = &params[name];
            let new = old.floats().iter().zip(gradient.floats()).map(|(p, g)| p - 0.5 * g).collect();
            params[name] = Array::new(&old.shape, new);
        }
    }
    Ok(losses)
}

#[allow(clippy::print_stdout, reason = "an example prints")]
fn main() -> Result<()> {
    let program = Program::new(&model()?, &options(), Toy::default())?;
    println!("on the host: {}", program.on_host().join(", "));
    let losses = train(&program, 60)?;
    println!("loss: {:.3} -> {:.3}", losses[0], losses[losses.len() - 1]);
    println!("ops run by the device: {}", program.backend().runs.get());
    Ok(())
}
