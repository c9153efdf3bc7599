"""Generated C that is compiled as several units: values and gradients against PyTorch, errors as of the one file."""

import logging
import os
import shlex
import shutil

import mithril as ml
import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A compiler that notes the files it is given, with an empty cache."""
    monkeypatch.setenv("MITHRIL_CACHE_DIR", str(tmp_path / "cache"))
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    script, log = tmp_path / "cc", tmp_path / "log"
    script.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(log))}\nexec {shlex.quote(compiler)} "$@"\n')
    script.chmod(0o755)

    def sources():
        text = log.read_text() if log.exists() else ""
        log.unlink(missing_ok=True)
        return sorted(os.path.basename(word) for word in text.split() if word.endswith(".c"))

    return str(script), sources


class Mixed(nn.Module):
    """Convolutions of several kinds, attention, a recurrent layer, sorting."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.Hardswish())
        self.depthwise = nn.Conv2d(32, 32, 5, padding=2, groups=32)
        self.wide = nn.Conv2d(32, 48, 3, padding=1)
        self.attention = nn.MultiheadAttention(48, 4, batch_first=True)
        self.norm = nn.LayerNorm(48)
        self.gru = nn.GRU(48, 16, batch_first=True)

    def forward(self, x):
        y = nn.functional.gelu(self.wide(self.depthwise(self.stem(x)))).flatten(2).permute(0, 2, 1)
        y = self.norm(y + self.attention(y, y, y, need_weights=False)[0])
        steps, _ = self.gru(y[:, :4])
        return steps.flatten(1), y.mean(1).sort().values


def test_units_compute_what_the_module_does(tool, caplog):
    script, sources = tool
    torch.manual_seed(0)
    module, x = Mixed().eval(), torch.randn(2, 3, 16, 16)
    model, params = ml.from_torch(module, (x,))
    compiled = ml.compile(model, ml.CBackend(cc=script), inference=True)
    compiled.load_params(params)
    actual = compiled.evaluate({}, {"x": x.numpy()})
    for value, expected in zip(actual.values(), module(x), strict=True):
        np.testing.assert_allclose(value, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    files = sources()
    assert len(files) > 2
    assert "model.c" not in files
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("mithril")]


def test_gradients_in_units(tool, caplog):
    script, sources = tool
    torch.manual_seed(0)
    module, x = Mixed().eval(), torch.randn(2, 3, 16, 16)
    model, params = ml.from_torch(module, (x,))
    compiled = ml.compile(model, ml.CBackend(cc=script))
    data, keys = {"x": x.numpy()}, list(model.output_keys)
    cotangents = {keys[0]: np.ones((2, 64), np.float32)}
    _, gradients = compiled.evaluate(params, data, cotangents)
    module(x)[0].sum().backward()
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            np.testing.assert_allclose(gradients[name], parameter.grad, rtol=1e-3, atol=1e-4, err_msg=name)
    assert "model.c" not in sources()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("mithril")]


def test_errors_are_those_of_the_whole_file(monkeypatch, tmp_path):
    monkeypatch.setenv("MITHRIL_CACHE_DIR", str(tmp_path))
    model, params = ml.from_torch(Mixed().eval(), (torch.randn(1, 3, 16, 16),))

    def run():
        compiled = ml.compile(model, ml.CBackend(flags=["--no-such-flag"]), inference=True)
        compiled.evaluate(params, {"x": np.zeros((1, 3, 16, 16), np.float32)})

    with pytest.raises(ml.MithrilError) as caught:
        run()
    assert "--no-such-flag" in str(caught.value)
    assert "unit" not in str(caught.value)
