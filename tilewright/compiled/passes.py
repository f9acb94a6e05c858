"""The launches of a product with passes (plans/passes.py), which share one workspace: passes write operands anew there,
then the kernel multiplies those. Where a pass meets a number that cannot be written so, that kernel does nothing, and
the launches behind it multiply the operands in f32.
"""
from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.compiled.base import GpuCode, Launch
from tilewright.compiler import artefact
from tilewright.forks import cached_property
from tilewright.plans.passes import BLOCK, DECODED, Pass

if TYPE_CHECKING:
    from tilewright.ir.program import Function

REWRITE, DECODE = "tilewright.kernels.gpu.rewrite:emit_rewrite", "tilewright.kernels.gpu.decode:emit_decode"
FLAG = 4                # bytes of `special`
FEW = 512               # CTAs that share the tiles of a pass which is seldom needed


class PassKernel(GpuCode):
    """The kernel of one pass."""

    def __init__(self, of: Pass, target: Any) -> None:
        self.of, self.target, self.grid = of, target, None
        self.emitter = DECODE if of.blocks else REWRITE

    @property
    def options(self) -> dict[str, Any]:
        """What its emitter is called with."""
        of = self.of
        always = {"OPERAND": of.operand, "BATCH": of.batch != 1, "WARP": self.target.warp}
        if of.blocks:
            return {**always, "BLOCKS": of.blocks, "ALIGN": min(of.align, DECODED), "WIDE": of.wide,
                    "WHEN": "special" * of.wide}
        return {**always, "FORMAT": of.format, "SPLIT": of.split, "ALONG_K": of.along_k}

    @cached_property
    def functions(self) -> tuple[Function, ...]:    # type: ignore[override]    # recorded when it is read
        module, _, name = self.emitter.partition(":")
        return (getattr(import_module(module), name)(**self.options),)

    @cached_property
    def loadable(self) -> artefact.Code:
        """From the cache, if it is there: then nothing is recorded."""
        return artefact.code(self.emitter, self.target, **self.options)


def launches(target: Any, *products: tuple[Launch, int, tuple[Pass, ...]]) -> tuple[Launch, ...]:
    """Each product of k steps behind its passes, which write to the workspace after all products' own. The second one
    is for numbers that the first one's passes cannot write; what those have written is not needed then."""
    counters = max(product.counters for product, *_ in products)
    begin = end = _block(max(product.workspace for product, *_ in products))
    end += max(sum(_block(each.size) for each in made) for *_, made in products)
    special, zero = ((("special", end),), (end, FLAG)) if len(products) > 1 else ((), (0, 0))
    end += BLOCK * (len(products) > 1)
    found: list[Launch] = []
    for product, k, made in products:
        places, at = {}, begin
        for each in made:
            places[each.operand] = at
            at += _block(each.size)
            grid = min(each.ctas, FEW) if each.wide else each.ctas      # mostly there is nothing to do for the former
            found.append(Launch(PassKernel(each, target), (grid, 1, 1), end, counters,
                                (("tiles", each.ctas), ("rows", each.rows), ("depth", each.depth), ("ld", each.ld)),
                                (("target", places[each.operand]), *special)))
        more = [("k", k)] * bool(made)
        for each in made:
            x = each.operand
            more.append((f"ld{x}", each.ld))
            more += [(f"planes_{x}", each.count), (f"plane_{x}", each.plane)] if each.split else []
            more += [(f"stride_{x}", each.count*each.plane)] * (each.batch != 1)
        found.append(replace(product, workspace=end, counters=counters, more=(*product.more, *more),
                             at=(*places.items(), *special)))
    found[0] = replace(found[0], zero=zero)
    return tuple(found)


def _block(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
