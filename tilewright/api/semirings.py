"""Products with their own arithmetic: C[i, j] = reduce over p of f(A[i, p], B[p, j])."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.api import fused, host, tensors
from tilewright.expressions import remembered
from tilewright.expressions.reductions import SELECTING, Reduction, traced
from tilewright.expressions.semiring import Semiring, semiring
from tilewright.rules import arguments, fusing
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call
from tilewright.rules.signature import operand
from tilewright.runtime import repeats
from tilewright.runtime.cpu import pool, program
from tilewright.runtime.gpu.arrays import library_of


def above_zero(acc: Any) -> Any:
    """An epilogue."""
    return acc > 0


def contract(f: Callable[..., Any] | Semiring, a: Any, b: Any, *, reduce: str | Reduction = "sum", over: str = "k",
             out: Any = None, out_dtype: Any = None, epilogue: Any = None, operands: dict[str, Any] | None = None,
             deterministic: bool = False, batch_invariant: bool = False, threads: int | None = None,
             plan: Any = None) -> Any:
    """A product with your own arithmetic: for each row i of a and column j of b, f(a[i, p], b[p, j]) reduced over p.

        contract(lambda x, y: (x - y)**2, points, others.T)                     squared distances of all pairs
        contract(lambda x, y: x + y, hops, hops, reduce="min")                  shortest paths of two hops

    f           a function of two numbers, called once with symbols: see docs/epilogues.md for what it may do
    a, b        [..., m, k] and [..., k, n], as for matmul, of real floating-point or integer formats. f computes in
                f32, for f64 operands in f64; for integers in i32, for integers of 64 bits in i64
    reduce      "sum"; "min", "max", which leave out NaNs as np.fmin does; "any": whether any value is above 0;
                "argmin", "argmax": the index p of the first extreme value, or of the first NaN, as np.argmin;
                "min_argmin", "max_argmax": a tuple of that value and its index; "logsumexp": log(sum(exp(values)))
                of floats, without overflow; or your own tw.Reduction
    over        "k": the axis that a and b share
    out, out_dtype      as in matmul; tuples for several results. By default the result has the format in which
                f computes, for "any" bool; indices are int32, or int64 if f computes in 64 bits
    epilogue, operands  a function of the reduced numbers, as in matmul; it gets both results of "min_argmin", in order
    deterministic, batch_invariant, threads, plan       as for matmul

    Arrays on a CUDA device are used where they are, as by matmul; with a plan for a GPU, NumPy's are copied there.

    TypeError and ValueError as from matmul; for other formats, for arrays on an AMD GPU, for k = 0 with reductions that
    choose one of the values. TracingError, a TypeError with the line, for operations that f may not use.
    """
    if over != "k":
        raise ValueError(f'over must be "k", not {over!r}')
    on_host = type(a) is type(b) is np.ndarray and (out is None or type(out) is np.ndarray)
    library, known_by, asked = None if on_host else library_of(a, b, out), None, None
    if library is None and not on_host and tensors.present(a, b, *(out if isinstance(out, tuple) else (out,))):
        return tensors.through(contract, (f, a, b), out, reduce=reduce, out_dtype=out_dtype, epilogue=epilogue,
                               operands=operands, deterministic=deterministic, batch_invariant=batch_invariant,
                               threads=threads, plan=plan)
    flags = deterministic, batch_invariant
    if (threads is None and flags == (False, False)) if library else plan is None and {*map(type, flags)} == {bool}:
        known_by = _known_by(f, reduce)
    named = None if known_by is None else remembered.keys((epilogue or fusing.unchanged,))
    if named is not None and (operands is None or type(operands) is dict):
        where: Any = library or repeats.HOST
        arrays, outs = (a, b, *(operands or {}).values()), out if type(out) is tuple else (out,)
        if library is None and operands:
            arrays = (*map(repeats.array_of, arrays),)
        team = None if library else (type(threads), threads or pool.get_num_threads(), flags)
        asked = where.asked((*arrays, *outs), named, (*(operands or ()),), epilogue is None, out_dtype, plan, known_by,
                            team)
        if asked is not None and (result := repeats.again(where, asked, arrays, outs)) is not None:
            return result[()] if library is out is None and type(result) is np.ndarray and not result.ndim else result
    if library is None:
        x, y = arguments.operand(a, "a"), arguments.operand(b, "b")
    else:
        engine = library.platform.engine
        x, y = (look.shadow for look in engine.begin({"a": a, "b": b}, {})[1].values())
    sums = arguments.combined_in(x, y)
    kind = "float" if sums.kind == "f" else "int"
    fold = traced(reduce, kind).text if isinstance(reduce, Reduction) else reduce
    made: Semiring = f if isinstance(f, Semiring) else remembered.cached(
        f, ("f", fold, kind), lambda: semiring(f, fold, kind))
    if made.kind != kind:
        raise TypeError(f"f was made for numbers of kind {made.kind}, and a and b are {x.dtype} and {y.dtype}")
    empty = x.shape[-1] == 0
    if empty and made.reduce in SELECTING:
        raise ValueError(f"the {made.reduce} of no values: k must be 1 or more")
    how = {"threads": threads, "plan": plan, "semiring": made, "deterministic": deterministic,
           "batch_invariant": batch_invariant, "out_dtype": out_dtype}
    if library is None and asked is None:
        return _on_host(x, y, out, operands, epilogue, sums, **how)
    if library is None:
        def compute(given: Mapping[str, Any], outs: Sequence[Any]) -> Any:
            more = operands and dict(zip(operands, [*given.values()][2:]))
            return _on_host(given["a"], given["b"], tuple(outs) if type(out) is tuple else outs[0], more, epilogue,
                            sums, **how)
        shown = dict(zip(("a", "b", *map(operand, operands or ())), arrays))
        return program.recorded(asked, shown, outs, compute, epilogue)
    how["operands"] = operands
    if empty and (made.state or any(made.first(32))):
        raise ValueError(f"the {made.reduce} of no values on a GPU: k must be 1 or more")
    finish: Any = fusing.unchanged if made.state else None
    if made.reduce == "any" and out_dtype is None and (
            out is None or engine.begin({}, {"out": out})[1]["out"].shadow.dtype == bool):
        finish = above_zero
    if epilogue is None and finish is not None:
        axes = x.ndim, y.ndim
        known = None if 1 in axes else asked
        return _by_epilogue(lambda call: engine.matmul(call, known), None, finish, a, b, axes, out, **how)
    return engine.matmul(Call.checked(a, b, out, epilogue=epilogue, **how), asked)


def _on_host(a: Array, b: Array, out: Any, operands: Any, epilogue: Any, sums: np.dtype[Any], *, out_dtype: Any,
             **how: Any) -> Any:
    """The results for arrays in the host's memory. `sums`: the dtype in which f computes."""
    made: Semiring = how["semiring"]
    how["operands"] = operands
    if epilogue is not None:
        return fused.product(Call.checked(a, b, out, out_dtype=out_dtype, epilogue=epilogue, **how))
    own, into = out_dtype is None, arguments.output(out, "out")
    above = own and made.reduce == "any" and (into is None or into.dtype == bool)
    if above or made.state or (not a.shape[-1] and any(made.first(32))):
        return _by_epilogue(fused.product, lambda x: program.scalar(x)[()], above_zero if above else fusing.unchanged,
                            a, b, (a.ndim, b.ndim), out, out_dtype=out_dtype, **how)
    cast = own and into is not None and into.dtype != sums
    call = Call.checked(a, b, None if cast else out, out_dtype=sums if own else out_dtype, **how)
    result = host.product(call)
    if cast:
        program.do(partial(np.copyto, casting="same_kind"), out, np.asarray(result))
    return out if cast else result


