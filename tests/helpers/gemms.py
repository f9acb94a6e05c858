"""Products by an emitter of GEMMs for GPUs, simulated: operands by the names of the kernel's parameters.

Whole numbers, so that every sum is exact. What lies behind the rows of a matrix is nan, or 77, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

import numpy as np

import tilewright as tw
from tests.fuzz.values import numbers
from tests.helpers.gpu_kernels import emit_gemv, emit_mma_gemm, emit_simt_gemm, emit_wgmma_gemm
from tilewright.atoms.fragment import tf32
from tilewright.formats import BLOCK_FORMATS, get
from tilewright.ir import Pointer
from tilewright.runtime.gpu import operands

MX = {f.element.name: name for name, f in BLOCK_FORMATS.items() if name.startswith("mx")}
SUMS = {"f64": "f64", "i8": "i32", "u8": "i32"}
# What counts here of an emitter's options that are not given.
DEFAULTS: dict[Any, dict[str, Any]] = {
    emit_simt_gemm: {"LAYOUT": "nn"}, emit_mma_gemm: {"LAYOUT": "nn", "A": "bf16", "OUT": "f32"},
    emit_gemv: {"LAYOUT": "nn", "COLUMN": False, "COUNT": 1, "EXTENT": 0, "VECTOR": 4},
    emit_wgmma_gemm: {"A": "bf16", "OUT": "bf16"}}


class Result(NamedTuple):
    """C and what it should be (of whole numbers rounded as C is), both in float64; the report; and the sums of the
    products' sizes."""

    c: np.ndarray
    wanted: np.ndarray
    report: Any
    size: np.ndarray


def dtype_of(format: str) -> np.dtype:
    return np.dtype(np.float32) if format in ("tf32", "xf32") else get(format).dtype


def bits(x: np.ndarray, t: Any = None) -> np.ndarray:
    """An array as a parameter of this type takes it."""
    return x.view(np.dtype(t.element.numpy)) if isinstance(t, Pointer) else (
        x if x.dtype.isbuiltin == 1 and x.dtype.kind in "fi" else x.view(f"i{x.itemsize}"))


def whole_numbers(rng: np.random.Generator, format: str, *shape: int) -> np.ndarray:
    return rng.integers(0 if format == "u8" else -3, 4, shape).astype(dtype_of(format))


