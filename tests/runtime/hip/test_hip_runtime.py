"""Devices, code objects, launches, streams, events and memory on the fake HIP of tests/doubles/fake_hip.py."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tilewright as tw
from tests.doubles import real_hip
from tests.doubles.fake_hip import ENUMS, SIGNATURES, hipError_t, install
from tests.helpers import code_object
from tilewright.compiler import amd
from tilewright.ir import Kernel, f32, f64, i32, i64, ptr
from tilewright.lab.measure.gpu_rules import Events, GpuRules
from tilewright.lab.measure.measure import interleave
from tilewright.runtime.hip import driver, module as hip

TARGET = tw.target("gfx942")


def recorded():
    """x[i step] = alpha * x[i step] + beta for i < n, one workgroup of 64."""
    k = Kernel("scaled", threads=64, warp=64, n=i32, alpha=f32, beta=f64, x=ptr(f32), step=i64)
    n, alpha, beta, x, step = k.args
    t = k.thread[0]
    with k.when(t < n):
        at = k.cast(t, i64) * step
        x[at] = alpha * x[at] + k.cast(beta, f32)
    return k.function


SCALED = recorded()
MANIFEST = amd.manifest(SCALED, TARGET)


@pytest.fixture(params=["fake", "hip-python"])
def fake(request, monkeypatch):
    """HIP without a GPU: behind a fake module, and behind hip-python itself where that is installed."""
    fake = install(monkeypatch)
    if request.param == "hip-python":
        real_hip.install(monkeypatch, fake)
    return fake


@pytest.fixture(scope="module")
def image():
    return code_object.of(SCALED, TARGET)


@pytest.fixture
def kernel(fake, image):
    return hip.Module(image).function(MANIFEST)


# ---- devices


@pytest.mark.parametrize("version", ["10", "7", "what is installed"])
def test_the_record_of_a_device(monkeypatch, version):
    fake = install(monkeypatch, old=version == "7")
    if version == "what is installed":
        real_hip.install(monkeypatch, fake)
    fake.attributes["MultiprocessorCount"] = 80
    here = hip.device(0)
    assert (here.arch, here.name, here.memory) == ("gfx942", "AMD Instinct MI300X", 192 << 30)
    assert (here.target.name, here.target.cus, here.target.clock) == ("gfx942", 80, 2.1e9)
    assert here.target.runnable
    assert here.target.source("cus").startswith("HIP")
    assert here.target.source("lds").startswith("https://")
    assert not tw.target("gfx942").runnable
    assert hip.device(0) is here
    with pytest.raises(ValueError, match="there is no AMD GPU 1: this process sees 1"):
        hip.device(1)


def test_an_architecture_without_kernels(monkeypatch):
    install(monkeypatch, arch="gfx1100")
    with pytest.raises(hip.Unavailable, match="gfx1100; tilewright has kernels for gfx942, gfx950"):
        hip.device(0).target  # noqa: B018


def test_without_hip_python(monkeypatch):
    monkeypatch.setattr(driver.library, "loaded", None)
    monkeypatch.setitem(sys.modules, "hip", None)
    assert not hip.available()
    assert "pip install -e '.[rocm]' in the clone" in hip.why_not()
    with pytest.raises(hip.Unavailable):
        hip.device()


def test_without_rocm(monkeypatch):
    fake = install(monkeypatch)

    def missing(flags):
        raise RuntimeError("failed to dlopen libamdhip64.so")

    fake.hipInit = missing
    assert hip.why_not() == "there is no ROCm on this machine: failed to dlopen libamdhip64.so"


def test_without_a_gpu(fake):
    fake.devices = 0
    assert hip.why_not().startswith("hipErrorNoDevice (100)")


# ---- launches


def test_a_launch(fake, kernel):
    x = np.arange(8, dtype=np.float32)
    launch = hip.Prepared(kernel, (1,), (5, 2.0, 0.5, fake.array(x), 1))
    launch()
    assert fake.launches == []  # nobody has waited
    fake.run(0)
    assert x.tolist() == [0.5, 2.5, 4.5, 6.5, 8.5, 5, 6, 7]
    assert fake.launches == [("scaled", (1, 1, 1), 0)]
    assert (kernel.shared, kernel.stack) == (0, 0)
    assert kernel.registers > 1


def test_numpy_numbers_and_memory_as_arguments(fake, kernel):
    x = np.arange(4, dtype=np.float32)
    memory, stream = hip.Memory.upload(kernel.device, x), hip.Stream()
    hip.Prepared(kernel, (1,), (np.int32(4), np.float32(-1), np.float64(0), memory, np.int64(1)))(stream)
    got = np.empty_like(x)
    memory.download(got)
    assert got.tolist() == x.tolist()  # the copy is the default stream's, which does not wait for ours
    stream.synchronize()
    memory.download(got)
    assert got.tolist() == (-x).tolist()


@pytest.mark.parametrize(("args", "says"), [
    ((1, 2.0), r"takes 5 arguments \(n, alpha, beta, x, step\), not 2"),
    ((1.5, 2.0, 0.0, 4096, 1), "n is i32, and 1.5"),
    ((1 << 40, 2.0, 0.0, 4096, 1), "n is i32, and 1099511627776"),
    ((1, 2.0, 0.0, -4, 1), "x is ptr, and -4"),
])
def test_wrong_arguments(kernel, args, says):
    with pytest.raises(TypeError, match=says):
        hip.Prepared(kernel, (1,), args)


def test_a_manifest_of_another_kernel(fake, image):
    module = hip.Module(image)
    with pytest.raises(hip.HipError, match=r"hipErrorNotFound \(500\).*\[hipModuleGetFunction, kernel other\]"):
        module.function(MANIFEST | {"symbol": "other"})
    with pytest.raises(ValueError, match="workgroups of 256 threads, the code at most 64"):
        module.function(MANIFEST | {"workgroup": 256, "shape": [256, 1, 1]})


def test_code_of_another_architecture(monkeypatch, image):
    install(monkeypatch, arch="gfx950")
    with pytest.raises(hip.HipError, match=r"hipErrorNoBinaryForGpu.*\n.*gfx950"):
        hip.Module(image)
    with pytest.raises(ValueError, match="a linked code object: an ELF file"):
        hip.Module(b"no code")


def test_a_refused_launch_leaves_no_error_for_others(fake, kernel):
    with pytest.raises(hip.HipError) as refused:
        hip.Prepared(kernel, (0,), (1, 1.0, 0.0, 4096, 1))()
    assert refused.value.name == "hipErrorInvalidConfiguration"
    assert refused.value.kernel == "scaled"
    assert "grid (0, 1, 1), CTAs of (64, 1) threads" in str(refused.value)
    assert "a text of HIP's [" in str(refused.value)  # and nothing behind its end
    assert fake.hipGetLastError() == (hipError_t.hipSuccess,)


def test_another_device_is_current(monkeypatch, image):
    fake = install(monkeypatch, devices=2)
    kernel = hip.Module(image, hip.device(1)).function(MANIFEST)
    stream = hip.Stream(hip.device(1))
    x = np.ones(2, np.float32)
    assert fake.current == 0
    hip.Prepared(kernel, (1,), (2, 3.0, 0.0, fake.array(x), 1))(stream)
    start = hip.Event(hip.device(1)).record(stream)
    start.synchronize()
    assert (x.tolist(), fake.current) == ([3, 3], 0)


# ---- time and lifetime


def test_seconds(fake, kernel):
    x = np.ones(1, np.float32)
    stream = hip.Stream()
    launch = hip.Prepared(kernel, (1,), (1, 1.0, 0.0, fake.array(x), 1))
    rules = GpuRules(turn_s=0.01, warm_s=0.0, min_rounds=3, max_rounds=3)
    found = interleave({"": [(launch, (stream,))]}, rules, track=Events(stream).track)
    assert found[""].seconds == pytest.approx([1e-3] * 3)
    assert found[""].reps == 10  # fill 10 ms
    assert len(fake.launches) == 1 + 1 + 10 + 3 * 20  # to warm up, to see how many fill a turn, and how long these take
    assert {stream for _, _, stream in fake.launches} == {stream.handle}


def test_memory_goes_with_its_owner(fake):
    memory = hip.Memory.upload(hip.device(), np.ones(3))
    assert len(fake.blocks) == 1
    with pytest.raises(ValueError, match="has 32 bytes, and the memory 24"):
        memory.download(np.ones(4))
    with pytest.raises(ValueError, match="C-contiguous"):
        memory.download(np.ones(6)[::2])
    del memory
    assert not fake.blocks
    empty = hip.Memory.upload(hip.device(), np.ones(0))
    empty.download(np.ones(0))
    del empty
    assert fake.names().count("hipFree") == 1


def test_handles_are_destroyed_once(fake, kernel):
    stream, event = hip.Stream(), hip.Event()
    event.record(stream)
    del event, stream, kernel
    assert (fake.names().count("hipEventDestroy"), fake.names().count("hipStreamDestroy")) == (1, 1)


def test_the_fake_has_the_signatures_of_hip_python():
    real = real_hip.module()
    for name, parameters in SIGNATURES.items():
        shown = getattr(real, name).__doc__.partition("\n")[0]
        assert shown.startswith(f"{name}(")
        inside = shown.rpartition(")")[0].partition("(")[2]
        assert [x.split()[-1] for x in inside.split(", ") if x] == parameters.split()
    for ours in ENUMS:
        theirs = getattr(real, ours.__name__)
        assert {name: int(theirs[name]) for name in ours.__members__} == {m.name: int(m) for m in ours}
