"""bench formats: what is timed, its data, its errors, its peers' answers, its table and its picture; no clock."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from bench import readme
from tests.helpers.reports import shown
from tilewright import formats
from tilewright.lab.bench import chart, commands, contest, peer, plot, results, tables
from tilewright.lab.bench.cases import Case, Job, Product
from tilewright.lab.bench.peer import Peer, Setting, Way
from tilewright.lab.bench.results import BESIDE, Report, Result, Row, Session
from tilewright.lab.bench.suites import shapes
from tilewright.lab.bench.suites.shapes import PRODUCTS
from tilewright.lab.drawing.pen import Words
from tilewright.lab.measure import check, operands
from tilewright.lab.measure.check import Reference
from tilewright.lab.measure.measure import Rules, Sample
from tilewright.lab.measure.operands import Operands

ROOT = Path(__file__).resolve().parents[3]

PLAIN = [p for p in PRODUCTS if p.algorithm is None]
SHORT = Rules(turn_s=1e-6, warm_s=0.0, min_rounds=2, max_rounds=2, budget_s=0.0)


def product(key: str) -> Product:
    return next(p for p in PRODUCTS if p.key == key)


def make(key: str, m: int, n: int, k: int) -> Operands:
    return operands.make(product(key).gemm(m, n, k))


# ---- what is timed


def test_words_choose_products() -> None:
    def keys(*words: str) -> list[str]:
        return [p.key for p in shapes.chosen(words)]

    assert keys() == [p.key for p in PRODUCTS]
    assert keys("i8") == ["i8-i8-i8", "i8-i8-i32", "u8-i8-i32", "i8-i4-i32"]
    assert keys("i64", "c64") == ["i64-i64-i64", "c64-c64-c64"]
    assert keys("u8-i8-i32") == ["u8-i8-i32"]
    assert keys("bf16_bf16_f32_x6") == ["f32-f32-f32:bf16_bf16_f32_x6"]
    assert keys("f32-f32-f32") == ["f32-f32-f32"]
    assert len(keys("f32")) == 4
    with pytest.raises(ValueError, match=r"no product of 'bf16-f32' is timed; name a format \(f64, .* or a product"):
        keys("bf16-f32")


def test_products_say_what_they_are() -> None:
    assert len({p.key for p in PRODUCTS}) == len({p.label for p in PRODUCTS}) == len(PRODUCTS)
    assert product("bf16-bf16-f32").label == "bf16 → f32"
    assert product("u8-i8-i32").label == "u8 x i8 → i32"
    assert product("f32-f32-f32:bf16_bf16_f32_x6").label == "f32 by bf16_bf16_f32_x6"
    assert (product("i8-i8-i8").unit, product("f16-f16-f16").unit) == ("GOP/s", "GFLOP/s")
    assert product("c64-c64-c64").operations(2, 3, 5) == 4 * product("f32-f32-f32").operations(2, 3, 5)
    named = {name for p in PRODUCTS for name in (p.a, p.b)}
    wanted = "f64 f32 f16 bf16 e4m3fn e4m3fnuz e5m2 e2m3 e3m2 e2m1 i4 i8 u8 i16 i32 i64 c64 c128"
    assert named >= set(wanted.split())


# ---- data


@pytest.mark.parametrize("f", formats.FORMATS.values(), ids=str)
def test_numbers_are_finite_and_cover_the_format(f: formats.Format) -> None:
    x = operands.numbers(f, (300, 300), np.random.default_rng(0))
    assert (x.shape, x.dtype) == ((300, 300), f.dtype)
    wide = x.astype(np.complex128 if isinstance(f, formats.Complex) else np.float64)
    assert np.isfinite(wide).all()
    if isinstance(f, formats.Integer) and f.bits > 16:
        assert wide.min() < f.smallest / 1.01 or not f.signed
        assert wide.max() > f.largest / 1.01
    elif isinstance(f, formats.Integer) or f.bits <= 8:
        assert (wide.min(), wide.max()) == (f.smallest, f.largest)
        if f.name != "bool":
            finite = sum(math.isfinite(f.decode(p)) for p in range(2 ** min(f.bits, 8)))
            assert len(np.unique(x.view(np.uint8) if f.bits < 16 else x)) >= min(finite, 256)
    else:
        assert abs(wide.real.std() - 1) < 0.02
        assert (wide == 0).mean() < 0.001


def test_matrices_start_poisoned_and_parts_are_views() -> None:
    s = make("bf16-bf16-f32", 9, 7, 5)
    assert s.sizes == (9, 7, 5)
    assert np.isnan(s.c).all()
    assert (make("i8-i8-i32", 3, 3, 3).c == -1).all()
    part = s.first(4)
    assert part.sizes == (4, 7, 5)
    assert np.shares_memory(part.a, s.a)
    assert np.shares_memory(part.c, s.c)


# ---- errors


def right(s: Operands) -> None:
    """C as the reference has it, rounded once."""
    out = formats.get(s.problem.out)
    if isinstance(out, formats.Integer):
        wide = np.frompyfunc(int, 1, 1)
        exact = wide(s.a.astype(np.int64)) @ wide(s.b.astype(np.int64))
        bits = np.frompyfunc(lambda v: (v + 2 ** (out.bits - 1)) % 2**out.bits - 2 ** (out.bits - 1), 1, 1)(exact)
        s.c[...] = bits.astype(np.int64)
    else:
        kind = np.clongdouble if isinstance(out, formats.Complex) else np.longdouble
        with np.errstate(all="ignore"):
            s.c[...] = (s.a.astype(kind) @ s.b.astype(kind)).astype(s.c.dtype)


@pytest.mark.parametrize("p", PLAIN, ids=lambda p: p.key)
def test_right_results_pass_and_a_planted_mistake_is_found(p: Product) -> None:
    s = operands.make(p.gemm(20, 24, 30))
    right(s)
    reference = Reference(s)
    assert reference.wrong(s.c) is None
    assert reference.error(s.c) == 0 if p.exact else reference.error(s.c) <= 1
    assert reference.wrong(s.first(8).c) is None
    for row in (0, 7, 19):
        kept = s.c[row, 3].copy()
        if p.exact:
            s.c[row, 3] += np.array(1, s.c.dtype)
        else:
            s.c[row, 3] = kept.astype(s.c.dtype.type) * s.c.dtype.type(1.5) + s.c.dtype.type(1e-3)
        assert reference.wrong(s.c) is not None, row
        assert (reference.wrong(s.c[:8]) is None) == (row >= 8)
        s.c[row, 3] = kept
    s.poison()
    assert reference.wrong(s.c) is not None


@pytest.mark.parametrize("key", ["f32-f32-f32", "bf16-bf16-bf16", "i8-i8-i32", "i64-i64-i64", "c64-c64-c64"])
def test_rows_that_are_not_compared_are_seen_by_freivalds(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.lab.measure.check.FULL_LIMIT", 0)
    monkeypatch.setattr(check, "ROWS", 8)
    s = make(key, 90, 50, 40)
    right(s)
    reference = Reference(s)
    assert len(reference.rows) == 8
    assert reference.wrong(s.c) is None
    unseen = next(i for i in range(89, 0, -1) if i not in reference.rows)
    s.c[unseen] = -s.c[unseen] if not reference.bits else s.c[unseen] ^ 1
    assert f"row {unseen} of C fails Freivalds' test" in str(reference.wrong(s.c))
    assert reference.error(s.c) <= (0 if reference.bits else 1)


def test_the_error_is_in_units_of_the_results_format() -> None:
    for key, unit in (("f32-f32-f32", 2.0**-24), ("bf16-bf16-bf16", 2.0**-8), ("f64-f64-f64", 2.0**-53)):
        s = make(key, 4, 4, 4)
        one = np.ones((4, 4), s.a.dtype)
        s = Operands(s.problem, one, one, s.c)
        s.c[...] = 4
        s.c[1, 1] = np.array(4 * (1 + 2 * unit)).astype(s.c.dtype)
        assert Reference(s).error(s.c) == pytest.approx(2)


def test_sums_in_a_narrow_format_are_allowed_to_peers_alone() -> None:
    s = make("bf16-bf16-bf16", 30, 30, 400)
    s.c[...] = 0
    for p in range(400):
        s.c[...] = s.c + np.multiply.outer(s.a[:, p], s.b[p])
    reference = Reference(s)
    assert reference.wrong(s.c) is not None
    assert reference.wrong(s.c, rounded_once=False) is None
    s.c[...] = 0
    assert reference.wrong(s.c, rounded_once=False) is not None


# ---- whom


LIBRARIES = peer.find(Setting(), ["numpy", "openblas", "torch", "mkl"])[0]


def ways(p: Product, libraries: list[Peer] = LIBRARIES) -> list[Way]:
    return [way for each in libraries for way in each.ways(p)]


@pytest.mark.parametrize("p", PLAIN, ids=lambda p: p.key)
def test_every_way_gives_the_right_numbers(p: Product) -> None:
    """Or says in words that it cannot, on this machine; NumPy and we always can."""
    s = operands.make(p.gemm(65, 70, 80))
    reference = Reference(s)
    everybody = ways(p)
    assert [e.name for e in everybody[:2]] == ["tilewright", "numpy"]
    assert len({e.name for e in everybody}) == len(everybody)
    for e in everybody:
        s.poison()
        try:
            fn, args = e.bind(s)
            returned = fn(*args)
        except RuntimeError:
            assert e.name.startswith("torch")
            continue
        c = s.c if e.returns is None else e.returns(returned)
        assert c.dtype == s.c.dtype
        ours = e.name in ("tilewright", "numpy")
        # MKL's products of i16 saturate on CPUs by other makers; that this is seen is what the bench relies on
        if not (e.name.startswith("mkl") and p.a == "i16"):
            assert reference.wrong(c, rounded_once=ours) is None, e.name


def test_who_takes_part() -> None:
    def names(key: str) -> list[str]:
        return [way.name for way in ways(product(key))]

    assert "numpy floats" in names("i8-i8-i32")
    assert "numpy floats" in names("f16-f16-f16")
    assert "numpy floats" not in names("i32-i32-i32")
    libraries = [each.name for each in LIBRARIES]
    assert libraries[0] == "tilewright"
    if "mkl" in libraries:
        assert {"mkl", "mkl packed"} <= set(names("bf16-bf16-f32")) & set(names("u8-i8-i32"))
        assert "mkl" not in names("bf16-bf16-bf16")
    if "torch" in libraries:
        assert "torch" in names("bf16-bf16-bf16")
        assert "torch" not in names("bf16-bf16-f32")
    openblas = [each for each in LIBRARIES if each.name == "openblas"]
    assert ways(product("bf16-bf16-f32"), openblas) == []


# ---- the process that measures


def job(*cases: Case, **options: Any) -> Job:
    return Job(1, "native", list(cases), SHORT, prepared=True, **options)


def case(key: str, n: int) -> Case:
    return shapes.format_cases([product(key)], [n])[0]


def alone(*more: Peer) -> list[Peer]:
    return [peer.ours(Setting()), *more]


def test_slow_peers_are_given_fewer_rows_and_we_never(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def bench(per_row: float | Callable[[int], float], once: float = 0.0) -> int:
        def bind(s: Operands) -> Any:
            def call() -> None:
                now[0] += once + len(s.a) * (per_row(len(s.a)) if callable(per_row) else per_row)
                np.matmul(s.a, s.b, s.c)

            return call, ()

        slow, device = Way(who, "", bind), contest.Cpu(job(call_s=1.0), lambda: now[0])
        o, timed = make("f32-f32-f32", 1000, 8, 8), case("f32-f32-f32", 8)
        timed = replace(timed, problem=o.problem)
        _, rows, _ = device.checked(slow, timed, [o], device.reference(timed, o))
        return rows or 1000

    who = "numpy"
    assert bench(1e-6) == 1000
    assert bench(0.99e-3) == 1000
    assert bench(1e-2) == pytest.approx(100, abs=1)
    assert bench(10.0) == 8
    assert bench(1e-2, once=0.01) == pytest.approx(100, abs=1)
    assert bench(1e-2, once=0.2) == pytest.approx(400, abs=1)  # once is no more than a twentieth of the call
    assert bench(1e-6, once=100.0) == 1000
    monkeypatch.setattr(contest, "SLOW", 128 / 0.01 * 0.99)  # operations a row, and what is fast from 10 ms a row
    assert bench(1e-2) == 1000
    assert bench(2e-2) == pytest.approx(50, abs=1)
    assert bench(lambda rows: 1e-2 if rows > 16 else 4e-2) == 1000  # a few rows at a time are no fair sample
    who = "tilewright"
    assert bench(10.0) == 1000


def test_what_is_absent_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **options: object) -> None:
        raise ValueError(f"algorithm must be None\n  in this version, not {options['algorithm']!r}")

    monkeypatch.setattr(tw, "matmul", refuses)
    timed = contest.Bench(job(), alone()).run(case("f32-f32-f32:bf16_bf16_f32_x6", 32))
    (row,) = timed.rows
    assert row.error == "absent: algorithm must be None in this version, not 'bf16_bf16_f32_x6'"
    assert commands.status(report_of(timed)) == 0


def test_a_wrong_or_broken_peer_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(s: Operands) -> Any:
        return s.c.fill, (0,)

    def breaks(s: Operands) -> Any:
        raise RuntimeError("no such\ninstruction")

    everybody = alone(peer.single("zeros", "", "", zeros), peer.single("breaks", "", "", breaks))
    timed = contest.Bench(job(), everybody).run(case("i8-i8-i32", 32))
    rows = {row.name: row for row in timed.rows}
    assert str(rows["zeros"].error).startswith("wrong result: C[")
    assert rows["breaks"].error == "RuntimeError: no such instruction"
    assert rows["tilewright"].sample
    assert rows[BESIDE].sample
    assert commands.status(report_of(timed)) == 0
    assert commands.status(report_of(replace(timed, rows=(Row("tilewright", error="wrong result: 1"),)))) == 1


@pytest.mark.slow
def test_three_formats_end_to_end(tmp_path: Path) -> None:
    from rich.console import Console

    path = tmp_path / "r.json"
    options = commands.Options(
        only=["f16-f16-f16", "i8-i8-i32", "c64"], sizes=[64], peers=["numpy"], quick=True, json=path
    )
    with (tmp_path / "shown").open("w") as file:
        assert commands.formats(options, Console(file=file, width=200)) == 0
    report = results.load(path)
    timed = report.results
    assert [t.case.product.key for t in timed] == ["f16-f16-f16", "i8-i8-i32", "c64-c64-c64"]
    assert {t.case.problem.n for t in timed} == {64}
    assert all(t.gflops() and t.gflops("numpy") and t.gflops(BESIDE) for t in timed)
    assert report.sessions[0].notes == []
    assert "i8 → i32" in (tmp_path / "shown").read_text()


# ---- what is shown


def canned(key: str, n: int = 1024, threads: int = 1, scale: float = 1.0) -> Result:
    """Ours 10 ms, NumPy 100 times that per row, on 64 rows, MKL 1.5 times, with B packed 1.2 times, f32 3 times."""
    p, ours = product(key), np.array([1e-2, 2e-2, 1e-2]) * scale

    def row(name: str, times: float, m: int = 0, deviation: float = 0.25, prepared: bool = False) -> Row:
        sample = Sample(tuple(map(float, ours * times * (m or n) / n)), 3)
        return Row(name, sample, how=f"{name}()", m=m, deviation=deviation, prepared=prepared)

    exact = 0.0 if p.exact else 0.25
    rows = (row("tilewright", 1, deviation=exact), row("numpy", 100, 64, exact), row("mkl", 1.5, deviation=exact * 3),
            row("mkl packed", 1.2, prepared=True), row(BESIDE, 3), Row("torch", error="wrong result: off by 3"))
    return Result(case(key, n), threads, "native", rows)


def report_of(*found: Result) -> Report:
    report = Report.start("formats")
    report.machine.update(cpu="Test CPU", caches={"l2": 1 << 20}, virtual=False, cpus_allowed=2)
    report.sessions.append(Session(1, "native", [{"name": "numpy", "version": "2", "how": "numpy.matmul"}]))
    report.results.extend(found)
    return report


def test_ratios_count_rows_and_are_taken_round_by_round() -> None:
    t = canned("i8-i8-i32")
    assert t.gflops() == pytest.approx(2 * 1024**3 / 1e-2 / 1e9)
    found = [ratio.median for name in ("numpy", "mkl", "mkl packed", BESIDE) if (ratio := t.ratio(name))]
    assert found == pytest.approx([100, 1.5, 1.2, 3])
    assert t.peers() == ["mkl", "numpy"]
    assert t.peers(prepared=True) == ["mkl packed"]
    assert canned("c64-c64-c64").ratio(BESIDE).median == pytest.approx(12)  # type: ignore[union-attr]  # four times the work
    assert t.ratio("torch") is None
    assert Result.from_json(json.loads(json.dumps(t.to_json()))) == t


def test_the_table() -> None:
    absent = Result(case("f32-f32-f32:bf16_bf16_f32_x6", 1024), 1, "native",
                    (Row("tilewright", error="absent: no such algorithm"),))
    head, *lines = tables.format_lines([canned("bf16-bf16-f32"), canned("i8-i8-i32"), absent])
    assert head == [*tables.FORMATS_HEAD, "remark"]
    assert lines == [
        ["bf16 → f32", "215", "3.00", "100 (64 rows)", "1.50 mkl", "1.20 mkl packed", "0.25", "0.75", ""],
        ["i8 → i32", "215", "3.00", "100 (64 rows)", "1.50 mkl", "1.20 mkl packed", "exact", "exact", ""],
        ["f32 by bf16_bf16_f32_x6", *["-"] * 7, "absent: no such algorithm"],
    ]
    assert tables.format_lines([canned("bf16-bf16-f32")])[0] == tables.FORMATS_HEAD


def test_the_terminal_and_the_documents_show_it(tmp_path: Path) -> None:
    measured = report_of(canned("bf16-bf16-f32"), canned("i8-i8-i32"), canned("i8-i8-i32", 2048, 2))
    text = " ".join(shown(measured).split())
    assert "m = n = k = 1024, 1 thread" in text
    assert "m = n = k = 2048, 2 threads" in text
    assert "torch, i8 → i32 nn 2048, 2 threads: wrong result: off by 3" in text
    assert "max |C - A B| / (u |A| |B|)" in text

    (tmp_path / "bench").mkdir()
    results.save(measured, tmp_path / "bench" / "r.json")
    page = "<!-- figure: formats bench/r.json threads=2 n=2048 -->\n<!-- /figure -->\n"
    filled = readme.fill(page, tmp_path)
    assert "| i8 → i32 | 1718 | 3.00 | 100 (64 rows) | 1.50 mkl | 1.20 mkl packed | exact | exact |" in filled
    for wrong, words in (("threads=1 n=2048", "chooses 0 tables"), ("dtype=i8", "unknown option 'dtype'"),
                         ("isa=native", "chooses 2 tables")):
        with pytest.raises(readme.FigureError, match=words):
            readme.fill(page.replace("threads=2 n=2048", wrong), tmp_path)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "p.png"
    one = [canned(p.key, scale=1 + i) for i, p in enumerate(PRODUCTS[::4])]
    plot.draw(report_of(*one, canned("i8-i8-i32", threads=2), canned("i8-i8-i32", 512)), path)
    assert path.stat().st_size > 10_000
    absent = Result(case("i8-i8-i32", 64), 1, "native", (Row("tilewright", error="absent: x"),))
    with pytest.raises(ValueError, match="nothing to plot"):
        plot.draw(report_of(absent), path)


@pytest.fixture
def zen5() -> Report:
    return results.load(ROOT / "bench" / "results" / "zen5_formats.json")


def test_the_picture_has_points_and_no_label_on_another_or_over_the_edge(zen5: Report) -> None:
    ((title, (whole,)),) = plot._formats(zen5, 2048).items()
    assert "m = n = k = 2048" in title
    left, top, wide, high = whole.box
    field = chart.WIDTH, 18 * len(zen5.results) // 4
    shown = [text for text in whole.shapes if isinstance(text, Words) and not text.text.isdecimal()]
    sides = {row.name for r in zen5.results if r.case.problem.n == 2048 for row in r.rows if row.sample}
    # labels and ratios of a quarter of the results, which are of four sizes; a head over the ratios, and the unit
    assert len(shown) == 2 * len(zen5.results) // 4 + 2 + len(sides - {BESIDE})
    boxes = []
    for text in shown:
        long = whole.length(text.text, text.size)
        start = text.x - {"start": 0.0, "middle": long / 2, "end": long}[text.anchor]
        boxes.append((start, text.y - text.size, start + long, text.y + text.size / 4))
    for number, (x0, y0, x1, y1) in enumerate(boxes):
        assert left <= x0 <= x1 <= left + wide
        assert top <= y0 <= y1 <= top + high
        assert x1 <= 0 or x0 >= field[0] or y1 <= 0 or y0 >= field[1], shown[number]
        assert not any(x0 < a1 and a0 < x1 and y0 + 1 < b1 and b0 + 1 < y1 for a0, b0, a1, b1 in boxes[:number]), \
            shown[number]


def test_the_committed_picture_is_of_the_committed_results_and_of_the_tables_size(zen5: Report) -> None:
    """Which `python bench/readme.py plot RESULT.json PICTURE.png 2048` writes."""
    from PIL import Image

    with Image.open(ROOT / "bench" / "results" / "zen5_formats.png") as picture:
        said = picture.info
    assert said["Source"] == plot.digest(zen5)
    tables = "".join(path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))))
    sizes = re.findall(r"^<!-- figure: formats bench/results/zen5_formats.json .*n=(\d+)", tables, re.MULTILINE)
    assert {said["Title"]} == {f"m = n = k = {n}" for n in sizes}
