//! Tensors that a file holds: their dtypes, sizes and bytes, checked against each other.

use bytes::Bytes;
use mithril_ir::{Code, DType, Error, Result, Tensor};

use crate::proto::TensorProto;

/// Gives a part of another file: its path relative to the folder of the model, first byte, number of bytes.
pub type External<'a> = dyn Fn(&str, u64, u64) -> Result<Bytes> + 'a;

/// A tensor of the file whose values were not read.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Dtype.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Its elements, row by row, as little-endian bytes.
    pub bytes: Bytes,
}

/// The dtype that ONNX gives this number, or the name of one that Mithril does not have.
pub fn dtype(code: i32) -> Result<DType> {
    Ok(match code {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::BF16,
        _ => {
            const NAMES: [&str; 29] = [
                "undefined",
                "float32",
                "uint8",
                "int8",
                "uint16",
                "int16",
                "int32",
                "int64",
                "string",
                "bool",
                "float16",
                "float64",
                "uint32",
                "uint64",
                "complex64",
                "complex128",
                "bfloat16",
                "float8e4m3fn",
                "float8e4m3fnuz",
                "float8e5m2",
                "float8e5m2fnuz",
                "uint4",
                "int4",
                "float4e2m1",
                "float8e8m0",
                "uint2",
                "int2",
                "float6e2m3",
                "float6e3m2",
            ];
            let name = usize::try_from(code).ok().and_then(|i| NAMES.get(i)).copied().unwrap_or("unknown");
            let known: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
            return Err(Error::new(Code::Unsupported, format!("dtype {name} ({code}) is not supported"))
                .help(format!("convert the model to one of {}", known.join(", "))));
        }
    })
}

pub fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::BadFile, message).help("the file may be damaged or incomplete: write or fetch it again")
}

impl Stored {
    /// What a message says, with all sizes checked.
    pub fn read(proto: &TensorProto, elsewhere: &External<'_>) -> Result<Self> {
        let dtype = dtype(proto.data_type)?;
        let shape = sizes(&proto.dims)?;
        let count = shape.iter().product::<usize>();
        let length = count
            .checked_mul(dtype.size())
            .filter(|n| isize::try_from(*n).is_ok())
            .ok_or_else(|| bad(format!("a tensor of shape {:?} is too large", proto.dims)))?;
        let bytes = match (&proto.raw_data, proto.data_location) {
            (_, 1) => external(proto, length, elsewhere)?,
            (Some(raw), _) => raw.clone(),
            (None, _) => typed(proto, dtype, count)?,
        };
        if bytes.len() != length {
            let (shape, actual) = (&proto.dims, bytes.len());
            return Err(bad(format!(
                "a tensor of {dtype} and shape {shape:?} needs {length} bytes, but has {actual}"
            )));
        }
        Ok(Self { dtype, shape, bytes })
    }
    /// The values.
    pub fn to_tensor(&self) -> Result<Tensor> {
        Tensor::from_bytes(self.dtype, self.shape.clone(), &self.bytes)
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Sizes as the file has them, if they are those of a tensor.
pub fn sizes(dims: &[i64]) -> Result<Vec<usize>> {
    let refuse = || bad(format!("a tensor has the shape {dims:?}"));
    let shape: Vec<usize> =
        dims.iter().map(|&n| usize::try_from(n).map_err(|_| refuse())).collect::<Result<_>>()?;
    if shape.len() > mithril_ir::shape::MAX_RANK {
        return Err(refuse());
    }
    shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d.max(1))).ok_or_else(refuse)?;
    Ok(shape)
}

/// Elements that stand in a field of their type, as bytes.
fn typed(proto: &TensorProto, dtype: DType, count: usize) -> Result<Bytes> {
    macro_rules! bytes {
        ($items:expr, |$x:ident| $of:expr) => {{
            let items = &$items;
            if items.len() != count {
                let message = format!("a tensor of shape {:?} has {} elements", proto.dims, items.len());
                return Err(bad(message));
            }
            items.iter().flat_map(|&$x| $of.to_le_bytes()).collect::<Vec<u8>>()
        }};
    }
    let data = match dtype {
        DType::F32 => bytes!(proto.float_data, |x| x),
        DType::F64 => bytes!(proto.double_data, |x| x),
        DType::I64 => bytes!(proto.int64_data, |x| x),
        DType::U32 => bytes!(proto.uint64_data, |x| (x as u32)),
        DType::U64 => bytes!(proto.uint64_data, |x| x),
        DType::I32 => bytes!(proto.int32_data, |x| x),
        DType::I16 | DType::U16 | DType::F16 | DType::BF16 => bytes!(proto.int32_data, |x| (x as u16)),
        DType::Bool => bytes!(proto.int32_data, |x| u8::from(x != 0)),
        DType::I8 | DType::U8 => bytes!(proto.int32_data, |x| (x as u8)),
    };
    Ok(data.into())
}

pub fn external(proto: &TensorProto, length: usize, elsewhere: &External<'_>) -> Result<Bytes> {
    let entry = |key: &str| proto.external_data.iter().find(|e| e.key == key).map(|e| e.value.trim());
    let number = |key: &str| {
        entry(key)
            .map(|text| text.parse::<u64>().map_err(|_| bad(format!("{key} of external data is {text:?}"))))
            .transpose()
    };
    let location =
        entry("location").filter(|l| !l.is_empty()).ok_or_else(|| bad("external data has no location"))?;
    let stored = number("length")?.unwrap_or(length as u64);
    if stored != length as u64 {
        return Err(bad(format!(
            "external data has {stored} bytes, but shape {:?} needs {length}",
            proto.dims
        )));
    }
    elsewhere(location, number("offset")?.unwrap_or(0), stored)
}
