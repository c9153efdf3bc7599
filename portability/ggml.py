"""Where ggml lies: the package of its sources, which also holds those of llama.cpp, and what cargo built of them."""

from __future__ import annotations

import glob
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def sources() -> Path:
    """Return the folder of llama.cpp in the package that the lock file pins."""
    metadata = subprocess.check_output(["cargo", "metadata", "--locked", "--format-version=1"], cwd=ROOT)
    packages = json.loads(metadata)["packages"]
    [manifest] = [package["manifest_path"] for package in packages if package["name"] == "llama-cpp-sys-2"]
    return Path(manifest).parent / "llama.cpp"


def linked() -> list[str]:
    """Return what links a program with the ggml that cargo built last."""
    built = glob.glob(str(ROOT / "target/*/build/mithril-ggml-*/out/libmithril_ggml_c.a"))
    if not built:
        raise FileNotFoundError("ggml is not built yet: make demo")
    folder = Path(max(built, key=os.path.getmtime)).parent
    archives = ["-Wl,--start-group", "-lmithril_ggml_c", "-lmithril_ggml_cpp", "-Wl,--end-group"]
    return [f"-L{folder}", *archives, "-lstdc++", "-lm", "-lpthread"]
