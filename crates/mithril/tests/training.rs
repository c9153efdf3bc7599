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

/// Examples of a linear rule, and a model of it with dropout and batch norm, which differ in training.
fn regression(rows: usize) -> (Model, FlattenOptions, Tensors) {
    let mut model = Model::new();
    let mut add = |layer: Result<Model>, ports: [(&str, &str); 2]| {
        model.extend(&layer.unwrap(), ports, Place::default()).unwrap();
    };
    add(layers::linear(4, true), [("input", "input"), ("output", "a")]);
    add(layers::build("BatchNorm1d", vec![], vec![]), [("input", "a"), ("output", "b")]);
    add(layers::build("Dropout", vec![0.2.into()], vec![]), [("input", "b"), ("output", "c")]);
    add(layers::linear(1, true), [("input", "c"), ("output", "output")]);
    let loss = layers::build("MSELoss", vec![], vec![]).unwrap();
    model
        .extend(&loss, [("input", "output"), ("target", "target"), ("output", "loss")], Place::default())
        .unwrap();
    let shape = |n: i64| vec!["batch".into(), n.into()];
    let shapes = vec![("input".into(), shape(2)), ("target".into(), shape(1))];
    let options = FlattenOptions { shapes, ..FlattenOptions::default() };
    let inputs: Vec<f32> = (0..rows * 2).map(|i| (i * 7919 % 101) as f32 / 50.0 - 1.0).collect();
    let targets: Vec<f32> = inputs.chunks(2).map(|x| 2.0 * x[0] - x[1] + 0.5).collect();
    let data = tensors([
        ("input", Tensor::of(&[rows, 2], inputs).unwrap()),
        ("target", Tensor::of(&[rows, 1], targets).unwrap()),
    ]);
    (model, options, data)
}

#[test]
fn epochs_are_steps_on_all_examples_once() -> Result<()> {
    let (model, options, data) = regression(10);
    let start = || TrainingStep::new(&model, &options, "loss", &Optimizer::new("SGD", 0.05)?, 3);
    // Without shuffling, an epoch is the steps on consecutive rows; the last batch has two.
    let fit = FitOptions { batch_size: 4, shuffle: false, drop_last: false, ..FitOptions::default() };
    let (mut by_hand, mut fitted) = (start()?, start()?);
    let mut losses = Vec::new();
    for rows in [0..4_usize, 4..8, 8..10] {
        let batch: Tensors = data
            .iter()
            .map(|(name, t)| {
                let each = t.shape()[1];
                let rows_shape = [rows.len(), each];
                (name.clone(), t.select(&rows_shape, rows.start * each..rows.end * each).into())
            })
            .collect();
        let loss = by_hand.step(&batch)?["loss"].get(0).f64();
        losses.push(loss * rows.len() as f64);
    }
    let epochs = fitted.fit(&data, None, &fit, |_, _| Ok(()))?;
    assert_eq!(flat(&fitted.parameters()), flat(&by_hand.parameters()));
    assert!((epochs[0].loss - losses.iter().sum::<f64>() / 10.0).abs() < 1e-12);
    // With shuffling every example is used once in an epoch, in another order in each.
    let mut seen = Vec::new();
    let shuffled = FitOptions { epochs: 2, batch_size: 1, ..FitOptions::default() };
    let rows = tensors([
        ("input", Tensor::of(&[10, 2], (0..20).map(|i| i as f32).collect::<Vec<f32>>())?),
        ("target", Tensor::of(&[10, 1], vec![0.0_f32; 10])?),
    ]);
    let mut identity = Model::new();
    let layer = layers::linear(1, false)?;
    identity.extend(&layer, [("input", "input"), ("output", "output")], Place::default())?;
    let loss = layers::build("MSELoss", vec![], vec![])?;
    identity.extend(
        &loss,
        [("input", "output"), ("target", "target"), ("output", "loss")],
        Place::default(),
    )?;
    let mut frozen = TrainingStep::new(&identity, &options, "loss", &Optimizer::new("SGD", 0.0)?, 0)?;
    frozen.load(&tensors([("linear.weight", Tensor::of(&[1, 2], vec![1.0_f32, 0.0])?)]))?;
    let mean = (0..10).map(|i| f64::from(4 * i * i)).sum::<f64>() / 10.0;
    for epoch in frozen.fit(&rows, None, &shuffled, |_, _| Ok(()))? {
        seen.push(epoch.loss);
    }
    assert!(seen.iter().all(|loss| (loss - mean).abs() < 1e-9 * mean), "{seen:?} and {mean}");
    Ok(())
}