def _known_by(f: Any, reduce: Any) -> tuple[Any, ...] | None:
    """Equal for semirings that compute the same. None for one that has to be traced in every call."""
    if isinstance(f, Semiring):
        return f.text,
    parts = (reduce.step, reduce.combine, reduce.result, reduce.identity) if isinstance(reduce, Reduction) else ()
    keys = remembered.keys([f, *filter(callable, parts)])
    return None if keys is None else (reduce, *keys)


def _by_epilogue(multiply: Callable[[Call], Any], scalar: Callable[[Any], Any] | None, epilogue: Any, a: Any, b: Any,
                 axes: tuple[int, int], out: Any, **how: Any) -> Any:
    """The results of an epilogue that is not the caller's, of matrices or vectors: `axes` of a and of b. `scalar`: what
    makes numbers of results that have no axes."""
    if how["operands"] is not None:
        raise ValueError("operands must be None without an epilogue")
    if 1 not in axes:
        return multiply(Call.checked(a, b, out, epilogue=epilogue, **how))
    a, b = a[None] if axes[0] == 1 else a, b[:, None] if axes[1] == 1 else b

    def widened(x: Any) -> Any:
        x = x if x is None or axes[1] > 1 else x[..., None]
        return x if x is None or axes[0] > 1 else x[..., None, :]
    outs = out if isinstance(out, tuple) else (out,)
    wide = tuple(map(widened, outs))
    products = multiply(Call.checked(a, b, wide if isinstance(out, tuple) else wide[0], epilogue=epilogue, **how))
    place = Ellipsis, *(0 if count == 1 else slice(None) for count in axes)
    results = [x[place] for x in (products if isinstance(products, tuple) else (products,))]
    results = [scalar(x) for x in results] if scalar else results
    results = [x if given is None else given for x, given in zip(results, outs + (None,) * len(results))]
    return tuple(results) if isinstance(products, tuple) else results[0]
