"""Let the tests compute on another device: ``pytest --device cuda``.

Backends of PyTorch that are constructed without a device take this one; JAX takes an accelerator by itself.
"""

import os
import sys


def use(device: str) -> None:
    """Make a device the default of `TorchBackend`, in this process."""
    # Products and convolutions in as many bits as on a processor, or no tolerance would hold.
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
    # Nor do the flags that make XLA quick for a processor suit others.
    os.environ.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)
    # Tests run side by side on one device.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # What is computed twice is compared bit for bit.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true"

    import mithril as ml
    import torch

    torch.backends.cudnn.allow_tf32 = False
    find = ml.TorchBackend._find_device
    ml.TorchBackend._find_device = lambda self, name: find(self, device if name is None else name)
    for method in ("__array__", "numpy"):
        setattr(torch.Tensor, method, _to_host(torch.Tensor, method))


def _to_host(kind, method):
    """Return a method that also brings arrays of a device to the host, for the tests: Mithril itself has to ask."""
    original = getattr(kind, method)

    def convert(array, *args, **named):
        if not sys._getframe(1).f_globals.get("__name__", "").startswith("mithril"):
            array = array.detach().cpu() if array.device.type != "cpu" else array
        return original(array, *args, **named)

    return convert
