"""The report of `tilewright doctor`: what this machine is, what tilewright makes of it, and what it can do at most.

`report` is plain data, as JSON has it; `lines` make it readable.
"""
from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from tilewright.compiler import cache, lld, ptxas
from tilewright.lab.bench import peer
from tilewright.lab.measure import gpu_probes, probes
from tilewright.lab.measure.machine import versions as installed
from tilewright.lab.measure.probes import Measured
from tilewright.lab.measure.quiet import BUSY, words
from tilewright.runtime.cpu import pool
from tilewright.runtime.cuda import driver
from tilewright.runtime.hip import module
from tilewright.targets import CpuTarget, GpuTarget, detect, machine, names, target
from tilewright.text import install, size

ENVIRONMENT = ("TILEWRIGHT_TARGET", "TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS", "TILEWRIGHT_CACHE_DIR",
               "TILEWRIGHT_TUNE_DB")


def report(quick: bool = False, measured: bool = True, forget: bool = False,
           progress: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """`quick` measures for a second instead of ten; without `measured`, only what was measured before is shown.
    `forget` the ceilings measured before, instead of keeping the larger of old and new. `progress` is called with what
    is measured next."""
    at, cpus = detect(), machine.cpus()
    return {
        "versions": versions(),
        "processor": {"model": at.model, "family": machine.processor().family},
        "target": at.name,
        "targets": [{"name": t.name, "vector_bits": 8*t.vector_bytes, "registers": t.registers, "runnable": t.runnable,
                     "missing": [*t.missing], "source": t.source("vector_bytes")} for t in map(target, names("cpu"))],
        "gpus": nvidia(),
        "amd": amd(),
        "caches": [_cache(at, level) for level in ("l1d", "l2", "l3") if getattr(at, level)],
        "cpus": {"usable": cpus.count, "why": cpus.why, "allowed": list(cpus.allowed), "quota": cpus.quota,
                 "threads_per_core": cpus.smt, "threads": pool.get_num_threads()},
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "cache": _kernel_cache(),
        "peers": _peers(),
        "gpu_ceilings": [*map(asdict, _gpu_ceilings(quick, measured, progress))],
        **_ceilings(quick, measured, forget, progress),
    }


def versions(*more: str) -> dict[str, str]:
    """Versions of tilewright, what it runs on, and those of these packages that are installed."""
    import llvmlite.binding as llvm

    from tilewright import __version__
    return {"tilewright": __version__, "python": platform.python_version(),
            "llvm": ".".join(map(str, llvm.llvm_version_info)), **installed("llvmlite", "numpy", "ml_dtypes", *more)}


def nvidia() -> dict[str, Any]:
    """The GPUs that CUDA shows, or why there is none; and the assembler that `tilewright asm` asks for registers."""
    targets = [_gpu(target(name)) for name in names("gpu")]
    facts: dict[str, Any] = {"devices": [], "without": driver.why_not(), "targets": targets}
    try:
        facts["ptxas"] = str(ptxas.find())
    except ptxas.Missing:
        facts["ptxas"] = None
    for here in () if facts["without"] else map(driver.device, range(driver.count())):
        try:
            record = _gpu(here.target)
        except driver.Unavailable as old:
            record = {"name": "", "model": here.name, "why_not": str(old)}
        facts["devices"].append({**record, "capability": list(here.capability), "memory": here.memory})
    return facts


def _gpu(t: GpuTarget) -> dict[str, Any]:
    return {"name": t.name, "chip": t.chip, "model": t.model, "sms": t.sms, "clock_hz": t.clock, "l2": t.l2,
            "bandwidth": t.bandwidth, "shared_per_cta": t.smem_cta, "runnable": t.runnable}


def amd() -> dict[str, Any]:
    """The GPUs that HIP shows, or why there is none; and the linker that makes code objects for them."""
    facts: dict[str, Any] = {"devices": [], "without": module.why_not(), "targets": names("amd")}
    try:
        facts["linker"], facts["without_linker"] = " ".join(lld.find()), ""
    except lld.Missing as missing:
        facts["linker"], facts["without_linker"] = None, str(missing)
    if facts["without"]:
        return facts
    for here in map(module.device, range(module.count())):
        record: dict[str, Any] = {"name": here.name, "arch": here.arch, "memory": here.memory}
        try:
            t = here.target
            record |= {"cus": t.cus, "clock_hz": t.clock, "bandwidth": t.bandwidth}
        except module.Unavailable as other:
            record["why_not"] = str(other)
        facts["devices"].append(record)
    return facts | {"hip": module.version()}


def amd_words(gpu: dict[str, Any]) -> str:
    """One of `amd`'s devices, but for its name."""
    return gpu.get("why_not") or (f"{gpu['cus']} compute units at up to {gpu['clock_hz']/1e9:.2f} GHz, "
                                  f"{size(gpu['memory'])} at {gpu['bandwidth']/1e9:.0f} GB/s")


def _cache(t: CpuTarget, level: str) -> dict[str, Any]:
    return {"level": level, "bytes": getattr(t, level), "ways": getattr(t, f"{level}_ways"), "line": t.line,
            "cpus": getattr(t, f"{level}_cpus", 1), "source": t.source(level)}


def _kernel_cache() -> dict[str, Any]:
    info = cache.info()
    there = str(info["directory"])
    while not os.path.exists(there):            # it is made when the first kernel is stored
        there = os.path.dirname(there) or "."
    return {**info, "writable": os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)}


