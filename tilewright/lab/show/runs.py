"""Runs of a kernel that is shown, and which elements of A and B it moves.

Which element it is cannot be read from an address of shared memory or from a register. So the kernel runs a few times
more on operands that hold the digits of their elements' numbers instead of data: whatever is moved, through padding,
transposition, swizzles, copies and launches, then says where it came from. The digits are numbers that every format
holds exactly that is moved, decoded or widened. Scales of blocks are found the same way, by runs on elements of zero.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright import simulator
from tilewright.simulator import Event

# the largest digit: whole numbers up to it are exact
DIGITS = {"float64": 200, "float32": 200, "float16": 200, "bfloat16": 200, "int8": 100, "uint8": 200, "int32": 200,
          "float8_e4m3fn": 15, "float8_e4m3fnuz": 15, "float8_e5m2": 7, "float8_e5m2fnuz": 7, "e4m3fn": 15, "e5m2": 7,
          "e2m1": 6}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4])              # its digits: the number whose pattern is the digit
MOST_SCALE, ONE = 200, 127                              # of bytes of e8m0
DOTS = ("quads", "pairs", "bf16_pairs")                 # of which the sums are the first operand


@dataclass
class Launch:
    """A kernel on matrices: `run(a, b, c)` simulates it on A [m, k], B [k, n] and C [m, n]."""
    size: tuple[int, int, int]
    formats: tuple[Any, Any, Any]       # NumPy's
    names: tuple[str, str, str]         # of the arrays
    functions: list[Any]
    run: Callable[..., Any]
    target: str
    threads: tuple[int, int] | None = None      # of a CTA; None: a CPU's
    warp: int = 1
    grid: tuple[int, ...] = (1, 1)
    traced: bool = True                 # can operands hold digits?
    chosen: dict[str, Any] = field(default_factory=dict)    # parameters, in words
    rows: int = 0                       # of A, of a user's kernel, which need not be a product
    product: bool = True                # is it? found out by running it
    launches: tuple[tuple[Any, tuple[int, ...]], ...] = ()  # functions and their grids, if there are several
    scales: Scales | None = None        # of block-scaled operands

    @property
    def lanes(self) -> int:
        """Lanes that a CTA counts for: those of the launch with the most threads, in whole warps."""
        threads = [function.threads for function, _ in self.launches] or [self.threads or (1, 1)]
        return max(-(-int(np.prod(x)) // self.warp) * self.warp for x in threads)


@dataclass
class Scales:
    """Scales of operands in a block-scaled format, in patterns of its scales: a [m, k / group], b [k / group, n]."""
    format: Any                         # a BlockFormat
    group: int
    a: Any
    b: Any
    held: Any = None                    # NumPy's format, if kernels keep elements decoded

    @property
    def values(self) -> list[Any]:
        """The scales as numbers."""
        return [x.view(self.format.scale.dtype).astype(np.float64) for x in (self.a, self.b)]

    def numbers(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Elements times their scales."""
        sa, sb = self.values
        return (a * np.repeat(sa, self.group, 1)[:, :a.shape[1]], b * np.repeat(sb, self.group, 0)[:b.shape[0]])


def run(launch: Launch, a: Any, b: Any, c: Any, instead: Any = None) -> tuple[list[Event], Any]:
    """Events and report, with other functions `instead` of some of the launch's. A Fault has `events`, which came
    before it."""
    events: list[Event] = []
    kinds = launch.formats
    try:
        with simulator.observed(events.append, instead):
            report = launch.run(np.asarray(a).astype(kinds[0]), np.asarray(b).astype(kinds[1]), c)
    except simulator.Fault as fault:
        fault.events = numbered(launch, events)         # type: ignore[attr-defined]
        raise
    return numbered(launch, events), report


