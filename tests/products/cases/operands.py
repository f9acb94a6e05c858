"""Rows of the table of products: operands with scales, of few bits, block-scaled, and with prologues."""

from __future__ import annotations

from typing import Any

from tests.products.case import Case, row, some
from tests.products.cases.plain import laid
from tilewright.formats import BLOCK_FORMATS

BLOCKS = list(BLOCK_FORMATS)
GPUS = ("sm_90a", "sm_80", "gfx942", "gfx950")
HOPPER = ("sm_90a",)
BOTH = ("sm_90a", "gfx942")
NARROW = 2.0**-8        # of |a| |b|: weights that are rounded to bf16
T = {"trans_b": True}


def scaled(a: str, b: str, scale_a: str = "", scale_b: str = "", epilogue: str = "", **more: Any) -> Case:
    """Scales that round nothing, of f32 if they do not say."""
    scales = {name: f"{x if x[0].isalpha() else 'f32 ' + x} powers"
              for name, x in (("scale_a", scale_a), ("scale_b", scale_b)) if x}
    more = dict(more)
    if "out" not in more and not epilogue:
        more.setdefault("results", (more.get("options", {}).get("out_dtype", "f32"),))
    return row(a, b, epilogue, **scales, **more)


SCALES = [
    # of rows and columns, for every way in which operands are stored
    *(scaled(f"{x} 9x50", f"{x} 50x7", "9x1", "1x7") for x in ("i8", "u8", "i4", "i16", "e4m3fn", "f16", "f32")),
    *(scaled(f"{x} 50x9", f"{x} 7x50", "1x9", "7x1", options={"trans_a": True, "trans_b": "t"})
      for x in ("i8", "e4m3fn", "f32")),
    *(scaled(f"{x} 9x50", f"{x} 50x7", "f64 9x1", "f16 1x7") for x in ("i8", "f16")),
    *(scaled("i8 9x50", "i8 50x7", *scales, call="packed") for scales in (("9x1", "1x7"), ("9x1", ""), ("", "1x1"))),
    *(scaled("i8 6x33", "i8 33x5", "6x1", options=options, **more) for options, more in (
        ({"alpha": 2, "beta": -1}, {"c": "f32 6x5"}), ({"alpha": 0, "beta": 2}, {"c": "f32 5"}),
        ({"alpha": 1, "beta": 1}, {"c": "f32 6x5", "call": "gemm"}), ({"out_dtype": "f64"}, {}),
              ({"out_dtype": "bf16"}, {}),
        ({"out_dtype": "f16"}, {}), ({}, {"out": ("f32 6x5 columns",)}))),
    *(scaled(a, b, x, y) for a, b, x, y in (
        ("i8 3x1x5x40", "i8 2x40x6", "3x1x5x1", "1x1x6"), ("i8 5x40", "i8 40", "5x1", "1"),
              ("i8 40", "i8 2x40x6", "", "1x1x6"),
        ("i8 5x0", "i8 0x4", "5x1", ""), ("i8 40", "i8 40", "f32 - number", ""))),
    *(scaled(a, b, "f32 - number", scale, options={"alpha": 3}) for a, b, scale in (
        ("i8 4x20", "i8 20x4", "-"), ("f32 3x4", "f32 4x3", "f32 - number"), ("e4m3fn 3x4", "e4m3fn 4x3", ""))),
    *(scaled(f"{x} 2x21x90", f"{x} 90x34", "2x21x1", "1x34", f, values="normal" if x != "i8" else "whole",
             options=options, **more)
      for x in ("i8", "e4m3fn") for f, options, more in (
        ("bias gelu", {"alpha": 2}, {"bias": "f32 34"}), ("swiglu", {}, {}), ("same", {}, {}),
        ("scale", {"out_dtype": "e4m3fn"}, {"s": "f32 - number"}), ("row max", {}, {}))),
    # on GPUs
    *(scaled(f"{x} 13x48", f"{x} 48x16", *scales, on=GPUS, **more) for x in ("e4m3fn", "i8", "f16") for scales,
          more in (
        (("13x1", "1x16"), {"launches": None}), (("13x1", ""), {"options": {"out_dtype": "bf16", "alpha": 0.5}}),
        (("", "1x1"), {"options": {"beta": 3.0}, "c": "f32 13x16"}), (("f32 - number", "1x16"), {}))),
    *(scaled(a, b, *scales, on=HOPPER, **more) for a, b, scales, more in (
        ("e4m3fn 13x48", "e5m2 48x16", ("-", "1x1"), {}), ("i8 13x48", "i8 48x16", ("f32 - number", "f32 - number"),
              {}),
        ("e4m3fn 48x13", "e4m3fn 16x48", ("1x13", "16x1"), {"options": {"trans_a": True, "trans_b": True}}),
        ("e4m3fn 13x48 columns", "e4m3fn 48x16 columns", ("13x1 apart", "1x16 reversed"), {}),
        ("e4m3fn 13x48 columns", "e4m3fn 48x16 columns", ("f16 13x1", "f64 1x16"), {}),
        ("e4m3fn 13x48 columns", "e4m3fn 48x16 columns", ("13x1", "1x16"), {"out": ("f32 13x16 columns",)}),
        ("e4m3fn 13x48 columns", "e4m3fn 48x16 columns", ("13x1", "1x16"), {"out": ("f32 13x16 apart",)}),
        ("e4m3fn 48", "e4m3fn 48x16 columns", ("1", "1x16"), {}),
              ("e4m3fn 13x48 columns", "e4m3fn 48", ("13x1", "1"), {}),
        ("e4m3fn 13x0", "e4m3fn 0x16", ("13x1", ""), {}),
        ("f64 9x20", "f64 20x7", ("f64 9x1", "1x7"), {"results": ("f64",)}),
        ("e4m3fn 9x32", "e4m3fn 8x32", ("9x1", "8x1"), {"options": T}))),
    *(scaled(f"f16 {a}", f"f16 {b}", x, y, on=GPUS, launches=launches) for a, b, x, y, launches in (
        ("3x8x32", "3x32x16", "3x8x1", "3x1x16", 1), ("3x8x32", "3x32x16", "1x8x1", "3x1x1", 1),
        ("3x8x32", "32x16", "3x8x1", "1x16", 1), ("2x3x8x32", "3x32x16", "2x3x1x1", "3x1x16", 2))),
    *(scaled(f"{x} 13x48", f"{x} 48x16", "13x1", "1x16", "reduced with a bias", bias="f32 16", on=HOPPER,
             options={"alpha": 2, "out_dtype": "bf16"}) for x in ("i8", "e4m3fn")),
    scaled("i8 9x32", "i8 32x8", "9x1", "", "bias", bias="f32 8", on=GPUS),
    # of blocks of 128 steps of k, and of columns
    *(scaled(f"e4m3fn {m}x{k}{' columns' * (y == '')}", f"e4m3fn {k}x{n}{y}", of_a, of_b, on=("sm_90a", "sm_80"),
             options={"alpha": 2}, **({"out": (f"f32 {m}x{n}{out}",)} if out else {}))
      for m, n, k, of_a, of_b in ((13, 300, 400, "13x4", "4x3"), (13, 40, 400, "13x4", "4x40"),
        (70, 16, 272, "70x3", "1x16"),
                                  (13, 16, 272, "1x1", "3x1"), (13, 300, 64, "13x1", "1x3"))
      for y, out in ((" columns", ""), ("", " columns"))),
    *(scaled("i8 2x20x272", "i8 2x272x140 columns", "2x20x3", "2x3x2", on=HOPPER, options={"out_dtype": "bf16"},
          plans=plans)
      for plans in ((), ("wgmma 128x128x128 stages=3 warpgroups=2 promote=128 store=lanes",))),
]


