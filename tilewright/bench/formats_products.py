"""WHAT `tilewright bench formats` times: products of number formats, and the words by which they are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import formats
from tilewright.formats import Complex, Integer

SIZES = (512, 1024, 2048, 4096)
QUICK = (1024,)


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

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def _alike(*names: str) -> list[Product]:
    return [Product(name, name, name) for name in names]


def _into(out: str, *names: str) -> list[Product]:
    return [Product(name, name, out) for name in names]


EMULATED = tuple(Product("f32", "f32", "f32", f"bf16_bf16_f32_x{terms}") for terms in (3, 6, 9))
PRODUCTS: tuple[Product, ...] = (
    *_alike("f64", "f32"),
    *EMULATED,
    Product("f16", "f16", "f16"),
    Product("f16", "f16", "f32"),
    Product("bf16", "bf16", "bf16"),
    *_into("f32", "bf16", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e2m3", "e3m2", "e2m1"),
    Product("bf16", "e4m3fn", "f32"),
    Product("i8", "i8", "i8"),
    *_into("i32", "i8", "u8"),
    Product("u8", "i8", "i32"),
    *_into("i32", "i4"),
    Product("i8", "i4", "i32"),
    Product("i16", "i16", "i16"),
    *_into("i32", "i16"),
    *_alike("i32", "i64", "c64", "c128"),
)


def chosen(words: Sequence[str]) -> list[Product]:
    """The products that the words name, in the order of PRODUCTS; all without any.

    A word is a format (every product with such an operand), an algorithm, or a product's key.
    """
    found: set[Product] = set()
    for word in words:
        meant = [p for p in PRODUCTS if word in (p.key, p.algorithm)]
        meant = meant or [p for p in PRODUCTS if word in (p.a, p.b)]
        if not meant:
            known = dict.fromkeys(name for p in PRODUCTS for name in (p.a, p.b))
            raise ValueError(
                f"nothing is timed of {word!r}; name a format ({', '.join(known)}), "
                f"an algorithm ({', '.join(str(p.algorithm) for p in EMULATED)}) or a product such as bf16-bf16-f32"
            )
        found.update(meant)
    return [p for p in PRODUCTS if p in found or not words]
