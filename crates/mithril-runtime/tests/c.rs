//! Compiling, keeping, loading and calling C, on a file written by hand; and what can go wrong there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use mithril_ir::{Code, DType, Role, Tensor};
use mithril_runtime::c::pool::Pool;
use mithril_runtime::c::{Address, AddressMut, Cache, Compiler, Function, Interface, TensorSpec, Tool};

const SOURCE: &str = include_str!("c/scale.c");
const COUNT: usize = 1000;

fn interface() -> Interface {
    let buffer = |name: &str, shape: &[usize]| TensorSpec {
        name: name.into(),
        dtype: DType::F32,
        shape: shape.into(),
    };
    Interface {
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
    }
}

fn quick() -> Tool {
    Tool { flags: vec!["-O0".into()], ..Tool::default() }
}

fn load(cache: &Cache, threads: usize) -> mithril_ir::Result<Function> {
    Function::new(&quick(), cache, SOURCE, interface(), threads)
}

fn inputs(factor: f32) -> [Arc<Tensor>; 2] {
    let x: Vec<f32> = (0..COUNT).map(|i| i as f32).collect();
    [Tensor::from_parts(&[], vec![factor]).into(), Tensor::from_parts(&[COUNT], x).into()]
}

fn is_scaled(y: &[f32], factor: f32) -> bool {
    y.iter().enumerate().all(|(i, y)| *y == 3.0 * factor * i as f32)
}

fn objects(folder: &Path) -> Vec<PathBuf> {
    let entries =
        |f: &Path| fs::read_dir(f).into_iter().flatten().flatten().map(|e| e.path()).collect::<Vec<_>>();
    entries(folder).iter().flat_map(|key| entries(key)).collect()
}

#[test]
fn runs_alone_and_together_and_names_errors() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("new").join("cache"));
    let function = load(&cache, 2).unwrap();
    assert!(function.is_new());
    assert_eq!(function.arena_bytes(), 4 * (COUNT + 2));
    let y = function.run(&inputs(0.5)).unwrap();
    assert!(is_scaled(y[0].as_slice().unwrap(), 0.5));
    // Once more: from the cache.
    let again = load(&cache, 1).unwrap();
    assert!(!again.is_new());
    assert!(is_scaled(again.run(&inputs(2.0)).unwrap()[0].as_slice().unwrap(), 2.0));

    let bad = Tensor::from_parts(&[COUNT], vec![-1.0_f32; COUNT]);
    let error = again.run(&[inputs(1.0)[0].clone(), bad.into()]).unwrap_err();
    assert!(error.message().contains("x starts below zero"), "{error}");
    let error =
        again.run(&[inputs(1.0)[0].clone(), Tensor::from_parts(&[1], vec![1.0_f32]).into()]).unwrap_err();
    assert!(error.message().contains("`x`") && error.code() == Code::BadParameter, "{error}");
    let error = again.call(&[Address::of(&[1.0_f32])], &mut [], None).unwrap_err();
    assert!(error.message().contains("1 inputs are given to scale, 2 are needed"), "{error}");
}

#[test]
fn parameters_are_packed_once_and_may_go() {
    let folder = tempfile::tempdir().unwrap();
    let tool = Tool { flags: vec!["-O0".into(), "-DONCE".into()], ..Tool::default() };
    let function = Function::new(&tool, &Cache::at(folder.path()), SOURCE, interface(), 1).unwrap();
    let [factor, x] = inputs(0.5);
    for input in [x.clone(), inputs(0.0)[1].clone()] {
        assert!(is_scaled(function.run(&[factor.clone(), input]).unwrap()[0].as_slice().unwrap(), 0.5));
    }
    assert_eq!(Arc::strong_count(&factor), 1);
    // Another tensor is packed anew, whatever it holds.
    let error = function.run(&[inputs(0.5)[0].clone(), x]).unwrap_err();
    assert!(error.message().contains("packed again"), "{error}");
}

