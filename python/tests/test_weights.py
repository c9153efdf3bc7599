"""Checkpoints in all their forms, against torch.save and the safetensors library; what is wrong with files."""

from __future__ import annotations

import collections
import gc
import json
import os
import pickle
import struct
import zipfile

import mithril as ml
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from backends import BACKENDS, FLOATS
from backends import backend as find
from mithril.models import create_gpt, resnet18

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def tensors() -> dict[str, torch.Tensor]:
    """One of each dtype, and views, scalars, parameters, what is empty."""
    base = torch.arange(-6.0, 6.0).reshape(3, 4)
    by_name = {name: base.to(getattr(torch, name)) for name in DTYPES}
    return by_name | {
        "turned": base.T,
        "row": base[1],
        "strided": base[:, ::2],
        "again": base,
        "expanded": torch.ones(1).expand(3),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "unsigned": torch.tensor([1, 65535], dtype=torch.uint16),
    }


def agree(actual: np.ndarray, tensor: torch.Tensor) -> None:
    tensor = tensor.detach()
    assert actual.dtype.name == str(tensor.dtype).removeprefix("torch.")
    assert actual.shape == tuple(tensor.shape)
    np.testing.assert_array_equal(actual.astype(np.float64), tensor.double().numpy())


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}])
@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: {"epoch": 3, "state_dict": collections.OrderedDict(d)}])
def test_files_of_torch(tmp_path, options, wrap):
    expected = tensors()
    if "_use_new_zipfile_serialization" in options:
        # That old form has no such dtype.
        del expected["unsigned"]
    path = tmp_path / "x.pt"
    torch.save(wrap(expected), path, **options)
    opened = ml.weights.open(path)
    assert list(opened) == list(expected)
    if "_use_new_zipfile_serialization" not in options:
        # The old form does not align numbers.
        assert opened["turned"].strides == (4, 16)
    for name, tensor in expected.items():
        agree(opened[name], tensor)
    assert set(ml.load(path)) == set(expected)


def test_files_of_safetensors(tmp_path):
    expected = {name: tensor.detach().contiguous().clone() for name, tensor in tensors().items()}
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file(expected, path, metadata={"format": "pt"})
    opened = ml.weights.open(path)
    assert set(opened) == set(expected)
    assert opened.metadata == {"format": "pt"}
    for name, tensor in expected.items():
        agree(opened[name], tensor)


def test_arrays_are_views_that_outlive_everything(tmp_path):
    path = tmp_path / "x.safetensors"
    values = np.arange(1 << 20, dtype=np.float32)
    ml.save({"w": values, "b": np.ones(3)}, path)
    before = path.read_bytes()
    opened = ml.weights.open(path)
    array, other = opened["w"], opened["w"]
    assert np.shares_memory(array, other)
    array[:2] = 7
    assert other[0] == 7
    assert path.read_bytes() == before
    assert ml.weights.open(path)["w"][0] == 0
    ml.save({"new": np.zeros(1)}, path)
    del opened, other
    gc.collect()
    np.testing.assert_array_equal(array[2:], values[2:])
    with pytest.raises(ml.errors.KeyNotFoundError, match="did you mean"):
        ml.weights.open(path)["neww"]


def test_truth_values_and_unaligned_numbers_are_made_good(tmp_path):
    header = json.dumps(
        {
            "yes": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]},
            "w": {"dtype": "F32", "shape": [1], "data_offsets": [3, 7]},
        }
    ).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes([0, 1, 255]) + struct.pack("<f", 1.5))
    opened = ml.weights.open(path)
    assert opened["yes"].view(np.uint8).tolist() == [0, 1, 1]
    assert opened["w"].tolist() == [1.5]
    assert opened["w"].flags.aligned


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards(tmp_path, ending):
    expected = {f"layer{i}.weight": torch.full((2, 3), float(i)) for i in range(4)}
    names = list(expected)
    parts = {f"model-0000{i + 1}-of-00002.{ending}": names[2 * i : 2 * i + 2] for i in range(2)}
    for file, part in parts.items():
        values = {name: expected[name] for name in part}
        (safetensors.torch.save_file if ending == "safetensors" else torch.save)(values, tmp_path / file)
    stem = "model" if ending == "safetensors" else "pytorch_model"
    index = tmp_path / f"{stem}.{ending}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {n: f for f, part in parts.items() for n in part}}))
    for source in (tmp_path, index):
        opened = ml.weights.open(source)
        assert list(opened) == names
        for name, tensor in expected.items():
            agree(opened[name], tensor)
    index.write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(ml.errors.ModelFileError, match="outside of its folder") as caught:
        ml.weights.open(tmp_path)
    assert caught.value.code == "M0803"


