"""Rows of the table of products: matmul and gemm of arrays, with all that is neither a function nor a scale."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import numpy as np

from tests.products.case import Case, row, some
from tilewright.formats import FORMATS, Integer, get

CHIPS = ("sm_90a", "gfx942", "gfx950")
INTEGERS = [f.name for f in FORMATS.values() if isinstance(f, Integer)]
LAYOUTS = ("rows", "columns", "apart", "sparse", "reversed", "far", "one", "unaligned", "swapped")
OUTS = ("rows", "columns", "apart", "reversed", "far")


def laid(text: str, layout: str) -> str:
    return text if layout == "rows" else f"{text} {layout}"


def usual(a: str, b: str) -> str:
    """The format of NumPy's product of these formats."""
    return get(np.matmul(*(np.ones((1, 1), FORMATS[x].dtype) for x in (a, b))).dtype).name


def values(a: str, b: str) -> str:
    """Integers wrap, so that every pattern has an exact product; of floats small whole numbers have."""
    return "patterns" if {a, b, usual(a, b)} <= {*INTEGERS} else "whole"


def two(a: str, b: str, m: int, n: int, k: int, layouts: tuple[str, str] = ("rows", "rows"), **more: Any) -> Case:
    """A product of matrices, whose result is in NumPy's format if nothing else is asked for."""
    if not {"out_dtype", "algorithm"} & {*more.get("options", {})}:
        more.setdefault("results", (usual(a, b),))
    more.setdefault("values", values(a, b))
    return row(laid(f"{a} {m}x{k}", layouts[0]), laid(f"{b} {k}x{n}", layouts[1]), **more)


def conjugated(letter: str) -> Any:
    return {"n": False, "t": True, "c": "c"}[letter]


T = {"trans_a": True, "trans_b": True}
# which the builtin repeats: packed, in place, few rows and columns, narrow formats, stacks, complex ones
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("f32 20x30", "f32 30x25", {}), ("f64 300x320", "f64 320x310 columns", {}),
    ("f64 300x320", "f64 320x310 columns", {"threads": 1}),
    ("f32 30x20", "f32 30x25", {"trans_a": True}), ("f32 20x30", "f32 100x30", {"trans_b": True}),
    ("f64 30x20", "f64 70x30", T), ("f64 1000x8", "f64 8x1000", T), ("bf16 9x300", "bf16 300x1", {}),
    ("f32 20x30", "f32 30x25", {"algorithm": "fastest"}), ("f32 1x300", "f32 300x310", {}),
    ("f32 300x310", "f32 310x1", {}), ("i8 16x17", "i8 17x18", {}), ("i8 16x17", "i8 17x18", {"out_dtype": "i32"}),
    ("i8 90x100", "i8 100x80", {"out_dtype": np.int32, "threads": 1}), ("bf16 33x20", "bf16 20x18", {}),
    ("bf16 33x20", "bf16 20x18", {"out_dtype": "bf16"}), ("f16 70x40 columns", "f16 40x66", {}),
    ("e4m3fn 70x90", "e4m3fn 90x70", {}), ("i32 20x30", "i32 30x25", {"deterministic": True}),
    ("f32 9x12x13", "f32 9x13x14", {}), ("f32 9x12x13", "f32 9x13x14", {"threads": 1}),
    ("f64 40x20x30", "f64 1x30x20", {}), ("c64 1x301", "c64 301x450", {}),
    ("c128 293x449 reversed", "c128 449x1", {}), ("c64 3x2x2", "c64 3x2x2", {}), ("c64 70x1x33", "c64 70x33x1", {}),
    ("c64 1x500", "c64 500x300 columns", {}), ("c64 301x450", "c64 450x1 sparse", {}),
    ("c64 7x17x13", "c64 1x19x17", T), ("c128 5x16x18 reversed", "c128 5x18x23 apart", {}),
]


def shape_of(a: str, b: str, options: dict[str, Any]) -> str:
    """The shape of the result."""
    *lead, m, k = a.split()[1].split("x")
    n = b.split()[1].split("x")[-2 if "trans_b" in options else -1]
    return "x".join((*lead, k if "trans_a" in options else m, n))


def result_of(a: str, b: str, options: dict[str, Any]) -> str:
    out = options.get("out_dtype")
    return get(out).name if out else usual(a.split()[0], b.split()[0])


