"""matmul and gemm: NumPy's and BLAS's semantics in front of the engines.

Each function has a short way for the common call (plain matrices or stacks of them, nothing to convert) and a general
way that ends in the same engine. Nothing is written to the caller's array before every argument has been checked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.api import dispatch, numpy_product, packed, scaled, scaled_sums
from tilewright.formats.quantized import Quantized
from tilewright.plans import asked
from tilewright.rules import arguments, batch, complex_product, numpy_calls
from tilewright.rules.arguments import F32, F64, Array

if TYPE_CHECKING:
    from tilewright.runtime.cpu.packed import Packed

# How hard to try to prove that two interleaved views, such as the blocks of one matrix, share nothing (0 would compare
# bounds only). Giving up costs a temporary.
EFFORT: Any = 1000


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
    algorithm: str | None = None,
    deterministic: bool = False,
    threads: int | None = None,
    plan: Any = None,
    **numpys: Any,
) -> Any:
    """The matrix product of a and b, as numpy.matmul gives it; in general alpha * (a @ b) + beta * c.

    a, b        [..., m, k] and [..., k, n], or 1-D: a vector is a row on the left and a column on the right, and the
                axis it was given is taken away again. Leading axes are broadcast. Any strides; anything that
                np.asarray takes, of any format of `tilewright formats`, both of the same or not. The result has the
                dtype np.matmul would give it: float32 for ml_dtypes' floats, int8 for its integers. Either may be
                what tilewright.quantize makes, with scales along k: axis=-1 of a, -2 of b, or what trans_a and
                trans_b make of these; see docs/formats.md.
                b may be packed beforehand: see tilewright.pack.
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
    c           what is added, broadcast to the result; not modified unless it is also out. Its dtype counts for the
                result's like those of a and b.
    trans_a, trans_b  True or "t": swap the last two axes of the operand first. "c": conjugate it, too, which costs
                nothing (of a real one, "c" is "t"). False or "n": it is stored as it is multiplied.
    threads     how many threads at most, for this call; by default tilewright.get_num_threads().
    plan        the plan to run, or its text, instead of the one tilewright.plan would choose. With one for a GPU, NumPy
                arrays are copied to the first CUDA device or AMD GPU and the result is copied back.
    deterministic  the same bits from the same plan and operands whatever the number of threads; always so on CPUs.
    algorithm   how products are computed, of f32 or f16 operands on CPUs: "bf16_bf16_f32_x3", "_x6" or "_x9" splits
                f32 into bf16 terms and multiplies those, "bf16_bf16_f32_x4" f16; "fastest" chooses what is expected to
                be fastest among those whose error bound is no worse than the native product's. Without AMX, and where
                it would not pay, all are the native product. Errors, and what happens to numbers below 2^-100, are in
                docs/formats.md. None, the default, never splits floating-point numbers.
    scale_a, scale_b  on CPUs: a number by which all of the operand is multiplied; or floats, one for each row of a
                or column of b, of the operand's shape, as it is given, with 1 in place of k; or, for operands of
                e4m3fn, e5m2, e2m3, e3m2 or e2m1, the scales of blocks of 32 along k: float8_e8m0fnu, or uint8 as its
                patterns, of that shape with ceil(k / 32) in place of k. The result of integers is f32 then, of sums
                that are exact and multiplied by the scales in f32: see docs/formats.md.
    epilogue    reserved for later versions: None.

    Arrays on a CUDA device (torch, CuPy, JAX, DLPack, __cuda_array_interface__) or on an AMD GPU (torch, DLPack) are
    multiplied there, not copied, on the stream that is their library's current one; all must be of one library and on
    one device, as the result is. AMD's kernels have not run on hardware yet: tilewright doctor --selftest tries them.
    Arrays in the host's memory go NumPy's way: torch's tensors give a tensor, those of other libraries a NumPy array.

    NaN and inf propagate; no floating-point warnings are raised. Subclasses of ndarray come back as from np.matmul,
    except masked arrays, which are refused. Classes that handle NumPy's functions themselves (__array_ufunc__: pandas'
    DataFrames and Series, dask's arrays) are given to np.matmul, which asks them: what comes back, and what multiplies,
    is theirs; np.asarray(a) is multiplied here.

    numpys      np.matmul's other keywords (dtype, casting, order, axes, subok, signature) at their defaults; others are
                a TypeError that says what there is instead.

    Raises TypeError and ValueError where np.matmul does (its UFuncTypeError is a TypeError).
    """
    if (
        type(a) is np.ndarray
        and type(b) is np.ndarray
        and 2 <= a.ndim == b.ndim
        and (dtype := a.dtype) is b.dtype
        and (dtype is F32 or dtype is F64)
        and out_dtype is c is scale_a is scale_b is epilogue is algorithm is threads is plan is None
        and type(alpha) is int
        and alpha == 1
        and type(beta) is int
        and beta == 0
        and not (trans_a or trans_b or numpys)
        and (a_shape := a.shape)[-1] == (b_shape := b.shape)[-2]
        and a_shape[:-2] == b_shape[:-2]
        and a.flags.aligned
        and b.flags.aligned
    ):
        shape = (*a_shape[:-1], b_shape[-1])
        if out is None:
            out = np.empty(shape, dtype)
            _run(a, b, out)
            return out
        if (
            type(out) is np.ndarray
            and out.dtype is dtype
            and out.shape == shape
            and (flags := out.flags).forc
            and flags.behaved
            and not np.may_share_memory(out, a)
            and not np.may_share_memory(out, b)
            and _run(a, b, out, whole=True)
        ):
            return out
    if numpys:
        numpy_calls.check_keywords(numpys)
    plan = asked.plan(plan)
    engine = dispatch.of_arrays(a, b, out[0] if isinstance(out, tuple) and out else out, c)
    if engine is None and dispatch.is_amd(plan):
        arguments.not_yet(algorithm=algorithm, scale_a=scale_a, scale_b=scale_b, epilogue=epilogue)
        return dispatch.rocm().copied(a, b, out, out_dtype, alpha, beta, c, trans_a, trans_b, threads, plan)
    if engine is None and numpy_calls.overridden(a, b, out):
        return numpy_calls.product(a, b, out, {
            "out_dtype": out_dtype, "alpha": None if alpha == 1 else alpha, "beta": beta or None, "c": c,
            "trans_a": trans_a or None, "trans_b": trans_b or None, "scale_a": scale_a, "scale_b": scale_b,
            "algorithm": algorithm, "threads": threads, "plan": plan, "epilogue": epilogue})
    arguments.not_yet(epilogue=epilogue)
    scales: tuple[Array, ...] = ()
    if scaled.present(a, b, scale_a, scale_b):
        a, b, alpha, scales = _without_scales(a, b, scale_a, scale_b, trans_a, trans_b, alpha, plan, algorithm)
    if engine is not None:
        arguments.not_yet(algorithm=algorithm)
        return engine.matmul(a, b, out, out_dtype, alpha, beta, c, trans_a, trans_b, threads, plan)
    if scales:
        return _scaled(a, b, scales, out, out_dtype, alpha, beta, c, trans_a, trans_b, threads, plan, algorithm)
    return _general(a, b, out, out_dtype, alpha, beta, c, trans_a, trans_b, threads, plan, algorithm)


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
    algorithm: str | None = None,
    deterministic: bool = False,
    threads: int | None = None,
    plan: Any = None,
) -> NDArray[Any]:
    """C = alpha * A @ B + beta * C, in place, as in BLAS; returns c.

    c is an array with the shape of a @ b, or with more leading axes; any strides. The other arguments are those of
    matmul. If c has another dtype than the arithmetic needs, the result is cast to it by NumPy's rule same_kind.
    """
    arguments.not_yet(epilogue=epilogue)
    plan = asked.plan(plan)
    engine = dispatch.of_arrays(a, b, c)
    if engine is None and dispatch.is_amd(plan):
        arguments.not_yet(algorithm=algorithm, scale_a=scale_a, scale_b=scale_b)
        return dispatch.rocm().copied(a, b, c, None, alpha, beta, c, trans_a, trans_b, threads, plan, "c")
    scales: tuple[Array, ...] = ()
    if scaled.present(a, b, scale_a, scale_b):
        a, b, alpha, scales = _without_scales(a, b, scale_a, scale_b, trans_a, trans_b, alpha, plan, algorithm)
    if engine is not None:
        arguments.not_yet(algorithm=algorithm)
        return engine.matmul(a, b, c, None, alpha, beta, c, trans_a, trans_b, threads, plan, "c")
    if not isinstance(c, np.ndarray):
        raise TypeError(f"c must be a NumPy array, which gemm updates in place, not {type(c).__name__}")
    if scales:
        return _scaled(a, b, scales, c, None, alpha, beta, c, trans_a, trans_b, threads, plan, algorithm, "c")
    _general(a, b, c, None, alpha, beta, c, trans_a, trans_b, threads, plan, algorithm, "c")
    return c


def _without_scales(
    a: Any, b: Any, scale_a: Any, scale_b: Any, trans_a: Any, trans_b: Any, alpha: Any, plan: Any, algorithm: Any
) -> scaled.Plain:
    """Plain operands, alpha, and what scales the sums, for operands with scales."""
    if dispatch.of_arrays(a, b) is not None:
        arguments.not_yet(scale_a=scale_a, scale_b=scale_b)
        raise TypeError("a or b is on a GPU, and the other has scales, which are multiplied on CPUs: "
                        "tilewright.dequantize gives its numbers, for the GPU")
    return scaled.plain(a, b, scale_a, scale_b, trans_a, trans_b, alpha, plan is algorithm is None)


def _scaled(
    a: Any, b: Any, scales: tuple[Array, ...], out: Any, out_dtype: Any, alpha: Any, beta: Any, c: Any, trans_a: Any,
    trans_b: Any, threads: Any, plan: Any, algorithm: Any, out_name: str = "out",
) -> Any:
    """The product of arrays whose sums are scaled."""

    def multiply(a: Any, b: Any, sums: Any) -> Any:
        return _general(a, b, None, sums, 1, 0, None, trans_a, trans_b, threads, plan, algorithm)

    k_axis = -2 if np.ndim(a) > 1 and arguments.layout(trans_a, "a") != "n" else -1
    return scaled_sums.product(multiply, a, b, scales, out, out_dtype, alpha, beta, c, out_name, k_axis)


def _general(
    a_in: Any, b_in: Any, out_in: Any, out_dtype: Any, alpha_in: Any, beta_in: Any, c_in: Any,
    trans_a: Any, trans_b: Any, threads: Any, plan: Any, algorithm: Any, out_name: str = "out",
) -> Any:
    """Everything that is not two plain matrices of one dtype."""
    out = arguments.output(out_in, out_name)
    a = arguments.transposed(arguments.operand(a_in, "a"), trans_a, "a")
    prepacked, b = packed.right(b_in, trans_b, plan, algorithm)
    is_number = isinstance(c_in, (int, float))
    c: Any = None if c_in is None or is_number else arguments.operand(c_in, "c", least=0)
    threads = arguments.thread_count(threads)
    by_numpy = prepacked is None and numpy_product.takes(a, b, c, out_dtype)
    if by_numpy:
        numpy_product.refuse(numpy_product.kind(a, b, c, out_dtype), plan=plan, algorithm=algorithm)
        compute, result = numpy_product.dtypes(a, b, c_in if is_number else c, out_dtype)
        alpha, beta = (numpy_product.factor(x, name, compute) for x, name in ((alpha_in, "alpha"), (beta_in, "beta")))
    else:
        compute, result = arguments.dtypes(a, b, c_in, out_dtype, out, out_name == "c")
        alpha, beta = (arguments.factor(x, name, compute) for x, name in ((alpha_in, "alpha"), (beta_in, "beta")))
    if c_in is None and beta:
        raise ValueError(f"beta = {beta_in} needs a c to multiply")
    if algorithm is not None:
        arguments.check_algorithm(algorithm, a.dtype, b.dtype, compute, plan)
    if out is not None:
        arguments.check_cast(result, out.dtype, out_name)
        if out_dtype is not None and out.dtype.newbyteorder("=") != result:
            raise TypeError(f"out has dtype {out.dtype}, but out_dtype asks for {result}")
    if is_number:
        c = arguments.added(c_in, compute)

    # From here on a, b and the result have two axes or more; `vectors` are the axes to take away again.
    vectors = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    a, b = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    shape = _result_shape(a, b, out, vectors, out_name)
    public = tuple(n for i, n in enumerate(shape) if i - len(shape) not in vectors)
    if c is not None:
        try:
            c = _as_matrices(c if c.shape == public else np.broadcast_to(c, public), vectors)
        except ValueError:
            raise ValueError(f"c must broadcast to the result's shape {public}, but its shape is {c.shape}") from None
    if not alpha:  # as BLAS: not even a nan in a or b is looked at
        a, b, alpha = a[..., :0], b[..., :0, :], 1
    if by_numpy:
        a, b = (x.conj() if flag == "c" else x for x, flag in ((a, trans_a), (b, trans_b)))
        product = np.broadcast_to(numpy_product.product(a, b, c, alpha, beta, compute), shape)
        return _delivered(product, result, vectors, public, out, a_in, b_in, out_in)
    sizes = a.shape[-2], b.shape[-1], a.shape[-1]
    conj = ""
    if prepacked is not None:
        a = packed.left(prepacked, a, compute, trans_a)
    elif compute.kind == "c":  # of real operands there is nothing to conjugate, and no imaginary part to make
        conj = "".join(name for name, x, flag in (("a", a, trans_a), ("b", b, trans_b)) if flag == "c" == x.dtype.kind)
        a, b = (arguments.converted(x, complex_product.wanted(x, compute)) for x in (a, b))
    else:
        a, b = (x if plan is None and _is_converted_later(x, compute, sizes) else arguments.converted(x, compute)
                for x in (a, b))
    if len(shape) > 2:
        a, b = (_broadcast(x, shape[:-2]) for x in (a, b))

    run = complex_product.through(_run, conj) if compute.kind == "c" else _run
    if prepacked is not None:
        run = packed.through(prepacked)
    if isinstance(alpha, complex) or isinstance(beta, complex):
        run = complex_product.by_complex_scalars(run)
    if algorithm is not None and compute == F32:
        run = partial(_run, algorithm=algorithm)

    kept = result  # the dtype in which the engine leaves the product
    told = beta or plan is not None or algorithm is not None
    if kept != compute and (told or not dispatch.cpu().finishes(compute, kept, *sizes)):
        kept = compute
    if out is not None:
        target = _as_matrices(out, vectors)
        in_place = kept == result and _writes_in_place(target, a, b, kept) and (not beta or _same(target, c))
        if in_place and run(a, b, target, alpha, beta, threads, plan, whole=True):
            return out_in[0] if isinstance(out_in, tuple) else out_in
    product = np.empty(shape, kept)
    if beta:
        with np.errstate(all="ignore"):
            np.copyto(product, c, casting="unsafe")  # whose dtype has been heeded
    run(a, b, product, alpha, beta, threads, plan)
    return _delivered(product, result, vectors, public, out, a_in, b_in, out_in)


def _delivered(product: Array, result: np.dtype[Any], vectors: tuple[int, ...], public: tuple[int, ...],
               out: Array | None, a_in: Any, b_in: Any, out_in: Any) -> Any:
    """The product in the format of the result, and then in out, if there is one, in its dtype."""
    last = arguments.rounded(product, result)
    if out is None:
        return arguments.wrap(last.reshape(public), a_in, b_in)
    # Sums are rounded to the result's format in silence; a cast to another may raise (np.errstate), before the copy.
    np.copyto(_as_matrices(out, vectors), last.astype(out.dtype, copy=False))
    return out_in[0] if isinstance(out_in, tuple) else out_in


def _is_converted_later(x: Array, compute: np.dtype[Any], sizes: tuple[int, int, int]) -> bool:
    """Whether the engine takes x as it is for an m x n x k product and converts it while it packs."""
    return x.dtype != compute and arguments.ready(x, x.dtype) and dispatch.cpu().converts(x, compute, *sizes)


def _result_shape(a: Array, b: Array, out: Array | None, vectors: tuple[int, ...], out_name: str) -> tuple[int, ...]:
    """The shape of the result, with the axes of vectors: that of a @ b, or out's, which may have more leading axes."""
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"a and b must agree in k, but a has {a.shape[-1]} columns and b has {b.shape[-2]} rows "
            f"(as multiplied: a {a.shape}, b {b.shape})"
        )
    core = (a.shape[-2], b.shape[-1])
    try:
        lead = a.shape[:-2] if a.shape[:-2] == b.shape[:-2] else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"the leading axes of a and b must broadcast together, but they are {a.shape[:-2]} and {b.shape[:-2]}"
        ) from None
    if out is None:
        return (*lead, *core)
    wanted = tuple(n for axis, n in zip((-2, -1), core) if axis not in vectors)
    leading = out.shape[: out.ndim - len(wanted)]
    try:
        fits = out.shape[len(leading) :] == wanted and (
            lead == leading or np.broadcast_shapes(lead, leading) == leading
        )
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{out_name} must have the result's shape {(*lead, *wanted)}, but its shape is {out.shape}")
    return (*leading, *core)