# --- hostile files ----------------------------------------------------------------------------------------------


class Evil:
    """What a pickle runs when it is loaded."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("new", [True, False])
def test_pickles_that_run_code_are_refused(tmp_path, new):
    mark, path = tmp_path / "mark", tmp_path / "x.pt"
    for function, arguments, name in [
        (os.system, (f"touch {mark}",), "system"),
        (eval, (f"open({str(mark)!r}, 'w')",), "eval"),
        (os.mkdir, (str(mark),), "mkdir"),
        (torch.load, (str(path),), "torch.serialization.load"),
        (getattr, (1, "real"), "getattr"),
    ]:
        weights = {"a": torch.ones(2), "b": Evil(function, *arguments)}
        torch.save(weights, path, _use_new_zipfile_serialization=new)
        for load in (ml.weights.open, ml.load):
            with pytest.raises(ml.errors.ModelFileError, match=name) as caught:
                load(path)
            assert caught.value.code == "M0803"
        assert not mark.exists()


def test_programs_modules_and_strangers_are_refused(tmp_path):
    path = tmp_path / "x.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(ml.errors.ModelFileError, match=r"torch\.nn\.modules\.linear\.Linear"):
        ml.weights.open(path)
    torch.save(torch.ones(2), path)
    with pytest.raises(ml.errors.ModelFileError, match="a single tensor, not a dict"):
        ml.weights.open(path)
    torch.save({"a": {"w": torch.ones(1)}, "ema": {"w": torch.zeros(1)}}, path)
    with pytest.raises(ml.errors.ModelFileError, match='"a", "ema"'):
        ml.weights.open(path)
    assert ml.weights.open(path, key="ema")["w"] == 0
    path.write_bytes(pickle.dumps({"w": 1}))
    with pytest.raises(ml.errors.ModelFileError, match="no file of PyTorch"):
        ml.weights.open(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<a/>")
    with pytest.raises(ml.errors.ModelFileError, match="no file of PyTorch"):
        ml.weights.open(path)
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(ml.errors.ModelFileError, match="it is not a file"):
        ml.weights.open(tmp_path / "pipe.pt")
    with pytest.raises(ml.errors.InvalidValueError, match="the path is a int"):
        ml.weights.open(3)
    cyclic: dict = {"w": 1}
    cyclic["model"] = cyclic
    torch.save(cyclic, path)
    with pytest.raises(ml.errors.ModelFileError, match="hold a dict of tensors"):
        ml.weights.open(path)


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt", "x.bin"])
def test_every_truncation_is_an_error(tmp_path, name):
    path = tmp_path / name
    weights = {"w": torch.arange(100.0), "b": torch.ones(3)}
    if name == "x.safetensors":
        safetensors.torch.save_file(weights, path)
    else:
        torch.save(weights, path, _use_new_zipfile_serialization=name == "x.pt")
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ml.errors.ModelFileError, match="x\\."):
            ml.weights.open(path)


def test_views_beyond_their_storage_are_an_error(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"w": torch.arange(10.0)[2:7]}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    pickled = next(name for name in entries if name.endswith("data.pkl"))
    # The offset of 2, the size of 5 and the stride of 1, each as the operation K.
    assert b"K\x02K\x05\x85" in entries[pickled]
    for lie in (b"K\x06K\x05\x85", b"K\x02K\xff\x85", b"J\xff\xff\xff\xffK\x05\x85", b"K\x02J\xff\xff\xff\x7f\x85"):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, content.replace(b"K\x02K\x05\x85", lie) if name == pickled else content)
        with pytest.raises(ml.errors.ModelFileError, match=r"outside of what the file holds|a size, stride or offset"):
            ml.weights.open(path)


def test_views_that_repeat_take_no_memory(tmp_path):
    path = tmp_path / "x.pt"
    for new in (True, False):
        for tensor in (torch.ones(1), torch.ones(1, dtype=torch.bool), torch.ones(1, dtype=torch.bfloat16)):
            torch.save({"w": tensor.expand(1 << 40)}, path, _use_new_zipfile_serialization=new)
            opened = ml.weights.open(path)["w"]
            assert opened.shape == (1 << 40,)
            assert opened[-1] == 1
    torch.save({"w": torch.ones(9).as_strided((5, 5), (1, 1))}, path)
    with pytest.raises(ml.errors.ModelFileError, match="overlap"):
        ml.weights.open(path)


# --- writing ----------------------------------------------------------------------------------------------------


def test_what_we_write_the_library_reads(tmp_path):
    path = tmp_path / "x.safetensors"
    expected = {name: tensor for name, tensor in tensors().items() if name != "unsigned"}
    ml.save(expected, path, metadata={"b": "2", "a": "é"})
    theirs = safetensors.torch.load_file(path)
    assert set(theirs) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(theirs[name], tensor), name
    with safetensors.safe_open(path, "pt") as opened:
        assert opened.metadata() == {"a": "é", "b": "2"}
    first = path.read_bytes()
    ml.save(expected, path, metadata={"a": "é", "b": "2"})
    assert path.read_bytes() == first


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "x.safetensors"
    ml.save({"w": np.ones(2)}, path)
    path.chmod(0o600)
    before = path.read_bytes()

    class Gone:
        dtype, shape = "x.float32", (2,)

        def __array__(self, *args, **kwargs):
            raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="the device is gone"):
        ml.save({"w": Gone()}, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.safetensors"]
    ml.save({"w": np.zeros(2)}, path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ml.errors.ModelFileError, match="cannot be written"):
        ml.save({"w": np.zeros(2)}, tmp_path / "absent" / "x.safetensors")
    with pytest.raises(ml.errors.InvalidValueError, match="is not a string"):
        ml.save({"w": np.zeros(2)}, path, metadata={"step": 3})
    with pytest.raises(ml.errors.InvalidValueError, match="torchvision"):
        ml.save({"w": np.zeros(2)}, path, layout="nobody")


# --- into models ------------------------------------------------------------------------------------------------


def network(classes: int = 5):
    torchvision = pytest.importorskip("torchvision", reason="needs torchvision as the original")
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=classes)
    for name, buffer in model.named_buffers():
        if "running" in name:
            torch.nn.init.uniform_(buffer, 0.5, 1.5)
    return model.eval()


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Each backend in turn."""
    return find(request.param)


