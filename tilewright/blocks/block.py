"""A block: numbers of one type in a shape, or as yet only a formula of them; arithmetic on blocks.

Dense blocks are in registers, by a layout. A block covers only the dimensions along which its elements differ: a row
that is broadcast stays a row. Numbers of 16 and 8 bits are computed with in f32, which is the result's type.
"""
from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tilewright.blocks.index import COMPARED, Comparison, Formula, all_of
from tilewright.blocks.layout import Layout, Registers, Shape, converted
from tilewright.ir import Pointer, Type, Value, f32, i1, i32, i64, vec
from tilewright.ir.fma import OPERATIONS
from tilewright.kernels.narrow import memory_type, narrowed, widened

if TYPE_CHECKING:
    from tilewright.blocks.program import Program


@dataclass(frozen=True, eq=False)
class Addresses:
    """Addresses in one array: elements beyond its first."""
    base: Value
    offset: Formula
    align: int                      # bytes that divide the address of the first


@dataclass(frozen=True, eq=False)
class Product:
    """What a block of floats is the product of, which sums recorded in the same body take instead of it. They are fused
    multiply-adds on every target: where a CPU keeps blocks on the stack the record alone does not tell."""
    factors: tuple[Block, Block]
    negated: bool
    body: list


class Block:
    """A tile of numbers of `shape`, powers of two; a number is a block of shape ()."""

    __array_ufunc__ = None          # or NumPy's numbers would take a block apart
    __hash__ = object.__hash__

    def __init__(self, program: Program, shape: Shape, type: Any, content: Any) -> None:
        self.program, self.shape, self.type = program, shape, type
        self.product: Product | None = None
        self.content = content

    @property
    def content(self) -> Any:
        """Or a sentence that says why there is none."""
        if isinstance(self._content, str):
            raise TypeError(self._content)
        return self._content

    @content.setter
    def content(self, content: Any) -> None:
        self._content, self.product = content, None

    def __repr__(self) -> str:
        return f"<block of {self.type} {list(self.shape)}>"

    def __bool__(self) -> bool:
        raise TypeError("a block has no truth value while the program is recorded: k.where(condition, x, y) chooses, & "
                        "and | combine conditions, and Python's if decides about constants alone")

    def __add__(self, other: Any) -> Block: return _add(self, other)
    def __radd__(self, other: Any) -> Block: return _add(self, other)
    def __sub__(self, other: Any) -> Block: return _subtract(self, other)
    def __rsub__(self, other: Any) -> Block: return _subtract(self.program.block(other), self)
    def __mul__(self, other: Any) -> Block: return _multiply(self, other)
    def __rmul__(self, other: Any) -> Block: return _multiply(self, other)
    def __truediv__(self, other: Any) -> Block: return _divide(self, other)
    def __rtruediv__(self, other: Any) -> Block: return _divide(self.program.block(other), self)
    def __floordiv__(self, other: Any) -> Block: return _whole(self, other, operator.floordiv, "//")
    def __mod__(self, other: Any) -> Block: return _whole(self, other, operator.mod, "%")
    def __neg__(self) -> Block: return _negative(self)
    def __and__(self, other: Any) -> Block: return _both(self, other)
    def __or__(self, other: Any) -> Block: return apply(self.program, "|", operator.or_, self, other)
    def __xor__(self, other: Any) -> Block: return apply(self.program, "^", operator.xor, self, other)
    def __invert__(self) -> Block: return apply(self.program, "~", operator.invert, self)
    def __lt__(self, other: Any) -> Block: return _compare("<", self, other)
    def __le__(self, other: Any) -> Block: return _compare("<=", self, other)
    def __gt__(self, other: Any) -> Block: return _compare("<", self.program.block(other), self)
    def __ge__(self, other: Any) -> Block: return _compare("<=", self.program.block(other), self)
    def __eq__(self, other: Any) -> Block: return _compare("==", self, other)   # type: ignore[override]
    def __ne__(self, other: Any) -> Block: return _compare("!=", self, other)   # type: ignore[override]

    def to(self, type: Type) -> Block:
        """Convert to another type: round to nearest, floats to integers towards 0."""
        return cast(self, type)

    def __getitem__(self, key: Any) -> Block:
        """x[:, None] and x[None, :]: a dimension of extent 1."""
        key = key if isinstance(key, tuple) else (key,)
        if any(at is not None and at != slice(None) for at in key) or sum(
                at is not None for at in key) != len(self.shape):
            raise IndexError(f"a block takes `:` for each dimension and None for a new one, as in x[:, None]; {key} "
                             f"does not fit a shape of {list(self.shape)}")
        old = [at for at, part in enumerate(key) if part is not None]
        shape = [1] * len(key)
        for at, extent in zip(old, self.shape):
            shape[at] = extent
        return self._moved(tuple(shape), lambda dim: old[dim])

    def _moved(self, shape: Shape, to: Callable[[int], int]) -> Block:
        moved = self.content
        match moved:
            case Registers(layout, values, _, stack):
                self.program.loads.seen(moved)
                moved = Registers(layout.moved(to), values, None, stack and stack.moved(to))
            case Addresses(base, offset, align):
                moved = Addresses(base, offset.moved(to), align)
            case Formula():
                moved = moved.moved(to)
            case _:
                moved = tuple(Comparison(x.operator, x.x.moved(to), x.y.moved(to)) for x in moved)
        return Block(self.program, shape, self.type, moved)

    # ---- registers

    @property
    def dims(self) -> set[int]:
        """Along which elements differ."""
        match self.content:
            case Registers(layout):
                return {place[0] for place in (*layout.registers, *layout.threads) if place}
            case Addresses(_, offset):
                return {*offset.terms}
            case Formula(terms=terms):
                return {*terms}
        return set().union(*(x.dims for x in self.content))

    def broadcast(self, shape: Shape) -> Block:
        """Seen in a shape that NumPy would broadcast it to."""
        ranks = len(shape) - len(self.shape)

        def to(dim: int) -> int: return dim + ranks
        moved = self._moved(shape, to) if ranks else self
        return Block(self.program, shape, self.type, moved.content)

    def laid(self, layout: Layout) -> Block:
        """With registers, if it has any, as this layout has them along the block's dimensions."""
        if not isinstance(self.content, Registers):
            return self
        self.program.loads.seen(self.content)
        self.program.settle()
        return Block(self.program, self.shape, self.type, converted(self, layout.only(self.dims)))

    def values(self, layout: Layout) -> list[Value]:
        """One for each register of a layout that the block is `laid` by, of one warp. On a CPU a register that is the
        same for all lanes is a number, not a vector."""
        p, content = self.program, self.content
        if isinstance(content, Registers):
            registers = p.held(content)
            return [registers[content.layout.number(layout, r)] for r in range(layout.count)]
        if isinstance(content, tuple):
            return [all_of(p, layout, [x.evaluate(p, layout, r) for x in content]) for r in range(layout.count)]
        assert isinstance(content, Formula), "a block of pointers has no registers"
        return [content.value(p, layout, r, self.type) for r in range(layout.count)]


