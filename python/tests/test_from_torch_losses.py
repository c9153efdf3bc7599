"""Losses of PyTorch that are written in other functions when they are imported: CTC, and Gaussian likelihoods."""

import mithril as ml
import numpy as np
import pytest
from torch_common import check_import

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
STEPS, BATCH, CLASSES = 9, 3, 6
#: Labels that repeat need a blank between them; what stands behind the length of a row is padding.
TARGETS = torch.tensor([[2, 2, 2, 1, 1], [1, 4, 3, 3, 5], [5, 1, -1, 9, 0]])


class Speech(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.linear, self.loss = nn.Linear(4, CLASSES), nn.CTCLoss(**options)

    def forward(self, x, targets, lengths, target_lengths):
        return self.loss(self.linear(x).log_softmax(-1), targets, lengths, target_lengths)


class Fixed(Speech):
    """Lengths that are numbers, and targets one after another."""

    def forward(self, x, targets):
        return self.loss(self.linear(x).log_softmax(-1), targets, [9, 8, 9], (3, 1, 2))


class Single(Speech):
    def forward(self, x, targets):
        return self.loss(self.linear(x).log_softmax(-1), targets, (x.shape[0],), (targets.shape[0],))


def rows(lengths=(9, 6, 8), target_lengths=(3, 5, 2)):
    return torch.randn(STEPS, BATCH, 4), TARGETS, torch.tensor(lengths), torch.tensor(target_lengths)


CASES = {
    "mean": lambda: (Speech(), rows()),
    "sum": lambda: (Speech(reduction="sum", blank=5), (rows()[0], TARGETS.clamp(0, 4), *rows()[2:])),
    "none": lambda: (Speech(reduction="none"), rows(target_lengths=(3, 5, 0))),
    # Three labels that repeat need five steps.
    "impossible": lambda: (Speech(reduction="none", zero_infinity=True), rows(lengths=(4, 6, 8))),
    "fixed": lambda: (Fixed(), (torch.randn(STEPS, BATCH, 4), torch.tensor([1, 1, 2, 4, 5, 5]))),
    "packed": lambda: (
        Speech(),
        (torch.randn(STEPS, BATCH, 4), torch.tensor([1, 1, 2, 4, 5, 5]), *rows(target_lengths=(3, 1, 2))[2:]),
    ),
    "single": lambda: (Single(reduction="none"), (torch.randn(7, 4), TARGETS[1, :3])),
}


@pytest.mark.parametrize("backend", ["numpy", "c"])
@pytest.mark.parametrize("name", CASES)
def test_ctc(name, backend):
    torch.manual_seed(8)
    check_import(*CASES[name](), ml.get_backend(backend))


def test_what_has_no_alignment_is_infinite():
    torch.manual_seed(8)
    module, args = Speech(reduction="none"), rows(lengths=(4, 6, 8))
    model, params = ml.from_torch(module, args)
    data = dict(zip([key for key in model.input_keys if key not in params], (x.numpy() for x in args), strict=True))
    results = ml.compile(model, ml.NumpyBackend()).evaluate(params, data)
    assert np.isposinf(results["output"][0])
    np.testing.assert_allclose(results["output"], module(*args).detach(), rtol=1e-5)


class Likelihood(nn.Module):
    def __init__(self, options, is_one=False):
        super().__init__()
        self.linear, self.options, self.is_one = nn.Linear(4, 6), options, is_one

    def forward(self, x, target):
        mean, width = self.linear(x).chunk(2, -1)
        variance = width.exp()
        return F.gaussian_nll_loss(mean, target, variance[:, 0] if self.is_one else variance, **self.options)


@pytest.mark.parametrize("backend", ["numpy", "c"])
@pytest.mark.parametrize(
    "module",
    [lambda: Likelihood({}), lambda: Likelihood({"full": True, "reduction": "sum", "eps": 0.9}, is_one=True)],
)
def test_gaussian_likelihood(module, backend):
    torch.manual_seed(9)
    check_import(module(), (torch.randn(5, 4), torch.randn(5, 3)), ml.get_backend(backend))
