"""Complex numbers while converting: pairs of real tensors."""

from __future__ import annotations

from typing import Any

__all__ = ["Complex", "has_complex"]


class Complex(list[Any]):
    """Real and imaginary part of a complex tensor."""

    @property
    def real(self) -> Any:
        """The real part."""
        return self[0]

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return self[1]


def has_complex(value: Any) -> bool:
    """Whether an argument is complex, or one in a list."""
    if isinstance(value, (Complex, complex)):
        return True
    return isinstance(value, (list, tuple)) and any(map(has_complex, value))
