"""Training steps on several GPUs of one host, of a small Llama: torch's model, and the same with tilewright's layers.

    torchrun --standalone --nproc-per-node 2 examples/comparison/train_on_two.py [--json FILE]

by DDP and by FSDP2 (`fully_shard` of each layer and of the model), bf16, SGD, 4 sequences of 512 tokens for each GPU.
Steps of both models take turns; a median ratio above 1 means that tilewright's takes less time. Losses are compared.
"""
from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

import tilewright.torch as twt
from tilewright.lab.bench import results


def by_ddp(model: Any) -> Any:
    return DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])


def by_fsdp(model: Any) -> Any:
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def stepping(model: Any, tokens: torch.Tensor) -> Callable[[], torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> torch.Tensor:
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=25)
    asked = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_key_value_heads=16,
                         num_hidden_layers=4, vocab_size=32000)
    base = LlamaForCausalLM(config).to("cuda", torch.bfloat16).train()
    tokens = torch.randint(0, 32000, (4, 512), device="cuda")
    rows = {}
    for name, wrap in (("DDP", by_ddp), ("FSDP2", by_fsdp)):
        models = {"torch": wrap(copy.deepcopy(base)), "tilewright": wrap(twt.convert(copy.deepcopy(base), "float"))}
        steps = {who: stepping(model, tokens) for who, model in models.items()}
        losses = {who: [step().item() for _ in range(4)] for who, step in steps.items()}
        off = max(abs(x - y) for x, y in zip(*losses.values()))
        seconds: dict[str, list[float]] = {who: [] for who in steps}
        stop = torch.zeros(1, device="cuda")
        end = time.monotonic() + asked.seconds
        while not stop.item():                      # all ranks end in the same round
            for who, step in steps.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(5):
                    step()
                torch.cuda.synchronize()
                seconds[who].append((time.perf_counter() - start) / 5)
            stop.fill_(time.monotonic() > end)
            dist.all_reduce(stop, dist.ReduceOp.MAX)
        ratio = statistics.median(x / y for x, y in zip(seconds["torch"], seconds["tilewright"]))
        medians = {who: statistics.median(x) for who, x in seconds.items()}
        rows[name] = {"losses": losses, "seconds": medians, "ratio": ratio, "rounds": len(seconds["torch"])}
        if not rank:
            print(f"{name}: torch's time over tilewright's {ratio:.3f}, {medians}, losses differ by {off:.2g} at most",
                  flush=True)
        del models, steps
    if asked.json and not rank:
        results.write({"gpu": torch.cuda.get_device_name(), "gpus": dist.get_world_size(),
                       "torch": torch.__version__, "rows": rows}, asked.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
