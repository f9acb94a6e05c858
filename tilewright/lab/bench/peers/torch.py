"""torch on CPUs: torch.mm with the MKL linked into it, and oneDNN, which it brings along, with B packed beforehand; and
cuBLAS, as torch calls it on a GPU in full f32: the reference that every ratio there is against.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import tilewright as tw
from tilewright import formats
from tilewright.api.tensors import array, tensor
from tilewright.lab.bench import gpu_scales
from tilewright.lab.bench.cases import GPU, Product
from tilewright.lab.bench.peer import Library, Peer, Setting, Unfit, Way
from tilewright.lab.measure.machine import versions
from tilewright.lab.measure.measure import Call
from tilewright.lab.measure.operands import Array, Operands

HOW = "torch.mm(a, b, out=)"


def load(setting: Setting) -> Peer:
    import torch as t

    t.set_num_threads(setting.threads)
    mkl = re.search(r"Math Kernel Library Version ([\d.]+)", t.__config__.show())  # its own copy, linked in
    version = f"{t.__version__} (MKL {mkl[1]})" if mkl else str(t.__version__)
    einsum = Way("torch", "torch.einsum(subscripts, a, b).contiguous()", _bind_einsum)
    return Peer("torch", version, HOW, ways, einsum=einsum)


def ways(product: Product) -> Iterator[Way]:
    """torch.mm where the result has the operands' dtype, the products into wider results where it has them."""
    import torch as t

    one = t.ones(())
    fp8 = partial(t._scaled_mm, scale_a=one, scale_b=one, out_dtype=t.float32)
    alike = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "c64", "c128")
    wider = {
        "i8-i8-i32": ("torch._int_mm(a, b, out=)", t._int_mm),
        **dict.fromkeys(("e4m3fn-e4m3fn-f32", "e5m2-e5m2-f32"), ("torch._scaled_mm(a, b, out=), scales of 1", fp8)),
    }
    if product.key in wider:
        how, call = wider[product.key]
        yield Way("torch", how, partial(_bind, call))
    elif product.a == product.b == product.out and product.out in alike:
        yield Way("torch", HOW, partial(_bind, t.mm))
    if product.formats in ("f32-f32-f32", "f16-f16-f16", "bf16-bf16-bf16") and t.backends.mkldnn.is_available():
        how = "oneDNN in torch: mkldnn._linear_pointwise, B by mkldnn._reorder_linear_weight"
        yield Way("torch packed", how, _bind_packed, prepared=True, returns=lambda c: array(c, "C"))


def _bind(call: Callable[..., Any], o: Operands) -> Call:
    import torch as t

    a, b, c = (tensor(x) for x in (o.a, o.b, o.c))
    return partial(t.bmm if o.problem.batch != 1 else call, out=c), (a, b)


def _bind_einsum(o: Operands) -> Call:
    """The result of torch.einsum is a view of a permuted array, which is copied."""
    import torch as t

    a, b = (tensor(x) for x in (o.a, o.b))
    return lambda: t.einsum(o.subscripts, a, b).contiguous(), ()


def _bind_packed(o: Operands) -> Call:
    """Multiplies by the weights of a layer as torch's compiler does."""
    import torch as t

    a, b = tensor(o.a), tensor(o.b)
    packed = t.ops.mkldnn._reorder_linear_weight(b.t().contiguous(), o.a.shape[0])
    return t.ops.mkldnn._linear_pointwise, (a, packed, None, "none", [], "")


# ---- studies

def epilogues(case: str, a: Array, b: Array, operands: Mapping[str, Array], threads: int) -> Mapping[str, list[Call]]:
    """Eager calls, and the same through torch.compile where that works, which needs a C++ compiler."""
    import torch as t

    t.set_num_threads(threads)
    gelu = t.nn.functional.gelu
    eager: Any = (lambda a, b: t.relu(t.mm(a, b))) if case == "relu" else (lambda a, b, c: gelu(t.addmm(c, a, b)))
    tensors, compiled = tuple(t.from_numpy(x) for x in (a, b, *operands.values())), t.compile(eager)
    calls: dict[str, list[Call]] = {"torch": [(eager, tensors)]}
    with suppress(Exception):               # whatever it lacks, it is left out
        compiled(*tensors)
        calls["torch.compile"] = [(compiled, tensors)]
    return calls


def weights(x: Array, w: Array, by_rows: bool) -> Mapping[str, list[Call]]:
    import torch as t

    t.set_num_threads(tw.get_num_threads())
    return {"torch bf16": [(t.nn.functional.linear, (tensor(x), tensor((w if by_rows else w.T).astype(x.dtype))))]}


