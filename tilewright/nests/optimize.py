"""`tw.optimize(f, *args)`: loops of users become the calls that compute the same faster.

Contractions become products of the planner (parts.py, product.py); other statements remain loops. Before a product is
used, it is compared with the loops on small arrays of whole numbers (verified.py).
"""
from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import targets
from tilewright.api import tensors
from tilewright.ir import Function
from tilewright.nests.domain import check
from tilewright.nests.given import arguments
from tilewright.nests.nest import LoopNest, Refused, refuse
from tilewright.nests.products.online import Online, fused
from tilewright.nests.products.parts import Part, parts
from tilewright.nests.products.pieces import BLOCK, boxes
from tilewright.nests.products.product import Product
from tilewright.nests.reading import launches, recorded
from tilewright.nests.reading.source import nest as read
from tilewright.nests.running import verified
from tilewright.nests.running.again import Calls, meet, span
from tilewright.nests.running.execution import Execution, Given, distinct, look
from tilewright.nests.running.run import Loops, kind
from tilewright.problem import Gemm
from tilewright.runtime.emitted import Emitted
from tilewright.runtime.gpu.arrays import library_of
from tilewright.runtime.parametric import Parametric, device_of

VERIFIED: set[tuple[Any, ...]] = set()          # nests with the sentences of their products that agreed


def optimize(f: Callable[..., Any] | Loops | Function | Emitted | Parametric, *args: Any,
             grid: int | Sequence[int] | None = None, target: Any = None, search: bool = True, timed: bool = True,
             progress: bool = False, temporary: Sequence[str] = ()) -> Optimized:
    """The loops of a function for arguments like these, as fast as tilewright knows how to compute them.

        fast = tw.optimize(three_loops, A, B, C)
        print(fast)                 C[i, j] = sum over p of A[i, p] B[p, j]: matmul of 512 x 512 x 512, compiled as ...
        fast(A, B, C)

    f           a Python function of loops, as `tilewright.loops` takes it, or such a one; or a `tilewright.kernel`, or
                a recorded kernel, for CTAs of a GPU too, whose pointers then are contiguous arrays
    args        arrays with the shapes, strides, formats and device of later calls, whole numbers and floats; a shape in
                place of an array stands for one of f32. Elements are neither read nor written here
    grid        number of CTAs of a launch of a recorded kernel, as in tilewright.simulate
    target      the chip for which plans are named: by default this machine's processor, or the GPU that has the
                arrays

    search      False: loops that are no contraction run as they are written, which takes no time to find out
    timed       False: their schedules are ranked by estimates, and not timed
    progress    True: a bar on standard error while schedules are timed
    temporary   names of arrays that nobody reads afterwards, as scores S of softmax(Q K^T) V (docs/attention.md)

    Contractions become tilewright.matmul, contract and einsum; the statements before and after them become prologues
    and epilogues, on the CPU or GPU that has the arrays. Their results are compared with the loops' on small
    arrays of whole numbers here. Sums are added up in the planner's order and format, so that floats differ from those
    of the loops by rounding; where conditions cut a sum, operands are padded with zeros, and zero times infinity or NaN
    is NaN. Other loops get the fastest schedule of those that rules find (docs/loops.md); it is kept with the results
    of tilewright.tune. `print` says what was seen, what is called, and of loops that remain why.

    Refused, a TypeError with the line, for what loops may not contain, and subscripts that may be outside of an array.
    """
    args = tuple([np.ones(x, np.float32) if _is_shape(x) else x for x in args])
    if isinstance(f, (Emitted, Parametric)):
        f, grid = _of_call(f, args, target, grid)
    if isinstance(f, Function):
        nest = _in_order(recorded.nest(f, 1 if grid is None else grid))
        names: Sequence[str] = [p.name for p in nest.parameters]
        given = look(names, args)
    else:
        if not inspect.isfunction(python := f.python if isinstance(f, Loops) else f):
            raise TypeError(f"optimize takes a Python function of loops, or a kernel, not {f!r}")
        names = list(inspect.signature(python).parameters)
        if len(names) != len(args):
            raise TypeError(f"{python.__name__}{inspect.signature(python)} is given {len(args)} arguments")
        given = look(names, args)
        nest = read(python, [kind(name, x) for name, x in zip(names, given.seen)])
    found = Optimized(nest, given, target, temporary=_named(nest, temporary))
    if isinstance(f, Function):
        found.smaller = lambda *x: ((_in_order(n), *more) for n, *more in launches.smaller(f, grid or 1, *x))
    if found.recognised:
        try:
            found.verify(given)
        except Refused:
            raise
        except (TypeError, ValueError, NotImplementedError) as error:      # formats that go together in loops alone
            found = Optimized(nest, given, target, without=str(error))
    for step in found.steps if search else ():
        if step.loops is not None:
            step.schedule(given, target, timed, progress)
    return found


