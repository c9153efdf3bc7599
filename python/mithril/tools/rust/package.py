"""The files of the Rust target: what a model takes and gives is filled into a crate that is the same for all models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidValueError, ModelFileError
from ..exported import Exported

__all__ = ["package", "refuse_foreign", "refuse_options"]

_HERE = Path(__file__).parent
_OURS = "by Mithril"
#: The type of Rust that holds a dtype; of 16-bit floats the bits.
_TYPES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "u16",
    "bfloat16": "u16",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "bool": "bool",
}
#: The value of an element as a number.
_FLOATS = {
    "float32": "f64::from",
    "float64": "|x| x",
    "float16": "half",
    "bfloat16": "|x| f64::from(f32::from_bits(u32::from(x) << 16))",
}
_SIZES = {
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
}
#: What inputs are for that every call is given.
_DATA_ROLES = ("data", "cotangent")
_CONSTANTS = """
    /// Pointers to constants of C.
    #[repr(transparent)]
    pub struct Constants<const N: usize>(pub [*const c_void; N]);

    // SAFETY: neither they nor what they point to ever changes.
    unsafe impl<const N: usize> Sync for Constants<N> {}
"""
_STATES_SAID = """
///
/// States stay in it from call to call; [`StaticModel::reset`] brings back those that it starts with."""
_RESET = """
    /// Makes the next call start with the states of a new model.
    pub fn reset(&mut self) {
        self.is_started = false;
    }
"""
_KEYWORDS = frozenset(
    [
        "abstract",
        "as",
        "async",
        "await",
        "become",
        "box",
        "break",
        "const",
        "continue",
        "crate",
        "do",
        "dyn",
        "else",
        "enum",
        "extern",
        "false",
        "final",
        "fn",
        "for",
        "gen",
        "if",
        "impl",
        "in",
        "let",
        "loop",
        "macro",
        "match",
        "mod",
        "move",
        "mut",
        "override",
        "priv",
        "pub",
        "ref",
        "return",
        "self",
        "static",
        "struct",
        "super",
        "trait",
        "true",
        "try",
        "type",
        "typeof",
        "union",
        "unsafe",
        "unsized",
        "use",
        "virtual",
        "where",
        "while",
        "yield",
    ]
)

