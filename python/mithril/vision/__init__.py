"""Images for models: reading, preprocessing as torchvision does, and classification with labels.

Needs Pillow: ``pip install pillow``.
"""

from .classifier import Classifier, Prediction
from .images import read_image
from .labels import read_labels
from .preprocess import Preprocess
from .similarity import Similarity

__all__ = ["Classifier", "Prediction", "Preprocess", "Similarity", "read_image", "read_labels"]
