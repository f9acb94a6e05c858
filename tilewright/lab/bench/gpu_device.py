"""A GPU as contest.Bench measures on it, by torch: operands, answers compared, graphs in turns, the device's state.

torch, because cuBLAS is called through it: all peers run on its current stream and in its graphs.  Every element of an
answer is compared with torch's product of float64 copies, from which it may be off by 8 eps |A| |B|, as on CPUs
(check.py).  The sums of fp8 that tensor cores keep by themselves have about 14 bits: those of peers may be off by 2^-11
of |A| |B| more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilewright import formats
from tilewright.lab.bench import gpu_scales, peer
from tilewright.lab.bench.cases import GPU, Case, Job
from tilewright.lab.bench.contest import Checked, Left, Lost, States, Timed, attempt
from tilewright.lab.bench.peer import OURS, Way
from tilewright.lab.measure import gpu_rules, gpu_state, machine, measure
from tilewright.lab.measure.check import RANDOM
from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack, Launch, sets
from tilewright.lab.measure.measure import Call, Sample
from tilewright.lab.measure.operands import Operands
from tilewright.problem import Gemm

Tensor = Any
Answer = tuple[Tensor, Tensor]  # A B, and how far each element may be off
Answers = Callable[[str], Answer]  # by the name of a row
PACKAGES = ("torch", "triton", "cuda-bindings", "nvidia-ml-py", "llvmlite")
PROMOTED_SUMS = 2.0**-13  # of |A| |B|: what ours of fp8 lose, which Hopper's tensor cores add up over 128 steps of k
FAST_SUMS = 2.0**-11  # of |A| |B|: what sums of fp8 lose which tensor cores add up over all of k
# of |A| |B|, by algorithm: what operands lose that are rounded
ROUNDED = {"tf32_tf32_f32": 2.0**-10}
ARTICLE = ("sweep",)  # suites timed by the article's protocol, the others by the median protocol


class NoGpu(RuntimeError):
    """There is nothing to measure on; the message says what is missing."""


def why_not() -> str:
    """Why nothing can be measured here; "" if something can."""
    from tilewright.runtime.cuda import module

    if reason := module.why_not():
        return reason
    try:
        import torch
    except ImportError:
        return "torch, through which cuBLAS is called, is not installed"
    return "" if torch.cuda.is_available() else "this torch is built without CUDA"


def require() -> None:
    """NoGpu unless there is one."""
    if reason := why_not():
        raise NoGpu(f"no NVIDIA GPU here: {reason}")


class TorchDevice:
    """gpu_rules.Device for the CUDA device of this number."""

    def __init__(self, index: int = 0) -> None:
        import torch

        from tilewright.runtime.cuda import module

        require()
        self.torch, self.index = torch, index
        self.on = module.device(index)
        self.name = torch.device("cuda", index)
        torch.cuda.set_device(self.name)
        torch.backends.cuda.matmul.allow_tf32 = False  # f32 means f32
        self._other: Tensor | None = None

    def mark(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def graph(self, launches: Sequence[Launch]) -> Launch:
        self.wait()
        captured = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(captured):
            for launch in launches:
                launch()

        def run(keep: Any = launches) -> None:  # the operands must outlive the graph
            captured.replay()

        return run

    def flush(self) -> None:
        if self._other is None:
            self._other = self.torch.empty(2 * self.on.target.l2, dtype=self.torch.uint8, device=self.name)
        self._other.zero_()

    def wait(self) -> None:
        """Until all is done.  RuntimeError for what went wrong on the device: it stays so, for this process."""
        self.torch.cuda.synchronize()

    @property
    def bus_id(self) -> str:
        """The device's identifier for NVML."""
        from tilewright.runtime.cuda.driver import bus_id

        return bus_id(self.on)

    def describe(self) -> dict[str, Any]:
        """The chip and the versions, as JSON has them."""
        t = self.on.target
        return {
            "name": self.on.name, "target": t.name, "sms": t.sms, "l2": t.l2, "clock_hz": t.clock,
            "bandwidth": t.bandwidth, "cuda": self.torch.version.cuda, "packages": machine.versions(*PACKAGES),
        }


# ---- operands and answers


def dtype_of(torch: Any, format: str) -> Any:
    """torch's name for a number format."""
    return getattr(torch, formats.FORMATS[format].numpy_name)


