"""The GEMM on tensor cores by warps (`mma.sync`): sm_75 and later, in 8, 16, 32 (tf32) and 64 bits, every layout.

The parts are those of simt_gemm.py: work, ring (whose docstring has the timeline), operands, result. What differs are
the products: tiles lie in shared memory as they lie in global memory, swizzled instead of padded, and matrices.py reads
the fragments.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.atoms.fragment import ROUNDED
from tilewright.atoms.nvidia import largest
from tilewright.ir import Function, Kernel, Tile, Value, f16, f32, f64, i32, vec
from tilewright.kernels.gpu import groups, transform
from tilewright.kernels.gpu.auxiliary import Scales, pointers
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.fused import suffix
from tilewright.kernels.gpu.split_k import Split
from tilewright.kernels.gpu.transform import Transform
from tilewright.kernels.gpu.work import Work, arguments, parameters, share
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia import result
from tilewright.kernels.nvidia.gathered import placed
from tilewright.kernels.nvidia.matrices import Blocks, arranged
from tilewright.kernels.nvidia.operand import SmemOperand
from tilewright.kernels.nvidia.result import Result, Staging
from tilewright.kernels.nvidia.ring import Fragments, Ring
from tilewright.plans.gpu_shape import GpuShape
from tilewright.plans.nvidia_model import LANES_M, exchanges
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.plans.words import TERMS
from tilewright.problem import SCALE_BLOCKS
from tilewright.targets.nvidia import TARGETS

# Of a warp's tile, from which on reads before copies gain (not of tf32, which is rounded first), and in f64 with which
# they gain 1 to 3 %, too; 32x48 and 48x32 lose 3 to 6 %.
READS, READS_F64 = 64 * 32, 16 * 32


def emit_mma_gemm(shape: GpuShape, plan: NvidiaPlan, ARCH: str = "sm_80", WHEN: str = "", GROUPED: str = "",
                  GATHERED: str = "") -> Function:
    """C[m, n] = alpha * A @ B + beta * C, row-major; beta = 0 never reads C. ARCH: the target, whose instructions are
    those that multiply most of these formats at once.

    A and B are f16, bf16, tf32 (f32 in memory, rounded to nearest), f64, i8, u8, e4m3fn or e5m2: the same one, or any
    two of i8 and u8, or of e4m3fn and e5m2. alpha and beta are f64, i32 or f32, with scales f64 for f64, else f32.
    Scales of blocks of 128 of k multiply the sums of cta_k steps, which are then added up in f32 registers of their
    own. Operands that are terms (rewrite.py) have layout "nt", plane_a and plane_b elements from one to the next.
    `workspace` has a tile of sums for each part of each tile: see split_k.Split. WHEN: see work.arguments. GROUPED:
    what offsets divide, "m" or "k" (then the layout is "tn"): see gpu/groups.py; of a batch, with split_k = 1.
    GATHERED: the operand, "a" or "b", whose rows and steps of k lie where tables say: see gathered.py.
    """
    s, p, split, blocks = shape, plan, Split(plan.split_k, plan.tail), SCALE_BLOCKS.get(shape.scales, 0)
    sums, scaled = p.sums(s), s.scales == "rows"
    scalar = {"i32": f32 if blocks else i32, "f64": f64}.get(sums, f32)
    vector_a, vector_b, vector_c = p.vectors
    asynchronous, along_k = p.copy == "async", (s.layout[0] == "n", s.layout[1] == "t")
    k = Kernel(f"mma_gemm_{s.a}_{s.b}_{s.out}_{sums}_{s.layout}_{p.cta_m}x{p.cta_n}x{p.cta_k}_w{p.warp_m}x{p.warp_n}"
               f"_s{p.stages}_v{vector_a}x{vector_b}x{vector_c}_k{'tail' if p.tail else p.split_k}"
               f"{'' if asynchronous else '_regs'}{'_batch' if s.batch != 1 else ''}{'_scaled' if scaled else ''}"
               f"{f'_blocks{blocks}' if blocks else ''}{f'_{p.split}' if p.split else ''}"
               f"{f'_when_{WHEN}' if WHEN else ''}{f'_groups_{GROUPED}' if GROUPED else ''}"
               f"{f'_gathered_{GATHERED}' if GATHERED else ''}{suffix(s.epilogue)}"
               f"{transform.suffix(s.prologue_a, s.prologue_b)}",
               threads=p.threads, min_ctas=max(p.resident(s, TARGETS[ARCH]), 1) if sums == "f64" else 1, noalias=(
                   pointers(s.epilogue, s.prologue_a, s.prologue_b) if split.divided else True),
               **parameters(s, scalar, split, WHEN, GROUPED, GATHERED=GATHERED))
    g = arguments(k, WHEN)
    if GROUPED == "m":
        groups.clear(k, g, s.epilogue, p.threads)
    work = share(k, g, split, p, GROUPED=GROUPED)

    def operand(role: str, gmem: Value, ld: Value, extent: int, vector: int) -> SmemOperand:
        by_k, T = along_k[role == "b"], memory_type(ROUNDED.get(s.b, s.b) if role == "b" else ROUNDED.get(s.a, s.a))
        before = Transform.from_arguments(k, g, role, s.prologue_of(role), ALONG_K=by_k, ARCH=ARCH)
        return placed(g, role == GATHERED)(k, T, gmem, ld, along_k=by_k, transposed=False, EXTENT=extent, CTA_K=p.cta_k,
                                           VECTOR=vector, THREADS=p.threads, ASYNC=asynchronous, BEFORE=before,
                                           **arranged(T.bits, by_k, role == "b"))

    def terms(x: SmemOperand, plane: Value | None) -> list[SmemOperand]:
        """The operand, which is the last term if it has several, after the others."""
        return [x] if plane is None else [x.moved(plane*-before) for before in range(last, 0, -1)] + [x]
    last = TERMS[p.split].count - 1 if p.split else 0
    a_gmem, b_gmem = (g.a + g.plane_a*last, g.b + g.plane_b*last) if p.split else (g.a, g.b)
    a = operand("a", a_gmem, g.lda, p.cta_m, vector_a)
    b = operand("b", b_gmem, g.ldb, p.cta_n, vector_b)
    rounding = {"ROUNDED": bool(p.split), "EVEN": "tf32.even" in TARGETS[ARCH].instructions}
    rows = Blocks(k, a, work.i1, work.lane, p.warp_m, of_b=False, **rounding)
    columns = Blocks(k, b, work.j1, work.lane, p.warp_n, of_b=True, **rounding)
    # elements of C, which a lane has in pairs or fours, go through shared memory to lie side by side
    staged = not split.divided and scalar.bytes == 4 and exchanges(p.warp_n, vector_c)
    pad = 16 if columns.fours else 8
    staging_size = Staging.size(LANES_M, p.warp_n, pad) if staged else 0
    tiles, exchanged = p.stages*(last + 1)*(a.SIZE + b.SIZE), p.threads // 32*staging_size*scalar.bytes // a.T.bytes
    smem = k.smem("tiles", (max(tiles, exchanged),), a.T, align=128)
    # the first tile may be short: with blocks it is the last one along k, so that no tile has parts of two blocks
    ahead = k.max(work.tiles - 1, 0)*p.cta_k if blocks else None
    first, then = (work.k_first, None) if ahead is None else (work.k_first + ahead, 0 - ahead)
    a.begin(work.t, work.i0, g.m, first, then)
    b.begin(work.t, work.j0, g.n, first, then)
    streams = *terms(a, g.plane_a), *terms(b, g.plane_b)
    ring = Ring(k, streams, smem, work.tiles, work.short, STAGES=p.stages, ASYNC=asynchronous,
                READ=asynchronous and s.a != "tf32" and (
                    p.warp_m*p.warp_n >= READS or (s.a == "f64" and p.warp_m*p.warp_n == READS_F64)))
    products = (TermProducts(k, ring, (rows, columns), work, p.split, ARCH) if p.split else
                WarpProducts(k, ring, (rows, columns), work, (s.a, s.b, sums), ARCH,
                             Scales.from_arguments(k, g, blocks) if blocks else None))
    ring.run(products)
    staging = Staging(smem.as_(scalar) + work.t // 32*staging_size, work.lane // 4,
                      lambda r: rows.partition(work.i1, r*4), columns.partition(k.constant(i32, 0), work.lane),
                      p.warp_n, pad) if staged else None
    out = Out.from_arguments(k, g, s.out, vector_c, SCALED=scaled, PAIRS="bf16" in TARGETS[ARCH].instructions,
                             EPILOGUE=s.epilogue)
    result.store(k, work, out, products.result, result.holders(work, p.threads), staging)
    return k.function


class WarpProducts:
    """acc += a warp's part of A's tile times its part of B's."""

    def __init__(self, k: Kernel, ring: Ring, blocks: tuple[Blocks, Blocks], work: Work, formats: tuple[str, str, str],
                 ARCH: str, scales: Scales | None = None) -> None:
        """`scales`: of blocks of k."""
        self.k, self.ring, self.blocks, self.work, self.formats = k, ring, blocks, work, formats
        self.scales = scales
        a, b = blocks
        self.STEPS = a.x.CTA_K // a.STEP
        self.atom = largest(TARGETS[ARCH], *formats, a.STEP)
        T = self.atom.c.type.scalar                             # f32, i32, or an i32 with two sums in f16
        self.acc = k.tile(2*a.COUNT, (4 if formats[2] != "f16" else 2)*b.COUNT, T)
        self.sums = k.tile(self.acc.rows, self.acc.cols, f32) if scales else self.acc

    def read(self, stage: Value, step: int, before: Fragments | None = None) -> Fragments:
        """Fragments of A for each block of rows, then of B for each block of columns."""
        return [raw for x, at in zip(self.blocks, self.ring.places(stage)) for raw in x.read(at, step)]

    @contextmanager
    def accumulating(self, tile: Value) -> Iterator[None]:
        """With scales of blocks each tile's sums are new; multiplied by its block's scales they are added to `sums`."""
        if not self.scales:
            yield
            return
        k, work, (a, b) = self.k, self.work, self.blocks
        number = k.select(tile == 0, work.tiles, tile) - 1              # along k: the last one came first
        scales = self.scales.block(work.k_first + number*a.x.CTA_K)
        rows, columns = a.partition(work.i1, work.lane).elements, b.partition(work.j1, work.lane).elements
        by_row = [scales.row(work.i0 + base + offset) for base, offset in rows]
        shared = scales.column(work.j0 + work.j1) if scales.SHARED > 1 else None
        for ij in self.acc.registers:
            self.acc[ij] = 0
        yield                                                           # scales of each column take too many registers
        if shared is not None:
            factors = [of_row*shared for of_row in by_row]
            for i, j in self.acc.registers:
                self.sums[i, j] = k.fma(k.cast(self.acc[i, j], f32), factors[i], self.sums[i, j])
            return
        by_column = [scales.column(work.j0 + base + offset) for base, offset in columns]
        for i, j in self.acc.registers:
            self.sums[i, j] = k.fma(k.cast(self.acc[i, j], f32)*by_row[i], by_column[j], self.sums[i, j])

    def multiply(self, fragments: Fragments, step: int) -> None:
        a, b = self.blocks
        a_reg = [a.registers(raw) for raw in fragments[:a.COUNT]]
        b_reg = [b.registers(raw) for raw in fragments[a.COUNT:]]
        for i in range(a.COUNT):
            for j in range(b.COUNT):
                for e in range(2):
                    self._multiply(a_reg[i], b_reg[j][b.QUARTERS*e:b.QUARTERS*(e + 1)], 2*i, j, e)

    def _multiply(self, a_reg: list[Value], b_reg: list[Value], i: int, j: int, e: int) -> None:
        """A block of rows by half e of a block of columns: one instruction, or several smaller ones."""
        along_k = self.blocks[0].QUARTERS                       # registers of a step
        HALVES, QUARTERS = self.atom.m // 8, along_k * self.atom.k // self.blocks[0].STEP
        for q in range(0, along_k, QUARTERS):
            for h in range(0, 2, HALVES):
                a = [a_reg[half + 2*y] for y in range(q, q + QUARTERS) for half in range(h, h + HALVES)]
                where = [(i + half, column) for half in range(h, h + HALVES) for column in self._columns(j, e)]
                d = self.k.mma(self.atom, a, b_reg[q:q + QUARTERS], [self.acc[ij] for ij in where])
                for ij, x in zip(where, d):
                    self.acc[ij] = x

    def _columns(self, j: int, e: int) -> list[int]:
        """The sums in acc of half e of block j."""
        if self.formats[2] == "f16":
            return [2*j + e]
        return [4*j + self.blocks[1].column(e, d) for d in range(2)]

    @property
    def result(self) -> Result:
        """Where the sums are in the CTA's tile: computed after the main loop, which needs its registers."""
        (a, b), work = self.blocks, self.work
        return Result(self._sums(), a.partition(work.i1, work.lane), b.partition(work.j1, work.lane))

    def _sums(self) -> Tile:
        if self.formats[2] != "f16":
            return self.sums
        k, b = self.k, self.blocks[1]
        wide = k.tile(self.acc.rows, 2*self.acc.cols, f32)
        for i, pair in self.acc.registers:
            j, e = divmod(pair, 2)
            both = k.reinterpret(self.acc[i, pair], vec(f16, 2))
            for d in range(2):
                wide[i, 4*j + b.column(e, d)] = k.cast(both[d], f32)
        return wide


