"""Write a page that runs a model in the browser into a folder, which any server of files serves."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mithril.errors import ConflictingOptionError, MithrilError

from . import digits, image, text

PAGES: dict[str, Callable[..., Any]] = {"digits": digits.write, "image": image.write, "text": text.write}
_HELP = "digits: recognise and learn digits that are drawn; image: classify pictures; text: continue texts"


def main(words: Sequence[str] | None = None) -> int:
    """Write the page that the words of a command line name.

    Parameters
    ----------
    words : sequence of str, optional
        Name of the page and the folder. Default: those of this process.

    Returns
    -------
    int
        0, or 1 after an error, which is printed.
    """
    parser = argparse.ArgumentParser(prog="python -m mithril.examples.web", description=__doc__)
    parser.add_argument("page", choices=PAGES, help=_HELP)
    parser.add_argument("folder", help="a folder that does not exist yet, is empty, or holds such a page")
    text = (
        "a folder of a checkpoint; of image also resnet18 (default) …; of text the default is random, of GPT-2's size"
    )
    parser.add_argument("--model", metavar="MODEL", help=text)
    parser.add_argument("--weights", metavar="FILE", help="of image: weights (default: random numbers)")
    parser.add_argument(
        "--labels", metavar="FILE", help="of image: a name for each class, line by line (default: numbers)"
    )
    parser.add_argument(
        "--quantize", metavar="TYPE", help="of image, text: int8, int8_weights or int4_weights (default: float32)"
    )
    parser.add_argument("--context", metavar="N", type=int, help="of text: largest number of tokens (default 256)")
    args = parser.parse_args(words)
    options = {name: getattr(args, name) for name in ("model", "weights", "labels", "quantize", "context")}
    try:
        exported = PAGES[args.page](args.folder, **_of_page(args.page, options))
    except MithrilError as error:
        print(error, file=sys.stderr)
        return 1
    print(exported)
    print(f"\npython -m mithril.tools.web {args.folder}     # then open http://localhost:8000")
    return 0


def _of_page(page: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given; an error for those that the page does not have."""
    settings = {name: value for name, value in options.items() if value is not None}
    known = inspect.signature(PAGES[page]).parameters
    for name in settings:
        if name not in known:
            raise ConflictingOptionError(f"--{name} is not an option of the page {page}", hint="leave it out")
    return settings


if __name__ == "__main__":
    sys.exit(main())
