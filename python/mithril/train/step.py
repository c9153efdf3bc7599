"""A step of a training as one call: on C one program that computes gradients and changes the parameters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any

import numpy as np

from .. import _core
from ..backends.with_manualgrad.c_backend import CBackend
from ..compiled import internals
from ..compiled.physical_model import PhysicalModel
from ..compiled.program import Program
from ..compiled.trainable import check_trainable
from ..errors import InvalidValueError
from ..optim import SGD, Optimizer
from ..optim import internals as optimizers
from .checkpoints import Checkpoint, Store, check_model, find, read, types_of
from .losses import add_loss, check_number
from .update import Update

__all__ = ["TrainingStep"]


class TrainingStep:
    """Takes training steps of a compiled model: each call computes the loss and changes the parameters.

    On `CBackend` loss, gradients and the step of the optimizer are one program, which changes parameters, running
    statistics and what the optimizer remembers where they lie: arrays that were taken from the model before show their
    new values. On other backends gradients and optimizer run one after the other; on PyTorch parameters are changed
    where they lie, too, but for those that were there before the first step.

    Parameters
    ----------
    model : PhysicalModel
        Compiled for training. Its parameters (`PhysicalModel.get_parameters`) and state are trained.
    optimizer : Optimizer, optional
        Takes the steps; default `mithril.optim.SGD` with learning rate 0.01 and momentum 0.9.
    loss : str, Model or callable, optional
        What is minimized, as for `mithril.train.fit`: an output, a loss by name, a layer, or a function.
    freeze : iterable of str, optional
        Patterns of names of parameters that stay as they are, as for `mithril.compile`.

    Attributes
    ----------
    model : PhysicalModel
        The model with its loss.
    optimizer : Optimizer
        Takes the steps.
    loss : str
        The output that is minimized.
    params : dict
        The parameters.
    steps : int
        How many steps were taken, also before what `load` has read.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> model = ml.Model()
    >>> model |= ml.Linear(1)(input="input", output="output")
    >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [64, 1]})
    >>> step = ml.train.TrainingStep(compiled, ml.optim.SGD(0.1), loss="mse")
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> losses = [float(step({"input": x, "target": 2 * x + 1})[step.loss]) for _ in range(100)]
    >>> print(losses[-1] < 0.001 * losses[0], compiled.parameters["linear.bias"].round(2))
    True [1.]
    """

    def __init__(
        self, model: PhysicalModel, optimizer: Any = None, *, loss: Any = None, freeze: Iterable[str] | None = None
    ) -> None:
        if not isinstance(model, PhysicalModel):
            raise InvalidValueError(f"the model is a {type(model).__name__}", hint="compile it first: ml.compile(...)")
        if isinstance(optimizer, type) or not callable(getattr(optimizer or SGD, "update", None)):
            raise InvalidValueError(f"optimizer is {optimizer!r}", hint="pass e.g. ml.optim.Adam(0.001)")
        self.model, self.loss, _ = add_loss(model, loss, freeze)
        self.optimizer = SGD(0.01, momentum=0.9) if optimizer is None else optimizer
        names = self.model.parameter_keys
        trained = [name for name in names if name not in self.model.frozen_keys]
        if isinstance(self.optimizer, Optimizer):
            trained = list(optimizers.trained_names(self.optimizer, trained))
        check_trainable(names, trained)
        self.params: Any = model.get_parameters()
        if self.model is not model:
            internals.restore_state(self.model, internals.saved_state(model))
        self._original = model
        #: Whether each device keeps only its part of the parameters, where a layout divides them.
        self._is_distributed = internals.program_settings(model).layout is None
        self._programs: dict[Any, _Fused] = {}
        self._update = Update(self.optimizer, self.model)
        self.steps = 0

    def __call__(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step on a batch; the outputs, loss included, as they were before it.

        Parameters
        ----------
        data : mapping
            Input name to array.
        """
        if self.model is not self._original and internals.has_user_state(self._original):
            internals.restore_state(self.model, internals.saved_state(self._original))
        fused = self._fused(data)
        if fused is not None:
            outputs = fused.run(self, data)
            internals.update_state(self._original, self.model.state)
            self.steps += 1
            return outputs
        internals.prepare_call(self.model, self.params, data)
        check_number(self.model, self.loss)
        if not self._is_distributed:
            self._is_distributed = True
            for name, array in internals.distributed(self.model, self.params, data, self.loss).items():
                if array is not self.params[name]:
                    self.params[name] = array
        outputs, gradients = self.model.evaluate(self.params, data, {self.loss: 1.0})
        new = self._update(self.params, gradients, outputs)
        for name in gradients:
            self.params[name] = new[name]
        internals.update_state(self._original, self.model.state)
        self.steps += 1
        return dict(outputs)

    def save(self, folder: str | os.PathLike[str], *, keep: int = 2) -> str:
        """Write a checkpoint: parameters, state, what the optimizer remembers, and the number of steps.

        It is there as a whole or not at all. On a mesh each device writes its part, and every process calls this.

        Parameters
        ----------
        folder : path-like
            Where checkpoints are written, a folder for each.
        keep : int, optional
            How many of the last ones stay.

        Returns
        -------
        str
            The folder of this one.

        Raises
        ------
        ModelFileError
            If that is not possible.

        Examples
        --------
        >>> import tempfile
        >>> import mithril as ml
        >>> import numpy as np
        >>> def new():
        ...     model = ml.Model()
        ...     model |= ml.Linear(1)(input="input", output="output")
        ...     compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 1]})
        ...     return ml.train.TrainingStep(compiled, ml.optim.Adam(0.1), loss="mse")
        >>> batch = {"input": np.ones((4, 1)), "target": np.zeros((4, 1))}
        >>> step, other = new(), new()
        >>> outputs = step(batch)
        >>> path = step.save(tempfile.mkdtemp())
        >>> other.load(path)
        >>> other.steps, bool(other(batch)[other.loss] == step(batch)[step.loss])
        (1, True)
        """
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise InvalidValueError(f"keep is {keep!r}", hint="give how many checkpoints stay: 1 or more")
        if not callable(getattr(self.optimizer, "state_dict", None)):
            raise InvalidValueError(
                f"a {type(self.optimizer).__name__} has no state_dict, so there can be no checkpoints",
                hint="use an optimizer of ml.optim",
            )
        backend = self.model.backend
        params = {name: self.params[name] for name in self.model.parameter_keys}
        groups = {
            "parameters": params,
            "state": dict(self.model.state),
            "optimizer": self.optimizer.state_dict(),
        }
        about = {"parameters": types_of(params, backend)}
        checkpoint = Checkpoint(0, self.steps, groups, about)
        return os.fspath(Store(folder, keep).write(checkpoint, backend, internals.communicator(self.model)))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint that `save` has written, on the same mesh, another one, or one device.

        Parameters
        ----------
        path : path-like
            The folder of a checkpoint, or the folder of several: then that which is furthest.

        Raises
        ------
        ModelFileError
            If there is none, or a damaged one.
        ParameterError
            If it belongs to another model.
        """
        chosen = find(path)
        has_layout = internals.program_settings(self.model).layout is not None
        checkpoint = read(chosen, self.model.backend, is_divided=has_layout)
        groups, about = checkpoint.groups, checkpoint.about
        if about.keys() != {"parameters"}:
            raise InvalidValueError(
                f"the checkpoint {os.fspath(chosen)!r} is one of ml.train.fit",
                hint="ml.train.load_checkpoint takes its parameters; fit(resume=...) goes on from it",
            )
        program = internals.current_program(self._original) or internals.current_program(self.model)
        check_model(self.model, program, about["parameters"], groups["state"], os.fspath(chosen))
        self.optimizer.load_state_dict(groups["optimizer"])
        for name, array in groups["parameters"].items():
            self.params[name] = array
        internals.update_state(self.model, groups["state"])
        internals.update_state(self._original, groups["state"])
        self.steps = checkpoint.batch
        # Each device reads its part at the next step.
        self._is_distributed = not has_layout

    def is_fused(self, data: Mapping[str, Any]) -> bool:
        """Whether a step on this batch is one program."""
        return self._fused(data) is not None

    def _fused(self, data: Mapping[str, Any]) -> _Fused | None:
        """Return the program that takes the whole step, where there can be one."""
        model, optimizer = self.model, self.optimizer
        if not isinstance(model.backend, CBackend) or not isinstance(optimizer, Optimizer):
            return None
        if not optimizers.is_plain(optimizer):
            return None
        program, _ = internals.prepare_call(model, self.params, data)
        fused = self._programs.get(program)
        if fused is None:
            names = optimizers.trained_names(optimizer, program.float_params)
            own = {optimizers.own_steps(optimizer, name) for name in names}
            if len(own) != 1 or program.output_types[self.loss][1] != ():
                return None
            fused = self._programs[program] = _Fused(program, self.loss, optimizer, self.params, model.backend)
        return fused


class _Fused:
    """Gradients and optimizer as one program of C."""

    def __init__(
        self, program: Program, loss: str, optimizer: Optimizer, params: Mapping[str, Any], backend: CBackend
    ) -> None:
        names = optimizers.trained_names(optimizer, program.float_params)
        optimizers.check_groups(optimizer, params)
        own = dict.fromkeys(names, 1)
        trained = {name: params[name] for name in names}
        self._rule = optimizers.step_program(optimizer, trained, own)
        core = program.core.training_step(loss, list(names), optimizers.step_core(self._rule))
        compiled = _core.c_program(core, backend.engine.c_options("step", in_place=True), is_lazy=True)
        self._call = compiled.call
        #: The program in C.
        self.source = compiled
        self._names = names
        self._others = tuple(name for name, _, _ in core.inputs("param"))
        self._kept = tuple(name for name, _, _ in program.state)
        self._updated = tuple(name for name in self._kept if name in program.updates)
        self._scalar = optimizers.step_scalar(self._rule)
        self._counter = np.ones((), self._scalar)
        known = {name for name, _, _ in program.data}
        rates = [name for name, _, _ in core.inputs("data") if name not in known]
        self._rates = [(name, int(name.rpartition("_")[2]) if name != "learning_rate" else 0) for name in rates]
        #: What was seen to be changeable: arrays and dicts of slots as they were found, and the states that they are.
        self._seen: list[Any] = []
        self._states: dict[str, Any] = {}

    def run(self, step: TrainingStep, data: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step; the outputs."""
        model, optimizer = step.model, step.optimizer
        program, data = internals.prepare_call(model, step.params, data)
        if program.has_numbers:
            program.check_positions(data)
        rates = optimizers.learning_rates(optimizer)
        arguments = {**data, **{name: np.asarray(rates[k], self._scalar) for name, k in self._rates}}
        others = {name: step.params[name] for name in self._others}
        number = optimizers.own_steps(optimizer, self._names[0]) + 1
        self._counter.fill(number)
        kept = internals.next_state(model, program, step.params) if program.state else {}
        outputs: dict[str, Any] = program.run(program.module, self._call, others, arguments, self._find(step, kept))
        if any(model.state[name] is not self._states[name] for name in self._updated):
            internals.update_state(model, {name: self._states[name] for name in self._updated})
        optimizers.count_step(optimizer, self._names, number)
        return outputs

    def _find(self, step: TrainingStep, kept: dict[str, Any]) -> dict[str, Any]:
        """Return what is changed: parameters, slots and the state of the model, as arrays whose memory may change."""
        optimizer, params = step.optimizer, step.params
        optimizers.adopt_slots(optimizer, self._rule, params)
        dicts: list[tuple[str, dict[str, Any], Any]] = [
            *((name, params, name) for name in self._names),
            *((name, kept, name) for name in self._kept),
        ]
        seen = [*(holder[key] for _, holder, key in dicts), *(optimizer.state[name] for name in self._names)]
        if len(seen) == len(self._seen) and all(map(is_, seen, self._seen)):
            return self._states
        dicts += [(f"{n}.{slot}", optimizer.state[n], slot) for n in self._names for slot in optimizer.state[n]]
        taken: set[int] = set()
        states = {"step": self._counter}
        for name, holder, key in dicts:
            array = holder[key]
            place = array.__array_interface__["data"][0]
            if not array.flags.carray or (array.size and place in taken):
                array = holder[key] = np.array(array, order="C")
                place = array.__array_interface__["data"][0]
            taken.add(place)
            states[name] = array
        self._seen = [*(holder[key] for _, holder, key in dicts[: len(self._names) + len(self._kept)])]
        self._seen += [optimizer.state[name] for name in self._names]
        self._states = states
        return states
