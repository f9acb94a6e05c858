"""The contractions of the TCCG benchmark (P. Springer and P. Bientinesi, "Design of a High-Performance GEMM-like
Tensor-Tensor Multiplication", ACM TOMS 44, 2018; github.com/HPAC/tccg, benchmark/benchmark.py): products of matrices
and of tensors by matrices, changes of basis of integrals (AO to MO), coupled cluster (CCSD, CCSD(T)).

As there, C-A-B, where the first index is the fastest in memory: for NumPy's order of axes they are read backwards. All
indices are about as long as each other, so that the largest tensor has about MOST_BYTES in f32 (there 200 MiB), those
with stride 1 a multiple of 8, others of 4.
"""

from __future__ import annotations

from math import prod

from tilewright.lab.bench.cases import Case
from tilewright.problem import Gemm

MOST_BYTES = 30 << 20
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


def cases(dtype: str) -> list[Case]:
    return [case(contraction, dtype) for contraction in TCCG]


def case(contraction: str, dtype: str) -> Case:
    c, a, b = (labels[::-1] for labels in contraction.split("-"))
    average = (MOST_BYTES / 4) ** (1 / max(map(len, (a, b, c))))
    fastest = {a[-1], b[-1], c[-1]}
    sizes = {x: round(average / 8) * 8 if x in fastest else int(average / 4) * 4 for x in {*a, *b, *c}}
    m, n, k = (prod(sizes[x] for x in group) for group in ({*a} & {*c}, {*b} & {*c}, {*a} & {*b}))
    return Case("contractions", Gemm(m, n, k, dtype), subscripts=f"{a},{b}->{c}",
                sizes=tuple(sizes[x] for x in sorted(sizes)))
