"""What generated C is run on: compilers, sanitizers, instruction sets, processors and systems, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mithril import _core

HERE = Path(__file__).parent
#: Flags of every compilation; a warning is an error.
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror")
#: The flags that exported folders are built with, but for the processor.
FAST = tuple(_core.c_flags())

#: Commands and patterns of paths, and the packages of Debian that bring them.
PACKAGES = {
    "gcc": "gcc",
    "g++": "g++",
    "make": "make",
    "clang": "clang",
    "/usr/lib/*/lib/clang/*/lib/linux/libclang_rt.asan*": "libclang-rt-dev",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "qemu-aarch64": "qemu-user",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi",
    "/usr/lib/arm-none-eabi/newlib": "libnewlib-arm-none-eabi",
    "qemu-system-arm": "qemu-system-arm",
    "wasm-ld": "lld",
    "/usr/include/wasm32-wasi": "wasi-libc libclang-rt-dev-wasm32",
    "node": "nodejs",
}


@dataclass(frozen=True)
class Machine:
    """A way to build and run exported models.

    Attributes
    ----------
    name : str
        What the table calls it.
    compiler : tuple of str
        The command with its flags.
    runner : tuple of str
        What runs the program; empty: this machine.
    needs : tuple of str
        Commands and patterns of paths, keys of `PACKAGES`.
    processor : str
        Flag of /proc/cpuinfo that the program needs.
    programs : str
        ``"check"``: the exported program of each model; ``"run"``: `run.c`, which links all models;
        ``"header"``: nothing runs, all headers are read by a compiler.
    libraries : tuple of str
        What comes behind the sources.
    lanes : int or None
        Floats in a vector that the code is shaped for; None: those of this machine.
    """

    name: str
    compiler: tuple[str, ...]
    runner: tuple[str, ...] = ()
    needs: tuple[str, ...] = ("gcc",)
    processor: str = ""
    programs: str = "check"
    libraries: tuple[str, ...] = ("-lm",)
    lanes: int | None = None


def check(name: str, *compiler: str) -> Machine:
    """Programs that each exported folder brings, with memory and threads of their own."""
    return Machine(name, (*compiler, *STRICT), needs=(compiler[0],), libraries=("-lm", "-lpthread"))


def run(name: str, lanes: int, *compiler: str, processor: str = "") -> Machine:
    """All models in one program that uses nothing of the system."""
    flags = (*STRICT, *FAST, "-DMITHRIL_NO_MALLOC")
    return Machine(name, (*compiler, *flags), (), (compiler[0],), processor, programs="run", lanes=lanes)


def header(name: str, *compiler: str) -> Machine:
    """Headers of all models in one file, read twice."""
    return Machine(name, (*compiler, "-fsyntax-only"), needs=(compiler[0],), programs="header")


MACHINES = (
    check("gcc -O0", "gcc", "-O0"),
    check("gcc, flags of the Makefile", "gcc", *FAST, "-march=native"),
    check("clang -O0", "clang", "-O0"),
    check("clang, flags of the Makefile", "clang", *FAST, "-march=native"),
    check("gcc, address and undefined", "gcc", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"),
    Machine(
        "clang, address and undefined",
        ("clang", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover", *STRICT),
        needs=("clang", "/usr/lib/*/lib/clang/*/lib/linux/libclang_rt.asan*"),
        libraries=("-lm", "-lpthread"),
    ),
    check("gcc, threads", "gcc", "-O1", "-g", "-fsanitize=thread"),
    check("gcc, one thread", "gcc", "-O1", "-DMITHRIL_SINGLE_THREAD"),
    header("header in C99", "gcc", "-x", "c", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"),
    header("header in C++11", "g++", "-x", "c++", "-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror"),
    run("x86-64 AVX-512", 16, "gcc", "-march=x86-64-v4", processor="avx512f"),
    run("x86-64 AVX2", 8, "gcc", "-march=x86-64-v3", processor="avx2"),
    run("x86-64 AVX2, clang", 8, "clang", "-march=x86-64-v3", processor="avx2"),
    run("x86-64 SSE2", 4, "gcc", "-march=x86-64", processor="sse2"),
    run("AVX-512's code with SSE2", 16, "gcc", "-march=x86-64", processor="sse2"),
    run("plain C", 1, "gcc", "-fno-tree-vectorize"),
    Machine(
        "AArch64",
        ("aarch64-linux-gnu-gcc", *STRICT, *FAST, "-static", "-DMITHRIL_NO_MALLOC"),
        ("qemu-aarch64",),
        ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
        programs="run",
        lanes=4,
    ),
    Machine(
        "Cortex-M4F",
        (
            *("arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
            *(*STRICT, *FAST, "-Os", "-DMITHRIL_NO_MALLOC", "--specs=rdimon.specs"),
            *("-T", str(HERE / "cortex_m.ld"), str(HERE / "cortex_m.c")),
        ),
        (
            *("qemu-system-arm", "-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none"),
            *("-semihosting-config", "enable=on,target=native", "-kernel"),
        ),
        ("arm-none-eabi-gcc", "/usr/lib/arm-none-eabi/newlib", "qemu-system-arm"),
        programs="run",
        lanes=1,
        libraries=("-lm",),
    ),
    Machine(
        "WebAssembly",
        ("clang", "--target=wasm32-wasi", "-msimd128", *STRICT, *FAST, "-DMITHRIL_NO_MALLOC"),
        ("node", "--no-warnings", str(HERE / "wasi.mjs")),
        ("clang", "wasm-ld", "/usr/include/wasm32-wasi", "node"),
        programs="run",
        lanes=4,
    ),
)
