"""Functions by the texts that problems, plans and kernels hold. Most processes have none, and load no class of one."""
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.expressions.function import Aux, Epilogue, Prologue
    from tilewright.expressions.semiring import Semiring


@lru_cache(maxsize=256)
def epilogue(text: str) -> Epilogue:
    from tilewright.expressions.function import Epilogue
    return Epilogue.read(text)


@lru_cache(maxsize=256)
def prologue(text: str) -> Prologue:
    from tilewright.expressions.function import Prologue
    return Prologue.read(text)


@lru_cache(maxsize=256)
def semiring(text: str) -> Semiring:
    from tilewright.expressions.semiring import Semiring
    return Semiring.read(text)


@lru_cache(maxsize=256)
def auxiliary(epilogue_text: str = "", prologue_a: str = "", prologue_b: str = "", scales: str = "", group: int = 1
              ) -> tuple[Aux, ...]:
    """The arrays beside A, B and C of a GPU's kernel with these functions, in the order of its addresses: scales, of
    this format and for so many steps of k each or, with 1, for all of k; what the epilogue reads; its further results;
    what the prologues of A and of B read."""
    if not (epilogue_text or prologue_a or prologue_b or scales):
        return ()
    from tilewright.expressions.function import Aux
    arrays = list[Aux]()
    if scales:
        arrays += [Aux(name, scales, place if group == 1 else "full", group, role, name)
                   for name, place, role in (("scale_a", "column", "a"), ("scale_b", "row", "b"))]
    if epilogue_text:
        function = epilogue(epilogue_text)
        arrays += function.arrays("c")
        arrays += [Aux(f"outs[{number}]", function.results[i], "full", 1, "c", f"c{i}", True)
                   for number, i in enumerate(function.others)]
    for role, text in ("a", prologue_a), ("b", prologue_b):
        arrays += prologue(text).arrays(role) if text else ()
    return tuple(arrays)
