"""`compile`: from a logical model and a backend to a physical model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .. import dtypes
from .._core import Model
from ..backends.backend import Backend
from ..backends.keywords import COptions, GgmlOptions, JaxOptions, MlxOptions, NumpyOptions, TorchOptions
from ..backends.quantized import QuantizedWeights
from ..errors import ConflictingOptionError, IgnoredOptionWarning, InvalidValueError, KeyNotFoundError, UnusedKeyWarning
from ..parallel.hardware import Hardware
from ..parallel.layout import ArrayLayout, Layout, Mesh, as_layout
from ..parallel.pipeline import Pipeline
from ..parallel.strategies import Strategy, planned_layout, with_strategy
from ..suggestions import did_you_mean, nearest
from .auto_layout import best_layout
from .physical_model import PhysicalModel
from .program import Settings

__all__ = ["compile"]

#: Accepted spelling -> canonical keyword of `compile`.
ALIASES = {
    "types": "dtypes",
    "static_inference": "inference",
    "checkpoint": "gradient_checkpointing",
    "compute_precision": "precision",
    "compute_dtype": "precision",
}


def compile(
    model: Model,
    backend: Backend,
    *,
    shapes: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    data_keys: Iterable[str] | None = None,
    constant_keys: Mapping[str, Any] | None = None,
    trainable_keys: Iterable[str] | None = None,
    freeze: Iterable[str] | None = None,
    initializers: Mapping[str, Any] | None = None,
    discard_keys: Iterable[str] | None = None,
    donate: Iterable[str] | None = None,
    inference: bool | None = None,
    static_shapes: bool = False,
    jit: bool | None = None,
    jit_options: Mapping[str, Any] | None = None,
    auto_scalar_promotion: bool = True,
    gradient_checkpointing: bool | None = None,
    autodiff: str | None = None,
    precision: Any = None,
    layout: Layout | Mesh | None = None,
    strategy: Strategy | None = None,
    hardware: Hardware | str | None = None,
    file_path: str | None = None,
    strict: bool = False,
    verbose: bool = False,
    **aliases: Any,
) -> PhysicalModel:
    """Compile a model for a backend.

    The model is not changed and may be compiled any number of times.

    Parameters
    ----------
    model : Model
        The model to compile.
    backend : Backend
        The backend that runs it.
    shapes : mapping, optional
        Input name to shape. A size is a number, a symbol (``"batch"``: any size, the same wherever it occurs)
        or None (any size). Without shapes the model is specialized at the first `PhysicalModel.evaluate`.
    dtypes : mapping, optional
        Input name to dtype. Default: the dtype of the backend for floats.
    data_keys : iterable of str, optional
        Inputs that are passed at each call and have no gradient. Inputs are data unless a layer or ``trainable_keys``
        makes them parameters.
    constant_keys : mapping, optional
        Input name to a value that is fixed now and constant-folded into the program.
    trainable_keys : iterable of str, optional
        Inputs that become parameters.
    freeze : iterable of str, optional
        Name patterns of parameters that training does not change: ``["encoder.*"]``, or ``["encoder"]`` for all
        parameters of that layer. They are saved and loaded like others, but have no gradients.
    initializers : mapping, optional
        Name pattern to initial value: a number, an array, ``"zeros"``, ``"ones"``, ``("uniform", bound)``,
        ``("normal", deviation)``, ``("truncated_normal", deviation)``, ``"orthogonal"`` or ``("orthogonal", gain)``,
        ``"kaiming_uniform"``, ``"kaiming_normal"``, ``"xavier_uniform"``, ``"xavier_normal"`` (as in PyTorch), ``he_``,
        ``glorot_`` and ``lecun_`` in front of ``uniform`` and ``normal`` (as in JAX and Keras),
        ``("variance_scaling", scale, fan, distribution)``, or ``"fan_in"``, with which linear and convolution layers
        start. The first matching pattern counts. Default: the initial values of the layers.
    discard_keys : iterable of str, optional
        Outputs that are not computed.
    donate : iterable of str, optional
        Data whose memory may be reused, such as the caches of a decoder: NumPy and PyTorch may write results into it
        where nothing else reads it, instead of copying it. Its contents are undefined after a call, and outputs may
        share its memory. Data that shares memory with other data of the call is copied first. Requires ``inference``.
    inference : bool, optional
        Disable dropout and use running statistics; the model has no gradients. Also spelled ``static_inference``.
    static_shapes : bool, optional
        Require that every size is known now.
    jit : bool, optional
        Also compile the generated code with `torch.compile`, `jax.jit` or `mlx.core.compile`. NumPy has no such
        compiler: no effect. Default: the setting of the backend.
    jit_options : mapping, optional
        Options of that compiler.
    auto_scalar_promotion : bool, optional
        Accept Python numbers where ops take tensors (default True); otherwise they are errors.
    gradient_checkpointing : bool, optional
        Recompute intermediate results for the gradients instead of storing them: about a third more time, and memory
        for the square root of the number of layers. Also spelled ``checkpoint``.
    autodiff : {"native", "graph"}, optional
        Where gradients come from: the framework (the default if it has autodiff) or Mithril's gradient graph (the only
        choice on NumPy).
    precision : dtype, optional
        Mixed precision: matrix products, convolutions and attention are computed in this dtype (``"bfloat16"``,
        ``"float16"``), softmax, norms, losses and sums in float32. Parameters, data, outputs and gradients keep
        the dtype of the backend. Default: the ``precision`` of the backend.
    layout : Layout or Mesh, optional
        How tensors are divided over several devices; see `mithril.Layout`. A mesh stands for data parallelism along its
        first axis. Parameters, data and results stay whole arrays for the caller.
    strategy : str or mapping of str to str, optional
        A strategy for a `layout` that is a mesh of one axis, or for each axis by its name, such as
        ``{"data": "data_parallel", "model": "tensor_parallel"}``: ``"data_parallel"``, ``"fully_sharded"``,
        ``"tensor_parallel"``, ``"model_parallel"``, ``"sequence_parallel"``, ``"expert_parallel"``,
        ``"spatial_parallel"``, ``"pipeline_parallel"``, whose stages are divided along the other axes. ``"auto"``: how
        tensors are divided over the mesh, or layers, is searched for, for the shortest step with gradients and an
        optimizer like Adam that fits in memory; the sizes of the data have to be known.
    hardware : Hardware or str, optional
        The devices that ``strategy="auto"`` estimates times for. Default: by the device of the backend.
    file_path : str, optional
        A file to write the generated source to.
    strict : bool, optional
        Turn warnings into errors: keys that match nothing in the model, ops that the backend lacks.
    verbose : bool, optional
        Print what is compiled, and how long each phase takes.
    **aliases
        Other accepted spellings: ``types``, ``static_inference``, ``checkpoint``, ``compute_precision``,
        ``compute_dtype``. Two spellings of one option with different values are a `ConflictingOptionError`.

    Returns
    -------
    PhysicalModel

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> model = ml.Model()
    >>> model |= ml.Linear(4)(input="input", output="hidden")
    >>> model += ml.Relu()(output="output")
    >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": ["batch", 3]})
    >>> params = compiled.randomize_params(seed=0)
    >>> compiled.evaluate(params, {"input": np.ones((2, 3))})["output"].shape
    (2, 4)
    """
    # None is what is missing: False and another spelling with True contradict each other.
    spelled = {
        "dtypes": dtypes,
        "inference": inference,
        "gradient_checkpointing": gradient_checkpointing,
        "precision": precision,
    }
    dtypes, inference, gradient_checkpointing, precision = _aliases(aliases, spelled, backend).values()
    inference, gradient_checkpointing = (False if s is None else s for s in (inference, gradient_checkpointing))
    _check_switches(
        inference=inference,
        static_shapes=static_shapes,
        strict=strict,
        verbose=verbose,
        auto_scalar_promotion=auto_scalar_promotion,
        jit=False if jit is None else jit,
        gradient_checkpointing=gradient_checkpointing,
    )
    _check(model, backend, autodiff)
    asked = with_strategy(strategy, _asked(model, backend, layout, strategy))
    planned = planned_layout(asked)
    if hardware is not None and (planned is None or planned.strategies is not None):
        raise ConflictingOptionError(
            'hardware is for strategy="auto"', hint="leave it out, or pass it to ml.plan, which estimates times"
        )
    divided = _layout(model, asked, backend, autodiff)
    if divided is not None and jit and backend.name != "jax":
        warnings.warn("jit has no effect with a layout, except on JAX", IgnoredOptionWarning, stacklevel=2)
    settings = Settings(
        jit=bool(backend.jit if jit is None else jit),
        jit_options=_by_name("jit_options", jit_options),
        autodiff=autodiff or ("graph" if divided is not None else backend.engine.autodiff[0]),
        strict=bool(strict),
        checkpoint=bool(gradient_checkpointing),
        layout=divided,
    )
    data, trainable = _names("data_keys", data_keys), _names("trainable_keys", trainable_keys)
    constants = {k: _constant(k, v) for k, v in _by_name("constant_keys", constant_keys).items()}
    options = {
        "shapes": {k: _sizes(v) for k, v in _by_name("shapes", shapes).items()},
        "dtypes": {k: str(_dtype(v)) for k, v in _by_name("dtypes", dtypes).items()},
        "data_keys": data,
        "constants": constants,
        "trainable_keys": trainable,
        "freeze": freeze,
        "initializers": initializers,
        "discard_keys": _names("discard_keys", discard_keys),
        "donate": _names("donate", donate),
        "training": not inference,
        "batch_groups": divided.batch_groups if divided is not None else 1,
        "scalar_promotion": auto_scalar_promotion,
        "checkpoint": settings.checkpoint,
        # Generated Python says how its tables are made; what a user's methods compute is not known.
        "keep_formulas": backend.name in ("numpy", "torch", "jax", "mlx") and not backend.engine.overrides,
    }
    compute = _precision(precision, backend)
    if compute is not None:
        options["precision"] = str(compute)
    _check_names(model, options, strict)
    both = set(trainable) & {*data, *constants}
    if both:
        raise ConflictingOptionError(
            f"{', '.join(sorted(both))} is named by trainable_keys and as data or a constant", hint="choose one"
        )
    if options["donate"] and options["training"]:
        raise ConflictingOptionError(
            "donate needs inference=True: gradients read what the data was", hint="add inference=True, or leave it out"
        )
    if planned is not None:
        best = best_layout(model, options, backend, planned, hardware)
        if isinstance(divided, Pipeline):
            best = divided.replaced(best)
        backend.engine.on_layout(best)
        settings = replace(settings, layout=best)
    return PhysicalModel(
        model, backend, options, settings, static_shapes=static_shapes, file_path=file_path, verbose=verbose
    )


def _check_switches(**switches: Any) -> None:
    for name, value in switches.items():
        if not isinstance(value, (bool, np.bool_)):
            raise InvalidValueError(f"{name} is {value!r}", hint="give True or False")


def _aliases(aliases: dict[str, Any], canonical: dict[str, Any], backend: Any) -> dict[str, Any]:
    for name, value in aliases.items():
        if name not in ALIASES:
            known = [n for n in compile.__kwdefaults__ or {}] + list(ALIASES)
            owners = _backends_with(name)
            if owners:
                used = type(backend).__name__
                raise TypeError(
                    f"compile has no option `{name}`, which is one of the backend: "
                    f"{used if used in owners else owners[0]}({name}={value!r}). "
                    f"It is taken by {', '.join(owners)}"
                )
            near = nearest(name, known)
            guess = f"; did you mean `{near}`?" if near else "."
            raise TypeError(f"compile has no option `{name}`{guess} It takes: {', '.join(sorted(known))}")
        target = ALIASES[name]
        if canonical[target] is not None and canonical[target] != value:
            raise ConflictingOptionError(
                f"`{name}` and `{target}` are the same option and differ: {value!r} and {canonical[target]!r}",
                hint=f"give `{target}` alone",
            )
        canonical[target] = value
    return canonical


def _backends_with(option: str) -> list[str]:
    """Return the classes of backends whose constructors take an option."""
    table = {
        "NumpyBackend": NumpyOptions,
        "TorchBackend": TorchOptions,
        "JaxBackend": JaxOptions,
        "MlxBackend": MlxOptions,
        "CBackend": COptions,
        "GGMLBackend": GgmlOptions,
    }
    return [name for name, options in table.items() if option in options.__annotations__]


def _check(model: Any, backend: Any, autodiff: Any) -> None:
    if not isinstance(model, Model):
        raise InvalidValueError(f"the model is a {type(model).__name__}", hint="pass an ml.Model")
    if isinstance(backend, type) and issubclass(backend, Backend):
        raise InvalidValueError(
            f"the backend is the class {backend.__name__}", hint=f"pass an instance: {backend.__name__}()"
        )
    if not isinstance(backend, Backend):
        raise InvalidValueError(f"the backend is a {type(backend).__name__}", hint="pass e.g. ml.NumpyBackend()")
    if autodiff is not None and autodiff not in backend.engine.autodiff:
        known = " or ".join(repr(choice) for choice in backend.engine.autodiff)
        raise InvalidValueError(f"autodiff is {autodiff!r}", hint=f"{type(backend).__name__} takes {known}")


def _asked(model: Model, backend: Backend, layout: Any, strategy: Any) -> Any:
    """Return the layout that is asked for: here, by `place_model`, or by the options of the backend."""
    if isinstance(layout, ArrayLayout):
        return layout
    own = backend.parallel_strategy
    for name, requested in (("layout", layout), ("strategy", strategy)):
        if own is not None and requested is not None:
            raise ConflictingOptionError(
                f"the backend has parallel_strategy={own!r}, and {name} is {requested!r}", hint="leave out one of them"
            )
    placed, pipeline = backend.placements.get(id(model), (None, None))
    if placed is not model:
        if layout is None and backend.layout is not None and strategy is not None:
            # Devices are named by the backend, what they divide is said here.
            return backend.layout.mesh
        return backend.layout if layout is None else layout
    if layout is not None:
        raise ConflictingOptionError(
            f"the model was placed by place_model, and layout is {layout!r}", hint="leave out one of them"
        )
    return pipeline


def _layout(model: Model, requested: Any, backend: Backend, autodiff: str | None) -> Layout | None:
    """Return how programs are divided, if they are."""
    if requested is None:
        return None
    layout = as_layout(requested)
    if autodiff == "native":
        raise ConflictingOptionError(
            'a layout needs the gradient graph: autodiff="native" differentiates on one device',
            hint="leave autodiff out",
        )
    if isinstance(backend, QuantizedWeights) and backend.quantize is not None:
        raise ConflictingOptionError(
            "weights in 8 bits are not divided over several devices", hint="leave out quantize, or the layout"
        )
    backend.engine.on_layout(layout)
    if isinstance(layout, Pipeline):
        layout.check_layers(model.layer_keys)
    return layout


def _precision(requested: Any, backend: Backend) -> dtypes.DType | None:
    """Return the dtype to compute in: what is requested here, else that of the backend."""
    precision = requested if requested is not None else backend.precision
    if precision is None:
        return None
    compute = _dtype(precision)
    if not compute.is_floating:
        raise InvalidValueError(f"precision is {compute}", hint="use float16, bfloat16, float32 or float64")
    return compute


def _dtype(dtype: Any) -> dtypes.DType:
    return dtypes.normalize(dtype)


def _by_name(option: str, mapping: Mapping[str, Any] | None) -> dict[str, Any]:
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        raise InvalidValueError(f"{option} is a {type(mapping).__name__}", hint=f"pass {option}={{'input': ...}}")
    return {str(name): value for name, value in mapping.items()}


def _names(option: str, names: Iterable[str] | None) -> list[str]:
    if names is None:
        return []
    if isinstance(names, str):
        raise InvalidValueError(f"{option} is a string", hint=f"pass a set: {option}={{{names!r}}}")
    if not isinstance(names, Iterable):
        raise InvalidValueError(f"{option} is a {type(names).__name__}", hint=f"pass a set of names: {option}={{...}}")
    return sorted(str(name) for name in names)


def _sizes(shape: Any) -> Any:
    """Shape as a list; what is none stays, for the error that the core raises."""
    return shape if isinstance(shape, (str, Mapping)) or not isinstance(shape, Iterable) else list(shape)


def _constant(name: str, value: Any) -> Any:
    if hasattr(value, "detach"):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidValueError(
            f"the constant {name!r} is not an array: {error}", hint="give rows of equal length"
        ) from error
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise InvalidValueError(f"the constant {name!r} is of {array.dtype}", hint="give numbers")
    return value


def _check_names(model: Model, options: dict[str, Any], strict: bool) -> None:
    """Refuse or warn about keys that name nothing; they are then left out."""
    inputs, outputs = set(model.input_keys), set(model.output_keys)
    for option in ("shapes", "dtypes", "data_keys", "constants", "trainable_keys", "discard_keys", "donate"):
        known = outputs if option == "discard_keys" else inputs
        for name in [n for n in options[option] if n not in known]:
            if option in ("shapes", "dtypes") and model.has_connection(name):
                continue
            hint = did_you_mean(name, known, f"available: {', '.join(sorted(known)[:20])}")
            label = "constant_keys" if option == "constants" else option
            text = f"{label} names {name!r}, which is not in the model"
            if strict or option in ("trainable_keys", "constants", "shapes", "dtypes", "donate"):
                raise KeyNotFoundError(text, hint=hint)
            warnings.warn(f"{text}; {hint}", UnusedKeyWarning, stacklevel=3)
            options[option] = [n for n in options[option] if n != name]
            options.setdefault("tolerated", []).append(name)
