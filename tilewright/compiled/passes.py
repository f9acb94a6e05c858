"""The launches of a product with passes (plans/passes.py), which share one workspace: passes write operands anew there,
then the kernel multiplies those; of terms the native kernel does it if a number cannot be split.
"""
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.compiled.base import GpuCode, Launch
from tilewright.compiler import artefact
from tilewright.forks import cached_property
from tilewright.plans.passes import BLOCK, Pass

if TYPE_CHECKING:
    from tilewright.ir.program import Function

EMITTER = "tilewright.kernels.gpu.rewrite:emit_rewrite"
FLAG = 4                # bytes of `special`


class PassKernel(GpuCode):
    """The kernel of one pass."""

    def __init__(self, of: Pass, target: Any) -> None:
        self.of, self.target, self.grid = of, target, None

    @property
    def options(self) -> dict[str, Any]:
        """What its emitter is called with."""
        return {"OPERAND": self.of.operand, "FORMAT": self.of.format, "SPLIT": self.of.split,
                "ALONG_K": self.of.along_k, "BATCH": self.of.batch != 1, "WARP": self.target.warp}

    @cached_property
    def functions(self) -> tuple[Function, ...]:    # type: ignore[override]    # recorded when it is read
        from tilewright.kernels.gpu.rewrite import emit_rewrite
        return (emit_rewrite(**self.options),)

    @cached_property
    def loadable(self) -> artefact.Code:
        """From the cache, if it is there: then nothing is recorded."""
        return artefact.code(EMITTER, self.target, **self.options)


def launches(product: Launch, k: int, made: tuple[Pass, ...], target: Any, native: Launch | None = None
             ) -> tuple[Launch, ...]:
    """The passes, and the product of k steps of what they leave in the workspace after its own; `native` is the one of
    the operands as they are, for numbers that cannot be split."""
    products = [product] if native is None else [product, native]
    counters, end = max(x.counters for x in products), _block(max(x.workspace for x in products))
    places = {}
    for each in made:
        places[each.operand] = end
        end += _block(each.size)
    special, zero = ((("special", end),), (end, FLAG)) if native else ((), (0, 0))
    end += BLOCK * bool(native)
    found = [Launch(PassKernel(each, target), (each.ctas, 1, 1), end, counters,
                    (("rows", each.rows), ("depth", each.depth), ("ld", each.ld)),
                    (("target", places[each.operand]), *special)) for each in made]
    found[0] = replace(found[0], zero=zero)
    more = [("k", k)]
    for each in made:
        x = each.operand
        more.append((f"ld{x}", each.ld))
        more += [(f"planes_{x}", each.count), (f"plane_{x}", each.plane)] if each.split else []
        more += [(f"stride_{x}", each.count*each.plane)] * (each.batch != 1)
    found.append(replace(product, workspace=end, counters=counters, more=(*product.more, *more),
                         at=(*places.items(), *special)))
    if native:
        found.append(replace(native, workspace=end, counters=counters, at=special))
    return tuple(found)


def _block(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
