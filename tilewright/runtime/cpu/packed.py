"""A right operand that is packed once and multiplied many times, and its products.

All of B is packed in the order in which the kernels of one plan read it. That order depends on the plan's register tile
and kc, on what both operands consist of and on whether the plan exchanges them, and on nothing else: any number of rows
and of threads is multiplied with the same panels.
"""
from __future__ import annotations

import ctypes
import math
import mmap
import os
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright import __version__, forks
from tilewright.compiler.checked_file import PANELS, Kind, Refused, believed, made_for
from tilewright.formats.table import get
from tilewright.kernels.cpu import jobs
from tilewright.plans import asked, lowering
from tilewright.plans.choose import choose, ranked
from tilewright.plans.cpu import CpuPlan, block_depth
from tilewright.plans.cpu_shape import Shape, Strides
from tilewright.plans.words import BY_NAME, TILE_WORDS
from tilewright.rules.arguments import Array
from tilewright.runtime.cpu import amx, engine
from tilewright.runtime.cpu.host import DRIVER, SWAPPED, Host, host, stored
from tilewright.runtime.cpu.layout import address
from tilewright.runtime.cpu.panels import blocks, packing
from tilewright.runtime.cpu.pool import get_num_threads, pool
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.runtime.cpu.workspace import HUGE
from tilewright.targets import CpuTarget, coerce, detect
from tilewright.text import plural

PAGE = 4096
WAKE_BYTES = 1 << 20            # of panels, for which waking other threads pays
SHARES = 4                      # of the panels for each thread to claim
# its version rises when the same plan packs otherwise
FILE = Kind(PANELS, 1, "file of packed panels", "Packed.save", "pack and save them again")
FIELDS = {"tilewright": str, "target": str, "shape": list[int], "dtype": str, "a": str, "sums": str, "word": str,
          "plan": str, "asked": bool, "takes": list[str], "factor": float}


