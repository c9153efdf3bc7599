//! The example of a custom backend does what the reference interpreter does, and its mistakes are found.

#[allow(dead_code, reason = "the example is a program")]
#[path = "../examples/custom_backend.rs"]
mod example;

use example::{Array, Toy, data, model, options, train};
use mithril::prelude::*;

#[test]
fn a_model_trains_on_it_as_on_the_interpreter() {
    let program = Program::new(&model().unwrap(), &options(), Toy::default()).unwrap();
    let losses = train(&program, 20).unwrap();
    assert!(losses[19] < 0.8 * losses[0], "{losses:?}");
    assert!(program.backend().runs.get() > 20 * 10);

    let reference = Executable::new(&model().unwrap(), &options()).unwrap();
    let mut params = reference.initial(0).unwrap();
    let data = tensors(data());
    let one = tensors([("loss", Tensor::scalar(DType::F32, 1.0))]);
    for loss in losses {
        let step = reference.gradients(&[&params, &data], &one).unwrap();
        let expected = step.outputs["loss"].get(0).f64();
        assert!((f64::from(loss) - expected).abs() < 1e-4 * expected, "{loss} and {expected}");
        for (name, gradient) in &step.gradients {
            let old = params[name].to_f64s();
            let new = old.iter().zip(gradient.to_f64s()).map(|(p, g)| (p - 0.5 * g) as f32).collect();
            params[name] = std::sync::Arc::new(Tensor::from_parts(gradient.shape(), new));
        }
    }
}

#[test]
fn what_it_lacks_is_expanded_or_runs_on_the_host() {
    let program = Program::new(&model().unwrap(), &options(), Toy::default()).unwrap();
    let host = program.on_host();
    assert!(host.contains(&"take_along_axis"), "{host:?}");
    assert!(!host.contains(&"matmul") && !host.contains(&"exp"), "{host:?}");
    let error =
        Program::new(&model().unwrap(), &options(), Toy { alone: true, ..Toy::default() }).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    assert!(error.to_string().contains("toy has no "), "{error}");
}

/// The toy with a mistake.
#[derive(Debug)]
struct Wrong(Toy, &'static str);

impl Backend for Wrong {
    type Array = Array;
    fn name(&self) -> &'static str {
        "wrong"
    }
    fn supports(&self, op: &Use<'_>) -> bool {
        self.0.supports(op)
    }
    fn run(&self, call: &Call<'_, Array>) -> Result<Vec<Array>> {
        let results = self.0.run(call)?;
        match self.1 {
            "shape" => Ok(vec![self.0.upload(&Tensor::from_parts(&[1], vec![0.0_f32]))?]),
            "dtype" => results.iter().map(|a| self.0.upload(&self.0.download(a)?.cast(DType::F64))).collect(),
            _ => Ok(Vec::new()),
        }
    }
    fn upload(&self, tensor: &Tensor) -> Result<Array> {
        self.0.upload(tensor)
    }
    fn download(&self, array: &Array) -> Result<Tensor> {
        self.0.download(array)
    }
    fn describe(&self, array: &Array) -> (DType, Vec<usize>) {
        self.0.describe(array)
    }
}

#[test]
fn wrong_results_are_errors_where_they_are_made() {
    for (mistake, code, text) in [
        ("shape", Code::ShapeMismatch, "returns f32[1], but must return f32[48, 16]"),
        ("dtype", Code::DTypeMismatch, "returns f64[48, 16], but must return f32[48, 16]"),
        ("none", Code::BadArgument, "returns 0 arrays, not 1"),
    ] {
        let program = Program::new(&model().unwrap(), &options(), Wrong(Toy::default(), mistake)).unwrap();
        let params = program.initial(0).unwrap();
        let upload = |(name, t): (&str, Tensor)| (name.into(), program.backend().upload(&t).unwrap());
        let data: Arrays<Array> = data().into_iter().map(upload).collect();
        let error = program.evaluate(&[&params, &data]).unwrap_err();
        assert_eq!(error.code(), code);
        assert!(error.to_string().contains("wrong: matmul") && error.to_string().contains(text), "{error}");
        let error = program.evaluate(&[&params]).unwrap_err();
        assert_eq!(error.code(), Code::BadParameter);
    }
}
