"""A recorded function as a flat list of steps, each a Python function of a gang. Loops, branches and calls are made in
`control`; a run of operations, accesses and registers between them is one step, and made here.

Flat, because a gang can then be stopped, split and joined anywhere: where it stands is a number. Values live in slots;
constants fill theirs once.
"""
from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.exact import some
from tilewright.ir.ops.core import ADD, MUL, OFFSET, SHL, SHR, SUB
from tilewright.ir.program import Function, Load, Op, Read, Register, Store, Write
from tilewright.ir.types import i32
from tilewright.ir.vectors import vectorised
from tilewright.simulator import control
from tilewright.simulator.access import Access
from tilewright.simulator.memory import Region, numpy_type
from tilewright.simulator.pattern import fused
from tilewright.simulator.report import BasicBlock, Fault
from tilewright.simulator.wgmma import in_flight

if TYPE_CHECKING:
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine

Step = Callable[["Gang", list], None]       # of a gang and its slots


class Code:
    def __init__(self, machine: Machine, function: Function) -> None:
        function = vectorised(function)
        self.machine, self.function, self.name = machine, function, function.name
        self.steps: list[Callable[[Gang], None]] = []
        self.initial: list[Any] = []                # what the slots of a new call hold
        self.slots: dict[Any, int] = {}
        self.exits: list[control.Label] = []        # of the regions around the step that is being made
        self.accesses: list[Access] = []            # of the step that was made last
        self.params = [self.slot(value) for _, value in function.params]
        self.builtins = {name: self.slot(value) for name, value in function.builtins.items()}
        self.arrays = {array: self.slot(pointer) for array, pointer in function.arrays.items()}
        self.block(function.body)
        control.end(self)

    def block(self, nodes: list) -> None:
        run: list[Any] = []
        for node in nodes:
            if control.is_control(node):
                _emit(self, run)
                control.emit(self, node)
                run = []
            else:
                run.append(node)
                if isinstance(node, Op) and node.operation.role == "blocking":      # a gang waits only between steps
                    _emit(self, run)
                    run = []
        _emit(self, run)

    def slot(self, x: Any) -> int:
        """Where a value is kept."""
        index = self.slots.get(x.id)
        if index is None:
            index = self.slots[x.id] = len(self.initial)
            made = _whole if type(x.constant) is int else _made
            self.initial.append(None if x.constant is None else made(x.type, x.constant))
        return index

    def register(self, x: Register) -> int:
        """Where a register is kept."""
        index = self.slots.get(x)
        if index is None:
            index = self.slots[x] = len(self.initial)
            self.initial.append(None)
        return index

    def prepare(self, gang: Gang, operands: list[Any]) -> tuple[list[Any], list[Region]]:
        """Slots and local arrays of a new call."""
        env, regions = self.initial.copy(), []
        for slot, x in zip(self.params, operands, strict=True):
            env[slot] = x
        for name, slot in self.builtins.items():
            env[slot] = self.machine.builtin(name, gang.threads)
        for array, slot in self.arrays.items():
            region, env[slot] = self.machine.place(array, gang.threads)
            regions.append(region)
        return env, regions


def _made(t: Any, x: Any) -> Any:
    dtype = numpy_type(t)
    return np.full((t.length, 1), x, dtype) if getattr(t, "length", 1) > 1 else dtype.type(x)


_whole = lru_cache(4096)(_made)             # of floats 0.0 and -0.0 are equal


# ---- straight-line code

def _emit(code: Code, nodes: list) -> None:
    """Add one step that does all of `nodes` and counts their instructions at once. What it consists of is made when it
    runs for the first time, as most branches of a kernel never do in one run."""
    if not nodes:
        return
    steps: list[Step] | None = None
    block = BasicBlock(Counter(), 0)
    code.machine.report.blocks.append(block)

    def run(gang: Gang) -> None:
        nonlocal steps
        first = steps is None
        if steps is None:
            steps, code.accesses = [], []
            for node in nodes:
                step = _guarded(code, node)
                if step is not None:
                    steps.append(step)
                block.kinds[kind_of(node)] += 1
                block.flops += _flops(node)
            del block.kinds[""]
        frame = gang.frame
        env = frame.env
        if len(env) < len(code.initial):        # of a call that began before the slots of this step were known
            env += code.initial[len(env):]
        accesses = code.accesses
        for step in steps:
            step(gang, env)
        if first and code.machine.fuses:
            block.fused = fused(accesses)
        block.runs += gang.active_warps
        block.threads += gang.active_threads
        frame.pc += 1
    code.steps.append(run)


