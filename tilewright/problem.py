"""What is to be computed: C[m, n] = A[m, k] @ B[k, n] as plain data, with nothing about how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import matmul

from tilewright import formats
from tilewright.expressions import texts
from tilewright.expressions.numerics import Numerics

if TYPE_CHECKING:
    from tilewright.expressions.function import Aux

LAYOUTS = ("nn", "nt", "tn", "tt")
# What sums are multiplied by, on GPUs: nothing, scales of the rows of A and columns of B, or such scales of blocks
# along k, by how many columns of B share one.
SCALE_BLOCK = 128
SCALE_BLOCKS = {"1x128": 1, "128x128": SCALE_BLOCK}
SCALES = ("", "rows", *SCALE_BLOCKS)
MOST_BYTES = (1 << 63) - 1  # of a matrix, and of a size


@dataclass(frozen=True, init=False)
class Gemm:
    """A matrix multiplication: `batch` products of an m x k by a k x n matrix.

    m, n, k   sizes, each >= 0
    a, b      number formats of the operands ("f32", "f64", or a NumPy dtype); b defaults to a. Block-scaled formats
              ("mxfp8", "mxfp6", "mxfp4": formats.BLOCK_FORMATS) have layout "nt" and blocks along k
    out       number format of the result; by default NumPy's choice for a and b
    layout    one letter for A and one for B: "n" is stored as multiplied ([m, k] or [k, n], rows contiguous),
              "t" is stored transposed ([k, m] or [n, k]). Defaults to "nn", for block-scaled formats to "nt"
    batch     how many such products
    scales    on GPUs. "rows": a scale for each row of A and for each column of B, or one for all, in f32 (f64 if
              products are added up in f64); sums are multiplied by them before alpha. "1x128": a scale for each row and
              each block of 128 steps of k, by which the block's sums are multiplied; "128x128": the same, and 128
              columns of B share a scale. "": none
    epilogue  a result of tilewright.epilogue, or its text: a function of the sums of the m x n product. Its first
              result is in the format `out`, and has n / 2 columns if it is made of pairs. "": none
    prologue_a, prologue_b  a result of tilewright.prologue, or its text: a function of the elements of A or B, which
              have the formats a and b. "": none
    semiring  a result of tilewright.semiring, or its text: the arithmetic in place of multiplication and addition, as
              in tilewright.contract; `out` then defaults to the format in which terms are combined. "": none

    ValueError for sizes below 0, and for matrices of 2^63 bytes and more.
    """

    m: int
    n: int
    k: int
    a: str
    b: str
    out: str
    layout: str
    batch: int
    scales: str
    epilogue: str
    prologue_a: str
    prologue_b: str
    semiring: str

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        a: object = "f32",
        b: object = None,
        out: object = None,
        layout: str | None = None,
        batch: int = 1,
        scales: str = "",
        epilogue: object = "",
        prologue_a: object = "",
        prologue_b: object = "",
        semiring: object = "",
    ) -> None:
        sizes = {name: _size(name, value) for name, value in (("m", m), ("n", n), ("k", k), ("batch", batch))}
        blocks = [_block_format(x) for x in (a, a if b is None else b)]
        if layout is None:
            layout = "nt" if any(blocks) else "nn"
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
        if any(blocks):
            if not all(blocks):
                raise ValueError(f"a and b are both block-scaled or neither is, and here they are {a!r} and {b!r}")
            format_a, format_b = blocks
            format_out = formats.get("f32" if out is None else out, "out")
        else:
            every = (*formats.FORMATS, *formats.BLOCK_FORMATS)
            format_a = formats.get(a, "a", every)
            format_b = formats.get(b, "b", every) if b is not None else format_a
            if out is None and epilogue and (main := (read := texts.epilogue(str(epilogue))).main) is not None:
                out = None if read.results[main] == "-" else read.results[main]
            taken = [formats.FORMATS[_multiplied(format.name, str(text))]
                     for format, text in ((format_a, prologue_a), (format_b, prologue_b))]
            if out is None and semiring:
                out = _combined_in(format_a, format_b)
            format_out = _product(*taken) if out is None else formats.get(out, "out")
            if scales and out is None and formats.integral(format_a, format_b):
                format_out = formats.get("f32")
        epilogue = str(epilogue)
        # the class is frozen
        self.__dict__.update(sizes, a=format_a.name, b=format_b.name, out=format_out.name, layout=layout, scales=scales,
                             epilogue=epilogue, prologue_a=str(prologue_a), prologue_b=str(prologue_b),
                             semiring=str(semiring))
        self._check_scales()
        if self.prologues:
            self._check_prologues()
        if self.semiring:
            self._check_semiring()
        if epilogue:
            self._check_epilogue()
        self._check_bytes()

    def _check_scales(self) -> None:
        if self.scales not in SCALES:
            raise ValueError(f"scales must be one of {', '.join(map(repr, SCALES))}, not {self.scales!r}")
        if self.scales and (self.blocks or not isinstance(formats.FORMATS[self.out], formats.Float)):
            raise ValueError(f"scales={self.scales!r} is for operands without scales of their own and a result in a "
                             f"floating-point format, not for {self.a} by {self.b} into {self.out}")

    def _check_prologues(self) -> None:
        if self.blocks or self.scales:
            raise ValueError(f"prologues are for operands without scales of their own, not for {self.a} by {self.b}"
                             + f" with scales={self.scales!r}"*bool(self.scales))
        for name in "ab":
            text, format = getattr(self, f"prologue_{name}"), getattr(self, name)
            if text and (source := texts.prologue(text).element) != format:
                raise ValueError(f"{name} must be {source}, of which prologue_{name} was made, not {format}")

    def _check_epilogue(self) -> None:
        epilogue = texts.epilogue(self.epilogue)
        main = epilogue.main
        if main is not None and epilogue.results[main] not in ("-", self.out):
            raise ValueError(f"out must be {epilogue.results[main]}, the format of the epilogue's first result, not "
                             f"{self.out}")
        if epilogue.paired and self.n % 2:
            raise ValueError(f"an epilogue of pairs of columns needs an even number of them, and n is {self.n}")
        integral = not self.blocks and formats.integral(*self.multiplied) and not self.scales
        if self.semiring and (fields := texts.semiring(self.semiring).state):
            if epilogue.state != fields:
                raise ValueError(f"epilogue must take the {fields} fields of the reduction's state, as that of "
                                 f"tilewright.contract, and takes {epilogue.state or 'a sum'}")
        elif epilogue.kind != (kind := "int" if integral else "float"):
            raise ValueError(f"the epilogue of {self.a} by {self.b} has sums of kind {kind}, not {epilogue.kind}")

    def _check_semiring(self) -> None:
        operands = [] if self.blocks else [formats.FORMATS[x] for x in (self.a, self.b)]
        if not operands or self.scales or self.prologues or any(isinstance(x, formats.Complex) for x in operands):
            more = f" with scales={self.scales!r}" if self.scales else " with prologues" if self.prologues else ""
            raise ValueError("a semiring is for operands of real formats without scales and prologues, not for "
                             f"{self.a} by {self.b}{more}")
        kind = "int" if formats.integral(self.a, self.b) else "float"
        if (given := texts.semiring(self.semiring).kind) != kind:
            raise ValueError(f"the semiring of {self.a} by {self.b} has numbers of kind {kind}, not {given}")

    def check_factors(self, alpha: complex, beta: complex) -> None:
        """ValueError for values of alpha and beta that this kind of product does not allow."""
        if self.semiring and (alpha != 1 or beta != 0):
            raise ValueError(f"alpha must be 1 and beta 0 in a semiring, not {alpha} and {beta}")

    def _check_bytes(self) -> None:
        """Kernels and plans count in 64 bits, with a sign."""
        m, n, k = self.m, self.n, self.k
        for name, rows, columns, kind in (("a", m, k, self.a), ("b", k, n, self.b), ("the result", m, n, self.out)):
            if max(self.batch, 1) * rows * columns * _bits(kind) > 8 * MOST_BYTES:
                many = f" in each of {self.batch} products" if self.batch > 1 else ""
                raise ValueError(f"{name} must have less than 2^63 bytes, and {rows} x {columns} of {kind}{many} have "
                                 "more")

    @property
    def compute(self) -> str:
        """The format the arithmetic runs in: wide enough for both operands and the result."""
        if self.blocks:
            return "f32"
        if self.semiring:
            return self.sums
        used = *self.multiplied, self.out
        meeting = formats.promote(*used)        # of i64 and u64 that is f64, in which no integer is added up
        exact = formats.integral(*used) and not formats.integral(meeting)
        return (formats.accumulator(*used) if exact else meeting).name

    @property
    def sums(self) -> str:
        """The format in which tilewright.matmul adds products up: f32, f64, i32, i64, c64 or c128."""
        if self.blocks:
            return "f32"
        if self.semiring:
            return _combined_in(formats.FORMATS[self.a], formats.FORMATS[self.b])
        a, b = self.multiplied
        if (self.scales or self.epilogue) and formats.integral(a, b) and self.out != "f64":
            return formats.accumulator(a, b).name
        meeting = () if self._exact else (_product(formats.FORMATS[a], formats.FORMATS[b]),)
        return formats.accumulator(a, b, *meeting, self.out).name

    @property
    def _exact(self) -> bool:
        """Whether integers are added up and stored as integers."""
        return formats.integral(*self.multiplied) and isinstance(formats.FORMATS[self.out], formats.Integer)

    @property
    def castable(self) -> bool:
        """Whether NumPy's rule same_kind allows to cast products of the operands to the result's format: integers to
        floats and floats to complex numbers, never the other way round."""
        if self.blocks or self._exact:
            return True
        meeting = _product(*(formats.FORMATS[x] for x in self.multiplied))
        return formats.rank(self.out) >= formats.rank(meeting)

    @property
    def multiplied(self) -> tuple[str, str]:
        """The formats in which A and B are multiplied: those of their prologues' results, else their own."""
        return _multiplied(self.a, self.prologue_a), _multiplied(self.b, self.prologue_b)

    @property
    def prologues(self) -> str:
        """Which operands have a prologue: "", "a", "b" or "ab"."""
        return "a"*bool(self.prologue_a) + "b"*bool(self.prologue_b)

    @property
    def fused(self) -> bool:
        """Whether it has an epilogue or a prologue."""
        return bool(self.epilogue or self.prologues)

    @property
    def blocks(self) -> bool:
        """Whether the operands are block-scaled."""
        return self.a in formats.BLOCK_FORMATS

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each of m n k terms."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def min_bytes(self) -> int:
        """Bytes that must move if A, B and an epilogue's operands are read once and C is written once (beta = 0)."""
        columns = self.shapes["out"][-1]
        bits = self.m * self.k * _bits(self.a) + self.k * self.n * _bits(self.b) + self.m * columns * _bits(self.out)
        more = texts.epilogue(self.epilogue).bytes(self.m, self.n) if self.epilogue else 0
        more += texts.prologue(self.prologue_a).bytes_read(self.m, self.k, True) if self.prologue_a else 0
        more += texts.prologue(self.prologue_b).bytes_read(self.k, self.n, False) if self.prologue_b else 0
        return self.batch * int(bits) // 8 + self.batch * more

    @property
    def intensity(self) -> float:
        """flops per byte that must move, the abscissa of a roofline plot."""
        return self.flops / self.min_bytes if self.min_bytes else 0.0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of a, b and out as they are multiplied, by these names; a batch of several has an axis first."""
        batch = (self.batch,) if self.batch != 1 else ()
        n = self.n // (1 + texts.epilogue(self.epilogue).paired if self.epilogue else 1)
        return {"a": (*batch, self.m, self.k), "b": (*batch, self.k, self.n), "out": (*batch, self.m, n)}

    @property
    def shape_a(self) -> tuple[int, int]:
        """The shape A has in memory, rows first."""
        return (self.m, self.k) if self.layout[0] == "n" else (self.k, self.m)

    @property
    def shape_b(self) -> tuple[int, int]:
        """The shape B has in memory, rows first."""
        return (self.k, self.n) if self.layout[1] == "n" else (self.n, self.k)

    def key(self) -> str:
        """A short unique name, for tables and file names: gemm_f32_nn_128x256x64."""
        kinds = (self.a, self.b, self.out)
        name = self.a if len(set(kinds)) == 1 else "-".join(kinds)
        many = f"_b{self.batch}" if self.batch != 1 else ""
        scales = f"_scaled_{self.scales}" if self.scales else ""
        epilogue = f"_epilogue_{texts.epilogue(self.epilogue).digest}" if self.epilogue else ""
        prologues = "".join(f"_prologue_{name}_{texts.prologue(getattr(self, f'prologue_{name}')).digest}"
                            for name in self.prologues)
        semiring = f"_semiring_{texts.semiring(self.semiring).digest}" if self.semiring else ""
        return f"gemm_{name}_{self.layout}_{self.m}x{self.n}x{self.k}{many}{scales}{epilogue}{prologues}{semiring}"

    def __str__(self) -> str:
        return self.key()


def numerics(p: Gemm) -> Numerics:
    """The functions of a problem, as shapes hold them."""
    return Numerics(p.epilogue, p.prologue_a, p.prologue_b, p.semiring)


def kernel_arrays(p: Gemm) -> tuple[Aux, ...]:
    """The arrays beside A, B and C of a GPU's kernel for this product, in the order of its addresses."""
    block = formats.BLOCK_FORMATS.get(p.a)
    scales = block.scale.name if block else "f64" if p.sums == "f64" else "f32"
    group = block.block if block else 1 if p.scales == "rows" else 128
    scales *= bool(block or p.scales)
    return texts.auxiliary(p.epilogue, p.prologue_a, p.prologue_b, scales, group)


