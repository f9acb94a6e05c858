"""Textures over linear memory: texel i of a `Texture` parameter is the i-th 16 bytes, and zeros past the end."""

from __future__ import annotations

from contextlib import suppress

from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import api, call

CHANNELS, TEXEL = 4, 16  # four words of 32 bits


class LinearTexture:
    """A texture object over `size` bytes at `pointer`; `handle` is what a kernel's Texture parameter takes.

    `element` is "f32", or "f64" or "i32", which travel as integers. The memory is somebody else's, who keeps it for as
    long as the texture is used. ValueError, with the reason, for memory that textures cannot look at: use a kernel that
    loads through pointers then.
    """

    def __init__(self, on: Device, pointer: int, size: int, element: str = "f32") -> None:
        reason = refusal(on, pointer, size)
        if reason:
            raise ValueError(reason)
        driver = api()
        memory, how = driver.CUDA_RESOURCE_DESC(), driver.CUDA_TEXTURE_DESC()
        memory.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
        memory.res.linear.devPtr = driver.CUdeviceptr(pointer)
        word = driver.CUarray_format
        memory.res.linear.format = word.CU_AD_FORMAT_FLOAT if element == "f32" else word.CU_AD_FORMAT_SIGNED_INT32
        memory.res.linear.numChannels = CHANNELS
        memory.res.linear.sizeInBytes = size
        self.device = on
        with on.current():
            self.handle = int(call("cuTexObjectCreate", memory, how, None))

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            with suppress(Exception):  # the interpreter, or CUDA, may be going down
                with self.device.current():
                    call("cuTexObjectDestroy", self.handle)


def refusal(on: Device, pointer: int, size: int) -> str:
    """Why there can be no texture over this memory; "" if there can."""
    align, most = on.attribute("TEXTURE_ALIGNMENT"), on.attribute("MAXIMUM_TEXTURE1D_LINEAR_WIDTH")
    if pointer % align:
        return f"a texture begins at a multiple of {align} bytes, and the array at {pointer % align} past one"
    if size % TEXEL:
        return f"a texture holds whole texels of {TEXEL} bytes, and the array has {size} bytes"
    if not 0 < size <= most * TEXEL:
        return f"a texture holds 1 to {most} texels of {TEXEL} bytes, and the array has {size // TEXEL}"
    return ""
