"""problem → target → plan → kernel → compile → run → tune → bench: matrix multiplication in readable Python.

    >>> import numpy as np
    >>> import tilewright as tw
    >>> a, b = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    >>> tw.matmul(a, b)
    array([[4., 4.],
           [4., 4.],
           [4., 4.]], dtype=float32)

`tw.matmul` follows numpy.matmul and `tw.gemm` follows BLAS. The eight nouns above are the package's parts in the order
of processing; each has a function here:

    >>> problem = tw.Gemm(3, 2, 4)               # what: sizes, formats, layouts
    >>> target = tw.detect()                     # which chip
    >>> plan = tw.plan(problem, target)          # how: tiles, loops, threads
    >>> kernel = tw.compile(problem, target, plan)
    >>> kernel(a, b).shape
    (3, 2)

Names are looked up when they are first used: `import tilewright` loads neither NumPy nor a compiler.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from tilewright import forks

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from tilewright.api.attention import attention as attention
    from tilewright.api.packed import pack as pack
    from tilewright.api.semirings import contract as contract
    from tilewright.api.typed import (
        einsum as einsum,
        gemm as gemm,
        grouped_matmul as grouped_matmul,
        matmul as matmul,
        tensordot as tensordot,
    )
    from tilewright.attention_problem import Attention as Attention
    from tilewright.compiled.bundles import load as load
    from tilewright.compiled.compile import compile as compile, plan as plan
    from tilewright.compiled.packed_weights import PackedWeights as PackedWeights
    from tilewright.expressions.function import epilogue as epilogue, prologue as prologue
    from tilewright.expressions.functions import (
        clamp as clamp,
        column_amax as column_amax,
        column_argmax as column_argmax,
        column_argmin as column_argmin,
        column_max as column_max,
        column_min as column_min,
        column_sum as column_sum,
        erf as erf,
        exp as exp,
        gelu as gelu,
        log as log,
        maximum as maximum,
        minimum as minimum,
        pairs as pairs,
        popcount as popcount,
        relu as relu,
        row_amax as row_amax,
        row_argmax as row_argmax,
        row_argmin as row_argmin,
        row_max as row_max,
        row_min as row_min,
        row_sum as row_sum,
        sigmoid as sigmoid,
        silu as silu,
        sqrt as sqrt,
        tanh as tanh,
        where as where,
    )
    from tilewright.expressions.reductions import Reduction as Reduction
    from tilewright.expressions.semiring import semiring as semiring
    from tilewright.formats.quantization import quantize as quantize
    from tilewright.formats.quantized import Quantized as Quantized, dequantize as dequantize
    from tilewright.formats.scaled import Scaled as Scaled
    from tilewright.lab.explanation.contraction import einsum_path as einsum_path
    from tilewright.lab.explanation.explain import explain as explain
    from tilewright.lab.explanation.record import Explanation as Explanation
    from tilewright.lab.tuner.ahead import build as build
    from tilewright.lab.tuner.search import tune as tune
    from tilewright.nests.optimize import Optimized as Optimized, optimize as optimize
    from tilewright.nests.running.run import loops as loops
    from tilewright.nests.schedules.schedule import Schedule as Schedule, schedule as schedule
    from tilewright.problem import Gemm as Gemm
    from tilewright.runtime.cpu.packed import Packed as Packed
    from tilewright.runtime.cpu.pool import (
        get_num_threads as get_num_threads,
        set_num_threads as set_num_threads,
        threads as threads,
    )
    from tilewright.runtime.cuda.driver import detect as detect
    from tilewright.runtime.emitted import kernel as kernel
    from tilewright.simulator.product import simulate as simulate
    from tilewright.targets import target as target

# Where each public name lives. No module of the package bears the name of a public function, or importing it would
# hide the function.
_HOME = {name: module for module, names in {
    "tilewright.api.attention": "attention",
    "tilewright.api.builtin": "matmul",
    "tilewright.api.contraction": "einsum tensordot",
    "tilewright.api.grouped": "grouped_matmul",
    "tilewright.api.packed": "pack",
    "tilewright.api.products": "gemm",
    "tilewright.api.semirings": "contract",
    "tilewright.attention_problem": "Attention",
    "tilewright.compiled.bundles": "load",
    "tilewright.compiled.compile": "compile plan",
    "tilewright.compiled.packed_weights": "PackedWeights",
    "tilewright.expressions.function": "epilogue prologue",
    "tilewright.expressions.functions":
        "clamp column_amax column_argmax column_argmin column_max column_min column_sum erf exp gelu log maximum "
        "minimum pairs popcount relu row_amax row_argmax row_argmin row_max row_min row_sum sigmoid silu sqrt tanh "
        "where",
    "tilewright.expressions.reductions": "Reduction",
    "tilewright.expressions.semiring": "semiring",
    "tilewright.formats.quantization": "quantize",
    "tilewright.formats.quantized": "Quantized dequantize",
    "tilewright.formats.scaled": "Scaled",
    "tilewright.lab.explanation.contraction": "einsum_path",
    "tilewright.lab.explanation.explain": "explain",
    "tilewright.lab.explanation.record": "Explanation",
    "tilewright.lab.tuner.ahead": "build",
    "tilewright.lab.tuner.search": "tune",
    "tilewright.nests.optimize": "Optimized optimize",
    "tilewright.nests.running.run": "loops",
    "tilewright.nests.schedules.schedule": "Schedule schedule",
    "tilewright.problem": "Gemm",
    "tilewright.runtime.cpu.packed": "Packed",
    "tilewright.runtime.cpu.pool": "get_num_threads set_num_threads threads",
    "tilewright.runtime.cuda.driver": "detect",
    "tilewright.runtime.emitted": "kernel",
    "tilewright.simulator.product": "simulate",
    "tilewright.targets": "target",
}.items() for name in names.split()}
RECORDED = "matmul", "gemm", "contract", "grouped_matmul", "attention"
__all__ = sorted(("__version__", *_HOME))


def _found(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    with forks.building:
        value = getattr(import_module(_HOME[name]), name)
        if name in RECORDED and os.environ.get("TILEWRIGHT_RECORD"):
            value = import_module("tilewright.api.record").wrapped(name, value)
    globals()[name] = value  # so that this function is not asked again
    return value


if not TYPE_CHECKING:  # for a type checker a name that is not imported above is a mistake
    __getattr__ = _found


def __dir__() -> list[str]:
    return __all__
