"""Launches one family of GPU kernels on small awkward shapes: what compute-sanitizer watches. No torch in sight.

    compute-sanitizer --tool racecheck python bench/sanitized.py FAMILY        a key of `families`
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bench.variants import MMA, SIMT, TARGET, Built, Variant, build, variants
from tilewright.runtime.cuda import module

Shape = tuple[int, int, int]
SHAPES: tuple[Shape, ...] = ((1, 1, 1), (130, 140, 70), (257, 129, 33), (128, 256, 64))


def families() -> dict[str, Callable[[], Iterator[str]]]:
    return {"ladder": ladder, "simt": simt, "mma": mma, "wgmma": wgmma, "product": product,
            "epilogue": epilogue, "calls": calls, "users": users, "semirings": semirings,
            "prologues": fused_prologues, "groups": groups, "small": small}


def ladder() -> Iterator[str]:
    """Its steps: in f32, and on tensor cores in bf16 for B^T."""
    from tilewright import formats
    from tilewright.lab.ladder import run_nvidia
    from tilewright.lab.ladder.steps import GPU_STEPS, TENSOR_STEPS

    for name in (*GPU_STEPS, *TENSOR_STEPS):
        tensor = name in TENSOR_STEPS
        dtype, layout = (formats.get("bf16").dtype, "nt") if tensor else (np.dtype("f4"), "nn")
        for shape in ((1, 2, 8) if tensor else (1, 1, 1), (130, 140, 72 if tensor else 70), (256, 128, 64)):

            def launch(m: int, n: int, k: int, a: int, b: int, c: int, stream: module.Stream, name: str = name,
                       tensor: bool = tensor) -> None:
                run_nvidia.prepare(name, m, n, k, a, k, b, k if tensor else n, c, n)(stream.handle)

            try:
                yield f"{name} {shape}: {_wrong(launch, shape, layout, dtype)}"
            except ValueError as unfit:
                print(f"{name} {shape}: left out: {unfit}")


def simt() -> Iterator[str]:
    small = {"CTA_M": 64, "CTA_N": 64, "WARP_M": 32, "WARP_N": 32, "THREAD_M": 4, "THREAD_N": 8, "CTA_K": 8}
    options: list[dict[str, Any]] = [
        {}, small, {**small, "ASYNC": False, "STAGES": 2}, {**small, "TRANSPOSE": False},
        {**small, "CTA_K": 16, "SLICES": 2}, {**small, "SPLIT_K": 3},
        {**small, "SPLIT_K": 2, "ASYNC": False, "STAGES": 2},
    ]
    for layout in ("nn", "nt", "tn", "tt"):
        yield from _tried(variants(SIMT, layout, *({**o, "VECTOR": 1} for o in options)), layout, np.float32, SHAPES)
        yield from _tried(variants(SIMT, layout, *options), layout, np.float32, ((132, 140, 68), (128, 256, 64)))


def mma() -> Iterator[str]:
    tile = {"CTA_M": 128, "CTA_N": 128, "WARP_M": 64, "WARP_N": 32}
    options: list[dict[str, Any]] = [tile, {**tile, "STAGES": 2}, {**tile, "SPLIT_K": 3}]
    for format, dtype, wide in (("f64", np.float64, 2), ("tf32", np.float32, 4)):
        fixed = {"ARCH": TARGET.name, "A": format, "B": format, "CTA_K": 8*wide}
        fixed |= dict.fromkeys(("OUT", "SUMS"), "f64" if format == "f64" else "f32")
        for vector, shapes in (1, SHAPES), (wide, ((132, 140, 72),)):
            vectors = dict.fromkeys(("VECTOR_A", "VECTOR_B", "VECTOR_C"), vector)
            for layout in ("nn", "nt", "tn", "tt"):
                yield from _tried(variants(MMA, layout, *({**fixed, **vectors, **o} for o in options)), layout, dtype,
                                  shapes)


def wgmma() -> Iterator[str]:
    """Hopper's GEMM through tilewright.compile: clusters, both ways to store C, and the planner's choices."""
    import tilewright as tw
    from tilewright.plans.nvidia import NvidiaPlan

    target = module.target()
    plans = [None, *(f"wgmma 128x128x{{k}} stages=3 warpgroups=2 cluster={c}" for c in ("1x1", "2x1", "1x2")),
             "wgmma 128x128x{k} stages=4 warpgroups=2 cluster=2x1 vector_c=2 store=tma"]
    for a, out, layouts in (("bf16", "bf16", ("nn", "nt", "tn", "tt")), ("f16", "f32", ("nn",)), ("i8", "i32", ("nt",)),
                            ("e4m3fn", "bf16", ("nt",))):
        k_tile = 64 if a in ("bf16", "f16") else 128
        for layout in layouts:
            for shape in ((16, 16, 16), (144, 272, 80), (257 // 16 * 16, 528, 208)):
                problem = tw.Gemm(*shape, a, a, out, layout)
                for text in plans:
                    plan = text and NvidiaPlan.parse(text.format(k=k_tile))
                    try:
                        kernel: Any = tw.compile(problem, target, plan=plan)
                    except ValueError as unfit:
                        print(f"{problem} {text}: left out: {unfit}")
                        continue
                    formats = [tw.formats.get(x).dtype for x in (a, a, out)]
                    x, y, wanted = _operands(shape, formats[0])
                    x, y = (np.asfortranarray(v) if letter == "t" else v for v, letter in zip((x, y), layout))
                    wrong = (np.asarray(kernel(x, y), np.float64) != wanted.astype(formats[2]).astype(np.float64)).any()
                    yield f"{problem} {kernel.plan}: {'wrong' if wrong else ''}"


def product() -> Iterator[str]:
    """What tilewright.compile makes of products of every kind, by its own plans."""
    import tilewright as tw
    from tilewright import formats

    shapes = (*SHAPES, (1, 300, 500), (300, 1, 500), (16, 512, 1024), (64, 64, 4000), (5, 1030, 7), (400, 528, 592))
    for dtype in ("f32", "f64", "f16", "bf16", "i8", "e4m3fn"):
        for layout in ("nn", "nt", "tn", "tt"):
            for m, n, k in shapes:
                out = {"f64": "f64", "i8": "i32"}.get(dtype, "f32")
                kernel: Any = tw.compile(tw.Gemm(m, n, k, dtype, out=out, layout=layout), module.target())
                a, b, wanted = _operands((m, n, k), formats.FORMATS[dtype].dtype)
                a, b = (np.asfortranarray(x) if letter == "t" else x for x, letter in zip((a, b), layout))
                got = kernel(a, b)
                yield f"{dtype} {layout} {m}x{n}x{k} {kernel.plan}: {'wrong' if (got != wanted).any() else ''}"


def epilogue() -> Iterator[str]:
    """Compiled kernels with an epilogue: functions, pairs and several results, in all families and ways to store C."""
    import tilewright as tw
    from tilewright.expressions.epilogue import Epilogue

    def gelu(acc: Any, bias: Any, res: Any) -> Any:
        return tw.gelu(acc*0.1 + bias) + res, tw.relu(acc)

    def swiglu(acc: Any) -> Any:
        gate, up = tw.pairs(acc)
        return tw.silu(gate*0.1)*up

    tma = "warpgroups=2 vector_c=2 store=tma"
    plans = (None, f"wgmma 128x128x64 stages=4 {tma} pingpong cluster=2x1", f"wgmma 128x256x64 stages=3 {tma}",
             "wgmma 64x64x64 stages=3 warpgroups=2 pingpong vector_c=2")
    shapes = (("bf16", (144, 272, 208)), ("bf16", (1, 80, 64)), ("f32", (130, 140, 70)), ("f64", (33, 34, 20)))
    for kind, shape in shapes:
        bias, res = f"{kind} row", f"{kind} full"
        for made in (tw.epilogue(gelu, bias=bias, res=res), tw.epilogue(swiglu)):
            for text in plans if kind == "bf16" else plans[:1]:
                problem = tw.Gemm(*shape, kind, kind, kind, "nt", epilogue=made)
                try:
                    kernel: Any = tw.compile(problem, module.target(), text)
                except ValueError as unfit:
                    print(f"{problem} {text}: left out: {unfit}")
                    continue
                a, b, wanted = _operands(shape, tw.formats.get(kind).dtype)
                rng = np.random.default_rng(1)
                full = Epilogue.read(problem.epilogue).shapes(*wanted.shape)[0]
                given = {x.name: rng.standard_normal(full if x.place == "full" else full[-1:]).astype(a.dtype)
                         for x in made.operands}
                found = kernel(a, np.asfortranarray(b), operands=given)
                exact = made.evaluate(wanted, {name: x.astype(np.float64) for name, x in given.items()})
                error = max(_error(x, y) for x, y in zip(found if len(exact) > 1 else (found,), exact, strict=True))
                yield f"{problem} {kernel.plan}: {error if error > 2**-7 else ''}"


def calls() -> Iterator[str]:
    """matmul with reductions and quantized results, and einsum, of arrays in the GPU's memory."""
    import tilewright as tw
    rng = np.random.default_rng(0)
    for m, n, k in ((130, 140, 70), (257, 64, 33), (5, 1030, 7)):
        a, b = (rng.integers(-3, 4, size).astype(np.float32) for size in ((2, m, k), (k, n)))
        y, rows, columns = map(_back, tw.matmul(_there(a), _there(b), epilogue=lambda acc: (
            acc*2, tw.row_amax(acc), tw.column_sum(acc))))
        exact = a @ b
        wrong = (y != 2*exact).any(), (rows != abs(exact).max(-1)).any(), (columns != exact.sum(-2)).any()
        yield f"reductions {m}x{n}x{k}: {'wrong' if any(wrong) else ''}"
        for format in ("mxfp8", "mxfp6", "mxfp4", "nvfp4"):
            q = tw.matmul(_there(a), _there(b), epilogue=lambda acc: tw.relu(acc), out_dtype=format)
            wanted = tw.quantize(np.maximum(exact, 0), format)
            assert q.tensor_scale == wanted.tensor_scale
            wrong = (_back(q.elements) != wanted.elements).any(), (_back(q.scales) != wanted.scales).any()
            yield f"{format} {m}x{n}x{k}: {'wrong' if any(wrong) else ''}"
    for text, *shapes in (("xyk,kn->nxy", (5, 7, 33), (33, 40)), ("abc,dca->bd", (6, 17, 9), (20, 9, 6)),
                          ("bik,bkj->bij", (3, 65, 20), (3, 20, 36)), ("i,j->ij", (33,), (70,))):
        x, y = (rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
        found = _back(tw.einsum(text, _there(x), _there(y)))
        yield f"einsum {text}: {'wrong' if (found != np.einsum(text, x, y)).any() else ''}"


def fused_prologues() -> Iterator[str]:
    """Weights that are decoded in registers and in copies, of few rows and of many, and an activation of A."""
    import tilewright as tw
    from tilewright import formats
    from tilewright.formats.quantized import Quantized
    from tilewright.formats.scaled import Scaled

    rng, bf16 = np.random.default_rng(0), formats.get("bf16").dtype
    for n, k in ((64, 128), (130, 256), (257, 96), (130, 1120)):
        weights = rng.integers(-3, 4, (n, k)).astype(np.float32)
        made: dict[str, Any] = {kind: tw.quantize(weights, kind, group=32) for kind in ("i8", "i4", "e4m3fn")}
        made |= {"u4": tw.quantize(weights, "u4", group=32, zero_points=True), "mxfp4": tw.quantize(weights, "mxfp4")}
        for kind, q in made.items():
            exact = tw.dequantize(q).astype(np.float64).T
            if isinstance(q, Quantized):
                given: Any = Quantized(_there(q.elements), _there(q.scales), q.shape, q.format)
            else:
                assert isinstance(q, Scaled)
                zeros = None if q.zeros is None else _there(q.zeros)
                given = Scaled(_there(q.elements), _there(q.scales), zeros, q.group, q.nibbles)
            copies = f"gemv {{}}x32x4 stages=2 vector={32 if '4' in kind and kind != 'e4m3fn' else 16}"
            plans = *((m, None) for m in (1, 5, 16, 70)), *((m, copies.format(max(m, 8))) for m in (1, 16))
            for m, plan in plans:
                if plan and k % 32:
                    continue
                a = rng.integers(-3, 4, (m, k)).astype(bf16)
                found = _back(tw.matmul(_there(a), given, trans_b=True, out_dtype="f32", plan=plan))
                error = _error(found, a.astype(np.float64) @ exact)
                yield f"{kind} {m}x{n}x{k} {plan or ''}: {error if error > 2**-7 else ''}"
    for kind, m, n, k in (("bf16", 130, 144, 72), ("f32", 33, 70, 65), ("bf16", 1, 80, 64)):
        a, b, _ = _operands((m, n, k), formats.get(kind).dtype)
        found = _back(tw.matmul(_there(a), _there(b), prologue_a=tw.relu, out_dtype="f32"))
        wanted = np.maximum(a.astype(np.float64), 0) @ b.astype(np.float64)
        yield f"relu of A, {kind} {m}x{n}x{k}: {'wrong' if (found != wanted).any() else ''}"


def groups() -> Iterator[str]:
    """tilewright.grouped_matmul along m and k, with empty groups and rows behind the last one."""
    import tilewright as tw
    from tilewright import formats
    rng = np.random.default_rng(0)
    for kind in ("f32", "bf16", "f16", "f64"):
        dtype = formats.get(kind).dtype
        for sizes, n, k in (((3, 0, 130, 1), 140, 70), ((64, 128, 0, 0), 128, 64), ((0, 33, 257), 33, 129)):
            ends = np.cumsum(sizes).astype(np.int32)
            spans, rows = list(zip((0, *ends[:-1]), ends)), int(ends[-1]) + 2
            a, x = (rng.integers(-2, 3, size).astype(dtype) for size in ((rows, k), (k, rows)))
            b, y = (rng.integers(-2, 3, size).astype(dtype) for size in ((len(ends), k, n), (rows, n)))
            along_m = np.concatenate([a[i:j].astype(np.float64) @ z for (i, j), z in zip(spans, b.astype(np.float64))]
                                     + [np.zeros((2, n))])
            along_k = np.stack([x[:, i:j].astype(np.float64) @ y[i:j].astype(np.float64) for i, j in spans])
            for name, left, right, wanted in (("m", a, b, along_m), ("k", x, y, along_k)):
                found = _back(tw.grouped_matmul(_there(left), _there(right), _there(ends), out_dtype="f32"
                                                if kind != "f64" else "f64"))
                wrong = found != wanted
                yield f"{kind} along {name} {sizes}, n = {n}, k = {k}: {'wrong' if wrong.any() else ''}"


def small() -> Iterator[str]:
    """Batches of small products: sizes, layouts and strides, teams of warps, both ways to store C; complex matrices of
    any size, conjugated."""
    import tilewright as tw

    rng = np.random.default_rng(0)

    def numbers(dtype: str, *shape: int) -> Any:
        x = rng.integers(-3, 4, shape)
        return (x + 1j * rng.integers(-3, 4, shape) if dtype[0] == "c" else x).astype(dtype)

    for dtype in ("f4", "f8", "c8", "c16"):
        for batch, m, n, k in ((131, 4, 4, 4), (67, 5, 7, 3), (9, 32, 32, 32), (7, 33, 1, 20), (13, 24, 17, 12)):
            for turned in (False, True) if dtype == "f4" else (n in (7, 32),) if dtype == "c16" or n in (4, 17) else ():
                a, b, c = numbers(dtype, batch, m, k), numbers(dtype, batch, k, n), numbers(dtype, batch, m, n)
                if turned:
                    a, b = (x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (a, b))
                wanted, there = 2 * (a @ b) - c, _there(c)
                x, y = (_there(z.swapaxes(1, 2)) if turned else _there(z) for z in (a, b))
                tw.gemm(2, x, y, -1, there, trans_a=turned, trans_b=turned)
                yield f"{dtype} {batch} of {m}x{n}x{k} {turned}: {'wrong' if (_back(there) != wanted).any() else ''}"
    for dtype in ("c8", "c16"):
        for m, n, k in ((1, 1, 1), (130, 70, 33), (64, 256, 96)):
            a, b, c = numbers(dtype, k, m), numbers(dtype, k, n), numbers(dtype, m, n)
            wanted, there = (1 - 2j) * (a.T.conj() @ b) + 3j * c, _there(c)
            tw.gemm(1 - 2j, _there(a), _there(b), 3j, there, trans_a="c")
            yield f"{dtype} {m}x{n}x{k}: {'wrong' if (_back(there) != wanted).any() else ''}"


def users() -> Iterator[str]:
    """Kernels as users write them: the tunable steps of the ladder, and a softmax in blocks."""
    from tilewright.blocks import Program
    from tilewright.ir import f32, i32, ptr
    from tilewright.lab.ladder.tunable import GPU
    from tilewright.runtime.run import run

    for name, sizes in (("registers", {"V": 4, "BLOCK": 8}), ("shared", {"L": 64, "S": 16, "V": 4}),
                        ("coalesced", {"L": 32, "S": 8, "V": 4})):
        for m, n, k in ((128, 64, 64), (130, 70, 33)):
            a, b, wanted = _operands((m, n, k), np.float32)
            x, y, z = map(_there, (a, b, np.zeros_like(wanted, np.float32)))
            args, step = (m, n, k, 1.0, x, k, y, n, 0.0, z, n), GPU[name]
            chip: Any = module.target()
            run(step.function(chip, **sizes), *args, grid=step.grid(chip, sizes, {"m": m, "n": n, "k": k}))
            yield f"{name} {m}x{n}x{k}: {'wrong' if (_back(z) != wanted).any() else ''}"
    for rows, columns in ((3, 1), (7, 100), (33, 1000)):
        k = Program("softmax", module.target(), num_warps=4, y_ptr=ptr(f32), x_ptr=ptr(f32), n=i32)
        y_ptr, x_ptr, n = k.args
        row, cols = k.program_id(0), k.arange(0, 1024)
        loaded = k.load(x_ptr + row*n + cols, mask=cols < n, other=-np.inf)
        powers = k.exp(loaded - k.max(loaded, axis=0))
        k.store(y_ptr + row*n + cols, powers / k.sum(powers, axis=0), mask=cols < n)
        x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
        result, wide = _there(np.zeros_like(x)), np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        run(k.function, result, _there(x), columns, grid=(rows,))
        error = _error(_back(result), wide / wide.sum(1, keepdims=True))
        yield f"softmax {rows}x{columns}: {error if error > 1e-6 else ''}"


def _there(x: Any) -> Any:
    """An array in the GPU's memory."""
    from tilewright.runtime.gpu.arrays import CUDA, DeviceArray

    found = DeviceArray(CUDA, module.device(), x.shape, x.dtype)
    found.memory = module.Memory.upload(module.device(), x)
    return found


def _back(x: Any) -> Any:
    found = np.empty(x.shape, x.dtype)
    module.synchronize(module.device(), x.stream)
    x.memory.download(found)
    return found


def _error(found: Any, exact: Any) -> float:
    """The largest, of what the largest number is."""
    return float(abs(found.astype(np.float64) - exact).max() / max(abs(exact).max(), 1e-30))


def semirings() -> Iterator[str]:
    """tilewright.contract with padding of 0, of other numbers and of none, in loops over steps, with parts of k and
    slices."""
    import tilewright as tw
    from tilewright.expressions.semiring import semiring

    arithmetic = ((lambda x, y: (x - y)**2, "sum"), (lambda x, y: x + y, "min"), (lambda x, y: (x - y)**2 + 1, "sum"),
                  (lambda x, y: (x - y)*(x + 3)*(y - 2)*(x*y - 5) + x, "max"))
    plans = ("simt 64x64x16 warp=32x32 thread=8x4 stages=3 split_k=2",
             "simt 64x64x8 warp=32x32 thread=8x4 stages=2 copy=registers tail",
             "simt 32x32x32 warp=32x32 thread=8x4 stages=3 slices=4")
    for m, n, k in ((1, 1, 20), (130, 140, 70), (257, 129, 33)):
        a, b = (x + 5 for x in _operands((m, n, k), np.float32)[:2])        # the terms of 0 and 0 would be seen
        for plan in plans:
            for f, reduce in arithmetic:
                found = tw.contract(f, a, b, reduce=reduce, plan=plan)
                wrong = int((found != semiring(f, reduce).evaluate(a, b)).sum())
                yield f"{reduce} {m}x{n}x{k} {plan}: {f'{wrong} elements are wrong' if wrong else ''}"


def _operands(shape: Shape, dtype: Any) -> tuple[Any, Any, Any]:
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.integers(-3, 4, size).astype(dtype) for size in ((m, k), (k, n)))
    return a, b, a.astype(np.float64) @ b.astype(np.float64)


