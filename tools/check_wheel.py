"""Check that a wheel has what it needs, and that it works where nothing but NumPy is installed: `make check-wheel`.

Each interpreter gets an empty environment outside of the checkout, the wheel from its file and NumPy from the package
index. There it runs the first example of the README, trains, exports C, builds and runs it, writes a page of a model,
and starts every program of `mithril.examples`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python/mithril"
#: What files of the package end with that are made while Mithril is built or run.
BUILT = {".so", ".pyd", ".pyc"}
#: Files that the metadata of a wheel names or has to carry.
METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "LICENSE-ggml")

#: Runs in the empty environment; the README's first example is given as an argument.
PROGRAM = """
import sys, tempfile
from pathlib import Path

import numpy as np

import mithril as ml

assert "site-packages" in ml.__file__, ml.__file__
example, printed = (Path(name).read_text(encoding="utf-8") for name in sys.argv[1:])
scope = {}
exec(example, scope)
assert scope["compiled"].source.strip() == printed.strip()

model = ml.Model()
model |= ml.Linear(8)(input="input")
model += ml.Relu()()
model += ml.Linear(2)(output="output")
model |= ml.CrossEntropy()(input="output", target="target", output="loss")
random = np.random.default_rng(0)
images = random.normal(size=(64, 4)).astype(np.float32)
data = {"input": images, "target": (images.sum(axis=1) > 0).astype(np.int32)}
shapes = {name: list(array.shape) for name, array in data.items()}
compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int32"})
step = ml.train.TrainingStep(compiled, ml.optim.Adam(0.05), loss="loss")
losses = [float(step(data)[step.loss]) for _ in range(40)]
assert losses[-1] < losses[0] / 2, losses

folder = Path(tempfile.mkdtemp())
exported = compiled.export(folder / "c", optimizer=ml.optim.Adam(0.05), loss="loss")
assert exported.check.splitlines()[-1] == "ok", exported.check
ml.view(compiled).save(folder / "page.html")
assert (folder / "page.html").stat().st_size > 10_000
for backend in (ml.CBackend(), ml.GGMLBackend(), ml.InterpreterBackend()):
    scope["compiled"] = ml.compile(scope["model"], backend, shapes={"input": [1, 784]})
    params = scope["compiled"].randomize_params(seed=0)
    outputs = scope["compiled"].evaluate(params, {"input": np.zeros((1, 784), np.float32)})
    assert backend.to_numpy(outputs["logits"]).shape == (1, 10)
"""


def expected_files() -> list[str]:
    """Return the files of the package that a wheel must hold."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "python/mithril"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        paths = (ROOT / name for name in listed.stdout.splitlines())
    else:
        paths = PACKAGE.rglob("*")
    files = (path for path in paths if path.is_file() and path.suffix not in BUILT)
    return sorted(path.relative_to(PACKAGE.parent).as_posix() for path in files)


def problems(names: Iterable[str]) -> list[str]:
    """Return what is wrong with the list of files of a wheel.

    Examples
    --------
    >>> problems(["mithril/_core.abi3.so"])[0]
    'mithril/__init__.py is missing'
    """
    present = set(names)
    texts = [f"{name} is missing" for name in expected_files() if name not in present]
    texts += [
        f"{end} is missing from the metadata"
        for end in METADATA
        if not any(".dist-info/" in name and name.endswith(end) for name in present)
    ]
    if not any(re.fullmatch(r"mithril/_core\.(abi3\.so|pyd)", name) for name in present):
        texts.append("the extension module of the stable ABI is missing: mithril/_core.abi3.so or mithril/_core.pyd")
    # Tests, tools and what else lies beside the package belong to the repository.
    texts += [
        f"{name} does not belong into a wheel"
        for name in sorted(present)
        if name.split("/")[0] != "mithril" and ".dist-info/" not in name
    ]
    return texts


def example() -> tuple[str, str]:
    """Return the first example of the README, and what it prints."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    return blocks[0], blocks[1]


def programs() -> list[str]:
    """Return the programs of `mithril.examples`, by their names in the package."""
    files = (PACKAGE / "examples").rglob("*.py")
    paths = [path for path in files if '"__main__"' in path.read_text(encoding="utf-8")]
    return sorted(".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in paths)


def try_wheel(wheel: Path, python: str, work: Path) -> None:
    """Install a wheel into an empty environment and use it there."""

    def run(*words: object) -> None:
        # Nothing of the checkout is to be found by accident.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
        done = subprocess.run([str(w) for w in words], cwd=work, env=environment, capture_output=True, text=True)
        if done.returncode:
            command = " ".join(str(word) for word in words)
            raise SystemExit(f"{command} failed with {done.returncode}:\n{done.stdout}{done.stderr}")

    run(python, "-m", "venv", work / "venv")
    scripts = work / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run(scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel.resolve())
    for name, text in zip(("example.py", "printed.py"), example(), strict=True):
        (work / name).write_text(text, encoding="utf-8")
    (work / "program.py").write_text(PROGRAM, encoding="utf-8")
    run(scripts / "python", "-W", "error", "program.py", "example.py", "printed.py")
    run(scripts / "mithril", "--help")
    run(scripts / "mithril", "doctor")
    for module in programs():
        run(scripts / "python", "-m", f"mithril.{module}", "--help")


def main() -> None:
    """Check a wheel, and try it with each interpreter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="*", default=[sys.executable], help="interpreters (default: this one)")
    args = parser.parse_args()
    with zipfile.ZipFile(args.wheel) as archive:
        missing = problems(archive.namelist())
    if missing:
        raise SystemExit("\n".join(missing))
    print(f"{args.wheel.name} is complete")
    for python in args.python:
        with tempfile.TemporaryDirectory() as work:
            try_wheel(args.wheel, python, Path(work))
        print(f"it works with {python}, where only NumPy is installed")


if __name__ == "__main__":
    main()
