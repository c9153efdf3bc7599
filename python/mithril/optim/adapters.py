"""Optimizers of the frameworks with the interface of ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..backends.exchange import to_host
from ..compiled.parameters import like, untrained
from ..errors import BackendUnavailableError, InvalidValueError, ParameterError
from .checks import check_arrays, check_mapping
from .state import number

__all__ = ["AdaptedOptimizer", "from_mlx", "from_optax", "from_torch"]


class AdaptedOptimizer(ABC):
    """An optimizer of a framework with the interface of `Optimizer`.

    Attributes
    ----------
    learning_rate : float or None
        That of the framework's optimizer, where it tells.
    steps : int
        Steps taken so far.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._is_started = False
        #: A state that waits for the parameters it belongs to.
        self._pending: dict[str, Any] | None = None

    def init(self, params: Mapping[str, Any]) -> None:
        """Start anew, for these parameters; see `Optimizer.init`."""
        check_mapping("params", params)
        fixed = untrained(params)
        params = {name: value for name, value in params.items() if name not in fixed}
        check_arrays(params, params)
        self.steps, self._pending = 0, None
        self._start(params)
        self._is_started = True

    def update(self, params: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step; see `Optimizer.update`."""
        check_mapping("params", params)
        check_mapping("gradients", gradients)
        fixed, whole = untrained(params, gradients), params
        if fixed:
            params = {name: value for name, value in params.items() if name not in fixed}
            gradients = {name: value for name, value in gradients.items() if name not in fixed}
        check_arrays(params, gradients)
        pending, steps = self._pending, self.steps
        if not self._is_started or pending is not None:
            self.init(params)
            self.steps = steps
        if pending is not None:
            self._restore(pending)
        if not gradients:
            return dict(whole)
        updated = self._step(params, {name: gradients[name] for name in params if name in gradients})
        self.steps += 1
        return like(whole, {name: updated.get(name, value) for name, value in whole.items()})

    def apply_gradients(self, gradients: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """As `update`, with the arguments in the order of ``mlx.optimizers``."""
        return self.update(params, gradients)

    def state_dict(self) -> dict[str, Any]:
        """Return what the optimizer remembers: arrays and plain numbers by name, and ``"steps"``."""
        if self._pending is not None:
            return {"steps": self.steps, **self._pending}
        return {"steps": self.steps, **(self._state() if self._is_started else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, in place of what there is, with the next `update`."""
        check_mapping("state", state)
        if "steps" not in state:
            raise ParameterError("the state lacks 'steps'", hint="pass what state_dict() of an optimizer returned")
        self.steps = number("steps", state["steps"])
        self._pending = {name: value for name, value in state.items() if name != "steps"}

    @abstractmethod
    def _start(self, params: dict[str, Any]) -> None:
        """Make the framework's state for these parameters."""

    @abstractmethod
    def _step(self, params: Mapping[str, Any], gradients: dict[str, Any]) -> Mapping[str, Any]:
        """Take a step and return the new parameters, at least those with gradients."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Return the framework's state as a flat mapping."""

    @abstractmethod
    def _restore(self, state: Mapping[str, Any]) -> None:
        """Take over such a state."""


# --- PyTorch ----------------------------------------------------------------------------------------------------


class _FromTorch(AdaptedOptimizer):
    """An optimizer of PyTorch, over copies of the parameters; see `from_torch`."""

    def __init__(self, kind: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__()
        self._kind, self._options = kind, options
        self._leaves: dict[str, Any] = {}
        self._optimizer: Any = None
        self._returned: Mapping[str, Any] = {}

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of all parameters; it may be changed."""
        if self._optimizer is not None:
            return float(self._optimizer.param_groups[0]["lr"])
        return self._options.get("lr")

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._options["lr"] = rate
        for group in self._optimizer.param_groups if self._optimizer is not None else ():
            group["lr"] = rate

    def _start(self, params: dict[str, Any]) -> None:
        for name, value in params.items():
            if not hasattr(value, "detach"):
                raise ParameterError(
                    f"parameter {name!r} is a {type(value).__name__}, no tensor of PyTorch",
                    hint="compile the model for ml.TorchBackend(), or use ml.optim",
                )
        self._leaves = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
        self._returned = params
        self._optimizer = self._kind(list(self._leaves.values()), **self._options)

    def _step(self, params: Mapping[str, Any], gradients: dict[str, Any]) -> Mapping[str, Any]:
        if params.keys() != self._leaves.keys():
            raise ParameterError(
                "the parameters differ from those of the previous step", hint="start again with init(params)"
            )
        for name, leaf in self._leaves.items():
            if params[name] is not self._returned.get(name):
                leaf.data.copy_(params[name].detach())
            leaf.grad = gradients.get(name)
        self._optimizer.step()
        # Copies: the next step changes the tensors themselves.
        self._returned = {
            name: leaf.detach().clone() if name in gradients else params[name] for name, leaf in self._leaves.items()
        }
        return self._returned

    def _state(self) -> dict[str, Any]:
        return {
            f"slot/{slot}/{name}": value.detach().clone() if hasattr(value, "detach") else value
            for name, leaf in self._leaves.items()
            for slot, value in self._optimizer.state.get(leaf, {}).items()
            if value is not None
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        import torch

        for key, value in state.items():
            _, slot, name = _split(key, self._leaves)
            leaf = self._leaves[name]
            if not hasattr(value, "detach"):
                host = to_host(value)
                wide = host.astype(np.float32) if host.dtype.name == "bfloat16" else np.array(host)
                value = torch.from_numpy(wide).to(getattr(torch, host.dtype.name))
            # Counters of steps stay where PyTorch has them, on the CPU.
            self._optimizer.state[leaf][slot] = value.clone() if value.ndim == 0 else value.to(leaf.device).clone()


def from_torch(
    kind: Callable[..., Any],
    *,
    lr: Any = None,
    weight_decay: float | None = None,
    foreach: bool | None = None,
    maximize: bool | None = None,
    **options: Any,
) -> AdaptedOptimizer:
    """Make an optimizer of a class of ``torch.optim``, with the interface of ours.

    Parameters
    ----------
    kind : type or callable
        For example ``torch.optim.Adam``; or any function that makes an optimizer of a list of tensors.
    lr, weight_decay, foreach, maximize : optional
        Options that most classes have. Default: those of the class.
    **options
        Its other options, such as ``betas``.

    Returns
    -------
    AdaptedOptimizer

    Examples
    --------
    >>> import mithril as ml
    >>> import pytest
    >>> torch = pytest.importorskip("torch")
    >>> optimizer = ml.optim.from_torch(torch.optim.SGD, lr=0.5)
    >>> optimizer.update({"w": torch.ones(2)}, {"w": torch.ones(2)})
    {'w': tensor([0.5000, 0.5000])}
    """
    if not callable(kind):
        raise InvalidValueError(
            f"{type(kind).__name__} is not a class of optimizers: one that exists belongs to other tensors",
            hint="pass the class and its options: from_torch(torch.optim.Adam, lr=0.001)",
        )
    common = {"lr": lr, "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize}
    return _FromTorch(kind, {**{name: value for name, value in common.items() if value is not None}, **options})


# --- optax ------------------------------------------------------------------------------------------------------


class _FromOptax(AdaptedOptimizer):
    """A gradient transformation of optax; see `from_optax`."""

    #: optax keeps it to itself.
    learning_rate = None

    def __init__(self, transformation: Any) -> None:
        super().__init__()
        self._transformation = transformation
        self._inner: Any = None

    def _start(self, params: dict[str, Any]) -> None:
        self._inner = self._transformation.init(params)

    def _step(self, params: Mapping[str, Any], gradients: dict[str, Any]) -> Mapping[str, Any]:
        import optax

        absent = [name for name in params if name not in gradients]
        if absent:
            raise ParameterError(
                f"there is no gradient of {', '.join(map(repr, absent[:5]))}, and optax needs all",
                hint="pass the parameters that have gradients only",
            )
        updates, self._inner = self._transformation.update(gradients, self._inner, dict(params))
        return optax.apply_updates(dict(params), updates)  # type: ignore[no-any-return]

    def _state(self) -> dict[str, Any]:
        import jax

        return {f"leaf/{i}": leaf for i, leaf in enumerate(jax.tree_util.tree_leaves(self._inner))}

    def _restore(self, state: Mapping[str, Any]) -> None:
        import jax

        leaves, tree = jax.tree_util.tree_flatten(self._inner)
        expected = {f"leaf/{i}": leaf for i, leaf in enumerate(leaves)}
        if expected.keys() != state.keys() or any(np.shape(state[k]) != np.shape(v) for k, v in expected.items()):
            raise ParameterError("the state is not that of this optimizer and these parameters", hint=_SAME)
        with jax.enable_x64(True):
            values = [jax.numpy.asarray(to_host(state[k]), dtype=np.asarray(v).dtype) for k, v in expected.items()]
        self._inner = jax.tree_util.tree_unflatten(tree, values)


def from_optax(transformation: Any) -> AdaptedOptimizer:
    """Make an optimizer of a gradient transformation of optax, with the interface of ours.

    Parameters
    ----------
    transformation : optax.GradientTransformation
        For example ``optax.adam(0.001)``.

    Returns
    -------
    AdaptedOptimizer

    Examples
    --------
    >>> import mithril as ml
    >>> import pytest
    >>> optax = pytest.importorskip("optax")
    >>> import jax.numpy as jnp
    >>> optimizer = ml.optim.from_optax(optax.sgd(0.5))
    >>> optimizer.update({"w": jnp.ones(2)}, {"w": jnp.ones(2)})
    {'w': Array([0.5, 0.5], dtype=float32)}
    """
    if not callable(getattr(transformation, "init", None)) or not callable(getattr(transformation, "update", None)):
        raise InvalidValueError(
            f"{transformation!r} is not a gradient transformation of optax", hint="pass e.g. optax.adam(0.001)"
        )
    try:
        import optax  # noqa: F401 - the steps need it
    except ImportError as error:
        raise BackendUnavailableError("from_optax needs the package optax", hint="pip install optax") from error
    return _FromOptax(transformation)


# --- MLX --------------------------------------------------------------------------------------------------------


class _FromMlx(AdaptedOptimizer):
    """An optimizer of MLX that returns the new parameters; see `from_mlx`."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self.optimizer = optimizer

    @property
    def learning_rate(self) -> float | None:
        """The learning rate; it may be changed."""
        rate = getattr(self.optimizer, "learning_rate", None)
        return None if rate is None else float(rate)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.optimizer.learning_rate = rate

    def _start(self, params: dict[str, Any]) -> None:
        kept = {name: value for name, value in self.optimizer.state.items() if not isinstance(value, dict)}
        self.optimizer.state = {**kept, "step": 0 * kept["step"]}
        self.optimizer.init(params)

    def _step(self, params: Mapping[str, Any], gradients: dict[str, Any]) -> Mapping[str, Any]:
        trained = {name: params[name] for name in gradients}
        return self.optimizer.apply_gradients(gradients, trained)  # type: ignore[no-any-return]

    def _state(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for name, value in self.optimizer.state.items():
            if isinstance(value, dict):
                entries |= {f"slot/{slot}/{name}": array for slot, array in value.items()}
            else:
                entries[f"number/{name}"] = value
        return entries

    def _restore(self, state: Mapping[str, Any]) -> None:
        import mlx.core as mx

        current = self.optimizer.state
        known = {name for name, value in current.items() if isinstance(value, dict)}
        by_part: dict[str, Any] = {name: {} for name in known}
        for key, value in state.items():
            kind, _, rest = key.partition("/")
            if kind == "number":
                by_part[rest] = mx.array(to_host(value)).astype(current[rest].dtype)
            else:
                _, slot, name = _split(key, known)
                by_part[name][slot] = value if isinstance(value, mx.array) else mx.array(to_host(value))
        self.optimizer.state = by_part


def from_mlx(optimizer: Any) -> AdaptedOptimizer:
    """Wrap an optimizer of ``mlx.optimizers``, so that `update` returns the new parameters.

    Parameters
    ----------
    optimizer : mlx.optimizers.Optimizer
        Its own ``update`` changes the dict that it is given and returns None.

    Returns
    -------
    AdaptedOptimizer

    Examples
    --------
    >>> import mithril as ml
    >>> import pytest
    >>> mx = pytest.importorskip("mlx.core")
    >>> import mlx.optimizers
    >>> optimizer = ml.optim.from_mlx(mlx.optimizers.SGD(0.5))
    >>> optimizer.update({"w": mx.ones(2)}, {"w": mx.ones(2)})["w"].tolist()
    [0.5, 0.5]
    """
    if not callable(getattr(optimizer, "apply_gradients", None)) or isinstance(optimizer, type):
        raise InvalidValueError(
            f"{optimizer!r} is not an optimizer of MLX", hint="pass e.g. mlx.optimizers.Adam(learning_rate=0.001)"
        )
    return _FromMlx(optimizer)


_SAME = "load the state of an optimizer of the same kind and options, for the same parameters"


def _split(key: str, names: Any) -> tuple[str, str, str]:
    """Read ``"slot/<slot>/<parameter>"``."""
    kind, _, rest = key.partition("/")
    slot, _, name = rest.partition("/")
    if kind != "slot" or name not in names:
        raise ParameterError(f"the state holds {key!r}, which is unknown", hint=_SAME)
    return kind, slot, name
