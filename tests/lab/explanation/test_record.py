"""The record of an explanation: the same fields everywhere, as docs/explain.md says, and drawn."""

from __future__ import annotations

import html
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import tilewright as tw
from tests.helpers.command_line import call
from tilewright.lab.drawing.pen import Shape
from tilewright.lab.explanation import picture
from tilewright.lab.explanation.record import Alternative, Part, Tile, cause
from tilewright.lab.explanation.terminal import not_taken, rate, why
from tilewright.lab.measure.measure import Spread
from tilewright.plans.common import Cost
from tilewright.text import size

SPACE = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).resolve().parents[3]
CASES = {
    "cpu": (tw.Gemm(300, 200, 100), "x86-avx2"),
    "nvidia": (tw.Gemm(4096, 4096, 4096, "bf16"), "sm_90a"),
    "few rows": (tw.Gemm(1, 4096, 4096), "sm_90a"),
    "amd": (tw.Gemm(4096, 4096, 4096, "mxfp4"), "gfx950"),
    "an epilogue": (tw.Gemm(30, 50, 70, epilogue=tw.epilogue(abs)), "sm_80"),
    "a batch": (tw.Gemm(3, 7, 200, "f64", batch=9), "sm_80"),
    "dots": (tw.Gemm(4096, 2, 4096, "f64"), "x86-avx512"),
    "stream": (tw.Gemm(2, 4096, 4096, "f32"), "x86-avx512"),
    "words": (tw.Gemm(100, 100, 100, "i8", out="i32"), "x86-avx512"),
    "complex": (tw.Gemm(50, 60, 70, "c64"), "x86-avx2"),
    "empty": (tw.Gemm(5, 5, 0), "sm_90a"),
}


def documented() -> dict[str, set[str]]:
    """Fields of the record, and of those that are records themselves their fields, as the page has them."""
    table = (ROOT / "docs/explain.md").read_text().split("## The record")[1]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", words)) for name, words in rows}


@pytest.mark.parametrize("case", CASES)
def test_the_record_is_what_the_page_says_and_comes_back(case):
    problem, target = CASES[case]
    found = tw.explain(problem, target)
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    fields = documented()
    assert list(record) == list(fields)
    for each in record["levels"]:
        assert each.keys() | {"what", "bytes", "times", "why"} == fields["levels"]
    for name in ("tiles", "alternatives"):
        assert all(each.keys() <= fields[name] for each in record[name])
    if record["time"]:
        assert record["time"].keys() | {"what", "seconds", "hidden"} == fields["time"]
        shown = sum(part["seconds"] for part in record["time"]["parts"] if not part["hidden"])
        assert shown == pytest.approx(record["time"]["predicted"])
        assert record["time"]["limit"] in {part["what"] for part in record["time"]["parts"]}
    back = tw.Explanation.of_record(record)
    assert back.record() == record
    said = texts(found.svg())
    assert (str(back), texts(back.svg())) == (str(found), said)
    with pytest.raises(ValueError, match="an explanation has schema 1, and this has 7"):
        tw.Explanation.of_record({**record, "schema": 7})
    check_picture(found, said)


def test_a_notebook_shows_the_picture_and_the_text():
    found = tw.explain(*CASES["cpu"])
    page = found._repr_html_()
    assert html.escape(str(found)) in page
    assert "<svg" in page


def texts(svg):
    """All that a picture says, in its order."""
    return [node.text.strip() for node in ElementTree.fromstring(svg).iter(SPACE + "text")]


def check_picture(found, said):
    """The picture's texts have the record's figures."""
    assert " ".join(said).startswith(found.title[:40])
    for level in found.levels:
        assert size(level.predicted) in said
    for tile in found.tiles[:-1]:
        assert f"{tile.name}  {tile}" in said