@pytest.mark.parametrize("source", ["pth", "safetensors", "mapping", "module"])
def test_a_published_network_gives_its_answers(backend, tmp_path, source):
    original = network()
    state = original.state_dict()
    if source == "pth":
        torch.save(state, tmp_path / "x.pth")
    elif source == "safetensors":
        safetensors.torch.save_file(state, tmp_path / "x.safetensors")
    sources = {"pth": tmp_path / "x.pth", "safetensors": tmp_path, "mapping": state}
    sources["module"] = {f"module.{name}": tensor for name, tensor in state.items()}
    compiled = ml.compile(resnet18(num_classes=5), backend, shapes={"input": [1, 3, 32, 32]}, inference=True)
    report = ml.load_weights(compiled, sources[source])
    assert report.is_complete
    assert len(report.loaded) + len(report.ignored) == len(state)
    gc.collect()
    image = torch.rand(1, 3, 32, 32)
    expected = original(image).detach().numpy()
    np.testing.assert_allclose(backend.to_numpy(compiled(image.numpy())), expected, rtol=1e-4, atol=1e-4)


def line(**options):
    return ml.compile(ml.Linear(2, name="fc"), options.pop("backend", ml.NumpyBackend()), shapes={"input": [1, 3]})


def test_parameters_share_the_memory_of_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    weight = torch.arange(6.0).reshape(2, 3)
    safetensors.torch.save_file({"weight": weight, "bias": torch.zeros(2)}, path)
    for backend in (ml.NumpyBackend(), ml.TorchBackend()):
        first, second = line(backend=backend), line(backend=backend)
        ml.load_weights(first, path)
        ml.load_weights(second, path)
        array = np.asarray(first.parameters["weight"])
        base = array
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        if not isinstance(backend, ml.TorchBackend):
            assert type(base).__name__ == "Weight"
        array[0, 0] = 5
        assert second.parameters["weight"][0, 0] == 0
        assert torch.equal(safetensors.torch.load_file(path)["weight"], weight)
    opened = ml.weights.open(path)
    ml.load_weights(first, opened)
    np.asarray(first.parameters["weight"])[0, 0] = 9
    assert opened["weight"][0, 0] == 0


