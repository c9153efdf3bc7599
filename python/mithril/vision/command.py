"""The command line of classification and similarity: `mithril classify`, and the programs of `mithril.examples`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import models
from ..command.backends import add_device, chosen
from ..command.ending import guarded
from .classifier import Classifier
from .labels import read_labels
from .preprocess import CONFIG, Preprocess
from .similarity import Similarity

__all__ = ["add_arguments", "classify", "main", "similarity"]


def main(
    description: str,
    run: Callable[[argparse.Namespace], str],
    choices: Sequence[str] = (),
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a program.

    Parameters
    ----------
    description : str
        What it says about itself.
    run : callable
        `classify` or `similarity`.
    choices : sequence of str, optional
        Models of `mithril.models` that weights without a config.json may be of, the usual one first.
    arguments : sequence of str, optional
        Default: what the program was called with.

    Returns
    -------
    int
        0 if all is well, 1 after an error, 130 if it was interrupted.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--weights", required=True, metavar="PATH", help="folder with config.json, or weights")
    if run is similarity:
        add_images(parser)
        parser.add_argument("--text", action="append", required=True, help="may be given several times")
        add_backend(parser)
    else:
        add_arguments(parser, choices)
    args = parser.parse_args(arguments)
    return guarded(lambda: _printed(run, args))


def _printed(run: Callable[[argparse.Namespace], str], args: argparse.Namespace) -> int:
    print(run(args))
    return 0


def add_images(parser: argparse.ArgumentParser) -> None:
    """Add the option that names images."""
    parser.add_argument("--image", action="append", required=True, metavar="FILE", help="may be given several times")


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where a model runs."""
    text = "where it runs (default: the first that is installed of torch, mlx, jax, numpy)"
    parser.add_argument("--backend", metavar="NAME", help=text)
    add_device(parser)
    parser.add_argument("--dtype", default="float32", help="dtype of the model (default: float32)")
    parser.add_argument("--jit", action="store_true", help="compile by the framework's compiler")


def add_arguments(parser: argparse.ArgumentParser, choices: Sequence[str] = ()) -> None:
    """Add the options of `classify`, all but ``weights``, to a parser."""
    add_images(parser)
    parser.add_argument("--model", choices=choices or None, metavar="NAME", help="of weights without a config.json")
    parser.add_argument("--labels", metavar="FILE", help="names of the classes: a config.json, or one per line")
    parser.add_argument("--classes", type=int, default=1000, help="how many, without labels (default: 1000)")
    parser.add_argument("--resize", type=int, default=256, help="without preprocessor_config.json (default: 256)")
    parser.add_argument("--crop", type=int, default=224, help="without preprocessor_config.json (default: 224)")
    parser.add_argument("--top", type=int, default=5, help="how many classes are named (default: 5)")
    add_backend(parser)


def classify(args: argparse.Namespace) -> str:
    """Say what images show."""
    backend = chosen(args.backend, device=args.device, dtype=args.dtype)
    labels = None if args.labels is None else read_labels(args.labels)
    preprocess = Preprocess.imagenet(args.crop, args.resize)
    if (Path(args.weights) / CONFIG).is_file():
        preprocess = Preprocess.from_folder(args.weights)
    model = None
    if args.model is not None:
        model = getattr(models, args.model)(num_classes=args.classes if labels is None else len(labels))
    classifier = Classifier.from_folder(
        args.weights, backend, model=model, preprocess=preprocess, labels=labels, progress=True, jit=args.jit
    )
    lines = []
    for image, predictions in zip(args.image, classifier.classify(args.image, args.top), strict=True):
        lines += [image, *(f"  {prediction.probability:7.2%}  {prediction.label}" for prediction in predictions)]
    return "\n".join(lines)


def similarity(args: argparse.Namespace) -> str:
    """Say how probable it is that each text describes each image."""
    backend = chosen(args.backend, device=args.device, dtype=args.dtype)
    model = Similarity.from_folder(args.weights, backend, progress=True, jit=args.jit)
    lines = []
    for image, row in zip(args.image, model.probabilities(args.image, args.text), strict=True):
        lines += [image, *(f"  {p:7.2%}  {text}" for text, p in zip(args.text, row, strict=True))]
    return "\n".join(lines)
