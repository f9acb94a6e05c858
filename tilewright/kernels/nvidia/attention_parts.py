"""What kernels of attention begin with; what both roles of the one for Hopper have (attention.py), and the role that
copies."""
from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Kernel, Value, f32, i32, i64, ptr
from tilewright.ir.ops.pipelines import Mbarriers
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia.attention_result import Result
from tilewright.kernels.nvidia.attention_scores import parameters
from tilewright.kernels.nvidia.attention_tiles import Loads, Order, Ring, Sizes
from tilewright.plans.wgmma_rules import GROUP

REGISTERS = {2: (240, 24), 3: (160, 32)}    # of math and of loads, by the number of warpgroups; of one, as they are
FACTORS: dict[str, Any] = {"factors": ptr(f32), "sequence": i64, "head": i64}


def begun(s: Sizes, operands: dict[str, Any]) -> tuple[Kernel, SimpleNamespace]:
    """A kernel with its parameters (attention.py) and these for q, k and v; and its arguments by their names."""
    shape = s.shape
    T = memory_type(shape.out)
    more: dict[str, Any] = {"before": i32} if shape.band == "window" else {}
    more |= {"after": i32} if shape.band else {}
    more |= {"q_offsets": ptr(i32), "sequences": i32} if shape.ragged else {}
    more |= {"k_offsets": ptr(i32)} if shape.ragged and not shape.page else {}
    more |= {"lengths": ptr(i32)} if shape.lengths else {}
    more |= {"table": ptr(i32), "table_row": i64} if shape.page else {}
    more |= {"splits": i32, "workspace": ptr(f32), "counters": ptr(i32)} if shape.split else {}
    more |= {"lse": ptr(f32), "lse_head": i64, "lse_batch": i64} if shape.lse else {}
    more |= {"sinks": ptr(f32)} if shape.sinks else {}
    more |= {f"{x}_{name}": t for x in "qkv" for name, t in FACTORS.items()} if s.EIGHT else {}
    more |= parameters(shape.score)
    more = {**operands, "out": ptr(T), "out_row": i64, "out_head": i64, "out_batch": i64, "queries": i32, "keys": i32,
            "heads": i32, "group": i32, "pairs": i32, "section": i32, "factor": f32, **more}
    k = Kernel(f"attention_{shape.name}_{s.plan.name}", threads=s.plan.threads, noalias=False,
               min_ctas=s.plan.together(shape), **more)
    return k, SimpleNamespace(**dict(k.function.params))


@dataclass(frozen=True)
class Parts:
    """What both roles have."""
    k: Kernel
    g: SimpleNamespace
    s: Sizes
    t: Value
    keys: Ring
    values: Ring
    queries: Ring                   # a stage for each warpgroup, once or twice
    turn: Mbarriers | None
    order: Order
    result: Result

    @classmethod
    def begun(cls, k: Kernel, g: SimpleNamespace, s: Sizes) -> Parts:
        stages = s.plan.stages
        keys, values = Ring.new(k, "k_smem", s.keys, stages), Ring.new(k, "v_smem", s.values, stages)
        queries = Ring.new(k, "q_smem", s.queries, s.QUERY_STAGES*s.WARPGROUPS)
        turn = k.mbarriers("turn", s.WARPGROUPS) if s.WARPGROUPS > 1 else None
        result = Result(k, g, s)
        k.init_mbarriers()
        return cls(k, g, s, k.thread[0], keys, values, queries, turn, Order(k, g, s), result)

    def of_queries(self, number: Value, warpgroup: Any) -> tuple[Value, Value]:
        """Stage and parity of a warpgroup's queries of tile `number`."""
        stages = self.s.QUERY_STAGES
        return number % stages * self.s.WARPGROUPS + warpgroup, number // stages % 2


def load(parts: Parts) -> None:
    """The role that copies: one of its threads starts all copies."""
    k, g, s, t = parts.k, parts.g, parts.s, parts.t
    if s.WARPGROUPS in REGISTERS:
        k.registers(REGISTERS[s.WARPGROUPS][1], more=False)
    first_warp = t < GROUP*s.WARPGROUPS + k.warp
    queries, position, loads = parts.queries, k.variable(i32, 0), Loads(k, g, s)
    with parts.order.each(first_warp) as (number, work):
        begin, last = position.get(), work.end - 1
        for w in range(s.WARPGROUPS):
            stage, parity = parts.of_queries(number, w)
            queries.empty.wait(stage, parity ^ 1, sleep=True)
            queries.full.arrive(stage, by="role", expect=s.queries.BYTES)
            loads.queries(queries, stage, work, w)
        loads.keys(parts.keys, begin, g.k, last, work)
        with k.loop(work.count, start=1, unroll=False) as p:
            loads.keys(parts.keys, begin + p, g.k, last - p, work)
            loads.keys(parts.values, begin + p - 1, g.v, last - p + 1, work)
        loads.keys(parts.values, begin + work.count - 1, g.v, work.first, work)
        position.set(begin + work.count)
