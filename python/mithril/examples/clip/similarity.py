"""Choose the text that describes an image, by CLIP from a local folder.

``python -m mithril.examples.clip.similarity --weights FOLDER --image cat.png --text "a photo of a cat" --text "a dog"``
"""

import sys

from mithril.vision.command import main, similarity

if __name__ == "__main__":
    sys.exit(main("Choose the text that describes an image, by CLIP from a local folder.", similarity))