def _alike(k: Any, xs: list[Value], f: Callable[..., Value]) -> Value:
    """f of these, of which some may be vectors: numbers among them are broadcast."""
    length = max(x.type.length for x in xs)
    return f(*(x if x.type.length == length else k.broadcast(x, length) for x in xs))


def shape_of(what: str, *blocks: Block) -> Shape:
    """The shape to which NumPy would broadcast the blocks."""
    rank = max(len(x.shape) for x in blocks)
    padded = [(1,) * (rank - len(x.shape)) + x.shape for x in blocks]
    for extents in zip(*padded):
        if len({extent for extent in extents if extent != 1}) > 1:
            raise ValueError(f"{what} takes shapes that can be broadcast, whose extents are equal or 1, not "
                             + " and ".join(str(list(x.shape)) for x in blocks))
    return tuple(max(extents) for extents in zip(*padded))


def apply(p: Program, what: str, f: Callable[..., Value], *operands: Any, type: Any = None) -> Block:
    """f, of one register of each, register by register; `type` of the result, if not that of the operands."""
    blocks = promoted(p, what, *operands)
    shape = shape_of(what, *blocks)
    blocks = [x.broadcast(shape) for x in blocks]
    return elementwise(p, shape, f, blocks, type or blocks[-1].type)


def elementwise(p: Program, shape: Shape, f: Callable[..., Value], blocks: list[Block], type: Any) -> Block:
    """f of blocks that are broadcast to a shape."""
    return _of_registers(p, shape, f, blocks, type)[0]


def _of_registers(p: Program, shape: Shape, f: Callable[..., Value], blocks: list[Block], type: Any
                  ) -> tuple[Block, list[Block]]:
    """`elementwise`, and the blocks as its layout has them."""
    layout = common_layout(p, shape, blocks, type)
    if p.ahead and any(isinstance(x.content, Registers) for x in blocks):
        return p.nothing(shape, type, layout), []
    laid = [x.laid(layout) for x in blocks]
    return p.new_block(shape, type, layout, lambda: (
        _alike(p.ir, [*xs], f) for xs in zip(*(x.values(layout) for x in laid)))), laid


