"""A call on a GPU, prepared: kernels over numbered buffers, which later calls of the same kind give to a stream again.

`Program.run` allocates the temporaries as one block of the stream's memory, fills in addresses, and launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.rules.arguments import Array
from tilewright.runtime.program import Buffers
from tilewright.targets.tensor_maps import BYTES as MAP_BYTES

if TYPE_CHECKING:
    from tilewright.runtime.gpu.recipe import Recipe

ALIGNMENT = 256                     # of temporaries in a program's block, as drivers align blocks


class Kernel:
    """A launch of a kernel of which only addresses differ from call to call. `words`: of the block of arguments, where
    the addresses with these numbers are; `maps`: tensor maps' first bytes, what makes them, and numbers of addresses;
    `otherwise`: what multiplies by another alpha than `alpha`, if any is taken."""

    def __init__(self, prepared: Any, words: Sequence[int], numbers: Sequence[int], maps: Sequence[Any] = (),
                 alpha: Any = None, otherwise: Product | None = None) -> None:
        self.prepared, self.places, self.maps = prepared, tuple(zip(words, numbers)), maps
        self.alpha, self.otherwise = alpha, otherwise
        self.spare = [prepared.arguments()]             # blocks of arguments that no call is using

    def __call__(self, at: list[int], arrays: Sequence[Any], results: Any, alpha: float, stream: int) -> None:
        if self.otherwise is not None and alpha != self.alpha:
            self.otherwise(at, arrays, results, alpha, stream)
            return
        try:
            arguments = self.spare.pop()
        except IndexError:
            arguments = self.prepared.arguments()
        words = arguments.words
        for word, number in self.places:
            words[word] = at[number]
        for place, maps, number in self.maps:
            arguments.view[place : place + MAP_BYTES] = maps.found.get(at[number]) or maps(at[number])
        self.prepared.attempt(stream, arguments)
        self.spare.append(arguments)


class Product(NamedTuple):
    """A product by a recipe. `numbers`: of the addresses of A, B, C, then of scales and whatever else the recipe takes;
    `alpha`: None for that of the call, which may be another one in every call; `launch`: with these factors and the
    addresses of one call, None if it needs a workspace."""

    recipe: Recipe
    alpha: Any
    beta: Any
    launch: Any
    numbers: tuple[int, ...]

    def __call__(self, at: list[int], arrays: Sequence[Any], results: Any, alpha: float, stream: int) -> None:
        a, b, c, *more = [at[number] for number in self.numbers]
        self.recipe.run(a, b, c, alpha if self.alpha is None else self.alpha, self.beta, stream, *more)

    def step(self, any_alpha: bool) -> Kernel | Product:
        """What calls with this alpha, or with any, do."""
        step, only = self._replace(alpha=None) if any_alpha else self, self.recipe.only
        return step if only is None or self.launch is None else Kernel(
            self.launch, [word for word, _ in only.pointers], [self.numbers[i] for _, i in only.pointers],
            [(place, maps, self.numbers[i]) for place, maps, i in only.maps], self.alpha, step if any_alpha else None)


class Number(NamedTuple):
    """A number that is written to a temporary, by way of the command. `array`: the number of the call's array that it
    is, whose value may be another one in every call; None: `value`."""

    driver: Any
    device: Any
    dtype: np.dtype[Any]
    array: int | None
    value: Any
    numbers: tuple[int]

    def __call__(self, at: list[int], arrays: Sequence[Any], results: Any, alpha: float, stream: int) -> None:
        value = self.value if self.array is None else np.asarray(arrays[self.array])
        write_number(self.driver, self.device, at[self.numbers[0]], value, self.dtype, stream)


def write_number(driver: Any, device: Any, at: int, value: Array, dtype: np.dtype[Any], stream: int) -> None:
    """Write a number to the device's memory, in words of 32 bits. It travels in the command, so that a graph that is
    recorded keeps it."""
    with np.errstate(all="ignore"):
        whole = value.astype(dtype).reshape(1).view(np.uint8)
    with device.current():
        for i, word in enumerate(np.resize(whole, max(whole.size, 4)).view(np.uint32)):
            driver.fill(at + 4 * i, int(word), 4, stream)


class Program:
    """Steps over the buffers of a call; `run` is that of a record (runtime/repeats.py). `alpha`: the one that they are
    for; None: any."""

    def __init__(self, driver: Any, device: Any, steps: Sequence[Any], buffers: Buffers, alpha: Any, any_alpha: bool
                 ) -> None:
        """any_alpha: whether the call's alpha is a factor of products alone."""
        any_alpha = any_alpha and all(step.alpha == alpha for step in steps if isinstance(step, Product))
        self.steps = [step.step(any_alpha) if isinstance(step, Product) else step for step in steps]
        self.block, self.device, self.alpha = driver.Block, device, None if any_alpha else alpha
        self.temporaries, self.size = buffers.places(ALIGNMENT)
        self.inside = [*buffers.inside]

    def run(self, at: list[int], arrays: Sequence[Any], results: Sequence[Any], alpha: float, stream: int) -> bool:
        """Give the steps to the stream. True, and nothing done, if they are for another alpha. `at`: addresses of
        arrays, then of results."""
        if self.alpha is not None and alpha != self.alpha:
            return True
        memory = self.block.allocate(self.device, self.size, stream) if self.size else 0
        if memory is None:
            with self.device.current():
                return self.run(at, arrays, results, alpha, stream)
        try:
            at = [*at, *[memory + offset for offset in self.temporaries]]
            for buffer, offset in self.inside:
                at.append(offset if buffer < 0 else at[buffer] + offset)
            for step in self.steps:
                step(at, arrays, results, alpha, stream)
        finally:
            if memory:
                self.block.deallocate(self.device, memory, stream)
        return False
