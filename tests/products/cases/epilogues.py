"""Rows of the table of products: epilogues, with each kind of operand and of result, and reductions."""

from __future__ import annotations

from tests.products.case import GPU, GPUS, case, some
from tilewright.targets import detect

# rows and columns of one tile, one past it, few, none; k of several blocks, and none
SIZES = [(1, 1, 1), (5, 8, 3), (33, 65, 129), (130, 66, 600), (2, 500, 400), (500, 2, 400), (3, 2, 0), (0, 4, 3)]
WIDE = 3 * detect().lanes(4)
PLANS = ("packed 6x16 mc=12 kc=16 nc=32", "packed 6x16 mc=12 kc=512 nc=32 ways=1x2x1",
         f"packed 4x{WIDE} mc=8 kc=32 nc={WIDE}", "packed 6x16 mc=12 kc=16 nc=32 swap", "in_place 6x16",
         f"in_place 4x{WIDE} kc=7 ways=2x1x1")


def square(function: str, m: int, n: int, k: int, name: str = "", **more):
    """A row of f32, with what the function takes beside the sums."""
    texts = {"bias": f"f32 {n}", "col": f"f32 {m}x1", "res": f"f32 {m}x{n}", "s": "f32 -"}
    beside = {x: text for x, text in texts.items() if x in TAKES.get(function, ())}
    return case(name or f"{function}, {m}x{n}x{k}", f"f32 {m}x{k}", f"f32 {k}x{n}", function, **(beside | more))


TAKES = {"activated": ("bias", "res"), "tanh of two": ("col", "res"), "times": ("res",), "reductions": ("s",),
         "two results": ("bias", "res")}

