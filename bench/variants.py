"""Kernels to sanitize beside those that the plans choose: emitters with their arguments, built without torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tilewright.compiler import artefact
from tilewright.runtime.cuda import module as cuda
from tilewright.targets import target

TARGET = target("sm_90a")
MMA = "tilewright.kernels.nvidia.mma_gemm:emit_mma_gemm"
SIMT = "tilewright.kernels.nvidia.simt_gemm:emit_simt_gemm"


@dataclass(frozen=True)
class Variant:
    """A kernel to measure: an emitter of tilewright, its arguments, and the grid for a problem."""

    label: str
    emitter: str  # "package.module:function"
    options: tuple[tuple[str, Any], ...]
    grid: Callable[[int, int, int], tuple[int, int, int]]
    workspace: Callable[[int, int, int], tuple[int, int]] = lambda m, n, k: (0, 0)  # elements of C's type, counters


def build(emitter: str, options: tuple[tuple[str, Any], ...]) -> tuple[artefact.Code, float]:
    """PTX with its manifest, and the seconds that it took."""
    began = time.perf_counter()
    module, _, name = emitter.partition(":")
    code = artefact.compiled(getattr(import_module(module), name)(**dict(options)), TARGET)
    return code, time.perf_counter() - began


class Built:
    """The same on the device."""

    def __init__(self, code: artefact.Code, seconds: float) -> None:
        self.name, self.seconds = code.entry.name, seconds
        self.function = cuda.Module(code.image).function(code.manifest)


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
