"""What the page shows is what the simulator counts: records of each kind of kernel, checked without a browser."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.command_line import call
from tilewright.lab.show import code, launches, own, sliders
from tilewright.lab.show.pages import data_of
from tilewright.lab.show.record import Record

TRANSPOSE = """
from tilewright.ir import Kernel, f32, ptr

def emit_transpose(PAD=0):
    k = Kernel("transpose", threads=(32, 8), x=ptr(f32), y=ptr(f32))
    x, y = (array.view(32, 1) for array in k.args)
    tile = k.smem("tile", (32, 32 + PAD), f32)
    tx, ty = k.thread
    for row in range(0, 32, 8):
        tile[row + ty, tx] = x[row + ty, tx]
    k.barrier()
    for row in range(0, 32, 8):
        y[row + ty, tx] = tile[tx, row + ty]
    return k.function
"""


def made(step, target, sizes=None):
    return Record(launches.of_step(step, tw.target(target), sizes), step)


def products(data):
    """How often each (i, p, j) is multiplied by a thread, from the operands of multiply-adds."""
    (m, n, k), found = data["size"], Counter()
    for step in data["steps"]:
        if "a" not in step:
            continue
        columns = {side: [np.where(np.array(data["patterns"][p]) < 0, -1, np.array(data["patterns"][p]) + base)
                          for p, base in step[side]] for side in "ab"}
        for a in columns["a"]:
            for b in columns["b"]:
                both = (a >= 0) & (b >= 0) & (a % k == (b - m * k) // n)
                for x, y in zip(a[both].tolist(), b[both].tolist()):
                    found[x // k, x % k, (y - m * k) % n] += 1
    return found


def counters(data):
    """(moved, ideal) of each site, from the steps' costs."""
    found = defaultdict(lambda: np.zeros(2, int))
    for step in data["steps"]:
        kind = data["kinds"][step["k"]]
        for request in step.get("q", ()):
            if not kind["bulk"] and request[2] >= 0:
                found[kind["site"]] += np.sum([w[1:] for w in data["costs"][request[2]]["warps"]], axis=0)
    return found


@pytest.mark.parametrize("step", ["naive", "registers", "shared"])
def test_every_product_is_made_once_and_every_pass_is_counted(step):
    record = made(step, "sm_90a", (32, 32, 16))
    data = record.data
    m, n, k = data["size"]
    found = products(data)
    assert len(found) == m * n * k
    assert set(found.values()) == {1}
    for site, (moved, ideal) in counters(data).items():
        assert (data["sites"][site]["moved"], data["sites"][site]["ideal"]) == (moved, ideal)
    stored = np.zeros(m * n)
    for number in (x["k"] for x in data["steps"]):
        assert data["kinds"][number]["line"] < len(record.lines.rows)
    for step_row in data["steps"]:
        kind = data["kinds"][step_row["k"]]
        if kind["op"] == "store" and kind["array"] == "c":
            for (pattern, base), *_ in step_row["q"]:
                at = np.array(data["patterns"][pattern])
                stored[at[at >= 0] + base] += 1
    assert (stored == 1).all()


def test_what_lies_in_shared_memory_is_known_through_swizzles_and_copies():
    data = made("tma", "sm_90a", (128, 128, 128)).data
    starts = [kind["op"] == "store" and kind["starts"] for kind in data["kinds"]]
    copies = [x for x in data["steps"] if starts[x["k"]]]
    ids = {request[1][0][1] + x for step in copies for request in step["q"]
           for x in data["patterns"][request[1][0][0]] if x >= 0}
    assert len(ids) == 2 * 128 * 128                    # all of A and of B come by copies
    assert all(step["arrives"] > number for number, step in enumerate(data["steps"]) if step in copies)
    rows = [step for step in data["steps"] if data["kinds"][step["k"]]["op"] == "wgmma"]
    assert len(rows) == 128 // 16
    assert all(step["a"] and step["b"] for step in rows)


def test_left_out_lines():
    record = made("shared", "sm_90a", (32, 32, 16))
    first, second = record.broken()
    assert first["kind"] == second["kind"] == "race"
    kinds = [record.data["kinds"][record.data["steps"][x["step"]]["k"]] for x in (first, second)]
    assert [(x["op"], x["array"]) for x in kinds] == [("store", "a_smem"), ("load", "a_smem")]
    assert first["here"]["thread"] != first["other"]["thread"]


@pytest.mark.parametrize(("step", "target"), [("micro", "x86-avx2"), ("micro", "zen4"), ("f16", "gfx942"),
                                              ("fp8", "gfx950")])
def test_cpu_and_amd(step, target):
    data = made(step, target).data
    assert data["traced"]
    assert data["sources"]
    operands = [x for x in data["steps"] if "a" in x]
    assert operands
    assert all(x["a"] and x["b"] for x in operands)


def test_a_plan_of_matmul():
    data = Record(launches.of_problem(tw.Gemm(32, 32, 32), tw.target("sm_80")), "plan").data
    found = products(data)
    assert len(found) == 32**3
    assert data["chosen"]["plan"].startswith("simt")