def common_layout(p: Program, shape: Shape, blocks: list[Block], type: Any) -> Layout:
    """The layout of the first operand which covers all dimensions that any of them covers; else one made for the
    shape."""
    dims = set().union(*(x.dims for x in blocks))
    for x in blocks:
        if isinstance(x.content, Registers) and x.dims == dims and p.fits(x.content.layout, type):
            return x.content.layout
    return p.blocked(tuple(extent if dim in dims else 1 for dim, extent in enumerate(shape)), type)


# ---- types

def promoted(p: Program, what: str, *operands: Any) -> list[Block]:
    """The operands as blocks of one type: floats before integers, then the wider type; at least 32 bits."""
    given = [x.type for x in operands if isinstance(x, Block)]
    for t in given:
        if isinstance(t, Pointer):
            raise TypeError(f"{what} takes numbers, not pointers")
    types = [t if t == i1 or t.bits >= 32 else f32 if t.is_float else i32 for t in given]
    integers = [t for t in types if not t.is_float]
    if any(isinstance(x, float) for x in operands) and len(integers) == len(types):
        types.append(f32)
    widest = max(types, key=lambda t: (t.is_float, t.bits))
    return [cast(x, widest) if isinstance(x, Block) else p.constant(x, widest) for x in operands]


def cast(x: Block, type: Type) -> Block:
    p, k = x.program, x.program.ir
    if x.type == type:
        return x
    if not isinstance(type, Type) or type.length > 1 or isinstance(x.type, Pointer):
        raise TypeError(f"a block is cast to a type of one number, such as f16 or f32, not from {x.type} to {type!r}")
    if isinstance(x.content, Formula) and type in (i32, i64):
        return Block(p, x.shape, type, x.content)
    layout = common_layout(p, x.shape, [x], type)
    if not p.fits(layout, type):
        layout = p.blocked(x.shape, type)
    if p.ahead:
        return p.nothing(x.shape, type, layout)
    if str(type) == "bf16":
        x = cast(x, f32)
    x = x.laid(layout)

    def registers() -> list[Value]:
        values = x.values(layout)
        if str(type) == "bf16":
            return _rounded(p, values)
        if str(x.type) == "bf16":
            return [k.cast(widened(k, v, "bf16", f32), vec(type, v.type.length)) for v in values]
        return [k.cast(v, vec(type, v.type.length)) for v in values]
    return p.new_block(x.shape, type, layout, registers)


def _rounded(p: Program, values: list[Value]) -> list[Value]:
    """f32 as bf16. On a GPU in pairs: that is one instruction of newer chips, and elsewhere bits stay bits."""
    k, narrow = p.ir, memory_type("bf16")
    if values[0].type.length > 1:
        return [narrowed(k, x, "bf16") for x in values]
    rounded: list[Value] = []
    for at in range(0, len(values), 2):
        pair = k.pack(values[at], values[min(at + 1, len(values) - 1)])
        both = k.reinterpret(k.round_pair(pair, Type("bf", 16)), vec(narrow, 2)) if p.has("bf16") else narrowed(
            k, pair, "bf16")
        rounded += [both[0], both[1]]
    return rounded[:len(values)]


# ---- arithmetic: of formulas a formula, of all else registers

def _made(what: str, formula: Formula, *operands: Any) -> Block:
    blocks = [x for x in operands if isinstance(x, Block)]
    type = i64 if any(x.type == i64 for x in blocks) else i32
    return Block(blocks[0].program, shape_of(what, *blocks), type, formula)


def _shifted(x: Any, rank: int) -> Formula:
    """The formula of an operand, its dimensions counted as those of the result."""
    if isinstance(x, int):
        return Formula.constant(x)
    more = rank - len(x.shape)
    formula: Formula = x.content
    return formula.moved(lambda dim: dim + more) if more else formula


def _pair(x: Any, y: Any) -> tuple[Formula, Formula] | None:
    blocks = [z for z in (x, y) if isinstance(z, Block)]
    if not all(isinstance(z.content, Formula) for z in blocks) or not all(
            isinstance(z, (Block, int)) for z in (x, y)):
        return None
    rank = max(len(z.shape) for z in blocks)
    return _shifted(x, rank), _shifted(y, rank)


