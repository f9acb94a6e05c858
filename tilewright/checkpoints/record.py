"""`Weight`: a layer's weight as a file has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilewright
from tilewright.formats import Quantized, Scaled

Array = NDArray[Any]
Tensors = Mapping[str, Array]   # the arrays of a layer, by the last part of their names


@dataclass(frozen=True, eq=False)
class Weight:
    """The weight of a layer [outputs, inputs], or of experts [experts, outputs, inputs], in few bits.

    numbers     a Scaled or a Quantized
    order       which input of the layer each input of `numbers` is, where the file has groups of inputs that are no
                neighbours (act-order): a permutation [inputs]. None: the same
    source      the format that the file has it in, such as "gptq" or "gguf Q4_K"
    exact       whether f32 numbers have the bits of the format's reference decoder; False where that rounds twice what
                is rounded once here
    """

    numbers: Scaled | Quantized
    order: NDArray[np.int64] | None = None
    source: str = ""
    exact: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """[outputs, inputs], perhaps with an axis of experts before."""
        return self.numbers.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers and the order."""
        return self.numbers.nbytes + (0 if self.order is None else self.order.nbytes)

    def dequantize(self, dtype: Any = "f32") -> Array:
        """The numbers in the layer's order of inputs, as tilewright.dequantize gives them."""
        made = tilewright.dequantize(self.numbers, dtype)
        return made if self.order is None else made[..., np.argsort(self.order)]

    def matmul(self, x: Array, **options: Any) -> Any:
        """x [..., inputs] by the weight: [..., outputs]. options: those of tilewright.matmul."""
        return tilewright.matmul(x if self.order is None else x[..., self.order], self.numbers, trans_b=True, **options)

    def rows(self, index: NDArray[np.int64]) -> Weight:
        """With the outputs in another order, whose arrays are copied."""
        q = self.numbers
        axis = -2 if isinstance(q, Quantized) or q.nibbles is None or q.nibbles.axis == -1 else -1

        def taken(x: Any, at: int = -2) -> Any:
            return x if x is None or x.shape[at] == 1 else np.take(x, index, at)
        if axis != -2:
            raise ValueError("rows cannot be taken of a weight whose outputs share bytes")
        more = {} if isinstance(q, Quantized) else {name: taken(getattr(q, name)) for name in ("zeros", "minima")}
        return replace(self, numbers=replace(q, elements=taken(q.elements), scales=taken(q.scales), **more))

    def __repr__(self) -> str:
        more = ", inputs in another order" * (self.order is not None)
        return f"Weight({self.source}: {self.numbers!r}{more})"
