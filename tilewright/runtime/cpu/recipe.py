"""A plan made ready for operands of given strides: kernels compiled, job filled in but for what differs per call."""
from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tilewright.expressions.program import ELEMENT
from tilewright.formats import FORMATS
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.jobs import NOTHING
from tilewright.plans import few_rows, semirings
from tilewright.plans.cpu import MOST_COPIED, SHORT, CpuPlan, widens
from tilewright.plans.cpu_shape import Shape, Strides, order
from tilewright.plans.few_rows import BLOCK
from tilewright.plans.model import PANEL_DEPTH, WAKE_ABOVE, WAKE_ONE
from tilewright.plans.words import TILE_WORDS
from tilewright.rules import prologues
from tilewright.runtime.cpu.host import SWAPPED, Host, host
from tilewright.runtime.cpu.tables import Scattered, ScatteredC
from tilewright.runtime.cpu.workspace import BARRIERS
from tilewright.targets.cpu import CpuTarget

FORK_FLOPS = 300_000            # work worth sharing with threads that are awake,
WAKE_FLOPS = 2 * WAKE_ABOVE     # worth waking all of them for: tens of microseconds, or one of them
WAKE_ONE_FLOPS = 2 * WAKE_ONE
SHARES = 4                      # of a batch for each thread to claim: a delayed thread does fewer
IDLE = 0.1                      # of the threads' time, up to which a batch is dealt out in whole products
SMALL, SEVERAL = 32, 64         # rows, columns and steps of k of products that have code of their own in batches of
                                # so many
MOST_CHUNK = 48         # rows of complex products in place that have sums on the stack
SHARED = 1 << 15        # elements of C that are scaled by one thread
Prepares = tuple[jobs.Prepare | None, jobs.Prepare | None]


class Blocks(NamedTuple):
    """A packed plan's panels of A and of B in a block, its rows of k, and the elements that a panel takes."""
    mc_panels: int
    nc_panels: int
    kc: int
    space: dict[str, int]


