"""The zip of a file of ``torch.export``: which members it has, the texts among them, and views of the tensors.

Members lie in it as they are (nothing is compressed), so that they cannot be larger than the file. Pickles are read by
Mithril's own parser of checkpoints, which knows tensors and nothing else; those that are not needed are not read.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....checkpoints.weights import open as open_checkpoint
from ....errors import ModelFileError
from .expressions import Malformed
from .schema import checked_tensor_meta

__all__ = ["Archive"]

#: Members of a file: those with a thousand layers have about ten thousand.
_MEMBERS = 1_000_000
#: Numbers of dtypes in files, and their names in PyTorch.
_DTYPES = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64"},
    **{9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16"},
    **{
        29: "float8_e4m3fn",
        30: "float8_e5m2",
        31: "float8_e4m3fnuz",
        32: "float8_e5m2fnuz",
        34: "uint32",
        35: "uint64",
    },
}


class Archive:
    """A file of ``torch.export``, mapped into memory.

    Parameters
    ----------
    path : str
        The file.

    Raises
    ------
    Malformed
        If its members are not those of one program.
    """

    def __init__(self, path: str) -> None:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            if file.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):
                raise Malformed("it is not a zip")
            # Writes stay in this process: tensors may be written to.
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        try:
            with zipfile.ZipFile(path) as archive:
                infos = archive.infolist()
                if len(infos) > _MEMBERS:
                    raise Malformed(f"it has {len(infos)} members")
                self.members = self._members(infos, size)
                self.texts = {
                    name: archive.read(info)
                    for name, info in self.members.items()
                    if name in ("version", "archive_format", "byteorder") or name.endswith(".json")
                }
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError, EOFError) as error:
            raise Malformed(f"the zip is damaged: {error}") from error
        if any(name.startswith("data/aotinductor/") for name in self.members):
            raise Malformed("it holds code that AOTInductor compiled for one machine")
        if self.texts.get("byteorder", b"little") != b"little":
            raise Malformed("its numbers have the bytes of another machine")
        self.model = self._model()

    def program(self) -> Any:
        """Read the program: whatever JSON holds."""
        name = "serialized_exported_program.json" if self.model is None else f"models/{self.model}.json"
        return self._json(name)

    def tensors(self, kind: str, torch: Any) -> dict[str, Any]:
        """View the tensors of the program in the memory of the file.

        Parameters
        ----------
        kind : str
            ``weights`` or ``constants``.
        torch : module
            PyTorch.
        """
        if self.model is None:
            member = {"weights": "serialized_state_dict.pt", "constants": "serialized_constants.pt"}[kind]
            return self._pickled(member, torch)
        folder = f"data/{kind}/"
        if f"{folder}{self.model}.pt" in self.members:
            return self._pickled(f"{folder}{self.model}.pt", torch)
        config = self._json(f"{folder}{self.model}_{kind}_config.json")
        entries = config.get("config") if isinstance(config, dict) else None
        if not isinstance(entries, dict):
            raise Malformed(f"the list of its {kind} is malformed")
        return {name: self._tensor(folder, name, entry, torch) for name, entry in entries.items()}

    # --- members ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _members(infos: list[zipfile.ZipInfo], size: int) -> dict[str, zipfile.ZipInfo]:
        """Members by their names within the folder that all of them are in."""
        roots = {info.filename.partition("/")[0] for info in infos}
        has_root = len(roots) == 1 and all("/" in info.filename for info in infos)
        members: dict[str, zipfile.ZipInfo] = {}
        if any("/code/" in info.filename for info in infos):
            raise Malformed("it is of TorchScript")
        for info in infos:
            name = info.filename.partition("/")[2] if has_root else info.filename
            parts = name.split("/")
            if not name or ".." in parts or "" in parts or "\\" in name or ":" in name:
                raise Malformed(f"it has a member {info.filename[:80]!r}")
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise Malformed("members are compressed, which torch.export.save does not do")
            if name in members:
                raise Malformed(f"it has two members {name[:80]!r}")
            members[name] = info
        if sum(info.file_size for info in infos) > size:
            raise Malformed("its members are larger than the file")
        return members

    def _model(self) -> str | None:
        """Name of the program; None for files of PyTorch before 2.8."""
        if "archive_format" not in self.members and "serialized_exported_program.json" in self.members:
            return None
        if self.texts.get("archive_format", b"").strip() != b"pt2":
            if "data.pkl" in self.members:
                raise Malformed("it is a pickle of torch.save")
            raise Malformed("it is not an archive of torch.export")
        names = [name[7:-5] for name in self.members if re.fullmatch(r"models/[\w.\-]+\.json", name)]
        if "model" in names:
            return "model"
        if len(names) != 1:
            raise Malformed(f"it holds {len(names) or 'no'} programs" + (": " + ", ".join(names[:5]) if names else ""))
        return names[0]

    def _json(self, name: str) -> Any:
        if name not in self.texts:
            raise Malformed(f"it has no {name}")
        try:
            return json.loads(self.texts[name].decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise Malformed(f"{name} is not JSON: {error}") from error

    def _bytes(self, name: str) -> tuple[int, int]:
        """Where the bytes of a member lie in the file."""
        info = self.members.get(name)
        if info is None:
            raise Malformed(f"it has no {name}")
        header = self.map[info.header_offset : info.header_offset + 30]
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise Malformed("the zip is damaged")
        start = (
            info.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        )
        if info.file_size != info.compress_size or start + info.file_size > len(self.map):
            raise Malformed("the zip is damaged")
        return start, info.file_size

    # --- tensors ----------------------------------------------------------------------------------------------------

    def _tensor(self, folder: str, name: str, entry: Any, torch: Any) -> Any:
        member = entry.get("path_name") if isinstance(entry, Mapping) else None
        if not isinstance(member, str) or not re.fullmatch(r"[\w.\-]+", member):
            raise Malformed(f"the tensor {name[:80]!r} is malformed")
        if entry.get("use_pickle"):
            raise Malformed(f"{name[:80]!r} is an object of a class of its own, not a tensor")
        meta = checked_tensor_meta(entry.get("tensor_meta"))
        dtype = getattr(torch, _DTYPES.get(meta["dtype"], ""), None)
        if dtype is None or meta["layout"] != 7:
            raise Malformed(f"the tensor {name[:80]!r} is not dense, or has an unknown dtype")
        sizes, strides = ([part["as_int"] for part in meta[key]] for key in ("sizes", "strides"))
        start, count = self._bytes(f"{folder}{member}")
        last = meta["storage_offset"]["as_int"] + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        elements = 0 if 0 in sizes else last + 1
        if len(sizes) > 64 or elements * dtype.itemsize > count:
            raise Malformed(f"the tensor {name[:80]!r} lies outside of its bytes")
        if not elements:
            tensor = torch.empty(sizes, dtype=dtype)
        else:
            whole = count // dtype.itemsize * dtype.itemsize
            flat = torch.frombuffer(self.map, dtype=torch.uint8, count=whole, offset=start)
            flat = (flat if start % dtype.itemsize == 0 else flat.clone()).view(dtype)
            if dtype == torch.bool:
                # Bytes may be anything, and truth values are 0 or 1.
                flat = flat.view(torch.uint8) != 0
            tensor = torch.as_strided(flat, sizes, strides, meta["storage_offset"]["as_int"])
        if entry.get("is_param") is True:
            return torch.nn.Parameter(tensor, requires_grad=meta["requires_grad"])
        return tensor

    def _pickled(self, name: str, torch: Any) -> dict[str, Any]:
        """Read tensors in a pickle, as PyTorch before 2.9 wrote them."""
        start, count = self._bytes(name)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tensors.pt")
            with open(path, "wb") as file:
                file.write(memoryview(self.map)[start : start + count])
            try:
                checkpoint = open_checkpoint(path)
            except ModelFileError as error:
                raise Malformed(
                    f"{name}: {error.message.rpartition('tensors.pt')[2].lstrip(chr(34) + ': ')}"
                ) from error
            copies: dict[Any, Any] = {}
            result: dict[str, Any] = {}
            for key in checkpoint:
                array = checkpoint[key]
                # Tensors in the same memory stay one.
                where = (array.ctypes.data, array.shape, array.strides, str(array.dtype))
                if where not in copies:
                    copies[where] = _copied(array, torch)
                result[key] = copies[where]
            return result


def _copied(array: Any, torch: Any) -> Any:
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
