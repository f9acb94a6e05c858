"""Arrays beside A, B and C in kernels for GPUs (expressions/function.Aux): scales, further results, and what epilogues
and prologues read."""
from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from tilewright.expressions import texts
from tilewright.expressions.function import Aux
from tilewright.ir import Kernel, Type, Value, i64, ptr
from tilewright.kernels.narrow import memory_type

SCALES = "scale_a", "scale_b"
BLOCK = 128             # steps of k, and columns, that share a scale of blocks


def parameters(arrays: Iterable[Aux], BATCH: bool = False, CONTIGUOUS: str = "") -> dict[str, Any]:
    """A kernel's parameters for these arrays. BATCH: of many matrices. CONTIGUOUS: beside these operands, "a", "b" or
    "ab", numbers for rows of A, or columns of B, lie next to each other."""
    types: dict[str, Any] = {}
    for x in arrays:
        types[x.parameter] = ptr(memory_type(x.format), strided=True)
        types |= {f"ld_{x.parameter}": i64} if x.across_k and x.role not in CONTIGUOUS else {}
        types |= {f"k_{x.parameter}": i64} if x.along_k else {}
        types |= {f"stride_{x.parameter}": i64} if BATCH else {}
    return types


def scales(T: Type | None, BLOCKS: int) -> tuple[Aux, ...]:
    """Scales of this type, or none, of blocks of k or, with BLOCKS of 0, of all of k."""
    return texts.auxiliary(scales=str(T), group=BLOCK if BLOCKS else 1) if T else ()


def pointers(EPILOGUE: str = "", *PROLOGUES: str) -> tuple[str, ...]:
    """Parameters that are addresses of what a kernel reads beside A, B and C, and nothing else in it reaches."""
    return SCALES + tuple(x.parameter for x in texts.auxiliary(EPILOGUE, *PROLOGUES) if not x.written)


def begin(k: Kernel, g: SimpleNamespace, name: str) -> Value:
    """Where an array begins, of a batch for the workgroup's matrix; `name`: of the parameter."""
    address: Value = getattr(g, name)
    return address if g.matrix is None else address + k.cast(g.matrix, i64)*getattr(g, f"stride_{name}")
