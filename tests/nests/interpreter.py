"""A tree of loops, run round by round in Python: what a schedule is compared with, whatever its marks.

Threads and CTAs run one after the other, which a correct schedule does not notice: what threads copy together, each of
them copies whole.
"""
from __future__ import annotations

import math
import operator

import numpy as np

from tilewright.nests.tree import Do, For, Sync, When

REDUCTIONS = {"add": operator.add, "mul": operator.mul, "min": min, "max": max, "fmin": min, "fmax": max}
OPERATIONS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
              "neg": operator.neg, "abs": abs, "min": min, "max": max, "fmin": min, "fmax": max,
              "sqrt": math.sqrt, "exp": math.exp}


def interpret(scheduled, arrays, numbers=None):
    """Runs it on these arrays in place. Buffers begin as NaN, so that what was never set is seen."""
    memory = dict(arrays)
    for name, b in scheduled.buffers.items():
        memory[name] = np.full(b.shape, np.nan)

    def value(term, env):
        kind, x = term[0], term[1]
        if kind == "load":
            return memory[x.array][tuple([at(p, env, n) for p, n in zip(x.subscripts, memory[x.array].shape)])].item()
        if kind == "number":
            return x
        if kind == "index":
            return x.value(env)
        if kind == "parameter":
            return numbers[x]
        return OPERATIONS[kind](*[value(v, env) for v in term[1:]])

    def at(p, env, size):
        n = p.value(env)
        assert 0 <= n < size, f"{p} = {n} of {size}"
        return n

    def run(nodes, env):
        for n in nodes:
            if isinstance(n, For):
                for i in range(n.start.value(env), n.stop.value(env), n.step):
                    ring = {name: (i // d + shift) % size for name, shift, d, size in n.rings}
                    run(n.body, {**env, n.index: i, **ring})
            elif isinstance(n, When):
                if all(c.value(env) >= 0 for c in n.conditions):
                    run(n.body, env)
            elif isinstance(n, Do):
                target = memory[n.target.array]
                place = tuple([at(p, env, size) for p, size in zip(n.target.subscripts, target.shape)])
                new = value(n.value, env)
                target[place] = REDUCTIONS[n.reduce](target[place].item(), new) if n.reduce else new
            else:
                assert isinstance(n, Sync)
    run(scheduled.nodes, {})
    return arrays
