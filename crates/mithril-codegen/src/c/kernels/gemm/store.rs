//! How the tiles of a product are stored: through the epilogue, and transposed where columns of the result lie side by side.

use crate::c::kernels::common::library::{Library, substitute};
use crate::c::kernels::common::row_groups::RowGroups;
use crate::c::kernels::gemm::packed::{COLUMNS, ROWS};
use crate::c::kernels::spec::gemm::Gemm;
use crate::c::kernels::spec::strides::Strides;

impl Gemm {
    /// The function that applies the epilogue to a tile and stores it, with what it calls in the library.
    pub(super) fn store(&self, library: &mut Library, lanes: usize, rows: &RowGroups) -> String {
        let order = StoreOrder::of(self, lanes, rows);
        let lane_count = lanes.to_string();
        if order != StoreOrder::Plain {
            library.transpose(self.element);
            let element = self.element;
            let keys = [("type", element.c()), ("t", element.suffix()), ("lanes", lane_count.as_str())];
            let text = substitute(include_str!("store_columns.c"), &keys);
            library.add(&format!("mithril_store_columns_{}", element.suffix()), &text);
        }
        let by_column = self.out.row < self.out.column;
        substitute(
            include_str!("epilogue.c"),
            &[
                ("store", order.statements()),
                (
                    "vectorize",
                    if self.out.row.min(self.out.column) == 1 { "MITHRIL_VECTORIZE\n" } else { "" },
                ),
                // Elements are written in the order in which they lie.
                ("outer", if by_column { COLUMNS } else { ROWS }),
                ("inner", if by_column { ROWS } else { COLUMNS }),
                // Written out for constants, columns of short rows take compilers long and win nothing.
                ("once", if by_column { "static MITHRIL_NOINLINE" } else { "MITHRIL_INLINE" }),
                ("sums", if order == StoreOrder::FinishFirst { "@type@" } else { "const @type@" }),
                ("height", &rows.most().next_multiple_of(lanes).to_string()),
                ("out_column", &self.out.column.to_string()),
            ],
        )
    }
}

/// How a tile of sums becomes elements of the result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreOrder {
    /// One by one: rows whose elements lie side by side, or too few to be transposed.
    Plain,
    /// The sums as they are, transposed.
    Transposed,
    /// The epilogue in the order of the sums, then transposed: its operands are the same in all rows, or lie in rows.
    FinishFirst,
    /// Transposed, then the epilogue, whose operands lie as the result does.
    TransposeFirst,
}

impl StoreOrder {
    fn of(gemm: &Gemm, lanes: usize, rows: &RowGroups) -> Self {
        let lies_in_columns = |strides: &Strides| strides.row != 0 && strides.row < strides.column;
        if !lies_in_columns(&gemm.out) || lanes == 1 || rows.rows < lanes / 2 {
            return Self::Plain;
        }
        let is_dense = gemm.out.row == 1 && gemm.out_element == gemm.element.c();
        if is_dense && gemm.epilogue.expression == "{acc}" {
            Self::Transposed
        } else if is_dense && !gemm.epilogue.operands.iter().any(|o| lies_in_columns(&o.strides)) {
            Self::FinishFirst
        } else {
            Self::TransposeFirst
        }
    }

    fn statements(self) -> &'static str {
        match self {
            Self::Plain => STORE,
            Self::Transposed => STORE_COLUMNS,
            Self::FinishFirst => FINISH_AND_STORE_COLUMNS,
            Self::TransposeFirst => TRANSPOSE_AND_STORE,
        }
    }
}

const STORE: &str = "for (@outer@) {
    @vectorize@for (@inner@) {
        const @type@ accumulator = sums[(row - first_row) * 2 * LANES + column - first_column];
        out[@out_place@] = @expression@;
    }
}";

const STORE_COLUMNS: &str = "const long row = first_row, column = first_column;
mithril_store_columns_@t@(sums, rows, columns, out + @out_place@, @out_column@);";

const FINISH_AND_STORE_COLUMNS: &str = "@type@ *restrict sum = sums;
for (long row = first_row; row < first_row + rows; row++, sum += 2 * LANES) {
    MITHRIL_VECTORIZE
    for (long column = first_column; column < first_column + columns; column++) {
        const @type@ accumulator = sum[column - first_column];
        sum[column - first_column] = @expression@;
    }
}
const long row = first_row, column = first_column;
mithril_store_columns_@t@(sums, rows, columns, out + @out_place@, @out_column@);";

const TRANSPOSE_AND_STORE: &str = "enum { HEIGHT = @height@ };
@type@ transposed[2 * LANES * HEIGHT] __attribute__((aligned(64)));
mithril_store_columns_@t@(sums, HEIGHT, 2 * LANES, transposed, HEIGHT);
for (@outer@)
    for (@inner@) {
        const @type@ accumulator = transposed[(column - first_column) * HEIGHT + row - first_row];
        out[@out_place@] = @expression@;
    }";
