"""Images from files, Pillow or arrays, made into what models see: three channels of eight bits, upright.

What is seen is what an image viewer shows: the orientation that a camera noted (EXIF) is applied, transparent parts
show the background, and sixteen bits become eight. Numbers whose range is not known are refused.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.exchange import to_host
from ..errors import InvalidValueError, ModelFileError
from ..optional_packages import require

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["read_image"]

WHITE = (255, 255, 255)
_TASK = "working with images"


def read_image(source: Any, background: tuple[int, int, int] = WHITE) -> Image:
    """Read an image as three channels of eight bits, upright.

    Parameters
    ----------
    source : path-like, bytes, binary file, PIL.Image.Image or array_like
        A file, or its content, in any format that Pillow reads (of an animation, the first picture); an image of
        Pillow; or an array ``[height, width]`` or ``[height, width, channels]`` with 1 (gray), 2 (gray and alpha),
        3 (RGB) or 4 (RGB and alpha) channels: integers from 0 to 255, NumPy's uint16 from 0 to 65535, floats from 0
        to 1, or booleans.
    background : (int, int, int), optional
        Color that shows where the image is transparent; default: white.

    Returns
    -------
    PIL.Image.Image
        In mode ``"RGB"``.

    Raises
    ------
    ModelFileError
        If a file cannot be read, is not an image, or is damaged.
    InvalidValueError
        If an image or array is empty or its numbers have no known range.

    Examples
    --------
    >>> import numpy as np
    >>> from mithril.vision import read_image
    >>> read_image(np.zeros((2, 5), np.uint8)).size
    (5, 2)
    """
    pil = require("PIL.Image", _TASK)
    if isinstance(source, pil.Image):
        return _as_rgb(source, background, "the image")
    if isinstance(source, (str, os.PathLike)):
        try:
            content = open(source, "rb")  # noqa: SIM115 - closed below
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ModelFileError(
                f"{os.fspath(source)!r} cannot be read: {reason}", code="M0802", hint="check the path"
            ) from error
        with content:
            return _decode(content, background, repr(os.fspath(source)))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(io.BytesIO(source), background, "the data")
    if hasattr(source, "read"):
        return _decode(source, background, "the file")
    return _as_rgb(_from_array(source), background, "the array")


def _decode(file: Any, background: tuple[int, int, int], label: str) -> Image:
    pil = require("PIL.Image", _TASK)
    try:
        with pil.open(file) as image:
            image.load()
            return _as_rgb(image, background, label)
    except (InvalidValueError, MemoryError):
        raise
    # The decoders of damaged files raise whatever their format makes them stumble on.
    except Exception as error:
        reason = "it is of no known format" if isinstance(error, pil.UnidentifiedImageError) else error
        raise ModelFileError(
            f"{label} cannot be read as an image: {reason}", code="M0802", hint="open it in an image viewer"
        ) from error


def _as_rgb(image: Image, background: tuple[int, int, int], label: str) -> Image:
    operations = require("PIL.ImageOps", _TASK)
    if 0 in image.size:
        raise InvalidValueError(f"{label} has no pixels: it is {image.width} by {image.height}")
    image = operations.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return _from_wide(np.asarray(image)).convert("RGB")
    if image.mode in ("I", "F"):
        raise InvalidValueError(
            f"{label} holds {'integers of 32 bits' if image.mode == 'I' else 'floats'}, whose range is not known",
            hint="give an array: integers from 0 to 255, or floats from 0 to 1",
        )
    if image.has_transparency_data:
        canvas = require("PIL.Image", _TASK).new("RGBA", image.size, (*background, 255))
        canvas.alpha_composite(image.convert("RGBA"))
        image = canvas
    try:
        return image if image.mode == "RGB" else image.convert("RGB")
    except ValueError as error:
        raise InvalidValueError(
            f"{label} is of mode {image.mode!r}, which Pillow cannot convert: {error}", hint="convert it to RGB first"
        ) from error


def _from_array(source: Any) -> Image:
    array = source if isinstance(source, np.ndarray) else to_host(source)
    wide = array.dtype == np.uint16
    array = to_host(array)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (2, 3, 4)):
        hint = "give [height, width] or [height, width, channels] with 1 to 4 channels"
        if array.ndim == 3 and array.shape[0] in (1, 3, 4):
            hint = "channels come last: transpose it by (1, 2, 0)"
        raise InvalidValueError(f"an image is given as an array of shape {list(array.shape)}", hint=hint)
    if 0 in array.shape:
        raise InvalidValueError(f"the image has no pixels: its shape is {list(array.shape)}")
    if wide:
        return _from_wide(array)
    return require("PIL.Image", _TASK).fromarray(_eight_bits(array))  # type: ignore[no-any-return]


def _from_wide(array: np.ndarray[Any, Any]) -> Image:
    """Make eight bits of sixteen: 65535 becomes 255."""
    narrow = np.rint(array.astype(np.float64) / 257).astype(np.uint8)
    return require("PIL.Image", _TASK).fromarray(narrow)  # type: ignore[no-any-return]


def _eight_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype == np.bool_:
        array = array.astype(np.int64) * 255
    if array.dtype.kind in "iu":
        if array.min() < 0 or array.max() > 255:
            raise InvalidValueError(
                f"the image holds integers from {array.min()} to {array.max()}",
                hint="give 0 to 255, or an array of uint16 from 0 to 65535",
            )
        return array.astype(np.uint8)
    numbers = array.astype(np.float64)
    # Written so that NaN fails, too.
    if not (numbers.min() >= 0 and numbers.max() <= 1):
        raise InvalidValueError(
            f"the image holds floats from {numbers.min():g} to {numbers.max():g}",
            hint="give 0 to 1, or integers from 0 to 255",
        )
    rounded: np.ndarray[Any, Any] = np.rint(numbers * 255).astype(np.uint8)
    return rounded
