"""Steps of the GPU ladder in the article's sweep, on the fake driver and torch's CPU tensors."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.doubles.fake_cuda import install
from tests.helpers.command_line import call
from tilewright import targets
from tilewright.lab.bench import gpu_device, peer, session
from tilewright.lab.bench.cases import GPU, Case, Job
from tilewright.lab.bench.results import Result
from tilewright.lab.ladder import run_nvidia
from tilewright.lab.measure import gpu_rules, gpu_state
from tilewright.lab.measure.gpu_rules import GpuRules
from tilewright.lab.measure.gpu_state import Reading
from tilewright.problem import Gemm

STEPS = {"texture": "11 texture", "dispatch": "13 dispatch"}


class Device:
    """TorchDevice: tensors are the CPU's, launches the fake driver's, which runs them when somebody looks."""

    def __init__(self, torch, fake):
        self.torch, self.fake, self.name, self.bus_id = torch, fake, "cpu", None
        self.on = SimpleNamespace(target=targets.target("sm_90a"), name="a fake GPU")

    def wait(self):
        self.fake.run(0)

    def mark(self):
        self.wait()
        return self.fake.clock / 1e3

    def seconds(self, start, end):
        return end - start

    def describe(self):
        return {"name": "a fake GPU", "target": "sm_90a"}


class Meter:
    name = "a meter"

    def read(self):
        return Reading(0.0, sm_mhz=1755.0, watts=650.0, mask=4)

    def describe(self):
        return {"max_sm_mhz": 1980}

    def close(self):
        pass


def test_steps_are_timed_by_the_article_s_protocol_with_watts_and_clocks(monkeypatch):
    torch = pytest.importorskip("torch")
    fake, known, prepare = install(monkeypatch), {}, run_nvidia.prepare
    real = gpu_device.make

    def make(on, problem, gap=0):
        made = real(on, problem, gap)
        known.update({x.data_ptr(): fake.array(x.numpy()) for x in (made.a, made.b, made.c)})
        return made

    monkeypatch.setattr(gpu_device, "make", make)
    monkeypatch.setattr(gpu_device, "sets", lambda size, l2: 1)
    monkeypatch.setattr(gpu_device, "TorchDevice", lambda index: Device(torch, fake))
    monkeypatch.setattr(gpu_rules, "replays", lambda n: 2)
    monkeypatch.setattr(gpu_state, "find", lambda bus: (Meter(), ""))
    monkeypatch.setattr(peer, "find", lambda *_: ([], {"triton": "not here"}))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(run_nvidia, "prepare",
                        lambda name, *numbers: prepare(name, *(known.get(x, x) for x in numbers)))
    case, events = Case("sweep", Gemm(4, 8, 8)), []
    job = Job(1, "native", [case], GpuRules(watch_s=0.0), GPU, steps=[*STEPS])
    session.work(job, lambda event, **said: events.append({"event": event, **said}))
    found = {x["event"]: x for x in json.loads(json.dumps(events))}
    result = Result.from_json(found["result"]["result"])
    assert [(row.name, row.error) for row in result.rows] == [(title, None) for title in STEPS.values()]
    for row in result.rows:
        assert row.sample.spread.median == pytest.approx(1e-3)
        assert (row.gpu["watts"], row.gpu["sm_mhz"], row.gpu["held_back"]) == (650.0, 1755.0, {"power cap": 1.0})
    assert {name for name, _, _ in fake.launches} == {"gpu11_texture"}
    assert "clocks" in found


def test_a_step_that_there_is_not_is_refused_before_a_gpu_is_looked_for():
    said = call("bench", "gpu", "--step", "pie")
    assert said.exit_code != 0
    assert "there is no step 'pie' of the GPU ladder; the steps are naive, " in f"{said.output}{said.exception}"
