"""Say what images show, by a ResNet.

``python -m mithril.examples.resnet.classify --weights resnet18.pth --image cat.png``
"""

import sys

from mithril.vision.command import classify, main

MODELS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")

if __name__ == "__main__":
    sys.exit(main("Say what images show, by a ResNet with the weights of torchvision.", classify, MODELS))
