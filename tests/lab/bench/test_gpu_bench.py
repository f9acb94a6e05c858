"""Measuring on a GPU, without one: the rules on a fake device, a fake NVML, tables of a report."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import readme
from tests.helpers.command_line import call
from tests.helpers.reports import shown
from tilewright import targets
from tilewright.lab.bench import commands, contest, gpu_device, peer, report, results, session, study
from tilewright.lab.bench.cases import GPU, Case, Job
from tilewright.lab.bench.peer import OURS, Setting
from tilewright.lab.bench.results import Report, Result, Row, Session
from tilewright.lab.bench.suites import shapes
from tilewright.lab.measure import gpu_rules as gpu_measure, gpu_state, measure
from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack
from tilewright.lab.measure.gpu_state import Reading
from tilewright.lab.measure.measure import Call, Sample
from tilewright.lab.measure.operands import Operands
from tilewright.problem import Gemm


class Played:
    """A device on which a launch takes as long as it says, in the order of a stream; the host waits for nothing."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def launch(self, name: str, seconds: float) -> gpu_measure.Launch:
        def run() -> None:
            self.log.append(name)
            self.now += seconds

        return run

    def mark(self) -> float:
        return self.now

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def graph(self, launches: Sequence[gpu_measure.Launch]) -> gpu_measure.Launch:
        recorded = list(launches)

        def run() -> None:
            self.log.append("graph")
            for launch in recorded:
                launch()

        return run

    def flush(self) -> None:
        self.log.append("flush")
        self.now += 1.0

    def clock(self) -> float:
        return self.now


def test_launches_of_a_study_are_given_their_operands() -> None:
    device, given = Played(), set()
    calls = [(lambda *x: given.add(x) or device.launch("ours", 1e-5)(), (a, a + 1)) for a in (1, 3)]
    seconds = study.seconds({"ours": calls, "peer": [device.launch("peer", 2e-5)]}, GpuRules.choose(quick=True),
                            device)  # type: ignore[arg-type]
    assert given == {(1, 2), (3, 4)}
    assert seconds["peer"] == pytest.approx([2e-5] * len(seconds["peer"]))


# ---- the article's protocol


def test_the_article_s_replays() -> None:
    assert [gpu_measure.replays(n) for n in (1024, 4096, 12800)] == [1000, 371, 22]
    assert gpu_measure.replays(100_000) == 2  # one of which is the second half
    assert gpu_measure.size(512, 512, 512) == pytest.approx(512)
    assert gpu_measure.size(64, 4096, 4096) == pytest.approx(1024)


def test_the_mean_of_the_second_half_of_calls_in_turn_is_what_counts() -> None:
    device = Played()
    took = iter([9.0, 9.0, 9.0, 1.0, 3.0])  # of five calls the last two count

    def call() -> None:
        device.now += next(took)

    sample = gpu_measure.replay(device, [call], 5)
    assert sample == Sample((2.0,), 5)
    gpu_measure.replay(device, [device.launch(name, 1.0) for name in "abc"], 7)
    assert "".join(device.log) == "abcabca"  # operands take turns
    device.log.clear()
    sample = gpu_measure.replay(device, [device.launch("x", 0.25)], 4, flush=True)
    assert (device.log, sample.seconds) == (["flush", "x"] * 4, (0.25,))  # which is not timed


# ---- the median protocol


def track(device: Played, calls: Sequence[gpu_measure.Launch], rules: GpuRules) -> GraphTrack:
    found = GraphTrack(device, calls)
    found.calibrate(rules)
    return found


def interleave(device: Played, launches: dict[str, gpu_measure.Launch], rules: GpuRules) -> dict[str, Sample]:
    calls: dict[str, list[Call]] = {name: [(launch, ())] for name, launch in launches.items()}
    return measure.interleave(
        calls, rules, clock=device.clock, track=lambda calls: GraphTrack(device, [fn for fn, _ in calls])
    )


def test_a_graph_uses_every_set_of_operands_and_fills_a_turn() -> None:
    device = Played()
    calls = [device.launch(name, 1e-3) for name in "abc"]
    found = track(device, calls, GpuRules(turn_s=0.02))
    assert found.launches == found.reps == 21  # 20 fill the turn: seven times all three
    assert found.per_call == pytest.approx(1e-3)
    slow = track(device, [device.launch("x", 0.5)] * 2, GpuRules())
    assert slow.launches == 1


