"""How fast memory is read: a sum over many bytes by a few lines of C, as every thread its part."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

#: Four running sums of vectors, so that no addition waits for the one before.
SOURCE = """
typedef float vector __attribute__((vector_size(64)));
float sum(const float *x, long count) {
    vector sums[4] = {{0}};
    for (long i = 0; i + 64 <= count; i += 64)
        for (long j = 0; j < 4; j++) {
            __builtin_prefetch(x + i + 16 * j + 1024);
            sums[j] += *(const vector *)(x + i + 16 * j);
        }
    vector all = sums[0] + sums[1] + sums[2] + sums[3];
    float total = 0;
    for (long j = 0; j < 16; j++) total += all[j];
    return total;
}
"""


def reading(size: int, threads: int) -> Callable[[], object]:
    """Return a call that reads so many bytes, by so many threads."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "sum.c"), Path(folder, "sum.so")
        source.write_text(SOURCE)
        subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source], check=True)
        function = ctypes.CDLL(str(library)).sum
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_long], ctypes.c_float
    part = -(-size // 4 // threads // 64) * 64
    memory = np.ones(part * threads + 16, np.float32)
    start = memory.ctypes.data + -memory.ctypes.data % 64
    pool = ThreadPoolExecutor(threads)
    # The array has to live as long as the call.
    places = [(memory, start + i * part * 4) for i in range(threads)]
    return lambda: list(pool.map(lambda place: function(place[1], part), places))