#[test]
fn many_callers_at_once_share_a_pool_without_harm() {
    let folder = tempfile::tempdir().unwrap();
    let function = load(&Cache::at(folder.path()), 2).unwrap();
    thread::scope(|scope| {
        for caller in 0..4 {
            let function = &function;
            scope.spawn(move || {
                let factor = caller as f32;
                let [f, x] = inputs(factor);
                let (f, x): (&[f32], &[f32]) = (f.as_slice().unwrap(), x.as_slice().unwrap());
                let arguments = [Address::of(f), Address::of(x)];
                let packed = function.pack(&arguments).unwrap();
                let mut y = vec![0.0_f32; COUNT];
                for _ in 0..500 {
                    y.fill(0.0);
                    function.call(&arguments, &mut [AddressMut::of(&mut y)], packed.as_ref()).unwrap();
                    assert!(is_scaled(&y, factor));
                }
            });
        }
    });
}

#[test]
fn a_pool_is_leased_to_one_at_a_time() {
    let pool = Pool::of(3);
    assert_eq!(pool.threads(), 3);
    let lease = pool.lease().unwrap();
    assert!(pool.lease().is_none());
    drop(lease);
    assert!(pool.lease().is_some());
    assert!(std::ptr::eq(pool, Pool::of(3)));
}

#[test]
fn damaged_objects_are_made_anew_and_old_ones_removed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    load(&cache, 1).unwrap();
    let path = objects(folder.path()).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    // Written to another file: a library that is loaded must not change in place.
    let damage = |bytes: &[u8]| {
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    };
    for bytes in [&whole[..whole.len() / 2], b"", b"no object at all"] {
        damage(bytes);
        let function = load(&cache, 1).unwrap();
        assert!(function.is_new());
        assert!(is_scaled(function.run(&inputs(1.0)).unwrap()[0].as_slice().unwrap(), 1.0));
    }
    // A bound that holds one object: the older goes.
    let other = format!("{SOURCE}\nint scale_more;\n");
    let small = cache.bounded(whole.len() as u64 + 1000);
    Function::new(&quick(), &small, &other, interface(), 1).unwrap();
    assert_eq!(objects(folder.path()).len(), 1);
    assert!(load(&small, 1).unwrap().is_new());
}

#[test]
fn a_cache_that_cannot_be_written_is_done_without() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "a file where a folder should be").unwrap();
    let function = load(&Cache::at(file.join("cache")), 1).unwrap();
    assert!(is_scaled(function.run(&inputs(1.0)).unwrap()[0].as_slice().unwrap(), 1.0));
}

/// Writes a script that stands for a compiler; `{}` in it is the compiler that is here.
#[cfg(unix)]
fn script(folder: &Path, text: &str) -> Tool {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("cc");
    let compiler = Compiler::find(&Tool::default()).unwrap();
    fs::write(&path, text.replace("{}", &compiler.command().join(" "))).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    Tool { command: Some(path.to_string_lossy().into()), ..quick() }
}

#[cfg(unix)]
#[test]
fn compilers_that_are_killed_or_say_nothing_are_told() {
    let cases = [
        ("kill -9 $$", "it was killed"),
        ("exit 1", "try without the flags that were given: -O0"),
        // It says that all went well, and left nothing.
        ("exit 0", "try without the flags that were given: -O0"),
    ];
    for (does, help) in cases {
        let folder = tempfile::tempdir().unwrap();
        let tool = script(
            folder.path(),
            &format!("#!/bin/sh\nif [ \"$1\" = --version ]; then echo one; exit; fi\n{does}\n"),
        );
        let cache = Cache::at(folder.path().join("cache"));
        let error = Function::new(&tool, &cache, SOURCE, interface(), 1).unwrap_err();
        assert_eq!(error.code(), Code::Compiler, "{error}");
        assert!(error.notes()[0].contains("it says nothing"), "{error}");
        assert!(error.to_string().contains(help), "{error}");
        assert!(objects(&folder.path().join("cache")).is_empty());
    }
}

