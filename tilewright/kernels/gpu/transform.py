"""The prologue of an operand inside a kernel (expressions/function.py): what a thread has loaded of the operand, as it
is stored, becomes the numbers that are multiplied, in registers.

A kernel with one has further parameters (gpu/auxiliary.py), of_a_NAME or of_b_NAME for what the prologue reads beside
the elements. Where the operand is contiguous along rows of A, or columns of B, numbers for each of these are, too, and
aligned as far as a vector of the operand's elements needs it.

Elements come as vectors along k, or across it. A factor that all elements of a *run* of k have in common (scales of
groups) is taken out (expressions/factors.py): the kernel multiplies the sum of a run by it.
"""
from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

from tilewright.expressions import HALVES, texts
from tilewright.expressions.factors import factored, parameters as needed, subtracted, whole_in_floats
from tilewright.expressions.function import Aux, Prologue
from tilewright.expressions.program import Expression
from tilewright.formats import FORMATS, Integer
from tilewright.ir import Kernel, Type, Value, f32, i32, i64, vec
from tilewright.kernels.expression import recorded
from tilewright.kernels.gpu.fused import PAIRS, rounded
from tilewright.kernels.gpu.unpack import MOST, UNITS, Held, floats, numbers, pairs, twice
from tilewright.kernels.narrow import memory_type
from tilewright.targets.nvidia import TARGETS

WIDEST = 16                         # bytes that a thread loads at once
SECTOR = 32                         # and that caches bring
EXACT, EIGHT = ("e8m0", "e4m3fn"), 8        # formats of scales whose products with e2m1 bf16 has
FLOATS = "f32", "bf16", "f16"               # of others
HELD = "i4x2", "u4x2", "i8"                  # formats that are decoded by constants in registers
BIASED = "i8", "u8", "i4x2", "u4x2"         # formats from whose numbers others are subtracted at no cost
TYPES = {"float": f32, "int": i32}

Loaded = dict[str, list[Value]]     # of each operand a number for each element of a vector, or one for all


def memory(PROLOGUE: str, T: Type) -> Type:
    """The type of an operand's elements in memory, which is T without a prologue."""
    return memory_type(texts.prologue(PROLOGUE).element) if PROLOGUE else T


def together(PROLOGUE: str) -> int:
    """Elements of an operand in one of those."""
    return 2 if PROLOGUE and texts.prologue(PROLOGUE).source.endswith(HALVES) else 1


def suffix(*PROLOGUES: str) -> str:
    """The suffix of the name of a kernel with these prologues."""
    return "".join(f"_of_{role}_{texts.prologue(text).digest}" for role, text in zip("ab", PROLOGUES) if text)


