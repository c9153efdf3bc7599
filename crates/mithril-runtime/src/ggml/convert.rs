//! Tensors of the host as what ggml computes with, and back.

use std::borrow::Cow;
use std::ffi::c_void;

use mithril_compile::ggml::{Element, Type};
use mithril_ir::tensor::Data;
use mithril_ir::{Code, DType, Error, Result, Tensor};

/// The bytes at an address.
///
/// # Safety
/// There are so many, and nobody writes them while they are borrowed.
pub unsafe fn bytes<'a>(address: *const c_void, count: usize) -> &'a [u8] {
    if count == 0 {
        return &[];
    }
    // SAFETY: as said.
    unsafe { std::slice::from_raw_parts(address.cast(), count) }
}

/// The bytes at an address, to be written.
///
/// # Safety
/// There are so many, and nobody else reads or writes them while they are borrowed.
pub unsafe fn bytes_mut<'a>(address: *mut c_void, count: usize) -> &'a mut [u8] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: as said.
    unsafe { std::slice::from_raw_parts_mut(address.cast(), count) }
}

/// The elements as floats of 32 bits.
pub fn floats(tensor: &Tensor) -> Cow<'_, [f32]> {
    match tensor.data() {
        Data::F32(values) => Cow::Borrowed(values),
        Data::F16(values) => values.iter().map(|x| x.to_f32()).collect(),
        Data::BF16(values) => values.iter().map(|x| x.to_f32()).collect(),
        data => (0..data.len()).map(|i| data.get(i).f64() as f32).collect(),
    }
}

/// Writes a tensor as ggml reads it.
pub fn encode(tensor: &Tensor, ty: &Type, out: &mut [u8]) -> Result<()> {
    match ty.element {
        element if element.holds(tensor.dtype()) && element != Element::F32 => {
            out.copy_from_slice(&tensor.to_bytes());
            Ok(())
        }
        _ => {
            let axes: Vec<usize> = (0..tensor.rank()).collect();
            permute(&floats(tensor), tensor.shape(), &axes, ty, out, 1)
        }
    }
}

/// So many floats are brought into another order at a time.
const PIECE: usize = 1 << 14;

/// Writes floats of a shape as ggml reads them, with their dimensions in another order: dimension `i` is dimension
/// `axes[i]` of what is given. Rows are shared by so many threads; beside the result, each has a small piece of it.
pub fn permute(
    values: &[f32],
    shape: &[usize],
    axes: &[usize],
    ty: &Type,
    out: &mut [u8],
    threads: usize,
) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    let strides = mithril_ir::tensor::strides(shape);
    let order: Vec<(usize, usize)> = axes.iter().map(|&a| (shape[a], strides[a])).collect();
    let columns = ty.sizes[0] as usize;
    let row = mithril_ggml::bytes(ty.element, 1, columns)?;
    let piece = (PIECE / columns).max(1);
    let rows = values.len() / columns;
    if rows * columns != values.len() || rows * row != out.len() {
        return Err(Error::internal("a weight and the memory for it are inconsistent"));
    }
    let each = rows.div_ceil(threads.max(1));
    let write = |(part, out): (usize, &mut [u8])| {
        let mut floats = vec![0.0; piece.min(each) * columns];
        for (i, out) in out.chunks_mut(piece * row).enumerate() {
            let floats = &mut floats[..out.len() / row * columns];
            gather(values, &order, (part * each + i * piece) * columns, floats);
            if ty.element == Element::F32 {
                out.as_chunks_mut().0.iter_mut().zip(floats).for_each(|(to, x)| *to = x.to_ne_bytes());
            } else {
                mithril_ggml::quantize(ty.element, floats, columns, None, out)?;
            }
        }
        Ok(())
    };
    let mut parts = out.chunks_mut(each * row).enumerate();
    let first = parts.next();
    std::thread::scope(|scope| {
        let no_thread = |e| Error::new(Code::OutOfMemory, format!("a thread cannot be started: {e}"));
        let start = |part| std::thread::Builder::new().spawn_scoped(scope, move || write(part));
        let started = parts.map(start).collect::<std::io::Result<Vec<_>>>().map_err(no_thread)?;
        first.map_or(Ok(()), write)?;
        let joined = started
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Error::internal("quantizing failed"))));
        joined.collect()
    })
}

