"""The ceilings of a GPU, measured by emitted probes and remembered: what predictions for it rest on.

The models' constants (plans/nvidia_model.py) were fitted on one chip, by the rates of its data sheet. `REACHED` is what
the probes reach of these rates there; another chip's are carried over by what they reach on it: a slower clock under
load, a lower power limit, slower memory. Without a measurement the data sheet counts.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.compiler import artefact
from tilewright.lab.measure import gpu_probe_kernels, nvidia_probe_kernels, probes
from tilewright.lab.measure.machine import now
from tilewright.lab.measure.probes import Basis
from tilewright.plans.common import Cost
from tilewright.targets import AmdTarget, GpuTarget

DEFAULTS = "the data sheet of"
# Of the rates of the data sheet (targets/nvidia.py), what the probes reach on an H200, 2026-11-23. Matrix instructions,
# which multiply the same tiles again and again, stay below its power limit.
REACHED = {"f32": 0.810, "f64": 0.846, "mma f64": 0.995, "mma bf16": 1.051, "mma f16": 1.051, "mma i8": 1.042,
           "mma u8": 1.042, "mma e4m3fn": 0.753, "mma e5m2": 0.753, "mma tf32": 1.032, "wgmma bf16": 0.999,
           "wgmma f16": 0.999, "wgmma i8": 0.975, "wgmma u8": 0.975, "wgmma e4m3fn": 1.015, "wgmma e5m2": 1.015,
           "wgmma tf32": 0.990, "memory": 0.964}
LAUNCH = 1.36e-6                                # seconds from launch to launch there
WARM_S, TURN_S, TURNS = 0.3, 0.1, 5             # seconds until the power has settled; of a turn, and how many
QUICK = 0.2                                     # of these, for a first look
HOST_S = 2e-5                                   # in which a host gives a launch to a stream
LEVELS = {"l2": 4, "memory": 16}                # working sets: this part of L2, so many times L2


@dataclass(frozen=True)
class GpuMeasured:
    """What one GPU keeps up for half a second."""
    target: str
    model: str
    driver: str
    date: str
    flops: dict[str, float]     # "f32", "f64"; of matrix instructions "mma bf16", "wgmma bf16": operations per second
    bandwidth: dict[str, float]         # "memory", "l2": bytes read per second
    launch: float                       # seconds from one launch to the next

    def scaled(self, shape: Any, plan: Any, on: Any) -> Any:
        """The target for which the model's rates are those of this chip, for this plan."""
        kinds = {"mma": f"mma {shape.a}", "wgmma": f"wgmma {shape.a}", "dmma": "mma f64"}
        return self.rescaled(on, kinds.get(plan.algorithm.removeprefix("attention_"), shape.sums))

    def rescaled(self, on: Any, kind: str) -> Any:
        """The ceilings for multiply-adds, or matrix instructions, of this name."""
        known = data_sheet(on)
        kind = kind if kind in known and self.flops.get(kind) else "f32"
        clock = self.flops[kind] / known[kind] / REACHED[kind]
        return replace(on, clock=on.clock * clock, bandwidth=on.bandwidth * self.memory(on))

    def cost(self, shape: Any, plan: Any, target: Any) -> Cost:
        """The cost, as plans.gpu.cost, by these ceilings."""
        predicted = shape.planner.cost(shape, plan, self.scaled(shape, plan, target))
        return replace(predicted, seconds=predicted.seconds + max(self.launch - LAUNCH, 0.0))

    def memory(self, on: Any) -> float:
        return self.bandwidth["memory"] / on.bandwidth / REACHED["memory"]


def data_sheet(on: Any) -> dict[str, float]:
    """Operations per second, by the names of `GpuMeasured.flops`."""
    if isinstance(on, AmdTarget):
        return {"f32": 2 * on.fma_f32 * on.cus * on.clock, "f64": 2 * on.fma_f64 * on.cus * on.clock}
    units = on.sms * on.clock
    rates = {"mma f64": 2 * on.matrix_f64 * ("mma.f64" in on.instructions)}
    rates |= {f"mma {name}": rate for name, rate in on.matrix_rates.items()}
    rates |= {f"wgmma {name}": rate for name, rate in on.wgmma_rates.items()}
    known = {name: rate * units for name, rate in rates.items() if rate}
    return {"f32": on.flops("f32"), "f64": on.flops("f64"), **known}


# ---- measuring

