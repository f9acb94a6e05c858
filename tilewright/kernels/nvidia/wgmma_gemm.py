"""The GEMM on Hopper's tensor cores (sm_90a): warps that load tiles by TMA, warpgroups that multiply them by `wgmma`,
CTAs that stay and take tile of C after tile of C.

    Roles
        math    WARPGROUPS warpgroups, each with CTA_M / WARPGROUPS rows of the CTA's tile of C: multiply the tiles of
                a stage, give the stage back, at the end of k scale, round and store their rows (gpu/epilogue.py)
        loads   a warpgroup, since registers are given up by whole ones; one of its threads starts all copies

    Pipelines, of STAGES stages that hold a tile of A and one of B each
        full[stage]     the bytes of both tiles have come; one arrival, of loads, which announces them
        empty[stage]    nothing in the cluster reads the stage any more; an arrival of each warp of math of each CTA,
                        since the next copy may write to all of them
    Stage and phase follow from the number of steps since the CTA began, not since its tile did.

    Timeline, with three stages and two steps of k in a tile of C
        loads   0  1  2  wait  0  wait  1  wait  2 ...
        math    wait  0  1+release 0  release 1, store C    2  0+release 2  release 0, store C ...

    Products of one step are still under way when those of the next begin: only the step before is waited for. While C
    is stored, the loads of the next tile go on.

With PINGPONG each warpgroup of math has tiles of C of its own, CTA_M x CTA_N, every so many of the CTA's, and the same
ring of stages goes from one to the next:
        turn[w]         warpgroup w - 1 has started the last products of its tile; an arrival of each warp of it

        loads   0  0  0  1  1  1  0  0  0 ...                   stages of the tiles of which warpgroup
        math 0  0  0  0  turn[1]  store C    wait turn[0]  0  0  0 ...
        math 1  wait turn[1]      1  1  1  turn[0]  store C    wait ...

With DIVIDED clusters take the last tiles of C, which do not fill a round, by steps of k (wgmma_tiles.Tiles): each warp
leaves the sums of its part of a tile in a workspace, and the last one to come adds up all (gpu/split_k.py).

CTAs of a cluster work on neighbouring tiles of C. CLUSTER_M of them, one below the other, have the same tile of B:
each has its share of it copied to all; so do CLUSTER_N of them, side by side, with A.

With CLUSTER_K they work on the same tile, each with its steps of k, and exchange their sums (wgmma_exchange.py).

With SWAP the instructions compute C^T = B^T A^T: their 64 rows are columns of C, so that few rows of C waste nothing.

The operand that is rows of instructions may have a prologue, as weights of few bits have: its tiles come as they are in
memory, and become what is multiplied on their way to registers (wgmma_registers.py).
"""
from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from tilewright.atoms.wgmma import M, Wgmma
from tilewright.expressions import HALVES, texts
from tilewright.ir import Function, Kernel, Type, Value, f32, i8, i32, i64, ptr
from tilewright.ir.ops.pipelines import Mbarriers
from tilewright.kernels.gpu import auxiliary, fused, groups, transform
from tilewright.kernels.gpu.auxiliary import Scales
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.split_k import finish_by_warp
from tilewright.kernels.gpu.transform import Transform
from tilewright.kernels.gpu.work import arguments
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia import wgmma_windows
from tilewright.kernels.nvidia.result import Copied
from tilewright.kernels.nvidia.transposed_result import TransposedCopy
from tilewright.kernels.nvidia.wgmma_exchange import Exchange
from tilewright.kernels.nvidia.wgmma_products import Ahead, Products, Stages, Turns
from tilewright.kernels.nvidia.wgmma_registers import DecodedProducts, StridedProducts
from tilewright.kernels.nvidia.wgmma_tiles import ALIGN, DIVISION, SmemTile, Tiles, Unit
from tilewright.plans import prologues
from tilewright.plans.gpu_shape import GpuShape
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.plans.wgmma_rules import GROUP, WARPS, by_registers, staged, strided
from tilewright.plans.words import TERMS
from tilewright.problem import SCALE_BLOCKS

BYTE = "u8"             # of two elements
ALL_OF_K = 1 << 30      # steps of k, that are in no group
REGISTERS = {2: (232, 40), 3: (160, 32)}                    # of math and of loads, by the number of warpgroups


