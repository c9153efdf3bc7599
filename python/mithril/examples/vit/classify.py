"""Say what images show, by a vision transformer.

``python -m mithril.examples.vit.classify --weights FOLDER --image cat.png``
"""

import sys

from mithril.vision.command import classify, main

MODELS = ("vit_b_16", "vit_b_32", "vit_l_16")

if __name__ == "__main__":
    sys.exit(main("Say what images show, by a vision transformer from a local folder.", classify, MODELS))