def test_tensors_of_one_storage_become_arrays_of_their_own(tmp_path):
    model = ml.Model()
    model |= ml.Linear(3, name="a", bias=False)(input="input", output="middle")
    model |= ml.Linear(3, name="b", bias=False)(input="middle", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 3]})
    shared = torch.eye(3)
    torch.save({"a.weight": shared, "b.weight": shared}, tmp_path / "x.pt")
    ml.load_weights(compiled, tmp_path / "x.pt")
    params = compiled.parameters
    assert not np.shares_memory(params["a.weight"], params["b.weight"])
    np.testing.assert_array_equal(params["a.weight"], params["b.weight"])


@pytest.mark.parametrize("dtype", FLOATS)
def test_weights_take_the_dtype_of_the_model(dtype, tmp_path):
    weight = torch.tensor([[1.0, 2.5, 1 / 3], [0.1, -1e-3, 7.0]], dtype=torch.float64)
    for stored in FLOATS:
        tensor = weight.to(getattr(torch, stored))
        safetensors.torch.save_file({"weight": tensor, "bias": tensor[:, 0].clone()}, tmp_path / "x.safetensors")
        expected = tensor.to(getattr(torch, dtype)).double().numpy()
        for name in BACKENDS:
            backend = find(name, dtype)
            compiled = line(backend=backend)
            ml.load_weights(compiled, tmp_path / "x.safetensors")
            actual = compiled.parameters["weight"]
            assert str(actual.dtype).rpartition(".")[2] == dtype
            np.testing.assert_array_equal(backend.to_numpy(actual).astype(np.float64), expected)


def test_misfits_are_reported(tmp_path):
    compiled = line()
    before = {name: np.array(value) for name, value in compiled.parameters.items()}
    good = {"weight": np.ones((2, 3)), "bias": np.zeros(2)}
    for weights, problem in [
        ({"weight": good["weight"]}, "1 missing"),
        ({**good, "more": np.ones(1)}, "1 unexpected"),
        ({**good, "bias": np.zeros(3)}, r"bias \(\[2\] in the model, \[3\] in the weights\)"),
        ({"state_dict": good}, r"source\['state_dict'\]"),
        ({"weight": good["weight"], "biass": good["bias"]}, r"bias \(is it biass\?\)"),
        ({"a": np.ones(1)}, "nothing in a mapping fits"),
        ({}, "nothing in a mapping fits"),
        ({**good, "bias": ["x", "y"]}, "not an array"),
        ({1: np.ones(2)}, "name 1 is a int"),
    ]:
        with pytest.raises(ml.errors.ParameterError, match=problem):
            ml.load_weights(compiled, weights)
        for name, value in before.items():
            np.testing.assert_array_equal(compiled.parameters[name], value)
    report = ml.load_weights(compiled, {"weight": good["weight"], "bias": np.zeros(3), "x": np.ones(1)}, strict=False)
    assert report.loaded == ("weight",)
    assert report.unexpected == ("x",)
    assert report.mis_shaped[0] == ml.weights.MisShaped("bias", "bias", (2,), (3,))
    assert "1 arrays loaded from a mapping" in str(report)
    assert "of another shape: bias ([2] in the model, [3] in the weights)" in str(report)
    np.testing.assert_array_equal(compiled.parameters["weight"], good["weight"])
    np.testing.assert_array_equal(compiled.parameters["bias"], before["bias"])
    with pytest.raises(ml.errors.ParameterError, match="nothing in"):
        ml.load_weights(compiled, {"a": np.ones(1)}, strict=False)
    with pytest.raises(ml.errors.InvalidValueError, match="compile it first"):
        ml.load_weights(ml.Linear(2), good)
    with pytest.raises(ml.errors.InvalidValueError, match="give the model first"):
        ml.load_weights(good, compiled)
    with pytest.raises(ml.errors.InvalidValueError, match=r"source.state_dict\(\)"):
        ml.load_weights(compiled, torch.nn.Linear(3, 2))
    with pytest.raises(ml.errors.InvalidValueError, match="the source is a int"):
        ml.load_weights(compiled, 3)
    with pytest.raises(ml.errors.InvalidValueError, match="torchvision"):
        ml.load_weights(compiled, good, layout="nobody")


