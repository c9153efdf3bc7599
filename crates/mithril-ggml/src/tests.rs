//! The bindings against ggml itself; what would end the process is refused; results against plain Rust.

use std::ffi::CStr;

use mithril_codegen::ggml::functions::{FUNCTIONS, Kind};
use mithril_codegen::ggml::{Element, Type};
use mithril_ir::Code;

use crate::operations::{Parameter, find};
use crate::{Argument, Context, Custom, Elements, ElementsMut, Graph};
use crate::{TensorId, Workers, bytes, can_repack, dequantize, ffi, quantize, repack};

fn f32s(sizes: [i64; 4]) -> Type {
    Type::contiguous(Element::F32, sizes)
}

#[test]
fn structures_have_the_sizes_of_c() {
    // An object, which is two sizes, a pointer and a type, stands before each tensor.
    assert_eq!(unsafe { ffi::ggml_tensor_overhead() }, size_of::<ffi::ggml_tensor>() + 32);
    assert_eq!(crate::version(), "0.26.0");
    for element in Element::all() {
        // SAFETY: every type is one of ggml's.
        let (name, traits) = unsafe {
            (CStr::from_ptr(ffi::ggml_type_name(element.code())), &*ffi::ggml_get_type_traits(element.code()))
        };
        assert_eq!(name.to_str(), Ok(element.name()));
        assert_eq!(
            (traits.blck_size, traits.type_size as i64),
            (element.block(), element.bytes()),
            "{element}"
        );
        assert_eq!(traits.is_quantized, element.is_quantized(), "{element}");
    }
    // SAFETY: ggml fills the structure.
    let params = unsafe { ffi::ggml_threadpool_params_default(3) };
    assert_eq!((params.n_threads, params.poll, params.paused), (3, 50, false));
}

#[test]
fn functions_are_known_with_the_same_parameters() {
    for function in FUNCTIONS {
        let entry = find(function.name).unwrap_or_else(|| panic!("operations.rs lacks {}", function.name));
        let kind = |p: &Parameter| match p {
            Parameter::tensor => Kind::Tensor,
            Parameter::optional => Kind::Optional,
            Parameter::int | Parameter::long | Parameter::size => Kind::Int,
            Parameter::float => Kind::Float,
            Parameter::flag => Kind::Bool,
            Parameter::kind => Kind::Element,
        };
        let kinds: Vec<Kind> = entry.parameters.iter().map(kind).collect();
        assert_eq!(kinds, function.takes, "{}", function.name);
    }
}

/// Computes a graph of f32 leaves on so many threads.
fn compute(graph: &mut Graph, leaves: &[Vec<f32>], outputs: &[usize], threads: usize) -> Vec<Vec<f32>> {
    computed(graph, leaves, outputs, threads).expect("computed")
}

/// As [`compute`], or the error.
fn computed(
    graph: &mut Graph,
    leaves: &[Vec<f32>],
    outputs: &[usize],
    threads: usize,
) -> mithril_ir::Result<Vec<Vec<f32>>> {
    let mut results: Vec<Vec<f32>> = outputs.iter().map(|&n| vec![0.0; n]).collect();
    let addresses: Vec<_> = leaves.iter().map(|v| v.as_ptr().cast_mut().cast()).collect();
    let written: Vec<_> = results.iter_mut().map(|v| v.as_mut_ptr().cast()).collect();
    let lease = Workers::of(threads).lease();
    let threads = lease.as_ref().map_or(1, crate::Lease::threads);
    let memory = |bytes: usize| vec![[0_u64; 8]; bytes.div_ceil(64) + 1];
    let (mut arena, mut work) = (memory(graph.bytes()), memory(graph.work_bytes(threads)));
    let aligned = |m: &mut Vec<[u64; 8]>| {
        let start = m.as_mut_ptr().cast::<u8>();
        start.wrapping_add(start.align_offset(64)).cast()
    };
    // SAFETY: vectors of the right lengths.
    unsafe { graph.compute(&addresses, &written, aligned(&mut arena), aligned(&mut work), lease.as_ref()) }
        .map(|()| results)
}

