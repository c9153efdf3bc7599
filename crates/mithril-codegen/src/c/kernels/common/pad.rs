//! The functions that copy images and volumes with zero padding.

use crate::c::kernels::common::library::{Library, substitute};
use crate::c::target::Element;

/// The function that copies planes of an image with zero padding, columns a stride of `step` apart side by side.
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
    let phases = if step > 1 {
        format!(
            " Pixels a stride of {step} apart\n   are contiguous, [plane][y][x % {step}][x / {step}], in the order in which the \
             kernel reads them."
        )
    } else {
        String::new()
    };
    let text = substitute(
        include_str!("pad.c"),
        &[
            ("phases", &phases),
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

/// The function that copies volumes with zero padding, whose frames then come before their channels.
pub(crate) fn pad_frames(
    library: &mut Library,
    element: Element,
    [images, channels]: [usize; 2],
    (depth, [front, behind]): (usize, [usize; 2]),
    ([height, width], padding): ([usize; 2], [[usize; 2]; 2]),
) -> String {
    let numbers = [
        ("images", images),
        ("channels", channels),
        ("depth", depth),
        ("frames", front + depth + behind),
        ("front", front),
        ("h", height),
        ("w", width),
        ("padded_height", height + padding[0][0] + padding[0][1]),
        ("padded_width", width + padding[1][0] + padding[1][1]),
        ("top", padding[0][0]),
        ("left", padding[1][0]),
    ];
    let numbers = numbers.map(|(key, number)| (key, number.to_string()));
    let mut pairs: Vec<(&str, &str)> = numbers.iter().map(|(key, text)| (*key, text.as_str())).collect();
    pairs.push(("type", element.c()));
    let text = substitute(include_str!("pad_frames.c"), &pairs);
    library.add(&format!("mithril_pad_{depth}x{height}x{width}"), &text)
}
