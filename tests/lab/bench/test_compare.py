"""Two result files compared: what is called faster, slower, and neither; and the page of a report."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

import tilewright as tw
from tests.helpers import browser
from tests.helpers.command_line import call
from tests.package.test_results import RESULTS
from tilewright.lab.bench import compare, page, results
from tilewright.lab.bench.cases import Case
from tilewright.lab.bench.chart import Axis, Point, Series, chart, strip
from tilewright.lab.bench.results import Report, Result, Row, Session
from tilewright.lab.measure.measure import Sample

SIZES = tuple(range(64, 64 + 40 * 16, 16))


def report(seed: int, ours: float = 1.0, slow: float = 1.0, disturbed: tuple[int, ...] = (), kind: str = "bench",
           noise: float = 0.01, only: dict[int, float] | None = None, version: str = "1") -> Report:
    """40 squares beside two peers. ours: the time of tilewright; slow: of the machine; only: of some sizes."""
    draw, found = random.Random(seed), Report.start(kind)
    found.sessions = [Session(1, "native", [{"name": x, "version": version, "how": ""} for x in ("numpy", "torch")])]

    def row(name: str, n: int, seconds: float, rounds: list[float]) -> Row:
        run = draw.gauss(0, noise / 4)
        times = tuple(seconds * slow * (1 + x + run + draw.gauss(0, noise / 2)) for x in rounds)
        return Row(name, Sample(times, 1, disturbed=n in disturbed))

    for n in SIZES:
        rounds = [draw.gauss(0, noise) for _ in range(9)]
        sides = {"tilewright": ours * (only or {}).get(n, 1.0), "numpy": 1.1, "torch": 1.3}
        rows = tuple(row(name, n, 1e-9 * n**3 * times, rounds) for name, times in sides.items())
        found.results.append(Result(Case("square", tw.Gemm(n, n, n)), 1, "native", rows))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_same_code_twice_is_no_difference(seed: int) -> None:
    found = compare.compare(report(seed), report(seed + 100, slow=1.4))
    assert found.count(compare.SAME) >= 38
    assert not found.mean or found.mean[1] < 1 < found.mean[2]
    assert found.seen
    assert 0.003 < found.noise < 0.03


def test_what_changed_is_called_faster_or_slower() -> None:
    """In a file of a machine that was 1.4 times slower that day."""
    found = compare.compare(report(1), report(2, ours=0.9, slow=1.4, only={64: 1.3}, disturbed=(80,)))
    assert (found.count(compare.FASTER), found.count(compare.SLOWER), found.count(compare.DISTURBED)) == (38, 1, 1)
    assert found.slower
    assert found.mean
    assert 1.08 < found.mean[0] < 1.13
    assert "38 faster, 1 slower, 1 disturbed. Geometric mean 1.1" in found.verdict
    assert [x.beside for x in found.cells] == ["numpy"] * 40
    times = compare.compare(report(1), report(2, ours=0.9, slow=1.4), absolute=True)
    assert times.count(compare.SLOWER) == 40
    assert not times.seen


def test_without_a_peer_of_the_same_version_times_are_compared() -> None:
    found = compare.compare(report(1), report(2, version="2"))
    assert "There is no peer in the same version" in found.notes[0]
    assert {x.beside for x in found.cells} == {""}
    with pytest.raises(ValueError, match="no cell in common"):
        compare.compare(report(1), Report.start("bench"))


def test_records_of_studies_are_cells_too() -> None:
    old = results.load(RESULTS / "zen4_epilogues.json")
    found = compare.compare(old, old)
    assert len(found.cells) == len(old.extra["epilogues"])
    assert found.verdict.startswith(f"{len(found.cells)} cells: {len(found.cells)} no difference")


def test_the_command_says_it_in_80_columns_and_by_its_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, found in zip(paths, (report(1), report(2, only={64: 1.3}))):
        results.save(found, path)
    said = call("bench", "compare", *paths)
    assert said.exit_code == 0, said.output
    assert "slower   numpy   square: f32 nn 64" in said.output
    assert max(map(len, said.output.splitlines())) <= 80
    assert call("bench", "compare", *paths, "--fail-slower").exit_code == 1
    assert call("bench", "compare", paths[0], paths[0], "--fail-slower").exit_code == 0
    record = json.loads(call("bench", "compare", *paths, "--json").output)
    assert {x["verdict"] for x in record["cells"]} >= {"slower"}


# ---- the page

@pytest.mark.parametrize("name", ["zen4_einsum_1_thread", "zen5_formats", "h200_random_9101", "zen4_contract",
                                  "tiles_avx512_zen4", "ladder_gpu_simulated", "h200_terms"])
def test_a_result_file_becomes_one_page_without_a_network(name: str, tmp_path: Path) -> None:
    found = results.load(RESULTS / f"{name}.json")
    page.write(found, tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text()
    assert not re.search(r"""(src|href)=["']?http|<link|<script|@import""", text)
    assert text.count("<table>") >= 1
    assert found.created[:10] in text
    assert str(found.commit) in text
    assert ("belong to no commit" in text) == str(found.commit).endswith("-dirty")
    assert ("<svg" in text) == bool(found.results)
    assert "[green]" not in text


def test_disturbed_points_are_hollow_and_a_chart_has_one_baseline() -> None:
    svg = page.page(report(1, disturbed=(80,)))
    assert svg.count("disturbed by other processes</title>") == 3
    found = report(1, kind="random", disturbed=(80,))
    svg = page.page(found)
    assert "times as fast as numpy" in svg
    assert "times as fast as torch" not in svg
    assert svg.count("disturbed by other processes</title>") == 1


def test_axes_have_round_ticks() -> None:
    assert Axis(0, 236, 100).ticks == [0, 50, 100, 150, 200]
    assert Axis(900, 2e6, 100, log=True).ticks == pytest.approx([1e3, 1e4, 1e5, 1e6])
    assert Axis(0.6, 1.6, 100, log=True).ticks == pytest.approx([0.64, 0.8, 1, 1.25, 1.5625])
    for draw in (lambda: chart("", [Series("x", "blue")], ("", "")), lambda: strip("", [("f32", {})], "", {})):
        with pytest.raises(ValueError, match="nothing to plot"):
            draw()
    one = chart("one", [Series("x", "blue", [Point(1.0, 1.0, 1.0, 1.0)])], ("n", "rate"))
    assert "nan" not in str(one)


def test_a_page_fits_a_phone_and_a_desktop(tmp_path: Path) -> None:
    """Light and dark, without a request; tables scroll inside, and text of charts can be read."""
    with browser.browser() as chromium:
        for name in ("zen5_formats", "h200_random_9101"):
            page.write(results.load(RESULTS / f"{name}.json"), tmp_path / "p.html")
            for size, dark in ((browser.PHONE, True), (browser.DESKTOP, False)):
                with browser.page(chromium, tmp_path / "p.html", size, dark) as opened:
                    assert browser.overflow(opened) == 0
                    assert opened.errors == []
                    assert opened.evaluate("Math.min(...[...document.querySelectorAll('svg text')].map("
                                           "x => x.getBoundingClientRect().height))") > 8
