"""Answer a text by T5 from a local folder: ``python -m mithril.examples.t5.generate --weights FOLDER --prompt "…"``."""

import sys

from mithril.generation.command import main

if __name__ == "__main__":
    sys.exit(main("Answer a text by T5 from a local folder."))
