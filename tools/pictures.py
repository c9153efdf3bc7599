"""Makes the pictures of the documentation, in docs/pictures: ``python -m tools.pictures``.

The programs of docs/start.md make most of them; the page of a model is taken by Chromium, where it is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from pathlib import Path

import mithril as ml

from tools.browser import CHROMIUM, photograph, screenshot

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"


def start_page(folder: Path) -> None:
    """Run the programs of docs/start.md in a folder."""
    text = (ROOT / "docs" / "start.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    os.chdir(folder)
    exec(compile(code, "start.md", "exec"), {"__name__": "start"})


def web_picture(folder: Path) -> None:
    """Take a picture of the page of an exported model, when it has been run on what was recorded."""
    if CHROMIUM is None:
        print("web_start.png stays: Chromium is not installed")
        return
    act = "page.querySelector('#form:not([hidden])') && (page.querySelector('#recorded').click(), true)"
    ready = "page.querySelector('#results')?.textContent"
    photograph(folder, "index.html", PICTURES / "web_start.png", ready, act=act, size="900,520")


def profile_pictures() -> None:
    """Draw where ResNet-18 spends its time in C."""
    backend = ml.CBackend(num_threads=1)
    compiled = ml.compile(ml.models.resnet18(), backend, shapes={"input": [1, 3, 224, 224]}, inference=True)
    shown = ml.view(compiled, profile=True)
    for picture in ("flame_graph", "roofline"):
        shown.save(PICTURES / f"{picture}.svg", picture=picture)


def plan_picture(folder: Path) -> None:
    """Draw what a device does in a training step of a GPT on a mesh, and take a picture of its page."""
    strategy = {"data": "data_parallel", "model": "tensor_parallel"}
    gpt = ml.models.create_gpt(num_layers=6)
    plan = ml.plan(
        gpt,
        ml.Mesh(data=2, model=4),
        shapes={"input": [8, 128]},
        gradients=True,
        hardware="a100",
        optimizer=ml.optim.AdamW(0.001),
        strategy=strategy,
    )
    plan.save(PICTURES / "plan.svg")
    page = folder / "devices.html"
    ml.view(gpt, page, shapes={"input": [8, 128]}, title="GPT on 8 devices", plan=plan)
    screenshot(f"{page.as_uri()}#transformer.h.0", PICTURES / "view_devices.png")


def pipeline_picture() -> None:
    """Draw when the devices of a pipeline compute which micro-batch of a GPT."""
    plan = ml.plan(
        ml.models.create_gpt(vocab_size=256, num_layers=8, num_heads=8, dims=512, block_size=128),
        ml.Pipeline(4, micro_batches=8, schedule="interleaved"),
        shapes={"input": [16, 128]},
        gradients=True,
        hardware="a100",
        optimizer=ml.optim.AdamW(0.001),
    )
    plan.save(PICTURES / "pipeline.svg")


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--no-bench", action="store_true", help="keep the picture of the bench table")
    options = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start_page(folder)
        for picture in ("training.svg", "model.svg"):
            shutil.copyfile(folder / picture, PICTURES / picture)
        screenshot((folder / "model.html").as_uri(), PICTURES / "view.png")
        web_picture(folder / "spirals_web")
        os.chdir(ROOT)
        plan_picture(folder)
    profile_pictures()
    pipeline_picture()
    if not options.no_bench:
        table = ml.benchmark_table(
            "inference", models=["resnet18", "bert", "gpt2"], backends=["numpy", "torch", "c"], quick=True
        )
        (PICTURES / "bench.svg").write_text(table.to_svg())


if __name__ == "__main__":
    main()
