"""What a page shows of a profile: the frames of the flame graph, the steps, the dots and roofs of the roofline plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..tools.flame_graph import frames, limit
from ..tools.roofline import roofline

if TYPE_CHECKING:
    from ..tools.profile import Profile

__all__ = ["profile_data"]


def profile_data(profile: Profile, title: str) -> dict[str, Any]:
    """Return what the page embeds, of strings, numbers, lists and dictionaries.

    Parameters
    ----------
    profile : Profile
        The times.
    title : str
        What the frame of the whole model is called.

    Returns
    -------
    dict
        ``frames``: label, path, depth, start, seconds, operations, number of steps whose operations are not known,
        bytes, position of the step or None; each before those inside it. ``steps``: path, name, what it computes,
        seconds, operations or None, bytes, what limits it. ``roofline``: what `roofline` returns. ``seconds``,
        ``runs``, ``threads``: of the profile.
    """
    return {
        "frames": [
            [at.label, at.path, at.depth, at.start, at.seconds, at.operations, at.unknown, at.bytes, at.row]
            for at in frames(profile.rows, title)
        ],
        "steps": [
            [row.path, row.name, row.what, row.seconds, row.operations, row.bytes, limit(profile, row)]
            for row in profile.rows
        ],
        "roofline": roofline(profile),
        "seconds": profile.seconds,
        "runs": profile.runs,
        "threads": profile.threads,
    }
