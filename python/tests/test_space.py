"""Images that are divided in space: rows are exchanged where windows cross the cuts, and nothing is gathered.

`mesh_program.py` runs the same on the processes of every engine.
"""

import image_models
import mithril as ml
import pytest
from image_models import worst

BUILDS = [image_models.resnet, image_models.unet]
SPACES = [(ml.Mesh(rows=2), (None, None, "rows")), (ml.Mesh(rows=2, columns=2), (None, None, "rows", "columns"))]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(("mesh", "spec"), SPACES)
def test_networks_for_images_are_those_of_one_device(build, mesh, spec):
    model, data = build()
    shapes = {name: list(array.shape) for name, array in data.items()}
    single = ml.compile(model, ml.NumpyBackend(dtype="float64"), shapes=shapes)
    params = single.randomize_params(seed=1)
    expected = single.evaluate(params, data, output_gradients=True)
    backend = ml.InterpreterBackend(dtype="float64")
    divided = ml.compile(model, backend, shapes=shapes, layout=ml.Layout(mesh, {"input": spec}))
    actual = divided.evaluate(params, data, output_gradients=True)
    for ours, theirs in zip(actual, expected, strict=True):
        assert worst(ours, theirs) < 1e-12
    # Sums are those of gradients, of the statistics of batch norms, and of the mean over the image.
    assert {c.op for c in divided.parallel_plan.communications} == {"collective_permute", "all_reduce"}


def test_the_strategy_is_the_layout_and_is_found_where_it_is_cheapest():
    model = ml.Model()
    model |= ml.Conv2d(8, 3, padding=1, name="first")(input="input")
    model += ml.Relu()
    model += ml.Conv2d(8, 3, padding=1, name="second")(output="output")
    shapes = {"input": [1, 3, 256, 256]}
    mesh = ml.Mesh(rows=2, columns=2)
    named = ml.plan(model, mesh, shapes=shapes, strategy=dict.fromkeys(mesh.axes, "spatial_parallel"))
    spelled = ml.plan(model, ml.Layout(mesh, {"input": (None, None, "rows", "columns")}), shapes=shapes)
    assert named.communications == spelled.communications
    # One image does not divide by its batch, and its features are larger than the weights.
    large = {"input": [1, 3, 2048, 2048]}
    found = ml.plan(model, ml.Mesh(rows=4), shapes=large, strategy="auto", hardware="a100", gradients=True)
    assert found.shapes["input"] == (1, 3, 512, 2048), found
    with pytest.raises(ml.errors.MithrilError, match="along axis 2, and the data has at most 2 axes"):
        ml.plan(ml.Linear(4), ml.Mesh(rows=2), shapes={"input": [4, 8]}, strategy="spatial_parallel")


def test_a_plan_says_why_an_image_is_gathered():
    model = ml.Model()
    model |= ml.Conv2d(4, 3, padding=1, bias=False, name="even")(input="input")
    model += ml.Conv2d(4, 3, stride=2, padding=1, bias=False, name="odd")
    layout = ml.Layout(ml.Mesh(rows=2), {"input": (None, None, "rows")})
    text = str(ml.plan(model, layout, shapes={"input": [2, 3, 14, 14]}))
    why = "7 elements along axis 2 of its result do not divide among 2 devices along `rows`"
    assert f"odd is computed whole: {why}" in text, text
    assert "even is" not in text


def test_a_convolution_and_its_gradient_send_each_border_once():
    model = ml.Model()
    model |= ml.Conv2d(4, 3, padding=1, bias=False, name="first")(input="input", output="hidden")
    model |= ml.Conv2d(4, 3, padding=1, bias=False, name="second")(input="hidden", output="output")
    layout = ml.Layout(ml.Mesh(rows=4), {"input": (None, None, "rows")})
    plan = ml.plan(model, layout, shapes={"input": [2, 3, 64, 32]}, gradients=True)
    sent = [c.bytes for c in plan.communications if c.op == "collective_permute"]
    # A row to each side: of the input, of the features between the layers, and of their gradient.
    assert sorted(sent) == [2 * 3 * 32 * 4] * 2 + [2 * 4 * 32 * 4] * 4
    assert plan.shapes["input"] == (2, 3, 16, 32)
