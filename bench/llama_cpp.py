"""A Llama with random weights on llama.cpp, on the GGML backend and in C, in turns: `python -m bench.llama_cpp`.

llama.cpp is compiled from the sources that the package of ggml carries, with a ggml of its own for exactly this
processor (some minutes, once). It and the GGML backend read the same file of GGUF: the same blocks of weights, whose
rows both interleave where they have kernels for that (`repack=True`). For each
type of weights and number of threads: the milliseconds of one token after a short prompt, and of a long prompt, each
the least of some runs in turns, and how many times as long llama.cpp takes. On one thread they are those that the
processor spent on it, which other programs disturb little. C keeps weights in kinds of its own with as
many bits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mithril as ml
from mithril.generation import compile_decoder
from mithril.generation.decoders import start
from mithril.models import create_llama

from portability.ggml import ROOT, sources
from portability.llama_cpp import BUILT, build

#: Sizes of the model: 245 million weights by default.
SIZES = {"vocab_size": 32000, "dims": 1024, "num_heads": 16, "num_layers": 14, "hidden": 2816}
#: Type of weights -> the kinds that C has for tokens and for prompts.
TYPES = {"q4_0": ("int4_weights", "int8"), "q8_0": ("int8", "int8"), "q4_k": ("int4_weights", "int8")}
#: Tokens before the one that is measured.
BEFORE = 16
#: Seconds in which the threads of the other side fall asleep.
PAUSE = 0.03


def program() -> Path:
    """Return llama.cpp, which is built if it is not there."""
    binary, own = BUILT / "speed", ROOT / "bench/ggml/llama_cpp.cpp"
    if binary.exists() and binary.stat().st_mtime > own.stat().st_mtime:
        return binary
    root = sources() / "ggml"
    BUILT.mkdir(parents=True, exist_ok=True)
    (BUILT / "ggml-version.h").write_text('#define GGML_VERSION "0.26.0"\n#define GGML_COMMIT "unknown"\n')
    flags = ["-O3", "-march=native", "-fopenmp", "-w", "-DNDEBUG", "-D_GNU_SOURCE", "-DGGML_SCHED_MAX_COPIES=4"]
    flags += [f"-DGGML_USE_{name}" for name in ("CPU", "CPU_REPACK", "LLAMAFILE", "OPENMP")]
    flags += [f"-I{place}" for place in (BUILT, root / "include", root / "src", root / "src/ggml-cpu")]
    processor = "arm" if os.uname().machine in ("aarch64", "arm64") else "x86"
    if processor == "x86":
        # Its products in AMX end the process with a segmentation fault.
        flags += ["-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16"]
    commands: list[list[str]] = []
    for name in (
        "",
        "ggml-cpu",
        f"ggml-cpu/arch/{processor}",
        *(f"ggml-cpu/{part}" for part in ("amx", "llamafile", "tiled")),
    ):
        for path in sorted((root / "src" / name).glob("*.c*")):
            if path.name not in ("gguf.cpp", "ggml-opt.cpp", "cpu-feats.cpp"):
                compiler = ["gcc", "-std=c11"] if path.suffix == ".c" else ["g++", "-std=c++17"]
                commands.append([*compiler, *flags, "-c", str(path)])
    build(binary, own, "-O1", commands, ["-fopenmp", "-lpthread", "-lm"])
    return binary


class Theirs:
    """llama.cpp with a file, as a process that waits for what to run."""

    def __init__(self, file: Path, threads: int, context: int) -> None:
        command = [str(program()), str(file), str(threads), str(context)]
        self.clock = int(threads == 1)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, what: str, tokens: int) -> float:
        """Return the milliseconds of a prompt of so many tokens, or of a token after so many."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {tokens}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline().split()[self.clock])


def decoder(backend: ml.Backend, sizes: dict[str, Any]) -> ml.PhysicalModel:
    """Return the model, which computes the logits of the last token."""
    return compile_decoder(create_llama(**sizes, cache=True, last_only=True), backend)


