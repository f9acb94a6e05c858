"""What is timed, as plain data: a product of number formats; a case, which is such a product of given sizes and layout;
a job, which is what one process measures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilewright import formats
from tilewright.formats import Complex, Integer
from tilewright.lab.measure.measure import Rules
from tilewright.problem import Gemm

NATIVE, AVX2 = "native", "avx2"  # instruction sets that a job may use
CPU, GPU = "cpu", "gpu"
REAL = ("f32-f32-f32", "f64-f64-f64")  # what every BLAS has


@dataclass(frozen=True)
class Product:
    """A of one format times B of another into a result of a third, by the format's own arithmetic or an algorithm."""

    a: str
    b: str
    out: str
    algorithm: str | None = None

    @property
    def key(self) -> str:
        """For commands and files: u8-i8-i32, f32-f32-f32:bf16_bf16_f32_x6."""
        return self.formats + (f":{self.algorithm}" if self.algorithm else "")

    @property
    def formats(self) -> str:
        """The key without an algorithm."""
        return f"{self.a}-{self.b}-{self.out}"

    @property
    def label(self) -> str:
        """For people: bf16; bf16 → f32; u8 x i8 → i32; f32 by bf16_bf16_f32_x6."""
        operands = self.a if self.a == self.b else f"{self.a} x {self.b}"
        result = "" if self.a == self.b == self.out else f" → {self.out}"
        return operands + result + (f" by {self.algorithm}" if self.algorithm else "")

    @property
    def exact(self) -> bool:
        """Integers: modulo the result's 2^bits nothing is lost."""
        return isinstance(formats.FORMATS[self.out], Integer)

    @property
    def unit(self) -> str:
        return "GOP/s" if self.exact else "GFLOP/s"

    def operations(self, m: int, n: int, k: int) -> int:
        """A multiplication and an addition for each term; of complex numbers four and four."""
        return (8 if isinstance(formats.FORMATS[self.out], Complex) else 2) * m * n * k

    def gemm(self, m: int, n: int, k: int, layout: str = "nn", batch: int = 1) -> Gemm:
        return Gemm(m, n, k, self.a, self.b, self.out, layout, batch)


@dataclass(frozen=True)
class Case:
    """One multiplication to time.

    `cold` asks for operands beyond the last cache.  `beside` is a second problem that tilewright alone runs in the
    same rounds, for claims of the kind "509 is as fast as 512" or "bf16 is twice as fast as f32": two figures of one
    library need one interleaved run as much as two libraries do.  `gap`: A and B are views x[:, :-gap] of wider
    matrices, which leaves their rows unaligned.  `subscripts`: A and B are arrays of more axes, which einsum
    multiplies; `sizes` are those of the labels in alphabetical order, and the problem is that of matrices.
    """

    suite: str
    problem: Gemm
    cold: bool = False
    beside: Gemm | None = None
    algorithm: str | None = None
    gap: int = 0
    subscripts: str = ""
    sizes: tuple[int, ...] = ()

    @property
    def product(self) -> Product:
        p = self.problem
        return Product(p.a, p.b, p.out, self.algorithm)

    @property
    def size(self) -> str:
        return self.subscripts or size(self.problem)

    @property
    def label(self) -> str:
        p = self.problem
        words = [self.product.label, self.subscripts or p.layout, size(p), f"scales of {p.scales}" * bool(p.scales),
                 "cold" * self.cold, f"gap {self.gap}" * bool(self.gap)]
        return " ".join(filter(None, words))

    def operations(self, rows: int = 0) -> int:
        """Operations of the whole product, or of so many rows of A."""
        p = self.problem
        return p.batch * self.product.operations(rows or p.m, p.n, p.k)

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"suite": self.suite, **_fields(self.problem), "cold": self.cold}
        if self.beside is not None:
            entry["beside"] = _fields(self.beside)
        return entry | {name: value for name in ("algorithm", "gap", "subscripts", "sizes")
                        if (value := getattr(self, name))}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Case:
        reference = data.get("beside")
        return cls(data["suite"], _problem(data), data["cold"], None if reference is None else _problem(reference),
                   data.get("algorithm"), data.get("gap", 0), data.get("subscripts", ""),
                   tuple(data.get("sizes", ())))


@dataclass(frozen=True)
class Job:
    """What one process measures."""

    threads: int
    isa: str
    cases: list[Case]
    rules: Rules
    device: str = CPU
    number: int = 0  # of the GPU
    ladder: bool = False  # the teaching steps too
    peers: list[str] | None = None  # None: all that are installed
    plans: list[str] = field(default_factory=list)  # on a GPU: tilewright by these plans too
    steps: list[str] = field(default_factory=list)  # on a GPU: these steps of its ladder too
    prepared: bool = False  # peers that find B packed beforehand too
    bounds: bool = False  # say what bounds our plans, by the cost model
    flush: bool = False  # in the article's protocol: empty the GPU's L2 before every launch
    call_s: float | None = None  # a slow peer is given as many rows of A as it does in that time
    max_call_s: float = 60.0  # a peer that would need longer for one call sits the case out
    max_case_s: float | None = None  # the slowest sit a case out that would take longer, down to three peers
    despite_load: bool = False  # one thread is timed by the CPU time of its process, which others do not use
    deadline_s: float | None = None  # no case is begun that would end after this


def size(problem: Gemm) -> str:
    """512, 8 x 4096 x 4096 (m x n x k), or 16 of 64."""
    m, n, k = problem.m, problem.n, problem.k
    one = str(m) if m == n == k else f"{m} x {n} x {k}"
    return one if problem.batch == 1 else f"{problem.batch} of {one}"


def _fields(p: Gemm) -> dict[str, Any]:
    """Its fields; those of b, out and batch only where they are not those of a product of one format."""
    entry: dict[str, Any] = {"m": p.m, "n": p.n, "k": p.k, "dtype": p.a, "layout": p.layout}
    if (p.b, p.out) != (p.a, p.a):
        entry |= {"b": p.b, "out": p.out}
    entry |= {"scales": p.scales} if p.scales else {}
    return entry | ({"batch": p.batch} if p.batch != 1 else {})


def _problem(data: dict[str, Any]) -> Gemm:
    a = data["dtype"]
    return Gemm(data["m"], data["n"], data["k"], a, data.get("b", a), data.get("out", a), data["layout"],
                data.get("batch", 1), data.get("scales", ""))
