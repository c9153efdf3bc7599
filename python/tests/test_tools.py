"""The tools: check, compare, benchmark, find_nans, overview, command line."""

import mithril as ml
import pytest


def mlp():
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="hidden")
    model += ml.Gelu()
    model += ml.LayerNorm()
    model += ml.Linear(3)(output="output")
    return model


SHAPES = {"input": [4, 5]}

# --- check -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "mlx", "interpreter"])
def test_check_counts_every_use(name):
    result = ml.check(mlp(), name, SHAPES)
    assert result.ok
    assert {row.op: row.count for row in result} == {"linear": 2, "gelu": 1, "layer_norm": 1}
    assert len(result.native) + len(result.expanded) == len(result) == 3


def test_check_says_where_and_into_what():
    model = ml.Model()
    model |= ml.Dropout(0.5, name="noise")(input="input", output="output")
    result = ml.check(model, "numpy", {"input": [4]})
    [row] = result.expanded
    assert (row.op, row.path) == ("dropout", "noise")
    assert "random_bits" in row.into
    assert "test_tools.py" in row.where
    assert "| dropout | float32 | expanded into random_bits" in result.to_markdown()
    assert "dropout" in str(result)


def test_check_looks_at_gradients():
    plain, full = ml.check(mlp(), "numpy", SHAPES), ml.check(mlp(), "numpy", SHAPES, gradients=True)
    assert "matmul" not in {row.op for row in plain}
    assert "matmul" in {row.op for row in full}
    assert full.ok


def test_check_needs_shapes():
    with pytest.raises(ml.errors.UnresolvedShapeError, match="shapes"):
        ml.check(mlp(), "numpy")
