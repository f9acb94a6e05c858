"""What state a GPU is in while something runs on it: clocks, power, temperature, energy, what holds its clocks back.

A thread asks NVML (package nvidia-ml-py) every few milliseconds; without that package every field is None and the state
says why.  Nothing here changes a setting.  `Reading` is one look, `summary` what is reported of many, `clock_setting`
whether the clocks look locked.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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


# ---- what is made of many readings


def summary(readings: Sequence[Reading], seconds: float | None, source: str | None) -> dict[str, Any]:
    """The state over these readings; joules are those of one multiply, which takes `seconds`.

    Medians; the highest temperature; for each reason the share of the readings in which it was given.  Power comes from
    the energy counter where it changed often enough, else from the power readings.
    """

    def samples(name: str) -> list[float]:
        return [x for r in readings if (x := getattr(r, name)) is not None]

    def median(name: str) -> float | None:
        values = samples(name)
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
        "sm_mhz_least": min(samples("sm_mhz"), default=None),
        "memory_mhz": median("memory_mhz"),
        "watts": watts,
        "watts_from": None if watts is None else "power" if by_counter is None else "energy counter",
        "celsius": max(samples("celsius"), default=None),
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

    def __init__(self, source: Nvml | None, interval: float = INTERVAL_S) -> None:
        self.source, self.interval = source, interval
        self.readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        if self.source is not None:
            self._thread = threading.Thread(target=self._read, args=(self.source.read,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _read(self, read: Callable[[], Reading]) -> None:
        self.readings.append(read())
        while not self._stop.wait(self.interval):
            self.readings.append(read())

    def later_half(self) -> list[Reading]:
        """The samples of the second half of the time: clocks and power have settled by then."""
        if not self.readings:
            return []
        middle = (self.readings[0].at + self.readings[-1].at) / 2
        return [r for r in self.readings if r.at >= middle]


# ---- where readings come from


def find(bus_id: str | None = None) -> tuple[Nvml | None, str]:
    """NVML for the device with this PCI bus id ("00000000:65:00.0"); None and why without it."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        return Nvml(pynvml, bus_id), ""
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"


class Nvml:
    """NVIDIA's management library, by the package nvidia-ml-py (the module pynvml)."""

    name = "NVML"

    def __init__(self, nvml: Any, bus_id: str | None = None) -> None:
        self.nvml = nvml
        nvml.nvmlInit()
        by_bus = None if bus_id is None else self._ask("nvmlDeviceGetHandleByPciBusId", bus_id)
        self.handle = nvml.nvmlDeviceGetHandleByIndex(0) if by_bus is None else by_bus

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The answer, or None where the device, the driver or this version of the package has none."""
        try:
            return getattr(self.nvml, function)(*arguments)
        except (self.nvml.NVMLError, AttributeError):
            return None

    def _device(self, name: str, *arguments: Any, unit: float | None = None) -> Any:
        """The answer of nvmlDeviceGetNAME, in multiples of `unit`."""
        value = self._ask(f"nvmlDeviceGet{name}", self.handle, *arguments)
        return value if value is None or unit is None else value / unit

    def read(self) -> Reading:
        n, instant = self.nvml, self._instant_power()
        mask = self._device("CurrentClocksEventReasons")
        return Reading(
            time.perf_counter(),
            self._device("ClockInfo", n.NVML_CLOCK_SM),
            self._device("ClockInfo", n.NVML_CLOCK_MEM),
            self._device("PowerUsage", unit=1e3) if instant is None else instant / 1e3,
            self._device("Temperature", n.NVML_TEMPERATURE_GPU),
            self._device("CurrentClocksThrottleReasons") if mask is None else mask,
            self._device("TotalEnergyConsumption", unit=1e3),
        )

    def _instant_power(self) -> int | None:
        fields = self._device("FieldValues", [POWER_INSTANT])
        if not fields or fields[0].nvmlReturn != 0 or fields[0].value.uiVal == 0:
            return None
        return int(fields[0].value.uiVal)

    def describe(self) -> dict[str, Any]:
        """Settings and limits, as JSON has them."""
        n, memory, ecc = self.nvml, self._device("MemoryInfo"), self._device("EccMode")
        persistence = self._device("PersistenceMode")
        return {
            "name": _text(self._device("Name")),
            "driver": _text(self._ask("nvmlSystemGetDriverVersion")),
            "memory": memory and memory.total,
            "power_limit_watts": self._device("EnforcedPowerLimit", unit=1e3),
            "power_limit_default_watts": self._device("PowerManagementDefaultLimit", unit=1e3),
            "max_sm_mhz": self._device("MaxClockInfo", n.NVML_CLOCK_SM),
            "max_memory_mhz": self._device("MaxClockInfo", n.NVML_CLOCK_MEM),
            "application_sm_mhz": self._device("ApplicationsClock", n.NVML_CLOCK_SM),
            "persistence": None if persistence is None else bool(persistence),
            "ecc": None if ecc is None else bool(ecc[0]),
        }

    def close(self) -> None:
        self._ask("nvmlShutdown")


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