# what is prepared in Python, by programs of several steps
STEPS: list[tuple[str, str, dict[str, Any]]] = [
    ("f32 9x12", "f32 12x8", {"c": "f32 9x8", "options": {"alpha": 2.0, "beta": 0.5}}),
    ("f32 9x12", "f32 12x8", {"c": "f32 - number", "options": {"beta": 0.5}}),
    ("f32 9x12", "f32 12x8", {"c": "i32 8", "options": {"beta": 2}}),
    ("f32 9x12", "f32 12x8", {"options": {"alpha": 0.3}, "values": "normal"}),
    ("f32 9x12", "f32 12x8", {"options": {"alpha": 0}}), ("f32 9x12", "f32 12x8", {"out": ("f64 9x8",)}),
    ("i8 9x12", "i8 12x8", {"options": {"out_dtype": "i64", "alpha": 3}}),
    *(("f32 70x90", "f32 90x80", {"options": {"algorithm": x}, "values": "normal", **more}) for x, more in (
        ("bf16_bf16_f32_x3", {"out": ("f32 70x80",), "within": 2.0**-16}),
        ("bf16_bf16_f32_x6", {}), ("bf16_bf16_f32_x9", {}))),
    ("f32 70x90", "f32 90x80", {"options": {"algorithm": "fastest", "beta": 1}, "c": "f32 70x80"}),
    ("f32 9x12", "bf16 12x8", {}),
    ("c64 9x12", "c64 12x8", {"c": "c64 9x8", "options": {"alpha": 2, "beta": 1}}),
    ("c64 12x9", "c64 12x8", {"out": ("c128 9x8",), "options": {"trans_a": "c"}}),
    ("c64 9x12", "f32 12x8", {"options": {"alpha": 2}}),
    ("c64 9x12", "c64 12x8", {"c": "c64 9x8", "options": {"alpha": 2j, "beta": 1j}}),
    ("f32 2x3x9x12 apart", "f32 2x1x12x8", {}), ("f32 12", "f32 12", {"options": {"deterministic": True}}),
    ("f32 0x12", "f32 12x8", {"options": {"deterministic": True}}),
    ("f32 9x0", "f32 0x8", {"c": "f32 9x8", "options": {"beta": 2}}),
]

FACTORS = (("gemm", 1j, 0), ("gemm", 1, -1j), ("matmul", 2j, 3), ("gemm", 0j, 2j),
           ("gemm", np.complex128(1 + 2j), np.complex64(-3 + 1j)))
TENSORS = ("f32", "f64", "f16", "bf16", "c64", "c128", "e4m3fn", "e5m2", "i8", "u8", "i16", "i32", "i64")

