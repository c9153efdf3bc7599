//! Matrix products.

use crate::c::kernels::spec::epilogue::Epilogue;
use crate::c::kernels::spec::strides::{Stored, Strides};
use crate::c::target::Element;

/// When the right matrix is brought into the kernel's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Once, by [`Kernel::pack`]: it is a constant.
    Ahead,
    /// Each time, in a phase of its own, into shared scratch memory.
    Running,
}

/// `out[m, n] = epilogue(a[m, k] · b[k, n])` for every matrix of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gemm {
    /// What the matrices hold.
    pub element: Element,
    /// Sizes of the batch axes.
    pub batch: Vec<usize>,
    /// Rows of `a` and of the result.
    pub m: usize,
    /// Columns of `b` and of the result.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// The left matrix: `row` along m, `column` along k. The smaller or the changing one; either may be transposed.
    pub a: Strides,
    /// The right matrix: `row` along k, `column` along n. The weights.
    pub b: Strides,
    /// How the elements of `a` and of `b` are stored: they are converted where they are copied and packed.
    pub stored: [Stored; 2],
    /// The result: `row` along m, `column` along n.
    pub out: Strides,
    /// The C type of the result, which the epilogue's expression has.
    pub out_element: String,
    /// When `b` is packed.
    pub packing: Packing,
    /// Whether thread number `i` of as many threads as there are matrices has to compute matrix `i`.
    pub one_by_one: bool,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
}

impl Gemm {
    /// One product of row-major matrices, `b` packed ahead, without epilogue: the fields may be changed after.
    pub fn new(element: Element, m: usize, n: usize, k: usize) -> Self {
        let row_major = |columns| Strides { batch: vec![], row: columns, column: 1 };
        Self {
            element,
            batch: vec![],
            m,
            n,
            k,
            a: row_major(k),
            b: row_major(n),
            stored: [Stored::Same; 2],
            out: row_major(n),
            out_element: element.c().to_owned(),
            packing: Packing::Ahead,
            one_by_one: false,
            epilogue: Epilogue::none(),
        }
    }
}
