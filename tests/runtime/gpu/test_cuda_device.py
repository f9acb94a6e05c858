"""The CUDA runtime on a real GPU, with the libraries that are installed. Without one, every test here is skipped.

The kernels are those of tests/helpers/plain_gemm.py: what is tested is how arrays, streams, graphs and errors travel.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tilewright as tw
from tests.helpers import processes
from tests.helpers.graphs import capture
from tests.helpers.plain_gemm import Compiled, Split
from tilewright.compiler import artefact
from tilewright.ir import Kernel, Texture, f32, i32, ptr
from tilewright.lab.ladder.texture import LinearTexture
from tilewright.runtime import repeats
from tilewright.runtime.cuda import module as cuda
from tilewright.runtime.cuda.driver import call
from tilewright.runtime.gpu import engine, memory
from tilewright.runtime.gpu.engine import NVIDIA

if not cuda.available():
    pytest.skip(f"needs a CUDA device: {cuda.why_not()}", allow_module_level=True)


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(engine.NVIDIA, "compile", Compiled)
    engine.NVIDIA.forget()
    yield
    engine.NVIDIA.forget()


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return found


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def integers(*shape, dtype="f4", seed=0):
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


A, B = integers(70, 50), integers(50, 90, seed=1)


# ---- devices and kernels


def test_the_record_of_this_device():
    target = tw.detect("cuda")
    print(f"\n{target}\n", *(f"{name}: {why}\n" for name, why in target.sources))
    assert target.runnable
    assert target.sms > 0
    assert 1e8 < target.clock < 1e10
    assert 1e10 < target.bandwidth < 1e14
    assert 48 << 10 <= target.smem_cta < target.smem_sm


def test_the_record_agrees_with_torch(torch):
    properties = torch.cuda.get_device_properties(0)
    target = cuda.target(0)
    assert target.sms == properties.multi_processor_count
    assert target.l2 == properties.L2_cache_size
    assert target.capability == (properties.major, properties.minor)
    assert target.model == properties.name


def loaded(function):
    """The kernel of a recorded function on the first device."""
    code = artefact.compiled(function, cuda.target())
    return cuda.Module(code.image).function(code.manifest)


def scaled(shared=0):
    k = Kernel(f"scaled_{shared}", threads=128, n=i32, alpha=f32, x=ptr(f32))
    n, alpha, x = k.args
    t = k.block[0] * 128 + k.thread[0]
    if shared:
        s = k.smem("s", (shared // 4,), f32)
        s[k.thread[0] + (shared // 4 - 128)] = 1.0
        k.barrier()
        alpha = alpha * s[k.thread[0] + (shared // 4 - 128)]
    with k.when(t < n):
        x[t] = alpha * x[t]
    return k.function


@pytest.mark.parametrize("shared", [0, 4096, 64 << 10])
def test_a_kernel(torch, shared):
    function = scaled(shared)
    kernel = loaded(function)
    print(f"\n{kernel}")
    assert [p.size for p in kernel.parameters] == [4, 4, 8]
    assert 0 < kernel.registers < 64
    assert kernel.stack == 0
    x = torch.arange(1000, dtype=torch.float32, device="cuda")
    dynamic = shared if shared > 48 << 10 else 0
    assert kernel.shared == shared - dynamic
    cuda.Prepared(kernel, (8,), (1000, 2.0, x.data_ptr()))(torch.cuda.current_stream())
    assert torch.equal(x, 2 * torch.arange(1000, device="cuda"))


def test_a_cubin(torch):
    from tilewright.compiler import ptxas

    function = scaled()
    code = artefact.compiled(function, cuda.target())
    cubin, usage = ptxas.assemble(code.text, cuda.target().name)
    kernel = cuda.Module(cubin).function(code.manifest)
    assert kernel.registers == usage[function.name].registers
    x = torch.ones(128, device="cuda")
    cuda.Prepared(kernel, (1,), (128, 3.0, x.data_ptr()))()
    torch.cuda.synchronize()
    assert (x == 3).all()


def test_textures(torch):
    k = Kernel("fetch", threads=32, t=Texture(f32), out=ptr(f32))
    texture, out = k.args
    texel = k.fetch(texture, k.thread[0])
    for e in range(4):
        out[k.thread[0] * 4 + e] = texel[e]
    kernel = loaded(k.function)
    x, y = torch.arange(64.0, device="cuda"), torch.full((128,), -1.0, device="cuda")
    looked = LinearTexture(cuda.device(), x.data_ptr(), 256)
    cuda.Prepared(kernel, (1,), (looked.handle, y.data_ptr()))()
    torch.cuda.synchronize()
    assert torch.equal(y[:64], x)
    assert not y[64:].any()  # past the end are zeros


def test_the_callers_context_stays():
    """A thread in which CUDA has no context finds none afterwards."""
    seen = []

    def work():
        before = int(call("cuCtxGetCurrent"))
        kernel = Compiled(tw.Gemm(70, 90, 50), cuda.target())
        seen.extend([before, NVIDIA.call(kernel, A, B), int(call("cuCtxGetCurrent"))])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    before, product, after = seen
    assert before == after == 0
    np.testing.assert_array_equal(product, A @ B)


# ---- arrays


def test_cupy(cupy):
    a, b = cupy.asarray(A), cupy.asarray(B)
    for _ in range(2):
        c = tw.matmul(a, b)
        assert isinstance(c, cupy.ndarray)
        np.testing.assert_array_equal(c.get(), A @ B)
    out = cupy.asfortranarray(c) * 0
    assert tw.matmul(a[:, ::-1], b[::-1], out=out) is out
    np.testing.assert_array_equal(out.get(), A @ B)


class OnlyInterface:
    def __init__(self, array):
        self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__


class OnlyDLPack:
    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("wrapper", [OnlyInterface, OnlyDLPack])
def test_protocols(torch, wrapper):
    a, b = torch.tensor(A, device="cuda"), torch.tensor(B, device="cuda")
    c = tw.matmul(wrapper(a), wrapper(b))
    back = torch.from_dlpack(c)
    np.testing.assert_array_equal(back.cpu().numpy(), A @ B)
    del c
    again = tw.matmul(wrapper(a), wrapper(b))  # may not get the memory of the first, which lives on
    np.testing.assert_array_equal(back.cpu().numpy(), A @ B)
    np.testing.assert_array_equal(torch.as_tensor(again, device="cuda").cpu().numpy(), A @ B)


# ---- streams and graphs

LONG = 200_000_000  # clocks, a tenth of a second


def test_the_current_stream_of_torch(torch):
    a, b = torch.zeros(70, 50, device="cuda"), torch.tensor(B, device="cuda")
    later = torch.tensor(A, device="cuda")  # from the host's memory, for which torch would wait
    tw.matmul(a, b)  # compiles
    torch.cuda.synchronize()
    for _ in range(2):  # the long way, then the short one
        a.zero_()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
            a.copy_(later)
            c = tw.matmul(a, b)
            assert not stream.query()  # nothing has waited
            np.testing.assert_array_equal(c.cpu().numpy(), A @ B)
        repeats.forget()


def test_the_current_stream_of_cupy(cupy):
    a, b = cupy.asarray(A), cupy.asarray(B)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        c = tw.matmul(a * 2, b)
        np.testing.assert_array_equal(c.get(), 2 * A @ B)


@pytest.mark.parametrize("kernel", [Compiled, Split])
@pytest.mark.parametrize("first", [True, False])
def test_a_graph_of_torchs(torch, monkeypatch, kernel, first):
    """With temporaries, a workspace, and the first call of its kind inside the capture."""
    monkeypatch.setattr(engine.NVIDIA, "compile", kernel)
    a = torch.tensor(A, device="cuda").repeat_interleave(2, 1)[:, ::2]  # goes through a copy
    b, out = torch.tensor(B, device="cuda"), torch.zeros(70, 90, device="cuda")
    if not first:
        tw.matmul(a, b, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = tw.matmul(a, b)
        tw.matmul(a, b, out, beta=1, c=2.0)
    for scale in (1, 2, 3):
        b.copy_(torch.tensor(scale * B, device="cuda"))
        made.fill_(torch.nan)
        graph.replay()
        np.testing.assert_array_equal(made.cpu().numpy(), scale * A @ B)
        np.testing.assert_array_equal(out.cpu().numpy(), scale * A @ B + 2)


def test_a_graph_of_ours(torch):
    stream = cuda.Stream()
    b = torch.tensor(B, device="cuda")
    run = NVIDIA.bind(Split(tw.Gemm(70, 90, 50), cuda.target()), torch.tensor(A, device="cuda"), b)
    torch.cuda.synchronize()
    with capture(stream) as graph:
        run(stream)
    start = cuda.Event().record(stream)
    for _ in range(10):
        graph.launch(stream)
    end = cuda.Event().record(stream)
    end.synchronize()
    assert end.since(start) > 0
    np.testing.assert_array_equal(run.out.cpu().numpy(), A @ B)


def test_a_split_sum_on_many_streams(torch, monkeypatch):
    """Workspaces of streams that run at once are different, and their counters are zero again and again."""
    monkeypatch.setattr(engine.NVIDIA, "compile", Split)
    a, b = torch.tensor(A, device="cuda"), torch.tensor(B, device="cuda")
    torch.cuda.synchronize()
    streams, results = [torch.cuda.Stream() for _ in range(8)], []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(tw.matmul(a, b))
    torch.cuda.synchronize()
    for c in results:
        np.testing.assert_array_equal(c.cpu().numpy(), A @ B)


def test_spaces_outlive_their_streams(torch, monkeypatch):
    """Streams that are gone when their workspace is freed, with work on its way, and while another stream records."""
    monkeypatch.setattr(memory, "MOST_WORKSPACES", 4)
    a, b = torch.tensor(A, device="cuda"), torch.tensor(B, device="cuda")
    kernel = Split(tw.Gemm(70, 90, 50), cuda.target())
    runs = [NVIDIA.bind(kernel, a, b) for _ in range(40)]
    slow, recording = torch.cuda.Stream(), cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(slow):
        torch.cuda._sleep(LONG)
        runs[0]()  # waits in its stream while its workspace is forgotten
    for run in runs[1:20]:
        run(cuda.Stream())
    with capture(recording) as graph:
        runs[39](recording)
        for run in runs[20:39]:
            run(cuda.Stream())
    graph.launch(recording)
    torch.cuda.synchronize()
    for run in runs:
        np.testing.assert_array_equal(run.out.cpu().numpy(), A @ B)


def test_calls_from_many_threads(torch):
    """One recipe, many argument blocks."""
    inputs = [torch.tensor(i * A, device="cuda") for i in range(8)]
    b, wrong = torch.tensor(B, device="cuda"), []
    torch.cuda.synchronize()

    def work(i):
        for _ in range(50):
            c = tw.matmul(inputs[i], b)
            if not np.array_equal(c.cpu().numpy(), i * A @ B):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(cuda.count() < 2, reason="needs two CUDA devices")
def test_a_second_device(torch):
    a, b = torch.tensor(A, device="cuda:1"), torch.tensor(B, device="cuda:1")
    for _ in range(2):
        c = tw.matmul(a, b)  # while device 0 is current
        assert c.device == a.device
        np.testing.assert_array_equal(c.cpu().numpy(), A @ B)
    assert torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match=r"a is on CUDA device 1 and b on CUDA device 0"):
        tw.matmul(a, b.to("cuda:0"))


# ---- errors


def test_bad_ptx_is_said_in_the_assemblers_words():
    text = artefact.compiled(scaled(), cuda.target()).image.replace(b"mul.rn.f32", b"mul.wrong.f32")
    with pytest.raises(
        cuda.CudaError, match=r"(?s)CUDA_ERROR_INVALID_PTX \(218\).*kernel scaled_0.*mul\.wrong|\.wrong"
    ):
        cuda.Module(text)


def test_a_kernel_that_is_not_there():
    code = artefact.compiled(scaled(), cuda.target())
    with pytest.raises(cuda.CudaError, match=r"CUDA_ERROR_NOT_FOUND.*kernel missing"):
        cuda.Module(code.image).function(code.manifest | {"symbol": "missing"})


def test_a_launch_that_cannot_be(torch):
    function = scaled()
    kernel = loaded(function)
    with pytest.raises(
        cuda.CudaError, match=r"(?s)CUDA_ERROR_INVALID_VALUE.*cuLaunchKernelEx, kernel scaled_0.*grid \(0, 1, 1\)"
    ):
        cuda.Prepared(kernel, (0,), (0, 1.0, 0))()
    torch.ones(1, device="cuda").cpu()  # CUDA goes on


def test_an_illegal_address_is_cudas_error():
    """Whoever waits for the stream is told. In a process of its own, whose CUDA is of no more use."""
    done = processes.run("""
