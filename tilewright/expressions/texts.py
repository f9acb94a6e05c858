"""Functions by the texts that problems, plans and kernels hold. Most processes have none, and load no class of one."""
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.expressions.function import Epilogue, Prologue
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