def _guarded(code: Code, node: Any) -> Step | None:
    """The step of a node, which must not touch registers of matrix products in flight unless it is one of these, or
    only names a register."""
    make = _STEPS.get(type(node))
    if make is None:
        raise TypeError(f"{code.name}: the simulator does not support {node}")
    step = make(code, node)
    if step is not None and code.machine.observer is not None:
        step = code.machine.observer.step(code, node, step)
    if step is None or not code.machine.flies or isinstance(node, (Read, Write)) or (
            isinstance(node, Op) and node.operation.kind in ("wgmma", "wgmma group")):
        return step
    slots = [code.slot(x) for x in node.uses if x.constant is None]

    def guarded(gang: Gang, env: list) -> None:
        for x in slots:
            if in_flight(env[x]):
                raise Fault("in flight", node.line, code.name, "it uses a register of a matrix product (wgmma) that no "
                            "k.wgmma_wait() has returned")
        step(gang, env)
    return guarded


def _load(code: Code, node: Load) -> Step:
    access = code.machine.access(code.machine, code.name, node.line, "load", node.result.type, node.align,
                    remote=node.pointer.type.space == "cluster")
    code.accesses.append(access)
    d, p, load = code.slot(node.result), code.slot(node.pointer), access.load
    m = None if node.mask is None else code.slot(node.mask)

    def step(gang: Gang, env: list) -> None:
        env[d] = load(gang, env[p], None if m is None else env[m])
    return step


def _store(code: Code, node: Store) -> Step:
    access = code.machine.access(code.machine, code.name, node.line, "store", node.value.type, node.align,
                    remote=node.pointer.type.space == "cluster")
    code.accesses.append(access)
    p, x, store = code.slot(node.pointer), code.slot(node.value), access.store
    m = None if node.mask is None else code.slot(node.mask)

    def step(gang: Gang, env: list) -> None:
        store(gang, env[p], env[x], None if m is None else env[m])
    return step


def _read(code: Code, node: Read) -> Step:
    d, r = code.slot(node.result), code.register(node.register)

    def read(gang: Gang, env: list) -> None:
        x = env[d] = env[r]
        if x is None:
            raise Fault("uninitialised", node.line, code.name, "it reads a register that was never written")
    return read


def _write(code: Code, node: Write) -> Step:
    r, x = code.register(node.register), code.slot(node.value)

    def write(gang: Gang, env: list) -> None:
        env[r] = env[x] if gang.mask is None else gang.merge(env[x], env[r])
    return write


def _operation(code: Code, node: Op) -> Step | None:
    operation, slot = node.operation, code.slot
    xs, ds = [slot(x) for x in node.operands], [slot(y) for y in node.results]
    meaning, role, t = operation.numpy, operation.role, node.results[0].type if ds else None
    index = t is i32 and code.machine.gpu and operation.name in INDEX_ARITHMETIC
    if index:
        meaning = INDEX_ARITHMETIC[operation.name]
    if meaning is None:
        return None if role == "effect" else _unknown(code, node)
    if role in ("effect", "blocking"):
        def effect(gang: Gang, env: list) -> None:
            y = meaning(gang, node, *[env[x] for x in xs])
            if len(ds) == 1:
                env[ds[0]] = y
            else:
                for d, result in zip(ds, y or (), strict=True):
                    env[d] = result
        return effect
    if role == "group":
        def group(gang: Gang, env: list) -> None:
            for d, y in zip(ds, _in_groups(code, node, gang, [env[x] for x in xs]), strict=True):
                env[d] = y
        return group
    if len(ds) > 1:
        def several(gang: Gang, env: list) -> None:
            for d, y in zip(ds, meaning(t, *[env[x] for x in xs]), strict=True):
                env[d] = y
        return several
    d, = ds
    plain = None if index else operation.plain or _shift(node)
    if plain is not None:
        a, b = xs

        def untyped(gang: Gang, env: list) -> None:
            env[d] = plain(env[a], env[b])
        return untyped
    if (operation.partial or index) and len(xs) == 2:
        a, b = xs

        def both(gang: Gang, env: list) -> None:
            try:
                env[d] = meaning(t, env[a], env[b])
            except ArithmeticError as error:
                env[d] = _active_only(code, node, meaning, gang, [env[a], env[b]], str(error))
        return both
    if operation.partial:
        def partial(gang: Gang, env: list) -> None:
            try:
                env[d] = meaning(t, *[env[x] for x in xs])
            except ArithmeticError as error:
                env[d] = _active_only(code, node, meaning, gang, [env[x] for x in xs], str(error))
        return partial
    if len(xs) == 1:
        a, = xs

        def unary(gang: Gang, env: list) -> None:
            env[d] = meaning(t, env[a])
        return unary
    if operation is OFFSET:
        (p, i), size = xs, np.int64(node.results[0].type.element.bytes)

        def offset(gang: Gang, env: list) -> None:
            env[d] = env[p] + env[i] * size
        return offset
    if len(xs) == 2:
        a, b = xs

        def binary(gang: Gang, env: list) -> None:
            env[d] = meaning(t, env[a], env[b])
        return binary

    def step(gang: Gang, env: list) -> None:
        env[d] = meaning(t, *[env[x] for x in xs])
    return step


