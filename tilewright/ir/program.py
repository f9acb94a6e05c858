"""What is recorded: operations, memory accesses, calls, loops and ifs. No LLVM, no NumPy: data for both readings.

Every node knows the Python line that wrote it, so that a register, a bank conflict or a fault has an address that the
author of the kernel can open.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tilewright.ir.lines import Line as Line, caller as caller
from tilewright.ir.ops.core import Operation
from tilewright.ir.types import Pointer, Type

DECLARED_SHARED = 48 << 10      # bytes of shared memory that PTX may declare


@dataclass(frozen=True)
class Array:
    """Memory with a name: what a pointer parameter points to, or `size` elements of shared or local memory."""
    name: str
    element: Type
    space: str
    size: int | None = None
    align: int = 16             # bytes, of a shared or local array

    @property
    def bytes(self) -> int:
        return (self.size or 0) * self.element.bytes


def _present(*values: Any) -> tuple[Any, ...]:
    return tuple(x for x in values if x is not None)


class Node:
    """One thing that is recorded. `uses` are the values it needs where it stands, `defines` those that it makes."""
    __slots__ = ()
    if TYPE_CHECKING:
        line: Line

    @property
    def uses(self) -> tuple[Any, ...]: return ()

    @property
    def defines(self) -> tuple[Any, ...]: return ()


@dataclass(eq=False, slots=True)
class Op(Node):
    """results = operation(*operands); an effect has no result, a matrix instruction may have many.

    fuses       may `ir.fma` make one operation of this and another one? None unless it is arithmetic with floats
                by the code of a user
    """
    operation: Operation
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    line: Line
    fuses: bool | None = None

    @property
    def uses(self) -> tuple[Any, ...]: return self.operands

    @property
    def defines(self) -> tuple[Any, ...]: return self.results


@dataclass(eq=False, slots=True)
class Load(Node):
    """`mask` says which elements are read, the others are 0: a vector of i1, one i1 for all of them, or None."""
    result: Any
    pointer: Any
    align: int
    mask: Any
    line: Line

    @property
    def uses(self) -> tuple[Any, ...]: return _present(self.pointer, self.mask)

    @property
    def defines(self) -> tuple[Any, ...]: return (self.result,)


@dataclass(eq=False, slots=True)
class Store(Node):
    pointer: Any
    value: Any
    align: int
    mask: Any
    line: Line
    streaming: bool = False     # a hint: do not keep the line in cache

    @property
    def uses(self) -> tuple[Any, ...]: return _present(self.pointer, self.value, self.mask)


@dataclass(eq=False, slots=True)
class Register:
    """One mutable value per thread: an element of a register tile."""
    type: Type | Pointer


@dataclass(eq=False, slots=True)
class Read(Node):
    result: Any
    register: Register
    line: Line

    @property
    def defines(self) -> tuple[Any, ...]: return (self.result,)


@dataclass(eq=False, slots=True)
class Write(Node):
    register: Register
    value: Any
    line: Line

    @property
    def uses(self) -> tuple[Any, ...]: return (self.value,)


@dataclass(eq=False, slots=True)
class Fold:
    """What a loop adds up, in any order: `nodes` make of a and b what replaces `registers`, which hold a before; at
    first they hold `identities`, which change nothing."""
    registers: tuple[Register, ...]
    identities: tuple[Any, ...]
    a: tuple[Any, ...]
    b: tuple[Any, ...]
    nodes: list
    results: tuple[Any, ...]


@dataclass(eq=False, slots=True)
class Rounds:
    """How a loop runs whose rounds are independent of each other."""
    vectors: bool                   # some at a time, by vector instructions: ir.vectors
    threads: bool = False           # divided over the threads of a CPU, or the CTAs of a GPU
    cta: int = 1                    # that a CTA has at a time, before
    elements: int = 1               # so many become one
    folds: list[Fold] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Loop(Node):
    """for (index = start; index < stop; index += step) body"""
    index: Any
    start: Any
    stop: Any
    step: Any
    body: list
    line: Line
    unroll: bool = True         # whether the compiler may unroll it further than it is written
    rounds: Rounds | None = None        # of `kernels.elementwise`

    @property
    def uses(self) -> tuple[Any, ...]: return (self.start, self.stop, self.step)


@dataclass(eq=False, slots=True)
class While(Node):
    """head; while (condition) { body; head }: `head` computes the condition anew each time."""
    head: list
    condition: Any
    body: list
    line: Line


@dataclass(eq=False, slots=True)
class If(Node):
    condition: Any
    then: list
    otherwise: list
    line: Line

    @property
    def uses(self) -> tuple[Any, ...]: return (self.condition,)


@dataclass(frozen=True)
class External:
    """A C function that the process already holds, such as libc's or CPython's."""
    name: str
    fixed: int | None = None        # how many parameters are fixed, when the function is variadic


@dataclass(eq=False, slots=True)
class Call(Node):
    """result = callee(*operands). `callee` is a Function, a pointer value, or an External."""
    callee: Any
    operands: tuple[Any, ...]
    result: Any
    line: Line

    @property
    def uses(self) -> tuple[Any, ...]:
        pointer = () if isinstance(self.callee, (Function, External)) else (self.callee,)
        return (*pointer, *self.operands)

    @property
    def defines(self) -> tuple[Any, ...]: return _present(self.result)


@dataclass(eq=False, slots=True)
class Return(Node):
    value: Any
    line: Line

    @property
    def uses(self) -> tuple[Any, ...]: return _present(self.value)


@dataclass(eq=False)
class Function:
    """One recorded function. `threads` is the CTA's shape (x, y), or None for a function that one CPU thread calls."""
    name: str
    threads: tuple[int, int] | None = None
    result: Type | Pointer | None = None
    params: list = field(default_factory=list)                  # (name, value)
    noalias: bool | tuple[str, ...] = True      # what different pointer parameters reach is disjoint; or these, of all
    builtins: dict[str, Any] = field(default_factory=dict)      # "thread.x" → the value that holds it
    arrays: dict[Array, Any] = field(default_factory=dict)      # shared and local arrays → pointer to the first element
    body: list = field(default_factory=list)
    warp: int = 1                                               # threads that execute an instruction together
    min_ctas: int = 1                                           # CTAs that are to share a multiprocessor
    max_registers: int | None = None                            # of a thread; None: as many as there is room for
    cluster: tuple[int, int, int] = (1, 1, 1)                   # CTAs along x, y, z that run at once
    outer: bool = False                                         # loops around kernels, which take the time: its
                                                                # code is made sooner, and is not much worse
    independent: bool = False                                   # it has loops with `rounds`
    fuses: bool = False                                         # it has operations with `fuses`
    early: tuple[str, ...] = ()     # parameters whose memory is read before the stream's last kernel has ended
    scalar: tuple[str, ...] = ()                                # of these the ones that have not become vector code
    align: int = 1                                              # bytes that divide the addresses of arrays
    programs: bool = False          # a CPU function that is called for each program of a grid: its last six parameters,
    #                                 i32, are the program's x, y, z and the grid's

    @property
    def ctas_cluster(self) -> int:
        """CTAs of a cluster."""
        x, y, z = self.cluster
        return x * y * z

    def registers(self, file: int = 65536, most: int = 255) -> int:
        """Registers of a thread when the kernel begins: as many eights as fit in a multiprocessor's `file`."""
        x, y = self.threads or (1, 1)
        return self.max_registers or min(file // (x * y * self.min_ctas), most) // 8 * 8

    @property
    def shared(self) -> dict[Array, int]:
        """Where each shared array begins, in bytes from the start of the CTA's shared memory."""
        offsets, end = {}, 0
        for array in self.arrays:
            if array.space == "shared":
                offsets[array] = -(-end // array.align) * array.align
                end = offsets[array] + array.bytes
        return offsets

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA."""
        return max((start + array.bytes for array, start in self.shared.items()), default=0)

    @property
    def dynamic_bytes(self) -> int:
        """What a launch on an NVIDIA GPU has to ask for: all of it, if it is more than a module may declare."""
        return self.shared_bytes if self.shared_bytes > DECLARED_SHARED else 0

    def walk(self, nodes: list | None = None) -> Iterator[Any]:
        """Every node, in the order written."""
        for node in self.body if nodes is None else nodes:
            yield node
            if isinstance(node, (Loop, While, If)):             # nothing else holds nodes
                for inner in ("head", "body", "then", "otherwise"):
                    yield from self.walk(getattr(node, inner, []))

    def shape(self, array: Array) -> tuple[int, ...]:
        """The extents of a shared or local array, as the kernel declares them; its elements lie row by row."""
        strides = (array.size, *self.arrays[array].strides)
        return tuple(outer // inner for outer, inner in pairwise(strides))

    def callees(self) -> list[Function]:
        """The recorded functions that this one calls, directly or not, innermost first."""
        reached: dict[Function, None] = {}

        def visit(function: Function) -> None:
            for node in function.walk():
                if isinstance(node, Call) and isinstance(node.callee, Function) and node.callee not in reached:
                    visit(node.callee)
                    reached[node.callee] = None
        visit(self)
        return list(reached)


@cache
def written(function: Function) -> dict[str, Line]:
    """Pointer parameter → the first line that may write through it.

    Pointers are followed from the parameters through operations, registers and calls. What C functions and functions at
    an address do with a pointer is not known, so they count as writing.
    """
    origin: dict[Any, frozenset[str]] = {
        value.id: frozenset([name]) for name, value in function.params if isinstance(value.type, Pointer)}
    nodes = list(function.walk())
    lines: dict[str, Line] = {}

    def origins(*values: Any) -> frozenset[str]:
        return frozenset().union(*(origin.get(getattr(x, "id", x), frozenset()) for x in values))

    def flow(to: Any, names: frozenset[str]) -> bool:
        before = origin.get(to, frozenset())
        if names <= before:
            return False
        origin[to] = before | names
        return True

    def write(names: frozenset[str], line: Line) -> None:
        for name in names:
            lines.setdefault(name, line)

    again = True
    while again:                                # registers carry pointers from one round of a loop to the next
        again = False
        for node in nodes:
            match node:
                case Op(operation, operands, results):
                    for x in results if operation.role != "effect" else ():     # those have it from memory
                        if getattr(x.type, "bits", 64) > 1:
                            again |= flow(x.id, origins(*operands))
                    if operation.writes:
                        write(origins(operands[0]), node.line)
                case Read(result, register):
                    again |= flow(result.id, origins(register))
                case Write(register, value):
                    again |= flow(register, origins(value))
                case Store(pointer):
                    write(origins(pointer), node.line)
                case Call(callee, operands, result):
                    if result is not None:
                        again |= flow(result.id, origins(*operands))
                    inner = written(callee) if isinstance(callee, Function) else None
                    params = callee.params if isinstance(callee, Function) else [("", None)] * len(operands)
                    for (name, _), x in zip(params, operands):
                        if inner is None or name in inner:
                            write(origins(x), node.line)
    return lines
