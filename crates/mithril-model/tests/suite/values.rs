//! What layers compute, on the interpreter, against formulas written out here.

use std::sync::Arc;

use mithril_ir::{DType, Lit, Place, Role, Tensor, interp};
use mithril_model::{Connection, Flat, FlattenOptions, Model, flatten, init_parameters, layers};

fn options(shapes: &[(&str, &[i64])], training: bool) -> FlattenOptions {
    let shapes = shapes.iter().map(|(n, s)| ((*n).into(), s.iter().map(|&d| d.into()).collect())).collect();
    FlattenOptions { shapes, training, float: DType::F64, ..FlattenOptions::default() }
}

/// Inputs that are not parameters, in order; the others start from seed 3.
fn run(flat: &Flat, data: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
    let mut data = data.iter();
    let inputs: Vec<Arc<Tensor>> = flat
        .inputs
        .iter()
        .map(|i| {
            if i.role == Role::Data {
                return Arc::new(data.next().unwrap().clone());
            }
            Arc::new(init_parameters(&[(i.name.clone(), i.ty.clone(), i.init.clone())], 3).unwrap().remove(0))
        })
        .collect();
    let outputs = interp::run(&flat.graph, &inputs).unwrap();
    (outputs.iter().map(|t| (**t).clone()).collect(), inputs.iter().map(|t| (**t).clone()).collect())
}

fn ramp(shape: &[usize]) -> Tensor {
    Tensor::build(DType::F64, shape, |i| (((i * 7 % 11) as f64 - 5.0) / 4.0).into())
}

fn find<'a>(flat: &Flat, values: &'a [Tensor], name: &str) -> &'a Tensor {
    &values[flat.inputs.iter().position(|i| &*i.name == name).unwrap()]
}