def _tried(found: tuple[Variant, ...], layout: str, dtype: Any, shapes: tuple[Shape, ...]) -> Iterator[str]:
    for variant in found:
        here = Built(*build(variant.emitter, variant.options))
        for shape in shapes:

            def launch(
                m: int, n: int, k: int, a: int, b: int, c: int, stream: module.Stream, here: Any = here,
                v: Variant = variant,
            ) -> None:
                lda, ldb = k if layout[0] == "n" else m, n if layout[1] == "n" else k
                elements, counters = v.workspace(m, n, k)
                on = module.device()
                space = [module.Memory.upload(on, np.zeros(count, d))
                         for count, d in ((elements, dtype), (counters, np.int32)) if count]
                args = (m, n, k, 1.0, a, lda, b, ldb, 0.0, c, n, *(block.pointer for block in space))
                module.Prepared(here.function, v.grid(m, n, k), args)(stream)

            yield f"{here.name} {shape}: {_wrong(launch, shape, layout, dtype)}"


def _wrong(launch: Callable[..., None], shape: Shape, layout: str, dtype: Any) -> str:
    """ "" if the product of whole numbers is exact."""
    a, b, wanted = _operands(shape, dtype)
    on, stream = module.device(), module.Stream()
    stored = [np.ascontiguousarray(x.T if letter == "t" else x) for x, letter in zip((a, b), layout)]
    c = np.full(wanted.shape, np.nan, dtype)
    blocks = [module.Memory.upload(on, x) for x in (*stored, c)]
    launch(*shape, *(block.pointer for block in blocks), stream)
    stream.synchronize()
    blocks[2].download(c)
    wanted = wanted.astype(dtype)
    return "" if np.array_equal(c, wanted) else f"{int((c != wanted).sum())} of {c.size} elements are wrong"


def main(name: str) -> int:
    count, bad = 0, []
    for said in families()[name]():
        count += 1
        if not said.endswith(": "):
            bad.append(said)
            print(said)
    print(f"{name}: {count} launches, {len(bad)} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
