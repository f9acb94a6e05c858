"""A plan made ready for operands of given strides: kernels compiled, job filled in but for what differs per call."""
from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.formats import FORMATS
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.jobs import NOTHING
from tilewright.plans import few_rows, semirings
from tilewright.plans.builtin import WAKE_ABOVE, WAKE_ONE
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape, Strides
from tilewright.plans.words import TILE_WORDS
from tilewright.runtime.cpu import without_panels
from tilewright.runtime.cpu.host import SWAPPED, Host, host
from tilewright.runtime.cpu.panels import Blocks, blocks, packing
from tilewright.runtime.cpu.rows import few_row_kernel, plain_elements
from tilewright.runtime.cpu.tables import Scattered, Tables
from tilewright.runtime.cpu.workspace import BARRIERS
from tilewright.targets.cpu import CpuTarget

FORK_FLOPS = 300_000            # work worth sharing with threads that are awake,
WAKE_FLOPS = 2 * WAKE_ABOVE     # worth waking all of them for: tens of microseconds, or one of them
WAKE_ONE_FLOPS = 2 * WAKE_ONE
SHARES = 4                      # of a batch for each thread to claim: a delayed thread does fewer
SHARED = 1 << 15        # elements of C that are scaled by one thread
Prepares = tuple[jobs.Prepare | None, jobs.Prepare | None]


def woken(flops: int, threads: int) -> int:
    """How many threads that sleep are woken for so much work that is dealt out in parts."""
    return threads if flops >= WAKE_FLOPS else int(flops >= WAKE_ONE_FLOPS)


