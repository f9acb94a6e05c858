"""Devices, modules, launches, streams, graphs and memory on the fake driver of tests/doubles/fake_cuda.py."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

import tilewright as tw
from tests.doubles.fake_cuda import install, real
from tests.helpers.graphs import capture
from tilewright.compiler import artefact
from tilewright.ir import Kernel, f32, f64, i32, i64, ptr
from tilewright.lab.ladder.texture import LinearTexture
from tilewright.runtime.cuda import driver, module
from tilewright.runtime.cuda.module import Answers, handle_of
from tilewright.runtime.gpu import memory

TARGET = tw.target("sm_90a")


@pytest.fixture
def fake(monkeypatch):
    return install(monkeypatch)


def scaled(shared=0):
    """x[i] = alpha * x[i] + beta, one CTA of 32 threads; `shared` bytes of shared memory for nothing."""
    k = Kernel(f"scaled_{shared}", threads=32, n=i32, alpha=f32, beta=f64, x=ptr(f32), step=i64)
    n, alpha, beta, x, step = k.args
    t = k.thread[0]
    if shared:
        k.smem("unused", (shared // 4,), f32)[t] = 1.0
    with k.when(t < n):
        at = k.cast(t, i64) * step
        x[at] = alpha * x[at] + k.cast(beta, f32)
    return k.function


def loaded(shared=0):
    code = artefact.compiled(scaled(shared), TARGET)
    return module.Module(code.image).function(code.manifest)


def launch(kernel, args, stream=None):
    module.Prepared(kernel, (1,), args)(stream)


def run(kernel, fake, stream=None, n=5, alpha=2.0):
    x = np.arange(8, dtype=np.float32)
    launch(kernel, (n, alpha, 0.5, fake.array(x), 1), stream)
    return x


# ---- devices


def test_the_record_of_a_device(fake):
    target = module.target(0)
    assert (target.name, target.sms, target.clock, target.l2) == ("sm_90a", 132, 1.98e9, 60 << 20)
    assert target.bandwidth == pytest.approx(4.917e12, rel=1e-3)
    assert target.smem_cta == 227 << 10
    assert target.missing == ()
    assert target.runnable
    assert target.model == "NVIDIA fake H200"
    assert target.source("sms").startswith("driver")
    assert target.source("fma_f32").startswith("https://")
    assert tw.detect("cuda") == target
    assert target.code_key == TARGET.code_key


@pytest.mark.parametrize(("capability", "name", "chip", "fma_f64"), [
    ((7, 5), "sm_75", "", 2), ((8, 0), "sm_80", "", 32), ((8, 7), "sm_86", "sm_87", 2),
    ((10, 0), "sm_89", "sm_100", 64), ((12, 0), "sm_89", "sm_120", 2), ((12, 1), "sm_89", "sm_121", 2)])
def test_an_unknown_architecture_runs_what_an_older_one_does(fake, capability, name, chip, fma_f64):
    fake.attributes["COMPUTE_CAPABILITY_MAJOR"], fake.attributes["COMPUTE_CAPABILITY_MINOR"] = capability
    here = module.device(0)
    assert (here.target.name, here.target.chip, here.target.fma_f64) == (name, chip, fma_f64)
    assert here.runs(tw.target("sm_75"))
    assert not here.runs(TARGET)


def test_too_old(fake):
    fake.attributes["COMPUTE_CAPABILITY_MAJOR"] = 7
    with pytest.raises(module.Unavailable, match=r"compute capability 7\.0; tilewright needs 7\.5"):
        module.target()


def test_devices_are_counted(fake):
    assert module.available()
    assert module.count() == 1
    assert module.device(0) is module.device()
    for wrong in (1, -1):
        with pytest.raises(ValueError, match=f"no CUDA device {wrong}: this process sees 1"):
            module.device(wrong)


def test_what_detect_takes(fake):
    assert tw.detect() == tw.detect("cpu")
    with pytest.raises(ValueError, match=r"'cpu', 'nvidia' .*not 'gpu'"):
        tw.detect("gpu")


def test_no_cuda(monkeypatch, fake):
    fake.fail["cuInit"] = 100
    assert module.why_not() == (
        "CUDA cannot be used: CUDA_ERROR_NO_DEVICE (100): CUDA's words for CUDA_ERROR_NO_DEVICE [cuInit]"
    )
    with pytest.raises(module.Unavailable):
        tw.detect("cuda")
    fake.fail["cuInit"] = 3
    assert "forked" in module.why_not()
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    assert "pip install -e '.[cuda]' in the clone" in module.why_not()


# ---- contexts


def test_the_callers_context_stays(fake):
    kernel = loaded()
    assert fake.contexts == []
    run(kernel, fake)
    assert fake.contexts == []
    fake.contexts = [0x55]  # somebody else's
    run(kernel, fake)
    module.synchronize(module.device(), 0)
    assert fake.contexts == [0x55]
    fake.contexts = [0x70]  # the primary one is current already: nothing to push
    fake.log.clear()
    run(kernel, fake)
    assert "cuCtxPushCurrent" not in fake.names()


def test_the_context_comes_back_after_an_error(fake):
    kernel = loaded()
    fake.contexts = [0x55]
    fake.fail["cuLaunchKernelEx"] = 1
    with pytest.raises(module.CudaError):
        run(kernel, fake)
    assert fake.contexts == [0x55]


# ---- kernels


def test_a_launch(fake):
    x = run(loaded(), fake)
    assert x[0] == 0  # nothing has waited for it
    module.synchronize(module.device(), 0)
    np.testing.assert_array_equal(x, [0.5, 2.5, 4.5, 6.5, 8.5, 5, 6, 7])


def test_what_the_driver_counts(fake):
    kernel = loaded()
    assert (kernel.registers, kernel.shared, kernel.stack) == (40, 0, 0)
    assert [p.size for p in kernel.parameters] == [4, 4, 8, 8, 8]
    assert "40 registers, 0 bytes of shared memory" in repr(kernel)


def test_dynamic_shared_memory_is_asked_for_once(fake):
    code = artefact.compiled(scaled(64 << 10), TARGET)
    kernel = module.Module(code.image).function(code.manifest)
    for _ in range(2):
        launch(kernel, (0, 1.0, 1.0, fake.array(np.zeros(8, np.float32)), 1))
    assert fake.names().count("cuFuncSetAttribute") == 1
    with pytest.raises(module.CudaError, match=r"CUDA_ERROR_INVALID_VALUE.*scaled_65536"):
        module.Module(code.image).function(code.manifest | {"dynamic_shared": 300 << 10})


def test_arguments_are_counted(fake):
    with pytest.raises(TypeError, match=r"scaled_0 takes 5 arguments \(n, alpha, beta, x, step\), not 2"):
        launch(loaded(), (1, 2))


def test_numbers_of_any_kind(fake):
    """ctypes, NumPy and plain numbers; a negative one in two's complement."""
    import ctypes

    x = np.arange(8, dtype=np.float32)
    here = fake.array(x) + 4 * 7
    for n, alpha, beta in ((np.int32(3), np.float32(2), np.float64(1)), (ctypes.c_int(3), ctypes.c_float(1), 0.0)):
        launch(loaded(), (n, alpha, beta, here, -1), 0)
    module.synchronize(module.device(), 0)
    np.testing.assert_array_equal(x, [0, 1, 2, 3, 4, 11, 13, 15])


