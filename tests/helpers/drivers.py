"""Whole products as the engine runs them, for the simulator: a driver, its table of kernels, the job that it reads."""

from __future__ import annotations

from functools import cache

import numpy as np

from tilewright import simulator
from tilewright.formats import FORMATS
from tilewright.kernels.cpu import gemm, jobs
from tilewright.kernels.cpu.finish import emit_finish
from tilewright.kernels.cpu.microkernel import TYPES, emit_microkernel
from tilewright.kernels.cpu.packing import emit_pack
from tilewright.targets import names, target

DTYPES = {"f32": np.float32, "f64": np.float64}
HERE = [name for name in names("cpu") if target(name).runnable]
ALONG = {"rows": "along", "columns": "across", "any": "any"}        # how rows are packed, by what is contiguous
ACROSS = {"rows": "across", "columns": "along", "any": "any"}       # and columns


def random(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def in_a_wider(matrix, more):
    """The same numbers as part of rows that are `more` elements longer; nothing follows the last element."""
    rows, cols = matrix.shape
    beside = np.nan if matrix.dtype.kind == "f" else -1
    flat = np.full(max((rows - 1) * (cols + more) + cols, 0), beside, matrix.dtype)
    view = np.lib.stride_tricks.as_strided(flat, matrix.shape, ((cols + more) * flat.itemsize, flat.itemsize))
    view[...] = matrix
    return view


def stored(x, order):
    """x with its rows or its columns contiguous, or neither."""
    if order == "any":
        whole = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
        whole[::2, ::3] = x
        return whole[::2, ::3]
    return np.ascontiguousarray(x) if order == "rows" else np.asfortranarray(x)


def table_of(functions, size):
    """`table(address)` makes an array with a pointer at each index for which there is a function."""
    def table(address):
        pointers = np.zeros(size, np.int64)
        for index, function in functions.items():
            pointers[index] = address(function)
        return pointers
    return table


def job_of(layout, T, **fields):
    """`job(address)` makes an array of 8-byte fields. A string is the name of an array, whose address is meant."""
    def job(address):
        x = np.zeros(len(layout), np.int64)
        for index, name in enumerate(layout):
            value = fields.get(name, 0)
            if isinstance(value, float):
                x[index : index + 1].view(T.numpy)[0] = value
            else:
                x[index] = value if isinstance(value, int) else address(value)
        return x.view(np.int8)
    return job


@cache
def kernels_and_packing(name, dtype, MR, NV):
    """(table index → micro-kernel, (width, kind) → packing)"""
    t = target(name)
    tiles = [(mr, nv) for mr in range(1, MR + 1) for nv in range(1, NV + 1)]
    kernels = {(mr - 1) * NV + nv - 1: emit_microkernel(t, dtype, mr, nv) for mr, nv in tiles}
    widths = (MR, NV * t.lanes(TYPES[dtype].bytes))
    packs = {(w, kind): emit_pack(t, dtype, w, kind) for w in widths for kind in ("across", "along", "any")}
    return kernels, packs


class Packed:
    """A product by the five loops: `driver`, the functions that it calls, `job`, and `arrays` by name."""

    def __init__(self, name, dtype, MR, NV, m, n, k, *, a="rows", b="rows", alpha=1.0, beta=0.0, mc_panels=1, kc=8,
                 nc_panels=1, ways=(1, 1, 1), own_b=False, result=""):
        T, (jc, ic, jr) = TYPES[dtype], ways
        NR, s = NV * target(name).lanes(T.bytes), T.bytes
        kernels, packs = kernels_and_packing(name, dtype, MR, NV)
        self.driver, self.functions = gemm.emit_gemm(target(name), dtype, MR, NV), [*kernels.values(), *packs.values()]
        self.a, self.b = stored(random((m, k), dtype, 1), a), stored(random((k, n), dtype, 2), b)
        self.c = random((m, n), dtype, 3)
        finish = {}
        if result:  # C is rounded as it is stored
            self.c = self.c.astype(FORMATS[result].dtype)
            finish = {"finish": emit_finish(target(name), dtype, NR, result), "sums": "sums", "aside": 1}
            self.functions.append(finish["finish"])

        def space(panels, width):
            return np.zeros(panels * jobs.panel_space(kc, width), DTYPES[dtype])
        self.threads, claims = jc * ic * jr, jr == 1 and ic > gemm.FEW and not own_b
        self.arrays = {
            "a": self.a, "b": self.b, "c": self.c,
            "a_space": space(jc * ic * mc_panels * (1 + 2*jobs.SHARED*claims), MR),
            "b_space": space(jc * (ic if own_b else 1 + claims) * nc_panels, NR), "table": table_of(kernels, MR * NV),
            "barriers": np.zeros(jc * (1 + ic) * jobs.BARRIER_BYTES // 8, np.int64),
        }
        if result:
            self.arrays["sums"] = np.zeros(jc * -(-m // MR) * nc_panels * MR * NR, DTYPES[dtype])
        self.job = job_of(
            jobs.PACKED, T, m=m, n=n, k=k, a="a", rsa=self.a.strides[0] // s, csa=self.a.strides[1] // s, b="b",
            rsb=self.b.strides[0] // s, csb=self.b.strides[1] // s, c="c", ldc=n, alpha=alpha, beta=beta,
            mc_panels=mc_panels, kc=kc, nc_panels=nc_panels, jc_ways=jc, ic_ways=ic, jr_ways=jr, own_b=own_b,
            pack_a=packs[MR, ALONG[a]], pack_b=packs[NR, ACROSS[b]], table="table", a_space="a_space",
            b_space="b_space", barriers="barriers", **finish)

    def simulate(self):
        """Run it by its team of simulated threads: c is then the product."""
        memory, held = simulator.AddressSpace(), dict(self.arrays)

        def address(x):
            if isinstance(x, str):
                held[x] = held[x](address) if callable(held[x]) else held[x]
                return memory.address(held[x], x)
            return memory.address(x)
        return simulator.run_team(self.driver, self.job(address), threads=self.threads, memory=memory)


def packed_before(packing, host, b_at, parts=3):
    """Where the panels are that so many parts made."""
    panels = host.memory.address(np.zeros(packing.bytes, np.uint8), "panels")
    for part in range(parts):
        job = np.array(packing.job(b_at, panels, parts)).view(np.int8)
        host.machine(packing.function).run_thread([job, part])
    return panels
