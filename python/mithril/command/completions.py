"""Completions of shells, written from the table of commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["SHELLS", "completions"]

_Rows = Sequence[Mapping[str, Any]]

#: Arguments and values of options that are files or folders.
_PATHS = ("PATH", "FILE", "FOLDER", "MODEL", "IN", "OUT")


def completions(shell: str, rows: _Rows) -> str:
    """Return the script that a shell reads.

    Parameters
    ----------
    shell : str
        ``"bash"``, ``"zsh"`` or ``"fish"``.
    rows : sequence of mapping
        The table of commands, see `mithril.command.spelling`.

    Examples
    --------
    >>> row = {"name": "ops", "help": "list the ops", "arguments": [], "options": []}
    >>> print(completions("fish", [row]))
    complete -c mithril -f
    complete -c mithril -n __fish_use_subcommand -a 'ops' -d 'list the ops'
    """
    return SHELLS[shell](rows)


def _bash(rows: _Rows) -> str:
    commands = " ".join(row["name"] for row in rows)
    cases, values = [], []
    for row in rows:
        flags = " ".join(flag for option in row["options"] for flag in option["flags"])
        choices = " ".join(choice for argument in row["arguments"] for choice in argument["choices"])
        cases.append(f'        {row["name"]}) words="{flags}"; more="{choices}" ;;')
        for option in row["options"]:
            if option["choices"]:
                names = "|".join(f"{row['name']}:{flag}" for flag in option["flags"])
                values.append(f'        {names}) words="{" ".join(option["choices"])}" ;;')
    return "\n".join(
        [
            "_mithril() {",
            '    local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words="" more=""',
            '    if [ "$COMP_CWORD" -eq 1 ]; then',
            f'        COMPREPLY=($(compgen -W "{commands} --help --version" -- "$word"))',
            "        return",
            "    fi",
            '    case "${COMP_WORDS[1]}:$previous" in',
            *values,
            "    esac",
            '    if [ -n "$words" ]; then',
            '        COMPREPLY=($(compgen -W "$words" -- "$word"))',
            "        return",
            "    fi",
            '    case "${COMP_WORDS[1]}" in',
            *cases,
            "    esac",
            '    case "$word" in',
            '        -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;',
            '        *) COMPREPLY=($(compgen -f -- "$word") $(compgen -W "$more" -- "$word")) ;;',
            "    esac",
            "}",
            "complete -o filenames -F _mithril mithril",
        ]
    )


def _zsh(rows: _Rows) -> str:
    def quoted(text: str) -> str:
        return text.replace("'", "'\\''")

    def described(text: str) -> str:
        for special in "\\[]:":
            text = text.replace(special, f"\\{special}")
        return quoted(text)

    def value(entry: Mapping[str, Any], name: str) -> str:
        if entry["choices"]:
            return f":{described(name)}:({quoted(' '.join(entry['choices']))})"
        return f":{described(name)}:{'_files' if name in _PATHS else ' '}"

    lines = ["#compdef mithril", "", "_mithril() {", "    local -a commands", "    commands=("]
    lines += [f"        '{row['name']}:{described(row['help'])}'" for row in rows]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then",
        "        _describe command commands",
        "        return",
        "    fi",
    ]
    lines += ["    local command=$words[2]", "    shift words; (( CURRENT-- ))", '    case "$command" in']
    for row in rows:
        specs = []
        for option in row["options"]:
            for flag in option["flags"]:
                many = "*" if option["is_repeated"] else ""
                taken = "" if option["value"] is None else value(option, option["value"])
                specs.append(f"'{many}{flag}[{described(option['help'])}]{taken}'")
        specs += [f"'{i}{value(entry, entry['name'])}'" for i, entry in enumerate(row["arguments"], 1)]
        joined = " \\\n                ".join(specs)
        lines.append(f"        {row['name']})\n            _arguments \\\n                {joined} ;;")
    lines += [
        "    esac",
        "}",
        "",
        'if [ "$funcstack[1]" = "_mithril" ]; then _mithril "$@"; else compdef _mithril mithril; fi',
    ]
    return "\n".join(lines)


def _fish(rows: _Rows) -> str:
    def quoted(text: str) -> str:
        # A quote is closed, written by itself and opened again, as in the other shells.
        return "'" + text.replace("\\", "\\\\").replace("'", "'\\''") + "'"

    lines = ["complete -c mithril -f"]
    for row in rows:
        lines.append(f"complete -c mithril -n __fish_use_subcommand -a {quoted(row['name'])} -d {quoted(row['help'])}")
        inside = f"complete -c mithril -n '__fish_seen_subcommand_from {row['name']}'"
        for option in row["options"]:
            for flag in option["flags"]:
                short = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                taken = ""
                if option["choices"]:
                    taken = f" -x -a {quoted(' '.join(option['choices']))}"
                elif option["value"] is not None:
                    taken = " -r -F" if option["value"] in _PATHS else " -x"
                lines.append(f"{inside} {short}{taken} -d {quoted(option['help'])}")
        for argument in row["arguments"]:
            if argument["choices"]:
                lines.append(f"{inside} -a {quoted(' '.join(argument['choices']))}")
            elif argument["name"] in _PATHS:
                lines.append(f"{inside} -F")
    return "\n".join(lines)


#: Shell -> what writes its script.
SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