def blocks(shape: Shape, plan: CpuPlan) -> Blocks:
    """The plan's, as far as there is something in them."""
    rows = TILE_WORDS[shape.dtype].rows if shape.tiles else 4
    kc = min(-(-plan.kc // rows), -(-shape.k // rows)) * rows
    panels_m, panels_n = -(-shape.m // plan.mr), -(-shape.n // plan.nr)
    first = plan.nr if shape.words else 0                                   # the row before a panel of words
    space = {"a": jobs.panel_space(kc, plan.mr), "b": jobs.panel_space(kc, plan.nr) + first}
    return Blocks(min(-(-plan.mc // plan.mr), panels_m), min(-(-plan.nc // plan.nr), panels_n), kc, space)


def woken(flops: int, threads: int) -> int:
    """How many threads that sleep are woken for so much work that is dealt out in parts."""
    return threads if flops >= WAKE_FLOPS else int(flops >= WAKE_ONE_FLOPS)


def few_row_kernel(plan: CpuPlan, shape: Shape, prepare: jobs.Prepare) -> tuple[str, tuple[Any, ...], int]:
    """The emitter, its arguments, and words for rows that each thread rearranges, of a shape in the plan's roles."""
    word, k, m, source, how = plan.word, shape.k, plan.nr, shape.source_a, tuple(prepare)
    if plan.algorithm == "stream":
        if word == "f32":
            return "weights:emit_stream", ("f32", plan.mr, plan.nr, shape.source_b, how), 0
        return "stream_tiles:emit_stream_tiles", (plan.mr,), jobs.tile_words(k, plan.mr)
    if word == "f32":
        return "weights:emit_dots", ("f32", plan.mr, m, source, how), 0
    if word == "amx_bf16":
        return "weight_tiles:emit_tiles", (m, source, how), jobs.tile_words(k, m)
    if source == "bf16":
        return "weight_pairs:emit_plain_pairs", (m,), 0
    if plan.kc:
        return "decoded_pairs:emit_decoded_pairs", (m, source, how), m*jobs.row_pitch(k)
    return "weight_pairs:emit_pairs", (plan.mr, m, source, how), m*jobs.row_pitch(-(-k // BLOCK) * BLOCK)


def packing(role: str, host: Host, target: CpuTarget, shape: Shape, strides: Strides, plan: CpuPlan, conj: str,
            prepare: jobs.Prepare | None = None) -> int:
    """Address of the function that packs A, "a", with its rows as lines, or B, "b", with its columns."""
    pair = 2 if shape.complex else 1                                        # reals from one number to the next
    across, along = (strides.rsa, strides.csa) if role == "a" else (strides.csb, strides.rsb)
    kind = _ALONG[order(across // pair, along // pair)]
    return host.packing(target, shape, plan.mr if role == "a" else plan.nr, kind, role, conj, prepare)


class Tables(NamedTuple):
    """Of operands that have no strides; None for those that have."""
    a: Scattered | None = None
    b: Scattered | None = None
    c: ScatteredC | None = None


class Work(NamedTuple):
    """What a recipe has emitted code do: function(job, part) for each part, as `Host.run_parts` or, of a team,
    `run_team` does it."""
    function: int
    job: array
    parts: int
    threads: int
    wake: int = 0
    team: bool = False
    layout: tuple[str, ...] = ()        # of the job, if it is not that of the plan's algorithm
    spaced: bool = False                # panels are in a workspace


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
                plain = {"a": shape.source_a or "f32", "b": shape.source_b}        # its elements are the numbers
                result = prologues.multiplied(plain, {"b": "float"})["b"]
                prepare = None, jobs.Prepare(f"{ELEMENT}:float; -> {ELEMENT}", (), result)
            shape, strides = few_rows.as_read(shape, strides, plan)
        if plan.swap:
            shape, strides, plan = shape.swapped, strides.swapped, replace(plan, swap=False)
            prepacked, prepare = prepacked.translate(SWAPPED), (prepare[1], prepare[0])
        assert plan.algorithm == "packed" or not prepacked, plan
        self.shape, self.strides, self.plan, self.target, self.host = shape, strides, plan, target, host
        self.conj, self.prepacked, self.tables, self.finish = conj, prepacked, tables or Tables(), finish
        self.prepare = dict(zip("ab", prepare))
        row, few = plan.complex_row(shape), plan.complex_in_place(shape)
        self.function, words = self._driver(extended)
        self.added_in = shape.sums
        self.parts, self.sums = plan.threads, 0
        self.tiles = self.space = _page(4*words) * self.parts
        # bytes of barriers with counters, which start at 0
        self.zeroed = plan.jc_ways * jobs.BARRIER_BYTES if plan.claims else 0
        # of k, after which the sums are in C: with several, C is scaled when all are there
        self.passes = len(TILE_WORDS[shape.dtype].passes) if shape.tiles else 1
        self.wake = woken(2*shape.m*shape.n*shape.k, shape.threads)
        # by drivers that take one product, and need no space: a batch goes through `emit_each`
        self.alone = plan.algorithm in ("dots", "stream") or few
        fields = self._complex_row() if row else self._complex() if few else {
            "packed": self._packed, "in_place": self._in_place, "stream": self._stream,
            "dots": self._dots}[plan.algorithm]()
        layout = {"packed": jobs.PACKED, "in_place": jobs.IN_PLACE, "dots": jobs.DOTS,
                  "stream": jobs.STREAM}[plan.algorithm]
        layout = jobs.ROW_DOTS if plan.by_rows(shape) else layout
        layout = jobs.COMPLEX_ROW if row else jobs.COMPLEX_IN_PLACE if few else layout
        if words:
            layout, fields = (*layout, *jobs.TILES), fields | {"tiles_step": _page(4*words) // 4}
        self.template = array("q", [fields.pop(name, 0) for name in layout])
        assert not fields, fields
        self.at = {name: index for index, name in enumerate(layout)}
        self.i_a, self.i_b, self.i_c = (self.at[name] for name in "abc")
        self.i_alpha, self.i_beta = self.at.get("alpha"), self.at["beta"]
        if self.i_alpha is not None:
            self.template[self.i_alpha] = self._bits(1.0)
        several = self.passes > 1 and not shape.out and self.added_in in ("f32", "f64")    # of integers it is the same
        self.scaled_after = several or (plan.algorithm == "stream" and not row)
        self.call = host.callable(self.function)
        self.address = host.address_of
        self.special = self.at["special"] if shape.tiles else None      # the field that says that C means nothing
        self.places = self._places()
        self.half: Recipe | None = None                 # the same for the lower triangle (symmetric.py)
        self.onto_temporary: Recipe | None = None       # the same for a C that `takes_c` allows
        # C as the algorithm can write it; else its caller gives it another
        self.takes_c = (strides.rsc if shape.tiles else strides.csc) == 1 or plan.algorithm == "dots" or row or few

    def reads(self, x: Any) -> bool:
        """Whether few rows lie as the recipe reads them."""
        return bool(x.dtype == self.rows_dtype and x.flags.c_contiguous)

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
        function = self.host.driver(target, plan.algorithm, shape.dtype, plan.mr, plan.nr, *sources,
                                    prepacked=self.prepacked, fields=semirings.state(shape.semiring),
                                    prologues=prepared, prepare=self.prepare.get(once), by_rows=plan.by_rows(shape),
                                    result=shape.out if plan.algorithm == "dots" else "",
                                    complex_row=self._complex_row_kernel() if plan.complex_row(shape) else None,
                                    complex_in_place=self._complex_kernel() if plan.complex_in_place(shape) else ())
        return function, 0

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the tiles that `finish` meets: of AMX they are those of C^T."""
        return (self.plan.nr, self.plan.mr) if self.shape.tiles else (self.plan.mr, self.plan.nr)

    def onto(self, strides: Strides) -> Recipe:
        """The same for other strides of C, in the roles that the plan gives the operands."""
        return type(self)(self.shape, strides, self.plan, self.target, self.host, self.conj, self.prepacked,
                          self.tables, self.finish, (self.prepare["a"], self.prepare["b"]))

    def instead(self, function: int, **fields: int) -> Recipe:
        """This recipe with another function for its job, and these fields of that."""
        found = copy(self)
        found.function, found.call, found.template = function, self.host.callable(function), self.template[:]
        for name, value in fields.items():
            found.template[found.at[name]] = value
        return found

    def finished(self, finish: jobs.Finish | None, finishing: int, sums: int, fields: dict[str, int]) -> Recipe:
        """A recipe of a plan that packs nothing, followed by the pass `finishing` over its sums, as one job. `sums`:
        bytes of sums beside C; `fields`: of jobs.FINISH."""
        found, first = copy(self), len(jobs.FINISHED)
        at, shares = first + len(self.template), fields["row_parts"] * fields["col_parts"]
        found.finish, found.sums, found.space = finish, sums, _page(sums) + self.tiles
        found.function = self.host.address("finish:emit_finished", self.target)
        found.call = self.host.callable(found.function)
        more = {"product": self.function, "product_parts": self.parts, "finishing": finishing, "at": 8*at,
                "shares": shares}
        found.template = array("q", [*(more.get(name, 0) for name in jobs.FINISHED), *self.template,
                                     *(fields.get(name, 0) for name in jobs.FINISH)])
        then = {name: place for place, name in enumerate(jobs.FINISH, at)}
        found.at = {name: place + first for name, place in self.at.items()} | {
            name: then[name] for name in ("c", "operands", "sums")} | {"c_of_product": self.i_c + first,
                                                                       "index": then["index"]}
        if "index" in self.at:
            found.at["index_of_product"] = self.at["index"] + first
        found.i_a, found.i_b, found.i_c = found.at["a"], found.at["b"], found.at["c"]
        found.i_alpha, found.i_beta = found.at.get("alpha"), found.at["beta"]
        found.parts, found.takes_c = self.parts + (shares if shares > 1 else 0), True
        found.places = found._places()
        return found

    def _bits(self, x: float) -> int:
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
        self.b_blocks = plan.jc_ways * (1 + plan.claims)
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
                "pack_a": pack_a, "pack_b": pack_b, "table": kernels.address, "depth": shape.depth,
                "finish": self._finish(), "aside": self._aside(cut), **self._addresses()}

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
            return self.host.address("scattered:emit_scatter", self.target, self.plan.nr, result, c.kind, c.pieces)
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
        """Of the tables, in the job."""
        of = self.host.of_table
        found = {f"{name}_{field}": of(getattr(by, field)) for name, by in (("a", self.tables.a), ("b", self.tables.b))
                 if by is not None for field in ("lines", "steps")}
        if c := self.tables.c:
            self.tables_of_c = np.array([of(c.rows), of(c.columns)])        # the job holds the address
            found["c_tables"] = of(self.tables_of_c)
        return found

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
                # with k short C is most of the traffic, and wants to be written along its rows
                "rows_outside": int(shape.k <= SHORT or shape.m * plan.nr >= shape.n * plan.mr),
                "table": kernels.address, "finish": self._finish()}

    def _complex_row_kernel(self) -> tuple[str, ...]:
        """What the emitters of kernels/cpu/complex_rows.py take after `nr`."""
        steps = (self.strides.csa, self.strides.rsb) if self.plan.algorithm == "dots" else ()
        return tuple("along" if step == 2 else "any" for step in steps)

    def _complex_row(self) -> dict[str, int]:
        shape, st = self.shape, self.strides
        sign_a, sign_b = (self._bits(-1.0 if role in self.conj else 1.0) for role in "ab")
        return {"n": shape.n // 2, "k": shape.k // 2, "csa": st.csa, "rsb": st.rsb, "csb": st.csb,
                "csc": 2 if st.csc == 1 else st.csc, "parts": self.parts, "sign_a": sign_a,
                "sign_b": sign_b}

    def _complex_kernel(self) -> tuple[Any, ...]:
        """What emit_complex_in_place takes after the tile."""
        shape, plan = self.shape, self.plan
        edge, groups = shape.n % plan.nr > 0, min(-(-shape.m // plan.mr), max(MOST_CHUNK // plan.mr, 1))
        panels = ("several, edge" if edge else "several") if shape.n > plan.nr else "edge" if edge else "one"
        return groups, shape.a, shape.b, panels

    def _complex(self) -> dict[str, int]:
        shape, st = self.shape, self.strides
        csc = 2 if st.csc == 1 else st.csc
        signs = {f"sign_{x}": -1 if x in self.conj else 1 for x in "ab"}
        return {"m": shape.m, "n": shape.n // 2, "k": shape.k // 2, "rsa": st.rsa, "csa": st.csa, "rsb": st.rsb,
                "csb": st.csb, "rsc": st.rsc, "csc": csc, "row_parts": self.plan.ic_ways,
                "col_parts": self.plan.jc_ways, **signs}

    def _dots(self) -> dict[str, int]:
        shape, st = self.shape, self.strides
        found = {"m": shape.m, "k": shape.depth or shape.k, "lda": st.rsa, "ldb": st.csb, "rsc": st.rsc, "csc": st.csc,
                 "parts": self.parts}
        return found | {"ldb": st.rsb, "csa": st.csa} if self.plan.by_rows(shape) else found

    def _stream(self) -> dict[str, int]:
        shape, st = self.shape, self.strides
        return {"n": shape.n, "k": shape.k, "rsa": st.rsa, "csa": st.csa, "ldb": st.rsb, "ldc": st.rsc,
                "parts": self.parts}

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
        host, size, ldc = self.host, FORMATS[self.added_in].itemsize, self.template[self.at["ldc"]]
        m, n = (self.shape.n, self.shape.m) if self.shape.tiles else (self.shape.m, self.shape.n)   # AMX writes columns
        product = self.job(0, 0, 0, 1.0, 0.0)
        ld = product[self.at["ldc"]] = n if beta else ldc
        parts = self.parts if m * n > SHARED else 1
        row_parts = min(parts, m)
        fields = {"m": m, "n": n, "lds": ld, "ldc": ldc, "alpha": self._bits(alpha), "beta": self._bits(beta),
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
                for field, offset in self.places:
                    job[field] = space.address + offset
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

    def run_batch(self, batch: int, steps: tuple[int, ...], a: int, b: int, c: int, alpha: float,
                  beta: float, beside: jobs.Beside = NOTHING) -> None:
        """`batch` products, the operands of each so many bytes after those of the one before. Every one gets the bits
        that `run` would give it."""
        shape = self.shape
        flops = 2*batch*shape.m*shape.n*shape.k
        at_once, algorithm = self.at_once(alpha, beta), self.plan.algorithm
        if alpha == 1.0 and beta == 0.0 and beside is NOTHING and (small := self._of_small(batch, steps)):
            for name, address in zip("abc", (a, b, c)):
                small.job[jobs.IN_PLACE.index(name)] = address
            if small.parts > 1:
                self.host.reserve(shape.threads)
            self._run_work(small)
        elif at_once and algorithm == "in_place" and not self.alone:
            work = self._of_batch(batch, steps, self.job(a, b, c, alpha, beta, beside))
            if work.parts > 1:
                self.host.reserve(shape.threads)
            self._run_work(work)
        elif at_once and self.alone and beside is NOTHING and not self.space:
            self._run_work(self._of_each(batch, steps, self.job(a, b, c, alpha, beta)))
        elif at_once and algorithm == "packed" and (team := self._whole_products(batch, flops)):
            self._batch_packed(batch, steps, self.job(a, b, c, alpha, beta, beside), team)
        else:
            for i in range(batch):
                self.run(a + i*steps[0], b + i*steps[1], c + i*steps[2], alpha, beta, beside, i)

    def _of_batch(self, batch: int, steps: tuple[int, ...], job: array) -> Work:
        """In place. The job becomes that of the batch."""
        shape, at = self.shape, self.at
        flops = 2*batch*shape.m*shape.n*shape.k
        job[at["batch"]] = batch
        for name, step in zip(_STEPS, steps):
            job[at[name]] = step // shape.itemsize
        # enough parts for all threads, of as whole products as can be
        rows = job[at["row_parts"]] = min(self.plan.ic_ways, -(-shape.threads * SHARES // batch))
        columns = job[at["col_parts"]] = min(self.plan.jc_ways, max(shape.threads * SHARES // batch // rows, 1))
        parts = rows * columns
        if shape.threads > 1 and flops >= FORK_FLOPS:
            job[at["batch_parts"]] = shares = min(batch, shape.threads * SHARES)
            parts *= shares
        return Work(self.function, job, parts, min(parts, shape.threads), woken(flops, shape.threads))

    def _of_each(self, batch: int, steps: tuple[int, ...], job: array) -> Work:
        """One after the other by a driver that takes one; whole ones for each thread, if there are enough."""
        shape = self.shape
        flops = 2*batch*shape.m*shape.n*shape.k
        within, shares = self.parts, 1
        if batch >= shape.threads or within == 1:
            shares, within = min(batch, shape.threads * SHARES) if shape.threads > 1 and flops >= FORK_FLOPS else 1, 1
            for name in self.at.keys() & {"parts", "row_parts", "col_parts"}:
                job[self.at[name]] = 1
        return self._each(batch, steps, job, shares, within)

    def _each(self, batch: int, steps: tuple[int, ...], job: array, shares: int = 1, within: int = 1) -> Work:
        flops = 2*batch*self.shape.m*self.shape.n*self.shape.k
        fields = {"driver": self.function, "batch": batch, "batch_parts": shares, "within": within,
                  **dict(zip(_STEPS, steps)), "fields": len(job),
                  **{f"at_{name}": self.at[name] for name in "abc"}}
        whole = array("q", [fields[name] for name in jobs.EACH])
        whole.extend(job)
        parts, threads = shares * within, self.shape.threads
        if parts > 1:
            self.host.reserve(threads)
        function = self.host.address("skinny:emit_each", self.target)
        return Work(function, whole, parts, min(parts, threads), woken(flops, threads), layout=(*jobs.EACH, *self.at))

    def _each_packed(self, batch: int, steps: tuple[int, ...], job: array, space: Any) -> Work | None:
        """One after the other by this thread, as `_batch_packed` does so little work: with panels in `space`."""
        shape = self.shape
        shared = shape.threads > 1 and 2*batch*shape.m*shape.n*shape.k >= WAKE_FLOPS
        if shared or shape.tiles or self.finish or shape.prologues:
            return None
        job[self.at["jc_ways"]] = job[self.at["ic_ways"]] = job[self.at["jr_ways"]] = 1
        self._place(job, space)
        return self._each(batch, steps, job)._replace(spaced=True)

    def _of_small(self, batch: int, steps: tuple[int, ...]) -> Work | None:
        """The code for products of just this size, with addresses left open, if there is any (kernels/cpu/batches.py):
        for many small ones without gaps, which this plan adds up in the same order."""
        shape, st, two = self.shape, self.strides, 2 if self.shape.complex else 1
        m, n, k = shape.m, shape.n // two, shape.k // two
        by_rows, by_columns = (st.rsa, st.csa) == (k*two, two), (st.rsa, st.csa) == (two, m*two)
        if not (batch >= SEVERAL and max(m, n, k) <= SMALL and shape.dtype in ("f32", "f64")
                and (shape.complex or not shape.converts) and not (self.conj or self.finish or shape.semiring)
                and not (self.prepacked or any(self.tables) or shape.prologues or shape.out)
                and self.passes == 1 and (not self.alone or (self.plan.algorithm == "stream" and not shape.complex))
                and (by_rows or by_columns)
                and (st.rsb, st.csb) == (n*two, two) and (st.rsc, st.csc) == (n*two, 1)):
            return None
        function = self.host.address("batches:emit_batches", self.target, shape.dtype, m, n, k, by_rows,
                                     *((True,) * shape.complex))
        fields = {"batch": batch, "batch_parts": 1, **{x: step // shape.itemsize for x, step in zip(_STEPS, steps)}}
        flops = 2*batch*shape.m*shape.n*shape.k
        if shape.threads > 1 and flops >= FORK_FLOPS:
            fields["batch_parts"] = min(batch, shape.threads * SHARES)
        parts = fields["batch_parts"]
        job = array("q", [fields.get(name, 0) for name in jobs.IN_PLACE])
        return Work(function, job, parts, min(parts, shape.threads), woken(flops, shape.threads),
                    layout=jobs.IN_PLACE)

    def repeatable(self, batch: int, steps: tuple[int, ...], space: Any = None, alpha: float = 1.0,
                   beta: float = 0.0) -> Work | None:
        """What `run`, or `run_batch` of so many, has done, with addresses left open and panels in `space`; None if that
        was more than one piece of work, or there is too little space."""
        if not self.at_once(alpha, beta) or self.space > (space.size if space else 0):
            return None
        if batch and alpha == 1 and beta == 0 and (small := self._of_small(batch, steps)):
            return small
        job = self.job(0, 0, 0, alpha, beta)
        if batch and self.alone:
            return None if self.space else self._of_each(batch, steps, job)
        if batch and self.plan.algorithm == "packed":
            return self._each_packed(batch, steps, job, space)
        if batch:
            return self._of_batch(batch, steps, job)
        if self.space:
            self._place(job, space)
        threads = min(self.parts, self.shape.threads)
        return Work(self.function, job, self.parts, threads, self.wake, self.plan.meets, spaced=self.space > 0)

    def by_panels(self, column_step: int) -> Work | None:
        """What `run` has done with a copy of a B with contiguous columns, column_step elements apart, as one piece of
        work that packs panels of it instead, for alpha = 1 and beta = 0 and addresses left open; None if there is no
        such code. Numbers are added up in the same order."""
        shape, plan = self.shape, self.plan
        if plan.algorithm != "in_place" or plan.reads_b != "rows" or shape.k > PANEL_DEPTH or shape.converts:
            return None
        job = self.job(0, 0, 0, 1.0, 0.0)
        row_parts, panels = job[self.at["row_parts"]], -(-shape.n // plan.nr)
        job[self.at["col_parts"]] = panels
        vectors = plan.nr // self.target.lanes(FORMATS[self.added_in].itemsize)
        function = self.host.address("in_place:emit_panels", self.target, shape.dtype, plan.mr, vectors, PANEL_DEPTH)
        job.extend({"column_step": column_step, "driver": self.function}[name] for name in jobs.PANELS[len(job):])
        parts = row_parts * panels
        return Work(function, job, parts, min(parts, shape.threads), self.wake, layout=jobs.PANELS)

    def by_copy(self, step: int, space: Any) -> Work | None:
        """The work of `run` for a B of one column with `step` elements between rows, which it copies to the stack, or a
        long one to `space`, for alpha = 1 and beta = 0 and addresses left open; None if there is no such code."""
        shape, job = self.shape, self.job(0, 0, 0, 1.0, 0.0)
        steps, converts = shape.depth or shape.k, shape.converts and not widens(shape)
        size, spaced = FORMATS[shape.source_b or shape.sums].itemsize, steps > MOST_COPIED
        fits = not spaced or self.parts * steps * size <= space.size
        if self.plan.algorithm != "dots" or shape.n != 1 or not fits or converts or self.space:
            return None
        fields = {"driver": self.function, "steps": steps, "step": step, "fields": len(job), "at_b": self.at["b"],
                  "copies": space.address if spaced else 0}
        whole = array("q", [fields[name] for name in jobs.COPIED])
        whole.extend(job)
        function = self.host.address("skinny:emit_copied", self.target, size)
        return Work(function, whole, self.parts, min(self.parts, shape.threads), self.wake,
                    layout=(*jobs.COPIED, *self.at), spaced=spaced)

    def _whole_products(self, batch: int, flops: int) -> int:
        """How many threads may each do whole packed products; 0 if the threads had better share every product, because
        the last ones would leave too many idle or all their panels of B would not stay in L3."""
        threads = self.host.reserve(self.shape.threads) if self.shape.threads > 1 and flops >= WAKE_FLOPS else 1
        rounds = -(-batch // threads)
        stays = threads * self.b_block <= (self.target.l3 or 4 * self.target.l2) // 2
        if self.plan.threads > 1 and threads > 1 and (rounds*threads > batch * (1 + IDLE) or not stays):
            return 0
        return threads

    def of_one_thread(self) -> tuple[int, int, int]:
        """Bytes of panels and sums that a thread by itself needs, and where there B's panels and the sums begin."""
        b_at = _page(self.a_block)
        sums_at = b_at + _page(self.b_block)
        return sums_at + _page(self.sums), b_at, sums_at

    def _batch_packed(self, batch: int, steps: tuple[int, ...], job: array, team: int) -> None:
        at, (each, b_at, sums_at) = self.at, self.of_one_thread()
        space = self.host.take(team * each)
        try:
            job[at["jc_ways"]] = job[at["ic_ways"]] = job[at["jr_ways"]] = 1
            job[at["a_space"]], job[at["b_space"]] = space.address, space.address + b_at
            job[at["sums"]] = space.address + sums_at
            fields = {"driver": self.function, "product": self.host.job(job), "batch": batch, "space_step": each,
                      **dict(zip(_STEPS, steps))}
            whole = array("q", [fields.get(name, 0) for name in jobs.BATCH])
            function = self.host.address("gemm:emit_batch", self.target)
            address = self.host.job(whole)
            if team == 1:
                self.host.callable(function)(address, 0)
            else:
                self.host.run_parts(function, address, team, team, team)
        finally:
            self.host.give(space)

    def job(self, a: int, b: int, c: int, alpha: float, beta: float, beside: jobs.Beside = NOTHING) -> array:
        """What the driver takes for operands at these addresses; packed plans still need space for their panels."""
        job = self.template[:]
        job[self.i_a], job[self.i_b], job[self.i_c] = a, b, c
        if alpha != 1.0:
            assert self.i_alpha is not None, self.plan
            job[self.i_alpha] = self._bits(alpha)
        if beta != 0.0:
            job[self.i_beta] = self._bits(beta)
        if beside is not NOTHING:
            for name, address in beside._asdict().items():
                if address:
                    job[self.at[name]] = address
        return job

    def _run_work(self, work: Work) -> None:
        address = self.host.job(work.job)
        if work.parts == 1:
            (self.call if work.function == self.function else self.host.callable(work.function))(address, 0)
        else:
            self.host.run_parts(work.function, address, work.parts, work.threads, work.wake)

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


_STEPS = "a_step", "b_step", "c_step"
_ALONG = {"rows": "along", "columns": "across", "any": "any"}


def _page(size: int) -> int:
    return -(-size // 4096) * 4096
