"""`StaticModel` of the Rust target: a model in memory of a known size, without the standard library."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...dtypes import normalize
from .ports import (
    DATA_ROLES,
    Port,
    count_of,
    data_ports,
    filled,
    named_fields,
    result_ports,
    said,
    type_of,
    zero_of,
)

__all__ = ["NOT_STATIC", "readme", "static_words"]

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
#: Words of a package whose weights lie in a file, which takes the standard library.
NOT_STATIC = {
    "refuse_no_std": """
#[cfg(not(feature = "std"))]
compile_error!("the weights are in a file, which takes the feature `std`; without it, export with weights_inside=True");

""",
    **dict.fromkeys(("ffi_void", "static_declared", "static_types", "static_model", "static_test"), ""),
}


def static_words(c: Path, report: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, str]:
    """Write the model that has its memory in a value of Rust; its states come behind the memory of a call."""
    prefix = words["prefix"]
    header = (c / f"{prefix}.h").read_text("utf-8")
    arena = re.search(rf"^#define {prefix.upper()}_ARENA_BYTES (\d+)$", header, re.MULTILINE)
    if arena is None:
        raise RuntimeError(f"{prefix}.h does not say how many bytes its arena has")
    inputs, outputs = report["inputs"], report["outputs"]
    fields = {port["name"]: field for field, port in named_fields(data_ports(report))}
    results = {port["name"]: field for field, port in named_fields(result_ports(report))}
    end = _aligned(int(arena[1]))
    places: dict[int, int] = {}
    copies = []
    for port in outputs:
        i = port["replaces"]
        if i is None:
            continue
        places[i] = end
        bytes_ = count_of(inputs[i]) * normalize(port["dtype"]).itemsize
        copies.append(
            f"                constants[{i}].cast::<u8>().copy_to_nonoverlapping(memory.add({end}), {bytes_});\n"
        )
        end += _aligned(bytes_)
    given = []
    for i, port in enumerate(inputs):
        if i in places:
            given.append(f"            memory.wrapping_add({places[i]}).cast_const().cast(),\n")
        elif port["name"] in fields and port["role"] in DATA_ROLES:
            given.append(f"            inputs.{fields[port['name']]}.as_ptr().cast(),\n")
        else:
            given.append(f"            constants[{i}],\n")
    written = [
        f"            outputs.{results[port['name']]}.as_mut_ptr().cast(),\n"
        if port["replaces"] is None
        else f"            memory.wrapping_add({places[port['replaces']]}).cast(),\n"
        for port in outputs
    ]
    has_constants = bool(copies) or any("constants[" in line for line in given)
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
        "static_declared": _declared(prefix, len(inputs), has_constants=has_constants, is_packed=is_packed),
        "static_types": _CONSTANTS if has_constants else "",
        "static_model": filled(
            "static_model.rs.in",
            {
                **words,
                "lifetime_outputs": "<'a>" if results else "",
                "output_slices": "".join(
                    f"    /// {said(p)}\n    pub {f}: &'a mut [{type_of(p)}],\n"
                    for f, p in named_fields(result_ports(report))
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
    outputs = named_fields(result_ports(report))
    fields = ", ".join(f"{field}: &mut got_{field}" for field, _ in outputs)
    return filled(
        "static_test.rs.in",
        {
            **words,
            "static_outputs": "".join(
                f"    let mut got_{f} = vec![{zero_of(p)}; {count_of(p)}];\n" for f, p in outputs
            ),
            "static_slices": f" {{ {fields} }}" if outputs else " {}",
            "static_compare": textwrap.indent(textwrap.dedent(words["compare"]), "    "),
        },
    )


def _aligned(bytes_: int) -> int:
    return -(-bytes_ // 64) * 64


def readme(words: Mapping[str, str], data: Sequence[Port], results: Sequence[Port]) -> str:
    """Write what the README says of it."""
    outputs = named_fields(results)
    arrays = "".join(f"let mut {f} = [{zero_of(p)}; {count_of(p)}];\n" for f, p in outputs)
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
