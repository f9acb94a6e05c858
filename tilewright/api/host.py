"""Products of arrays in the host's memory: NumPy's rules in front of an engine.

The engine is this processor's or, if the plan is one for a GPU, that GPU's, which copies operands there and the result
back. Either has `gemm`. Nothing is written to the caller's array before every argument has been
checked, and nothing twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import forks, formats
from tilewright.api import dispatch
from tilewright.plans import invariant
from tilewright.plans.cpu import SHORT
from tilewright.rules import arguments, complex_product, contraction, numpy_products, shapes
from tilewright.rules.arguments import F32, PLAIN, Array
from tilewright.rules.call import Call, Product, decide
from tilewright.runtime.cpu import program

if TYPE_CHECKING:
    from tilewright.runtime.cpu.packed import Packed


def product(call: Call) -> Any:
    """The product of arrays without scales, which may be packed (b)."""
    out = arguments.output(call.out, call.out_name)
    a = arguments.transposed(arguments.operand(call.a, "a"), call.trans_a, "a")
    packed, b = operand_b(call)
    c = arguments.addend(call.c)
    if packed is None and numpy_products.takes(a, b, c, call.out_dtype):
        program.not_repeated()
        return delivered(call, *numpy_products.product(call, a, b, c, out))
    p = decide(call, a, b, c, out)
    if p.out is not None and p.result == p.sums == F32 and p.out.dtype.kind == "V" and p.out.dtype.isnative:
        # The same bits as those of a cast of f32, which for ml_dtypes' formats, unlike f16, warns of nothing.
        p = p._replace(result=p.out.dtype)
    if call.algorithm is not None:
        arguments.check_algorithm(call.algorithm, a.dtype, b.dtype, p.sums, call.plan)
    arguments.check_batch_invariant(call.batch_invariant, call.plan, call.algorithm)

    engine, conj = dispatch.for_plan(call.plan), ""
    *taken, stored = _formats(engine, call, p)
    if packed is not None:
        a, b = operand_a_for(packed, p.a, p.sums, call.trans_a), p.b
    else:
        if p.sums.kind == "c":  # of real operands there is nothing to conjugate
            conj = "".join(name for name, x, trans in (("a", a, call.trans_a), ("b", b, call.trans_b))
                           if trans == "c" == x.dtype.kind)
        a, b = (program.converted(x, dtype) for x, dtype in zip((p.a, p.b), taken))
    a, b = p.broadcast(a, b)
    complexes = isinstance(p.alpha, complex) or isinstance(p.beta, complex)
    if engine is not dispatch.cpu() or complexes or (p.sums.kind == "c" and not a.dtype == b.dtype == p.sums):
        program.not_repeated()

    more = {"semiring": call.semiring.text} if call.semiring else {}
    if call.invariant:
        more["invariant"] = call.invariant
    multiply: Any = partial(run, partial(engine.gemm, threads=call.threads, plan=call.plan, **more))
    if packed is not None:
        multiply = partial(run, partial(engine.gemm, packed=packed, threads=call.threads), wider=False)
    elif p.sums.kind == "c":
        multiply = complex_product.by_real_products(multiply, conj, engine is dispatch.cpu(), call.invariant)
    elif call.algorithm is not None and p.sums == F32:
        multiply = partial(run, partial(engine.gemm_by, call.algorithm, threads=call.threads, invariant=call.invariant))
    if complexes:
        multiply = complex_product.by_complex_scalars(multiply)

    if p.out is not None:
        in_place = stored == p.result and shapes.writes_in_place(p.out, a, b, stored)
        if in_place and (not p.beta or shapes.same(p.out, p.c)) and multiply(a, b, p.out, p.alpha, p.beta, whole=True):
            return call.out
    sums = program.empty(p.shape, stored)
    if p.beta:
        c = p.c if isinstance(call.c, np.ndarray) else program.constant(p.c)
        program.assign(sums, c)   # whose dtype has been heeded
    multiply(a, b, sums, p.alpha, p.beta)
    return delivered(call, p, sums)


def _formats(engine: Any, call: Call, p: Product) -> tuple[np.dtype[Any], ...]:
    """The dtypes in which the engine takes a and b and stores the product: others than the sums' where it converts
    operands while it reads them, and rounds while it stores."""
    cpu = dispatch.cpu()
    if engine is not cpu:
        return tuple(engine.formats_for(p))
    if p.sums.kind == "c":  # no imaginary part is made for real operands
        return *(complex_product.wanted(x, p.sums) for x in (p.a, p.b)), p.sums
    m, n, k = p.sizes
    sizes = *invariant.sizes(m, n, call.invariant), k, p.a.dtype == p.b.dtype
    taken = (taken_dtype(x, p.sums, *sizes) for x in (p.a, p.b))
    rounds = not p.beta and call.algorithm is None and p.result != p.sums
    return *taken, p.result if rounds and cpu.finishes(p.sums, p.result, *sizes) else p.sums


def taken_dtype(x: Array, sums: np.dtype[Any], m: int, n: int, k: int, alike: bool) -> np.dtype[Any]:
    """In which dtype this processor's engine takes an operand, wherever it lies: its own, if packing converts it."""
    own = x.dtype.newbyteorder("=")
    return own if own != sums and dispatch.cpu().converts(own, sums, m, n, k, alike) else sums


