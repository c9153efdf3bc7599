//! Where the intermediate tensors of a graph lie in one block of memory, by when they are needed.
//!
//! ggml has an allocator of its own. It ends the process where its list of free blocks is full, so that this is done
//! here; what may be written over its own operand is the same.

use std::collections::HashMap;
use std::ffi::CStr;

use crate::ffi::{self, ggml_tensor};
use crate::loops;

/// Tensors begin at multiples of it.
const ALIGNMENT: usize = 64;

/// Operations that may write over their first operand, as ggml's allocator has it.
const IN_PLACE: &[&str] = &[
    "SCALE",
    "DIAG_MASK_ZERO",
    "DIAG_MASK_INF",
    "ADD",
    "SUB",
    "MUL",
    "DIV",
    "SQR",
    "SQRT",
    "LOG",
    "UNARY",
    "ROPE",
    "ROPE_BACK",
    "SILU_BACK",
    "RMS_NORM",
    "RMS_NORM_BACK",
    "CLAMP",
    "SOFT_MAX",
    "SOFT_MAX_BACK",
];

/// A tensor with the byte at which it begins.
pub(crate) type Placed = (*mut ggml_tensor, usize);

/// Part of the block that is in use.
struct Used {
    root: *mut ggml_tensor,
    start: usize,
    end: usize,
    /// The last node that reads it.
    last: usize,
}

/// The tensor in whose memory a tensor lies.
///
/// # Safety
/// The tensor lives.
unsafe fn root(tensor: *mut ggml_tensor) -> *mut ggml_tensor {
    // SAFETY: as said; a view and what it shows live together.
    let source = unsafe { (*tensor).view_src };
    if source.is_null() { tensor } else { source }
}

/// Places for the nodes that are not views and do not lie elsewhere, and how many bytes they take together.
///
/// # Safety
/// The nodes are tensors that live, in the order in which they are computed.
pub(crate) unsafe fn layout(
    nodes: &[*mut ggml_tensor],
    elsewhere: &[*mut ggml_tensor],
) -> (Vec<Placed>, usize) {
    let mut last: HashMap<*mut ggml_tensor, usize> = HashMap::new();
    for (i, &node) in nodes.iter().enumerate() {
        // SAFETY: a node and its operands live.
        let operands = unsafe { (*node).src };
        for tensor in operands.into_iter().filter(|s| !s.is_null()).chain([node]) {
            // SAFETY: as above.
            last.insert(unsafe { root(tensor) }, i);
        }
    }
    let (mut used, mut placed, mut whole): (Vec<Used>, Vec<Placed>, usize) = (Vec::new(), Vec::new(), 0);
    for (i, &node) in nodes.iter().enumerate() {
        used.retain(|u| u.last >= i);
        // SAFETY: as above.
        let (own, bytes) = unsafe { (root(node), ffi::ggml_nbytes(node)) };
        if own != node || elsewhere.contains(&node) {
            continue;
        }
        // SAFETY: as above.
        let operand = unsafe { written_over(node) };
        let reused = used.iter_mut().find(|u| operand.contains(&u.root) && u.last == i);
        if let Some(offset) = reused {
            placed.push((node, offset.start));
            (offset.root, offset.last) = (node, last[&node]);
            continue;
        }
        let size = bytes.next_multiple_of(ALIGNMENT);
        let mut start = 0;
        let mut at = 0;
        while at < used.len() && used[at].start < start + size {
            start = used[at].end;
            at += 1;
        }
        used.insert(at, Used { root: node, start, end: start + size, last: last[&node] });
        placed.push((node, start));
        whole = whole.max(start + size);
    }
    (placed, whole)
}

/// The operands that a node may write over: of the same type, and no views.
///
/// # Safety
/// The node lives.
unsafe fn written_over(node: *mut ggml_tensor) -> Vec<*mut ggml_tensor> {
    // SAFETY: as said; ggml's names are strings of C that live as long as the program.
    let (operands, op) = unsafe { ((*node).src, CStr::from_ptr(ffi::ggml_op_name((*node).op))) };
    let op = op.to_str().unwrap_or_default();
    // SAFETY: as said.
    let parameters = unsafe { (*node).op_params };
    let count = match op {
        "ADD" | "SUB" | "MUL" | "DIV" => 2,
        "CUSTOM" if parameters[loops::IN_PLACE] != 0 => operands.len(),
        _ => usize::from(IN_PLACE.contains(&op)),
    };
    // Another operand may show the same memory at other places.
    let is_seen_otherwise = |tensor: *mut ggml_tensor| {
        // SAFETY: operands live.
        operands.iter().any(|&o| o != tensor && !o.is_null() && unsafe { root(o) } == tensor)
    };
    let fits = |&tensor: &*mut ggml_tensor| {
        // SAFETY: operands live.
        !tensor.is_null()
            && !is_seen_otherwise(tensor)
            && unsafe {
                (*tensor).view_src.is_null()
                    && (*tensor).kind == (*node).kind
                    && ffi::ggml_are_same_shape(tensor, node)
                    && ffi::ggml_are_same_stride(tensor, node)
            }
    };
    operands[..count].iter().copied().filter(fits).collect()
}
