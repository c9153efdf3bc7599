"""A model as a page, a picture or a diagram: `view`.

Module by module: ``data`` collects graphs, texts and their links from a compiled model; ``page`` puts them into one
file of HTML, whose programs are ``layout.js``, ``profile.js`` and ``page.js``; ``profiles`` collects the times of
steps; ``closed`` closes submodels beyond a depth, for the pictures that do not move, ``mermaid`` and ``svg``.

The package is not called ``view``, as that is the function: ``mithril.view``.
"""

from .views import View, view

__all__ = ["View", "view"]
