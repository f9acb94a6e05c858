"""Runs the steps of ladder: compile, give scratch memory, check what is handed over, call."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import formats, problem, targets
from tilewright.lab.ladder import steps
from tilewright.runtime.cpu import pool
from tilewright.runtime.cpu.workspace import Workspace

if TYPE_CHECKING:
    from tilewright.targets import CpuTarget

Array = np.ndarray[Any, np.dtype[Any]]


def prepare(step: str | steps.Step, m: int, n: int, k: int, dtype: object = "f32", target: CpuTarget | None = None,
            threads: int | None = None) -> Callable[[Array, Array, Array], None]:
    """`multiply(a, b, c)`, which writes a [m, k] @ b [k, n] to c [m, n]; one call at a time.

    The arrays are C-contiguous, of this dtype, and c overlaps neither a nor b. `threads` is for the step "parallel"
    (default: get_num_threads()); the others use one. ValueError for an unknown step or for other arrays.
    """
    from tilewright.compiler.artefact import load

    target, form = target or targets.detect(), formats.get(dtype, "dtype", formats.MULTIPLIED)
    chosen: steps.Step = steps.step(step, target) if isinstance(step, str) else step
    sizes = problem.Gemm(m, n, k, form)
    team = pool.pool().reserve(threads) if chosen.parallel else 1
    blocks = chosen.blocks(target, form.name, team)
    code = load(chosen.emit, target, form.name, *blocks)
    space = Workspace(max(1, chosen.work(target, form.name, m, n, k, *blocks) * form.itemsize))
    symbol = f"{chosen.symbol}_{form.name}"
    call = _team_call(code, symbol, team) if chosen.parallel else _plain_call(code, symbol)

    def multiply(a: Array, b: Array, c: Array) -> None:
        for name, array, shape in (("a", a, (m, k)), ("b", b, (k, n)), ("c", c, (m, n))):
            if array.shape != shape or array.dtype != form.dtype or not array.flags.c_contiguous:
                raise ValueError(f"{name} must be a C-contiguous {form.numpy_name} array of shape {shape} for {sizes}, "
                                 f"got {array.dtype} {array.shape} with strides {array.strides}")
        if not c.flags.writeable:
            raise ValueError("c must be writeable")
        call(m, n, k, a.ctypes.data, b.ctypes.data, c.ctypes.data, space.address)

    return multiply


def _plain_call(code: Any, symbol: str) -> Callable[..., None]:
    """The steps without scratch memory take one pointer less, which the calling convention lets them ignore."""
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    function: Callable[..., None] = code.function(symbol, None, number, number, number, *[pointer] * 4)
    return function


def _team_call(code: Any, symbol: str, team: int) -> Callable[..., None]:
    """The call's arguments, in the block of memory that every thread of the team reads, with a barrier at its end."""
    function, own = code.address(symbol), pool.pool()
    job = np.zeros(64, np.int64)
    barrier = 32                        # 256 bytes on: a pair of cache lines that nothing else is in
    address = job.ctypes.data

    def call(*fields: int) -> None:
        job[barrier] = 0
        job[:9] = (*fields, team, address + 8 * barrier)
        if not own.run_team(function, address, team):
            job[7] = 1                  # the threads are in use: this one does it all
            own.run_team(function, address, 1)

    return call
