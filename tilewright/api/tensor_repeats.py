"""Calls with torch's tensors like an earlier one, found by one question to torch.

runtime/repeats.py knows a call by a key that Python puts together, which takes 1 us for each tensor. Here torch is
asked instead, by what its compiler guards compiled code with: in 0.2 us it says whether tensors have the classes,
dispatch keys, dtypes, devices, sizes and strides of those of an earlier call, and whether this thread is in the same
state (autocast, inference, transforms); of dispatch modes and forward-mode derivatives, which the guards do not all
see, torch is asked beside. That call's records run then. Without such guards, which are no public interface of
torch, every call takes the way by keys.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from tilewright.runtime import repeats
from tilewright.runtime.cpu import pool
from tilewright.runtime.gpu.arrays import TORCH
from tilewright.runtime.gpu.program import ALIGNMENT, Chain

MOST, OF_SHAPES = 4096, 8       # keys of a table, and calls of one key
WITH_GRAD = attrgetter("requires_grad")
recording = bool(os.environ.get("TILEWRIGHT_RECORD"))      # of calls, each of which is to be seen


class Call(NamedTuple):
    """An earlier call."""

    check: Callable[..., bool]      # are these tensors, and this thread, like those?
    without_grad: bool              # some tensors asked for gradients, and grad mode was off
    bits: int                       # the last four of each address
    # Records, and whose addresses each takes: of tensors, of the result, of temporaries
    steps: tuple[tuple[repeats.Record, tuple[int, ...]], ...]
    empty: Callable[..., Any]       # makes the result, if none is given
    made: tuple[Any, ...]           # of these
    block: tuple[Callable[..., Any], tuple[Any, ...]] | None    # makes the memory of temporaries, as the result is
    temporaries: tuple[int, ...]    # where they are in it, in bytes
    device: int | None              # None: the host
    extents: tuple[int, ...]        # bytes from each tensor's address to its end, if the last one is a result
    chain: Chain | None             # the steps, if they are launches


calls: dict[Any, list[Call]] = {}       # of functions of tensors with one result
repeats.derived.append(calls)


def call(function: Callable[..., Any], given: Sequence[Any], how: Any, tensors: Sequence[Any]) -> Any:
    """function(*given), by an earlier call's records if there are any."""
    result = run_recorded(how, tensors)
    return remembered(function, given, how, tensors) if result is None else result


def remembered(function: Callable[..., Any], given: Sequence[Any], how: Any, tensors: Sequence[Any]) -> Any:
    """function(*given), the first such call."""
    if _grad_enabled is not None and _grad_enabled() and any(x.requires_grad for x in tensors):
        return function(*given)
    return watched(lambda: function(*given), how, tensors)


def run_recorded(how: Any, tensors: Sequence[Any], out: Any = None) -> Any:
    """Run an earlier call's records on these tensors, two or more, into `out` if it is given, and return the result;
    None if there are none. `how`: the function, and whatever else it was given."""
    if not calls or TORCH.observed():
        return None
    given = tensors if out is None else (*tensors, out)
    for check, without_grad, bits, steps, empty, made, block, temporaries, device, extents, chain in calls.get(
            (how, len(given), tensors[0].shape, tensors[1].shape, tensors[0].is_cuda or pool.get_num_threads()), ()):
        if check(*given) and not (without_grad and _grad_enabled()):
            places, last = [x.data_ptr() for x in given], 0
            for place in places:
                last = last << 4 | place & 15
            if last == bits:
                x = empty(*made) if out is None else out
                stream = 0 if device is None else _stream(device)
                if _overlaps(places, extents) if extents else x.data_ptr() & 15:
                    return None
                places.append(x.data_ptr())
                if block is not None:
                    between = block[0](*block[1])       # which lives until the device has the steps
                    first = between.data_ptr()
                    places += [first + offset for offset in temporaries]
                if chain is not None and repeats.watch.ran is None:
                    chain(places, stream)
                    return x
                for record, order in steps:
                    at = [places[i] for i in order]
                    if record.run(at, tensors, (x,), 1, stream):
                        return None
                    if repeats.watch.ran is not None:
                        repeats.watch.ran.append((record, at))
                if repeats.watch.ran is not None:
                    repeats.watch.temporaries += tuple([between[offset:] for offset in temporaries])
                return x
    return None


def writing(step: Callable[[], Any], *tensors: Any) -> Any:
    """step(), which writes these new tensors for later steps of its caller: if it is a record, a repeated call runs it
    on others like them."""
    ran = repeats.watch.ran
    count = 0 if ran is None else len(ran)
    result = step()
    if ran is not None and len(ran) > count:
        repeats.watch.temporaries += tensors
    return result


def _extent(x: Any) -> int:
    """Bytes from a tensor's address to its end."""
    return int(x.element_size() * (1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride()))))


def _overlaps(places: Sequence[int], extents: Sequence[int]) -> bool:
    """Whether the last of these tensors shares bytes with another one."""
    first, last = places[-1], places[-1] + extents[-1]
    for place, extent in zip(places[:-1], extents):
        if place < last and first < place + extent:
            return True
    return False


