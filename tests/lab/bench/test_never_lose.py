"""The suite never-lose: its shapes, what is shown of its cells, a short run; and a peer that is one file."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tests.helpers.command_line import call
from tests.helpers.reports import QUIET, shown
from tilewright.lab.bench import commands, contest, peer, plot, report, results, session, study
from tilewright.lab.bench.cases import GPU, Case, Job
from tilewright.lab.bench.peer import OURS, Setting
from tilewright.lab.bench.results import Report, Result, Row, Session
from tilewright.lab.bench.suites import never_lose as suite
from tilewright.lab.measure.measure import Rules, Sample

ROOT = Path(__file__).resolve().parents[3]
SHORT = Rules(turn_s=1e-6, warm_s=0.0, min_rounds=2, max_rounds=2, budget_s=0.0)


def test_there_are_150_shapes_of_every_group() -> None:
    found = suite.shapes()
    assert len(found) == len(set(found)) == 150
    assert list(dict.fromkeys(shape[0] for shape in found)) == list(suite.GROUPS)
    assert {shape[4] for shape in found} == {"nn", "nt", "tn", "tt"}
    assert {shape[1:4] for shape in found} >= {(m, 4096, 4096) for m in (64, 96, 128, 200)}


def test_words_choose_groups_and_products() -> None:
    assert len(suite.cases()) == 150 * len(suite.PRODUCTS)
    assert len(suite.cases(device=GPU)) == 300
    assert {c.product.key for c in suite.cases(quick=True)} == {"f32-f32-f32"}
    for group in suite.GROUPS:
        assert {c.suite for c in suite.cases([group])} == {group}
        assert len({c.label for c in suite.cases([group, "f32"])}) == sum(s[0] == group for s in suite.shapes())
    again = suite.cases(["again", "f32"], device=GPU)
    assert {c.suite for c in again} == {"squares", "odd", "skinny", "layouts", "views", "batches"}
    assert {str(c.problem) for c in again} >= {"gemm_f32_nn_257x257x257", "gemm_f32_tn_240x240x240",
                                               "gemm_f32_nn_2048x2048x2", "gemm_f32_nn_1x4096x4096",
                                               "gemm_f32_nn_16x16x16_b1000"}
    vectors = suite.cases(["vectors"])
    assert {c.product.a for c in vectors} == {"f32", "f64", "bf16", "i8", "f16", "c64", "i32"}
    assert {c.problem.k for c in vectors if c.problem.m == c.problem.n == 1} >= {10**i for i in range(1, 8)}
    assert {c.problem.layout for c in vectors} == {"nn", "nt", "tn", "tt"}
    views = suite.cases(["views", "f64"])
    assert len(views) == 17
    assert all(c.gap == 1 and c.problem.a == "f64" for c in views)
    assert {c.product.out for c in suite.cases(["i8-i8-i32"])} == {"i32"}
    with pytest.raises(ValueError, match=r"no product of 'i8' is timed; name a format \(f32, f64\), .* \(squares,"):
        suite.cases(["i8"], device=GPU)


def test_the_help_names_every_group() -> None:
    groups = call("bench", "never-lose", "--help").output.split("Groups of")[1].split("and formats")[0]
    assert [group for group in (*suite.GROUPS, suite.VECTORS, suite.AGAIN) if group not in groups] == []


def test_a_run_that_stops_early_has_cells_of_every_group() -> None:
    every = suite.cases(quick=True)
    assert sorted(c.label + c.suite for c in every) == sorted({c.label + c.suite for c in every})
    assert {c.suite for c in every[:30]} == set(suite.GROUPS)


def cell(n: int, ratio: float, threads: int = 1, dtype: str = "f32") -> Result:
    case = Case("squares", tw.Gemm(n, n, n, dtype))
    bound = {"what": "memory", "model_s": 0.5e-3, "plan": "a plan"}
    rows = (Row(OURS, Sample((1e-3,), 1), bound=bound), Row("numpy", Sample((ratio * 1e-3,), 1)),
            Row("mkl", Sample((5e-3,), 1)), Row("torch", error="left out: it multiplies one matrix at a time"))
    return Result(case, threads, "native", rows)


def test_cells_below_one_are_listed_with_their_bound_worst_first(tmp_path: Path) -> None:
    found = Report.start("never-lose")
    found.results += [cell(n, ratio) for n, ratio in ((64, 0.9), (128, 1.2), (256, 0.5), (512, 1.0))]
    found.results.append(cell(64, 0.8, threads=2, dtype="f64"))
    results.save(found, tmp_path / "r.json")
    found = results.load(tmp_path / "r.json")
    assert suite.lost(found.results) == [
        ["squares: f32 nn 256", "1", "0.500", "numpy", "33.6", "memory", "50%"],
        ["squares: f64 nn 64", "2", "0.800", "numpy", "0.524", "memory", "50%"],
        ["squares: f32 nn 64", "1", "0.900", "numpy", "0.524", "memory", "50%"],
    ]
    assert suite.means(found.results)[1] == ["f32", "1", "4", "0.857", "0.50", "0.50", "2", "2"]
    assert "the worst 3" in shown(found)
    assert commands.status(found) == 0  # losing is no failure
    found.results = [cell(64, 1.5)]
    assert "No cell is below 1.00." in shown(found)


def test_products_with_vectors_are_drawn_as_ratios(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = Report.start("never-lose")
    found.results = [replace(cell(n, 0.5 * n), case=Case("vectors", tw.Gemm(1, n, 10 * n, dtype)))
                     for n in (1, 2, 4) for dtype in ("f32", "f64")]
    ((title, panels),) = plot._ratios(found).items()
    assert title == "never-lose: the fastest peer's time over ours"
    assert [panel.title for panel in panels] == ["f32, 1 thread: numpy's time over ours",
                                                 "f64, 1 thread: numpy's time over ours"]
    assert re.findall("<title>([^,]+), ([0-9.]+)</title>", str(panels[0])) == [
        ("m = n = 1: f32 nn 1 x 1 x 10", "0.50"), ("m = 1: f32 nn 1 x 2 x 20", "1.00"),
        ("m = 1: f32 nn 1 x 4 x 40", "2.00")]
    plot.draw(found, tmp_path / "p.svg")
    assert "m = n = 1" in (tmp_path / "p.svg").read_text()
    found.results = found.results[:1]
    with pytest.raises(ValueError, match="nothing to plot: no two cells with a peer"):
        plot.draw(found, tmp_path / "p.svg")


@pytest.mark.parametrize("name", ["views", "batches"])
def test_cells_of_views_and_batches_are_right_and_say_their_bound(name: str) -> None:
    cases = sorted(suite.cases([name, "f32"]), key=lambda c: c.problem.flops)[:3]
    job = Job(1, "native", cases, SHORT, call_s=0.5, bounds=True)
    bench = contest.Bench(job, peer.find(Setting(), ["numpy"])[0])
    for case in cases:
        result = bench.run(case)
        assert [(row.name, row.error) for row in result.rows] == [(OURS, None), ("numpy", None)]
        row = result.row(OURS)
        assert row.bound["model_s"] > 0


def test_a_cell_without_a_model_has_no_bound() -> None:
    assert suite.bound(Case("", tw.Gemm(64, 64, 64, "u16")), tw.target("sm_90a")) is None
    for target, dtype in (("sm_90a", "f32"), ("sm_90a", "e2m1"), ("x86-avx2", "f64"), ("x86-avx2", "i8"),
                          ("x86-avx512", "bf16")):
        found = suite.bound(Case("", tw.Gemm(512, 512, 512, dtype)), tw.target(target), 2)
        assert found is not None
        assert set(found) == {"what", "model_s", "plan"}


# ---- a peer is one file


PEER = """
import numpy as np
from tilewright.lab.bench.cases import REAL
from tilewright.lab.bench.peer import Library, Peer, Way