def contract(case: Any, a: Array, b: Array, threads: int, **_: Any) -> Mapping[str, list[Call]]:
    """torch.cdist without its way by a matrix product, whose error is larger."""
    import torch as t

    if not case.cdist:
        return {}
    t.set_num_threads(threads)
    power = 2 if case.reduce == "sum" and case.cdist[1] == 2 else 1

    def call(x: Any, y: Any) -> Any:
        distances = t.cdist(x, y, p=case.cdist[1], compute_mode="donot_use_mm_for_euclid_dist")
        return distances**power if power > 1 else distances
    return {"torch": [(call, (t.from_numpy(a), t.from_numpy(b)))]}


PEER = Library("torch", load, "torch", order=30, studies={"epilogues": epilogues, "weights": weights,
                                                          "contract": contract},
               steered_by=("ONEDNN_", "DNNL_", "ATEN_"),
               avx2={"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"})


def load_cublas(setting: Setting) -> Peer:
    """cuBLAS through torch.mm; TorchDevice sets torch to full f32, with TF32 where the algorithm says so. Of fp8 with
    sums promoted to f32, and "cuBLAS fast" with those of the tensor cores."""
    assert setting.on is not None
    torch = setting.on.torch
    version = f"of torch {torch.__version__}"
    for own in versions("nvidia-cublas", "nvidia-cublas-cu12").values():
        version = f"{own} ({version})"
    one = torch.ones((), device=setting.on.name)

    def mm(o: Operands) -> Call:
        wider = {} if o.problem.a == o.problem.out else {"out_dtype": o.c.dtype}
        return partial(torch.mm if o.problem.batch == 1 else torch.bmm, o.a, o.b, out=o.c, **wider), ()

    def rounded_mm(o: Operands) -> Call:
        call, _ = mm(o)

        def run() -> None:
            torch.backends.cuda.matmul.allow_tf32 = True
            call()
            torch.backends.cuda.matmul.allow_tf32 = False
        return run, ()

    def int_mm(o: Operands) -> Call:
        if o.problem.m <= 16:
            raise Unfit(f"torch._int_mm takes more than 16 rows of A, not {o.problem.m}")
        _check_multiples(o, "torch._int_mm", 8)
        return partial(torch._int_mm, o.a, o.b, out=o.c), ()

    def scaled_mm(o: Operands, fast: bool) -> Call:
        _check_multiples(o, "torch._scaled_mm", 16)
        scales = (one, one) if o.scale_a is None else (o.scale_a, o.scale_b)
        return partial(torch._scaled_mm, o.a, o.b, *scales, out_dtype=o.c.dtype, out=o.c, use_fast_accum=fast), ()

    def of_blocks(o: Operands, ahead: bool) -> Call:
        def numbers() -> tuple[Any, Any]:
            a, b = (gpu_scales.decoded(x, "bfloat16") for x in (o.a, o.b))
            return a, b
        if ahead:
            return partial(torch.mm, *numbers(), out=o.c), ()
        return lambda: torch.mm(*numbers(), out=o.c), ()

    def ways(product: Product) -> Iterator[Way]:
        if product.a in formats.BLOCK_FORMATS:
            yield Way("cuBLAS", "torch.mm of operands decoded to bf16 beforehand", partial(of_blocks, ahead=True))
            yield Way("cuBLAS decoding", "torch's operations that decode to bf16, and torch.mm",
                      partial(of_blocks, ahead=False))
        elif product.a in ("e4m3fn", "e5m2"):
            for name, fast in (("cuBLAS", False), ("cuBLAS fast", True)):
                yield Way(name, f"torch._scaled_mm(a, b, use_fast_accum={fast}, out=), scales of 1 or of rows",
                          partial(scaled_mm, fast=fast))
        elif product.formats == "i8-i8-i32":
            yield Way("cuBLAS", "torch._int_mm(a, b, out=)", int_mm)
        elif product.algorithm == "tf32_tf32_f32":
            yield Way("cuBLAS", "torch.mm(a, b, out=), tf32 on", rounded_mm)
        else:
            yield Way("cuBLAS", how, mm)

    how = "torch.mm(a, b, out=), tf32 off"
    return Peer("cuBLAS", version, f"{how}; of 8 bits torch._int_mm, torch._scaled_mm", ways)


def _check_multiples(o: Operands, name: str, of: int) -> None:
    """Unfit where torch refuses these sizes, or cuBLAS rows so far apart: elements are bytes."""
    apart = [max(x.stride()) for x in (o.a, o.b) if min(x.shape) > 1]
    if wrong := [x for x in (o.problem.k, o.problem.n, *apart) if x % of]:
        raise Unfit(f"{name} takes k, n and elements from row to row in multiples of {of}, not {wrong[0]}")


CUBLAS_PEER = Library("cuBLAS", load_cublas, device=GPU, order=0)
