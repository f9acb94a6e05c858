"""What Hopper's GPUs alone have beside copies by tensor maps (`ir.ops.tma`): matrix products of warpgroups that go on
while their threads do (`atoms.wgmma`), the order between them and other instructions, and registers that warpgroups
hand to one another.

    k.wgmma_fence(acc)
    for step in range(4):
        k.wgmma(atom, acc, a + step * 16, b + step * 16)
    k.wgmma_commit()
    k.wgmma_wait(0, acc)

From `wgmma` to `wgmma_wait` the sums (and A, where it is in registers) are not to be touched, and what is read of
shared memory is not to be overwritten. A fence comes before the first product of a kernel, and between anything else
that writes registers of a product and the product. The wait takes the sums and returns them, so that no compiler moves
an access of them across it; what is not passed through is still in flight.

Source: PTX ISA, https://docs.nvidia.com/cuda/parallel-thread-execution/ (wgmma.mma_async, wgmma.fence,
wgmma.commit_group, wgmma.wait_group, setmaxnreg, elect.sync)
"""
from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright.ir.ops.core import Operation, by_machine
from tilewright.ir.ops.tma import spelled
from tilewright.ir.program import Op, Write
from tilewright.ir.types import Pointer, Type, i1, i32
from tilewright.ir.values import Tile, Value

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel

WARPGROUP = 4                   # warps


def tied(low: Any, text: str, t: Type, registers: Any, more: Any = (), memory: bool = False) -> list[Any]:
    """Inline assembly that takes registers of type t and returns them changed, $0, $1 ... in place; $2n, $2n + 1 ... of
    n registers are `more` operands."""
    xs = [*registers]
    letters = ["=" + low.dialect.letter(low, x) for x in xs] + [str(e) for e in range(len(xs))]
    constraints = letters + [low.dialect.letter(low, x) for x in more] + ["~{memory}"] * memory
    result = low.struct([t] * len(xs)) if xs else low.nothing()
    results = low.asm(text, result, ",".join(constraints), *xs, *more, effects=True, together=True)
    return [low.b.extract_value(results, e) for e in range(len(xs))]


# ---- the async proxy: tensor cores and bulk copies, as they see memory

FENCE_ASYNC = {space: Operation(
    f"fence.proxy.async.{name}", spelled(f"fence.proxy.async.{name};"),
    lambda gang, node: gang.machine.clocks.fence_proxy(*gang.acting_lanes()), "fence", "effect", needs="tma")
    for space, name in (("shared", "shared::cta"), ("global", "global"))}


def fence_async(k: Kernel, space: str = "shared") -> None:
    """What this thread has written to shared (or global) memory, and what it has seen of others, the async proxy finds
    that it or others start after this: `wgmma`, and bulk copies. What these have done needs no fence once a wait has
    shown that it is over."""
    if space not in FENCE_ASYNC:
        raise ValueError(f'space must be "shared" or "global", not {space!r}')
    k._effect(FENCE_ASYNC[space])


# ---- a thread of a warp, and registers of warpgroups

ELECT = Operation("elect.sync", lambda low, t: low.b.extract_value(low.call(
    "llvm.nvvm.elect.sync", low.struct([i32, i1]), low.i32(-1)), 1, name="elected"), by_machine("wgmma", "elect"),
    "exchange", "effect", needs="tma")


def elect(k: Kernel) -> Value:
    """True in one thread of the warp, of which all come by: who starts a copy."""
    return k._op(ELECT, i1)


@cache
def set_registers(count: int, more: bool) -> Operation:
    name = f"setmaxnreg.{'inc' if more else 'dec'}.sync.aligned.u32 {count}"
    return Operation(name, spelled(f"{name};"), by_machine("wgmma", "set_registers", count, more), "setmaxnreg",
                     "blocking", needs="setmaxnreg")


def registers(k: Kernel, count: int, more: bool) -> None:
    """From here on the threads of this warpgroup have `count` registers, a multiple of 8 from 24 to 256: `more` than
    they had, of those that other warpgroups have given up, or fewer. The gate adds them up (`compiler.gate_gpu`)."""
    if not isinstance(count, int) or count % 8 or not 24 <= count <= 256:
        raise ValueError(f"count must be a multiple of 8 from 24 to 256, not {count!r}")
    _whole_warpgroups(k, "registers()")
    k._effect(set_registers(count, more))


# ---- products of warpgroups

def _in_place(text: str) -> Any:
    """The spelling of an instruction that registers are passed through."""
    def spelling(low: Any, t: Any, *registers: Any) -> Any:
        results = tied(low, text, t or i32, registers, memory=True)
        return results[0] if len(results) == 1 else results
    return spelling


# What this warp has done to registers before, its products after may find.
FENCE = Operation("wgmma.fence", _in_place("wgmma.fence.sync.aligned;"), by_machine("wgmma", "fence"), "wgmma group",
                  "effect", needs="wgmma")
COMMIT = Operation("wgmma.commit_group", spelled("wgmma.commit_group.sync.aligned;"), by_machine("wgmma", "commit"),
                   "wgmma group", "effect", needs="wgmma")


@cache
def _arrived(pending: int) -> Operation:
    """The wait itself, in the simulator; `_wait` behind it is the instruction, and hands the registers on."""
    return Operation(f"wgmma.wait{pending}", lambda low, t: None, by_machine("wgmma", "wait", pending), "",
                     "blocking", needs="wgmma")