def _product(a: formats.Format, b: formats.Format) -> formats.Format:
    """What numpy.matmul gives for them: f32 for the narrow floats of ml_dtypes. What it has no word for is promoted."""
    try:
        dtype = matmul(np.empty((1, 0), a.dtype), np.empty((0, 1), b.dtype)).dtype
    except TypeError:
        return formats.promote(a, b)
    return formats.get(dtype)


def _multiplied(format: str, prologue: str) -> str:
    """The format in which elements of this one are multiplied."""
    return texts.prologue(prologue).result if prologue else format


def _combined_in(a: formats.Format, b: formats.Format) -> str:
    """The format in which terms of a semiring are computed and combined."""
    return formats.accumulator(a, b, *([] if formats.integral(a, b) else [formats.promote(a, b)])).name


def _block_format(x: object) -> Any:
    """The block-scaled format of this name, or None."""
    try:
        return formats.block_format(x) if isinstance(x, (str, formats.BlockFormat)) else None
    except ValueError:
        return None


def _bits(name: str) -> Any:
    """Bits of an element, scales included."""
    return (formats.BLOCK_FORMATS.get(name) or formats.FORMATS[name]).bits


def _size(name: str, value: object) -> int:
    try:
        size = value.__index__()  # type: ignore[attr-defined]
    except AttributeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if size < 0:
        raise ValueError(f"{name} must be 0 or more, not {size}")
    if size > MOST_BYTES:
        raise ValueError(f"{name} must be less than 2^63, not {size}")
    return int(size)
