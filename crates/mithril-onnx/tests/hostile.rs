//! Files that are damaged on purpose: each is read or is an error, and none takes the reader down.

use bytes::Bytes;
use mithril_onnx::{Options, no_other_file, read};

/// A field whose value has a length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut n = content.len();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out.extend_from_slice(content);
    out
}

fn int(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn info(name: &str, sizes: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = sizes.iter().flat_map(|&n| field(1, &int(1, n))).collect();
    let tensor = [int(1, 1), field(2, &dims)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

fn node(op: &str, inputs: &[&str], output: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut out: Vec<u8> = inputs.iter().flat_map(|i| field(1, i.as_bytes())).collect();
    out.extend(field(2, output.as_bytes()));
    out.extend(field(4, op.as_bytes()));
    out.extend(attributes.iter().flat_map(|a| field(5, a)));
    out
}

fn tensor(name: &str, dims: &[u8], dtype: u8, raw: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = dims.iter().flat_map(|&d| int(1, d)).collect();
    out.extend(int(2, dtype));
    out.extend(field(8, name.as_bytes()));
    out.extend(field(9, raw));
    out
}

/// A small network: convolution, shapes that are computed, a product.
fn model() -> Vec<u8> {
    let ints = |name: &str, values: &[u8]| {
        let items: Vec<u8> = values.iter().flat_map(|&v| int(8, v)).collect();
        [field(1, name.as_bytes()), items].concat()
    };
    let nodes = [
        node("Conv", &["x", "k"], "a", &[ints("pads", &[1, 1, 1, 1])]),
        node("Relu", &["a"], "b", &[]),
        node("Shape", &["b"], "s", &[]),
        node("Gather", &["s", "zero"], "n", &[]),
        node("Concat", &["n", "rest"], "t", &[[field(1, b"axis"), int(3, 0)].concat()]),
        node("Reshape", &["b", "t"], "c", &[]),
        node("MatMul", &["c", "w"], "y", &[]),
    ];
    let mut graph: Vec<u8> = nodes.iter().flat_map(|n| field(1, n)).collect();
    graph.extend(field(5, &tensor("k", &[2, 1, 3, 3], 1, &[0; 72])));
    graph.extend(field(5, &tensor("w", &[32, 2], 1, &[0; 256])));
    graph.extend(field(5, &tensor("zero", &[1], 7, &[0; 8])));
    graph.extend(field(5, &tensor("rest", &[1], 7, &(-1_i64).to_le_bytes())));
    graph.extend(field(11, &info("x", &[5, 1, 4, 4])));
    graph.extend(field(12, &info("y", &[5, 2])));
    [int(1, 10), field(7, &graph), field(8, &int(2, 21))].concat()
}

#[test]
fn mutated_files_are_read_or_refused() {
    let whole = model();
    let read = |bytes: Vec<u8>| read(&Bytes::from(bytes), &Options::default(), &no_other_file);
    assert_eq!(read(whole.clone()).unwrap().parameters.len(), 2);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut refused = 0;
    for _ in 0..5000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(4) {
            let at = random(bytes.len().max(1));
            if bytes.is_empty() {
                break;
            }
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] ^= 1 << random(8),
                2 => bytes.truncate(at.max(1)),
                _ => drop(bytes.remove(at)),
            }
        }
        let actual = read(bytes);
        refused += usize::from(actual.is_err());
        if let Err(error) = actual {
            assert_ne!(error.code().text(), "M0999", "{error}");
        }
    }
    assert!((1000..5000).contains(&refused), "{refused} of 5000 were refused");
}

#[test]
fn files_of_nothing_but_messages_are_refused() {
    // A million empty nodes in two megabytes.
    let graph: Vec<u8> = [10, 0].repeat(1_000_000);
    let error = read(&field(7, &graph).into(), &Options::default(), &no_other_file).unwrap_err();
    assert!(error.message().contains("more messages"), "{error}");
}

#[test]
fn depth_has_a_limit() {
    let mut graph = Vec::new();
    for _ in 0..200 {
        graph = field(1, &field(5, &field(6, &graph)));
    }
    assert!(read(&field(7, &graph).into(), &Options::default(), &no_other_file).is_err());
}