CASES = [
    *(row(a, b, options=options, out=(), values=values(a.split()[0], b.split()[0]),
          results=(result_of(a, b, options),), on=on) for a, b, options in CALLS for on in (("cpu",), ("torch",))),
    *(two(x, x, 37, 35, 66, ("rows", "columns"), options={"out_dtype": out}, on=("torch",))
      for x in TENSORS for out in ("f32" if x in ("e4m3fn", "e5m2") else x,)),
    *(row(a, b, on=("torch",), out=out) for a, b, out in (
        ("f32 90x100", "f32 100", ()), ("f64 40", "f64 40x30", ()), ("f32 300", "f32 300", ()),
        *((f"{x} 24x40", f"{x} 40x16", (f"{x} 24x16{y}",)) for x in ("f32", "bf16") for y in ("", " columns")))),
    *some(4, (row(a, b, options=options, results=(result := result_of(a, b, options),),
                  values=values(a.split()[0], b.split()[0]),
                  out=(laid(f"{result} {shape_of(a, b, options)}", layout),))
              for (a, b, options), layout in product(CALLS, ("rows", "far", "columns")))),
    *(row(a, b, on=("cpu", "torch"), **more) for a, b, more in STEPS),
    *(row("c64 101x150" + lie, "c64 83x150" + lie, plans=(plan,), on=("avx512",),
          options={"trans_b": "c", "threads": 4})
      for lie in ("", " columns") for plan in (
        "packed 14x32 mc=28 kc=12 nc=32", "packed 14x32 mc=14 kc=8 nc=96 ways=2x1x1",
        "packed 9x48 mc=18 kc=260 nc=48 ways=1x2x1", "packed 14x32 mc=14 kc=64 nc=64 ways=1x4x1",
        "packed 6x64 mc=12 kc=36 nc=64 ways=1x1x2")),
    *(row(f"c64 {m}x3", f"c64 3x{n}", plans=("in_place 6x32 ways=1x3x1", "in_place 8x16"), on=("avx512",))
      for m, n in ((1, 1), (3, 33), (14, 5))),
    # vectors, of any strides; a product without axes is a scalar
    *some(3, (row(a, b, results=(usual(x, x),), values=values(x, x))
              for x in ("f32", "f64", "f16", "bf16", "c64", "c128", "i8", "u16", "i32", "i64")
              for a, b in ((f"{x} 31 reversed", f"{x} 31"), (f"{x} 37x31", f"{x} 31 apart"),
                (f"{x} 31", f"{x} 31x37 columns"),
                           (f"{x} 31 apart", f"{x} 31x1"), (f"{x} 2x37x31", f"{x} 31")))),
    *some(2, (row(a, b) for x in ("f32", "f64", "bf16", "i8") for a, b in (
        (f"{x} 4100 reversed", f"{x} 4100"), (f"{x} 10x4100", f"{x} 4100 reversed"),
              (f"{x} 4100 apart", f"{x} 4100x10 columns")))),
    *(row(f"{x} 1x9001", f"{x} 9001x1 {layout}", options={"trans_a": conjugated(t)} if t != "n" else {})
      if t == "n" else row(f"{x} 9001x1", f"{x} 9001x1 {layout}", options={"trans_a": conjugated(t)})
      for x in ("c64", "c128") for layout, t in (("columns", "n"), ("sparse", "c"), ("reversed", "t"))),
    # each format by itself, and of any two
    *some(3, (two(x, x, m, n, k) for x in FORMATS for m, n, k in (
        (1, 1, 1), (5, 3, 7), (33, 130, 20), (2, 3, 0), (70, 65, 90)))),
    *(two(x, x, 20, 30, 33, options={"out_dtype": x}) for x in FORMATS if usual(x, x) != x),
    *some(11, (two(a, b, 6, 5, 9) for a in FORMATS for b in FORMATS if a != b)),
    *(two(a, b, 20, 30, 300, options={"out_dtype": out}) for a, b, out in (
        ("i8", "i8", "i32"), ("u8", "u8", "i32"), ("i8", "i8", "i64"), ("i4", "i4", "i16"), ("u16", "u16", "u64"))),
    *(two(a, b, 6, 5, 9, options={"out_dtype": "f64"}) for x in ("i4", "u8", "i16")
          for y in ("f16", "bf16", "e4m3fn", "f64")
      for a, b in ((x, y), (y, x))),
    *(two(x, x, 50, 40, 700, values="normal", options={"out_dtype": "f32"})
      for x in ("f16", "bf16", "e4m3fn", "e5m2", "e2m1")),
    *(two(x, x, m, n, k, values="normal") for x in ("c64", "c128") for m, n, k in (
        (100, 90, 700), (8, 400, 400), (400, 8, 400), (1, 300, 400), (300, 1, 400))),
    # layouts of both operands, and of the result
    *some(29, (two(x, x, 13, 17, 11, (a, b), out=(laid(f"{usual(x, x)} 13x17", out),))
              for x in ("f32", "bf16", "i8", "c64", "f64", "u16") for a, b, out in product(LAYOUTS, LAYOUTS, OUTS)
              if "swapped" not in (a, b) or x != "bf16")),
    *some(7, (two(x, x, 70, 80, 90, (a, b)) for x in ("f32", "f16", "i16", "c128", "e4m3fn", "bf16")
              for a, b in product(LAYOUTS, LAYOUTS) if "swapped" not in (a, b) or x not in ("e4m3fn", "bf16"))),
    *some(23, (row(laid(f"{x} {m}x{k}" if s == "n" else f"{x} {k}x{m}", lie),
                  laid(f"{y} {k}x{n}" if t == "n" else f"{y} {n}x{k}", lie), results=(usual(x, y),),
                  on=("cpu", "avx2"),
                  options={"trans_a": conjugated(s), "trans_b": conjugated(t)})
              for s, t in product("ntc", repeat=2) for x, y in product(("c64", "c128", "f32"), repeat=2)
              for m, n, k in ((1, 1, 1), (5, 3, 7), (33, 40, 65), (3, 500, 300), (300, 2, 500), (1, 400, 400),
                (70, 65, 90))
              for lie in ("rows", "columns", "apart") if (s, t) != ("n", "n"))),
    # leading axes
    *some(4, (row(f"{x} {a}{m}x{k}", f"{y} {b}{k}x{n}", results=(usual(x, y),), values=values(x, y))
              for x, y in (("f32", "f32"), ("c64", "c128"), ("f16", "f16"), ("bf16", "bf16"), ("e4m3fn", "e5m2"),
                           ("i8", "i8"), ("u16", "u16"))
              for a, b in (("3x", ""), ("", "3x"), ("2x1x", "3x"), ("2x1x2x", "2x3x1x"), ("2x3x", "2x3x"), ("0x", ""))
              for m, n, k in ((5, 3, 7), (40, 42, 41), (2, 300, 500), (300, 2, 500), (75, 76, 80)))),
    # alpha, beta and c, wherever c lies
    *(two(x, x, 20, 40, 30, c=f"{x} 20x40", options={"alpha": -3, "beta": 2}) for x in INTEGERS),
    *some(5, (two(x, x, m, n, k, call="gemm", c=laid(f"{usual(x, x)} {m}x{n}", c),
          options={"alpha": alpha, "beta": beta})
              for x in ("f32", "c64", "i8", "bf16", "i64", "f64") for m, n,
                k in ((33, 65, 40), (3, 300, 500), (300, 2, 500), (1, 1, 1))
              for c in ("rows", "columns", "apart", "reversed") for alpha, beta in ((2, -1),))),
    *some(2, (row(laid(f"{x} {m}x{k}", a), f"{y} {k}x{n}", call=call, c=laid(f"{z} {m}x{n}", c), results=(z,),
                  options={"alpha": alpha, "beta": beta})
              for (call, alpha, beta), (x, y, z), (m, n, k), (a, c) in zip(cycle(FACTORS), *zip(*product(
                  (("f32", "f32", "c64"), ("c64", "c64", "c64"), ("c64", "f32", "c64"), ("c128", "c128", "c128"),
                   ("c128", "f64", "c128")), ((6, 7, 5), (65, 33, 40), (2, 500, 300), (4, 3, 0)),
                  (("rows", "rows"), ("columns", "columns"), ("rows", "sparse"), ("columns", "reversed"))))))),
    row("c64 3x6x5", "c64 5x7", options={"alpha": 1j}),
    row("c64 6x5", "c64 5x7", call="packed", options={"alpha": 1j}),
    # panels that were packed before
    *some(2, (row(f"{a} {m}x301", f"{b} 301x75", call="packed", options={"threads": threads},
                  values="whole") for a, b in (
        ("f32", "f32"), ("f64", "f64"), ("c64", "c64"), ("c128", "c128"), ("f16", "f16"), ("bf16", "bf16"),
              ("e4m3fn", "bf16"),
        ("e2m1", "e2m1"), ("f32", "bf16"), ("f32", "f64"), ("f32", "c64"), ("c64", "f32"))
        for m, threads in ((1, 1), (9, 2), (130, 4)))),
    *(row(f"{x} 40x300", f"{x} 300x70 {layout}", call="packed")
      for x in ("f32", "f64", "c64", "bf16", "e2m1") for layout in ("columns", "sparse", "reversed", "unaligned")),
    *(row(f"{x} 40x300", f"{x} 70x300", call="packed", options={"trans_b": trans})
      for x in ("f32", "f64", "c64", "bf16", "e2m1") for trans in (True, "c")),
    *some(2, (row(f"{x} {a}{m}x{k}", f"{x} {b}{k}x{n}", call="packed") for x in ("f32", "bf16", "c64")
              for a, b in (("5x3x", ""), ("5x", "5x"), ("2x1x", "3x"), ("", "4x"), ("1x", "2x3x"), ("2x3x", "2x3x"),
                ("0x", ""))
              for m, n, k in ((7, 33, 70), (1, 1, 40)))),
    *(row(f"f32 3x{k}", f"f32 {k}x{n}", call="packed") for k, n in ((0, 5), (5, 0), (0, 0), (1, 1))),
]

