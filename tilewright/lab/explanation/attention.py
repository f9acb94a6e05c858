"""`tilewright.explain` for attention: what is computed, the kernel and its tiles, what scores that are never in memory
save, bytes by level, and the time by cause.

Everything is counted by the planners (plans/cpu_attention.py, plans/nvidia_attention.py); here it is put into words.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tilewright.formats import FORMATS
from tilewright.lab.explanation.gpu import MODEL, ORIGINS, SHOWN
from tilewright.lab.explanation.record import UNMEASURED, Level, Part, Section, Tile, Time, levels_of
from tilewright.plans import attention_choice, common
from tilewright.plans.attention_choice import AttentionCase
from tilewright.plans.common import Cost
from tilewright.targets import CpuTarget
from tilewright.text import plural, size

if TYPE_CHECKING:
    from tilewright.attention_problem import Attention
    from tilewright.lab.measure.probes import Basis
    from tilewright.lab.tuner.space import Space

KERNELS = {"attention_strips": "strips of queries in the lanes of vectors, of which scores stay in L1",
           "attention_rows": "few queries row by row, by parts of the keys: keys and values are read once",
           "attention_few": "queries that would leave lanes of strips empty: keys in the lanes, by parts of the keys",
           "attention_wgmma": "warpgroups in turns, by wgmma and bulk copies: scores stay in registers",
           "attention_mma": "warps of 16 or 32 queries, by mma.sync and cp.async: scores stay in registers"}


def title(there: Space) -> str:
    t = there.chip
    threads = f", {plural(there.threads, 'thread')}" if isinstance(t, CpuTarget) else ""
    return f"attention {there.problem} on {t.name} ({t.model}){threads}"


def origin(there: Space) -> str:
    return ORIGINS.get(there.origin, "the model's choice; `tilewright tune` measures whether there is a better one")


def opening(there: Space, plan: Any, origin: str) -> tuple[Section, ...]:
    kernel = KERNELS.get(plan.algorithm)
    return (Section("plan", (str(plan), origin, *((kernel,) if kernel else ()))),
            Section("formats", tuple(_computed(there.problem))))


def _computed(p: Attention) -> Iterator[str]:
    """What is computed, in a few lines."""
    score = "score(scale Q K^T)" if p.score else "scale Q K^T"
    yield f"softmax({score}) V, scale {p.scale:.6g}" + f": {p.score.partition(' | ')[0]}" * bool(p.score)
    heads = f"{p.heads} heads" + f", {p.group} to a kv head" * (p.group > 1)
    yield (f"{plural(p.sequences, 'sequence')}{' by offsets' * p.ragged} of {heads}: {p.queries} queries by {p.keys} "
           f"keys{f', in pages of {p.page}' if p.page else ''}")
    pairs = p.heads * p.queries * p.keys * (1 if p.ragged else p.sequences)
    if p.band:
        yield f"{p.band} mask: {p.pairs:,} of {pairs:,} pairs of a query and a key, {p.pairs / max(pairs, 1):.1%}"


def sections(there: Space, plan: Any, cost: Cost) -> tuple[Section, ...]:
    p: Attention = there.problem
    pairs = p.heads * p.queries * p.keys * (1 if p.ragged else p.sequences)
    stored = pairs * FORMATS[p.sums].bits // 8
    own = sum(p.bytes.values())
    online = (f"scores in memory would take {size(stored)}, written once and read at least twice: "
              f"{size(3*stored + own)} in place of {size(own)}, {(3*stored + own) / max(own, 1):.1f} times as much",
              "running maximum and sum of each row: exp(x - t) = exp(x - m) exp(m - t), so one pass over the keys is "
              "enough")
    return (Section("online", online),
            Section("arithmetic", (f"2 x {p.pairs:,} pairs x ({p.size} + {p.value_size}) = {p.flops:,} operations",
                                   f"{p.pairs:,} exponentials")))


def levels(there: Space, plan: Any, cost: Cost, basis: Basis) -> tuple[Level, ...]:
    t, known = there.chip, basis.ceilings
    if isinstance(t, CpuTarget):
        return levels_of(cost, {level: known.peak_bandwidth(level, there.threads) if known else None
                                for level in cost.traffic})
    return levels_of(cost, {"memory": t.bandwidth})


def time(there: Space, plan: Any, cost: Cost, basis: Basis) -> Time:
    """Its parts add up."""
    t = there.chip
    parts = tuple(Part(what, seconds) for what, seconds in cost.parts if seconds)
    source = basis.source if basis.ceilings or isinstance(t, CpuTarget) else f"{MODEL}{t.model}{UNMEASURED}"
    return Time(cost.seconds, parts, source, cost.bound)


def tiles(there: Space, p: Any) -> tuple[Tile, ...]:
    """The scores, and tiles of them: the first two sizes of a plan."""
    problem = there.problem
    rows, keys = (getattr(p, name) for name in p.SIZES)
    heads = problem.heads * (1 if problem.ragged else problem.sequences)
    count = -(-problem.queries // rows) * -(-problem.keys // keys)
    return (Tile("scores", {"y": problem.queries, "x": problem.keys}, heads, "never in memory"),
            Tile("tile", {"y": rows, "x": keys}, max(count, 1),
                 "L1" if isinstance(there.chip, CpuTarget) else "registers"))


def various(chosen: Any, others: list[Any]) -> list[Any]:
    """Plans to show beside the chosen one: the best of each other kernel, and the best."""
    kinds = {other.algorithm: other for other in reversed(others) if other.algorithm != chosen.algorithm}
    return list(dict.fromkeys([*list(kinds.values())[:SHOWN // 2], *others]))[:SHOWN]


def refused(there: Space) -> dict[str, int]:
    """Why candidates cannot run, with counts."""
    by, case = attention_choice.planner(there.target), there.shape
    assert isinstance(case, AttentionCase)
    return dict(list(common.refusals(case, there.target, by.candidates(case, there.target)).items())[:SHOWN])