#[test]
fn a_graph_computes_what_it_says() {
    let mut c = Context::new().expect("a processor");
    let t = Argument::Tensor;
    let w = c.leaf(&f32s([3, 2, 1, 1])).expect("a leaf");
    let x = c.leaf(&f32s([3, 4, 1, 1])).expect("a leaf");
    let y = c.call("ggml_mul_mat", &[t(w), t(x)]).expect("a product");
    let scaled = c.call("ggml_scale", &[t(y), Argument::Number(2.0)]).expect("scaled");
    let sum = c.call("ggml_add", &[t(scaled), t(y)]).expect("a sum");
    let axes = [1.0, 0.0, 2.0, 3.0].map(Argument::Number);
    let turned = c.call("ggml_permute", &[t(sum), axes[0], axes[1], axes[2], axes[3]]).expect("a view");
    // An output that is a view, one twice, and one that is a leaf.
    let mut graph = c.finish(&[turned, sum, sum, x]).expect("a graph");
    let weights: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let input: Vec<f32> = (0..12).map(|i| i as f32 - 5.0).collect();
    let expected = |row: usize, column: usize| {
        3.0 * (0..3).map(|k| weights[column * 3 + k] * input[row * 3 + k]).sum::<f32>()
    };
    for threads in [1, 2] {
        let actual = compute(&mut graph, &[weights.clone(), input.clone()], &[8, 8, 8, 12], threads);
        for row in 0..4 {
            for column in 0..2 {
                assert_eq!(actual[1][row * 2 + column], expected(row, column));
                assert_eq!(actual[0][column * 4 + row], expected(row, column));
            }
        }
        assert_eq!((&actual[2], &actual[3]), (&actual[1], &input));
    }
}

/// Memory is used again, and what is still needed stays: a chain in which every value is read once more at the end.
#[test]
fn intermediate_values_do_not_overlap() {
    let mut c = Context::new().expect("a processor");
    let t = Argument::Tensor;
    let x = c.leaf(&f32s([100, 1, 1, 1])).expect("a leaf");
    let mut chain = vec![x];
    for _ in 0..600 {
        let next = c.call(
            "ggml_scale_bias",
            &[t(chain[chain.len() - 1]), Argument::Number(1.0), Argument::Number(1.0)],
        );
        chain.push(next.expect("a value"));
    }
    let mut sum: TensorId = chain[0];
    for &value in chain[1..].iter().step_by(7) {
        sum = c.call("ggml_add", &[t(sum), t(value)]).expect("a sum");
    }
    let mut graph = c.finish(&[sum]).expect("a graph");
    let kept = (1..=600).step_by(7).count();
    assert!(graph.bytes() <= (kept + 3) * 448, "{} bytes", graph.bytes());
    let actual = compute(&mut graph, &[vec![0.5; 100]], &[100], 1);
    let expected = 0.5 + (1..=600).step_by(7).map(|i| i as f32 + 0.5).sum::<f32>();
    assert_eq!(actual[0], vec![expected; 100]);
}

/// An op does not write over a tensor that another of its operands shows at other places.
#[test]
fn what_is_read_in_another_order_too_is_not_written_over() {
    let mut c = Context::new().expect("a processor");
    let t = Argument::Tensor;
    let x = c.leaf(&f32s([3, 3, 1, 1])).expect("a leaf");
    let y = c.call("ggml_scale", &[t(x), Argument::Number(2.0)]).expect("in memory of the graph");
    let axes = [1.0, 0.0, 2.0, 3.0].map(Argument::Number);
    let turned = c.call("ggml_permute", &[t(y), axes[0], axes[1], axes[2], axes[3]]).expect("a view");
    let sum = c.call("ggml_add", &[t(y), t(turned)]).expect("a sum");
    let output = c.call("ggml_scale", &[t(sum), Argument::Number(0.5)]).expect("an output");
    let mut graph = c.finish(&[output]).expect("a graph");
    let x: Vec<f32> = (0..9).map(|i| i as f32).collect();
    let expected: Vec<f32> = (0..9).map(|i| x[i] + x[i % 3 * 3 + i / 3]).collect();
    assert_eq!(compute(&mut graph, &[x], &[9], 1)[0], expected);
}

