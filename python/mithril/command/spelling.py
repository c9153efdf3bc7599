"""The commands and options as a table, from the parser: for completions, and for the program without Python."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["rows"]


def rows(commands: Mapping[str, Sequence[argparse.Action]], texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a row for each command.

    Parameters
    ----------
    commands : mapping
        The arguments of each command.
    texts : mapping
        What it does.

    Returns
    -------
    list of dict
        ``name``, ``help``, ``arguments`` and ``options``; of these ``name`` or ``flags`` (the first is the usual one),
        ``value`` (what stands for it in the help, None of a switch), ``help``, ``choices``, ``is_required`` and
        ``is_repeated``.
    """
    return [
        {
            "name": name,
            "help": texts[name],
            "arguments": [_argument(action) for action in actions if not action.option_strings],
            "options": [_option(action) for action in actions if action.option_strings],
        }
        for name, actions in commands.items()
    ]


def _argument(action: argparse.Action) -> dict[str, Any]:
    return {
        "name": str(action.metavar or action.dest),
        "help": _help(action),
        "choices": list(action.choices or ()),
        "is_required": action.nargs not in ("?", "*"),
    }


def _option(action: argparse.Action) -> dict[str, Any]:
    takes_value = action.nargs != 0
    return {
        "flags": sorted(action.option_strings, key=lambda flag: not flag.startswith("--")),
        "value": str(action.metavar or action.dest.upper()) if takes_value else None,
        "help": _help(action),
        "choices": list(action.choices or getattr(action, "names", None) or ()),
        "is_required": action.required,
        "is_repeated": hasattr(action, "is_repeated") or type(action).__name__.endswith("AppendAction"),
    }


def _help(action: argparse.Action) -> str:
    return str(action.help or "").replace("%%", "%")
