"""What the programs that train on several backends have in common: their options, the table, the picture."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import mithril as ml
from mithril.optional_packages import require

#: Backends that the programs run on, the reference first.
BACKENDS = ("numpy", "torch", "jax", "mlx", "c")
#: Those whose own compiler is worth its time here: without it, JAX and MLX look at every op again in every step.
COMPILED = ("jax", "mlx")

Train = Callable[[ml.Backend, argparse.Namespace], tuple[ml.train.History, ml.PhysicalModel]]


def installed(names: Sequence[str], dtype: str) -> list[ml.Backend]:
    """Create the backends; say which are left out, and why."""
    backends: list[ml.Backend] = []
    for name in names:
        try:
            backends.append(ml.get_backend(name, dtype=dtype))
        except ml.errors.BackendUnavailableError as error:
            print(f"{name} is left out: {error.message}; {error.hint}")
    return backends


def parser(description: str, epochs: int, dtype: str = "float32") -> argparse.ArgumentParser:
    """Make the options that all of them have."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--epochs", type=int, default=epochs, help=f"passes over the data (default {epochs})")
    result.add_argument("--backends", nargs="+", default=BACKENDS, help=f"default: {' '.join(BACKENDS)}")
    result.add_argument("--dtype", default=dtype, help=f"dtype of the floats (default {dtype})")
    result.add_argument("--checkpoint", type=Path, help="folder of checkpoints, from which the program also goes on")
    result.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (default out)")
    return result


def train_everywhere(
    train: Train, options: argparse.Namespace, title: str, baselines: Mapping[str, float]
) -> ml.PhysicalModel:
    """Train on one backend after the other; print what comes out, draw the losses, return the last model."""
    curves: dict[str, list[float]] = {}
    for backend in installed(options.backends, options.dtype):
        start = time.perf_counter()
        history, compiled = train(backend, options)
        curves[backend.name] = history.batches["loss"]
        seconds = time.perf_counter() - start
        print(f"\n{title} on {backend.name}, {options.dtype}, {seconds:.0f} s\n{history}")
    if not curves:
        raise SystemExit("none of the backends is installed")
    first, *others = curves
    for name in others:
        differences = [abs(a - b) for a, b in zip(curves[first], curves[name], strict=True)]
        print(
            f"losses of {first} and {name}: largest difference {max(differences[:10]):.1e} in the first "
            f"{len(differences[:10])} batches, {max(differences):.1e} in all {len(differences)}"
        )
    path = options.out / f"{title}.png"
    picture({title: curves}, path, "batch", baselines)
    print(f"loss curves: {path}")
    return compiled


def picture(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    path: Path,
    unit: str = "epoch",
    baselines: Mapping[str, float] | None = None,
) -> None:
    """Draw losses: a panel for each model, a curve for each backend, and lines to compare with."""
    require("matplotlib", "a picture").use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4), squeeze=False, sharey=True)
    styles = ["-", "--", ":", "-."]
    for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
        # Each curve thinner than those before, which are seen below it where they agree.
        widths = np.linspace(1 + len(curves), 1, len(curves))
        for style, width, (name, losses) in zip(styles * len(curves), widths, curves.items(), strict=False):
            axis.plot(range(1, len(losses) + 1), losses, style, linewidth=width, label=name)
        for name, value in (baselines or {}).items():
            axis.axhline(value, color="gray", linewidth=1)
            axis.annotate(name, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
        axis.set(title=title, xlabel=unit, yscale="log")
        axis.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        # Between powers of ten not every number has the room.
        axis.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "2346" else "")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    axes[0][0].set_ylabel("training loss (cross entropy)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
