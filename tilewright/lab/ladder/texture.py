"""Texture objects over linear memory, which one step of the ladder reads by."""

from __future__ import annotations

from tilewright.runtime.cuda.driver import api, call, library
from tilewright.runtime.cuda.module import Device
from tilewright.runtime.gpu.driver import Owned

CHANNELS, TEXEL = 4, 16  # of a texture: words of 32 bits, and bytes


class LinearTexture(Owned):
    """A texture object over `size` bytes at `pointer`; `handle` is what a kernel's Texture parameter takes. Texel i is
    the i-th 16 bytes, and zeros past the end.

    `element` is "f32", or "f64" or "i32", which travel as integers. The memory is the caller's, who keeps it for as
    long as the texture is used. ValueError, with the reason, for memory that textures cannot look at: use a kernel that
    loads through pointers then.
    """

    library, frees = library, "TexObjectDestroy"

    def __init__(self, on: Device, pointer: int, size: int, element: str = "f32") -> None:
        align, most = on.attribute("TEXTURE_ALIGNMENT"), on.attribute("MAXIMUM_TEXTURE1D_LINEAR_WIDTH")
        if pointer % align:
            raise ValueError(f"a texture begins at a multiple of {align} bytes, and the array at {pointer % align} "
                             "past one")
        if size % TEXEL:
            raise ValueError(f"a texture holds whole texels of {TEXEL} bytes, and the array has {size} bytes")
        if not 0 < size <= most * TEXEL:
            raise ValueError(f"a texture holds 1 to {most} texels of {TEXEL} bytes, and the array has {size // TEXEL}")
        driver = api()
        what, how = driver.CUDA_RESOURCE_DESC(), driver.CUDA_TEXTURE_DESC()
        what.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
        what.res.linear.devPtr = driver.CUdeviceptr(pointer)
        word = driver.CUarray_format
        what.res.linear.format = word.CU_AD_FORMAT_FLOAT if element == "f32" else word.CU_AD_FORMAT_SIGNED_INT32
        what.res.linear.numChannels = CHANNELS
        what.res.linear.sizeInBytes = size
        self.create(on, lambda: int(call("cuTexObjectCreate", what, how, None)))