def numbered(launch: Launch, events: list[Event]) -> list[Event]:
    """Threads of several launches numbered on, each launch's CTAs behind those of the one before."""
    if not launch.launches:
        return events
    numbers, at, first, lanes = [], 0, 0, launch.lanes
    names = [{x.name for x in (function, *function.callees())} for function, _ in launch.launches]
    for event in events:
        while event.function not in names[at]:
            first += int(np.prod(launch.launches[at][1]))
            at += 1
        size = -(-int(np.prod(launch.launches[at][0].threads)) // launch.warp) * launch.warp
        threads = (first + event.threads // size) * lanes + event.threads % size
        numbers.append(replace(event, threads=threads, price=event.price and _moved(event.price, launch, first, size)))
    return numbers


def _moved(price: Callable[[], Any], launch: Launch, first: int, size: int) -> Callable[[], Any]:
    """What warps pay, by the numbers that `numbered` gives them."""
    def moved() -> Any:
        warps, cost = price()
        own, lanes = size // launch.warp, launch.lanes // launch.warp
        return (first + warps // own) * lanes + warps % own, cost
    return moved


# ---- which elements they are

def origins(launch: Launch, events: Sequence[Event]) -> list[Any]:
    """Ids of each event as its values are held; of multiply-adds a pair of them, of its first two operands."""
    (_, n, k), rows, scales = launch.size, launch.rows or launch.size[0], launch.scales
    names = [scales.format.element.name] if scales else [np.dtype(x).name for x in launch.formats[:2]]
    most = min(DIGITS.get(name, 0) for name in names)
    if not most:
        return [None] * len(events)

    def again(digits: Any) -> list[Event]:
        digits = E2M1[digits] if names == ["e2m1"] else digits
        return _again(launch, digits[:rows * k].reshape(rows, k), digits[rows * k:].reshape(k, n), ONE, ONE)
    mma = any(e.what == "mma" for e in events)
    return _numbers(events, rows * k + k * n, most, again, lambda e: None if mma and scales and e.what == "fma" else
                    _digits(e, launch))


def of_scales(launch: Launch, events: Sequence[Event]) -> list[Any]:
    """Ids of scales of blocks in each event: 1 ... are A's, row by row, then B's, column by column."""
    (m, n, k), own = launch.size, launch.scales
    assert own is not None

    def again(digits: Any) -> list[Event]:
        a, b = digits[:own.a.size].reshape(own.a.shape), digits[own.a.size:].reshape(own.b.shape[::-1]).T
        return _again(launch, np.zeros((m, k)), np.zeros((k, n)), a, b)
    return _numbers(events, own.a.size + own.b.size, MOST_SCALE, again, _bytes)


def _again(launch: Launch, a: Any, b: Any, scale_a: Any, scale_b: Any) -> list[Event]:
    """Events of a run on other operands, and scales if it has some."""
    own = launch.scales
    kept = own and (own.a, own.b)
    try:
        if own:
            own.a, own.b = (np.broadcast_to(x, old.shape).astype(np.uint8) for x, old in
                            ((scale_a, own.a), (scale_b, own.b)))
        return run(launch, a, b, np.zeros(launch.size[:2], launch.formats[2]))[0]
    finally:
        if own and kept:
            own.a, own.b = kept


def _numbers(events: Sequence[Event], count: int, most: int, again: Callable[[Any], list[Event]],
             digits: Callable[[Event], Any]) -> list[Any]:
    """Which of `count` numbers each event's values are, from runs on their digits, of 1 ... `most`."""
    numbers = np.arange(count)
    filled: list[Any] = [None] * len(events)
    scale, known = 1, count
    while known:
        run = again(numbers // scale % most + 1)
        if [(e.what, e.line) for e in run] != [(e.what, e.line) for e in events]:
            return [None] * len(events)                 # it depends on the data what the kernel does
        for i, event in enumerate(run):
            filled[i] = _more(filled[i], digits(event), scale, most)
        scale, known = scale * most, known // most
    return [None if x is None else tuple(np.where(y > count, 0, y) for y in x) for x in filled]


def _bytes(event: Event) -> Any:
    """Bytes that are moved, as digits."""
    if event.what not in ("load", "store", "copy") or event.value is None or event.value.dtype.kind == "f":
        return None
    return (_plain(event.value, np.dtype(np.uint8)),)


def _digits(event: Event, launch: Launch) -> Any:
    """Digits that an event's values hold, as a tuple of arrays; None for an event without."""
    if launch.scales:
        return _of_blocks(event, launch, launch.scales)
    kinds = [np.dtype(x) for x in launch.formats[:2]]
    if event.what in ("load", "store", "copy") and event.value is not None:
        return (_plain(event.value, kinds[0]),)
    if event.what == "fma" and len(event.operands) >= 2:
        n = event.threads.size
        first = int(event.name in DOTS)
        return tuple(_plain(np.broadcast_to(x, (*np.shape(x)[:-1], n)), kinds[0])
                     for x in event.operands[first:first + 2])
    if event.what == "mma":
        n = event.threads.size
        held = [np.broadcast_to(x, (*np.shape(x)[:-1], n)) for x in event.operands]
        return tuple(_plain(np.atleast_2d(x), kinds[0]) for x in held)
    return None


def _of_blocks(event: Event, launch: Launch, scales: Scales) -> Any:
    """Digits of block-scaled elements: packed in A and B, and beyond as the kernel holds them."""
    packed = scales.held is None or (event.array in launch.names[:2] and launch.threads is not None)
    few = scales.format.element.bits == 4
    kind = np.dtype(np.uint8 if few else scales.format.element.dtype) if packed else np.dtype(scales.held)
    if event.what in ("load", "store", "copy") and event.value is not None:
        held = [event.value] if launch.threads is None or event.value.dtype.kind in "iu" else []
    elif event.what in ("fma", "mma") and len(event.operands) >= 2:
        n, first = event.threads.size, int(event.name in DOTS)
        held = [np.broadcast_to(x, (*np.shape(x)[:-1], n)) for x in (
            event.operands[first:first + 2] if event.what == "fma" else event.operands)
                if event.what == "fma" or x.dtype.kind in "iu" or x.dtype.itemsize == kind.itemsize]
    else:
        held = []
    return tuple(_nibbles(x) if packed and few else _plain(x, kind, E2M1 if few else None) for x in held) or None


def _nibbles(x: Any) -> Any:
    """The patterns of 4 bits of bytes, or words of them, along the first axis."""
    flat: Any = np.ascontiguousarray(np.atleast_2d(x))
    own = flat.view(np.uint8).reshape(*flat.shape, -1)
    codes: Any = np.stack([own & 15, own >> 4], -1).reshape(*flat.shape, -1)
    codes = codes.ravel() if np.ndim(x) == 1 else np.moveaxis(codes, -1, 1).reshape(-1, flat.shape[-1])
    return np.where(codes < len(E2M1), codes, 0).astype(np.int64)


def _plain(x: Any, kind: Any, values: Any = None) -> Any:
    """Values as whole numbers, or as numbers in `values`, 0 for what is none; words of several elements are taken
    apart, along the first axis."""
    x = np.asarray(x)
    if x.dtype.kind in "iu" and x.dtype != kind and x.dtype.itemsize >= kind.itemsize:
        parts = x.dtype.itemsize // kind.itemsize
        flat = np.atleast_2d(x)
        x = np.moveaxis(np.ascontiguousarray(flat).view(kind).reshape(*flat.shape, parts), -1, 1)
        x = x.reshape(-1, flat.shape[-1])
    elif x.dtype.itemsize < kind.itemsize and x.dtype.kind in "iu":                     # bytes of elements
        parts = kind.itemsize // x.dtype.itemsize
        if x.ndim and x.shape[0] % parts == 0:
            x = np.ascontiguousarray(x.T).view(kind).T
    with np.errstate(all="ignore"):
        numbers = x.astype(np.float64)
        if values is not None:
            at = np.searchsorted(values, numbers).clip(0, len(values) - 1)
            return np.where(values[at] == numbers, at, 0)
        integral = np.isfinite(numbers) & (numbers == np.round(numbers)) & (numbers > 0) & (numbers < 256)
    return np.where(integral, numbers, 0).astype(np.int64)


def _more(known: Any, digits: Any, scale: int, most: int) -> Any:
    """Numbers, 1 on, of which the next digit is known; 0 is none, and remains so."""
    if digits is None:
        return None
    fits = [np.where((d > 0) & (d <= most), (d - 1) * scale + 1, 0) for d in digits]
    if known is None:
        return tuple(fits)
    return tuple(np.where((x > 0) & (y > 0), x + y - 1, 0) for x, y in zip(known, fits))
