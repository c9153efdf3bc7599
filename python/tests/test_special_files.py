"""What is written to links, pipes and devices: a link stays, and what is not a regular file is not replaced."""

import os
import stat
import threading

import mithril as ml
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")


def model():
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="output")
    return model


@pytest.fixture(scope="module")
def writers():
    """What writes a file at a path, and what reads it back: name with the ending -> two functions."""
    compiled = ml.compile(model(), ml.NumpyBackend(), shapes={"input": [32, 2]})
    params = compiled.get_parameters()
    x = np.ones((32, 2), np.float32)
    history = ml.train.fit(compiled, (x, np.ones((32, 3), np.float32)), loss="mse", progress=False)
    same = {name: value.tolist() for name, value in params.items()}

    def tensors(path):
        return {name: np.asarray(value).tolist() for name, value in ml.weights.open(path).items()} == same

    return {
        "model.json": (lambda path: ml.save(model(), path), lambda path: ml.load(path).output_keys == ["output"]),
        "params.safetensors": (lambda path: ml.save(params, path), tensors),
        "params.gguf": (lambda path: ml.save_gguf(params, path), tensors),
        "model.onnx": (lambda path: ml.to_onnx(compiled, path), lambda path: len(ml.from_onnx(path)[1]) == 2),
        "source.py": (compiled.save_source, lambda path: "def evaluate" in path.read_text()),
        "history.json": (history.save, lambda path: "loss" in path.read_text()),
        "view.html": (lambda path: ml.view(compiled, path), lambda path: "<html" in path.read_text()),
    }


NAMES = ("model.json", "params.safetensors", "params.gguf", "model.onnx", "source.py", "history.json", "view.html")


@pytest.mark.parametrize("name", NAMES)
def test_links_are_followed(name, writers, tmp_path):
    write, holds = writers[name]
    folder = tmp_path / "folder"
    folder.mkdir()
    real, link = folder / name, tmp_path / name
    for _ in ("a link to nothing yet", "a link to the file that is there now"):
        if not link.is_symlink():
            link.symlink_to(os.path.join("folder", name))
        write(link)
        assert link.is_symlink()
        assert not real.is_symlink()
        assert holds(real)
    assert sorted(os.listdir(tmp_path)) == sorted(["folder", name])
    assert os.listdir(folder) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_pipes_get_the_content(name, writers, tmp_path):
    write, holds = writers[name]
    pipe, copy = tmp_path / "pipe" / name, tmp_path / name
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    contents = []
    reader = threading.Thread(target=lambda: contents.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write(pipe)
    reader.join(timeout=60)
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    assert os.listdir(pipe.parent) == [name]
    copy.write_bytes(contents[0])
    assert holds(copy)


def test_a_pipe_has_no_file_beside_it(tmp_path):
    os.mkfifo(tmp_path / "model.onnx")
    compiled = ml.compile(model(), ml.NumpyBackend(), shapes={"input": [8, 2]})
    compiled.get_parameters()
    with pytest.raises(ml.errors.ConflictingOptionError, match="not a regular file"):
        ml.to_onnx(compiled, tmp_path / "model.onnx", external_data=True)
    link = tmp_path / "link.onnx"
    (tmp_path / "folder").mkdir()
    link.symlink_to(tmp_path / "folder" / "real.onnx")
    ml.to_onnx(compiled, link, external_data=True)
    assert sorted(os.listdir(tmp_path / "folder")) == ["real.onnx", "real.onnx.data"]
    assert len(ml.from_onnx(tmp_path / "folder" / "real.onnx")[1]) == 2
