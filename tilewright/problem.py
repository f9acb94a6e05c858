"""What is to be computed: C[m, n] = A[m, k] @ B[k, n] as plain data, with nothing about how."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import formats

LAYOUTS = ("nn", "nt", "tn", "tt")


@dataclass(frozen=True, init=False)
class Gemm:
    """A matrix multiplication: `batch` products of an m x k by a k x n matrix.

    m, n, k   sizes, each >= 0
    a, b      number formats of the operands ("f32", "f64", or a NumPy dtype); b defaults to a
    out       number format of the result; defaults to what NumPy would give for a and b
    layout    one letter for A and one for B: "n" is stored as multiplied ([m, k] or [k, n], rows contiguous),
              "t" is stored transposed ([k, m] or [n, k])
    batch     how many such products
    """

    m: int
    n: int
    k: int
    a: str
    b: str
    out: str
    layout: str
    batch: int

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        a: object = "f32",
        b: object = None,
        out: object = None,
        layout: str = "nn",
        batch: int = 1,
    ) -> None:
        sizes = {name: _size(name, value) for name, value in (("m", m), ("n", n), ("k", k), ("batch", batch))}
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
        format_a = formats.get(a, "a", formats.MULTIPLIED)
        format_b = formats.get(b, "b", formats.MULTIPLIED) if b is not None else format_a
        format_out = formats.promote(format_a, format_b) if out is None else out
        format_out = formats.get(format_out, "out", formats.MULTIPLIED)
        fields = {**sizes, "a": format_a.name, "b": format_b.name, "out": format_out.name, "layout": layout}
        for name, value in fields.items():
            object.__setattr__(self, name, value)  # the class is frozen for everybody else

    @property
    def compute(self) -> str:
        """The format the arithmetic runs in: wide enough for both operands and the result."""
        return formats.promote(*(formats.FORMATS[f] for f in (self.a, self.b, self.out))).name

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each of m n k terms."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def min_bytes(self) -> int:
        """Bytes that must move if A and B are read once and C is written once (beta = 0)."""
        bits = (
            self.m * self.k * formats.FORMATS[self.a].bits
            + self.k * self.n * formats.FORMATS[self.b].bits
            + self.m * self.n * formats.FORMATS[self.out].bits
        )
        return self.batch * bits // 8

    @property
    def intensity(self) -> float:
        """flops per byte that must move: what a roofline is drawn against."""
        return self.flops / self.min_bytes if self.min_bytes else 0.0

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
        return f"gemm_{name}_{self.layout}_{self.m}x{self.n}x{self.k}{many}"

    def __str__(self) -> str:
        return self.key()


def _size(name: str, value: object) -> int:
    try:
        size = value.__index__()  # type: ignore[attr-defined]
    except AttributeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if size < 0:
        raise ValueError(f"{name} must be 0 or more, not {size}")
    return int(size)