/// On a full disk a compiler fails, and so does writing beside it: it is asked again in another folder.
#[cfg(unix)]
#[test]
fn a_full_disk_is_gone_around() {
    if let Some(folder) = std::env::var_os("MITHRIL_TEST_FULL") {
        let folder = PathBuf::from(folder);
        let text = "#!/bin/sh\ncase \"$*\" in *cache*) trap '' XFSZ; ulimit -f 0;; esac\nexec {} \"$@\"\n";
        let (tool, cache) = (script(&folder, text), folder.join("cache"));
        let function = Function::new(&tool, &Cache::at(&cache), SOURCE, interface(), 1).unwrap();
        assert!(is_scaled(function.run(&inputs(1.0)).unwrap()[0].as_slice().unwrap(), 1.0));
        assert!(objects(&cache).is_empty());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    // No file may be longer than 4 MB.
    let limited = "trap '' XFSZ; ulimit -f 8192; exec \"$0\" --exact a_full_disk_is_gone_around";
    command.args(["-c", limited]).arg(std::env::current_exe().unwrap());
    let output = command.env("MITHRIL_TEST_FULL", folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// For the user root, who may write everywhere, it is a folder like any other.
#[cfg(unix)]
#[test]
fn a_folder_that_is_read_only_is_done_without() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let function = load(&Cache::at(folder.path()), 1).unwrap();
    assert!(is_scaled(function.run(&inputs(1.0)).unwrap()[0].as_slice().unwrap(), 1.0));
}

#[test]
fn two_processes_fill_one_cache() {
    if let Some(folder) = std::env::var_os("MITHRIL_TEST_CACHE") {
        let function = load(&Cache::at(PathBuf::from(folder)), 1).unwrap();
        assert!(is_scaled(function.run(&inputs(1.0)).unwrap()[0].as_slice().unwrap(), 1.0));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "two_processes_fill_one_cache"]).env("MITHRIL_TEST_CACHE", folder.path());
        command.spawn().unwrap()
    };
    let mut both = [start(), start()];
    assert!(both.iter_mut().all(|child| child.wait().unwrap().success()));
    assert!(!objects(folder.path()).is_empty());
    assert!(!load(&Cache::at(folder.path()), 1).unwrap().is_new());
}

#[test]
fn compilers_that_are_absent_broken_or_fail_are_named() {
    let find = |command: &str| Compiler::find(&Tool { command: Some(command.into()), ..Tool::default() });
    let error = find("/nowhere/cc").unwrap_err();
    assert!(error.code() == Code::Unavailable && error.message().contains("/nowhere/cc"), "{error}");
    let error = find("false").unwrap_err();
    assert!(error.notes()[0].contains("the option cc"), "{error}");
    let error = Compiler::find(&Tool { flags: vec!["-ffast-math".into()], ..Tool::default() }).unwrap_err();
    assert!(error.message().contains("-ffast-math"), "{error}");

    // `echo` answers --version, and compiles nothing.
    let folder = tempfile::tempdir().unwrap();
    let echo = find("echo").unwrap();
    let error = Cache::at(folder.path()).object(&echo, "int x;").unwrap_err();
    assert!(error.code() == Code::Compiler, "{error}");

    let wrong = "int scale_run(void) { return 0; }\nint scale_wrong(void) { return nothing; }\n";
    let error = Function::new(&quick(), &Cache::at(folder.path()), wrong, interface(), 1).unwrap_err();
    assert_eq!(error.code(), Code::Compiler);
    assert!(error.notes()[0].contains("model.c:2:") && error.notes()[0].contains("nothing"), "{error}");
    assert!(error.notes()[1].contains("int scale_wrong(void) { return nothing; }"), "{error}");
    assert!(objects(folder.path()).is_empty());
}
