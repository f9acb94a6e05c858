"""Control flow: loops, branches, calls and returns, as steps that set the point of a gang.

A region is entered by `fork` and left by a step of its own; threads that do not enter it are idle meanwhile, and a gang
of which no thread enters jumps past it. A CPU thread is the case of one thread, which is never idle.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.exact import some
from tilewright.ir.program import Call, External, Function, If, Loop, Op, Return, While
from tilewright.simulator.memory import numpy_type
from tilewright.simulator.report import BasicBlock, Fault

if TYPE_CHECKING:
    from tilewright.simulator.code import Code
    from tilewright.simulator.gang import Gang, Mask


class Label:
    """A point that is known once the steps before it are made."""

    def __init__(self) -> None:
        self.pc = -1


def is_control(node: Any) -> bool:
    return isinstance(node, (Loop, While, If, Call, Return))


def blocks(node: Any) -> bool:
    """May a gang have to wait here, or somewhere inside?"""
    if isinstance(node, Op):
        return node.operation.role == "blocking"
    if isinstance(node, Call) and isinstance(node.callee, Function):
        return any(map(blocks, node.callee.body))
    parts = ("head", "body", "then", "otherwise") if is_control(node) else ()
    return any(blocks(inner) for part in parts for inner in getattr(node, part, ()))


def emit(code: Code, node: Any) -> None:
    match node:
        case Loop():
            _loop(code, node)
        case While():
            _while(code, node)
        case If():
            _branch(code, node)
        case Call():
            _call(code, node)
        case Return():
            _return(code, node)


# ---- regions

def fork(gang: Gang, condition: Any, skip: int, among: Mask, splits: bool) -> None:
    """Enter a region with those threads of `among` (None: all) for which the condition holds; if there are none, jump
    to `skip`. If the region blocks (`splits`), warps of which no thread enters jump there as a gang of their own."""
    if condition.ndim == 0:
        if condition:
            gang.enter(among)
            gang.frame.pc += 1
        else:
            gang.frame.pc = skip
        return
    on = condition if among is None else condition & among
    if not some(on):
        gang.frame.pc = skip
        return
    if splits:
        warps = np.repeat(on.reshape(-1, gang.machine.warp).any(1), gang.machine.warp)
        if not warps.all():
            others = gang.split(warps)
            others.frame.pc = skip
            gang.machine.ready.append(others)
            on = on[warps]
    gang.enter(None if on.all() else on)
    gang.frame.pc += 1


def _leave(code: Code) -> Callable[[Gang], None]:
    """The step that ends a region. Where no thread is left, since all have returned, the outer region ends too."""
    outer = code.exits[-1] if code.exits else None

    def leave(gang: Gang) -> None:
        gang.leave()
        if gang.active_threads:
            gang.frame.pc += 1
        else:
            assert outer is not None
            gang.frame.pc = outer.pc
    return leave


def _region(code: Code, condition: Callable[[list], Any], body: list) -> None:
    """if (condition) body"""
    end, leave, splits = Label(), _leave(code), any(map(blocks, body))

    def enter(gang: Gang) -> None:
        fork(gang, condition(gang.frame.env), end.pc + 1, gang.mask, splits)
    code.steps.append(enter)
    code.exits.append(end)
    code.block(body)
    code.exits.pop()
    end.pc = len(code.steps)
    code.steps.append(leave)


def _branch(code: Code, node: If) -> None:
    c = code.slot(node.condition)
    _region(code, lambda env: env[c], node.then)
    if node.otherwise:
        _region(code, lambda env: np.logical_not(env[c]), node.otherwise)


def _loop(code: Code, node: Loop) -> None:
    index, start, stop, step = (code.slot(v) for v in (node.index, node.start, node.stop, node.step))
    end, leave, head, splits = Label(), _leave(code), len(code.steps), blocks(node)

    def enter(gang: Gang) -> None:
        env = gang.frame.env
        env[index] = env[start]
        fork(gang, env[start] < env[stop], end.pc + 1, gang.mask, splits)

    def again(gang: Gang) -> None:
        env, inside = gang.frame.env, gang.mask
        following = env[index] + env[step]
        if some(following < env[index]):
            raise Fault("arithmetic", node.line, code.name, f"the loop's index passes the end of {node.index.type}")
        env[index] = following
        leave(gang)
        if gang.frame.pc == end.pc + 1 and (inside is None or some(inside)):
            gang.frame.pc = head
            fork(gang, env[index] < env[stop], end.pc + 1, inside, splits)
    code.steps.append(enter)
    if code.machine.observer is not None:
        code.steps.append(code.machine.observer.round_of(code, node))
    code.exits.append(end)
    code.block(node.body)
    code.exits.pop()
    end.pc = len(code.steps)
    code.steps.append(again)


def _while(code: Code, node: While) -> None:
    c, end, leave, splits = code.slot(node.condition), Label(), _leave(code), blocks(node)

    def enter(gang: Gang) -> None:
        gang.enter(gang.mask)
        gang.frame.pc += 1

    def test(gang: Gang) -> None:
        """`fork` enters the region again, after it has been left here; who does not enter it jumps past it."""
        inside = gang.mask
        gang.leave()
        fork(gang, gang.frame.env[c], end.pc + 1, inside, splits)

    def again(gang: Gang) -> None:
        if gang.active_threads:
            gang.frame.pc = head
        else:
            leave(gang)                                 # all have returned
    code.steps.append(enter)
    head = len(code.steps)
    code.exits.append(end)
    code.block(node.head)
    code.steps.append(test)
    code.block(node.body)
    code.exits.pop()
    end.pc = len(code.steps)
    code.steps.append(again)


# ---- calls

def _return(code: Code, node: Return) -> None:
    x = None if node.value is None else code.slot(node.value)
    end = code.exits[-1] if code.exits else None

    def ret(gang: Gang) -> None:
        gang.ret(None if x is None else gang.frame.env[x], -1 if end is None else end.pc)
    code.steps.append(ret)


def end(code: Code) -> None:
    """The last step of a function: to come here is to return nothing."""
    function = code.function

    def finish(gang: Gang) -> None:
        if function.result is not None:
            raise Fault("no result", function.body[-1].line, code.name, f"it ends without returning {function.result}")
        gang.ret(None, -1)
    code.steps.append(finish)


def _call(code: Code, node: Call) -> None:
    xs, d = [code.slot(x) for x in node.operands], None if node.result is None else code.slot(node.result)
    block = BasicBlock(Counter(["call"]), 0)
    code.machine.report.blocks.append(block)
    machine, callee = code.machine, node.callee

    def count(gang: Gang) -> None:
        block.runs += gang.active_warps

    def direct(gang: Gang) -> None:
        frame = gang.frame
        count(gang)
        frame.pc += 1
        gang.call(machine.code(callee), [frame.env[x] for x in xs], gang.mask, d)

    def external(gang: Gang) -> None:
        meaning = machine.externals.get(callee.name)
        if meaning is None:
            raise Fault("no meaning", node.line, code.name,
                        f"{callee.name}() is no recorded function; run(..., externals=) could give it a meaning")
        count(gang)
        y, env = meaning(*[gang.frame.env[x] for x in xs]), gang.frame.env
        if d is not None:
            env[d] = gang.merge(numpy_type(node.result.type).type(y), env[d])
        gang.frame.pc += 1

    if isinstance(callee, Function):
        code.steps.append(direct)
    elif isinstance(callee, External):
        code.steps.append(external)
    else:
        code.steps.append(_through_pointer(code, node, xs, d, count))


def _through_pointer(code: Code, node: Call, xs: list[int], d: int | None,
                     count: Callable[[Gang], None]) -> Callable[[Gang], None]:
    """Threads that hold different addresses make their calls one after another."""
    p, machine = code.slot(node.callee), code.machine
    signature = [x.type for x in node.operands], None if node.result is None else node.result.type

    def find(gang: Gang, address: int) -> Function:
        function = machine.memory.function(address)
        if function is None:
            raise Fault("no memory", node.line, code.name, f"a call of {address:#x}, which is no function's address")
        if not _agrees(function, *signature):
            raise Fault("signature", node.line, code.name, f"a call of {function.name} with other types than it has")
        return function

    def step(gang: Gang) -> None:
        frame = gang.frame
        if frame.pending is None:
            count(gang)
            address, on = np.broadcast_to(frame.env[p], gang.size), gang.active()
            groups = [(find(gang, int(a)), on & (address == a)) for a in np.unique(address[on])]
            frame.pending = [(groups[0][0], gang.mask)] if len(groups) == 1 else groups
        function, mask = frame.pending.pop()
        if not frame.pending:
            frame.pending = None
            frame.pc += 1
        gang.call(machine.code(function), [frame.env[x] for x in xs], mask, d)
    return step


def _agrees(function: Function, operands: list, result: Any) -> bool:
    """Pointers are all alike; everything else is of the type that the function declares."""
    def same(x: Any, y: Any) -> bool:
        return numpy_type(x) == numpy_type(y) and getattr(x, "length", 1) == getattr(y, "length", 1)
    types = [value.type for _, value in function.params]
    return len(types) == len(operands) and all(map(same, types, operands)) and \
        (result is None or (function.result is not None and same(function.result, result)))
