"""A whole product by the kernels of a GPU, launch after launch, with arguments found by the names of parameters.

m n k alpha a lda b ldb beta c ldc are those of C = alpha A @ B + beta C; of block-scaled operands there are scale_a
ld_scale_a scale_b ld_scale_b too. `workspace` and `counters` are for CTAs that add up parts of a sum.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.formats import Quantized
from tilewright.ir.program import Line
from tilewright.ir.types import Texture
from tilewright.simulator import occupancy
from tilewright.simulator.fault import Fault
from tilewright.simulator.machine import SECTOR, Machine
from tilewright.simulator.memory import AddressSpace, uninitialised
from tilewright.simulator.report import Report

Array = NDArray[Any]


class Launches:
    """`run(a, b, c)` by a compiled kernel: its `problem`, `launches`, `target` and `resources` are used."""

    def __init__(self, kernel: Any, alpha: float, beta: float) -> None:
        self.kernel, self.alpha, self.beta = kernel, alpha, beta
        self.memory, self.report = AddressSpace(), Report(SECTOR)
        if kernel.launches:
            self.report.occupancy = occupancy.of(kernel)

    def run(self, a: Array | Quantized, b: Array | Quantized, c: Array) -> None:
        """Matrices or stacks. Elements of c that no launch writes are a fault, and reading them first if beta is 0."""
        if not self.kernel.launches:
            c[...] = c * c.dtype.type(self.beta) if self.beta else 0
            return
        p, (target, ldc) = self.kernel.problem, _rows(c)
        values = {"m": p.m, "n": p.n, "k": p.k, "alpha": self.alpha, "beta": self.beta, "ldc": ldc,
                  "batch": p.batch, "stride_c": target.strides[0] // c.itemsize}
        arrays: dict[str, Any] = {"c": target if self.beta else uninitialised(target)}
        for name, x, letter in zip("ab", (a, b), p.layout):
            if isinstance(x, Quantized):
                values["k"] = x.scales.shape[-1] * x.format.block           # of whole blocks
                arrays[name], values[f"ld{name}"] = _bytes(x.elements), x.elements.shape[-1]
                arrays[f"scale_{name}"], values[f"ld_scale_{name}"] = _bytes(x.scales), x.scales.shape[-1]
            else:
                rows, values[f"ld{name}"] = _rows(x.swapaxes(-1, -2) if letter == "t" else x)
                values[f"stride_{name}"] = rows.strides[0] // rows.itemsize
                arrays[name] = rows.view(np.int8) if rows.itemsize == 1 else rows
        for launch in self.kernel.launches:
            if launch.workspace:
                arrays["workspace"] = uninitialised(np.zeros(launch.workspace, np.uint8))
            if launch.counters:
                arrays["counters"] = np.zeros(launch.counters, np.uint8)
        at = {name: self.memory.address(x, name) for name, x in arrays.items()}
        for launch in self.kernel.launches:
            args: list[Any] = []
            for name, value in launch.function.params:
                if name in ("alpha", "beta") and not value.type.is_float and not float(values[name]).is_integer():
                    raise TypeError(f"{name} must be a whole number where integers are multiplied, not "
                                    f"{values[name]!r}")
                if isinstance(value.type, Texture):
                    args.append(_texels(arrays[name], value.type))
                else:
                    args.append(at[name] if name in at else {**values, **dict(getattr(launch, "more", ()))}[name])
            machine = Machine(launch.function, self.memory, {}, self.report, self.kernel.target.name)
            machine.run_grid(args, launch.grid)
        if not self.beta:
            self._check_written(at["c"], target)
        if "counters" in arrays and arrays["counters"].any():
            raise Fault("counters", self._line, self._name, "the counters are not 0 again, as the next call expects")
        if target is not c:
            c[...] = target

    @property
    def _line(self) -> Line:
        line: Line = self.kernel.launches[-1].function.body[-1].line
        return line

    @property
    def _name(self) -> str:
        return str(self.kernel.launches[-1].function.name)

    def _check_written(self, address: int, c: Array) -> None:
        region = self.memory.find(address)
        assert region is not None
        if region.written is None or not c.size:
            return
        written = region.written[sum(i * stride for i, stride in zip(np.indices(c.shape), c.strides))]
        if not written.all():
            raise Fault("unwritten", self._line, self._name,
                        f"element {tuple(map(int, np.argwhere(~written)[0]))} of c has not been written")


def _rows(x: Array) -> tuple[Array, int]:
    """The matrix or stack, or a copy of it, by rows, and how many elements are from row to row."""
    rows, columns = x.shape[-2:]
    if (x.strides[-1] != x.itemsize and columns > 1) or (x.strides[-2] < columns * x.itemsize and rows > 1):
        x = np.ascontiguousarray(x)
    return x, x.strides[-2] // x.itemsize if rows > 1 else max(columns, 1)


def _bytes(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.int8)


def _texels(x: Array, t: Texture) -> Array:
    """The elements as they lie in memory, up to a whole number of texels."""
    rows, columns = x.shape
    flat = np.lib.stride_tricks.as_strided(x, ((rows - 1) * x.strides[0] // x.itemsize + columns,), (x.itemsize,))
    return np.pad(flat, (0, -flat.size % t.length))