@dataclass(frozen=True, eq=False, repr=False)
class Packed:
    """A matrix [..., k, n] that was packed once, to be multiplied many times: the result of `tilewright.pack`.

    shape       the shape of the matrix, or of the stack of matrices
    dtype       the dtype of its numbers
    a           the dtype of the left operands
    sums        the dtype in which products are added up
    word        the elements of its panels: numbers of a format, words of several steps of k, or tiles of AMX
    plan        the plan of its products; other numbers of rows and threads change all but the register tile and kc
    target      the instruction set for which it was packed
    nbytes      the memory that it takes, in bytes

    It holds no reference to the original array, and cannot be converted back into an array. `save` writes it to a file,
    which tilewright.load reads.
    """
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    a: np.dtype[Any]
    sums: np.dtype[Any]
    word: str
    plan: CpuPlan
    target: CpuTarget
    # What else the engine must know: whether the plan was asked for; the dtypes in which A and B come to it; the
    # panels; a NumPy array of this shape and dtype whose matrices have the addresses of their panels: it is never read,
    # only broadcast and sliced; recipes, by (rows, strides, dtype, threads).
    _asked: bool
    _takes: tuple[np.dtype[Any], np.dtype[Any]]
    _panels: NDArray[np.uint8]
    _stand_in: Array
    _recipes: dict[tuple[Any, ...], Recipe]
    # Of what had scales: a factor of alpha, and the scales of columns, by which sums are multiplied.
    _factor: float = 1.0
    _scales: Array | None = None

    def _recipe(self, a: Array, c: Array, threads: int) -> Recipe:
        """For left operands and results that lie so."""
        def build() -> Recipe:
            (k, n), word = self.shape[-2:], self.word if self.word in BY_NAME else ""
            return engine.ready(self._by_plan(_lowered(
                (k, n), c.shape[0], threads, engine.strides(a), (n, 1), engine.strides(c), self._takes, self.sums,
                self.target, word, c.dtype)), prepacked="b")
        return forks.looked_up(self._recipes, (c.shape[0], a.strides, c.strides, c.dtype, threads), build)

    def planned(self, product: lowering.Product) -> engine.Planned:
        """The plan of a product with this operand."""
        return self._by_plan(lowering.lower(product, self.target, self.word if self.word in BY_NAME else ""))

    def _by_plan(self, lowered: lowering.Lowered) -> engine.Planned:
        return engine.Planned(*lowered, self.plan if self._asked else choose(*lowered[::2], like=self.plan))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self._panels.nbytes

    def __repr__(self) -> str:
        return (f"<Packed {self.dtype} {self.shape}, to be multiplied with {self.a} in {self.sums}: panels of "
                f"{self.word} for {self.target.name}, {self.nbytes:,} bytes>")

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise TypeError("a Packed matrix cannot be used as an array: it can only be b, the right operand of "
                        "tilewright.matmul and tilewright.gemm")

    def __reduce__(self) -> Any:
        raise TypeError("a Packed matrix is made for this processor and stays in this process: pack it where it is "
                        "used, or save it to a file")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that tilewright.load reads on processors of the same target. OSError if it cannot be
        written."""
        index = {"tilewright": __version__, "target": self.target.name, "shape": list(self.shape),
                 "word": self.word, "plan": str(self.plan), "asked": self._asked, "factor": float(self._factor)}
        index |= {name: get(getattr(self, name)).name for name in ("dtype", "a", "sums")}
        index |= {"takes": [get(x).name for x in self._takes]}
        scales = {} if self._scales is None else {"scales": np.ascontiguousarray(self._scales)}
        FILE.save(path, index, {"panels": self._panels} | scales)


def prepare(b: Array, a: np.dtype[Any], takes: np.dtype[Any], sums: np.dtype[Any], *, dtype: np.dtype[Any], rows: int,
            threads: int | None, plan: CpuPlan | None, target: CpuTarget | None, conj: bool) -> Packed:
    """Pack b [..., k, n], whose numbers were of `dtype` and now are of the dtype of the sums, or of one that packing
    converts to it. Left operands are of dtype `a` and come to the engine in `takes`. Without a plan, it is the one for
    products of so many rows. ValueError if the plan cannot be run."""
    target = amx.permitted(target or detect())
    target.require_runnable()
    threads = threads or get_num_threads()
    k, n = b.shape[-2:]
    one = b[(0,) * (b.ndim - 2)] if b.size else np.empty((max(k, 1), max(n, 1)), b.dtype)
    lowered = _lowered(one.shape, rows, threads, (k, 1), engine.strides(one), (n, 1), (takes, b.dtype), sums, target,
                       None)
    chosen = plan or engine.planned(lowered).plan
    if plan is None and chosen.algorithm != "packed":
        chosen = next(p for p in ranked(lowered.shape, lowered.target) if p.algorithm == "packed")
    problems = chosen.violations(lowered.shape, lowered.target)
    if chosen.algorithm != "packed":
        problems.append(f"only packed plans read B as it is packed, not {chosen.algorithm}.")
    if problems:
        raise ValueError(f"plan {chosen} cannot be packed for: " + " ".join(problems))
    prepacking = Prepacking(lowered.shape, lowered.strides, chosen, lowered.target, conj="b" if conj else "")
    panels = Layout.of_matrix(b.shape, prepacking.extent, lowered.shape.dtype)
    packed = allocated(panels, b.shape, dtype, a, sums, chosen, target, plan is not None, (takes, b.dtype))
    for index in np.ndindex(b.shape[:-2] if b.size else (0,)):
        prepacking.run(address(b[index]), address(packed._stand_in[index]), threads)
    return packed


class Layout(NamedTuple):
    """The layout of the panels of a stack of matrices: their word, the bytes of each matrix's, whole pages, and of
    all."""
    word: str
    each: int
    bytes: int

    @classmethod
    def of_matrix(cls, shape: tuple[int, ...], extent: Extent, word: str) -> Layout:
        bytes_each = -(-extent.bytes // PAGE) * PAGE if math.prod(shape) else 0
        return cls(word, bytes_each, bytes_each * math.prod(shape[:-2]))


def layout(shape: tuple[int, ...], takes: tuple[np.dtype[Any], np.dtype[Any]], sums: np.dtype[Any], plan: CpuPlan,
           target: CpuTarget, word: str) -> Layout:
    """The layout of panels that were packed by this plan. ValueError if it packs nothing, or is none of such a
    product."""
    k, n = (max(size, 1) for size in shape[-2:])
    lowered = _lowered((k, n), 1024, 1, (k, 1), (n, 1), (n, 1), takes, sums, target, word if word in BY_NAME else None)
    problems = plan.violations(lowered.shape, lowered.target)
    if plan.algorithm != "packed" or problems:
        raise ValueError(" ".join([f"{plan} packs nothing like this.", *problems]))
    packs, role, by = lowered.shape, "b", plan
    if plan.swap:
        packs, role, by = packs.swapped, role.translate(SWAPPED), replace(plan, swap=False)
    return Layout.of_matrix(shape, Extent.of_role(packs, by, role), lowered.shape.dtype)


def allocated(layout: Layout, shape: tuple[int, ...], dtype: np.dtype[Any], a: np.dtype[Any], sums: np.dtype[Any],
              plan: CpuPlan, target: CpuTarget, asked: bool, takes: tuple[np.dtype[Any], np.dtype[Any]]) -> Packed:
    """Memory for panels that lie so, to be written."""
    panels = _memory(layout.bytes)
    stack, n = shape[:-2], shape[-1]
    steps = [layout.each * math.prod(stack[axis + 1:]) for axis in range(len(stack))]
    stand_in = np.ndarray(shape, dtype, panels, 0, (*steps, n * dtype.itemsize, dtype.itemsize))
    return Packed(shape, dtype, a, sums, layout.word, plan, target, asked, takes, panels, stand_in, {})


def load(path: Path) -> Packed:
    """What `save` has written, on this machine. OSError; Refused for files that cannot be used here."""
    index, arrays = FILE.load(path, FIELDS)
    made_for(path, index["target"])
    target = amx.permitted(coerce(index["target"], CpuTarget))
    with believed(path):
        dtype, a, sums = (get(index[name]).dtype for name in ("dtype", "a", "sums"))
        left, right = (get(name).dtype for name in index["takes"])
        takes = left, right
        shape, plan = tuple(index["shape"]), asked.plan(index["plan"], target)
        lay = layout(shape, takes, sums, plan, target, index["word"])
        panels, scales = arrays["panels"], arrays.get("scales")
        if panels.shape != (lay.bytes,):
            raise ValueError(f"it has {plural(panels.size, 'byte')} of panels, and this plan packs {lay.bytes:,}")
    if lay.word != index["word"]:
        raise Refused(f"{path} has panels of {index['word']}, and {target.name} multiplies {lay.word} here: "
                      f"{FILE.again}")
    packed = allocated(lay, shape, dtype, a, sums, plan, target, index["asked"], takes)
    packed._panels[:] = panels
    return replace(packed, _factor=index["factor"], _scales=None if scales is None else scales.copy())


def _lowered(b_shape: tuple[int, ...], m: int, threads: int, a: tuple[int, int], b: tuple[int, int],
             c: tuple[int, int], takes: tuple[np.dtype[Any], np.dtype[Any]], sums: np.dtype[Any], target: CpuTarget,
             word: str | None, out: np.dtype[Any] | None = None) -> lowering.Lowered:
    """a, b, c: strides in elements, by row and by column."""
    k, n = b_shape
    product = lowering.Product(m, n, k, engine.format_of(takes[0]), engine.format_of(takes[1]),
                               engine.format_of(out or sums), Strides(*a, *b, *c), threads)
    return lowering.lower(product, target, word)


class Extent(NamedTuple):
    """The extent of the panels of one matrix: kc, how many there are, and their bytes."""
    kc: int
    panels: int
    bytes: int

    @classmethod
    def of_role(cls, shape: Shape, plan: CpuPlan, role: str) -> Extent:
        """`role`: of the operand that is packed, as the plan calls it when it exchanges operands no more."""
        cut = blocks(shape, plan)
        deepest = block_depth(shape.k, cut.kc, TILE_WORDS[shape.dtype].rows if shape.tiles else 4)
        panels = -(-shape.m // plan.mr) if role == "a" else -(-shape.n // plan.nr)
        space = cut.space[role] + (deepest - cut.kc) * (plan.mr if role == "a" else plan.nr)
        return cls(cut.kc, panels, -(-shape.k // deepest) * panels * space * shape.itemsize)


class Prepacking:
    """Packs B for products of this shape by this plan, from these strides; the arguments are a Recipe's.

    Of the shape m does not count, of the plan mc, nc and its ways.
    """

    def __init__(self, shape: Shape, strides: Strides, plan: CpuPlan, target: CpuTarget, host: Host = host,
                 conj: str = "") -> None:
        role = "b"
        if plan.swap:
            shape, strides, plan = shape.swapped, strides.swapped, replace(plan, swap=False)
            role = role.translate(SWAPPED)
        self.shape, self.strides, self.role = shape, strides, role
        source = shape.source_a if role == "a" else shape.source_b
        self.pack = packing(role, host, target, shape, strides, plan, conj)
        self.function = host.address("gemm:emit_prepack", target, shape.dtype, plan.mr,
                                     plan.nr // target.lanes(shape.itemsize), stored(source), role)
        self.extent = Extent.of_role(shape, plan, role)
        self.panels, self.bytes = self.extent.panels, self.extent.bytes

    def job(self, source: int, to: int, parts: int) -> array[int]:
        """What the emitted function takes to pack the matrix at `source` to the address `to`, in so many parts."""
        st, role = self.strides, self.role
        fields = {"m": self.shape.m, "n": self.shape.n, "k": self.shape.k, "rsa": st.rsa, "csa": st.csa, "rsb": st.rsb,
                  "csb": st.csb, "kc": self.extent.kc, "jc_ways": parts, "depth": self.shape.depth, role: source,
                  f"pack_{role}": self.pack, f"{role}_space": to}
        return array("q", [fields.get(name, 0) for name in jobs.PACKED])

    def run(self, source: int, to: int, threads: int) -> None:
        parts = min(self.panels, threads * SHARES) if threads > 1 else 1
        if parts > 1:
            pool().reserve(threads)
        job = self.job(source, to, parts)
        address = job.buffer_info()[0]
        if parts == 1:
            DRIVER(self.function)(address, 0)
        else:
            pool().run_parts(self.function, address, parts, threads, self.bytes >= WAKE_BYTES)


def _memory(size: int) -> NDArray[np.uint8]:
    """Private memory, by pages, and huge ones where it is large: panels are read in long runs."""
    align = HUGE if size >= HUGE else PAGE
    mapping = mmap.mmap(-1, max(size, 1) + align, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if align == HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % align
    return np.frombuffer(mapping, np.uint8, size, start)
