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
from tilewright.api import fused, host, scaled, tensor_repeats, tensors
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
    a: ArrayLike | Quantized, b: ArrayLike | Quantized | Packed,
    out: NDArray[Any] | tuple[NDArray[Any] | None] | None = None, *,
    out_dtype: Any = None, alpha: complex = 1, beta: complex = 0, c: ArrayLike | None = None,
    trans_a: bool | str = False, trans_b: bool | str = False, scale_a: Any = None, scale_b: Any = None,
    epilogue: Any = None, prologue_a: Any = None, prologue_b: Any = None, operands: dict[str, Any] | None = None,
    algorithm: str | None = None, deterministic: bool = False, batch_invariant: bool = False,
    threads: int | None = None, plan: Any = None, **numpys: Any,
) -> Any:
    """The matrix product of a and b, as numpy.matmul computes it; in general alpha * (a @ b) + beta * c.

    a, b        [..., m, k] and [..., k, n], or 1-D: a vector is a row on the left and a column on the right, and the
                axis that was added is removed again. Leading axes are broadcast. Any strides, and any format that
                `tilewright formats` lists; both may have the same format or two. The result has the dtype that
                np.matmul would give it: float32 for ml_dtypes' floats, int8 for its integers. Either may be a result
                of tilewright.quantize, with scales along k: axis=-1 for a, -2 for b (exchanged by trans_a and
                trans_b); see docs/formats.md. b may be packed in advance: see tilewright.pack.
    out         where to write the result: an array of the result's shape (or with more leading axes), any strides, any
                dtype to which the result can be cast by NumPy's rule same_kind. As in out[...] = matmul(a, b), sums
                are first converted to the result's dtype, then cast. It may overlap a, b and c, is written only if the
                call succeeds, and is returned.
    out_dtype   the format of the result ("f32", "i32", "bf16" ...) or a NumPy dtype, instead of NumPy's choice. Sums
                have a type that holds both the operands and the result: f32 operands with out_dtype="f64", and f64
                operands with out_dtype="f32", are summed in f64 and rounded once. So are integers with either.
                Narrower floats are summed in f32; integers modulo 2^32 (2^64 if an operand or the result has 64 bits),
                which is exact modulo the result's 2^bits: i8 with out_dtype="i32" is exact for k up to 131,071. See
                docs/formats.md.
    alpha, beta factors of the finished sums, and of the elements of c. They may be complex only if the result is;
                for integer products whole numbers, which count modulo 2^bits. A number beyond the range of the sums'
                dtype becomes inf, as in NumPy. As in BLAS, beta == 0 never reads c, alpha == 0 neither a nor b.
    c           the array to add, broadcast to the result; not modified unless it is also out. Its dtype counts for that
                of the result, as those of a and b do.
    trans_a, trans_b  True or "t": swap the last two axes of the operand first. "c": conjugate it, too, which costs
                no time (for real numbers "c" is "t"). False or "n": use it as it is.
    threads     the most threads that this call may use; by default tilewright.get_num_threads().
    plan        the plan to run, or its text, instead of the one that tilewright.plan chooses. With a GPU's plan, NumPy
                arrays are copied to the first CUDA device or AMD GPU, multiplied there, and the result is copied back.
    deterministic  True: the same bits for any number of threads, and before and after tilewright.tune. Without it only
                the same plan gives the same bits; no kernel adds up in the order in which threads or workgroups
                finish. See docs/reproducibility.md.
    batch_invariant  True: deterministic, and the bits of a row of the result do not depend on other rows of a, on their
                number, or on where they are in memory. plan and algorithm must be None then.
    algorithm   how f32 or f16 operands are multiplied, on CPUs with AMX and on NVIDIA GPUs. None, the default: as they
                are. "fastest": the fastest way whose error bound is no worse than that of the plain product.
                "bf16_bf16_f32_x3", "_x6", "_x9": f32 as so many products of bf16; on GPUs "tf32_tf32_f32_x3": of tf32;
                on CPUs "bf16_bf16_f32_x4": f16 as four products of bf16. On GPUs two ways lose digits:
                "tf32_tf32_f32" rounds f32 to tf32, "f16_f16_f16" sums products of f16 in f16. Where the instructions
                are missing, or it would not be faster, the plain product runs. docs/formats.md has the errors, and
                says what happens to numbers below 2^-100.
    scale_a, scale_b  one number that scales all of the operand; or floats that scale each row of a or column
                of b: the operand's shape with k replaced by 1; or scales of blocks of 32 along k: float8_e8m0fnu
                or uint8 of the same bits, with ceil(k / 32) in place of k, for operands in e4m3fn, e5m2, e2m3, e3m2
                or e2m1 (on GPUs e4m3fn, e5m2 and torch's float4_e2m1fn_x2). On NVIDIA's GPUs floats may also scale
                blocks of 128 along k: ceil(k / 128) in place of k, and for b ceil(n / 128) in place of n.
                Integer products are summed exactly, multiplied by the scales in f32, and the result is f32: see
                docs/formats.md. For operands on a GPU scales should be there, too; NumPy's are copied in every call.
    epilogue    a function that is fused into the kernel and gives the result's elements: its first parameter
                is alpha * sums + beta * c, the others are `operands` by name. It is called once with symbols, and may
                use + - * / **, comparisons, & | ^ ~ << >>, abs and tw.exp, log, tanh, erf, sqrt, gelu, silu, sigmoid,
                relu, clamp, minimum, maximum, where; tw.row_sum, column_amax ... for reductions; tw.pairs for
                neighbouring columns. It may return a tuple of results. Or the result of tilewright.epilogue.
                out_dtype may then be a tuple, with an entry for each result that is no reduction, or name a
                block-scaled format; out may be a tuple. See docs/epilogues.md.
    prologue_a, prologue_b  a function of the elements of a, or of b, that is computed before they are multiplied: its
                first parameter is an element, the others are `operands` by name. It may do what an epilogue may
                except pairs, reductions and several results. Floats that it returns are rounded once: to bf16, f16 or
                f64 if the floating-point operands have that format, to bf16 if they are narrower, else to f32;
                integers are multiplied as integers. Or the result of tilewright.prologue. See docs/prologues.md.
    operands    a dict of arrays and numbers, of any format and strides, by the names of these functions' parameters.
                Those of an epilogue broadcast to the result, those of a prologue to its operand; along k a prologue's
                may have fewer numbers, one for each of several equal blocks

    Arrays on a CUDA device (torch, CuPy, JAX, DLPack, __cuda_array_interface__) or on an AMD GPU (torch, DLPack) are
    multiplied there, without a copy, on their library's current stream. All must be of one library and on one device;
    so is the result. AMD's kernels have not run on hardware yet: tilewright doctor --selftest tries them.
    For arrays in the host's memory NumPy's rules hold: torch's tensors give a tensor, and arrays of other libraries
    that have DLPack one of their namespace. threads= has no effect on GPUs.

    NaN and inf propagate; no floating-point warnings are raised. Subclasses of ndarray are returned as by np.matmul,
    except masked arrays, which are refused. Arrays with a matmul of their own (__array_ufunc__: pandas'
    DataFrames and Series, dask's arrays) are given to np.matmul, which calls it; pass np.asarray(a) to multiply
    them here.

    numpys      np.matmul's other keywords (dtype, casting, order, axes, subok, signature), with their default values
                only; other values are a TypeError that names the alternative.

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
    matmul. The result is cast to c's dtype by NumPy's rule same_kind.
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
    result = np.empty((*first.shape[:-1], b.shape[1]), first.dtype)
    result[..., parts[0]] = first
    for columns in parts[1:]:
        result[..., columns] = matmul(a, b.weights[columns], trans_b=True, **options)
    if out is None:
        return result
    arguments.check_cast(result.dtype, arguments.output(out).dtype, "out")      # type: ignore[union-attr]
    out[...] = result
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
    if weights.present(call):
        matrices, axis = weights.by_matrices(call)
        for role in "ab":
            x = getattr(matrices, role)
            if type(x) is Scaled and x.nibbles is not None and not weights.few(matrices, role):
                elements = program.computed(partial(apart, x.nibbles, x.format.dtype, x.nibbles.axis), x.elements)
                now: Any = {role: replace(x, elements=elements, nibbles=None)}
                matrices = matrices._replace(**now)
        result = fused.product(weights.without(matrices))
        return result if axis is None else result.squeeze(axis) if call.out is None else call.out
    if call.fused:
        return fused.product(call)
    if scaled.present(call):
        return scaled.product(call)
    return host.product(call)
