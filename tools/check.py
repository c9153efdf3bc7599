"""The tests that matter for a change, in under three minutes on two cores: what `make check` runs.

What changed is what differs from the branch that this one follows (`origin/main` where it follows none), committed or
not. Formatting and types are checked everywhere. Clippy and the tests run for the Rust crates that changed, without the
tests that compile much C; Python tests run whole where their file changed (of thousands, more), and otherwise as a
fixed sample.
`make test` runs everything.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent

#: Modules of integration tests in Rust that take long, mostly in C compilers.
SLOW = {
    "mithril-codegen": ("kernels", "mathematics"),
    "mithril-testing": ("c", "c_layout", "c_parts", "c_random", "ggml", "ggml_plan"),
}
#: Those over the whole registry, which run whatever crate changed.
REGISTRY = ("registry", "stages", "text", "tidy")

#: Tests of Python: one in so many of a file. Files that are not here run when they change.
SAMPLES = {
    60: ("ops", "op_values", "native_gradients", "torch", "layers"),
    12: ("indexing_ops", "torch_backend", "checklist", "frameworks", "optimizers"),
    3: ("errors", "positions", "numbers", "spellings", "c", "c_networks", "ggml"),
    1: ("packages", "messages", "signatures"),
}


def output(*words: str) -> str:
    """Return what a command prints, nothing if it fails."""
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def changed_files() -> list[str]:
    """Files that differ from the branch that this one follows."""
    bases = (output("git", "merge-base", "HEAD", name) for name in ("@{upstream}", "origin/main", "main"))
    base = next((base for base in bases if base), "HEAD")
    known = output("git", "diff", "--name-only", "--diff-filter=d", base).splitlines()
    return [*known, *output("git", "ls-files", "--others", "--exclude-standard").splitlines()]


def changed_crates(files: Iterable[str]) -> list[str]:
    """Crates that changed; what all of them are built from changes them all."""
    if any(file in ("Cargo.toml", "Cargo.lock", "clippy.toml") for file in files):
        return sorted(path.parent.name for path in (ROOT / "crates").glob("*/Cargo.toml"))
    parts = [file.split("/") for file in files]
    return sorted({words[1] for words in parts if words[0] == "crates" and words[-1].endswith((".rs", ".toml", ".c"))})


def targets(crate: str) -> list[str]:
    """Programs of integration tests of a crate."""
    folder = ROOT / "crates" / crate / "tests"
    return sorted({path.stem for path in folder.glob("*.rs")} | {path.parent.name for path in folder.glob("*/main.rs")})


def rust(crates: Sequence[str]) -> list[list[str]]:
    """Commands that check crates."""
    packages = [word for crate in crates for word in ("-p", crate)]
    commands = [["cargo", "clippy", "--quiet", *packages, "--all-targets", "--", "-D", "warnings"]]
    for crate in crates:
        tests = [word for name in targets(crate) for word in ("--test", name)]
        library = ["--lib"] if (ROOT / "crates" / crate / "src" / "lib.rs").exists() and crate != "mithril-py" else []
        skipped = [word for name in SLOW.get(crate, ()) for word in ("--skip", f"{name}::")]
        if tests or library:
            commands.append(["cargo", "test", "--quiet", "-p", crate, *library, *tests, "--", *skipped])
    if "mithril-testing" not in crates:
        modules = [f"{name}::" for name in REGISTRY]
        commands.append(["cargo", "test", "--quiet", "-p", "mithril-testing", "--test", "suite", "--", *modules])
    return commands


def python(files: Iterable[str]) -> list[list[str]]:
    """Commands that run tests of Python."""
    pytest = [sys.executable, "-m", "pytest", "-n", "2", "--no-header"]
    changed = [file for file in files if file.startswith("python/tests/test_") and file.endswith(".py")]
    # Of files with thousands of tests, a larger sample where they changed.
    counts = {path: 1 for path in changed}
    for count, names in SAMPLES.items():
        for path in (f"python/tests/test_{name}.py" for name in names):
            counts[path] = (10 if count == 60 else 1) if path in changed else count
    chosen = sorted(set(counts.values()))
    return [[*pytest, "--sample", str(count), *(path for path in counts if counts[path] == count)] for count in chosen]


def main() -> int:
    """Run all commands; 1 if one failed."""
    files = changed_files()
    crates = changed_crates(files)
    folders = ["python", "examples", "bench", "tools", "portability"]
    commands = [
        ["cargo", "fmt", "--all", "--check"],
        [str(BIN / "ruff"), "check", *folders, "crates/mithril-codegen/src/python/prelude"],
        [str(BIN / "ruff"), "format", "--check", *folders],
        [str(BIN / "mypy")],
        *(rust(crates) if crates else []),
        *python(files),
    ]
    failed = []
    for command in commands:
        start = time.perf_counter()
        text = " ".join(command).replace(f"{BIN}/", "")
        print(f"$ {text}", flush=True)
        if subprocess.run(command, cwd=ROOT).returncode:
            failed.append(text)
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)
    for text in failed:
        print(f"failed: {text}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