Port = Mapping[str, Any]


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
    data, results = _data(report), _results(report)
    kept = [port for port in report["inputs"] if port["offset"] is not None]
    is_inside = not (folder / "c" / f"{prefix}.weights").exists()
    name = re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-") or "model"
    name = f"{name}-model" if name in _KEYWORDS or not name[0].isalpha() else name
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
        words[part] = _filled(f"{part}.rs.in", words) if kept else ""
    words |= _static_model(folder / "c", report, words) if is_inside else _NOT_STATIC
    texts = {
        "Cargo.toml": _manifest(words, is_inside),
        "build.rs": _filled("build.rs.in", words),
        "src/lib.rs": _filled("lib.rs.in", words),
        "tests/recorded.rs": _filled("recorded.rs.in", words),
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


def _filled(template: str, words: Mapping[str, str]) -> str:
    text = (_HERE / template).read_text("utf-8")
    return re.sub(r"@(\w+)@", lambda match: words[match[1]], text)


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
    inputs, outputs = _fields(data), _fields(results)
    checks = [f"        check({_text(p['name'])}, {_count(p)}, inputs.{f}.len())?;" for f, p in inputs]
    checks += [f"        check({_text(p['name'])}, {_count(p)}, outputs.{f}.len())?;" for f, p in outputs]
    if not inputs:
        checks.insert(0, "        let _ = inputs;")
    example = ", ".join(f"{f}: &[{_zero(p)}; {_count(p)}]" for f, p in inputs)
    return {
        "lifetime": "<'a>" if inputs else "",
        "input_fields": "".join(f"    /// {_said(p)}\n    pub {f}: &'a [{_type(p)}],\n" for f, p in inputs),
        "output_fields": "".join(f"    /// {_said(p)}\n    pub {f}: Vec<{_type(p)}>,\n" for f, p in outputs),
        "output_new": "".join(f"            {f}: vec![{_zero(p)}; {_count(p)}],\n" for f, p in outputs),
        "checks": "".join(f"{line}\n" for line in checks),
        "data": ", ".join(f"inputs.{f}.as_ptr().cast()" for f, _ in inputs),
        "data_size": str(len(inputs)),
        "results": ", ".join(f"outputs.{f}.as_mut_ptr().cast()" for f, _ in outputs),
        "results_size": str(len(outputs)),
        "example": f" {{ {example} }}" if inputs else " {}",
        "example_output": "".join(f'//! println!("{{:?}}", outputs.{f});\n' for f, _ in outputs[:1]),
    }


#: Words of a package whose weights lie in a file, which takes the standard library.
_NOT_STATIC = {
    "refuse_no_std": """
#[cfg(not(feature = "std"))]
compile_error!("the weights are in a file, which takes the feature `std`; without it, export with weights_inside=True");

""",
    **dict.fromkeys(("ffi_void", "static_declared", "static_types", "static_model", "static_test"), ""),
}


def _static_model(c: Path, report: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, str]:
    """Write the model that has its memory in a value of Rust; its states come behind the memory of a call."""
    prefix = words["prefix"]
    header = (c / f"{prefix}.h").read_text("utf-8")
    arena = re.search(rf"^#define {prefix.upper()}_ARENA_BYTES (\d+)$", header, re.MULTILINE)
    if arena is None:
        raise RuntimeError(f"{prefix}.h does not say how many bytes its arena has")
    inputs, outputs = report["inputs"], report["outputs"]
    fields = {port["name"]: field for field, port in _fields(_data(report))}
    results = {port["name"]: field for field, port in _fields(_results(report))}
    end = _aligned(int(arena[1]))
    places: dict[int, int] = {}
    copies = []
    for port in outputs:
        i = port["replaces"]
        if i is None:
            continue
        places[i] = end
        bytes_ = _count(inputs[i]) * _SIZES[port["dtype"]]
        copies.append(
            f"                constants[{i}].cast::<u8>().copy_to_nonoverlapping(memory.add({end}), {bytes_});\n"
        )
        end += _aligned(bytes_)
    given = []
    for i, port in enumerate(inputs):
        if i in places:
            given.append(f"            memory.wrapping_add({places[i]}).cast_const().cast(),\n")
        elif port["name"] in fields and port["role"] in _DATA_ROLES:
            given.append(f"            inputs.{fields[port['name']]}.as_ptr().cast(),\n")
        else:
            given.append(f"            constants[{i}],\n")
    written = [
        f"            outputs.{results[port['name']]}.as_mut_ptr().cast(),\n"
        if port["replaces"] is None
        else f"            memory.wrapping_add({places[port['replaces']]}).cast(),\n"
        for port in outputs
    ]
    has_constants = copies or any("constants[" in line for line in given)
    is_packed = f"{prefix}_packed[]" in header
    start = (
        "        // SAFETY: the constants of C.\n        let constants = unsafe { &ffi::WEIGHTS.0 };\n"
        if has_constants
        else ""
    )
    if copies:
        start += (
            "        if !self.is_started {\n"
            "            // SAFETY: a state has so many bytes, for which there is room behind the memory of a call.\n"
            f"            unsafe {{\n{''.join(copies)}            }}\n"
            "            self.is_started = true;\n"
            "        }\n"
        )
    return {
        "refuse_no_std": "",
        "memory_bytes": str(max(end, 64)),
        "ffi_void": ", c_void",
        "static_declared": _declared(prefix, len(inputs), has_constants=bool(has_constants), is_packed=is_packed),
        "static_types": _CONSTANTS if has_constants else "",
        "static_model": _filled(
            "static_model.rs.in",
            {
                **words,
                "lifetime_outputs": "<'a>" if results else "",
                "output_slices": "".join(
                    f"    /// {_said(p)}\n    pub {f}: &'a mut [{_type(p)}],\n" for f, p in _fields(_results(report))
                ),
                "states_said": _STATES_SAID if copies else "",
                "started_field": "    is_started: bool,\n" if copies else "",
                "started_new": ", is_started: false" if copies else "",
                "reset": _RESET if copies else "",
                "memory_bytes": str(max(end, 64)),
                "start": start,
                "all_size": str(len(inputs)),
                "all_inputs": "".join(given),
                "all_outputs_size": str(len(outputs)),
                "all_outputs": "".join(written),
                "packed": "core::ptr::addr_of!(ffi::PACKED).cast()" if is_packed else "core::ptr::null()",
            },
        ),
        "static_test": _static_test(report, words),
    }


def _declared(prefix: str, inputs: int, *, has_constants: bool, is_packed: bool) -> str:
    """Declare what C has for models in memory of a known size."""
    texts = [
        f"""        #[link_name = "{prefix}_run"]
        pub fn run(
            inputs: *const *const c_void,
            outputs: *const *mut c_void,
            packed: *const c_void,
            arena: *mut c_void,
            pool: *const c_void,
        ) -> c_int;
"""
    ]
    if has_constants:
        texts.append(f'        #[link_name = "{prefix}_weights"]\n        pub static WEIGHTS: Constants<{inputs}>;\n')
    if is_packed:
        texts.append(f'        #[link_name = "{prefix}_packed"]\n        pub static PACKED: u32;\n')
    return "".join(texts)


def _static_test(report: Mapping[str, Any], words: Mapping[str, str]) -> str:
    outputs = _fields(_results(report))
    fields = ", ".join(f"{field}: &mut got_{field}" for field, _ in outputs)
    return _filled(
        "static_test.rs.in",
        {
            **words,
            "static_outputs": "".join(f"    let mut got_{f} = vec![{_zero(p)}; {_count(p)}];\n" for f, p in outputs),
            "static_slices": f" {{ {fields} }}" if outputs else " {}",
            "static_compare": words["compare"].replace("outputs.", "got_").replace("        ", "    "),
        },
    )


def _aligned(bytes_: int) -> int:
    return -(-bytes_ // 64) * 64


def _kept(kept: Sequence[Port]) -> dict[str, str]:
    dtypes = sorted({port["dtype"] for port in kept})
    variants = "".join(f"    /// {_dtype_said(d)}\n    {_variant(d)}(&'a [{_TYPES[d]}]),\n" for d in dtypes)
    views = "".join(
        f"                {_text(d)} => Some(Values::{_variant(d)}(std::slice::from_raw_parts(at.cast(), count))),\n"
        for d in dtypes
    )
    rows = "".join(
        f"            {_text(p['name'])} => ({i}, {_count(p)}usize, {_text(p['dtype'])}),\n" for i, p in enumerate(kept)
    )
    return {
        "variants": variants,
        "weights": rows,
        "views": views,
    }


def _recorded(data: Sequence[Port], results: Sequence[Port]) -> dict[str, str]:
    inputs, outputs = _fields(data), _fields(results)
    compare = []
    for field, port in outputs:
        actual, expected = f"&outputs.{field}", f"&wanted_{field}"
        if port["dtype"] in _FLOATS:
            arguments = f"{_text(port['name'])}, {actual}, {expected}, {port['allowed']:e}, {_FLOATS[port['dtype']]}"
            compare.append(f"        compare({arguments});\n")
        else:
            compare.append(f"        assert_eq!({actual[1:]}, {expected[1:]}, {_text(port['name'])});\n")
    fields = ", ".join(f"{field}: &given_{field}" for field, _ in inputs)
    lines = [f"    let given_{field} = {_read(port)};\n" for field, port in inputs]
    lines += [f"    let wanted_{field} = {_read(port)};\n" for field, port in outputs]
    return {
        "read": "".join(lines),
        "inputs": f" {{ {fields} }}" if inputs else " {}",
        "compare": "".join(compare),
    }


def _read(port: Port) -> str:
    kind = _type(port)
    convert = "|[byte]: [u8; 1]| byte != 0" if kind == "bool" else f"{kind}::from_ne_bytes"
    return f"next(&mut at, {_count(port)}, {convert})"


def _readme(words: Mapping[str, str], data: Sequence[Port], results: Sequence[Port], is_inside: bool) -> str:
    rows = [("input", f, p) for f, p in _fields(data)] + [("output", f, p) for f, p in _fields(results)]
    table = "".join(f"| {what} | `{field}` | {_dtype_said(p['dtype'])} | {p['shape']} |\n" for what, field, p in rows)
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
{_readme_static(words, data, results) if is_inside else ""}"""


def _data(report: Mapping[str, Any]) -> list[Port]:
    """List what every call is given."""
    return [port for port in report["inputs"] if port["role"] in _DATA_ROLES]


def _results(report: Mapping[str, Any]) -> list[Port]:
    """List what a call gives; new states stay in the model."""
    return [port for port in report["outputs"] if port["replaces"] is None]


def _readme_static(words: Mapping[str, str], data: Sequence[Port], results: Sequence[Port]) -> str:
    outputs = _fields(results)
    arrays = "".join(f"let mut {f} = [{_zero(p)}; {_count(p)}];\n" for f, p in outputs)
    fields = ", ".join(f"{f}: &mut {f}" for f, _ in outputs)
    slices = f" {{ {fields} }}" if outputs else " {}"
    return f"""
Without the feature `std` the crate is `no_std`. `StaticModel`, which is there with and without it, needs no heap, no
threads and no files: its memory is a value of {words["memory_bytes"]} bytes, and the weights are constants.

```rust
let mut model = {words["crate"]}::StaticModel::new(); // or a static
{arrays}model.run(&{words["crate"]}::Inputs{words["example"]}, &mut {words["crate"]}::OutputsMut{slices})?;
```
"""


def _fields(ports: Sequence[Port]) -> list[tuple[str, Port]]:
    """Give ports names that are fields of Rust, each once."""
    taken: set[str] = set()
    fields = []
    for port in ports:
        stem = re.sub(r"[^a-z0-9_]+", "_", port["name"].lower()).strip("_") or "tensor"
        stem = f"tensor_{stem}" if stem[0].isdigit() else stem
        stem = f"{stem}_" if stem in _KEYWORDS else stem
        name, i = stem, 1
        while name in taken:
            i += 1
            name = f"{stem}_{i}"
        taken.add(name)
        fields.append((name, port))
    return fields


def _type(port: Port) -> str:
    return _TYPES[port["dtype"]]


def _zero(port: Port) -> str:
    kind = _type(port)
    return "false" if kind == "bool" else f"0.0_{kind}" if kind[0] == "f" else f"0_{kind}"


def _count(port: Port) -> int:
    return math.prod(port["shape"])


def _variant(dtype: str) -> str:
    return {"bfloat16": "BF16", "float16": "F16", "bool": "Bool"}.get(dtype, _TYPES[dtype].upper())


def _dtype_said(dtype: str) -> str:
    return f"{dtype}, as bits" if dtype in ("float16", "bfloat16") else dtype


def _said(port: Port) -> str:
    name = port["name"].replace("`", "'")
    return f"`{name}`: {_dtype_said(port['dtype'])} `{list(port['shape'])}`."


def _text(text: str) -> str:
    r"""Write a text of Rust.

    >>> print(_text('a"b'))
    "a\"b"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in escaped) + '"'