def watched(function: Callable[..., Any], how: Any, tensors: Sequence[Any], out: Any = None) -> Any:
    """function(), which is remembered if it came down to records, from these tensors to a new one, or to `out`."""
    if recording or not ready() or TORCH.observed():
        return function()
    with repeats.watching() as ran:
        result = function()
        between = repeats.watch.temporaries
    if ran and (len(ran) == 1 or between):
        _remember(how, tensors, out, result, ran, between)
    return result


def _remember(how: Any, tensors: Sequence[Any], out: Any, result: Any, ran: list[tuple[repeats.Record, list[int]]],
              temporaries: Sequence[Any]) -> None:
    given = tensors if out is None else (*tensors, out)
    check = guard(given, result)
    if check is None:
        return
    places = [x.data_ptr() for x in (*given, result, *temporaries)]
    if len(set(places)) < len(places) - (out is not None) or ran[-1][1][-1] != result.data_ptr():
        return
    # A step may have read a copy that was freed since, and whose memory the result has now: that is not the result.
    read: list[int | None] = [*places[:len(given)], None, *places[len(given) + 1:]]
    (last, at), *before = reversed(ran)
    try:
        steps = (*[(record, tuple(map(read.index, arrays))) for record, arrays in reversed(before)],
                 (last, (*map(read.index, at[:-1]), len(given))))
    except ValueError:                  # memory of others
        return
    bits = 0
    for place in places[:len(given)]:
        bits = bits << 4 | place & 15
    if len(calls) >= MOST:
        calls.clear()
    known = calls.setdefault(
        (how, len(given), tensors[0].shape, tensors[1].shape, tensors[0].is_cuda or pool.get_num_threads()), [])
    del known[OF_SHAPES - 1:]
    empty, made = empty_like(result)
    extents = () if out is None else tuple(map(_extent, given))
    device = None if result.device.type == "cpu" else result.device.index
    size, offsets = 0, list[int]()
    for x in temporaries:
        offsets.append(size)
        size += -(-max(_extent(x), 1) // ALIGNMENT) * ALIGNMENT
    block = empty_like(result.new_empty(size, dtype=sys.modules["torch"].uint8)) if size else None
    known.insert(0, Call(check, any(map(WITH_GRAD, given)), bits, steps, empty, made, block, tuple(offsets), device,
                         extents, Chain.of_runs([(record.run, order) for record, order in steps])))


def guard(given: Sequence[Any], result: Any) -> Callable[..., bool] | None:
    """A function that says of tensors whether they, and this thread's state, are like these now; None if they cannot be
    known again, or the result asks for gradients."""
    torch = sys.modules["torch"]
    autocast, grad = torch.is_autocast_enabled(result.device.type), torch.is_grad_enabled()
    if not ready() or not _plain_state(torch) or result.requires_grad or autocast or (
            grad and any(map(WITH_GRAD, given))):
        return None
    check: Callable[..., bool] = _guards(*given, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check if check(*given) else None             # not if one of them is there twice


_waiting: list[Callable[[Any], None]] = []


def when_met(function: Callable[[Any], None]) -> None:
    """Call this with torch, once there is one that has guards."""
    if _guards is not None:
        function(_torch)
    _waiting.append(function)


_torch: Any = None              # the module
_guards: Any = None             # its class; None: it has none
_grad_enabled: Any = None
_stream: Any = None


def ready() -> bool:
    """Whether torch has what this takes."""
    global _torch, _guards, _grad_enabled, _stream
    torch = sys.modules["torch"]
    if torch is not _torch:
        inside: Any = getattr(torch, "_C", None)
        _grad_enabled = getattr(torch, "is_grad_enabled", None)
        _stream = getattr(inside, "_cuda_getCurrentRawStream", None) or (
            lambda device: torch.cuda.current_stream(device).cuda_stream)
        guards = getattr(getattr(inside, "_dynamo", None), "guards", None)
        _torch, _guards = torch, getattr(guards, "TensorGuards", None)
        for function in _waiting if _guards is not None else ():
            function(torch)
    return _guards is not None


def _plain_state(torch: Any) -> bool:
    """Whether nothing stands between this thread's calls and their kernels: no mode, transform or trace. Guards that
    are made then hold in such a state alone."""
    keys, key = torch._C.DispatchKeySet, torch._C.DispatchKey
    usual = keys(key.BackendSelect)
    included = torch._C._dispatch_tls_local_include_set()
    return bool(included == usual or included == usual.add(key.ADInplaceOrView))    # the second but in inference mode


def empty_like(x: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """(a function that makes tensors like this one, its arguments): torch's quick one, which takes a third of the time,
    for the CPU, or where there is one GPU."""
    torch, on, (shape, strides, dtype) = sys.modules["torch"], x.device, (tuple(x.shape), x.stride(), x.dtype)
    kind = "cpu" if on.type == "cpu" else "cuda" if torch.cuda.device_count() == 1 else ""
    quick = getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", None)
    if quick is not None:
        return quick, (shape, strides, dtype)
    return (lambda: torch.empty_strided(shape, strides, dtype=dtype, device=on)), ()
