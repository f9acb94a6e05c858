"""Packing of operands with a prologue: elements become numbers of another format by vectors, and these are packed.

`Prepared` loads elements and evaluates the expression. It knows of each vector which elements it has, as packing moves
along lines (rows of A, columns of B) or along k, so that what is beside them is read for them. A block of its numbers
is left in a local array, as they would lie in memory in `FORMAT`, and packed from there: so the expression is recorded
once, in a loop (a body for each vector of a panel took seconds to compile). Steps of k that do not exist are 0 there:
a prologue of 0 need not be 0. The array has whole vectors of numbers, which may be longer than those of the sums.

    emit_pack_prepared      panels of numbers or of words, as packing.emit_pack and emit_pack_words make them
    Prepared.local          memory for a block
    Prepared.block          a block, from which amx.emit_pack_tiles goes on
"""
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from zlib import crc32

from tilewright.expressions.program import Expression
from tilewright.ir import Function, Kernel, Type, Value, f32, f64, i1, i32, i64, ptr, vec
from tilewright.kernels.cpu import packing
from tilewright.kernels.cpu.accumulators import PACKED_WORDS
from tilewright.kernels.cpu.jobs import BESIDE, Prepare
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.expression import recorded
from tilewright.kernels.narrow import memory_type, narrowed, number, widened
from tilewright.targets.cpu import CpuTarget

# Further parameters of packing.
WHERE: dict[str, Any] = {"line": i64, "step": i64, "beside": ptr(i64), "index": i64}
DEPTH = 16              # rows of a panel in a block, of lines that lie side by side


