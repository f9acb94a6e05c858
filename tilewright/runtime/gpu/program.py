"""A call on a GPU, prepared: kernels over numbered buffers, which later calls of the same kind give to a stream again.

While a call runs for the first time, `Recorder` notes every kernel that it gives to its stream, with the arrays among
its arguments. Each of them is a view of one of the call's buffers: its arrays, then its results, then its temporaries,
in this order. `Program.run` does the same with other buffers: it allocates the temporaries as one block of the stream's
memory, fills in addresses, and launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.rules.signature import operand
from tilewright.runtime.program import Buffers, Place

if TYPE_CHECKING:
    from tilewright.runtime.gpu.recipe import Recipe

Array = NDArray[Any]
ALIGNMENT = 256                     # of temporaries in a program's block, as drivers align blocks


class Kernel:
    """A launch of a kernel of which only addresses differ from call to call. `places`: (word of the block of arguments,
    buffer, offset in bytes)."""

    def __init__(self, prepared: Any, places: Sequence[tuple[int, int, int]]) -> None:
        self.prepared, self.places = prepared, tuple(places)
        self.spare = [prepared.arguments()]             # blocks of arguments that no call is using

    def __call__(self, addresses: list[int], arrays: Sequence[Any], alpha: float, stream: int) -> None:
        try:
            arguments = self.spare.pop()
        except IndexError:
            arguments = self.prepared.arguments()
        words = arguments.words
        for word, buffer, offset in self.places:
            words[word] = addresses[buffer] + offset
        self.prepared.attempt(stream, arguments)
        self.spare.append(arguments)


class Product(NamedTuple):
    """A product by a recipe. `places`: of A, B, C, then of scales and whatever else the recipe takes addresses of;
    `alpha`: None for that of the call, which may be another one in every call."""

    recipe: Recipe
    places: tuple[Place, ...]
    alpha: Any
    beta: Any

    def __call__(self, addresses: list[int], arrays: Sequence[Any], alpha: float, stream: int) -> None:
        a, b, c, *more = [addresses[buffer] + offset if buffer >= 0 else 0 for buffer, offset in self.places]
        self.recipe.run(a, b, c, alpha if self.alpha is None else self.alpha, self.beta, stream, *more)


class Number(NamedTuple):
    """A number that is written to a temporary, by way of the command. `array`: the number of the call's array that it
    is, whose value may be another one in every call; None: `value`."""

    driver: Any
    device: Any
    buffer: int
    dtype: np.dtype[Any]
    array: int | None
    value: Any

    def __call__(self, addresses: list[int], arrays: Sequence[Any], alpha: float, stream: int) -> None:
        value = self.value if self.array is None else np.asarray(arrays[self.array])
        write_number(self.driver, self.device, addresses[self.buffer], value, self.dtype, stream)


def write_number(driver: Any, device: Any, at: int, value: Array, dtype: np.dtype[Any], stream: int) -> None:
    """Write a number to the device's memory, in words of 32 bits. It travels in the command, so that a graph that is
    recorded keeps it."""
    with np.errstate(all="ignore"):
        whole = value.astype(dtype).reshape(1).view(np.uint8)
    with device.current():
        for i, word in enumerate(np.resize(whole, max(whole.size, 4)).view(np.uint32)):
            driver.fill(at + 4 * i, int(word), 4, stream)


class Program:
    """Steps over the buffers of a call; `run` is a record's: see runtime/repeats.py.

    temporaries     the offsets of the call's temporaries in one block of `size` bytes
    alpha           the only alpha that the steps are for; None: any
    """

    def __init__(self, driver: Any, device: Any, steps: Sequence[Any], sizes: Sequence[int], alpha: Any = None) -> None:
        self.driver, self.device, self.steps, self.alpha = driver, device, tuple(steps), alpha
        self.temporaries, self.size = [], 0
        for size in sizes:
            self.temporaries.append(self.size)
            self.size += -(-size // ALIGNMENT) * ALIGNMENT

    def run(self, addresses: list[int], arrays: Sequence[Any], results: Sequence[Any], alpha: float, stream: int
            ) -> bool:
        """Give the steps to the stream. True, and nothing done, if they are for another alpha. `addresses`: of arrays,
        then of results."""
        if self.alpha is not None and alpha != self.alpha:
            return True
        if not self.temporaries:
            for step in self.steps:
                step(addresses, arrays, alpha, stream)
            return False
        block = self.driver.Block
        with self.device.current():
            memory = block.allocate(self.device, self.size, stream) if self.size else 0
            try:
                every = [*addresses, *[memory + offset for offset in self.temporaries]]
                for step in self.steps:
                    step(every, arrays, alpha, stream)
            finally:
                if memory:
                    block.deallocate(memory, stream)
        return False


class Recorder:
    """What a call gives to its stream, noted with the arrays, of which views say whose memory they are. `whole`:
    whether all of it was, so that it can be given again; `any_alpha`: whether alpha is a factor of products alone."""

    def __init__(self) -> None:
        self.noted: list[tuple[Any, ...]] = []
        self.whole, self.any_alpha = True, True

    def kernel(self, prepared: Any, arrays: Mapping[str, Array]) -> None:
        """A launch, and the arrays among its arguments by name."""
        self.noted.append((_kernel, prepared, arrays))

    def product(self, recipe: Recipe, arrays: Sequence[Any], alpha: Any, beta: Any) -> None:
        """A product by a recipe of these arrays, or addresses that are 0."""
        self.noted.append((_product, recipe, arrays, alpha, beta))

    def number(self, to: Array, value: Array, name: str | None) -> None:
        """A number that is written to a temporary; `name`: of the operand that it is, None for one that is the
        same in all calls of this kind."""
        self.noted.append((_number, to, value, name))

    def program(self, driver: Any, device: Any, call: Buffers) -> Program | None:
        """The program of the call, or None if it cannot be given again."""
        if not self.whole:
            return None
        try:
            steps = [make(driver, device, call, *noted) for make, *noted in self.noted]
        except LookupError:                     # memory that is in none of the call's buffers
            return None
        products = [step for step in steps if isinstance(step, Product)]
        if not self.any_alpha or any(step.alpha != call.alpha for step in products):
            return Program(driver, device, steps, call.sizes, call.alpha)
        steps = [step._replace(alpha=None) if isinstance(step, Product) else step for step in steps]
        return Program(driver, device, steps, call.sizes)


def _kernel(driver: Any, device: Any, call: Buffers, prepared: Any, arrays: Mapping[str, Array]) -> Kernel:
    at = {p.name: p.offset // 8 for p in prepared.function.parameters}
    return Kernel(prepared, [(at[name], *call.place(x)) for name, x in arrays.items()])


def _product(driver: Any, device: Any, call: Buffers, recipe: Recipe, arrays: Sequence[Any], alpha: Any, beta: Any
             ) -> Product:
    return Product(recipe, tuple(call.place(x) for x in arrays), alpha, beta)


def _number(driver: Any, device: Any, call: Buffers, to: Array, value: Array, name: str | None) -> Number:
    buffer, _ = call.place(to)
    array = None if name is None else call.names[operand(name)]
    return Number(driver, device, buffer, to.dtype, array, value)
