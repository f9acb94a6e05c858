"""tilewright.torch on one NVIDIA GPU: what calls of operators cost, and a decode step, beside torch's.

    python bench/torch_device.py [host] [decode] [--quick] [--kinds int4 ...] [--layers N] [--batch N] [--compiled]
                                 [--out FILE]

host     What a call of an operator costs the host.
decode   A decode step with narrow weights beside torch's bf16: bench/decode_step.py. --compiled: what is not a product
         by torch.compile, in both.

That operators and layers are right there is checked by `python -m pytest tests/torch/test_on_cuda.py`.
"""
from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import nn

import tilewright as tw
import tilewright.torch as twt
from bench import decode_step
from bench.decode_step import BF16, KINDS
from tilewright.lab.bench import results, study
from tilewright.lab.bench.gpu_device import TorchDevice


def host(on: TorchDevice) -> dict[str, list[float]]:
    a, w, c = (torch.randn(n, 64, device="cuda", dtype=BF16) for n in (64, 64, 1))
    narrow = twt.convert(nn.Linear(1024, 512, device="cuda", dtype=BF16, bias=False), "int4")
    blocks = twt.convert(nn.Linear(1024, 512, device="cuda", dtype=BF16, bias=False), "mxfp4")
    plain = nn.Linear(1024, 512, device="cuda", dtype=BF16, bias=False)
    row = torch.randn(1, 1024, device="cuda", dtype=BF16)
    t, out = w.t(), torch.empty(64, 64, device="cuda", dtype=BF16)
    with torch.no_grad():
        return study.host_cost({
            "torch.mm": partial(torch.mm, a, t), "tw.matmul": partial(tw.matmul, a, t),
            "tw.matmul with out": partial(tw.matmul, a, t, out), "mm": partial(twt.mm, a, t),
            "F.linear": partial(F.linear, a, w, c[0]), "linear": partial(twt.linear, a, w, c[0]),
            "nn.Linear": partial(plain, row), "int4 layer": partial(narrow, row),
            "mxfp4 layer": partial(blocks, row)}, on.wait)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", nargs="*", default=["host", "decode"], choices=["host", "decode"])
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="what is not a product by torch.compile")


def main() -> int:
    options = study.parsed(__doc__ or "", "torch_device.json", arguments)
    on = TorchDevice()
    report = results.Report.start("torch")
    report.machine["gpu"] = on.describe()
    failed = False
    if "host" in options.jobs:
        report.extra["host"] = costs = {name: list(seconds) for name, seconds in host(on).items()}
        for name, seconds in costs.items():
            print(f"host: {name:18} {statistics.median(seconds)*1e6:6.1f} us", flush=True)
        results.save(report, options.out)
    if "decode" in options.jobs:
        for kind, found in zip(options.kinds, decode_step.decode(
                on, options.layers, options.batch, study.gpu_rules(options.quick), options.kinds, options.compiled)):
            print(decode_step.described(found, kind), flush=True)
            report.extra["decode"] = found
            results.save(report, options.out)
            failed |= bool(found["failed"])
    results.save(report, options.out)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
