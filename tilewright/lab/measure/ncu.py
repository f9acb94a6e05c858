"""Hardware counters of an NVIDIA GPU, by Nsight Compute (ncu) where it is installed: bytes by level of memory.

ncu runs a process, and each kernel that this launches as often as its counters need it, with caches that were flushed.
"""
from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.targets import GpuTarget

SECTOR, PASS = 32, 128          # bytes of a sector, and of a pass over all banks of shared memory
Counters = Mapping[str, tuple[str, tuple[tuple[str, int], ...]]]
# level → what is counted there, in words, and the counters of which so many bytes each make it up
COUNTERS: Counters = {
    "memory": ("DRAM, with L2 empty at first; what L2 still holds in the end is not written",
               (("dram__bytes_read.sum", 1), ("dram__bytes_write.sum", 1))),
    "L2": ("sectors that reached L2: not what L1 had, nor what was merged on the way",
           (("lts__t_sectors_srcunit_tex.sum", SECTOR),)),
    "shared": ("passes over the banks", (("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", PASS),)),
}
BULK: Counters = {
    "shared": ("passes over the banks, and what bulk copies bring and take",
               (*COUNTERS["shared"][1], ("l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum", 1),
                ("l1tex__m_l1tex2xbar_write_bytes_pipe_tma.sum", 1)))}
PLACES = "/usr/local/cuda/bin", "/opt/nvidia/nsight-compute"
PERMISSION = "ERR_NVGPUCTRPERM"


class Missing(RuntimeError):
    """There are no counters to be had here; the message says why."""


def find() -> str:
    """The program. Missing if there is none."""
    program = shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join(PLACES))
    newest = sorted(Path(PLACES[1]).glob("*/ncu"))
    if not program and not newest:
        raise Missing("ncu (NVIDIA Nsight Compute) is not installed")
    return program or str(newest[-1])


def counters_of(target: GpuTarget) -> Counters:
    """The counters that a chip has."""
    return {**COUNTERS, **BULK} if "tma" in target.instructions else COUNTERS


def command(log: Path, counters: Counters) -> list[str]:
    """What a process is run under, so that its kernels' counters are in the file `log` when it has ended."""
    metrics = ",".join(name for _, these in counters.values() for name, _ in these)
    return [find(), "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
            "--metrics", metrics, "--log-file", str(log)]


def read(text: str, counters: Counters) -> tuple[dict[str, int], list[str]]:
    """(bytes by level, names of the kernels that were counted) of such a file. Missing if it has no counters."""
    if PERMISSION in text:
        raise Missing("the driver lets only administrators read performance counters (ERR_NVGPUCTRPERM)")
    counted = rows(text)
    if not counted:
        errors = [line.removeprefix("==ERROR== ") for line in text.splitlines() if line.startswith("==ERROR==")]
        raise Missing(f"ncu has counted no kernel{': ' * bool(errors)}{' '.join(errors[:2])}")
    found = {}
    for level, (_, these) in counters.items():
        values = [(size, _number(row.get(name))) for name, size in these for row in counted]
        known = [size * number for size, number in values if number is not None]
        if len(known) == len(values):
            found[level] = round(sum(known))
    return found, [row["Kernel Name"] for row in counted]


def rows(text: str) -> list[dict[str, str]]:
    """The counters of each launch, by name, of such a file."""
    table = [line for line in text.splitlines() if line.startswith('"')]
    return [row for row in csv.DictReader(table) if row.get("ID")]


def _number(text: str | None) -> float | None:
    """None for a counter that this chip has not."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
