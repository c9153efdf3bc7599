//! A graph of ggml that can be computed: its leaves and outputs lie where the caller says, the rest in one block.

use std::ffi::c_int;

use mithril_ir::{Error, Result};

use crate::context::{Address, Pool};
use crate::custom::{Failure, Works, has_failed};
use crate::ffi::{self, ggml_cgraph, ggml_tensor};
use crate::layout::{Placed, layout};
use crate::workers::Lease;

/// Operations, ready to be computed. One call at a time; each call in flight needs a graph of its own.
pub struct Graph {
    raw: *mut ggml_cgraph,
    leaves: Vec<*mut ggml_tensor>,
    outputs: Vec<*mut ggml_tensor>,
    placed: Vec<Placed>,
    views: Vec<*mut ggml_tensor>,
    bytes: usize,
    nodes: usize,
    failure: Failure,
    // Tensors of custom ops point to them.
    _customs: Works,
    // The tensors and the graph lie in them.
    _pools: Vec<Pool>,
}

// SAFETY: all pointers are into the pools, which the graph owns; nothing of it belongs to a thread.
unsafe impl Send for Graph {}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph")
            .field("nodes", &self.nodes)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Graph {
    /// A graph of tensors of these pools, of which there are fewer than `room`.
    pub(crate) fn new(
        mut pools: Vec<Pool>,
        room: usize,
        tensors: &[*mut ggml_tensor],
        leaves: Vec<*mut ggml_tensor>,
        outputs: Vec<*mut ggml_tensor>,
        (customs, failure): (Works, Failure),
    ) -> Result<Self> {
        // SAFETY: returns how many bytes a graph of that size takes.
        let pool = Pool::new(unsafe { ffi::ggml_graph_overhead_custom(room, false) } + 64)?;
        // SAFETY: the pool has room for exactly this; the tensors live in the other pools, and there is room for all.
        // They come in the order in which they were made, so that each finds its operands there already.
        let graph = unsafe {
            let graph = ffi::ggml_new_graph_custom(pool.raw(), room, false);
            for &tensor in tensors {
                if (*tensor).op != ffi::OP_NONE {
                    ffi::ggml_build_forward_expand(graph, tensor);
                }
            }
            graph
        };
        // SAFETY: the graph has so many nodes.
        let nodes: Vec<_> =
            unsafe { (0..ffi::ggml_graph_n_nodes(graph)).map(|i| ffi::ggml_graph_node(graph, i)).collect() };
        for &output in &outputs {
            // SAFETY: a tensor of the pools. ggml leaves out no node with this flag.
            unsafe { (*output).flags |= ffi::FLAG_OUTPUT };
        }
        // SAFETY: the nodes live, in the order of computing.
        let (placed, bytes) = unsafe { layout(&nodes, &outputs) };
        // SAFETY: as above.
        let is_view = |t: &*mut ggml_tensor| unsafe { !(**t).view_src.is_null() };
        let views = nodes.iter().copied().filter(is_view).collect();
        pools.push(pool);
        Ok(Self {
            raw: graph,
            leaves,
            outputs,
            placed,
            views,
            bytes,
            nodes: nodes.len(),
            failure,
            _customs: customs,
            _pools: pools,
        })
    }
    /// How many operations there are.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
    /// Bytes of the intermediate tensors.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// Bytes that so many threads need to work in.
    pub fn work_bytes(&self, threads: usize) -> usize {
        // SAFETY: the graph lives; planning looks at types and sizes only.
        unsafe { ffi::ggml_graph_plan(self.raw, threads as c_int, std::ptr::null_mut()) }.work_size
    }
    /// Computes the outputs on the threads of a lease, or on this one alone. The first error of a custom op is an error.
    ///
    /// # Safety
    /// There is an address for each leaf, in the order in which they were made, and for each output; each holds as many
    /// bytes as the tensor, and nobody writes what is read. The arena has as many bytes as [`Graph::bytes`], the work
    /// memory as [`Graph::work_bytes`] of that many threads, both at multiples of 64. Integers that say which rows are
    /// taken are in range.
    pub unsafe fn compute(
        &mut self,
        leaves: &[Address],
        outputs: &[Address],
        arena: Address,
        work: Address,
        lease: Option<&Lease>,
    ) -> Result<()> {
        if (leaves.len(), outputs.len()) != (self.leaves.len(), self.outputs.len()) {
            return Err(Error::internal("a graph of ggml is given too few or too many tensors"));
        }
        let pairs = self.leaves.iter().zip(leaves).chain(self.outputs.iter().zip(outputs));
        // SAFETY: tensors live in the pools, and nobody else has them, since `self` is borrowed for writing. A view shows
        // a tensor that is not a view, whose address was set before.
        let status = unsafe {
            for (&tensor, &address) in pairs {
                (*tensor).data = address;
            }
            for &(tensor, start) in &self.placed {
                (*tensor).data = arena.byte_add(start);
            }
            for &view in &self.views {
                (*view).data = (*(*view).view_src).data.byte_add((*view).view_offs);
            }
            let (threads, pool) = lease.map_or((1, std::ptr::null_mut()), |l| (l.threads(), l.raw()));
            let mut plan = ffi::ggml_graph_plan(self.raw, threads as c_int, pool);
            plan.work_data = work.cast();
            // What follows on an error would write nonsense into memory that was given away.
            plan.abort_callback = Some(has_failed);
            plan.abort_callback_data = (&raw mut self.failure).cast();
            ffi::ggml_graph_compute(self.raw, &raw mut plan)
        };
        match self.failure.take() {
            Some(error) => Err(error),
            None if status == ffi::SUCCESS => Ok(()),
            None => Err(Error::internal(format!("ggml gives status {status}"))),
        }
    }
}
