"""How well texts describe images, by CLIP."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Unpack

from ..backends.keywords import LoadOptions, passes_on
from ..checkpoints.folders import Folder, backend_of
from ..compiled import internals
from ..compiled.compile import compile
from ..errors import InvalidValueError
from ..tokenizers.tokenizer import Tokenizer
from .classifier import softmax
from .preprocess import CONFIG, Preprocess

if TYPE_CHECKING:
    from .._core import Model
    from ..backends.backend import Backend
    from ..compiled.physical_model import PhysicalModel

__all__ = ["Similarity"]


class Similarity:
    """Say how well texts describe images.

    Parameters
    ----------
    model : PhysicalModel
        From ``image`` and ``text`` to ``logits_per_image``: `mithril.models.clip`, with its parameters.
    preprocess : Preprocess
        What the model was trained with.
    tokenizer : Tokenizer
        That of the model.
    context_length : int, optional
        How many tokens each text is padded to.
    """

    def __init__(
        self, model: PhysicalModel, preprocess: Preprocess, tokenizer: Tokenizer, context_length: int = 77
    ) -> None:
        if "logits_per_image" not in model.output_keys or set(model.input_keys) != {"image", "text"}:
            raise InvalidValueError(
                f"the model goes from {list(model.input_keys)} to {list(model.output_keys)}",
                hint="give a model from image and text to logits_per_image, as mithril.models.clip",
            )
        self.model = model
        self.preprocess = preprocess
        self.tokenizer = tokenizer
        self.context_length = context_length

    @classmethod
    @passes_on(compile, without=("shapes", "inference"))
    def from_folder(
        cls,
        folder: str | os.PathLike[str],
        backend: Backend | str,
        *,
        progress: bool = False,
        **options: Unpack[LoadOptions],
    ) -> Similarity:
        """Load CLIP from the folder of a checkpoint, as transformers writes it.

        Parameters
        ----------
        folder : path-like
            With ``config.json``, weights, a tokenizer, and, if it differs from that of OpenAI,
            ``preprocessor_config.json``.
        backend : Backend or str
            Where it runs.
        progress : bool, optional
            Show a progress bar.
        **options
            Further options of `compile`, e.g. ``jit``.

        Raises
        ------
        ModelFileError
            If a file is missing or malformed.
        """
        source, where = Folder(folder), backend_of(backend)
        tokenizer = Tokenizer.from_folder(folder)

        def compiled(model: Model) -> PhysicalModel:
            shapes = {"image": ["images", *model.shape_of("image")[1:]], "text": ["texts", "length"]}
            return compile(model, where, shapes=shapes, inference=True, **options)

        model = source.model(compiled, progress=progress)
        size = internals.logical_model(model).shape_of("image")[-1]
        preprocess = Preprocess.from_folder(folder) if source.has(CONFIG) else Preprocess.clip(size)
        context = source.integer("max_position_embeddings") or 77
        return cls(model, preprocess, tokenizer, context)

    def logits(self, images: Any, texts: str | Iterable[str]) -> np.ndarray[Any, Any]:
        """Compute the similarity of each image and each text.

        Parameters
        ----------
        images : image, sequence of images or array
            See `Preprocess`.
        texts : str or iterable of str
            One text or several; all images and texts go through the model at once.

        Returns
        -------
        ndarray
            float32 ``[images, texts]``.
        """
        tokens = np.array(self.tokenizer.padded(texts, self.context_length), np.int64)
        data = {"image": self.preprocess(images), "text": tokens}
        output = self.model.evaluate(self.model.get_parameters(), data)["logits_per_image"]
        return self.model.backend.to_numpy(output).astype(np.float32, copy=False)

    def probabilities(self, images: Any, texts: str | Iterable[str]) -> np.ndarray[Any, Any]:
        """Say for each image how probable it is that each of the texts describes it.

        Parameters
        ----------
        images : image, sequence of images or array
            See `Preprocess`.
        texts : str or iterable of str
            The texts to choose from, e.g. ``["a photo of a cat", "a photo of a dog"]``.

        Returns
        -------
        ndarray
            ``[images, texts]``; each row adds up to 1.
        """
        return softmax(self.logits(images, texts))