def emit_wgmma_gemm(shape: GpuShape, plan: NvidiaPlan, ARCH: str = "sm_90a", WHEN: str = "", GROUPED: str = "",
                    GATHERED: str = "") -> Function:
    """C[m, n] = alpha * A @ B + beta * C, row-major; beta = 0 never reads C. m, n, k are at least 1.

    Parameters: m, n, k, alpha, maps of A and B with the boxes of `SmemTile.map`, beta, c, ldc, with store=tma a map of
    C (`Copied.map_type`, `TransposedCopy.map_type`), and of a batch also batch, stride_a, stride_b and stride_c,
    elements from one matrix to the next, or 0 for an A or a B that all products have; the maps have a third dimension
    then. Addresses of what has a map and its leading dimension are multiples of 16 bytes; the edges of m, n and k are
    the maps' zeros. Where clusters share tiles by k also workspace, of a tile of sums for each CTA of a cluster,
    divided tile and share; counters, one for each warp with sums, CTA of a cluster and divided tile; whole, share and
    apart of `Tiles`.
    Grid: any number of whole clusters along x, each of which takes every so many of the tiles.

    Operands that are terms (rewrite.py) are several matrices, which are a dimension of their maps behind rows and
    columns. Without `promote` the instruction adds up all of k; it truncates as it does so, and keeps about 14 bits of
    products of fp8. WHEN: see work.arguments. GROUPED: "m": offsets divide the rows of A (gpu/groups.py). GATHERED: the
    operand that is windows of images, and the bytes of channels in a row of a block of it, as "a128": its map is of
    these, and the parameters are wgmma_windows.py's, too.
    """
    s, p = shape, plan
    planes = TERMS[p.split].count if p.split else 0
    a, b = (SmemTile(BYTE if format.endswith(HALVES) else format, along_k, extent,
                     p.cta_k // 2 if format.endswith(HALVES) else p.cta_k, share, s.batch != 1, planes,
                     int(GATHERED[1:]) if role == GATHERED[:1] else 0)
            for role, format, along_k, extent, share in (
                ("a", prologues.stored(s.a, s.prologue_a), s.layout[0] == "n", p.cta_m, p.cluster_n),
                ("b", prologues.stored(s.b, s.prologue_b), s.layout[1] == "t", p.cta_n, p.cluster_m)))
    rows, columns = (b, a) if p.swap else (a, b)                        # of instructions
    atom = Wgmma(columns.EXTENT // p.parts, *((s.b, s.a) if p.swap else (s.a, s.b)), p.sums(s),
                 None if by_registers(p, s) else rows.layout, columns.layout)
    k, scalar = _kernel(s, p, a, b, WHEN, GROUPED, GATHERED)
    gemm = _Gemm.begun(k, arguments(k, WHEN), s, p, a, b, atom, scalar, WHEN, GROUPED, ARCH)
    with k.role("math", warps=WARPS*p.warpgroups):
        _Math(gemm).run()
    with k.role("loads", warps=WARPS):
        gemm.load()
    if p.ctas > 1:
        k.cluster_barrier()                                 # nothing arrives at a CTA that has ended
    return k.function


def _kernel(s: GpuShape, p: NvidiaPlan, a: SmemTile, b: SmemTile, WHEN: str, GROUPED: str, GATHERED: str
            ) -> tuple[Kernel, Type]:
    """The kernel with its name and parameters, and the type of sums that CTAs share."""
    sums, terms, blocks = p.sums(s), TERMS[p.split] if p.split else None, SCALE_BLOCKS.get(s.scales, 0)
    copied, batch, scalar = p.store == "tma", s.batch != 1, i32 if sums == "i32" else f32
    shared = f32 if p.promote or sums == "f16" else scalar
    factor = f32 if s.scales else scalar
    c = memory_type(s.out)
    more: dict[str, Any] = {}
    if copied:
        more["c_map"] = (TransposedCopy.map_type(c, p.cta_m, batch) if p.swap else
                         Copied.map_type(c, _row(s, p), batch))
    more |= {"batch": i32, "stride_a": i64, "stride_b": i64, "stride_c": i64} if batch else {}
    more |= {"offsets": ptr(i32)} if GROUPED else {}
    more |= wgmma_windows.PARAMETERS if GATHERED else {}
    more |= auxiliary.parameters(auxiliary.scales(f32 if s.scales else None, blocks), batch)
    more |= {"special": ptr(i32)} if WHEN else {}
    more |= auxiliary.parameters(texts.auxiliary(s.epilogue), batch)
    more |= auxiliary.parameters(texts.auxiliary("", s.prologue_a, s.prologue_b), GROUPED == "m")
    more |= {"workspace": ptr(shared), "counters": ptr(i32), **DIVISION} if p.divided else {}
    words = {"copied": copied, "batch": batch, f"p{p.promote}": p.promote, f"parts{p.parts}": p.parts > 1,
             "pingpong": p.pingpong, "swap": p.swap,
             f"t{f'{terms.count}x{terms.count}x{len(terms.pairs)}' if terms else ''}": terms,
             "scaled": s.scales == "rows", f"blocks{blocks}": blocks, "divided": p.divided, f"when_{WHEN}": WHEN,
             f"groups_{GROUPED}": GROUPED, f"windows_{GATHERED}": GATHERED}
    name = (f"wgmma_gemm_{s.a}_{s.b}_{s.out}_{sums}_{s.layout}_{p.cta_m}x{p.cta_n}x{p.cta_k}_s{p.stages}"
            f"_g{p.warpgroups}_c{p.cluster_m}x{p.cluster_n}{f'x{p.cluster_k}'*(p.cluster_k > 1)}_v{p.vectors[2]}"
            f"{''.join(f'_{word}' for word, there in words.items() if there)}{fused.suffix(s.epilogue)}"
            f"{transform.suffix(s.prologue_a, s.prologue_b)}")
    # With a map of C it is written by that, and divided parts by others: of no pointer's memory may count as read-only,
    # but that of scales.
    return Kernel(name, threads=p.threads, cluster=(p.ctas, 1, 1),
                  noalias=auxiliary.pointers(s.epilogue, s.prologue_a, s.prologue_b) if copied or p.divided else True,
                  m=i32, n=i32, k=i32, alpha=factor, a=a.map, b=b.map, beta=factor, c=ptr(c), ldc=i64, **more), shared