CASES = [
    *(square("activated", *x, values="normal") for x in SIZES),
    *(square("tanh of two", *x, options={"alpha": 0.5}) for x in SIZES),
    *(square("times", *x, options={"alpha": 2, "beta": 3}, c=f"f32 {x[0]}x{x[1]}", res=f"f32 {x[0]}x{x[1]} columns")
      for x in SIZES),
    *(square("swiglu", *x, values="normal", options={"alpha": -1, "beta": 2}, c=f"f32 {x[0]}x{x[1]}")
      for x in SIZES if x[1] % 2 == 0),
    *(square("reductions", *x, values="normal") for x in SIZES if x[0]),
    # repeated: in place, packed, few rows and columns, by one thread and by several
    *some(7, (case(f"residual of {values} {x} {m}x{n}x{k}, bias {bias}, trans_b {trans}, {threads} threads",
          f"{x} {m}x{k}",
                   f"{x} {n}x{k}" if trans else f"{x} {k}x{n}", "residual",
                         bias=f"{x} {bias.replace('m', str(m)).replace('n', str(n))}",
                   res=f"{x} {m}x{n}", options={"trans_b": trans, "threads": threads}, values=values)
              for m, n, k in ((5, 9, 7), (64, 64, 64), (200, 260, 300), (1, 1100, 300), (3, 9000, 64), (1100, 1, 300),
                              (1100, 2, 300), (130, 70, 33))
              for x, values, bias in (("f32", "whole", "n"), ("f64", "normal", "mx1"), ("bf16", "whole", "n"),
                ("f32", "normal", "n"),
                                      ("f32", "whole", "-"))
              for trans in (False, True) for threads in (1, 2))),
    *some(2, (case(f"a bias: f32 {a} by {b}{lie}", f"f32 {a}", f"f32 {b}{lie}", "bias", bias=f"f32 {b.split('x')[-1]}")
              for a, b in (("3x1x300", "3x300x1100"), ("5x2x300", "300x1100"), ("2x1100x300", "300x1"),
                ("20x30", "30x1"))
              for lie in ("", " apart", " columns"))),
    # algorithms
    square("two results", 50, 70, 41, "every plan", plans=PLANS),
    square("two results", 50, 70, 41, "every plan, alpha, beta and c", plans=PLANS, options={"alpha": 3, "beta": -1},
           c="f32 50x1"),
    square("two results", 3, 50, 41, "a plan for few rows", plans=("stream 3x4",)),
    case("a plan for few columns", "f32 50x41", "f32 41x3 columns", "two results", bias="f32 3", res="f32 50x3",
         plans=("dots 2x3",)),
    *(case(f"an operand that is expanded: {lie}", "f32 20x6", "f32 6x8", "times", res=f"f32 20x8 {lie}", on=GPUS)
      for lie in ("same", "one")),
    # leading axes
    case("a batch", "f32 4x17x33", "f32 4x33x24", "activated", bias="f32 24", res="f32 17x24"),
    case("a batch by one matrix", "f32 4x17x33", "f32 33x24", "activated", bias="f32 4x1x24", res="f32 4x17x24"),
    case("two axes by one", "f32 2x3x17x33", "f32 3x33x24", "activated", bias="f32 17x1", res="f32 1x24"),
    case("two axes by none", "f32 2x3x5x24", "f32 24x20", "residual", bias="f32 20", res="f32 3x5x20 apart", on=GPUS),
    case("axes that broadcast", "f32 2x1x17x33", "f32 1x3x33x24", "activated", bias="f32 24", res="f32 3x17x24"),
    case("reductions of a batch", "f32 2x3x17x33", "f32 3x33x24", "row max and columns", bias="f32 24"),
    case("pairs of a batch", "f32 2x3x17x33", "f32 33x24", "swiglu"),
    # formats
    *(case(f"{a} into {out or 'the usual'}, {m}x{n}x{k}", f"{a} {m}x{k}", f"{a} {k}x{n}", "bias relu", bias=f"{a} {n}",
           options={"out_dtype": out} if out else {}, results=(out or usual,))
      for a, out, usual in (("f16", "", "f16"), ("bf16", "", "f32"), ("bf16", "bf16", ""), ("e4m3fn", "f32", ""),
                            ("e5m2", "e4m3fn", ""), ("f32", "f64", ""), ("f32", "e4m3fn", ""), ("f64", "", "f64"),
                            ("f64", "f32", ""), ("f64", "bf16", ""))
      for m, n, k in ((20, 30, 40), (70, 90, 100))),
    *(case(f"{a} dequantized, {m}x{n}x{k}", f"{a} {m}x{k}", f"{a} {k}x{n}", "dequantized", s=f"f32 {n} powers",
           zero=f"i64 {m}x1", results=("f32" if a != "i64" else "f64",))
      for a in ("i8", "u8", "i32", "i64") for m, n, k in ((20, 30, 40), (70, 90, 100), (3, 4, 0))
      if (a, m) != ("i32", 70)),
    *(case(f"{a} in three formats", f"{a} 70x100", f"{a} 100x90", "integers", zero="i64 70x1",
           options={"alpha": 3, "out_dtype": ("i64", "bool")}, results=("i64", "bool"))
      for a in ("i8", "u8", "i32", "i64")),
    *some(3, (case(f"{x} beside sums of {a}, into {out}", f"{a} 5x7", f"{a} 7x6", "beyond", x=f"{x} 6",
           options={"out_dtype": out} if out == "f64" else {})
      for out in ("f64", "the usual") for a in ("f64", "f32", "bf16", "i8", "i64")
      for x in ("f64", "bf16", "e4m3fn", "u8", "u32", "i64", "bool"))),
    # results anywhere
    *(case(f"into {out}", "f32 60x40", "f32 40x52", "activated", bias="f32 52", res="f32 60x52", out=(out,))
      for out in ("f32 60x52", "f32 60x52 columns", "f64 60x52", "f32 60x52 apart", "f32 60x52 reversed",
                  "f32 60x52 far")),
    case("pairs apart", "f32 30x40", "f32 40x26", "swiglu", out=("f32 30x13 apart",)),
    case("pairs by columns", "f32 30x40", "f32 40x26", "swiglu", out=("f32 30x13 columns",)),
    case("a result in bf16", "f32 60x40", "f32 40x52", "absolute", out=("bf16 60x52",), values="normal"),
    case("two results given", "f32 60x40", "f32 40x52", "row max", out=("f32 60x52", "f64 60")),
    case("the second result given", "f32 60x40", "f32 40x52", "row max", out=(None, "f32 60")),
    *(case(f"{function or of_a or of_b} {alpha}: a {a}, b {b}, out {out}", f"f32 4x4 {a}", f"f32 4x5 {b}", function,
           out=(f"f32 4x5 {out}",),
           prologue_a=of_a, prologue_b=of_b, options={"alpha": alpha})
      for a in ("far", "columns", "one") for b in ("far", "columns") for out in ("far", "columns", "apart", "reversed")
      for function, of_a, of_b, alpha in (("double", "", "", -1), ("", "double", "", -3), ("below", "", "double", 1))),
    # indices of the first of equal numbers, in a tile and across tiles
    case("indices of a batch", "f32 2x21x70", "f32 2x70x83", "indices"),
    case("indices of integers", "i8 2x21x70", "i8 2x70x83", "indices"),
    case("indices by columns", "f32 21x70", "f32 70x83", "indices", out=(None, None, None, None, "f32 21x83 columns")),
    case("indices of nan", "f32 2x21x20", "f32 2x20x83", "indices", values="whole and nan"),
    case("an index of nan", "f32 21x20", "f32 20x83", "row argmax", values="whole and nan"),
    case("an index by itself", "f32 21x70", "f32 70x83", "row argmax"),
    # packed operands, algorithms
    case("fastest", "f32 40x80", "f32 80x70", "bias relu", bias="f32 70", options={"algorithm": "fastest"}),
    case("b packed", "f32 40x80", "f32 80x70", "bias relu", bias="f32 70", call="packed"),
    case("b of bf16 packed", "bf16 40x80", "bf16 80x70", "bias relu", bias="f32 70", call="packed"),
]

