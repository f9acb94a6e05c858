"""What state a GPU is in while something runs on it: clocks, power, temperature, energy, what holds its clocks back.

A thread asks NVML (package nvidia-ml-py) every few milliseconds; without that package nvidia-smi is asked; without both
every field says None and the state says why.  Nothing here changes a setting.  `Reading` is one look, `summary` what is
reported of many, `clock_setting` whether the clocks look locked.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

# The bits of nvmlClocksEventReasons (older drivers: nvmlClocksThrottleReasons), in words.
IDLE = "idle"
REASONS = {
    0x001: IDLE,
    0x002: "application clocks setting",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "temperature (software)",
    0x040: "temperature (hardware)",
    0x080: "power brake",
    0x100: "display clocks setting",
}
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT: nvmlDeviceGetPowerUsage is an average of the last second on most chips
INTERVAL_S = 0.01
LEAST_ENERGY_S = 0.2  # between two changes of the energy counter, for a power to be computed from it


def reasons(mask: int) -> list[str]:
    """What holds the clocks back, in words; [] if nothing does."""
    known = [text for bit, text in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return known + ([f"unknown ({rest:#x})"] if rest else [])


@dataclass(frozen=True)
class Reading:
    """One look, at `at` seconds of time.perf_counter.  None: the device does not say."""

    at: float
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    mask: int | None = None  # of REASONS
    joules: float | None = None  # since the driver was loaded


class Source(Protocol):
    """A source of readings."""

    name: str

    def readings(self) -> Iterator[Reading]:
        """One after the other, for as long as it is asked."""

    def describe(self) -> dict[str, Any]:
        """Settings and limits, as JSON has them."""

    def close(self) -> None: ...


# ---- what is made of many readings


def summary(readings: Sequence[Reading], seconds: float | None, source: str | None) -> dict[str, Any]:
    """The state over these readings; joules are those of one multiply, which takes `seconds`.

    Medians; the highest temperature; for each reason the share of the readings in which it was given.  Power comes from
    the energy counter where it changed often enough, else from the power readings.
    """

    def of(name: str) -> list[float]:
        return [x for r in readings if (x := getattr(r, name)) is not None]

    def median(name: str) -> float | None:
        values = of(name)
        return round(statistics.median(values), 1) if values else None

    masks = [r.mask for r in readings if r.mask is not None]
    held = {text: sum(text in reasons(mask) for mask in masks) / len(masks)
            for text in dict.fromkeys(text for mask in masks for text in reasons(mask))}
    by_counter = power_by_energy(readings)
    watts = median("watts") if by_counter is None else round(by_counter, 1)
    joules = watts * seconds if watts is not None and seconds is not None else None
    return {
        "readings": len(readings),
        "source": source,
        "sm_mhz": median("sm_mhz"),
        "sm_mhz_least": min(of("sm_mhz"), default=None),
        "memory_mhz": median("memory_mhz"),
        "watts": watts,
        "watts_from": None if watts is None else "power" if by_counter is None else "energy counter",
        "celsius": max(of("celsius"), default=None),
        "held_back": None if not masks else {text: round(share, 3) for text, share in held.items()},
        "joules": joules,
    }


def power_by_energy(readings: Sequence[Reading]) -> float | None:
    """Watts: energy over time between the first and the last moment at which the counter was seen to have moved.

    The counter moves in steps that may be longer than the time between readings.
    """
    moved = [(r.at, r.joules) for before, r in pairwise(readings)
             if r.joules is not None and before.joules is not None and r.joules != before.joules]
    if len(moved) < 2 or moved[-1][0] - moved[0][0] < LEAST_ENERGY_S:
        return None
    (start, first), (end, last) = moved[0], moved[-1]
    return (last - first) / (end - start)


def clock_setting(readings: Sequence[Reading], described: dict[str, Any]) -> str:
    """Whether the SM clock is free, in words.  NVML does not tell, so it is judged by how the clock behaved under load:

    locked if it never moved, below its maximum, with neither power nor temperature to blame.
    """
    clocks = [r.sm_mhz for r in readings if r.sm_mhz is not None]
    most = described.get("max_sm_mhz")
    if len(clocks) < 10 or most is None:
        return "unknown"
    blamed = {text for r in readings for text in reasons(r.mask or 0)}
    least, top = min(clocks), max(clocks)
    if blamed & {REASONS[0x002], REASONS[0x100]}:
        return f"set to at most {top:.0f} MHz"
    if least < top:
        return f"free ({least:.0f} to {top:.0f} MHz under load, {most:.0f} at most)"
    if top >= most:
        return f"at their maximum of {top:.0f} MHz, free or locked there"
    if blamed - {IDLE}:
        return f"held at {top:.0f} MHz by: {', '.join(sorted(blamed - {IDLE}))}"
    return f"locked at {top:.0f} MHz, of {most:.0f}"


class Watch:
    """Reads a source from a thread while the block lasts; `readings` are there afterwards.

    A thread, since the one that launches kernels must not wait for answers; NVML's calls leave the interpreter to it.
    """

    def __init__(self, source: Source | None, interval: float = INTERVAL_S, sleep: Callable[[float], Any] = time.sleep):
        self.source, self.interval, self.sleep = source, interval, sleep
        self.readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self.readings = []
        if self.source is not None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._read, args=(self.source,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _read(self, source: Source) -> None:
        for reading in source.readings():
            self.readings.append(reading)
            if self._stop.is_set():
                return
            self.sleep(self.interval)

    def later_half(self) -> list[Reading]:
        """Those of the second half of the time: clocks and power have settled by then."""
        if not self.readings:
            return []
        middle = (self.readings[0].at + self.readings[-1].at) / 2
        return [r for r in self.readings if r.at >= middle]


# ---- sources of readings


def find(bus_id: str | None = None) -> tuple[Source | None, str]:
    """NVML, or nvidia-smi, for the device with this PCI bus id ("00000000:65:00.0"); None and why without both."""
    try:
        import pynvml
    except ImportError:
        missing = "nvidia-ml-py is not installed"
    else:
        try:
            return Nvml(pynvml, bus_id), ""
        except pynvml.NVMLError as error:
            missing = f"NVML: {error}"
    if shutil.which("nvidia-smi"):
        return Smi(bus_id), ""
    return None, f"{missing}, and there is no nvidia-smi"


class Nvml:
    """NVIDIA's management library, by the package nvidia-ml-py (the module pynvml)."""

    name = "NVML"

    def __init__(self, nvml: Any, bus_id: str | None = None) -> None:
        self.nvml = nvml
        nvml.nvmlInit()
        by_bus = None if bus_id is None else self._ask(lambda: nvml.nvmlDeviceGetHandleByPciBusId(bus_id))
        self.handle = nvml.nvmlDeviceGetHandleByIndex(0) if by_bus is None else by_bus

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer, or None where the device, the driver or this version of the package has none."""
        try:
            return question()
        except (self.nvml.NVMLError, AttributeError):
            return None

    def readings(self) -> Iterator[Reading]:
        while True:
            yield self.read()

    def read(self) -> Reading:
        n, h, ask = self.nvml, self.handle, self._ask
        milliwatts, millijoules = self._instant_power(), ask(lambda: n.nvmlDeviceGetTotalEnergyConsumption(h))
        if milliwatts is None:
            milliwatts = ask(lambda: n.nvmlDeviceGetPowerUsage(h))
        mask = ask(lambda: n.nvmlDeviceGetCurrentClocksEventReasons(h))
        if mask is None:
            mask = ask(lambda: n.nvmlDeviceGetCurrentClocksThrottleReasons(h))
        return Reading(
            time.perf_counter(),
            ask(lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
            ask(lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),
            None if milliwatts is None else milliwatts / 1e3,
            ask(lambda: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
            mask,
            None if millijoules is None else millijoules / 1e3,
        )

    def _instant_power(self) -> int | None:
        found = self._ask(lambda: self.nvml.nvmlDeviceGetFieldValues(self.handle, [POWER_INSTANT]))
        if not found or found[0].nvmlReturn != 0 or found[0].value.uiVal == 0:
            return None
        return int(found[0].value.uiVal)

    def describe(self) -> dict[str, Any]:
        n, h, ask = self.nvml, self.handle, self._ask
        limit = ask(lambda: n.nvmlDeviceGetEnforcedPowerLimit(h))
        default = ask(lambda: n.nvmlDeviceGetPowerManagementDefaultLimit(h))
        memory = ask(lambda: n.nvmlDeviceGetMemoryInfo(h).total)
        return {
            "name": _text(ask(lambda: n.nvmlDeviceGetName(h))),
            "driver": _text(ask(n.nvmlSystemGetDriverVersion)),
            "memory": memory,
            "power_limit_watts": None if limit is None else limit / 1e3,
            "power_limit_default_watts": None if default is None else default / 1e3,
            "max_sm_mhz": ask(lambda: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM)),
            "max_memory_mhz": ask(lambda: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM)),
            "application_sm_mhz": ask(lambda: n.nvmlDeviceGetApplicationsClock(h, n.NVML_CLOCK_SM)),
            "persistence": _yes(ask(lambda: n.nvmlDeviceGetPersistenceMode(h))),
            "ecc": _yes(ask(lambda: n.nvmlDeviceGetEccMode(h)[0])),
        }

    def close(self) -> None:
        self._ask(self.nvml.nvmlShutdown)


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _yes(value: Any) -> bool | None:
    return None if value is None else bool(value)


class Smi:
    """The program nvidia-smi, which answers slower, and says nothing of energy."""

    name = "nvidia-smi"
    QUERY = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_throttle_reasons.active"
    ABOUT = "name,driver_version,memory.total,power.limit,power.default_limit,clocks.max.sm,clocks.max.mem"

    def __init__(self, bus_id: str | None = None) -> None:
        self.chosen = [f"--id={bus_id}"] if bus_id else []
        self._process: subprocess.Popen[str] | None = None

    def _command(self, query: str, *more: str) -> list[str]:
        return ["nvidia-smi", *self.chosen, f"--query-gpu={query}", "--format=csv,noheader,nounits", *more]

    def readings(self) -> Iterator[Reading]:
        self.close()
        every = f"--loop-ms={max(int(INTERVAL_S * 1e3), 20)}"
        self._process = subprocess.Popen(self._command(self.QUERY, every), stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                yield parse_smi(line, time.perf_counter())
        finally:
            self.close()

    def describe(self) -> dict[str, Any]:
        try:
            done = subprocess.run(self._command(self.ABOUT), capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            return {}
        name, driver, *rest = (field.strip() for field in done.stdout.splitlines()[0].split(","))
        mib, limit, default, sm, mem = (*map(_number, rest), *[None] * 5)[:5]
        return {
            "name": name, "driver": driver, "memory": None if mib is None else int(mib) << 20,
            "power_limit_watts": limit, "power_limit_default_watts": default, "max_sm_mhz": sm, "max_memory_mhz": mem,
        }

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def parse_smi(line: str, at: float) -> Reading:
    """A line that nvidia-smi writes for Smi.QUERY.  Fields it cannot answer are in brackets, or words."""
    fields = [field.strip() for field in line.split(",")]
    sm, memory, watts, celsius = (*map(_number, fields[:4]), *[None] * 4)[:4]
    mask = None
    if len(fields) > 4 and fields[4].startswith("0x"):
        mask = int(fields[4], 16)
    return Reading(at, sm, memory, watts, celsius, mask)


def _number(field: str) -> float | None:
    try:
        return float(field)
    except ValueError:
        return None