def test_bad_ptx_is_said_in_the_assemblers_words(fake):
    words = r"(?s)CUDA_ERROR_INVALID_PTX \(218\): CUDA's words.*kernel broken.*line 3; fatal.*Parsing error near 'bad'"
    with pytest.raises(module.CudaError, match=words):
        module.Module(b".visible .entry broken() bad")
    code = artefact.compiled(scaled(), TARGET)
    with pytest.raises(module.CudaError, match=r"CUDA_ERROR_NOT_FOUND.*kernel missing"):
        module.Module(code.image).function(code.manifest | {"symbol": "missing"})


def test_a_refused_launch_names_the_kernel_and_its_grid(fake):
    kernel = loaded()
    fake.fail["cuLaunchKernelEx"] = 701
    words = (
        r"(?s)CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES \(701\).*cuLaunchKernelEx, kernel scaled_0.*grid \(1, 1, 1\), CTAs of"
    )
    with pytest.raises(module.CudaError, match=words) as caught:
        run(kernel, fake)
    assert (caught.value.code, caught.value.name, caught.value.kernel) == (
        701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "scaled_0",
    )


def test_in_a_graph_a_kernel_begins_before_ours_has_ended_where_its_ctas_cannot_crowd(fake):
    alone = 120 << 10           # more than half of a multiprocessor's shared memory
    stream, x = module.Stream(), fake.array(np.zeros(1, np.float32))
    sms, args = stream.device.target.sms, (1, 1.0, 0.0, x, 1)
    with capture(stream):
        for shared, grid in (0, 1), (0, sms), (0, sms + 1), (alone, 10 * sms):
            module.Prepared(loaded(shared), (grid,), args)(stream)
        fake.give(stream.handle, lambda: None)  # another library's
        module.Prepared(loaded(), (1,), args)(stream)
    assert [attributes for _, attributes, _ in fake.nodes.values()] == [0, 1, 0, 1, 0]


