"""The GEMM on tensor cores by warps (`mma.sync`): sm_75 and later, in 8, 16, 32 (tf32) and 64 bits, every layout.

The parts are those of simt_gemm.py: work, ring (whose docstring has the timeline), operands, result. What differs are
the products: tiles lie in shared memory as they lie in global memory, most of them swizzled instead of padded, and
matrices.py reads the fragments.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.atoms.nvidia import largest
from tilewright.ir import Function, Kernel, Tile, Value, f16, f32, f64, i32, vec
from tilewright.kernels.gpu import groups, transform
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.fused import pointers, suffix
from tilewright.kernels.gpu.scales import BLOCK, POINTERS, Scales
from tilewright.kernels.gpu.split_k import Split
from tilewright.kernels.gpu.transform import Transform
from tilewright.kernels.gpu.work import Work, arguments, parameters, share
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia import result
from tilewright.kernels.nvidia.matrices import Blocks, arranged
from tilewright.kernels.nvidia.operand import SmemOperand
from tilewright.kernels.nvidia.result import Result, Staging
from tilewright.kernels.nvidia.ring import Fragments, Ring
from tilewright.plans.nvidia.mma import LANES_M, exchanges
from tilewright.plans.words import TERMS
from tilewright.targets.nvidia import TARGETS

READS = 64 * 32         # of a warp's tile, from which on reads before copies gain; not of tf32, which is rounded first


def emit_mma_gemm(ARCH: str = "sm_80", A: str = "bf16", B: str = "bf16", OUT: str = "f32", SUMS: str = "f32",
                  LAYOUT: str = "nn", CTA_M: int = 128, CTA_N: int = 128, CTA_K: int = 32, WARP_M: int = 64,
                  WARP_N: int = 64, STAGES: int = 3, ASYNC: bool = True, VECTOR_A: int = 8, VECTOR_B: int = 8,
                  VECTOR_C: int = 1, SPLIT_K: int = 1, TAIL: bool = False, GROUP_M: int = 8, MIN_CTAS: int = 1,
                  BATCH: bool = False, PAD: int = 4, SCALED: bool = False, BLOCKS: int = 0,
                  SPLIT: str = "", WHEN: str = "", EPILOGUE: str = "", PROLOGUE_A: str = "", PROLOGUE_B: str = "",
                  GROUPED: str = "") -> Function:
    """C[m, n] = alpha * A @ B + beta * C, row-major; beta = 0 never reads C.

    ARCH        the target whose instructions it takes: those that multiply most of these formats at once
    A, B        f16, bf16, tf32 (f32 in memory, rounded to nearest), f64, i8, u8, e4m3fn, e5m2: of A and B the same
                one, or any two of i8 and u8, or of e4m3fn and e5m2
    SUMS        f64 for f64, i32 for i8 and u8, else f32; f16 for f16 and fp8 as well, whose sums become f32 after the
                last product. alpha and beta are f64, i32 or f32
    OUT         the format of C: that of the sums, or what kernels/narrow.py rounds them to
    LAYOUT      "n" or "t" for A and for B: [m, k] or [k, m], [k, n] or [n, k]
    CTA_K       a multiple of 32 bytes of k; WARP_M and WARP_N are multiples of 16
    ASYNC       copies by cp.async, else through registers (and STAGES = 2)
    VECTOR_A    elements per copy, of at most 16 bytes, and with ASYNC of at least 4: A is aligned to so many, and its
                leading dimension, and its size along the contiguous dimension, are multiples of it; VECTOR_B of B
    VECTOR_C    elements of C that are stored at once where a lane has as many side by side: 2 or 4
    SPLIT_K     parts of k, and TAIL: see split_k.Split; `workspace` has CTA_M * CTA_N sums for each part of each tile
    BATCH       of many matrices: see work.parameters
    PAD         elements after each row of a tile of f64
    SCALED      scales multiply sums: see gpu/scales.py; they, alpha and beta are f64 for f64, else f32
    BLOCKS      scales of blocks of 128 of k multiply the sums of CTA_K steps, a divisor of that, which are then added
                up in f32 registers of their own: as many columns of B share one, 1 or 128, of which WARP_N is a divisor
    SPLIT       a key of plans.words.TERMS: A and B, in its format and layout "nt", are the terms of f32 operands,
                plane_a and plane_b elements from one to the next (kernels/gpu/rewrite.py), C is their product
    WHEN        see work.arguments
    EPILOGUE    the text of an expressions.epilogue.Epilogue: see gpu/fused.py
    PROLOGUE_A  the text of an expressions.prologue.Prologue, whose result is A, for copies through registers: see
                gpu/transform.py. PROLOGUE_B: of B
    GROUPED     what offsets divide, "m" or "k" (then LAYOUT is "tn"): see gpu/groups.py; with BATCH, SPLIT_K 1
    """
    if BLOCKS not in (0, 1, BLOCK) or (BLOCKS and (BLOCK % CTA_K or BLOCK % WARP_N or SCALED or SUMS == "f16")):
        raise ValueError(f"BLOCKS must be 0, 1 or {BLOCK}, and with it CTA_K and WARP_N divisors of {BLOCK}, SUMS f32 "
                         f"or i32 and SCALED False; it is {BLOCKS} for {CTA_K}, {WARP_N}, {SUMS} and {SCALED}")
    THREADS, split = 32 * (CTA_M // WARP_M) * (CTA_N // WARP_N), Split(SPLIT_K, TAIL)
    SCALAR, FACTOR = {"i32": f32 if BLOCKS else i32, "f64": f64}.get(SUMS, f32), f64 if SUMS == "f64" else f32
    A_TYPE, B_TYPE = (memory_type("f32" if x == "tf32" else x) for x in (A, B))
    k = Kernel(f"mma_gemm_{A}_{B}_{OUT}_{SUMS}_{LAYOUT}_{CTA_M}x{CTA_N}x{CTA_K}_w{WARP_M}x{WARP_N}_s{STAGES}"
               f"_v{VECTOR_A}x{VECTOR_B}x{VECTOR_C}_k{'tail' if TAIL else SPLIT_K}{'' if ASYNC else '_regs'}"
               f"{'_batch' if BATCH else ''}{'_scaled' if SCALED else ''}{f'_blocks{BLOCKS}' if BLOCKS else ''}"
               f"{f'_{SPLIT}' if SPLIT else ''}{f'_when_{WHEN}' if WHEN else ''}"
               f"{f'_groups_{GROUPED}' if GROUPED else ''}{suffix(EPILOGUE)}"
               f"{transform.suffix(PROLOGUE_A, PROLOGUE_B)}",
               threads=THREADS, min_ctas=MIN_CTAS, noalias=(
                   POINTERS + pointers(EPILOGUE) + transform.pointers("a", PROLOGUE_A)
                   + transform.pointers("b", PROLOGUE_B)) if split.divided else True,
               **parameters(SCALAR, transform.memory(PROLOGUE_A, A_TYPE), transform.memory(PROLOGUE_B, B_TYPE),
                            memory_type(OUT), split, FACTOR if SCALED or BLOCKS else None,
                            BATCH, BLOCKS, SPLIT, WHEN, EPILOGUE, PROLOGUES=(PROLOGUE_A, PROLOGUE_B), LAYOUT=LAYOUT,
                            GROUPED=GROUPED))
    g = arguments(k, WHEN)
    if GROUPED == "m":
        groups.clear(k, g, EPILOGUE, THREADS)
    work = share(k, g, split, CTA_M=CTA_M, CTA_N=CTA_N, CTA_K=CTA_K, WARP_M=WARP_M, WARP_N=WARP_N, GROUP_M=GROUP_M,
                 GROUPED=GROUPED)

    def operand(gmem: Value, ld: Value, along_k: bool, EXTENT: int, VECTOR: int, of_b: bool) -> SmemOperand:
        T = B_TYPE if of_b else A_TYPE
        role, prologue = ("b", PROLOGUE_B) if of_b else ("a", PROLOGUE_A)
        before = Transform.from_arguments(k, g, role, prologue, ALONG_K=along_k, ARCH=ARCH)
        return SmemOperand(k, T, gmem, ld, along_k=along_k, transposed=False, EXTENT=EXTENT, CTA_K=CTA_K, VECTOR=VECTOR,
                           THREADS=THREADS, ASYNC=ASYNC, BEFORE=before, **arranged(T.bits, along_k, of_b, PAD))

    def terms(x: SmemOperand, plane: Value | None) -> list[SmemOperand]:
        """The operand, which is the last term if it has several, after the others."""
        return [x] if plane is None else [x.moved(plane*-before) for before in range(LAST, 0, -1)] + [x]
    LAST = TERMS[SPLIT].count - 1 if SPLIT else 0
    a_gmem, b_gmem = (g.a + g.plane_a*LAST, g.b + g.plane_b*LAST) if SPLIT else (g.a, g.b)
    a = operand(a_gmem, g.lda, LAYOUT[0] == "n", CTA_M, VECTOR_A, False)
    b = operand(b_gmem, g.ldb, LAYOUT[1] == "t", CTA_N, VECTOR_B, True)
    rounding = {"ROUNDED": bool(SPLIT), "EVEN": "tf32.even" in TARGETS[ARCH].instructions}
    rows = Blocks(k, a, work.i1, work.lane, WARP_M, of_b=False, **rounding)
    columns = Blocks(k, b, work.j1, work.lane, WARP_N, of_b=True, **rounding)
    # elements of C, which a lane has in pairs or fours, go through shared memory to lie side by side
    STAGED = not split.divided and SCALAR.bytes == 4 and exchanges(WARP_N, VECTOR_C)
    STAGE_PAD = 16 if columns.fours else 8
    STAGING = Staging.size(LANES_M, WARP_N, STAGE_PAD) if STAGED else 0
    smem = k.smem("tiles", (max(STAGES*(LAST + 1)*(a.SIZE + b.SIZE), THREADS // 32*STAGING*SCALAR.bytes // a.T.bytes),),
                  a.T, align=128)
    # the first tile may be short: with blocks it is the last one along k, so that no tile has parts of two blocks
    ahead = k.max(work.tiles - 1, 0)*CTA_K if BLOCKS else None
    first, then = (work.k_first, None) if ahead is None else (work.k_first + ahead, 0 - ahead)
    a.begin(work.t, work.i0, g.m, first, then)
    b.begin(work.t, work.j0, g.n, first, then)
    streams = *terms(a, g.plane_a), *terms(b, g.plane_b)
    ring = Ring(k, streams, smem, work.tiles, work.short, STAGES=STAGES, ASYNC=ASYNC,
                READ=ASYNC and A != "tf32" and WARP_M*WARP_N >= READS)
    products = (TermProducts(k, ring, (rows, columns), work, SPLIT, ARCH) if SPLIT else
                WarpProducts(k, ring, (rows, columns), work, (A, B, SUMS), ARCH,
                             Scales.from_arguments(k, g, BLOCKS) if BLOCKS else None))
    ring.run(products)
    staging = Staging(smem.as_(SCALAR) + work.t // 32*STAGING, work.lane // 4,
                      lambda r: rows.partition(work.i1, r*4), columns.partition(k.constant(i32, 0), work.lane),
                      WARP_N, STAGE_PAD) if STAGED else None
    out = Out.from_arguments(k, g, OUT, VECTOR_C, SCALED=SCALED, PAIRS="bf16" in TARGETS[ARCH].instructions,
                 EPILOGUE=EPILOGUE)
    result.store(k, work, out, products.result, result.holders(work, THREADS), staging)
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
        """Of A for each block of rows, then of B for each block of columns."""
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
        """Of acc: those of half e of block j."""
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
    """The same of operands that are terms, in shared memory each term in a tile of its own. A step multiplies one pair
    of terms, the smallest products first. Instructions, which cut off what does not fit, add up the products of all
    pairs in 32 bytes of k; that sum is added to those before, rounded to nearest."""

    def __init__(self, k: Kernel, ring: Ring, blocks: tuple[Blocks, Blocks], work: Work, SPLIT: str, ARCH: str) -> None:
        self.terms = TERMS[SPLIT]
        super().__init__(k, ring, blocks, work, (self.terms.format, self.terms.format, "f32"), ARCH)
        self.total, self.acc = self.acc, k.tile(self.acc.rows, self.acc.cols, f32, zero=False)
        self.STEPS *= len(self.terms.pairs)
        self.held: dict[tuple[str, int], Fragments] = {}        # fragments of this step of k, by operand and term

    def read(self, stage: Value, step: int, before: Fragments | None = None) -> Fragments:
        """Of a term of A for each block of rows, of one of B for each block of columns; those that a pair before had
        are still there."""
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