def _of_call(f: Emitted | Parametric, args: tuple[Any, ...], target: Any, grid: Any) -> tuple[Function, Any]:
    """The kernel and the grid of a call with these arguments."""
    chip = device_of(args) if target is None else targets.coerce(target)
    if isinstance(f, Emitted):
        return f.function(chip), grid
    configuration = f.configuration(chip, *args)
    function = f.function(chip, **configuration)
    return function, f.grid(chip, configuration, f.named(function, args)) if grid is None else grid


def _named(nest: LoopNest, temporary: Sequence[str]) -> tuple[str, ...]:
    """temporary= of these loops. ValueError for names of no array."""
    unknown = {*temporary} - {p.name for p in nest.parameters}
    if isinstance(temporary, str) or unknown:
        said = repr(temporary) if isinstance(temporary, str) else ", ".join(sorted(map(repr, unknown)))
        raise ValueError(f"temporary must be a list of names of arrays of {nest.name}, and has {said}")
    return tuple(temporary)


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple) and all(isinstance(n, (int, np.integer)) for n in x)


def _in_order(nest: LoopNest) -> LoopNest:
    """Blocks and threads as loops, one round after the other."""
    statements = [s._replace(loops=tuple([replace(x, kind="loop") for x in s.loops])) for s in nest.statements]
    return replace(nest, statements=tuple(statements), threads=None)


class Step:
    """A part of the function: the products of a contraction, or statements that remain loops."""

    def __init__(self, nest: LoopNest, part: Part, arrays: Mapping[str, Any], block: int, target: Any) -> None:
        self.part, self.products = part, list[Product]()
        shapes = {name: tuple(x.shape) for name, x in arrays.items()}
        try:
            if part.contraction is not None:
                self.products = [Product(box, arrays, target) for box in boxes(part.contraction, shapes, block)]
        except Refused as refusal:          # by what a product can be asked for
            part.reason = f"{refusal.line}: {refusal.reason}"
        self.nest = replace(nest, statements=part.sources)
        self.loops = None if self.products else Execution(self.nest)
        self.found: Any = None
        self.here = True                # whether what was found is for the chip that has the arrays

    def schedule(self, given: Given, target: Any, timed: bool, progress: bool) -> None:
        """Look for the fastest schedule of loops that remain."""
        from tilewright.nests.search.search import best

        self.found = best(self.nest, given.arrays, target or given.gpu, timed=timed, progress=progress)
        self.here = target is None

    def run(self, given: Given) -> int:
        """The loops, by the schedule that was found if there is one. How many launches on a GPU that is."""
        if self.found is not None and self.here and self.found.changed:
            self.found(*given.arrays)
            return int(self.found.launches)
        return 0 if self.loops is None else self.loops.run(given)

    def __str__(self) -> str:
        if not self.products:
            lines = sorted({s.line.number for s in self.part.sources})
            how = f"; {self.found}" if self.found is not None else ""
            return f"loops, of the lines {', '.join(map(str, lines))}: {self.part.reason}{how}"
        blocks = f", in {len(self.products)} blocks" if len(self.products) > 1 else ""
        return f"{self.products[0]}{blocks}: {self.products[0].how}"


class Fused(Step):
    """All statements of a nest as one reduction (products/online.py)."""

    def __init__(self, nest: LoopNest, found: Online) -> None:
        self.part, self.products, self.nest = Part([], sources=nest.statements), [found], nest    # type: ignore[list-item]
        self.loops, self.found, self.here = None, None, True


