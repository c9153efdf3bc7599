"""What a call of a small model costs, from C and from Python: `python -m bench.calls`.

The model is the classifier 784-128-64-10 for one sample, on one thread. From C its function is called again and again
by a loop in C, on the same memory; from Python with arrays in dicts. What the caches take to give the packed weights
alone is measured, too: a call cannot take less. All in turns, so that they meet the same machine.
"""

from __future__ import annotations

import ctypes
import mmap
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
from mithril import _core

from .bandwidth import SOURCE
from .networks import classifier

#: Those of the library, without the checks for callers in C: it checks by itself what Python passes.
FLAGS = _core.c_flags()
#: Calls of a turn, and turns.
CALLS, TURNS = 1000, 400
#: Behind the model.
LOOP = """
int repeat(long calls, const void *const inputs[], void *const outputs[], const void *packed, void *arena) {
    int error = 0;
    for (long i = 0; i < calls; i++) error |= model_run(inputs, outputs, packed, arena, NULL);
    return error;
}
float read_often(long calls, const float *packed, long count) {
    float (*volatile read)(const float *, long) = sum; /* every time again */
    float total = 0;
    for (long i = 0; i < calls; i++) total += read(packed, count);
    return total;
}
"""


def memory(size: int) -> np.ndarray[Any, Any]:
    """Return so many bytes at a multiple of 64, in huge pages where the system has them, as the library asks for."""
    block = mmap.mmap(-1, size + (4 << 20))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(block, np.uint8)
    start = -array.ctypes.data % (2 << 20)
    return array[start : start + size]


def load(source: str, folder: Path) -> ctypes.CDLL:
    """Compile generated C with the loop behind it."""
    (folder / "model.c").write_text(source + SOURCE + LOOP)
    command = ["cc", *FLAGS, "-march=native", "-shared", "-fPIC", "model.c", "-o", "model.so", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "model.so"))
    for name in ("packed_bytes", "pack_bytes", "arena_bytes"):
        getattr(library, f"model_{name}").restype = ctypes.c_size_t
    return library


def addresses(arrays: list[np.ndarray[Any, Any]]) -> Any:
    """Return the addresses of arrays as C takes them."""
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def main() -> None:
    """Print both figures."""
    compiled = ml.compile(classifier(), ml.CBackend(num_threads=1), shapes={"input": [1, 784]}, inference=True)
    params = compiled.randomize_params(seed=0)
    data = {"input": np.random.default_rng(0).standard_normal((1, 784), dtype=np.float32)}
    expected = compiled.evaluate(params, data)["output"]
    with tempfile.TemporaryDirectory() as folder:
        library = load(compiled.source, Path(folder))
    output = np.empty_like(expected)
    inputs = addresses([data["input"], *(params[name] for name in compiled.parameter_keys)])
    sizes = (library.model_packed_bytes(), library.model_pack_bytes(), library.model_arena_bytes(1))
    blocks = [memory(int(size) + 64) for size in sizes]
    packed, scratch, arena = (ctypes.c_void_p(block.ctypes.data) for block in blocks)
    library.model_pack(inputs, packed, scratch)
    arguments = (inputs, addresses([output]), packed, arena)
    if library.repeat(ctypes.c_long(1), *arguments) or not np.allclose(output, expected, atol=1e-5):
        raise AssertionError("C and Python differ")
    times: tuple[list[float], ...] = ([], [], [])
    library.read_often.restype = ctypes.c_float
    for _ in range(TURNS):
        start = time.perf_counter()
        library.repeat(ctypes.c_long(CALLS), *arguments)
        middle = time.perf_counter()
        for _ in range(CALLS):
            compiled.evaluate(params, data)
        times[0].append(middle - start)
        last = time.perf_counter()
        times[1].append(last - middle)
        library.read_often(ctypes.c_long(CALLS), packed, ctypes.c_long(int(sizes[0]) // 4))
        times[2].append(time.perf_counter() - last)
    print(f"{'MLP 784-128-64-10, µs a call':30}{'median':>8}{'best':>8}{'aim':>8}")
    names = ("from C", "from Python", f"reading {sizes[0] / 1e3:.0f} KB of weights")
    for name, measured, aim in zip(names, times, ("3.0", "5.0", ""), strict=True):
        each = [seconds / CALLS * 1e6 for seconds in measured]
        print(f"{name:30}{statistics.median(each):8.2f}{min(each):8.2f}{aim:>8}")


if __name__ == "__main__":
    main()
