//! Weights as arrays of C: numbers as they are, packed parameters as words.

use std::fmt::Write as _;

use mithril_compile::c::c_type;
use mithril_ir::{DType, Tensor};

/// Numbers as an array of C.
pub(super) fn array(prefix: &str, i: usize, value: &Tensor) -> String {
    let kind = c_type(value.dtype());
    let suffix = match value.dtype() {
        DType::I64 => "LL",
        DType::U64 => "ULL",
        DType::F32 => "f",
        _ => "",
    };
    let numbers: Vec<String> = match value.dtype() {
        DType::F16 | DType::BF16 => {
            value.to_bytes().chunks_exact(2).map(|b| u16::from_ne_bytes([b[0], b[1]]).to_string()).collect()
        }
        DType::F32 => value.to_f64s().iter().map(|&x| float(x, &format!("{:?}", x as f32), suffix)).collect(),
        DType::F64 => value.to_f64s().iter().map(|&x| float(x, &format!("{x:?}"), suffix)).collect(),
        // The smallest number is not a literal of C.
        _ => value
            .to_ints()
            .iter()
            .map(|&n| match n {
                n if n == i64::MIN.into() => "INT64_MIN".to_owned(),
                n => format!("{n}{suffix}"),
            })
            .collect(),
    };
    let mut text =
        format!("_Alignas(64) static const {kind} {prefix}_weight_{i}[{}] = {{", numbers.len().max(1));
    for (n, number) in numbers.iter().enumerate() {
        text += if n % 8 == 0 { "\n    " } else { " " };
        text += number;
        text.push(',');
    }
    if numbers.is_empty() {
        text += "0";
    }
    text + "\n};"
}

/// Packed parameters as an array of C: words in the order of bytes of this processor.
pub(super) fn packed_array(prefix: &str, bytes: &[u8]) -> String {
    let order = if cfg!(target_endian = "little") { "LITTLE" } else { "BIG" };
    let mut text = format!(
        "/* The parameters in the order in which the kernels read them. */\n\
         #if defined __BYTE_ORDER__ && __BYTE_ORDER__ != __ORDER_{order}_ENDIAN__\n\
         #error \"the packed parameters are for processors with the other order of bytes\"\n#endif\n\
         _Alignas(64) const uint32_t {prefix}_packed[{}] = {{",
        bytes.len().div_ceil(4)
    );
    for (n, word) in bytes.chunks(4).enumerate() {
        let mut whole = [0; 4];
        whole[..word.len()].copy_from_slice(word);
        text += if n % 8 == 0 { "\n    " } else { " " };
        let _ = write!(text, "0x{:08x},", u32::from_ne_bytes(whole));
    }
    text + "\n};\n\n"
}

fn float(x: f64, digits: &str, suffix: &str) -> String {
    let cast = if suffix == "f" { "(float)" } else { "" };
    match x {
        x if x.is_nan() => format!("{cast}NAN"),
        f64::INFINITY => format!("{cast}INFINITY"),
        f64::NEG_INFINITY => format!("-{cast}INFINITY"),
        _ => format!("{digits}{suffix}"),
    }
}