def emit_pack_prepared(target: CpuTarget, dtype: str, WIDTH: int, KIND: str, SOURCE: str, ROLE: str,
                       PROLOGUE: tuple[Any, ...]) -> Function:
    """Pack `valid` <= width <= WIDTH lines of kc rows, numbers or words, of what PROLOGUE, the fields of a
    jobs.Prepare, makes of their elements, which are SOURCE. Of words `left` steps of k exist, and B's panel (ROLE "b")
    begins with a row of zeros, that sums start with."""
    S, WORD = memory_type(SOURCE), PACKED_WORDS.get(dtype, 1)
    T = i32 if WORD > 1 else TYPES[dtype]
    V = target.lanes(T.bytes)
    GROUPS = -(-WIDTH // V)
    left: dict[str, Any] = {"left": i64} if WORD > 1 else {}
    k = Kernel(f"pack_{dtype}_{WIDTH}_{KIND}_from_{SOURCE}_{ROLE}{suffix(PROLOGUE)}", kc=i64, width=i64, valid=i64,
               source=ptr(S, strided=True), step_i=i64, step_p=i64, dst=ptr(T), **left, **WHERE)
    g = SimpleNamespace(**dict(k.function.params))
    elements = Prepared(k, target, SOURCE, PROLOGUE)
    FORMAT, R = elements.FORMAT, memory_type(elements.FORMAT)
    start, last, ROWS = g.dst, g.valid - 1, V if KIND == "along" else DEPTH
    if WORD > 1 and ROLE == "b":
        for group in range(GROUPS):
            with k.when(g.width > group*V):
                k.store(start + group*V, k.constant(vec(T, V), 0), T.bytes)
        start = start + g.width
    dst, source = start.view(g.width, 1), g.source.view(g.step_i, g.step_p)
    block = elements.local(KIND, GROUPS*V, ROWS*WORD)

    def row(at: Value, apart: int, length: int) -> Value:
        """Rows of the panel from numbers that lie side by side, those of further steps `apart`."""
        if WORD == 1:
            return widened(k, k.load(at, vec(R, length), R.bytes), FORMAT, T)
        low, high = (packing.element(k, k.load(at + e*apart, vec(R, length), R.bytes), FORMAT, dtype)
                     for e in range(WORD))
        return (low & k.constant(low.type, 0xFFFF)) | high << 16

    def along(at: Value) -> Value:
        """V rows of one line."""
        return k.load(at.as_(i32), vec(i32, V), R.bytes) if WORD > 1 else row(at, 0, V)

    with k.loop(g.kc, step=ROWS) as p:
        rows, first = k.min(g.kc - p, ROWS), p*WORD
        there = k.max(k.min(g.left - first, ROWS*WORD), 0) if WORD > 1 else rows
        elements.block(KIND, source.at(0, first), g.step_i, g.step_p, first, there, g.valid, block)
        if KIND == "along":
            with k.when(rows == V):
                for group in reversed(range(GROUPS)):       # as in packing._pack
                    lines = [block.at(k.min(last, i), 0) for i in range(group*V, group*V + V)]
                    for step, x in enumerate(packing.transpose(k, [along(line) for line in lines])):
                        k.store(dst.at(p + step, group*V), x, T.bytes)
            with k.otherwise(), k.loop(rows) as q, k.loop(g.valid) as i:
                dst[p + q, i] = row(block.at(i, q*WORD), 1, 1)
        else:
            with k.loop(rows) as q:
                for group in range(GROUPS):
                    k.store(dst.at(p + q, group*V), row(block.at(q*WORD, group*V), elements.pitch, V), T.bytes)
    return k.function


def suffix(PROLOGUE: tuple[Any, ...]) -> str:
    """The suffix of the name of a kernel with this prologue, the fields of a jobs.Prepare."""
    return f"_{crc32(repr(PROLOGUE).encode()):08x}" if PROLOGUE else ""


class Prepared:
    """What PROLOGUE makes of elements of the format SOURCE, in a kernel with the parameters WHERE, or with these values
    by their names."""

    def __init__(self, k: Kernel, target: CpuTarget, SOURCE: str, PROLOGUE: tuple[Any, ...],
                 where: SimpleNamespace | None = None) -> None:
        self.k, self.target, self.SOURCE, self.T = k, target, SOURCE, memory_type(SOURCE)
        prepare, g = Prepare(*PROLOGUE), where or SimpleNamespace(**dict(k.function.params))
        self.FORMAT, self.line, self.step = prepare.RESULT, g.line, g.step
        self.expression = Expression.read(prepare.EXPRESSION)
        self.read = [Beside(k, g, word, at) for at, word in enumerate(prepare.READ)]
        formats = {SOURCE, *(x.FORMAT for x in self.read)}
        self.FLOAT = f64 if self.FORMAT == "f64" else f32
        self.INT = i64 if formats & {"i64", "u64", "u32"} or self.FORMAT in ("f64", "i64") else i32
        self.types = {"float": self.FLOAT, "int": self.INT, "bool": i1}
        widest = max(x.bytes for x in (self.T, self.FLOAT, self.INT, *(x.T for x in self.read if not x.alone)))
        self.most = target.lanes(widest)            # numbers that all vectors hold

    def local(self, KIND: str, LINES: int, STEPS: int) -> Value:
        """Memory of `block` for so many lines and steps: lines of steps if these are contiguous "along" k, else steps
        of lines, `pitch` numbers apart, of whole vectors."""
        self.of = (LINES, STEPS) if KIND == "along" else (STEPS, LINES)
        self.pitch = -(-self.of[1] // self.most) * self.most
        return self.k.local("block", (self.of[0], self.pitch), memory_type(self.FORMAT))

    def block(self, KIND: str, at: Value, step_i: Value, step_p: Value, p: Value, there: Value, valid: Value,
              block: Value) -> None:
        """Steps p ... p + there of `valid` lines, whose first element is at `at`, into `block`, which `local` made,
        with zeros for further steps."""
        k, V, (OUTER, INNER) = self.k, self.most, self.of
        zeros = k.constant(vec(memory_type(self.FORMAT), V), 0)
        if KIND == "along":
            with k.loop(valid) as i:
                line = at + i*step_i
                k.prefetch(line + packing.AHEAD // self.T.bytes)
                with k.loop(k.constant(i64, INNER), step=V) as e:
                    def steps(count: Value | None) -> None:
                        k.store(block.at(i, e), self.load(line + e, i, p + e, count, along=True))
                    self._counted(there - e, steps)
            return
        with k.loop(there) as q:
            with k.loop(k.constant(i64, INNER), step=V) as i:
                def lines(count: Value | None) -> None:
                    where = at + (q*step_p + i*step_i)
                    if KIND == "across":
                        k.prefetch(where + step_p*packing.ROWS, locality=2)
                    x = self.load(where, i, p + q, count, 1 if KIND == "across" else step_i)
                    k.store(block.at(q, i), x)
                self._counted(valid - i, lines)
        with k.loop(k.constant(i64, OUTER), there) as q, k.loop(k.constant(i64, INNER), step=V) as i:
            k.store(block.at(q, i), zeros)

    def _counted(self, count: Value, each: Callable[[Value | None], None]) -> None:
        """each(count) for as many of `most` numbers as there are; None: for all."""
        if self.target.masked:
            each(count)
            return
        with self.k.when(count >= self.most):
            each(None)
        with self.k.otherwise():
            each(count)

    def sums(self, at: Value, i: Value, p: Value, count: Value | None, T: Type, along: bool = False) -> Value:
        """The prologue's results in the type T that is multiplied."""
        return widened(self.k, self.load(at, i, p, count, along=along), self.FORMAT, T)

    def load(self, at: Value, i: Value, p: Value, count: Value | None, apart: Any = 1, along: bool = False) -> Value:
        """`most` numbers from address `at` on, line i and step p: those of the next lines, or `along` k; 0 beyond
        `count` of them, None: all exist."""
        k, n, kinds = self.k, self.most, dict(self.expression.parameters)
        mask = None if count is None else k.lanes_below(count, n)
        first, *names = kinds
        x = _load(k, at, n, apart, mask)
        inputs = {first: number(k, x, self.SOURCE, self.types[kinds[first]])}
        for name, operand in zip(names, self.read, strict=True):
            inputs[name] = operand.load(self.line + i, self.step + p, n, count, along, self.types[kinds[name]])
        y, = recorded(k, self.expression, inputs, self.FLOAT, self.INT)
        y = y if y.type.length == n else k.broadcast(y, n)
        y = y if mask is None else k.select(mask, y, k.constant(y.type, 0))
        return y if memory_type(self.FORMAT) is y.type.scalar else narrowed(k, y, self.FORMAT)


def _load(k: Kernel, at: Value, length: int, apart: Any, mask: Value | None) -> Value:
    """Numbers `apart` in memory."""
    T = at.type.element
    if isinstance(apart, int):
        return k.load(at, vec(T, length), T.bytes, mask)
    return k.pack(*(k.load(at + apart*e, T, T.bytes, None if mask is None else mask[e]) for e in range(length)))


class Beside:
    """An operand of a prologue."""

    def __init__(self, k: Kernel, g: SimpleNamespace, word: str, at: int) -> None:
        self.k = k
        self.FORMAT, how, group = word.split(":")
        self.LINE, self.STEP, self.GROUP, self.alone = how[0], how[1], int(group), how == "00"
        self.apart = {name: k.load(g.beside + (at*len(BESIDE) + x)) for x, name in enumerate(BESIDE)
                      if name != "address"}
        data = k.load(g.beside + at*len(BESIDE), ptr(memory_type(self.FORMAT), strided=True))
        self.data, self.T = data + g.index*self.apart["product"], data.type.element

    def load(self, i: Value, p: Value, W: int, count: Value | None, along: bool, T: Type) -> Value:
        """The numbers for `count` of W elements (None: all of them) from line i and step p on, in a type; one for all
        of them."""
        k, G = self.k, self.GROUP
        mask = None if count is None else k.lanes_below(count, W)
        if G > 1 and along:
            return self._of_groups(i, p, W, count, T)
        moving, apart = (self.STEP, "step") if along else (self.LINE, "line")
        at = self._address(i, p)
        x = k.load(at, self.T, self.T.bytes) if moving == "0" else _load(
            k, at, W, 1 if moving == "1" else self.apart[apart], mask)
        return number(k, x, self.FORMAT, T)

    def _of_groups(self, i: Value, p: Value, W: int, count: Value | None, T: Type) -> Value:
        """The numbers of groups along k: one for each element where groups are shorter than a vector, else those of the
        first element and of the last one that exists, which belong to two groups at most."""
        k, G = self.k, self.GROUP

        def element(e: Any, there: Value | None) -> Value:
            return number(k, k.load(self._address(i, p + e), self.T, self.T.bytes, there), self.FORMAT, T)
        if G < W:
            return k.pack(*(element(e, None if count is None else count > e) for e in range(W)))
        some = None if count is None else count > 0
        last = W - 1 if count is None else k.max(k.min(count, W), 1) - 1
        first, second = (k.broadcast(element(e, some), W) for e in (0, last))
        return k.select(k.lanes_below(k.constant(i64, G) - p % G, W), first, second)

    def one(self, i: Value, p: Any, T: Type) -> Value:
        """The number for line i and step p."""
        return number(self.k, self.k.load(self.address(i, p), self.T, self.T.bytes), self.FORMAT, T)

    def whole(self, i: Value, p: Any) -> Value:
        """The operand's number, an integer of 8 bits, as an index."""
        x = self.k.cast(self.k.load(self.address(i, p), self.T, self.T.bytes), i64)
        return x & 255 if self.FORMAT.startswith("u") else x

    def address(self, i: Value, p: Any) -> Value:
        """Its address."""
        return self._address(i, p if isinstance(p, Value) else self.k.constant(i64, p))

    def _address(self, i: Value, p: Value) -> Value:
        at, block = self.data, p // self.GROUP if self.GROUP > 1 else p
        for index, how, name in ((i, self.LINE, "line"), (block, self.STEP, "step")):
            if how != "0":
                at = at + (index if how == "1" else index*self.apart[name])
        return at
