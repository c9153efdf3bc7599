"""Functions of PyTorch that cannot be traced as they are, and what stands for them while a module is exported."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from .open_sizes import functions_of_open_sizes

__all__ = ["replaced_attributes", "replaced_functions"]


@contextlib.contextmanager
def replaced_functions(torch: Any) -> Iterator[None]:
    """Replace functions that look at the values of tensors, or have no rule for their shapes."""
    from torch.nn import functional
    from torch.nn.modules import transformer

    places: list[tuple[Any, str, Callable[[Any], Any]]] = [
        # A mask is compared with a causal one, which changes no result.
        (transformer, "_detect_is_causal_mask", lambda _: lambda mask, is_causal=None, size=None: is_causal is True),
        (functional, "gaussian_nll_loss", lambda loss: _without_check(torch, loss)),
        (functional, "ctc_loss", lambda loss: _alignments(torch, loss)),
        *functions_of_open_sizes(torch),
    ]
    known = [(place, name, make(getattr(place, name))) for place, name, make in places if hasattr(place, name)]
    with replaced_attributes(*known):
        yield


@contextlib.contextmanager
def replaced_attributes(*values: tuple[Any, str, Any]) -> Iterator[None]:
    """Give attributes other values for a while: the owner, the name, and the value of each."""
    former = [(owner, name, getattr(owner, name)) for owner, name, _ in values]
    try:
        for owner, name, value in values:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in former:
            setattr(owner, name, value)


def _without_check(torch: Any, loss: Callable[..., Any]) -> Callable[..., Any]:
    """Let a loss trust that variances are positive."""
    functional = torch.nn.functional

    @functools.wraps(loss)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Called as a whole, its `no_grad` would be hidden from the trace.
        is_whole = (functional, "has_torch_function_variadic", lambda *_: False)
        with replaced_attributes((torch, "any", lambda _: False), is_whole):
            return loss(*args, **kwargs)

    return call


def _alignments(torch: Any, loss: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(loss)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _ctc_loss(torch, *args, **kwargs)

    return call


#: A logarithm of 0 that can be added to others.
_NEVER = -1e30


def _ctc_loss(
    torch: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Sum over all alignments, step by step (Graves et al. 2006); log_probs are ``[T, N, C]`` or ``[T, C]``."""
    is_single = log_probs.dim() == 2
    if is_single:
        log_probs, targets = log_probs.unsqueeze(1), targets.unsqueeze(0)
    if targets.dim() == 1:
        targets = _rows(torch, targets, target_lengths)
    steps, batch, classes = log_probs.shape

    def lengths(value: Any) -> Any:
        return torch.as_tensor(value, device=log_probs.device).reshape(-1).to(torch.int64).expand(batch)

    input_lengths, target_lengths = lengths(input_lengths), lengths(target_lengths)
    # A blank before, between and behind the targets.
    labels = torch.nn.functional.pad(targets.to(torch.int64).clamp(0, classes - 1).unsqueeze(-1), (1, 0), value=blank)
    labels = torch.nn.functional.pad(labels.flatten(1), (0, 1), value=blank)
    two_before = torch.nn.functional.pad(labels, (2, 0), value=blank)[:, :-2]
    never = torch.full_like(labels, _NEVER, dtype=log_probs.dtype)
    skips = torch.where((labels != blank) & (labels != two_before), torch.zeros_like(never), never)
    emitted = log_probs.gather(2, labels.expand(steps, -1, -1)).clamp(min=_NEVER)
    places = torch.arange(labels.shape[1], device=labels.device)
    reached = torch.where(places < 2, emitted[0], never)
    for step in range(1, steps):
        before = torch.nn.functional.pad(reached, (2, 0), value=_NEVER)
        ways = torch.stack([reached, before[:, 1:-1], before[:, :-2] + skips])
        following = torch.logsumexp(ways, 0) + emitted[step]
        reached = torch.where((step < input_lengths)[:, None], following, reached)
    last = 2 * target_lengths
    is_end = (places == last[:, None]) | (places == (last - 1)[:, None])
    loss = -torch.logsumexp(torch.where(is_end, reached, never), 1)
    is_possible = loss < -0.1 * _NEVER
    loss = torch.where(is_possible, loss, 0.0 if zero_infinity else float("inf"))
    if reduction == "mean":
        return (loss / target_lengths.clamp(min=1)).mean()
    return loss.sum() if reduction == "sum" else loss.squeeze(0) if is_single else loss


def _rows(torch: Any, targets: Any, lengths: Any) -> Any:
    """Put targets that stand one after another into rows; of lengths that are data, all may be those of one row."""
    if not targets.numel():
        return targets.new_zeros(len(lengths), 0)
    longest = targets.numel() if isinstance(lengths, torch.Tensor) else max(lengths)
    lengths = torch.as_tensor(lengths, device=targets.device).to(torch.int64)
    places = (lengths.cumsum(0) - lengths)[:, None] + torch.arange(longest, device=targets.device)
    return targets[places.clamp(max=targets.numel() - 1)]