def test_weights_are_read_before_our_last_kernel_has_ended_unless_it_may_write_there(fake):
    """`x` is what the kernel does not wait for; `y` is written."""
    def kernel(early):
        k = Kernel(f"adds_{early}", x=ptr(f32), y=ptr(f32), threads=32)
        x, y = k.args
        seen = k.load(x) if early else None
        if early:
            k.last_kernel("x")
        k.store(y, k.load(x) if seen is None else seen)
        return artefact.compiled(k.function, TARGET)
    early, other = (module.load(code.image).function(code.manifest) for code in map(kernel, (True, False)))
    stream, (weights, more, out, outs) = module.Stream(), (fake.array(np.zeros(1, np.float32)) for _ in range(4))
    grid = 9 * stream.device.target.sms                 # they are waited for by nobody
    given = [(other, more, out), (early, weights, outs), (early, more, weights), (early, weights, out),
             (early, weights, outs), (other, more, weights), (early, weights, out)]
    with capture(stream):
        for function, x, y in given:
            module.Prepared(function, (grid,), (x, y))(stream)
    assert [attributes for _, attributes, _ in fake.nodes.values()] == [0, 1, 1, 0, 1, 0, 0]
    text = kernel(True).text
    assert text.index("ld.global") < text.index("griddepcontrol.wait") < text.index("st.global")


@pytest.mark.parametrize(("target", "waits"), [("sm_89", 0), ("sm_90a", 1)])
def test_its_code_waits_for_the_last_kernel_first(target, waits):
    code = artefact.compiled(scaled(), tw.target(target))
    before, *after = code.text.split("griddepcontrol.wait;")
    assert (len(after), code.entry.overlaps) == (waits, waits)
    assert ("ld.global" in before, code.text.count("griddepcontrol.launch_dependents;")) == (not waits, waits)


def test_a_status_that_the_bindings_do_not_know(fake):
    assert "CUDA error 123456 (123456)" in str(driver.error(123456, "cuSomething"))


def test_code_is_loaded_once(fake):
    ptx = artefact.compiled(scaled(), TARGET).image
    assert module.load(ptx) is module.load(ptx)
    assert fake.names().count("cuModuleLoadDataEx") == 1


def test_modules_go_with_their_last_kernel(fake):
    kernel = loaded()
    assert len(fake.modules) == 1
    del kernel
    gc.collect()
    assert not fake.modules


# ---- streams, events, graphs


def test_streams_are_known_by_everybody_s_attributes(fake):
    class Torch:
        cuda_stream = 7

    class CuPy:
        ptr = 8

    class Core:
        def __cuda_stream__(self):
            return 0, 9

    assert [handle_of(x) for x in (None, 0, 5, Torch(), CuPy(), Core())] == [0, 0, 5, 7, 8, 9]
    stream = module.Stream()
    assert handle_of(stream) == stream.handle
    with pytest.raises(TypeError, match="stream must be a GPU's stream or its handle, not str"):
        handle_of("mine")


def test_a_stream_waits_for_itself_only(fake):
    kernel, first, second = loaded(), module.Stream(), module.Stream()
    x, y = run(kernel, fake, first), run(kernel, fake, second)
    first.synchronize()
    assert x[1] == 2.5
    assert y[1] == 1
    second.synchronize()
    assert y[1] == 2.5


def test_events_order_streams(fake):
    kernel, first, second = loaded(), module.Stream(), module.Stream()
    x = run(kernel, fake, first)
    module.Event().record(first).before(second)
    assert x[1] == 1
    second.synchronize()
    assert x[1] == 2.5


