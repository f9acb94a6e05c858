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
"""
from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.atoms.wgmma import M, Wgmma
from tilewright.expressions import texts
from tilewright.ir import Function, Kernel, Value, f32, i8, i32, i64, ptr
from tilewright.kernels.gpu import auxiliary, fused, groups
from tilewright.kernels.gpu.auxiliary import BLOCK
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.scales import Scales
from tilewright.kernels.gpu.split_k import finish_by_warp
from tilewright.kernels.gpu.work import arguments
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia.result import Copied
from tilewright.kernels.nvidia.wgmma_exchange import Exchange
from tilewright.kernels.nvidia.wgmma_products import Ahead, Products, Stages, StridedProducts, Turns, pairs
from tilewright.kernels.nvidia.wgmma_tiles import ALIGN, DIVISION, SmemTile, Tiles

REGISTERS = {2: (232, 40), 3: (160, 32)}                    # of math and of loads, by WARPGROUPS
# Of a multiprocessor, dealt out evenly at first; that NVIDIA's assembler wants beside the sums of one instruction,
# although warpgroups get more for all of theirs (ptxas 13.5, error C7602).
FILE, BESIDE = 65536, 26


def emit_wgmma_gemm(A: str = "bf16", B: str = "bf16", OUT: str = "bf16", SUMS: str = "f32", LAYOUT: str = "nt",
                    CTA_M: int = 128, CTA_N: int = 256, CTA_K: int = 64, STAGES: int = 4, WARPGROUPS: int = 2,
                    CLUSTER_M: int = 1, CLUSTER_N: int = 1, CLUSTER_K: int = 1, GROUP_M: int = 8, VECTOR_C: int = 1,
                    COPIED: bool = True, BATCH: bool = False, PROMOTE: int = 0,
                    TERMS: tuple[int, int, int] | None = None, PARTS: int = 1, PINGPONG: bool = False,
                    SWAP: bool = False, SCALED: bool = False, BLOCKS: int = 0, DIVIDED: bool = False, WHEN: str = "",
                    EPILOGUE: str = "", GROUPED: str = "") -> Function:
    """C[m, n] = alpha * A @ B + beta * C, row-major; beta = 0 never reads C. m, n, k are at least 1.

    Parameters: m, n, k, alpha, maps of A and B with the boxes of `SmemTile.map`, beta, c, ldc, with COPIED a map of C
    (`result.Copied.map_type`), and with BATCH also batch, stride_a, stride_b and stride_c, elements from one matrix to
    the next, or 0 for an A or a B that all products have; the maps have a third dimension then. Addresses of what has a
    map and its leading dimension are multiples of 16 bytes; the edges of m, n and k are the maps' zeros.
    SCALED adds those of gpu/scales.py, which multiply sums, BLOCKS those of blocks of k; alpha and beta are f32 then.
    Grid: any number of whole clusters along x, each of which takes every so many of the tiles.

    A, B        f16, bf16; tf32, i8, u8, e4m3fn, e5m2 with k contiguous: of A and B the same one, or any two of i8 and
                u8, or of e4m3fn and e5m2. tf32 is f32 in memory, which copies round to nearest, ties to even; A (with
                SWAP B) may have rows contiguous: see StridedProducts
    SUMS        i32 for i8 and u8, else f32; f16 for f16 and fp8 as well, in half the registers: these sums become f32
                after the last product. alpha and beta are i32 or f32
    OUT         the format of C: that of the sums, or what kernels/narrow.py rounds them to
    LAYOUT      "n" or "t" for A and for B: [m, k] or [k, m], [k, n] or [n, k]
    CTA_M       a multiple of 64 * WARPGROUPS, or with PINGPONG of 64, at most 256; CTA_N a multiple of 8 that wgmma
                has, and of 64 bytes where n is contiguous; CTA_K a multiple of 64 bytes where k is, of 8 else
    CLUSTER_M   CTAs one below the other that share tiles of B; CLUSTER_N: side by side, of A
    CLUSTER_K   instead, CTAs that share tiles of C by k (wgmma_exchange.py), of which there are at least as many steps
                (with BLOCKS, steps of 128); CTA_N (with SWAP CTA_M) is a multiple of 8 * CLUSTER_K
    GROUP_M     tiles of the clusters are taken in groups of so many rows: see work.grouped
    VECTOR_C    elements of C that are read at once, or stored without a copy, 1 or 2: n and ldc are multiples of it
    COPIED      C goes through shared memory and its map; CTA_N is a multiple of 32 bytes of C. Else each thread
                stores its elements, wherever C is
    DIVIDED     clusters share tiles by k. Further parameters: workspace, of CTA_M * CTA_N sums for each CTA of a
                cluster, divided tile and share; counters, one for each warp with sums, CTA of a cluster and divided
                tile; whole, share and apart of `Tiles`
    PROMOTE     sums in f32 are added to f32 registers of their own after every so many of k, a multiple of CTA_K, and
                begin anew: the instruction truncates as it adds up, and keeps about 14 bits of products of fp8. These
                registers are as many again. 0: only the instruction adds up
    PARTS       of the columns of a tile, multiplied and promoted one after the other, so that the instructions' sums
                are registers of one part alone; for PROMOTE = CTA_K and B with k contiguous
    BLOCKS      with PROMOTE = 128, for any SUMS but f16: scales of blocks of so many of k multiply sums as they are
                promoted, to f32; as many columns of B share one, 1 or 128
    TERMS       (planes of A, planes of B, products): each operand is a sum of so many matrices, the largest numbers
                first, which are a dimension of its map behind rows and columns. Multiplied are the pairs of planes of
                the smallest i + j, the largest i + j first; all of one i + j, or none. (3, 3, 6) of bf16: f32 by six
                products. None: one matrix
    PINGPONG    warpgroups of math, 2 or more, take turns with tiles of C, each with all CTA_M rows of its own: while
                one stores, the other multiplies. Registers suffice for half of the tile that they have otherwise
    SWAP        rows and columns of C change roles in the instructions, and what is said of CTA_M and CTA_N with them: a
                warpgroup has all rows and a multiple of 64 columns of C. Not with COPIED; VECTOR_C is 1, or with tf32
                and B's k strided up to 4
    WHEN        see work.arguments
    EPILOGUE    the text of an expressions.function.Epilogue: see gpu/fused.py
    GROUPED     "m": offsets divide the rows of A (gpu/groups.py); with BATCH, not with COPIED, DIVIDED and BLOCKS

    ValueError for tiles that the instructions cannot move or multiply.
    """
    CTAS, SCALAR = CLUSTER_M*CLUSTER_N*CLUSTER_K, i32 if SUMS == "i32" else f32
    planes_a, planes_b, _ = TERMS or (0, 0, 1)
    a = SmemTile(A, LAYOUT[0] == "n", CTA_M, CTA_K, CLUSTER_N, BATCH, planes_a)
    b = SmemTile(B, LAYOUT[1] == "t", CTA_N, CTA_K, CLUSTER_M, BATCH, planes_b)
    PAIRS = pairs(*TERMS or (1, 1, 1))
    TURNS = WARPGROUPS if PINGPONG else 1
    HIGH, SIDE = (CTA_N, "CTA_N") if SWAP else (CTA_M, "CTA_M")         # whose parts are rows of instructions
    ROWS = HIGH*TURNS // WARPGROUPS                                     # of a warpgroup
    STRIDED = A == "tf32" and "nt"[SWAP] != LAYOUT[SWAP]                # StridedProducts multiply
    VECTORS = (1, 2, 4) if STRIDED and SWAP else (1, 2)
    if HIGH % (M*WARPGROUPS // TURNS) or VECTOR_C not in VECTORS or STAGES < 2 or (PINGPONG and WARPGROUPS < 2):
        raise ValueError(f"{SIDE} must be a multiple of {M*WARPGROUPS // TURNS} for {WARPGROUPS} warpgroups, not "
                         f"{HIGH}; VECTOR_C one of {VECTORS}, not {VECTOR_C}; STAGES at least 2, not {STAGES}; "
                         f"WARPGROUPS at least 2 for PINGPONG, not {WARPGROUPS}")
    if STRIDED and (HIGH % (2*M*WARPGROUPS // TURNS) or CTA_K % 16 or COPIED or PROMOTE or TERMS or CLUSTER_K > 1):
        raise ValueError(f"tf32 with k strided in {'B' if SWAP else 'A'} need a {SIDE} that is a multiple of "
                         f"{2*M*WARPGROUPS // TURNS} for {WARPGROUPS} warpgroups, CTA_K of 16, and neither COPIED, "
                         f"PROMOTE, TERMS nor CLUSTER_K; not {HIGH}, {CTA_K}, {COPIED}, {PROMOTE}, {TERMS} and "
                         f"{CLUSTER_K}")
    if SWAP and not STRIDED and (COPIED or VECTOR_C > 1):
        raise ValueError(f"SWAP stores single elements: COPIED must be False and VECTOR_C 1, not {COPIED} and "
                         f"{VECTOR_C}")
    if BLOCKS not in (0, 1, BLOCK) or (BLOCKS and (PROMOTE != BLOCK or SCALED or SUMS == "f16")):
        raise ValueError(f"BLOCKS must be 0, 1 or {BLOCK}, and with it PROMOTE {BLOCK}, SCALED False and "
                         f"SUMS f32 or i32; it is {BLOCKS} for {PROMOTE}, {SCALED} and {SUMS}")
    if PROMOTE < 0 or PROMOTE % CTA_K or (PROMOTE and SUMS != "f32" and not BLOCKS):
        raise ValueError(f"PROMOTE must be 0 or, for sums in f32, a multiple of CTA_K = {CTA_K}, not {PROMOTE} for "
                         f"sums in {SUMS}")
    if PARTS > 1 and (PROMOTE != CTA_K or CTA_N % (8*PARTS) or not b.along_k or SWAP):
        raise ValueError(f"PARTS may be {PARTS} where PROMOTE is CTA_K = {CTA_K}, not {PROMOTE}, CTA_N a multiple of "
                         f"{8*PARTS}, not {CTA_N}, B has k contiguous, and SWAP is False")
    sides = (b, a) if SWAP else (a, b)                                  # rows of instructions, and columns
    atom = Wgmma(sides[1].EXTENT // PARTS, sides[0].FORMAT, sides[1].FORMAT, SUMS,
                 None if STRIDED else sides[0].layout, sides[1].layout)
    launched = FILE // (128*(WARPGROUPS + 1)) // 8 * 8
    if atom.registers + BESIDE > launched:
        raise ValueError(f"{'CTA_M' if SWAP else 'CTA_N'} = {atom.n} is too much for {WARPGROUPS} warpgroups: "
                         f"{atom.registers} sums of an instruction and {BESIDE} registers are more than the {launched} "
                         "of a thread at first")
    if CLUSTER_K > 1 and (CLUSTER_M*CLUSTER_N > 1 or DIVIDED or PARTS > 1 or atom.n % (8*CLUSTER_K)):
        raise ValueError(f"with CLUSTER_K = {CLUSTER_K}, CLUSTER_M, CLUSTER_N and PARTS must be 1, DIVIDED False and "
                         f"columns of instructions a multiple of {8*CLUSTER_K}, not {CLUSTER_M}, {CLUSTER_N}, {PARTS}, "
                         f"{DIVIDED} and {atom.n}")
    C_TYPE = memory_type(OUT)
    EACH = fused.sums(EPILOGUE)                             # columns of sums for one of C
    ROW_C = Copied.row(CTA_N // CLUSTER_K * C_TYPE.bytes // EACH)
    if COPIED and not ROW_C:
        raise ValueError(f"CTA_N must be a multiple of {EACH*CLUSTER_K*Copied.SWIZZLES[-1] // C_TYPE.bytes} for copies "
                         f"of C in {OUT}, not {CTA_N}")
    more: dict[str, Any] = {"c_map": Copied.map_type(C_TYPE, ROW_C, BATCH)} if COPIED else {}
    more |= {"batch": i32, "stride_a": i64, "stride_b": i64, "stride_c": i64} if BATCH else {}
    more |= {"offsets": ptr(i32)} if GROUPED else {}
    more |= auxiliary.parameters(auxiliary.scales(f32 if SCALED or BLOCKS else None, BLOCKS), BATCH)
    more |= {"special": ptr(i32)} if WHEN else {}
    more |= auxiliary.parameters(texts.auxiliary(EPILOGUE), BATCH)
    SUMMED = f32 if PROMOTE or SUMS == "f16" else SCALAR
    more |= {"workspace": ptr(SUMMED), "counters": ptr(i32), **DIVISION} if DIVIDED else {}
    FACTOR = f32 if SCALED or BLOCKS else SCALAR
    # With COPIED, C is written by its map, with DIVIDED parts by others: of no pointer's memory may count as read-only,
    # but that of scales.
    asked = {"copied": COPIED, "batch": BATCH, f"p{PROMOTE}": PROMOTE, f"parts{PARTS}": PARTS > 1, "pingpong": PINGPONG,
             "swap": SWAP, f"t{'x'.join(str(x) for x in TERMS or ())}": TERMS, "scaled": SCALED,
             f"blocks{BLOCKS}": BLOCKS, "divided": DIVIDED, f"when_{WHEN}": WHEN,
             f"groups_{GROUPED}": GROUPED}
    k = Kernel(f"wgmma_gemm_{A}_{B}_{OUT}_{SUMS}_{LAYOUT}_{CTA_M}x{CTA_N}x{CTA_K}_s{STAGES}_g{WARPGROUPS}"
               f"_c{CLUSTER_M}x{CLUSTER_N}{f'x{CLUSTER_K}'*(CLUSTER_K > 1)}_v{VECTOR_C}"
               f"{''.join(f'_{name}' for name, there in asked.items() if there)}{fused.suffix(EPILOGUE)}",
               threads=128*(WARPGROUPS + 1), cluster=(CTAS, 1, 1),
               noalias=auxiliary.pointers(EPILOGUE) if COPIED or DIVIDED else True,
               m=i32, n=i32, k=i32, alpha=FACTOR, a=a.map, b=b.map, beta=FACTOR, c=ptr(C_TYPE), ldc=i64, **more)
    g, t = arguments(k, WHEN), k.thread[0]
    if GROUPED:
        groups.clear(k, g, EPILOGUE, 128*(WARPGROUPS + 1))
    a_smem = k.smem("a_smem", (STAGES, a.BYTES), i8, ALIGN)
    b_smem = k.smem("b_smem", (STAGES, b.BYTES), i8, ALIGN)
    c_smem = k.smem("c_smem", (4*WARPGROUPS, Copied.SIZE), i8, ALIGN) if COPIED else None
    ring = Stages(k.mbarriers("full", STAGES), k.mbarriers("empty", STAGES), STAGES,
                  CLUSTER_M*CLUSTER_N > 1, TURNS)
    turn = k.mbarriers("turn", WARPGROUPS) if PINGPONG else None
    exchange = Exchange(k, SUMMED, 4*WARPGROUPS, CTAS, ROWS // M * atom.sums.elements) if CLUSTER_K > 1 else None
    k.init_mbarriers()
    tiles = Tiles(k, g, CTA_K, CTA_M, CTA_N, CLUSTER_M, CLUSTER_N, CLUSTER_K, GROUP_M, PROMOTE // CTA_K or 1, DIVIDED)
    math_registers, loads_registers = REGISTERS.get(WARPGROUPS, (0, 0))

    with k.role("math", warps=4*WARPGROUPS):
        if math_registers:
            k.registers(math_registers, more=True)
        warp = k.uniform(t // 32)                                       # addresses of operands in uniform registers
        turns = Turns(k, turn, warp // 4, WARPGROUPS) if turn else None
        first = warp // 4 * ROWS if turns is None else k.constant(i32, 0)
        products = (StridedProducts if STRIDED else Products)(
            k, atom, sides, (b_smem, a_smem) if SWAP else (a_smem, b_smem),
            [pair[::-1] for pair in PAIRS] if SWAP else PAIRS, first, ROWS, PARTS if PROMOTE else 0, SWAP, t % 128)
        with tiles.each(turns.mine if turns else 0, TURNS) as unit:
            if turns:
                turns.wait()
            if PROMOTE:
                products.clear()
                ahead: Ahead | None = None
                if BLOCKS:
                    i0, j0, g.matrix = tiles.place(unit.tile)
                    factors = partial(products.factors, Scales.from_arguments(k, g, BLOCKS), unit.first*CTA_K, t % 128,
                                      (i0, j0))
                    ahead = Ahead(k, factors) if BLOCKS > 1 and not SWAP else None      # others take too many registers
                with k.loop(unit.steps, step=PROMOTE // CTA_K, unroll=False) as step:
                    early = ahead.next(k.min(step + PROMOTE // CTA_K, unit.steps - 1)*CTA_K) if ahead else None
                    for part in range(PARTS):
                        products.add_up(ring, unit.begin + step, None if PROMOTE == CTA_K else
                                        k.min(unit.steps - step, PROMOTE // CTA_K), part=part)
                        products.promote(factors(step*CTA_K) if BLOCKS and not ahead else early, part)
                if turns:
                    turns.end()
            else:
                products.add_up(ring, unit.begin, unit.steps, turns.end if turns else None)
            i0, j0, g.matrix = tiles.place(unit.tile)
            if exchange:
                number = unit.number // TURNS
                products.keep(exchange.columns(products.widened(), warp, t % 32, number))
                share = tiles.rank*(atom.n // CLUSTER_K)
                i0, j0 = (i0 + share, j0) if SWAP else (i0, j0 + share)

            def write(i0: Value = i0, j0: Value = j0) -> None:
                out = Out.from_arguments(k, g, OUT, VECTOR_C, SCALED=SCALED, PAIRS=True, EPILOGUE=EPILOGUE)
                if c_smem is None:
                    out.store(lambda: products.runs(t % 128, i0, j0, VECTOR_C))
                else:
                    copied = Copied(k, ROW_C, g.c_map, c_smem.at(warp, 0), t % 32, g.matrix)
                    copied.store(out, products, i0 + products.first + warp % 4 * 16, j0, M)
            if DIVIDED:
                WARPS = 4*WARPGROUPS // TURNS
                finish_by_warp(k, products.widened(), tiles.parts(unit, warp % WARPS, WARPS), t % 32, write)
            else:
                write()
        if c_smem is not None:
            Copied(k, ROW_C, g.c_map, c_smem, t % 32, None).end()

    with k.role("loads", warps=4):
        if loads_registers:
            k.registers(loads_registers, more=False)
        first_warp = t < 128*WARPGROUPS + k.warp
        # The other warps of the role do not follow: one that falls behind could miss a phase, and wait for ever.
        with tiles.each(here=first_warp) as unit:
            i0, j0, matrix = tiles.place(unit.tile)
            with k.loop(unit.steps, unroll=False) as step:
                stage = ring.refill(unit.begin + step, a.BYTES + b.BYTES)
                with k.when(k.elect()):
                    for x, name, smem, row, share, ctas in (
                            (a, "a", a_smem, i0, tiles.cluster_n, tiles.same_row),
                            (b, "b", b_smem, j0, tiles.cluster_m, tiles.same_column)):
                        which = () if matrix is None else (k.select(getattr(g, f"stride_{name}") == 0, 0, matrix),)
                        for to, place in x.boxes(row, (unit.first + step)*CTA_K, share):
                            at = *place, *which
                            ring.full.load(smem.at(stage, to), getattr(g, name), at, stage, ctas)
    if CTAS > 1:
        k.cluster_barrier()                                 # nothing arrives at a CTA that has ended
    return k.function
