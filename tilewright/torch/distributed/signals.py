"""Flags between GPUs: words of 32 bits in symmetric memory, written by others and awaited.

    post    after all that the stream was given before, write 1 to each word
    await   until each word is 1, then write 0

They are kernels of one warp or two, which take about 2 us in a CUDA graph. After `limit` nanoseconds the words that are
still 0 are reported to a word of the host's, and this wait and all later ones end, so that no device hangs. Beside
copies there are no kernels: Memory.signal copies a word, and nothing waits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from tilewright.runtime.cuda import driver

MOST = 64       # words of a launch
PTX = """
.version 7.0
.target sm_70
.address_size 64

.visible .entry tilewright_post(.param .align 8 .b8 flags[512], .param .u32 count)
{
    .reg .pred none;
    .reg .b32 i, n;
    .reg .b64 at, place, step;
    mov.u32 i, %tid.x;
    ld.param.u32 n, [count];
    setp.ge.u32 none, i, n;
    @none bra done;
    mov.b64 place, flags;
    mul.wide.u32 step, i, 8;
    add.u64 place, place, step;
    ld.param.u64 at, [place];
    fence.acq_rel.sys;
    mov.u32 n, 1;
    st.release.sys.global.u32 [at], n;
done:
    ret;
}

.visible .entry tilewright_await(.param .align 8 .b8 flags[512], .param .u32 count, .param .u64 limit,
                                 .param .u64 failed, .param .u64 report, .param .u32 number)
{
    .reg .pred none, set, over;
    .reg .b32 i, n, seen, zero;
    .reg .b64 at, place, step, begin, now, most, fail, word;
    mov.u32 i, %tid.x;
    mov.u32 zero, 0;
    ld.param.u32 n, [count];
    setp.ge.u32 none, i, n;
    @none bra done;
    mov.b64 place, flags;
    mul.wide.u32 step, i, 8;
    add.u64 place, place, step;
    ld.param.u64 at, [place];
    ld.param.u64 most, [limit];
    ld.param.u64 fail, [failed];
    mov.u64 begin, %globaltimer;
again:
    ld.acquire.sys.global.u32 seen, [at];
    setp.ne.u32 set, seen, 0;
    @set bra reset;
    ld.relaxed.sys.global.u32 seen, [fail];
    setp.ne.u32 set, seen, 0;
    @set bra done;
    mov.u64 now, %globaltimer;
    sub.u64 now, now, begin;
    setp.lt.u64 over, now, most;
    @over bra again;
    ld.param.u64 word, [report];
    ld.param.u32 n, [number];
    add.u32 n, n, i;
    st.relaxed.sys.global.u32 [word], n;
    mov.u32 n, 1;
    st.relaxed.sys.global.u32 [fail], n;
    bra done;
reset:
    st.relaxed.sys.global.u32 [at], zero;
done:
    ret;
}
"""


class Launch:
    """One launch, as it is repeated: its kernel and the bytes of its arguments."""

    def __init__(self, name: str, flags: Sequence[int], *more: Any) -> None:
        self.name, self.threads = name, -(-len(flags) // 32) * 32
        self.values = [(ctypes.c_uint64 * MOST)(*flags), ctypes.c_uint32(len(flags)), *more]
        self.arguments = (ctypes.c_void_p * len(self.values))(*[ctypes.addressof(x) for x in self.values])

    def __call__(self, device: int, stream: int) -> None:
        launch = driver.entry("cuLaunchKernel", ctypes.c_void_p, *[ctypes.c_uint]*7, ctypes.c_void_p, ctypes.c_void_p,
                              ctypes.c_void_p)
        status = launch(_function(device, self.name), 1, 1, 1, self.threads, 1, 1, 0, stream, self.arguments, None)
        if status:
            raise driver.error(status, "cuLaunchKernel", self.name)


@cache
def _function(device: int, name: str) -> int:
    with driver.device(device).current():
        return int(driver.call("cuModuleGetFunction", _module(device), name.encode()))


@cache
def _module(device: int) -> Any:
    return driver.call("cuModuleLoadData", PTX.encode() + b"\0")


def load(device: int) -> None:
    """Load the kernels, which a stream that is captured cannot."""
    for name in ("tilewright_post", "tilewright_await"):
        _function(device, name)


def posts(flags: Sequence[int]) -> list[Launch]:
    """The launches that write 1 to words at these addresses."""
    return [Launch("tilewright_post", flags[at:at + MOST]) for at in range(0, len(flags), MOST)]


def awaits(flags: Sequence[int], seconds: float, failed: int, report: int, number: int) -> list[Launch]:
    """The launches that wait for words at these addresses. number + i is reported of the word i."""
    return [Launch("tilewright_await", flags[at:at + MOST], ctypes.c_uint64(int(seconds * 1e9)),
                   ctypes.c_uint64(failed), ctypes.c_uint64(report), ctypes.c_uint32(number + at))
            for at in range(0, len(flags), MOST)]
