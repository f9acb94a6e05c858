"""Rows of the table of products: `grouped_matmul`, along rows and along steps of k."""

from __future__ import annotations

from typing import Any

from tests.products.case import CPU, GPU, Case, case

ENDS = (8, 8, 15, 23, 24)               # five groups, of which one is empty
LARGE = (20, 20, 53, 54)                # and four
HOPPER = ("sm_90a",)


def groups(name: str, a: str, b: str, ends: tuple[int, ...] = ENDS, epilogue: str = "", on: tuple[str, ...] = CPU,
           **more: Any) -> Case:
    return case(name, a, b, epilogue, call="grouped_matmul", ends=ends, on=on, **more)


def beside(rows: int, of: int, n: int) -> dict[str, str]:
    """Operands with an array for each group, rows, and all of it."""
    return {"bias": f"f32 {of}x{n} groups", "s": f"f32 {of}x1 groups", "row": f"f32 {rows}x1",
            "full": f"f32 {rows}x{n}"}


NARROW = 2.0**-8        # of |a| |b|: weights that are rounded to bf16
SIMT = "simt 32x32x16 warp=32x32 thread=8x4 stages=3"
MMA = "mma 32x32x32 warp=16x32 stages=3 vector=8 vector_c=2"

CASES = [
    # rows of no group, behind the last one, are 0
    *(groups(f"rows of {x}", f"{x} 26x20", f"{x} 5x20x37", options={"threads": threads} | how)
      for x, threads, how in (("f32", 1, {}), ("f64", 3, {}), ("bf16", 3, {}), ("i8", 3, {"out_dtype": "i32"}),
                              ("c64", 2, {}))),
    groups("rows of no group, given", "f32 26x20", "f32 5x20x37", out=("f32 26x37",)),
    *(groups(f"steps of {x}", f"{x} 8x26", f"{x} 26x37", options={"threads": threads})
      for x, threads in (("f32", 1), ("bf16", 3))),
    *(groups(f"an epilogue of {x}, alpha {alpha}", f"{x} 24x20", f"{x} 5x38x20", epilogue="of groups",
             options={"trans_b": True, "alpha": alpha, "threads": threads, "out_dtype": ("f32", "f32")},
             **beside(24, 5, 38))
      for x, threads in (("f32", 3), ("i8", 2)) for alpha in (2, 0)),
    groups("pairs", "f32 24x20", "f32 5x20x70", epilogue="swiglu", options={"threads": 2}, values="normal"),
    groups("a narrow result", "f32 24x20", "f32 5x20x70", epilogue="scale", s="f32 5x1 groups powers", values="normal",
           options={"out_dtype": "e4m3fn"}, results=("e4m3fn",)),
    groups("steps with an epilogue", "f32 9x24", "f32 24x37", epilogue="row sums of groups", bias="f32 5x1x37 groups",
           options={"threads": 2}),
    *(groups(f"into {out}", "f32 24x40 reversed", "f32 5x37x40 sparse", options={"trans_b": True}, out=(out,))
      for out in ("f32 24x37", "f32 24x37 columns", "f32 24x37 apart", "f32 24x37 far")),
    groups("no steps", "f64 4x0", "f64 2x0x5", (1, 4)),
    groups("groups without rows", "f64 4x3", "f64 2x3x5", (0, 0)),
    groups("groups without steps", "f64 4x3", "f64 3x5", (0, 0)),
    groups("no columns", "f64 4x3", "f64 2x3x0", (2, 4)),
    *(groups(f"{m}x{n}x{k}, {how}", f"i32 {m}x{k}", f"i32 1x{n}x{k}", (m,), options={"trans_b": True, how: True})
      for m, n, k in ((1, 2, 3), (3, 1, 2), (2, 40, 17)) for how in ("deterministic", "batch_invariant")),
    groups("many rows, kept", "f32 300x70", "f32 4x70x20", (0, 9, 200, 300), options={"threads": 1}),
    groups("many rows of bf16, kept", "bf16 300x70", "bf16 4x70x20", (7, 7, 8, 290), options={"threads": 2}),
    # weights of few bits
    groups("weights of i8", "f32 24x32", "i8 5x32x40 weights"),
    groups("weights of i4", "f32 24x32", "i4 5x40x32 group=16 nibbles", options={"trans_b": True}),
    groups("weights of u4", "bf16 24x32", "u4 5x32x40 group=16 zeros"),
    groups("weights of mxfp8", "f32 24x64", "mxfp8 5x64x40"),
    *(groups(f"{kind} by {x}, trans {trans}, {values}", f"{x} 25x128",
          f"{kind.split()[0]} {sizes}{kind[len(kind.split()[0]):]}",
             (2, 2, 4, 23), options={"trans_b": True} if trans else {}, values=values,
                   within=NARROW * (values == "normal"))
      for kind in ("i8 weights", "i4 group=32 nibbles", "u4 group=32 zeros nibbles", "e4m3fn group=64", "mxfp4",
        "nvfp4",
                   "mxfp6", "mxfp8")
      for trans, sizes in ((False, "4x128x70"), (True, "4x70x128")) for x in ("f32", "bf16")
        for values in ("whole", "normal")
      if (values == "normal") == (x == "f32" and trans)),
    *(groups(f"{kind} with an epilogue", "f32 23x96", f"{kind.split()[0]} 4x70x96{kind[len(kind.split()[0]):]}",
             (2, 2, 4, 23), "all of groups", bias="f32 4x70 groups",
                   options={"trans_b": True, "alpha": 2, "threads": 2})
      for kind in ("i4 group=32 nibbles", "mxfp4", "i8 weights")),
    *(groups(f"a packed stack of {x}{f and ', ' + f}", f"{x} 23x70", f"{x} 4x70x90", (2, 2, 4, 23), f, packed=True,
             options={"threads": 3}) for x in ("f32", "i8", "bf16")
                   for f in ("", "row and column") if x != "i8" or not f),
    *(groups(f"{kind} {size} that lie {layout}", "bf16 23x96",
             f"{kind.split()[0]} 4x{size} {kind.partition(' ')[2]} {layout}", (2, 2, 4, 23), on=GPU,
             options={"trans_b": size == "70x96", "out_dtype": "f32"})
      for kind in ("i8 weights", "i4 group=32 nibbles", "u4 group=32 zeros nibbles", "mxfp4")
      for layout in ("columns", "apart", "far", "turned") for size in ("96x70", "70x96")),
    groups("no rows by weights of i4", "bf16 0x96", "i4 4x96x70 group=32 nibbles", (0, 0, 0, 0), on=GPU),
    groups("a column whose numbers lie far from each other", "bf16 24x20", "bf16 5x20x1 far"),
    *(groups(f"{kind} into f64", "bf16 23x96", f"{kind.split()[0]} 4x96x70 {kind.partition(' ')[2]}", (2, 2, 4, 23),
             options={"out_dtype": "f64"}) for kind in ("i8 weights", "i4 group=32 nibbles", "mxfp4", "mxfp6")),
    groups("packed weights of i4", "f32 23x96", "i4 4x96x70 group=32 nibbles", (2, 2, 4, 23), packed=True),
    groups("packed weights of mxfp4", "f32 23x96", "mxfp4 4x96x70", (2, 2, 4, 23), packed=True),
    # of many sizes, repeated with others
    *(groups(f"{m} rows up to {ends} of {x}, {name}", f"{x} {m}x96", f"{x} 4x96x70", ends, f, values=values,
          options=options, **more)
      for m, ends in ((60, (3, 3, 23, 57)), (60, (60, 60, 60, 60)), (60, (0, 0, 0, 0)))
      for x, name, f, values, options, more in (
        ("f32", "kept", "", "normal", {}, {}), ("bf16", "kept", "", "normal", {}, {}),
              ("i8", "kept", "", "whole", {"out_dtype": "i32"}, {}),
        ("f32", "alpha", "", "normal", {"alpha": 2.5}, {}), ("f32", "deterministic", "", "normal",
              {"deterministic": True}, {}),
        ("f32", "invariant", "", "normal", {"batch_invariant": True}, {}),
              ("f32", "into f64", "", "normal", {"out_dtype": "f64"}, {}),
        ("f32", "an epilogue", "scale and residual", "normal", {}, {"by": "f32 4x1x70 groups", "res": "f32 60x1"}),
        ("f32", "reductions", "all of groups", "normal", {"threads": 2}, {"bias": "f32 4x70 groups"}))),
    groups("steps of k, kept", "f32 9x60", "f32 60x70", (3, 3, 23, 57), values="normal"),
    # on GPUs
    *(groups(f"on GPUs, {name}", a, b, LARGE, f, ("sm_90a", "gfx942"), options=options, launches=launches, **more)
      for name, a, b, f, options, launches, more in (
        ("bf16", "bf16 56x32", "bf16 4x32x16", "", {}, 1, {}),
              ("alpha", "f32 56x32", "f32 4x32x16", "", {"alpha": 2}, 1, {}),
        ("a bias", "f32 56x32", "f32 4x32x16", "bias", {}, 1, {"bias": "f32 4x16 groups"}),
        ("steps", "f32 9x54", "f32 54x8", "", {}, None, {}))),
    *(groups(f"{kind} on a GPU, trans {trans}", "bf16 56x32", f"{kind.split()[0]} {sizes}{kind[len(kind.split()[0]):]}",
             LARGE, on=HOPPER, options={"trans_b": trans, "out_dtype": "f32"})
      for kind in ("i8 weights", "i4 group=16 nibbles", "u4 group=16 zeros nibbles", "nvfp4", "mxfp4")
      for trans, sizes in ((True, "4x24x32"), (False, "4x32x24"))),
    *(groups(f"{kind} by warpgroups", "bf16 150x128", f"{kind.split()[0]} 3x136x128{kind[len(kind.split()[0]):]}",
             (40, 40, 150), on=HOPPER, options={"trans_b": True}, launches=1, kernel="wgmma")
      for kind in ("i8 weights", "i4 group=64 nibbles", "u4 group=32 zeros nibbles", "mxfp4")),
    groups("one byte of two elements", "f32 3x4", "i4 2x2x4 weights nibbles", (1, 3), on=HOPPER,
          options={"trans_b": True}),
    *(groups(plan, f"{x} 56x48", f"{x} 4x40x48", LARGE, "of groups", HOPPER, plans=(plan,),
             options={"trans_b": True, "alpha": 2, "out_dtype": ("f32", "f32")}, **beside(56, 4, 40))
      for x, plan in (("f32", SIMT), ("bf16", MMA))),
    groups("steps on a GPU", "f32 20x56", "f32 56x24", LARGE, on=HOPPER),
    *(groups(f"steps, {m}x{n}", f"bf16 {m}x56", f"bf16 56x{n}", LARGE, on=HOPPER, options={"out_dtype": "f32"})
      for m, n in ((1, 24), (20, 1), (1, 1))),
    groups("of f16", "f16 54x32", "f16 4x32x24", LARGE, on=HOPPER),
    groups("two results on a GPU", "f32 56x16", "f32 4x16x24", LARGE, "above and below", HOPPER,
           out=("f32 56x24", "f32 56x24")),
    groups("reductions on a GPU", "f32 56x32", "f32 4x32x64", LARGE, "all of groups", HOPPER, bias="f32 4x64 groups"),
    groups("reductions of steps", "f32 20x53", "f32 53x24", (20, 33, 53), "row and column", HOPPER),
    *(groups(f"bf16 on {chip}", "bf16 56x48", "bf16 5x40x48", (*LARGE, 54), "bias", (chip,), bias="f32 5x40 groups",
             options={"trans_b": True, "out_dtype": "f32", "alpha": 2}) for chip in ("gfx942", "gfx950")),
    *(groups(f"steps on {chip}", "f32 24x54 columns", "f32 54x40", (*LARGE, 54), on=(chip,))
      for chip in ("gfx942", "gfx950")),
]
