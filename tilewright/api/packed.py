"""tilewright.pack: a right operand that is packed once and multiplied many times.

    weights = tw.pack(b)                # [k, n]
    tw.matmul(a, weights)               # as tw.matmul(a, b), without packing b each time

The arguments of pack are checked here; runtime/cpu/packed.py packs, and api/host.py multiplies packed operands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from tilewright import forks, formats, targets
from tilewright.api import scaled, tensors
from tilewright.compiled import packed_weights
from tilewright.formats.decoding import BF16, decoded, exact_in_bf16
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Decodable, Scaled
from tilewright.plans import asked
from tilewright.rules import arguments, scaling
from tilewright.runtime.gpu.arrays import kind, library_of
from tilewright.targets import CpuTarget

if TYPE_CHECKING:
    from tilewright.runtime.cpu.packed import Packed

ROWS = 1024  # of A, for which a plan is chosen unless the caller knows


def pack(
    b: ArrayLike,
    *,
    a: Any = None,
    out_dtype: Any = None,
    trans_b: bool | str = False,
    rows: int = ROWS,
    threads: int | None = None,
    plan: Any = None,
    target: CpuTarget | str | None = None,
) -> Any:
    """b, packed once for many products `matmul(a, b)` and `gemm` on this processor.

    b           [..., k, n], two axes or more, of any format of `tilewright formats` and any strides. It is copied, and
                may change or be deleted afterwards. Results of tilewright.quantize with groups, with blocks, or for an
                `a` of floats become `PackedWeights`, which take no more memory; if `plan` is given, blocks are
                decoded once, to 4 bytes a number (2 with a="bf16" on chips that multiply pairs of bf16). Other integers
                with a scale for each column are packed as such.
    a           the format ("bf16") or dtype of the left operands; by default b's own, f32 for block-scaled formats
    out_dtype   the out_dtype of the products. It decides the format of their sums; products with another out_dtype but
                the same format of sums can use the same packed b (docs/formats.md)
    trans_b     as in matmul
    rows        about how many rows left operands will have; the plan is chosen for it. Any number of rows can be
                multiplied, by any number of threads, always with the same bits.
    threads     how many threads pack; by default tilewright.get_num_threads()
    plan        a `packed` plan, or its text, instead of the one that tilewright chooses for so many rows
    target      an instruction set of this machine, or its name, instead of the detected one. For PackedWeights any
                target, also a GPU: its kernels read this layout once the arrays of `packed.weights` are in its memory

    Products have the same bits as matmul with b itself by this plan. The packed matrix may take more memory than b:
    `packed.nbytes`.

    Raises TypeError and ValueError as matmul does, and for plans and targets that cannot be run.
    """
    library = library_of(b)
    if library is not None:
        raise TypeError(f"b must be in the CPU's memory to be packed, but it is {kind(b)} in {library.platform.memory}")
    b = tensors.array(b, "b")
    if isinstance(b, Decodable):
        format_a = None if a is None else formats.get(a, "a")
        floats = format_a is not None and isinstance(format_a, formats.Float)
        narrow = not isinstance(b, Scaled) or not b.plain or floats
        if narrow and plan is None and out_dtype is None:
            chip = targets.coerce(target)
            if isinstance(chip, CpuTarget):
                chip.require_runnable()
            return packed_weights.pack(b, arguments.layout(trans_b, "b"), chip)
        if isinstance(b, Scaled) and not b.plain:
            raise ValueError("plan and out_dtype must be None for weights with groups, zero points or two elements to "
                             "a byte, which stay as narrow as they are")
        return _pack_scaled(b, a, out_dtype, trans_b, rows=rows, threads=threads, plan=plan, target=target)
    array = arguments.operand(b, "b")
    if array.ndim < 2:
        raise ValueError(f"b must have two axes or more to be packed, but its shape is {array.shape}")
    array = arguments.transposed(array, trans_b, "b")
    threads = arguments.thread_count(threads)
    rows = arguments.count(rows, "rows")
    chip = targets.coerce(target, CpuTarget)
    plan = asked.plan(plan, chip)
    dtype_a = array.dtype if a is None else formats.get(a, "a").dtype
    sums, _ = arguments.dtypes(np.empty(0, dtype_a), array, None, out_dtype)

    packed = forks.imported("tilewright.runtime.cpu.packed")
    taken_a, taken_b = (x if packed.engine.packs(x, sums) else sums for x in (dtype_a, array.dtype))
    return packed.prepare(
        arguments.converted(array, taken_b), dtype_a, taken_a, sums, dtype=array.dtype, rows=rows, threads=threads,
        plan=plan, target=chip, conj=trans_b == "c" and array.dtype.kind == "c",
    )


def _pack_scaled(b: Any, a: Any, out_dtype: Any, trans_b: Any, **options: Any) -> Packed:
    """Blocks are decoded, to bf16 for left operands of that where bf16 holds all numbers, else to f32; scales of
    columns and of all of b are kept beside the panels of the elements."""
    format_a = None if a is None else formats.get(a, "a")
    trans_b = arguments.layout(trans_b, "b")
    side = scaled.operand(b, None, trans_b, "b")
    if isinstance(b, Quantized):
        narrow = format_a is not None and format_a.name == "bf16" and exact_in_bf16(b)
        array, format_a = decoded(b, BF16 if narrow else arguments.F32), format_a or formats.get("f32")
    else:
        array, format_a = b.elements, format_a or b.format
        k = b.shape[scaling.k_axis(b.ndim, trans_b, "b")]
        if out_dtype is None and not isinstance(format_a, formats.Float) and not isinstance(b.format, formats.Float):
            out_dtype = scaling.whole_sums((format_a, b.format), k)
    packed = pack(array, a=format_a, out_dtype=out_dtype, trans_b=trans_b, **options)
    return replace(packed, _factor=side.factor or 1.0, _scales=side.scales)
