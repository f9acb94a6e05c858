"""The listings of the article on NVIDIA's GPUs: tilewright's own functions, and PTX of kernels that do what the
article's lines do, compiled now for an H200."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright.ir import Function, Kernel, f32, i32, ptr, vec
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.ladder import gpu04_shared, gpu08_buffered, gpu10_stored, gpu11_texture, gpu_gemm
from tilewright.lab.ladder.texture import LinearTexture
from tilewright.lab.measure import gpu_rules, gpu_state
from tilewright.lab.reproduce.row import Cell, Setting
from tilewright.lab.reproduce.sources import excerpt, functions

LISTINGS: dict[str, Callable[[Setting], Cell]] = {}     # by the item's name


# ---- our functions

def ours(those: tuple[Any, ...], text: str, short: str, setting: Setting) -> Cell:
    return Cell("compiled", text, short, code=functions(*those))


for name, those, text, short in (
    ("base clocks", (gpu_state.Nvml.describe,), "What is asked once, before measuring.", "NVML"),
    ("supported clocks", (gpu_state.clock_setting,), "Whether the clock is free, locked or held is judged by how it "
     "behaved under load.", "as it behaved"),
    ("watch the GPU", (gpu_state.Nvml.read, gpu_state.Watch.later_half), "What is asked every 0.01 s.", "every 0.01 s"),
    ("CUDA events", (gpu_rules.replay, TorchDevice.mark, TorchDevice.seconds), "The article's protocol; a mark is an "
     "event.", "2 events"),
    ("L2 flush", (TorchDevice.flush, gpu_rules.sets), "What fills L2, and how many sets of operands rotate otherwise.",
     "2 x L2 bytes"),
    ("thread block in pseudocode", (gpu04_shared.emit_shared,), "The whole kernel of step 4; `fetch` is the lecture's "
     "walk.", "it runs"),
    ("double buffering in pseudocode", (gpu08_buffered.multiply,), "The loop of steps 8 to 11.", "it runs"),
    ("SGEMM in pseudocode", (gpu10_stored.emit_stored, gpu08_buffered.multiply, gpu_gemm.outer_product,
                             gpu10_stored.write), "Step 10, whole.", "it runs"),
    ("is_aligned", (gpu11_texture.aligned,), "The test of step 11.", "6 conditions"),
    ("texture objects", (LinearTexture,), "A texture over linear memory, by the driver.", "2 objects"),
):
    LISTINGS[name] = partial(ours, those, text, short)


# ---- PTX

def emit_load() -> Function:
    k = Kernel("load", threads=32, source=ptr(f32), target=ptr(f32))
    gmem_ptr, target = k.args
    reg = k.load(gmem_ptr + k.thread[0])
    k.store(target + k.thread[0], reg)
    return k.function


def emit_to_shared() -> Function:
    k = Kernel("to_shared", threads=32, source=ptr(f32), target=ptr(f32))
    lane, smem = k.thread[0], k.smem("smem", (32,), f32)
    smem[lane] = k.load(k.args[0] + lane)
    k.barrier()
    k.store(k.args[1] + lane, smem[31 - lane])
    return k.function


def emit_vectors() -> Function:
    k = Kernel("vectors", threads=32, source=ptr(f32), target=ptr(f32))
    lane, smem = k.thread[0], k.smem("smem", (128,), f32)
    k.store(smem.at(4 * lane), k.load(k.args[0] + 4 * lane, vec(f32, 4)))
    k.barrier()
    k.store(k.args[1] + 4 * lane, k.load(smem.at(124 - 4 * lane), vec(f32, 4)))
    return k.function


def emit_guard() -> Function:
    k = Kernel("guard", threads=32, source=ptr(f32), target=ptr(f32), guard=i32)
    reg = k.load(k.args[0] + k.thread[0])
    k.store(k.args[1] + k.thread[0], reg, mask=k.args[2] != 0)
    return k.function


def ptx(emit: Any, pattern: str, text: str, short: str, setting: Setting) -> Cell:
    return Cell("compiled", text, short, code=excerpt(emit(), pattern))


for name, emit in (("global load in CUDA", emit_load), ("global to shared in CUDA", emit_to_shared),
                   ("guard in CUDA", emit_guard)):
    LISTINGS[name] = partial(ours, (emit,), "A kernel that does it; the next row is its PTX.", "1 line")
for name, emit, pattern, text, short in (
    ("global load in PTX", emit_load, r"ld\.global", "LLVM's PTX for sm_90a.", "ld.global.nc.b32"),
    ("global store in PTX", emit_load, r"st\.global", "LLVM's PTX for sm_90a.", "st.global.b32"),
    ("global to shared in PTX", emit_to_shared, r"ld\.global|st\.shared|bar", "LLVM's PTX for sm_90a.", "2 movements"),
    ("vector loads and stores in PTX", emit_vectors, r"(ld|st)\.shared", "LLVM's PTX for sm_90a.", "v4.b32"),
    ("guard in PTX", emit_guard, r"setp|@|\bst\.", "LLVM's PTX for sm_90a.", "@%p1 bra"),
    ("switching buffers", gpu08_buffered.emit_buffered, r"xor\.b64.*8192", "The instruction in step 8, and its line: "
     "`address ^ bytes`.", "xor.b64 8192"),
    ("switch of B", gpu08_buffered.emit_buffered, r"xor\.b64.*4096", "The instruction in step 8.", "xor.b64 4096"),
    ("tex1Dfetch", gpu11_texture.emit_texture, r"tex\.1d", "Step 11: a texel of A and one of B before the loop, and "
     "again in it.", "tex.1d.v4.f32.s32"),
):
    LISTINGS[name] = partial(ptx, emit, pattern, text, short)
