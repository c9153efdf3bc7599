//! Whose objects are loaded: a cache in which others can write is not used, whatever lies there.
//!
//! What belongs to another user can be tried by root alone; for others these parts say so and end.
#![cfg(unix)]

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use mithril_ir::{DType, Role, Tensor};
use mithril_runtime::c::{Cache, Compiler, Function, Interface, TensorSpec, Tool};
use sha2::{Digest, Sha256};

const SOURCE: &str = include_str!("c/scale.c");
const COUNT: usize = 1000;
const STRANGER: u32 = 54_321;

fn tool() -> Tool {
    Tool { flags: vec!["-O0".into()], ..Tool::default() }
}

fn load(cache: &Cache) -> Function {
    let buffer = |name: &str, shape: &[usize]| TensorSpec {
        name: name.into(),
        dtype: DType::F32,
        shape: shape.into(),
    };
    let interface = Interface {
        prefix: "scale".into(),
        inputs: vec![buffer("factor", &[]), buffer("x", &[COUNT])],
        outputs: vec![buffer("y", &[COUNT])],
        roles: vec![Role::Param, Role::Data],
        fixed: vec![true, false],
        read: vec![false, true],
        packing: vec![vec![0]],
        updates: 0,
        shared: Vec::new(),
        batch: None,
        failing: Vec::new(),
    };
    Function::new(&tool(), cache, SOURCE, interface, 1).unwrap()
}

/// Whether it computes what the source says, and not what a planted object says.
fn is_genuine(function: &Function) -> bool {
    let x = Tensor::from_parts(&[COUNT], vec![1.0_f32; COUNT]);
    let y = function.run(&[Tensor::from_parts(&[], vec![1.0_f32]).into(), x.into()]).unwrap();
    y[0].as_slice::<f32>().unwrap().iter().all(|&y| y == 3.0)
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The one object of a cache, in the folder of its key.
fn object(cache: &Path) -> PathBuf {
    let entries =
        |folder: &Path| fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    let mut files: Vec<PathBuf> = entries(cache).iter().flat_map(|key| entries(key)).collect();
    assert_eq!(files.len(), 1);
    files.remove(0)
}

/// A cache whose object was replaced by another one, which fits its own name and computes something else.
struct Planted {
    /// Holds `parent/cache`.
    top: tempfile::TempDir,
    object: PathBuf,
}

impl Planted {
    fn new() -> Self {
        let top = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
        let cache = top.path().join("parent").join("cache");
        assert!(is_genuine(&load(&Cache::at(&cache))));
        let old = object(&cache);
        let other = SOURCE.replace("3.0f", "4.0f");
        assert_ne!(other, SOURCE);
        let compiled = Compiler::find(&tool()).unwrap().compile(&other, top.path()).unwrap();
        let digest = Sha256::digest(fs::read(&compiled).unwrap());
        let name = digest.iter().take(16).fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        });
        let object = old.with_file_name(format!("{name}.so"));
        fs::remove_file(old).unwrap();
        set_mode(&compiled, 0o700);
        fs::rename(compiled, &object).unwrap();
        Self { top, object }
    }
    fn parent(&self) -> PathBuf {
        self.top.path().join("parent")
    }
    fn folder(&self) -> PathBuf {
        self.parent().join("cache")
    }
    fn cache(&self) -> Cache {
        Cache::at(self.folder())
    }
    /// The folder is neither read nor written, and the reason and the way out name the place.
    fn is_refused(&self, place: &Path, why: &str) {
        let before = self.object.metadata().unwrap().mtime_nsec();
        let text = self.cache().refusal().expect("others can write there").to_string();
        assert!(text.contains(why) && text.contains(&place.display().to_string()), "{text}");
        assert!(text.contains("MITHRIL_CACHE_DIR"), "{text}");
        let function = load(&self.cache());
        assert!(function.is_new(), "{text}");
        assert!(is_genuine(&function), "{text}");
        assert_eq!(before, self.object.metadata().unwrap().mtime_nsec());
        assert_eq!(object(&self.folder()), self.object);
        self.cache().keep_text(&["kept"], "text");
        assert!(!self.folder().join("texts").exists());
    }
    fn is_used(&self) {
        assert!(self.cache().refusal().is_none());
        assert!(!load(&self.cache()).is_new());
    }
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("not tried: only root can give files to another user");
    }
    is_root
}

/// Without this, nothing below shows anything: an object that fits its name is loaded, whatever it computes.
#[test]
fn a_planted_object_would_be_loaded() {
    let planted = Planted::new();
    planted.is_used();
    assert!(!is_genuine(&load(&planted.cache())));
}

