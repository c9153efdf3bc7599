//! Operations of ggml put together to a graph. What ggml would assert is checked before each call.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use mithril_codegen::ggml::functions::{self, Operand};
use mithril_codegen::ggml::{DIMENSIONS, Element, Type};
use mithril_ir::{Code, Error, Result};

use crate::custom::{Custom, Failure, Work, Works};
use crate::ffi::{self, ggml_context, ggml_tensor};
use crate::graph::Graph;
use crate::operations::{self, Passed};
use crate::processor;
use crate::repack;

/// Room for so many tensors is made at once.
const TENSORS: usize = 256;

/// A call makes at most so many tensors, most of them views.
const PER_CALL: usize = 16;

/// A tensor of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(usize);

/// An argument of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A tensor of the same context.
    Tensor(TensorId),
    /// No tensor.
    Null,
    /// A number; a boolean is 0 or 1.
    Number(f64),
    /// A type of elements.
    Element(Element),
}

/// Memory in which ggml describes tensors and graphs, but holds no elements of them.
pub(crate) struct Pool {
    context: NonNull<ggml_context>,
    // ggml reads and writes it through its own pointer.
    _memory: Box<[u128]>,
    bytes: usize,
}

// SAFETY: a context of ggml is plain memory, which belongs to no thread.
unsafe impl Send for Pool {}

impl Pool {
    pub fn new(bytes: usize) -> Result<Self> {
        let mut memory = vec![0_u128; bytes.div_ceil(16)].into_boxed_slice();
        let bytes = memory.len() * 16;
        let mem_buffer = memory.as_mut_ptr().cast();
        let params = ffi::ggml_init_params { mem_size: bytes, mem_buffer, no_alloc: true };
        // SAFETY: the buffer has so many bytes, at a multiple of 16, and lives as long as the context, since a box
        // that is moved stays where it is.
        let context = NonNull::new(unsafe { ffi::ggml_init(params) });
        let context = context.ok_or_else(|| Error::new(Code::OutOfMemory, "ggml has no memory left"))?;
        Ok(Self { context, _memory: memory, bytes })
    }
    pub fn raw(&self) -> *mut ggml_context {
        self.context.as_ptr()
    }
    fn room(&self) -> usize {
        // SAFETY: the context lives.
        self.bytes - unsafe { ffi::ggml_used_mem(self.raw()) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: nothing else frees it; its buffer is ours and is freed after this.
        unsafe { ffi::ggml_free(self.raw()) }
    }
}

/// What a graph is made in.
///
/// ```
/// use mithril_codegen::ggml::{Element, Type};
/// use mithril_ggml::{Argument, Context};
///
/// let mut context = Context::new()?;
/// let x = context.leaf(&Type::contiguous(Element::F32, [8, 1, 1, 1]))?;
/// let y = context.call("ggml_tanh", &[Argument::Tensor(x)])?;
/// let error = context.call("ggml_reshape_4d", &[
///     Argument::Tensor(y), Argument::Number(3.0), Argument::Number(1.0), Argument::Number(1.0), Argument::Number(1.0),
/// ]);
/// assert!(error.is_err());
/// let graph = context.finish(&[y])?;
/// assert_eq!(graph.nodes(), 1);
/// # Ok::<(), mithril_ir::Error>(())
/// ```
pub struct Context {
    pools: Vec<Pool>,
    tensors: Vec<(*mut ggml_tensor, Type)>,
    leaves: Vec<*mut ggml_tensor>,
    /// Leaves that operations may change.
    released: Vec<*mut ggml_tensor>,
    /// Leaves whose rows are interleaved.
    repacked: Vec<TensorId>,
    customs: Works,
    failure: Failure,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let types = self.tensors.iter().map(|(_, ty)| ty.to_string());
        f.debug_list().entries(types).finish()
    }
}

