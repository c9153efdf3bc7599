"""What a function has that cannot be converted, and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import UnsupportedOpError

__all__ = ["error", "hint", "line", "place"]

_RANDOM = (
    "use keys of jax.random.key, close over the key, whose numbers are the same at each call, or take them as input"
)
#: What helps, by primitive.
_HINTS = {
    **dict.fromkeys(("rng_bit_generator", "random_gamma of keys"), _RANDOM),
    "while whose number of iterations is data": "use a known number of iterations: fori_loop with integers, or scan",
    **dict.fromkeys(("igamma", "igammac", "random_gamma_grad", "regularized_incomplete_beta"), "compute it outside"),
    **dict.fromkeys(
        ("eig of complex numbers", "eig", "schur of complex numbers", "schur", "hessenberg"),
        "of symmetric matrices, use jnp.linalg.eigh",
    ),
    "tridiagonal_solve": "use jnp.linalg.solve of the whole matrix",
}


def hint(names: Sequence[str]) -> str:
    """Say what helps against primitives that are missing."""
    known = dict.fromkeys(_HINTS[name] for name in names if name in _HINTS)
    others = [] if all(name in _HINTS for name in names) else ["replace these parts"]
    return "; ".join([*known, *others])


def error(text: str, notes: Sequence[str], help: str) -> UnsupportedOpError:
    """Make the error of what cannot be converted."""
    lines = "".join(f"\n  note: {note}" for note in notes)
    return UnsupportedOpError(
        f"error[{UnsupportedOpError.code}]: {text}{lines}\n  help: {help}", message=text, notes=tuple(notes), hint=help
    )


def place(eqn: Any) -> str:
    """Say where an equation stands."""
    file, number = line(eqn)
    return f' at "{file}", line {number}' if file else ""


def line(eqn: Any) -> tuple[str | None, int]:
    """Find the line of the user's program that JAX keeps of an equation."""
    try:
        from jax._src.source_info_util import user_frame

        frame = user_frame(eqn.source_info.traceback)
    except (ImportError, AttributeError, TypeError):
        return None, 0
    return (frame.file_name, frame.start_line) if frame is not None else (None, 0)
