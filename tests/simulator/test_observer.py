"""What an observer of a simulated run is told adds up to the report, and costs nothing to those who have none."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from tilewright import simulator
from tilewright.ir import Kernel, f32, ptr
from tilewright.ir.lines import callers
from tilewright.lab.ladder import cpu2_registers, gpu04_shared, gpu16_ring, gpu18_tma
from tilewright.lab.ladder.steps import TENSOR_STEPS
from tilewright.lab.show.without import without
from tilewright.targets import target

M, N, K = 64, 32, 16


def of_shared(function, observer=None):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (M, K)).astype(np.float32), rng.integers(-4, 5, (K, N)).astype(np.float32)
    c = np.zeros((M, N), np.float32)
    report = simulator.run(function, M, N, K, 1.0, a, K, b, N, 0.0, simulator.uninitialised(c), N,
                           grid=(N // 32, M // 32), observer=observer)
    np.testing.assert_array_equal(c, a @ b)
    return report, a, b, c


def emit():
    return gpu04_shared.emit_shared(L=32, S=8, V=4)


def summed(events):
    """Counters by (line, array, space, verb), as reports have them, from loads and stores."""
    found = {}
    for e in events:
        if e.what in ("load", "store"):
            site = found.setdefault((e.line, e.array, e.space, e.what), Counter())
            costs = e.costs()
            site += Counter(elements=e.width * e.threads.size if e.mask is None else int(e.mask.sum()),
                            moved=sum(int(x.moved) for x in costs.values()),
                            ideal=sum(int(x.ideal) for x in costs.values()))
    return found


def test_events_add_up_to_the_report():
    events = []
    report, a, b, c = of_shared(emit(), events.append)
    assert str(report) == str(of_shared(emit())[0])
    found = summed(events)
    for site, traffic in report.traffic.items():
        if traffic.requests:
            assert found[site] == +Counter(elements=traffic.elements, moved=traffic.moved, ideal=traffic.ideal)
    fmas = [e for e in events if e.what == "fma"]
    assert sum(e.threads.size for e in fmas) == M * N * K
    x, y, z = fmas[-1].operands
    np.testing.assert_array_equal(fmas[-1].results[0], x * y + z)
    for e in events:                                    # values and places: what is loaded is what lies there
        if e.what == "load" and e.array in "ab":
            whole = {"a": a, "b": b}[e.array].ravel()
            np.testing.assert_array_equal(e.value, whole[e.at + np.arange(e.width)[:, None]])
    stored = np.zeros(M * N, np.float32)
    for e in events:
        if e.what == "store" and e.array == "c":
            stored[e.at] = e.value[0]
    np.testing.assert_array_equal(stored.reshape(M, N), c)


def test_rounds_of_loops_barriers_and_turns():
    events = []
    of_shared(emit(), events.append)
    assert [int(e.value[0]) for e in events if e.what == "loop"] == [0, 8]
    assert sum(e.what == "barrier" for e in events) == 4
    assert sum(e.what == "wake" for e in events) == 4
    assert [e.round for e in events if e.what == "barrier"] == [1, 2, 3, 4]
    load = next(e for e in events if e.what == "load" and e.array == "a_smem")
    assert {w: (int(x.moved), int(x.ideal)) for w, x in load.costs().items()} == dict.fromkeys(range(4), (4, 1))
    assert load.costs()[0].phase.shape == (1, 32)


def test_lines_know_their_callers_where_that_is_asked_for():
    events = []
    with callers():
        function = emit()
    of_shared(function, events.append)
    fma = next(e for e in events if e.what == "fma")
    assert str(fma.line).startswith("gpu_gemm.py")
    assert next(str(x).split(":")[0] for x in fma.line.via) == "gpu04_shared.py"
    assert "outer_product" in fma.line.via[0].text
    assert not next(node for node in emit().walk()).line.via


def barriers(function):
    return [node.line for node in function.walk() if getattr(getattr(node, "operation", None), "name", "") == "barrier"]


def test_faults_have_fields_and_races_name_two_threads():
    function = emit()
    first, second = barriers(function)
    with pytest.raises(simulator.Fault, match="nothing orders the two") as found:
        of_shared(without(function, second))
    fault = found.value
    assert (fault.kind, fault.array, fault.element) == ("race", "a_smem", 0)
    assert fault.here.verb == "load"
    assert fault.other.verb == "written"
    assert fault.here.line == fault.line
    assert fault.other.line.text.startswith("a_smem[row, column]")
    events = []
    with pytest.raises(simulator.Fault) as found:
        of_shared(without(function, first.number), events.append)
    assert (found.value.here.verb, found.value.other.verb) == ("store", "read")
    assert found.value.here.thread != found.value.other.thread
    assert found.value.other.line.text.startswith("a_reg")
    assert events[-1].what == "store"
    assert events[-1].line == found.value.line
    with pytest.raises(ValueError, match="nothing that could be left out"):
        without(function, 1)


def test_marks_and_the_shapes_of_arrays():
    k = Kernel("marked", threads=32, x=ptr(f32))
    smem = k.smem("tile", (4, 8), f32)
    for p in range(2):
        k.mark("p", p)
        smem[p, k.thread[0] % 8] = 1.0
    k.mark("thread", k.thread[0])
    events = []
    simulator.run(without(k.function, next(node.line for node in k.function.walk() if type(node).__name__ == "Store")),
                  np.zeros(1, np.float32), observer=events.append)
    assert [(e.name, int(np.ravel(e.value)[-1])) for e in events if e.what == "mark"] == [
        ("p", 0), ("p", 1), ("thread", 31)]
    (array,) = k.function.arrays
    assert k.function.shape(array) == (4, 8)


def test_a_cpu_kernel():
    chip, events = target("x86-avx2"), []
    function = cpu2_registers.emit_registers(chip, "f32", 2, 1)
    a, b, c = np.ones((4, 3), np.float32), np.ones((3, 16), np.float32), np.zeros((4, 16), np.float32)
    simulator.run(function, 4, 16, 3, a, b, simulator.uninitialised(c), observer=events.append)
    stores = [e for e in events if e.what == "store" and e.array == "c"]
    assert sum(e.width for e in stores) == 64
    assert all((e.value == 3).all() for e in stores)
    assert any(e.what == "fma" for e in events)


@pytest.mark.parametrize("step", ["ring", "tma"])
def test_copies_waits_and_products(step):
    found = {"ring": gpu16_ring.emit_ring, "tma": gpu18_tma.emit_tma}[step]()
    a, b = (np.ones((128, 128), ml_dtypes.bfloat16) for _ in range(2))
    c, events = np.zeros((128, 128), ml_dtypes.bfloat16), []
    simulator.run(found, 128, 128, 128, 1.0, a, 128, b, 128, 0.0, simulator.uninitialised(c), 128,
                  grid=TENSOR_STEPS[step].grid(128, 128, 132), observer=events.append)
    kinds = Counter(e.what for e in events)
    if step == "ring":
        assert kinds["cp.async"]
        assert kinds["cp.async group"]
        assert kinds["mma"]
        assert kinds["barrier"]
    else:
        boxes = [e for e in events if e.what == "TMA"]
        assert {x for e in boxes for x in e.operands if isinstance(x, str)} == {"a", "b"}
        assert kinds["wgmma"]
        assert kinds["copy"]
        assert kinds["mbarrier"]
        assert kinds["wake"]