def of_sizes(**sizes):
    sizes = {"block_size": 8, "dims": 32, "num_heads": 2, "num_layers": 2, "vocab_size": 64, **sizes}
    return ml.compile(create_gpt(**sizes), ml.NumpyBackend(), shapes={"input": ["batch", "length"]}, inference=True)


def written(model, form, folder):
    """Parameters in a file: with our names, or with those that others use."""
    if form == "gguf":
        path = folder / "model.gguf"
        ml.save_gguf(model, path, layout="llama.cpp")
        return path
    path = folder / {"safetensors": "x.safetensors", "pt": "x.pt", "folder": "pytorch_model.bin"}[form]
    if form == "safetensors":
        ml.save(model.get_parameters(), path)
        return path
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    arrays = {n.removeprefix("transformer."): torch.tensor(a) for n, a in model.get_parameters().items()}
    torch.save({n: a.T.contiguous() if n.endswith(turned) else a for n, a in arrays.items()}, path)
    return path if form == "pt" else folder


@pytest.mark.parametrize("form", ["safetensors", "pt", "folder", "gguf"])
def test_weights_of_a_model_of_other_sizes(tmp_path, form):
    path = written(of_sizes(dims=48, vocab_size=65), form, tmp_path)
    model = of_sizes()
    before = {name: np.array(value) for name, value in model.parameters.items()}
    for strict in (True, False):
        with pytest.raises(ml.errors.ParameterError, match="belong to a model of other sizes") as problem:
            ml.load_weights(model, path, strict=strict)
        text = str(problem.value)
        assert "transformer.wte.weight ([64, 32] in the model, [65, 48] in the weights" in text
        assert "transformer.h.0.attn.c_attn.weight ([96, 32] in the model, [144, 48] in the weights" in text
        # 96 and 128 are so, too: they are multiples.
        assert "32 in the model is 48 in the weights, 64 in the model is 65 in the weights" in text
        expected = "ml.models.from_config(" if form == "gguf" else "build the model with the sizes of the weights"
        assert problem.value.hint.startswith(expected)
    for name, value in before.items():
        np.testing.assert_array_equal(model.parameters[name], value)
    # One size alone: the rest can be loaded.
    path = written(of_sizes(vocab_size=65), form, tmp_path)
    with pytest.raises(
        ml.errors.ParameterError, match=r"of other sizes\n  of another shape: [^,]*wte.weight"
    ) as problem:
        ml.load_weights(model, path)
    assert problem.value.hint.endswith("strict=False loads what fits")
    report = ml.load_weights(model, path, strict=False)
    assert [one.name for one in report.mis_shaped] == ["transformer.wte.weight"]
    assert len(report.loaded) == len(before) - 1


def test_a_configuration_says_how_the_model_is_built(tmp_path):
    folder = written(of_sizes(dims=48, vocab_size=65), "folder", tmp_path)
    sizes = {"n_embd": 48, "n_head": 2, "n_layer": 2, "vocab_size": 65, "n_positions": 8}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    with pytest.raises(ml.errors.ParameterError) as problem:
        ml.load_weights(of_sizes(), folder)
    assert problem.value.hint.startswith(f"ml.models.from_config({str(tmp_path)!r})")
    right = ml.compile(ml.models.from_config(tmp_path), ml.NumpyBackend(), shapes={"input": [1, 4]}, inference=True)
    assert ml.load_weights(right, folder).is_complete


