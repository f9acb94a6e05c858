"""Reductions of what a thread, a warp or a CTA holds: sum, maximum, or any function of two that may be regrouped.

    total = reduce(k, lambda x, y: x + y, x)                    # the elements of a vector, on every target
    most = reduce(k, k.max, x, "warp")                          # then the lanes of a warp (AMD's wave)
    most = reduce(k, k.max, x, "cta")                           # then the warps of a CTA, through shared memory

A CPU thread is a warp of one lane and a CTA of one warp, so that one emitter serves all targets. Every thread gets the
result. The order is always the same: halves of a vector, lanes that differ in one bit, from the highest bit on, then
warps; so a sum has the same bits in every run, but not on every target.

Values that belong together, such as a maximum and its index, are tuples, for `combine`, too.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import Kernel, Value

ACROSS = ("vector", "warp", "cta")
Combine = Callable[[Any, Any], Any]


def reduce(k: Kernel, combine: Combine, x: Any, across: str = "vector") -> Any:
    """All elements of x, combined: of one thread's vector, of the lanes of its warp, or of the threads of its CTA.

    x           a value, a number or a vector of 2, 4, 8 ... of them; or a tuple of values of the same length
    combine     combine(x, y), of values or of tuples as x is one; associative and commutative
    across      "vector", "warp" (with its vectors), "cta" (with its warps); all threads of these take part

    Returns a number, or a tuple of them. ValueError for another `across`, for a CTA that is no whole warps, and
    TypeError for vectors of other lengths.
    """
    if across not in ACROSS:
        raise ValueError(f"across must be one of {', '.join(ACROSS)}, not {across!r}")
    xs, one = (x, False) if isinstance(x, tuple) else ((x,), True)

    def both(xs: tuple[Value, ...], ys: tuple[Value, ...]) -> tuple[Value, ...]:
        return (combine(xs[0], ys[0]),) if one else tuple(combine(xs, ys))
    xs = _vector(k, both, xs)
    if across != "vector" and k.function.threads is not None:
        xs = _lanes(k, both, xs, k.warp)
        if across == "cta":
            xs = _warps(k, both, xs)
    return xs[0] if one else xs


def _vector(k: Kernel, both: Callable[..., Any], xs: tuple[Value, ...]) -> tuple[Value, ...]:
    lengths = {x.type.length for x in xs}
    length = lengths.pop()
    if lengths or length & (length - 1):
        raise TypeError(f"vectors of 1, 2, 4, 8 ... numbers, and as many in each, are combined, not "
                        f"{', '.join(str(x.type) for x in xs)}")
    while length > 1:
        length //= 2
        halves = [tuple(_part(k, x, start, length) for x in xs) for start in (0, length)]
        xs = both(*halves)
    return xs


def _part(k: Kernel, x: Value, start: int, length: int) -> Value:
    return x[start] if length == 1 else k.shuffle(x, x, range(start, start + length))


def _lanes(k: Kernel, both: Callable[..., Any], xs: tuple[Value, ...], lanes: int) -> tuple[Value, ...]:
    """Reduce the numbers of `lanes` lanes side by side, a power of two."""
    while lanes > 1:
        lanes //= 2
        xs = both(xs, tuple(k.lane_xor(x, lanes) for x in xs))
    return xs


def _warps(k: Kernel, both: Callable[..., Any], xs: tuple[Value, ...]) -> tuple[Value, ...]:
    """A number of each warp meets in shared memory, and every warp combines them."""
    across, down = k.cta_shape
    warps, rest = divmod(across * down, k.warp)
    if rest:
        raise ValueError(f"{k.function.name}: a CTA of {across * down} threads is no whole number of warps of {k.warp}")
    if warps == 1:
        return xs
    thread = k.thread[0] + k.thread[1] * across if down > 1 else k.thread[0]
    number = len(k.function.arrays)
    shared = [k.smem(f"partial{number}_{e}", (warps,), x.type) for e, x in enumerate(xs)]
    k.barrier()                                     # the last round's numbers have been read, if this is in a loop
    with k.when(thread % k.warp == 0):
        for array, x in zip(shared, xs):
            array[thread // k.warp] = x
    k.barrier()
    if warps & (warps - 1) == 0:                    # lane e has warp e's, and exchanges make one of them
        return _lanes(k, both, tuple(array[thread % warps] for array in shared), warps)
    partial = [tuple(array[warp] for array in shared) for warp in range(warps)]
    while len(partial) > 1:
        partial = [both(*partial[e:e + 2]) if e + 1 < len(partial) else partial[e] for e in range(0, len(partial), 2)]
    return partial[0]
