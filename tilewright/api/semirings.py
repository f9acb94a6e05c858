"""Products with their own arithmetic: C[i, j] = reduce over p of f(A[i, p], B[p, j])."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.api import dispatch, fused, host
from tilewright.expressions import remembered
from tilewright.expressions.semiring import Semiring, semiring
from tilewright.rules import arguments
from tilewright.rules.call import Call


def contract(f: Callable[..., Any] | Semiring, a: Any, b: Any, *, reduce: str = "sum", over: str = "k", out: Any = None,
             out_dtype: Any = None, epilogue: Any = None, operands: dict[str, Any] | None = None,
             threads: int | None = None, plan: Any = None) -> Any:
    """For all rows i of a and columns j of b the values f(a[i, p], b[p, j]), reduced over p.

        contract(lambda x, y: (x - y)**2, points, others.T)                     squared distances of all pairs
        contract(lambda x, y: x + y, hops, hops, reduce="min")                  shortest paths of two hops

    f           a function of two numbers, called once with symbols: see docs/epilogues.md for what it may do
    a, b        [..., m, k] and [..., k, n], as for matmul, of real floating-point or integer formats. f computes in
                f32, of f64 in f64; of integers in i32, of those with 64 bits in i64
    reduce      "sum", "min", "max" or "any". min and max leave out NaNs, as np.fmin does; "any" is whether any value is
                above 0
    over        "k": the axis that a and b share
    out, out_dtype      as for matmul. By default the result has the format in which f computes, of "any" bool
    epilogue, operands  what becomes of the reduced numbers, as for matmul
    threads, plan       as for matmul

    TypeError and ValueError as matmul raises them, for other formats, for arrays on a GPU, for k = 0 with "min" and
    "max"; TracingError, which is a TypeError, for what f may not do, with the line.
    """
    if over != "k":
        raise ValueError(f'over must be "k", not {over!r}')
    if dispatch.library_of_arrays(a, b, out) is not None or (plan is not None and dispatch.platform_of(plan)):
        raise ValueError("contract is for CPUs and arrays in the host's memory; matmul multiplies on GPUs")
    a, b = (arguments.operand(x, name) for x, name in ((a, "a"), (b, "b")))
    known = [x for x in (formats.find(x.dtype) for x in (a, b)) if x and not isinstance(x, formats.Complex)]
    if len(known) < 2:
        raise TypeError(f"a and b must be of real floating-point or integer formats, not {a.dtype} and {b.dtype}")
    kind = "int" if formats.integral(*known) else "float"
    made: Semiring = f if isinstance(f, Semiring) else remembered.made(
        f, ("f", reduce, kind), lambda: semiring(f, reduce, kind))
    if made.kind != kind:
        raise TypeError(f"f was made for numbers of kind {made.kind}, and a and b are {a.dtype} and {b.dtype}")
    if not a.ndim or a.shape[-1] == 0:
        if made.reduce in ("min", "max"):
            raise ValueError(f"the {made.reduce} of no values: k must be 1 or more")
    own = out_dtype is None and epilogue is None
    truth = own and made.reduce == "any" and (out is None or np.asarray(out).dtype == bool)
    if own:
        out_dtype = formats.accumulator(*known, *([] if kind == "int" else [formats.promote(*known)])).name
    arguments.output(out, "out")
    cast = own and out is not None and np.asarray(out).dtype != formats.get(out_dtype).dtype
    call = Call.checked(a, b, None if cast else out, out_dtype=out_dtype, epilogue=epilogue, operands=operands,
                        threads=threads, plan=plan, semiring=made)
    if epilogue is not None:
        return fused.product(call)
    result = host.product(call)
    if cast:
        np.copyto(out, np.asarray(result, bool) if truth else result, casting="same_kind")
        return out
    return np.asarray(result, bool)[()] if truth else result
