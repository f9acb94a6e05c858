"""Products of blocks by matrix instructions: mma.sync and wgmma of NVIDIA's warps, MFMA of AMD's waves. Warps divide
the rows and columns of C. An `Operand` is A or B in shared memory (on a CPU: on the stack): rows of k, or of rows of A
and columns of B, as the products read them, swizzled where ldmatrix does."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.atoms.amd import mfma
from tilewright.atoms.wgmma import DEPTH, PIECE, ROWS, WARPS, M, SharedMatrix, Wgmma
from tilewright.blocks.block import Block, cast
from tilewright.blocks.layout import Layout, bits, held_as, written
from tilewright.ir import Kernel, Tile, Value, f32, i8, i32, vec
from tilewright.kernels.nvidia.matrices import Blocks, arranged
from tilewright.kernels.nvidia.mma_gemm import WarpProducts
from tilewright.kernels.nvidia.operand import Swizzle

if TYPE_CHECKING:
    from tilewright.blocks.program import Program

WIDEST, PANEL = 16, 128         # bytes of one access, and of a row that wgmma takes
ALIGN = 1024                    # bytes: where an operand may begin


class Operand:
    """At `at` in rows of `row` elements. `inner_k`: k is contiguous. `how`: rows are "padded" by `pad` elements, or
    swizzled for "ldmatrix", or in panels for "wgmma", one after the other: rows of up to 128 bytes, which the
    instruction's descriptor calls the swizzle."""

    def __init__(self, p: Program, block: Block, of_b: bool, inner_k: bool, how: str, pad: int = 0) -> None:
        self.p, self.of_b, self.inner_k, self.T = p, of_b, inner_k, held_as(block.type)
        self.inner = int(inner_k) if not of_b else int(not inner_k)             # the dimension that is contiguous
        self.CTA_K = block.shape[0 if of_b else 1]
        rows, extent, self.how = block.shape[1 - self.inner], block.shape[self.inner], how
        options: dict[str, Any] = {"PAD": pad}
        if how == "ldmatrix":
            options = arranged(self.T.bits, inner_k, of_b)
        elif how == "wgmma":
            options = {"PAD": min(PANEL // self.T.bytes - extent, 0), "BITS": (0, 1, 2)}
        self.row, self.rows = extent + options["PAD"], rows
        self.size = rows * max(extent, self.row)
        self.swizzle = Swizzle(self.row, max(WIDEST // self.T.bytes, 1), options.get("BITS", ()),
                               options.get("FIRST", 0))
        self.at: Value

    def write(self, block: Block) -> None:
        """Write a block to this operand's memory. All threads that hold an element write it."""
        k, p, layout = self.p.ir, self.p, block.content.layout
        if p.vector:
            written(p, block.content, self.at, {1 - self.inner: self.row, self.inner: 1}, self.T)
            return
        values = block.content.values
        count = 0
        while count < len(layout.registers) and layout.registers[count] == (self.inner, count) and (
                2 << count) * self.T.bytes <= WIDEST:
            count += 1
        step = 1 << count
        owner = p.owner(layout)
        for r, place in self.places(layout, step):
            k.store(place, values[r] if step == 1 else k.pack(*values[r:r + step]), mask=owner)

    def places(self, layout: Layout, step: int) -> Iterator[tuple[int, Value]]:
        """Where each run of so many registers is."""
        row, column = (_value(self.p, layout, dim) for dim in (1 - self.inner, self.inner))
        apart = [(layout.register_offset(r, 1 - self.inner), layout.register_offset(r, self.inner))
                 for r in range(0, layout.count, step)]
        if self.how == "wgmma":             # a column of a later panel is one of later rows
            row, column = row + column // self.row * self.rows, column % self.row
            apart = [(i + j // self.row * self.rows, j % self.row) for i, j in apart]
        swizzled = self.swizzle.places(self.p.ir, row, column, apart)
        for r, at in zip(range(0, layout.count, step), apart):
            value, constant = swizzled[at]
            yield r, self.at + value + constant


def stored(p: Program, blocks: tuple[Block, Block], along_k: tuple[bool, bool], *, wide: bool, how: str, pad: int
           ) -> list[Operand]:
    """Both operands, written by the threads that hold them and ready to be read. `along_k` for each: whether k is
    contiguous there. `wide`: numbers of 16 bits as f32, of 8 as i32."""
    if wide:
        blocks = tuple(cast(x, i32 if x.type == i8 else f32) for x in blocks)           # type: ignore[assignment]
    operands = [p.loads.stages.get(x.content.load) or Operand(p, x, of_b == 1, along, how, pad)
             for of_b, (x, along) in enumerate(zip(blocks, along_k))]
    own = [(x, block) for x, block in zip(operands, blocks) if block.content.load not in p.loads.stages]
    if not own:
        return operands
    if p.vector:
        for x, block in [*own]:
            stack = block.content.stack
            if stack and stack.strides == {1 - x.inner: x.row, x.inner: 1}:         # it is there already
                x.at = stack.at
                own.remove((x, block))
            else:
                x.at = p.ir.local(f"operand{len(p.ir.function.arrays)}", x.size, x.T)
    else:
        sizes = [-(-x.size * x.T.bytes // ALIGN) * ALIGN for x, _ in own]
        room = p.room(i8, sum(sizes))
        for (x, _), start in zip(own, (0, sizes[0])):
            x.at = (room + start).as_(x.T)
    p.meet(writing=True)
    for x, block in own:
        x.write(block)
    if how == "wgmma":
        p.ir.fence_async()
    p.meet(writing=False)
    return operands


def contiguous(layout: Layout) -> int:
    """The dimension along which a thread, or else lanes have neighbours."""
    near = [place for place in (*layout.registers[:1], *layout.lanes) if place and place[1] == 0]
    return near[0][0] if near else 1


def _value(p: Program, layout: Layout, dim: int) -> Value:
    coordinate = p.coordinate(layout, dim)
    return coordinate if isinstance(coordinate, Value) else p.ir.constant(i32, coordinate)


BLOCK = 16                      # rows and columns of an instruction, at least


def _split(m: int, n: int, warps: int, least: int) -> tuple[int, int]:
    """Bits of the warp's number that divide rows, and columns: a warp's part is as square as it can be."""
    rows = columns = 0
    for _ in range(bits(warps)):
        if m >> rows >= n >> columns and m >> rows > least:
            rows += 1
        elif n >> columns > least:
            columns += 1
        elif m >> rows > least:
            rows += 1
    return rows, columns


class Warps:
    """How warps divide C: `rows` and `columns` of each."""

    def __init__(self, p: Program, m: int, n: int, least: int) -> None:
        self.p = p
        rows, columns = _split(m, n, p.num_warps, least)
        self.m, self.n = m >> rows, n >> columns
        places = [(0, bits(self.m) + bit) for bit in range(rows)] + [(1, bits(self.n) + bit) for bit in range(columns)]
        self.bits: tuple[Any, ...] = (*places, *[None] * (bits(p.num_warps) - len(places)))
        k = p.ir
        warp = k.thread[0] // k.warp
        self.lane = k.thread[0] % k.warp
        self.first = (warp % (1 << rows) * self.m, warp // (1 << rows) % (1 << columns) * self.n)


class _Places:
    """What WarpProducts asks a ring for."""

    def __init__(self, *at: Value) -> None: self.at = at
    def places(self, stage: Any) -> tuple[Value, ...]: return self.at


class Mma:
    """NVIDIA's. Which rows and columns of C a lane has depends on what is contiguous: kernels/nvidia/matrices.py."""
    wide, pad, how = False, 0, "ldmatrix"

    def __init__(self, p: Program, m: int, n: int, formats: str, along_k: tuple[bool, bool]) -> None:
        self.p, self.formats, self.along_k = p, formats, along_k
        self.warps = Warps(p, m, n, BLOCK)
        BITS = {"i8": 8, "tf32": 32}.get(formats, 16)
        self.layout = self._layout(not along_k[0] and BITS != 16, along_k[1] or BITS == 8)

    def _layout(self, paired: bool, fours: bool) -> Layout:
        """`paired`: index g of half h is row 2*g + h of A; `fours`: a lane has four columns side by side."""
        first, t = int(paired), (2, 3) if fours else (1, 2)
        rows = [(0, bit) for bit in range(bits(self.warps.m)) if not first <= bit < first + 3]
        columns = [(1, bit) for bit in range(bits(self.warps.n)) if bit not in t]
        lanes = (*((1, bit) for bit in t), *((0, bit) for bit in range(first, first + 3)))
        return Layout((*columns, *rows), lanes, self.warps.bits)

    def multiply(self, a: Operand, b: Operand, acc: list[Value]) -> list[Value]:
        k, warps = self.p.ir, self.warps
        x, y = (Blocks(k, operand, warps.first[dim], warps.lane, extent, of_b=dim == 1,      # type: ignore[arg-type]
                       EVEN=self.p.has("tf32.even"))
                for dim, (operand, extent) in enumerate(zip((a, b), (warps.m, warps.n))))
        formats = self.formats, self.formats, "i32" if self.formats == "i8" else "f32"
        products = WarpProducts(k, _Places(a.at, b.at), (x, y), None, formats, self.p.target.name)   # type: ignore[arg-type]
        sums, columns = products.acc, products.acc.cols
        for r, value in enumerate(acc):
            sums[divmod(r, columns)] = value
        for step in range(products.STEPS):
            products.multiply(products.read(step, step), step)                               # type: ignore[arg-type]
        return [sums[divmod(r, columns)] for r in range(len(acc))]


class InFlight(Sequence[Value]):
    """Sums of products that go on while their threads do, until something else is recorded that needs registers or
    shared memory (`Program.settle`): meanwhile a loop copies operands of later rounds. Only another product may add to
    them before they land."""

    def __init__(self, k: Kernel, tiles: list[Tile], before: InFlight | None = None) -> None:
        self.k, self.tiles, self.found = k, tiles, list[Value]()
        self.before = before                        # what the products added to, if that was in flight
        self.read = False                           # by something else than a product

    @classmethod
    def from_values(cls, k: Kernel, values: Sequence[Value]) -> InFlight:
        """Registers of a loop."""
        tile = k.tile(1, len(values), values[0].type, zero=False)
        for e, x in enumerate(values):
            tile[0, e] = x
        return cls(k, [tile])

    @property
    def registers(self) -> list[Value]:
        """Nothing but products and registers of a loop may take them."""
        return [tile[0, e] for tile in self.tiles for e in range(tile.cols)]

    def land(self) -> None:
        self.k.wgmma_wait(0, *self.tiles)
        self.found = self.registers

    def __getitem__(self, at: Any) -> Any:
        self.read = True
        return (self.found or self.registers)[at]   # not landed: in a round that is dropped (loops.py)

    def __len__(self) -> int: return len(self.registers)


class Warpgroups:
    """Hopper's wgmma, of four warps each: rows of C first divide them, 64 to an instruction, then columns."""
    wide, pad, how = False, 0, "wgmma"

    def __init__(self, p: Program, m: int, n: int, depth: int, formats: str, along_k: tuple[bool, bool]) -> None:
        self.p, self.depth, self.along_k = p, depth, along_k
        rows, columns = self._divided(p, m)
        self.m, self.n = m >> rows, n >> columns
        group = p.ir.uniform(p.ir.thread[0] // (WARPS * 32))
        self.first = group % (1 << rows) * self.m, group // (1 << rows) * self.n
        self.bytes = 1 if formats == "i8" else 2
        a, b = (SharedMatrix(row := min(x, PANEL // self.bytes) * self.bytes, "k" if inner_k else "mn", ROWS * row,
                             PIECE if inner_k else depth * row)
                for x, inner_k in zip((depth if along_k[0] else m, depth if along_k[1] else n), along_k))
        self.atom = Wgmma(self.n, formats, formats, "i32" if formats == "i8" else "f32", a, b)
        m_bits, n_bits = bits(self.m), bits(self.n)
        self.layout = Layout(
            ((1, 0), (0, 3), *((1, bit) for bit in range(3, n_bits)), *((0, bit) for bit in range(6, m_bits))),
            ((1, 1), (1, 2), (0, 0), (0, 1), (0, 2)),
            ((0, 4), (0, 5), *((0, m_bits + bit) for bit in range(rows)),
             *((1, n_bits + bit) for bit in range(columns))))

    @staticmethod
    def _divided(p: Program, m: int) -> tuple[int, int]:
        """Bits of the warpgroup's number that divide rows, and columns."""
        groups = bits(p.num_warps // WARPS)
        rows = min(groups, bits(m // M))
        return rows, groups - rows

    @classmethod
    def can(cls, p: Program, m: int, n: int, depth: int, formats: str, along_k: tuple[bool, bool]) -> bool:
        """Whether a target has it, for whole warpgroups, operands that lie so, and a share of C that registers hold."""
        if not p.has("wgmma") or p.num_warps % WARPS or m < M or formats not in ("f16", "bf16", "i8"):
            return False
        rows, columns = cls._divided(p, m)
        share, bytes = n >> columns, 1 if formats == "i8" else 2
        full_panels = along_k[1] or not columns or share * bytes >= PANEL
        return (bytes == 2 or all(along_k)) and depth * bytes >= DEPTH and 16 <= share <= 256 and full_panels and (
            m >> rows) * share <= M * 512

    def multiply(self, a: Operand, b: Operand, acc: Sequence[Value]) -> InFlight:
        k, atom, before = self.p.ir, self.atom, None
        if isinstance(acc, InFlight) and not acc.found:
            before, acc = acc, acc.registers
            self.p.in_flight.remove(before)
        tiles = [k.tile(1, atom.registers, atom.sum, zero=False) for _ in range(self.m // M)]
        for r, x in enumerate(acc):
            at, e = divmod(r, atom.registers)
            tiles[at][0, e] = x
        k.wgmma_fence(*tiles)
        for step in range(0, self.depth, atom.k):
            for i, tile in enumerate(tiles):
                k.wgmma(atom, tile, self._at(a, self.first[0], i*M, step), self._at(b, self.first[1], 0, step))
        k.wgmma_commit()
        flight = InFlight(k, tiles, before)
        self.p.in_flight.append(flight)
        return flight

    @staticmethod
    def _at(x: Operand, first: Value, more: int, step: int) -> Value:
        """Where rows or columns from `first` + `more` on begin, and this step of k."""
        if x.inner_k:
            return x.at + first*x.row + (more*x.row + step // x.row * (x.rows*x.row) + step % x.row)
        return x.at + first // x.row * (x.rows*x.row) + (more // x.row * (x.rows*x.row) + step*x.row)


class Mfma:
    """AMD's, of 16 or 32 rows and columns: a lane has a column of C in runs of four rows."""
    along_k, wide, how = (True, True), False, "padded"

    def __init__(self, p: Program, m: int, n: int, depth: int, formats: str) -> None:
        self.p, self.depth = p, depth
        side = 32 if min(m, n) >= 32 * (2 if p.num_warps > 1 else 1) else 16
        self.warps = Warps(p, m, n, side)
        shapes = {"f32": {32: 2, 16: 4}, "f16": {32: 8, 16: 16}, "bf16": {32: 8, 16: 16}, "i8": {32: 16, 16: 32}}
        self.atom = mfma(p.target.name, side, shapes[formats][side], formats)
        self.pad = 16 // {"f32": 4, "f16": 2, "bf16": 2, "i8": 1}[formats]
        s = bits(side)
        lane_rows = tuple((0, 2 + bit) for bit in range(6 - s))
        done = {0, 1, *(bit for _, bit in lane_rows)}
        rows = [(0, 0), (0, 1), *((0, bit) for bit in range(s) if bit not in done)]
        rows += [(0, bit) for bit in range(s, bits(self.warps.m))]
        columns = [(1, bit) for bit in range(s, bits(self.warps.n))]
        self.layout = Layout((*rows, *columns), (*((1, bit) for bit in range(s)), *lane_rows), self.warps.bits)

    def multiply(self, a: Operand, b: Operand, acc: list[Value]) -> list[Value]:
        k, atom, warps = self.p.ir, self.atom, self.warps
        side, T = atom.m, atom.c.type
        count = T.length
        place = [warps.first[of_b] + warps.lane % side for of_b in range(2)]
        along = warps.lane // side * atom.a.elements
        held = k.tile(1, len(acc) // count, T, zero=False)
        for at in range(len(acc) // count):
            held[0, at] = k.pack(*acc[at*count:(at + 1)*count])
        tiles = warps.m // side, warps.n // side
        for step in range(0, self.depth, atom.k):
            fragments = [[self._fragment(x, x.at + ((place[of_b] + tile*side)*x.row + along + step), atom.a)
                          for tile in range(tiles[of_b])] for of_b, x in enumerate((a, b))]
            for j, y in enumerate(fragments[1]):
                for i, x in enumerate(fragments[0]):
                    at = i + j*tiles[0]
                    held[0, at], = k.mma(atom, [x], [y], [held[0, at]])
        return [x[e] for at in range(len(acc) // count) for x in [held[0, at]] for e in range(count)]

    def _fragment(self, x: Operand, at: Value, fragment: Any) -> Value:
        """A lane's elements, which are neighbours along k, as the instruction takes them."""
        k = self.p.ir
        loaded = k.load(at, vec(x.T, fragment.elements))
        return k.reinterpret(loaded, fragment.type)
