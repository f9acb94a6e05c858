"""`tw.optimize(f, *args)`: loops of users become the calls that compute the same faster.

Contractions become products of the planner (recognition.py, product.py); other statements remain loops. Before a
product is used, it is compared with the loops on small arrays of whole numbers (verified.py).
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.nests import verified
from tilewright.nests.domain import check
from tilewright.nests.nest import LoopNest, refuse
from tilewright.nests.parts import Part, parts
from tilewright.nests.pieces import BLOCK, boxes
from tilewright.nests.product import Product

VERIFIED: set[tuple[Any, ...]] = set()          # nests with the sentences of their products that agreed


class Step:
    """A part of the function: the products of a contraction, or statements that remain loops."""

    def __init__(self, nest: LoopNest, part: Part, arrays: Mapping[str, Any], block: int) -> None:
        self.part, self.products = part, list[Product]()
        if part.contraction is not None:
            shapes = {name: x.shape for name, x in arrays.items()}
            self.products = [Product(box, arrays) for box in boxes(part.contraction, shapes, block)]
        self.nest = replace(nest, statements=part.sources)

    def __str__(self) -> str:
        if not self.products:
            lines = sorted({s.line.number for s in self.part.sources})
            return f"loops, of the lines {', '.join(map(str, lines))}: {self.part.reason}"
        blocks = f", in {len(self.products)} blocks" if len(self.products) > 1 else ""
        return f"{self.products[0]}{blocks}: {self.products[0].how}"


class Optimized:
    """A function's loops as calls, for arguments of given shapes and strides: `optimized(*args)` computes what the
    function does. `print` says what was recognised, how it is computed, and why what remains loops does."""

    def __init__(self, nest: LoopNest, args: Sequence[Any], loops: Callable[[LoopNest, Sequence[Any]], None],
                 block: int = BLOCK) -> None:
        self.nest, self._loops = nest, loops
        arrays, self.sizes = arguments(nest, args)
        self.layout = [laid_out(x) if hasattr(x, "shape") and x.shape != () else x for x in args]
        check(nest, self.sizes, {name: x.shape for name, x in arrays.items()})
        written = {s.target.array for s in nest.statements} & arrays.keys()
        self.apart = [(a, b) for a in sorted(written) for b in arrays
                      if a != b and not (b in written and b < a) and not overlap(arrays[a], arrays[b])]
        found = parts(nest, self.sizes, lambda a, b: a == b or ((a, b) not in self.apart and (b, a) not in self.apart))
        self.steps = [Step(nest, part, arrays, block) for part in found]

    @property
    def recognised(self) -> bool:
        """Whether any statement has become a product."""
        return any(step.products for step in self.steps)

    def __call__(self, *args: Any) -> None:
        """Compute the results of these arguments, which are laid out like those that it was made for."""
        arrays, numbers = dict[str, Any](), dict[str, Any](self.sizes)
        if len(args) != len(self.layout):
            raise TypeError(f"{self.nest.name} takes {len(self.layout)} arguments, not {len(args)}")
        for p, x, expected in zip(self.nest.parameters, args, self.layout):
            if p.kind == "array" or p.kind == "pointer":
                if laid_out(x) != expected:
                    raise ValueError(f"{p.name} is an array of another shape, other strides or another format than "
                                     f"{self.nest.name} was optimized for: {laid_out(x)}, not {expected}")
                arrays[p.name] = x if p.kind == "array" else x.reshape(-1)
            elif p.kind == "number":
                numbers[p.name] = float(x)
            elif x != expected:
                raise ValueError(f"{p.name} is {x}, and {self.nest.name} was optimized for {expected}")
        for a, b in self.apart:
            if overlap(arrays[a], arrays[b]):
                raise ValueError(f"{self.nest.name} was optimized for {a} and {b} that share no memory, and these do")
        for step in self.steps:
            for product in step.products:
                product.run(arrays, numbers)
            if not step.products:
                self._loops(step.nest, args)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps)) or "nothing: all loops are empty"

    def verify(self, args: Sequence[Any]) -> None:
        """Compare with the loops on small arrays. Refused if the results differ."""
        sentence = tuple(str(p) for step in self.steps for p in step.products[:1])
        arrays, sizes = arguments(self.nest, args)
        key = (self.nest.name, self.nest.statements, self.nest.parameters, sentence)
        if key in VERIFIED:
            return
        whole = {name: n for name, n in sizes.items() if name in self.nest.sizes}
        for shapes, numbers in verified.smaller(self.nest, {name: x.shape for name, x in arrays.items()}, whole):
            tried = list[Optimized]()

            def product(values: Mapping[str, Any], tried: list[Optimized] = tried) -> Callable[[Sequence[Any]], None]:
                given = [values[p.name] for p in self.nest.parameters]
                tried.append(Optimized(self.nest, given, self._loops, block=2))
                return lambda args: tried[-1](*args)
            same = verified.agree(self.nest, arrays, shapes, numbers, product,
                                  lambda args: self._loops(self.nest, args))
            if tuple(str(p) for step in tried[-1].steps for p in step.products[:1]) != sentence:
                continue            # too small to be the same products
            if not same:
                refuse(self.nest.statements[0].line, "its products and its loops differ on small whole numbers: "
                       + "; ".join(sentence))
            VERIFIED.add(key)
            return
        refuse(self.nest.statements[0].line, "no smaller sizes were found to compare its products with its loops: "
               + "; ".join(sentence))


def arguments(nest: LoopNest, args: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a call by name, and its sizes and numbers."""
    arrays, numbers = dict[str, Any](), dict[str, Any]()
    for p, x in zip(nest.parameters, args, strict=True):
        if p.kind == "array":
            arrays[p.name] = x
        elif p.kind == "pointer":
            arrays[p.name] = x.reshape(-1)
        else:
            numbers[p.name] = int(x) if p.kind == "size" else float(x)
    for name in nest.sizes:
        if name not in numbers:
            array, axis = name.removesuffix("]").split(".shape[")
            numbers[name] = arrays[array].shape[int(axis)]
    return arrays, numbers


def laid_out(x: Any) -> tuple[Any, ...]:
    """What an array must have in common with the one that loops were optimized for."""
    return (x.shape, x.strides, x.dtype) if isinstance(x, np.ndarray) else (tuple(x.shape), x.stride(), x.dtype)


def overlap(a: Any, b: Any) -> bool:
    """Whether two arrays may share memory."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return False
    return _span(a)[0] < _span(b)[1] and _span(b)[0] < _span(a)[1]


def _span(tensor: Any) -> tuple[int, int]:
    """The addresses of a tensor's memory."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
