"""The contractions of the TCCG benchmark (P. Springer and P. Bientinesi, "Design of a High-Performance GEMM-like
Tensor-Tensor Multiplication", ACM TOMS 44, 2018; github.com/HPAC/tccg, benchmark/benchmark.py): products of matrices
and of tensors by matrices, changes of basis of integrals (AO to MO), coupled cluster (CCSD, CCSD(T)).

As there, C-A-B, where the first index is the fastest in memory: for NumPy's order of axes they are read backwards. All
indices are about as long as each other, so that the largest tensor has about MOST_BYTES in f32 (there 200 MiB), those
with stride 1 a multiple of 8, others of 4.

Contractions drawn at random (`drawn`): 1 to 3 labels of each operand alone, 1 or 2 that are summed, in a quarter one
that all three have, in any order; extents log-uniform in 4 ... 64; 1e5 to 2e9 multiply-adds, at most 8e6 elements.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from string import ascii_lowercase

from tilewright.lab.bench.cases import Case
from tilewright.problem import Gemm

MOST_BYTES = 30 << 20
EXTENTS, WORK, MOST_ELEMENTS = (4, 64), (1e5, 2e9), 8e6     # of those drawn
TCCG = """
    abc-bda-dc abc-dca-bd abcd-dbea-ec abcd-deca-be abcd-ebad-ce abcde-efbad-cf abcde-ecbfa-fd abcde-efcad-bf
    abcd-ea-ebcd abcd-eb-aecd abcd-ec-abed
    ab-ac-cb ab-acd-dbc ab-cad-dcb abc-acd-db abc-ad-bdc abc-adc-bd abc-adc-db abc-adec-ebd
    abcd-aebf-dfce abcd-aebf-fdec abcd-aecf-bfde abcd-aecf-fbed abcd-aedf-bfce abcd-aedf-fbec abcd-aefb-fdce
    abcd-aefc-fbed abcd-eafb-fdec abcd-eafc-bfde abcd-eafd-fbec
    abcdef-dega-gfbc abcdef-degb-gfac abcdef-degc-gfab abcdef-dfga-gebc abcdef-dfgb-geac abcdef-dfgc-geab
    abcdef-efga-gdbc abcdef-efgb-gdac abcdef-efgc-gdab
    abcdef-gdab-efgc abcdef-gdac-efgb abcdef-gdbc-efga abcdef-geab-dfgc abcdef-geac-dfgb abcdef-gebc-dfga
    abcdef-gfab-degc abcdef-gfac-degb abcdef-gfbc-dega
""".split()


def cases(dtype: str, most_bytes: int = MOST_BYTES) -> list[Case]:
    return [case(contraction, dtype, most_bytes) for contraction in TCCG]


def case(contraction: str, dtype: str, most_bytes: int = MOST_BYTES) -> Case:
    c, a, b = (labels[::-1] for labels in contraction.split("-"))
    average = (most_bytes / 4) ** (1 / max(map(len, (a, b, c))))
    fastest = {a[-1], b[-1], c[-1]}
    sizes = {x: round(average / 8) * 8 if x in fastest else int(average / 4) * 4 for x in {*a, *b, *c}}
    return _case("contractions", a, b, c, sizes, dtype)


def drawn(seed: int, count: int, dtype: str) -> list[Case]:
    """`count` cases, the same for the same seed in every format."""
    pick, terms = random.Random(seed), list[Case]()
    low, high = EXTENTS
    while len(terms) < count:
        letters = pick.sample(ascii_lowercase[:10], 10)
        m, n, k, both = ([letters.pop() for _ in range(pick.choice(counts))] for counts in (
            (1, 1, 2, 2, 3), (1, 1, 2, 2, 3), (1, 1, 2, 2), (0, 0, 0, 1)))
        a, b, c = ("".join(pick.sample(x, len(x))) for x in (m + k + both, k + n + both, m + n + both))
        sizes = {x: int(low * (high / low) ** pick.random()) for x in sorted({*a, *b})}
        if WORK[0] <= prod(sizes.values()) <= WORK[1] and max(
                prod(sizes[x] for x in term) for term in (a, b, c)) <= MOST_ELEMENTS:
            terms.append(_case("drawn", a, b, c, sizes, dtype))
    return terms


def einsums(seed: int | None, count: int, dtypes: Sequence[str], quick: bool) -> list[Case]:
    """Contractions of TCCG, quick of a quarter of their size; with a seed, drawn ones."""
    most = MOST_BYTES // 4 if quick else MOST_BYTES
    return [one for dtype in dtypes for one in (cases(dtype, most) if seed is None else drawn(seed, count, dtype))]


def _case(suite: str, a: str, b: str, c: str, sizes: dict[str, int], dtype: str) -> Case:
    both = {*a} & {*b} & {*c}
    m, n, k, batch = (prod(sizes[x] for x in group) for group in (
        ({*a} & {*c}) - both, ({*b} & {*c}) - both, ({*a} & {*b}) - both, both))
    return Case(suite, Gemm(m, n, k, dtype, batch=batch), subscripts=f"{a},{b}->{c}",
                sizes=tuple(sizes[x] for x in sorted(sizes)))
