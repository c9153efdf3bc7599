//! Checkpoints: files of PyTorch (in `weights/`, written by its version 2.15) and of safetensors, whole and broken in
//! every way that random changes find. A broken file is an error or reads as other numbers; it never panics.

use std::fs;
use std::path::{Path, PathBuf};

use mithril::ir::{Code, DType, Tensor};
use mithril::runtime::weights::{Checkpoint, Entry, Stored, save, save_streamed};
use proptest::collection::vec;
use proptest::prelude::*;

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/weights").join(name)).expect("a fixture")
}

/// A folder of a test that is removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mithril-weights-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file of safetensors, written by hand.
fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// A whole file with two tensors.
fn small() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},"b.weight":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[24,40]}}"#;
    let (b, a) = ([1_i64, 2, 3].map(i64::to_le_bytes), [1.0_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes));
    raw(header, &[b.concat(), a.concat()].concat())
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f64> {
    checkpoint.get(name).expect(name).to_tensor().expect(name).to_f64s()
}

fn message(bytes: &[u8]) -> String {
    Checkpoint::from_bytes(bytes).expect_err("a broken file").to_string()
}

#[test]
fn all_forms_of_pytorch_hold_the_same() {
    for name in ["zip.pt", "packed.pt", "legacy.pt"] {
        let checkpoint = Checkpoint::from_bytes(&fixture(name)).expect(name);
        let names: Vec<_> = checkpoint.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "turned", "row", "count", "half", "yes", "empty"], "{name}");
        assert_eq!(values(&checkpoint, "a"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(values(&checkpoint, "turned"), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(values(&checkpoint, "row"), [3.0, 4.0, 5.0]);
        assert_eq!(values(&checkpoint, "count"), [7.0]);
        assert_eq!(values(&checkpoint, "half"), [1.5, -2.0]);
        assert_eq!(values(&checkpoint, "yes"), [1.0, 0.0]);
        let (turned, half) = (checkpoint.get("turned").expect("it"), checkpoint.get("half").expect("it"));
        assert!(!turned.is_contiguous() && turned.bytes().is_none());
        assert_eq!((turned.shape(), turned.strides()), (&[3, 2][..], &[1, 3][..]));
        assert_eq!(half.stored(), &Stored::Known(DType::BF16));
        assert_eq!(checkpoint.get("empty").expect("it").shape(), [0, 2]);
    }
}

#[test]
fn what_is_written_is_read() {
    let folder = Folder::new("written");
    let path = folder.0.join("x.safetensors");
    let tensors: Vec<_> = DType::ALL
        .iter()
        .map(|&d| (d.name(), Tensor::build(d, &[2, 2], |i| (i as i64 % 2).into())))
        .collect();
    let listed: Vec<_> = tensors.iter().map(|(name, t)| (*name, t)).collect();
    save(&path, &listed, &[("b", "2"), ("a", "1")]).expect("a file");
    let checkpoint = Checkpoint::open(&path).expect("a file");
    for (name, tensor) in &tensors {
        assert_eq!(values(&checkpoint, name), tensor.to_f64s());
        assert_eq!(checkpoint.get(name).expect("it").bytes().expect("contiguous"), tensor.to_bytes());
    }
    let texts: Vec<_> =
        checkpoint.metadata().map(|(key, value)| (key, value.text().expect("a text"))).collect();
    assert_eq!(texts, [("a", "1"), ("b", "2")]);
    // A file that is written anew leaves the open one as it was.
    save(&path, &[("other", &Tensor::from_parts(&[1], vec![1.0_f32]))], &[]).expect("a file");
    assert_eq!(values(&checkpoint, "float32"), [0.0, 1.0, 0.0, 1.0]);
    let left: Vec<_> = fs::read_dir(&folder.0).expect("a folder").collect();
    assert_eq!(left.len(), 1);
}

#[test]
fn an_error_while_writing_leaves_the_old_file() {
    let folder = Folder::new("unwritten");
    let path = folder.write("x.safetensors", b"old");
    let entry = |shape: &[usize]| [Entry { name: "a".into(), dtype: DType::U8, shape: shape.to_vec() }];
    let none = std::collections::BTreeMap::default();
    for (shape, bytes) in [(&[3][..], &b"four"[..]), (&[5], b"four"), (&[usize::MAX, 2], b"")] {
        save_streamed(&path, &entry(shape), &none, |_, file| file.write_all(bytes)).expect_err("an error");
    }
    let twice = [entry(&[1]), entry(&[1])].concat();
    save_streamed(&path, &twice, &none, |_, _| Ok(())).expect_err("an error");
    assert_eq!(fs::read(&path).expect("a file"), b"old");
    assert_eq!(fs::read_dir(&folder.0).expect("a folder").count(), 1);
    let absent = folder.0.join("no/x.safetensors");
    assert_eq!(save(&absent, &[], &[]).expect_err("no folder").code(), Code::Io);
}

#[test]
#[cfg(unix)]
fn links_are_followed_and_pipes_are_written_to() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let folder = Folder::new("special");
    let tensor = Tensor::from_parts(&[1], vec![1.0_f32]);
    let real = folder.write("real.safetensors", b"old");
    let (link, dangling) = (folder.0.join("link.safetensors"), folder.0.join("dangling.safetensors"));
    symlink("real.safetensors", &link).expect("a link");
    symlink(folder.0.join("new.safetensors"), &dangling).expect("a link");
    for (path, target) in [(&link, &real), (&dangling, &folder.0.join("new.safetensors"))] {
        save(path, &[("a", &tensor)], &[]).expect("a file");
        assert!(fs::symlink_metadata(path).expect("a link").is_symlink());
        assert_eq!(values(&Checkpoint::open(target).expect("a checkpoint"), "a"), [1.0]);
    }
    symlink("around.safetensors", folder.0.join("around.safetensors")).expect("a link");
    let error = save(&folder.0.join("around.safetensors"), &[], &[]).expect_err("no end of links");
    assert!(error.message().contains("too many levels"), "{error}");

    let pipe = folder.0.join("pipe.safetensors");
    let status = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(status.success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).expect("bytes")
    });
    save(&pipe, &[("a", &tensor)], &[]).expect("a file");
    let bytes = reader.join().expect("a reader");
    assert_eq!(values(&Checkpoint::from_bytes(&bytes).expect("a checkpoint"), "a"), [1.0]);
    assert!(fs::metadata(&pipe).expect("a pipe").file_type().is_fifo());
}