BOTH = ("sm_90a", "gfx942")
CASES += [
    # a stack is one launch, unless its axes do not fold
    *(row(f"f32 {a}", f"f32 {b}", on=CHIPS, launches=launches, results=("f32",)) for a, b, launches in (
        ("5x16x16", "5x16x16", 1), ("3x17x9", "3x9x35", 1), ("2x3x10x12", "2x3x12x8", 1), ("12x8", "5x8x20", 1),
        ("2x3x8x4 heads", "2x3x4x8 turned", 2), ("5x12x8", "8x20", 1), ("3x2x12x8", "3x1x8x20", 1),
        ("4x12x8 columns", "4x8x20 columns", 1), ("4x12x8 backwards", "4x8x20", 1), ("4x12x8 strided", "4x8x20", 1),
        ("5x1x32", "5x32x24", 1), ("70x1x1", "70x1x1", 1), ("0x4x5", "0x5x6", 0), ("3x0x5", "3x5x6", 0),
        ("3x4x0", "3x0x6", None))),
    row("f32 2x3x8x4 heads", "f32 2x3x4x8 turned", "bias", bias="f32 3x1x8", on=("sm_90a",), launches=2),
    row("f32 5x16x12", "f64 5x12x16", on=CHIPS, launches=1, results=("f64",)),
    *(row("f32 3x18x12", "f32 3x12x10", call="gemm", c=laid("f32 3x18x10", c), options={"alpha": 2, "beta": 3},
          on=CHIPS,
          launches=1) for c in ("rows", "columns")),
    # formats of operands and results
    *(row(f"{a} 9x20", f"{b} 20x8", options={"out_dtype": out} if out else {}, results=(result,), on=BOTH)
      for a, b, out, result in (
        ("f16", "f32", None, "f32"), ("f16", "bf16", None, "f32"), ("bf16", "bf16", "bf16", "bf16"),
        ("e4m3fn", "e5m2", "f32", "f32"), ("e4m3fn", "f16", "f16", "f16"), ("f32", "f32", "f64", "f64"),
        ("f64", "f64", "f16", "f16"), ("f64", "f32", "f32", "f32"), ("i8", "i8", "i32", "i32"),
              ("i8", "i8", "f32", "f32"),
        ("f32", "f32", "e4m3fn", "e4m3fn"), ("f16", "f16", "e5m2", "e5m2"), ("i8", "i8", None, "i8"),
        ("i8", "i8", "u8", "u8"), ("bf16", "f64", None, "f64"), ("f64", "f64", "bf16", "bf16"))),
    # as operands lie, and rows of C that are apart, or its columns
    *(row(laid(f"{a} 35x24", x), laid(f"{b} 24x12", y), on=("sm_80",), launches=1, results=(out,),
          options={"out_dtype": out}, out=(f"{out} 35x12 {'far' if x == 'rows' else 'columns'}",))
      for a, b, out in (("bf16", "bf16", "bf16"), ("i8", "u8", "i32")) for x,
        y in product(("rows", "columns"), repeat=2)),
    *(row(f"{a} 3x18x40", f"{b} 3x40x20", call="gemm", c=f"{c} 3x18x20", options={"alpha": 2, "beta": -3},
          on=("sm_90a",), launches=1)
      for a, b, c in (("bf16", "bf16", "bf16"), ("f16", "f16", "f32"), ("i8", "u8", "i32"))),
    *(row(f"{a} 18x40", f"{b} 40x20", c="f32 - number" if c != "i32" else "i32 - number", on=("sm_90a", "gfx942"),
          options={"beta": 2, "out_dtype": c}) for a, b, c in (("bf16", "bf16", "bf16"), ("f16", "f16", "f32"),
                ("i8", "i8", "i32"))),
    # complex: small matrices in a batch by a kernel of their own, everything else by a real product
    *(row(f"{x} {a}", f"{x} {b}", on=("sm_90a", *more), launches=launches if not more else None, results=(x,))
      for x, a, b, launches, more in (
        ("c64", "17x9", "9x21", 2, ()), ("c128", "5x7x6", "5x6x3", 1, ()), ("c64", "2x70x9", "2x9x66", 2, ()),
        ("c128", "3x4x8x4", "1x4x4x5", 3, ()), ("c64", "4x4", "9x4x4", 1, ()), ("c64", "9", "9x4", 2, ()),
        ("c64", "17x10", "10x21", None, ("gfx942",)), ("c128", "5x7x7", "5x7x3", None, ("gfx942",)),
        ("c64", "3x4x0", "3x0x6", None, ("gfx942",)))),
    *some(2, (row(laid(f"c64 {batch}6x5", lie), laid(f"c64 {batch}7x6", lie), call="gemm",
                  c=laid(f"c64 {batch}5x7", lie), on=("sm_90a",),
                  options={"alpha": alpha, "beta": beta, "trans_a": "c", "trans_b": "t"})
              for lie in ("columns", "sparse", "backwards") for batch in ("", "4x")
              for alpha, beta in ((2, -1), (1 - 2j, 3j), (0, 1j)))),
    *(row("c64 6x9 columns", "c64 7x6 columns", call="gemm", c="c64 9x7 columns", on=("gfx942",),
          options={"alpha": alpha, "beta": beta, "trans_a": "c", "trans_b": "t"})
      for alpha, beta in ((2, -1), (1 - 2j, 3j), (0, 1j))),
    *(row(f"{a} {batch}4x4", f"{b} {batch}4x4", results=(usual(a, b),), on=BOTH if a == "f32" else ("sm_90a",))
      for a, b in (("f32", "c64"), ("c64", "c128"), ("c128", "f64"), ("c64", "f64")) for batch in ("", "3x")),
    # programs of several launches, kept
    *(row(a, b, on=BOTH, **more) for a, b, more in (
        ("f32 9x12", "f32 12x8", {"c": "f32 9x8", "options": {"beta": 0.5, "alpha": 2}}),
        ("f32 9x12", "f32 12x8", {"c": "f32 - number", "options": {"beta": 2.0}}),
        ("i16 9x12", "f32 12x8", {"options": {"alpha": 4.0}}), ("f32 9x12", "f32 12x8", {"out": ("f32 9x8 columns",)}),
        ("f32 9x12 apart", "f32 12x8 apart", {}), ("c64 9x12", "c64 12x8", {"options": {"alpha": 2}}),
        ("f32 2x3x9x12 sparse", "f32 2x1x12x8", {}), ("f32 9x12", "f32 12x8", {"options": {"deterministic": True}}))),
    row("f32 32x64", "f32 64x32", on=("sm_90a",), options={"algorithm": "bf16_bf16_f32_x3"}),
    # by rows, by columns and otherwise, in one launch where nothing is copied
    *(row(laid("f16 13x24", a), laid("f16 24x12", b), out=(laid("f16 13x12", c),), on=("gfx942",), launches=1)
      for a, b, c in product(("rows", "columns"), repeat=3)),
    *some(2, (row("f32 9x5", "f32 5x10", call="gemm", c=laid("f32 9x10", c), options={"alpha": 3, "beta": beta},
                  on=("sm_90a",)) for c in ("rows", "columns", "apart", "reversed", "sparse") for beta in (0, 1, 2.5))),
    *(row(f"f32 {a}", f"f32 {b}", on=BOTH) for a, b in (
        ("4", "4"), ("4", "4x5"), ("3x4", "4"), ("2x3x4", "4x5"), ("3x4", "2x4x5"), ("2x1x3x4", "3x4x5"),
              ("6x3x4", "6x4x5"),
        ("0x4", "4x5"), ("3x0", "0x5"), ("2x0x3", "3x2"))),
    row("f32 2x3x4x5", "f32 5x6", on=("sm_90a",), launches=1),
    row("f32 5x9", "f32 10x5", options=T, on=BOTH),
    *(row("f32 4x5", "f32 5x6", c=c, options={"beta": 2}, on=BOTH) for c in ("f32 6", "f32 4x6", "f32 4x1")),
    *(row(f"{x} 4x5", f"{x} 5x6", out=(f"{out} 4x6",), on=("sm_90a",), results=(x,)) for x,
          out in (("f32", "f64"), ("f64", "f32"))),
    *(row("f16 13x24", "f16 24x12", c=c, options={"alpha": alpha, "beta": beta}, on=("gfx942",)) for c, alpha, beta in (
        ("f16 13x12", 2, -3), ("f16 - number", 1, 2), ("f32 12", 1, 1), ("f16 13x12", 0, 1))),
    row("f16 13x24", "f16 24x12", call="gemm", c="f16 13x12", options={"alpha": 0.5, "beta": 2}, on=("gfx942",)),
    *(row(a, b, on=("gfx942",), options=options) for a, b, options in (
        ("f16 3x1x5x8", "f16 2x8x7", {}), ("f16 8", "f16 8x7", {}), ("f16 13x0", "f16 0x12", {}),
        ("f16 8x5", "f16 7x8", {"trans_a": True, "trans_b": "t"}))),
]
