"""matmul and gemm: NumPy's and BLAS's semantics in front of the engines.

A call that was prepared before runs its program (runtime/repeats.py). Every other becomes one `Call` (rules/call.py),
checked once, for the engine of its operands.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright import targets
from tilewright.api import fused, host, scaled, tensor_repeats, tensors, weights as of_weights
from tilewright.compiled.packed_weights import PackedWeights, pieces as packed_pieces
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Scaled, apart
from tilewright.rules import arguments, numpy_products, weights
from tilewright.rules.call import Call
from tilewright.rules.signature import DECODED, signature, substituted
from tilewright.runtime import repeats
from tilewright.runtime.cpu import program
from tilewright.runtime.gpu.arrays import Library, library_of

if TYPE_CHECKING:
    from tilewright.runtime.cpu.packed import Packed


def matmul(
    a: ArrayLike | Quantized,
    b: ArrayLike | Quantized | Packed,
    out: NDArray[Any] | tuple[NDArray[Any] | None] | None = None,
    *,
    out_dtype: Any = None,
    alpha: complex = 1,
    beta: complex = 0,
    c: ArrayLike | None = None,
    trans_a: bool | str = False,
    trans_b: bool | str = False,
    scale_a: Any = None,
    scale_b: Any = None,
    epilogue: Any = None,
    prologue_a: Any = None,
    prologue_b: Any = None,
    operands: dict[str, Any] | None = None,
    algorithm: str | None = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    threads: int | None = None,
    plan: Any = None,
    **numpys: Any,
) -> Any:
    """The matrix product of a and b, as numpy.matmul computes it; in general alpha * (a @ b) + beta * c.

    a, b        [..., m, k] and [..., k, n], or 1-D: a vector is a row on the left and a column on the right, and the
                axis that was added is removed again. Leading axes are broadcast. Any strides; anything that
                np.asarray takes, of any format of `tilewright formats`, both of the same or not. The result has the
                dtype np.matmul would give it: float32 for ml_dtypes' floats, int8 for its integers. Either may be
                a result of tilewright.quantize, with scales along k: axis=-1 of a, -2 of b, or what trans_a and
                trans_b make of these; see docs/formats.md.
                b may be packed in advance: see tilewright.pack.
    out         where to write the result: an array of the result's shape (or with more leading axes), any strides, any
                dtype to which the result can be cast by NumPy's rule same_kind. It receives what
                out[...] = matmul(a, b) gives it: sums become the result's dtype first, and are then cast. It may
                overlap a, b and c.
                It is written only if the call succeeds, and returned.
    out_dtype   a format ("f32", "i32", "bf16" ...) or a NumPy dtype instead of NumPy's choice. Sums run in a type that
                holds both the operands and the result: f32 operands with out_dtype="f64" are multiplied in f64, f64
                operands with out_dtype="f32" in f64 too, rounded once. So are integers with either. Narrower floats
                are added up in f32 and rounded once; integers modulo 2^32 (2^64 if one has 64 bits or the result has),
                which is exact modulo the result's 2^bits: i8 with out_dtype="i32" is exact for k up to 131,071. See
                docs/formats.md.
    alpha, beta numbers: complex ones where the result is complex, else real; where integers are multiplied whole ones
                of any size, which count modulo 2^bits; beyond the range of the sums' dtype they are inf, as in NumPy.
                They multiply sums over all of k and elements of c, never an operand's. As in BLAS, beta == 0 never
                reads c, and alpha == 0 never reads a or b.
    c           the array to add, broadcast to the result; not modified unless it is also out. Its dtype counts for the
                result's like those of a and b.
    trans_a, trans_b  True or "t": swap the last two axes of the operand first. "c": conjugate it, too, which costs
                no time (of a real one, "c" is "t"). False or "n": it is stored as it is multiplied.
    threads     the most threads that this call may use; by default tilewright.get_num_threads().
    plan        the plan to run, or its text, instead of the one that tilewright.plan chooses. With a GPU's plan, NumPy
                arrays are converted as on CPUs, copied to the first CUDA device or AMD GPU, and the result is copied
                back.
    deterministic  True: the same bits for any number of threads, and after tilewright.tune. The same plan gives the
                same bits for the same operands in any case: no kernel adds up in the order in which threads or
                workgroups finish. See docs/reproducibility.md.
    batch_invariant  True: all of that, and a row of the result depends on no other row of a, nor on how many there are,
                nor on where they lie. plan and algorithm must be None then.
    algorithm   on CPUs and NVIDIA GPUs: how f32 or f16 operands are multiplied: "bf16_bf16_f32_x3", "_x6" or "_x9"
                splits f32 into bf16 terms and multiplies those, on GPUs "tf32_tf32_f32_x3" into tf32 terms, on CPUs
                "bf16_bf16_f32_x4" f16; on GPUs "tf32_tf32_f32" rounds f32 to tf32 and "f16_f16_f16" adds up products
                of f16 in f16, which both lose digits; "fastest" chooses what is expected to be fastest among those
                whose error bound is no worse than the native product's. Without AMX or such matrix instructions, and
                where it would not pay, all are the native product. Errors, and what happens to numbers below 2^-100,
                are in docs/formats.md. None, the default, never splits or rounds floating-point numbers.
    scale_a, scale_b  a number by which all of the operand is multiplied; or floats that scale each row of a or column
                of b: the operand's shape with k replaced by 1; or, on CPUs for operands of
                e4m3fn, e5m2, e2m3, e3m2 or e2m1, on GPUs of e4m3fn, e5m2 or torch's float4_e2m1fn_x2, the
                scales of blocks of 32 along k: float8_e8m0fnu, or uint8 as its patterns, of that shape with
                ceil(k / 32) in place of k. The result of integers is f32 then, of sums
                that are exact and multiplied by the scales in f32: see docs/formats.md. With operands on a GPU they
                are there, too, or NumPy's, which are copied in every call; on NVIDIA's GPUs floats may also be of
                blocks of 128 along k: ceil(k / 128) in place of k, and of b ceil(n / 128) in place of n.
    epilogue    a function of the product's numbers, evaluated while they are in registers or in L1: its first parameter
                is alpha * sums + beta * c, the others are `operands` by name. It is called once with symbols, and may
                use + - * / **, comparisons, & | ^ ~ << >>, abs and tw.exp, log, tanh, erf, sqrt, gelu, silu, sigmoid,
                relu, clamp, minimum, maximum, where; it may return a tuple, of which tw.row_sum, column_amax and their
                like are reductions, and take neighbouring columns by tw.pairs. Or what tilewright.epilogue made of it.
                out_dtype may be a tuple then, one for each result that is no reduction, or name a block-scaled format;
                out a tuple. See docs/epilogues.md.
    prologue_a, prologue_b  a function of the elements of a, or of b, that is evaluated on their way to the product: its
                first parameter is an element, the others are `operands` by name; what it may do is what an epilogue may
                but for pairs, reductions and several results. Its numbers are rounded once, to the format of the
                floating-point operands a, b, if that is bf16, f16 or f64, to bf16 if these are narrower, else to f32;
                integers that it returns are multiplied as such. Or what tilewright.prologue made of it. See
                docs/prologues.md.
    operands    a dict of arrays and numbers, of any format and strides, by the names of these functions' parameters:
                those of an epilogue broadcast to the result, those of a prologue to its operand, and may have there one
                number for each of several equal blocks of k

    Arrays on a CUDA device (torch, CuPy, JAX, DLPack, __cuda_array_interface__) or on an AMD GPU (torch, DLPack) are
    multiplied there, not copied, on the stream that is their library's current one; all must be of one library and on
    one device, as the result is. AMD's kernels have not run on hardware yet: tilewright doctor --selftest tries them.
    For arrays in the host's memory NumPy's rules hold: torch's tensors give a tensor, those of other libraries a NumPy
    array. threads= has no effect on GPUs.

    NaN and inf propagate; no floating-point warnings are raised. Subclasses of ndarray come back as from np.matmul,
    except masked arrays, which are refused. Classes that handle NumPy's functions themselves (__array_ufunc__: pandas'
    DataFrames and Series, dask's arrays) are given to np.matmul, which calls their methods: the arithmetic and the
    result are theirs; np.asarray(a) is multiplied here.

    numpys      np.matmul's other keywords (dtype, casting, order, axes, subok, signature) at their defaults; others are
                a TypeError that names the alternative.

    Raises TypeError and ValueError where np.matmul does (its UFuncTypeError is a TypeError).
    """
    if type(b) is PackedWeights:
        return _by_packed_weights(**locals())           # all arguments
    alone = type(a) in tensors.known and type(b) in tensors.known and (out is None or type(out) in tensors.known) and (
        out_dtype is c is scale_a is scale_b is epilogue is prologue_a is prologue_b is operands is None is algorithm
        is plan is threads is None and deterministic is batch_invariant is False and type(alpha) is int and alpha == 1
        and type(beta) in (int, float) and not (beta or trans_a or trans_b or numpys))
    if alone and (result := tensor_repeats.run_recorded("matmul", (a, b), out)) is not None:
        return result
    if numpys:
        numpy_products.check_keywords(numpys)
    left: Any = a
    right: Any = b
    left, right = left.elements if type(a) in DECODED else a, right.elements if type(b) in DECODED else b
    on_host = type(left) is type(right) is np.ndarray and {type(out), type(c)} <= {np.ndarray, type(None)}
    library = None if on_host else library_of(
        a, b, out[0] if isinstance(out, tuple) and out else out, c)
    where: Any = library or (tensors.HOST if type(a) in tensors.known else repeats.HOST)
    outs = out if type(out) is tuple else (out,)
    asked, arrays = (repeats.asked_on_host if library is None else repeats.asked_on_device)(
        where, a, b, outs, out_dtype, trans_a, trans_b, threads, epilogue, operands, c, scale_a, scale_b,
        prologue_a, prologue_b, algorithm, plan, alpha, beta, deterministic, batch_invariant)
    if asked is not None:
        result = (tensor_repeats.watched(lambda: repeats.again(where, asked, arrays, outs), "matmul", (a, b), out)
                  if alone else repeats.again(where, asked, arrays, outs, alpha))
        if result is not None:
            return result[()] if out is None and type(result) is np.ndarray and not result.ndim else result
    return _product(library, Call.checked(
        a, b, out, out_dtype=out_dtype, alpha=alpha, beta=beta, c=c, trans_a=trans_a, trans_b=trans_b, scale_a=scale_a,
        scale_b=scale_b, epilogue=epilogue, prologue_a=prologue_a, prologue_b=prologue_b, operands=operands,
        algorithm=algorithm, deterministic=deterministic, batch_invariant=batch_invariant, threads=threads, plan=plan,
    ), asked)


def gemm(
    alpha: complex,
    a: ArrayLike | Quantized,
    b: ArrayLike | Quantized | Packed,
    beta: complex,
    c: NDArray[Any],
    *,
    trans_a: bool | str = False,
    trans_b: bool | str = False,
    scale_a: Any = None,
    scale_b: Any = None,
    epilogue: Any = None,
    prologue_a: Any = None,
    prologue_b: Any = None,
    operands: dict[str, Any] | None = None,
    algorithm: str | None = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    threads: int | None = None,
    plan: Any = None,
) -> NDArray[Any]:
    """C = alpha * A @ B + beta * C, in place, as in BLAS; returns c.

    c is an array with the shape of a @ b, or with more leading axes; any strides. The other arguments are those of
    matmul. If c has another dtype than the arithmetic needs, the result is cast to it by NumPy's rule same_kind.
    """
    library, asked = None if type(a) is type(b) is np.ndarray else library_of(a, b, c), None
    if library is None:
        where: Any = tensors.HOST if type(a) in tensors.known else repeats.HOST
        asked, arrays = repeats.asked_on_host(
            where, a, b, (c,), None, trans_a, trans_b, threads, epilogue, operands, c, scale_a, scale_b, prologue_a,
            prologue_b, algorithm, plan, alpha, beta, deterministic, batch_invariant, True)
        if asked is not None and repeats.again(where, asked, arrays, (c,)) is not None:
            return c
    return _product(library, Call.checked(
        a, b, c, alpha=alpha, beta=beta, c=c, trans_a=trans_a, trans_b=trans_b, scale_a=scale_a, scale_b=scale_b,
        epilogue=epilogue, prologue_a=prologue_a, prologue_b=prologue_b, operands=operands, algorithm=algorithm,
        deterministic=deterministic, batch_invariant=batch_invariant, threads=threads, plan=plan, updates=True,
    ), asked)


def _by_packed_weights(a: Any, b: PackedWeights, out: Any, trans_b: Any, numpys: dict[str, Any], **options: Any) -> Any:
    """matmul with packed weights: of many rows, a block of columns after the other."""
    if trans_b not in (False, "n"):
        raise ValueError(f"b is packed, and packed operands cannot be transposed: pass trans_b={trans_b!r} to "
                         "pack instead of matmul")
    if not isinstance(targets.target(b.target), targets.CpuTarget) and type(a) is np.ndarray:
        raise ValueError(f"b was packed for {b.target}, and a is in the host's memory: pack(b) is for this processor")
    plain = all(options[x] is None for x in ("c", "scale_a", "scale_b", "epilogue", "prologue_a", "operands"))
    matrices = plain and type(a) is np.ndarray and b.ndim == 2 <= a.ndim
    parts = packed_pieces(b, a.size // max(a.shape[-1], 1)) if matrices else []
    if len(parts) < 2 or a.shape[-1 if options["trans_a"] in (False, "n") else -2] != b.shape[0]:
        return matmul(a, b.weights, out, trans_b=True, **options, **numpys)
    first = matmul(a, b.weights[parts[0]], trans_b=True, **options)
    found = np.empty((*first.shape[:-1], b.shape[1]), first.dtype)
    found[..., parts[0]] = first
    for each in parts[1:]:
        found[..., each] = matmul(a, b.weights[each], trans_b=True, **options)
    if out is None:
        return found
    arguments.check_cast(found.dtype, arguments.output(out).dtype, "out")       # type: ignore[union-attr]
    out[...] = found
    return out


def _product(library: Library | None, call: Call, asked: Any = None) -> Any:
    """What the call asks for. `library` is that of operands on a GPU; None: they are in the host's memory. `asked`:
    what it may be remembered as."""
    if library is not None:
        return library.platform.engine.matmul(call, asked)
    if tensors.present(call.a, call.b, *(call.out if isinstance(call.out, tuple) else (call.out,)), call.c):
        return tensors.product(call, partial(_product, None), asked)
    if not call.updates and numpy_products.overridden(call.a, call.b, call.out):
        return numpy_products.by_operands_class(call)
    if not program.repeatable(asked):
        return _on_host(call)
    named, _ = signature(call.a, call.b, call.operands, call.scale_a, call.scale_b, call.c)

    return program.recorded(asked, {name: repeats.array_of(x) for name, x in named.items()},
                            call.out if type(call.out) is tuple else (call.out,),
                            lambda arrays, outs: _on_host(substituted(call, arrays, outs)),
                            (call.epilogue, call.prologue_a, call.prologue_b))


def _on_host(call: Call) -> Any:
    """The product of arrays in the host's memory."""
    alone = call.plan is None and type(call.alpha) is type(call.beta) is int and call.alpha == 1 and call.beta == 0
    if of_weights.taken(call.b) and alone and call._replace(trans_b="n", threads=None, epilogue=None).plain:
        few = of_weights.product(call.a, call.b, call.out, call.trans_b, call.threads, call.epilogue, call.operands)
        if few is not None:
            return few
    if weights.present(call):
        matrices, axis = weights.by_matrices(call)
        for role in "ab":
            x = getattr(matrices, role)
            if type(x) is Scaled and x.nibbles is not None and not weights.few(matrices, role):
                elements = program.computed(partial(apart, x.nibbles, x.format.dtype, x.nibbles.axis), x.elements)
                now: Any = {role: replace(x, elements=elements, nibbles=None)}
                matrices = matrices._replace(**now)
        found = fused.product(weights.without(matrices))
        return found if axis is None else found.squeeze(axis) if call.out is None else call.out
    if call.fused:
        return fused.product(call)
    if scaled.present(call):
        return scaled.product(call)
    return host.product(call)
