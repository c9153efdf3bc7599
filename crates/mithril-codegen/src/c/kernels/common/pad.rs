//! The function that copies images between margins of zeros.

use crate::c::kernels::common::library::{Library, substitute};
use crate::c::target::Element;

/// The function that copies planes of an image between margins of zeros, columns apart by `step` side by side.
pub(crate) fn pad(
    library: &mut Library,
    element: Element,
    planes: usize,
    [height, width]: [usize; 2],
    padding: [[usize; 2]; 2],
    step: usize,
) -> String {
    let padded_height = height + padding[0][0] + padding[0][1];
    let padded_width = width + padding[1][0] + padding[1][1];
    let text = substitute(
        include_str!("pad.c"),
        &[
            ("type", element.c()),
            ("planes", &planes.to_string()),
            ("h", &height.to_string()),
            ("w", &width.to_string()),
            ("padded_height", &padded_height.to_string()),
            ("padded_width", &padded_width.next_multiple_of(step).to_string()),
            ("stride_x", &step.to_string()),
            ("top", &padding[0][0].to_string()),
            ("left", &padding[1][0].to_string()),
        ],
    );
    library.add(&format!("mithril_pad_{padded_height}x{padded_width}"), &text)
}
