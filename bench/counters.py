"""Hardware counters of an NVIDIA GPU, which the simulator's counts and the model's are compared with.

    ncu --clock-control none --metrics $(python bench/counters.py metrics) --csv --page raw \
        --log-file ncu.csv python bench/counters.py launch
    python bench/counters.py read ncu.csv bench/results/counters_h200.json
    python bench/counters.py explain bench/results/explain_h200.json

The launches are steps of the GPU ladder and products by the planner's choice, on sizes that the simulator runs in a
second; `read` writes a row for each: what it was, and its counters by `METRICS`. With `tensor` behind each of the first
commands they are the ladder's steps on tensor cores, with a few more counters (counters_tensor_h200.json). With
`patterns` (shared_patterns.json) each is a warp that makes one load and one store of shared memory, at the
addresses of a row of that file. `explain` measures the products of EXPLAINED as `tilewright explain --simulate
--measure` does. tests/simulator/test_counters.py and tests/lab/explanation compare.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from tilewright.lab.bench import results
from tilewright.lab.measure import ncu

# our name → Nsight Compute's, each summed over the chip
METRICS = {
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "shared_load_instructions": "smsp__inst_executed_op_shared_ld.sum",
    "shared_store_instructions": "smsp__inst_executed_op_shared_st.sum",
    "ffma": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "dfma": "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum",
}

TENSOR_METRICS = METRICS | {
    "tensor_instructions": "sm__inst_executed_pipe_tensor.sum",
    "ldmatrix": "smsp__inst_executed_op_ldsm.sum",
    "cp_async": "smsp__inst_executed_op_ldgsts.sum",
    "l2_sectors": "l1tex__m_xbar2l1tex_read_sectors.sum",
}

# f32 into f32 unless a format is named
EXPLAINED: dict[str, Any] = {"f32 4096": (4096, 4096, 4096), "bf16 4096": (4096, 4096, 4096, "bf16"),
             "bf16 8 x 4096": (8, 4096, 4096, "bf16"), "f32 1 x 4096": (1, 4096, 4096), "f32 2039": (2039, 2039, 2039)}
PATTERNS = Path(__file__).resolve().parent / "results/shared_patterns.json"
PASSES = {name: METRICS[name] for name in ("shared_load_wavefronts", "shared_store_wavefronts")}
LAYOUTS = ("nn", "nt", "tn", "tt")

Case = dict[str, Any]


def cases(tensor: bool) -> list[Case]:
    """Launches, as data: {"step", "sizes"} of the ladder, or {"dtype", "layout", "sizes", "plan"} of a product."""
    from tilewright.lab.ladder.steps import GPU_STEPS, TENSOR_STEPS

    if tensor:
        return [{"step": step, "sizes": (256, 256, 256)} for step in TENSOR_STEPS]
    found: list[Case] = [{"step": step, "sizes": sizes} for step in GPU_STEPS
                         for sizes in ((128, 256, 16), (132, 140, 24))]
    products = [("f32", layout, sizes, None) for layout in LAYOUTS for sizes in ((128, 128, 64), (97, 131, 35))]
    large = (256, 256, 32), (128, 260, 24), (140, 256, 24), (256, 128, 16)
    products += [("f32", layout, sizes, "4096") for layout, sizes in zip(LAYOUTS, large)]
    products += [("f32", "nt", (129, 67, 130), "split_k=5"), ("f32", "tn", (128, 128, 128), "split_k=4")]
    products += [("f64", layout, (66, 72, 40), None) for layout in ("nn", "tn")]
    products += [("f32", "nn", sizes, None) for sizes in ((1, 300, 200), (300, 1, 200))]
    return found + [dict(zip(("dtype", "layout", "sizes", "plan"), product)) for product in products]


def plan_of(case: Case, problem: Any, target: Any) -> Any:
    """The planner's choice for these sizes, or for 4096 x 4096 x 4096, or with as many parts of k as the case says."""
    import dataclasses

    import tilewright as tw

    plan: Any = tw.plan(problem, target)
    if case["plan"] == "4096":
        large = tw.Gemm(4096, 4096, 4096, case["dtype"], layout=case["layout"])
        plan = dataclasses.replace(tw.plan(large, target), vector=plan.vector)
    elif case["plan"]:
        name, _, value = case["plan"].partition("=")
        plan = dataclasses.replace(plan, **{name: int(value)})
    return plan


