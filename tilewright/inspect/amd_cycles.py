"""A static cycle count of a kernel's main loop on an AMD GPU, from its assembly: nothing is run, and nothing measured.

The waves of one SIMD execute the loop's instructions in order, round after round, until a round takes the same time as
the one before; the other three SIMDs of the compute unit are taken to do the same. Every fourth cycle is a SIMD's turn,
in which a wave issues one instruction, and different waves instructions for different units:

    matrix      an MFMA occupies the Matrix Core for the cycles that the catalogue has (atoms.amd), and like
    vector      every vector instruction four cycles of issue (64 lanes over 16); 16 if it is of quarter rate
    scalar      four cycles
    lds         a quarter of the LDS' bandwidth, by the passes over its banks without conflicts (targets.banks); a pair
                of SIMDs shares a port, where addresses and data to be written take turns
    global      a quarter of the 64 bytes that L1 delivers in a clock

The last two have queues: a wave goes on once its access is issued. It waits at s_waitcnt for LDS, whose latency is
known, and at s_barrier for the others. How long loads from global memory take depends on where they hit, so no number
for it is assumed: nothing waits for them, and `slack_cycles` says how many cycles they would have had. What
depends on a matrix instruction's result, or writes what one reads, LLVM keeps apart by s_nop.

Source of the model: ROCm Compute Profiler, "Pipeline descriptions",
https://rocm.docs.amd.com/projects/rocprofiler-compute/en/latest/conceptual/pipeline-descriptions.html
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.atoms.amd import mfma_instructions
from tilewright.compiler import amd
from tilewright.inspect.resources import Loop, amd_loop
from tilewright.targets import AmdTarget, banks

if TYPE_CHECKING:
    from tilewright.ir import Function

TURN = 4                # cycles between two instructions of a wave, and of one for a unit
QUARTER = 16            # cycles of a vector instruction of quarter rate
L1 = 64                 # bytes per clock of a compute unit: CDNA3 white paper
LDS_LATENCY = 128       # cycles: 64 reads of 4 bytes take 501 on an MI300X, of 16 bytes 1,384. nod-ai/amd-shark-ai,
#                         docs/empirical-lds
PORT = 2                # SIMDs that share one to the LDS
LANES = 64
ROUNDS = 8              # as many again are counted
_SLOW = re.compile(r"v_(mul_(lo|hi)_|mad_u64|(exp|log|rcp|rsq|sqrt|sin|cos)_f)")
_LDS = re.compile(r"ds_(read|write)(2(?:st64)?)?_[a-z](\d+)")      # reads that transpose take as long as others
_GLOBAL = re.compile(r"(?:global|buffer|flat)_(?:load|store)_(?:(dword)(?:x(\d))?|[us]?(byte|short))")


@dataclass(frozen=True)
class Step:
    """One instruction: which unit it is for, and the cycles that it occupies it."""
    text: str
    unit: str                   # "matrix", "vector", "scalar", "lds", "global", "wait", "barrier", "branch", "none"
    cycles: int
    bytes: int = 0              # that a lane reads or writes, of "lds" and "global"
    stored: int = 0             # cycles of the LDS, of a load straight into it
    vm: int | None = None       # of "wait": how many may be left under way
    lgkm: int | None = None


@dataclass(frozen=True)
class Cycles:
    """One round of the main loop on one SIMD."""
    waves: int                  # of the SIMD
    round: float                # cycles in which each of them goes round once
    unwaited: float             # the same if LDS answered at once: order and bandwidth alone
    units: dict[str, int]       # cycles for which a wave's round occupies each unit
    instructions: dict[str, int]
    slack_cycles: int | None        # the fewest cycles between a load's turn at L1 and the wait for it; None: no loads
    narrow: tuple[str, ...]     # accesses of LDS and global memory of less than 8 bytes a lane, and any of scratch

    @property
    def share(self) -> float:
        """The share of the time that the Matrix Core is busy."""
        return self.waves * self.units["matrix"] / self.round

    @property
    def unwaited_share(self) -> float:
        return self.waves * self.units["matrix"] / self.unwaited

    def __str__(self) -> str:
        units = ", ".join(f"{unit} {cycles}" for unit, cycles in self.units.items() if cycles)
        late = "" if self.slack_cycles is None else f"; loads have at least {self.slack_cycles} cycles to arrive"
        waves = f"{self.waves} wave{'s' * (self.waves > 1)}"
        return (f"{self.round:.0f} cycles a round of {waves} on a SIMD, {self.share:.1%} of the Matrix Core's "
                f"({self.unwaited_share:.1%} if LDS answered at once); a wave occupies {units}{late}")


def count(function: Function, target: AmdTarget, text: str | None = None, waves: int | None = None) -> Cycles:
    """Cycles of the main loop of a kernel. `waves` on a SIMD: as many as fit, unless given. ValueError without a
    loop."""
    text = amd.assembly(function, target) if text is None else text
    waves = amd.usage(function, target, text).waves if waves is None else waves
    return cycles([step(line, target) for line in amd_loop(text, function.name)], waves)


def loop(text: str, function: str, target: AmdTarget) -> Loop:
    """The main loop, its instructions counted by the unit that they are for. ValueError without a loop."""
    lines = amd_loop(text, function)
    return Loop(function, "\n".join(f"\t{line}" for line in lines), dict(Counter(step(x, target).unit for x in lines)))


def cycles(steps: Sequence[Step], waves: int = 1) -> Cycles:
    """Cycles of a loop of these instructions."""
    units = Counter({"matrix": 0})
    for step in steps:
        units[step.unit] += step.cycles
        units["lds"] += step.stored
    queued = waves * max(units["lds"], units["global"])         # a queue does not grow for ever
    (together, slack_cycles), (unwaited, _) = (_steady(steps, waves, latency) for latency in (LDS_LATENCY, 0))
    together, unwaited = max(together, queued), max(unwaited, queued)
    narrow = tuple(step.text for step in steps if step.unit in ("lds", "global") and step.bytes < 8)
    return Cycles(waves, together, unwaited, dict(units), dict(Counter(step.unit for step in steps)), slack_cycles,
                  narrow)


def _steady(steps: Sequence[Step], waves: int, latency: int) -> tuple[float, int | None]:
    """(cycles of a round, slack_cycles), once rounds are alike."""
    simd = _Simd(steps, waves, latency)
    simd.run(ROUNDS)
    begin, simd.slack_cycles = simd.time, None
    simd.run(ROUNDS)
    return (simd.time - begin) / ROUNDS, simd.slack_cycles


# ---- instructions

def step(line: str, target: AmdTarget) -> Step:
    """What one instruction of assembly occupies. ValueError for a matrix instruction that is not in the catalogue."""
    name = re.sub(r"_(e32|e64|dpp|sdwa)$", "", line.split()[0])
    if name.startswith(("v_mfma", "v_smfma")):
        return Step(line, "matrix", _matrix(line, target.name))
    if name.startswith("v_"):
        return Step(line, "vector", QUARTER if _SLOW.match(name) else TURN)
    if name == "s_waitcnt":
        left = {counter: int(n) for counter, n in re.findall(r"(vm|lgkm)cnt\((\d+)\)", line)}
        return Step(line, "wait", TURN, vm=left.get("vm"), lgkm=left.get("lgkm"))
    if name == "s_barrier":
        return Step(line, "barrier", TURN)
    if name == "s_nop":
        return Step(line, "none", TURN * (int(line.split()[1], 0) + 1))
    if name.startswith(("s_cbranch", "s_branch")):
        return Step(line, "branch", TURN)
    if name.startswith("ds_"):
        return _lds(line, name, target)
    if name.startswith(("global_", "buffer_", "flat_", "scratch_")) and name not in ("buffer_wbl2", "buffer_inv"):
        return _memory(line, name, target)
    return Step(line, "scalar", TURN)


def _matrix(line: str, arch: str) -> int:
    name = line.split()[0].removesuffix("_e64")
    codes = tuple(int(match[1]) if (match := re.search(rf"{which}:(\d)", line)) else 0 for which in ("cbsz", "blgp"))
    known = [atom for atom in mfma_instructions(arch) if atom.name == name and atom.numbers in (None, codes)]
    if not known:
        formats = f" for formats {codes}" if "f8f6f4" in name else ""
        raise ValueError(f"{arch} has no matrix instruction {name}{formats}")
    return known[0].cycles[arch]


def _lds(line: str, name: str, target: AmdTarget) -> Step:
    match = _LDS.match(name)
    if not match:                                   # swizzles and permutations: 4 bytes each way
        return Step(line, "lds", 2 * PORT * TURN, 4)
    verb, pair, bits = match.groups()
    bytes, load = int(bits) // 8, verb == "read"
    split = banks.for_target(target.name, LANES).split(bytes, load)
    turn_cycles = max(target.simds * split.phases, PORT * TURN * (1 if load else 1 + -(-bytes // 4)))
    return Step(line, "lds", turn_cycles * (2 if pair else 1), bytes)


def _memory(line: str, name: str, target: AmdTarget) -> Step:
    if name.startswith("scratch_"):
        return Step(line, "global", target.simds * LANES * 4 // L1)
    match = _GLOBAL.match(name)
    if not match:
        return Step(line, "global", target.simds * LANES * 4 // L1, 4)
    dword, many, part = match.groups()
    bytes = 4 * int(many or 1) if dword else {"byte": 1, "short": 2}[part]
    split = banks.for_target(target.name, LANES).split(bytes, load=False)
    stored = target.simds * split.phases if re.search(r" lds$", line) else 0
    return Step(line, "global", target.simds * -(-LANES * bytes // L1), bytes, stored)


# ---- waves

@dataclass
class _Wave:
    at: int = 0                                     # its next instruction
    ready: int = 0                                  # when it can issue it
    rounds: int = 0
    lds: list[int] = field(default_factory=list)    # when each access arrives
    loads: list[int] = field(default_factory=list)  # when L1 has had time for each
    arrived: int | None = None                      # at the barrier


class _Simd:
    """Waves that execute the same steps round after round."""

    def __init__(self, steps: Sequence[Step], waves: int, latency: int) -> None:
        self.steps, self.waves, self.latency = steps, [_Wave() for _ in range(waves)], latency
        self.free: Counter[str] = Counter()         # from when on each unit takes an instruction
        self.served: Counter[str] = Counter()       # when those in the queues of "lds" and "global" are done
        self.time = 0                               # when the last wave has ended its last round
        self.slack_cycles: int | None = None

    def run(self, rounds: int) -> None:
        end = self.waves[0].rounds + rounds
        while True:
            able = [wave for wave in self.waves if wave.rounds < end and wave.arrived is None]
            if able:
                wave = min(able, key=lambda each: (self._when(each), each.rounds))
                self._issue(wave)
            elif all(wave.rounds >= end for wave in self.waves):
                break
            if all(wave.arrived is not None for wave in self.waves):
                together = max(wave.arrived or 0 for wave in self.waves)
                for wave in self.waves:
                    wave.arrived = None
                    self._next(wave, together + TURN)
        self.time = max(wave.ready for wave in self.waves)

    def _when(self, wave: _Wave) -> int:
        """The earliest that it can issue its next instruction."""
        step = self.steps[wave.at]
        if step.unit == "wait":
            waits = wave.lds[:max(len(wave.lds) - step.lgkm, 0)] if step.lgkm is not None else []
            return max([wave.ready, *waits])
        first = self.free[step.unit]
        if step.unit == "matrix":
            first = max(first, self.free["vector"])
        return max(wave.ready, first)

    def _issue(self, wave: _Wave) -> None:
        step, now = self.steps[wave.at], self._when(wave)
        if step.unit == "barrier":
            wave.arrived = now
            return
        if step.unit == "wait":
            if step.lgkm is not None:
                wave.lds = wave.lds[max(len(wave.lds) - step.lgkm, 0):]
            if step.vm is not None:
                done = max(len(wave.loads) - step.vm, 0)
                for served in wave.loads[:done]:
                    late = max(now - served, 0)
                    self.slack_cycles = late if self.slack_cycles is None else min(self.slack_cycles, late)
                wave.loads = wave.loads[done:]
        elif step.unit in ("lds", "global"):
            self.free[step.unit] = now + TURN
            self.served[step.unit] = max(now, self.served[step.unit]) + step.cycles
        elif step.unit != "none":
            self.free[step.unit] = now + step.cycles
        if step.stored:
            self.served["lds"] = max(now, self.served["lds"]) + step.stored
        if step.unit == "matrix":
            self.free["vector"] = now + TURN
        if step.unit == "lds":
            wave.lds.append(self.served["lds"] + self.latency)
        if step.unit == "global":
            wave.loads.append(self.served["global"])
        self._next(wave, now + (step.cycles if step.unit in ("none", "vector", "scalar") else TURN))

    def _next(self, wave: _Wave, ready: int) -> None:
        wave.ready = ready
        wave.at += 1
        if wave.at == len(self.steps):
            wave.at, wave.rounds = 0, wave.rounds + 1