class Ours:
    """The model on a backend of ours."""

    def __init__(self, model: ml.PhysicalModel, vocabulary: int, threads: int) -> None:
        self.model = model
        self.clock = time.thread_time if threads == 1 else time.perf_counter
        self.vocabulary = vocabulary
        self.text: Any = None

    def run(self, what: str, tokens: int) -> float:
        """Return the milliseconds of a prompt of so many tokens, or of a token after so many."""
        begin = self.clock()
        if what == "prompt":
            prompt = [(i * 7919 + 13) % self.vocabulary for i in range(tokens)]
            self.text, _ = start(self.model, [prompt], {}, None)
        else:
            self.text.step([13], [True])
        return (self.clock() - begin) * 1e3


def least(sides: list[Callable[[str, int], float]], what: str, tokens: int, rounds: int) -> list[float]:
    """Return the least milliseconds of each side; they run in turns."""
    times: list[list[float]] = [[] for _ in sides]
    for number in range(rounds + 1):
        for run, measured in zip(sides, times, strict=True):
            time.sleep(PAUSE)
            if what == "token":
                # The first token wakes the threads.
                run("prompt", tokens)
                run(what, tokens)
            several = [run(what, tokens) for _ in range(8 if what == "token" else 1)]
            measured += several if number else []
    return [min(measured) for measured in times]


def measure(type: str, threads: int, prompt: int, with_c: bool, sizes: dict[str, Any], rounds: int) -> None:
    """Measure one type of weights, and print two rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        model = decoder(ml.NumpyBackend(), sizes)
        model.load_params(model.randomize_params(seed=0))
        ml.save_gguf(model, file, quantize={"*embed*": None, "*": type})
        theirs = Theirs(file, threads, max(prompt, BEFORE) + 16)
        on_ggml = decoder(ml.GGMLBackend(num_threads=threads, repack=True), sizes)
        ml.load_weights(on_ggml, file)
        for what, tokens, kind in (("token", BEFORE, TYPES[type][0]), ("prompt", prompt, TYPES[type][1])):
            sides: list[Callable[[str, int], float]] = [theirs.run, Ours(on_ggml, sizes["vocab_size"], threads).run]
            if with_c:
                in_c = decoder(ml.CBackend(num_threads=threads, quantize=kind), sizes)
                in_c.load_params(model.get_parameters())
                sides.append(Ours(in_c, sizes["vocab_size"], threads).run)
            times = least(sides, what, tokens, rounds if what == "token" else max(rounds // 3, 2))
            cells = [f"{times[0]:.2f}"] + [f"{ms:.2f} | {times[0] / ms:.2f}" for ms in times[1:]]
            label = "one token" if what == "token" else f"prompt of {tokens}"
            print(f"| {type} | {label} | {threads} | {' | '.join(cells)} |", flush=True)
        theirs.process.communicate()


def main() -> None:
    """Print a table: llama.cpp, the GGML backend, C; milliseconds, and how many times as long llama.cpp takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("TYPE", "THREADS"), help=argparse.SUPPRESS)
    parser.add_argument("--type", action="append", choices=list(TYPES))
    parser.add_argument("--threads", type=int, action="append", help="default: 1 and 2")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the long prompt")
    parser.add_argument("--layers", type=int, default=SIZES["num_layers"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-c", action="store_true", help="without C, which takes long to compile")
    args = parser.parse_args()
    if args.one:
        type, threads = args.one[0], int(args.one[1])
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        return measure(type, threads, args.prompt, not args.no_c, {**SIZES, "num_layers": args.layers}, args.rounds)
    program()
    print("| weights | what | threads | llama.cpp, ms | GGML, ms | ratio |" + ("" if args.no_c else " C, ms | ratio |"))
    print("|---|---|---|---|---|---|" + ("" if args.no_c else "---|---|"), flush=True)
    options = ["--prompt", str(args.prompt), "--layers", str(args.layers), "--rounds", str(args.rounds)]
    options += ["--no-c"] * args.no_c
    for type in args.type or TYPES:
        for threads in args.threads or (1, 2):
            command = [sys.executable, "-m", "bench.llama_cpp", "--one", type, str(threads), *options]
            subprocess.run(command, check=True)
    return None


if __name__ == "__main__":
    main()
