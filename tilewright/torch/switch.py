"""A switch that sends products of torch to tilewright: torch.nn.functional.linear, mm, matmul of matrices, addmm, and
scaled_dot_product_attention.

It is a TorchFunctionMode of the calling thread. On the CPU both are measured: the first call of a kind runs torch's
function and ours on its operands, a few times in turn, and later calls of the kind take the faster. On GPUs nothing is
measured, since that would wait; ours takes bf16 and f16 with rows that are not multiples of 16 bytes, where an H200 ran
at 2.4 to 4.3 of cuBLAS (docs/results/tensor-cores.md). Everything else is torch's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from tilewright.runtime.cpu import pool
from tilewright.torch import functions, heads

ROUNDS, ENOUGH_S = 7, 0.05  # of a measurement: rounds, or fewer where one takes so long
GAIN = 0.97  # of torch's time that ours may take at most to be taken
MOST = 4096
FLOATS = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
Rule = str | Callable[[str, tuple[Tensor, ...]], bool]

_faster: dict[tuple[Any, ...], bool] = {}  # by kinds of calls: is ours?


# What a call of torch's function is by ours: a name, tensors, a function and options. None where shapes do not fit
# ours: torch broadcasts, or has words for it.

def _fit(a: Tensor, b: Tensor) -> bool:
    return a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]


def _mm(a: Tensor, b: Tensor) -> Any:
    return ("mm", (a, b), functions.mm, {}) if _fit(a, b) else None


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    numbers = all(isinstance(x, (int, float)) for x in (beta, alpha))       # torch takes tensors, too
    fits = numbers and _fit(a, b) and c.dim() <= 2 and all(
        n in (1, size) for n, size in zip(c.shape[::-1], (b.shape[1], a.shape[0])))
    return ("addmm", (c, a, b), functions.addmm, {"beta": beta, "alpha": alpha}) if fits else None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    given = (input, weight) if bias is None else (input, weight, bias)
    taken = (input.dim() and weight.dim() == 2 and input.shape[-1] == weight.shape[1]
             and (bias is None or bias.shape == weight.shape[:1]))
    return ("linear", given, functions.linear, {}) if taken else None


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
               is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Any:
    fits = query.dim() < 3 or query.shape[-3] == key.shape[-3] or enable_gqa
    plain = 2 <= query.dim() == key.dim() == value.dim() <= 4 and query.shape[:-3] == key.shape[:-3] == value.shape[:-3]
    masked = attn_mask is not None and (attn_mask.requires_grad or is_causal)
    how = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    taken = plain and fits and not masked and not dropout_p
    return ("attention", (query, key, value), heads.scaled_dot_product_attention, how) if taken else None


TAKEN: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.scaled_dot_product_attention: _attention,
    torch.mm: _mm, Tensor.mm: _mm, torch.matmul: _mm, Tensor.matmul: _mm, Tensor.__matmul__: _mm,
    torch.addmm: _addmm, Tensor.addmm: _addmm, torch.nn.functional.linear: _linear,
}


class _Switch(TorchFunctionMode):
    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read = TAKEN.get(function)
        if read is None:
            return function(*args, **kwargs)
        try:
            result = read(*args, **kwargs)
        except (TypeError, AttributeError):  # out=, a dtype, or what torch has words for
            result = None
        if result is None or not _ready(result[1]):
            return function(*args, **kwargs)
        name, tensors, ours, options = result
        if self.rule == "always":
            take = True
        elif callable(self.rule):
            take = bool(self.rule(name, tensors))
        elif torch.compiler.is_compiling():
            take = False
        elif tensors[0].is_cuda:
            take = name != "attention" and functions.unaligned(*tensors)
        else:
            take = _measured(name, tensors, options, lambda: function(*args, **kwargs),
                             lambda: ours(*tensors, **options))
        try:
            return ours(*tensors, **options) if take else function(*args, **kwargs)
        except NotImplementedError:
            if not take or name != "attention":
                raise
            return function(*args, **kwargs)    # a GPU, a format or a head size that no kernel of ours is for


def _ready(tensors: tuple[Any, ...]) -> bool:
    """Are these ordinary tensors of one floating-point dtype on one device, whose product has elements?"""
    first = tensors[0]
    for x in tensors:
        if type(x) not in (Tensor, torch.nn.Parameter) or x.layout is not torch.strided or (
                x.dtype is not first.dtype or x.device != first.device):
            return False
    kind = first.device.type
    return first.dtype in FLOATS and kind in ("cpu", "cuda") and not torch.is_autocast_enabled(kind)


def _measured(name: str, tensors: tuple[Tensor, ...], options: dict[str, Any], theirs: Callable[[], Any],
              ours: Callable[[], Any]) -> bool:
    """Is ours the faster for calls of this kind: its dtype, layouts, sizes, of rows to the next power of two (of
    attention, of queries and of keys)?"""
    *_, a, b = tensors if name not in ("linear", "attention") else tensors[:2]
    rows = a.numel() // max(a.shape[-1], 1)
    layouts = tuple(x.stride(-1) == 1 for x in tensors)
    sizes: tuple[Any, ...] = tuple(b.shape)
    if name == "attention":
        sizes = (*(x.shape[-2].bit_length() for x in tensors[:2]), *b.shape[:-2], *a.shape[-3:-2], a.shape[-1],
                 options["is_causal"], options["attn_mask"] is None)
    key = (name, len(tensors), a.dtype, rows.bit_length(), sizes, layouts, pool.get_num_threads(),
           torch.get_num_threads())
    faster = _faster.get(key)
    if faster is None:
        if len(_faster) >= MOST:
            _faster.clear()
        with torch.no_grad():
            faster = _faster[key] = _time(theirs, ours)
    return faster


def _time(theirs: Callable[[], Any], ours: Callable[[], Any]) -> bool:
    """Is ours the faster, by the least time of each of some rounds in turn?"""
    for f in (theirs, ours, ours):  # compiled, and its record made
        f()
    best = [float("inf")] * 2
    start = time.perf_counter()
    for done in range(ROUNDS):
        for i, f in enumerate((theirs, ours)):
            begin = time.perf_counter()
            f()
            best[i] = min(best[i], time.perf_counter() - begin)
        if done >= 2 and time.perf_counter() - start > ENOUGH_S:
            break
    return best[1] < GAIN * best[0]


class Enabled:
    """What `enable` returns: leaving it as a context, or `disable`, restores torch's functions."""

    def __init__(self, mode: _Switch) -> None:
        self._mode: _Switch | None = mode
        mode.__enter__()

    def disable(self) -> None:
        """Restore torch's functions. RuntimeError if another function mode was entered since and is still on."""
        if self._mode is None:
            return
        if _get_current_function_mode() is not self._mode:
            raise RuntimeError("the switch must be turned off in the thread that turned it on, after function modes "
                               f"that were entered since, and {_get_current_function_mode()} is on")
        self._mode.__exit__(None, None, None)
        self._mode = None

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *exception: object) -> None:
        self.disable()


def enable(rule: Rule = "measured") -> Enabled:
    """Send torch.nn.functional.linear and scaled_dot_product_attention, torch.mm, torch.matmul of matrices, and
    torch.addmm of this thread to tilewright where it should be faster: until the end of a `with` block, or until
    `.disable()` of what this returns.

    rule    "measured", "always", or a function of the operator's name, "mm", "addmm", "linear" or "attention" (without
            dropout), and its tensors that says whether tilewright takes the call. What is measured holds for the
            process; it differs between runs where both are about as fast, and the results' last bits with it. While
            torch.compile traces, "measured" takes nothing; of attention it takes none on GPUs. Attention that no kernel
            of tilewright computes stays torch's by any rule.

    Taken are f32, f64, bf16 and f16, strided tensors on one device and outside autocast; gradients are ours then, too.
    """
    if not callable(rule) and rule not in ("measured", "always"):
        raise ValueError(f'rule must be "measured", "always" or a function, not {rule!r}')
    return Enabled(_Switch(rule))
