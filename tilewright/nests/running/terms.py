"""Polynomials, elements and terms of a loop nest as values of a kernel. lower.py has the loops around them.

Arithmetic is that of nest.py, with one addition: a float product that a reduction adds, C += x * y, is rounded together
with the sum (k.fma). Whole numbers are i64. Inside a loop that is marked "vector" a value is a vector with an element
for each of its rounds, or one number where all rounds have the same.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from tilewright.expressions.operations import OPERATIONS
from tilewright.ir import Kernel, Type, Value, f16, f32, f64, i16, i32, i64, vec
from tilewright.ir.program import Line, Register, Write
from tilewright.ir.values import Variable
from tilewright.nests.nest import Access, LoopNest, Term, arithmetic, refuse
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.tree import Buffer, Do

LANE = "<lane>"                 # the name, in polynomials, of the round of the vector loop
EXCHANGE = "lane_xor"           # before a number: a term of what another lane of the warp has
Terms = tuple[tuple[tuple[str, ...], int], ...]
BOOLS = ("eq", "ne", "and", "or", "xor")


@dataclass
class Memory:
    """An array in memory: its first element, and for each axis the elements, or the name of their number, from one
    index to the next. `align`: bytes that divide the address."""
    pointer: Value
    element: Type
    strides: tuple[int | str, ...]
    align: int


class Arithmetic:
    """Records what statements compute. `numbers` has the values of names in polynomials, `memories` those of arrays."""

    def __init__(self, k: Kernel, nest: LoopNest, buffers: Mapping[str, Buffer]) -> None:
        self.k, self.nest, self.buffers = k, nest, buffers
        self.numbers: dict[str, Value] = {}             # sizes, strides, and indices of the loops around
        self.depth: dict[str, int] = {}                 # loops around an index's; a size has none
        self.env: dict[str, Polynomial] = {}            # indices that are known by other names: of unrolled loops
        self.parameters: dict[str, Value] = {}
        self.memories: dict[str, Memory] = {}
        self.cells: dict[tuple[str, int], tuple[Variable, int]] = {}      # of registers: (buffer, element), (…, lane)
        self.length = 1                                 # rounds of the vector loop around
        self.mask: Value | None = None                  # those that are on
        self.copies = False                             # whether the target copies to shared memory by cp.async
        self.asynchronous = False                       # copies are: those that are not `on` fill with zeros
        self.on: Value | None = None
        self.known: list[dict[Any, Value]] = [{}]       # what has been computed, in each of the blocks around
        self.begun: set[Register] = set()               # registers that begin with zeros
        self.line = Line("", 0)                       # of the statement that is being recorded
        self._offsets: dict[Access, Polynomial] = {}

    def element(self, array: str) -> Type:
        return self.buffers[array].element if array in self.buffers else self.nest.element(array)

    @contextmanager
    def block(self) -> Iterator[None]:
        """What is computed in here is unknown after it."""
        self.known.append({})
        yield
        self.known.pop()

    def _remembered(self, key: Any) -> Value | None:
        return next((value for known in self.known if (value := known.get(key)) is not None), None)

    # ---- whole numbers

    def replaced(self, p: Polynomial) -> Polynomial:
        """p in names that have values, and LANE."""
        return p.replaced(self.env)

    def whole(self, p: Polynomial) -> Value:
        """The number of a polynomial without LANE."""
        if p.constant is not None:
            return self.k.constant(i64, p.constant)
        if LANE in p.names:
            raise ValueError(f"{p} differs between the rounds of a vector loop")
        constant = sum(c for names, c in p.terms if not names)
        return self._total(self._ordered(p)) + constant

    def _ordered(self, p: Polynomial) -> Terms:
        """Its terms but the constant: first those that stay the same for longest."""
        def deepest(term: tuple[tuple[str, ...], int]) -> int:
            return max(self.depth.get(name, 0) for name in term[0])
        return tuple(sorted([x for x in p.terms if x[0]], key=deepest))

    def _total(self, terms: Terms) -> Value:
        total = self._remembered(terms)
        if total is None:
            names, c = terms[-1]
            total = self._product(tuple(sorted(names, key=lambda name: self.depth.get(name, 0)))) * c
            if len(terms) > 1:
                total = self._total(terms[:-1]) + total
            self.known[-1][terms] = total
        return total

    def _product(self, names: tuple[str, ...]) -> Value:
        if len(names) == 1:
            return self.numbers[names[0]]
        product = self._remembered(names)
        if product is None:
            product = self.known[-1][names] = self._product(names[:-1]) * self._product(names[-1:])
        return product

    def lanes(self, p: Polynomial) -> tuple[Polynomial, Polynomial]:
        """(p of the vector loop's first round, what each round adds)."""
        if LANE not in p.names:
            return p, Polynomial(())
        steps = [(tuple(x for x in names if x != LANE), c) for names, c in p.terms if LANE in names]
        return Polynomial([x for x in p.terms if LANE not in x[0]]), Polynomial(steps)

    def index(self, p: Polynomial, of: Callable[[Value], Value]) -> Value:
        """of(x) for the number of a polynomial; a vector of them where rounds of the vector loop differ in it."""
        first, step = self.lanes(self.replaced(p))
        if not step.terms:
            return of(self.whole(first))
        return self.k.pack(*(of(self.whole(first + step * e)) for e in range(self.length)))

    # ---- elements

    def offset(self, a: Access) -> Polynomial:
        """Elements from the array's first one, in names that have values."""
        distance = self._offsets.get(a)
        if distance is None:
            strides = self._strides(a.array)
            parts = [x * polynomial(stride) for x, stride in zip(a.subscripts, strides, strict=True)]
            distance = self._offsets[a] = Polynomial([term for p in parts for term in p.terms])
        return self.replaced(distance)

    def _strides(self, array: str) -> tuple[int | str, ...]:
        if array in self.memories:
            return self.memories[array].strides
        return self.buffers[array].strides if array in self.buffers else ()

    def _place(self, a: Access) -> tuple[Value, Polynomial, int]:
        """(address in the first of the vector loop's rounds, elements from round to round, its alignment)."""
        memory = self.memories[a.array]
        first, step = self.lanes(self.offset(a))
        constant = sum(c for names, c in first.terms if not names)
        terms = self._ordered(first)
        pointer = memory.pointer
        if terms:
            place = self._remembered((a.array, terms))
            if place is None:
                place = self.known[-1][a.array, terms] = pointer + self._total(terms)
            pointer = place
        bits = memory.align
        for _, c in first.terms:
            bits |= c * memory.element.bytes
        return pointer + constant, step, bits & -bits

    def load(self, a: Access) -> Value:
        """An element, or one for each round of the vector loop."""
        if a.array not in self.memories:
            return self._read(self._cells(a))
        pointer, step, align = self._place(a)
        t, n, k = self.element(a.array), self.length, self.k
        if not step.terms:
            return k.load(pointer, t, align=t.bytes)
        if step.constant == 1:
            moved = self._moved(t)
            value = k.load(pointer.as_(moved), vec(moved, n), self._aligned(align, t), self.mask)
            return value if moved is t else k.bits_as(value, vec(t, n))
        places = [pointer + self.whole(step * e) for e in range(n)]
        return k.pack(*(k.load(p, t, align=t.bytes, mask=self._on(e)) for e, p in enumerate(places)))

    def store(self, a: Access, x: Value) -> None:
        t, n, k = self.element(a.array), self.length, self.k
        if a.array not in self.memories:
            self._write(self._cells(a), x)
            return
        pointer, step, align = self._place(a)
        if not step.terms:
            k.store(pointer, self._alike(x, a), align=t.bytes)
            return
        x = self.wide(x, n)
        if step.constant == 1:
            moved = self._moved(t)
            x = x if moved is t else k.bits_as(x, vec(moved, n))
            k.store(pointer.as_(moved), x, self._aligned(align, t), self.mask)
            return
        for e in range(n):
            k.store(pointer + self.whole(step * e), x[e], align=t.bytes, mask=self._on(e))

    def _moved(self, t: Type) -> Type:
        """The format in which vectors are moved: under a mask LLVM moves bf16 one by one, and may store two for one."""
        return i16 if t.is_float and t.bits == 16 and self.mask is not None else t

    def _aligned(self, align: int, t: Type) -> int:
        size = t.bytes * self.length
        return max(min(align, size & -size), t.bytes)

    def _on(self, e: int) -> Value | None:
        return None if self.mask is None else self.mask[e]

    def _alike(self, x: Value, a: Access) -> Value:
        if x.type.length > 1:
            refuse(self.line, f"{a} is one element for all rounds of a vector loop, and each has another value")
        return x

    # ---- registers: scalars of the nest, and buffers

    def _cells(self, a: Access) -> list[tuple[str, int]]:
        """The element, or those of the vector loop's rounds, by their numbers."""
        first, step = self.lanes(self.offset(a))
        if first.constant is None or (step.terms and step.constant is None):
            refuse(self.line, f"{a} is in registers, whose axes are loops that are unrolled or of vectors")
        keys = [(a.array, first.constant + (step.constant or 0) * e) for e in range(self.length if step.terms else 1)]
        if any(key not in self.cells for key in keys):
            t = self.element(a.array)
            if len(keys) > 1 and step.constant == 1 and not any(key in self.cells for key in keys):
                variable = self.k.variable(vec(t, len(keys)))
                self.cells |= {key: (variable, e) for e, key in enumerate(keys)}
            for key in keys:
                if key not in self.cells:
                    self.cells[key] = self.k.variable(t), 0
        return keys

    def _whole_variable(self, keys: Sequence[tuple[str, int]]) -> Variable | None:
        """The variable whose elements these are, in this order."""
        variable = self.cells[keys[0]][0]
        complete = len(keys) == variable.tile.type.length and all(
            self.cells[key] == (variable, e) for e, key in enumerate(keys))
        return variable if complete else None

    def _read(self, keys: Sequence[tuple[str, int]]) -> Value:
        variable = self._whole_variable(keys)
        if variable is not None:
            return variable.get()
        values = [(v.get() if v.tile.type.length == 1 else v.get()[e]) for v, e in (self.cells[key] for key in keys)]
        return values[0] if len(values) == 1 else self.k.pack(*values)

    def _write(self, keys: Sequence[tuple[str, int]], x: Value) -> None:
        x = self.wide(x, len(keys))
        if self.mask is not None and len(keys) > 1:
            self._begin([self.cells[key][0] for key in keys])
            x = self._chosen(self.mask, x, self._read(keys))
        variable = self._whole_variable(keys)
        if variable is not None:
            variable.set(x)
            return
        for n, key in enumerate(keys):
            variable, e = self.cells[key]
            part = x if len(keys) == 1 else x[n]
            length = variable.tile.type.length
            if length > 1:
                old = variable.get()
                part = self.k.pack(*(part if lane == e else old[lane] for lane in range(length)))
            variable.set(part)

    def _chosen(self, mask: Value, x: Value, y: Value) -> Value:
        """x where the mask is on, else y; of floats of 16 bits, which targets have no arithmetic for, their bits."""
        if x.type.bits != 16:
            return self.k.select(mask, x, y)
        bits = vec(i16, x.type.length)
        return self.k.bits_as(self.k.select(mask, self.k.bits_as(x, bits), self.k.bits_as(y, bits)), x.type)

    def _begin(self, variables: Sequence[Variable]) -> None:
        """Zeros at the start of the function, for what is written under a mask first."""
        for register in dict.fromkeys(v.tile.registers[0, 0] for v in variables):
            if register not in self.begun:
                assert isinstance(register.type, Type)
                self.begun.add(register)
                outer, self.k._body = self.k._body, []
                zero = self.constant(0, register.type)
                self.k.function.body[:0] = [*self.k._body, Write(register, zero, self.line)]
                self.k._body = outer

    # ---- terms

    def wide(self, x: Value, length: int) -> Value:
        """x, or a vector of it."""
        if x.type.length == length or length == 1:
            return x
        if x.constant is not None:
            return self.k.constant(vec(x.type, length), x.constant)
        return self.k.broadcast(x, length)

    def cast(self, x: Value, t: Type) -> Value:
        """x in another format, as a store converts."""
        if x.type.scalar is t:
            return x
        if x.type.bits == 1:
            wide = vec(t, x.type.length)
            return self.k.select(x, self.k.constant(wide, 1), self.k.constant(wide, 0))
        if t is f16 and x.type.scalar is f64:
            x = self._odd(x)
        return self.k.cast(x, vec(t, x.type.length))

    def _odd(self, x: Value) -> Value:
        """An f64 in f32, from which f16 is rounded as from x itself: what is not exact ends in a 1. CPUs do not convert
        f64 to f16."""
        k, n = self.k, x.type.length
        single = k.cast(x, vec(f32, n))
        near, bits = k.cast(single, x.type), k.bits_as(single, vec(i32, n))
        bits = bits - self.cast(k.abs(x) < k.abs(near), i32)
        return k.bits_as(k.select(x == near, bits, bits | 1), single.type)

    def constant(self, x: Any, t: Type) -> Value:
        """A literal in a format: floats are rounded to it."""
        if t.kind == "bf":                  # no constants on every target
            return self.k.cast(self.k.constant(vec(f32, t.length), float(t.numpy.type(x))), t)
        if t.is_float:
            return self.k.constant(t, float(t.numpy.type(x)))
        try:
            return self.k.constant(t, x)
        except TypeError:
            refuse(self.line, f"{x!r} is no number of type {t}, in which this is computed")

    def value(self, v: Term, t: Type) -> Value:
        """A term in arithmetic of format t; conditions are i1."""
        match v[0]:
            case "number":
                return self.constant(v[1], t)
            case "parameter":
                return self.cast(self.parameters[v[1]], t)
            case "index":
                return self.index(v[1], lambda x: self.cast(x, t))
            case "load":
                return self.cast(self.load(v[1]), t)
            case name if name.startswith(EXCHANGE):
                return self.k.lane_xor(self.value(v[1], t), int(name.removeprefix(EXCHANGE)))
        return self.operation(v[0], [self.value(x, t) for x in v[1:]], t)

    def operation(self, name: str, xs: list[Value], t: Type) -> Value:
        if name == "where":
            xs[0] = xs[0] if xs[0].type.bits == 1 else xs[0] != 0
            xs[1:] = self._one_kind(xs[1:], t)
        elif name in BOOLS:
            xs = self._one_kind(xs, t)
        else:
            xs = [self.cast(x, t) for x in xs]
        length = max(x.type.length for x in xs)
        return OPERATIONS[name].record(self.k, *(self.wide(x, length) for x in xs))

    def _one_kind(self, xs: list[Value], t: Type) -> list[Value]:
        return xs if all(x.type.bits == 1 for x in xs) else [self.cast(x, t) for x in xs]

    def do(self, d: Do) -> None:
        """One statement."""
        self.line, body = d.line, self.k._body
        last = body[-1] if body else None
        element = self.element(d.target.array)
        if self.asynchronous:
            self._copy(d)
        elif not d.reduce and d.value[0] == "number":
            self.store(d.target, self.constant(d.value[1], element))
        elif not d.reduce and d.value[0] == "load" and self.element(d.value[1].array) == element:
            self.store(d.target, self.load(d.value[1]))
        else:
            read = [self.element(a.array) for a, written in d.accesses() if not written]
            t = arithmetic(d.value, read)
            self.store(d.target, self.cast(self._reduced(d, t) if d.reduce else self.value(d.value, t), element))
        for node in reversed(body):
            if node is last:
                break
            node.line = d.line

    def _copy(self, d: Do) -> None:
        """A copy to shared memory, in flight until its group is waited for; zeros are what it leaves out."""
        if d.value[0] == "number":
            return
        (to, step, align), (source, by, aligned) = self._place(d.target), self._place(d.value[1])
        t, n, k = self.element(d.target.array), self.length, self.k
        contiguous = step.constant == by.constant == 1 and self.mask is None
        if contiguous and n * t.bytes in (4, 8, 16) and min(align, aligned) >= n * t.bytes:
            k.cp_async(to, source, n * t.bytes, self._valid(self.on, n * t.bytes))
            return
        for e in range(n):
            on = self.on if self.mask is None else self.mask[e] if self.on is None else self.mask[e] & self.on
            there, here = to + self.whole(step * e), source + self.whole(by * e)
            if t.bytes in (4, 8, 16):
                k.cp_async(there, here, t.bytes, self._valid(on, t.bytes))
                continue
            with nullcontext() if on is None else k.when(on):       # no copy in flight is of 1 or 2 bytes
                k.store(there, k.load(here))
            if on is not None:
                with k.otherwise():
                    k.store(there, self.constant(0, t))

    def _valid(self, on: Value | None, size: int) -> Value | None:
        return None if on is None else self.k.select(on, self.k.constant(i32, size), self.k.constant(i32, 0))

    def _reduced(self, d: Do, t: Type) -> Value:
        if self.length > 1 and LANE not in self.offset(d.target).names:
            refuse(d.line, f"{d.target} is one element for all rounds of a vector loop, and each of them changes it")
        negative, product = False, d.value
        if product[0] == "neg":
            negative, product = True, product[1]
        old = self.cast(self.load(d.target), t)
        if d.reduce == "add" and product[0] == "mul" and t.is_float:
            x, y = (self.cast(self.value(x, t), t) for x in product[1:])
            return self.operation("fma", [-x if negative else x, y, old], t)
        return self.operation(d.reduce, [old, self.value(d.value, t)], t)
