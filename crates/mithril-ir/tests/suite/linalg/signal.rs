//! Fourier transforms against their definition and known spectra.

use std::f64::consts::TAU;

use mithril_ir::ops::signal as s;
use mithril_ir::{Code, Lit, OpDef, Tensor};

use super::{assert_near, check_gradient, random, run};

/// `Σ_t x[t] · exp(sign·2πi·k·t/n)` by the definition.
fn definition(re: &[f64], im: &[f64], sign: f64) -> (Vec<f64>, Vec<f64>) {
    let n = re.len();
    let at = |k: usize| {
        (0..n).fold((0.0, 0.0), |sum, t| {
            let (sin, cos) = (sign * TAU * (k * t) as f64 / n as f64).sin_cos();
            (sum.0 + re[t] * cos - im[t] * sin, sum.1 + re[t] * sin + im[t] * cos)
        })
    };
    (0..n).map(at).unzip()
}

#[test]
fn any_size_follows_the_definition() {
    let mut seed = 4;
    for n in [1, 2, 3, 4, 5, 6, 8, 12, 13, 30, 35, 49, 64] {
        let (re, im) = (random(&mut seed, &[n]), random(&mut seed, &[n]));
        for (op, sign, by) in [(&s::FFT, -1.0, 1.0), (&s::IFFT, 1.0, 1.0 / n as f64)] {
            let y = run(op, &[&re, &im], &[]).unwrap();
            let (a, b) = definition(&re.to_f64s(), &im.to_f64s(), sign);
            assert_near(&y[0].to_f64s(), &a.iter().map(|x| x * by).collect::<Vec<_>>());
            assert_near(&y[1].to_f64s(), &b.iter().map(|x| x * by).collect::<Vec<_>>());
        }
        let y = run(&s::RFFT, &[&re], &[]).unwrap();
        let (a, b) = definition(&re.to_f64s(), &vec![0.0; n], -1.0);
        assert_near(&y[0].to_f64s(), &a[..=n / 2]);
        assert_near(&y[1].to_f64s(), &b[..=n / 2]);
        let back = run(&s::IRFFT, &[&y[0], &y[1]], &[Lit::from(n)]).unwrap();
        assert_near(&back[0].to_f64s(), &re.to_f64s());
    }
}

#[test]
fn known_spectra() {
    // A unit impulse has a flat spectrum, a constant only frequency 0.
    let y = run(&s::FFT, &[&Tensor::from_parts(&[4], vec![1.0, 0.0, 0.0, 0.0])], &[]).unwrap();
    assert_eq!((y[0].to_f64s(), y[1].to_f64s()), (vec![1.0; 4], vec![0.0; 4]));
    let y = run(&s::RFFT, &[&Tensor::from_parts(&[4], vec![1.0; 4])], &[]).unwrap();
    assert_eq!(y[0].to_f64s(), [4.0, 0.0, 0.0]);
    // np.fft.rfft([0, 1, 0, 0]) of the NumPy documentation: [1, -1j, -1].
    let y = run(&s::RFFT, &[&Tensor::from_parts(&[4], vec![0.0, 1.0, 0.0, 0.0])], &[]).unwrap();
    assert_eq!((y[0].to_f64s(), y[1].to_f64s()), (vec![1.0, 0.0, -1.0], vec![0.0, -1.0, 0.0]));
    // np.fft.irfft([1, -1j, -1]) is [0, 1, 0, 0].
    let (re, im) =
        (Tensor::from_parts(&[3], vec![1.0, 0.0, -1.0]), Tensor::from_parts(&[3], vec![7.0, -1.0, 9.0]));
    assert_eq!(run(&s::IRFFT, &[&re, &im], &[]).unwrap()[0].to_f64s(), [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn axes_and_norms() {
    let mut seed = 9;
    let x = random(&mut seed, &[2, 6, 3]);
    let y = run(&s::FFT, &[&x], &[Lit::None, Lit::int(1), Lit::text("ortho")]).unwrap();
    let line = |t: &Tensor, i: usize, j: usize| -> Vec<f64> {
        (0..6).map(|k| t.get((i * 6 + k) * 3 + j).f64()).collect()
    };
    for (i, j) in [(0, 0), (1, 2)] {
        let (a, b) = definition(&line(&x, i, j), &[0.0; 6], -1.0);
        assert_near(&line(&y[0], i, j), &a.iter().map(|x| x / 6.0_f64.sqrt()).collect::<Vec<_>>());
        assert_near(&line(&y[1], i, j), &b.iter().map(|x| x / 6.0_f64.sqrt()).collect::<Vec<_>>());
    }
    for norm in ["backward", "ortho", "forward"] {
        let y = run(&s::FFT, &[&x], &[Lit::None, Lit::int(0), Lit::text(norm)]).unwrap();
        let back = run(&s::IFFT, &[&y[0], &y[1]], &[Lit::int(0), Lit::text(norm)]).unwrap();
        assert_near(&back[0].to_f64s(), &x.to_f64s());
    }
}

#[test]
fn gradients_agree_with_differences() {
    let mut seed = 21;
    let norms = ["backward", "ortho", "forward"].map(Lit::text);
    for norm in &norms {
        for n in [1, 2, 5, 6] {
            let (re, im) = (random(&mut seed, &[2, n]), random(&mut seed, &[2, n]));
            let complex: [&'static OpDef; 2] = [&s::FFT, &s::IFFT];
            for op in complex {
                check_gradient(op, &[&re, &im], &[Lit::int(1), norm.clone()]);
            }
            check_gradient(&s::RFFT, &[&re], &[Lit::int(1), norm.clone()]);
            let m = n / 2 + 1;
            let (re, im) = (random(&mut seed, &[m, 2]), random(&mut seed, &[m, 2]));
            check_gradient(&s::IRFFT, &[&re, &im], &[Lit::from(n), Lit::int(0), norm.clone()]);
        }
    }
}

#[test]
fn what_cannot_be_transformed_is_an_error() {
    let empty = Tensor::from_parts(&[2, 0], Vec::<f64>::new());
    assert_eq!(run(&s::FFT, &[&empty], &[]).unwrap_err().code(), Code::BadSize);
    assert_eq!(run(&s::RFFT, &[&empty], &[]).unwrap_err().code(), Code::BadSize);
    let one = Tensor::from_parts(&[1], vec![1.0]);
    assert_eq!(run(&s::IRFFT, &[&one, &one], &[]).unwrap_err().code(), Code::BadSize);
    assert_eq!(run(&s::IRFFT, &[&one, &one], &[Lit::int(4)]).unwrap_err().code(), Code::ShapeMismatch);
    assert_eq!(run(&s::RFFT, &[&one], &[Lit::int(1)]).unwrap_err().code(), Code::BadArgument);
    let two = Tensor::from_parts(&[2], vec![1.0; 2]);
    assert_eq!(run(&s::FFT, &[&one, &two], &[]).unwrap_err().code(), Code::ShapeMismatch);
}
