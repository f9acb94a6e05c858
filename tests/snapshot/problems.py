"""The products of the snapshot, by "kind: name": problems for `tilewright.compile`, and whole calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright as tw
from tests.snapshot.arrays import Arrays
from tilewright.api.products import gemm, matmul  # not the builtin, whose emitted code is replaced, too

COMPILED: dict[str, Callable[[], tw.Gemm]] = {}
CALLED: dict[str, Callable[[Arrays], Any]] = {}

# ---- problems

LAYOUTS = ("nn", "nt", "tn", "tt")
SIZES = ((1, 4096, 4096), (97, 101, 103), (16, 1000, 512), (1000, 1000, 1000))
FORMATS = ("f32 f32 f32", "f64 f64 f64", "f32 f32 f64", "bf16 bf16 bf16", "f16 f16 f32", "f16 f16 f16", "i8 i8 i32",
           "u8 i8 i32", "i8 i8 i8", "i16 i16 i32", "i32 i32 i32", "i64 u64 i64", "bool i8 i32", "e4m3fn e4m3fn f32",
           "e4m3fn e5m2 bf16", "e2m1 bf16 f32", "bf16 i8 bf16", "c64 c64 c64", "c128 c128 c128", "f32 c64 c64",
           "mxfp8 mxfp8 f32", "mxfp6 mxfp6 f32", "mxfp4 mxfp4 bf16", "nvfp4 nvfp4 f32")
MORE_SIZES = ((0, 4, 5), (4, 3, 0), (1, 1, 1), (1, 1, 4096), (2, 2, 2), (4096, 1, 4096), (1, 4096, 7), (5, 4097, 129),
              (63, 65, 64), (128, 128, 65536), (256, 30, 2000), (257, 129, 33), (4096, 16, 16), (4096, 4096, 64),
              (4096, 4096, 4096), (7, 11008, 4096))

for f, formats in enumerate(FORMATS):
    a, b, out = formats.split()
    for s, (m, n, k) in enumerate(SIZES):
        layout = None if a in ("mxfp8", "mxfp6", "mxfp4", "nvfp4") else LAYOUTS[(f + s) % 4]
        COMPILED[f"formats: {formats} {m}x{n}x{k} {layout or 'nt'}"] = (
            lambda m=m, n=n, k=k, a=a, b=b, out=out, layout=layout: tw.Gemm(m, n, k, a, b, out, layout))
for format in ("f32", "bf16"):
    for m, n, k in MORE_SIZES[::1 if format == "f32" else 2]:
        COMPILED[f"sizes: {format} {m}x{n}x{k}"] = lambda m=m, n=n, k=k, x=format: tw.Gemm(m, n, k, x)
    for layout in LAYOUTS:
        for m, n, k in ((1, 512, 512), (129, 255, 511)):
            COMPILED[f"layouts: {format} {m}x{n}x{k} {layout}"] = (
                lambda m=m, n=n, k=k, x=format, layout=layout: tw.Gemm(m, n, k, x, layout=layout))

OPTIONS: dict[str, dict[str, tuple[str, Callable[[], dict[str, Any]]]]] = {
    "epilogues": {
        "bias relu": ("f32", lambda: {"epilogue": tw.epilogue(lambda acc, bias: tw.relu(acc + bias), bias="f32 row")}),
        "bias bf16": ("bf16", lambda: {"epilogue": tw.epilogue(lambda acc, bias: acc + bias, bias="bf16 row")}),
        "of rows": ("f32", lambda: {"epilogue": tw.epilogue(lambda acc, s: acc * s, s="f32 column")}),
        "number": ("f16", lambda: {"epilogue": tw.epilogue(lambda acc, s: acc * s, s="f32 scalar"), "out": "f16"}),
        "gelu residual": ("f32", lambda: {"epilogue": tw.epilogue(lambda acc, c: tw.gelu(acc) + c, c="f32 full")}),
        "four operands": ("bf16", lambda: {"epilogue": tw.epilogue(
            lambda acc, r, c, x, s: (acc*r + c)*s + x, r="f32 row", c="f32 column", x="bf16 full", s="f32 scalar")}),
        "swiglu": ("bf16", lambda: {"epilogue": tw.epilogue(lambda acc: tw.silu(tw.pairs(acc)[0]) * tw.pairs(acc)[1])}),
        "row max": ("f32", lambda: {"epilogue": tw.epilogue(lambda acc: (acc, tw.row_max(acc)))}),
        "column sum": ("bf16", lambda: {"epilogue": tw.epilogue(lambda acc: (acc, tw.column_sum(acc)))}),
        "argmin alone": ("f32", lambda: {"epilogue": tw.epilogue(lambda acc: tw.row_argmin(acc))}),
        "integers": ("i8", lambda: {"out": "i32", "epilogue": tw.epilogue(
            lambda acc, z: tw.maximum(acc - z, 0) >> 4, "int", z="i32 row")}),
        "where": ("f32", lambda: {"epilogue": tw.epilogue(lambda acc, m: tw.where(m > 0, acc, 0.0), m="u8 full")}),
    },
    "prologues": {
        "a": ("f32", lambda: {"prologue_a": tw.prologue(lambda x: tw.relu(x) * 2.0, "f32")}),
        "b of bytes": ("bf16", lambda: {"b": "i8", "prologue_b": tw.prologue(lambda x: x * 0.5, "i8", "bf16")}),
        "both": ("f32", lambda: {"prologue_a": tw.prologue(lambda x: x + 1.0, "f32"),
                                 "prologue_b": tw.prologue(lambda x: tw.exp(x), "f32")}),
    },
    "semirings": {
        "distance": ("f32", lambda: {"semiring": tw.semiring(lambda x, y: (x - y)**2)}),
        "path": ("f32", lambda: {"semiring": tw.semiring(lambda x, y: x + y, reduce="min")}),
        "most of f64": ("f64", lambda: {"semiring": tw.semiring(lambda x, y: x * y, reduce="max")}),
        "bits": ("i32", lambda: {"semiring": tw.semiring(lambda x, y: tw.popcount(x ^ y), kind="int")}),
        "any": ("i8", lambda: {"semiring": tw.semiring(lambda x, y: x & y, reduce="any", kind="int")}),
        "argmin": ("f32", lambda: {"semiring": tw.semiring(lambda x, y: (x - y)**2, reduce="argmin")}),
    },
    "scales": {
        "rows": ("e4m3fn", lambda: {"scales": "rows", "out": "bf16"}),
        "rows of bytes": ("i8", lambda: {"scales": "rows", "out": "f32"}),
        "blocks of a": ("e4m3fn", lambda: {"scales": "1x128", "out": "bf16"}),
        "blocks of both": ("e4m3fn", lambda: {"scales": "128x128", "out": "bf16", "layout": "nt"}),
    },
    "batches": {
        "of 12": ("f32", lambda: {"batch": 12}),
        "of 1000 in bf16": ("bf16", lambda: {"batch": 1000, "layout": "nt"}),
        "of complex": ("c64", lambda: {"batch": 5}),
        "with a bias": ("f16", lambda: {"batch": 3, "epilogue": tw.epilogue(lambda acc, x: acc + x, x="f16 row")}),
    },
}
for kind, rows in OPTIONS.items():
    for option, (format, given) in rows.items():
        for m, n, k in ((1, 512, 512), (98, 102, 256), (1024, 1000, 1024)):
            COMPILED[f"{kind}: {option} {format} {m}x{n}x{k}"] = (
                lambda m=m, n=n, k=k, x=format, given=given: tw.Gemm(m, n, k, x, **given()))

# ---- calls: operands by text, see arrays.py


def add(name: str, a: str, b: str, function: Any = matmul, **options: Any) -> None:
    CALLED[name] = lambda arrays: function(arrays(a), arrays(b), **arrays.resolved(options))


def grouped(name: str, a: str, b: str, ends: list[int], **options: Any) -> None:
    """The sizes of groups are in the memory of the target."""
    CALLED[name] = lambda arrays: tw.grouped_matmul(
        arrays(a), arrays(b), arrays.placed(offsets(ends)), **arrays.resolved(options))


def offsets(ends: list[int]) -> Any:
    from tests.snapshot.arrays import host
    x = host(f"i32 {len(ends)}")
    x[:] = ends
    return x


def contract(name: str, f: Any, a: str, b: str, **options: Any) -> None:
    CALLED[name] = lambda arrays: tw.contract(f, arrays(a), arrays(b), **arrays.resolved(options))


def einsum(subscripts: str, *operands: str, **options: Any) -> None:
    CALLED[f"einsum: {subscripts} {options or ''}"] = lambda arrays: tw.einsum(
        subscripts, *map(arrays, operands), **arrays.resolved(options))


def packed(name: str, a: str, b: str, **options: Any) -> None:
    CALLED[name] = lambda arrays: matmul(arrays(a), tw.pack(arrays(b)), **arrays.resolved(options))


for threads in (1, 8):
    for x in ("f32", "f64", "bf16", "f16", "i8", "c64", "e4m3fn"):
        add(f"threads: {x} 200x300x400, {threads}", f"{x} 200x400", f"{x} 400x300", threads=threads)
    for x in ("f32", "bf16"):
        add(f"rows: {x} one row, {threads}", f"{x} 1x1024", f"{x} 1024x2000 t", threads=threads)
        add(f"rows: {x} seven rows, {threads}", f"{x} 7x1024", f"{x} 1024x2000 t", threads=threads)
        add(f"rows: {x} seven rows by rows of b, {threads}", f"{x} 7x1024", f"{x} 1024x2000", threads=threads)
for x in ("f32", "bf16", "i8"):
    add(f"vectors: {x} vector by matrix", f"{x} 300", f"{x} 300x500")
    add(f"vectors: {x} matrix by vector", f"{x} 500x300", f"{x} 300")
    add(f"vectors: {x} dot product", f"{x} 5000", f"{x} 5000")
    add(f"vectors: {x} outer product", f"{x} 300x1", f"{x} 1x500")
    add(f"strides: {x} both transposed", f"{x} 65x129 t", f"{x} 129x67 t")
    add(f"strides: {x} unaligned", f"{x} 65x128 +1", f"{x} 128x64 +1")
    add(f"strides: {x} every second element", f"{x} 65x128 /2", f"{x} 128x64")
    add(f"strides: {x} backwards", f"{x} 65x128 -", f"{x} 128x64 -")
    add(f"long k: {x}", f"{x} 16x50000", f"{x} 50000x24")
    add(f"batches: {x} stack by matrix", f"{x} 6x33x40", f"{x} 40x50")
    add(f"batches: {x} stack by stack", f"{x} 2x3x33x40", f"{x} 3x40x50")
    add(f"batches: {x} matrix by stack", f"{x} 33x40", f"{x} 6x40x50")
    add(f"out: {x} into f64 by columns", f"{x} 65x128", f"{x} 128x64", out="f64 65x64 t", threads=1)
    add(f"out: {x} as f64", f"{x} 65x128", f"{x} 128x64", out_dtype="f64")
    add(f"factors: {x} beta and c", f"{x} 65x128", f"{x} 128x64", alpha=2, beta=3, c=f"{x} 65x64")
    packed(f"packed: {x}", f"{x} 65x128", f"{x} 128x64")
    packed(f"packed: {x} one row", f"{x} 1x1280", f"{x} 1280x640")
add("out: bf16 of f32", "f32 65x128", "f32 128x64", out_dtype="bf16")
add("out: overlapping formats", "i8 65x128", "bf16 128x64", out_dtype="f32")
add("factors: scalar alpha", "f32 65x128", "f32 128x64", alpha=0.5)
CALLED["factors: gemm"] = lambda x: gemm(0.5, x("f32 65x128"), x("f32 128x64 t"), 2.0, x("f32 65x64"))
for name in ("fastest", "bf16_bf16_f32_x3", "bf16_bf16_f32_x6"):
    add(f"algorithm: {name}", "f32 300x512", "f32 512x300", algorithm=name)
    add(f"algorithm: {name}, one row", "f32 1x512", "f32 512x300", algorithm=name)
for option in ("deterministic", "batch_invariant"):
    for x in ("f32", "bf16"):
        add(f"reproducible: {option} {x}", f"{x} 100x3000", f"{x} 3000x100", threads=8, **{option: True})
        add(f"reproducible: {option} {x} one row", f"{x} 1x3000", f"{x} 3000x100 t", threads=1, **{option: True})
    grouped(f"reproducible: {option} groups", "f32 60x64", "f32 4x64x80", [20, 20, 53, 60], **{option: True})
    einsum("abk,kn->abn", "f32 10x20x30", "f32 30x40", **{option: True})

ROWS = {"one row": 1, "seven rows": 7, "300 rows": 300}
for rows, m in ROWS.items():
    for x, weights in (("f32", "i8 640x512 q-1"), ("bf16", "i8 640x512 q-1"), ("f32", "i4 640x512 q-1 g32"),
                       ("bf16", "i4 640x512 q-1 g32"), ("f16", "u4 640x512 q-1 g64 z"), ("bf16", "mxfp4 640x512 q-1"),
                       ("f32", "e4m3fn 640x512 q-1 g128"), ("bf16", "nvfp4 640x512 q-1"), ("f32", "mxfp8 640x512 q-1")):
        add(f"weights: {x} by {weights}, {rows}", f"{x} {m}x512", weights, trans_b=True)
    add(f"weights: by columns, {rows}", f"f32 {m}x512", "i4 512x640 q-2 g32")
    add(f"weights: epilogue, {rows}", f"bf16 {m}x512", "i4 640x512 q-1 g32", trans_b=True, out_dtype="bf16",
        epilogue=lambda acc, bias: tw.relu(acc + bias), operands={"bias": "f32 640"})
    add(f"epilogues: bias, {rows}", f"f32 {m}x512", "f32 512x640", epilogue=lambda acc, bias: tw.relu(acc + bias),
        operands={"bias": "f32 640"})
    add(f"epilogues: every place, {rows}", f"bf16 {m}x512", "bf16 512x640", out_dtype="bf16",
        epilogue=lambda acc, r, c, x, s: (acc*r + c)*s + x,
        operands={"r": "f32 640", "c": f"f32 {m}x1", "x": f"bf16 {m}x640", "s": 0.5})
    add(f"epilogues: pairs, {rows}", f"bf16 {m}x512", "bf16 512x640", out_dtype="bf16",
        epilogue=lambda acc: tw.silu(tw.pairs(acc)[0]) * tw.pairs(acc)[1])
    add(f"epilogues: reductions, {rows}", f"f32 {m}x512", "f32 512x640",
        epilogue=lambda acc: (acc, tw.row_max(acc), tw.column_sum(acc), tw.row_argmax(acc)))
    add(f"epilogues: quantized result, {rows}", f"f32 {m}x512", "f32 512x640", epilogue=lambda acc: acc,
        out_dtype="mxfp8")
    add(f"prologues: both, {rows}", f"f32 {m}x512", "i8 512x640", prologue_a=lambda a, s: a * s,
        prologue_b=lambda b: b * 0.25, operands={"s": f"f32 {m}x1"})
    add(f"scales: e4m3fn by rows, {rows}", f"e4m3fn {m}x512", "e4m3fn 512x640 t", scale_a=f"f32 {m}x1",
        scale_b="f32 1x640", out_dtype="bf16")
    add(f"scales: blocks, {rows}", f"e4m3fn {m}x512", "e4m3fn 512x640 t", scale_a=f"f32 {m}x4", scale_b="f32 4x5",
        out_dtype="bf16")
    add(f"scales: i8 with beta, {rows}", f"i8 {m}x512", "i8 512x640 t", scale_a=f"f32 {m}x1", scale_b="f32 1x640",
        beta=2.0, c=f"f32 {m}x640")
    add(f"block scales: mxfp8, {rows}", f"mxfp8 {m}x512 q-1", "mxfp8 640x512 q-1", trans_b=True)
    contract(f"contract: distance, {rows}", lambda x, y: (x - y)**2, f"f32 {m}x64", "f32 64x300")
    contract(f"contract: argmin, {rows}", lambda x, y: (x - y)**2, f"f32 {m}x64", "f32 64x300", reduce="min_argmin")
    contract(f"contract: nearest row, {rows}", lambda x, y: (x - y)**2, f"f32 {m}x64", "f32 64x300",
             epilogue=lambda acc: tw.row_argmin(acc))
    contract(f"contract: logsumexp, {rows}", lambda x, y: x * y, f"f32 {m}x64", "f32 64x300", reduce="logsumexp")
    contract(f"contract: any, {rows}", lambda x, y: x & y, f"i8 {m}x64", "i8 64x300", reduce="any")
    grouped(f"groups: f32, {rows}", f"f32 {3*m + 1}x64", "f32 4x64x80", [m, m, 3*m, 3*m + 1])
    grouped(f"groups: bf16 with a bias, {rows}", f"bf16 {3*m + 1}x64", "bf16 4x64x80", [m, m, 3*m, 3*m + 1],
            epilogue=lambda acc, bias: tw.relu(acc + bias), operands={"bias": "f32 4x80"}, out_dtype="bf16")
    grouped(f"groups: int4, {rows}", f"bf16 {3*m + 1}x64", "i4 4x80x64 q-1 g32", [m, m, 3*m, 3*m + 1], trans_b=True,
            out_dtype="bf16")
    grouped(f"groups: mxfp4, {rows}", f"f32 {3*m + 1}x64", "mxfp4 4x80x64 q-1", [m, m, 3*m, 3*m + 1], trans_b=True)
    grouped(f"groups: along k, {rows}", f"f32 {3*m + 1}x40 t", f"f32 {3*m + 1}x80", [m, m, 3*m, 3*m + 1], trans_a=True)
for x in ("c64", "c128"):
    add(f"complex: {x}", f"{x} 65x128", f"{x} 128x64")
    add(f"complex: {x} conjugated", f"{x} 128x65", f"{x} 128x64", trans_a="c")
    add(f"complex: {x} one row by real", f"{x} 1x128", "f32 128x640")
for subscripts, *operands in (
        ("xyk,kn->nxy", "f32 5x6x70", "f32 70x80"), ("ij,jk,kl->il", "f32 40x50", "f32 50x60", "f32 60x10"),
        ("bij,bjk->bki", "bf16 4x30x40", "bf16 4x40x50"), ("aebf,efc->abc", "f32 8x9x10x11", "f32 9x11x12"),
        ("i,i->", "f32 1000", "f32 1000"), ("ij,ij->i", "f32 30x40", "f32 30x40"),
        ("abk,k->ba", "f32 10x20x30", "f32 30")):
    einsum(subscripts, *operands)
