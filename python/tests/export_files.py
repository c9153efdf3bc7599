"""Files of ``torch.export``, whole and damaged: small programs of several kinds, and mutants of their zips."""

import io
import json
import os
import pickle
import warnings
import zipfile

import torch
from torch import nn


class Buffers(nn.Module):
    """Buffers of several dtypes, one that may change, constants, a region without gradients, outputs in a dict."""

    def __init__(self, counts):
        super().__init__()
        self.counts = counts
        self.linear = nn.Linear(4, 4)
        self.register_buffer("order", torch.tensor([2, 0, 1, 3]))
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x, *, other):
        if self.counts:
            self.calls.add_(1)
        with torch.no_grad():
            y = self.linear(x).tanh()
        parts = (y * self.scale.float())[:, self.order].split(2, dim=1)
        z = torch.where(self.mask, other["bias"], torch.tensor([1.0, 2.0, 3.0, 4.0]))
        return {"sum": parts[0] + parts[1], "rest": (z, self.linear(x) ** 2)}


class Sized(nn.Module):
    """Sizes as values, views, a concatenation of open sizes."""

    def forward(self, x):
        n, m = x.shape[0], x.shape[1]
        y = torch.cat([x, x * 2], dim=1).reshape(n * 2, m)
        return y.mean(1) + torch.arange(n * 2, dtype=torch.float32)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("flag", torch.tensor(True))

    def forward(self, x):
        return torch.cond(self.flag, lambda v: v.sin(), lambda v: v.cos(), (x,))


def programs():
    """Programs by name, with inputs."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    tied[2].weight = tied[0].weight
    rows = torch.export.Dim("rows", min=2, max=64)
    columns = torch.export.Dim("columns", min=2, max=8)
    cases = {
        "tied": (tied, (x,), {}, None),
        "buffers": (Buffers(True), (x,), {"other": {"bias": torch.ones(4)}}, None),
        "fixed": (Buffers(False), (x,), {"other": {"bias": torch.ones(4)}}, None),
        "sized": (Sized(), (x,), {}, ({0: rows, 1: columns},)),
        "branching": (Branching(), (x,), {}, None),
        "half": (nn.Linear(4, 2).bfloat16(), (x.bfloat16(),), {}, None),
    }
    return {
        name: (torch.export.export(module.eval(), args, kwargs, dynamic_shapes=sizes, strict=False), args, kwargs)
        for name, (module, args, kwargs, sizes) in cases.items()
    }


def saved(program):
    """Bytes of the file of a program."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def members(data):
    """Members of a zip by name, in their order."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def packed(parts, compression=zipfile.ZIP_STORED):
    """Make a zip of members, a mapping or pairs."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", compression) as archive:
        # Of members of the same name.
        warnings.simplefilter("ignore")
        for name, content in parts.items() if isinstance(parts, dict) else parts:
            archive.writestr(name, content)
    return buffer.getvalue()


def legacy(program):
    """Write a program as PyTorch 2.8 did: tensors in pickles."""
    parts = members(saved(program))
    root = next(iter(parts)).partition("/")[0]
    parts = {name: part for name, part in parts.items() if "/weights/" not in name and "/constants/" not in name}
    for kind, tensors in (("weights", dict(program.state_dict)), ("constants", program.constants)):
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        parts[f"{root}/data/{kind}/model.pt"] = buffer.getvalue()
    return packed(parts)


