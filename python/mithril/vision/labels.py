"""Names of classes, from the config.json of a checkpoint or from a text file with one name per line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checkpoints.folders import read_json
from ..errors import InvalidValueError, ModelFileError

__all__ = ["read_labels"]


def read_labels(source: str | os.PathLike[str]) -> list[str]:
    r"""Read names of classes.

    Parameters
    ----------
    source : path-like
        A folder with a ``config.json``, or such a file, that has ``id2label``; or a text file with the name of one
        class per line, in order.

    Returns
    -------
    list of str
        In the order of the classes.

    Raises
    ------
    ModelFileError
        If the file cannot be read, or holds no names.

    Examples
    --------
    >>> import os, tempfile
    >>> from mithril.vision import read_labels
    >>> path = os.path.join(tempfile.mkdtemp(), "labels.txt")
    >>> with open(path, "w") as file:
    ...     _ = file.write("cat\ndog\n")
    >>> read_labels(path)
    ['cat', 'dog']
    """
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix == ".json" and path.exists():
        return labels_of(read_json(path), str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelFileError(
            f"{str(path)!r} cannot be read: {error.strerror or error}", code="M0802", hint="check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{str(path)!r} is not UTF-8 text: {error}", hint="give names, one per line") from error
    names = [line.strip() for line in text.splitlines()]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise ModelFileError(f"{str(path)!r} holds no names", hint="write one name per line")
    return names


def labels_of(config: Mapping[str, Any], path: str) -> list[str]:
    """Return the names of classes that a configuration holds."""
    entries = config.get("id2label")
    if not isinstance(entries, Mapping) or not entries:
        raise ModelFileError(f"{path!r} has no id2label", hint="give a text file with one name per line")
    names = {int(key): str(name) for key, name in entries.items() if str(key).isdecimal()}
    if sorted(names) != list(range(len(entries))):
        raise ModelFileError(
            f"id2label of {path!r} does not number its {len(entries)} classes from 0", hint="fetch the file again"
        )
    return [names[i] for i in range(len(names))]


def check_labels(labels: Sequence[str] | None, classes: int) -> list[str]:
    """Return a name for each class; the numbers if there are no names.

    Raises
    ------
    InvalidValueError
        If there are more or fewer names than classes.
    """
    if labels is None:
        return [str(i) for i in range(classes)]
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise InvalidValueError("labels are not a list of names", hint='give e.g. ["cat", "dog"]')
    if len(labels) != classes:
        raise InvalidValueError(
            f"there are {len(labels)} labels, and the model has {classes} classes", hint="give one name per class"
        )
    return list(labels)