def _row(s: GpuShape, p: NvidiaPlan) -> int:
    """Bytes of C in a row of a box of its map."""
    return Copied.row(p.cta_n // p.cluster_k * memory_type(s.out).bytes // fused.sums(s.epilogue))


@dataclass(frozen=True)
class _Gemm:
    """What both roles have: arguments, tiles in shared memory, the ring, and which tiles of C the CTA takes."""
    k: Kernel
    g: SimpleNamespace
    t: Value                # thread of the CTA
    shape: GpuShape
    plan: NvidiaPlan
    a: SmemTile
    b: SmemTile
    atom: Wgmma
    a_smem: Value
    b_smem: Value
    c_smem: Value | None
    ring: Stages
    turn: Mbarriers | None
    exchange: Exchange | None
    tiles: Tiles
    before: Transform | None        # of the rows of instructions
    early: bool                     # B is read before the stream's last kernel has ended

    @classmethod
    def begun(cls, k: Kernel, g: SimpleNamespace, s: GpuShape, p: NvidiaPlan, a: SmemTile, b: SmemTile, atom: Wgmma,
              scalar: Type, WHEN: str, GROUPED: str, ARCH: str) -> _Gemm:
        """Shared memory and barriers; `scalar`: the type of sums that CTAs share."""
        t = k.thread[0]
        if GROUPED:
            groups.clear(k, g, s.epilogue, p.threads)
        a_smem, b_smem = (k.smem(name, (p.stages, x.BYTES), i8, ALIGN) for name, x in (("a_smem", a), ("b_smem", b)))
        warps = WARPS*p.warpgroups
        c_smem = k.smem("c_smem", (warps, staged(p)), i8, ALIGN) if p.store == "tma" else None
        ring = Stages(k.mbarriers("full", p.stages), k.mbarriers("empty", p.stages), p.stages, p.ctas > p.cluster_k,
                      p.turns)
        turn = k.mbarriers("turn", p.warpgroups) if p.pingpong else None
        exchange = Exchange(k, scalar, warps, p.ctas, p.group_rows // M * atom.sums.elements
                            ) if p.cluster_k > 1 else None
        k.init_mbarriers()
        role = "b" if p.swap else "a"
        before = Transform.from_arguments(k, g, role, s.prologue_of(role), ALONG_K=True, RUN=p.promote or ALL_OF_K,
                                          ARCH=ARCH, PAIRED=True, SCALED=True)
        early = p.swap and p.ctas == s.batch == 1 and bool(s.prologues) and not (
            p.divided or WHEN or GROUPED or a.IMAGES or b.IMAGES)
        return cls(k, g, t, s, p, a, b, atom, a_smem, b_smem, c_smem, ring, turn, exchange, Tiles(k, g, p), before,
                   early)

    def load(self) -> None:
        """The role that copies: one of its threads starts all copies."""
        k, g, p, tiles, ring = self.k, self.g, self.plan, self.tiles, self.ring
        if p.warpgroups in REGISTERS:
            k.registers(REGISTERS[p.warpgroups][1], more=False)
        first_warp = self.t < GROUP*p.warpgroups + k.warp
        begun = self._early(first_warp) if self.early else None
        # The other warps of the role do not follow: one that falls behind could miss a phase, and wait for ever.
        with tiles.each(here=first_warp) as unit:
            i0, j0, matrix = tiles.place(unit.tile)
            operands = ((self.a, "a", self.a_smem, i0, tiles.cluster_n, tiles.same_row),
                        (self.b, "b", self.b_smem, j0, tiles.cluster_m, tiles.same_column))

            def number(name: str) -> tuple[Value, ...]:
                return () if matrix is None else (k.select(getattr(g, f"stride_{name}") == 0, 0, matrix),)
            windows = {name: wgmma_windows.Windows(k, g, x.ROW, row + x.part(share), unit.first*x.CTA_K, *number(name))
                       for x, name, _, row, share, _ in operands if x.IMAGES}
            start = 0 if begun is None else k.select(unit.number == 0, begun, 0)
            with k.loop(unit.steps, start=start, unroll=False) as step:
                stage = ring.refill(unit.begin + step, self.a.BYTES + self.b.BYTES)
                blocks = {name: x.blocks(p.cta_k // x.ROW) for name, x in windows.items()}
                with k.when(k.elect()):
                    for x, name, smem, row, share, ctas in operands:
                        which = number(name)
                        with k.when((unit.begin + step) % x.SHARE == share) if x.IN_TURN else nullcontext():
                            for n, (to, place) in enumerate(x.boxes(row, (unit.first + step)*x.CTA_K, share)):
                                at = blocks[name][n] if x.IMAGES else (*place, *which)
                                ring.full.load(smem.at(stage, to), getattr(g, name), at, stage, ctas)

    def _early(self, first_warp: Value) -> Value:
        """Fill the stages for the first time: with B, whose copies begin before the stream's last kernel has ended, and
        with A. How many stages. Meanwhile the other warps ask L2 for what is beside the elements of B."""
        k, g, p, tiles = self.k, self.g, self.plan, self.tiles
        i0, j0, _ = tiles.place(tiles.cluster)
        if self.before:
            others = k.max(self.t - (GROUP*p.warpgroups + k.warp), 0)
            self.before.request(others, GROUP - k.warp, j0, k.select(first_warp, 0, k.min(g.n - j0, p.cta_n)), g.k)
        steps = k.select(tiles.units > 0, k.min(tiles.steps, p.stages), 0)
        mine = k.select(first_warp, steps, 0)
        with k.loop(mine, unroll=False) as step:
            self._copy("b", self.b, self.b_smem, self.ring.refill(step, self.a.BYTES + self.b.BYTES), j0)
        self.wait()
        with k.loop(mine, unroll=False) as step:
            self._copy("a", self.a, self.a_smem, step, i0)
        return steps

    def wait(self) -> None:
        """For the stream's last kernel, which has not written B and what is beside it."""
        self.k.last_kernel("b", *(self.before.parameters if self.before else ()))

    def _copy(self, name: str, x: SmemTile, smem: Value, stage: Value, row: Value) -> None:
        """Start the copies of an operand's tile for the stage of this number, the first time."""
        k = self.k
        with k.when(k.elect()):
            for to, place in x.boxes(row, stage*x.CTA_K, k.constant(i32, 0)):
                self.ring.full.load(smem.at(stage, to), getattr(self.g, name), place, stage)


class _Math:
    """The role that multiplies: WARPS * warpgroups warps, each with its part of the CTA's tile of C."""

    def __init__(self, gemm: _Gemm) -> None:
        self.gemm, self.k, self.plan, self.t = gemm, gemm.k, gemm.plan, gemm.t
        k, s, p = self.k, gemm.shape, self.plan
        if p.warpgroups in REGISTERS:
            k.registers(REGISTERS[p.warpgroups][0], more=True)
        self.warp = k.uniform(self.t // 32)                 # addresses of operands in uniform registers
        self.turns = Turns(k, gemm.turn, self.warp // WARPS, p.warpgroups) if gemm.turn else None
        first = self.warp // WARPS * p.group_rows if self.turns is None else k.constant(i32, 0)
        self.blocks = SCALE_BLOCKS.get(s.scales, 0)
        tiles, smem = (gemm.a, gemm.b), (gemm.a_smem, gemm.b_smem)
        pairs = [*TERMS[p.split].pairs] if p.split else [(0, 0)]
        if p.swap:
            tiles, smem, pairs = tiles[::-1], smem[::-1], [pair[::-1] for pair in pairs]
        self.given = SimpleNamespace(**vars(gemm.g))
        kind: Any = StridedProducts if strided(p, s) else Products
        if gemm.before:
            kind = partial(DecodedProducts, before=gemm.before)
        self.products: Products = kind(
            k, gemm.atom, tiles, smem, pairs, first, p.group_rows, p.parts if p.promote else 0, p.swap, self.t % GROUP)

    def run(self) -> None:
        """Tile after tile of C."""
        gemm, k, p, products, turns = self.gemm, self.k, self.plan, self.products, self.turns
        tiles = gemm.tiles
        if gemm.early:
            gemm.wait()
        with tiles.each(turns.mine if turns else 0, p.turns) as unit:
            if turns:
                turns.wait()
            if isinstance(products, DecodedProducts):
                i0, j0, matrix = tiles.place(unit.tile)
                if matrix is not None:
                    groups.move_beside_b(k, gemm.g, self.given, matrix)
                products.begin(j0 if p.swap else i0, unit.first*p.cta_k)
            if p.promote:
                self._promote(unit)
                if turns:
                    turns.end()
            else:
                products.add_up(gemm.ring, unit.begin, unit.steps, turns.end if turns else None)
            write = partial(self._write, *self._place(unit))
            if p.divided:
                warps = WARPS*p.warpgroups // p.turns
                finish_by_warp(k, products.widened(), tiles.parts(unit, self.warp % warps, warps), self.t % 32, write)
            else:
                write()
        if gemm.c_smem is not None:
            self._copied().end()

    def _promote(self, unit: Unit) -> None:
        """The sums of a tile, of some steps of k at a time, times their scales if there are any."""
        k, g, p, products, ring = self.k, self.gemm.g, self.plan, self.products, self.gemm.ring
        products.clear()
        if p.alternates(self.gemm.shape):
            products.add_up_apart(ring, unit.begin, unit.steps)
            return
        ahead: Ahead | None = None
        if self.blocks:
            i0, j0, g.matrix = self.gemm.tiles.place(unit.tile)
            factors = partial(products.factors, Scales.from_arguments(k, g, self.blocks), unit.first*p.cta_k,
                              self.t % GROUP, (i0, j0))
            ahead = Ahead(k, factors) if self.blocks > 1 and not p.swap else None       # others take too many registers
        with k.loop(unit.steps, step=p.promote // p.cta_k, unroll=False) as step:
            early = ahead.next(k.min(step + p.promote // p.cta_k, unit.steps - 1)*p.cta_k) if ahead else None
            for part in range(p.parts):
                products.add_up(ring, unit.begin + step, None if p.promote == p.cta_k else
                                k.min(unit.steps - step, p.promote // p.cta_k), part=part)
                products.promote(factors(step*p.cta_k) if self.blocks and not ahead else early, part)

    def _place(self, unit: Unit) -> tuple[Value, Value]:
        """Where the sums of a tile begin in C: with `cluster_k` those of this CTA's share, to which all CTAs' come."""
        p, tiles, exchange, products = self.plan, self.gemm.tiles, self.gemm.exchange, self.products
        i0, j0, self.gemm.g.matrix = tiles.place(unit.tile)
        if not exchange:
            return i0, j0
        number = unit.number // p.turns
        products.keep(exchange.columns(products.widened(), self.warp, self.t % 32, number))
        share = tiles.rank*(self.gemm.atom.n // p.cluster_k)
        return (i0 + share, j0) if p.swap else (i0, j0 + share)

    def _write(self, i0: Value, j0: Value) -> None:
        """Scale, round and store the sums."""
        k, g, s, p, products, t = self.k, self.gemm.g, self.gemm.shape, self.plan, self.products, self.t
        out = Out.from_arguments(k, g, s.out, p.vectors[2], SCALED=s.scales == "rows", PAIRS=True, EPILOGUE=s.epilogue)
        if self.gemm.c_smem is None:
            out.store(lambda: products.runs(t % GROUP, i0, j0, p.vectors[2]))
            return
        first = products.first + self.warp % WARPS * 16
        self._copied().store(out, products, *((i0, j0 + first) if p.swap else (i0 + first, j0)), M)

    def _copied(self) -> Copied | TransposedCopy:
        """The copy of the warp's part of a tile, through shared memory, to C."""
        p, g, smem = self.plan, self.gemm.g, self.gemm.c_smem
        assert smem is not None
        where = g.c_map, smem.at(self.warp, 0), self.t % 32, g.matrix
        return TransposedCopy(self.k, p.cta_m, *where) if p.swap else Copied(
            self.k, _row(self.gemm.shape, p), *where, staged(p) // Copied.SIZE)