def test_bars_and_points_have_the_figures():
    """Predicted, simulated and measured bytes of a level to one scale; a full point at the measured rate."""
    found = tw.explain(*CASES["nvidia"])
    levels = tuple(replace(each, simulated=each.predicted // 2, measured=each.predicted // 4) for each in found.levels)
    time = replace(found.time, measured=Spread(3e-4, 2.9e-4, 3.1e-4))
    found = replace(found, levels=levels, time=time)
    drawn = picture.draw(found)
    shapes = [shape for shape in drawn.shapes if isinstance(shape, Shape)]
    bars = [(shape.corners[0][1][0] - shape.corners[0][0][0]) for shape in shapes
            if shape.shade == 0.7 and shape.corners[0][0][0] == 158]
    counts = [getattr(level, source) for level in levels for source in picture.SOURCES]
    assert bars == pytest.approx([430 * count / max(counts) for count in counts])       # all levels to one scale
    points = [shape for shape in shapes if shape.width == 1.8 and shape.fill and shape.line]
    assert [shape.fill == "back" for shape in points] == [True, False] * 3              # on each level's intensity
    predicted, measured = ({shape.corners[0][0][1] for shape in points[at::2]} for at in (0, 1))
    assert len(predicted) == len(measured) == 1
    assert (measured < predicted) == (time.predicted > 3e-4)                            # higher up is faster
    said = texts(str(drawn))
    assert {"operations per second", "operations per byte"} <= {*said}
    along = {node.text: node.get("transform", "") for node in ElementTree.fromstring(str(drawn)).iter(SPACE + "text")}
    assert "rotate" in along["operations per second"]       # beside the vertical axis
    assert not along["operations per byte"]
    assert f"measured 300 us, {3e-4 / time.predicted:.2f} of the prediction" in " ".join(said)


def test_a_picture_needs_no_matplotlib(monkeypatch):
    found = tw.explain(*CASES["cpu"])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert found.svg() in found.html()
    assert html.escape(str(found)) in found.html()


def test_tiles_have_the_parts_of_a_and_b():
    """The next tile is marked in A, B and C: to scale."""
    drawn = picture.draw(tw.explain(*CASES["nvidia"]))
    marked = [shape.corners[0] for shape in drawn.shapes if isinstance(shape, Shape) and shape.shade == 0.75]
    assert len(marked) % 3 == 0
    cluster = [(corners[1][0] - corners[0][0], corners[2][1] - corners[0][1]) for corners in marked[:3]]
    unit = picture.ROOM / 8192
    assert cluster == [pytest.approx((max(columns*unit, 2), max(rows*unit, 2)))
                       for rows, columns in ((256, 64), (64, 256), (256, 256))]


def test_every_alternative_has_a_reason():
    for case in CASES:
        found = tw.explain(*CASES[case])
        for other in found.alternatives:
            assert not_taken(found, other)
    slow = tw.explain(*CASES["cpu"])
    fast = Alternative("x", -0.001, "a", -2e-9)
    assert not_taken(slow, fast) == ("a, 2 ns less, predicted to be faster than the plan, which was measured, or "
                                     "chosen among fewer tiles; `tilewright tune` measures these")
    assert not_taken(replace(slow, origin="given"), fast).endswith("faster than the plan, which was given")
    assert not_taken(slow, Alternative("x", 0.0)) == "as long as the plan by the model: neither is better"


def test_the_pictures_of_the_pages_are_those_of_the_result_file():
    record = json.loads((ROOT / "bench/results/explain_h200.json").read_text())["cases"]["bf16 4096"]
    assert (ROOT / "docs/explain.svg").read_text() == tw.Explanation.of_record(record).svg()


def test_tiles_hold_the_next():
    """As many as are needed to cover the one around them."""
    for case in ("cpu", "nvidia", "amd"):
        tiles = tw.explain(*CASES[case]).tiles
        for outer, inner in pairwise(tiles):
            rows, columns = (-(-x // y) for x, y in zip(outer.plane, inner.plane))
            assert all(x >= y for x, y in zip(outer.plane, inner.plane))
            assert inner.count % (rows * columns) == 0, (outer, inner)  # several where they share k, or take turns


def test_the_cause_of_a_longer_time():
    one = Cost(10.0, (("a", 6.0), ("b", 4.0)))
    assert cause(one, Cost(13.0, (("a", 8.0), ("b", 5.0)))) == ("a", 2.0)
    assert cause(one, Cost(9.0, (("a", 6.0), ("b", 3.0)))) == ("b", -1.0)
    assert cause(one, one) == ("", None)
    assert cause(one, Cost(12.0, (("c", 12.0),))) == ("c", None)
    # of parts that overlap the longest counts: b grew, and a is what shows
    assert cause(one, Cost(12.0, (("a", 7.5), ("b", 7.0))), overlapping=True) == ("a", 1.5)
    assert cause(one, Cost(12.0, (("a", 6.0), ("b", 5.9))), overlapping=True)[1] == 2.0
    assert why(Alternative("x", 0.1, "a", 2e-6)) == "a, 2 us longer"
    assert why(Alternative("x", -0.1, "a", -2e-6)) == "a, 2 us less"
    assert (rate(5e11, 5e13), rate(5e13), rate(5e9)) == ("500.0 GFLOP/s", "50.0 TFLOP/s", "5.0 GFLOP/s")
    assert str(Tile("x", {"m": 2, "n": 3, "k": 4})) == "2 x 3, k 4"
    assert Part("x", 1.0).hidden is False


def test_files_on_the_command_line(tmp_path):
    def cli(*words):
        return call("explain", *words)

    svg, page, json_ = (tmp_path / name for name in ("x.svg", "x.html", "x.json"))
    done = cli(64, 64, 64, "-t", "sm_75", "--svg", svg, "--html", page, "--json", json_)
    assert done.exit_code == 0, done.output
    found = tw.explain(tw.Gemm(64, 64, 64), "sm_75")
    assert texts(svg.read_text()) == texts(found.svg())
    assert html.escape(str(found)) in page.read_text()
    assert json.loads(json_.read_text()) == json.loads(json.dumps(found.record()))
    assert cli(8, 8, 8, "--svg", tmp_path / "no" / "x.svg").exit_code == 2
    assert "give M, N and K" in cli(8).output
    assert "--step is counted in the simulator" in cli("--step", "shared", "-t", "sm_86", "--simulate").output
