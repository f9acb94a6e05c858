"""The matrices of a product: random numbers of each format, finite, and never zeros alone.

Zeros and constants let some units run faster (AMX by a factor of two) and hide wrong answers.  Integers have every
value alike.  Floats of 8 bits and fewer have every finite pattern alike, which are all exponents and both signs.  Wider
floats are random normal: with all exponents alike, most sums would be inf. So are block-scaled ones before they are
quantized.
Memory comes from NumPy's own allocator, at the alignment that it gives, because that is what users multiply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from string import ascii_letters
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.formats import Bool, Complex, Float, Format, Integer
from tilewright.formats.quantization import quantize
from tilewright.plans import epilogues, prologues
from tilewright.problem import SCALE_BLOCK, SCALE_BLOCKS, Gemm

Array = np.ndarray[Any, np.dtype[Any]]
MAX_SETS = 4096


@dataclass(frozen=True)
class Operands:
    """A [m, k], B [k, n] (views of what is stored when transposed or with a gap) and a C [m, n] to write to; of a
    batch each with a first axis."""

    problem: Gemm
    a: Any  # an Array, Quantized if the format has blocks; on a GPU a tensor of torch's
    b: Any
    c: Any
    scale_a: Any = None  # on a GPU, of a problem with scales
    scale_b: Any = None
    subscripts: str = ""  # of a contraction: a, b and c are arrays of more axes, and the problem is that of `matrices`
    named: Mapping[str, Any] = field(default_factory=dict)  # what an epilogue and prologues read beside, by name
    outs: tuple[Array, ...] = ()  # an epilogue's further matrices

    @property
    def matrices(self) -> Operands:
        """The product of matrices that a contraction is: copies."""
        if not self.subscripts:
            return self
        (of_a, of_b), of_c = self.subscripts.split("->")[0].split(","), self.subscripts.split("->")[1]
        batch = "".join(x for x in of_c if x in of_a and x in of_b)
        m, n, k = ("".join(x for x in labels if x in other and x not in batch) for labels, other in (
            (of_c, of_a), (of_c, of_b), (of_a, of_b)))
        p = self.problem
        outer = (p.batch,) if batch else ()
        arranged = (np.einsum(f"{labels}->{batch}{rows}{columns}", x).reshape(outer + shape)
                    for x, labels, rows, columns, shape in ((self.a, of_a, m, k, (p.m, p.k)), (
                        self.b, of_b, k, n, (p.k, p.n)), (self.c, of_c, m, n, (p.m, p.n))))
        return Operands(p, *arranged)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k."""
        return self.problem.m, self.problem.n, self.problem.k

    @property
    def leading(self) -> tuple[int, int, int]:
        """lda, ldb, ldc: elements from one stored row to the next."""
        letters = *self.problem.layout, "n"
        first, second, third = (_leading(x, letter) for x, letter in zip((self.a, self.b, self.c), letters))
        return first, second, third

    @property
    def bytes(self) -> int:
        return int(self.a.nbytes + self.b.nbytes + self.c.nbytes)

    def first(self, rows: int) -> Operands:
        """The product of the first rows of A alone: views."""
        p = self.problem
        part = Gemm(rows, p.n, p.k, p.a, p.b, p.out, p.layout, p.batch)
        return Operands(part, self.a[..., :rows, :], self.b, self.c[..., :rows, :])

    def single(self, i: int) -> Operands:
        """One product of a batch."""
        p = self.problem
        return Operands(Gemm(p.m, p.n, p.k, p.a, p.b, p.out, p.layout), self.a[i], self.b[i], self.c[i])

    @property
    def compared(self) -> dict[Any, Operands]:
        """The products whose results are compared with wider ones, by where they are in `c`: of a batch the first and
        the last."""
        batch = self.problem.batch
        given = self.matrices
        return {...: given} if batch == 1 else {i: given.single(i) for i in (0, batch - 1)}

    def poison(self) -> None:
        """Bytes of ones in C: nan, -1 or the largest, so that an element that was not written cannot pass for right."""
        self.c.view(np.uint8).fill(0xFF)