def measure(on: Any, engine: Any, quick: bool = False,
            progress: Callable[[str], None] = lambda what: None) -> GpuMeasured:
    """Run every probe on a device of an engine's, ten seconds in all; `quick`: two, in which the power may not settle.
    """
    device, flops = Probes(on, engine, QUICK if quick else 1.0), {}
    for name in data_sheet(on.target):
        if name.split()[-1] not in ("u8", "e5m2", "f16"):               # as fast as others
            progress(f"{name} on {on.target.model}")
            flops[name] = device.rate(*device.arithmetic(name))
    flops |= {name.replace("bf16", "f16"): rate for name, rate in flops.items() if name.endswith("bf16")}
    flops |= {name.replace("i8", "u8"): rate for name, rate in flops.items() if name.endswith("i8")}
    flops |= {name.replace("e4m3fn", "e5m2"): rate for name, rate in flops.items() if name.endswith("e4m3fn")}
    bandwidth = {}
    for level in LEVELS:
        progress(f"{level} of {on.target.model}")
        bandwidth[level] = device.rate(*device.reading(level))
    return GpuMeasured(on.target.name, on.target.model, on.target.driver, now(), flops, bandwidth, device.launch())


def _loaded(emitter: Callable[..., Any], on: Any, driver: Any, **options: Any) -> Any:
    """The kernel that this function emits, on the device."""
    code = artefact.code(f"{emitter.__module__}:{emitter.__name__}", on.target, **options)
    return driver.load(code.image, on).function(code.manifest)


class Busy:
    """Keeps a device busy for as long as one likes, with a loop of multiply-adds on one compute unit: a host that is
    slower than kernels gives them to a stream meanwhile."""

    def __init__(self, on: Any, driver: Any) -> None:
        self.driver, self.prepared = driver, dict[int, Any]()
        self.function = _loaded(gpu_probe_kernels.emit_fma_probe, on, driver, DTYPE="f32", WARP=on.target.warp)
        self.x = driver.Memory.upload(on, _numbers("f32", 2*(gpu_probe_kernels.THREADS + gpu_probe_kernels.FACTORS)))
        # two multiply-adds of a warp in a clock, of as many as the slowest chips have
        clocks = gpu_probe_kernels.CHAINS * gpu_probe_kernels.THREADS / on.target.fma_f32
        self.round = clocks / on.target.clock

    def __call__(self, stream: int, seconds: float) -> None:
        rounds = 1 << max(int(seconds / self.round), 1).bit_length()
        if rounds not in self.prepared:
            sums = self.x.pointer + self.x.size // 2
            self.prepared[rounds] = self.driver.Prepared(self.function, (1,), [rounds, self.x.pointer, sums])
        self.prepared[rounds](stream)


