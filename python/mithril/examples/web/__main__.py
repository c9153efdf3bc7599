"""Write a page that runs a model in the browser into a folder, which any server of files serves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mithril.errors import MithrilError

from . import digits

PAGES = {"digits": digits.write}


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
    parser.add_argument("page", choices=PAGES, help="digits: recognise and learn digits that are drawn with the mouse")
    parser.add_argument("folder", help="a folder that does not exist yet, is empty, or holds such a page")
    given = parser.parse_args(words)
    try:
        exported = PAGES[given.page](given.folder)
    except MithrilError as error:
        print(error, file=sys.stderr)
        return 1
    print(exported)
    print(f"\npython -m http.server -d {given.folder}     # then open http://localhost:8000")
    return 0


if __name__ == "__main__":
    sys.exit(main())