def quantized(rng: np.random.Generator, format: str, rows: int, k: int) -> Any:
    """Small whole numbers times powers of two, which differ from block to block."""
    powers = 2.0 ** rng.integers(-3, 4, (rows, -(-k // 32)))
    return tw.quantize((rng.integers(-3, 4, (rows, k)) * powers.repeat(32, 1)[:, :k]).astype(np.float32), MX[format])


def stored(x: np.ndarray, letter: str = "n", even: int = 1, pad: int = 0) -> np.ndarray:
    """A matrix as it lies in memory: rows are multiples of `even` elements, and `pad` more."""
    x = x if letter == "n" else x.swapaxes(-1, -2)
    nobody = 77 if np.issubdtype(x.dtype, np.integer) else np.nan
    wide = np.full((*x.shape[:-1], -(-x.shape[-1] // even)*even + pad), nobody, x.dtype)
    wide[..., :x.shape[-1]] = x
    return wide


def simulated(emit: Callable[..., Any], m: int, n: int, k: int, *, alpha: float = 1, beta: float = 0,
              batch: tuple[int, ...] = (), pad: int = 0, grid: int | None = None, target: Any = None,
              given: tuple[Any, Any] | None = None, whole: bool = True, scales: Any = None,
              finish: Callable[[np.ndarray], np.ndarray] = lambda x: x,
              more: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None, **options: Any) -> Result:
    """alpha * A @ B + beta * C. `given`: in the place of whole numbers, or of normal ones; `scales`: of rows and of
    columns; `finish`: what an epilogue makes of the numbers; `more`: arguments beside them, maybe of the function."""
    known = DEFAULTS.get(emit, {}) | options
    A = known.get("DTYPE") or known.get("A") or "f32"
    B, layout = known.get("B") or A, known.get("LAYOUT", "nt")
    out = dtype_of(known.get("OUT") or (A if emit in (emit_simt_gemm, emit_gemv) else SUMS.get(A, "f32")))
    function, rng = emit(**options, **{"BATCH": True} if batch else {}), np.random.default_rng(m + n + k)
    types = {name: value.type for name, value in function.params}
    if given is None and "ld_scale_a" in types and scales is None:
        given = quantized(rng, A, m, k), quantized(rng, B, n, k)
    elif given is None:
        draw = whole_numbers if whole else lambda rng, format, *shape: rng.standard_normal(shape).astype(
            dtype_of(format))
        given = draw(rng, A, *batch, m, k), draw(rng, B, *batch, k, n)
    values: dict[str, Any] = {"m": m, "n": n, "k": k, "alpha": alpha, "beta": beta, "batch": batch[0] if batch else 1}
    wide = []
    for name, x, letter, format in zip("ab", given, layout, (A, B)):
        if isinstance(x, tw.Quantized):
            held, scale = (np.ascontiguousarray(y).view(np.int8) for y in (x.elements, x.scales))
            values |= {"k": x.scales.shape[1] * 32, f"scale_{name}": scale, f"ld_scale_{name}": scale.shape[1]}
            number = tw.dequantize(x, "f64")
            wide.append(number if name == "a" else number.T)
        else:
            by_map = not isinstance(types[name], Pointer)
            held = stored(x, letter, 16 // x.itemsize if by_map else 1, pad)
            wide.append((tf32(np.ascontiguousarray(x)) if format == "tf32" and not whole else x).astype(np.float64))
        values |= {name: bits(held, types[name]), f"ld{name}": held.shape[-1],
                   f"stride_{name}": held.strides[0] // held.itemsize}
        if not isinstance(x, tw.Quantized) and by_map:
            values[name] = values[name][..., :(k, m)[letter == "t"] if name == "a" else (n, k)[letter == "t"]]
    old = rng.integers(-3, 4, (*batch, m, n)).astype(out)
    if not beta:
        old[...] = 77 if np.issubdtype(out, np.integer) else np.nan
    c = stored(old, even=16 if "c_map" in types else known.get("VECTOR_C") or 1, pad=pad)
    values |= {"c": bits(c, types["c"]), "ldc": c.shape[-1], "c_map": bits(c)[..., :n],
               "stride_c": c.strides[0] // c.itemsize}
    with np.errstate(all="ignore"):
        total, size = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
        if scales is not None:
            total = total * scales[0][..., :, None] * scales[1][..., None, :]
            for name, x in zip("ab", scales):
                values |= {f"scale_{name}": x, f"ld_scale_{name}": x.strides[-1] // x.itemsize,
                           f"stride_scale_{name}": x.shape[-1]}
        wanted = finish(alpha*total + (beta*old.astype(np.float64) if beta else 0))
        if whole:
            wide_out = np.int64 if np.issubdtype(out, np.integer) else np.float64 if out == np.float64 else np.float32
            wanted = wanted.astype(wide_out).astype(out)
    values |= _work(emit, known, m, n, layout, types, prod(batch)) | ({} if grid is None else {"grid": (grid, 1, 1)})
    values |= more(function) if callable(more) else more or {}
    behind = c[..., n:].tobytes()
    report = tw.simulate(function, *(values[name] for name in types), grid=values["grid"], target=target)
    assert "counters" not in types or not values["counters"].any()
    assert c[..., n:].tobytes() == behind
    return Result(c[..., :n].astype(np.float64), wanted.astype(np.float64), report, size)


def _work(emit: Callable[..., Any], known: Mapping[str, Any], m: int, n: int, layout: str, types: Mapping[str, Any],
          batch: int) -> dict[str, Any]:
    """The grid, and what CTAs that share a tile of C by k write their sums to."""
    if emit is emit_gemv:
        along = layout[0] == "n" if known["COLUMN"] else layout[1] == "t"
        extent = known["EXTENT"] or (8 if along else 32*known["VECTOR"])
        tiles, elements = -(-max(m, n) // extent), extent*known["COUNT"]
    else:
        rows, columns = (known.get(f"CTA_{x}", 256) for x in "MN")
        tiles, elements = -(-m // rows) * -(-n // columns), rows*columns
    parts = known.get("SPLIT_K", 1)
    grid, whole = (tiles*batch, 1, parts), 0
    if known.get("TAIL"):
        whole, parts = max(tiles - 3, 0), 4
        grid = whole + (tiles - whole)*parts, 1, 1
    values: dict[str, Any] = {"grid": grid, "whole": whole, "parts": parts,
                              "counters": np.zeros((tiles - whole)*batch, np.int32)}
    if "workspace" in types:
        dtype = np.dtype(types["workspace"].element.numpy)
        values["workspace"] = np.full(parts*(tiles - whole)*batch*elements, 0 if dtype.kind == "i" else np.nan, dtype)
    return values


def exact(*args: Any, **options: Any) -> Any:
    """The report of a product that is right."""
    c, wanted, report, _ = simulated(*args, **options)
    np.testing.assert_array_equal(c, wanted)
    return report


# ---- compiled kernels


def right(kernel: Any, seed: int = 0, alpha: float = 1, beta: float = 0, gaps: int = 0, one_b: bool = False) -> Any:
    """The report of a compiled kernel's product of whole numbers, which is right. `gaps`: elements between C's rows, if
    a call would take such rows; `one_b`: for all products of a batch."""
    p = kernel.problem
    lead, dtype = (p.batch,) * (p.batch > 1), get(p.out).dtype
    a, x = _given(p.a, (*lead, p.m, p.k), -1, seed, p.layout[0] == "t")
    b, y = _given(p.b, (*lead, p.k, p.n), -2, seed + 1, p.layout[1] == "t")
    if one_b:
        b, y = (np.broadcast_to(z[:1], z.shape) for z in (b, y))
    wide = np.full((*lead, p.m, p.n + gaps), 7, dtype)
    if gaps and not _taken(kernel, a, b, wide[..., :p.n]):
        wide = wide[..., :p.n].copy()
    out = wide[..., :p.n]
    out[...] = numbers(p.out, out.shape, "whole", seed + 2)
    wanted = alpha * (x @ y) + (beta * out.astype(x.dtype) if beta else 0)
    report = tw.simulate(kernel, a, b, *[out] * bool(gaps or beta), alpha=alpha, beta=beta)
    with np.errstate(all="ignore"):
        steps = [np.int64] if dtype.kind in "iu" else [np.float32] if dtype.itemsize < 4 else []
        for step in (*steps, dtype):
            wanted = wanted.astype(step)
    wrong = np.count_nonzero(report.result != wanted)
    assert not wrong, f"{wrong} of {out.size} elements are wrong"
    assert (wide[..., p.n:] == dtype.type(7)).all(), "written between the rows of C"
    return report


def _given(format: str, shape: tuple[int, ...], axis: int, seed: int, turned: bool) -> tuple[Any, np.ndarray]:
    """An operand as a kernel takes it, and in float64 or complex128."""
    if format in BLOCK_FORMATS:
        q = tw.quantize(numbers("f32", shape, "whole", seed), format, axis)
        return q, tw.dequantize(q, "f64")
    x = numbers(format, shape, "whole", seed)
    held = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if turned else x
    return held, x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _taken(kernel: Any, *arrays: Any) -> bool:
    """Whether a call would take these operands, whose rows a plan may store by vectors."""
    with suppress(ValueError):
        if all(type(x) is np.ndarray for x in arrays):
            operands.check(getattr(kernel, "inner", kernel), arrays)
        return True
    return False