@cache
def _wait(pending: int) -> Operation:
    return Operation(f"wgmma.wait_group{pending}", _in_place(f"wgmma.wait_group.sync.aligned {pending};"),
                     by_machine("wgmma", "take", pending), "wgmma group", "effect", needs="wgmma")


def wgmma(k: Kernel, atom: Any, acc: Tile, a: Any, b: Value, add: Any = True) -> None:
    """D = A @ B + D, or without `add` (a bool, or an i1 of which all lanes have the same) D = A @ B, by the warpgroup.

    atom    an `atoms.wgmma.Wgmma`
    acc     D: a tile of `atom.registers` registers of type `atom.sum`
    a, b    where the matrices begin in shared memory, pointers to elements of any type; or `a` is a list of the four
            registers of A in this lane, as i32

    TypeError, ValueError for other operands; SyntaxError in a role that is not whole warpgroups, or if registers are
    written between the last fence and here.
    """
    _whole_warpgroups(k, "wgmma")
    registers = [*acc.registers]
    if len(registers) != atom.registers or acc.type != atom.sum:
        raise ValueError(f"{atom.name} adds to {atom.registers} registers of {atom.sum} in each lane, and acc has "
                         f"{len(registers)} of {acc.type}")
    operands = [*a] if atom.a_layout is None else [a]
    shared = [b] if atom.a_layout is None else [a, b]
    if atom.a_layout is None and (len(operands) != WARPGROUP or any(x.type != i32 for x in operands)):
        raise TypeError(f"{atom.name} takes A in 4 registers of i32, not in {', '.join(str(x.type) for x in operands)}")
    for x in shared:
        if not isinstance(getattr(x, "type", None), Pointer) or x.type.space != "shared":
            raise TypeError(f"{atom.name} takes an operand from shared memory, not a {getattr(x, 'type', repr(x))}")
    _check_fenced(k, atom, acc, operands if atom.a_layout is None else [])
    add = k._value(bool(add), i1) if isinstance(add, (bool, int)) else k._value(add, i1)
    sums = k._group(atom.operation, [acc.type] * len(registers), *(acc[ij] for ij in registers), *operands, b, add)
    for ij, x in zip(registers, sums):
        acc[ij] = x


def wgmma_fence(k: Kernel, *acc: Tile) -> None:
    """What was done to registers before, products after this may use and overwrite. Tiles of sums that other
    instructions have written are passed through, so that no compiler writes them later than that."""
    _whole_warpgroups(k, "wgmma_fence")
    _pass(k, FENCE, acc)


def wgmma_commit(k: Kernel) -> None:
    """Close the group of the products that this warpgroup has started since the last group."""
    _whole_warpgroups(k, "wgmma_commit")
    k._effect(COMMIT)


def wgmma_wait(k: Kernel, pending: int, *acc: Tile) -> None:
    """Wait until at most `pending` (0 to 7) of the newest groups are still in flight. `acc` are all tiles of sums that
    products in flight write: those of groups that are over can be used from here on."""
    if not isinstance(pending, int) or not 0 <= pending <= 7:
        raise ValueError(f"pending must be a Python number from 0 to 7, not {pending!r}")
    _whole_warpgroups(k, "wgmma_wait")
    k._effect(_arrived(pending))
    _pass(k, _wait(pending), acc)


def _pass(k: Kernel, operation: Operation, acc: tuple[Tile, ...]) -> None:
    """Through an operation that returns its operands."""
    if len({tile.type for tile in acc}) > 1:
        raise TypeError(f"sums that are passed together have one type, not {', '.join(str(x.type) for x in acc)}")
    registers = [(tile, ij) for tile in acc for ij in tile.registers]
    passed = k._group(operation, [tile.type for tile, _ in registers], *(tile[ij] for tile, ij in registers))
    for (tile, ij), x in zip(registers, passed):
        tile[ij] = x


def _whole_warpgroups(k: Kernel, what: str) -> None:
    role, warps = k._role, -(-k.cta_shape[0] * k.cta_shape[1] // k.warp)
    name, first, count = (role.name, role.first, role.warps) if role else ("the CTA", 0, warps)
    if first % WARPGROUP or count % WARPGROUP:
        raise SyntaxError(f"{what} is executed by whole warpgroups, four warps from a multiple of 4 on, and {name} has "
                          f"warps {first} to {first + count - 1}")


def _check_fenced(k: Kernel, atom: Any, acc: Tile, a: list[Value]) -> None:
    """SyntaxError if, in this block, registers of the product are written after the last fence."""
    mine, fragments = {*acc.registers.values()}, {x.id for x in a}
    sums: set[int] = set()
    after: list[Any] = []
    for node in reversed(k._body):
        if isinstance(node, Op) and node.operation is FENCE:
            sums |= {x.id for x in node.results}
            break
        after.insert(0, node)
    else:
        return                          # none in this block: the simulator looks
    for node in after:
        if isinstance(node, Op) and node.operation.kind in ("wgmma", "wgmma group"):
            sums |= {x.id for x in node.results}
        elif fragments & {x.id for x in node.defines}:
            raise SyntaxError(f"{node.line}: a register of A is written after the last k.wgmma_fence(), which orders "
                              f"it before {atom.name}\n    {node.line.text}")
        elif isinstance(node, Write) and node.register in mine and node.value.id not in sums:
            raise SyntaxError(f"{node.line}: a register of D is written after the last k.wgmma_fence(), which orders "
                              f"it before {atom.name}\n    {node.line.text}")
