"""How good the planner's choices are on plans that have been measured: python bench/regret.py [-v].

For each case of bench/results/h200_plans.json the planner's first choice among the measured plans, beside the best of
them; 1.0 is no regret. What to look at when a constant of plans/nvidia_model.py changes: no GPU
is needed. -v lists every plan.
Measured plans of a kind that is given up (the text of one is no plan any more) are left out, and counted in the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import geometric_mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tilewright as tw
from tilewright.plans.gpu import ALGORITHMS
from tilewright.plans.nvidia import NvidiaPlan, choose, cost, shape_of
from tilewright.targets import target

MEASURED = Path(__file__).resolve().parent / "results" / "h200_plans.json"


def main(verbose: bool = False) -> None:
    measured = json.loads(MEASURED.read_text())
    on, kept, skipped = target(measured["target"]), [], 0
    for case, ratios in measured["cases"].items():
        sizes, layout, dtype, algorithm = (*case.split(":"), "", "")[:4]        # dtype and algorithm where they are not
        m, n, k = map(int, sizes.split("x"))                                    # f32 and native
        shape = shape_of(tw.Gemm(m, n, k, *filter(None, dtype.split("-")), layout=layout))
        shape = shape._replace(terms=ALGORITHMS[algorithm]) if algorithm else shape
        plans = readable(ratios)
        skipped += len(ratios) - len(plans)
        offered = {text: ratios[text] for text in plans}
        predicted = {text: cost(shape, plan, on).seconds for text, plan in plans.items()}
        choice = choose(shape, on)
        chosen = next((text for text, plan in plans.items() if plan == choice), "")
        first = chosen or min(predicted, key=lambda text: predicted[text])
        best = max(offered, key=lambda text: offered[text])
        kept.append(offered[first] / offered[best])
        unmeasured = "" if chosen else " (its own choice was not measured)"
        print(f"{case:22} {kept[-1]:.3f}  chosen {offered[first]:.3f}{unmeasured}  best {offered[best]:.3f} by {best}")
        if verbose:
            for text in sorted(offered, key=lambda text: predicted[text]):
                print(f"    {offered[text]:.3f}  predicted {predicted[text] * 1e6:7.1f} us  {text}")
    print(f"geometric mean over {len(kept)} cases: {geometric_mean(kept):.3f}, least {min(kept):.3f}")
    if skipped:
        print(f"left out: {skipped} measurements of plans that cannot be read any more")


def readable(texts: Iterable[str]) -> dict[str, NvidiaPlan]:
    """Those that are plans still, parsed."""
    found = {}
    for text in texts:
        with suppress(ValueError):
            found[text] = NvidiaPlan.parse(text)
    return found


if __name__ == "__main__":
    main("-v" in sys.argv[1:])
