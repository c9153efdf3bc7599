"""Images for models: reading, preprocessing as torchvision does, and classification with labels.

Needs Pillow: ``pip install "mithril[vision]"``.
"""

from .classifier import Classifier, Prediction
from .images import read_image
from .labels import read_labels
from .preprocess import Preprocess

__all__ = ["Classifier", "Prediction", "Preprocess", "read_image", "read_labels"]