def _peers() -> dict[str, str | None]:
    """What `tilewright bench` can compare with: version, None where it is not installed."""
    peers: dict[str, str | None] = {}
    try:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        peers["NumPy"] = f"{np.__version__} with {blas['name']} {blas['version']}"
    except (KeyError, TypeError):
        peers["NumPy"] = np.__version__
    for library in peer.libraries():
        if library.device == peer.CPU and library.load and library.wheel:
            peers[library.name] = installed(library.wheel).get(library.wheel)
    return peers


def _ceilings(quick: bool, measured: bool, forget: bool, progress: Callable[[str], None]) -> dict[str, Any]:
    """The ceilings that count from now on, and why they should not be trusted."""
    if measured:
        kept, new = probes.renew(quick=quick, forget=forget, progress=progress)
        return {"ceilings": asdict(kept), "warnings": _doubts(kept, new)}
    known = probes.remembered()
    return {"ceilings": known and asdict(known), "warnings": _doubts(known, known) if known else []}


def _gpu_ceilings(quick: bool, measured: bool, progress: Callable[[str], None]) -> list[gpu_probes.GpuMeasured]:
    """Ceilings of every model of GPU in this machine, if it is known."""
    if measured:
        return gpu_probes.renew(quick, progress)
    known = {ceiling.model: ceiling for on, _ in gpu_probes.devices() if (ceiling := gpu_probes.remembered(on.target))}
    return [*known.values()]


def _doubts(kept: Measured, new: Measured) -> list[str]:
    """Sentences; none where nothing disturbed the measurement."""
    if not new.disturbed:
        return []
    said = [f"{words(new.others, machine.cpus().online)}"] if new.others > BUSY else []
    said += [f"the figures contradict each other: {doubt}" for doubt in new.doubts()]
    if kept.disturbed:
        said.append("these are not this machine's ceilings: nothing is given as a share of them, and they are measured "
                    "again when they are needed. Repeat on an idle machine")
    else:
        said.append(f"what was measured undisturbed on {kept.date[:10]} is kept. Repeat on an idle machine, or with "
                    "--forget if the machine has changed")
    return said


# ---- text

def lines(found: dict[str, Any]) -> Iterator[str]:
    """The report as text."""
    versions, cpus, cache = found["versions"], found["cpus"], found["cache"]
    yield _row("tilewright", ", ".join(f"{name} {version}" for name, version in versions.items()
                                       if name != "tilewright"), versions["tilewright"])
    yield _row("processor", found["processor"]["family"], found["processor"]["model"])
    yield _row("target", "forced by TILEWRIGHT_TARGET" if "TILEWRIGHT_TARGET" in found["environment"]
               else "the widest that runs here", found["target"])
    for t in found["targets"]:
        state = "runs here" if t["runnable"] else f"emitted only: this machine lacks {', '.join(t['missing'])}"
        yield _row("", f"{t['registers']} registers of {t['vector_bits']} bits; {state}", t["name"])
    yield from _gpu_lines(found["gpus"])
    yield from _amd_lines(found["amd"])
    for c in found["caches"]:
        shared = f", one for {c['cpus']} CPUs" if c["cpus"] > 1 else ""
        yield _row(c["level"][:2].upper() + ("d" if c["level"] == "l1d" else ""),
                   f"{c['ways']} ways{shared}  ({c['source']})", size(c["bytes"]))
    yield _row("CPUs", cpus["why"], str(cpus["usable"]))
    chosen = [f"{name}={found['environment'][name]}" for name in ENVIRONMENT[1:3] if name in found["environment"]]
    yield _row("threads", ", ".join(chosen) or "as many as CPUs; TILEWRIGHT_NUM_THREADS changes it",
               str(cpus["threads"]))
    state = "" if cache["writable"] else ", NOT WRITABLE: kernels are compiled anew in every process"
    state = f", NOT USED: {cache['refused']}" if cache["refused"] else state
    yield _row("cache", f"{cache['directory']}, {size(cache['bytes'])}{state}", f"{cache['entries']} kernels")
    for name, version in found["peers"].items():
        extra = "peers-torch" if name == "torch" else "peers"
        yield _row("peer", "" if version else f"not installed: {install(extra)}",
                   f"{name} {version or ''}".strip())
    yield ""
    for line in found["warnings"]:
        yield f"WARNING: {line}."
    yield from _ceiling_lines(found["ceilings"])
    for gpu in found["gpu_ceilings"]:
        yield from _gpu_ceiling_lines(gpu)


