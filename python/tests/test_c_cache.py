"""The cache of compiled C: what others could have written is not loaded, and the user is told."""

import os
import subprocess
import sys
import warnings

import mithril as ml
import numpy as np
import pytest
from mithril.errors import BackendWarning, MithrilError
from networks import classifier

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders there have no mode")


def evaluate(backend):
    compiled = ml.compile(classifier(), backend, shapes={"input": [3, 5]}, inference=True)
    return compiled.evaluate(compiled.randomize_params(seed=0), {"input": np.ones((3, 5), np.float32)})["output"]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_an_open_cache_is_left_alone_and_the_warning_says_how_to_mend_it(tmp_path, monkeypatch, mode):
    expected = evaluate(ml.NumpyBackend())
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setenv("MITHRIL_CACHE_DIR", str(folder))
    with pytest.warns(BackendWarning) as caught:
        backend = ml.CBackend(autotune=True, num_threads=1)
    text = str(caught[0].message)
    assert f"{folder} is not used" in text
    assert f"mode {mode:04o}" in text
    assert f"rm -r {folder}" in text
    assert "MITHRIL_CACHE_DIR" in text
    assert caught[0].filename == __file__
    np.testing.assert_allclose(evaluate(backend), expected, rtol=1e-5)
    # Neither objects nor tuning records.
    assert list(folder.iterdir()) == []


def test_a_folder_on_the_way_counts(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("MITHRIL_CACHE_DIR", str(tmp_path / "home" / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(ml.CBackend())
    assert (tmp_path / "home" / "cache").stat().st_mode & 0o777 == 0o700
    (tmp_path / "home").chmod(0o775)
    with pytest.warns(BackendWarning, match=f"chmod go-w {tmp_path / 'home'}"):
        ml.CBackend()


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder to another user"
)
def test_a_cache_of_another_user_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("MITHRIL_CACHE_DIR", str(tmp_path / "cache"))
    evaluate(ml.CBackend())
    objects = sorted(tmp_path.rglob("*"))
    os.chown(tmp_path / "cache", 54321, -1)
    with pytest.warns(BackendWarning, match="belongs to another user"):
        backend = ml.CBackend()
    evaluate(backend)
    assert sorted(tmp_path.rglob("*")) == objects


def test_exporting_builds_where_nobody_else_can_write(tmp_path):
    # The folder of the result may be shared: what is run is not built from it.
    program = (
        "import mithril as ml, sys; sys.path.insert(0, sys.argv[1]); from networks import classifier;"
        "made = ml.compile(classifier(), ml.NumpyBackend(), shapes={'input': [1, 5]}, inference=True);"
        "made.randomize_params(seed=0); print(made.export(sys.argv[2], cc=sys.argv[3]))"
    )
    compiler = tmp_path / "cc"
    # A compiler that shows which files it reads.
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec cc "$@"\n')
    compiler.chmod(0o755)
    command = [sys.executable, "-c", program, os.path.dirname(__file__), str(tmp_path / "out"), str(compiler)]
    subprocess.run(command, check=True, capture_output=True)
    calls = (tmp_path / "calls").read_text()
    assert "main.c" in calls
    assert str(tmp_path / "out") not in calls


def test_no_temporary_folder_is_safe(tmp_path):
    tmp_path.chmod(0o777)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "MITHRIL_CACHE_DIR": str(tmp_path)}
    program = (
        "import mithril as ml, sys; sys.path.insert(0, sys.argv[1]); from networks import classifier\n"
        "try: ml.compile(classifier(), ml.CBackend(), shapes={'input': [1, 5]}, inference=True).evaluate\n"
        "except ml.errors.MithrilError as error: print(error)"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, os.path.dirname(__file__)]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert "other users can write" in printed
    assert "TMPDIR" in printed
    assert issubclass(ml.errors.ModelFileError, MithrilError)
