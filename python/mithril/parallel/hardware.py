"""Descriptions of devices and their links, from which plans estimate times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidValueError
from ..suggestions import did_you_mean
from .layout import Mesh

__all__ = ["HARDWARE", "Hardware", "as_hardware"]


@dataclass(frozen=True)
class Hardware:
    """A device of a mesh, and how it is connected with the others.

    Parameters
    ----------
    flops : float
        Operations per second on floats of 32 bits and more.
    memory : int
        Bytes of memory of a device.
    bandwidth : float
        Bytes per second between its memory and its processor.
    link_bandwidth : float or mapping of str to float
        Bytes per second that a device sends to its neighbor: one number, or one for each axis of the mesh.
    latency : float, optional
        Seconds until the first byte of a message arrives.
    half_flops : float, optional
        Operations per second on floats of 16 bits. Default: as on the others.

    Raises
    ------
    InvalidValueError
        If a number is not positive.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.Hardware(flops=1e12, memory=16 * 2**30, bandwidth=1e11, link_bandwidth={"data": 1e9, "model": 5e10}).latency
    1e-05
    """

    flops: float
    memory: int
    bandwidth: float
    link_bandwidth: float | Mapping[str, float]
    latency: float = 1e-5
    half_flops: float | None = None

    def __post_init__(self) -> None:
        links = self.link_bandwidth.values() if isinstance(self.link_bandwidth, Mapping) else [self.link_bandwidth]
        named: list[tuple[str, Any]] = [("link_bandwidth", link) for link in links]
        named += [(name, getattr(self, name)) for name in ("flops", "memory", "bandwidth")]
        named += [] if self.half_flops is None else [("half_flops", self.half_flops)]
        for name, value in named:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise InvalidValueError(f"{name} of the hardware is {value!r}", hint="give a positive number")
        if isinstance(self.latency, bool) or not isinstance(self.latency, (int, float)) or not 0 <= self.latency < 1e6:
            raise InvalidValueError(f"latency of the hardware is {self.latency!r}", hint="give seconds, e.g. 1e-5")

    def as_argument(self, mesh: Mesh) -> Any:
        """Return what the compiler is given for a mesh."""
        links = self.link_bandwidth
        if isinstance(links, Mapping):
            for axis in mesh.axes:
                if axis not in links:
                    raise InvalidValueError(
                        f"link_bandwidth does not name the axis {axis!r} of {mesh}",
                        hint=f"give a number for each axis: {', '.join(mesh.axes)}",
                    )
            rates = [float(links[axis]) for axis in mesh.axes]
        else:
            rates = [float(links)] * len(mesh.axes)
        half = self.flops if self.half_flops is None else self.half_flops
        return float(self.flops), float(half), int(self.memory), float(self.bandwidth), rates, float(self.latency)


#: Peaks of the data sheets; links are those within a machine, in one direction. Data sheets do not say what a TPU does
#: in float32: half of bfloat16 is assumed. "cpu" is about eight cores of a server.
HARDWARE: dict[str, Hardware] = {
    "cpu": Hardware(2e11, 16 * 10**9, 3e10, 5e9, 2e-5),
    "a100": Hardware(1.95e13, 80 * 10**9, 2.039e12, 3e11, 5e-6, 3.12e14),
    "h100": Hardware(6.7e13, 80 * 10**9, 3.35e12, 4.5e11, 5e-6, 9.89e14),
    "tpu-v5e": Hardware(9.8e13, 16 * 10**9, 8.19e11, 5e10, 2e-6, 1.97e14),
}


def as_hardware(hardware: Any) -> Hardware:
    """Return a description of hardware: this one, or one of `HARDWARE` by its name."""
    if isinstance(hardware, Hardware):
        return hardware
    if not isinstance(hardware, str) or hardware not in HARDWARE:
        known = f"there are {', '.join(map(repr, HARDWARE))}, and ml.Hardware(flops=..., memory=..., ...)"
        hint = did_you_mean(hardware, HARDWARE, known) if isinstance(hardware, str) else known
        raise InvalidValueError(f"the hardware {hardware!r} is not known", hint=hint)
    return HARDWARE[hardware]
