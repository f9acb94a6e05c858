"""The report of `tilewright doctor`: what this machine is, what tilewright makes of it, and what it can do at most.

`report` is plain data, as JSON has it; `text` makes it readable.
"""
from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from tilewright import extras
from tilewright.measure.quiet import BUSY, words
from tilewright.targets import CpuTarget, GpuTarget, detect, machine, names, target
from tilewright.text import size

if TYPE_CHECKING:
    from tilewright.measure.probes import Measured

ENVIRONMENT = ("TILEWRIGHT_TARGET", "TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS", "TILEWRIGHT_CACHE_DIR",
               "TILEWRIGHT_TUNE_DB")
PEERS = {"OpenBLAS": "scipy-openblas64", "MKL": "mkl", "BLIS": "blis", "torch": "torch"}


def report(quick: bool = False, measured: bool = True, forget: bool = False) -> dict[str, Any]:
    """`quick` measures for a second instead of ten; without `measured`, only what was measured before is shown.
    `forget` the ceilings measured before, instead of keeping the larger of old and new."""
    at, cpus = detect(), machine.cpus()
    return {
        "versions": _versions(),
        "processor": {"model": at.model, "family": machine.processor().family},
        "target": at.name,
        "targets": [_target(target(name)) for name in names("cpu")],
        "gpus": {"devices": _devices(), "without": _without(), "ptxas": _ptxas(),
                 "targets": [_gpu(target(name)) for name in names("gpu")]},
        "amd": amd(),
        "caches": [_cache(at, level) for level in ("l1d", "l2", "l3") if getattr(at, level)],
        "cpus": {"usable": cpus.count, "why": cpus.why, "allowed": list(cpus.allowed), "quota": cpus.quota,
                 "threads_per_core": cpus.smt, "threads": _threads()},
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "cache": _kernel_cache(),
        "peers": _peers(),
        **_ceilings(quick, measured, forget),
    }


def _versions() -> dict[str, str]:
    import llvmlite.binding as llvm

    from tilewright import __version__
    return {"tilewright": __version__, "python": platform.python_version(),
            "llvm": ".".join(map(str, llvm.llvm_version_info)),
            **{package: metadata.version(package) for package in ("llvmlite", "numpy", "ml_dtypes")}}


def _target(t: CpuTarget) -> dict[str, Any]:
    return {"name": t.name, "vector_bits": 8*t.vector_bytes, "registers": t.registers, "runnable": t.runnable,
            "missing": list(t.missing), "source": t.source("vector_bytes")}


def _gpu(t: GpuTarget) -> dict[str, Any]:
    return {"name": t.name, "model": t.model, "sms": t.sms, "clock_hz": t.clock, "l2": t.l2, "bandwidth": t.bandwidth,
            "shared_per_cta": t.smem_cta, "runnable": t.runnable}


def _without() -> str:
    """Why no CUDA device can be used; "" if one can."""
    from tilewright.runtime.cuda import driver
    return driver.why_not()


def _devices() -> list[dict[str, Any]]:
    """What CUDA shows of each device."""
    from tilewright.runtime.cuda import driver
    if _without():
        return []
    found = []
    for here in map(driver.device, range(driver.count())):
        try:
            record = _gpu(here.target)
        except driver.Unavailable as old:
            record = {"name": "", "model": here.name, "why_not": str(old)}
        found.append({**record, "capability": list(here.capability), "memory": here.memory})
    return found


def amd() -> dict[str, Any]:
    """The GPUs that HIP shows, or why there is none; and the linker that makes code objects for them."""
    from tilewright.compiler import lld
    from tilewright.runtime.hip import module
    found: dict[str, Any] = {"devices": [], "without": module.why_not(), "targets": names("amd")}
    try:
        found["linker"], found["without_linker"] = " ".join(lld.find()), ""
    except lld.Missing as missing:
        found["linker"], found["without_linker"] = None, str(missing)
    if found["without"]:
        return found
    for here in map(module.device, range(module.count())):
        record: dict[str, Any] = {"name": here.name, "arch": here.arch, "memory": here.memory}
        try:
            t = here.target
            record |= {"cus": t.cus, "clock_hz": t.clock, "bandwidth": t.bandwidth}
        except module.Unavailable as other:
            record["why_not"] = str(other)
        found["devices"].append(record)
    return found | {"hip": module.version()}


