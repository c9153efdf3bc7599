//! Products of one row and a matrix that stays in the cache, as in a small network for one sample: bound by how fast the
//! matrix comes from the cache, so that nothing is copied, and each element of the row serves a wide panel.

use crate::c::ir::kernel::{Argument, Call, Kernel};
use crate::c::kernels::common::library::{Library, NEAR, substitute};
use crate::c::kernels::gemm::packed::PANEL_VECTORS;
use crate::c::kernels::spec::epilogue::place;
use crate::c::kernels::spec::gemm::{Gemm, Packing};
use crate::c::kernels::spec::strides::Stored;
use crate::c::target::Target;

/// Sums that are kept at a time: as many as are on their way through the processor's pipelines.
const SUMS: usize = 8;

impl Gemm {
    /// The kernel, if the product is one of this kind.
    pub(crate) fn of_one_row(&self, library: &mut Library) -> Option<Kernel> {
        let bytes = self.k * self.n * self.element.bytes();
        let is_one = self.m == 1 && self.batch.is_empty() && self.packing == Packing::Ahead;
        if !is_one || bytes > NEAR || self.stored != [Stored::Same; 2] {
            return None;
        }
        let vectors = self.vectors(library.target());
        let lanes = library.target().lanes_of(self.element);
        let pack = self.pack(library, lanes, vectors);
        let text = substitute(
            include_str!("vector.c"),
            &[
                ("t", self.element.suffix()),
                ("type", self.element.c()),
                ("out", &self.out_element),
                ("n", &self.n.to_string()),
                ("k", &self.k.to_string()),
                ("lanes", &lanes.to_string()),
                ("vectors", &vectors.to_string()),
                ("chains", &(SUMS / vectors).to_string()),
                (
                    "a_place",
                    &match self.a.column {
                        1 => "k + chain".to_owned(),
                        column => format!("(k + chain) * {column}"),
                    },
                ),
                ("out_place", &place(&self.out, &self.batch)),
                ("expression", &self.epilogue.text(&self.batch)),
                ("parameters", &self.epilogue.parameters()),
                ("arguments", &self.epilogue.arguments()),
            ],
        );
        let function = library.add(&format!("mithril_vector_product_{}", self.shape()), &text);
        let panels = self.n.div_ceil(vectors * lanes);
        let mut arguments =
            vec![Argument::Thread, Argument::Threads, Argument::A, Argument::Packed, Argument::Out];
        arguments.extend((0..self.epilogue.operands.len()).map(Argument::Operand));
        Some(Kernel {
            pack: Some(pack),
            packed_bytes: (panels * vectors * lanes * self.k * self.element.bytes()).next_multiple_of(64),
            panel_start: None,
            phases: vec![vec![Call { function, arguments }]],
            shared_bytes: 0,
            scratch_bytes: 0,
        })
    }

    /// How many vectors wide a panel is: the wider, the fewer elements of the row are read again; the narrower, the fewer
    /// columns are only there to fill the last panel, or are more than the share of a thread.
    fn vectors(&self, target: &Target) -> usize {
        if target.packs_alike {
            return PANEL_VECTORS;
        }
        let lanes = target.lanes_of(self.element);
        let cost = |vectors: &usize| {
            let panels = self.n.div_ceil(vectors * lanes).next_multiple_of(target.threads.max(1));
            // In halves of a vector that is read: each step of a panel reads one element of the row besides.
            panels * (2 * vectors + 1)
        };
        [8, 4, 2, 1].into_iter().min_by_key(cost).unwrap_or(1)
    }
}
