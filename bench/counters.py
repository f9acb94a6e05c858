"""Hardware counters of small launches, for comparison with the simulator's counts.

    ncu --clock-control none --metrics $(python bench/counters.py metrics) --csv --page raw --log-file ncu.csv \
        python bench/counters.py launch
    python bench/counters.py read ncu.csv bench/results/counters_h100.json

A launch is one of `cases()`: a step of the GPU ladder or a product by the planner's choice, on sizes that the simulator
runs in a second. With `tensor` behind each command the launches are the ladder's steps on tensor cores, and there are a
few more counters (counters_tensor_h200.json). `read` writes one row per launch: what it was, and its counters by
`METRICS`. The files are what tests/simulator/test_counters.py holds the simulator against.
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


def read(source: str, target: str, found: list[Case], metrics: dict[str, str]) -> None:
    rows = ncu.rows(Path(source).read_text())
    if len(rows) != len(found):
        raise SystemExit(f"{len(rows)} launches in {source}, {len(found)} cases: {[r['Kernel Name'] for r in rows]}")
    out = [case | {"kernel": row["Kernel Name"]}
           | {name: int(float(row[metric].replace(",", ""))) for name, metric in metrics.items()}
           for case, row in zip(found, rows)]
    Path(target).write_text("[\n" + ",\n".join(json.dumps(row) for row in out) + "\n]\n")
    print(f"{len(out)} launches in {target}")


if __name__ == "__main__":
    tensor = sys.argv[-1] == "tensor"
    counted, metrics = cases(tensor), TENSOR_METRICS if tensor else METRICS
    match sys.argv[1]:
        case "metrics":
            print(",".join(metrics.values()))
        case "launch":
            launch(counted)
        case "read":
            results.check_tree(results.ALLOW_DIRTY in sys.argv)
            read(sys.argv[2], sys.argv[3], counted, metrics)
