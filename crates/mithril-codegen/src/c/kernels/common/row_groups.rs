//! The rows of a left matrix in groups that a micro-kernel holds in registers.

use crate::c::kernels::common::library::{Library, PanelUse, substitute};
use crate::c::target::{Element, Factor, Target};

/// Groups of rows, as even as they can be: the first `remainder` have one row more than `rows`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowGroups {
    pub groups: usize,
    pub rows: usize,
    pub remainder: usize,
}

impl RowGroups {
    pub fn new(rows: usize, target: &Target) -> Self {
        Self::of(rows, target.rows())
    }

    /// Groups of at most so many.
    pub fn of(rows: usize, most: usize) -> Self {
        let groups = rows.div_ceil(most).max(1);
        Self { groups, rows: rows / groups, remainder: rows % groups }
    }

    /// The rows of the longest group.
    pub fn most(&self) -> usize {
        self.rows + usize::from(self.remainder > 0)
    }

    /// How many groups there are of which numbers of rows: those with one more, and the others.
    pub fn sizes(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        [(self.remainder, self.rows + 1), (self.groups - self.remainder, self.rows)].into_iter()
    }

    /// A statement for each number of rows that occurs; `{rows}` and `{micro}` stand for the number and its kernel.
    /// `panels` are those of the other factor.
    pub fn calls(
        &self,
        statement: &str,
        library: &mut Library,
        factor: impl Into<Factor>,
        panels: PanelUse,
    ) -> String {
        let factor = factor.into();
        self.each(|rows| {
            let micro = library.micro(factor, rows, panels);
            statement.replace("{rows}", &rows.to_string()).replace("{micro}", &micro)
        })
    }

    /// What `write` makes of each number of rows that occurs, chosen when running.
    pub fn each(&self, mut write: impl FnMut(usize) -> String) -> String {
        match (self.remainder, self.rows) {
            (0, rows) => write(rows),
            (_, 0) => write(1),
            (_, rows) => format!("if (extra)\n    {}\nelse\n    {}", write(rows + 1), write(rows)),
        }
    }

    /// The function that packs row-major weights into these groups, for a number of matrices of rows by columns.
    pub fn pack(
        &self,
        library: &mut Library,
        element: Element,
        [matrices, rows, columns]: [usize; 3],
    ) -> String {
        let lanes = library.target().lanes_of(element);
        let text = substitute(
            include_str!("pack_rows.c"),
            &[
                ("type", element.c()),
                ("lanes", &lanes.to_string()),
                ("matrices", &matrices.to_string()),
                ("m", &(matrices * rows).to_string()),
                ("k", &columns.to_string()),
                ("row_groups", &self.groups.to_string()),
                ("rows", &self.rows.to_string()),
                ("remainder", &self.remainder.to_string()),
            ],
        );
        library.add(&format!("mithril_pack_rows_{}x{columns}", matrices * rows), &text)
    }
}
