"""From images to the numbers that a model was trained on: resize, crop, scale, normalize.

The steps and their rounding are those of torchvision's transforms on images of Pillow, which is what the published
weights were trained and measured with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoints.folders import read_json
from ..errors import InvalidValueError, ModelFileError
from ..optional_packages import require
from .images import WHITE, read_image

if TYPE_CHECKING:
    import os

    from PIL.Image import Image

__all__ = ["Preprocess"]

#: Name -> number in Pillow and in preprocessor_config.json.
INTERPOLATIONS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
CONFIG = "preprocessor_config.json"


@dataclass(frozen=True)
class Preprocess:
    """Make images into an array ``[batch, 3, height, width]`` of float32.

    Parameters
    ----------
    resize : int or (int, int), optional
        Length of the shorter side, the longer one in proportion; or height and width. None: as it is.
    crop : int or (int, int), optional
        Side, or height and width, of what is cut out of the center; black where the image is smaller. None: all.
    mean, std : float or sequence of three floats, optional
        Subtracted, and divided by, per channel, after scaling.
    interpolation : str, optional
        ``"bilinear"`` (default), ``"bicubic"``, ``"lanczos"``, ``"nearest"``, ``"box"`` or ``"hamming"``. All but
        ``"nearest"`` smooth when making smaller (antialias).
    scale : float, optional
        What the numbers from 0 to 255 are multiplied by; default: 1/255.
    background : (int, int, int), optional
        Color behind transparent images; default: white.
    crop_rounding : {"even", "down"}, optional
        Where a crop begins if it cannot be in the middle: ``"even"``, as torchvision, or ``"down"``, as
        transformers.

    Examples
    --------
    >>> import numpy as np
    >>> from mithril.vision import Preprocess
    >>> preprocess = Preprocess.imagenet()
    >>> preprocess(np.zeros((300, 500, 3), np.uint8)).shape
    (1, 3, 224, 224)
    """

    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    interpolation: str = "bilinear"
    scale: float = 1 / 255
    background: tuple[int, int, int] = WHITE
    crop_rounding: str = "even"

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))
        for name in ("mean", "std"):
            object.__setattr__(self, name, _per_channel(name, getattr(self, name)))
        if 0 in tuple(self.std):  # type: ignore[arg-type]
            raise InvalidValueError("std holds 0", hint="give the standard deviations of the channels")
        if self.interpolation not in INTERPOLATIONS:
            raise InvalidValueError(
                f"interpolation is {self.interpolation!r}", hint=f"use one of {', '.join(INTERPOLATIONS)}"
            )
        if self.crop_rounding not in ("even", "down"):
            raise InvalidValueError(f"crop_rounding is {self.crop_rounding!r}", hint="use 'even' or 'down'")

    @classmethod
    def imagenet(cls, crop: int = 224, resize: int = 256, interpolation: str = "bilinear") -> Preprocess:
        """Make that of torchvision's classifiers; the defaults are those of ResNet's first weights and of ViT-B.

        Parameters
        ----------
        crop : int, optional
            Side of the square that the model sees.
        resize : int, optional
            Length of the shorter side before; 232 for the second weights of ResNet (``IMAGENET1K_V2``), 242 for
            those of ViT-L/16.
        interpolation : str, optional
            Default: bilinear.
        """
        return cls(resize, crop, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), interpolation)

    @classmethod
    def clip(cls, size: int = 224) -> Preprocess:
        """Make that of OpenAI's CLIP.

        Parameters
        ----------
        size : int, optional
            Side of the square that the model sees: ``image_resolution``.
        """
        mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
        return cls(size, size, mean, std, "bicubic")

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> Preprocess:
        """Read that of a checkpoint: ``preprocessor_config.json``, as transformers writes it.

        Raises
        ------
        ModelFileError
            If the file is not there, or is malformed.
        """
        config = read_json(Path(folder) / CONFIG)
        if not config:
            raise ModelFileError(
                f"{str(folder)!r} has no {CONFIG}", code="M0802", hint="pass a mithril.vision.Preprocess"
            )
        return cls.from_config(config)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Preprocess:
        """Make it from the content of a ``preprocessor_config.json``.

        Raises
        ------
        InvalidValueError
            If something in it is malformed.
        """

        def normalization(switch: str, key: str) -> Any:
            value = config.get(key)
            return value if config.get(switch, value is not None) else None

        resample = config.get("resample", INTERPOLATIONS["bilinear"])
        names = [name for name, number in INTERPOLATIONS.items() if number == resample]
        if not names or isinstance(resample, bool):
            raise InvalidValueError(f"resample is {resample!r} in {CONFIG}", hint="use 0 to 5")
        mean, std = normalization("do_normalize", "image_mean"), normalization("do_normalize", "image_std")
        resize = normalization("do_resize", "size")
        scaled = config.get("do_rescale", True)
        return cls(
            # Vision transformers mean a square by one number; models that crop mean the shorter side.
            _config_size("size", resize, square=not config.get("do_center_crop", False)),
            _config_size("crop_size", normalization("do_center_crop", "crop_size"), square=True),
            0.0 if mean is None else mean,
            1.0 if std is None else std,
            names[0],
            config.get("rescale_factor", 1 / 255) if scaled else 1.0,
            crop_rounding="down",
        )

    def __call__(self, images: Any) -> np.ndarray[Any, Any]:
        """Preprocess one image, or several.

        Parameters
        ----------
        images : image, sequence of images or array
            What `read_image` takes, or several of it; an array ``[batch, height, width, channels]`` is several.

        Returns
        -------
        ndarray
            float32 ``[batch, 3, height, width]``.

        Raises
        ------
        InvalidValueError
            If there is no image, or, without crop, images come out in different sizes.
        """
        rows = [self._one(image) for image in several(images)]
        if not rows:
            raise InvalidValueError("there are no images", hint="give at least one")
        if len({row.shape for row in rows}) > 1:
            sizes = sorted({f"{row.shape[1]} by {row.shape[2]}" for row in rows})
            raise InvalidValueError(
                f"the images come out in different sizes: {', '.join(sizes[:5])}",
                hint="set crop, or give them one by one",
            )
        return np.stack(rows)

    def _one(self, source: Any) -> np.ndarray[Any, Any]:
        image = read_image(source, self.background)
        image = self._cropped(self._resized(image))
        numbers = np.asarray(image, np.float32).transpose(2, 0, 1)
        # Divided where that is meant, since 1/255 is not exact.
        numbers = numbers / np.float32(255) if self.scale == 1 / 255 else numbers * np.float32(self.scale)
        mean, std = (np.array(values, np.float32)[:, None, None] for values in (self.mean, self.std))
        return np.asarray((numbers - mean) / std, np.float32)

    def _resized(self, image: Image) -> Image:
        if self.resize is None:
            return image
        width, height = image.size
        if isinstance(self.resize, int):
            short, long = min(width, height), max(width, height)
            longer = int(self.resize * long / short)
            size = (self.resize, longer) if width <= height else (longer, self.resize)
        else:
            size = (self.resize[1], self.resize[0])
        limit = require("PIL.Image", "resizing images").MAX_IMAGE_PIXELS
        if limit is not None and size[0] * size[1] > limit:
            raise InvalidValueError(
                f"an image of {width} by {height} pixels would become {size[0]} by {size[1]}",
                hint="crop it first; PIL.Image.MAX_IMAGE_PIXELS is the limit",
            )
        return image if size == image.size else image.resize(size, INTERPOLATIONS[self.interpolation])

    def _cropped(self, image: Image) -> Image:
        if self.crop is None:
            return image
        height, width = (self.crop, self.crop) if isinstance(self.crop, int) else self.crop
        left, top = (self._offset(n, m) for n, m in ((image.width, width), (image.height, height)))
        return image.crop((left, top, left + width, top + height))

    def _offset(self, size: int, crop: int) -> int:
        """Where the crop begins; before the image where that is smaller."""
        if size < crop:
            return -((crop - size) // 2)
        return round((size - crop) / 2) if self.crop_rounding == "even" else (size - crop) // 2


def several(images: Any) -> Iterable[Any]:
    """Give images one by one: those of a sequence or of an array of four dimensions, or the only one."""
    if isinstance(images, (str, bytes, bytearray, memoryview)) or getattr(images, "mode", None) is not None:
        return [images]
    if hasattr(images, "shape"):
        return images if len(images.shape) == 4 else [images]
    if isinstance(images, Iterable) and not hasattr(images, "read"):
        return images
    return [images]


def _size(name: str, value: Any) -> Any:
    if value is None:
        return None
    numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if len(numbers) > 2 or not numbers or not all(_is_size(n) for n in numbers):
        raise InvalidValueError(f"{name} is {value!r}", hint="give a positive integer, or height and width")
    return int(numbers[0]) if len(numbers) == 1 else (int(numbers[0]), int(numbers[1]))


def _is_size(number: Any) -> bool:
    return hasattr(number, "__index__") and not isinstance(number, bool) and int(number) > 0


def _per_channel(name: str, numbers: Any) -> tuple[float, ...]:
    values = list(numbers) if isinstance(numbers, Sequence) and not isinstance(numbers, str) else [numbers] * 3
    if len(values) != 3 or not all(isinstance(v, (int, float)) and np.isfinite(v) for v in values):
        raise InvalidValueError(f"{name} is {numbers!r}", hint="give a number, or one for each of the three channels")
    return tuple(float(value) for value in values)


def _config_size(name: str, value: Any, square: bool) -> Any:
    """Read a size as transformers writes it: a number, or a dict."""
    if isinstance(value, Mapping):
        if set(value) == {"shortest_edge"}:
            return value["shortest_edge"]
        if set(value) == {"height", "width"}:
            return (value["height"], value["width"])
        raise InvalidValueError(f"{name} is {dict(value)!r} in {CONFIG}", hint="use shortest_edge, or height and width")
    return (value, value) if square and _is_size(value) else value
