"""How many Python functions of the package a first call enters, and a repeated one: `python -m tests.snapshot calls`.

Nothing is compiled and no kernel runs (recorder.py). Each walk has a process of its own, in which all modules are
imported. A repeated call is the third. The builtin, which makes many of these calls without Python, is left out.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import tilewright as tw
from tests.snapshot import recorder
from tests.snapshot.arrays import Arrays
from tests.snapshot.problems import offsets
from tilewright.api.products import matmul
from tilewright.runtime.gpu import engine

FILE = Path(__file__).parent / "calls.json"
PACKAGE = str(Path(tw.__file__).parent) + "/"
DOUBLES = str(FILE.parents[1] / "doubles") + "/"
INLINED = "<listcomp>", "<dictcomp>", "<setcomp>"       # which are no functions from Python 3.12 on
SLACK = {"first": 1.02, "again": 1.0}                   # by which a count may exceed the committed one
CPU, GPU = "zen4", "sm_90a"
QUICK = "GPU: epilogue and bias", "GPU: fp8 layer", "GPU: grouped int4"     # walks on GPUs that every test run counts

Walk = Callable[[Arrays], Callable[[], Any]]            # operands → the call


def bias(acc: Any, bias: Any) -> Any:
    return tw.relu(acc + bias)


def scaled(acc: Any, scale_a: Any, scale_b: Any, bias: Any) -> Any:
    return acc * scale_a * scale_b + bias


def column(acc: Any, scales: Any, bias: Any) -> Any:
    return acc * scales + bias


def number(b: Any) -> Any:
    return b * 1.0


def distance(x: Any, y: Any) -> Any:
    return (x - y)**2


def walk(*texts: str, function: Any = matmul, **options: Any) -> Walk:
    def made(arrays: Arrays) -> Callable[[], Any]:
        operands, given = [*map(arrays, texts)], arrays.resolved(options)
        return lambda: function(*operands, **given)
    return made


def groups(a: str, b: str, **options: Any) -> Walk:
    def made(arrays: Arrays) -> Callable[[], Any]:
        ends = arrays.placed(offsets([20, 20, 53, 60]))
        return walk(a, b, function=lambda a, b, **how: tw.grouped_matmul(a, b, ends, **how), **options)(arrays)
    return made


def layer(a: str, b: str, **options: Any) -> Walk:
    """The product of a layer of tilewright.torch, with a new result in each call."""
    def made(arrays: Arrays) -> Callable[[], Any]:
        x, w, given = arrays(a), arrays(b), arrays.resolved(options)
        return lambda: matmul(x, w, arrays("bf16 256x640"), **given)
    return made


A, B = "1000x600", "600x800"
WALKS: dict[str, tuple[str, Walk]] = {
    "f32": (CPU, walk(f"f32 {A}", f"f32 {B}")),
    "int8": (CPU, walk(f"i8 {A}", f"i8 {B}", out_dtype="i32")),
    "bf16": (CPU, walk(f"bf16 {A}", f"bf16 {B}")),
    "epilogue and bias": (CPU, walk(f"f32 {A}", f"f32 {B}", epilogue=bias, operands={"bias": "f32 800"})),
    "one row by int4": (CPU, walk("f32 1x512", "i4 640x512 q-1 g32", trans_b=True)),
    "8 rows by int4": (CPU, walk("f32 8x512", "i4 640x512 q-1 g32", trans_b=True)),
    "300 rows by int4": (CPU, walk("f32 300x512", "i4 640x512 q-1 g32", trans_b=True)),
    "grouped f32": (CPU, groups("f32 60x64", "f32 4x64x80")),
    "grouped f32, epilogue": (CPU, groups("f32 60x64", "f32 4x64x80", epilogue=bias, operands={"bias": "f32 4x80"})),
    "grouped int4": (CPU, groups("f32 60x64", "i4 4x80x64 q-1 g32", trans_b=True)),
    "contract": (CPU, walk(f"f32 {A}", f"f32 {B}", function=lambda *x: tw.contract(distance, *x))),
    "argmin": (CPU, walk(f"f32 {A}", f"f32 {B}", function=lambda *x: tw.contract(distance, *x, reduce="argmin"))),
    "einsum": (CPU, walk("f32 50x20x600", f"f32 {B}", function=lambda *x: tw.einsum("xyk,kn->nxy", *x))),
    "algorithm": (CPU, walk(f"f32 {A}", f"f32 {B}", algorithm="bf16_bf16_f32_x3")),
    "c and beta": (CPU, walk(f"f32 {A}", f"f32 {B}", c="f32 1000x800", alpha=2.0, beta=0.5)),
    "scales": (CPU, walk(f"i8 {A}", f"i8 {B}", scale_a="f32 1000x1", scale_b="f32 1x800")),
    "complex": (CPU, walk(f"c64 {A}", f"c64 {B}")),
    "out in f64": (CPU, walk(f"f32 {A}", f"f32 {B}", out="f64 1000x800")),
    "stacks": (CPU, walk("f32 6x33x40", "f32 6x40x50")),
    "GPU: bf16": (GPU, walk("bf16 256x512", "bf16 512x640")),
    "GPU: epilogue and bias": (GPU, walk("bf16 256x512", "bf16 512x640", epilogue=bias, operands={"bias": "f32 640"})),
    "GPU: fp8 layer": (GPU, layer("e4m3fn 256x512", "e4m3fn 512x640 t", epilogue=scaled, operands={
        "scale_a": "f32 256x1", "scale_b": "f32 1x640", "bias": "bf16 640"})),
    "GPU: fp8 layer without a bias": (GPU, layer("e4m3fn 256x512", "e4m3fn 512x640 t", scale_a="f32 256x1",
                                                 scale_b="f32 1x640")),
    "GPU: int8 layer": (GPU, layer("bf16 256x512", "i8 640x512", trans_b=True, prologue_b=number, epilogue=column,
                                   operands={"scales": "f32 1x640", "bias": "bf16 640"})),
    "GPU: int4 by one row": (GPU, walk("bf16 1x512", "i4 640x512 q-1 g32", trans_b=True)),
    "GPU: mxfp8": (GPU, walk("mxfp8 256x512 q-1", "mxfp8 640x512 q-1", trans_b=True)),
    "GPU: grouped bf16": (GPU, groups("bf16 60x64", "bf16 4x64x80")),
    "GPU: grouped int4": (GPU, groups("bf16 60x64", "i4 4x80x64 q-1 g32", trans_b=True)),
    "GPU: contract": (GPU, walk(f"f32 {A}", f"f32 {B}", function=lambda *x: tw.contract(distance, *x))),
    "GPU: c and beta": (GPU, walk("bf16 256x512", "bf16 512x640", c="bf16 256x640", beta=0.5)),
    "GPU: complex": (GPU, walk("c64 256x512", "c64 512x640")),
    "GPU: einsum": (GPU, walk("f32 50x20x600", f"f32 {B}", function=lambda *x: tw.einsum("xyk,kn->nxy", *x))),
}


def entered(call: Callable[[], Any]) -> Counter[str]:
    """The package's functions that a call enters, as "file:function", and how often; without those that a fake driver
    or a fake array enters."""
    found: Counter[Any] = Counter()
    fakes = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal fakes
        if event in ("call", "return") and frame.f_code.co_filename.startswith(DOUBLES):
            fakes += 1 if event == "call" else -1
        elif event == "call" and not fakes:
            found[frame.f_code] += 1
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    names: Counter[str] = Counter()
    for code, count in found.items():
        file = code.co_filename.removeprefix(PACKAGE)
        if file != code.co_filename and code.co_name not in INLINED:
            names[f"{file}:{code.co_name}"] += count
    return names


def counted(target: str, walk: Walk, first: bool = True) -> dict[str, Counter[str]]:
    """Functions of the first call, if it is to be counted, and of a repeated one."""
    def work() -> dict[str, Counter[str]]:
        _, arrays = recorder.prepared(target)
        if target in recorder.CPUS:
            tw.set_num_threads(1)
        call = walk(arrays)
        with engine.NVIDIA.driver.device().current() if target == GPU else nullcontext():     # as torch has it
            found = {"first": entered(call)} if first else {}
            for _ in range(1 if first else 2):
                call()
            return found | {"again": entered(call)}
    return recorder.in_child(work)


def row(names: Counter[str]) -> list[int]:
    """Calls, functions, files."""
    return [names.total(), len(names), len({x.partition(":")[0] for x in names})]


def main(write: bool, every: bool = True) -> int:
    """Print the table; what exceeds the committed counts, with the functions that are new, is the report's end. Not
    `every` count: of GPUs those of a few repeated calls alone, since the choice of a plan enters 100,000 functions."""
    recorder.warm()
    walks = {name: counted(target, walk, every or target == CPU) for name, (target, walk) in WALKS.items()
             if every or target == CPU or name in QUICK}
    now = {name: {which: row(names) for which, names in found.items()} for name, found in walks.items()}
    before = json.loads(FILE.read_text()) if FILE.exists() else {"counts": {}, "again": {}, "first": []}
    print(f"{'':30}{'first call':>30}{'repeated call':>30}\n{'':30}" + 2*f"{'calls':>10}{'functions':>10}{'files':>10}")
    for name, counts in now.items():
        print(f"{name:30}" + "".join(f"{x:>10}" for which in ("first", "again") for x in counts.get(which, "---")))
    faults = []
    for name, found in walks.items():
        for which, names in found.items():
            most = before["counts"].get(name, {}).get(which, [0])[0]
            if names.total() > most * SLACK[which]:
                known = before["first"] if which == "first" else before["again"].get(name, [])
                new = [f"    {count} x {x}" for x, count in names.items() if x not in known]
                faults += [f"{name}, {which}: {names.total()} calls, and {most} are committed; functions that are new:",
                           *(new or ["    none, but some are entered more often"])]
    if write:
        FILE.write_text(json.dumps({
            "counts": now, "again": {name: sorted(found["again"]) for name, found in walks.items()},
            "first": sorted({x for found in walks.values() for x in found["first"]})}, indent=0) + "\n")
        return 0
    print(*faults, sep="\n")
    return bool(faults)
