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
            let micro = library.micro(factor, rows, panels, 2);
            statement.replace("{rows}", &rows.to_string()).replace("{micro}", &micro)
        })
    }

    /// As [`RowGroups::calls`], of so many columns, of which so many are left for a panel: the last one has less to do where
    /// they fit into the first of its two vectors.
    pub fn calls_of_columns(
        &self,
        statement: &str,
        library: &mut Library,
        factor: impl Into<Factor>,
        panels: PanelUse,
        (columns, left): (usize, &str),
    ) -> String {
        let factor = factor.into();
        let lanes = library.target().lanes_of(factor.sums());
        let rest = columns % (2 * lanes);
        if rest == 0 || rest > lanes {
            return self.calls(statement, library, factor, panels);
        }
        self.each(|rows| {
            let [whole, half] = [2, 1].map(|vectors| {
                let micro = library.micro(factor, rows, panels, vectors);
                statement.replace("{rows}", &rows.to_string()).replace("{micro}", &micro)
            });
            if columns == rest || whole == half {
                return half;
            }
            format!("if ({left} > LANES)\n    {whole}\nelse\n    {half}")
        })
    }

    /// What `write` makes of each number of rows that occurs, chosen when running.
    pub fn each(&self, mut write: impl FnMut(usize) -> String) -> String {
        match (self.remainder, self.rows) {
            (0, rows) => write(rows),
            (_, 0) => write(1),
            (_, rows) => {
                let [more, fewer] = [rows + 1, rows].map(&mut write);
                if more.contains('\n') {
                    let [more, fewer] = [more, fewer].map(|text| text.replace('\n', "\n    "));
                    return format!("if (extra) {{\n    {more}\n}} else {{\n    {fewer}\n}}");
                }
                format!("if (extra)\n    {more}\nelse\n    {fewer}")
            }
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
