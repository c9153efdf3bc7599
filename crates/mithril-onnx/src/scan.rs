//! Limits that hold before a file is decoded: how many messages it has. A message of two bytes takes hundreds when it is
//! decoded, so that a file could ask for far more memory than it has bytes.

use mithril_ir::{Code, Error, Result};

/// Messages that any file may have.
const FREE: usize = 200_000;
/// Bytes for each message beyond those.
const BYTES_EACH: usize = 16;
/// Messages within messages; `prost` has the same limit.
const DEPTH: usize = 100;

/// What a message is, by which fields of it are messages too.
#[derive(Clone, Copy)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    Info,
    Type,
    TensorType,
    Shape,
    Function,
    Leaf,
}

impl Kind {
    /// What the field of that number is, if it is a message or a text that is kept.
    fn field(self, number: u64) -> Option<Self> {
        Some(match (self, number) {
            (Self::Model, 7) | (Self::Attribute, 6) => Self::Graph,
            (Self::Model, 25) => Self::Function,
            (Self::Graph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Graph | Self::Attribute, 5) | (Self::Sparse, 1 | 2) => Self::Tensor,
            (Self::Graph, 11 | 12) => Self::Info,
            (Self::Graph, 15) | (Self::Attribute, 22) => Self::Sparse,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            (Self::Info, 2) => Self::Type,
            (Self::Type, 1) => Self::TensorType,
            (Self::TensorType, 2) => Self::Shape,
            (Self::Model, 8)
            | (Self::Function, 4..=6 | 9)
            | (Self::Tensor, 13)
            | (Self::Shape, 1)
            | (Self::Node, 1 | 2)
            | (Self::Attribute, 9) => Self::Leaf,
            _ => return None,
        })
    }
}

/// Refuses a file with more messages than its bytes explain. What is not well formed is left to the decoder.
pub fn check(bytes: &[u8]) -> Result<()> {
    let mut left = FREE.saturating_add(bytes.len() / BYTES_EACH);
    count(bytes, Kind::Model, 0, &mut left).ok_or_else(|| {
        Error::new(Code::BadFile, format!("its {} bytes hold more messages than a model has", bytes.len()))
            .help("check where the file comes from")
    })
}

/// `None` if too many were found.
fn count(mut bytes: &[u8], kind: Kind, depth: usize, left: &mut usize) -> Option<()> {
    while let Some(key) = varint(&mut bytes) {
        let skip = match key & 7 {
            0 => match varint(&mut bytes) {
                Some(_) => 0,
                None => return Some(()),
            },
            1 => 8,
            2 => match varint(&mut bytes).and_then(|n| usize::try_from(n).ok()) {
                Some(n) => n,
                None => return Some(()),
            },
            5 => 4,
            _ => return Some(()),
        };
        let Some((part, rest)) = bytes.split_at_checked(skip) else { return Some(()) };
        bytes = rest;
        if key & 7 == 2
            && let Some(inner) = kind.field(key >> 3)
        {
            *left = left.checked_sub(1)?;
            if depth < DEPTH && !matches!(inner, Kind::Leaf) {
                count(part, inner, depth + 1, left)?;
            }
        }
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