fn near(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((x - y).abs() < 1e-12 * (1.0 + y.abs()), "element {i}: {x} and {y}");
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `w · x + b` for a weight `[rows, x.len()]`.
fn affine(w: &Tensor, b: &Tensor, x: &[f64]) -> Vec<f64> {
    let (w, b) = (w.to_f64s(), b.to_f64s());
    b.iter()
        .enumerate()
        .map(|(r, b)| b + (0..x.len()).map(|k| w[r * x.len() + k] * x[k]).sum::<f64>())
        .collect()
}

#[test]
fn lstm_and_gru_follow_their_equations() {
    let (h, t, k) = (3, 4, 2);
    let x = ramp(&[t, 1, k]);
    for class in ["LSTM", "GRU", "RNN"] {
        let model = layers::build(class, vec![h.into()], vec![("length", t.into())]).unwrap();
        let flat = flatten(&model, &options(&[("input", &[t as i64, 1, k as i64])], false)).unwrap();
        let (outputs, inputs) = run(&flat, std::slice::from_ref(&x));
        let p = |name: &str| find(&flat, &inputs, name);
        let (mut hidden, mut cell, mut all) = (vec![0.0; h], vec![0.0; h], Vec::new());
        for step in x.to_f64s().chunks(k) {
            let a = affine(p("weight_ih_l0"), p("bias_ih_l0"), step);
            let b = affine(p("weight_hh_l0"), p("bias_hh_l0"), &hidden);
            for j in 0..h {
                let sum = |gate: usize| a[gate * h + j] + b[gate * h + j];
                hidden[j] = match class {
                    "LSTM" => {
                        cell[j] = sigmoid(sum(1)) * cell[j] + sigmoid(sum(0)) * sum(2).tanh();
                        sigmoid(sum(3)) * cell[j].tanh()
                    }
                    "GRU" => {
                        let n = (a[2 * h + j] + sigmoid(sum(0)) * b[2 * h + j]).tanh();
                        (1.0 - sigmoid(sum(1))) * n + sigmoid(sum(1)) * hidden[j]
                    }
                    _ => sum(0).tanh(),
                };
            }
            all.extend_from_slice(&hidden);
        }
        near(&outputs[0].to_f64s(), &all);
        near(&outputs[1].to_f64s(), &hidden);
    }
}

#[test]
fn attention_follows_its_equation() {
    let (l, e, heads) = (3, 4, 2);
    let x = ramp(&[1, l, e]);
    let model =
        layers::build("SelfAttention", vec![e.into(), heads.into()], vec![("causal", true.into())]).unwrap();
    let flat = flatten(&model, &options(&[("input", &[1, 3, 4])], false)).unwrap();
    let (outputs, inputs) = run(&flat, std::slice::from_ref(&x));
    let p = |name: &str| find(&flat, &inputs, name);
    let rows: Vec<Vec<f64>> =
        x.to_f64s().chunks(e).map(|row| affine(p("in_proj_weight"), p("in_proj_bias"), row)).collect();
    let d = e / heads;
    let mut joined = vec![vec![0.0; e]; l];
    for head in 0..heads {
        for (i, out) in joined.iter_mut().enumerate() {
            let scores: Vec<f64> = (0..=i)
                .map(|j| {
                    (0..d).map(|c| rows[i][head * d + c] * rows[j][e + head * d + c]).sum::<f64>()
                        / (d as f64).sqrt()
                })
                .collect();
            let sum: f64 = scores.iter().map(|s| s.exp()).sum();
            for c in 0..d {
                out[head * d + c] =
                    (0..=i).map(|j| scores[j].exp() / sum * rows[j][2 * e + head * d + c]).sum();
            }
        }
    }
    let expected: Vec<f64> =
        joined.iter().flat_map(|row| affine(p("out_proj.weight"), p("out_proj.bias"), row)).collect();
    near(&outputs[0].to_f64s(), &expected);
    // The general layer with one tensor thrice is the same.
    let general =
        layers::build("MultiHeadAttention", vec![e.into(), heads.into()], vec![("causal", true.into())])
            .unwrap();
    let shape: &[i64] = &[1, 3, 4];
    let flat =
        flatten(&general, &options(&[("query", shape), ("key", shape), ("value", shape)], false)).unwrap();
    near(&run(&flat, &[x.clone(), x.clone(), x.clone()]).0[0].to_f64s(), &expected);
}

#[test]
fn feature_dropout_drops_whole_channels() {
    let mut m = Model::new();
    let dropout = layers::build("Dropout2d", vec![0.25.into()], vec![]).unwrap();
    m.extend(&dropout, [("input", "input"), ("output", "output")], Place::default()).unwrap();
    let x = Tensor::full(DType::F64, &[20, 30, 2, 3], 3.0);
    let flat = |training| flatten(&m, &options(&[("input", &[20, 30, 2, 3])], training)).unwrap();
    assert!(run(&flat(false), std::slice::from_ref(&x)).0[0].same_bits(&x));
    let values = run(&flat(true), std::slice::from_ref(&x)).0[0].to_f64s();
    let channels: Vec<_> = values.chunks(6).collect();
    assert!(channels.iter().all(|c| c.iter().all(|v| *v == c[0]) && (c[0] == 0.0 || c[0] == 4.0)));
    let dropped = channels.iter().filter(|c| c[0] == 0.0).count();
    // Three standard deviations of 600 draws are 32.
    assert!(dropped.abs_diff(150) < 32, "{dropped} of 600 channels");
}

#[test]
fn dropout_draws_from_the_key_of_the_model() {
    let dropout = layers::build("Dropout", vec![0.5.into()], vec![]).unwrap();
    let mut m = Model::new();
    m.extend(&dropout, [("input", "input"), ("output", "a")], Place::default()).unwrap();
    m.extend(&dropout, [("input", "input"), ("output", "b")], Place::default()).unwrap();
    let x = Tensor::full(DType::F64, &[1000], 1.0);
    let flat = |training| flatten(&m, &options(&[("input", &[1000])], training)).unwrap();
    let idle = flat(false);
    assert_eq!(idle.inputs.len(), 1);
    assert!(run(&idle, std::slice::from_ref(&x)).0[0].same_bits(&x));
    let flat = flat(true);
    assert_eq!((&*flat.inputs[1].name, flat.inputs[1].role), ("key", Role::State));
    assert_eq!(flat.graph.updates.len(), 1);
    let (outputs, inputs) = run(&flat, std::slice::from_ref(&x));
    for mask in &outputs[..2] {
        let values = mask.to_f64s();
        assert!(values.iter().all(|v| *v == 0.0 || *v == 2.0));
        let mean = values.iter().sum::<f64>() / 1000.0;
        assert!((mean - 1.0).abs() < 0.15, "{mean}");
    }
    assert!(!outputs[0].same_bits(&outputs[1]), "each part has its own stream");
    assert_ne!(outputs[2].to_i64s(), inputs[1].to_i64s(), "and each call its own key");
}

#[test]
fn parts_of_tensors_with_computed_bounds() {
    let x = Connection::input("input");
    let half =
        Connection::arithmetic("floor_divide", x.shape().unwrap().item(0).unwrap().into(), 2.into()).unwrap();
    let none = || mithril_model::Arg::Lit(Lit::None);
    let slice = mithril_model::Arg::Slice(Box::new([half.into(), none(), none()]));
    let y = x.item(mithril_model::Arg::List(vec![slice, 1.into()])).unwrap();
    let index = Connection::input("index");
    let z = x.item(mithril_model::Arg::List(vec![Lit::Ellipsis.into(), (&index).into()])).unwrap();
    let m = Model::from_outputs([("y", y), ("z", z)]).unwrap();
    let mut o = options(&[("input", &[4, 3]), ("index", &[2])], false);
    o.dtypes.push(("index".into(), DType::I64));
    let flat = flatten(&m, &o).unwrap();
    let x = Tensor::from_parts(&[4, 3], (0..12).map(f64::from).collect());
    let data: Vec<Tensor> = flat
        .inputs
        .iter()
        .map(|i| if &*i.name == "input" { x.clone() } else { Tensor::from_parts(&[2], vec![2_i64, 0]) })
        .collect();
    let outputs = run(&flat, &data).0;
    assert_eq!(outputs[0].to_f64s(), [7.0, 10.0]);
    assert_eq!(outputs[1].to_f64s(), [2.0, 0.0, 5.0, 3.0, 8.0, 6.0, 11.0, 9.0]);
}

#[test]
fn batch_norm_learns_its_statistics() {
    let model = layers::build("BatchNorm1d", vec![], vec![]).unwrap();
    let flat = flatten(&model, &options(&[("input", &[4, 1])], true)).unwrap();
    let x = Tensor::from_parts(&[4, 1], vec![1.0, 2.0, 3.0, 6.0]);
    let outputs = run(&flat, &[x]).0;
    // Mean 3, biased variance 3.5, unbiased 14/3.
    let scale = 1.0 / (3.5_f64 + 1e-5).sqrt();
    near(&outputs[0].to_f64s(), &[-2.0 * scale, -scale, 0.0, 3.0 * scale]);
    near(&outputs[1].to_f64s(), &[0.3]);
    near(&outputs[2].to_f64s(), &[0.9 + 0.1 * 14.0 / 3.0]);
}