WGMMA = "wgmma 128x64x64 stages=3 warpgroups=2 vector_c=2 store=tma"


def on_gpu(target: str, format: str, out: str, m: int, n: int, k: int, plan: str = "", function: str = "gelu residual",
           **more):
    """One product with a bias and a residual by one plan, or the planner's."""
    more.setdefault("bias", f"{format} {n}")
    if function == "gelu residual":
        more["res"] = f"{format} {m}x{n}"
    columns = " columns" * (more.pop("layout", "nt" if plan.startswith("wgmma") else "") == "nt")
    options = {"out_dtype": out} | more.pop("options", {})
    return case(f"{function}, {m}x{n}x{k} of {format} into {out}, {plan or 'any plan'}", f"{format} {m}x{k}",
                f"{format} {k}x{n}{columns}", function, values="normal", on=(target,), results=(out,), options=options,
                plans=(plan,) * bool(plan), **more)


CASES += [
    on_gpu("sm_80", "f32", "f32", 67, 70, 33),
    on_gpu("sm_80", "f32", "f32", 65, 67, 40, "simt 64x64x8 warp=32x32 thread=8x4 stages=3 vector=1 split_k=2"),
    on_gpu("sm_80", "f64", "f64", 33, 34, 20),
    on_gpu("sm_80", "bf16", "bf16", 65, 72, 64),
    on_gpu("sm_75", "f16", "f16", 33, 40, 32),
    on_gpu("sm_90a", "bf16", "bf16", 140, 72, 96, WGMMA),
    on_gpu("sm_90a", "bf16", "bf16", 70, 150, 64, "wgmma 64x64x64 stages=3 warpgroups=2 pingpong vector_c=2"),
    on_gpu("sm_90a", "bf16", "f32", 140, 72, 64, "wgmma 64x64x64 stages=2 warpgroups=2 pingpong vector_c=2 store=tma"),
    on_gpu("sm_90a", "bf16", "bf16", 1, 200, 64),
    on_gpu("sm_90a", "f32", "f32", 130, 1, 64),
    on_gpu("gfx942", "bf16", "bf16", 65, 68, 64),
    on_gpu("gfx950", "f16", "f32", 65, 67, 64),
    on_gpu("gfx942", "f32", "f32", 65, 68, 64,
           "mfma 64x64x32 wave=32x32 mfma=32 copy=registers stages=2 vector=4 split_k=2"),
    *(on_gpu(target, format, format, 130, 144, 64, plan, "swiglu with bias", bias=f"{format} 72", layout="nt")
      for target, format, plan in (
          ("sm_80", "bf16", ""), ("sm_80", "f32", ""), ("gfx942", "f16", ""), ("sm_90a", "bf16", ""),
          ("sm_90a", "bf16", "wgmma 128x128x64 stages=3 warpgroups=2 vector_c=2 store=tma"))),
    # of a warpgroup's sums, of which a long expression is emitted for some
    on_gpu("sm_90a", "bf16", "bf16", 130, 136, 64,
           "wgmma 128x128x64 stages=3 warpgroups=2 pingpong vector_c=2 store=tma", "gelu twice"),
    on_gpu("sm_90a", "bf16", "bf16", 130, 136, 64, "wgmma 64x192x64 stages=3 warpgroups=1 vector_c=2 store=tma",
           "bias gelu"),
    on_gpu("sm_90a", "bf16", "bf16", 130, 136, 64,
           "wgmma 128x128x64 stages=3 warpgroups=2 pingpong vector_c=2 store=tma", "bias gelu"),
    *(case(f"three results, alpha, beta and a batch, {plan or 'any plan'}", "bf16 2x66x64", "bf16 2x64x72 columns",
           "several", s="f32 -", rows="f32 66x1", on=(target,), plans=(plan,) * bool(plan), c="bf16 2x66x72",
           options={"alpha": 0.5, "beta": 2.0, "out_dtype": ("bf16", "bf16", "i8")})
      for target, plan in (("sm_80", ""), ("sm_90a", WGMMA), ("gfx942", ""))),
    *(case(f"integers, {name}", "i8 65x64", "i8 64x80 columns", name, bias="i32 80", on=("sm_80", "sm_90a", "gfx942"),
           options={"out_dtype": out}, **beside)
      for name, out, beside in (("bias times s", "f32", {"s": "f32 65x1"}), ("shifted", "i8", {}))),
    # matmul's own ways on GPUs
    case("scaled and positive", "f32 33x40", "f32 40x36", "two scaled", s="f32 -", rows="f32 33x1", on=GPUS,
         options={"alpha": 0.5}),
    case("c apart", "f32 3x5x24", "f32 3x24x20", "relu", c="f32 3x5x20 apart", options={"beta": 2.0}, on=GPUS),
    case("pairs with a bias", "f32 2x3x5x24", "f32 24x20", "swiglu with bias", bias="f32 10", on=GPUS),
    case("pairs of one row", "f32 1x24", "f32 24x20", "swiglu with bias", bias="f32 10", on=GPUS),
    case("nothing to add up", "f32 5x0", "f32 0x20", "bias", bias="f32 20", on=GPUS),
    case("by columns, and narrow", "f32 17x24", "f32 24x20", "biased and not", bias="f32 20", on=GPUS,
         out=("f32 17x20 columns", "f16 17x20"), options={"out_dtype": ("f32", "f16")}),
    case("reductions on GPUs", "f32 2x37x24", "f32 24x20", "reduced with a bias", bias="f32 20", on=GPUS),
    case("exponents", "f32 37x24", "f32 24x20", "exponents", on=GPUS, values="normal"),
    case("indices of f32 on a GPU", "f32 2x5x20", "f32 20x43", "indices and a sum", on=GPU),
    case("indices of i8 on a GPU", "i8 2x5x20", "i8 20x43", "indices and a sum", on=GPU),
    case("indices of nan on a GPU", "f32 5x10", "f32 10x43", "indices and a sum", on=GPU, values="whole and nan"),
    case("an index given", "i8 5x20", "i8 20x43", "row argmax", out=("i64 5",), on=GPU),
]
