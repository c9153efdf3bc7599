"""How the benchmark measures: medians, and pairs in turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any


def timed(function: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a call in milliseconds."""
    times = []
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def turns(*functions: Callable[[], Any], pause: float = 0.0, rounds: int = 41) -> tuple[float, ...]:
    """Return the median seconds of functions, called in turns; what is quick is called more often.

    Threads of a runtime go on spinning for a while after a call, and would take the processors from the other side:
    with a pause in seconds they fall asleep, and a call that is not counted wakes those of the side whose turn it is.
    There are at most ``rounds`` turns; how many depends on the second function.
    """
    for _ in range(3):
        for function in functions:
            function()
    start = time.perf_counter()
    functions[1]()
    once = time.perf_counter() - start
    calls, rounds = max(1, int(0.01 / once)), max(5, min(rounds, int(4 / max(once, 0.01))))
    seconds: tuple[list[float], ...] = tuple([] for _ in functions)
    gc.collect()
    gc.disable()
    for i in range(rounds):
        sides = list(zip(functions, seconds, strict=True))
        # Who goes first changes: the second finds the caches of the first.
        for function, times in sides if i % 2 else reversed(sides):
            if pause:
                time.sleep(pause)
                function()
            start = time.perf_counter()
            for _ in range(calls):
                function()
            times.append((time.perf_counter() - start) / calls)
    gc.enable()
    return tuple(map(statistics.median, seconds))