@dataclass(frozen=True)
class Transform:
    """The prologue of operand ROLE, of which vectors go along k or across it.

    inner       the expression of each element, without the factors of runs; of the element less operand `zero`, if
                there is one
    factor      those
    WHOLE       integers are computed in f32, which has them exactly
    FP8, PAIR   the chip converts two fp8 to f16, and rounds two f32, at once
    """
    k: Kernel
    g: SimpleNamespace
    ROLE: str
    prologue: Prologue
    ALONG_K: bool
    inner: Expression
    factor: Expression | None
    WHOLE: bool
    FP8: bool
    PAIR: bool
    zero: str
    common: frozenset[str]      # of operands that all steps of a run share
    held: Held | None
    unit: float                 # by which numbers are to be multiplied last, with the factors
    SCALED: bool = False        # `words` also of digits times a scale that bf16 does not hold

    @classmethod
    def from_arguments(cls, k: Kernel, g: SimpleNamespace, ROLE: str, PROLOGUE: str, *, ALONG_K: bool, RUN: int = 0,
                       ARCH: str = "sm_75", PAIRED: bool = False, SCALED: bool = False) -> Transform | None:
        """The prologue of a kernel with the arguments g, by name. RUN: steps of k, a divisor of groups' sizes that have
        common factors, whose sums the kernel multiplies by `factors`; 0: it does not. ARCH: the target whose
        conversions it takes. PAIRED: `words` are taken where they can be made; SCALED: see there."""
        if not PROLOGUE:
            return None
        prologue = texts.prologue(PROLOGUE)
        prologue = replace(prologue, reads=prologue.arrays(ROLE))
        common = frozenset(x.name for x in prologue.reads if RUN and (not x.along_k or x.group % RUN == 0))
        inner, factor = factored(prologue.expression, common if RUN else None)
        first = prologue.expression.parameters[0][0]
        formats = {first: prologue.element} | {x.name: x.format for x in prologue.reads}
        sizes = {name: 1 << f.bits - f.signed for name, format in formats.items()
                 if isinstance(f := FORMATS[format], Integer)}
        integral, zero = whole_in_floats(inner, sizes), ""
        if integral and prologue.source in BIASED and (offset := subtracted(inner)) and sizes[offset[1]] <= 1 << 16:
            inner, zero = offset
        return cls(k, g, ROLE, prologue, ALONG_K, inner, factor, integral, "fp8" in TARGETS[ARCH].instructions,
                   "bf16" in TARGETS[ARCH].instructions, zero, common,
                   Held.constants(k, prologue.source, PAIRS.get(prologue.result, f32), g.m)
                   if prologue.source in HELD else None,
                   1.0 if factor is None or inner.lines or PAIRED else UNITS.get(prologue.source, 1.0), SCALED)

    @property
    def S(self) -> Type:
        """The type of an element in memory, or of two."""
        return memory(self.prologue.text, f32)

    @property
    def TOGETHER(self) -> int:
        """Elements in one of those."""
        return together(self.prologue.text)

    @property
    def T(self) -> Type:
        """The type in memory of a number as it is multiplied."""
        return memory_type(self.prologue.result)

    def operand_vectors(self, COUNT: int) -> dict[str, tuple[Type, int]]:
        """Type and count of the numbers that `beside` reads for a vector of COUNT elements, by operand."""
        names = self.names
        own = {x.name: x.along_k and x.group % COUNT > 0 if self.ALONG_K else x.across_k for x in self.prologue.reads}
        return {x.name: (memory_type(x.format), COUNT if own[x.name] else 1)
                for x in self.prologue.reads if x.name in names}

    def beside(self, i: Value, p: Value, COUNT: int) -> Loaded:
        """What is read beside a vector of COUNT elements, the first of which is element i at step p of k, alone."""
        return self.loaded(self.names - self.common, i, p, COUNT)

    def of_run(self, i: Value, p: Value, COUNT: int) -> Loaded:
        """What is read for a run of k that begins at step p: operands that all its elements share."""
        names = self.names | (needed(self.factor) if self.factor else set())
        return self.loaded(names & self.common, i, p, COUNT)

    def of_rows(self, i: Value, EVERY: int, p: Value, COUNT: int) -> Iterator[Loaded]:
        """`beside` and `of_run` of vectors along k of every so manieth element from i on: by one pointer that goes on,
        where one for each would take registers."""
        names = self.names | (needed(self.factor) if self.factor else set())
        every = [x for x in self.prologue.reads if x.name in names]
        at = {x.name: self._at(x, i, p) for x in every}
        while True:
            yield {x.name: self._load_from(x, at[x.name], p, COUNT) for x in every}
            for x in every:
                if x.across_k:
                    at[x.name] = at[x.name] + getattr(self.g, f"ld_{x.parameter}")*EVERY

    def touch(self, t: Value, THREADS: int, i: Value, COUNT: int, p0: Value, p1: Value) -> Value:
        """All threads load what is read beside COUNT elements from i on and steps p0 to p1 of k, one number of each
        sector where they lie side by side along k: L1 has them then. The largest, for something to depend on."""
        k, kept = self.k, self.k.variable(i32, 0)
        for at in self._sectors(t, THREADS, i, COUNT, p0, p1):
            touched = k.load(at)
            bits = k.bits_as(touched, i32) if touched.type.bits == 32 else k.cast(touched, i32)
            kept.set(k.max(kept.get(), bits))
        return kept.get()

    def request(self, t: Value, THREADS: int, i: Value, COUNT: Value | int, p1: Value, p0: Value | int = 0) -> None:
        """All threads ask L2 for the same numbers, which is no access to memory."""
        for at in self._sectors(t, THREADS, i, COUNT, p0, p1):
            self.k.prefetch(at, locality=2)

    def _sectors(self, t: Value, THREADS: int, i: Value, COUNT: Value | int, p0: Value | int, p1: Value
                 ) -> Iterator[Value]:
        k, names = self.k, self.names | (needed(self.factor) if self.factor else set())
        for x in self.prologue.reads:
            if x.name in names and x.across_k:
                STEPS = x.group * SECTOR // memory_type(x.format).bytes
                sectors = k.ceil_div(k.max(p1 - p0, 0), STEPS) if x.along_k else 1
                with k.loop(sectors*COUNT, start=t, step=THREADS, unroll=False) as number:
                    yield self._at(x, i + number % COUNT, number // COUNT * STEPS + p0)

    def loaded(self, names: Container[str], i: Value, p: Value, COUNT: int) -> Loaded:
        """The numbers of these operands for a vector of COUNT elements that begins with element i at step p of k."""
        return {x.name: self._load(x, i, p, COUNT) for x in self.prologue.reads if x.name in names}

    @property
    def names(self) -> set[str]:
        """Names of the operands that are read beside elements."""
        return needed(self.inner) | ({self.zero} if self.zero else set())

    @property
    def parameters(self) -> list[str]:
        """Parameters of the kernel that are arrays beside the elements."""
        return [x.parameter for x in self.prologue.reads]

    def _load(self, x: Aux, i: Value, p: Value, COUNT: int) -> list[Value]:
        return self._load_from(x, self._at(x, i, p), p, COUNT)

    def _at(self, x: Aux, i: Value, p: Value) -> Value:
        """Where the number is for element i and step p of k."""
        k, name = self.k, x.parameter
        at = getattr(self.g, name)
        if x.across_k:
            i = k.cast(i, i64)
            at = at + (i*getattr(self.g, f"ld_{name}") if self.ALONG_K else i)
        if x.along_k:
            at = at + k.cast(p // x.group if x.group > 1 else p, i64)*getattr(self.g, f"k_{name}")
        return at

    def _load_from(self, x: Aux, at: Value, p: Value, COUNT: int) -> list[Value]:
        """Load an operand's numbers for a vector whose first number is at `at`."""
        k, by_i = self.k, x.across_k
        if x.along_k and self.ALONG_K and x.group % COUNT:     # it has steps of several groups
            group, apart = x.group if COUNT % x.group == 0 else 1, getattr(self.g, f"k_{x.parameter}")
            first = p // x.group
            numbers = [k.load(at + k.cast((p + e) // x.group - first, i64)*apart) for e in range(0, COUNT, group)]
            return [y for y in numbers for _ in range(group)]
        if not by_i or self.ALONG_K or COUNT == 1:
            return [k.load(at)]
        most = min(COUNT, WIDEST // at.type.element.bytes)
        parts = [k.load(at + e, vec(at.type.element, most)) for e in range(0, COUNT, most)]
        return [part[e] for part in parts for e in range(most)] if most > 1 else parts

    def numbers(self, raw: Value, beside: Loaded) -> list[Value]:
        """Results of the prologue for a vector of elements as they are stored, in f32: not rounded, without the
        factors. `beside`: of the vector, and of its run."""
        first = self.prologue.expression.parameters[0][0]
        beside = {name: x for name, x in beside.items() if name in self.names}
        given, rest = self._given(first, raw, beside), {name: x for name, x in beside.items() if name != self.zero}
        return self._computed(self.inner, {first: given}, rest, raw.type.length*self.TOGETHER)

    def factors(self, beside: Loaded, COUNT: int = 1) -> list[Value]:
        """What the sums of a run are multiplied by: one number, or one for each of COUNT elements across k."""
        assert self.factor is not None
        all_factors: list[Value] = []
        for e in range(COUNT):
            factor_values = [self._one(self.factor, at, beside, e) for at in range(len(self.factor.results))]
            factor_values += [self.k.constant(f32, self.unit)]*(self.unit != 1)
            while len(factor_values) > 1:
                factor_values = [factor_values[0]*factor_values[1], *factor_values[2:]]
            all_factors += factor_values
        return all_factors

    def _one(self, expression: Expression, at: int, beside: Loaded, e: int) -> Value:
        names = needed(expression)
        single = {name: [values[e % len(values)]] for name, values in beside.items() if name in names}
        number: Value = self._computed(expression, {}, single, 1, at)[0]
        return number

    def _given(self, name: str, raw: Value, beside: Loaded) -> list[Value]:
        """Elements in the type that the expression computes in."""
        if self.WHOLE or dict(self.inner.parameters)[name] == "float":
            zeros = [self._wide(self.zero, x) for x in beside[self.zero]] if self.zero else []
            return floats(self.k, raw, self.prologue.source, self.FP8, zeros, self.unit != 1, self.held)
        if self.TOGETHER > 1:                                               # i4 and u4 of 32 bits
            return [self.k.cast(x, i32) for x in floats(self.k, raw, self.prologue.source)]
        return numbers(self.k, raw, self.prologue.source, i32)

    def _wide(self, name: str, x: Value) -> Value:
        """A number of what is read, in f32."""
        return floats(self.k, x, next(y.format for y in self.prologue.reads if y.name == name))[0]

    def _computed(self, expression: Expression, given: Loaded, beside: Loaded, COUNT: int, at: int = 0) -> list[Value]:
        k, kinds, formats = self.k, dict(expression.parameters), {x.name: x.format for x in self.prologue.reads}
        if self.WHOLE:
            for name, values in beside.items():
                given = given | {name: [self._wide(name, x) for x in values]}
            return [recorded(k, expression, {name: x[e % len(x)] for name, x in given.items()}, f32, f32)[at]
                    for e in range(COUNT)]
        wide = given | {name: [y for x in values for y in numbers(k, x, formats[name], TYPES[kinds[name]])]
                        for name, values in beside.items()}
        elements = list[Value]()
        for first in range(0, COUNT, MOST):         # integers that are data: elements of vectors are bits, not indices
            lanes = range(first, max(min(first + MOST, COUNT), first + 2))
            vectors = {name: k.pack(*(x[e % len(x)] for e in lanes)) for name, x in wide.items()}
            vector = recorded(k, expression, vectors, f32)[at]
            vector = vector if vector.type.length > 1 else k.broadcast(vector, len(lanes))
            elements += [vector[e] for e in range(min(MOST, COUNT - first))]
        return elements

    @property
    def INTERLEAVED(self) -> bool:
        """Whether `words` makes pairs of numbers of 4 bits in 16 bits, without computing each."""
        lines = [x for x in self.inner.lines if x.operation != "float"]
        if not (self.TOGETHER == 2 and self.PAIR and self.prologue.result in PAIRS and self.WHOLE and self.ALONG_K):
            return False
        if not lines:
            return True
        scale = self._scale
        return (self.prologue.result == "bf16" and len(lines) == 1 and lines[0].operation == "mul" and scale is not None
                and scale.format in (EXACT if self.prologue.element == "e2m1" else FLOATS*self.SCALED)
                and scale.name in lines[0].operands and (scale.group % EIGHT == 0 or not scale.along_k))

    @property
    def BYTES(self) -> bool:
        """Whether `unpack.signed_bytes` makes pairs of numbers of i8 that nothing is done to."""
        return (self.prologue.source == "i8" and self.prologue.result == "bf16" and self.PAIR and self.WHOLE
                and not self.zero and all(x.operation == "float" for x in self.inner.lines))

    @property
    def _scale(self) -> Aux | None:
        """The only operand that is read beside elements, apart from `zero`; None if there are others."""
        operands = [x for x in self.prologue.reads if x.name in self.names - {self.zero}]
        return operands[0] if len(operands) == 1 else None

    def words(self, raw: Value, beside: Loaded, SPREAD: bool = False) -> list[Value]:
        """The numbers of a vector of INTERLEAVED elements, rounded, in words of two: of each eight 0 and 4, 1 and 5, 2
        and 6, 3 and 7; SPREAD: of a vector of words that have two from bits 0 and 16 on."""
        k, T, lines = self.k, PAIRS[self.prologue.result], [x for x in self.inner.lines if x.operation != "float"]

        def wide(name: str) -> list[Value]:
            return [self._wide(name, x) for x in beside[name][::EIGHT]]

        def both(numbers: list[Value]) -> list[Value]:
            return [k.round_pair(k.pack(x, x), T) for x in numbers]
        minus = both(wide(self.zero)) if self.zero else []
        scale = self._scale if lines else None
        times, rest = list[Value](), list[Value]()
        if scale and scale.format in EXACT:
            times = [twice(k, x, scale.format, T, self.FP8) for x in beside[scale.name][::EIGHT]]
        elif scale:                                     # and what bf16 lacks of it
            exact = wide(scale.name)
            times = both(exact)
            there = [k.bits_as(x << 16, f32) for x in times]
            rest = both([k.select(x == y, 0.0, x - y) for x, y in zip(exact, there)])
        return pairs(k, raw, self.prologue.source, T, minus, times, self.held, SPREAD, rest)

    def rounded(self, xs: list[Value]) -> Value:
        """Numbers rounded to the format that is multiplied, a vector of memory's type."""
        return rounded(self.k, xs, self.prologue.result, self.PAIR)

    def pairs(self, xs: list[Value]) -> list[Value]:
        """Numbers rounded to the format that is multiplied, as words of two."""
        T = PAIRS[self.prologue.result]
        return [self.k.round_pair(self.k.pack(*xs[e:e + 2]), T) for e in range(0, len(xs), 2)]