impl Context {
    /// An empty one; an error where the processor lacks what ggml was compiled for.
    pub fn new() -> Result<Self> {
        processor::ready()?;
        Ok(Self {
            pools: Vec::new(),
            tensors: Vec::new(),
            leaves: Vec::new(),
            released: Vec::new(),
            repacked: Vec::new(),
            customs: Vec::new(),
            failure: Failure::default(),
        })
    }
    /// A tensor whose elements come from outside, without gaps.
    pub fn leaf(&mut self, ty: &Type) -> Result<TensorId> {
        let Type { element, sizes, .. } = ty;
        is_sound(ty)?;
        let pool = self.pool()?;
        // SAFETY: the pool has room for a tensor; the type exists, and the sizes were checked above.
        let tensor = unsafe { ffi::ggml_new_tensor(pool, element.code(), DIMENSIONS as i32, sizes.as_ptr()) };
        self.leaves.push(tensor);
        self.keep(tensor)
    }
    /// The same, where operations may change the elements.
    pub fn leaf_to_change(&mut self, ty: &Type) -> Result<TensorId> {
        let leaf = self.leaf(ty)?;
        self.released.push(self.tensors[leaf.0].0);
        Ok(leaf)
    }
    /// A matrix whose rows were interleaved by [`repack`](crate::repack()): the first operand of products, and nothing else.
    pub fn repacked_leaf(&mut self, ty: &Type) -> Result<TensorId> {
        let leaf = self.leaf(ty)?;
        // SAFETY: the leaf was just made.
        if !unsafe { repack::mark(self.tensors[leaf.0].0) }? {
            return Err(Error::internal(format!("ggml cannot interleave the rows of {ty}")));
        }
        self.repacked.push(leaf);
        Ok(leaf)
    }
    /// The product of an interleaved matrix with rows of floats, as what is called here wants them: without gaps, and along
    /// three axes at most.
    fn product_of_repacked(&mut self, matrix: TensorId, rows: TensorId) -> Result<TensorId> {
        let mut rows = rows;
        if !self.ty(rows).is_contiguous() {
            rows = self.call("ggml_cont", &[Argument::Tensor(rows)])?;
        }
        let [columns, n1, n2, n3] = self.ty(rows).sizes;
        let reshape = |this: &mut Self, of: TensorId, sizes: [i64; DIMENSIONS]| {
            let sizes = sizes.map(|n| Argument::Number(n as f64));
            this.call("ggml_reshape_4d", &[&[Argument::Tensor(of)][..], &sizes].concat())
        };
        if n3 == 1 {
            return self.call_checked("ggml_mul_mat", &[Argument::Tensor(matrix), Argument::Tensor(rows)]);
        }
        let rows = reshape(self, rows, [columns, n1, n2 * n3, 1])?;
        let arguments = [Argument::Tensor(matrix), Argument::Tensor(rows)];
        let product = self.call_checked("ggml_mul_mat", &arguments)?;
        let results = self.ty(product).sizes[0];
        reshape(self, product, [results, n1, n2, n3])
    }
    /// Calls a function, after all that it would assert was checked.
    pub fn call(&mut self, name: &str, arguments: &[Argument]) -> Result<TensorId> {
        let is_repacked = |a: &Argument| matches!(a, Argument::Tensor(id) if self.repacked.contains(id));
        if arguments.iter().any(is_repacked) {
            return match (name, arguments) {
                ("ggml_mul_mat", &[Argument::Tensor(matrix), Argument::Tensor(rows)])
                    if !self.repacked.contains(&rows) =>
                {
                    self.product_of_repacked(matrix, rows)
                }
                _ => Err(Error::internal(format!("{name} reads a matrix with interleaved rows"))),
            };
        }
        self.call_checked(name, arguments)
    }
    fn call_checked(&mut self, name: &str, arguments: &[Argument]) -> Result<TensorId> {
        let missing = || Error::internal(format!("ggml has no function {name}"));
        let function = functions::find(name).ok_or_else(missing)?;
        let operation = operations::find(name).ok_or_else(missing)?;
        let mut operands = Vec::with_capacity(arguments.len());
        let mut passed = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let (operand, value) = match argument {
                Argument::Tensor(id) => {
                    let (tensor, ty) = self.tensors.get(id.0).ok_or_else(missing)?;
                    (Operand::Tensor(ty), Passed::Tensor(*tensor))
                }
                Argument::Null => (Operand::Null, Passed::Null),
                Argument::Number(x) => (Operand::Number(*x), Passed::Number(*x)),
                Argument::Element(e) => (Operand::Element(*e), Passed::Number(e.code().into())),
            };
            operands.push(operand);
            passed.push(value);
        }
        let expected = function.check(&operands).map_err(|reason| {
            Error::new(Code::Unsupported, format!("{name} of ggml cannot be called: {reason}"))
        })?;
        let pool = self.pool()?;
        // SAFETY: the pool has room for what a call makes, tensors are of this context, and the check of the function
        // knows all that it asserts.
        let tensor = unsafe { (operation.call)(pool, &passed) };
        let id = self.keep(tensor)?;
        if self.writes_into_a_leaf(tensor) {
            let text = format!("{name} of ggml would write into what it is given");
            return Err(Error::new(Code::Unsupported, text).help("give it a copy"));
        }
        let actual = &self.tensors[id.0].1;
        if (actual.element, actual.sizes) != (expected.element, expected.sizes) {
            return Err(Error::internal(format!("{name} gives {actual}, where {expected} was foreseen")));
        }
        Ok(id)
    }
    /// An op of ours, which reads tensors without gaps and makes one.
    pub fn custom(&mut self, ty: &Type, arguments: &[TensorId], op: Box<dyn Custom>) -> Result<TensorId> {
        let missing = || Error::internal("a custom op reads what is not there");
        let mut tensors = Vec::with_capacity(arguments.len());
        for id in arguments {
            if self.repacked.contains(id) {
                return Err(Error::internal("a custom op reads a matrix with interleaved rows"));
            }
            let (tensor, own) = self.tensors.get(id.0).ok_or_else(missing)?;
            if !own.is_contiguous() {
                return Err(Error::internal(format!("a custom op reads {own}, which has gaps")));
            }
            tensors.push(*tensor);
        }
        if tensors.len() >= ffi::MAX_SRC {
            return Err(Error::internal(format!("a custom op reads {} tensors", tensors.len())));
        }
        is_sound(ty)?;
        let pool = self.pool()?;
        let mut work = Box::new(Work::new(op, self.failure.clone()));
        let tasks = if work.is_shared() { ffi::ALL_THREADS } else { 1 };
        let data = (&raw mut *work).cast();
        let [n0, n1, n2, n3] = ty.sizes;
        let (kind, count) = (ty.element.code(), tensors.len() as i32);
        // SAFETY: the pool has room for a tensor, whose type was checked; there are so many operands, fewer than a
        // tensor has. The box stays where it is, and lives as long as the graph.
        let tensor = unsafe {
            let function = crate::custom::call;
            ffi::ggml_custom_4d(
                pool,
                kind,
                n0,
                n1,
                n2,
                n3,
                tensors.as_mut_ptr(),
                count,
                function,
                tasks,
                data,
            )
        };
        self.customs.push(work);
        self.keep(tensor)
    }
    /// The type of a tensor.
    pub fn ty(&self, id: TensorId) -> &Type {
        &self.tensors[id.0].1
    }
    /// The graph of all that was called, whose outputs are these tensors: they lie without gaps, each in memory that the
    /// caller gives.
    pub fn finish(mut self, outputs: &[TensorId]) -> Result<Graph> {
        let mut places: Vec<*mut ggml_tensor> = Vec::with_capacity(outputs.len());
        let leaves = self.leaves.clone();
        for &id in outputs {
            let (tensor, ty) = self.tensors[id.0];
            // SAFETY: a tensor of this context.
            let is_whole = unsafe { (*tensor).view_src.is_null() && ffi::ggml_is_contiguous(tensor) };
            if is_whole && !leaves.contains(&tensor) && !places.contains(&tensor) {
                places.push(tensor);
                continue;
            }
            let target = self.leaf(&Type::contiguous(ty.element, ty.sizes))?;
            let target = self.tensors[target.0].0;
            let copy =
                operations::find("ggml_cpy").ok_or_else(|| Error::internal("ggml_cpy is not known"))?;
            let pool = self.pool()?;
            // SAFETY: both tensors are of this context, with as many elements, of the same type.
            let copied = unsafe { (copy.call)(pool, &[Passed::Tensor(tensor), Passed::Tensor(target)]) };
            self.keep(copied)?;
            places.push(target);
        }
        let nodes: Vec<_> = self.tensors.iter().map(|&(tensor, _)| tensor).collect();
        let room = self.pools.iter().map(|p| p.bytes - p.room()).sum::<usize>() / tensor_bytes() + 1;
        Graph::new(self.pools, room, &nodes, leaves, places, (self.customs, self.failure))
    }
    /// Whether an operation, rather than showing a leaf in another way, would change it.
    fn writes_into_a_leaf(&self, tensor: *mut ggml_tensor) -> bool {
        // SAFETY: a tensor of this context; names of operations are texts of C that live as long as the program.
        let (whole, op) = unsafe { ((*tensor).view_src, CStr::from_ptr(ffi::ggml_op_name((*tensor).op))) };
        let shows = [c"VIEW", c"RESHAPE", c"PERMUTE", c"TRANSPOSE"].contains(&op);
        !shows && self.leaves.contains(&whole) && !self.released.contains(&whole)
    }
    /// Memory with room for what a call makes.
    fn pool(&mut self) -> Result<*mut ggml_context> {
        if self.pools.last().is_none_or(|p| p.room() < PER_CALL * tensor_bytes()) {
            self.pools.push(Pool::new(TENSORS * tensor_bytes())?);
        }
        Ok(self.pools[self.pools.len() - 1].raw())
    }
    fn keep(&mut self, tensor: *mut ggml_tensor) -> Result<TensorId> {
        if tensor.is_null() {
            return Err(Error::internal("ggml gives no tensor"));
        }
        // SAFETY: a tensor that ggml just made in a pool of this context.
        let (kind, sizes, strides) = unsafe { ((*tensor).kind, (*tensor).ne, (*tensor).nb) };
        let element = Element::all().find(|e| e.code() == kind);
        let element =
            element.ok_or_else(|| Error::internal(format!("ggml gives a tensor of type {kind}")))?;
        let strides = strides.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        self.tensors.push((tensor, Type { element, sizes, strides }));
        Ok(TensorId(self.tensors.len() - 1))
    }
}

/// Refuses a type that a new tensor cannot have.
fn is_sound(ty: &Type) -> Result<()> {
    let Type { element, sizes, .. } = ty;
    let holds = sizes.iter().all(|&n| n > 0 && n <= i64::from(i32::MAX))
        && sizes[0] % element.block() == 0
        && *ty == Type::contiguous(*element, *sizes)
        && ty.elements() < i64::MAX / 64;
    if holds {
        return Ok(());
    }
    Err(Error::new(Code::Unsupported, format!("{ty} is not a tensor of ggml"))
        .help("sizes are from 1 to 2³¹ − 1, and rows hold whole blocks"))
}

/// What the description of a tensor takes.
fn tensor_bytes() -> usize {
    // SAFETY: returns a constant. Rounded up to what objects are aligned to.
    unsafe { ffi::ggml_tensor_overhead() }.next_multiple_of(16)
}

/// An address that is written.
pub(crate) type Address = *mut c_void;