def load(setting):
    return Peer("einsum", np.__version__, "numpy.einsum", ways)

def ways(product):
    if product.formats in REAL or product.key == "i64-i64-i64":
        yield Way("einsum", "numpy.einsum", lambda o: ((lambda: np.einsum("ij,jk->ik", o.a, o.b, out=o.c)), ()))

def beside(**given):
    return {"einsum": [(np.zeros, (1,))]}

STUDIES = "contract elementwise epilogues grouped prologues programs semirings small_batches weights".split()
PEER = Library("einsum", load, steered_by=("EINSUM_",), studies=dict.fromkeys(STUDIES, beside))
"""


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file einsum.py beside the peers that there are."""
    import tilewright.lab.bench.peers as package

    (tmp_path / "einsum.py").write_text(PEER)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    peer.libraries.cache_clear()
    yield
    peer.libraries.cache_clear()


@pytest.mark.usefixtures("dropped")
def test_a_file_in_the_folder_is_a_peer_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "einsum" in peer.names()
    assert peer.required(["einsum"]) == ["einsum"]
    monkeypatch.setenv("EINSUM_SLOW", "1")
    assert "EINSUM_SLOW" not in session.environment(1, "native")

    def process(job: Job, _: Session) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        session.work(job, lambda event, **details: found.append({"event": event, **details}))
        return found

    monkeypatch.setattr(session, "_process", process)
    monkeypatch.setattr(commands, "measured_peaks", lambda *_: {})
    monkeypatch.setattr(commands.shapes, "SQUARE", (8, 16))
    monkeypatch.setattr(commands.Rules, "choose", lambda *_: SHORT)
    path = tmp_path / "r.json"
    options = {"peers": ["einsum"], "quick": True, "json": path}
    assert commands.bench(commands.Options(**options), QUIET) == 0  # type: ignore[arg-type]
    assert [r.fastest_peer() for r in results.load(path).results] == ["einsum", "einsum"]
    chosen = commands.Options(only=["i64", "f64-f64-f64", "i8-i8-i8"], sizes=[16], **options)  # type: ignore[arg-type]
    assert commands.formats(chosen, QUIET) == 0
    found = {r.case.product.key: r.fastest_peer() for r in results.load(path).results}
    assert found == {"f64-f64-f64": "einsum", "i64-i64-i64": "einsum", "i8-i8-i8": None}


