//! Files of GGUF and blocks of few bits. `gguf/blocks.bin` was written with the reference of ggml 0.26, compiled
//! without fused operations: values; then per form its blocks of them, and random blocks with their values.

use std::fs;
use std::path::Path;

use mithril::runtime::weights::{BlockFormat, FORMATS};

/// Takes from the front of bytes.
struct Front<'a>(&'a [u8]);

impl<'a> Front<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(count);
        self.0 = rest;
        front
    }
    fn int(&mut self) -> usize {
        u32::from_le_bytes(self.bytes(4).try_into().expect("four")) as usize
    }
    fn floats(&mut self, count: usize) -> Vec<f32> {
        self.bytes(4 * count).chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect()
    }
}

#[test]
fn blocks_are_those_of_ggml() {
    let file =
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/blocks.bin")).expect("a fixture");
    let mut file = Front(&file);
    let (forms, count) = (file.int(), file.int());
    let values = file.floats(count);
    let mut seen = Vec::new();
    for _ in 0..forms {
        let (id, bytes, makes) = (file.int() as u32, file.int(), file.int() == 1);
        let format = BlockFormat::of_id(id).expect("a form");
        seen.push(id);
        assert_eq!((format.size(count), format.is_writable()), (Some(bytes), makes), "{format:?}");
        if makes {
            let found = format.quantize(&values).expect("blocks");
            let wanted = file.bytes(bytes);
            let differ = found.iter().zip(wanted).position(|(a, b)| a != b);
            assert_eq!(differ, None, "{format:?}: first byte that differs");
        }
        let blocks = file.bytes(bytes);
        let wanted = file.floats(count);
        let mut found = vec![0.0; count];
        format.dequantize(blocks, &mut found).expect("values");
        let differ = found.iter().zip(&wanted).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differ, None, "{format:?}: first value that differs");
    }
    // That form holds sums beside what it holds; ggml has no function that reads it.
    let unread = FORMATS.iter().filter(|f| !seen.contains(&f.id)).map(|f| f.name).collect::<Vec<_>>();
    assert_eq!(unread, ["q8_1"]);
}