#[test]
fn headers_that_lie_are_told() {
    let entry = |dtype: &str, shape: &str, ends: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{ends}}}}}"#)
    };
    for (header, expected) in [
        (entry("F32", "[2]", "[0,12]"), "ends at byte 12 of 8"),
        (entry("F32", "[3]", "[0,8]"), "invalid shape"),
        (entry("F32", "[1]", "[4,8]"), "invalid offset"),
        (entry("F32", "[9223372036854775807,4]", "[0,8]"), "overflow"),
        (entry("F32", "[1]", "[0,4]"), "not fully covered"),
        (entry("F32", "[-1]", "[0,8]"), "cannot be read|invalid JSON"),
        (entry("F33", "[2]", "[0,8]"), "F33"),
        (
            entry("U8", "[8]", "[0,8]")
                .replace("}}", r#"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#),
            "twice",
        ),
        ("[]".into(), "object|neither"),
        ("{".repeat(100_000), "cannot be read"),
    ] {
        let actual = message(&raw(&header, &[0; 8]));
        assert!(expected.split('|').any(|part| actual.contains(part)), "{expected}: {actual}");
    }
    for length in [u64::MAX, 1 << 40, 100] {
        let bytes = [&length.to_le_bytes()[..], b"{}"].concat();
        assert!(message(&bytes).contains("says that its header has"), "{}", message(&bytes));
    }
}

