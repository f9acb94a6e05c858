"""`tilewright.simulate`: a whole product by a compiled kernel, on NumPy.

Here is how a CPU's runs, with its threads and its packed panels; `launches` has a GPU's.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.program import Function
from tilewright.kernels.cpu import jobs
from tilewright.simulator.launches import Launches
from tilewright.simulator.machine import Machine
from tilewright.simulator.memory import Memory
from tilewright.simulator.report import Report
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.compiler.kernel import Kernel

Array = NDArray[Any]
_LAYOUTS = {"packed": jobs.PACKED, "in_place": jobs.IN_PLACE, "stream": jobs.STREAM, "dots": jobs.DOTS}


def simulate(kernel: Any, *args: Any, out: Array | None = None, alpha: float = 1.0, beta: float = 0.0,
             grid: Sequence[int] | None = None, target: GpuTarget | None = None) -> Report:
    """Run a kernel on NumPy, and report what each line of it moved and did; a Fault if it did wrong.

    simulate(kernel, a, b[, out])               what `compile` made, for a CPU or a GPU: alpha * A @ B + beta * out as
                                                `kernel(a, b, out)` computes it, to the last bit; `report.result`
    simulate(function, *args, grid=(x, y, z))   a kernel as it is recorded, on arguments in the order of its parameters;
                                                with a `target` the report tells the occupancy

    Threads, warps and CTAs run as on the machine, and a race between them is a Fault, as is any access outside the
    arrays or of what nobody has written. For any target, on any machine. For problems of a few hundred rows and
    columns: a CPU kernel takes about a second for a million multiply-adds, a GPU kernel for some ten million.
    """
    if isinstance(kernel, Function):
        if out is not None or (alpha, beta) != (1.0, 0.0):
            raise TypeError("a recorded function takes its arguments in order: out, alpha and beta are among them")
        return _function(kernel, args, grid, target)
    if grid is not None or target is not None:
        raise TypeError("a compiled kernel knows its grid and its target")
    if not 2 <= len(args) <= 3 or (len(args) == 3 and out is not None):
        raise TypeError("a compiled kernel is simulated on a, b and, if you like, out")
    a, b, out = (*args, out)[:3]
    p = kernel.problem
    shape = (p.batch,) if p.batch != 1 else ()
    dtype = np.dtype({"f32": np.float32, "f64": np.float64}[p.out])
    for name, x, wanted in ("a", a, (*shape, p.m, p.k)), ("b", b, (*shape, p.k, p.n)), ("out", out, (*shape, p.m, p.n)):
        if x is not None and (x.shape != wanted or x.dtype != dtype):
            raise ValueError(f"{name} must be {dtype} of shape {wanted}, not {x.dtype} of {x.shape}")
    if out is None:
        if beta:
            raise ValueError(f"beta = {beta} needs an out to multiply")
        out = np.empty((*shape, p.m, p.n), dtype)
    product = Launches(kernel, alpha, beta) if isinstance(kernel.target, GpuTarget) else _Product(kernel, alpha, beta)
    for index in range(p.batch):
        one = (index,) if shape else ()
        product.run(a[one], b[one], out[one])
    report = product.report
    report.result = out
    return report


def _function(function: Function, args: Sequence[Any], grid: Sequence[int] | None, target: GpuTarget | None) -> Report:
    if function.threads is None and grid is not None:
        raise ValueError(f"{function.name} is a CPU function: it has no grid")
    machine = Machine(function, Memory(), {})
    report = machine.run_thread(args) if function.threads is None else machine.run_grid(args, grid or (1, 1))
    if target is not None:
        from tilewright.simulator.occupancy import assembled
        report.occupancy = assembled(function, target)
    return report


class _Product:
    def __init__(self, kernel: Kernel, alpha: float, beta: float) -> None:
        self.kernel, self.plan, self.alpha, self.beta = kernel, kernel.plan, alpha, beta
        self.memory = Memory()
        self.machine = Machine(kernel.functions[-1], self.memory, {}) if kernel.functions else None
        self.report = self.machine.report if self.machine else Report(64)

    def run(self, a: Array, b: Array, c: Array) -> None:
        if self.machine is None or self.alpha == 0:         # nothing to multiply
            c[...] = c * c.dtype.type(self.beta) if self.beta else 0
            return
        plan = self.plan
        names = ("b", "a") if plan.swap else ("a", "b")
        x, y, z = (b.T, a.T, c.T) if plan.swap else (a, b, c)
        if plan.copy:
            y = np.ascontiguousarray(y) if plan.reads_b == "rows" else np.asfortranarray(y)
        rows = plan.algorithm == "dots" or z.strides[1] == z.itemsize or z.shape[1] == 1
        target = z if rows else np.empty(z.shape, z.dtype)  # drivers write along rows of C
        job = self._job(x, y, target, self.beta if rows else 0.0, names)
        if plan.algorithm == "packed":
            self.machine.run_team([job], plan.threads) if plan.threads > 1 else self.machine.run_thread([job, 0])
        else:
            for part in range(plan.threads):
                self.machine.run_thread([job, part])
        if not rows:
            z[...] = target + (z * z.dtype.type(self.beta) if self.beta else 0)

    def _job(self, a: Array, b: Array, c: Array, beta: float, names: tuple[str, str]) -> Array:
        """As runtime.recipe fills it in, with addresses of the simulator."""
        plan, (m, k), n, s = self.plan, a.shape, b.shape[1], c.itemsize
        (rsa, csa), (rsb, csb), (rsc, csc) = map(_strides, (a, b, c))
        fields: dict[str, Any] = {
            "m": m, "n": n, "k": k, "rsa": rsa, "csa": csa, "rsb": rsb, "csb": csb, "rsc": rsc, "csc": csc,
            "lda": rsa if csa == 1 else csa, "ldb": csb if plan.algorithm == "dots" else rsb, "ldc": rsc,
            "alpha": self.alpha, "beta": beta, "parts": plan.threads, "row_parts": plan.ic_ways,
            "col_parts": plan.jc_ways, "by_rows": int(csa == 1), "kc": plan.kc or k,
            "jc_ways": plan.jc_ways, "ic_ways": plan.ic_ways, "jr_ways": plan.jr_ways,
            "rows_outside": 1,          # or 0: the order of the tiles, which changes no result and no count
            "a": self.memory.address(a, names[0]), "b": self.memory.address(b, names[1]),
            "c": self.memory.address(c, "out"), "table": self.memory.address(self._table(), "table")}
        if plan.algorithm == "packed":
            kc = -(-plan.kc // 4) * 4
            mc_panels, nc_panels = -(-plan.mc // plan.mr), -(-plan.nc // plan.nr)
            barriers = np.zeros(plan.jc_ways * (1 + plan.ic_ways) * jobs.BARRIER_BYTES, np.uint8)
            packing = [f for part, f in zip(self.kernel.parts, self.kernel.functions) if "packing" in part.emitter]
            fields |= {
                "kc": kc, "mc_panels": mc_panels, "nc_panels": nc_panels,
                "pack_a": self.memory.address(packing[0]), "pack_b": self.memory.address(packing[-1]),
                "a_space": self._space(plan.jc_ways * plan.ic_ways * mc_panels, kc, plan.mr, s, "packed A"),
                "b_space": self._space(plan.jc_ways * nc_panels, kc, plan.nr, s, "packed B"),
                "barriers": self.memory.address(barriers, "barriers")}
        layout = _LAYOUTS[plan.algorithm]
        job = np.zeros(len(layout), np.int64)
        for index, field in enumerate(layout):
            if field in ("alpha", "beta"):
                job[index:index + 1].view(c.dtype)[0] = fields[field]
            else:
                job[index] = fields[field]
        return job

    def _table(self) -> Array:
        """Addresses of the micro-kernels where the driver looks for them."""
        plan, lanes = self.plan, self.kernel.target.lanes(self.kernel.shape.itemsize)
        vectors = -(-plan.nr // lanes)
        table = np.zeros(2 * plan.mr * vectors, np.int64)
        for part, function in zip(self.kernel.parts, self.kernel.functions):
            if "microkernel" in part.emitter:
                _, height, width, a, b, part_lanes = part.args
                index = (height - 1) * vectors + width - 1
                slot = index if a == "packed" else 2 * index + (b == "masked" and part_lanes == lanes)
                table[slot] = self.memory.address(function)
        return table

    def _space(self, panels: int, kc: int, width: int, itemsize: int, name: str) -> int:
        return self.memory.address(np.zeros(panels * jobs.panel_space(kc, width) * itemsize, np.uint8), name)


def _strides(x: Array) -> tuple[int, int]:
    """In elements; an axis of length 1 has the stride that makes x contiguous."""
    rows, cols = x.shape
    rs, cs = (stride // x.itemsize for stride in x.strides)
    if cols == 1:
        cs = 1
    if rows == 1:
        rs = 1 if cs != 1 else cols
    return rs, cs