def _gpu_lines(found: dict[str, Any]) -> Iterator[str]:
    yield from _devices_lines("GPUs", found, [
        (d["model"], d.get("why_not") or (
            f"{d['name']}{' code on '*bool(d['chip'])}{d['chip']}, {d['sms']} multiprocessors at up to "
            f"{d['clock_hz']/1e9:.2f} GHz, {size(d['memory'])} at {d['bandwidth']/1e9:.0f} GB/s, L2 {size(d['l2'])}"))
        for d in found["devices"]])
    yield _row("", ", ".join(t["name"] for t in found["targets"]), "targets")
    yield _row("", found["ptxas"] or "not installed: pip install nvidia-cuda-nvcc shows registers and spills", "ptxas")


def _amd_lines(found: dict[str, Any]) -> Iterator[str]:
    yield from _devices_lines("AMD GPUs", found, [(gpu["name"], f"{gpu['arch']}, {amd_words(gpu)}")
                                                  for gpu in found["devices"]])
    yield _row("", ", ".join(found["targets"]), "targets")
    yield _row("", found["linker"] or found["without_linker"], "linker")


def _devices_lines(label: str, found: dict[str, Any], devices: list[tuple[str, str]]) -> Iterator[str]:
    """One row for each device, or why there is none."""
    for index, (name, what) in enumerate(devices):
        yield _row("" if index else label, what, name)
    if not devices:
        yield _row(label, f"kernels are emitted and simulated only: {found['without']}", "none")


def _row(label: str, detail: str, value: str) -> str:
    return f"{label:<11} {value:<22}  {detail}".rstrip()


def _ceiling_lines(c: dict[str, Any] | None) -> Iterator[str]:
    if c is None:
        yield "Ceilings: not measured yet."
        return
    every = f"{c['threads']} threads"
    clock = c["clock"] / 1e9
    yield f"Ceilings measured {c['date'][:10]}{', quickly' if c['quick'] else ''}; best of several turns"
    yield f"  clock {clock:.2f} GHz; calling an empty function through ctypes {c['call']*1e9:.0f} ns"
    yield f"  {'multiply-adds':<22}{'1 thread':>16}{every:>16}   per cycle of one core"
    for isa, row in c["flops"].items():
        for dtype, (one, everyone) in row.items():
            yield (f"  {isa + ' ' + dtype:<22}{one/1e9:>9.1f} GFLOP/s{everyone/1e9:>8.1f} GFLOP/s"
                   f"   {one/1e9/clock:.1f} flops")
    yield f"  {'bytes':<22}{'1 thread':>16}{every:>16}"
    for level, row in c["bandwidth"].items():
        for kind, (one, everyone) in row.items():
            what = {"stream": "streamed write"}.get(kind, kind)
            extra = ""
            if kind == "read":
                extra = f"   over {size(c['sizes'][level])}"
                if level in c["latency"]:
                    extra += f", a load takes {c['latency'][level]*1e9:.1f} ns"
            yield f"  {level + ' ' + what:<22}{one/1e9:>11.1f} GB/s{everyone/1e9:>11.1f} GB/s{extra}"
    for note in c["notes"]:
        yield f"  note: {note}"


def _gpu_ceiling_lines(c: dict[str, Any]) -> Iterator[str]:
    yield f"Ceilings of {c['model']}, measured {c['date'][:10]}; median of several turns"
    for name, rate in c["flops"].items():
        what = f"{name.split()[-1]} by {name.split()[0]}" if " " in name else f"{name} multiply-adds"
        yield f"  {what:<22}{rate/1e12:>9.1f} T{'OP' if 'i8' in name or 'u8' in name else 'FLOP'}/s"
    for level, rate in c["bandwidth"].items():
        yield f"  {level.replace('l2', 'L2') + ' read':<22}{rate/1e12:>9.2f} TB/s"
    yield f"  {'launch to launch':<22}{c['launch']*1e6:>9.2f} us"
