"""Ops of torchvision: values and gradients are those of its own kernels."""

import mithril as ml
import pytest
from mithril.errors import UnsupportedOpError
from torch_common import check_import

torch = pytest.importorskip("torch")
ops = pytest.importorskip("torchvision").ops
nn = torch.nn


class Deformed(nn.Module):
    """A convolution whose offsets, and masks, are convolutions themselves."""

    def __init__(self, groups=1, offset_groups=1, geometry=(1, 1, 1), has_mask=True, has_bias=True):
        super().__init__()
        self.geometry, self.split = geometry, 18 * offset_groups
        self.places = nn.Conv2d(4, 27 * offset_groups, 3, *geometry)
        self.weight = nn.Parameter(torch.randn(6, 4 // groups, 3, 3))
        self.bias = nn.Parameter(torch.randn(6)) if has_bias else None
        self.has_mask = has_mask

    def forward(self, x):
        offset, mask = self.places(x).tensor_split((self.split,), 1)
        mask = mask.sigmoid() if self.has_mask else None
        return ops.deform_conv2d(x, 3 * offset, self.weight, self.bias, *self.geometry, mask=mask)


class Regions(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.conv, self.options = nn.Conv2d(3, 4, 3, padding=1), options

    def forward(self, x, regions):
        return ops.roi_align(self.conv(x), regions, **self.options)


#: Within the image, across its edges, smaller than an element, and larger than the image.
REGIONS = torch.tensor(
    [[0, 1, 2, 15, 17], [1, 4, 4, 20, 11], [1, -3, -5, 24, 26], [0, 5, 5, 5.5, 5.2], [0, 9, 9, 9, 9]]
)
CASES = {
    "masked": lambda: (Deformed(), (torch.randn(2, 4, 8, 7),)),
    "grouped": lambda: (Deformed(2, 2), (torch.randn(2, 4, 8, 7),)),
    "strided": lambda: (Deformed(1, 4, ((2, 1), (2, 0), (2, 1)), False, False), (torch.randn(1, 4, 9, 8),)),
    "samples": lambda: (Regions(output_size=(3, 2), spatial_scale=0.5, sampling_ratio=2, aligned=True), images()),
    "adaptive": lambda: (Regions(output_size=(2, 5), spatial_scale=0.5), images()),
    "aligned": lambda: (Regions(output_size=7, spatial_scale=1.0, aligned=True), images()),
}


def images():
    return torch.randn(2, 3, 12, 10), REGIONS


@pytest.mark.parametrize("backend", ["numpy", "c"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_torchvision(name, backend):
    torch.manual_seed(7)
    check_import(*CASES[name](), ml.get_backend(backend), atol=1e-4)


def test_what_depends_on_data_is_refused():
    class Chosen(nn.Module):
        def forward(self, boxes, scores):
            return boxes[ops.nms(boxes, scores, 0.5)]

    with pytest.raises(UnsupportedOpError, match="nms"):
        ml.from_torch(Chosen(), (REGIONS[:, 1:], torch.rand(5)))