class Runs:
    """An object whose pickle runs a command."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def attacks(canary):
    """Texts that leave a file behind, if they are evaluated in one way or another."""
    call = f"__import__('pathlib').Path({canary!r}).touch()"
    return [
        call,
        f"Integer({call})",
        f"Symbol('s0', **({call} or {{}}))",
        f"x={call}",
        f"x):\n    {call}\ndef forward(self",
        f"x\n{call}\n",
        f"'+{call}+'",
        f'"+str({call})+"',
        f"x #\n{call}",
        "torch.os.system",
        "torch.ops.load_library",
        "torch.ops.aten.from_file.default",
        "torch.utils._pytree.importlib.import_module",
        "_operator.methodcaller",
        "math.__loader__.load_module",
        "builtins.eval",
        "collections.defaultdict",
        "#aoti:x",
        "__class__",
        "9**9**9**9",
        "Pow(9, Pow(9, Pow(9, 9)))",
        "s99999999999",
        "u999999",
        "\u202e\x00",
        "../../../../etc/passwd",
        json.dumps([1, {"type": "collections.defaultdict", "context": json.dumps(_factory()), "children_spec": []}]),
        json.dumps(
            [
                1,
                {
                    "type": "builtins.dict",
                    "context": '[{"__enum__": true, "fqn": "antigravity:x", "name": "y"}]',
                    "children_spec": [{"type": None, "context": None, "children_spec": []}],
                },
            ]
        ),
    ]


def _factory():
    return {"default_factory_module": "antigravity", "default_factory_name": "geohash", "dict_context": []}


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    64,
    2**31,
    2**62,
    2**63,
    2**70,
    1e308,
    -0.5,
    "NaN",
    "",
    "x",
    [],
    {},
    [[]],
    {"as_int": 3},
]


class Mutants:
    """Mutants of files.

    Parameters
    ----------
    files : list of bytes
        Files to begin with.
    canary : str
        The file that attacks leave.
    rng : random.Random
        What chooses.
    """

    def __init__(self, files, canary, rng):
        self.files, self.rng = files, rng
        self.attacks = attacks(canary)
        self.pickle = io.BytesIO()
        torch.save(Runs(f"touch {canary}"), self.pickle)
        self.raw = pickle.dumps(Runs(f"touch {canary}"))

    def next(self):
        """Make a mutant."""
        rng = self.rng
        data = rng.choice(self.files)
        kind = rng.random()
        if kind < 0.7:
            parts = members(data)
            names = [name for name in parts if name.endswith(".json")]
            if names:
                name = rng.choice([*names, *[n for n in names if "/models/" in n] * 4])
                tree = json.loads(parts[name])
                for _ in range(rng.choice([1, 1, 1, 2, 4])):
                    tree = self._tree(tree)
                parts[name] = json.dumps(tree).encode()
                return packed(parts)
        if kind < 0.85:
            return self._members(data)
        return self._bytes(data)

    def _tree(self, tree):
        """Change a value somewhere in JSON."""
        rng, places = self.rng, []

        def walk(value, path):
            keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
            for key in keys:
                places.append((value, key))
                walk(value[key], path)

        walk(tree, ())
        if not places:
            return tree
        owner, key = rng.choice(places)
        action = rng.random()
        if action < 0.15:
            del owner[key]
        elif action < 0.3:
            owner[key] = rng.choice(VALUES)
        elif action < 0.5:
            other, place = rng.choice(places)
            owner[key] = json.loads(json.dumps(other[place]))
        elif action < 0.75:
            owner[key] = rng.choice(self.attacks)
        elif action < 0.85 and isinstance(owner, list):
            owner.insert(key, json.loads(json.dumps(owner[key])))
        elif action < 0.9 and isinstance(owner, dict):
            owner[rng.choice(self.attacks)] = owner.pop(key)
        elif isinstance(owner[key], (int, float)):
            owner[key] = owner[key] + rng.choice([-1, 1, 2, 7, 1000])
        elif isinstance(owner[key], str):
            texts = [other[place] for other, place in places if isinstance(other[place], str)]
            owner[key] = rng.choice([owner[key][:-1], owner[key] + "x", rng.choice(texts), rng.choice(self.attacks)])
        return tree

    def _members(self, data):
        rng, parts = self.rng, members(data)
        root = next(iter(parts)).partition("/")[0]
        name = rng.choice(list(parts))
        action = rng.randrange(9)
        if action == 0:
            del parts[name]
        elif action == 1:
            parts[name] = rng.choice([self.pickle.getvalue(), self.raw])
        elif action == 2:
            pickles = [n for n in parts if n.endswith(".pt")]
            for member in pickles:
                parts[member] = rng.choice([self.pickle.getvalue(), self.raw, self._flipped(self.pickle.getvalue())])
        elif action == 3:
            parts[f"{root}/data/aotinductor/model/{rng.choice(['model.so', 'x.cpp'])}"] = b"\x7fELF"
        elif action == 4:
            parts[f"{rng.choice(['..', root + '/../..', '/etc', root + '/data/weights'])}/weight_0"] = b"1234"
        elif action == 5:
            return packed([*parts.items(), (name, parts[name])])
        elif action == 6:
            return packed(parts, zipfile.ZIP_DEFLATED)
        elif action == 7:
            parts[name] = parts[name][: rng.randrange(len(parts[name]) + 1)]
        else:
            other = rng.choice(list(parts))
            parts[name], parts[other] = parts[other], parts[name]
        return packed(parts)

    def _flipped(self, data):
        changed = bytearray(data)
        for _ in range(self.rng.choice([1, 2, 8])):
            changed[self.rng.randrange(len(changed))] = self.rng.randrange(256)
        return bytes(changed)

    def _bytes(self, data):
        rng = self.rng
        if rng.random() < 0.3:
            return data[: rng.randrange(len(data))]
        if rng.random() < 0.5:
            # The directory of the zip is what lies.
            tail = len(data) - rng.randrange(1, min(1500, len(data)))
            return data[:tail] + self._flipped(data[tail:])
        return self._flipped(data)
