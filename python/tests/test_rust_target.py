"""Models as Cargo packages: built and tested by cargo, against outputs that NumPy computed."""

import os
import shutil
import subprocess

import mithril as ml
import numpy as np
import pytest

needs_cargo = pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")

#: What a user of the package meets: lengths that do not fit, weights that are missing, and parameters by name.
MISTAKES = """
use digits::{Error, Inputs, Model, Values};

#[test]
fn mistakes_are_errors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/c/digits.weights");
    assert!(matches!(Model::open("/missing.weights", 1), Err(Error::Open(_))));
    assert!(matches!(Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), 1), Err(Error::Open(_))));
    let mut model = Model::open(path, 2).unwrap();
    let error = model.run(&Inputs { image: &[0.0; 7], type_: &[0] }).unwrap_err();
    assert_eq!(error.to_string(), "`image` has 7 elements, but must have 144");
    let error = model.run(&Inputs { image: &[0.0; 144], type_: &[9] }).unwrap_err();
    assert!(error.to_string().starts_with("the model cannot be run: "), "{error}");
    assert!(model.weight("missing").is_none());
    match model.weight("table").unwrap() {
        Values::F32(values) => assert_eq!(values.len(), 40),
        _ => panic!("another type"),
    }
    std::thread::spawn(move || model.run(&Inputs { image: &[0.0; 144], type_: &[1] }).unwrap()).join().unwrap();
}
"""

#: States stay in the memory of a model, until it is reset.
RESET = """
use match_model::{Inputs, OutputsMut, StaticModel};

#[test]
fn states_start_anew() {
    let mut model = StaticModel::new();
    let mut losses = vec![];
    for call in 0..3 {
        if call == 2 {
            model.reset();
        }
        let mut loss = [0.0];
        let inputs = Inputs { x: &[1.0; 20], label: &[0.0, 1.0, 2.0, 0.0], learning_rate: &[0.1] };
        model.run(&inputs, &mut OutputsMut { loss: &mut loss }).unwrap();
        losses.push(loss[0]);
    }
    assert!(losses[1] < losses[0] && losses[2] == losses[0], "{losses:?}");
}
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Where all packages are built, so that what they depend on is built once."""
    return tmp_path_factory.mktemp("target")


def cargo(folder, target, *arguments):
    """Run cargo on what is at hand, or on what the registry has."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "RUSTFLAGS": "-D warnings"}
    for more in (["--offline"], []):
        done = subprocess.run(
            ["cargo", *arguments, *more], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        if done.returncode == 0:
            break
    return done


def classifier():
    model = ml.Model()
    model |= ml.Conv2d(8, 3, padding=1)(input=ml.IOKey("image", shape=[1, 1, 12, 12]), output="features")
    model |= ml.Flatten()(input="features", output="flat")
    model |= ml.Linear(10)(input="flat", output="scores")
    model |= ml.Embedding(4, 10)(input=ml.IOKey("type", shape=[1], dtype="int64"), weight="table", output="bias")
    model |= ml.Add()(left="scores", right="bias", output="output")
    return model


@needs_cargo
def test_packages_pass_their_own_tests(tmp_path, target):
    compiled = ml.compile(classifier(), ml.NumpyBackend(), inference=True)
    data = {"type": np.array([2])}
    exported = compiled.export(tmp_path / "a", target="rust", prefix="digits", weights_inside=False, data=data)
    assert "src/lib.rs" in str(exported)
    assert "c/digits.weights" in str(exported)
    (tmp_path / "a" / "tests" / "mistakes.rs").write_text(MISTAKES)
    done = cargo(tmp_path / "a", target, "test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "outputs_are_those_that_were_recorded ... ok" in done.stdout
    assert "mistakes_are_errors ... ok" in done.stdout
    # Weights in a file take the standard library.
    done = cargo(tmp_path / "a", target, "check", "--no-default-features")
    assert done.returncode != 0
    assert "export with weights_inside=True" in done.stderr

    # A training step, with weights inside that change; and a package called as a word of Rust.
    step = ml.Model()
    step |= ml.Linear(3)(input="x", output="y")
    step |= ml.CrossEntropy()(input="y", target="label", output="loss")
    step = ml.compile(step, ml.NumpyBackend(), shapes={"x": [4, 5], "label": [4]})
    data = {"x": np.ones((4, 5), np.float32), "label": np.array([0, 1, 2, 0])}
    step.export(tmp_path / "b", target="rust", prefix="match_", optimizer=ml.optim.Adam(0.01), data=data)
    assert 'name = "match-model"' in (tmp_path / "b" / "Cargo.toml").read_text()
    (tmp_path / "b" / "tests" / "reset.rs").write_text(RESET)
    done = cargo(tmp_path / "b", target, "test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "memory_of_a_known_size_is_enough ... ok" in done.stdout

    # Halves, truth values, and nothing that is a weight.
    small = ml.Model.create(
        half=ml.IOKey("x", shape=[3], dtype="float16") * 2, is_less=ml.IOKey("y", shape=[2, 3]) < 1.0
    )
    ml.compile(small, ml.NumpyBackend()).export(tmp_path / "c", target="rust", prefix="small")
    done = cargo(tmp_path / "c", target, "test")
    assert done.returncode == 0, done.stdout + done.stderr

    # What was recorded counts.
    recorded = tmp_path / "c" / "c" / "small.check"
    recorded.write_bytes(bytes(b ^ 1 for b in recorded.read_bytes()))
    assert cargo(tmp_path / "c", target, "test").returncode != 0


@needs_cargo
def test_packages_without_the_standard_library(tmp_path, target):
    compiled = ml.compile(classifier(), ml.NumpyBackend(), inference=True)
    data = {"type": np.array([2])}
    compiled.export(tmp_path / "a", target="rust", prefix="digits", weights_inside=True, data=data)
    done = cargo(tmp_path / "a", target, "test", "--no-default-features")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "memory_of_a_known_size_is_enough ... ok" in done.stdout
    assert "outputs_are_those_that_were_recorded" not in done.stdout


@needs_cargo
def test_packages_are_built_for_processors_without_a_system(tmp_path, target):
    machine = "thumbv7em-none-eabihf"
    found = subprocess.run(["rustc", "--print", "target-libdir", "--target", machine], capture_output=True, text=True)
    if found.returncode or not os.path.isdir(found.stdout.strip()):
        pytest.skip(f"the target {machine} of Rust is not installed")
    if shutil.which("arm-none-eabi-gcc") is None or not os.path.isdir("/usr/lib/arm-none-eabi/newlib"):
        pytest.skip("there is no C compiler for ARM without a system")
    compiled = ml.compile(classifier(), ml.NumpyBackend(), inference=True)
    compiled.export(tmp_path / "a", target="rust", prefix="digits", weights_inside=True, lanes=1)
    done = cargo(tmp_path / "a", target, "build", "--lib", "--no-default-features", "--target", machine)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mistakes_in_exports_for_rust(tmp_path):
    compiled = ml.compile(classifier(), ml.NumpyBackend(), inference=True)
    with pytest.raises(ml.errors.InvalidValueError, match="batch is not for the target 'rust'"):
        compiled.export(tmp_path, target="rust", batch="batch")
    (tmp_path / "Cargo.toml").write_text("[package]\nname = 'mine'\n")
    with pytest.raises(ml.errors.ModelFileError, match="is not part of an export"):
        compiled.export(tmp_path, target="rust")
    assert "mine" in (tmp_path / "Cargo.toml").read_text()
    with pytest.raises(ml.errors.InvalidValueError, match="did you mean 'rust'"):
        compiled.export(tmp_path, target="rusty")
