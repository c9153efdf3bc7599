"""A page of a single file: the data of a model, and the program that shows it. Nothing is loaded from elsewhere."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from ..tables import visible

__all__ = ["embedded", "page"]


def page(data: Mapping[str, Any], title: str) -> str:
    """Return the page.

    Parameters
    ----------
    data : mapping
        What `collect` returns.
    title : str
        Title of the page.
    """
    parts = {
        "TITLE": html.escape(visible(title)),
        "STYLE": _file("page.css"),
        "DATA": embedded({**data, "title": title}),
        "SCRIPT": _file("layout.js") + _file("profile.js") + _file("plan.js") + _file("page.js"),
    }
    out = []
    for i, piece in enumerate(_file("page.html").split("@")):
        # Every second piece between @ is the name of a part; texts of models are never searched for names.
        out.append(parts[piece] if i % 2 else piece)
    return "".join(out)


def embedded(data: Any) -> str:
    r"""Write data as JSON that may stand in an element of HTML, whatever the names in it are.

    Examples
    --------
    >>> embedded("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(_visible(data), ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _visible(data: Any) -> Any:
    if isinstance(data, str):
        return visible(data)
    if isinstance(data, Mapping):
        return {key: _visible(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_visible(value) for value in data]
    return data


@cache
def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
