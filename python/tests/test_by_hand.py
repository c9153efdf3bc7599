"""Divided training against the same by hand: `DistributedDataParallel`, `fully_shard`, `NamedSharding` and others."""

import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("by_hand.py")
KINDS = ("data parallel", "fully sharded", "tensor parallel")


def run(*command, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pytorch_in_two_processes():
    pytest.importorskip("torch")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    printed = run(*launch, str(PROGRAM), "torch")
    assert all(printed.count(f"{kind} agrees") == 2 for kind in KINDS), printed


def test_jax_on_two_devices():
    pytest.importorskip("jax")
    pytest.importorskip("optax")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    printed = run(str(PROGRAM), "jax", JAX_PLATFORMS="cpu", XLA_FLAGS=flags)
    assert all(printed.count(f"{kind} agrees") == 1 for kind in KINDS), printed