def operand_b(call: Call) -> tuple[Packed | None, Array]:
    """b, if it is packed, and an array of its shape and dtype: itself as it is multiplied, or, for a packed one, what
    has its panels at the addresses of its matrices."""
    b = call.b
    # imported by whatever made a Packed, and perhaps by another thread just now
    kind: Any = getattr(sys.modules.get("tilewright.runtime.cpu.packed"), "Packed", ())
    if not isinstance(b, kind):
        return None, arguments.transposed(arguments.operand(b, "b"), call.trans_b, "b")
    if call.trans_b != "n":
        raise ValueError(f"b is packed, and packed operands cannot be transposed: pass trans_b={call.trans_b!r} to "
                         "pack instead of matmul")
    if call.plan is not None:
        raise ValueError(f"b is packed for the plan {b.plan}: plan must be None with it, not {call.plan}")
    if call.algorithm is not None:
        raise ValueError(f"b is packed for products in {b.sums} by {b.word}: algorithm must be None with it, "
                         f"not {call.algorithm!r}")
    return b, b._stand_in


def operand_a_for(b: Packed, a: Array, sums: np.dtype[Any], trans_a: str) -> Array:
    """A left operand as b is multiplied with it. TypeError if it is another than the one that b was packed for."""
    if formats.find(a.dtype) is not formats.find(b.a):
        raise TypeError(f"a is {a.dtype}, but b was packed to be multiplied with {b.a}: pack(b, a={a.dtype.name!r})")
    if sums != b.sums:
        raise TypeError(f"products are added up in {sums} here, but b was packed for sums in {b.sums}: "
                        "pass the same out_dtype to pack")
    conjugated = a.conj() if trans_a == "c" and a.dtype.kind == "c" else a
    return arguments.converted(conjugated, b._takes[0])


def delivered(call: Call, p: Product, found: Array) -> Any:
    """The product in the format of the result, and then in out, if there is one, in its dtype."""
    last = program.rounded(found, p.result)
    if p.out is None:
        shaped = last if last.shape == p.user_shape else last.reshape(p.user_shape)     # which owns no memory
        return arguments.wrap(program.scalar(shaped), call.a, call.b)
    program.do(store, p.out, last)
    return call.out


def store(out: Array, x: Array) -> None:
    """Sums are rounded to the result's format in silence; a cast to another may raise (np.errstate), before the copy.
    """
    np.copyto(out, x.astype(out.dtype, copy=False))


