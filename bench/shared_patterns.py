"""Wavefronts of shared-memory accesses by pattern of addresses: what the bank rule of NVIDIA's chips is held against.

    ncu --cache-control none --clock-control none --metrics $(python bench/shared_patterns.py metrics) \
        --csv --page raw --log-file ncu.csv python bench/shared_patterns.py launch
    python bench/shared_patterns.py read ncu.csv bench/results/shared_patterns_h100.json

A launch is one warp that makes one load, or one store, of 4, 8 or 16 bytes a lane. Patterns are broadcasts by the bits
of a lane's number, strides, groups and pairs in random order, random words, and all of these with inactive lanes.
`read` writes a row per pattern, [bytes, wavefronts of the load, of the store, words]: of each lane the first word of
4 bytes that it accesses, -1 of an inactive one. tests/simulator/test_counters.py compares
`tilewright.targets.banks` with it.
"""

from __future__ import annotations

import csv
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

METRICS = tuple(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{verb}.sum" for verb in ("ld", "st"))
WIDTHS = (1, 2, 4)  # words of a lane
WORDS = 8192

Pattern = list[int]


def patterns() -> list[tuple[int, Pattern]]:
    """(words of a lane, first word of each lane)."""
    rng = random.Random(0)
    return [(width, pattern) for width in WIDTHS for pattern in _patterns(width, rng)]


def _patterns(width: int, rng: random.Random) -> list[Pattern]:
    lanes = range(32)
    found = [[(lane & ~bits) * width for lane in lanes] for bits in lanes]
    found += [[(lane & bits) * width * 2 for lane in lanes] for bits in lanes]
    for stride in (1, 2, 3, 4, 5, 8, 16, 32, 33):
        rows = [[lane * stride for lane in lanes], [lane // 8 + lane % 8 * stride for lane in lanes],
                [lane // 4 * stride + lane % 4 for lane in lanes], [lane % 4 * stride for lane in lanes],
                [lane % 8 * stride for lane in lanes], [lane // 8 * stride for lane in lanes]]
        found += [[word * width for word in row] for row in rows]
    found.append([0] * 32)
    for _ in range(24):  # groups that read one address, in any order
        groups = rng.choice([2, 4, 8, 16])
        ids = [lane // (32 // groups) for lane in lanes]
        rng.shuffle(ids)
        found.append([i * width for i in ids])
    for _ in range(24):  # some lanes read what others do
        ids = list(lanes)
        for _ in range(rng.randrange(1, 17)):
            x, y = rng.randrange(32), rng.randrange(32)
            ids[x] = ids[y]
        found.append([i * width for i in ids])
    found += [[rng.randrange(64) * width for _ in lanes] for _ in range(24)]
    for _ in range(24):  # pairs, a few of them broken
        ids = [lane & ~rng.choice([1, 2]) for lane in lanes]
        for _ in range(rng.randrange(0, 4)):
            ids[rng.randrange(32)] = rng.randrange(32)
        found.append([i * width for i in ids])
    for _ in range(32):  # inactive lanes
        base = rng.choice(found[:32])
        pattern = [word if rng.random() < rng.choice([0.25, 0.5, 0.9]) else -1 for word in base]
        found.append(pattern if max(pattern) >= 0 else [0] + pattern[1:])
    for eighths in ((0, 1), (0, 2), (0, 3), (1, 2), (2, 3), (0,), (1,), (0, 1, 2)):
        found.append([lane * width if lane // 8 in eighths else -1 for lane in lanes])
    for _ in range(24):
        flip, bit = rng.randrange(32), rng.choice([1, 2, 4, 8, 16])
        found.append([((lane ^ flip) & ~bit) * width for lane in lanes])
        found.append([((lane * 5 % 32) & ~bit) * width for lane in lanes])
    return found


def emit_access(WIDTH: int, STORE: bool) -> Any:
    """One load or store of WIDTH words by each lane that has a word in `where`."""
    from tilewright.ir import Kernel, f32, i32, ptr, vec

    T: Any = vec(f32, WIDTH) if WIDTH > 1 else f32
    k = Kernel(f"{'store' if STORE else 'load'}_{WIDTH}", threads=32, where=ptr(i32), y=ptr(f32))
    where, y = k.args
    smem = k.smem("words", (WORDS,), f32)
    t = k.thread[0]
    word = where[t]
    if STORE:
        with k.when(word >= 0):
            k.store(smem.at(word), k.load(y.at(t * WIDTH), T), 4 * WIDTH)
        k.barrier()
        y[2560 + t] = smem[t]  # or nothing would read what was stored
    else:
        with k.loop(WORDS // 32) as i:
            smem[i * 32 + t] = y[(i * 32 + t) & 2047]
        k.barrier()
        with k.when(word >= 0):
            k.store(y.at(2560 + t * WIDTH), k.load(smem.at(word), T, 4 * WIDTH), 4)
    return k.function


def launch() -> None:
    from tilewright.compiler import artefact
    from tilewright.runtime.cuda import module

    on, stream = module.device(), module.Stream()
    y = module.Memory.upload(on, np.ones(4096, np.float32))
    functions = {}
    for width in WIDTHS:
        for store in (False, True):
            code = artefact.compiled(emit_access(width, store), module.target())
            functions[width, store] = module.load(code.image, on).function(code.manifest)
    for width, pattern in patterns():
        where = module.Memory.upload(on, np.array(pattern, np.int32))
        for store in (False, True):
            module.Prepared(functions[width, store], (1,), (where.pointer, y.pointer))(stream)
        stream.synchronize()


def read(source: str, target: str) -> None:
    with open(source) as file:
        rows = [row for row in csv.DictReader([line for line in file if line.startswith('"')]) if row["ID"]]
    found = patterns()
    if len(rows) != 2 * len(found):
        raise SystemExit(f"{len(rows)} launches in {source}, {2 * len(found)} wanted")
    out = [[4 * width, int(rows[2 * i][METRICS[0]]), int(rows[2 * i + 1][METRICS[1]]), pattern]
           for i, (width, pattern) in enumerate(found)]
    Path(target).write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in out) + "\n]\n")
    print(f"{len(out)} patterns in {target}")


if __name__ == "__main__":
    match sys.argv[1]:
        case "metrics":
            print(",".join(METRICS))
        case "launch":
            launch()
        case "read":
            from tilewright.lab.bench import results

            results.check_tree(results.ALLOW_DIRTY in sys.argv)
            read(*sys.argv[2:4])
