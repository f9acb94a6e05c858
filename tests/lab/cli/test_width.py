"""At COLUMNS=80 nothing that a command prints is wider, but for what is copied whole: plans, code, paths, addresses."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.helpers.command_line import COMMANDS, call

# a plan begins a line, or stands behind a heading or a number; code begins with blanks or a tab
WHOLE = re.compile(r"https?://|(^|\s)/\S{20,}|^\t|^\s*%|"
                   r"\b(simt|mma|wgmma|gemv|mfma|packed|in_place|stream|dots|swap) \d+x?\d*")
PRINTING = """
cache info
formats
formats e4m3fn
formats e4m3fn 0x7f
formats mxfp4
mfma list
mfma v_mfma_f32_16x16x16_f16
mfma v_mfma_f32_16x16x16_f16 --element 3,1
peak mi300x
peak zen5
plan 1000 600 800 --target h200
plan 1000 600 800 --target gfx942
plan 512 512 512 --target zen4
explain 512 512 512 --target h200
explain 512 512 512 --target zen4
einsum ij,jk->ik i=10 j=20 k=30
simulate 5 6 7 --target sm_90a
tune show
bench show bench/results/article_zen4_1_thread.json
bench show bench/results/zen5_formats.json
bench show bench/results/zen4_random_9922_2_threads.json
bench show bench/results/h200_bf16.json
bench show bench/results/zen4_contract.json
bench show bench/results/zen4_epilogues.json
bench show bench/results/zen4_weights.json
bench show bench/results/elementwise_xeon.json
bench show bench/results/tiles_avx512_zen4.json
bench show bench/results/ladder_gpu_simulated.json
bench show bench/results/ladder_tensor_h200.json
bench show bench/results/xeon_random_99016_16_threads.json
bench compare bench/results/zen4_epilogues.json bench/results/zen4_epilogues.json --all
""".strip().splitlines()


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 80 and not WHOLE.search(line)]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_no_help_is_wider(path: tuple[str, ...]) -> None:
    assert wide(call(*path, "--help").output) == []


@pytest.mark.parametrize("words", PRINTING)
def test_no_output_is_wider(words: str) -> None:
    found = call(*shlex.split(words))
    assert found.exit_code == 0, found.output
    assert wide(found.output) == []
    if words.startswith("bench show"):
        assert "…" not in found.output          # no cell is cut