def test_events_tell_the_time(fake):
    kernel, stream, fake.takes = loaded(), module.Stream(), lambda function: 2.5
    start = module.Event().record(stream)
    run(kernel, fake, stream)
    end = module.Event().record(stream)
    end.synchronize()
    assert end.since(start) == 2.5e-3


def test_a_graph(fake):
    kernel, stream = loaded(), module.Stream()
    with capture(stream) as graph:
        assert Answers().is_capturing(stream.handle)
        x = run(kernel, fake, stream)
    assert not Answers().is_capturing(stream.handle)
    stream.synchronize()
    assert x[1] == 1
    for _ in range(2):
        graph.launch(stream)
    stream.synchronize()
    assert x[1] == 5.5
    del graph
    assert not fake.graphs


def test_a_failing_capture_leaves_the_stream_usable(fake):
    stream = module.Stream()
    with pytest.raises(KeyError), capture(stream):
        raise KeyError
    run(loaded(), fake, stream)
    stream.synchronize()
    assert len(fake.launches) == 1
    assert not fake.graphs


def test_waiting_for_a_stream_that_records_is_cudas_error(fake):
    stream = module.Stream()
    with capture(stream), pytest.raises(module.CudaError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        stream.synchronize()


def test_a_kernel_may_be_loaded_while_a_graph_is_recorded(fake):
    stream = module.Stream()
    with capture(stream) as graph:
        x = run(loaded(), fake, stream)
    graph.launch(stream)
    stream.synchronize()
    assert x[1] == 2.5
    assert fake.mode == real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL  # as it was


# ---- memory


def test_numpy_there_and_back(fake):
    x = np.arange(12.0).reshape(3, 4).T
    there, y = module.Memory.upload(module.device(), x), np.zeros((4, 3))
    there.download(y)
    np.testing.assert_array_equal(x, y)
    with pytest.raises(ValueError, match="C-contiguous"):
        there.download(y.T)
    there.free()
    there.free()
    del there
    assert not fake.blocks


def test_a_block_is_freed_by_hand_in_the_order_of_its_stream(fake):
    here, stream = module.device(), module.Stream()
    with module.Block(here, 64, stream.handle) as block:
        launch(loaded(), (0, 1.0, 1.0, block.pointer, 1), stream)
    assert not fake.blocks
    stream.synchronize()  # the fake raises if the kernel finds the block freed
    with pytest.raises(AssertionError, match="freed"):
        fake.alive(block.pointer)
    lost = module.Block(here, 64, stream.handle)
    del stream
    with pytest.warns(ResourceWarning, match="64 bytes on NVIDIA fake H200 were never freed"):
        del lost
    assert len(fake.blocks) == 1  # which is better than a crash


def test_what_another_driver_made_is_left_alone(fake, monkeypatch):
    """Its functions would follow the handles to anywhere."""
    kernel, stream = loaded(), module.Stream()
    kept = [kernel, stream, module.Event(), module.Memory(module.device(), 64), module.Block(module.device(), 64, 0)]
    other = install(monkeypatch)
    module.device()
    fake.log.clear()
    del kernel, stream
    kept.clear()
    gc.collect()
    assert not fake.log
    assert not {name for name in other.names() if "Destroy" in name or "Free" in name or "Unload" in name}


def space(stream, workspace, counters=0):
    return module.workspaces.get(module.device(), workspace, counters, handle_of(stream), Answers())


def test_a_space_per_stream(fake):
    fake.contexts = [0x70]
    first, second = module.Stream(), module.Stream()
    small = space(first, 100, 8)
    assert space(first, 80) is small
    assert small.counters % 256 == 0
    assert small.counters - small.workspace == 256
    assert space(second, 100) is not small
    large = space(first, 101)
    assert large is not small
    assert large.workspace_bytes == 200  # twice as much: what stays behind is less than this
    assert space(first, 200, 16) is large
    assert len(fake.blocks) == 3  # a kernel with the small one may be on its way
    first.synchronize()
    for zeros in (small, large):
        assert not fake.bytes_at(zeros.counters, zeros.counter_bytes).any()


def test_a_space_outlives_its_stream(fake, monkeypatch):
    monkeypatch.setattr(memory, "MOST_WORKSPACES", 4)
    fake.contexts = [0x70]
    stream = module.Stream()
    number = Answers().number(stream.handle)
    launched = space(stream, 100)
    launch(loaded(), (0, 1.0, 1.0, launched.workspace, 1), stream)
    address = launched.workspace
    del launched
    other = module.Stream()
    kept = space(other, 100)
    launch(loaded(), (0, 1.0, 1.0, kept.workspace, 1), other)
    del stream
    for _ in range(20):
        assert len(fake.blocks) <= 5
        space(module.Stream(), 100)  # streams that are gone before their space is
    assert number not in {key[1] for key in module.workspaces.found}
    with pytest.raises(AssertionError, match="freed"):
        fake.alive(address)
    assert len(fake.launches) == 2  # to free has waited for both; the fake raises if one finds its memory freed
    fake.alive(kept.workspace)  # forgotten, and in use all the same


def test_spaces_come_and_go_while_a_graph_is_recorded(fake, monkeypatch):
    monkeypatch.setattr(memory, "MOST_WORKSPACES", 1)
    fake.contexts = [0x70]
    stream, other = module.Stream(), module.Stream()
    with capture(stream):
        assert space(stream, 100) is None
        space(other, 100)
        space(module.Stream(), 100)
    assert len(fake.blocks) == 1


def test_what_a_graph_needs_is_recorded_with_it(fake):
    here, stream = module.device(), module.Stream()
    fake.fail["cuMemsetD32Async"] = 1
    with pytest.raises(module.CudaError):
        module.workspaces.recorded(here, 100, 4, stream.handle)
    assert not fake.blocks
    fake.fail.clear()
    with capture(stream):
        found = []
        for size in (4, 300, 4):
            block, counters = module.workspaces.recorded(here, 100, size, stream.handle)
            block.free()
            found.append(counters)
            assert not fake.bytes_at(counters, size).any()              # zeros already, and no other kernel's
        assert len(fake.blocks) == 1
    assert found[0] - found[1] == 512
    assert found[1] - found[2] == 256


def test_counters_in_a_graph_that_have_to_be_cleared(fake, monkeypatch):
    """Where no more of them are kept the graph clears its own."""
    monkeypatch.setattr(memory, "MOST_ZEROS", 0)
    here, stream = module.device(), module.Stream()
    with capture(stream) as graph:
        block, counters = module.workspaces.recorded(here, 100, 4, stream.handle)
        with block:
            assert counters - block.pointer == 256
    assert not fake.blocks
    graph.launch(stream)
    stream.synchronize()
    assert not fake.bytes_at(counters, 4).any()


def test_errors_of_functions_by_address(fake):
    answers = Answers()
    fake.contexts = [0x70]
    for name, ask in (("cuStreamGetId", answers.number), ("cuStreamIsCapturing", answers.is_capturing)):
        fake.fail[name] = 906
        with pytest.raises(module.CudaError, match=rf"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT \(906\).*\[{name}\]"):
            ask(1)


def test_textures(fake):
    here = module.device()
    texture = LinearTexture(here, 512 * 9, 1600)
    assert fake.textures[texture.handle] == (512 * 9, 1600)
    del texture
    assert not fake.textures
    for pointer, size, why in (
        (512 * 9 + 16, 1600, "a multiple of 512 bytes, and the array at 16 past one"),
        (512, 1604, "whole texels of 16 bytes, and the array has 1604"),
        (512, 0, "1 to 134217728 texels"),
        (512, 16 << 28, "1 to 134217728 texels"),
    ):
        with pytest.raises(ValueError, match=why):
            LinearTexture(here, pointer, size)


def test_threads_launch_at_once(fake):
    """Each with its own context stack in CUDA; here only that arguments do not get mixed up."""
    fake.contexts = [0x70]
    kernel = loaded()
    arrays = [np.zeros(32, np.float32) for _ in range(8)]
    addresses = [fake.array(x) for x in arrays]

    def work(i):
        for _ in range(5):
            launch(kernel, (32, 1.0, float(i), addresses[i], 1), None)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    module.synchronize(module.device(), 0)
    for i, x in enumerate(arrays):
        np.testing.assert_array_equal(x, 5.0 * i)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_asks_cuda_again(fake):
    """CUDA does not survive a fork: the child starts from cuInit, which tells it so."""
    module.device()
    fake.fail["cuInit"] = 3
    child = os.fork()
    if child == 0:
        os._exit(42 if "forked" in module.why_not() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert module.available()  # the parent goes on
