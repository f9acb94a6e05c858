"""Attention by one plan as code that can be read, counted, kept in a bundle, simulated and called.

The kernel is that of contiguous arrays: other strides are arguments of the same code, and copies are made where it
cannot read an array.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tilewright.attention_problem import Attention
from tilewright.compiled.amd import AmdCode
from tilewright.compiled.base import Compiled
from tilewright.compiled.cpu import CpuCode
from tilewright.compiled.nvidia import NvidiaCode
from tilewright.compiler import artefact
from tilewright.forks import cached_property
from tilewright.formats import FORMATS
from tilewright.plans import asked, attention_choice, cpu_attention
from tilewright.plans.attention_choice import AttentionCase
from tilewright.plans.measured import choice
from tilewright.rules.attending import Asked, attending
from tilewright.runtime.cpu import amx, attention as on_cpu, pool
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.simulator.report import Report

EMITTERS = {"attention_rows": "attention_rows:emit_rows", "attention_few": "attention_rows:emit_few",
            "attention_strips": "attention:emit_attention"}


def code_target(chip: Any) -> Any:
    """The target with the extensions that kernels of attention use; AMX's on this machine where it may be used."""
    if not isinstance(chip, CpuTarget):
        return chip
    return amx.permitted(chip).extended


class AttentionKernel(Compiled):
    """An attention by one plan on a target. `kernel(q, k, v)` computes it, without sinks, factors, offsets, pages and
    arrays of scores."""

    def __init__(self, problem: Attention, target: Any, plan: Any = None, threads: int = 1) -> None:
        """NotImplementedError where the target has no kernel, ValueError for a plan that cannot run it."""
        self.problem, self.target = problem, target
        self.case = AttentionCase(problem, threads)
        attention_choice.require(self.case, self.code_target)
        chosen = choice.chosen(self.case, self.code_target)[0] if plan is None else asked.plan(plan, target, True)
        self.plan, self.threads = asked.runs(chosen, self.case, self.code_target), threads

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.problem} on {self.target.name}: {self.plan}>"

    @property
    def empty(self) -> bool:
        """An attention without queries or keys has code, too."""
        return False

    @property
    def asked(self) -> tuple[artefact.Asked, ...]:
        """All code that a call takes, as artefact.py is asked for it."""
        raise NotImplementedError

    @property
    def chosen(self) -> tuple[tuple[Any, Any], ...]:
        """(case, plan)."""
        return ((self.case, self.plan),)

    @cached_property
    def functions(self) -> tuple[Function, ...]:    # type: ignore[override]    # recorded when it is read
        one = self.asked[-1]
        return (artefact.recorded(one.emit, one.target, *one.args, **one.options),)

    @property
    def options(self) -> Asked:
        """The problem as arguments of a call. NotImplementedError where it has arrays beside q, k and v."""
        p = self.problem
        if p.sinks or p.factors or p.ragged or p.page or (p.function and p.function.reads):
            raise NotImplementedError("a compiled kernel is called and simulated with q, k and v alone: "
                                      "tilewright.attention(plan=) takes arrays beside them")
        causal = p.band == "causal" and not p.after
        return Asked(("upper left" if p.upper else True) if causal else False,
                     (p.before, p.after) if p.band and not causal else None, p.scale,
                     p.function and p.function.expression, return_lse=p.lse, out_dtype=p.out)

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        """The result for these arrays, with lse a tuple: NumPy's for a CPU, those of a GPU's library on it."""
        raise NotImplementedError

    def simulate(self, q: Any, k: Any, v: Any) -> Report:
        """A launch of the kernel on NumPy, with a report of what each line did; `report.result` is what it computed.
        NotImplementedError for sinks, factors, offsets and pages, and arrays of scores."""
        raise NotImplementedError


class CpuAttentionKernel(AttentionKernel, CpuCode):
    """An attention by one plan on a CPU."""
    target: CpuTarget

    @property
    def code_target(self) -> CpuTarget:
        return cast(CpuTarget, code_target(self.target))

    @property
    def asked(self) -> tuple[artefact.Asked, ...]:
        few = self.plan.algorithm != "attention_strips"
        spec: tuple[Any, ...] = tuple(cpu_attention.rows_spec(self.case, self.plan) if few else
                                      cpu_attention.spec(self.problem, self.code_target, self.plan))
        return (artefact.Asked("tilewright.kernels.cpu.pool:emit_pool", self.target, (), {}),
                artefact.Asked(f"tilewright.kernels.cpu.{EMITTERS[self.plan.algorithm]}", self.code_target, spec, {}))

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        self.target.require_runnable()
        call = attending({"q": q, "k": k, "v": v}, self.options)
        result, lse, _ = on_cpu.attend(call, threads=self.threads, target=self.code_target, plan=self.plan)
        shaped = result.reshape(call.shape)
        return shaped if lse is None else (shaped, lse.reshape(call.shape[:-1]))

    def simulate(self, q: Any, k: Any, v: Any) -> Report:
        from tilewright.simulator.memory import AddressSpace
        from tilewright.simulator.product import SimulatedHost
        host = SimulatedHost(AddressSpace())
        result, _, _ = on_cpu.attend(attending({"q": q, "k": k, "v": v}, self.options), threads=1,
                                     target=self.code_target, on=host, plan=self.plan)
        report = host.report
        assert report is not None
        report.result = result
        return report