def weights(x: str, m: int, k: int, n: int, b: str, trans: bool, within: float = 0.0, **more: Any) -> Case:
    """Few or many rows of x by weights of few bits; "normal" where an error is allowed."""
    more["options"] = more.get("options", {}) | (T if trans else {})
    words = b.partition(" ")[2]
    more.setdefault("values", "normal" if within else "whole")
    return row(f"{x} {m}x{k}", f"{b.split()[0]} {f'{n}x{k}' if trans else f'{k}x{n}'}{words and ' ' + words}",
               within=within, **more)


KINDS = ("i8 group=64", "i8 weights", "u4 group=128 zeros", "i4 group=32 nibbles", "e2m1 group=64 nibbles", "mxfp4",
      "nvfp4",
         "i8 group=128", "mxfp6", "mxfp8", "e4m3fn group=128", "i4 group=32", "u4 group=32 nibbles zeros")
WEIGHTS = [
    *some(5, (weights(x, m, 259 if "nibbles" not in b else 260, 70, b, trans)
              for b in KINDS for x, m in (("f32", 1), ("bf16", 1), ("bf16", 2), ("f32", 9), ("bf16", 5), ("bf16", 16),
                                          ("f32", 33), ("f16", 3)) for trans in (False, True))),
    *some(3, (weights(x, m, 260, 34, b, trans, NARROW) for b in KINDS for x, m in (("f32", 3), ("bf16", 9), ("f32", 33))
              for trans in (False, True))),
    *(weights(x, m, k, 40, b, True) for b, k in (
        ("i8 group=20", 31), ("u4 group=24 zeros", 31), ("i8 group=24", 290), ("i4 group=17", 33))
      for x, m in (("f32", 3), ("f32", 9), ("bf16", 9))),
    *(weights("f32", 2, k, n, f"{x} {how} nibbles", trans) for x in ("i4", "e2m1") for how in ("weights",)
      for n, k, trans in ((3, 2, True), (3, 1, True), (2, 3, False), (34, 2, True))),
    *(weights(x, 3, 64, 32, "i8 weights", False, options={"alpha": alpha}) for x in ("f32",) for alpha in (2, 0.5)),
    *some(2, (weights(x, m, 260, 70, b, trans, 2.0**-22 * (b == "nvfp4"), values="whole", epilogue=f,
          res=f"f32 {m}x70", bias="f32 70") for b in KINDS[1:8]
              for x, m in (("bf16", 1), ("f32", 9), ("bf16", 16)) for trans in (False, True) for f in ("residual",))),
    *(weights(x, m, 1030, 1043, "bf16", trans, out=(f"{out} {m}x1043",) if out else ())
      for x in ("bf16",) for m in (1, 5, 8, 33) for trans in (False, True)
        for out in ("", "f32", "bf16") if (m + trans) % 2),
    *(row(a, f"{b} {layout}", options=T | {"out_dtype": "f32"}, on=("cpu", "sm_90a"))
      for a, b in (("bf16 3x5x96", "i4 3x70x96 group=32 nibbles"), ("bf16 5x96", "u4 70x96 group=32 zeros nibbles"),
                   ("bf16 3x5x96", "mxfp4 3x70x96"))
      for layout in ("columns", "apart", "far")),
    *(row(a, "mxfp4 63x64", "biased and not", bias="f32 64") for a in ("bf16 5x63 one", "bf16 3x5x63 one")),
    *(row(a, b, options=T) for a, b in (("bf16 2x3x128", "i4 34x128 group=32 nibbles"),
          ("f32 5x31", "i8 40x31 group=20"))),
    *(weights("f32", m, 260, 200, b, trans, call="packed") for b in (
        "u4 group=64 zeros nibbles", "nvfp4", "i4 group=32 nibbles", "mxfp4", "i8 weights") for m in (1, 40)
      for trans in (False, True)),
    *(weights(x, m, 260, 70, b, trans, call=call) for b, trans in (
        ("u4 group=32 nibbles minima", True), ("i8 group=16 minima", False), ("u8 weights minima", True))
      for x, m, call in (("f32", 1, "matmul"), ("bf16", 3, "packed"), ("f32", 33, "matmul"))),
    # by kernels of GPUs that decode as they read, by passes, with copies in flight
    *(weights(x, m, k, n, b, trans, NARROW, on=HOPPER, launches=1, kernel=kernel) for x, m, k, n, b, trans, kernel in (
        ("bf16", 9, 288, 24, "i4 group=32 nibbles zeros", True, ""),
              ("f32", 2, 64, 32, "u4 group=32 nibbles zeros", False, ""),
        ("bf16", 20, 64, 32, "i4 group=32 nibbles zeros", False, ""),
              ("bf16", 3, 70, 10, "e2m1 group=32 nibbles", True, ""),
        ("f32", 1, 96, 8, "e2m1 group=32 nibbles", True, ""),
              ("bf16", 3, 96, 24, "u4 group=16 nibbles zeros", True, "gemv"),
        ("bf16", 8, 96, 24, "i4 group=16 nibbles zeros", True, "gemv"),
              ("bf16", 9, 96, 24, "i4 group=16 nibbles zeros", True, ""),
        ("bf16", 3, 96, 24, "u4 group=32 nibbles minima", True, ""), ("f32", 9, 96, 24, "u8 group=16 minima", True, ""),
        ("f16", 1, 96, 24, "u4 group=16 nibbles zeros", True, "gemv"), ("bf16", 1, 96, 24, "i8 weights", True, ""),
        ("f32", 2, 96, 24, "u8 weights zeros", False, ""), ("f16", 16, 96, 24, "i8 weights", True, ""),
        ("bf16", 20, 96, 24, "i8 weights", True, ""), ("bf16", 9, 96, 24, "mxfp4", True, ""),
        ("f32", 3, 96, 24, "nvfp4", True, ""), ("bf16", 1, 96, 24, "mxfp8", True, ""),
              ("f32", 2, 64, 16, "mxfp4", True, ""))),
    *(weights("f32", 3, k, n, "i4 weights nibbles", trans, on=HOPPER, launches=None)
      for k, n, trans in ((1, 5, True), (2, 5, True), (3, 1, False), (4, 2, False))),
    *(weights("bf16", m, k, n, b, True, NARROW, on=HOPPER, plans=(plan,), kernel="async") for m, k, n, b, plan in (
        (3, 1152, 40, "i4 group=128 nibbles", "gemv 8x16x4 stages=1 vector=32"),
                 # a piece beside spans, CTAs that overlap
        (9, 1056, 32, "i4 group=32 nibbles", "gemv 16x32x2 stages=2 vector=32"),    # several groups in a piece
        (16, 2048, 48, "u4 group=128 nibbles zeros", "gemv 16x48x3 stages=1 vector=32"),     # one warp has more spans
        (1, 1040, 16, "i8 group=16", "gemv 8x16x4 stages=3 vector=16"),
        (12, 1024, 33, "i8 group=128", "gemv 16x32x2 stages=2 vector=16 split_k=3"),
        (5, 1088, 48, "mxfp4", "gemv 8x48x2 stages=1 vector=32"),
              (16, 544, 16, "nvfp4", "gemv 16x16x2 stages=2 vector=32"))),
    # decoded on the way to registers of warpgroups
    *(weights("bf16", m, k, n, b, True, NARROW, on=HOPPER, plans=(f"wgmma {plan} swap vector_c=1",), kernel="_of_b_")
      for m, k, n, b, plan in (
          (24, 128, 128, "i8 group=64", "24x64x64 stages=3 warpgroups=1"),
          (40, 192, 136, "i4 group=32 nibbles", "40x128x64 stages=3 warpgroups=2"),
          (40, 256, 136, "u4 group=128 zeros nibbles", "40x64x128 stages=2 warpgroups=1"),
          (40, 256, 136, "u4 group=32 minima nibbles", "40x64x128 stages=2 warpgroups=1"),
          (33, 128, 72, "mxfp4", "40x64x64 stages=3 warpgroups=1"),
          (33, 128, 72, "nvfp4", "40x64x64 stages=3 warpgroups=1"),
          (16, 256, 72, "mxfp8", "16x64x128 stages=2 warpgroups=1"),
          (64, 128, 264, "i8 weights", "32x64x64 stages=3 warpgroups=2 pingpong"),

          (24, 256, 64, "i8 group=64", "24x64x64 stages=3 warpgroups=1 tail"),
          (40, 256, 130, "i4 weights nibbles", "40x64x128 stages=2 warpgroups=1"),
          (16, 512, 72, "u4 weights zeros nibbles", "16x64x128 stages=2 warpgroups=1 cluster_k=2"),
          (40, 1280, 130, "i4 group=128 nibbles", "40x64x128 stages=3 warpgroups=1 promote=128"),
          (24, 512, 130, "i8 group=128", "24x128x64 stages=3 warpgroups=2 promote=64"),
          (24, 384, 72, "u4 group=128 zeros nibbles", "24x64x128 stages=2 warpgroups=1 promote=128 tail"),
          (8, 128, 520, "mxfp4", "8x256x64 stages=3 warpgroups=2"))),
    *(row(f"i4 5x{k} weights nibbles", f"f32 {k}x3", on=HOPPER) for k in (1, 2)),
    weights("bf16", 5, 96, 16, "i4 group=32 nibbles", True, on=HOPPER, kernel="prepare",
            plans=("mma 16x16x32 warp=16x16 stages=2 vector=8 vector_c=2",)),
    weights("bf16", 5, 75, 16, "e2m1 group=32 nibbles", True, on=HOPPER, kernel="prepare"),
    *(weights("bf16", 3, 96, 24, x, True, NARROW, on=HOPPER, launches=1, epilogue="bias", bias="f32 24",
              options={"out_dtype": "f32"}) for x in ("mxfp4", "nvfp4")),
]

