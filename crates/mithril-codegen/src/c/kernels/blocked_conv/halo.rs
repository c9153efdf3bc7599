//! The halo of zeros, or of the bytes that stand for them, around tensors in blocked layout.

use crate::c::kernels::common::library::{Library, substitute};
use crate::c::kernels::spec::bytes::AsBytes;
use crate::c::kernels::spec::strides::Stored;
use crate::c::target::Element;

/// Planes of vectors with a halo.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Halo {
    /// What they hold.
    pub element: Element,
    /// How it is stored.
    pub stored: Stored,
    /// Bytes that stand for it, where these are kept instead.
    pub bytes: Option<AsBytes>,
    /// How many planes there are.
    pub planes: usize,
    /// Of volumes: planes of a frame, frames in front, with pixels, and behind. Those without pixels are set whole.
    pub frames: Option<(usize, [usize; 3])>,
    /// Elements from one plane to the next.
    pub plane: usize,
    /// Rows of pixels, and pixels of a row.
    pub size: [usize; 2],
    /// Pixels above and below, to the left and to the right.
    pub halo: [[usize; 2]; 2],
    /// Lanes of a vector.
    pub lanes: usize,
}

impl Halo {
    /// Adds the function that fills them to the library; returns its name. It takes the thread, the number of threads
    /// and the tensor.
    pub fn build(&self, library: &mut Library) -> String {
        let numbers = [
            ("planes", self.planes),
            ("plane", self.plane),
            ("height", self.size[0]),
            ("width", self.size[1]),
            ("top", self.halo[0][0]),
            ("bottom", self.halo[0][1]),
            ("left", self.halo[1][0]),
            ("right", self.halo[1][1]),
            ("lanes", self.lanes),
        ];
        let numbers = numbers.map(|(key, number)| (key, number.to_string()));
        let mut pairs: Vec<(&str, &str)> = numbers.iter().map(|(key, text)| (*key, text.as_str())).collect();
        let value = self.bytes.map_or("0".to_owned(), |bytes| bytes.zero());
        if self.bytes.is_some() {
            library.add_dot();
        }
        pairs.push(("type", if self.bytes.is_some() { "uint8_t" } else { self.stored.c(self.element) }));
        pairs.push(("value", &value));
        let whole = self.frames.map_or_else(String::new, |(planes, [front, depth, behind])| {
            format!(
                "\nconst long frame = plane / {planes} % {};\nif (frame < {front} || frame >= {}) {{\n    \
                 memset(line, @value@, sizeof(@type@) * PLANE);\n    continue;\n}}",
                front + depth + behind,
                front + depth
            )
        });
        let text = include_str!("halo.c").replace("@whole@", &whole);
        let wish = format!("mithril_halo_{}_{}x{}", self.planes * self.lanes, self.size[0], self.size[1]);
        library.add(&wish, &substitute(&text, &pairs))
    }
}
