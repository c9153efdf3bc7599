"""Generated C touches nothing outside of its tensors: the pages before and behind each of them are inaccessible.

Compilers have made vectors of loads that a condition guards, and read elements that the condition excludes.
"""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mithril as ml
import pytest
from mithril import _core

FLAGS = [*_core.c_flags(), "-march=native", "-shared", "-fPIC"]
SIZES = {"float": 4, "double": 8, "int32_t": 4, "int64_t": 8, "uint8_t": 1, "int8_t": 1, "uint16_t": 2, "bool": 1}

#: Calls what is in a library, with every tensor at the beginning and at the end of pages: prints the sums of outputs.
CALL = """
import ctypes, mmap, sys
import numpy as np

library, prefix, *sizes = sys.argv[1:]
sizes = [[tuple(map(int, size.split(":"))) for size in side.split(",") if size] for side in sizes]
code, libc, page = ctypes.CDLL(library), ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def place(size, element, at_end):
    whole = -(-max(size, 1) // page) * page
    start = libc.mmap(None, whole + 2 * page, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0) + page
    assert libc.mprotect(start - page, page, 0) == libc.mprotect(start + whole, page, 0) == 0
    address = start + (whole - size) // element * element if at_end else start
    return address, np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

def function(name, result, *arguments):
    symbol = getattr(code, prefix + "_" + name)
    symbol.restype, symbol.argtypes = result, arguments
    return symbol

pointers = ctypes.POINTER(ctypes.c_void_p)
results = []
for at_end in (False, True):
    inputs, outputs = ([place(size, element, at_end) for size, element in side] for side in sizes)
    for i, ((_, array), (_, element)) in enumerate(zip(inputs, sizes[0])):
        values = np.random.default_rng(i)
        if element == 4:
            array.view(np.float32)[:] = values.normal(size=array.size // 4)
    arena = place(function("arena_bytes", ctypes.c_size_t, ctypes.c_int)(1), 64, at_end)[0]
    packed = place(function("packed_bytes", ctypes.c_size_t)(), 64, at_end)[0]
    scratch = place(function("pack_bytes", ctypes.c_size_t)(), 64, at_end)[0]
    read, written = ((ctypes.c_void_p * len(side))(*(address for address, _ in side)) for side in (inputs, outputs))
    void = ctypes.c_void_p
    assert function("pack", ctypes.c_int, pointers, void, void)(read, packed, scratch) == 0
    assert function("run", ctypes.c_int, pointers, pointers, void, void, void)(read, written, packed, arena, None) == 0
    results.append([array.copy() for _, array in outputs])
assert all(np.array_equal(a, b) for a, b in zip(*results)), "results depend on where tensors are"
print("ok")
"""


def depthwise(size, kernel):
    model = ml.Model()
    model |= ml.Convolution2D(filters=24, kernel_size=kernel, padding=kernel // 2, groups=24)(input="input")
    model += ml.Relu()
    model += ml.Convolution2D(filters=8, kernel_size=1)(output=ml.IOKey("output", expose=True))
    return model, [1, 24, size, size]


def windows(size):
    model = ml.Model()
    model |= ml.Pad(((0, 0), (0, 0), (2, 1), (0, 3)))(input="input", output="padded")
    model |= ml.AvgPool2D(3, 2, 1)(input="padded", output="pooled")
    model |= ml.MaxPool2D(3, 1, 1)(input="pooled", output="largest")
    model |= ml.Convolution2D(filters=5, kernel_size=5, padding=2, dilation=2)(input="largest", output="wide")
    model |= ml.ConvTranspose2D(filters=3, kernel_size=3, stride=2)(
        input="wide", output=ml.IOKey("output", expose=True)
    )
    return model, [1, 3, size, size]


def signal(size):
    model = ml.Model()
    model |= ml.Convolution1D(filters=6, kernel_size=9, padding=4)(input="input", output="smooth")
    model |= ml.Pad(((0, 0), (0, 0), (3, 2)), "reflect")(input="smooth", output="mirrored")
    model |= ml.Slice((None, None, 1), (None, None, -2))(input="mirrored", output="cut")
    model |= ml.Flip(-1)(input="cut", output=ml.IOKey("output", expose=True))
    return model, [2, 4, size]


MODELS = {
    **{f"depthwise{kernel} of {size}": depthwise(size, kernel) for size, kernel in ((2, 9), (4, 7), (7, 5), (16, 3))},
    **{f"windows of {size}": windows(size) for size in (8, 19)},
    **{f"signal of {size}": signal(size) for size in (8, 33)},
}


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
@pytest.mark.parametrize("name", MODELS)
def test_no_page_around_tensors_is_touched(name, tmp_path):
    model, shape = MODELS[name]
    compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": shape})
    for prefix, source in (("model", compiled.source), ("model_gradients", compiled.gradient_source)):
        text = str(source)
        sides = []
        for side in ("inputs", "outputs"):
            rows = re.findall(rf"^ +{side}\[\d+\]: (\w+)((?:\[\d+\])*) ", text, re.M)
            counts = [[int(n) for n in re.findall(r"\d+", sizes)] for _, sizes in rows]
            elements = [SIZES[kind] for kind, _ in rows]
            sides.append(
                ",".join(
                    f"{element * math.prod(count)}:{element}" for element, count in zip(elements, counts, strict=True)
                )
            )
        Path(tmp_path / "model.c").write_text(text, encoding="utf-8")
        library = tmp_path / f"{prefix}.so"
        subprocess.run(["cc", *FLAGS, "model.c", "-lm", "-o", library], cwd=tmp_path, check=True)
        done = subprocess.run([sys.executable, "-c", CALL, library, prefix, *sides], capture_output=True, text=True)
        assert done.stdout == "ok\n", f"{prefix}: exit status {done.returncode}\n{done.stderr}"
