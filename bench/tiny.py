"""Flash and memory of small networks on a microcontroller: `python -m bench.tiny`.

The four networks of MLPerf Tiny (keywords, images, persons, anomalies) with random weights are exported as C with their
weights inside, and linked for a Cortex-M4F into a program that has nothing else: flash is code and constants, memory
the arena, input and output. Needs `arm-none-eabi-gcc` with newlib (`python -m portability Cortex` installs both); the
program itself is checked by that command, in QEMU.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

FLAGS = (
    *("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-std=c11", "-Os", "-ffp-contract=fast"),
    *("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "--specs=nosys.specs", "--specs=nano.specs"),
    *("-DMITHRIL_NO_MALLOC", "-DNDEBUG"),
)

PROGRAM = """\
#include "net.h"
_Alignas(64) static unsigned char arena[NET_ARENA_BYTES];
static float input[{inputs}], output[{outputs}];
int main(void) {{
  static const void *inputs[NET_INPUTS];
  for (int i = 0; i < NET_INPUTS; i++) inputs[i] = net_weights[i];
  inputs[NET_DATA_0] = input;
  void *outputs[] = {{output}};
  return net_run(inputs, outputs, {packed}, arena, 0);
}}
"""

QUANTIZED = (None, "int8_weights", "int8")


def networks() -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return the networks of MLPerf Tiny, and the shape of what they take."""
    from torch import nn

    def conv(start: int, end: int, size: Any, stride: Any = 1, groups: int = 1, padding: Any = None) -> Any:
        padding = size // 2 if padding is None else padding
        layers = [
            nn.Conv2d(start, end, size, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(end),
            nn.ReLU(),
        ]
        return nn.Sequential(*layers)

    def separable(start: int, end: int, stride: int = 1) -> Any:
        return nn.Sequential(conv(start, start, 3, stride, start), conv(start, end, 1))

    class Residual(nn.Module):  # type: ignore[misc]
        def __init__(self, start: int, end: int, stride: int) -> None:
            super().__init__()
            self.left = nn.Sequential(
                conv(start, end, 3, stride), nn.Conv2d(end, end, 3, padding=1), nn.BatchNorm2d(end)
            )
            self.right = nn.Identity() if start == end else nn.Conv2d(start, end, 1, stride)

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.left(x) + self.right(x))

    def classifier(channels: int, classes: int) -> list[Any]:
        return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes), nn.Softmax(-1)]

    keywords = nn.Sequential(
        conv(1, 64, (10, 4), 2, padding=(5, 1)), *(separable(64, 64) for _ in range(4)), *classifier(64, 12)
    )
    images = nn.Sequential(
        conv(3, 16, 3), Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2), *classifier(64, 10)
    )
    widths = [(8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
    widths += [(128, 128, 1)] * 5 + [(128, 256, 2), (256, 256, 1)]
    persons = nn.Sequential(conv(3, 8, 3, 2), *(separable(*width) for width in widths), *classifier(256, 2))
    sizes = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640]
    layers: list[Any] = []
    for start, end in itertools.pairwise(sizes):
        layers += [nn.Linear(start, end), nn.BatchNorm1d(end), nn.ReLU()]
    anomalies = nn.Sequential(*layers[:-2])
    return {
        "keywords (DS-CNN)": (keywords, (1, 1, 49, 10)),
        "images (ResNet-8)": (images, (1, 3, 32, 32)),
        "persons (MobileNetV1 0.25)": (persons, (1, 3, 96, 96)),
        "anomalies (autoencoder)": (anomalies, (1, 640)),
    }


def measure(module: Any, shape: tuple[int, ...], quantize: str | None) -> tuple[int, int, float]:
    """Return bytes of flash and of memory, and how far outputs are from float32, in parts of the largest."""
    import mithril as ml
    import numpy as np
    import torch

    x = torch.randn(shape)
    with torch.inference_mode():
        expected = module(x).numpy()
    model, params = ml.from_torch(module, (x,))
    compiled = ml.compile(model, ml.CBackend(quantize=quantize), inference=True)
    compiled.load_params(params)
    name = next(key for key in model.input_keys if key not in params)
    output = next(iter(compiled.evaluate({}, {name: x.numpy()}).values()))
    distance = float(np.abs(output - expected).max() / np.abs(expected).max())
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        compiled.export(folder, prefix="net", lanes=1, params=params, weights_inside=True)
        header = (folder / "net.h").read_text()
        packed = "net_packed" if "net_packed[" in header else "0"
        text = PROGRAM.format(inputs=x.numel(), outputs=expected.size, packed=packed)
        (folder / "program.c").write_text(text)
        sources = [str(folder / "program.c"), str(folder / "net.c")]
        command = ["arm-none-eabi-gcc", *FLAGS, *sources, "-o", str(folder / "program"), "-lm"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        sizes = subprocess.run(
            ["arm-none-eabi-size", str(folder / "program")], check=True, capture_output=True, text=True
        ).stdout.splitlines()[1]
    code, data, zeros = map(int, sizes.split()[:3])
    return code + data, data + zeros, distance


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.tiny", description=__doc__)
    parser.parse_args()
    if shutil.which("arm-none-eabi-gcc") is None:
        parser.exit(1, "there is no arm-none-eabi-gcc: python -m portability Cortex installs it\n")
    import torch

    print("| network | weights | flash, KB | memory, KB | error |")
    print("|---|---|---|---|---|")
    for name, (module, shape) in networks().items():
        torch.manual_seed(0)
        for layer in module.modules():
            if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
                torch.nn.init.uniform_(layer.running_var, 0.5, 1.5)
        for quantize in QUANTIZED:
            flash, memory, distance = measure(module.eval(), shape, quantize)
            print(
                f"| {name} | {quantize or 'float32'} | {flash / 1e3:.1f} | {memory / 1e3:.1f} | {distance:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
