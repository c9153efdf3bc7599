//! Training steps: against the rules of optimizers written by hand, in the interpreter and in C.

use mithril::prelude::*;

fn model() -> Result<Model> {
    let mut model = Model::new();
    model.extend(&layers::linear(3, true)?, [("input", "input"), ("output", "hidden")], Place::default())?;
    let tanh = layers::build("Tanh", vec![], vec![])?;
    model.extend(&tanh, [("input", "hidden"), ("output", "output")], Place::default())?;
    let loss = layers::build("MSELoss", vec![], vec![])?;
    model.extend(&loss, [("input", "output"), ("target", "target"), ("output", "loss")], Place::default())?;
    Ok(model)
}

fn options() -> FlattenOptions {
    let shape = |n: i64| vec!["batch".into(), n.into()];
    let shapes = vec![("input".into(), shape(2)), ("target".into(), shape(3))];
    FlattenOptions { shapes, training: true, ..FlattenOptions::default() }
}

fn data(rows: usize) -> Tensors {
    let values = |n: usize| (0..n).map(|i| ((i * 7919 % 31) as f32) / 15.0 - 1.0).collect::<Vec<_>>();
    tensors([
        ("input", Tensor::of(&[rows, 2], values(rows * 2)).unwrap()),
        ("target", Tensor::of(&[rows, 3], values(rows * 3)).unwrap()),
    ])
}

fn flat(parameters: &Tensors) -> Vec<f64> {
    parameters.values().flat_map(|t| t.to_f64s()).collect()
}

/// Steps with the gradients of an [`Executable`], and the rule in double precision.
fn by_hand(
    steps: usize,
    data: &Tensors,
    mut rule: impl FnMut(usize, &mut [f64], &[f64]),
) -> Result<Vec<f64>> {
    let program = Executable::new(&model()?, &options())?;
    let mut params = program.initial(5)?;
    let one = tensors([("loss", Tensor::scalar(DType::F32, 1.0))]);
    for step in 1..=steps {
        let gradients = program.gradients(&[&params, data], &one)?.gradients;
        let order: Tensors = params.keys().map(|n| (n.clone(), gradients[n].clone())).collect();
        let mut values = flat(&params);
        rule(step, &mut values, &flat(&order));
        let mut rest = &values[..];
        for value in params.values_mut() {
            let (own, others) = rest.split_at(value.to_f64s().len());
            *value = Tensor::from_f64s(DType::F32, value.shape(), own).into();
            rest = others;
        }
    }
    Ok(flat(&params))
}

fn is_close(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (f, e) in actual.iter().zip(expected) {
        assert!((f - e).abs() < 2e-5, "{f} and {e}");
    }
}

#[test]
fn steps_are_those_of_the_rules() -> Result<()> {
    let data = data(4);
    let sgd = by_hand(20, &data, {
        let mut momentum = vec![0.0; 9];
        move |_, params, gradients| {
            for ((p, g), m) in params.iter_mut().zip(gradients).zip(&mut momentum) {
                *m = 0.9 * *m + g;
                *p -= 0.05 * *m;
            }
        }
    })?;
    let adam = by_hand(20, &data, {
        let (mut mean, mut square) = (vec![0.0; 9], vec![0.0; 9]);
        move |step, params, gradients| {
            for (i, g) in gradients.iter().enumerate() {
                mean[i] = 0.9 * mean[i] + 0.1 * g;
                square[i] = 0.999 * square[i] + 0.001 * g * g;
                let m = mean[i] / (1.0 - 0.9_f64.powi(step as i32));
                let v = square[i] / (1.0 - 0.999_f64.powi(step as i32));
                params[i] -= 0.05 * m / (v.sqrt() + 1e-8);
            }
        }
    })?;
    let clipped = by_hand(20, &data, |_, params, gradients| {
        let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
        for (p, g) in params.iter_mut().zip(gradients) {
            *p -= 0.05 * g * (0.1 / norm).min(1.0);
        }
    })?;
    let cases = [
        (Optimizer::new("SGD", 0.05)?.with("momentum", 0.9), sgd),
        (Optimizer::new("Adam", 0.05)?, adam),
        (Optimizer::new("SGD", 0.05)?.clip_norm(0.1), clipped),
    ];
    for (optimizer, expected) in cases {
        let start = || TrainingStep::new(&model()?, &options(), "loss", &optimizer, 5);
        for mut training in [start()?, start()?.in_c(c::Options::default())] {
            for _ in 0..20 {
                training.step(&data)?;
            }
            is_close(&flat(&training.parameters()), &expected);
        }
    }
    Ok(())
}