def _leading(x: Array, letter: str) -> int:
    rows, columns = (-2, -1) if letter == "n" else (-1, -2)
    stored = x.shape[columns]
    return max(x.strides[rows] // x.itemsize if x.shape[rows] > 1 else stored, stored, 1)


def make(problem: Gemm, seed: int = 0, gap: int = 0) -> Operands:
    """Fresh operands; C is poisoned.  With a gap, rows of A and B are so many elements longer than what is used."""
    draw = np.random.default_rng(seed)
    batch = () if problem.batch == 1 else (problem.batch,)
    matrices: list[Any] = []
    for name, letter, shape in zip((problem.a, problem.b), problem.layout, (problem.shape_a, problem.shape_b)):
        blocks = name in formats.BLOCK_FORMATS
        x = numbers(formats.get("f32" if blocks else name), (*batch, shape[0], shape[1] + gap), draw)
        x = x[..., : shape[1]]
        x = x if letter == "n" else x.swapaxes(-1, -2)
        matrices.append(quantize(x, name, axis=-2 if matrices else -1) if blocks else x)
    c = np.empty(problem.shapes["out"], formats.get(problem.out).dtype)
    scales = _scales(problem, draw)
    made = Operands(problem, matrices[0], matrices[1], c, *scales, named=_named(problem, draw), outs=_outs(problem))
    made.poison()
    return made


def _named(problem: Gemm, draw: np.random.Generator) -> dict[str, Array]:
    """What the functions of a problem read beside its operands, in the formats and places that they say."""
    p, arrays = problem, dict[str, Array]()
    for role, (rows, cols) in (("a", (p.m, p.k)), ("b", (p.k, p.n))):
        if text := getattr(p, f"prologue_{role}"):
            arrays |= {x.name: numbers(formats.get(x.format), x.extents(rows, cols, role == "a"), draw)
                      for x in prologues.read(text).reads}
    if p.epilogue:
        m, n = p.shapes["out"][-2:]
        arrays |= {x.name: numbers(formats.get(x.format), x.extents(m, n), draw)
                  for x in epilogues.read(p.epilogue).reads}
    return arrays


def _outs(problem: Gemm) -> tuple[Array, ...]:
    """The results of an epilogue that are matrices beside C."""
    if not problem.epilogue:
        return ()
    epilogue = epilogues.read(problem.epilogue)
    kinds = [problem.out if name == epilogues.DEFAULT else name for name in epilogue.results]
    return tuple(np.empty(problem.shapes["out"], formats.get(kind).dtype) for i, kind in enumerate(kinds)
                 if i != epilogue.main and not epilogue.axis(i))


def _scales(problem: Gemm, draw: np.random.Generator) -> tuple[Array | None, Array | None]:
    """Scales of the rows of A and the columns of B, or of blocks along k: between 1 and 2."""
    p = problem
    if not p.scales:
        return None, None
    blocks = -(-p.k // SCALE_BLOCK) if p.scales in SCALE_BLOCKS else 1
    columns = -(-p.n // SCALE_BLOCKS.get(p.scales, 1))
    dtype = np.float64 if p.sums == "f64" else np.float32
    lead = () if p.batch == 1 else (p.batch,)
    a, b = (1 + draw.random((*lead, *shape), dtype) for shape in ((p.m, blocks), (blocks, columns)))
    return a, b


def contraction(problem: Gemm, subscripts: str, sizes: Iterable[int], seed: int = 0) -> Operands:
    """Fresh arrays of a contraction of one format, whose labels have these sizes in alphabetical order."""
    draw, of = np.random.default_rng(seed), dict(zip(sorted({*subscripts} & {*ascii_letters}), sizes))
    operands, output = subscripts.split("->")
    a, b = (numbers(formats.get(problem.a), [of[x] for x in labels], draw) for labels in operands.split(","))
    made = Operands(problem, a, b, np.empty([of[x] for x in output], formats.get(problem.out).dtype),
                    subscripts=subscripts)
    made.poison()
    return made


def make_sets(problem: Gemm, cold: bool, last_level_bytes: int, seed: int = 0, gap: int = 0) -> list[Operands]:
    """One set of operands, or to be cold enough copies that twice the last cache passes before one comes again."""
    first = make(problem, seed, gap)
    if not cold:
        return [first]
    count = min(MAX_SETS, 2 + 2 * last_level_bytes // max(first.bytes, 1))
    # copy("K") keeps the layout; the values need not differ for the addresses to.
    copies = (Operands(problem, first.a.copy("K"), first.b.copy("K"), first.c.copy("K")) for _ in range(count - 1))
    return [first, *copies]


def numbers(f: Format, shape: Iterable[int], draw: np.random.Generator) -> Array:
    """A random array of format f, by the rules above."""
    shape = tuple(shape)
    if isinstance(f, Complex):
        pairs = draw.standard_normal((*shape, 2), dtype=f.part.dtype)
        return np.asarray(pairs.view(f.dtype)[..., 0])
    if isinstance(f, Bool):
        return draw.random(shape) < 0.5
    if isinstance(f, Integer):
        held = np.dtype(f.dtype if f.bits >= 8 else np.int8)
        return draw.integers(int(f.smallest), int(f.largest), shape, held, endpoint=True).astype(f.dtype, copy=False)
    if f.bits <= 8:
        return patterns(f)[draw.integers(0, len(patterns(f)), shape)]
    return draw.standard_normal(shape, np.float64 if f.bits == 64 else np.float32).astype(f.dtype, copy=False)


def patterns(f: Format) -> Array:
    """Every finite number of a narrow float, once."""
    assert isinstance(f, Float)
    assert f.bits <= 8
    finite = [p for p in range(2**f.bits) if math.isfinite(f.decode(p))]
    return np.array(finite, np.uint8).view(f.dtype)