class Optimized:
    """A function's loops as calls, for arguments of given shapes and strides: `optimized(*args)` computes what the
    function does. `print` says which products were recognised, how they are computed, and why other loops remain."""

    def __init__(self, nest: LoopNest, given: Given, target: Any = None, block: int = BLOCK, without: str = "",
                 temporary: tuple[str, ...] = ()) -> None:
        """`without`: why no product is looked for."""
        self.nest, self.temporary = nest, temporary
        self._calls, self._tried = Calls(), False
        self._known: Any = ()           # arrays of an earlier call, whose launches are none that others could repeat
        self.smaller: Callable[..., Any] = lambda shapes, sizes: (
            (nest, *more) for more in verified.smaller(nest, shapes, sizes))
        self.names = [p.name for p in nest.parameters]
        self.places = [i for i, p in enumerate(nest.parameters) if p.kind in ("array", "pointer")]
        seen, self.sizes = arguments(nest, given.seen)
        arrays, _ = arguments(nest, given.args)
        self.layout = [laid_out(x) if isinstance(x, np.ndarray) else x for x in given.seen]
        check(nest, self.sizes, {name: x.shape for name, x in seen.items()})
        self.written = {s.target.array for s in nest.statements} & seen.keys()
        self.apart = [(a, b) for a in sorted(self.written) for b in seen
                      if a != b and not (b in self.written and b < a) and not np.may_share_memory(seen[a], seen[b])]
        for s in nest.reads:
            for b in sorted(self.written - {s.target.array}):
                if np.may_share_memory(seen[s.target.array], seen[b]):
                    refuse(s.line, f"{s.target.array} shares memory with {b}, which is written before this is used")
        tangled = [name for name in sorted(self.written) if not distinct(seen[name])]
        without = without or (f"elements of {tangled[0]} share memory" if tangled else "")
        if without:
            found = [Part([], None, without, sources=nest.statements)]
        else:
            found = parts(nest, self.sizes,
                          lambda a, b: a == b or ((a, b) not in self.apart and (b, a) not in self.apart))
        loops = any(part.contraction is None for part in found)
        whole = fused(nest, self.sizes, temporary) if (temporary or loops) and not without else ""
        if isinstance(whole, Online) and given.gpu and not whole.plain:
            whole = "results are more than those of attention, which arrays on a GPU have to be"
        if isinstance(whole, Online):
            self.steps: list[Step] = [Fused(nest, whole)]
            return
        chip = given.gpu if target is None else targets.target(target)
        self.steps = [Step(nest, part, arrays, block, chip) for part in found]
        for step in self.steps if whole and temporary else ():
            step.part.reason = step.part.reason and f"{step.part.reason}; no reduction of all: {whole}"

    @property
    def problems(self) -> list[Gemm]:
        """The products of contiguous matrices that are computed, one for each block of a contraction."""
        return [p.problem for step in self.steps for p in step.products if p.problem is not None]

    @property
    def recognised(self) -> bool:
        """Whether any statement has become a product."""
        return any(step.products for step in self.steps)

    def __call__(self, *args: Any, **named: Any) -> None:
        """Compute the results of these arguments, which are laid out like those that it was made for."""
        if named or len(args) != len(self.layout):
            left = self.names[len(args):]
            if len(args) > len(self.layout) or set(left) != named.keys():
                raise TypeError(f"{self.nest.name} takes ({', '.join(self.names)}), and is given {len(args)} arguments "
                                f"by position and {', '.join(named) or 'none'} by name")
            args = (*args, *[named[name] for name in left])
        if self._calls.again(args):
            return
        plain = all(type(x) in (np.ndarray, int, float) for x in args)
        if not plain and self._known and self._again(args):
            return
        given = Given(args, args, None) if plain else look(self.names, args)
        arrays, seen, numbers = dict[str, Any](), dict[str, Any](), dict[str, Any](self.sizes)
        for p, x, shadow, expected in zip(self.nest.parameters, args, given.seen, self.layout):
            if p.kind in ("array", "pointer"):
                if not isinstance(shadow, np.ndarray) or laid_out(shadow) != expected:
                    raise ValueError(f"{p.name} has another shape, other strides or another format than the array that "
                                     f"{self.nest.name} was optimized for: {expected}")
                if p.name in self.written and not shadow.flags.writeable:
                    raise ValueError(f"{p.name} is read-only, and {self.nest.name} writes it")
                arrays[p.name], seen[p.name] = x if p.kind == "array" else x.reshape(-1), shadow
            elif p.kind == "number":
                numbers[p.name] = float(shadow)
            elif shadow != expected:
                raise ValueError(f"{p.name} is {shadow}, and {self.nest.name} was optimized for {expected}")
        for a, b in self.apart:
            if np.may_share_memory(seen[a], seen[b]):
                raise ValueError(f"{self.nest.name} was optimized for {a} and {b} that share no memory, and these do")
        if plain or given.gpu is None:
            self._run(given, arrays, numbers)
        else:
            written = [i for i, p in enumerate(self.nest.parameters) if p.name in self.written]
            self._calls.run(args, given.seen, written, lambda: self._run(given, arrays, numbers))
        if not plain and self._tried:
            self._remember(args, seen)
        self._tried = True

    def _run(self, given: Given, arrays: Mapping[str, Any], numbers: Mapping[str, Any]) -> int | None:
        """Compute the results; how many launches on a GPU that is, None if they are not the same in all such calls."""
        count, alike = 0, len(numbers) == len(self.sizes)
        for step in self.steps:
            for product in step.products:
                product.run(arrays, numbers)
                count, alike = count + 1, alike and product.of_views
            if not step.products:
                count += step.run(given)
        return count if alike else None

    def _remember(self, args: Sequence[Any], seen: Mapping[str, Any]) -> None:
        """Note what these tensors, or arrays on a GPU, are known by: products of such ones need no look at them."""
        own = [args[i] for i in self.places]
        library = library_of(*own) or tensors.HOST
        asked = library.asked(own)
        if asked is None or any(step.loops is not None for step in self.steps):
            return
        names = [*seen]
        self._known = (library, asked[0], [(names.index(a), names.index(b)) for a, b in self.apart],
                       [span(x) for x in seen.values()])

    def _again(self, args: Sequence[Any]) -> bool:
        """Compute the results of arrays like those of an earlier call; False if they are others."""
        library, key, apart, spans = self._known
        asked = library.asked([args[i] for i in self.places])
        if asked is None or asked[0] != key:
            return False
        if meet(asked[1], apart, spans):
            return False
        for p, x, expected in zip(self.nest.parameters, args, self.layout):
            if p.kind == "size" and not (type(x) is int and x == expected):
                return False
            if p.kind == "number" and type(x) is not float:
                return False
        arrays = {p.name: x if p.kind == "array" else x.reshape(-1) for p, x in zip(self.nest.parameters, args)
                  if p.kind in ("array", "pointer")}
        numbers = self.sizes | {p.name: x for p, x in zip(self.nest.parameters, args) if p.kind == "number"}
        for step in self.steps:
            for product in step.products:
                product.run(arrays, numbers)
        return True

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps)) or "nothing: all loops are empty"

    def verify(self, given: Given) -> None:
        """Compare with the loops on small arrays. Refused if the results differ."""
        sentence = self._sentence()
        key = (self.nest.name, self.nest.statements, self.nest.parameters, sentence)
        if key in VERIFIED:
            return
        seen, sizes = arguments(self.nest, given.seen)
        whole = {name: n for name, n in sizes.items() if name in self.nest.sizes}
        line = self.nest.statements[0].line
        for nest, shapes, numbers in self.smaller({name: x.shape for name, x in seen.items()}, whole):
            args = verified.arguments(nest, seen, shapes, numbers)
            small = Optimized(nest, look(self.names, args), block=2, temporary=self.temporary)
            if small._sentence() != sentence:
                continue            # too small to be the same products
            if not verified.agree(nest, args, small, Execution(nest), self.temporary):
                refuse(line, f"its products and its loops differ on small whole numbers: {'; '.join(sentence)}")
            VERIFIED.add(key)
            return
        refuse(line, f"no smaller sizes were found to compare its products with its loops: {'; '.join(sentence)}")

    def _sentence(self) -> tuple[str, ...]:
        """What the products are; strides of pointers are numbers, other ones for other sizes."""
        return tuple(re.sub(r"\d+", "n", str(step.products[0])) for step in self.steps if step.products)


def laid_out(x: np.ndarray) -> tuple[Any, ...]:
    """What an array must have in common with the one that loops were optimized for."""
    return x.shape, x.strides, x.dtype
