"""What `tilewright bench formats` times: products of number formats, and the words by which they are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.bench.cases import Case, Product
from tilewright.problem import Gemm

SIZES = (512, 1024, 2048, 4096)
QUICK = (1024,)


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


def chosen(words: Sequence[str], among: Sequence[Product] = PRODUCTS, also: str = "") -> list[Product]:
    """The products that the words name, in their order; all without any.

    A word is a format (every product with such an operand), an algorithm, or a product's key.  ValueError for any
    other; `also` says what else it might have been.
    """
    found: set[Product] = set()
    for word in words:
        named = [p for p in among if word in (p.key, p.algorithm)]
        named = named or [p for p in among if word in (p.a, p.b)]
        if not named:
            known = dict.fromkeys(name for p in among for name in (p.a, p.b))
            algorithms = ", ".join(p.algorithm for p in among if p.algorithm)
            raise ValueError(
                f"no product of {word!r} is timed; name a format ({', '.join(known)}), "
                f"{f'an algorithm ({algorithms}) ' if algorithms else ''}or a product such as {among[-1].key}{also}"
            )
        found.update(named)
    return [p for p in among if p in found or not words]


def cases(products: Iterable[Product], sizes: Iterable[int]) -> list[Case]:
    """Squares of every product; beside all but f32 runs tilewright's own f32, which shows what a format gains."""
    products = list(products)
    return [
        Case("formats", p.gemm(n, n, n), beside=Gemm(n, n, n) if p.key != "f32-f32-f32" else None,
             algorithm=p.algorithm)
        for n in sizes for p in products
    ]