#[test]
fn a_training_over_epochs_goes_on_from_its_file() -> Result<()> {
    let (model, options, data) = regression(24);
    let (.., held_out) = regression(9);
    let folder = std::env::temp_dir().join(format!("mithril-fit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for in_c in [false, true] {
        let start = |seed| {
            let step = TrainingStep::new(&model, &options, "loss", &Optimizer::new("Adam", 0.05)?, seed)?;
            Ok::<_, Error>(if in_c { step.in_c(c::Options::default()) } else { step })
        };
        let schedule = |t: &mut TrainingStep, e: &Epoch| t.set_learning_rate(0.05 / e.number as f64);
        let path = folder.join(format!("{in_c}.safetensors"));
        let fit = FitOptions { epochs: 6, batch_size: 8, seed: 1, ..FitOptions::default() };
        let mut whole = start(4)?;
        let expected = whole.fit(&data, Some(&held_out), &fit, schedule)?;
        assert!(expected[5].validation_loss < expected[0].validation_loss);
        let fit = FitOptions { checkpoint: Some(path.clone()), ..fit };
        let half = FitOptions { epochs: 3, ..fit.clone() };
        start(4)?.fit(&data, Some(&held_out), &half, schedule)?;
        // Of another seed: everything comes from the file.
        let mut resumed = start(5)?;
        let actual = resumed.fit(&data, Some(&held_out), &fit, schedule)?;
        let losses = |e: &[Epoch]| {
            e.iter().map(|e| (e.number, e.loss, e.validation_loss, e.learning_rate)).collect::<Vec<_>>()
        };
        assert_eq!(losses(&actual), losses(&expected));
        assert_eq!(flat(&resumed.parameters()), flat(&whole.parameters()));
        // Validation is the model without training.
        let flatten = FlattenOptions { training: false, ..options.clone() };
        let program = Executable::new(&model, &flatten)?;
        let loss = program.evaluate(&[resumed.state(), &held_out])?.outputs["loss"].get(0).f64();
        let by_parts = actual[5].validation_loss.unwrap();
        assert!((loss - by_parts).abs() < 1e-5 * loss, "{loss} and {by_parts}");
        // Other options are refused rather than mixed with the file.
        let other = FitOptions { batch_size: 4, ..fit };
        let error = start(4)?.fit(&data, None, &other, schedule).unwrap_err();
        assert!(
            error.code() == Code::ConflictingOptions && error.to_string().contains("batch_size 8"),
            "{error}"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
    Ok(())
}

#[test]
fn trainings_over_epochs_stop_early_and_say_what_is_wrong() -> Result<()> {
    let (model, options, data) = regression(8);
    let start = |rate| TrainingStep::new(&model, &options, "loss", &Optimizer::new("SGD", rate)?, 0);
    // Nothing is learned, so that the first epoch stays the best.
    let still = FitOptions { epochs: 50, batch_size: 8, patience: Some(3), ..FitOptions::default() };
    assert_eq!(start(0.0)?.fit(&data, Some(&data), &still, |_, _| Ok(()))?.len(), 4);
    // The error of a callback ends it.
    let stop = |_: &mut TrainingStep, _: &Epoch| Err(Error::new(Code::BadArgument, "enough"));
    assert!(start(0.1)?.fit(&data, None, &still, stop).unwrap_err().to_string().contains("enough"));
    let message = |data: &Tensors, fit: FitOptions| {
        start(0.1).unwrap().fit(data, None, &fit, |_, _| Ok(())).unwrap_err().to_string()
    };
    let fit = FitOptions { batch_size: 4, ..FitOptions::default() };
    assert!(message(&data, FitOptions { epochs: 0, ..fit.clone() }).contains("epochs is 0"));
    assert!(
        message(&data, FitOptions { batch_size: 9, ..fit.clone() }).contains("8 examples, but a batch has 9")
    );
    let (.., more) = regression(9);
    let mut uneven = data.clone();
    uneven.insert("target".into(), more["target"].clone());
    assert!(message(&uneven, fit.clone()).contains("examples"));
    let mut misspelled = data.clone();
    let target = misspelled.swap_remove("target").unwrap();
    misspelled.insert("targets".into(), target);
    assert!(message(&misspelled, fit.clone()).contains("did you mean `target`?"));
    assert!(message(&Tensors::new(), fit).contains("no examples"));
    Ok(())
}
