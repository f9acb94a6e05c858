"""Products of blocks: which way a target has for them, and those without matrix instructions.

Operands come from shared memory (`Operand`; of a CPU from the stack), where the threads put what they have loaded; sums
stay in registers, by a layout that suits the instructions:

    NVIDIA      mma.sync through ldmatrix, or wgmma (tensor.py); f32 by FMAs, a thread an outer product for each step
    AMD         MFMA (tensor.py)
    CPUs        a register tile of 4 rows by vectors, FMAs along k
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.blocks import tensor
from tilewright.blocks.block import Block
from tilewright.blocks.layout import Layout, Registers, bits
from tilewright.blocks.tensor import Operand, contiguous, stored
from tilewright.ir import Value, f32, i32, vec

if TYPE_CHECKING:
    from tilewright.blocks.program import Program

LEAST = 16                      # of each extent
PRECISIONS = "ieee", "tf32"


def dot(p: Program, a: Block, b: Block, acc: Block | None, precision: str) -> Block:
    """See Program.dot."""
    m, n, depth, formats = _checked(p, a, b, acc, precision)
    sums = i32 if formats == "i8" else f32
    a, b = p.dense(a), p.dense(b)
    along_k = contiguous(a.content.layout) == 1, contiguous(b.content.layout) == 0
    way: Any = Vectors(p, m, n, depth, sums) if p.vector else tensor.Mfma(p, m, n, depth, formats) if p.amd else \
        OuterProducts(p, m, n, depth) if formats == "f32" else \
        tensor.Warpgroups(p, m, n, depth, formats, along_k) if tensor.Warpgroups.can(p, m, n, depth, formats, along_k) \
        else tensor.Mma(p, m, n, formats, along_k)
    layout = way.layout
    if way.how != "padded":
        p.loads.product(a, b, along_k, way.how)
    if p.ahead:
        return p.nothing((m, n), sums, layout)
    acc = p.zeros((m, n), sums) if acc is None else acc
    if acc.type != sums or acc.shape != (m, n):
        raise TypeError(f"dot of {a.type} adds to a block of {sums} {[m, n]}, not to {acc!r}")
    flying = isinstance(acc.content, Registers) and acc.content.layout == layout and isinstance(
        acc.content.values, tensor.InFlight)
    acc = acc if flying else acc.laid(layout)
    operands = stored(p, (a, b), way.along_k, wide=way.wide, how=way.how, pad=way.pad)
    if p.vector:
        return Block(p, (m, n), sums, way.multiply(*operands, acc))
    added = acc.content.values if flying else acc.values(layout)
    return Block(p, (m, n), sums, Registers(layout, way.multiply(*operands, added)))


def _checked(p: Program, a: Any, b: Any, acc: Any, precision: str) -> tuple[int, int, int, str]:
    for x in (a, b):
        if not isinstance(x, Block) or len(x.shape) != 2 or not hasattr(x.type, "bits"):
            raise TypeError(f"dot takes two blocks of numbers with two dimensions, not {x!r}")
    (m, depth), (other, n) = a.shape, b.shape
    if depth != other or min(m, n, depth) < LEAST:
        raise ValueError(f"dot takes blocks [m, k] and [k, n] with extents from {LEAST} on, not {list(a.shape)} and "
                         f"{list(b.shape)}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision is 'ieee' or 'tf32', not {precision!r}")
    format = str(a.type)
    allowed = ["f32", "f16", "bf16", "i8"]
    if not p.vector and not p.amd:
        allowed = ["f32", "f16", "i8", *(["bf16"] if p.has("bf16") else [])]
    if a.type != b.type or format not in allowed:
        raise TypeError(f"dot on {p.target.name} takes two blocks of {', '.join(allowed)}, the same one, not {a.type} "
                        f"and {b.type}: x.to(f32) makes another")
    if format == "f32" and precision == "tf32" and not p.vector and not p.amd:
        if not p.has("tf32"):
            raise TypeError(f'dot on {p.target.name} has no tf32: precision="ieee" adds up in f32')
        format = "tf32"
    return m, n, depth, format


class Vectors:
    """Products by a CPU's vectors. C is on the stack while it is added to."""
    ROWS = 4
    along_k, wide, pad, how = (True, False), True, 0, "padded"

    def __init__(self, p: Program, m: int, n: int, depth: int, sums: Any) -> None:
        self.p, self.m, self.n, self.depth, self.sums = p, m, n, depth, sums
        self.layout = p.blocked((m, n), sums)
        width = self.layout.length
        self.width, self.vectors = width, min(n // width, 4 if p.target.registers > 16 else 2)

    def multiply(self, a: Operand, b: Operand, acc: Block) -> Registers:
        p, k, n, width, columns = self.p, self.p.ir, self.n, self.width, self.vectors * self.width
        V = vec(self.sums, width)
        stacked = p.on_stack(self.layout, self.sums)
        assert stacked.stack is not None
        c = stacked.stack.at                                              # row by row
        with p.turns(self.layout):
            p.put(stacked, (x if x.type.length == width else k.broadcast(x, width) for x in acc.values(self.layout)))
        sums = k.tile(self.ROWS, self.vectors, V, zero=False)
        with k.loop(self.m, step=self.ROWS) as i, k.loop(n, step=columns) as j:
            for row, v in sums.registers:
                sums[row, v] = k.load(c + ((i + row)*n + j + v*width), V, align=self.sums.bytes)
            with k.loop(self.depth, unroll=False) as step:
                by = [k.load(b.at + (step*b.row + j + v*width), V, align=self.sums.bytes) for v in range(self.vectors)]
                for row in range(self.ROWS):
                    x = k.broadcast(k.load(a.at + ((i + row)*a.row + step)), width)
                    for v in range(self.vectors):
                        sums[row, v] = k.fma(x, by[v], sums[row, v])
            for row, v in sums.registers:
                k.store(c + ((i + row)*n + j + v*width), sums[row, v], align=self.sums.bytes)
        return stacked


class OuterProducts:
    """Products of f32 on CUDA cores: a thread has pieces of 4 by 4 elements of C, lanes 4 by 8 of these, then warps."""
    along_k, wide, pad, how = (False, False), False, 4, "padded"
    UNROLLED = 8                # steps of k

    def __init__(self, p: Program, m: int, n: int, depth: int) -> None:
        self.p, self.depth = p, depth
        rows, columns = [(0, bit) for bit in range(bits(m))], [(1, bit) for bit in range(bits(n))]
        near = [columns.pop(0), columns.pop(0), rows.pop(0), rows.pop(0)]

        def share(count: int, by: int) -> tuple[Any, ...]:
            """Take `count` bits, `by` bits of columns first, as far as there are any."""
            bits: list[Any] = []
            while len(bits) < count:
                left = columns if columns and (len(bits) < by or not rows) else rows
                bits.append(left.pop(0) if left else None)
            return tuple(bits)
        lanes, warps = share(5, 3), share(bits(p.num_warps), bits(p.num_warps) // 2)
        self.layout = Layout((*near, *columns, *rows), lanes, warps)

    def multiply(self, a: Operand, b: Operand, acc: list[Value]) -> list[Value]:
        k, layout = self.p.ir, self.layout
        sums = k.tile(1, len(acc), f32, zero=False)
        for r, x in enumerate(acc):
            sums[0, r] = x
        bases = [operand.at + self.p.coordinate(layout, dim) for dim, operand in enumerate((a, b))]
        pieces = [sorted({layout.register_offset(r, dim) & -4 for r in range(layout.count)}) for dim in range(2)]
        with k.loop(self.depth, step=self.UNROLLED, unroll=False) as first:
            for step in range(self.UNROLLED):
                products = []
                for base, operand, places in zip(bases, (a, b), pieces):
                    at = base + (first + step)*operand.row
                    products.append({piece: k.load(at + piece, vec(f32, 4)) for piece in places})
                for r in range(layout.count):
                    i, j = layout.register_offset(r, 0), layout.register_offset(r, 1)
                    sums[0, r] = k.fma(products[0][i & -4][i & 3], products[1][j & -4][j & 3], sums[0, r])
        return [sums[0, r] for r in range(layout.count)]