@pytest.mark.parametrize("layers", [1, 3])
def test_another_number_of_blocks_is_told(tmp_path, layers):
    path = written(of_sizes(), "pt", tmp_path)
    with pytest.raises(ml.errors.ParameterError) as problem:
        ml.load_weights(of_sizes(num_layers=layers), path)
    assert f"'transformer.h' has {layers} parts in the model, 2 in the weights" in str(problem.value)


def test_what_is_no_file_of_weights_or_of_a_model(tmp_path):
    """Each mistake with a file has its own help."""
    compiled = line()
    config, index, page, pointer = (tmp_path / n for n in ("config.json", "i.json", "p.safetensors", "l.safetensors"))
    config.write_text('{"model_type": "gpt2"}')
    index.write_text('{"weight_map": {}}')
    page.write_text("\n<html>404</html>")
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    params = compiled.get_parameters()
    for call, words in [
        (lambda: ml.load(tmp_path), "name one, or the index of its parts"),
        (lambda: ml.load(config), "from_config"),
        (lambda: ml.load(index), "ml.load_weights(model, "),
        (lambda: ml.load(tmp_path / "no.json"), "check the path"),
        (lambda: ml.load(tmp_path / "no" / "x.json"), "there is no folder"),
        (lambda: ml.load_weights(compiled, page), "page of the web"),
        (lambda: ml.load_weights(compiled, pointer), "git lfs pull"),
        (lambda: ml.save(params, tmp_path / "no" / "x.safetensors"), "must exist"),
        (lambda: ml.save(params, tmp_path / "x.pt"), "x.pt.safetensors"),
        (lambda: ml.save(compiled, tmp_path / "x.safetensors"), "compiled.get_parameters()"),
        (lambda: ml.save([1, 2], tmp_path / "x.safetensors"), "a dict of arrays"),
        (lambda: ml.save(tmp_path / "x.safetensors", params), "it comes second"),
    ]:
        with pytest.raises(ml.errors.MithrilError) as problem:
            call()
        assert words in problem.value.hint, str(problem.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "i.json",
        "l.safetensors",
        "p.safetensors",
    ]


def test_what_is_not_loaded_is_drawn_as_usual():
    partly, usual = line(), line()
    ml.load_weights(partly, {"weight": np.ones((2, 3))}, strict=False)
    np.testing.assert_array_equal(partly.parameters["bias"], usual.parameters["bias"])
    open_model = ml.compile(ml.Linear(2), ml.NumpyBackend())
    ml.load_weights(open_model, {"weight": np.ones((2, 3)), "bias": np.ones(2)})
    np.testing.assert_array_equal(open_model(np.ones((1, 3), np.float32)), [[4, 4]])


def test_running_statistics_are_not_optional():
    compiled = ml.compile(resnet18(num_classes=5), ml.NumpyBackend(), shapes={"input": [1, 3, 32, 32]}, inference=True)
    state = {name: tensor for name, tensor in network().state_dict().items() if "running_var" not in name}
    with pytest.raises(ml.errors.ParameterError, match="20 missing"):
        ml.load_weights(compiled, state)


# --- layouts ----------------------------------------------------------------------------------------------------


def gpt():
    return ml.models.create_gpt(bias=True, block_size=8, dims=8, num_heads=2, num_layers=2, vocab_size=11)


