//! Files of GGUF and low-bit blocks. `gguf/blocks.bin` was written with the reference of ggml 0.26, compiled
//! without fused operations: values; then per form its blocks of them, and random blocks with their values.

use std::fs;
use std::path::Path;

use mithril::ir::{Code, DType};
use mithril::model::{FlattenOptions, zoo};
use mithril::runtime::interpreter::Executable;
use mithril::runtime::weights::{
    BlockFormat, Checkpoint, FORMATS, GgufEntry, List, Stored, Value, save_gguf,
};
use proptest::prelude::*;

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
            let actual = format.quantize(&values).expect("blocks");
            let expected = file.bytes(bytes);
            let differ = actual.iter().zip(expected).position(|(a, b)| a != b);
            assert_eq!(differ, None, "{format:?}: first byte that differs");
        }
        let blocks = file.bytes(bytes);
        let expected = file.floats(count);
        let mut actual = vec![0.0; count];
        format.dequantize(blocks, &mut actual).expect("values");
        let differ = actual.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differ, None, "{format:?}: first value that differs");
    }
    // That form holds sums beside what it holds; ggml has no function that reads it.
    let unread = FORMATS.iter().filter(|f| !seen.contains(&f.id)).map(|f| f.name).collect::<Vec<_>>();
    assert_eq!(unread, ["q8_1"]);
}

/// One value of each kind.
fn everything() -> Vec<(String, Value)> {
    let lists = List::List(vec![List::U8(vec![1]), List::List(vec![List::Text(vec!["a".into()])])]);
    let values = [
        Value::Text("llama".into()),
        Value::U8(255),
        Value::I8(-1),
        Value::U16(65535),
        Value::I16(-2),
        Value::U32(u32::MAX),
        Value::I32(-3),
        Value::F32(0.5),
        Value::Bool(true),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(1e-300),
        Value::List(List::Text(vec!["é".into(), String::new()])),
        Value::List(List::F32(vec![1.5, -2.0])),
        Value::List(List::Bool(vec![true, false])),
        Value::List(List::I64(vec![])),
        Value::List(lists),
    ];
    values.into_iter().enumerate().map(|(i, value)| (format!("key.{i}"), value)).collect()
}

/// What tests write: as a file, and removed.
fn written(
    values: &[(String, Value)],
    entries: &[(&str, Stored, &[usize], &[u8])],
) -> Result<Vec<u8>, mithril::ir::Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.gguf");
    let listed = entries.iter().map(|(name, stored, shape, _)| GgufEntry {
        name: (*name).to_owned(),
        stored: stored.clone(),
        shape: shape.to_vec(),
    });
    save_gguf(&path, values, &listed.collect::<Vec<_>>(), |i, file| file.write_all(entries[i].3))?;
    Ok(fs::read(&path).expect("a file"))
}

#[test]
fn what_is_written_is_read() {
    let q8 = BlockFormat::find("Q8_0").expect("a form");
    let values: Vec<f32> = (0..64).map(|i| (i as f32 - 31.5) / 31.5).collect();
    let blocks = q8.quantize(&values).expect("blocks");
    let half = [0x00, 0x3c, 0x00, 0xc0];
    let all = everything();
    for extra in [vec![], vec![("general.alignment".to_owned(), Value::U32(64))]] {
        let values_by_name = [all.clone(), extra].concat();
        let bytes = written(
            &values_by_name,
            &[
                ("half", Stored::Known(DType::F16), &[2], &half),
                ("blocks", Stored::Blocks(q8), &[2, 32], &blocks),
                ("none", Stored::Known(DType::F32), &[0, 3], &[]),
                ("one", Stored::Known(DType::I64), &[], &7_i64.to_le_bytes()),
            ],
        );
        let checkpoint = Checkpoint::from_bytes(&bytes.expect("a file")).expect("a file");
        let read: Vec<_> =
            checkpoint.metadata().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        assert_eq!(read, values_by_name);
        let values_of = |name: &str| checkpoint.get(name).expect("it").to_tensor().expect("values").to_f64s();
        assert_eq!((values_of("half"), values_of("one")), (vec![1.0, -2.0], vec![7.0]));
        assert_eq!(
            (checkpoint.get("blocks").expect("it").shape(), values_of("none")),
            (&[2, 32][..], vec![])
        );
        assert_eq!(checkpoint.get("blocks").expect("it").bytes(), Some(&*blocks));
        assert!(values_of("blocks").iter().zip(&values).all(|(x, y)| (x - f64::from(*y)).abs() < 0.004));
    }
}

