"""A call on a GPU, prepared: kernels over numbered buffers, which later calls of the same kind give to a stream again.

`Program.run` allocates the temporaries as one block of the stream's memory, fills in addresses, and launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.rules.arguments import Array
from tilewright.runtime.gpu.memory import lines
from tilewright.runtime.program import Buffers
from tilewright.targets.tensor_maps import BYTES as MAP_BYTES

if TYPE_CHECKING:
    from tilewright.runtime.gpu.recipe import Recipe, Step

ALIGNMENT = 256                     # of temporaries in a program's block, as drivers align blocks


class Kernel:
    """A launch of a kernel of which only addresses differ from call to call. `words`: of the block of arguments, where
    the addresses with these numbers are; `maps`: tensor maps' first bytes, what makes them, and numbers of addresses;
    `otherwise`: what multiplies by another alpha than `alpha`, if any is taken. `step`: of a product that takes the
    workspace of its stream; `whole` is the same product, for streams that have none yet or are recording a graph, and
    where another device is current."""

    def __init__(self, prepared: Any, words: Sequence[int], numbers: Sequence[int], maps: Sequence[Any] = (),
                 alpha: Any = None, otherwise: Product | None = None, step: Step | None = None,
                 whole: Product | None = None) -> None:
        self.prepared, self.places, self.maps = prepared, tuple(zip(words, numbers)), maps
        self.alpha, self.otherwise, self.whole = alpha, otherwise, whole
        self.spare = [prepared.arguments()]             # blocks of arguments that no call is using
        if step is not None and whole is not None:
            self.workspace, self.counters, self.index = step.workspace, step.counters, step.device.index
            self.workspaces, (self.most, self.most_counters) = whole.recipe.workspaces, whole.recipe.bytes

    def __call__(self, at: list[int], arrays: Sequence[Any], results: Any, alpha: float, stream: int) -> None:
        if self.otherwise is not None and alpha != self.alpha:
            self.otherwise(at, arrays, results, alpha, stream)
            return
        try:
            arguments = self.spare.pop()
        except IndexError:
            arguments = self.prepared.arguments()
        room = None
        if self.whole is not None:
            number = arguments.answers.resting(stream, self.prepared.context)
            room = None if number is None else self.workspaces.found.get((self.index, number))
            if room is None or room.workspace_bytes < self.most or room.counter_bytes < self.most_counters:
                self.spare.append(arguments)
                self.whole(at, arrays, results, alpha, stream)
                return
        words = arguments.words
        for word, number in self.places:
            words[word] = at[number]
        for place, maps, number in self.maps:
            arguments.view[place : place + MAP_BYTES] = maps.found.get(at[number]) or maps(at[number])
        if room is None:
            self.prepared.attempt(stream, arguments)
        else:
            words[self.workspace], words[self.counters] = room.workspace, room.counters
            self.prepared.launch(stream, arguments)
        self.spare.append(arguments)


class Chain:
    """Launches of several programs without temporaries in a row, by the addresses of one list. A repeated layer needs a
    fifth less Python for them than by these programs, whose own lists and calls are left out."""

    @classmethod
    def of_runs(cls, runs: Sequence[tuple[Any, Sequence[int]]]) -> Chain | None:
        """The chain of these runs of records, each with the numbers of its addresses in the list; None where one is
        more than launches, or another than a call with alpha = 1 does."""
        kernels = list[tuple[Any, Sequence[int]]]()
        for run, numbers in runs:
            program: Any = getattr(run, "__self__", None)
            plain = isinstance(program, Program) and not program.size and not program.inside and program.alpha in (
                None, 1)
            kernels += [(step, numbers) for step in (program.steps if plain else [run])]
        if all(isinstance(step, Kernel) and step.whole is None and (step.otherwise is None or step.alpha == 1)
               for step, _ in kernels):
            return cls(kernels)
        return None

    def __init__(self, kernels: Sequence[tuple[Kernel, Sequence[int]]]) -> None:
        self.parts = [(kernel.prepared.attempt, kernel.prepared.arguments, kernel.spare,
                       [(word, numbers[i]) for word, i in kernel.places],
                       [(slice(place, place + MAP_BYTES), maps, numbers[i]) for place, maps, i in kernel.maps])
                      for kernel, numbers in kernels]

    def __call__(self, at: list[int], stream: int) -> None:
        for attempt, new, spare, places, mapped in self.parts:
            try:
                arguments = spare.pop()
            except IndexError:
                arguments = new()
            words, view = arguments.words, arguments.view
            for word, number in places:
                words[word] = at[number]
            for place, maps, number in mapped:
                view[place] = maps.found.get(at[number]) or maps(at[number])
            attempt(stream, arguments)
            spare.append(arguments)


class Launches:
    """The launches of one product, which share a workspace: a temporary of the program's. `launches`: each with the
    words and the maps of its block, by numbers of addresses and bytes from there; `clear`: what is zero before, by a
    number, the bytes from there on, and how many; `alpha`, `otherwise`: as a Kernel has them."""

    def __init__(self, launches: Sequence[tuple[Any, Sequence[tuple[int, int, int]], Sequence[tuple[Any, ...]]]],
                 clear: tuple[int, int, int], alpha: Any = None, otherwise: Product | None = None) -> None:
        self.launches, self.clear, self.alpha, self.otherwise = launches, clear, alpha, otherwise
        self.together = launches[0][0].together
        self.spare = [self._arguments()]

    def _arguments(self) -> list[Any]:
        return [prepared.arguments() for prepared, _, _ in self.launches]

    def __call__(self, at: list[int], arrays: Sequence[Any], results: Any, alpha: float, stream: int) -> None:
        if self.otherwise is not None and alpha != self.alpha:
            self.otherwise(at, arrays, results, alpha, stream)
            return
        try:
            blocks = self.spare.pop()
        except IndexError:
            blocks = self._arguments()
        for arguments, (_, places, mapped) in zip(blocks, self.launches):
            words = arguments.words
            for word, number, offset in places:
                words[word] = at[number] + offset
            for place, maps, number, offset in mapped:
                address = at[number] + offset
                arguments.view[place : place + MAP_BYTES] = maps.found.get(address) or maps(address)
        number, offset, size = self.clear
        self.together(stream, self.launches, blocks, at[number] + offset, size)
        self.spare.append(blocks)


class Product(NamedTuple):
    """A product by a recipe. `numbers`: of the addresses of A, B, C, then of scales and whatever else the recipe takes,
    then, of several launches, of their workspace; `alpha`: None for that of the call, which may be another one in every
    call."""

    recipe: Recipe
    alpha: Any
    beta: Any
    numbers: tuple[int, ...]

    def __call__(self, at: list[int], arrays: Sequence[Any], results: Any, alpha: float, stream: int) -> None:
        a, b, c, *more = [at[number] for number in self.numbers]
        self.recipe.run(a, b, c, alpha if self.alpha is None else self.alpha, self.beta, stream, *more)

    def step(self, any_alpha: bool) -> Kernel | Launches:
        """What calls with this alpha, or with any, do."""
        complete, recipe = self._replace(alpha=None) if any_alpha else self, self.recipe
        factor = self.alpha, complete if any_alpha else None
        if recipe.only is None:
            return self._launches(*factor)
        step = recipe.only
        within = (step, complete) if recipe.needs_workspace else (None, None)
        return Kernel(step.scaled(self.alpha, self.beta), [word for word, _ in step.pointers],
                      [self.numbers[i] for _, i in step.pointers],
                      [(place, maps, self.numbers[i]) for place, maps, i in step.maps], *factor, *within)

    def _launches(self, *factor: Any) -> Launches:
        recipe, room, steps = self.recipe, self.numbers[-1], []
        workspace, counters = recipe.bytes
        for step in recipe.steps:
            at = [(number, 0) if offset is None else (room, offset)
                  for number, offset in zip_longest(self.numbers, step.moved)]
            places = [(word, *at[i]) for word, i in step.pointers]
            places += [(word, room, offset) for word, offset in step.inside]
            if step.needs_workspace:
                places += [(step.workspace, room, 0), (step.counters, room, lines(workspace))]
            steps.append((step.scaled(self.alpha, self.beta), places,
                          [(place, maps, *at[i]) for place, maps, i in step.maps]))
        first = recipe.zero[0] if recipe.zero[1] else lines(workspace)      # what is zero is the end of the workspace
        return Launches(steps, (room, first, recipe.room - first if recipe.zero[1] or counters else 0), *factor)


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
        bytes_of_value = value.astype(dtype).reshape(1).view(np.uint8)
    with device.current():
        for i, word in enumerate(np.resize(bytes_of_value, max(bytes_of_value.size, 4)).view(np.uint32)):
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
