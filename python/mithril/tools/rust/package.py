"""The files of the Rust target: what a model takes and gives is filled into a crate that is the same for all models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidValueError, ModelFileError
from ..exported import Exported
from . import static_model
from .ports import (
    KEYWORDS,
    TYPES,
    Port,
    count_of,
    data_ports,
    dtype_said,
    filled,
    named_fields,
    quoted,
    result_ports,
    said,
    type_of,
    variant_of,
    zero_of,
)

__all__ = ["package", "refuse_foreign", "refuse_options"]

_OURS = "by Mithril"
#: The value of an element as a number.
_FLOATS = {
    "float32": "f64::from",
    "float64": "|x| x",
    "float16": "half",
    "bfloat16": "|x| f64::from(f32::from_bits(u32::from(x) << 16))",
}


def refuse_options(*, batch: Any) -> None:
    """Refuse what a Rust package does not have."""
    if batch is not None:
        hint = 'leave batch out and compile the model for a number of rows, or use target="c"'
        raise InvalidValueError("batch is not for the target 'rust', whose tensors have fixed sizes", hint=hint)


def package(folder: Path, c: Exported, report: Mapping[str, Any], *, title: str, prefix: str, calls: int) -> Exported:
    """Make a Cargo package around a model that was exported as C into its folder ``c``.

    Parameters
    ----------
    folder : Path
        The folder of the package.
    c : Exported
        What was exported as C.
    report : mapping
        What the export as C reported.
    title, prefix : str
        What the model is called, and what C symbols start with.
    calls : int
        After how many calls the outputs were recorded.

    Returns
    -------
    Exported
    """
    data, results = data_ports(report), result_ports(report)
    kept = [port for port in report["inputs"] if port["offset"] is not None]
    is_inside = not (folder / "c" / f"{prefix}.weights").exists()
    name = re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-") or "model"
    name = f"{name}-model" if name in KEYWORDS or not name[0].isalpha() else name
    words = {
        "title": title.replace("\n", " "),
        "crate": name.replace("-", "_"),
        "name": name,
        "prefix": prefix,
        "calls": str(calls),
        "flags": "".join(f'        "{flag}",\n' for flag in report["flags"] if flag.startswith("-f")),
        **_opening(prefix, is_inside),
        **_interface(data, results),
        **_kept(kept),
        **_recorded(data, results),
    }
    # A model without weights of its own has nothing to look up.
    for part in ("values", "weight", "declared"):
        words[part] = filled(f"{part}.rs.in", words) if kept else ""
    words |= static_model.static_words(folder / "c", report, words) if is_inside else static_model.NOT_STATIC
    texts = {
        "Cargo.toml": _manifest(words, is_inside),
        "build.rs": filled("build.rs.in", words),
        "src/lib.rs": filled("lib.rs.in", words),
        "tests/recorded.rs": filled("recorded.rs.in", words),
        "README.md": _readme(words, data, results, is_inside),
    }
    for file, text in texts.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", newline="\n")
    figures = {key: getattr(c, key) for key in ("weight_bytes", "packed_bytes", "pack_bytes", "arena_bytes", "check")}
    return Exported(folder, (*(folder / file for file in texts), *c.files), **figures, is_random=c.is_random)


def refuse_foreign(folder: Path) -> None:
    """Keep files that somebody else wrote: ours say whose they are."""
    for file in ("Cargo.toml", "build.rs", "src/lib.rs", "tests/recorded.rs", "README.md"):
        path = folder / file
        if path.is_file() and _OURS not in path.read_text("utf-8", "replace"):
            text = f"{path} already exists and is not part of an export"
            raise ModelFileError(text, hint="choose an empty folder, or move that file away")


def _manifest(words: Mapping[str, str], is_inside: bool) -> str:
    description = words["title"].replace("\\", "\\\\").replace('"', '\\"')
    said = ", and has `StaticModel` alone" if is_inside else ", which takes weights inside of the C file"
    return f"""# Written by Mithril.
[package]
name = "{words["name"]}"
version = "0.1.0"
edition = "2021"
rust-version = "1.70"
description = "{description}"
include = ["build.rs", "src", "tests", "c", "README.md"]

[features]
default = ["native", "std"]
# Uses all instructions of the processor of the machine that compiles; leave it out for binaries that run on others.
native = []
# `Model`: threads and memory of the system. Without it the crate is `no_std`{said}.
std = []

[build-dependencies]
cc = "1"
"""


def _opening(prefix: str, is_inside: bool) -> dict[str, str]:
    if is_inside:
        opening = """    /// Opens the model, whose weights are inside, for calls on so many threads.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn open(threads: usize) -> Result<Self, Error> {
        Self::open_at(std::ptr::null(), threads)
    }
"""
        example, test = "open(1)", "open(threads)"
    else:
        opening = f"""    /// Opens the model for calls on so many threads, with the weights in `c/{prefix}.weights`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is that of another model, or there is no memory.
    pub fn open(weights: impl AsRef<std::path::Path>, threads: usize) -> Result<Self, Error> {{
        let path = weights.as_ref();
        #[cfg(unix)]
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec();
        #[cfg(not(unix))]
        let bytes = path.to_string_lossy().into_owned().into_bytes();
        let text = std::ffi::CString::new(bytes).map_err(|error| Error::Open(error.into()))?;
        Self::open_at(text.as_ptr(), threads)
    }}
