"""How much of its time the Matrix Core is busy in the main loops of large-tile GEMMs, by the static count of cycles."""

from __future__ import annotations

import pytest

import tilewright as tw
from tests.helpers.gpu_kernels import emit_mfma_gemm
from tilewright.compiler import amd
from tilewright.inspect import amd_cycles
from tilewright.inspect.resources import amd_loop

pytestmark = pytest.mark.sampled

LEEWAY = 0.02           # for another version of LLVM
MX = "mxfp4", "mxfp6", "mxfp6_e3m2", "mxfp8", "mxfp8_e5m2"


def counted(chip, format, layout="nt", k=4096, share=0.0, slack=0):
    """The planner's kernel for 4096 x 4096, which spills nothing, its assembly, and the count: the Matrix Core is busy
    for this share of its time at least, and loads have so many cycles to arrive."""
    target = tw.target(chip)
    compiled = tw.compile(tw.Gemm(4096, 4096, k, format, layout=layout), target)
    text = amd.assembly(compiled.function, target)
    uses = amd.usage(compiled.function, target, text)
    assert uses.vgpr_spills == uses.scratch == 0
    found = amd_cycles.count(compiled.function, target, text)
    assert found.share >= share, str(found)
    assert not slack or found.slack_cycles >= slack
    return compiled, text, found


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("chip", "format", "share"), [("gfx942", "f32", 0.993), ("gfx942", "e4m3fnuz", 0.954),
                                                       ("gfx950", "f16", 0.990), ("gfx950", "e4m3fn", 0.990),
                                                       ("gfx950", "f64", 0.990)])
def test_the_planners_choice_keeps_the_matrix_core_busy(chip, format, share):
    assert not counted(chip, format, share=share - LEEWAY)[2].narrow


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize("format", ["f16", "bf16", "i8", "e4m3fn"])
def test_operands_that_reads_of_lds_turn_keep_it_as_busy(format, layout):
    """They come straight into LDS, and the only wait for them is the kernel's own, before the barrier."""
    compiled, text, found = counted("gfx950", format, layout, share=0.98 - LEEWAY, slack=800)
    assert compiled.plan.copy == "lds"
    lines = amd_loop(text, compiled.function.name)
    wait, = (i for i, line in enumerate(lines) if "vmcnt" in line)
    assert lines[wait + 1] == "s_barrier"
    assert not found.narrow


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", MX)
def test_block_scaled_formats_keep_it_busy_for_nine_tenths_of_its_time(format):
    """On chips that multiply them. What is copied straight to LDS has a good part of a round to arrive; of all that,
    only copies of scales, and of the tails of 6-bit elements, are of single words."""
    compiled, _, found = counted("gfx950", format, share=0.90, slack=800)
    assert "256x256" in str(compiled.plan)
    assert all(line.startswith("buffer_load_dword ") and line.endswith(" lds") for line in found.narrow)
    assert len(found.narrow) == (10 if "mxfp6" in format else 2)


@pytest.mark.parametrize("format", ["mxfp4", "mxfp6", "mxfp8"])
def test_scales_whose_rows_are_not_whole_words_come_through_registers(format):
    assert "buffer_load_dwordx4" in counted("gfx950", format, k=4128)[1]


def test_f16_in_tiles_of_256_by_256_through_registers():
    target = tw.target("gfx942")
    kernel = emit_mfma_gemm(ARCH="gfx942", A="f16", CTA_K=32)
    assert amd_cycles.count(kernel, target).share >= 0.954 - LEEWAY


def test_the_barrier_comes_before_the_last_products():
    """Each wave has the last operands of a tile in registers by then, and reads the next tile's beside its products."""
    compiled, text, _ = counted("gfx950", "f16")
    lines = amd_loop(text, compiled.function.name)
    after = lines[lines.index("s_barrier"):]
    assert sum(line.startswith("v_mfma") for line in after) >= 8
    assert sum(line.startswith("ds_read") for line in after) >= 6