#[test]
fn a_new_cache_is_for_its_user_alone_whatever_the_mask() {
    if let Some(folder) = std::env::var_os("MITHRIL_TEST_MASK") {
        let folder = PathBuf::from(folder).join("new").join("cache");
        let cache = Cache::at(&folder);
        assert!(is_genuine(&load(&cache)));
        let object = object(&folder);
        cache.keep_text(&["key"], "value");
        for path in [&folder, folder.parent().unwrap(), object.parent().unwrap(), &folder.join("texts")] {
            assert_eq!(mode(path), 0o700, "{}", path.display());
        }
        assert!(!load(&cache).is_new());
        assert_eq!(cache.text(&["key"]).as_deref(), Some("value"));
        // Objects that no cache holds are made where nobody else can write as well.
        assert!(is_genuine(&load(&Cache::at("/dev/null/cache"))));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for mask in ["000", "002", "022", "077"] {
        let mut command = Command::new("sh");
        let masked =
            format!("umask {mask}; exec \"$0\" --exact a_new_cache_is_for_its_user_alone_whatever_the_mask");
        command.args(["-c", &masked]).arg(std::env::current_exe().unwrap());
        let output = command.env("MITHRIL_TEST_MASK", folder.path().join(mask)).output().unwrap();
        assert!(output.status.success(), "{mask}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn a_cache_that_others_can_write_is_not_used() {
    for open in [0o777, 0o770, 0o702, 0o1777] {
        let planted = Planted::new();
        set_mode(&planted.folder(), open);
        planted.is_refused(&planted.folder(), &format!("mode {open:04o}"));
        set_mode(&planted.folder(), 0o755);
        planted.is_used();
    }
}

#[test]
fn a_folder_on_the_way_that_others_can_write_is_enough_unless_it_is_sticky() {
    let planted = Planted::new();
    set_mode(&planted.parent(), 0o775);
    planted.is_refused(&planted.parent(), "mode 0775");
    set_mode(&planted.parent(), 0o1777);
    planted.is_used();
    // The folder of one key was open: what was put there then is not loaded.
    set_mode(planted.object.parent().unwrap(), 0o777);
    assert!(is_genuine(&load(&planted.cache())));
}

#[test]
fn an_object_that_others_can_write_or_that_is_a_link_is_made_again() {
    let planted = Planted::new();
    set_mode(&planted.object, 0o720);
    let function = load(&planted.cache());
    assert!(function.is_new() && is_genuine(&function));
    assert!(!load(&planted.cache()).is_new());

    let planted = Planted::new();
    let elsewhere = planted.top.path().join("elsewhere.so");
    fs::rename(&planted.object, &elsewhere).unwrap();
    symlink(&elsewhere, &planted.object).unwrap();
    assert!(is_genuine(&load(&planted.cache())));
    // A pipe has no end; nobody writes into this one.
    let planted = Planted::new();
    fs::remove_file(&planted.object).unwrap();
    assert!(Command::new("mkfifo").arg(&planted.object).status().unwrap().success());
    assert!(is_genuine(&load(&planted.cache())));
}

#[test]
fn what_was_kept_is_read_if_nobody_else_could_write_it() {
    let top = tempfile::tempdir().unwrap();
    let cache = Cache::at(top.path().join("cache"));
    let texts = top.path().join("cache").join("texts");
    cache.keep_text(&["key"], "value");
    let file = fs::read_dir(&texts).unwrap().next().unwrap().unwrap().path();
    let is_read = || cache.text(&["key"]).is_some();
    assert!(is_read());
    set_mode(&file, 0o622);
    assert!(!is_read());
    set_mode(&file, 0o600);
    set_mode(&texts, 0o730);
    assert!(!is_read());
    set_mode(&texts, 0o700);
    assert!(is_read());
    if is_root() {
        chown(&file, Some(STRANGER), None).unwrap();
        assert!(!is_read());
    }
}

#[test]
fn what_belongs_to_another_user_is_not_used() {
    if !is_root() {
        return;
    }
    let planted = Planted::new();
    for place in [planted.folder(), planted.parent()] {
        chown(&place, Some(STRANGER), None).unwrap();
        planted.is_refused(&place, "belongs to another user");
        chown(&place, Some(0), None).unwrap();
    }
    planted.is_used();
    chown(planted.object.parent().unwrap(), Some(STRANGER), None).unwrap();
    assert!(is_genuine(&load(&planted.cache())));
    chown(planted.object.parent().unwrap(), Some(0), None).unwrap();
    chown(&planted.object, Some(STRANGER), None).unwrap();
    let function = load(&planted.cache());
    assert!(function.is_new() && is_genuine(&function));
}

#[test]
fn links_on_the_way_are_followed_where_only_their_owner_can_turn_them() {
    let planted = Planted::new();
    let link = planted.top.path().join("link");
    symlink("parent/../parent/cache", &link).unwrap();
    let cache = Cache::at(&link);
    assert!(cache.refusal().is_none() && !load(&cache).is_new());
    set_mode(&planted.parent(), 0o777);
    assert!(cache.refusal().is_some() && is_genuine(&load(&cache)));
    set_mode(&planted.parent(), 0o700);
    let (one, other) = (planted.top.path().join("one"), planted.top.path().join("other"));
    symlink(&one, &other).unwrap();
    symlink(&other, &one).unwrap();
    assert!(is_genuine(&load(&Cache::at(&one))));
    if is_root() {
        lchown(&link, Some(STRANGER), None).unwrap();
        assert!(cache.refusal().unwrap().to_string().contains("another user"));
        assert!(is_genuine(&load(&cache)));
    }
}

/// Without a folder that is safe nothing is compiled: there is none to fall back on.
#[test]
fn a_temporary_folder_that_others_can_replace_is_an_error() {
    if std::env::var_os("MITHRIL_TEST_TEMPORARY").is_some() {
        let cache = Cache::at("/dev/null/cache");
        let error = cache.object(&Compiler::find(&tool()).unwrap(), SOURCE).unwrap_err().to_string();
        assert!(error.contains("mode 0777") && error.contains("TMPDIR"), "{error}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o777);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_temporary_folder_that_others_can_replace_is_an_error"]);
    let output = command.env("MITHRIL_TEST_TEMPORARY", "1").env("TMPDIR", folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
