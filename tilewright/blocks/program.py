"""How a block program is written: `k = Program(name, target, ...)`, blocks with operators, `for i in k.range(n)`.

A program computes one piece of a result; the grid has a program for each. On a GPU it is a CTA of `num_warps` warps, on
a CPU one task of a thread.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tilewright import targets
from tilewright.blocks import loops, memory
from tilewright.blocks.block import Addresses, Block, apply, cast, promoted, shape_of
from tilewright.blocks.dot import dot
from tilewright.blocks.index import Formula, Term
from tilewright.blocks.layout import Registers, Shape, held_as, reduced
from tilewright.blocks.recording import Recording
from tilewright.ir import Function, Kernel, Pointer, Type, Value, f32, i1, i32, i64
from tilewright.ir.program import Array
from tilewright.targets import CpuTarget, Target

WARPS = (1, 2, 4, 8, 16)
LOG2_E = 1.4426950408889634
MOST = 1 << 20                      # elements of a block


class Program(Recording):
    """Records a Function. `params` are types by name, pointers as `ptr(f32)`, numbers as i32, i64, f32.

    target          a target or its name; this machine's CPU unless given
    num_warps       warps of a CTA: 1, 2, 4, 8 or 16. A CPU has none
    num_stages      loads of a loop's operands under way at once, where products of a loop are made of loads: `range`
    align           bytes that divide the addresses of all arrays that it is given: 16, or 1, 2, 4 or 8
    """

    def __init__(self, name: str, target: Target | str | None = None, *, num_warps: int = 4, num_stages: int = 2,
                 align: int = 16, **params: Any) -> None:
        self.target = targets.coerce(target)
        self.vector = isinstance(self.target, CpuTarget)
        if num_warps not in WARPS:
            raise ValueError(f"{name}: num_warps must be 1, 2, 4, 8 or 16, not {num_warps!r}")
        if align not in WARPS:
            raise ValueError(f"{name}: align must be 1, 2, 4, 8 or 16 bytes, not {align!r}")
        if not isinstance(num_stages, int) or num_stages < 1:
            raise ValueError(f"{name}: num_stages must be a whole number from 1 on, not {num_stages!r}")
        self.num_warps, self.num_stages, self.align = 1 if self.vector else num_warps, num_stages, align
        types = {param: self._type_in_memory(t) for param, t in params.items()}
        if self.vector:
            types |= dict.fromkeys(("program_x", "program_y", "program_z", "grid_x", "grid_y", "grid_z"), i32)
            self.ir = Kernel(name, **types)
            self.ir.function.programs = True
        else:
            warp = getattr(self.target, "warp", 32)
            self.ir = Kernel(name, threads=warp * num_warps, warp=warp, **types)
            self.ir.function.align = align
        self.ir.fuses = None            # arithmetic is fused by blocks: block.Product
        super().__init__()
        self._args = [self._argument(t, value) for t, value in zip(params.values(), self.ir.args)]

    @staticmethod
    def _type_in_memory(t: Any) -> Any:
        if isinstance(t, Pointer):
            return Pointer(held_as(t.element), t.space, t.strided)
        return t

    def _argument(self, t: Any, value: Value) -> Block:
        content: Any
        if isinstance(t, Pointer):
            content = Addresses(value, Formula.constant(0), self.align)
        elif t in (i32, i64):
            content = self.formula(value)
        else:
            content = Registers(self.blocked((), t), (value,))
        return Block(self, (), t, content)

    @property
    def args(self) -> list[Block]:
        """The parameters: pointers and numbers."""
        return self._args

    @property
    def function(self) -> Function:
        """What has been recorded, to be compiled, run or simulated."""
        self.settle()
        self.drop_unread()
        if self.open_loops:
            raise SyntaxError(f"{self.ir.function.name}: a loop was left by break or return; its rounds all end alike")
        if self._room is not None:      # its size is known now
            arrays = self.ir.function.arrays
            own = next(array for array, value in arrays.items() if value is self._room)
            sized = Array(own.name, own.element, own.space, self._room_bytes, own.align)
            self.ir.function.arrays = {sized if array is own else array: x for array, x in arrays.items()
                                       if array is not own or self._room_bytes}
            self._room = self._room if self._room_bytes else None
        return self.ir.function

    # ---- numbers and blocks

    def program_id(self, axis: int) -> Block:
        """Which program of the grid this is along axis 0, 1 or 2."""
        return self._of_grid(axis, "block", "program")

    def num_programs(self, axis: int) -> Block:
        """How many programs the grid has along axis 0 or 1."""
        return self._of_grid(axis, "grid", "grid")

    def _of_grid(self, axis: int, gpu: str, cpu: str) -> Block:
        if axis not in (0, 1, 2):
            raise ValueError(f"a grid has the axes 0, 1 and 2, not {axis!r}")
        letter = "xyz"[axis]
        value = dict(self.ir.function.params)[f"{cpu}_{letter}"] if self.vector else self.ir._builtin(f"{gpu}.{letter}")
        return Block(self, (), i32, self.formula(value))

    def arange(self, start: int, end: int) -> Block:
        """start, start + 1 ... end - 1. Their number is a power of two; a mask leaves out what is too many."""
        if not all(isinstance(x, int) for x in (start, end)):
            raise TypeError(f"k.arange takes Python numbers, constants of the program, not {start!r}, {end!r}")
        count = end - start
        if count < 1 or count & (count - 1) or count > MOST:
            raise ValueError(f"k.arange makes a power of two of numbers, up to {MOST}, not {count}: take the next "
                             f"power of two and a mask, offsets < {max(count, 1)}")
        return Block(self, (count,), i32, Formula(start, abs(start), {0: Term(1, 1)} if count > 1 else {}))

    def full(self, shape: int | Shape, value: Any, type: Type = f32) -> Block:
        """A block of one number."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if not all(isinstance(x, int) and x > 0 and not x & (x - 1) for x in shape) or len(shape) > 2:
            raise ValueError(f"a block's shape is one or two powers of two, not {shape}")
        return cast(self.block(value), type).broadcast(shape)

    def zeros(self, shape: int | Shape, type: Type = f32) -> Block:
        """A block of zeros."""
        return self.full(shape, 0.0 if type.is_float else 0, type)

    def block(self, x: Any) -> Block:
        """A Python number as a block of shape (); a block as it is."""
        if isinstance(x, Block):
            return x
        if not isinstance(x, (int, float)):
            raise TypeError(f"operands are blocks and Python's numbers, not {x!r}")
        return self.constant(x, i1 if isinstance(x, bool) else i32 if isinstance(x, int) else f32)

    def constant(self, x: Any, type: Type) -> Block:
        if isinstance(x, Block):
            return cast(x, type)
        if type in (i32, i64):
            return Block(self, (), type, Formula.constant(x))
        held = held_as(type)
        if held != type:
            return cast(self.constant(x, f32), type)
        return Block(self, (), type, Registers(self.blocked((), type), (self.ir.constant(held, x),)))

    def multiple_of(self, x: Any, multiple: int) -> Block:
        """x, a number of which the program is told that this divides it: of strides and extents, so that accesses can
        be wide. The caller vouches for it: the simulator reports a misaligned access where it is false."""
        if not isinstance(x, Block) or not isinstance(x.content, Formula) or x.content.terms:
            raise TypeError(f"k.multiple_of takes a whole number of the program, not {x!r}")
        return Block(self, x.shape, x.type, Formula(x.content.scalar, multiple, {}))

    @staticmethod
    def cdiv(x: Any, y: Any) -> Any:
        """x / y rounded up, of blocks or Python's numbers."""
        return (x + (y - 1)) // y

    # ---- memory and products

    def load(self, pointers: Any, mask: Any = None, other: Any = None) -> Block:
        """The elements at a block of pointers. Where `mask` is false nothing is read, and the element is `other`, 0
        unless given."""
        return memory.load(pointers, mask, other)

    def store(self, pointers: Any, value: Any, mask: Any = None) -> None:
        """A block to a block of pointers, in their type, where `mask` is true."""
        memory.store(pointers, value, mask)

    def dot(self, a: Block, b: Block, acc: Block | None = None, precision: str = "ieee") -> Block:
        """a @ b + acc: [m, k] by [k, n] of one type, each extent at least 16. f16 and bf16 are added up in f32, i8 in
        i32; f32 is exact, or with precision="tf32" rounded to tf32 on tensor cores."""
        return dot(self, a, b, acc, precision)

    def range(self, start: Any, stop: Any = None, step: int = 1, num_stages: int | None = None) -> Iterator[Block]:
        """`for i in k.range(0, K, BLOCK_K):` a loop in the program. Names of blocks that its body rebinds carry their
        blocks from one round to the next, and out of the loop.

        num_stages      on NVIDIA GPUs from sm_80 on: operands of products are copied to shared memory that many rounds
                        less one ahead. 1: each round loads its own
        """
        start, stop = (0, start) if stop is None else (start, stop)
        return loops.ranged(self, start, stop, step, self.num_stages if num_stages is None else num_stages)

    # ---- functions of elements

    def exp(self, x: Block, approximate: bool = False) -> Block:
        """e^x, within 1 ulp and with the same bits on every target; or `approximate`: of f32 on a GPU by its own
        instruction, with an error of some 2^-22 (1 + |x|) of the result, and 0 where that is subnormal."""
        if approximate and not self.vector and _float("exp", x).type.bits <= 32:
            return apply(self, "exp", lambda y: self.ir.exp2_approximate(y * LOG2_E), x)
        return apply(self, "exp", self.ir.exp, _float("exp", x))

    def log(self, x: Block) -> Block: return apply(self, "log", self.ir.log, _float("log", x))
    def sqrt(self, x: Block) -> Block: return apply(self, "sqrt", self.ir.sqrt, _float("sqrt", x))
    def tanh(self, x: Block) -> Block: return apply(self, "tanh", self.ir.tanh, _float("tanh", x))
    def abs(self, x: Block) -> Block: return apply(self, "abs", self.ir.abs, x)
    def maximum(self, x: Any, y: Any) -> Block: return apply(self, "maximum", self.ir.max, x, y)
    def minimum(self, x: Any, y: Any) -> Block: return apply(self, "minimum", self.ir.min, x, y)
    def fma(self, x: Any, y: Any, z: Any) -> Block: return apply(self, "fma", self.ir.fma, x, y, z)

    def exact(self) -> AbstractContextManager[None]:
        """`with k.exact():` rounds each operation that is recorded in it by itself. Elsewhere a sum or a difference
        takes a product of floats that is one of its operands unrounded: a*b + c is one FMA."""
        return self.ir.exact()

    def where(self, condition: Block, x: Any, y: Any) -> Block:
        """x where the condition holds, else y."""
        if not isinstance(condition, Block) or condition.type != i1:
            raise TypeError(f"k.where takes a block of conditions first, such as x < y, not {condition!r}")
        x, y = promoted(self, "where", x, y)
        shape = shape_of("where", condition, x, y)
        blocks = [z.broadcast(shape) for z in (condition, x, y)]
        return memory.chosen(self, shape, blocks)

    # ---- reductions

    def sum(self, x: Block, axis: int = 0) -> Block:
        """The sum along an axis, which goes. Its order depends on the target and the number of warps."""
        return self.reduce(x, axis, "sum", lambda a, b: a + b)

    def max(self, x: Block, axis: int = 0) -> Block: return self.reduce(x, axis, "max", self.ir.max)
    def min(self, x: Block, axis: int = 0) -> Block: return self.reduce(x, axis, "min", self.ir.min)

    def reduce(self, x: Block, axis: int, what: str, f: Callable[[Value, Value], Value]) -> Block:
        """f, of two values of the kernel layer, of all elements along an axis."""
        if not isinstance(x, Block) or not x.shape or axis not in range(-len(x.shape), len(x.shape)):
            raise ValueError(f"{what} takes a block and one of its axes, not axis {axis!r} of {x!r}")
        axis %= len(x.shape)
        x, = promoted(self, what, x)
        if (x.shape[axis] > 1 and axis not in x.dims) or not isinstance(x.content, Registers):
            x = self.dense(x)
        shape = x.shape[:axis] + x.shape[axis + 1:]

        def to(dim: int) -> int: return dim - (dim > axis)
        if self.ahead:
            return self.nothing(shape, x.type, self.blocked(shape, x.type))
        content = reduced(x, axis, f) if axis in x.dims else x.content
        if not shape and x.type in (i32, i64):
            self.loads.known = False
            return Block(self, shape, x.type, self.formula(content.values[0]))
        return Block(self, x.shape, x.type, content)._moved(shape, to)


def _float(what: str, x: Any) -> Block:
    if not isinstance(x, Block) or isinstance(x.type, Pointer) or not x.type.is_float:
        raise TypeError(f"{what} takes a block of floats, not {x!r}: x.to(f32) makes floats")
    return x
