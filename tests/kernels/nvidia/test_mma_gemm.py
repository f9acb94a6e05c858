"""GEMMs by mma.sync: exact on whole numbers in the simulator, without bank conflicts, without spills."""

from __future__ import annotations

import re

import pytest

from tests.helpers.gemms import exact
from tests.helpers.gpu_kernels import emit_mma_gemm
from tilewright.compiler import llvm, ptxas
from tilewright.formats import get
from tilewright.inspect.resources import ptx_loop
from tilewright.targets import target

pytestmark = pytest.mark.sampled

SIZES = {"f64": 8, "tf32": 4, "f16": 2, "bf16": 2}
SMALL = {"CTA_M": 64, "CTA_N": 64, "WARP_M": 32, "WARP_N": 32, "STAGES": 3}
LAYOUTS = "nn", "nt", "tn", "tt"


def run(m, n, k, A="bf16", B=None, OUT=None, SUMS=None, LAYOUT="nn", **options):
    SUMS, size = SUMS or {"i8": "i32", "u8": "i32", "f64": "f64"}.get(A, "f32"), SIZES.get(A, 1)
    usual = {"ARCH": "sm_90a", "CTA_K": 64 // size, "VECTOR_A": 16 // size, "VECTOR_B": 16 // size}
    return exact(emit_mma_gemm, m, n, k, A=A, B=B or A, OUT=OUT or SUMS, SUMS=SUMS, LAYOUT=LAYOUT,
                 **SMALL | usual | options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("format", ["bf16", "tf32", "i8", "f64"])
def test_layouts(format, layout):
    run(80, 144, 160, A=format, LAYOUT=layout)


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_single_bytes_of_more_steps_of_k_than_a_cta_has_threads(layout):
    run(17, 33, 200, A="i8", LAYOUT=layout, CTA_M=16, CTA_N=16, WARP_M=16, WARP_N=16, STAGES=2, ASYNC=False,
        VECTOR_A=1, VECTOR_B=1)


@pytest.mark.parametrize(("formats", "layout"), [
    (("f16", "f16", "f16", "f16"), "nt"), (("f16", "f16", "f32", "f16"), "nn"), (("bf16", "bf16", "bf16", "f32"), "tt"),
    (("u8", "i8", "i32", "i32"), "nt"), (("i8", "i8", "i8", "i32"), "nn"), (("e4m3fn", "e5m2", "f32", "f32"), "tn")])
def test_formats(formats, layout):
    A, B, OUT, SUMS = formats
    run(80, 144, 96, A=A, B=B, OUT=OUT, SUMS=SUMS, LAYOUT=layout, alpha=2, beta=-1,
        **({"VECTOR_A": 2, "VECTOR_C": 2} if A == "f16" else {}))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("format", ["bf16", "tf32", "i8", "f64"])
def test_no_bank_conflicts(format, layout):
    """Fragments and copies: no access to shared memory needs more passes than its bytes."""
    for row in (64, 128):                                       # bytes, along k
        report = run(128, 128, 64, A=format, LAYOUT=layout, CTA_M=128, CTA_N=128, WARP_M=64,
                     WARP_N=32 if format == "f64" else 64, CTA_K=row // SIZES.get(format, 1))
        for verb in ("load", "store"):
            traffic = report.of(space="shared", verb=verb)
            assert traffic.moved == traffic.ideal


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (67, 65, 19), (13, 127, 7), (64, 64, 0)])
def test_awkward_sizes(m, n, k):
    """Without alignment: copies of single elements, through registers where those have less than 4 bytes."""
    run(m, n, k, A="tf32", VECTOR_A=1, VECTOR_B=1, LAYOUT="tn")
    run(m, n, k, A="bf16", VECTOR_A=1, VECTOR_B=1, LAYOUT="nn", ASYNC=False, STAGES=2, alpha=2, beta=-3)
    run(m, n, k, A="f64", VECTOR_A=1, VECTOR_B=1, LAYOUT="nt", beta=1)
    run(m, n, k, A="u8", VECTOR_A=1, VECTOR_B=1, LAYOUT="tt", ASYNC=False, STAGES=2, beta=1)


def test_alignment_of_each_operand_and_of_c():
    run(66, 68, 36, VECTOR_A=4, VECTOR_B=2, VECTOR_C=4, LAYOUT="nn", OUT="bf16")
    run(72, 66, 40, VECTOR_A=8, VECTOR_B=2, VECTOR_C=2, LAYOUT="tn")
    run(130, 72, 38, VECTOR_A=2, VECTOR_B=2, CTA_M=128, WARP_M=64, LAYOUT="nt")         # one pointer for many rows


@pytest.mark.parametrize(("format", "layout"), [("f16", "nn"), ("f16", "tt"), ("i8", "nt")])
def test_turing(format, layout):
    """Smaller instructions, and no copies in flight."""
    run(80, 144, 96, A=format, ARCH="sm_75", LAYOUT=layout, ASYNC=False, STAGES=2)


def test_f64_on_ampere():
    """Smaller instructions there, too."""
    run(80, 72, 40, A="f64", ARCH="sm_80", LAYOUT="nt")


def test_parts_of_k():
    run(66, 72, 200, SPLIT_K=3)
    run(64, 64, 8, SPLIT_K=2, beta=1)                   # fewer tiles of k than parts
    run(200, 192, 104, A="f64", TAIL=True, VECTOR_C=2)
    run(80, 80, 160, A="i8", TAIL=True, LAYOUT="nt")


def test_counts():
    """64 instructions and 16 reads of fragments for each warp and 32 steps of k; A and B are read once per tile."""
    report = run(128, 128, 128, CTA_M=128, CTA_N=128, WARP_M=64, WARP_N=64)
    assert report.instructions["mma"] == 4 * 64 * 4
    assert report.instructions["ldmatrix"] == 4 * 8 * (2*4 + 1)         # those of a step that is not there as well
    assert report.of("a", "load").elements == 128 * 128 == report.of("b", "load").elements


@pytest.mark.parametrize(("out", "layout"), [("bf16", "nn"), ("bf16", "nt"), ("f32", "nn")])
def test_rows_of_c_are_written_in_whole_sectors(out, layout):
    """By way of shared memory, where lanes exchange them without conflicts; 16 lanes have a row of a warp's part."""
    report = run(64, 128, 32, OUT=out, LAYOUT=layout, CTA_N=128, WARP_M=64, WARP_N=64, VECTOR_C=4)
    c, exchanged = report.of("c", "store"), report.of(space="shared", verb="store")
    assert (c.requests, c.moved) == (64 * 128 // 4 // 32, 64 * 128 * get(out).bits // 8 // 32)
    assert exchanged.moved == exchanged.ideal
    assert report.of(space="shared", verb="load").conflicts == 0


def test_copies_begin_behind_the_first_reads_of_a_tile():
    """Else tensor cores wait for these: 3 % of the cycles at 4096 on an H200."""
    loop = ptx_loop(llvm.assembly(emit_mma_gemm(ARCH="sm_80"), target("sm_80"))).text
    found = re.findall(r"ldmatrix|cp\.async\.cg|mma\.sync", loop)
    assert found[found.index("cp.async.cg") - 1] == "ldmatrix"


TURING = {"ASYNC": False, "STAGES": 2}
TF32 = {"A": "tf32", "B": "tf32", "CTA_K": 16, "VECTOR_A": 4, "VECTOR_B": 4}
INTS = {"A": "i8", "B": "i8", "OUT": "i32", "SUMS": "i32", "CTA_K": 64, "VECTOR_A": 16, "VECTOR_B": 16}
FP8 = {"A": "e4m3fn", "B": "e5m2", "CTA_K": 64, "VECTOR_A": 16, "VECTOR_B": 16}
F64 = {"A": "f64", "B": "f64", "OUT": "f64", "SUMS": "f64", "CTA_K": 8, "WARP_M": 32, "STAGES": 4, "VECTOR_A": 2,
       "VECTOR_B": 2, "VECTOR_C": 2}
# target, options, and of a round of the main loop the instructions that multiply and that read shared memory
RESOURCES = [
    ("sm_75", TURING | {"A": "f16", "B": "f16"}, 128, 16),
    ("sm_80", {"LAYOUT": "nt", "OUT": "bf16", "VECTOR_C": 8}, 64, 16),
    ("sm_80", {"CTA_N": 256, "SPLIT_K": 2}, 64, 16),
    ("sm_80", {"TAIL": True, "VECTOR_C": 2}, 64, 16),
    ("sm_80", {"LAYOUT": "nt", "VECTOR_A": 2, "VECTOR_B": 2}, 64, 16),
    ("sm_80", TURING | {"LAYOUT": "nt", "VECTOR_A": 1, "VECTOR_B": 1, "WARP_M": 32}, 32, 12),
    ("sm_80", TF32, 64, 40),
    ("sm_86", INTS, 64, 16),
    ("sm_89", FP8 | {"LAYOUT": "nt"}, 64, 16),
    ("sm_90a", {"BATCH": True, "SPLIT_K": 2}, 64, 16),
    ("sm_90a", F64, 32, 16),
    ("sm_90a", F64 | {"LAYOUT": "nt", "CTA_M": 64, "CTA_K": 16}, 64, 48),
    ("sm_90a", F64 | {"LAYOUT": "tt", "SPLIT_K": 2}, 32, 20),
    ("sm_90a", F64 | {"LAYOUT": "tn", "VECTOR_A": 1, "VECTOR_B": 1, "VECTOR_C": 1}, 32, 12),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("arch", "options", "mmas", "reads"), RESOURCES)
def test_resources(arch, options, mmas, reads):
    """No spills in the tiles that are chosen for large products; of a tile's loop little but products and reads."""
    text = llvm.assembly(emit_mma_gemm(ARCH=arch, **options), target(arch))
    _, used = ptxas.assemble(text, arch)
    (usage,) = used.values()
    assert usage.spills == usage.stack == 0, usage
    loop = ptx_loop(text).counts
    assert (loop["MMAs"], loop["shared loads"]) == (mmas, reads)
