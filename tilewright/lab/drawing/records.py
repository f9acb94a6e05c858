"""Kernels run in the simulator for figures, and what of the runs is drawn."""
from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewright import simulator


def naive(m: int, n: int, k: int) -> simulator.Report:
    """The first step of the CPU ladder."""
    from tilewright.lab.ladder.cpu1_naive import emit_naive
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    return simulator.run(emit_naive(None, "f32"), m, n, k, a, b, np.empty((m, n), np.float32))


def fma(lanes: int) -> list[list[float]]:
    """a, b, c and a * b + c of one instruction on vectors."""
    from tilewright.ir import Kernel, f32, ptr, vec
    k = Kernel("one_fma", a=ptr(f32), b=ptr(f32), c=ptr(f32), d=ptr(f32))
    x, y, z = (k.load(operand, vec(f32, lanes)) for operand in k.args[:3])
    k.store(k.args[3], k.fma(x, y, z))
    a, b, c = (np.arange(lanes) % n + n - 3 for n in (4, 3, 5))
    arrays = [x.astype(np.float32) for x in (a, b, c, 0*a)]
    simulator.run(k.function, *arrays)
    return [x.tolist() for x in arrays]


def vector_load(lanes: int, first: int) -> list[int]:
    """Which numbers of an array one load takes."""
    from tilewright.ir import Kernel, f32, ptr, vec
    k = Kernel("one_load", a=ptr(f32), d=ptr(f32))
    k.store(k.args[1], k.load(k.args[0] + first, vec(f32, lanes), align=4))
    taken = np.zeros(lanes, np.float32)
    simulator.run(k.function, np.arange(2*lanes, dtype=np.float32), taken)
    return [int(x) for x in taken]


def masked_store(chip: Any, rows: int, columns: int) -> set[tuple[int, int]]:
    """The elements that the padded step's tile stores, of which so many rows and columns are inside C."""
    from tilewright.lab.ladder.cpu2_registers import tiling
    from tilewright.lab.ladder.cpu3_padded import emit_masked_tile
    t, depth = tiling(chip, "f32"), 2
    a, b = np.ones((t.MR, depth), np.float32), np.ones((depth, t.NR), np.float32)
    c = np.zeros((t.MR, t.NR), np.float32)
    simulator.run(emit_masked_tile(chip, "f32"), depth, a, depth, b, t.NR, c, t.NR, rows, columns)
    return {(int(i), int(j)) for i, j in zip(*np.nonzero(c))}


def lecture(name: str, n: int, **sizes: int) -> tuple[int, int]:
    """Numbers loaded from global and from shared memory by a step of the GPU ladder with these tiles, of squares."""
    from tilewright.lab.ladder.run import counted
    report = counted(name, n, n, n, sizes=sizes)
    return report.of(verb="load", space="global").elements, report.of(verb="load", space="shared").elements


def tile_traffic(step: str) -> tuple[int, int]:
    """Bytes of A and B that one CTA of a step loads from global memory, and that it stores to shared memory, of 64
    steps of k."""
    from tilewright.lab.ladder.run import counted
    report = counted(step, *cta_tile(step), 64)
    loaded = sum(report.of(array, "load", "global").bytes for array in "ab")
    tiles = [traffic.bytes for site, traffic in report.traffic.items()
             if (site.space, site.verb) == ("shared", "store") and "c_smem" not in site.line.text]
    return loaded, sum(tiles)


def cta_tile(step: str) -> tuple[int, int]:
    """Rows and columns of C that a CTA of a step computes."""
    from tilewright.lab.ladder.steps import GPU_STEPS
    return GPU_STEPS[step].tile()


@cache
def events(step: str, k: int = 8, pad: int = -1, target: str = "sm_86") -> tuple[simulator.Event, ...]:
    """Everything that one CTA of a step of the GPU ladder does, of so many steps of k; `pad`: another padding of the
    sixth one."""
    from tilewright.lab.ladder.run import counted
    told: list[simulator.Event] = []
    counted(step, *cta_tile(step), k, sizes={} if pad < 0 else {"PAD": pad}, target=target, observer=told.append)
    return tuple(told)


def chosen(step: str, what: str, array: str, **more: int) -> list[simulator.Event]:
    """The loads or stores of one array."""
    return [event for event in events(step, **more) if (event.what, event.array) == (what, array)]


def packed(name: str, rows: int, columns: int) -> tuple[dict[tuple[int, int], int], int, int]:
    """Where the blocked step of the CPU ladder puts each element of a block of A or B, the rows or columns of a panel,
    and how many numbers it stores. For AVX's four lanes, so that panels are small."""
    from dataclasses import replace

    from tilewright import targets
    from tilewright.lab.ladder import cpu2_registers, cpu4_blocked
    chip = replace(targets.target("x86-avx2"), vector_bytes=16, registers=11)
    tile = cpu2_registers.tiling(chip, "f32")
    panel = tile.MR if name == "A" else tile.NR
    emit = cpu4_blocked.emit_pack_a if name == "A" else cpu4_blocked.emit_pack_b
    x = np.arange(1, rows*columns + 1, dtype=np.float32).reshape(rows, columns)
    elements = -(-rows // panel) * panel * columns if name == "A" else rows * -(-columns // panel) * panel
    memory = np.zeros(elements, np.float32)
    simulator.run(emit(chip, "f32"), rows, columns, x, columns, memory)
    positions = {divmod(int(number) - 1, columns): at for at, number in enumerate(memory.tolist()) if number}
    return positions, panel, elements