class GpuAttentionKernel(AttentionKernel):
    """An attention by one plan on a GPU."""

    @property
    def asked(self) -> tuple[artefact.Asked, ...]:
        from tilewright.runtime.gpu import attention as on_gpu
        warp = {"WARP": self.target.warp}
        values = artefact.Asked(on_gpu.VALUES, self.target, (), {"SIZE": self.problem.value_size, "LENGTHS": False,
                                                                 **warp})
        by = attention_choice.planner(self.target)
        kernel = artefact.Asked(by.EMITTERS[self.plan.algorithm], self.target, (),
                                attention_choice.options(self.case, self.plan, self.target) | warp)
        turned = self.problem.q == "e4m3fn" and isinstance(self.target, GpuTarget)
        return (values, kernel) if turned else (kernel,)

    @cached_property
    def loadable(self) -> artefact.Code:
        one = self.asked[-1]
        return artefact.code(one.emit, self.target, **one.options)

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        from tilewright.runtime.gpu import attention as on_gpu
        from tilewright.runtime.gpu.engine import AMD, NVIDIA
        engine = NVIDIA if isinstance(self.target, GpuTarget) else AMD
        return on_gpu.attention(engine, {"q": q, "k": k, "v": v}, self.options, None, self.plan)

    def simulate(self, q: Any, k: Any, v: Any) -> Report:
        from tilewright.runtime.gpu import attention as on_gpu
        from tilewright.simulator.memory import uninitialised
        from tilewright.simulator.product import simulate_function
        from tilewright.targets.tensor_maps import Mapped, TiledMap
        p, by = self.problem, attention_choice.planner(self.target)
        shape, _ = by.emitted(self.case, self.plan)
        if p.q == "e4m3fn" or not self.options:
            raise NotImplementedError("attention of 8-bit values is simulated by the tests alone")
        function, tiles = self.function, by.tiles_of(p, shape, self.plan)
        out = np.empty((*q.shape[:-1], p.value_size), FORMATS[p.out].dtype)
        arrays = {"out": out, **({"lse": np.empty(q.shape[:-1], np.float32)} if p.lse else {})}
        values = on_gpu.launched(self.case, self.plan, self.target, arrays, (q, k, v)) | dict(zip("qkv", (q, k, v)))
        values |= {name: np.float32(values[name]) for name in ("factor", "scale")}
        values |= {name: uninitialised(x) for name, x in arrays.items()}
        values |= {"counters": np.zeros(tiles, np.int32), "workspace": uninitialised(np.empty(
            (tiles*self.plan.splits, self.plan.rows*(p.value_size + 2)), np.float32))}
        types = {name: value.type for name, value in function.params}
        for name, x in on_gpu.maps_of(self.case, self.plan, (q, k, v)).items():
            values[name] = Mapped(TiledMap(types[name].tile, x.shape[::-1], x.strides[-2::-1]), x)
        grid = by.grid_of(p, shape, self.plan, self.target)
        report = simulate_function(function, [values[name] for name in types], (grid,), self.target)
        report.result = out
        return report


class NvidiaAttentionKernel(GpuAttentionKernel, NvidiaCode):
    """An attention by one plan on one of NVIDIA's GPUs."""
    target: GpuTarget


class AmdAttentionKernel(GpuAttentionKernel, AmdCode):
    """An attention by one plan on one of AMD's GPUs."""
    target: AmdTarget


def compile(problem: Attention, target: Any, plan: Any = None, threads: int | None = None) -> AttentionKernel:
    """The kernel for an attention on a target by a plan, its text, or the chosen one."""
    if isinstance(target, CpuTarget):
        return CpuAttentionKernel(problem, target, plan, threads or pool.get_num_threads())
    kind = AmdAttentionKernel if isinstance(target, AmdTarget) else NvidiaAttentionKernel
    return kind(problem, target, plan)


def expected(p: Attention, q: Any, k: Any, v: Any) -> Any:
    """The result in float64, of an attention without arrays of scores, sinks, offsets and pages."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (x.repeat(p.group, 1) for x in (k, v))
    i, j = np.arange(p.queries)[:, None] + (0 if p.upper else p.keys - p.queries), np.arange(p.keys)
    with np.errstate(all="ignore"):
        scores = q @ k.swapaxes(-1, -2) * p.scale
        if p.function is not None:
            scores = p.function.numbers(scores, i, j, np.arange(p.heads)[:, None, None], ())
        hidden = np.zeros(scores.shape[-2:], bool)
        hidden |= False if p.before is None else j < i - p.before
        hidden |= False if p.after is None else j > i + p.after
        scores = np.where(hidden, -np.inf, scores)
        largest = scores.max(-1, initial=-np.inf, keepdims=True)
        powers = np.exp(scores - np.where(largest == -np.inf, 0, largest))
        total = powers.sum(-1, keepdims=True)
        return powers @ v / np.where(total == 0, 1, total)


def random(problem: Attention, seed: int = 0) -> tuple[Any, Any, Any]:
    """q, k and v of an attention without offsets and pages: normal numbers, of i8 whole ones."""
    p, draw = problem, np.random.default_rng(seed)
    shapes = (p.sequences, p.heads, p.queries, p.size), *((p.sequences, p.kv_heads, p.keys, n)
                                                          for n in (p.size, p.value_size))
    q, k, v = ((draw.integers(-90, 90, shape) if format == "i8" else draw.standard_normal(shape, np.float32)
                ).astype(FORMATS[format].dtype) for shape, format in zip(shapes, (p.q, p.kv, p.kv)))
    return q, k, v