BLOCK_SCALED = [
    *some(2, (row(f"{a} {m}x{k}", f"{b} {n}x{k}" if t else f"{b} {k}x{n}", options=T if t else {},
                  results=("f32",), within=2.0**-22 * ("nvfp4" in (a, b))) for a in BLOCKS for b in BLOCKS for m, n,
                        k in ((5, 3, 40), (70, 65, 96))
              for t in (False, True))),
    *(row(f"{x} 90x333", f"{x} 333x80", values="normal", within=2.0**-22) for x in BLOCKS),
    *(row(a, b, options=options, **more) for a, b, options, more in (
        ("mxfp6 3x1x17x70", "mxfp4 2x70x9", {}, {}), ("mxfp6 3x1x17x70", "mxfp8 70", {}, {}),
              ("mxfp8 70", "mxfp4 2x70x9", {}, {}),
        ("mxfp8 70", "mxfp8 70", {}, {}), ("mxfp4 70x17", "mxfp4 9x70", {"trans_a": "t", "trans_b": "c"}, {}),
        ("mxfp8_e5m2 3x128x96", "mxfp6_e3m2 3x96x64", {}, {}), ("mxfp4 65x96", "mxfp8 96x66", {"out_dtype": "f64"}, {}),
        ("mxfp4 65x96", "mxfp8 96x66", {"out_dtype": "bf16"}, {}),
        ("mxfp4 65x96", "mxfp8 96x66", {"alpha": 2, "beta": 3}, {"c": "f32 65x66", "out": ("f32 65x66",)}),
        ("mxfp4 65x96", "mxfp8 96x66", {"alpha": -1, "beta": 2}, {"c": "f32 65x66", "call": "gemm"}),
        ("mxfp4 65x96", "mxfp8 96x66", {"threads": 1}, {}),
        ("mxfp4 65x96", "mxfp8 96x66", {"algorithm": "bf16_bf16_f32_x6"}, {}), ("mxfp4 3x0", "mxfp4 0x2", {}, {}),
        ("mxfp8 4x64", "mxfp4 64x4", {}, {"epilogue": "absolute"}))),
    *(row("mxfp4 65x96", f"{x} 96x66") for x in ("f32", "f64", "f16", "bf16", "i8", "i32")),
    *(row(f"{a} 37x70", f"{x} 70x23", call="packed") for x in BLOCKS for a in ("f32", "bf16")),
    *(row("f32 37x70", f"{x} 23x70", call="packed", options=T) for x in BLOCKS),
    # on GPUs: decoded before, or in the kernel
    *(row(f"{a} 13x70", f"{b} 70x16", on=HOPPER, options={"alpha": 2}, values="normal", within=2.0**-22)
      for a, b in zip(BLOCKS, BLOCKS[1:] + BLOCKS[:1])),
    *(row(a, b, on=HOPPER, options=options, **more) for a, b, options, more in (
        ("mxfp6 3x13x96", "mxfp4 3x96x16", {}, {"launches": 3}), ("mxfp6 3x13x96", "mxfp4 96x16", {}, {}),
        ("mxfp4 96x16", "mxfp6 13x96", {"trans_a": True, "trans_b": True}, {}), ("mxfp6 96", "mxfp4 96x16", {}, {}),
        ("mxfp6 13x96", "mxfp4 96", {}, {}), ("mxfp6 13x0", "mxfp6 0x16", {}, {}),
        ("mxfp4 16x96", "mxfp6 96x13", {"alpha": 2, "beta": 3}, {"call": "gemm", "c": "f32 16x13"}),
        ("bf16 13x64", "mxfp6 64x16", {}, {}), ("e4m3fn 13x64", "mxfp4 64x16", {}, {}),
              ("f32 13x64", "mxfp6 64x16", {}, {}),
        ("bf16 13x64", "mxfp8 64x16", {}, {}), ("mxfp8 2x13x64", "f32 64x5", {}, {}),
              ("f32 40x64", "mxfp8 8x64", T, {}),
        ("mxfp8 9x64", "mxfp8 8x64", T, {}))),
    *(row(f"{a} 2x13x70", f"{b} 70x16", on=(chip,), options={"alpha": 2}, values="normal", within=2.0**-22) for chip,
          a, b in (
        ("gfx950", "mxfp8_e5m2", "mxfp4"), ("gfx950", "mxfp6", "nvfp4"), ("gfx942", "mxfp4", "mxfp6"),
              ("gfx942", "mxfp8", "mxfp4"))),
    row("f16 13x70", "mxfp4 70x16", on=("gfx950",)),
]