def index_arithmetic(meaning: Callable) -> Callable:
    """Arithmetic on i32 indices, computed in i64 where the result fits."""
    def checked(t: Any, x: Any, y: Any) -> Any:
        if x.ndim == y.ndim == 0:               # Python's numbers are faster
            exact_int = meaning(int(x), int(y))
            if not -1 << 31 <= exact_int < 1 << 31:
                raise ArithmeticError(f"{exact_int} does not fit into an i32")
            return np.int32(exact_int)
        exact = meaning(x.astype(np.int64), y)
        rounded = exact.astype(np.int32)
        wrong = rounded != exact
        if some(wrong):
            raise ArithmeticError(f"{exact[wrong][0]} does not fit into an i32")
        return rounded
    return checked


# On a GPU an i32 is an index, and what does not fit is a mistake. For the lowest bits, as in hashes, a kernel casts an
# i64, or uses ^, &, |, <<, >>, which are of bits and not of numbers. Elements of vectors are data, and wrap.
INDEX_ARITHMETIC = {ADD.name: index_arithmetic(operator.add), SUB.name: index_arithmetic(operator.sub),
                    MUL.name: index_arithmetic(operator.mul)}


def _shift(node: Op) -> Callable | None:
    """The meaning of a shift by a constant, which need not be checked each time; of anything else None."""
    if node.operation is not SHL and node.operation is not SHR:
        return None
    by = node.operands[1].constant
    if by is None or not 0 <= by < node.results[0].type.bits:
        return None
    return operator.lshift if node.operation is SHL else operator.rshift


def _unknown(code: Code, node: Op) -> Step:
    def unknown(gang: Gang, env: list) -> None:
        raise Fault("no meaning", node.line, code.name, f"{node.operation.name} can be compiled but not simulated")
    return unknown


def _in_groups(code: Code, node: Op, gang: Gang, xs: list) -> list:
    """Threads side by side do it together: operands and results go in and come out as [..., groups, threads]. Groups
    of which no thread is active stay out of it."""
    operation, scope = node.operation, node.operation.scope
    on = None if gang.mask is None else np.flatnonzero(gang.mask)
    threads = gang.threads if on is None else gang.threads[on]
    groups = threads.reshape(-1, scope) if threads.size % scope == 0 else threads[:0, None]
    complete = len(groups) > 0 and (groups == groups[:, :1] + np.arange(scope)).all()
    if not complete or (groups[:, 0] % code.machine.cta % scope).any():
        raise Fault("divergent", node.line, code.name, f"{operation.name} needs {scope} threads side by side"
                    + gang.by(int(np.argmin(gang.active()))))
    assert operation.numpy is not None
    parts = (np.broadcast_to(x, (*np.shape(x)[:-1], gang.size)) for x in xs)
    parts = parts if on is None else (x[..., on] for x in parts)
    ys = operation.numpy(node.results[0].type, *(x.reshape(*x.shape[:-1], -1, scope) for x in parts))
    ys = [y.reshape(*y.shape[:-2], -1) for y in (ys if len(node.results) > 1 else [ys])]
    return ys if on is None else [_spread(y, on, gang.size) for y in ys]


def _spread(y: Any, on: Any, threads: int) -> Any:
    """The results of active threads among those of all, which for the others mean nothing."""
    result = np.zeros((*y.shape[:-1], threads), y.dtype)
    result[..., on] = y
    return result


def _active_only(code: Code, node: Op, meaning: Callable, gang: Gang, xs: list, why: str) -> Any:
    """The operation again, now that it has refused an operand, without what idle threads happen to hold."""
    t = node.results[0].type
    if gang.mask is not None:
        first = int(np.argmax(gang.mask))
        xs = [x if np.shape(x)[-1:] in ((), (1,)) else np.where(gang.mask, x, x[..., first:first + 1]) for x in xs]
        try:
            return meaning(t, *xs)
        except ArithmeticError as error:
            why = str(error)
    raise Fault("arithmetic", node.line, code.name, why)


_STEPS: dict[type, Callable[[Code, Any], Step | None]] = {
    Op: _operation, Load: _load, Store: _store, Read: _read, Write: _write}


# ---- counting

def kind_of(node: Any) -> str:
    """The kind of an instruction, as reports count it; "" for an instruction that costs nothing."""
    if isinstance(node, Op):
        kind = node.operation.kind
        return "float" if kind == "integer" and any(x.type.is_float for x in node.operands + node.results) else kind
    if isinstance(node, (Load, Store)):
        space = node.pointer.type.space
        return type(node).__name__.lower() + ("" if space == "global" else f" {space}")
    return ""                               # registers cost nothing: a Read or Write only names a value


_FLOPS = {"fma": 2, "fms": 2, "fnma": 2, "fnms": 2, "add": 1, "sub": 1, "mul": 1, "divide": 1, "sqrt": 1}


def _flops(node: Any) -> int:
    if not isinstance(node, Op):
        return 0
    flops = _FLOPS.get(node.operation.name, 0)
    return flops * node.results[0].type.length if flops and node.results[0].type.is_float else node.operation.flops
