"""The plans of an attention as calls of tilewright.attention, for the tuner, on this processor or on a GPU.

Every plan is given by its text; REFERENCE is the call without one. Results are compared with float64 where that takes
little time, else with REFERENCE's.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.api.attention import attention as call_of
from tilewright.compiled import attention
from tilewright.formats import get
from tilewright.lab.measure import measure
from tilewright.lab.measure.measure import Rules
from tilewright.lab.tuner.contenders import REFERENCE, Contenders, Job, OnProcessor
from tilewright.lab.tuner.on_gpu import OnDevice

LITTLE = 1 << 26            # pairs, up to which float64's scores are computed
ERRORS = {"f64": 1e-11, "f32": 1e-4}        # of a result, as a share of the largest |v|; four units of other formats


class Plans(Contenders):
    """What both have: arrays, and the result that others are compared with."""

    def __init__(self, job: Job) -> None:
        kernel = attention.compile(job.problem, job.target, job.plans[0], job.threads)
        self.job, self.options = job, {name: x for name, x in kernel.options._asdict().items() if x is not None}
        self.arrays = attention.random(job.problem)
        self.wanted: Any = None
        if job.problem.heads * job.problem.queries * job.problem.keys * job.problem.sequences <= LITTLE:
            self.wanted = attention.expected(job.problem, *self.arrays)
        v = self.arrays[2].astype(np.float64)
        p = job.problem
        unit = ERRORS.get(p.q, 4 * float(getattr(get("bf16" if p.q == "e4m3fn" else p.q), "eps", 0.0)))
        self.allowed = unit * float(np.abs(v).max(initial=0)) * (8 if p.q == "e4m3fn" else 1)
        self.found: Any = None

    def wrong(self) -> str | None:
        values = np.asarray(self.found, np.float64)
        if self.wanted is None:
            self.wanted = values
        apart = float(np.abs(values - self.wanted).max(initial=0))
        return None if apart <= self.allowed else f"an element is {apart:.2g} from the expected one"


class OnCpu(OnProcessor, Plans):
    """Calls with NumPy's arrays."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.rules = Rules.choose(job.threads)

    def tried(self, name: str) -> Sequence[measure.Call]:
        call: Any = partial(call_of, plan=None if name == REFERENCE else name, threads=self.job.threads,
                            **self.options)
        result = call(*self.arrays)
        self.found = result[0] if isinstance(result, tuple) else result
        return [(call, self.arrays)]


class OnGpu(OnDevice, Plans):
    """Calls with torch's tensors, on a stream of the tuner."""

    def __init__(self, job: Job) -> None:
        import torch
        OnDevice.__init__(self, job.target)
        Plans.__init__(self, job)
        self.external = torch.cuda.ExternalStream(self.stream.handle)
        kind = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3fn": torch.float8_e4m3fn}[job.problem.q]
        count = self.sets_of(sum(job.problem.bytes.values()))
        self.sets = [tuple(torch.from_numpy(x.astype(np.float32)).cuda().to(kind) for x in self.arrays)
                     for _ in range(count)]

    def tried(self, name: str) -> Sequence[measure.Call]:
        import torch

        def call(*tensors: Any) -> Any:
            with torch.cuda.stream(self.external):
                return call_of(*tensors, plan=None if name == REFERENCE else name, **self.options)
        result = call(*self.sets[0])
        self.stream.synchronize()
        self.found = (result[0] if isinstance(result, tuple) else result).float().cpu().numpy()
        return [(call, tensors) for tensors in self.sets]