class Probes:
    """The probes of one device, ready to launch."""

    def __init__(self, on: Any, engine: Any, effort: float = 1.0) -> None:
        self.on, self.driver, self.warp, self.turn_s = on, engine.driver, on.target.warp, effort * TURN_S
        self.units = on.target.cus if isinstance(on.target, AmdTarget) else on.target.sms
        self.stream, self.kept = self.driver.Stream(on), []     # type: ignore[var-annotated]
        self.functions: dict[str, Any] = {}

    def prepared(self, emitter: Callable[..., Any], options: dict[str, Any], grid: int, *args: Any) -> Any:
        """A launch of the probe that this function emits."""
        key = f"{emitter.__name__} {options}"
        if key not in self.functions:
            self.functions[key] = _loaded(emitter, self.on, self.driver, **options)
        pointers = [x.pointer if hasattr(x, "pointer") else x for x in args]
        return self.driver.Prepared(self.functions[key], (grid,), pointers)

    def upload(self, x: Any) -> Any:
        memory = self.driver.Memory.upload(self.on, x)
        self.kept.append(memory)
        return memory

    def room(self, size: int) -> Any:
        self.kept.append(self.driver.Memory(self.on, size))
        return self.kept[-1]

    def arithmetic(self, name: str) -> tuple[Callable[[int], Any], float]:
        """Launches of so many rounds, and the operations of a round."""
        if " " not in name:
            x, grid = self.upload(_numbers(name, gpu_probe_kernels.THREADS + gpu_probe_kernels.FACTORS)), 8 * self.units
            y = self.room(8 * grid * gpu_probe_kernels.THREADS)
            work = 2.0 * grid * gpu_probe_kernels.THREADS * gpu_probe_kernels.CHAINS
            return lambda rounds: self.prepared(gpu_probe_kernels.emit_fma_probe, {"DTYPE": name, "WARP": self.warp},
                                                grid, rounds, x, y), work
        kind, format = name.split()
        x = self.upload(_numbers(format, 4*nvidia_probe_kernels.WORDS // _bytes(format)))
        y = self.room(8 * 2 * self.units * nvidia_probe_kernels.WGMMA_THREADS)
        if kind == "wgmma":
            return (lambda rounds: self.prepared(nvidia_probe_kernels.emit_wgmma_probe, {"FORMAT": format}, self.units,
                                                  rounds, x, y),
                    float(self.units * nvidia_probe_kernels.wgmma_operations(format)))
        options = {"FORMAT": format, "SHAPE": nvidia_probe_kernels.largest(self.on.target, format)}
        return (lambda rounds: self.prepared(nvidia_probe_kernels.emit_mma_probe, options, 2*self.units, rounds, x, y),
                2.0 * self.units * nvidia_probe_kernels.mma_operations(self.on.target, format))

    def reading(self, level: str) -> tuple[Callable[[int], Any], float]:
        """The rate of bytes."""
        grid, l2 = 8 * self.units, self.on.target.l2
        size = l2 // LEVELS[level] if level == "l2" else l2 * LEVELS[level]
        pieces = max(size // (16 * gpu_probe_kernels.LOADS * gpu_probe_kernels.THREADS * grid), 1)
        size = pieces * 16 * gpu_probe_kernels.LOADS * gpu_probe_kernels.THREADS * grid
        x = self.upload(np.random.default_rng(0).integers(0, 1 << 30, size // 4, np.int32))
        y = self.room(4 * grid * gpu_probe_kernels.THREADS)
        return lambda rounds: self.prepared(gpu_probe_kernels.emit_read_probe, {"WARP": self.warp}, grid, rounds,
                                            pieces, grid, x, y), float(size)

    def rate(self, prepare: Callable[[int], Any], work: float) -> float:
        """Work per second: the median of some turns, after a while in which the power settles."""
        rounds = 16
        while (took := self.seconds(prepare(rounds), 1)) < self.turn_s / 20 and rounds < 1 << 24:
            rounds *= 4
        rounds = max(int(rounds * self.turn_s / 4 / took), 1)
        launch = prepare(rounds)
        self.seconds(launch, max(int(WARM_S / TURN_S * 4), 1))
        return rounds * work * 4 / float(np.median([self.seconds(launch, 4) for _ in range(TURNS)]))

    def launch(self) -> float:
        number = self.upload(np.zeros(1, np.int32))
        launch = self.prepared(gpu_probe_kernels.emit_empty_probe, {"WARP": self.warp}, 1, number)
        busy = Busy(self.on, self.driver)
        self.seconds(launch, 100)

        def before() -> None:
            busy(self.stream.handle, HOST_S * 200)
        return min(self.seconds(launch, 200, before) for _ in range(TURNS)) / 200

    def seconds(self, launch: Any, count: int, before: Callable[[], object] = lambda: None) -> float:
        """Seconds of so many launches in a row."""
        before()
        start = self.stream.event(self.on).record(self.stream)
        for _ in range(count):
            launch(self.stream.handle)
        end = self.stream.event(self.on).record(self.stream)
        end.synchronize()
        return float(end.since(start))


def _bytes(format: str) -> int:
    return {"f64": 8, "f32": 4, "tf32": 4, "bf16": 2, "f16": 2}.get(format, 1)


def _numbers(format: str, count: int) -> Any:
    """Random normal numbers, or integers of every value: the power depends on the data."""
    from tilewright import formats
    random = np.random.default_rng(0)
    if format in ("i8", "u8"):
        return random.integers(-128, 128, count).astype(np.int8)
    numbers = random.standard_normal(count)
    return numbers.astype(formats.get("f32" if format == "tf32" else format).dtype)


# ---- remembered

def _path(on: Any) -> Any:
    return probes.file_of(on.name, on.model)


def remembered(on: Any) -> GpuMeasured | None:
    """What was measured before on a GPU of this model."""
    measured: GpuMeasured | None = probes.recalled(_path(on), _read)
    return measured


def _read(fields: dict[str, Any]) -> GpuMeasured | None:
    measured = GpuMeasured(**fields)
    rates = [*measured.flops.values(), *measured.bandwidth.values(), measured.launch]
    return measured if measured.flops["f32"] and measured.bandwidth["memory"] and min(rates) > 0 else None


def renew(quick: bool = False, progress: Callable[[str], None] = lambda what: None) -> list[GpuMeasured]:
    """Measure every model of GPU that is here, and remember it in place of what was known."""
    renewed: dict[tuple[str, str], GpuMeasured] = {}
    for on, engine in devices():
        if (on.target.name, on.target.model) not in renewed:
            renewed[on.target.name, on.target.model] = new = measure(on, engine, quick, progress)
            probes.remember(_path(on.target), new)
    return [*renewed.values()]


def devices() -> Iterator[tuple[Any, Any]]:
    """Every device whose architecture has a target, and its engine."""
    from tilewright.runtime.gpu.engine import AMD, NVIDIA
    for platform in (NVIDIA, AMD):
        driver = platform.driver
        for on in map(driver.device, range(driver.count())) if not driver.why_not() else ():
            try:
                on.target  # noqa: B018
            except RuntimeError:
                continue
            yield on, platform


# ---- predicting

def basis(target: GpuTarget | AmdTarget) -> Basis:
    """The ceilings remembered for GPUs of this model."""
    known = remembered(target)
    if known is None:
        return Basis(None, f"{DEFAULTS} {target.model}; `tilewright doctor` measures a GPU that is here")
    return Basis(known, f"the ceilings of {known.model}, measured on {known.date[:10]} (`tilewright doctor`)")