def eps_of(format: str) -> float:
    """The distance from 1 to the next number; 0 of integers."""
    known = formats.FORMATS[format]
    return known.eps if isinstance(known, formats.Float) else 0.0


def make(on: TorchDevice, problem: Gemm, gap: int = 0) -> Operands:
    """Fresh random operands: normal floats, integers of all values alike.  C starts as nan (or -1), so that an element
    that was not written cannot pass for right."""
    torch = on.torch
    batch = () if problem.batch == 1 else (problem.batch,)
    c = torch.empty((*batch, problem.m, problem.n), device=on.name, dtype=dtype_of(torch, problem.out))
    poison(c)
    if problem.blocks:
        return Operands(problem, *gpu_scales.blocked(torch, problem, on.name), c)

    def matrix(format: str, stored: tuple[int, int], letter: str) -> Tensor:
        shape, dtype, kind = (*batch, stored[0], stored[1] + gap), dtype_of(torch, format), formats.FORMATS[format]
        if isinstance(kind, formats.Integer):
            x = torch.randint(int(kind.smallest), int(kind.largest) + 1, shape, device=on.name, dtype=dtype)
        elif kind.bits >= 32:
            x = torch.randn(shape, device=on.name, dtype=dtype)
        else:
            x = torch.randn(shape, device=on.name).to(dtype)
        x = x[..., : stored[1]]
        return x if letter == "n" else x.transpose(-1, -2)

    a = matrix(problem.a, problem.shape_a, problem.layout[0])
    b = matrix(problem.b, problem.shape_b, problem.layout[1])
    return Operands(problem, a, b, c, *gpu_scales.of_rows(torch, problem, on.name))


def poison(c: Tensor) -> None:
    """nan, or of integers -1."""
    c.fill_(float("nan") if c.dtype.is_floating_point else -1)


def reference(o: Operands, loss: float = 0.0) -> tuple[Tensor, Tensor]:
    """A B in float64, and how far each element may be off: as far as sums may be, `loss` of |A| |B| more, and a place
    of a narrower result; integers not at all."""
    a, b = (gpu_scales.decoded(x, "float64") for x in (o.a, o.b))
    wanted = a @ b
    sums, out = o.problem.sums, formats.FORMATS[o.problem.out]
    if o.problem.a != "f64":
        a, b = a.float(), b.float()
    if {o.problem.a, o.problem.b} <= {"e4m3fn", "e5m2"}:
        loss = max(loss, PROMOTED_SUMS)
    allowed = (RANDOM * eps_of(sums) + loss) * (a.abs() @ b.abs())
    if o.scale_a is not None:
        by = o.scale_a.double() * o.scale_b.double()
        wanted, allowed = wanted * by, allowed * by + RANDOM * eps_of("f32") * (wanted * by).abs()
    if isinstance(out, formats.Float) and out.name != sums:
        allowed = allowed + wanted.abs() * out.eps + out.smallest_subnormal
    return wanted, allowed


def wrong(c: Tensor, wanted: Tensor, allowed: Tensor) -> str | None:
    """None if c is right, else a sentence that says where it is not.  nan is wrong."""
    close = (c.double() - wanted).abs() <= allowed
    if bool(close.all()):
        return None
    count = int((~close).sum())
    at = tuple(int(x) for x in (~close).nonzero()[0])
    got, exact, place = float(c[at]), float(wanted[at]), ", ".join(map(str, at))
    return f"{count} of {c.numel()} elements are off, the first C[{place}] = {got:.9g}, float64 gives {exact:.9g}"


def _launches(calls: Sequence[Call]) -> list[Launch]:
    return [partial(fn, *args) for fn, args in calls]


# ---- the device of a job


