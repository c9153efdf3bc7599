"""Complex tensors at the edges of a module of PyTorch: parameters, inputs and outputs."""

import mithril as ml
import pytest
from mithril.errors import UnsupportedOpError
from torch_common import check_import

torch = pytest.importorskip("torch")
nn = torch.nn


class Spectrum(nn.Module):
    """A complex parameter, as Fourier neural operators have it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.weight = nn.Parameter(torch.randn(3, 4, dtype=torch.cfloat))
        self.inner = nn.Module()
        self.inner.weight = nn.Parameter(torch.randn(4, dtype=torch.cfloat).conj())

    def forward(self, x):
        return torch.fft.irfft((torch.fft.rfft(x)[..., :4] * self.weight).cumsum(-1) * self.inner.weight, n=6)


@pytest.mark.parametrize("backend", ["numpy", "c"])
def test_complex_parameters_are_their_parts(backend):
    module, x = Spectrum(), torch.randn(2, 3, 6)
    _, params = ml.from_torch(module, (x,))
    assert {name: value.shape for name, value in params.items()} == {"weight": (3, 4, 2), "inner.weight": (4, 2)}
    check_import(module, (x,), ml.get_backend(backend))


def test_what_stays_complex_is_an_error():
    class Module(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def forward(self, x):
            return self.function(x)

    pairs = torch.ones(3, 2)
    with pytest.raises(UnsupportedOpError, match=r"the output `output` is complex(?s:.*)view_as_real"):
        ml.from_torch(Module(torch.view_as_complex), (pairs,))
    with pytest.raises(UnsupportedOpError, match=r"the input `x` is complex(?s:.*)view_as_real"):
        ml.from_torch(Module(torch.abs), (torch.view_as_complex(pairs),))
    with pytest.raises(UnsupportedOpError, match=r"aten.sin.default` \(of complex numbers\)"):
        ml.from_torch(Module(lambda x: torch.view_as_real(torch.view_as_complex(x).sin())), (pairs,))
