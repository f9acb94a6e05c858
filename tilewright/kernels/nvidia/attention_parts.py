"""What both roles of attention on Hopper have (attention.py), and the role that copies."""
from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Kernel, Value, i32
from tilewright.ir.ops.pipelines import Mbarriers
from tilewright.kernels.gpu.attention_work import Order
from tilewright.kernels.nvidia.attention_result import Result
from tilewright.kernels.nvidia.attention_tiles import Loads, Ring, Sizes
from tilewright.plans.wgmma_rules import GROUP

REGISTERS = {2: (240, 24), 3: (160, 32)}    # of math and of loads, by the number of warpgroups; of one, as they are


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