OWN = 2.0**-17          # of functions with an error of their own, in each element that is multiplied


def prepared(a: str, b: str, prologue_a: str = "", prologue_b: str = "", epilogue: str = "", **more: Any) -> Case:
    if "activated" in prologue_a:
        more = {"values": "normal", "within": OWN} | more
    functions = {f"prologue_{x}": name for x, name in (("a", prologue_a), ("b", prologue_b)) if name}
    return row(a, b, epilogue, **functions, **more)


SIZES = ((1, 1, 1), (1, 48, 40), (33, 129, 65), (130, 600, 66), (3, 0, 2), (0, 3, 4))      # m, k, n
LIES = (("rows", "rows"), ("columns", "columns"), ("rows", "columns"), ("sparse", "sparse"))
PROLOGUES = [
    *(prepared(f"f32 {m}x{k}", f"i8 {k}x{n}", "activated", "dequantised", row=f"f32 {k}", col=f"f32 {m}x1",
          s=f"f32 {n}",
               z="f32 - number") for m, k, n in SIZES),
    *(prepared(f"f32 {m}x{k}", f"i8 {k}x{n}", "scaled again", "dequantised", g=f"f32 {m}x{blocks} powers",
               s=f"f32 {blocks}x{n} powers", z=f"f32 {k}x1") for (m, k, n),
                     blocks in zip(SIZES, (1, 3, 3, 3, 1, 3)) if k),
    *some(5, (prepared(laid(f"{x} 70x96", lie_a), laid("i8 96x65", lie_b), "scaled again", "dequantised",
                       s=laid("f32 4x65 powers", other), z=laid("f16 96x65", other),
                             g=laid("f32 70x96 powers", lie_a), **more)
              for x in ("f32", "bf16") for lie_a, lie_b in LIES for other in ("rows", "columns", "sparse")
              for more in ({}, {"out": ("f32 70x65 columns",), "options": {"alpha": 2}}))),
    *(prepared("f32 70x96", laid("i8 96x65", lie), "activated by all", "dequantised", row="f32 96 reversed",
               col="f32 70x1 apart", full=laid("f32 70x96", lie), s="f32 4x65", z="f32 96x65")
                     for lie in ("rows", "columns", "sparse")),
    *(prepared(f"{a} 40x66", f"{b} 66x70", "positive", "scaled", s="f32 70 powers", t="f32 40x1 powers")
      for a, b in (("bf16", "i4"), ("f16", "u8"), ("e4m3fn", "e4m3fn"), ("f64", "i16"), ("u32", "i64"))),
    *(prepared(f"{x} {few}x176", laid("i8 176x70", lie), "", "dequantised", s="f32 22x70 powers", z="f32 - number")
      for few in (1, 3) for x in ("f32", "bf16") for lie in ("rows", "columns")),
    *(prepared("i8 70x176", laid(f"f32 176x{few}", "columns"), "scaled", s="f32 70x1 powers") for few in (1, 3)),
    prepared("bf16 2x3x176", "i8 2x176x70", "", "scaled", "row max", s="f32 2x1x70 powers",
          options={"out_dtype": "bf16"}),
    *(prepared(f"{x} 5x70{lie}", f"{y} 70x33{lie}", "double", "half", options={} if out is None else {"out_dtype": out})
      for lie in ("", " columns") for out, x, y in (("f64", "f32", "f32"), ("f64", "f32", "i8"), (None, "i32", "i32"))),
    *(prepared("f16 50x96", "i8 96x70", *functions, s="f32 12x70 powers", plans=(plan,), **more)
      for plan in ("packed 6x16 mc=12 kc=16 nc=32 ways=1x2x1", "packed 6x16 mc=6 kc=32 nc=16 ways=1x3x1 swap")
      for functions, more in ((("relu", "scaled", "reduced with a bias"),
        {"bias": "f32 70", "options": {"threads": 3}}),
                              (("", "scaled"), {"options": {"alpha": 0.5, "beta": 3}, "c": "f32 50x70"}))),
    *(prepared(f"f32 {a}9x24", f"i8 {b}24x17", "activated", "dequantised", row=f"f32 {x}1x24",
               col="f32 9x1", s=f"f32 {y}3x17", z="f32 - number")
      for a, b in (("4x", ""), ("2x1x", "1x3x")) for x, y in (("", ""), (a, b))),
    prepared("f32 20x30", "f32 30x40", "size", options={"alpha": 2, "beta": -1}, c="f32 20x40", call="gemm"),
    *(prepared("f32 9x12", "f32 12x8", *functions, **more) for functions, more in (
        (("double",), {}), (("", "double", "bias"), {"bias": "f32 8"}))),
    # on GPUs, where a pass writes what is multiplied, or a kernel for few rows reads it
    *(prepared("bf16 17x48", f"i8 48x40{lie}", "", "dequantised", s=s, z="i8 40", on=GPUS[:3])
      for lie, scales in (("", ("f32 3x40 powers", "f32 48x1 powers")),
        (" columns", ("f32 3x40 powers", "f32 12x40 powers columns")))
      for s in scales),
    prepared("bf16 17x48", "i8 48x40 sparse", "", "dequantised", s="f32 - number", z="i8 40 apart", on=GPUS[:3]),
    *(prepared(f"f32 {a}", f"f32 {b}", "plus", "scaled", f, s=s, bias=bias, on=GPUS[:3], **more)
      for a, b, f, s, bias, more in (
        ("2x9x32", "2x32x24", "bias relu", "f32 4x24 powers", "f32 24", {}),
        ("2x9x32", "32x24", "bias", "f32 32x1 powers", "f32 - number",
              {"options": {"alpha": 0.5, "beta": 2.0}, "c": "f32 2x9x24"}),
        ("9x0", "0x24", "bias", "f32 - number", "f32 - number", {}))),
    prepared("f32 9x24", "f32 24x32", "half", "double", on=GPUS[:3]),
    prepared("bf16 9x24", "bf16 24x32", "", "double", on=GPUS[:3]),
    prepared("f32 2x9x12", "f32 2x12x8", "double", on=BOTH),
]

CASES = SCALES + WEIGHTS + BLOCK_SCALED + PROLOGUES
