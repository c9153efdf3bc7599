//! Tiles of rows and pixels whose sums fit into registers.

use crate::c::kernels::common::row_groups::RowGroups;

/// How the pixels of a result are cut into tiles whose sums fit into registers.
pub(crate) struct Tiling {
    /// Rows of a strip.
    pub down: usize,
    /// Of the last strip of an image.
    last: usize,
    /// Pixels of a row.
    pub across: RowGroups,
}

impl Tiling {
    pub fn new([height, width]: [usize; 2], most: usize) -> Self {
        let across = RowGroups::of(width, most);
        let down = if across.groups == 1 { (most / width.max(1)).clamp(1, height) } else { 1 };
        Self { down, last: (height - 1) % down + 1, across }
    }

    /// A statement for each size of tile that occurs.
    pub fn text(&self, tile: &mut dyn FnMut(usize, usize) -> String) -> String {
        let RowGroups { rows, remainder, .. } = self.across;
        let either = |test: &str, yes: String, no: String| {
            let [yes, no] = [yes, no].map(|text| text.replace('\n', "\n    "));
            format!("if ({test}) {{\n    {yes}\n}} else {{\n    {no}\n}}")
        };
        if remainder > 0 {
            return either("group < REMAINDER", tile(self.down, rows + 1), tile(self.down, rows));
        }
        if self.down != self.last {
            let whole = tile(self.down, rows);
            return either(&format!("y + {} <= OUT_HEIGHT", self.down), whole, tile(self.last, rows));
        }
        tile(self.down, rows)
    }
}