"""
        example = f'open("c/{prefix}.weights", 1)'
        test = f'open(concat!(env!("CARGO_MANIFEST_DIR"), "/c/{prefix}.weights"), threads)'
    opening += """
    fn open_at(weights: *const std::ffi::c_char, threads: usize) -> Result<Self, Error> {
        let threads = threads.clamp(1, 1024) as std::ffi::c_int;
        // SAFETY: the text ends with a zero and is read before the call returns.
        let handle = unsafe { ffi::open(weights, threads) };
        NonNull::new(handle).map(|handle| Self { handle }).ok_or_else(|| Error::Open(std::io::Error::last_os_error()))
    }
"""
    return {"open": opening, "open_call": example, "open_test": test}


def _interface(data: Sequence[Port], results: Sequence[Port]) -> dict[str, str]:
    inputs, outputs = named_fields(data), named_fields(results)
    checks = [f"        check({quoted(p['name'])}, {count_of(p)}, inputs.{f}.len())?;" for f, p in inputs]
    checks += [f"        check({quoted(p['name'])}, {count_of(p)}, outputs.{f}.len())?;" for f, p in outputs]
    if not inputs:
        checks.insert(0, "        let _ = inputs;")
    example = ", ".join(f"{f}: &[{zero_of(p)}; {count_of(p)}]" for f, p in inputs)
    return {
        "lifetime": "<'a>" if inputs else "",
        "input_fields": "".join(f"    /// {said(p)}\n    pub {f}: &'a [{type_of(p)}],\n" for f, p in inputs),
        "output_fields": "".join(f"    /// {said(p)}\n    pub {f}: Vec<{type_of(p)}>,\n" for f, p in outputs),
        "output_new": "".join(f"            {f}: vec![{zero_of(p)}; {count_of(p)}],\n" for f, p in outputs),
        "checks": "".join(f"{line}\n" for line in checks),
        "data": ", ".join(f"inputs.{f}.as_ptr().cast()" for f, _ in inputs),
        "data_size": str(len(inputs)),
        "results": ", ".join(f"outputs.{f}.as_mut_ptr().cast()" for f, _ in outputs),
        "results_size": str(len(outputs)),
        "example": f" {{ {example} }}" if inputs else " {}",
        "example_output": "".join(f'//! println!("{{:?}}", outputs.{f});\n' for f, _ in outputs[:1]),
    }


def _kept(kept: Sequence[Port]) -> dict[str, str]:
    dtypes = sorted({port["dtype"] for port in kept})
    variants = "".join(f"    /// {dtype_said(d)}\n    {variant_of(d)}(&'a [{TYPES[d]}]),\n" for d in dtypes)
    views = "".join(
        f"                {quoted(d)} => Some(Values::{variant_of(d)}(std::slice::from_raw_parts(at.cast(), count))),\n"
        for d in dtypes
    )
    rows = "".join(
        f"            {quoted(p['name'])} => ({i}, {count_of(p)}usize, {quoted(p['dtype'])}),\n"
        for i, p in enumerate(kept)
    )
    return {
        "variants": variants,
        "weights": rows,
        "views": views,
    }


def _recorded(data: Sequence[Port], results: Sequence[Port]) -> dict[str, str]:
    inputs, outputs = named_fields(data), named_fields(results)
    compare = []
    for field, port in outputs:
        actual, expected = f"&outputs.{field}", f"&wanted_{field}"
        if port["dtype"] in _FLOATS:
            arguments = f"{quoted(port['name'])}, {actual}, {expected}, {port['allowed']:e}, {_FLOATS[port['dtype']]}"
            compare.append(f"        compare({arguments});\n")
        else:
            compare.append(f"        assert_eq!({actual[1:]}, {expected[1:]}, {quoted(port['name'])});\n")
    fields = ", ".join(f"{field}: &given_{field}" for field, _ in inputs)
    lines = [f"    let given_{field} = {_read(port)};\n" for field, port in inputs]
    lines += [f"    let wanted_{field} = {_read(port)};\n" for field, port in outputs]
    return {
        "read": "".join(lines),
        "inputs": f" {{ {fields} }}" if inputs else " {}",
        "compare": "".join(compare),
    }


def _read(port: Port) -> str:
    kind = type_of(port)
    convert = "|[byte]: [u8; 1]| byte != 0" if kind == "bool" else f"{kind}::from_ne_bytes"
    return f"next(&mut at, {count_of(port)}, {convert})"


def _readme(words: Mapping[str, str], data: Sequence[Port], results: Sequence[Port], is_inside: bool) -> str:
    rows = [("input", f, p) for f, p in named_fields(data)] + [("output", f, p) for f, p in named_fields(results)]
    table = "".join(f"| {what} | `{field}` | {dtype_said(p['dtype'])} | {p['shape']} |\n" for what, field, p in rows)
    weights = "The weights are inside." if is_inside else f"The weights are in `c/{words['prefix']}.weights`."
    return f"""# {words["name"]}

{words["title"]} {weights} Written by Mithril.

```rust
let mut model = {words["crate"]}::Model::{words["open_call"]}?;
let outputs = model.run(&{words["crate"]}::Inputs{words["example"]})?;
```

| | field | elements | shape |
|---|---|---|---|
{table}
`cargo test` compares the model with recorded outputs. The feature `native`, which is on, compiles for the processor of
this machine; build with `--no-default-features --features std` for binaries that run on others.
{static_model.readme(words, data, results) if is_inside else ""}"""
