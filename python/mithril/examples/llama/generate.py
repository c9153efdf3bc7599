"""Continue a text by Llama from a local folder.

``python -m mithril.examples.llama.generate --weights FOLDER --prompt "…"``
"""

import sys

from mithril.generation.command import main

if __name__ == "__main__":
    sys.exit(main("Continue a text by Llama from a local folder."))
