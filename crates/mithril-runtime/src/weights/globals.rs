//! The names that a pickle may use. They are a closed list; none of them is ever called as code.

use mithril_ir::{Code, DType, Error, Result};

use super::weight::Stored;

/// What to do about a file that names something else.
pub(super) const HELP: &str = "only tensors are read, and no code of a file is run; if you trust its author, load it \
    elsewhere and save the state dict alone, best as safetensors";

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Global {
    /// `collections.OrderedDict`
    Dict,
    /// `set`, of which the members are of no interest.
    Set,
    /// `torch.Size`, a tuple.
    Size,
    /// A function whose result is of no interest.
    Ignored,
    /// A function that makes a tensor.
    Rebuild(Rebuild),
    /// A class of storages; `None` counts bytes.
    Storage(Option<Stored>),
    /// A dtype.
    DType(Stored),
    /// The class of tensors, or that of parameters.
    Class,
}

/// The functions that make tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rebuild {
    /// `_rebuild_tensor`, `_rebuild_tensor_v2`
    Tensor,
    /// `_rebuild_tensor_v3`: the dtype is an argument.
    Typed,
    /// `_rebuild_parameter`, `_rebuild_parameter_with_state`
    Parameter,
    /// `_rebuild_from_type_v2`
    Subclass,
}

impl Global {
    pub fn find(module: &str, name: &str) -> Result<Self> {
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Self::Dict,
            ("builtins" | "__builtin__", "set" | "frozenset") => Self::Set,
            ("torch", "Size") => Self::Size,
            ("torch", "device") | ("_codecs", "encode") => Self::Ignored,
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Self::Rebuild(Rebuild::Tensor),
            ("torch._utils", "_rebuild_tensor_v3") => Self::Rebuild(Rebuild::Typed),
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                Self::Rebuild(Rebuild::Parameter)
            }
            ("torch._tensor", "_rebuild_from_type_v2") => Self::Rebuild(Rebuild::Subclass),
            ("torch" | "torch._tensor", "Tensor") | ("torch.nn.parameter", "Parameter" | "Buffer") => {
                Self::Class
            }
            ("torch.storage", "UntypedStorage") => Self::Storage(None),
            ("torch" | "torch.cuda" | "torch.storage", _) => torch(module, name)?,
            _ => return Err(refused(module, name)),
        })
    }
}

/// Storages and dtypes.
fn torch(module: &str, name: &str) -> Result<Global> {
    let stored = match name.strip_suffix("Storage").unwrap_or(name) {
        "Bool" | "bool" => Stored::Known(DType::Bool),
        "Byte" | "uint8" => Stored::Known(DType::U8),
        "Char" | "int8" => Stored::Known(DType::I8),
        "Short" | "int16" => Stored::Known(DType::I16),
        "Int" | "int32" => Stored::Known(DType::I32),
        "Long" | "int64" => Stored::Known(DType::I64),
        "Half" | "float16" => Stored::Known(DType::F16),
        "BFloat16" | "bfloat16" => Stored::Known(DType::BF16),
        "Float" | "float32" => Stored::Known(DType::F32),
        "Double" | "float64" => Stored::Known(DType::F64),
        "uint16" => Stored::Known(DType::U16),
        "uint32" => Stored::Known(DType::U32),
        "uint64" => Stored::Known(DType::U64),
        other @ ("ComplexFloat" | "ComplexDouble" | "complex32" | "complex64" | "complex128"
        | "float8_e4m3fn" | "float8_e5m2" | "float8_e4m3fnuz" | "float8_e5m2fnuz"
        | "float8_e8m0fnu") => Stored::Other(other.to_owned()),
        _ => return Err(refused(module, name)),
    };
    let is_storage = name.ends_with("Storage");
    // `torch.Float` and `torch.float32Storage` do not exist.
    if is_storage != name.starts_with(char::is_uppercase) {
        return Err(refused(module, name));
    }
    Ok(if is_storage { Global::Storage(Some(stored)) } else { Global::DType(stored) })
}

pub(super) fn refused(module: &str, name: &str) -> Error {
    let shown: String = format!("{module}.{name}").chars().take(100).collect();
    let message = format!("it tries to call `{}`, which tensors never need", shown.escape_debug());
    Error::new(Code::Refused, message).help(HELP)
}
