"""Donated data: its memory is taken over where nothing else reads it, and results are right wherever something does."""

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import IOKey, Model
from mithril.errors import ConflictingOptionError, InvalidValueError, KeyNotFoundError, MithrilError
from mithril.generation import compile_decoder
from mithril.models import create_gpt

SLOTS = np.array([3, -1])


def writer(further=None):
    """Write `new` into the slots of `past`; `further` makes another output of `past` and the result."""
    past = IOKey("past", shape=[2, 5, 3])
    slots, new = IOKey("slots", shape=[2], dtype="int64"), IOKey("new", shape=[2, 2, 3])
    written = past.index_copy(slots, new, 1)
    return Model.create(written=written, **({} if further is None else {"further": further(past, written)}))


def arrays():
    rng = np.random.default_rng(0)
    past, new = rng.normal(size=(2, 5, 3)).astype("float32"), rng.normal(size=(2, 2, 3)).astype("float32")
    expected = past.copy()
    expected[:, SLOTS] = new
    return past, new, expected


def compiled(model, backend, **options):
    data = list(model.input_keys)
    return ml.compile(model, backend, data_keys=data, inference=True, donate=["past"], **options)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "mlx"])
def test_the_memory_is_taken_where_nothing_else_reads_it(name):
    backend = ml.backends.get_backend(name)
    past, new, expected = (backend.array(array) for array in arrays())
    actual = compiled(writer(), backend).evaluate({}, {"past": past, "slots": SLOTS, "new": new})["written"]
    np.testing.assert_array_equal(backend.to_numpy(actual), backend.to_numpy(expected))
    if name in ("numpy", "torch"):
        assert actual is past
    else:
        np.testing.assert_array_equal(backend.to_numpy(past), arrays()[0])


READERS = {
    "before": lambda past, written: past * 2,
    "behind": lambda past, written: written - past,
    "view": lambda past, written: past.transpose((0, 2, 1)),
    "itself": lambda past, written: past.reshape((2, 5, 3)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("backend", [ml.NumpyBackend(), ml.TorchBackend()], ids=["numpy", "torch"])
def test_the_memory_is_left_where_something_else_reads_it(backend, reader):
    past, new, expected = arrays()
    model = compiled(writer(READERS[reader]), backend)
    past_array = backend.array(past)
    actual = model.evaluate({}, {"past": past_array, "slots": SLOTS, "new": new})
    np.testing.assert_array_equal(backend.to_numpy(actual["written"]), expected)
    np.testing.assert_array_equal(backend.to_numpy(past_array), past)
    plain = ml.compile(writer(READERS[reader]), backend, data_keys=["past", "slots", "new"], inference=True)
    other = plain.evaluate({}, {"past": past, "slots": SLOTS, "new": new})
    np.testing.assert_array_equal(backend.to_numpy(actual["further"]), backend.to_numpy(other["further"]))


@pytest.mark.parametrize("name", ["numpy", "torch", "c"])
def test_an_export_records_the_data_before_the_call(name, tmp_path):
    """The reference writes into what is donated: the file of the check has to hold what was there before."""
    past, new, expected = arrays()
    model = compiled(writer(), ml.backends.get_backend(name))
    data = {"past": past.copy(), "slots": SLOTS, "new": new}
    assert model.export(tmp_path, data=data).check.endswith("ok\n")
    np.testing.assert_array_equal(data["past"], past)
    order = sorted(data, key=model.input_keys.index)
    recorded = b"".join(data[key].tobytes() for key in order) + expected.tobytes()
    assert (tmp_path / "model.check").read_bytes() == recorded


def shared(past, new):
    """Memory that a program must not write, or that other data is in too: past and new."""
    whole = np.zeros(60, "float32")
    whole[:30], whole[20:32] = past.ravel(), new.ravel()
    yield "overlapping", whole[:30].reshape(past.shape), whole[20:32].reshape(new.shape)
    locked = past.copy()
    locked.flags.writeable = False
    yield "read-only", locked, new
    yield "repeated", np.broadcast_to(past[:1], past.shape), new
    yield "strided", np.asfortranarray(past), new


def test_memory_that_is_not_free_is_copied():
    model = compiled(writer(), ml.NumpyBackend())
    native = compiled(writer(), ml.TorchBackend())
    for label, past, new in shared(*arrays()[:2]):
        before, expected = past.copy(), past.copy()
        expected[:, SLOTS] = new
        actual = model.evaluate({}, {"past": past, "slots": SLOTS, "new": new})["written"]
        np.testing.assert_array_equal(actual, expected, err_msg=label)
        np.testing.assert_array_equal(past, before, err_msg=label)
        if label == "read-only":  # PyTorch has no such memory.
            continue
        past = torch.from_numpy(past) if label != "repeated" else torch.from_numpy(before[:1]).expand(2, 5, 3)
        data = {"past": past, "slots": torch.from_numpy(SLOTS), "new": torch.from_numpy(new)}
        np.testing.assert_array_equal(native.evaluate({}, data)["written"].numpy(), expected, err_msg=label)
        np.testing.assert_array_equal(past.numpy(), before, err_msg=label)


def test_memory_of_the_call_before_is_looked_at_beside_other_data():
    model = compiled(writer(), ml.NumpyBackend())
    whole = np.zeros(60, "float32")
    past, new = whole[:30].reshape(2, 5, 3), np.ones((2, 2, 3), "float32")
    for other, is_kept in ((new, True), (new, True), (whole[24:36].reshape(2, 2, 3), False), (new, True)):
        output = model.evaluate({}, {"past": past, "slots": SLOTS, "new": other})["written"]
        assert (output is past) == is_kept
    past.flags.writeable = False
    assert model.evaluate({}, {"past": past, "slots": SLOTS, "new": new})["written"] is not past


def test_ggml_stops_at_a_position_that_is_not_there():
    model = compiled(writer(), ml.GGMLBackend())
    past, new, expected = arrays()
    before = past.copy()
    with pytest.raises(MithrilError, match="index_copy is given index 5, but the axis has size 5"):
        model.evaluate({}, {"past": past, "slots": np.array([0, 5]), "new": new})
    np.testing.assert_array_equal(past, before)
    actual = model.evaluate({}, {"past": past, "slots": SLOTS, "new": new})["written"]
    np.testing.assert_array_equal(actual, expected)


def test_a_decoder_keeps_its_caches_in_place():
    sizes = {"block_size": 16, "dims": 8, "num_heads": 2, "num_layers": 2, "vocab_size": 10}
    model = compile_decoder(create_gpt(**sizes, cache=True), ml.TorchBackend())
    caches = {name: torch.zeros(1, 2, 16, 4) for name in model.input_keys if name.startswith("past_")}
    data = {"input": [[1, 2]], "position": 0, "padding": [0], **caches}
    outputs = model.evaluate(model.get_parameters(), data)
    assert len(caches) == 4
    for name, cache in caches.items():
        assert outputs[name.removeprefix("past_")] is cache
        assert cache[:, :, :2].abs().min() > 0
        assert cache[:, :, 2:].abs().max() == 0


def test_what_cannot_be_donated():
    backend = ml.NumpyBackend()
    with pytest.raises(ConflictingOptionError, match="inference"):
        ml.compile(writer(), backend, donate=["past"])
    with pytest.raises(KeyNotFoundError, match="'past'"):
        ml.compile(writer(), backend, inference=True, donate=["pats"])
    with pytest.raises(InvalidValueError, match="is not a data input"):
        ml.compile(ml.Linear(2), backend, inference=True, donate=["weight"])
    with pytest.raises(ConflictingOptionError, match="pure"):
        _ = compiled(writer(), backend).function