class TermProducts(WarpProducts):
    """Products of operands that are terms, in shared memory each term in a tile of its own. A step multiplies one pair
    of terms, the smallest products first. Instructions, which cut off what does not fit, add up the products of all
    pairs in 32 bytes of k; that sum is added to those before, rounded to nearest."""

    def __init__(self, k: Kernel, ring: Ring, blocks: tuple[Blocks, Blocks], work: Work, SPLIT: str, ARCH: str) -> None:
        self.terms = TERMS[SPLIT]
        super().__init__(k, ring, blocks, work, (self.terms.format, self.terms.format, "f32"), ARCH)
        self.total, self.acc = self.acc, k.tile(self.acc.rows, self.acc.cols, f32, zero=False)
        self.STEPS *= len(self.terms.pairs)
        self.held: dict[tuple[str, int], Fragments] = {}        # fragments of this step of k, by operand and term

    def read(self, stage: Value, step: int, before: Fragments | None = None) -> Fragments:
        """Fragments of a term of A for each block of rows, of one of B for each block of columns; those that a pair
        before had are still there."""
        at, pairs = self.ring.places(stage), self.terms.pairs
        along, pair = divmod(step, len(pairs))
        held = self.held if pair else {}
        if pair == 1:                                           # `before` was perhaps read in the tile before
            assert before is not None
            held = self._by_term(pairs[0], before)
        for place, term, blocks in zip("ab", pairs[pair], self.blocks):
            if (place, term) not in held:
                tile = at[term + self.terms.count*(place == "b")]
                held[place, term] = blocks.read(tile, along)
        if pair:
            self.held = held
        a, b = pairs[pair]
        return [*held["a", a], *held["b", b]]

    def _by_term(self, pair: tuple[int, int], fragments: Fragments) -> dict[tuple[str, int], Fragments]:
        count = self.blocks[0].COUNT
        return {("a", pair[0]): fragments[:count], ("b", pair[1]): fragments[count:]}

    def multiply(self, fragments: Fragments, step: int) -> None:
        pair = step % len(self.terms.pairs)
        if pair == 0:
            for ij in self.acc.registers:
                self.acc[ij] = 0
        super().multiply(fragments, step)
        if pair == len(self.terms.pairs) - 1:
            for ij in self.acc.registers:
                self.total[ij] = self.total[ij] + self.acc[ij]

    def _sums(self) -> Tile:
        return self.total