from tests.runtime.gpu.test_cuda_device import cuda, loaded, scaled
kernel = loaded(scaled())
stream = cuda.Stream()
cuda.Prepared(kernel, (1,), (128, 1.0, 64))(stream)
try:
    stream.synchronize()
except cuda.CudaError as error:
    print(error)
""")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in done.stdout, done.stdout + done.stderr


def test_a_forked_child_is_told_so():
    done = processes.run("""
import os
from tilewright.plans.nvidia import NvidiaPlan
from tilewright.runtime.cuda import module as cuda
cuda.device().context
child = os.fork()
if not child:
    print(cuda.why_not(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
""")
    assert "forked" in done.stdout, done.stdout + done.stderr


def test_torch_is_not_needed():
    """A process without torch, CuPy and JAX computes on the GPU, and imports none of them."""
    done = processes.run("""
import sys
import numpy as np
import tilewright as tw
from tests.helpers.graphs import capture
from tests.helpers.plain_gemm import Compiled
from tilewright.plans.nvidia import NvidiaPlan
from tilewright.runtime.cuda import module as cuda
from tilewright.runtime.gpu.engine import NVIDIA
a = np.ones((5, 6), np.float32)
c = NVIDIA.call(Compiled(tw.Gemm(5, 5, 6), cuda.target()), a, np.ones((6, 5), np.float32))
print((c == 6).all(), {"torch", "cupy", "jax"} & set(sys.modules))
""")
    assert done.stdout == "True set()\n", done.stdout + done.stderr


def test_warpgroups_take_views_where_they_are(torch):
    """Rows that are a multiple of 16 bytes apart, whatever their length; a matrix that all products of a batch have."""
    if "wgmma" not in cuda.target().instructions:
        pytest.skip("this GPU has no wgmma")
    a = torch.randint(-3, 4, (300, 1040), device="cuda").bfloat16()
    b = torch.randint(-3, 4, (5, 1040, 400), device="cuda").bfloat16()
    for x, y in ((a[:, 16:1017], b[0, :1001, 8:391]), (a[:77], b), (a[:1], b[1]), (a.view(3, 100, 1040), b[:3])):
        out = torch.empty((*(x @ y).shape[:-1], 400), device="cuda")[..., :y.shape[-1]]
        kernel = tw.compile(tw.Gemm(*out.shape[-2:], x.shape[-1], "bf16", "bf16", "f32", batch=len(out) if y.ndim > 2
                                    else 1), cuda.target(), "wgmma 128x128x64 stages=4 warpgroups=2 store=tma")
        found = kernel(x.expand(len(out), *x.shape[-2:]) if y.ndim > 2 else x, y, out=out)
        assert (found == x.float() @ y.float()).all()