def operands(m: int, n: int, k: int, dtype: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(m + n + k)
    kind = "f" if dtype == "f32" else "d"
    return rng.integers(-3, 4, (m, k)).astype(kind), rng.integers(-3, 4, (k, n)).astype(kind)


def launch(found: list[Case]) -> None:
    import tilewright as tw
    from tilewright import formats
    from tilewright.lab.ladder import run_nvidia, steps
    from tilewright.runtime.cuda import module

    on, stream = module.device(), module.Stream()
    for case in found:
        m, n, k = case["sizes"]
        a, b = operands(m, n, k, case.get("dtype", "f32"))
        if "step" in case:
            tensor = case["step"] in steps.TENSOR_STEPS             # which multiply bf16, by B^T
            dtype = formats.get("bf16").dtype if tensor else a.dtype
            c = np.zeros((m, n), dtype)
            given = a.astype(dtype), np.ascontiguousarray(b.T if tensor else b).astype(dtype), c
            blocks = [module.Memory.upload(on, x) for x in given]
            where = [at for x, block in zip(given, blocks) for at in (block.pointer, x.shape[1])]
            run_nvidia.prepare(case["step"], m, n, k, *where)(stream.handle)
            stream.synchronize()
            blocks[2].download(c)
        else:
            problem = tw.Gemm(m, n, k, case["dtype"], layout=case["layout"])
            kernel: Any = tw.compile(problem, module.target(), plan_of(case, problem, module.target()))
            c = kernel(*(np.asfortranarray(x) if letter == "t" else x for x, letter in zip((a, b), case["layout"])))
        assert np.array_equal(c, (a.astype("d") @ b).astype(c.dtype)), case


def access(width: int) -> Any:
    """One load and one store of `width` words of shared memory by each lane that has a word in `where`, after a store
    and before a load that take one pass."""
    from tilewright.ir import Kernel, f32, i32, ptr, vec

    T: Any = vec(f32, width) if width > 1 else f32
    k = Kernel(f"access_{width}", threads=32, where=ptr(i32), y=ptr(f32))
    where, y = k.args
    words, t = k.smem("words", (8192,), f32), k.thread[0]
    word = where[t]
    words[t] = y[t]
    k.barrier()
    with k.when(word >= 0):
        k.store(y.at(t * width), k.load(words.at(word), T, 4 * width), 4)
    k.barrier()
    with k.when(word >= 0):
        k.store(words.at(word), k.load(y.at(t * width), T, 4), 4 * width)
    k.barrier()
    y[t] = words[t]
    return k.function


def patterns() -> list[list[int]]:
    """[bytes of a lane, passes of the load, of the store, first word of each lane or -1 where it is inactive]"""
    return [[int(x) for x in row.split()] for row in json.loads(PATTERNS.read_text())["patterns"]]


def launch_patterns() -> None:
    from tilewright.compiler import artefact
    from tilewright.runtime.cuda import module

    on, stream = module.device(), module.Stream()
    y, functions = module.Memory.upload(on, np.ones(4096, np.float32)), {}
    for width in (1, 2, 4):
        code = artefact.compiled(access(width), on.target)
        functions[4 * width] = module.load(code.image, on).function(code.manifest)
    for size, _, _, *words in patterns():
        where = module.Memory.upload(on, np.array(words, np.int32))
        module.Prepared(functions[size], (1, 1, 1), (where.pointer, y.pointer))(stream.handle)
        stream.synchronize()


def metrics(kind: str) -> dict[str, str]:
    return {"tensor": TENSOR_METRICS, "patterns": PASSES}.get(kind, METRICS)


def read(source: str, target: str, kind: str) -> None:
    from tilewright.runtime.cuda import module

    counted = [{name: int(float(row[metric].replace(",", ""))) for name, metric in metrics(kind).items()}
               | {"kernel": row["Kernel Name"]} for row in ncu.rows(Path(source).read_text())]
    asked: list[Any] = patterns() if kind == "patterns" else cases(kind == "tensor")
    if len(counted) != len(asked):
        raise SystemExit(f"{len(counted)} launches in {source}, {len(asked)} cases: {[x['kernel'] for x in counted]}")
    if kind == "patterns":
        rows = {"patterns": [" ".join(map(str, (size, *(x[name] - 1 for name in PASSES), *words)))
                             for (size, _, _, *words), x in zip(asked, counted)]}
    else:
        rows = {"launches": [case | x for case, x in zip(asked, counted)]}
    results.write({"gpu": module.device().name, **rows}, Path(target))
    print(f"{len(counted)} launches in {target}")


def explain(target: str) -> None:
    import tilewright as tw
    from tilewright.runtime.cuda import module

    found = {name: tw.explain(tw.Gemm(*sizes, out="f32"), module.target(), measure=True, simulate=True).record()
             for name, sizes in EXPLAINED.items()}
    results.write({"gpu": module.device().name, "cases": found}, Path(target))


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    kind = words[-1] if words[-1:] in (["tensor"], ["patterns"]) else ""
    if what in ("read", "explain"):
        results.check_tree(results.ALLOW_DIRTY in words)
    match what:
        case "metrics":
            print(",".join(metrics(kind).values()))
        case "launch":
            launch_patterns() if kind == "patterns" else launch(cases(kind == "tensor"))
        case "read":
            read(words[0], words[1], kind)
        case "explain":
            explain(words[0])