class Gpu:
    """Device of a job on a GPU."""

    def __init__(self, job: Job, on: TorchDevice | None = None) -> None:
        self.job, self.on = job, on or TorchDevice(job.number)
        self.target = self.on.on.target
        self.isa = self.target.name
        assert isinstance(job.rules, GpuRules)
        self.rules = job.rules
        self.source, why = gpu_state.find(self.on.bus_id)
        self.settings = self.source.describe() if self.source else {"why": why}
        self.readings: list[gpu_state.Reading] = []  # under load, of all cases

    def describe(self) -> dict[str, Any]:
        return self.on.describe() | self.settings

    def close(self) -> str:
        """How the clocks behaved, in words."""
        setting = gpu_state.clock_setting(self.readings, self.settings)
        if self.source:
            self.source.close()
        return setting

    def operands(self, case: Case) -> list[Operands]:
        return [make(self.on, case.problem, gap=case.gap) for _ in range(sets(case.problem.min_bytes, self.target.l2))]

    def reference(self, case: Case, first: Operands) -> Answers:
        """Ours, or what peers may be off by."""
        ours = reference(first, ROUNDED.get(case.algorithm or "", 0.0))
        p = case.problem
        fp8 = not p.blocks and any(isinstance(formats.FORMATS[x], formats.Float) and formats.FORMATS[x].bits <= 8
                                      for x in (p.a, p.b))
        # block-scaled ones are multiplied as bf16
        theirs = reference(first, FAST_SUMS) if fp8 else ours
        return lambda name: theirs if peer.is_peer(name, GPU) else ours

    def checked(self, way: Way, case: Case, sets: list[Operands], reference: Answers) -> Checked:
        try:
            calls = attempt(lambda: [way.bind(o) for o in sets])
            said = attempt(lambda: self._wrong(_launches(calls), sets, reference(way.name)))
        except Left as reason:
            try:
                self.on.wait()
            except RuntimeError:
                raise Lost(str(reason)) from None
            raise
        if said:
            raise Left(f"wrong result: {said}")
        return calls, 0, None

    def _wrong(self, launches: Sequence[Launch], sets: list[Operands], reference: Answer) -> str | None:
        """Every C poisoned, everything launched: is the first C right, and is no nan left in the others?"""
        for o in sets:
            poison(o.c)
        for launch in launches:
            launch()
        self.on.wait()
        if said := wrong(sets[0].c, *reference):
            return said
        unwritten = [i for i, o in enumerate(sets) if bool(o.c.isnan().any())]
        return f"C of operands {unwritten[0]} is not written everywhere" if unwritten else None

    def time(self, case: Case, calls: dict[str, list[Call]], reference: Answers, sets: list[Operands]) -> Timed:
        """Time, watch, and check what the timed launches write."""
        launches = {name: _launches(made) for name, made in calls.items()}
        samples, states, again = self._article(case, launches) if case.suite in ARTICLE else self._median(launches)
        errors = {}
        for name in samples:
            if said := self._wrong(again[name], sets, reference(name)):
                errors[name] = f"wrong result after timing: {said}"
        if OURS in states:
            states[OURS]["plan"] = peer.plan_of(case.problem, self.target, case.algorithm)
        return samples, states, errors

    def _median(self, launches: dict[str, list[Launch]]) -> tuple[dict[str, Sample], States, Any]:
        tracks: list[GraphTrack] = []

        def track(calls: Sequence[Call]) -> GraphTrack:
            tracks.append(GraphTrack(self.on, _launches(calls)))
            return tracks[-1]

        calls = {name: [(launch, ()) for launch in made] for name, made in launches.items()}
        samples, states, again = measure.interleave(calls, self.rules, track=track), {}, {}
        for name, turn in zip(launches, tracks):
            if self.rules.watch_s > 0:
                with gpu_state.Watch(self.source) as watch:
                    sustained = turn.sustain(self.rules.watch_s)
                states[name] = {**self._state(watch, sustained), "sustained_s": sustained}
            # A graph of long calls has only the first: the others are launched as before.
            again[name] = [*launches[name][turn.launches :], turn.run]
        return samples, states, again

    def _article(self, case: Case, launches: dict[str, list[Launch]]) -> tuple[dict[str, Sample], States, Any]:
        p = case.problem
        count = gpu_rules.replays(gpu_rules.size(p.m, p.n, p.k))
        samples, states = {}, {}
        for name, made in launches.items():
            with gpu_state.Watch(self.source) as watch:
                samples[name] = gpu_rules.replay(self.on, made, count, self.job.flush)
                once = samples[name].seconds[0]
                # Small sizes are over before the power has been read: go on, untimed.
                more = int((self.rules.watch_s - count * once) / once)
                if more > 0:
                    gpu_rules.replay(self.on, made, more)
            states[name] = self._state(watch, once)
        return samples, states, launches

    def _state(self, watch: gpu_state.Watch, seconds: float) -> dict[str, Any]:
        readings = watch.later_half()
        self.readings += readings
        return gpu_state.summary(readings, seconds, self.source.name if self.source else None)