def run(gemm: Callable[..., Any], a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0,
        whole: bool = False, wider: bool = True, **more: Any) -> bool:
    """Hand broadcast operands to an engine's `gemm`. With `whole`, only if one call does it all (else False, nothing
    done): a caller's array must not be left half-written when the second of several calls is interrupted. Not `wider`:
    B is packed. `more` is what only this processor's engine knows.
    """
    if c.size == 0:
        return True
    if c.ndim > 2:
        a, b, c = shapes.collapse(a, b, c, wider=wider)
    if c.ndim <= 3:
        gemm(a, b, c, alpha, beta, **more)
    elif whole:
        return False
    else:
        for part in shapes.pieces(a, b, c):
            gemm(*part, alpha, beta, **more)
    return True


# ---- contractions


def contract(x: contraction.Operands, threads: int | None, invariant: str = "") -> None:
    """x.c = sums of products of x.a and x.b; c has the dtype of the result and shares nothing with them. invariant: of
    plans/invariant.py; with "rows" axes that do not merge are copied, since plans by tables, and what can be a batch,
    depend on all strides."""
    dtype = x.c.dtype
    x, by_tables = as_multiplied(x) if invariant != "rows" else (x, False)
    if by_tables and _by_tables(x, threads, invariant):
        return
    batch, (m, n, k) = x.c.shape[: x.counts[0]], x.sizes
    left, right = (program.copied(y.reshape((*batch, *sizes)), y) for y, sizes in ((x.a, (m, k)), (x.b, (k, n))))
    there = x.c if x.matrices else x.c.reshape((*batch, m, n)) if x.c.flags.c_contiguous else None
    plain = not invariant and dtype in PLAIN
    if there is not None and plain and all(arguments.ready(y, dtype) for y in (left, right, there)):
        run(partial(dispatch.cpu().gemm, threads=threads), left, right, there)
        return
    result = product(Call(left, right, there, out_dtype=dtype, threads=threads, deterministic=invariant == "threads",
                          batch_invariant=invariant == "rows"))
    if there is None:
        program.assign(x.c, result)


def as_multiplied(x: contraction.Operands) -> tuple[contraction.Operands, bool]:
    """The operands as matrices, if they are or an axis can be a batch; and whether they are to be packed by tables. If
    neither, they are copied: k is short, and they are so small beside C that they had better be read in place then."""
    x = x if x.matrices else x.as_batch() or x
    copied = x.sizes[2] <= SHORT and 4 * (x.a.size + x.b.size) <= x.c.size and x.c.flags.c_contiguous
    return x, not x.matrices and not copied


def for_tables(x: contraction.Operands) -> tuple[Array, Array, Array]:
    """a, b and c as they are packed and stored; c in the sums' dtype."""
    sums, _ = arguments.dtypes(x.a, x.b, None, x.c.dtype)
    a, b = packed_by_tables(x, sums)
    return a, b, x.c if x.c.dtype == sums else program.empty(x.c.shape, sums)


def packed_by_tables(x: contraction.Operands, sums: np.dtype[Any]) -> tuple[Array, ...]:
    """a and b, converted if packing does not convert them."""
    own = (y.dtype.newbyteorder("=") for y in (x.a, x.b))
    return tuple(program.converted(y, dtype if dispatch.cpu().packs(dtype, sums) else sums)
                 for y, dtype in zip((x.a, x.b), own))


def _by_tables(x: contraction.Operands, threads: int | None, invariant: str) -> bool:
    """Without a copy, by this processor's tables of offsets; False, and nothing done, for formats that it does not
    pack so."""
    engine = forks.imported("tilewright.runtime.cpu.contraction")
    if x.c.dtype.kind == "c":
        return False
    a, b, c = for_tables(x)
    outer = x.counts[0] - 1
    for index in np.ndindex(c.shape[:outer]) if outer > 0 else ((),):
        if not engine.gemm(a[index], b[index], c[index], (min(x.counts[0], 1), *x.counts[1:]), threads=threads,
                           invariant=invariant):
            return False
    if c is not x.c:
        program.assign(x.c, c)
    return True