def _add(x: Block, y: Any) -> Block:
    p = x.program
    if isinstance(y, Block) and isinstance(y.type, Pointer):
        x, y = y, x
    if isinstance(x.content, Addresses):
        offset = p.block(y)
        if not isinstance(offset.content, Formula):
            raise TypeError("pointers are moved by offsets made of k.arange, k.program_id and numbers, not by "
                            f"{offset.type} that were loaded or computed otherwise")
        shape = shape_of("pointer + offset", x, offset)
        old, new = x.broadcast(shape), offset.broadcast(shape)
        return Block(p, shape, x.type, Addresses(x.content.base, old.content.offset.plus(new.content),
                                                 x.content.align))
    if pair := _pair(x, y):
        return _made("+", pair[0].plus(pair[1]), x, y)
    return _sum(p, "+", operator.add, x, y)


def _subtract(x: Block, y: Any) -> Block:
    if pair := _pair(x, y):
        return _made("-", pair[0].plus(pair[1].scaled(Formula.constant(-1))), x, y)
    if isinstance(x.content, Addresses):
        return x + -x.program.block(y)
    return _sum(x.program, "-", operator.sub, x, y)


def _multiply(x: Block, y: Any) -> Block:
    pair = _pair(x, y)
    if pair and not (pair[0].terms and pair[1].terms):
        one, other = pair if pair[0].terms else pair[::-1]
        return _made("*", one.scaled(other), x, y)
    return _product(x.program, "*", operator.mul, promoted(x.program, "*", x, y))


def _negative(x: Block) -> Block:
    if not isinstance(x.type, Type) or not x.type.is_float:
        return x * -1
    if x.product is None or x.product.body is not x.program.ir._body:
        return apply(x.program, "-", operator.neg, x)
    return _product(x.program, "-", operator.neg, [x], x.product)


def _product(p: Program, what: str, f: Callable[..., Value], blocks: list[Block], of: Product | None = None) -> Block:
    """f, which multiplies two blocks, or negates a product."""
    shape, type = shape_of(what, *blocks), blocks[-1].type
    broadcast = [x.broadcast(shape) for x in blocks]
    if not type.is_float or p.ahead or p.ir.fuses is False:
        return elementwise(p, shape, f, broadcast, type)
    with p.ir._fusing(True):                # so that it is left out where nothing else takes it
        values, laid = _of_registers(p, shape, f, broadcast, type)
    p.droppable(values)
    values.product = Product(of.factors, not of.negated, of.body) if of else Product(
        (laid[0], laid[1]), False, p.ir._body)
    return values


def _sum(p: Program, what: str, f: Callable[..., Value], x: Any, y: Any) -> Block:
    """x + y or x - y; of two products the first one is fused with it."""
    blocks = promoted(p, what, x, y)
    for which, z in enumerate(blocks):
        of = z.product
        if of and p.ir.fuses is None and of.body is p.ir._body:
            subtracts = f is operator.sub
            operation = OPERATIONS[of.negated ^ (subtracts and which == 1), subtracts and which == 0]
            return apply(p, what, partial(p.ir._fused, operation), *of.factors, blocks[1 - which])
    return apply(p, what, f, *blocks)


def _divide(x: Block, y: Any) -> Block:
    if not any(t.is_float for t in (x.type, getattr(y, "type", f32))):
        raise TypeError(f"/ divides floats, not {x.type}: // is the quotient of indices, x.to(f32) makes floats")
    return apply(x.program, "/", operator.truediv, x, y)


def _whole(x: Block, y: Any, f: Callable[[Any, Any], Any], what: str) -> Block:
    pair = _pair(x, y)
    if pair and len(pair[0].terms) <= 1 and not pair[1].terms:
        by = pair[1].scalar
        return _made(what, pair[0].mapped(lambda x: f(x, by)), x, y)
    return apply(x.program, what, f, x, y)


def _compare(what: str, x: Block, y: Any) -> Block:
    p = x.program
    if pair := _pair(x, y):
        blocks = [z for z in (x, y) if isinstance(z, Block)]
        return Block(p, shape_of(what, *blocks), i1, (Comparison(what, *pair),))
    return apply(p, what, COMPARED[what], x, y, type=i1)


def _both(x: Block, y: Any) -> Block:
    if isinstance(y, Block) and isinstance(x.content, tuple) and isinstance(y.content, tuple):
        shape = shape_of("&", x, y)
        return Block(x.program, shape, i1, (*x.broadcast(shape).content, *y.broadcast(shape).content))
    return apply(x.program, "&", operator.and_, x, y)