def _broadcast(x: Array, leading: tuple[int, ...]) -> Array:
    return x if x.shape[:-2] == leading else np.broadcast_to(x, (*leading, *x.shape[-2:]))


def _as_matrices(array: Array, vectors: tuple[int, ...]) -> Array:
    """A view with axes of length 1 where a vector has none."""
    if -2 in vectors:
        array = array[..., None] if -1 in vectors else array[..., None, :]
    return array[..., None] if -1 in vectors else array


def _writes_in_place(target: Array, a: Array, b: Array, kept: np.dtype[Any]) -> bool:
    """May an engine write straight to target? Not if it needs a cast, overlaps an operand, or overlaps itself."""
    return (
        arguments.ready(target, kept)
        and all(stride for stride, extent in zip(target.strides, target.shape) if extent > 1)
        and not np.may_share_memory(target, a, max_work=EFFORT)
        and not np.may_share_memory(target, b, max_work=EFFORT)
    )


def _same(x: Array, y: Array) -> bool:
    """Are these two views of the very same elements?"""
    return (
        x.dtype == y.dtype
        and x.shape == y.shape
        and x.strides == y.strides
        and x.__array_interface__["data"][0] == y.__array_interface__["data"][0]
    )


def _run(
    a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, threads: int | None = None, plan: Any = None,
    whole: bool = False, algorithm: str | None = None, **more: Any,
) -> bool:
    """Hand broadcast operands to the engine. With `whole`, only if one call does it all (else False, nothing done):

    a caller's array must not be left half-written when the second of several calls is interrupted. `more` is what only
    one of the engines knows.
    """
    if c.size == 0:
        return True
    engine = dispatch.for_plan(plan)
    if c.ndim > 2:
        a, b, c = batch.collapse(a, b, c)
    if algorithm is not None:
        return _run_by(algorithm, a, b, c, alpha, beta, threads, whole)
    if c.ndim == 2:
        engine.gemm(a, b, c, alpha, beta, threads=threads, plan=plan, **more)
    elif c.ndim == 3:
        engine.gemm_batched(a, b, c, alpha, beta, threads=threads, plan=plan, **more)
    elif whole:
        return False
    else:
        for part in batch.pieces(a, b, c):
            engine.gemm_batched(*part, alpha, beta, threads=threads, plan=plan, **more)
    return True


def _run_by(algorithm: str, a: Array, b: Array, c: Array, alpha: float, beta: float, threads: int | None,
            whole: bool) -> bool:
    """The same by a declared algorithm: one product at a time."""
    if c.ndim > 2 and whole:
        return False
    for index in np.ndindex(c.shape[:-2]):
        dispatch.cpu().gemm_by(algorithm, a[index], b[index], c[index], alpha, beta, threads=threads)
    return True