/// Copies elements, beginning with the one of number `from`, of values whose dimensions have these sizes and strides.
fn gather(values: &[f32], order: &[(usize, usize)], from: usize, out: &mut [f32]) {
    let (&(size, stride), outer) = order.split_last().unwrap_or((&(1, 1), &[]));
    let mut done = 0;
    while done < out.len() {
        let (mut rest, column) = ((from + done) / size, (from + done) % size);
        let mut start = column * stride;
        for &(size, stride) in outer.iter().rev() {
            start += rest % size * stride;
            rest /= size;
        }
        let count = (size - column).min(out.len() - done);
        let row = values[start..].iter().step_by(stride);
        out[done..done + count].iter_mut().zip(row).for_each(|(to, x)| *to = *x);
        done += count;
    }
}

/// Reads what ggml wrote.
pub fn decode(bytes: &[u8], ty: &Type, dtype: DType, shape: &[usize]) -> Result<Tensor> {
    match ty.element {
        element if element.holds(dtype) => Tensor::from_bytes(dtype, shape.to_vec(), bytes),
        Element::I32 => Ok(Tensor::from_bytes(DType::I32, shape.to_vec(), bytes)?.cast(dtype)),
        Element::F32 => Ok(Tensor::from_bytes(DType::F32, shape.to_vec(), bytes)?.cast(dtype)),
        element => {
            let mut values = vec![0.0; shape.iter().product()];
            mithril_ggml::dequantize(element, bytes, &mut values)?;
            Ok(Tensor::from_parts(shape, values).cast(dtype))
        }
    }
}

/// A tensor of floats, or of what stands for booleans or halves.
pub fn of_floats(values: &[f32], dtype: DType, shape: &[usize]) -> Tensor {
    let tensor = Tensor::from_parts(shape, values.to_vec());
    if dtype == DType::F32 { tensor } else { tensor.cast(dtype) }
}

/// A tensor with its dimensions in another order: dimension `i` is dimension `axes[i]` of what is given.
pub fn permuted(tensor: &Tensor, axes: &[usize]) -> Tensor {
    if axes.iter().copied().eq(0..tensor.rank()) {
        return tensor.clone();
    }
    let own = mithril_ir::tensor::strides(tensor.shape());
    let shape: Vec<usize> = axes.iter().map(|&a| tensor.shape()[a]).collect();
    let steps: Vec<usize> = axes.iter().map(|&a| own[a]).collect();
    let mut at = vec![0_usize; shape.len()];
    let mut position = 0;
    let indices = (0..tensor.len()).map(|_| {
        let start = position;
        for axis in (0..shape.len()).rev() {
            at[axis] += 1;
            position += steps[axis];
            if at[axis] < shape[axis] {
                break;
            }
            position -= at[axis] * steps[axis];
            at[axis] = 0;
        }
        start
    });
    let indices: Vec<usize> = indices.collect();
    tensor.select(&shape, indices.into_iter())
}

#[cfg(test)]
mod tests {
    use mithril_compile::ggml::Element;

    use crate::weights::BlockFormat;

    /// What is written without ggml is what ggml makes where it does not search; where it does, it is nearer.
    #[test]
    fn ggml_makes_the_blocks_of_files_or_nearer_ones() {
        let values: Vec<f32> = (0..1024_u32).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 300.0).collect();
        let (mut same, mut nearer) = (0, 0);
        for element in Element::all().filter(|e| e.is_quantized()) {
            let Some(format) = BlockFormat::find(element.name()) else { continue };
            let Ok(plain) = format.quantize(&values) else { continue };
            let mut bytes = vec![0; plain.len()];
            mithril_ggml::quantize(element, &values, 256, None, &mut bytes).expect("quantized");
            let error = |blocks: &[u8]| {
                let mut back = vec![0.0; values.len()];
                format.dequantize(blocks, &mut back).expect("values");
                values.iter().zip(&back).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>()
            };
            same += usize::from(bytes == plain);
            nearer += usize::from(error(&bytes) < error(&plain));
            assert!(bytes == plain || error(&bytes) < error(&plain), "{element}");
        }
        assert!(same >= 4 && nearer >= 9, "{same} {nearer}");
    }
}
