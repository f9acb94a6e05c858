"""Rows of the table of products: `contract`, with each kind of term and reduction, and `einsum`."""

from __future__ import annotations

from typing import Any

from tests.products.case import CPU, Case, case, some

ARITHMETIC = (("squares", "sum"), ("distance", "max"), ("paths", "min"), ("product", "max"), ("some", "any"),
              ("product", "sum"), ("uneven", "max"))
MORE = (*ARITHMETIC, ("sphere", "min"), ("hollow", "max"), ("never 0", "sum"), ("long", "sum"))
STATES = (("sphere", "min"), ("hollow", "max"), ("uneven", "max"), ("some", "any"), ("never 0", "sum"), ("long", "sum"))
SIMT = "simt 64x64x16 warp=32x32 thread=8x4 stages=3"


def contract(name: str, term: str, reduce: str, a: str, b: str, epilogue: str = "", on: tuple[str, ...] = CPU,
             **more: Any) -> Case:
    return case(f"{term} {reduce}, {name}", a, b, epilogue, call="contract", term=term, reduce=reduce, on=on, **more)


CASES = [
    # k in several blocks, edges of tiles; A, B and C by rows and by columns
    *(contract(x, *how, f"{x} 13x{1100 if how[1] != 'any' else 20}", f"{x} {1100 if how[1] != 'any' else 20}x37",
               results=("bool" if how[1] == "any" else "i32" if x == "i8" else x,))
      for x in ("f32", "i8") for how in ARITHMETIC),
    *some(3, (contract(f"{x} by columns", *how, f"{x} 13x1100 columns", f"{x} 1100x37 columns", options={"threads": 2},
               out=(f"{'i32' if x == 'i8' else x} 13x37 columns",))
      for x in ("f32", "i8") for how in ARITHMETIC if how[1] != "any")),
    # terms of bytes, of every pattern; steps beyond k change nothing
    *some(2, (contract(f"bytes, {m}x{n}x{k}", *how, f"i8 {m}x{k}", f"i8 {k}x{n}", values="patterns")
      for how in (("and", "any"), ("both", "any"), ("but not", "or"), ("or", "and"), ("least", "min"),
                  ("chosen", "max"))
      for m, n, k in ((1, 1, 1), (19, 70, 1028), (9, 33, 61)))),
    *(contract(f"{a} by {b}", "squares", "sum", f"{a} 5x40", f"{b} 40x9", results=(out,))
      for a, b, out in (("f64", "f64", "f64"), ("f16", "f16", "f32"), ("i64", "i64", "i64"), ("u8", "u8", "i32"))),
    contract("signs", "differing bits", "sum", "i32 6x33", "i32 33x10", values="patterns"),
    contract("a batch", "squares", "sum", "f32 3x6x20", "f32 20x7"),
    contract("a vector", "squares", "sum", "f32 20", "f32 20x7"),
    contract("roots of a batch", "squares", "sum", "f32 3x6x20", "f32 20x7", "root"),
    contract("the nearest", "squares", "sum", "f32 6x20", "f32 20x7", "row min"),
    contract("Gaussians", "gaussian", "sum", "f32 9x30", "f32 30x11", values="normal"),
    # many equal terms: the first is found in each block of k, and across blocks
    *(contract(x, "product", "min_argmin", f"{x} 13x1100", f"{x} 1100x37", options={"threads": 2},
               results=("i32" if x == "i8" else x, "i32")) for x in ("f32", "i8")),
    *(contract(f"{x} of a vector", "product", "argmin", f"{x} 1100", f"{x} 1100x37") for x in ("f32", "i8")),
    *(contract(f"{x} into i64", "product", "argmin", f"{x} 13x1100", f"{x} 1100x37", options={"out_dtype": "i64"},
               results=("i64",)) for x in ("f32", "i8")),
    *(contract(f"{x} by columns", "product", "argmax", f"{x} 13x1100 columns", f"{x} 1100x37 columns",
               out=("i64 13x37 columns",)) for x in ("f32", "i8")),
    *(contract("of nan", "product", reduce, "f32 6x40", "f32 40x5", values="whole and nan")
      for reduce in ("argmin", "argmax")),
    contract("of bf16", "eighth", "logsumexp", "bf16 9x60", "bf16 60x11"),
    contract("with an epilogue", "product", "max_argmax", "f32 5x60", "f32 60x19", "value and index"),
    # of sizes whose calls are kept
    contract("small", "squares", "sum", "f32 20x30", "f32 30x5"),
    contract("small", "squares", "argmin", "f32 20x30", "f32 30x5"),
    contract("small", "some", "any", "f32 20x30", "f32 30x5"),
    contract("small, given", "squares", "sum", "f32 20x30", "f32 30x5", out=("f32 20x5",)),
    contract("small batch", "squares", "sum", "f32 3x20x30", "f32 3x30x5"),
    contract("small, of i8", "squares", "sum", "i8 20x30", "i8 30x5"),
    contract("small, with a bias", "squares", "sum", "f32 20x30", "f32 30x5", "bias", bias="f32 5"),
    contract("a number", "squares", "sum", "f32 30", "f32 30"),
    contract("nothing", "product", "sum", "f32 2x0", "f32 0x3"),
    contract("no rows", "paths", "sum", "f32 0x3", "f32 3x4"),
    # on GPUs: steps beyond k, in copies of single elements and of vectors; parts of k, slices, tails, batches
    *some(3, (contract(f"{target} by {plan or 'any plan'}, {a}", term, reduce, a, b, on=(target,),
                       plans=(plan,) * bool(plan))
      for a, b, target, plan in (
          ("f32 65x19", "f32 19x33 columns", "sm_90a", ""),
          ("f32 2x40x20 columns", "f32 2x20x36", "sm_75", ""),
          ("f32 36x36 columns", "f32 36x68", "sm_80", f"{SIMT} vector=4 split_k=2"),
          ("f32 30x36", "f32 36x40 columns", "sm_80", "simt 32x32x32 warp=32x32 thread=8x4 stages=3 vector=4 "
                                                     "as_stored slices=4"),
          ("i32 67x17", "i32 17x33 columns", "sm_86", "simt 64x64x8 warp=32x32 thread=8x4 stages=2 copy=registers "
                                                     "vector=1 tail"),
          ("f64 1x9", "f64 9x7", "sm_90a", ""), ("i64 9x1", "i64 1x2", "sm_80", ""))
      for term, reduce in (STATES if plan else MORE))),
    *(contract(f"on a GPU, patterns of i32, {term}", term, "sum", "i32 9x13", "i32 13x6", on=("sm_80",),
               values="patterns") for term in ("wrapping", "differing bits")),
    *(contract(f"parts of k, {reduce} of {x}", "product", reduce, f"{x} 41x53", f"{x} 53x34", on=("sm_80",),
               plans=(plan,))
      for reduce in ("argmin", "max_argmax")
      for x, plan in (("f32", f"{SIMT} vector=1 split_k=2"),
                      ("i32", "simt 32x32x32 warp=32x32 thread=8x4 stages=3 vector=1 slices=4"))),
    *(contract(f"{x} on a GPU", term, reduce, f"{x} 13x22", f"{x} 22x9", on=("sm_90a",))
      for x in ("f64", "f16", "i8", "i64", "bool")
      for term, reduce in [("some" if x in ("f16", "i64") else "uneven", "any" if x in ("f16", "i64") else "max")]),
    *(contract(name, "uneven", "max", a, b, on=("sm_90a",), **more) for name, a, b, more in (
        ("two axes by none", "f32 3x2x5x18", "f32 18x7", {}), ("apart", "f32 3x5x6 apart", "f32 6x7 apart", {}),
        ("a vector on a GPU", "f32 18", "f32 18x7", {}),
        ("into f16", "f32 5x18", "f32 18x7", {"options": {"out_dtype": "f16"}}),
        ("by columns of C", "f32 5x18", "f32 18x7", {"out": ("f32 5x7 columns",)}),
        ("into f64", "f32 5x18", "f32 18x7", {"out": ("f64 5x7",)}),
        ("into f16 apart", "f32 5x18", "f32 18x7", {"out": ("f16 5x7 apart",)}),
        ("an epilogue on a GPU", "f32 3x2x5x18", "f32 18x7", {"epilogue": "between"}))),
    contract("no steps on a GPU", "uneven", "sum", "f32 3x5x0", "f32 0x7", on=("sm_90a",)),
    contract("f32 on a GPU", "eighth", "logsumexp", "f32 9x30", "f32 30", on=("sm_90a",)),
    contract("no steps on a GPU", "some", "any", "f32 3x5x0", "f32 0x7", on=("sm_90a",)),
    contract("into f32", "some", "any", "f32 5x18", "f32 18x7", out=("f32 5x7",), on=("sm_90a",)),
    *(contract(name, "quotient", reduce, a, b, epilogue, on=("sm_90a",)) for name, reduce, a, b, epilogue in (
        ("a batch on a GPU", "argmin", "f32 2x9x30", "f32 30x7", ""), ("a dot", "argmin", "f32 30", "f32 30", ""),
        ("f64 on a GPU", "argmin", "f64 2x9x30", "f64 30x7", ""), ("i32 by i16", "argmax", "i32 9x30", "i16 30x7", ""),
        ("an index and more", "argmax", "f32 9x30", "f32 30x7", "index"),
        ("of a batch", "min_argmin", "f32 2x9x30", "f32 30x7", ""))),
    *(contract(f"neighbours of {x}", "squares", "sum", f"{x} 9x8", f"{x} 8x7", "nearest", on=("cpu", "sm_90a"))
      for x in ("f64", "i64")),
]
