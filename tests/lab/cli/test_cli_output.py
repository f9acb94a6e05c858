"""What all commands print alike: help at any width, JSON, tables that fit, and how they end when interrupted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.helpers.command_line import COMMANDS, ROOT, call, refused, runner, said
from tilewright import text
from tilewright.lab.cli import app, command, output
from tilewright.lab.doctor import doctor
from tilewright.plans.measured import row, store
from tilewright.problem import Gemm


def at(columns: int, *arguments: object) -> str:
    """What a command prints on a terminal of this width."""
    return said(*arguments, COLUMNS=str(columns))


# ---- help


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_and_flags_take_no_value(path: tuple[str, ...]) -> None:
    for columns in (60, 80):
        said = at(columns, *path, "--help")
        assert max(map(len, said.splitlines())) <= columns
        assert "<bool>" not in said


def test_help_wraps_where_the_terminal_does_and_not_where_the_source_does() -> None:
    assert command.wrapped("One\n    two.\n\n    Three\n    four.") == "One two.\n\nThree four."
    lines = [line.strip() for line in at(200, "doctor", "--help").splitlines()]
    (paragraph,) = [line for line in lines if line.startswith("With --selftest")]
    assert len(paragraph) > 150


# ---- tables


def test_a_table_goes_on_below_and_breaks_no_cell() -> None:
    rows = [["", "plan", "seconds", "where"], ["1", "x" * 30, "2.5", "here"], ["2", "y", "10.5", "there"]]
    assert text.table(rows, right=(2,), fit=40).splitlines() == [
        "   plan", "1  " + "x" * 30, "2  y", "", "   seconds  where", "1      2.5  here",
        "2     10.5  there"]
    assert len(text.table(rows, fit=80).splitlines()) == 3
    assert "x" * 30 in text.table(rows, fit=10)


@pytest.mark.parametrize("target", ["x86-avx2", "h200", "gfx942"])
@pytest.mark.parametrize("columns", [60, 80])
def test_a_plan_is_printed_on_one_line_and_can_be_checked(target: str, columns: int) -> None:
    said = at(columns, "plan", 1000, 600, 800, "-t", target, "--top", 2).splitlines()
    assert max(len(line) for line in said[4:]) <= columns
    for line in said[2:4]:
        number, _, plan = line.partition("  ")
        assert number in "12"
        assert call("plan", 1000, 600, 800, "-t", target, "--check", plan).exit_code == 0


@pytest.mark.parametrize("target", ["x86-avx512", "h200", "gfx942"])
def test_explanations_fit_and_no_cell_begins_at_the_end_of_a_line(target: str) -> None:
    """Whatever is wrapped stands behind two blanks, or under the cell that it belongs to."""
    printed = at(80, "explain", 512, 512, 512, "-t", target).splitlines()
    wrapped = 0
    for line in said("explain", 512, 512, 512, "-t", target).splitlines():
        first, *more = [printed.pop(0)]
        while " ".join([first, *more]).split() != line.split():
            more.append(printed.pop(0))
        cells = {match.start() for match in re.finditer(r"(?<=  )\S", line)}
        allowed = {24} if "%  " in line else {14, *cells}
        assert {len(each) - len(each.lstrip()) for each in more} <= allowed, line
        assert max(map(len, more), default=0) <= 80
        wrapped += len(more)
    assert wrapped > 9
    assert not printed


def test_a_line_of_cells_is_wrapped_within_its_last_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for line, wanted in {
        "blocks      " + "word " * 12 + "end": ["blocks      " + " ".join(["word"] * 9),
                                                " " * 14 + "word word word end"],
        "time        predicted  " + "word " * 10 + "end": ["time        predicted  " + " ".join(["word"] * 7),
                                                        " " * 23 + "word word word end"],
    }.items():
        assert output.columns(line, 12).splitlines() == wanted


def tuned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    plan = "packed 14x32 mc=168 kc=1024 nc=4096 ways=2x4x1"
    fields = dict.fromkeys(row.Row.__annotations__, "x") | {
        "m": 1000, "n": 2000, "k": 3000, "threads": 8, "seconds": 0.001, "ratio": 1.0, "ratio_q1": 0.9,
        "ratio_q3": 1.1, "rounds": 7, "role": "best", "plan": plan, "a": "rows", "b": "rows", "dtype": "f32",
        "target": "x86-avx512", "date": "2026-11-22T00:00:00", "model": "AMD EPYC 9B45 128-Core Processor",
        "tilewright": "0.1.0", "commit": None, "clock": None, "vendor": None, "vendor_ratio": None}
    rows = [row.Row(**{name: fields[name] for name in row.Row.__annotations__ if name in fields})]
    monkeypatch.setattr(store, "rows", lambda table=store.PLANS: rows if table is store.PLANS else [])
    return rows


def test_what_was_tuned_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    (best,) = tuned(monkeypatch)
    said = at(80, "tune", "show")
    assert max(map(len, said.splitlines()[2:])) <= 80
    for cell in (best.plan, best.model, "1.000 (0.900 to 1.100)", "1000x2000x3000"):
        assert cell in said
    assert json.loads(call("tune", "show", "--json").output)[0]["plan"] == best.plan


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("words", [
    ("simulate", 5, 6, 7, "-t", "sm_90a"), ("ladder", "amd", "f32", "-t", "gfx942"), ("mfma", "list"),
    ("formats", "e4m3fn"), ("formats",), ("explain", 64, 64, 64, "-t", "neon"),
    ("mfma", "v_mfma_f32_16x16x4_f32", "--no-tables"), ("cache", "info"), ("doctor", "--no-measure"),
], ids=lambda words: " ".join(map(str, words)))
def test_output_fits(words: tuple[object, ...], columns: int) -> None:
    for line in at(columns, *words).splitlines():
        assert len(line) <= columns or len(line.split()) <= 2 or " on " in line, line


def test_a_simulation_at_80_columns_is_a_table_for_each_memory() -> None:
    said = at(80, "simulate", 5, 6, 7, "-t", "sm_90a")
    assert [line.split()[0] for line in said.splitlines() if " requests " in line] == ["global", "shared"]
    for heading in ("requests", "elements", "bytes", "distinct", "sectors", "efficiency", "conflicts"):
        assert heading in said
    lines = said.splitlines()
    for line in call("simulate", 5, 6, 7, "-t", "sm_90a").stdout.splitlines():
        if ".py:" in line:
            place, array, verb, *figures = line.split()[:8]
            below = [after.split()[:5] for at, after in pairwise(lines) if at.startswith(f"{place} {verb} {array}:")]
            assert figures in below


# ---- JSON


PRINTED = [
    ("plan", 64, 64, 64), ("plan", 64, 64, 64, "-t", "h200", "--top", "2"), ("plan", 64, 64, 64, "-t", "gfx942"),
    ("explain", 64, 64, 64, "-t", "neon"), ("explain", 64, 64, 64, "-t", "gfx950"), ("peak", "h100"),
    ("peak", "mi355x"), ("formats",), ("formats", "e4m3fn"), ("formats", "e4m3fn", "0x7f"), ("formats", "mxfp4"),
    ("simulate", 5, 6, 7, "-t", "x86-avx2"), ("simulate", "--step", "fp8", "-t", "gfx942"), ("cache", "info"),
    ("asm", 8, 8, 8), ("asm", 64, 64, 64, "-t", "gfx942"), ("asm", 8, 8, 8, "--list"),
    ("doctor", "--no-measure"), ("mfma", "list"), ("mfma", "v_mfma_f32_32x32x2_f32"), ("tune", "show"),
]


@pytest.mark.parametrize("arguments", PRINTED, ids=lambda words: " ".join(map(str, words)))
def test_every_command_that_reports_prints_json(arguments: tuple[object, ...], tmp_path: Path) -> None:
    """--json and --json - print nothing but the record, --json FILE writes the same beside the text."""
    printed = call(*arguments, "--json", "-")
    assert printed.exit_code == 0, printed.output
    found = json.loads(printed.stdout)
    assert json.loads(call(*arguments, "--json").stdout).__class__ is found.__class__
    said = call(*arguments, "--json", tmp_path / "out.json")
    assert said.exit_code == 0
    assert said.stdout.strip()
    assert not said.stdout.startswith(("{", "["))
    assert json.loads((tmp_path / "out.json").read_text()).__class__ is found.__class__
    assert not (ROOT / "-").exists()


def test_the_json_of_a_plan_has_its_numbers() -> None:
    found = json.loads(call("plan", 100, 200, 300, "-t", "x86-avx2", "--threads", "2", "--json").output)
    (plan,) = found["plans"]
    assert (found["problem"], found["threads"]) == ("gemm_f32_nn_100x200x300", 2)
    assert plan["flops_per_second"] == pytest.approx(2 * 100 * 200 * 300 / plan["seconds"])
    illegal = call("plan", 512, 512, 512, "-t", "x86-avx2", "--check", "packed 16x32 mc=96 kc=256 nc=4096", "--json")
    assert illegal.exit_code == 1
    assert "69 registers" in json.loads(illegal.stdout)["violations"][0]


def test_plain_data_is_json() -> None:
    import numpy as np

    given = {1: (np.float32(2), float("nan"), float("inf")), "p": Path("x"), "g": Gemm(1, 2, 3), "c": 1j, "n": None}
    assert output.plain(given)["1"] == [2.0, "nan", "inf"]
    assert output.plain(given)["g"]["k"] == 3
    json.dumps(output.plain(given), allow_nan=False)


def test_a_file_is_written_whole_through_links_and_to_devices(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    output.write(tmp_path / "link.json", "one")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "one"
    output.write(Path(os.devnull), "two")
    assert Path(os.devnull).is_char_device()
    with pytest.raises(UnicodeEncodeError):
        output.write(tmp_path / "real.json", "\ud800")
    assert (tmp_path / "real.json").read_text() == "one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json"]


# ---- sizes


def test_sizes_are_refused_in_a_sentence() -> None:
    assert refused("plan", -5, 5, 5) == "tilewright: m must be 0 or more, not -5"
    assert refused("emit", 5, 5, -1) == "tilewright: k must be 0 or more, not -1"
    assert refused("tune", 3, -5, 5) == "tilewright: n must be 0 or more, not -5"
    assert "m must be less than 2^63, not 99999999999999999999" in refused("plan", "9" * 20, 5, 5)
    assert "the result must have less than 2^63 bytes" in refused("plan", 1 << 40, 1 << 40, 1)
    assert call("formats", "e4m3fn", "-1").exit_code == 2


# ---- completion


def completions(line: str, monkeypatch: pytest.MonkeyPatch, shell: str = "bash") -> list[str]:
    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("_TILEWRIGHT_COMPLETE", f"complete_{shell}")
    said = str(runner.invoke(app, [], prog_name="tilewright").output)
    return [line.partition("\t")[0] for line in said.splitlines()]


@pytest.mark.parametrize(("line", "wanted"), [
    ("tilewright la", {"ladder"}), ("tilewright plan 5 5 5 --target gf", {"gfx942", "gfx950"}),
    ("tilewright peak h", {"h100", "h200", "hopper"}), ("tilewright plan 5 5 5 -d mxfp4", {"mxfp4"}),
    ("tilewright emit -t sm_90a --step t", {"tiled", "texture", "tma"}),
    ("tilewright emit -t neon --step b", {"blocked"}),
    ("tilewright emit -t gfx950 --step mx", {"mxfp8", "mxfp4"}), ("tilewright formats e5", {"e5m2", "e5m2fnuz"}),
    ("tilewright mfma v_mfma_f64_16", {"v_mfma_f64_16x16x4_f64"}), ("tilewright plan 5 5 5 -l t", {"tn", "tt"}),
])
def test_shells_complete_names(line: str, wanted: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in ("bash", "fish"):
        assert set(completions(line, monkeypatch, shell)) == wanted
    assert all(name in " ".join(completions(line, monkeypatch, "zsh")) for name in wanted)


def test_completion_can_be_installed() -> None:
    said = at(100, "--help")
    assert "--install-completion" in said
    assert "--show-completion" in said


# ---- ends


def run_unread(*arguments: str) -> tuple[int, bytes]:
    """Exit status and standard error of a command whose output goes to a pipe that nothing reads."""
    reading, writing = os.pipe()
    process = subprocess.Popen([sys.executable, "-m", "tilewright", *arguments], cwd=ROOT, stdout=writing,
                               stderr=subprocess.PIPE)
    os.close(writing)
    os.close(reading)  # at once: the first write fails
    return process.wait(60), process.stderr.read()  # type: ignore[union-attr]


@pytest.mark.parametrize("arguments", [("formats",), ("--help",), ("plan", "--help"), ("mfma",)], ids=" ".join)
def test_a_closed_pipe_is_quiet(arguments: tuple[str, ...]) -> None:
    assert run_unread(*arguments) == (command.CLOSED, b"")


def test_ctrl_c_says_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "report", interrupted)
    done = call("doctor", "--no-measure")
    assert (done.exit_code, done.stderr) == (130, "tilewright: interrupted; nothing was written\n")
    with pytest.raises(typer.Exit) as ended, command.errors(lambda: "1 of 2 is kept"):
        raise KeyboardInterrupt
    assert ended.value.exit_code == command.INTERRUPTED
