"""Fits the trees of plans/wgmma_residuals.py to measured times of plans: what wgmma_model.py leaves unexplained.

    python bench/fit_residuals.py TIMES... [--recent TIMES...] [--chip h200] [--trees 40] [--leaves 24] [--into TABLE]

TIMES are files that `bench/plan_times.py measure` wrote (.jsonl, or .jsonl.xz). Files of today's kernels are given by
--recent, and each of their times counts RECENT times. For each shape, plans that take at most NEAR of the best plan's
time count, plans close to the best one most. Their times count relative to each other: the trees choose between plans,
and leave a shape's mean time to the model. A first fit holds back a fifth of the shapes and prints, for these, the rate
of the picks relative to the best measured plan, without the trees and with them. Then trees are fitted to all shapes,
and written.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import fit_costs
from tilewright.plans import wgmma_model, wgmma_residuals
from tilewright.targets import target

NEAR, STEEP = 1.6, 3.0          # times of the best plan's; a plan's weight is its time's of the best to this power
LEAST, BINS, RATE, SHARE = 30, 24, 0.2, 0.7     # plans of a leaf; thresholds of a value; of a tree's values that are
#                                                 added; of the values that a tree may ask about
HELD_BACK, RECENT = 5, 6.0


class Times(NamedTuple):
    """Plans, a row of each array: what the trees see, measured and predicted logarithms of microseconds, the numbers of
    their shapes, weights in the fit."""
    values: Any
    took: Any
    expected: Any
    case: Any
    weight: Any

    def among(self, chosen: Any) -> Times:
        return Times(*(x[chosen] for x in self))


def read(files: list[Path], recent: list[Path], chip: Any) -> tuple[Times, list[str], list[bool]]:
    """The times, the format of each shape, and whether it is held back."""
    rows: list[tuple[Any, ...]] = []
    formats: list[str] = []
    held = []
    for case, times in [(x, times) for some, times in ((files, 1.0), (recent, RECENT))
                        for x in fit_costs.read(some, chip, ["bf16", "f16", "e4m3fn"])]:
        plans = [(p, us) for p, us in case.plans if p.algorithm == "wgmma" and us <= case.best + math.log(NEAR)]
        if len(plans) > 2:
            weights = [math.exp(STEEP*(case.best - us)) for _, us in plans]
            for (plan, us), weight in zip(plans, weights):
                cost, share = wgmma_model.cost(case.shape, plan, chip), times*weight / sum(weights)
                if cost.values:
                    rows.append((cost.values, us, math.log(1e6*cost.seconds), len(formats), share))
            formats.append(case.format)
            s = case.shape                      # which several files may have
            held.append(crc32(f"{case.format} {s.layout} {s.m} {s.n} {s.k}".encode()) % HELD_BACK == 0)
    return Times(*(np.array(x, float if i != 3 else int) for i, x in enumerate(zip(*rows)))), formats, held


def centred(t: Times, x: Any) -> Any:
    """x without its weighted mean over the plans of a shape."""
    total = np.bincount(t.case, t.weight)
    return x - (np.bincount(t.case, t.weight*x) / np.where(total, total, 1))[t.case]


def grown(binned: Any, cuts: list[Any], rest: Any, weight: Any, leaves: int) -> tuple[Any, Any]:
    """A tree with so many leaves, each time divided where that explains the most, and its values."""
    def divided(rows: Any) -> tuple[float, Any]:
        best, found = 0.0, None
        total, w = (weight[rows]*rest[rows]).sum(), weight[rows].sum()
        for f, bins in [(f, len(x) + 1) for f, x in enumerate(cuts) if len(x)]:
            at = binned[rows, f]
            left, weights, count = (np.cumsum(np.bincount(at, x, bins))[:-1]
                                    for x in (weight[rows]*rest[rows], weight[rows], None))
            ok = (count >= LEAST) & (len(rows) - count >= LEAST)
            gain = np.where(ok, left**2 / (weights + 1) + (total - left)**2 / (w - weights + 1) - total**2 / (w + 1), 0)
            if gain.max() > best:
                best, found = float(gain.max()), (f, int(gain.argmax()))
        return best, found

    every = np.arange(len(rest))
    root: list[Any] = []
    open_: list[Any] = [(*divided(every), every, root)]
    while len(open_) < leaves and max(x[0] for x in open_) > 0:
        place = max(range(len(open_)), key=lambda i: open_[i][0])
        _, (f, cut), rows, node = open_.pop(place)
        above, sides = binned[rows, f] > cut, ([], [])  # type: Any, tuple[list[Any], list[Any]]
        node += [f, float(f"{cuts[f][cut]:.4g}"), 0.0, *sides]
        open_ += [(*divided(x), x, side) for x, side in zip((rows[~above], rows[above]), sides)]
    added = np.zeros(len(rest))
    for _, _, rows, node in open_:
        added[rows] = RATE * (weight[rows]*rest[rows]).sum() / (weight[rows].sum() + 1)
        node.append(round(float(added[rows[0]]), 4))
    return _finished(root), added


def _finished(node: list[Any]) -> Any:
    """Leaves as numbers, inner nodes with their leaves' mean."""
    if len(node) == 1:
        return node[0]
    low, high = map(_finished, node[3:])
    mean = fmean(x[2] if isinstance(x, list) else x for x in (low, high))
    return [*node[:2], round(mean, 4), low, high]