def test_slow_launches_from_python_do_not_fool_the_length_of_a_turn() -> None:
    device = Played()
    outside = True

    def call() -> None:  # 10 us to launch, 1 us to run
        device.now += 1e-5 if outside else 1e-6

    real = device.graph

    def graph(launches: Sequence[gpu_measure.Launch]) -> gpu_measure.Launch:
        nonlocal outside
        outside = False
        return real(launches)

    device.graph = graph  # type: ignore[method-assign]
    assert track(device, [call] * 4, GpuRules()).per_call == pytest.approx(1e-6)


def test_rounds_give_everybody_a_turn_and_rotate() -> None:
    device = Played()
    rules = GpuRules(max_rounds=3, min_rounds=3, warm_s=0.0, turn_s=0.039)
    samples = interleave(device, {name: device.launch(name, 0.04) for name in "ab"}, rules)
    log = "".join(name for name in device.log if name != "graph")
    # to calibrate: one launch, one that is timed, and the graph's; then one graph to warm up, one that is timed
    assert log == "aaabbb" + "aabb" + "bbaa" + "aabb"
    assert all(len(s.seconds) == 3 and s.reps == 1 for s in samples.values())
    assert samples["a"].spread.median == pytest.approx(0.04)
    assert interleave(device, {}, rules) == {}


def test_sustaining_times_the_second_half() -> None:
    device = Played()
    found = track(device, [device.launch("x", 0.01)], GpuRules(turn_s=0.1))
    device.log.clear()
    assert found.launches == 10
    assert found.sustain(0.55) == pytest.approx(0.01)
    assert device.log.count("graph") == 6


def test_what_a_call_costs_the_host_is_timed_in_bursts_and_the_device_is_waited_for_outside() -> None:
    now, waits = 0.0, 0

    def call() -> None:
        nonlocal now
        now += 2e-6

    def wait() -> None:
        nonlocal now, waits
        now += 1.0
        waits += 1

    found = study.host_cost({"x": call, "y": call}, wait, rounds=2, burst=50, clock=lambda: now)
    assert found["x"] == pytest.approx([2e-6, 2e-6])
    assert waits == 2 * 2 * 2


# ---- the state of the device


def test_throttle_reasons_in_words() -> None:
    assert gpu_state.reasons(0) == []
    assert gpu_state.reasons(0x1) == ["idle"]
    assert gpu_state.reasons(0x4 | 0x40) == ["power cap", "temperature (hardware)"]
    assert gpu_state.reasons(0x2 | 0x1000) == ["application clocks setting", "unknown (0x1000)"]


