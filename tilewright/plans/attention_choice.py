"""What the choice of a plan for attention depends on, and the choice: the one place that knows the kernels of a target.

A planner is the module for a kind of target:

    PLAN                                the class of its plans, a `common.Plan` of "attention_..." algorithms
    refusal(case, target)               why no kernel of the target computes it, in a sentence; "" if one does
    choose(case, target)                the plan that the model expects to be fastest
    candidates(case, target)            plans that are worth a measurement, legal or not, `choose`'s among them
    cost(case, plan, target)            what a plan is predicted to take: a `common.Cost`

A plan's text names the kernel by its first word and the tile of scores by its second, rows of queries by keys.
Measured plans come before the model's (plans/measured/choice.py), as of products.
"""
from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from tilewright.attention_problem import Attention
from tilewright.plans import common
from tilewright.plans.common import Cost, Term
from tilewright.targets import AmdTarget, GpuTarget


@dataclass(frozen=True)
class AttentionCase:
    """An attention, and what a call of it adds to what a plan's choice depends on.

    threads     that the call may use; 1 on a GPU
    contiguous  the numbers of each key and of each value lie side by side
    lengths     of the keys of each sequence are in an array
    """
    problem: Attention
    threads: int = 1
    contiguous: bool = True
    lengths: bool = False
    invariant = ""              # a product's promise about its bits; plans of attention make none
    attention = True

    def __str__(self) -> str:
        """For people."""
        return str(self.problem)

    @property
    def a(self) -> str:
        """The format of what is multiplied."""
        return self.problem.q

    @property
    def sums(self) -> str:
        """The format of scores and sums."""
        return self.problem.sums

    dtype = sums                # by which a CPU's ceilings are known

    @property
    def key(self) -> tuple[str, int, int, int, str, str, int]:
        """What tuning results are kept by, as plans.cpu_shape.Shape.key: all but sizes as text, a score function by a
        digest; queries, keys, and elements of a head and of its values; the order of keys; threads."""
        p = self.problem
        formats = p.q if p.q == p.kv == p.out else f"{p.q}-{p.kv}-{p.out}"
        words = {"causal": p.before is None and p.after == 0, f"window={p.before},{p.after}": p.band == "window",
                 "upper": p.upper and p.band, "ragged": p.ragged, f"page={p.page}": p.page, "lengths": self.lengths,
                 f"score={hashlib.sha256(p.score.encode()).hexdigest()[:12]}": p.score, "sinks": p.sinks,
                 "factors": p.factors, "lse": p.lse}
        kind = " ".join(("attention", formats, f"heads={p.heads}x{p.kv_heads}", f"values={p.value_size}",
                         *(word for word, given in words.items() if given),
                         *((f"sequences={p.sequences}",) if p.ragged else ()),
                         f"batch={p.heads * (1 if p.ragged else p.sequences)}"))
        order = "rows" if self.contiguous else "any"
        return kind, p.queries, p.keys, p.size + p.value_size, order, order, self.threads

    @property
    def planner(self) -> Any:
        """The module that chooses among plans and predicts their cost."""
        return import_module(__name__)


def planner(target: Any) -> ModuleType:
    """The module for this kind of target."""
    kind = "nvidia" if isinstance(target, GpuTarget) else "amd" if isinstance(target, AmdTarget) else "cpu"
    return import_module(f"tilewright.plans.{kind}_attention")


def options(case: AttentionCase, plan: Any, target: Any) -> dict[str, Any]:
    """What the emitter of a GPU's kernel is called with, but lanes of a warp."""
    shape, own = planner(target).emitted(case, plan)
    return {"SHAPE": shape, "PLAN": own} | ({"ARCH": target.name} if isinstance(target, AmdTarget) else {})


def require(case: AttentionCase, target: Any) -> None:
    """NotImplementedError, with a sentence, where the target has no kernel for it."""
    if refused := planner(target).refusal(case, target):
        raise NotImplementedError(refused)


def tile_pairs(p: Attention, rows: int, keys: int) -> tuple[int, int]:
    """Pairs of a query and a key in the tiles of a head of a sequence, so many rows by so many keys; and those in tiles
    that an edge of the mask or of the keys goes through. Of ragged sequences, as if there was one."""
    count, edges, shift = 0, 0, 0 if p.upper else p.keys - p.queries
    for i in range(0, p.queries, rows):
        last = min(i + rows, p.queries) - 1
        end = p.keys if p.after is None else max(min(p.keys, last + 1 + shift + p.after), 0)
        limit = p.keys if p.after is None else max(min(p.keys, i + 1 + shift + p.after), 0)
        first = max(i + shift - p.before, 0) if p.before is not None else 0
        inside = max(last + shift - p.before, 0) if p.before is not None else 0
        tiles = max(-(-end // keys) - first // keys, 0)
        count += tiles
        edges += max(tiles - max(limit // keys - -(-inside // keys), 0), 0)
    return count * rows * keys, edges * rows * keys


def traffic(case: AttentionCase, tiles: int) -> dict[str, tuple[Term, ...]]:
    """Bytes that cross memory once, and L2 as often as so many tiles of queries of a kv head read its keys and values,
    in the share of pairs that they see; by the model."""
    p, of = case.problem, case.problem.bytes
    share = p.pairs / max(p.queries * p.keys * p.heads * (1 if p.ragged else p.sequences), 1)
    again = max(round(tiles * (share if p.band else 1.0)), 1)
    memory = tuple(Term(name, size, 1, "written" if name in ("out", "lse") else "once") for name, size in of.items())
    through = tuple(term if term.what not in "KV" else term._replace(
        times=again, why=f"by {tiles} tiles of queries" + ", which see a part" * (share < 1)) for term in memory)
    return {"L2": through, "memory": memory}


@lru_cache(maxsize=4096)
def choose(case: AttentionCase, target: Any) -> Any:
    """The plan that the model expects to be fastest. NotImplementedError where no kernel computes it."""
    require(case, target)
    return planner(target).choose(case, target)


def cost(case: AttentionCase, plan: Any, target: Any, *ceilings: Any) -> Cost:
    """The predicted cost of a legal plan; of a CPU's perhaps by measured ceilings (plans.model.Ceilings)."""
    predicted: Cost = planner(target).cost(case, plan, target, *ceilings)
    return predicted


def ranked(case: AttentionCase, target: Any) -> list[Any]:
    """All legal candidates, the one with the least predicted time first."""
    by = planner(target)
    return common.ranked(case, target, by.candidates(case, target), lambda plan: by.cost(case, plan, target).seconds)
