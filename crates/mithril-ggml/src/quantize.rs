//! Rows of floats in the types of ggml, and back.

use mithril_codegen::ggml::Element;
use mithril_ir::{Code, Error, Result};

use crate::{ffi, processor};

/// The largest float of 16 bits, in which scales are kept.
const LARGEST: f32 = 65504.0;
/// How much columns may count: squares and sums of it times [`LARGEST`] squared stay numbers.
const LEAST: f32 = 1e-6;
const MOST: f32 = 1e6;

/// How many bytes rows of so many columns have in a type; an error if a row does not hold whole blocks.
pub fn bytes(element: Element, rows: usize, columns: usize) -> Result<usize> {
    let block = element.block() as usize;
    if columns == 0 || !columns.is_multiple_of(block) {
        let text =
            format!("rows of {columns} values do not hold whole blocks of {block}, as {element} needs");
        return Err(Error::new(Code::Unsupported, text));
    }
    let blocks = rows.checked_mul(columns / block);
    blocks
        .and_then(|n| n.checked_mul(element.bytes() as usize))
        .ok_or_else(|| Error::new(Code::BadSize, format!("{rows} rows of {columns} values are too many")))
}

/// Writes rows of floats into the bytes that [`bytes`] counts.
///
/// `importance` says how much each column counts; without it all count alike. ggml looks for scales with less error if
/// it is told so much: it is always told, but where its search could leave the range of scales.
///
/// ```
/// use mithril_codegen::ggml::Element;
/// let values: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
/// let mut packed = vec![0; mithril_ggml::bytes(Element::Q8_0, 2, 32)?];
/// mithril_ggml::quantize(Element::Q8_0, &values, 32, None, &mut packed)?;
/// let mut back = vec![0.0; 64];
/// mithril_ggml::dequantize(Element::Q8_0, &packed, &mut back)?;
/// assert!(values.iter().zip(&back).all(|(x, y)| (x - y).abs() < 0.004));
/// # Ok::<(), mithril_ir::Error>(())
/// ```
pub fn quantize(
    element: Element,
    values: &[f32],
    columns: usize,
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<()> {
    processor::ready()?;
    if !element.is_computed() {
        return Err(Error::new(Code::BadDType, format!("weights are not kept as {element}")));
    }
    let rows = values.len() / columns.max(1);
    if rows * columns != values.len() || bytes(element, rows, columns)? != out.len() {
        return Err(Error::internal("rows and memory for them are inconsistent"));
    }
    let is_narrow = !matches!(element, Element::F32 | Element::BF16);
    if let Some(x) = values.iter().find(|x| is_narrow && (x.is_nan() || x.abs() > LARGEST)) {
        return Err(Error::new(Code::Numerics, format!("{x} cannot be stored as {element}"))
            .help("leave this matrix in f32 or bf16"));
    }
    let counts = importance.map_or_else(|| vec![1.0; columns], <[f32]>::to_vec);
    if counts.len() != columns || counts.iter().any(|x| !(LEAST..=MOST).contains(x)) {
        let text =
            format!("the importance of {columns} columns is as many numbers from {LEAST:e} to {MOST:e}");
        return Err(Error::new(Code::BadArgument, text));
    }
    // Least values have 16 bits, and the search moves them.
    let is_large = element.has_least_values() && values.iter().any(|x| x.abs() > LARGEST / 2.0);
    let weights = if is_large { std::ptr::null() } else { counts.as_ptr() };
    // SAFETY: there are so many rows of so many values, a weight per column, and the memory for them; rows hold whole
    // blocks. What ggml asserts of weights and values holds, since all are finite and no weight is zero.
    let written = unsafe {
        ffi::ggml_quantize_chunk(
            element.code(),
            values.as_ptr(),
            out.as_mut_ptr().cast(),
            0,
            rows as i64,
            columns as i64,
            weights,
        )
    };
    if written == out.len() { Ok(()) } else { Err(Error::internal("ggml wrote another number of bytes")) }
}

/// Reads what [`quantize`] wrote.
pub fn dequantize(element: Element, packed: &[u8], out: &mut [f32]) -> Result<()> {
    processor::ready()?;
    if bytes(element, 1, out.len())? != packed.len() {
        return Err(Error::internal("blocks and memory for their values are inconsistent"));
    }
    if element == Element::F32 {
        for (x, b) in out.iter_mut().zip(packed.chunks_exact(4)) {
            *x = f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
        }
        return Ok(());
    }
    // SAFETY: the type exists, so there are traits of it.
    let read = unsafe { (*ffi::ggml_get_type_traits(element.code())).to_float };
    let read =
        read.ok_or_else(|| Error::new(Code::Unsupported, format!("{element} cannot be read as floats")))?;
    // SAFETY: there are as many blocks as the values need; elements of 16 bits may begin anywhere on the processors that
    // ggml is compiled for here.
    unsafe { read(packed.as_ptr().cast(), out.as_mut_ptr(), out.len() as i64) };
    Ok(())
}