def readings(clocks: Sequence[float], mask: int = 0, watts: float = 500.0) -> list[Reading]:
    return [Reading(0.1 * i, mhz, 3201, watts, 50 + i, mask, 10 * (i // 2)) for i, mhz in enumerate(clocks)]


def test_a_state_is_medians_shares_and_joules() -> None:
    found = gpu_state.summary(readings([1980, 1900, 1800, 1700], mask=4), 2e-3, "NVML")
    assert (found["sm_mhz"], found["sm_mhz_least"], found["memory_mhz"], found["celsius"]) == (1850, 1700, 3201, 53)
    assert found["held_back"] == {"power cap": 1.0}
    # the energy counter moved once: too little to compute a power from
    assert (found["watts"], found["watts_from"]) == (500, "power")
    assert found["joules"] == pytest.approx(1.0)


def test_energy_is_taken_between_the_moments_at_which_the_counter_moved() -> None:
    # It moves every 0.2 s by 10 J, at 0.2 (10), 0.4 (20), 0.6 (30): 50 W whatever the power readings say.
    found = gpu_state.summary(readings([1980] * 8), 0.5, "NVML")
    assert (found["watts"], found["watts_from"]) == (50, "energy counter")
    assert found["joules"] == pytest.approx(25)
    assert gpu_state.power_by_energy(readings([1980] * 4)) is None
    assert gpu_state.power_by_energy([]) is None


def test_without_readings_every_field_says_none() -> None:
    found = gpu_state.summary([], 1.0, None)
    assert found["readings"] == 0
    assert {found[name] for name in found if name != "readings"} == {None}


@pytest.mark.parametrize(
    ("clocks", "mask", "said"),
    [
        ([1395] * 12, 0, "locked at 1395 MHz, of 1980"),
        ([1395, 1410] * 6, 0, "free (1395 to 1410 MHz under load, 1980 at most)"),
        ([1980] * 12, 0, "at their maximum of 1980 MHz, free or locked there"),
        ([1500] * 12, 0x4, "held at 1500 MHz by: power cap"),
        ([1500] * 12, 0x2, "set to at most 1500 MHz"),
        ([1500] * 3, 0, "unknown"),
    ],
)
def test_locked_clocks_are_detected(clocks: list[float], mask: int, said: str) -> None:
    assert gpu_state.clock_setting(readings(clocks, mask), {"max_sm_mhz": 1980}) == said
    assert gpu_state.clock_setting(readings(clocks, mask), {}) == "unknown"


class FakeNvml:
    """As much of the module pynvml as is asked; what is in `refuse` is not supported."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, refuse: Sequence[str] = (), instant: int = 650_000) -> None:
        self.refuse, self.instant, self.stopped = refuse, instant, False

    def __getattr__(self, name: str) -> Any:
        if name in self.refuse:
            return self._refused
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByPciBusId": lambda bus: f"gpu at {bus}",
            "nvmlDeviceGetHandleByIndex": lambda i: f"gpu {i}",
            "nvmlDeviceGetFieldValues": lambda h, ids: [
                SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.instant))
            ],
            "nvmlDeviceGetPowerUsage": lambda h: 600_000,
            "nvmlDeviceGetTotalEnergyConsumption": lambda h: 5_000,
            "nvmlDeviceGetClockInfo": lambda h, kind: {1: 1755, 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda h, kind: 61,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda h: 4,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda h: 8,
            "nvmlDeviceGetEnforcedPowerLimit": lambda h: 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda h: 700_000,
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(total=1 << 37),
            "nvmlDeviceGetName": lambda h: b"NVIDIA H200",
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetMaxClockInfo": lambda h, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetApplicationsClock": lambda h, kind: 1980,
            "nvmlDeviceGetPersistenceMode": lambda h: 1,
            "nvmlDeviceGetEccMode": lambda h: [1, 1],
            "nvmlShutdown": lambda: setattr(self, "stopped", True),
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def _refused(self, *args: object) -> Any:
        raise self.NVMLError("Not Supported")


def test_nvml_is_asked_for_everything() -> None:
    source = gpu_state.Nvml(FakeNvml(), "00000000:01:00.0")
    assert source.handle == "gpu at 00000000:01:00.0"
    r = source.read()
    assert (r.sm_mhz, r.memory_mhz, r.watts, r.celsius, r.mask, r.joules) == (1755, 3201, 650, 61, 4, 5)
    said = source.describe()
    assert (said["name"], said["driver"], said["power_limit_watts"], said["max_sm_mhz"]) == (
        "NVIDIA H200", "580.1", 700, 1980,
    )
    assert json.dumps(said)
    source.close()
    assert source.nvml.stopped


def test_what_nvml_does_not_support_is_none_or_asked_in_the_older_way() -> None:
    older = FakeNvml(["nvmlDeviceGetFieldValues", "nvmlDeviceGetCurrentClocksEventReasons"])
    r = gpu_state.Nvml(older).read()
    assert (r.watts, r.mask) == (600, 8)
    assert gpu_state.Nvml(FakeNvml(instant=0)).read().watts == 600
    everything = [name for name in dir(FakeNvml) if name.startswith("nvml")]
    assert not everything  # names are answered one by one
    poor = FakeNvml(["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetTemperature", "nvmlDeviceGetEccMode"])
    r = gpu_state.Nvml(poor).read()
    assert (r.joules, r.celsius) == (None, None)
    assert gpu_state.Nvml(poor).describe()["ecc"] is None
    by_index = gpu_state.Nvml(FakeNvml(["nvmlDeviceGetHandleByPciBusId"]), "00000000:01:00.0")
    assert by_index.handle == "gpu 0"


def test_nobody_to_ask_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    source, why = gpu_state.find()
    assert source is None
    assert why == "nvidia-ml-py is not installed"
    with gpu_state.Watch(source) as watch:
        pass
    assert watch.later_half() == []


class Counting:
    """A source that answers at once; `enough` is set after its fifth answer."""

    name = "counting"

    def __init__(self) -> None:
        import threading

        self.enough, self.count = threading.Event(), itertools.count()

    def read(self) -> Reading:
        at = next(self.count)
        if at == 5:
            self.enough.set()
        return Reading(float(at), sm_mhz=at)

    def describe(self) -> dict[str, Any]:
        return {"max_sm_mhz": 1980}

    def close(self) -> None:
        pass


def test_a_watch_reads_while_the_block_lasts_and_gives_the_later_half() -> None:
    source = Counting()
    with gpu_state.Watch(source, interval=0.0) as watch:
        assert source.enough.wait(60)
    found = watch.readings
    assert [r.sm_mhz for r in found] == list(range(len(found)))
    assert len(found) >= 5
    assert watch.later_half() == found[math.ceil((len(found) - 1) / 2) :]
    assert watch._thread is None


# ---- suites

SKINNY = [(m, n, k) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336)) for m in (16, 64, 128, 512)]
ODD = [n for n in (1000, 1536, 2039, 3000, 4100, 5000) for _ in range(4)]
TENSOR = ["bf16-bf16-bf16 nn", "f16-f16-f16 nn", "e4m3fn-e4m3fn-bf16 nt", "i8-i8-i32 nt"]


@pytest.mark.parametrize(("suite", "dtypes", "formats", "count", "sizes"), [
    ("sweep", [], ["f32-f32-f32 nn"], 93, range(1024, 12801, 128)),
    ("odd", [], ["f32-f32-f32 nn", "f32-f32-f32 nt", "f32-f32-f32 tn", "f32-f32-f32 tt"], 24, ODD),
    ("skinny", [], ["f32-f32-f32 nn"], 12, SKINNY), ("f64", ["f32"], ["f64-f64-f64 nn"], 5, [2048, 3072]),
    # in formats of their own unless others are asked for; 8 bits in the layout that torch has
    ("tensor", [], TENSOR, 4 * 18, [512, 1024]), ("tensor", ["i8-i8-i32"], TENSOR[3:], 18, [512, 1024]),
    ("tensor_odd", ["bf16-bf16-bf16"], TENSOR[:1], 6, [1000, 2039, 3000, 5000, 2048, 4096]),
    ("tensor_skinny", ["i8-i8-i32"], TENSOR[3:], 10, [(m, 4096, 4096) for m in (1, 8, 16, 32, 64)]),
    ("terms", ["f16-f16-f16"], ["f32-f32-f32 nn by bf16_bf16_f32_x6", "f32-f32-f32 nn by tf32_tf32_f32_x3"], 6,
     [2048, 4096, 8192, 2048]),
    ("tf32", [], ["f32-f32-f32 nn by tf32_tf32_f32", "f32-f32-f32 nt by tf32_tf32_f32"], 14, [512, 512, 1024]),
    ("scaled", [], ["e4m3fn-e4m3fn-bf16 nt scales of rows"], 18, [512, 1024]),
    ("mx", [], ["mxfp8-mxfp8-bf16 nt", "mxfp4-mxfp4-bf16 nt", "nvfp4-nvfp4-bf16 nt"], 18, [1024, 2048]),
])
def test_suites(suite, dtypes, formats, count, sizes):
    """Their formats, how many cases they have, and the first sizes; a file keeps what a case has."""
    found = shapes.gpu_cases([suite], dtypes)
    said = [f"{c.product.formats} {c.problem.layout}{f' by {c.algorithm}' if c.algorithm else ''}"
            f"{f' scales of {c.problem.scales}' if c.problem.scales else ''}" for c in found]
    assert list(dict.fromkeys(said)) == formats
    assert len(found) == count
    first = [size if isinstance(size, tuple) else (size, size, size) for size in sizes]
    assert [(c.problem.m, c.problem.n, c.problem.k) for c in found[:len(first)]] == first
    assert [c.gap for c in found][-2:] == [1, 1] if suite == "tensor_odd" else not any(c.gap for c in found)
    assert [Case.from_json(json.loads(json.dumps(case.to_json()))) for case in found] == found


def test_what_suites_are_made_of():
    assert len(shapes.gpu_cases(["sweep"], quick=True)) < 93
    assert [c.problem.n for c in shapes.gpu_cases(["square", "odd"], sizes=[100])][:2] == [100, 1000]
    one, two = shapes.named(["64x4096x512", "5x6x7:tn"], "f64")
    assert (one.problem, two.problem) == (Gemm(64, 4096, 512, "f64"), Gemm(5, 6, 7, "f64", layout="tn"))
    assert peer.out_dtype(shapes.gpu_cases(["mx"])[0].product)["out_dtype"].name == "bfloat16"
    for wrong, words in (
        (lambda: shapes.gpu_cases(["pie"]), "unknown suite 'pie' on a GPU; it may be sweep, square, odd, skinny, f64"),
        (lambda: shapes.gpu_cases(["square"], ["f16"]), "unknown dtype 'f16'"),
        (lambda: peer.find(Setting(), ["mkl"], GPU), "unknown peer 'mkl'; on a GPU the peers are cuBLAS, triton"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()


def test_operands_rotate_through_more_than_twice_the_cache() -> None:
    l2 = 60 << 20
    for n in (64, 1000, 1024, 4096, 8192):
        for dtype, size in (("f32", 4), ("f64", 8)):
            count = gpu_device.sets(Gemm(n, n, n, dtype).min_bytes, l2)
            assert count >= 2
            assert count * 3 * size * n * n > 2 * l2 or count == gpu_measure.MOST_SETS


# ---- a case, on torch's CPU tensors


class OnCpu(Played):
    """TorchDevice, replaced by torch on the CPU: arithmetic is real, time is not."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = pytest.importorskip("torch")
        self.name, self.index, self.lost = "cpu", 0, False
        self.on = SimpleNamespace(target=replace(targets.target("sm_90a"), l2=1 << 16), name="a fake GPU")
        self.bus_id = None

    def wait(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def describe(self) -> dict[str, Any]:
        return {"name": "a fake GPU", "target": "sm_90a"}


def test_peers_of_fp8_may_add_up_less_exactly_than_ours() -> None:
    """2^-12 of |A| |B| off at one element is wrong of ours, by a plan as well, and right of cuBLAS."""
    device = OnCpu()
    case = Case("tensor", Gemm(48, 32, 4096, "e4m3fn", "e4m3fn", "f32", "nt"))
    gpu = gpu_device.Gpu(job(case), device)  # type: ignore[arg-type]
    (o, *_) = gpu.operands(case)
    answers = gpu.reference(case, o)
    size = o.a.float().abs() @ o.b.float().abs()

    def said(name: str, off: float) -> bool:
        wanted, allowed = answers(name)
        return gpu_device.wrong((wanted + off * size).float(), wanted, allowed) is not None

    names = (OURS, "wgmma 128x256x128", "cuBLAS", "cuBLAS fast", "triton")
    assert [said(name, 2.0**-12) for name in names] == [True, True, False, False, False]
    assert all(said(name, 2.0**-10) for name in names)
    plain = replace(case, problem=Gemm(48, 32, 40, "bf16"))
    answers = gpu.reference(plain, gpu.operands(plain)[0])
    assert answers("cuBLAS") is answers(OURS)


def test_ours_with_scales_of_rows_is_compared_with_float64() -> None:
    device = OnCpu()
    case = Case("scaled", Gemm(48, 32, 96, "e4m3fn", "e4m3fn", "bf16", "nt", scales="rows"))
    gpu = gpu_device.Gpu(job(case), device)  # type: ignore[arg-type]
    (o, *_) = gpu.operands(case)
    wanted, allowed = gpu.reference(case, o)(OURS)
    found = (o.a.double() * o.scale_a) @ (o.b.double() * o.scale_b)
    assert gpu_device.wrong(found.bfloat16(), wanted, allowed) is None
    assert gpu_device.wrong((found / o.scale_a).bfloat16(), wanted, allowed) is not None
    (way,) = peer.our_ways(case.product)
    assert way.bind(o)[0].keywords["scale_a"] is o.scale_a


class Shape:
    """As much of a tensor as a peer asks before it is called."""

    def __init__(self, rows: int, columns: int, row: int = 0) -> None:
        self.shape, self.dtype, self.row = (rows, columns), "int8", row or columns

    def stride(self) -> tuple[int, int]:
        return self.row, 1


def test_cublas_s_ways() -> None:
    """fp8 twice, and what torch refuses is said before it is called."""
    asked: list[str] = []
    torch = SimpleNamespace(__version__="2.11", ones=lambda shape, device: 1.0, **{
        name: (lambda *_, name=name, **options: asked.append(f"{name} {options.get('use_fast_accum', '')}".strip()))
        for name in ("mm", "bmm", "_int_mm", "_scaled_mm")})
    from tilewright.lab.bench.peers.torch import load_cublas

    found = load_cublas(Setting(on=SimpleNamespace(torch=torch, name="cuda:0")))  # type: ignore[arg-type]

    def call(dtype: str, m: int, n: int, k: int, row: int = 0) -> list[str]:
        case = Case("tensor", shapes.gemm(dtype, m, n, k, "nt"))
        operands = Operands(case.problem, *(Shape(*shape, row) for shape in ((m, k), (n, k), (m, n))))  # type: ignore[arg-type]
        for way in found.ways(case.product):
            fn, arguments = way.bind(operands)
            fn(*arguments)
        return [way.name for way in found.ways(case.product)]

    assert call("bf16-bf16-bf16", 3, 5, 7) == call("i8-i8-i32", 17, 8, 24) == call("f32", 1, 1, 1) == ["cuBLAS"]
    assert call("e4m3fn-e4m3fn-bf16", 1, 16, 32) == ["cuBLAS", "cuBLAS fast"]
    assert asked == ["mm", "_int_mm", "mm", "_scaled_mm False", "_scaled_mm True"]
    for arguments, said in (
        (("i8-i8-i32", 16, 64, 64), "torch._int_mm takes more than 16 rows of A, not 16"),
        (("i8-i8-i32", 64, 63, 64), "multiples of 8, not 63"),
        (("i8-i8-i32", 64, 64, 64, 65), "multiples of 8, not 65"),
        (("e4m3fn-e4m3fn-bf16", 64, 64, 1000), "multiples of 16, not 1000"),
    ):
        with pytest.raises(peer.Unfit, match=said):
            call(*arguments)


def fake_peer(device: OnCpu, name: str, seconds: float, spoil: Callable[[Any], None] | None = None) -> Any:
    def bind(o: Operands) -> Call:
        def launch() -> None:
            device.torch.mm(o.a, o.b, out=o.c)
            device.now += seconds
            if spoil:
                spoil(o.c)

        return launch, ()

    return peer.single(name, "1", "fake", bind)


def bench(device: OnCpu, *peers: Any, **options: Any) -> contest.Bench:
    asked = Job(1, "native", [], GpuRules(max_rounds=3, watch_s=0.05), GPU, **options)
    gpu = gpu_device.Gpu(asked, device)  # type: ignore[arg-type]
    gpu.source = None
    return contest.Bench(asked, list(peers), gpu)


@pytest.fixture(autouse=True)
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which plan is noted is not what is tested here."""
    monkeypatch.setattr(peer, "plan_of", lambda problem, target, algorithm: "a plan")


SMALL = Case("square", Gemm(48, 32, 40, layout="nt"))


def test_a_case_is_timed_in_turns_and_its_state_is_reported() -> None:
    device = OnCpu()
    made = bench(device, fake_peer(device, OURS, 1e-3), fake_peer(device, "cuBLAS", 1.2e-3))
    result = made.run(SMALL)
    assert [row.error for row in result.rows] == [None, None]
    ratio = result.ratio("cuBLAS")
    assert ratio.median == pytest.approx(1.2)
    assert result.isa == "sm_90a"
    ours = result.row(OURS)
    assert ours.gpu["watts"] is None  # nobody was there to ask
    assert ours.gpu["sustained_s"] == pytest.approx(1e-3)
    assert ours.gpu["plan"] == "a plan"
    assert made.run(replace(SMALL, suite="sweep")).rows[0].sample == Sample(
        (pytest.approx(1e-3),), gpu_measure.replays(gpu_measure.size(48, 32, 40))
    )


def test_a_wrong_result_is_an_error_row() -> None:
    device = OnCpu()

    def off(c: Any) -> None:
        c[3, 5] += 1

    def hole(c: Any) -> None:
        c[47, 31] = float("nan")

    result = bench(device, fake_peer(device, OURS, 1e-3, off), fake_peer(device, "x", 1e-3, hole)).run(SMALL)
    ours, other = result.rows
    assert ours.error.startswith("wrong result: 1 of 1536 elements are off, the first C[3, 5] = ")
    assert other.error is not None
    assert "C[47, 31] = nan" in other.error


def test_what_goes_wrong_while_timing_is_found_too() -> None:
    device = OnCpu()
    calls = 0

    def later(c: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 400:
            c[0, 0] = 0

    made = bench(device, fake_peer(device, OURS, 1e-4, later))
    (row,) = made.run(SMALL).rows
    assert row.error.startswith("wrong result after timing: 1 of 1536")
    assert row.sample is None


def test_an_exception_is_an_error_row_and_a_lost_device_ends_the_case() -> None:
    device = OnCpu()

    def refuse(o: Operands) -> Call:
        raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED\n[kernel x]")

    refusing = peer.single("cuBLAS", "1", "fake", refuse)
    result = bench(device, fake_peer(device, OURS, 1e-3), refusing).run(SMALL)
    assert [row.error for row in result.rows] == [None, "RuntimeError: CUDA_ERROR_LAUNCH_FAILED [kernel x]"]

    def lose(o: Operands) -> Call:
        device.lost = True
        raise RuntimeError("illegal address")

    losing = peer.single("x", "1", "fake", lose)
    result = bench(device, fake_peer(device, OURS, 1e-3), losing, fake_peer(device, "y", 1e-3)).run(SMALL)
    assert [(row.name, row.error) for row in result.rows] == [("x", "RuntimeError: illegal address")]


# ---- the process


def job(*cases: Case) -> Job:
    return Job(1, "native", list(cases), GpuRules(), GPU)


def test_a_child_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    device = OnCpu()
    monkeypatch.setattr(gpu_device, "TorchDevice", lambda index: device)
    monkeypatch.setattr(gpu_state, "find", lambda bus: (Counting(), ""))
    found = [fake_peer(device, OURS, 1e-3), fake_peer(device, "cuBLAS", 1e-3)]
    monkeypatch.setattr(peer, "find", lambda *_: (found, {"triton": "it is not here"}))
    events: list[dict[str, Any]] = []
    session.work(job(SMALL, SMALL), lambda event, **details: events.append({"event": event, **details}))
    assert [e["event"] for e in events] == [
        "peers", "device", "case", "result", "case", "result", "clocks", "done",
    ]
    assert events[0]["session"]["left_out"] == {"triton": "it is not here"}
    assert events[1]["machine"]["gpu"]["max_sm_mhz"] == 1980
    assert json.dumps(events)


def test_after_a_case_that_breaks_the_process_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [Case("square", Gemm(n, n, n)) for n in (1, 2, 3, 4)]
    started: list[list[int]] = []

    def process(asked: Job, running: Session) -> Iterator[dict[str, Any]]:
        """2 breaks its process without a word, 3 after its result."""
        notes = running.notes
        started.append([c.problem.n for c in asked.cases])
        yield {"event": "device", "machine": {"gpu": {"target": "sm_90a"}}}
        for number, case in enumerate(asked.cases):
            n = case.problem.n
            yield {"event": "case", "number": number, "label": case.label}
            if n == 2:
                notes.append("the measuring process ended early while timing 2: SIGSEGV")
                return
            result = Result(case, 1, "sm_90a", (Row(OURS, Sample((1.0,), 1)),))
            yield {"event": "result", "number": number, "result": result.to_json()}
            if n == 3:
                notes.append("the measuring process ended early while timing 3: illegal")
                return
        yield {"event": "done"}

    monkeypatch.setattr(session, "_process", process)
    found = Report.start("gpu")
    assert [*session.measure(job(*cases), found)][-1] == {"event": "done"}
    assert started == [[1, 2, 3, 4], [3, 4], [4]]
    assert [(r.case.problem.n, bool(r.sample(OURS))) for r in found.results] == [
        (1, True), (2, False), (3, True), (4, True),
    ]
    assert commands.status(found) == 1


def test_a_process_that_cannot_start_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Report.start("gpu")
    assert not [*session.measure(replace(job(SMALL), number=999), found)]  # no such GPU, or none: the child ends
    assert found.results == []
    assert len(found.sessions) == 1
    assert "ended early while starting" in found.sessions[0].notes[0]


# ---- report


@pytest.fixture
def measured() -> Report:
    """Squares at two sizes with states, one odd size in two layouts."""
    found = Report.start("gpu", quick=True)
    found.machine["gpu"] = {
        "name": "NVIDIA H200", "target": "sm_90a", "sms": 132, "l2": 60 << 20, "power_limit_watts": 700.0,
        "max_sm_mhz": 1980, "driver": "580.1", "cuda": "13.0", "packages": {"torch": "2.11"},
    }
    found.extra["clocks"] = "free (1700 to 1980 MHz under load, 1980 at most)"
    people = [{"name": n, "version": "1", "how": f"{n}()"} for n in (OURS, "cuBLAS")]
    found.sessions.append(Session(1, "native", people, {"triton": "triton is not installed"}))

    def row(name: str, watts: float, *seconds: float) -> Row:
        state = gpu_state.summary(readings([1700, 1800, 1755, 1755], 4, watts), seconds[0], "NVML")
        return Row(name, Sample(seconds, 10), gpu=state)

    for n, mine, theirs in ((1024, 60e-6, 66e-6), (8192, 20e-3, 19e-3)):
        rows = (row(OURS, 600, mine, mine, 2 * mine), row("cuBLAS", 650, theirs, theirs, 2 * theirs))
        found.results.append(Result(Case("square", Gemm(n, n, n)), 1, "sm_90a", rows))
    for layout in ("nn", "tt"):
        odd = (Row(OURS, Sample((1.0,), 1)), Row("cuBLAS", error="wrong result: C[0, 0] is 1"))
        found.results.append(Result(Case("odd", Gemm(1000, 1000, 1000, layout=layout)), 1, "sm_90a", odd))
    found.extra["host"] = {"matmul": [1.04e-5, 1.06e-5, 1.1e-5]}
    found.extra["epilogues"] = [{"function": "gelu", "size": [4096, 28672, 8192], "seconds": {
        "tilewright": [2e-4]*3, "product": [1.9e-4]*3, "cublas": [1.92e-4]*3, "compiled": [2.2e-4]*3}}]
    return found


def test_tables_show_rates_ratios_and_the_device_s_state(measured: Report) -> None:
    text = " ".join(shown(measured).split())  # captions are folded
    for expected in (
        "NVIDIA H200 (sm_90a, 132 multiprocessors, 60 MiB of L2, power limit 700 W, at most 1980 MHz); driver 580.1",
        "clocks: free", "35.8", "1.100 (1.100 to 1.100)", "0.950", "geometric mean 1.022, least 0.950", "600 / 650",
        "1755 / 1755", "0.972", "power cap (100%)",
        "triton left out: triton is not installed", "cuBLAS, f32 tt 1000: wrong result",
    ):
        assert expected in text, (expected, text)


def test_narrow_formats_have_units_peaks_and_means_of_their_own(measured: Report) -> None:
    """A table for each product; the mean is against the fastest peer of each case, which a plan of ours is not."""
    measured.results = [
        Result(Case("tensor", shapes.gemm(dtype, n, n, n, "nt")), 1, "sm_90a", tuple(
            Row(name, Sample((1e-3 * n / 4096 * time,), 1)) for name, time in (
                (OURS, 1.0), ("wgmma 64x64x64", 0.5), ("cuBLAS", 1.2), ("cuBLAS fast", 1.1 if n > 4096 else 1.3))))
        for dtype in ("e4m3fn-e4m3fn-bf16", "e4m3fn-e4m3fn-f32", "i8-i8-i32") for n in (4096, 8192)]
    text = " ".join(shown(measured, 300).split())
    for expected in (
        "tensor, e4m3fn → bf16", "tensor, e4m3fn → f32", "tensor, i8 → i32", "TFLOP/s; x:", "TOP/s; x:",
        "instructions alone reach 1674", "instructions alone reach 1942", "x cuBLAS fast",
        "against cuBLAS: geometric mean 1.200, least 1.200", "against cuBLAS fast: geometric mean 1.196, least 1.100",
        "against the fastest: geometric mean 1.149, least 1.100",
    ):
        assert expected in text, (expected, text)
    assert "x wgmma" not in text


def test_joules_per_multiply_are_compared(measured: Report) -> None:
    small, large = measured.results[:2]
    assert report.joules_ratio(small) == pytest.approx(600 * 60e-6 / (650 * 66e-6))
    assert report.joules_ratio(large) == pytest.approx(600 * 20e-3 / (650 * 19e-3))
    assert report.joules_ratio(measured.results[2]) is None
    assert report.held_back({"power cap": 0.5, "idle": 1.0, "power brake": 0.05}) == "power cap (50%)"
    assert (report.held_back({}), report.held_back(None)) == ("nothing", "-")


def test_figures_between_markers(measured: Report, tmp_path: Path) -> None:
    results.save(measured, tmp_path / "r.json")
    markers = [
        "gpu_rates r.json suite=square", "gpu_power r.json suite=square", "gpu_summary r.json", "gpu_machine r.json",
        "gpu_rates r.json suite=odd layout=tt",
        "gpu_epilogues r.json of=products", "gpu_epilogues r.json of=host",
    ]
    text = readme.fill("".join(f"<!-- figure: {m} -->\n<!-- /figure -->\n" for m in markers), tmp_path)
    for line in (
        "| 1024 | 35.8 | 32.5 | 1.100 (1.100 to 1.100) |",
        "| 8192 | 600 / 650 | 1755 / 1755 | 3201 / 3201 | 53 / 53 | 12.000 / 12.350 | 0.972 | power cap (100%) |",
        "| square, f32 | 1024 to 8192 | 1.022 | 0.950 |",
        "| gelu | 4096 x 28672 x 8192 | 200 | 1.05 | 0.96 | - | 1.10 |",
        "| matmul | 10.6 |",
        "Clocks: free (1700 to 1980 MHz under load, 1980 at most).",
    ):
        assert line in text, (line, text)
    assert readme.fill(text, tmp_path) == text
    with pytest.raises(readme.FigureError, match="of=pie: it is products or host"):
        readme.fill("<!-- figure: gpu_epilogues r.json of=pie -->\n<!-- /figure -->\n", tmp_path)


# ---- the command


def test_without_a_gpu_the_command_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_device, "why_not", lambda: "the NVIDIA driver sees no GPU")
    for arguments in ([], ["--quick"], ["-s", "square,odd"]):
        done = call("bench", "gpu", *arguments)
        assert done.exit_code == 2
        assert done.stderr == "tilewright: no NVIDIA GPU here: the NVIDIA driver sees no GPU\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-s", "pie"], "unknown suite 'pie' on a GPU"),
        (["--case", "64x64"], "a case is written MxNxK or MxNxK:LAYOUT, such as 64x4096x4096:nt, not '64x64'"),
        (["--case", "8x8x8:nx"], "not '8x8x8:nx'"),
        (["--sizes", "big"], "--sizes takes a positive whole number"),
        (["--json", "/nowhere/x.json"], "there is no directory /nowhere"),
    ],
)
def test_mistakes_are_found_before_a_gpu_is_looked_for(arguments: list[str], said: str) -> None:
    done = call("bench", "gpu", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