#[test]
fn what_readers_refuse_is_not_written() {
    let plain = |name: &str, dtype, shape: &[usize]| {
        let zeros = vec![0; 1 << 10];
        let size = Stored::Known(dtype).size().expect("a size") * shape.iter().product::<usize>();
        written(&[], &[(name, Stored::Known(dtype), shape, &zeros[..size])]).map(|_| ())
    };
    assert_eq!(plain("a", DType::Bool, &[1]).expect_err("no such type").code(), Code::BadDType);
    assert_eq!(plain(&"n".repeat(64), DType::F32, &[1]).expect_err("too long").code(), Code::BadName);
    assert_eq!(plain("a", DType::F32, &[1; 5]).expect_err("five axes").code(), Code::BadSize);
    plain(&"n".repeat(63), DType::F32, &[1; 4]).expect("as long as it may be");
    let q4 = Stored::Blocks(BlockFormat::find("q4_k").expect("a form"));
    assert_eq!(written(&[], &[("a", q4, &[8, 32], &[])]).expect_err("uneven rows").code(), Code::BadSize);
    let one = Stored::Known(DType::I8);
    let twice = written(&[], &[("a", one.clone(), &[1], &[0]), ("a", one, &[1], &[0])]);
    assert_eq!(twice.expect_err("twice").code(), Code::BadName);
}

/// A file in pieces, so that a test can change a number in it: what it is, and its bytes.
fn pieces() -> Vec<(&'static str, Vec<u8>)> {
    let long = |n: u64| n.to_le_bytes().to_vec();
    let word = |n: u32| n.to_le_bytes().to_vec();
    let data = [[0_u8; 34].to_vec(), vec![0; 30], 1_f32.to_le_bytes().to_vec()].concat();
    let mut all = vec![
        ("magic", b"GGUF".to_vec()),
        ("version", word(3)),
        ("tensors", long(2)),
        ("values", long(2)),
        ("key length", long(17)),
        ("key", b"general.alignment".to_vec()),
        ("kind", word(4)),
        ("alignment", word(32)),
        ("second key length", long(1)),
        ("second key", b"k".to_vec()),
        ("second kind", word(9)),
        ("kind of items", word(9)),
        ("items", long(1)),
        ("kind of inner items", word(8)),
        ("inner items", long(2)),
        ("text length", long(2)),
        ("text", b"ab".to_vec()),
        ("text length", long(0)),
        ("name length", long(1)),
        ("name", b"a".to_vec()),
        ("axes", word(2)),
        ("size", long(32)),
        ("size", long(1)),
        ("type", word(8)),
        ("offset", long(0)),
        ("second name length", long(1)),
        ("second name", b"b".to_vec()),
        ("second axes", word(1)),
        ("second size", long(1)),
        ("second type", word(0)),
        ("second offset", long(64)),
    ];
    let header: usize = all.iter().map(|(_, bytes)| bytes.len()).sum();
    all.push(("padding", vec![0; header.next_multiple_of(32) - header]));
    all.push(("data", data));
    all
}

fn joined(pieces: &[(&str, Vec<u8>)]) -> Vec<u8> {
    pieces.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
}

#[test]
fn files_that_lie_are_told() {
    let whole = joined(&pieces());
    let checkpoint = Checkpoint::from_bytes(&whole).expect("a whole file");
    assert_eq!(checkpoint.get("b").expect("it").to_tensor().expect("a value").to_f64s(), [1.0]);
    let large = u64::MAX;
    for (what, number, expected) in [
        ("version", 1, "version 1"),
        ("version", 3 << 24, "big-endian"),
        ("tensors", large, "18446744073709551615 tensors follow"),
        ("tensors", 1 << 60, "tensors follow"),
        ("values", 1 << 40, "values follow"),
        ("key length", large, "bytes of a text follow"),
        ("kind", 99, "kind 99"),
        ("alignment", 0, "power of two"),
        ("alignment", 24, "power of two"),
        ("alignment", 1 << 31, "begins at byte 64|ends at byte"),
        ("second kind", 3, "is not known|in the middle|follow|occurs twice|power of two"),
        ("items", 1 << 31, "items of a list follow"),
        ("inner items", large / 8 + 1, "items of a list follow"),
        ("text length", 1 << 62, "bytes of a text follow"),
        ("axes", 5, "5 axes"),
        ("axes", u64::from(u32::MAX), "axes"),
        ("size", large, "too large"),
        ("size", 1 << 62, "cannot be of type q8_0|ends at byte|too large"),
        ("size", 33, "cannot be of type q8_0"),
        ("type", 31, "type 31"),
        ("offset", 32, "begins at byte 32 of the data, and not at 0"),
        ("second offset", 0, "begins at byte 0 of the data, and not at 64"),
        ("second offset", large, "begins at byte"),
        ("second size", 2, "ends at byte"),
    ] {
        let mut changed = pieces();
        let piece = changed.iter_mut().find(|(name, _)| *name == what).expect(what);
        let len = piece.1.len();
        piece.1 = number.to_le_bytes()[..len].to_vec();
        let error = Checkpoint::from_bytes(&joined(&changed)).expect_err(what);
        let told = error.to_string();
        assert_eq!(error.code(), Code::BadFile, "{what}: {told}");
        assert!(expected.split('|').any(|part| told.contains(part)), "{what} {number}: {told}");
    }
    for (what, bytes, expected) in [
        ("second name", &b"a"[..], "occurs twice"),
        ("text", &[0xff, 0xff], "UTF-8"),
        ("data", &[0; 66], "ends at byte"),
    ] {
        let mut changed = pieces();
        changed.iter_mut().find(|(name, _)| *name == what).expect(what).1 = bytes.to_vec();
        let told = Checkpoint::from_bytes(&joined(&changed)).expect_err(what).to_string();
        assert!(told.contains(expected), "{what}: {told}");
    }
    for end in 4..whole.len() {
        Checkpoint::from_bytes(&whole[..end]).expect_err("a file that is cut");
    }
}