def amd_words(gpu: dict[str, Any]) -> str:
    """One of `amd`'s devices, but for its name."""
    return gpu.get("why_not") or (f"{gpu['cus']} compute units at up to {gpu['clock_hz']/1e9:.2f} GHz, "
                                  f"{size(gpu['memory'])} at {gpu['bandwidth']/1e9:.0f} GB/s")


def _ptxas() -> str | None:
    """The assembler that `tilewright asm` and tests ask for registers and spills; None if there is none."""
    from tilewright.compiler import ptxas
    try:
        return str(ptxas.find())
    except ptxas.Missing:
        return None


def _cache(t: CpuTarget, level: str) -> dict[str, Any]:
    return {"level": level, "bytes": getattr(t, level), "ways": getattr(t, f"{level}_ways"), "line": t.line,
            "cpus": getattr(t, f"{level}_cpus", 1), "source": t.source(level)}


def _threads() -> int:
    from tilewright.runtime.cpu import pool
    return pool.get_num_threads()


def _kernel_cache() -> dict[str, Any]:
    from tilewright.compiler import cache
    info = cache.info()
    there = str(info["directory"])
    while not os.path.exists(there):            # it is made when the first kernel is stored
        there = os.path.dirname(there) or "."
    return {**info, "writable": os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)}


def _peers() -> dict[str, str | None]:
    """What `tilewright bench` can compare with: version, None where it is not installed."""
    import numpy as np
    found: dict[str, str | None] = {}
    try:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        found["NumPy"] = f"{np.__version__} with {blas['name']} {blas['version']}"
    except (KeyError, TypeError):
        found["NumPy"] = np.__version__
    for name, package in PEERS.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _ceilings(quick: bool, measured: bool, forget: bool) -> dict[str, Any]:
    """The ceilings that count from now on, and why they should not be trusted."""
    from dataclasses import asdict

    from tilewright.measure import probes
    if measured:
        kept, new = probes.renew(quick=quick, forget=forget, progress=_say)
        return {"ceilings": asdict(kept), "warnings": _doubts(kept, new)}
    known = probes.remembered()
    return {"ceilings": known and asdict(known), "warnings": _doubts(known, known) if known else []}


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


def _say(what: str) -> None:
    """On a terminal only: one line that is written over."""
    if sys.stderr.isatty():
        print(f"\r\033[Kmeasuring {what} ...", end="", file=sys.stderr, flush=True)


# ---- text

def text(found: dict[str, Any]) -> str:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return "\n".join(_lines(found))


def _lines(found: dict[str, Any]) -> Iterator[str]:
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
        yield _row("peer", "" if version else f"not installed: {extras.install(extra)}",
                   f"{name} {version or ''}".strip())
    yield ""
    for line in found["warnings"]:
        yield from wrap(f"WARNING: {line}.", 120)
    yield from _ceiling_lines(found["ceilings"])


def _gpu_lines(gpus: dict[str, Any]) -> Iterator[str]:
    for index, d in enumerate(gpus["devices"]):
        what = d.get("why_not") or (
            f"{d['name']}, {d['sms']} multiprocessors at up to {d['clock_hz']/1e9:.2f} GHz, {size(d['memory'])} at "
            f"{d['bandwidth']/1e9:.0f} GB/s, L2 {size(d['l2'])}")
        yield _row("" if index else "GPUs", what, d["model"])
    if not gpus["devices"]:
        for index, line in enumerate(wrap(f"kernels are emitted and simulated only: {gpus['without']}", 110)):
            yield _row("" if index else "GPUs", line, "" if index else "none")
    yield _row("", ", ".join(t["name"] for t in gpus["targets"]), "targets")
    yield _row("", gpus["ptxas"] or "not installed: pip install nvidia-cuda-nvcc shows registers and spills", "ptxas")


def _amd_lines(found: dict[str, Any]) -> Iterator[str]:
    for index, gpu in enumerate(found["devices"]):
        yield _row("" if index else "AMD GPUs", f"{gpu['arch']}, {amd_words(gpu)}", gpu["name"])
    if not found["devices"]:
        for index, line in enumerate(wrap(f"kernels are emitted and simulated only: {found['without']}", 110)):
            yield _row("" if index else "AMD GPUs", line, "" if index else "none")
    yield _row("", ", ".join(found["targets"]), "targets")
    for index, line in enumerate(wrap(found["linker"] or found["without_linker"], 110)):
        yield _row("", line, "" if index else "linker")


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
