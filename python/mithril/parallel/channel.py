"""Messages between a process and its workers: a text of JSON, and arrays as the bytes that they consist of.

Nothing that comes in is run or unpickled: names are looked up, and bytes become arrays of numbers.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Packed", "ReceivedSource", "receive", "send"]

_LENGTH = struct.Struct("<Q")


class Packed(NamedTuple):
    """An array as bytes.

    Attributes
    ----------
    dtype : str
        Name of the dtype.
    shape : tuple of int
        Its sizes.
    content : buffer
        Its elements in C order.
    """

    dtype: str
    shape: tuple[int, ...]
    content: Any


def send(channel: socket.socket, head: dict[str, Any], arrays: Sequence[Packed] = ()) -> None:
    """Send a message; arrays in ``head`` are numbers, which count ``arrays``."""
    views = [memoryview(array.content).cast("B") for array in arrays]
    about = [[a.dtype, list(a.shape), view.nbytes] for a, view in zip(arrays, views, strict=True)]
    text = json.dumps([head, about]).encode()
    channel.sendall(_LENGTH.pack(len(text)) + text)
    for view in views:
        if view.nbytes:
            channel.sendall(view)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[Packed]]:
    """Return the next message.

    Raises
    ------
    EOFError
        If the other process has closed its end.
    """
    [length] = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    head, about = json.loads(bytes(_exactly(channel, length)))
    return head, [Packed(dtype, tuple(shape), _exactly(channel, size)) for dtype, shape, size in about]


def _exactly(channel: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = channel.recv_into(view)
        if not count:
            raise EOFError("the other process has closed the channel")
        view = view[count:]
    return data


class ReceivedSource:
    """Generated source that was handed over, in the place of the compiler's."""

    def __init__(self, text: str, constants: dict[str, Any]) -> None:
        self.text = text
        self._constants = constants

    def constants(self) -> dict[str, Any]:
        """Large constants by name."""
        return self._constants