#[test]
fn a_training_goes_on_exactly_and_with_batches_of_other_sizes() -> Result<()> {
    let optimizer = Optimizer::new("Adam", 0.01)?;
    for in_c in [false, true] {
        let start = |seed| {
            let step = TrainingStep::new(&model()?, &options(), "loss", &optimizer, seed)?;
            Ok::<_, Error>(if in_c { step.in_c(c::Options::default()) } else { step })
        };
        let mut whole = start(1)?;
        for rows in [4, 6, 4] {
            whole.step(&data(rows))?;
        }
        let kept = whole.state().clone();
        assert!(kept.contains_key("step") && kept.contains_key("linear.weight.mean"));
        let mut resumed = start(2)?;
        resumed.load(&kept)?;
        for rows in [3, 4] {
            let (a, b) = (whole.step(&data(rows))?, resumed.step(&data(rows))?);
            assert_eq!(a["loss"].to_f64s(), b["loss"].to_f64s());
        }
        assert_eq!(flat(&whole.parameters()), flat(&resumed.parameters()));
    }
    Ok(())
}

#[test]
fn mistakes_are_errors_and_change_nothing() -> Result<()> {
    let optimizer = Optimizer::new("SGD", 0.1)?;
    let new = |loss: &str, o: &Optimizer| TrainingStep::new(&model()?, &options(), loss, o, 0);
    let text = |error: Error| error.to_string();
    assert!(text(Optimizer::new("SGG", 0.1).unwrap_err()).contains("SGD"));
    assert!(text(Optimizer::new("SGD", f64::NAN).unwrap_err()).contains("NaN"));
    assert!(text(new("lss", &optimizer).unwrap_err()).contains("did you mean `loss`?"));
    let wrong = optimizer.clone().with("momentm", 0.9);
    assert!(text(new("loss", &wrong).unwrap_err()).contains("momentum"));
    let mut training = new("loss", &optimizer)?;
    let before = flat(training.state());
    assert!(text(training.step(&Tensors::new()).unwrap_err()).contains("input"));
    assert!(text(training.set_learning_rate(-1.0).unwrap_err()).contains("-1"));
    assert!(text(training.parameter("linear.wieght").unwrap_err()).contains("linear.weight"));
    let short = tensors([("linear.bias", Tensor::of(&[2], vec![0.0_f32; 2])?)]);
    assert!(text(training.load(&short).unwrap_err()).contains("[2]"));
    let other = tensors([("linear.bais", Tensor::of(&[3], vec![0.0_f32; 3])?)]);
    assert!(text(training.load(&other).unwrap_err()).contains("linear.bias"));
    assert_eq!(before, flat(training.state()));
    let open = FlattenOptions { training: true, ..FlattenOptions::default() };
    assert!(TrainingStep::new(&model()?, &open, "loss", &optimizer, 0).is_err());
    Ok(())
}

#[test]
fn a_wrong_count_is_an_error() {
    let error = Tensor::of(&[2, 3], vec![1.0_f32; 5]).unwrap_err();
    assert!(error.to_string().contains("shape [2, 3] holds 6 elements, but 5 are given"), "{error}");
    assert!(Tensor::of(&[0], Vec::<f32>::new()).is_ok());
    assert!(Tensor::of(&[usize::MAX, 2], vec![1.0_f32]).is_err());
}
