"""f64 on tensor cores (`mma.sync`): a CTA tile in shared memory, copied asynchronously, multiplied by warps.

    copies      both operands lie in shared memory as they lie in global memory; 16 bytes (VECTOR = 2) or 8 at a time,
                STAGES tiles of k in flight; what is outside a matrix arrives as zeros
    fragments   the order of k inside an instruction is free as long as A and B agree on it: lane t of a group of four
                takes k = 2t and 2t + 1 (and 8 on), so that where k is contiguous one 16-byte load brings two of them
    banks       rows of k are swizzled, rows of m or n padded, so that no access to shared memory conflicts

The CTA's tile of C stays in registers to the end.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import Function, Kernel, Tile, Value, f64, i32, i64, ptr, vec
from tilewright.kernels.atoms.nvidia import MMA_F64_16X8X4, MMA_F64_16X8X8, MMA_F64_16X8X16, Atom

ATOMS = {4: MMA_F64_16X8X4, 8: MMA_F64_16X8X8, 16: MMA_F64_16X8X16}
PAD = 2                 # elements after a row along m or n: four rows of every other k then lie in different banks
ITEM = 8


@dataclass
class Operand:
    """A or B in shared memory: `extent` rows or columns by CTA_K, STAGES times."""
    gmem: Value
    ld: Value
    smem: Value                     # [STAGES, outer, row length]
    along_k: bool                   # is k the contiguous index?
    extent: int
    first: Value                    # of the matrix' rows or columns that this CTA has,
    limit: Value                    # and how many there are

    def at(self, stage: Value, x: Value, p: Value) -> Value:
        """Where row or column x of the tile is at k index p."""
        if not self.along_k:
            return self.smem.at(stage, p, x)
        chunk = (p // 2) ^ (x % 2 * 4)                  # a row is 128 bytes or more: two rows beside each other differ
        return self.smem.at(stage, x, chunk*2 + p % 2)


def emit_dmma_gemm(LAYOUT: str = "nn", CTA_M: int = 128, CTA_N: int = 128, CTA_K: int = 16, WARP_M: int = 64,
                   WARP_N: int = 32, STAGES: int = 4, ATOM_K: int = 8, GROUP_M: int = 8, VECTOR: int = 2) -> Function:
    """C[m, n] = alpha * A @ B + beta * C in f64; beta = 0 never reads C.

    VECTOR = 2: leading dimensions are even and the matrices 16-byte aligned.
    """
    WARPS_M, WARPS_N = CTA_M // WARP_M, CTA_N // WARP_N
    THREADS = 32 * WARPS_M * WARPS_N
    atom = ATOMS[ATOM_K]
    TILES_M, TILES_N, STEPS = WARP_M // atom.m, WARP_N // atom.n, CTA_K // ATOM_K
    k = Kernel(f"dmma_gemm_f64_{LAYOUT}_{CTA_M}x{CTA_N}x{CTA_K}_s{STAGES}_v{VECTOR}", threads=THREADS,
               m=i32, n=i32, k=i32, alpha=f64, a=ptr(f64), lda=i64, b=ptr(f64), ldb=i64, beta=f64, c=ptr(f64), ldc=i64)
    m, n, kk, alpha, a, lda, b, ldb, beta, c, ldc = k.args
    (t, _), (bx, _) = k.thread, k.block
    warp, lane = t // 32, t % 32
    tile_m, tile_n = raster(k, bx, k.ceil_div(m, CTA_M), k.ceil_div(n, CTA_N), GROUP_M)
    k_tiles = k.ceil_div(kk, CTA_K)

    def operand(name: str, gmem: Value, ld: Value, along_k: bool, extent: int, first: Value, limit: Value) -> Operand:
        shape = (STAGES, extent, CTA_K) if along_k else (STAGES, CTA_K, extent + PAD)
        return Operand(gmem, ld, k.smem(name, shape, f64, align=128), along_k, extent, first, limit)

    a_op = operand("a_smem", a, lda, LAYOUT[0] == "n", CTA_M, tile_m*CTA_M, m)
    b_op = operand("b_smem", b, ldb, LAYOUT[1] == "t", CTA_N, tile_n*CTA_N, n)

    def copy(x: Operand, stage: Value, k_tile: Value) -> None:
        INNER = CTA_K if x.along_k else x.extent
        for e in range(x.extent * CTA_K // VECTOR // THREADS):
            chunk = t + e*THREADS
            outer, inner = chunk // (INNER // VECTOR), chunk % (INNER // VECTOR) * VECTOR
            i, p = (outer, inner) if x.along_k else (inner, outer)
            row, col = (x.first + i, k_tile + p) if x.along_k else (k_tile + p, x.first + i)
            rows, cols = (x.limit, kk) if x.along_k else (kk, x.limit)
            valid = k.max(k.min(cols - col, VECTOR), 0)
            inside = (row < rows) & (valid > 0)
            source = x.gmem.view(x.ld, 1).at(k.cast(row, i64), k.cast(col, i64))
            k.cp_async(x.at(stage, i, p), k.select(inside, source, x.gmem), VECTOR*ITEM,
                       k.select(inside, valid*ITEM, 0))

    def fragments(x: Operand, stage: Value, start: Value, SIZE: int, PARTS: int, step: int) -> list[list[Value]]:
        """[PARTS of the atom's 8 rows or columns][k slots of this lane] at one step of k."""
        group, quad = lane // 4, lane % 4
        found = []
        for part in range(PARTS):
            i = start + part*8 + group
            values: list[Value] = []
            for half in range(max(ATOM_K // 8, 1)):
                p = quad*2 + (step*ATOM_K + half*8)
                if ATOM_K == 4:
                    p = quad + step*4
                    values.append(k.load(x.at(stage, i, p)))
                elif x.along_k:
                    pair = k.load(x.at(stage, i, p), vec(f64, 2), align=16)
                    values += [pair[0], pair[1]]
                else:
                    values += [k.load(x.at(stage, i, p + e)) for e in range(2)]
            found.append(values)
        return found

    acc = k.tile(TILES_M*TILES_N, atom.registers[2], f64)

    def multiply(stage: Value) -> None:
        for step in range(STEPS):
            a_reg = fragments(a_op, stage, warp % WARPS_M*WARP_M, CTA_M, WARP_M // 8, step)
            b_reg = fragments(b_op, stage, warp // WARPS_M*WARP_N, CTA_N, WARP_N // 8, step)
            for i in range(TILES_M):
                upper, lower = a_reg[2*i], a_reg[2*i + 1]
                a_lane = [x for slot in zip(upper, lower) for x in slot]    # registers r: row + 8*(r % 2), slot r // 2
                for j in range(TILES_N):
                    tile = i*TILES_N + j
                    d = k.mma(atom, a_lane, b_reg[j], [acc[tile, r] for r in range(atom.registers[2])])
                    for r, x in enumerate(d):
                        acc[tile, r] = x

    for s in range(STAGES - 1):
        for x in (a_op, b_op):
            copy(x, k.constant(i32, s), k.constant(i32, s*CTA_K))
        k.cp_async_commit()
    stage = k.variable(i32, 0)
    with k.loop(k_tiles) as tile:
        k.cp_async_wait(STAGES - 2)
        k.barrier()                                     # the tile is here, and everyone is done with the one before
        now = stage.get()
        before = k.select(now.equals(0), STAGES - 1, now - 1)
        for x in (a_op, b_op):
            copy(x, before, (tile + (STAGES - 1))*CTA_K)
        k.cp_async_commit()
        multiply(now)
        stage.set(k.select(now.equals(STAGES - 1), 0, now + 1))
    k.cp_async_wait(0)

    store(k, atom, acc, tile_m*CTA_M + warp % WARPS_M*WARP_M, tile_n*CTA_N + warp // WARPS_M*WARP_N, TILES_M, TILES_N,
          m, n, alpha, beta, c.view(ldc, 1), lane, VECTOR)
    return k.function


def store(k: Kernel, atom: Atom, acc: Tile, i0: Value, j0: Value, TILES_M: int, TILES_N: int, m: Value, n: Value,
          alpha: Value, beta: Value, c: Value, lane: Value, VECTOR: int) -> None:
    """acc → C: a lane holds two columns beside each other, in two rows eight apart."""
    def each(read_c: bool) -> None:
        for i in range(TILES_M):
            for half in range(2):
                row = i0 + (i*16 + half*8) + lane // 4
                with k.when(row < m):
                    for j in range(TILES_N):
                        col = j0 + j*8 + lane % 4*2
                        pair = [acc[i*TILES_N + j, half*2 + e]*alpha for e in range(2)]
                        at = c.at(k.cast(row, i64), k.cast(col, i64))
                        if VECTOR == 2:
                            with k.when(col + 1 < n):
                                if read_c:
                                    old = k.load(at, vec(f64, 2), align=16)
                                    both = k.pack(*(k.fma(beta, old[e], pair[e]) for e in range(2)))
                                else:
                                    both = k.pack(*pair)
                                k.store(at, both, align=16)
                            with k.otherwise(), k.when(col < n):
                                k.store(at, k.fma(beta, k.load(at), pair[0]) if read_c else pair[0])
                        else:
                            for e in range(2):
                                with k.when(col + e < n):
                                    k.store(at + e, k.fma(beta, k.load(at + e), pair[e]) if read_c else pair[e])
    with k.when(beta.equals(0.0)):
        each(read_c=False)
    with k.otherwise():
        each(read_c=True)


def raster(k: Kernel, index: Value, tiles_m: Value, tiles_n: Value, GROUP_M: int) -> tuple[Value, Value]:
    """The tile of CTA `index`: GROUP_M rows of tiles are finished column by column, so that CTAs that run together
    share operands in L2."""
    per_group = tiles_n*GROUP_M
    group = index // per_group
    first = group*GROUP_M
    height = k.min(tiles_m - first, GROUP_M)
    inside = index % per_group
    return first + inside % height, inside // height


def grid(m: int, n: int, CTA_M: int = 128, CTA_N: int = 128) -> tuple[int, int, int]:
    return -(-m // CTA_M) * -(-n // CTA_N), 1, 1