@pytest.mark.parametrize("head", [True, False])
def test_layouts_are_found_and_written(tmp_path, head):
    transformers = pytest.importorskip("transformers", reason="needs transformers as the original")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    original = transformers.GPT2LMHeadModel(config).eval()
    # Some files hold the stack alone, whose names have no prefix.
    (original if head else original.transformer).save_pretrained(tmp_path)
    backend = ml.NumpyBackend()
    compiled = ml.compile(gpt(), backend, shapes={"input": [1, 8]}, inference=True)
    report = ml.load_weights(compiled, tmp_path)
    assert report.layout == "transformers"
    tokens = np.arange(8)[None]
    expected = original(torch.from_numpy(tokens)).logits.detach().numpy()
    np.testing.assert_allclose(compiled(tokens), expected, rtol=1e-4, atol=1e-5)

    # Matrices that the file has the other way round stay so in memory, but where training must be repeatable.
    name = "transformer.h.0.attn.c_attn.weight"
    assert compiled.parameters[name].T.flags.c_contiguous
    trained = ml.compile(gpt(), ml.TorchBackend(), shapes={"input": [1, 8]})
    ml.load_weights(trained, tmp_path)
    assert trained.parameters[name].is_contiguous()
    np.testing.assert_array_equal(trained.parameters[name], compiled.parameters[name])

    # The table of embeddings is the matrix of the output layer, too; a state dict holds both.
    state = original.state_dict()
    assert "lm_head.weight" in ml.load_weights(compiled, state).ignored
    with pytest.raises(ml.errors.ParameterError, match="unexpected: lm_head"):
        ml.load_weights(compiled, {**state, "lm_head.weight": state["lm_head.weight"] + 1})
    ml.load_weights(compiled, state)

    ml.save(compiled.parameters, tmp_path / "again.safetensors", layout="transformers")
    again = safetensors.torch.load_file(tmp_path / "again.safetensors")
    for name, tensor in original.transformer.state_dict().items():
        assert torch.equal(again[f"transformer.{name}"], tensor), name
    other = ml.compile(gpt(), backend, shapes={"input": [1, 8]}, inference=True)
    ml.load_weights(other, tmp_path / "again.safetensors", layout="transformers")
    np.testing.assert_array_equal(other(tokens), compiled(tokens))


def test_a_part_of_a_larger_model_is_found_or_named():
    transformers = pytest.importorskip("transformers", reason="needs transformers as the original")
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    state = transformers.GPT2LMHeadModel(config).state_dict()
    model = ml.Model()
    part = gpt()
    part.name = "net"
    model |= part(input="input", output="logits")
    whole = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 8]})
    report = ml.load_weights(whole, state)
    assert (report.prefix, report.layout, report.is_complete) == ("net", "transformers", True)
    expected = state["transformer.h.1.mlp.c_fc.weight"].numpy().T
    np.testing.assert_array_equal(whole.parameters["net.transformer.h.1.mlp.c_fc.weight"], expected)

    model |= ml.Linear(3, name="head")(input="logits", output="output")
    larger = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 8]})
    before = larger.parameters["head.weight"].copy()
    with pytest.raises(ml.errors.ParameterError, match=r"missing: head\.weight") as problem:
        ml.load_weights(larger, state)
    assert "prefix='net'" in problem.value.hint
    report = ml.load_weights(larger, state, prefix="net")
    assert report.is_complete
    assert "loaded into 'net'" in str(report)
    np.testing.assert_array_equal(larger.parameters["net.transformer.h.1.mlp.c_fc.weight"], expected)
    np.testing.assert_array_equal(larger.parameters["head.weight"], before)
    with pytest.raises(ml.errors.InvalidValueError, match="nett"):
        ml.load_weights(larger, state, prefix="nett")


def test_what_no_output_needs_is_not_asked_for():
    sizes = {"embed_dim": 16, "image_resolution": 16, "vision_layers": 1, "vision_width": 64, "vision_patch_size": 8}
    text = {"context_length": 8, "vocab_size": 20, "transformer_width": 32, "transformer_heads": 4}
    model = ml.models.clip(**sizes, **text, transformer_layers=1)
    backend = ml.NumpyBackend()
    whole = ml.compile(model, backend, shapes={"image": ["n", 3, 16, 16], "text": ["m", 8]}, inference=True)
    params = whole.get_parameters()
    rng = np.random.default_rng(0)
    data = {"image": rng.normal(size=(2, 3, 16, 16)).astype("float32"), "text": rng.integers(0, 20, (3, 8))}
    expected = whole.evaluate(params, data)
    for name, other in (("image", "text"), ("text", "image")):
        discarded = [key for key in model.output_keys if key != f"{name}_features"]
        tower = ml.compile(model, backend, discard_keys=discarded, inference=True)
        assert tower.input_keys == (name,)
        assert ("visual.proj" in tower.parameter_keys) is (name == "image")
        report = ml.load_weights(tower, dict(params))
        assert report.is_complete
        assert "logit_scale" in report.ignored
        tower.load_params(params)
        for inputs in ({name: data[name]}, data):
            actual = tower.evaluate({}, inputs)
            assert list(actual) == [f"{name}_features"]
            np.testing.assert_array_equal(actual[f"{name}_features"], expected[f"{name}_features"], err_msg=other)