#[test]
fn rows_in_pairs_are_put_in_order() {
    let sizes = [
        ("vocab_size", 11),
        ("dims", 16),
        ("num_heads", 2),
        ("num_kv_heads", 1),
        ("num_layers", 1),
        ("hidden", 8),
    ];
    let named = sizes.map(|(name, size)| (name, size.into())).to_vec();
    let model = zoo::build("create_llama", vec![], named).expect("a model");
    let shapes = vec![("input".into(), vec![1.into(), 3.into()])];
    let program =
        Executable::new(&model, &FlattenOptions { shapes, ..Default::default() }).expect("a program");
    let params = program.initial(1).expect("parameters");
    let names: Vec<&str> = params.keys().map(|name| &**name).collect();
    let mut entries = Vec::new();
    for tensor in zoo::plan::publish(&names, "llama.cpp").expect("a layout") {
        let ours = &params[&*tensor.ours];
        let row = 4 * ours.shape().iter().skip(1).product::<usize>();
        let bytes = ours.to_bytes();
        let rows: Vec<&[u8]> = bytes.chunks(row).collect();
        // Of the eight rows of a head, the pairs are (0, 4), (1, 5) and so on.
        let paired = rows.chunks(8).flat_map(|head| [0, 4, 1, 5, 2, 6, 3, 7].map(|i| head[i].to_vec()));
        let bytes = if tensor.paired { paired.flatten().collect() } else { bytes };
        entries.push((tensor.theirs, ours.shape().to_vec(), bytes));
    }
    let listed: Vec<_> = entries
        .iter()
        .map(|(name, shape, bytes)| (&**name, Stored::Known(DType::F32), &**shape, &**bytes))
        .collect();
    let text = |text: &str| Value::Text(text.into());
    let values = [
        ("general.architecture".to_owned(), text("llama")),
        ("llama.embedding_length".to_owned(), Value::U32(16)),
        ("llama.attention.head_count".to_owned(), Value::U32(2)),
    ];
    let file = Checkpoint::from_bytes(&written(&values, &listed).expect("a file")).expect("a file");
    let (weights, report) = program.load(&file, None, &[]).expect("weights");
    assert_eq!(report.layout, Some("llama.cpp"));
    assert!(params.iter().all(|(name, expected)| weights[name].to_bytes() == expected.to_bytes()));
    let file = Checkpoint::from_bytes(&written(&values[..1], &listed).expect("a file")).expect("a file");
    let error = program.load(&file, None, &[]).expect_err("no sizes of heads");
    assert!(error.to_string().contains("llama.embedding_length"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn broken_files_never_panic(changes in proptest::collection::vec((any::<usize>(), prop_oneof![
        0..100_u64, Just(u64::MAX), Just(1 << 31), Just(1 << 61), Just(1 << 63), Just((1 << 63) - 1), any::<u64>(),
    ]), 1..4), cut in prop::option::of(0..400_usize)) {
        let mut all = pieces();
        for (place, number) in changes {
            let place = place % all.len();
            let piece = &mut all[place].1;
            let len = piece.len().min(8);
            piece[..len].copy_from_slice(&number.to_le_bytes()[..len]);
        }
        let mut bytes = joined(&all);
        bytes.truncate(cut.unwrap_or(usize::MAX));
        if let Ok(checkpoint) = Checkpoint::from_bytes(&bytes) {
            for (_, weight) in checkpoint.iter() {
                prop_assert!(weight.len() <= bytes.len() * 16);
                let _ = weight.to_tensor();
            }
        }
    }
}