#[test]
fn dtypes_that_we_lack_are_told_when_they_are_used() {
    let header = r#"{"w":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},"u":{"dtype":"U32","shape":[1],"data_offsets":[4,8]}}"#;
    let checkpoint = Checkpoint::from_bytes(&raw(header, &[1, 0, 0, 0, 255, 255, 255, 255])).expect("a file");
    assert_eq!(values(&checkpoint, "u"), [4_294_967_295.0]);
    assert!(checkpoint.readable("w").expect_err("no such dtype").to_string().contains("F8_E4M3"));
}

#[test]
fn pickles_call_nothing() {
    for (pickle, expected) in [
        (&b"cos\nsystem\n(S'true'\ntR."[..], "os.system"),
        (b"\x80\x02cbuiltins\neval\nq\x00X\x01\x00\x00\x001\x85R.", "builtins.eval"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "posix.system"),
        (b"\x80\x02ctorch.storage\n_load_from_bytes\n.", "torch.storage._load_from_bytes"),
        (b"(ios\nsystem\n.", "os.system"),
        (b"\x80\x02ctorch\nload\n.", "torch.load"),
        (b"\x80\x02c__main__\nFloatStorage\n.", "__main__.FloatStorage"),
    ] {
        let error = Checkpoint::from_bytes(pickle).expect_err("a refusal");
        assert_eq!(error.code(), Code::Refused, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn shards_are_joined_and_stay_in_their_folder() {
    let folder = Folder::new("shards");
    let one = Tensor::from_parts(&[1], vec![1.0_f32]);
    save(&folder.0.join("1.safetensors"), &[("a", &one)], &[]).expect("a file");
    folder.write("2.bin", &fixture("zip.pt"));
    let index = |map: &str| {
        folder.write("model.safetensors.index.json", format!(r#"{{"weight_map":{map}}}"#).as_bytes())
    };
    index(r#"{"a":"1.safetensors","row":"2.bin"}"#);
    let checkpoint = Checkpoint::open(&folder.0).expect("shards");
    assert_eq!((values(&checkpoint, "a"), values(&checkpoint, "row")), (vec![1.0], vec![3.0, 4.0, 5.0]));
    for (map, code) in [
        (r#"{"a":"../1.safetensors"}"#, Code::Refused),
        (r#"{"a":"/etc/passwd"}"#, Code::Refused),
        (r#"{"a":""}"#, Code::Refused),
        (r#"{"a":"."}"#, Code::Refused),
        (r#"{"a":"a/../../b"}"#, Code::Refused),
        (r#"{"a":"3.safetensors"}"#, Code::Io),
        (r#"{"b":"1.safetensors"}"#, Code::BadFile),
        (r#"{"a":"1.safetensors","a":"1.safetensors"}"#, Code::BadFile),
        (r#"{"a":1}"#, Code::BadFile),
    ] {
        let error = Checkpoint::open(&index(map)).expect_err(map);
        assert_eq!(error.code(), code, "{error}");
    }
}

#[cfg(unix)]
#[test]
fn links_lead_to_the_cache_of_the_hub_and_nowhere_else() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new("links");
    let snapshot = folder.0.join("snapshots/1");
    fs::create_dir_all(&snapshot).expect("a folder");
    fs::create_dir_all(folder.0.join("blobs")).expect("a folder");
    folder.write("blobs/abc", &small());
    folder.write("outside", &small());
    let index = snapshot.join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map":{"a":"part.safetensors"}}"#).expect("a file");
    symlink("../../blobs/abc", snapshot.join("part.safetensors")).expect("a link");
    assert_eq!(values(&Checkpoint::open(&snapshot).expect("a cache"), "a"), [1.0, 2.0, 3.0, 4.0]);
    fs::remove_file(snapshot.join("part.safetensors")).expect("a link");
    symlink("../../outside", snapshot.join("part.safetensors")).expect("a link");
    assert_eq!(Checkpoint::open(&snapshot).expect_err("a way out").code(), Code::Refused);
}

#[test]
fn what_is_no_checkpoint_says_so() {
    let folder = Folder::new("none");
    assert!(Checkpoint::open(&folder.0).expect_err("empty").to_string().contains("no file in this folder"));
    let empty = folder.write("x.bin", b"");
    assert!(Checkpoint::open(&empty).expect_err("empty").to_string().contains("it is empty"));
    let absent = folder.0.join("absent");
    assert_eq!(Checkpoint::open(&absent).expect_err("absent").code(), Code::Io);
    assert!(message(b"GIF89a......").contains("neither"));
    let error =
        Checkpoint::open_at(&folder.write("y.pt", &fixture("zip.pt")), Some("ema")).expect_err("no key");
    assert!(error.to_string().contains("\"model\""), "{error}");
}

/// One change of a file.
#[derive(Clone, Debug)]
enum Change {
    Set(usize, u8),
    Flip(usize, u32),
    Cut(usize),
    Drop(usize, usize),
    Double(usize, usize),
    Number(usize, u64),
}

fn change() -> impl Strategy<Value = Change> {
    let edge = prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(1 << 31), Just(1 << 63), any::<u64>()];
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(i, b)| Change::Set(i, b)),
        (any::<usize>(), 0..8_u32).prop_map(|(i, b)| Change::Flip(i, b)),
        any::<usize>().prop_map(Change::Cut),
        (any::<usize>(), 0..64_usize).prop_map(|(i, n)| Change::Drop(i, n)),
        (any::<usize>(), 0..64_usize).prop_map(|(i, n)| Change::Double(i, n)),
        (any::<usize>(), edge).prop_map(|(i, n)| Change::Number(i, n)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    let len = bytes.len().max(1);
    let end = |i: usize, n: usize| (i % len + n).min(bytes.len());
    match *change {
        _ if bytes.is_empty() => {}
        Change::Set(i, b) => bytes[i % len] = b,
        Change::Flip(i, b) => bytes[i % len] ^= 1 << b,
        Change::Cut(i) => bytes.truncate(i % len),
        Change::Drop(i, n) => drop(bytes.drain(i % len..end(i, n))),
        Change::Double(i, n) => {
            let part = bytes[i % len..end(i, n)].to_vec();
            bytes.splice(i % len..i % len, part);
        }
        Change::Number(i, n) => {
            let end = end(i, 8);
            bytes[i % len..end].copy_from_slice(&n.to_le_bytes()[..end - i % len]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn broken_files_never_panic(which in 0..4_usize, changes in vec(change(), 1..6)) {
        let mut bytes = if which == 3 { small() } else { fixture(["zip.pt", "packed.pt", "legacy.pt"][which]) };
        for change in &changes {
            apply(&mut bytes, change);
        }
        if let Ok(checkpoint) = Checkpoint::from_bytes(&bytes) {
            for (_, weight) in checkpoint.iter() {
                // A view may repeat what it holds; nobody would copy terabytes of it.
                if weight.len() < 1 << 16 {
                    let _ = weight.to_tensor();
                }
                let _ = weight.bytes();
            }
        }
    }
    #[test]
    fn random_pickles_never_panic(body in vec(prop_oneof![
        Just(b'('), Just(b')'), Just(b']'), Just(b'}'), Just(b't'), Just(0x85_u8), Just(0x87), Just(b'e'), Just(b'u'),
        Just(b'0'), Just(b'1'), Just(b'2'), Just(b'q'), Just(b'h'), Just(b'R'), Just(b'Q'), Just(b'b'), Just(b'K'),
        Just(0x8c), Just(0x93), Just(0x94), Just(b'.'), any::<u8>(),
    ], 0..200)) {
        let _ = Checkpoint::from_bytes(&[&[0x80, 2][..], &body].concat());
    }
}