def fitted(t: Times, trees: int, leaves: int) -> list[Any]:
    """Trees, each fitted to what the ones before leave."""
    cuts = []
    for x in t.values.T:
        known = np.unique(x)
        cuts.append((known[1:] + known[:-1]) / 2 if len(known) <= BINS else
                    np.unique(np.quantile(x, np.linspace(0, 1, BINS + 1)[1:-1])))
    cuts = [np.array([float(f"{x:.4g}") for x in each]) for each in cuts]
    binned = np.stack([np.searchsorted(c, x, side="left") for c, x in zip(cuts, t.values.T)], 1)
    rest, found, pick = centred(t, t.took - t.expected), [], random.Random(1)
    for _ in range(trees):
        asked = sorted(pick.sample(range(len(cuts)), round(SHARE*len(cuts))))
        tree, added = grown(binned, [c if f in asked else c[:0] for f, c in enumerate(cuts)], rest, t.weight, leaves)
        rest = rest - added
        found.append(tree)
    return found


def picked(t: Times, formats: Sequence[str], logs: Any) -> dict[str, str]:
    """By format, how fast the plans with the least of these are of the best: mean, 5th percentile, least."""
    lost: dict[str, list[float]] = {}
    for case in np.unique(t.case):
        rows = np.flatnonzero(t.case == case)
        lost.setdefault(formats[case], []).append(t.took[rows].min() - t.took[rows[logs[rows].argmin()]])
    return {name: f"{math.exp(fmean(x)):.3f} {math.exp(sorted(x)[len(x) // 20]):.2f} {math.exp(min(x)):.2f} ({len(x)})"
            for name, x in sorted(lost.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", nargs="+", type=Path)
    parser.add_argument("--recent", nargs="*", type=Path, default=[])
    parser.add_argument("--chip", default="h200")
    parser.add_argument("--trees", type=int, default=40)
    parser.add_argument("--leaves", type=int, default=24)
    parser.add_argument("--into", type=Path, default=wgmma_residuals.TREES)
    parser.add_argument("--bandwidth", type=float, default=4.814304e12, help="bytes per second, as the driver says")
    x = parser.parse_args()
    chip = dataclasses.replace(target(x.chip), bandwidth=x.bandwidth)
    known = wgmma_residuals.trees()
    known.clear()
    t, formats, back = read(x.times, x.recent, chip)
    held = np.array(back)[t.case]
    known += fitted(t.among(~held), x.trees, x.leaves)
    out = t.among(held)
    learned = [math.log(wgmma_residuals.factor(values)) for values in out.values.tolist()]
    print("picks on shapes held back, of the best measured plan: without trees", picked(out, formats, out.expected),
          "with them", picked(out, formats, out.expected + learned))
    trees = fitted(t, x.trees, x.leaves)
    x.into.write_text("".join(json.dumps(tree, separators=(",", ":")) + "\n" for tree in trees))
    print(len(t.took), "times of", len(formats), "shapes;", x.into.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
