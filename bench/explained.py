"""Explanations with what an NVIDIA GPU's counters say beside the model and the simulator, and a picture of one.

    python bench/explained.py measure bench/results/explain_h200.json      on the machine with the GPU, with ncu
    python bench/explained.py table bench/results/explain_h200.json
    python bench/explained.py picture bench/results/explain_h200.json docs/explain.svg
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tilewright as tw
from tilewright.lab.bench import results
from tilewright.text import aligned

CASES = {
    "f32 4096": tw.Gemm(4096, 4096, 4096),
    "bf16 4096": tw.Gemm(4096, 4096, 4096, "bf16"),
    "bf16 8 x 4096": tw.Gemm(8, 4096, 4096, "bf16"),
    "f32 1 x 4096": tw.Gemm(1, 4096, 4096),
    "f32 2039": tw.Gemm(2039, 2039, 2039),
}
DRAWN = "bf16 4096"


def measure(path: Path) -> None:
    """Every case, written after each."""
    from tilewright.runtime.gpu.engine import first_device

    target = first_device(tw.target("sm_90a"))[1].target
    found: dict[str, Any] = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "gpu": target.model,
                             "driver": target.driver, "tilewright": tw.__version__, "cases": {}}
    for name, problem in CASES.items():
        explained = tw.explain(problem, target, simulate=True, measure=True)
        found["cases"][name] = explained.record()
        results.write(found, path)
        print(explained, flush=True)


def table(path: Path) -> str:
    """A row for each case and level."""
    rows = [["case", "level", "predicted", "simulated", "moved", "measured", "of moved", "time, us", "of predicted"]]
    for name, record in json.loads(path.read_text())["cases"].items():
        explained = tw.Explanation.of_record(record)
        time = explained.time
        assert time is not None
        assert time.measured is not None
        for number, level in enumerate(explained.levels):
            counted = level.moved or level.simulated
            rows.append([name * (not number), level.name, *(_count(x) for x in (
                level.predicted, level.simulated, level.moved, level.measured)),
                f"{level.measured / counted:.3f}" if level.measured and counted else "",
                *((f"{time.measured.median * 1e6:.1f}", f"{time.measured.median / time.predicted:.3f}")
                  if not number else ("", ""))])
    return aligned(rows, range(2, 9))


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def picture(path: Path) -> str:
    return tw.Explanation.of_record(json.loads(path.read_text())["cases"][DRAWN]).svg()


if __name__ == "__main__":
    source = Path(sys.argv[2])
    match sys.argv[1]:
        case "measure":
            results.check_tree(results.ALLOW_DIRTY in sys.argv)
            measure(source)
        case "table":
            print(table(source))
        case "picture":
            Path(sys.argv[3]).write_text(picture(source))
