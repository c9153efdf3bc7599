"""Files of ``torch.export``, which are checked before PyTorch gets to see anything of them.

PyTorch's own reader unpickles what is in a file, imports modules that it names and evaluates expressions in it. Here
``archive.py`` reads the zip, ``schema.py`` checks the program in it against a closed grammar (``expressions.py``:
sizes, ``treespec.py``: containers of arguments), ``loading.py`` lets PyTorch make the program of what is left, and
``verify.py`` checks that every value is what the file says.
"""

from .loading import load

__all__ = ["load"]