@pytest.mark.usefixtures("dropped")
def test_the_same_file_is_a_peer_of_every_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the suites with tables of their own, and of the scripts of bench/."""
    def kinds() -> set[str]:
        return {match for path in (ROOT / "bench").glob("*.py")
                for match in re.findall(r'study\.main\("([^"]+)"', path.read_text())}

    mine = next(library for library in peer.libraries() if library.name == "einsum")
    assert kinds() | {"contract", "elementwise", "epilogues", "weights"} == set(mine.studies)
    with monkeypatch.context() as alone:
        alone.setattr(peer, "libraries", lambda: (mine,))
        for kind in mine.studies:
            found = study.row(study.Case({}, {"tilewright": [lambda: 1]}), SHORT, None, kind)
            assert set(found["seconds"]) == {"tilewright", "einsum"}


# ---- results that documents quote


def committed() -> list[Path]:
    """The result files of `tilewright bench`; scripts of bench/ write others, which name no schema."""
    files = sorted((ROOT / "bench" / "results").glob("*.json"))
    return [path for path in files if isinstance(data := json.loads(path.read_text()), dict) and "schema" in data]


@pytest.mark.parametrize("path", committed(), ids=lambda path: path.stem)
def test_committed_results_are_read_and_shown(path: Path) -> None:
    report_read = results.load(path)
    assert Report.from_json(json.loads(json.dumps(report_read.to_json()))) == report_read
    assert len(shown(report_read)) > 500 or report_read.kind not in report.TABLES or report.on_gpu(report_read)
    if not report_read.results and "simulated" not in report_read.extra:
        assert any(report_read.extra.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", committed(), ids=lambda path: path.stem)
def test_committed_results_are_drawn(path: Path, tmp_path: Path) -> None:
    report_read = results.load(path)
    if report_read.results or "simulated" in report_read.extra:
        plot.draw(report_read, tmp_path / "p.svg")
        picture = ElementTree.parse(tmp_path / "p.svg")
        assert len(list(picture.iter("{http://www.w3.org/2000/svg}title"))) > 3     # of the picture, and of each point
