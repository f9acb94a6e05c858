"""Kernels to sanitize beside those that the plans choose: emitters with their arguments, built without torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tilewright.compiler import llvm
from tilewright.runtime.cuda import module as cuda
from tilewright.targets import target

TARGET = target("sm_90a")
DMMA = "tilewright.kernels.nvidia.dmma_gemm:emit_dmma_gemm"
SIMT = "tilewright.kernels.nvidia.simt_gemm:emit_simt_gemm"


@dataclass(frozen=True)
class Variant:
    """A kernel to measure: an emitter of tilewright, its arguments, and the grid for a problem."""

    label: str
    emitter: str  # "package.module:function"
    options: tuple[tuple[str, Any], ...]
    grid: Callable[[int, int, int], tuple[int, int, int]]
    workspace: Callable[[int, int, int], tuple[int, int]] = lambda m, n, k: (0, 0)  # elements of C's type, counters


def build(emitter: str, options: tuple[tuple[str, Any], ...]) -> tuple[str, str, int, tuple[int, int], float]:
    """(name, PTX, bytes of shared memory that a launch has to ask for, threads, seconds)."""
    began = time.perf_counter()
    module, _, name = emitter.partition(":")
    function = getattr(import_module(module), name)(**dict(options))
    text = llvm.assembly(function, TARGET)
    return function.name, text, function.dynamic_bytes, function.threads or (1, 1), time.perf_counter() - began


class Built:
    """The same on the device."""

    def __init__(self, name: str, text: str, shared: int, threads: tuple[int, int], seconds: float) -> None:
        self.name, self.shared, self.threads, self.seconds = name, shared, threads, seconds
        self.function = cuda.Module(text).function(name)


def variants(emitter: str, layout: str, *options: dict[str, Any]) -> tuple[Variant, ...]:
    """One for each set of options of an emitter whose CTAs compute CTA_M x CTA_N, SPLIT_K deep."""
    found = []
    for chosen in options:
        full = {"LAYOUT": layout, **chosen}
        tile = {name: full.get(name, default) for name, default in (("CTA_M", 128), ("CTA_N", 128), ("SPLIT_K", 1))}
        label = " ".join(f"{name}={value}" for name, value in chosen.items()) or "default"

        def grid(m: int, n: int, k: int, tile: dict[str, int] = tile) -> tuple[int, int, int]:
            return -(-m // tile["CTA_M"]) * -(-n // tile["CTA_N"]), 1, tile["SPLIT_K"]

        def workspace(m: int, n: int, k: int, tile: dict[str, int] = tile) -> tuple[int, int]:
            tiles = -(-m // tile["CTA_M"]) * -(-n // tile["CTA_N"])
            return (tiles * tile["CTA_M"] * tile["CTA_N"] * tile["SPLIT_K"], tiles) if tile["SPLIT_K"] > 1 else (0, 0)

        found.append(Variant(label, emitter, tuple(full.items()), grid, workspace))
    return tuple(found)
