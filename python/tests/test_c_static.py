"""Exported C on memory that is known when it is compiled: constants for the weights, arrays for the rest, no heap."""

import shutil
import subprocess

import mithril as ml
import numpy as np
import pytest

PROGRAM = """\
#include <stdio.h>
#include "net.h"

_Alignas(64) static unsigned char arena[NET_ARENA_BYTES];
static float input[192], output[5];

int main(void) {
  const void *inputs[NET_INPUTS];
  for (int i = 0; i < NET_INPUTS; i++) inputs[i] = net_weights[i];
  for (int i = 0; i < 192; i++) input[i] = (float)i / 192;
  inputs[NET_DATA_0] = input;
  void *outputs[] = {output};
  if (net_arena_bytes(1) > sizeof arena || net_packed_bytes() > NET_PACKED_BYTES) return 2;
  int code = net_run(inputs, outputs, net_packed, arena, NULL);
  if (code) return puts(net_error(code)), 1;
  for (int i = 0; i < 5; i++) printf("%.9g ", output[i]);
  return 0;
}
"""


SIZES = {"batch_arena": 1, "arena": 1, "packed": "", "pack": ""}


def network():
    model = ml.Model()
    model |= ml.Conv2d(8, 3, padding=1)(input="input", output="first")
    model += ml.BatchNorm2d(8)()
    model += ml.Relu()()
    model += ml.Flatten()()
    model += ml.Linear(32)()
    model += ml.Relu()()
    model += ml.Linear(5)(output="output")
    return model


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("quantize", [None, "int8_weights", "int8", "int4_weights"])
def test_packed_weights_are_constants(tmp_path, quantize, lanes):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    compiled = ml.compile(network(), ml.CBackend(quantize=quantize), shapes={"input": [1, 3, 8, 8]}, inference=True)
    params = compiled.randomize_params(seed=0)
    exported = compiled.export(tmp_path, prefix="net", params=params, weights_inside=True, lanes=lanes)
    assert exported.packed_bytes > 0
    (tmp_path / "program.c").write_text(PROGRAM)
    command = [
        compiler,
        "-O1",
        "-std=c11",
        "-DMITHRIL_NO_MALLOC",
        "-Wno-psabi",
        "program.c",
        "net.c",
        "-o",
        "program",
        "-lm",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "program"], check=True, capture_output=True, text=True).stdout
    data = {"input": np.arange(192, dtype=np.float32).reshape(1, 3, 8, 8) / 192}
    expected = compiled.evaluate(params, data)["output"][0]
    # Inputs in 8 bits may be rounded to the next step where vectors have another width.
    allowed = {None: 1e-5, "int8": 2e-2}.get(quantize, 2e-3)
    np.testing.assert_allclose(
        np.array(printed.split(), np.float32), expected, rtol=0, atol=allowed * np.abs(expected).max()
    )
    # The weights that were packed are there once.
    assert exported.weight_bytes < exported.packed_bytes + 4096
    if quantize in ("int8", "int8_weights"):
        floats = sum(np.asarray(value).nbytes for value in params.values())
        assert exported.weight_bytes < 0.4 * floats


def test_what_changes_is_not_a_constant(tmp_path):
    compiled = ml.compile(network(), ml.NumpyBackend(), shapes={"input": [2, 3, 8, 8]})
    exported = compiled.export(tmp_path, prefix="net", gradients=True, weights_inside=True)
    assert exported.packed_bytes == 0
    assert "net_packed[" not in (tmp_path / "net.h").read_text()


def test_sizes_of_blocks_of_rows_are_macros(tmp_path):
    compiled = ml.compile(network(), ml.CBackend(), shapes={"input": ["batch", 3, 8, 8]}, inference=True)
    compiled.export(tmp_path, prefix="net", batch="batch", weights_inside=True)
    sizes = " && ".join(f"net_{name}_bytes({n}) == NET_{name.upper()}_BYTES" for name, n in SIZES.items())
    program = f'#include <stdio.h>\n#include "net.h"\nint main(void) {{\n  printf("%d", {sizes});\n}}\n'
    (tmp_path / "sizes.c").write_text(program)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    command = [compiler, "-DMITHRIL_NO_MALLOC", "-march=native", "sizes.c", "net.c", "-o", "sizes", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout == "1"
