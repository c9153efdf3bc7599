"""Tensors that are written piece by piece, as by `x[i] = …` in a loop: values in C, and how long the code becomes."""

import mithril as ml
import numpy as np
import pytest

torch = pytest.importorskip("torch")


class Substitution(torch.nn.Module):
    """Rows of a triangular system, each from those before: the loop of attention in chunks."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x):
        x = x.clone()
        for i in range(1, self.count):
            row = x[..., i, :i].clone()
            x[..., i, :i] = row + (row.unsqueeze(-1) * x[..., :i, :i].clone()).sum(-2)
        return x


def compiled(count, backend, **options):
    module = Substitution(count)
    example = torch.randn(2, count, count, generator=torch.Generator().manual_seed(0)) * 0.3
    model, _ = ml.from_torch(module, (example,))
    return ml.compile(model, backend, shapes={"x": list(example.shape)}, **options), module, example


@pytest.mark.parametrize("name", ["numpy", "c"])
def test_values_and_gradients(name):
    backend = ml.get_backend(name)
    program, module, example = compiled(12, backend)
    example = example.requires_grad_()
    expected = module(example)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    output = program.evaluate({}, {"x": example.detach().numpy()})["output"]
    np.testing.assert_allclose(output, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    (expected * weights).sum().backward()
    model, _ = ml.from_torch(module, (example.detach(),))
    trained = ml.compile(ml.Model.create(output=model(ml.IOKey("x", shape=[2, 12, 12], trainable=True))), backend)
    _, gradients = trained.evaluate({"x": example.detach().numpy()}, {}, {"output": weights.numpy()})
    np.testing.assert_allclose(gradients["x"], example.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_the_code_of_a_piece_is_short():
    # Each element was read through conditions for all pieces before it: 4,600 to 7,200 characters for each piece.
    assert len(compiled(32, ml.CBackend())[0].source) < 32 * 3000