def held_by_warps(data):
    """How often each (i, p, j) is multiplied by a warp, from the fragments of matrix instructions."""
    (m, n, k), warp, found = data["size"], data["warp"], Counter()
    rows = data["patterns"]
    for step in (x for x in data["steps"] if "a" in x):
        for w in step["w"]:
            a, b = ({int(x) + base for ref, base in step[side] for x in rows[ref][w * warp:(w + 1) * warp] if x >= 0}
                    for side in "ab")
            found.update((x // k, x % k, (y - m * k) % n) for x in a for y in b if x % k == (y - m * k) // n)
    return found


@pytest.mark.parametrize(("target", "sizes", "launched"), [("sm_90a", (16, 16, 64), 3), ("gfx950", (32, 64, 64), 0)])
def test_elements_and_scales_of_mxfp4(target, sizes, launched):
    """By a decoding pass of each operand and a product, or by instructions that take scales."""
    m, n, k = sizes
    problem = tw.Gemm(m, n, k, "mxfp4", "mxfp4", "f32", layout="nt")
    data = Record(launches.of_problem(problem, tw.target(target)), "mxfp4").data
    assert data["product"]
    assert len(data["launches"]) == launched
    found = held_by_warps(data)
    assert len(found) == m * n * k
    assert set(found.values()) == {1}
    read = {x + base for step in data["steps"] for q in step.get("q", ()) for pattern, base in (q[3:] or [[]])[0]
            for x in data["patterns"][pattern] if x >= 0}
    assert len(read) == len(data["scales"]["a"]) + len(data["scales"]["b"]) == (m + n) * k // 32
    for step in data["steps"]:                              # a scale that is read lies at its number
        kind = data["kinds"][step["k"]]
        if kind.get("array") == "scale_a":
            for (pattern, base), _, _, scales in step["q"]:
                at = np.array(data["patterns"][pattern])
                own = np.array(data["patterns"][scales[0][0]])
                assert (at[own >= 0] + base == own[own >= 0] + scales[0][1]).all()


def test_scales_of_nvfp4_are_numbers_of_e4m3fn():
    problem = tw.Gemm(16, 16, 64, "nvfp4", "nvfp4", "f32", layout="nt")
    data = Record(launches.of_problem(problem, tw.target("sm_90a")), "nvfp4").data
    assert data["product"]
    assert {*data["scales"]["a"], *data["scales"]["b"]} == {0.5, 1, 2}


def test_a_kernel_of_a_user(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TRANSPOSE)
    launch = own.of_file(f"{path}:emit_transpose", ["32x32", "32x32"], tw.target("sm_90a"), None)
    record = Record(launch, "transpose")
    assert not record.data["product"]
    assert record.data["names"] == ["x", "-", "y"]
    assert [x["kind"] for x in record.broken()] == ["race"]
    for text, arguments, said in ((f"{path}:emit_transpose", ["32x32"], "takes x"), (f"{path}:nothing", [], "has no"),
                                  ("nowhere.py:f", [], "must name a file")):
        with pytest.raises(ValueError, match=said):
            own.of_file(text, arguments, tw.target("sm_90a"), None)


def test_code_is_linked_by_line():
    for step, target, language in (("shared", "sm_90a", "PTX"), ("f16", "gfx942", "GCN"),
                                   ("blocked", "x86-avx2", "x86")):
        launch = launches.of_step(step, tw.target(target))
        found = code.listings(launch.functions, tw.target(target))
        assert [*found] == ["LLVM IR", language]
        for lines in found.values():
            assert sum(place is not None for _, place in lines) > len(lines) / 2
            assert not any("!dbg" in text or ".loc" in text for text, _ in lines)
    multiply = next(place for text, place in found["x86"] if "vfmadd" in text)
    assert multiply[0] == "cpu2_registers.py"


def test_sliders_ask_the_planner():
    found = sliders.answers(tw.target("sm_90a"), "bf16", "bf16")
    assert len(found["answers"]) == np.prod([len(axis["values"]) for axis in found["axes"]])
    legal = [x for x in found["answers"] if not x[1]]
    assert 0 < len(legal) < len(found["answers"])
    assert all(x[2] > 0 for x in legal)
    assert any("shared memory" in x[1] for x in found["answers"])
    index = np.ravel_multi_index(found["start"], [len(axis["values"]) for axis in found["axes"]])
    assert not found["answers"][index][1]


def test_sliders_of_a_step_count_conflicts(monkeypatch):
    monkeypatch.setitem(sliders.PARAMETERS, "padded", {"PAD": (0, 1, 4)})
    found = sliders.of_step("padded", tw.target("sm_90a"))
    flat, odd, padded = found["answers"]
    assert flat[2]["conflicts of stores"] > 0 == padded[2]["conflicts of stores"]
    assert padded[2]["seconds"] < flat[2]["seconds"]
    assert "16-byte aligned" in odd[1]
    monkeypatch.setitem(sliders.PARAMETERS, "ring", {"SWIZZLE": (1, 8, 16)})
    straight, swizzled, wide = sliders.of_step("ring", tw.target("sm_90a"))["answers"]
    assert straight[2]["conflicts of loads"] > 0 == swizzled[2]["conflicts of loads"]
    assert swizzled[2]["seconds"] < straight[2]["seconds"]
    assert "8 pieces of 16 bytes" in wide[1]


def test_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sliders.PARAMETERS, "shared", {"L": (32,), "S": (8,), "V": (4, 8)})
    monkeypatch.setattr(sliders, "ALWAYS", ())
    run = call("show", "--step", "shared", 32, 32, 16, "-o", tmp_path / "x.html")
    assert run.exit_code == 0, run.output
    page = (tmp_path / "x.html").read_text()
    assert len(page) < 1e6
    assert not any(f'{word}="http' in page for word in ("src", "href"))
    data = data_of(page)
    assert data["records"][0]["title"] == "V3 shared"
    assert len(data["records"][0]["faults"]) == 2
    assert data["figures"]
    run = call("show", "--figure", "cdna/e8m0", "-o", tmp_path / "f.svg")
    assert (tmp_path / "f.svg").read_text().startswith("<svg")
    for wrong in (["show"], ["show", "--figure", "nothing"], ["show", "1", "2"], ["show", "x.py:f"],
                  ["show", "--step", "shared", "64", "64", "32", "--plan", "x"]):
        assert call(*wrong).exit_code != 0
