"""Files of ``torch.export``: read without PyTorch's pickles, and hostile ones run nothing."""

import io
import json
import os
import random
import zipfile

import mithril as ml
import numpy as np
import pytest

torch = pytest.importorskip("torch")
import export_files as files  # noqa: E402

# Many more were tried once, with other seeds.
MUTANTS = 4000 if os.environ.get("MITHRIL_TEST_ALL") else 150


@pytest.fixture(scope="module")
def programs():
    torch.manual_seed(0)
    return files.programs()


@pytest.fixture
def canary(tmp_path):
    """The path of a file that hostile files make, which is looked for at the end."""
    path = tmp_path / "canary"
    yield str(path)
    assert not path.exists(), "something in a file was run"


def written(tmp_path, data):
    path = tmp_path / "model.pt2"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("layout", [files.saved, files.legacy])
@pytest.mark.parametrize("name", ["tied", "buffers", "fixed", "sized", "branching", "half"])
def test_a_file_is_the_program(tmp_path, programs, name, layout):
    program, args, kwargs = programs[name]
    path = written(tmp_path, layout(program))
    model, params = ml.from_torch(path)
    if layout is files.saved:
        # They are views of the file.
        assert not any(value.flags.owndata for value in params.values())
    compiled = ml.compile(model, ml.NumpyBackend())
    inputs = [
        x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()
        for x in torch.utils._pytree.tree_leaves((args, kwargs))
    ]
    names = [key for key in model.input_keys if key not in params]
    actual = compiled.evaluate(params, dict(zip(names, inputs, strict=True)))
    expected = torch.utils._pytree.tree_leaves(program.module()(*args, **kwargs))
    for ours, right in zip(actual.values(), expected, strict=True):
        tolerance = 1e-2 if name == "half" else 1e-6
        np.testing.assert_allclose(np.asarray(ours, np.float32), right.detach().float().numpy(), rtol=0, atol=tolerance)
    assert set(params) <= set(program.state_dict)


def test_names_of_open_sizes_and_outputs_are_kept(tmp_path, programs):
    model, _ = ml.from_torch(written(tmp_path, files.saved(programs["buffers"][0])))
    assert list(model.output_keys) == ["sum", "rest_0", "rest_1"]
    model, params = ml.from_torch(written(tmp_path, files.saved(programs["sized"][0])))
    compiled = ml.compile(model, ml.NumpyBackend())
    for rows, columns in [(2, 3), (5, 8)]:
        assert compiled.evaluate(params, {"x": np.ones((rows, columns), np.float32)})["output"].shape == (2 * rows,)


def test_pickles_are_not_run(tmp_path, programs, canary):
    program, _, _ = programs["tied"]
    buffer = io.BytesIO()
    torch.save(files.Runs(f"touch {canary}"), buffer)
    # What is not needed is not read.
    parts = files.members(files.saved(program))
    for name in parts:
        if "sample_inputs" in name:
            parts[name] = buffer.getvalue()
    for load in (ml.from_torch, ml.load):
        model, _ = load(written(tmp_path, files.packed(parts)))
        assert list(model.output_keys) == ["output"]
    parts = files.members(files.legacy(program))
    for name in parts:
        if name.endswith("weights/model.pt"):
            parts[name] = buffer.getvalue()
    with pytest.raises(ml.errors.ModelFileError, match=r"weights/model\.pt"):
        ml.from_torch(written(tmp_path, files.packed(parts)))


def places(tree, path=()):
    """Paths of all texts and keys in JSON."""
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        if isinstance(tree[key], str):
            yield (*path, key), False
        if isinstance(tree, dict):
            yield (*path, key), True
        yield from places(tree[key], (*path, key))


def test_texts_of_a_program_are_not_evaluated(tmp_path, programs, canary):
    """Every kind of text in the JSON of a program becomes an attack."""
    attacks = files.attacks(canary)
    count = len(attacks) if os.environ.get("MITHRIL_TEST_ALL") else 2
    seen = set()
    for name in ("fixed", "sized"):
        parts = files.members(files.saved(programs[name][0]))
        (member,) = [n for n in parts if "/models/" in n]
        text = parts[member]
        values = set(json.loads(text)["graph_module"]["graph"]["tensor_values"])
        for path, is_key in places(json.loads(text)):
            # What is the name of a value tells nothing of the kind.
            kind = (tuple("" if isinstance(key, int) or key in values else key for key in path[-2:]), is_key)
            if kind in seen or path[-1] == "torch_version":
                continue
            seen.add(kind)
            for attack in (attacks * 2)[len(seen) * count % len(attacks) :][:count]:
                tree = json.loads(text)
                owner = tree
                for key in path[:-1]:
                    owner = owner[key]
                if is_key:
                    owner[attack] = owner.pop(path[-1])
                else:
                    owner[path[-1]] = attack
                file = written(tmp_path, files.packed({**parts, member: json.dumps(tree)}))
                try:
                    ml.from_torch(file)
                except ml.errors.MithrilError as error:
                    assert "internal" not in str(error)
                assert not os.path.exists(canary), (path, attack)
    assert len(seen) > 40