/// Sums of what it reads; anything can be wrong with them.
#[derive(Debug)]
struct Sum {
    wrong: Option<&'static str>,
}

impl Custom for Sum {
    fn shared(&self) -> Option<usize> {
        Some(16)
    }
    fn run(
        &self,
        operands: &[Elements<'_>],
        first: usize,
        out: &mut ElementsMut<'_>,
    ) -> mithril_ir::Result<()> {
        let ElementsMut::Floats(out) = out else { panic!("floats are written") };
        match self.wrong {
            Some("panic") if first == 0 => panic!("as was asked for"),
            Some("error") => return Err(mithril_ir::Error::new(Code::Numerics, "as was asked for")),
            _ => {}
        }
        for (i, to) in (first..).zip(out.iter_mut()) {
            *to = operands.iter().map(|o| if let Elements::Floats(x) = o { x[i] } else { 0.0 }).sum();
        }
        Ok(())
    }
}

/// What an op of ours computes is shared by threads; its errors and panics are errors of the computation.
#[test]
fn custom_ops_compute_and_fail() {
    for wrong in [None, Some("error"), Some("panic")] {
        let mut c = Context::new().expect("a processor");
        let [x, y] = [0, 1].map(|_| c.leaf(&f32s([100, 7, 1, 1])).expect("a leaf"));
        let sum = c.custom(&f32s([700, 1, 1, 1]), &[x, y], Box::new(Sum { wrong })).expect("a sum");
        let twice = c.call("ggml_scale", &[Argument::Tensor(sum), Argument::Number(2.0)]).expect("scaled");
        let mut graph = c.finish(&[twice]).expect("a graph");
        let leaves = [1.0, 10.0].map(|by| (0..700).map(|i| i as f32 * by).collect::<Vec<_>>());
        for threads in [1, 2, 3] {
            match (computed(&mut graph, &leaves, &[700], threads), wrong) {
                (Ok(outputs), None) => {
                    assert!(outputs[0].iter().enumerate().all(|(i, &x)| x == i as f32 * 22.0));
                }
                (Err(e), Some("error")) => assert_eq!(e.code(), Code::Numerics),
                (Err(e), Some(_)) => assert_eq!(e.code(), Code::Internal),
                (outputs, _) => panic!("{wrong:?} gives {outputs:?}"),
            }
        }
    }
}

#[test]
fn leaves_that_ggml_cannot_hold_are_refused() {
    let mut c = Context::new().expect("a processor");
    let mut odd = f32s([4, 4, 1, 1]);
    odd.strides[1] = 64;
    let half_a_block = Type::contiguous(Element::Q8_0, [48, 2, 1, 1]);
    let huge = f32s([1 << 30, 1 << 30, 1 << 30, 1]);
    for ty in [odd, half_a_block, huge, f32s([0, 1, 1, 1]), f32s([-1, 1, 1, 1])] {
        assert_eq!(c.leaf(&ty).map(|_| ()).map_err(|e| e.code()), Err(Code::Unsupported), "{ty}");
    }
}

/// Every type, on values of many magnitudes; what it cannot hold is an error.
#[test]
fn rows_survive_every_type() {
    let values: Vec<f32> = (0..1024).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let length = values.iter().map(|x| x * x).sum::<f32>().sqrt();
    for element in Element::all().filter(|e| e.is_computed()) {
        let size = bytes(element, 4, 256).expect("whole blocks");
        assert_eq!(size as i64, Type::contiguous(element, [256, 4, 1, 1]).bytes());
        let mut packed = vec![0; size];
        quantize(element, &values, 256, None, &mut packed).expect("quantized");
        let mut back = vec![0.0; 1024];
        dequantize(element, &packed, &mut back).expect("read");
        let error = values.iter().zip(&back).map(|(x, y)| (x - y) * (x - y)).sum::<f32>().sqrt() / length;
        // Floats are rounded to their precision; steps of b bits leave an error of about 2^-b.
        let bits = match element {
            Element::F16 => 11.0,
            Element::BF16 => 8.0,
            _ => size as f32 * 8.0 / 1024.0 - 2.0,
        };
        assert!(error <= 0.5_f32.powf(bits), "{element}: {error}");
        for scale in [0.0, 1e-40, 1e-20, 6e4] {
            let scaled: Vec<f32> = values.iter().map(|x| x * scale).collect();
            quantize(element, &scaled, 256, None, &mut packed).expect("quantized");
            dequantize(element, &packed, &mut back).expect("read");
            assert!(back.iter().all(|x| x.is_finite()), "{element} of {scale}");
        }
        for bad in [f32::NAN, f32::INFINITY, 1e30] {
            let mut values = values.clone();
            values[100] = bad;
            let result = quantize(element, &values, 256, None, &mut packed);
            let is_wide = matches!(element, Element::F32 | Element::BF16);
            assert_eq!(result.is_ok(), is_wide, "{element} of {bad}");
        }
    }
    assert!(bytes(Element::Q4_K, 4, 128).is_err() && bytes(Element::Q8_0, 1, 0).is_err());
}

/// Rows of floats with gaps, and along four axes, are brought into the order that products of interleaved matrices need.
#[test]
fn interleaved_matrices_are_multiplied_with_rows_that_lie_anyhow() {
    let (columns, results) = (64_i64, 16_i64);
    let kept = Type::contiguous(Element::Q4_0, [columns, results, 1, 1]);
    if !can_repack(&kept).expect("a processor") {
        return;
    }
    let values: Vec<f32> = (0..columns * results).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let mut packed = vec![0; bytes(Element::Q4_0, results as usize, columns as usize).expect("whole blocks")];
    quantize(Element::Q4_0, &values, columns as usize, None, &mut packed).expect("quantized");
    let mut interleaved = packed.clone();
    repack(&kept, &mut interleaved).expect("interleaved");
    let t = Argument::Tensor;
    // Integers up to 127, which 8 bits hold exactly.
    let rows: Vec<f32> = (0..columns * 5 * 2 * 3).map(|i| ((i * 29 + i / 7) % 255 - 127) as f32).collect();
    for (sizes, is_permuted) in [([64, 5, 2, 3], false), ([64, 5, 6, 1], true), ([64, 30, 1, 1], false)] {
        let [plain, repacked] = [(&packed, false), (&interleaved, true)].map(|(weights, is_repacked)| {
            let mut c = Context::new().expect("a processor");
            let w = if is_repacked { c.repacked_leaf(&kept) } else { c.leaf(&kept) }.expect("a leaf");
            let mut x = c.leaf(&f32s(sizes)).expect("a leaf");
            if is_permuted {
                let axes = [0.0, 2.0, 1.0, 3.0].map(Argument::Number);
                x = c.call("ggml_permute", &[t(x), axes[0], axes[1], axes[2], axes[3]]).expect("a view");
            }
            let y = c.call("ggml_mul_mat", &[t(w), t(x)]).expect("a product");
            let y = c.call("ggml_scale", &[t(y), Argument::Number(1.0)]).expect("scaled");
            assert!(!is_repacked || c.call("ggml_cont", &[t(w)]).is_err());
            let mut graph = c.finish(&[y]).expect("a graph");
            // The weights as floats, of which there are as many bytes.
            let words: Vec<f32> =
                weights.chunks(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
            let leaves = [words, rows.clone()];
            [1, 2].map(|threads| compute(&mut graph, &leaves, &[(results * 30) as usize], threads))
        });
        for (a, b) in plain.iter().zip(&repacked) {
            let mut pairs = a[0].iter().zip(&b[0]);
            assert!(pairs.all(|(a, b)| (a - b).abs() <= 1e-5 * 127.0 * 64.0), "{sizes:?}");
        }
    }
}