class Recipe:
    """`run(a, b, c, alpha, beta)` with the addresses of operands of these strides, C's rows contiguous (dots: any).

    `host` has the functions, memory and threads: this process's, or the simulator's.
    `conj`: which of complex operands are conjugated, "", "a", "b" or "ab"; shape is that of the real product
    (kernels/cpu/packing.py). `prepacked`: "a" or "b" if that operand was packed before
    (runtime/cpu/packed.py): its address is that of its panels. `tables`: of operands whose strides do not count.
    `finish`: an epilogue, as it is recorded, of an alpha of 1 and a beta of 0; of stream and dots `finished` takes it.
    `prepare`: prologues of A and B, as they are recorded. ValueError if the plan cannot run.
    """

    def __init__(self, shape: Shape, strides: Strides, plan: CpuPlan, target: CpuTarget, host: Host = host,
                 conj: str = "", prepacked: str = "", tables: Tables | None = None,
                 finish: jobs.Finish | None = None, prepare: Prepares = (None, None)) -> None:
        if problems := plan.violations(shape, target):
            raise ValueError(f"plan {plan} cannot run {shape}: " + " ".join(problems))
        self.rows, extended = few_rows.rows(plan, shape), target if shape.depth else target.extended
        self.rows_dtype = FORMATS[self.rows or "f32"].dtype
        if self.rows:
            if plan.word and prepare[1] is None:
                prepare = None, plain_elements(shape)
            shape, strides = few_rows.as_read(shape, strides, plan)
        if plan.swap:
            shape, strides, plan = shape.swapped, strides.swapped, replace(plan, swap=False)
            prepacked, prepare = prepacked.translate(SWAPPED), (prepare[1], prepare[0])
        assert plan.algorithm == "packed" or not prepacked, plan
        self.shape, self.strides, self.plan, self.target, self.host = shape, strides, plan, target, host
        self.conj, self.prepacked, self.tables, self.finish = conj, prepacked, tables or Tables(), finish
        self.then: tuple[int, ...] = ()     # of a scattered C the functions that finish and store its tiles
        self.prepare = dict(zip("ab", prepare))
        row, few = plan.complex_row(shape), plan.complex_in_place(shape)
        self.function, words = self._driver(extended)
        self.added_in, self.parts, self.sums = shape.sums, plan.threads, 0
        self.tiles = self.space = _page(4*words) * self.parts
        # bytes of barriers with counters, which start at 0
        self.zeroed = plan.jc_ways * jobs.BARRIER_BYTES if plan.claims else 0
        # of k, after which the sums are in C: with several, C is scaled when all are there
        self.passes = len(TILE_WORDS[shape.dtype].passes) if shape.tiles else 1
        self.wake = woken(2*shape.m*shape.n*shape.k, shape.threads)
        # by drivers that take one product, and need no space: a batch goes through `emit_each`
        self.alone = plan.algorithm in ("dots", "stream") or few
        fields = without_panels.complex_row(self) if row else without_panels.complex_in_place(self) if few else {
            "packed": Recipe._packed, "in_place": Recipe._in_place, "stream": without_panels.stream,
            "dots": without_panels.dot_tiles if plan.dot_tiles else without_panels.dots}[plan.algorithm](self)
        layout = {"packed": jobs.PACKED, "in_place": jobs.IN_PLACE, "dots": jobs.DOTS,
                  "stream": jobs.STREAM}[plan.algorithm]
        layout = jobs.ROW_DOTS if plan.by_rows(shape) else jobs.DOT_TILES if plan.dot_tiles else layout
        layout = jobs.COMPLEX_ROW if row else jobs.COMPLEX_IN_PLACE if few else layout
        if words:
            layout, fields = (*layout, *jobs.TILES), fields | {"tiles_step": _page(4*words) // 4}
        self.template = array("q", [fields.pop(name, 0) for name in layout])
        assert not fields, fields
        self.at = {name: index for index, name in enumerate(layout)}
        self.i_a, self.i_b, self.i_c = map(self.at.__getitem__, "abc")
        self.i_alpha, self.i_beta = self.at.get("alpha"), self.at["beta"]
        if self.i_alpha is not None:
            self.template[self.i_alpha] = self.bits(1.0)
        several = self.passes > 1 and not shape.out and self.added_in in ("f32", "f64")    # of integers it is the same
        self.scaled_after = several or (plan.algorithm == "stream" and not row)
        self.call = host.callable(self.function)
        self.address = host.address_of
        self.special = self.at["special"] if shape.tiles else None      # the field that says that C means nothing
        self.places = self._places()
        self.half: Recipe | None = None                 # the same for the lower triangle (symmetric.py)
        self.onto_temporary: Recipe | None = None       # the same for a C that `takes_c` allows
        # C as the algorithm can write it; else its caller gives it another
        along, across = (strides.rsc, strides.csc) if shape.tiles else (strides.csc, strides.rsc)
        self.takes_c = along == 1 or row or few or (plan.algorithm == "dots" and (not plan.dot_tiles or across == 1))

    def reads(self, x: Any) -> bool:
        """Whether few rows lie as the recipe reads them."""
        return bool(x.dtype == self.rows_dtype and x.flags.c_contiguous)

    def rounds(self, c: Any) -> bool:
        """Whether it stores few rows' sums in C as they are, or rounds them in its pass."""
        return c.itemsize == 4 or self.finish is not None

    def _driver(self, extended: CpuTarget) -> tuple[int, int]:
        """Address of the loops around the kernels, and words for rows that each thread rearranges. `extended`: the
        target, for code that uses its extensions."""
        shape, plan, target = self.shape, self.plan, self.target
        if plan.word:
            how = self.prepare["b" if plan.algorithm == "stream" else "a"]
            assert how is not None
            emitter, args, words = few_row_kernel(plan, shape, how)
            return self.host.address(emitter, target if plan.word == "f32" else extended, *args), words
        prepared = "".join(role for role, x in self.prepare.items() if x)
        sources: tuple[str, ...] = ()
        if shape.source_a or shape.source_b or self.prepacked:
            sources = shape.source_a, shape.source_b
        once = {"stream": "b", "dots": "a"}.get(plan.algorithm, "") if prepared else ""     # with a prologue
        if once:
            sources = (getattr(shape, f"source_{once}"),)
        if plan.dot_tiles:
            return self.host.address("dot_tiles:emit_dot_tiles", target, shape.dtype), 0
        function = self.host.driver(target, plan.algorithm, shape.dtype, plan.mr, plan.nr, *sources,
                                    prepacked=self.prepacked, fields=semirings.state(shape.semiring),
                                    prologues=prepared, prepare=self.prepare.get(once), by_rows=plan.by_rows(shape),
                                    result=shape.out if plan.algorithm == "dots" else "",
                                    complex_row=without_panels.complex_row_kernel(self),
                                    complex_in_place=without_panels.complex_in_place_kernel(self))
        return function, 0

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the tiles that `finish` meets: of AMX they are those of C^T."""
        return (self.plan.nr, self.plan.mr) if self.shape.tiles else (self.plan.mr, self.plan.nr)

    def onto(self, strides: Strides) -> Recipe:
        """The recipe for other strides of C, in the roles that the plan gives the operands."""
        return type(self)(self.shape, strides, self.plan, self.target, self.host, self.conj, self.prepacked,
                          self.tables, self.finish, (self.prepare["a"], self.prepare["b"]))

    def lower(self) -> Recipe:
        """The recipe for the lower triangle alone."""
        lower = copy(self)
        lower.template = self.template[:]
        lower.template[self.at["lower"]] = 1
        return lower

    def finished(self, finish: jobs.Finish | None, finishing: int, sums: int, fields: dict[str, int]) -> Recipe:
        """A recipe of a plan that packs nothing, followed by the pass `finishing` over its sums, as one job. `sums`:
        bytes of sums beside C; `fields`: of jobs.FINISH."""
        recipe, first = copy(self), len(jobs.FINISHED)
        at, shares = first + len(self.template), fields["row_parts"] * fields["col_parts"]
        recipe.finish, recipe.sums, recipe.space = finish, sums, _page(sums) + self.tiles
        recipe.function = self.host.address("finish:emit_finished", self.target)
        recipe.call = self.host.callable(recipe.function)
        more = {"product": self.function, "product_parts": self.parts, "finishing": finishing, "at": 8*at,
                "shares": shares}
        recipe.template = array("q", [*(more.get(name, 0) for name in jobs.FINISHED), *self.template,
                                     *(fields.get(name, 0) for name in jobs.FINISH)])
        then = {name: place for place, name in enumerate(jobs.FINISH, at)}
        recipe.at = {name: place + first for name, place in self.at.items()} | {
            name: then[name] for name in ("c", "operands", "sums")} | {"c_of_product": self.i_c + first,
                                                                       "index": then["index"]}
        if "index" in self.at:
            recipe.at["index_of_product"] = self.at["index"] + first
        recipe.i_a, recipe.i_b, recipe.i_c = recipe.at["a"], recipe.at["b"], recipe.at["c"]
        recipe.i_alpha, recipe.i_beta = recipe.at.get("alpha"), recipe.at["beta"]
        recipe.parts, recipe.takes_c = self.parts + (shares if shares > 1 else 0), True
        recipe.places = recipe._places()
        return recipe

    def bits(self, x: float) -> int:
        """x as the job's field holds it: a number of the sums' type in the low bytes; beyond f32's range it is inf."""
        if self.added_in == "f32":
            return int(struct.unpack("=q", struct.pack("=f4x", ctypes.c_float(x).value))[0])
        if self.added_in == "f64":
            return int(struct.unpack("=q", struct.pack("=d", x))[0])
        return (int(x) + (1 << 63)) % (1 << 64) - (1 << 63)

    def _packed(self) -> dict[str, int]:
        shape, st, plan = self.shape, self.strides, self.plan
        kernels = self.host.microkernels(self.target, shape.dtype, plan.mr, plan.nr, "packed", shape.semiring)
        kernels.need(shape.m, shape.n)
        self.kernels = kernels              # the job holds the address of its table
        cut = blocks(shape, plan)
        self.passes *= -(-shape.k // cut.kc)
        self.a_block, self.b_block = (0 if self.prepacked == role else panels * cut.space[role] * shape.itemsize
                                      for role, panels in (("a", cut.mc_panels), ("b", cut.nc_panels)))     # bytes
        self.a_blocks = plan.jc_ways * plan.ic_ways * (1 + 2*jobs.SHARED*plan.claims)
        self.b_blocks = plan.jc_ways * (plan.ic_ways if plan.own_b else 1 + plan.claims)
        self.a_bytes = _page(self.a_blocks * self.a_block)
        # tiles of C that wait for the next block of k, for one of jc_ways
        waiting = (shape.out or self.tables.c) and cut.kc < shape.k
        self.sums = -(-shape.m // plan.mr) * plan.mr * cut.nc_panels * plan.nr * shape.itemsize if waiting else 0
        self.sums *= semirings.fields(shape.semiring)
        self.b_bytes = _page(self.b_blocks * self.b_block)
        self.space = self.a_bytes + self.b_bytes + plan.jc_ways * self.sums
        pack_a, pack_b = (0 if role == self.prepacked else self._packing(role) for role in "ab")
        return {"m": shape.m, "n": shape.n, "k": shape.k, "rsa": st.rsa, "csa": st.csa, "rsb": st.rsb, "csb": st.csb,
                "ldc": st.csc if shape.tiles else st.rsc, "mc_panels": cut.mc_panels, "kc": cut.kc,
                "nc_panels": cut.nc_panels, "jc_ways": plan.jc_ways, "ic_ways": plan.ic_ways, "jr_ways": plan.jr_ways,
                "own_b": int(plan.own_b),
                "pack_a": pack_a, "pack_b": pack_b, "table": kernels.address, "depth": shape.depth,
                "finish": self._finish(), "aside": self._aside(cut), **self._addresses(),
                "unpacked": int(plan.unpacked(shape) and self.prepacked != "b")}

    def _packing(self, role: str) -> int:
        by: Scattered | None = getattr(self.tables, role)
        if by is None:
            return packing(role, self.host, self.target, self.shape, self.strides, self.plan, self.conj,
                           self.prepare[role])
        width = self.plan.mr if role == "a" else self.plan.nr
        return self.host.packing_scattered(self.target, self.shape, width, role, by)

    def _finish(self) -> int:
        """What takes finished sums to C, through the epilogue if there is one; 0 if micro-kernels store them."""
        if c := self.tables.c:
            result = self.shape.out or self.added_in
            scatter = self.host.address("scattered:emit_scatter", self.target, self.plan.nr, result, c.kind, c.pieces)
            if self.finish is None:
                return scatter
            self.then = self.host.address("finish:emit_finish", self.target, self.added_in, self.plan.nr, "",
                                          *self.finish), scatter
            return self.host.address("scattered:emit_finish_scattered", self.target, self.added_in)
        if not self.shape.out and self.finish is None:
            return 0
        return self.host.address("finish:emit_finish", self.target, self.added_in, self.plan.nr, self.shape.out,
                                 *(self.finish or ()))

    def _aside(self, cut: Blocks) -> int:
        """Where sums are (jobs.PACKED). With one block of k those of an epilogue are never in C: a tile that is stored
        there, read and stored again is evicted between, where its rows are a power of two apart."""
        if self.shape.out or self.tables.c:
            return 1
        own = self.finish is not None and not (self.shape.semiring or self.shape.tiles) and cut.kc >= self.shape.k
        return 2 if own else 0

    def _addresses(self) -> dict[str, int]:
        """Addresses of the tables, in the job."""
        of = self.host.of_table
        places = {f"{name}_{field}": of(getattr(by, field)) for name, by in (("a", self.tables.a), ("b", self.tables.b))
                 if by is not None for field in ("lines", "steps")}
        if c := self.tables.c:
            self.tables_of_c = np.array([of(c.rows), of(c.columns), *self.then])        # the job holds the address
            places["c_tables"] = of(self.tables_of_c)
        return places

    def _in_place(self) -> dict[str, int]:
        shape, st, plan = self.shape, self.strides, self.plan
        by_rows = st.csa == 1
        kernels = self.host.microkernels(self.target, shape.dtype, plan.mr, plan.nr, "rows" if by_rows else "columns")
        kernels.need(shape.m, shape.n)
        self.kernels = kernels              # the job holds the address of its table
        self.passes = -(-shape.k // (plan.kc or shape.k))
        return {"m": shape.m, "n": shape.n, "k": shape.k, "lda": st.rsa if by_rows else st.csa, "ldb": st.rsb,
                "ldc": st.rsc, "kc": plan.kc or shape.k, "batch": 1, "batch_parts": 1,
                "row_parts": plan.ic_ways, "col_parts": plan.jc_ways, "by_rows": int(by_rows),
                "rows_outside": int(plan.rows_outside(shape, self.target)),
                "table": kernels.address, "finish": self._finish()}

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, beside: jobs.Beside = NOTHING, index: int = 0
            ) -> bool:
        """Whether C means nothing, because an element has no such terms as the shape's dtype stands for. `beside`:
        where operands of the epilogue and of prologues are, of which those of product `index` are taken."""
        if self.scaled_after and not self.at_once(alpha, beta):
            return self.then_scaled(alpha, beta)(a, b, c)
        job = self.job(a, b, c, alpha, beta, beside)
        if beside is not NOTHING:
            for name in "index", "index_of_product":
                if name in self.at:
                    job[self.at[name]] = index
        return self.run_job(job)

    def at_once(self, alpha: float, beta: float) -> bool:
        """Whether the driver by itself multiplies whole sums by alpha."""
        ones = alpha == 1.0 and (beta in (0, 1) or self.plan.algorithm != "stream")
        return ones or not self.scaled_after

    def then_scaled(self, alpha: float, beta: float) -> Callable[[int, int, int], bool]:
        """`run` for operands at any addresses: the sums into C, or beside it if it will be read, and then
        C = alpha * sums + beta * C."""
        line = "ldc" if "ldc" in self.at else "rsc" if self.strides.csc == 1 else "csc"
        host, size, ldc = self.host, FORMATS[self.added_in].itemsize, self.template[self.at[line]]
        m, n = self.shape.m, self.shape.n
        m, n = (n, m) if self.shape.tiles or line == "csc" else (m, n)                  # which write columns
        product = self.job(0, 0, 0, 1.0, 0.0)
        ld = product[self.at[line]] = n if beta else ldc
        parts = self.parts if m * n > SHARED else 1
        row_parts = min(parts, m)
        fields = {"m": m, "n": n, "lds": ld, "ldc": ldc, "alpha": self.bits(alpha), "beta": self.bits(beta),
                  "row_parts": row_parts, "col_parts": parts // row_parts}
        scaling = array("q", [fields.get(name, 0) for name in jobs.SCALE])
        function = host.address("skinny:emit_scale", self.target, self.added_in)
        call, i_sums, i_c = host.callable(function), jobs.SCALE.index("s"), jobs.SCALE.index("c")

        def run(a: int, b: int, c: int) -> bool:
            space = host.take(m * n * size) if beta else None
            try:
                job, then, sums = product[:], scaling[:], c if space is None else space.address
                job[self.i_a], job[self.i_b], job[self.i_c], then[i_sums], then[i_c] = a, b, sums, sums, c
                special = self.run_job(job)
                address = host.job(then)
                if parts > 1:
                    host.run_parts(function, address, parts, min(parts, self.shape.threads), False)
                else:
                    call(address, 0)
                return special
            finally:
                if space is not None:
                    host.give(space)
        return run

    def run_job(self, job: array) -> bool:
        """What `run` says, by a job that has all addresses but those of panels, sums and barriers."""
        host, parts = self.host, self.parts
        threads = min(parts, self.shape.threads)
        if parts > 1:                          # each time: a fork leaves the child without workers
            host.reserve(parts if self.plan.meets else threads)
        space = host.take(self.space) if self.space else None
        try:
            packed = self.plan.algorithm == "packed"
            address = host.job(job) if packed else None
            if space is not None:
                self._place(job, space)
                if packed:
                    ctypes.memset(space.address - BARRIERS, 0, self.zeroed)
            address = address if packed else host.job(job)
            if parts == 1:
                self.call(address, 0)
            elif not self.plan.meets:
                host.run_parts(self.function, address, parts, threads, self.wake)
            elif not host.run_team(self.function, address, parts):
                # The pool is taken: this thread alone, in the same blocks of k, so with the same bits.
                job[self.at["jc_ways"]] = job[self.at["ic_ways"]] = job[self.at["jr_ways"]] = 1
                self.call(address, 0)
            return self.special is not None and job[self.special] != 0
        finally:
            if space is not None:
                host.give(space)

    def of_one_thread(self) -> tuple[int, int, int]:
        """Bytes of panels and sums that a thread by itself needs, and where there B's panels and the sums begin."""
        b_at = _page(self.a_block)
        sums_at = b_at + _page(self.b_block)
        return sums_at + _page(self.sums), b_at, sums_at

    def job(self, a: int, b: int, c: int, alpha: float, beta: float, beside: jobs.Beside = NOTHING) -> array:
        """What the driver takes for operands at these addresses; packed plans still need space for their panels."""
        job = self.template[:]
        job[self.i_a], job[self.i_b], job[self.i_c] = a, b, c
        if alpha != 1.0:
            assert self.i_alpha is not None, self.plan
            job[self.i_alpha] = self.bits(alpha)
        if beta != 0.0:
            job[self.i_beta] = self.bits(beta)
        if beside is not NOTHING:
            for name, address in beside._asdict().items():
                if address:
                    job[self.at[name]] = address
        return job

    def _places(self) -> tuple[tuple[int, int], ...]:
        """Fields of the job that say where panels, sums and barriers are, in bytes from a workspace's address."""
        if self.plan.algorithm == "packed":
            places = {"barriers": -BARRIERS, "a_space": 0, "b_space": self.a_bytes, "sums": self.a_bytes + self.b_bytes}
        else:
            places = {"sums": 0, "c_of_product": 0} if self.sums else {}
            places |= {"tiles": _page(self.sums)} if self.tiles else {}
        return tuple((self.at[name], offset) for name, offset in places.items())

    def _place(self, job: array, space: Any) -> None:
        for field, offset in self.places:
            job[field] = space.address + offset


def _page(size: int) -> int:
    return -(-size // 4096) * 4096