def test_mutants_are_errors_or_models(tmp_path, programs, canary):
    begin = [layout(program) for program, _, _ in programs.values() for layout in (files.saved, files.legacy)]
    mutants = files.Mutants(begin, canary, random.Random(5))
    models = 0
    for _ in range(MUTANTS):
        file = written(tmp_path, mutants.next())
        try:
            ml.from_torch(file)
            models += 1
        except ml.errors.MithrilError as error:
            assert "internal" not in str(error)
        assert not os.path.exists(canary)
    assert 0 < models < MUTANTS / 2


def changed(program, path, value):
    """Write the file of a program with another value in its JSON."""
    parts = files.members(files.saved(program))
    (member,) = [n for n in parts if "/models/" in n]
    tree = json.loads(parts[member])
    owner = tree
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    return files.packed({**parts, member: json.dumps(tree)})


GRAPH = ("graph_module", "graph")


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ((*GRAPH, "tensor_values", "relu", "sizes", 1, "as_int"), 5, "relu has another shape"),
        ((*GRAPH, "tensor_values", "relu", "dtype"), 8, "relu has another shape or dtype"),
        ((*GRAPH, "tensor_values", "p_0_weight", "sizes", 1, "as_int"), 5, "0.weight' does not have the shape"),
        ((*GRAPH, "nodes", 0, "target"), "torch.ops.load_library", "is not an op"),
        ((*GRAPH, "nodes", 0, "surprise"), 3, "of a newer PyTorch"),
    ],
)
def test_programs_that_contradict_themselves(tmp_path, programs, path, value, reason):
    with pytest.raises(ml.errors.ModelFileError, match=reason):
        ml.from_torch(written(tmp_path, changed(programs["tied"][0], path, value)))


def test_ops_that_could_do_anything_are_missing_ones(tmp_path, programs):
    file = changed(programs["tied"][0], (*GRAPH, "nodes", 1, "target"), "torch.ops.aten.from_file.default")
    with pytest.raises(ml.errors.UnsupportedOpError, match=r"`aten\.from_file\.default`, once in `1` at"):
        ml.from_torch(written(tmp_path, file))


def test_archives_that_are_not_programs(tmp_path, programs):
    good = files.members(files.saved(programs["tied"][0]))
    root = next(iter(good)).partition("/")[0]
    cases = {
        "compiled for one machine": files.packed({**good, f"{root}/data/aotinductor/model/x.so": b"\x7fELF"}),
        "compressed": files.packed(good, zipfile.ZIP_DEFLATED),
        "two members": files.packed([*good.items(), (f"{root}/archive_format", b"pt2")]),
        "has a member": files.packed({**good, f"{root}/../../x": b""}),
        "not a zip": b"no archive",
        "damaged": files.saved(programs["tied"][0])[:1000],
    }
    for reason, data in cases.items():
        with pytest.raises(ml.errors.ModelFileError, match=reason):
            ml.from_torch(written(tmp_path, data))


def test_other_files_of_pytorch(tmp_path, recwarn):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(ml.errors.ModelFileError, match=r"pickle of torch\.save(.|\n)*may run code"):
        ml.from_torch(tmp_path / "module.pt")
    assert not recwarn


def test_calls_of_vmap_are_resolved_before_they_are_written(tmp_path):
    class Rows(torch.nn.Module):
        def forward(self, x):
            return torch.vmap(lambda row: row.softmax(0) * torch.vmap(torch.sin)(row))(x)

    x = torch.randn(4, 3)
    program = torch.export.export(Rows(), (x,))
    with pytest.raises(ml.errors.ModelFileError, match=r"(?s)holds calls of torch.vmap.*run_decompositions"):
        ml.from_torch(written(tmp_path, files.saved(program)))
    model, params = ml.from_torch(written(tmp_path, files.saved(program.run_decompositions({}))))
    outputs = ml.compile(model, ml.NumpyBackend()).evaluate(params, {model.input_keys[0]: x.numpy()})
    np.testing.assert_allclose(outputs[model.output_keys[0]], Rows()(x).numpy(), rtol=1e-6)
