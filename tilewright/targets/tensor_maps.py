"""Tensor maps: what bulk copies know of a tensor in global memory whose tiles they move (TMA).

A kernel declares a parameter `ir.TensorMap` with a `Tile`: what must be known when it is recorded. A launch passes a
`TiledMap`, or of images an `ImageMap`, 128 bytes by value, that says the rest: the driver encodes it on a device
(`runtime.cuda.module.tensor_map`), the simulator reads it as it is.

Source: CUDA Driver API, cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col,
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html; PTX ISA, im2col mode
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

BYTES, ALIGN = 128, 64          # of a map as a parameter
# Elements as the driver calls them, and their bytes; formats of 8 bits are UINT8. tf32 are f32 that a load rounds.
ELEMENTS = {"i8": ("UINT8", 1), "i16": ("UINT16", 2), "i32": ("INT32", 4), "i64": ("INT64", 8), "f16": ("FLOAT16", 2),
            "bf16": ("BFLOAT16", 2), "f32": ("FLOAT32", 4), "tf32": ("TFLOAT32", 4), "f64": ("FLOAT64", 8)}
SWIZZLES, PROMOTIONS = (0, 32, 64, 128), (0, 64, 128, 256)
DIMENSIONS, EXTENT, STEP, PIECE, TILE_ALIGN = 5, 256, 8, 16, 128
IMAGE = 4                       # dimensions of images: channels, columns, rows, images
CORNERS = range(-128, 128)      # where the first and the last pixel of images may be, from the edges


@dataclass(frozen=True)
class Tile:
    """What one copy moves.

    element  "bf16", "i8" ...
    box      extents in the tensor, of the contiguous dimension first
    swizzle  bytes (128, 64, 32) of the rows in shared memory whose 16-byte pieces are permuted; 0: they are not
    steps    along each dimension, from one element that is moved to the next; none given: 1
    images   the tensor has images [images, rows, columns, channels], and the box is (channels, pixels): pixels that
             follow each other, along rows, from row to row, and from image to image, as `ImageMap` says
    """
    element: str
    box: tuple[int, ...]
    swizzle: int = 0
    steps: tuple[int, ...] = ()
    images: bool = False

    def violations(self) -> Iterator[str]:
        """What a device cannot do, in sentences."""
        if self.element not in ELEMENTS:
            yield f"elements are {', '.join(ELEMENTS)}, not {self.element}"
            return
        if not 1 <= len(self.box) <= DIMENSIONS:
            yield f"a tensor has 1 to {DIMENSIONS} dimensions, not {len(self.box)}"
            return
        if any(not 1 <= extent <= EXTENT for extent in self.box):
            yield f"a tile has 1 to {EXTENT} elements along each dimension, not {self.box}"
        if len(self.steps) not in (0, len(self.box)) or any(not 1 <= step <= STEP for step in self.steps):
            yield f"steps are one from 1 to {STEP} for each dimension, not {self.steps}"
        elif self.steps and self.steps[0] != 1:
            yield f"the step of the contiguous dimension is 1, not {self.steps[0]}"
        if self.images and (len(self.box) != 2 or self.steps):
            yield f"a tile of images has channels and pixels and no steps, not {self.box}, {self.steps}"
        if self.swizzle not in SWIZZLES:
            yield f"a swizzle is of {', '.join(map(str, SWIZZLES))} bytes, not {self.swizzle}"
        row = self.box[0] * self.item
        if row % PIECE:
            yield f"a row of a tile has a multiple of {PIECE} bytes, not {row}"
        if self.swizzle and row > self.swizzle:
            yield f"a row of a tile has at most the {self.swizzle} bytes of its swizzle, not {row}"

    @property
    def coordinates(self) -> int:
        """How many numbers say which tile a copy moves: one for each dimension of the tensor; of images also the offset
        of a window's column and of its row, which all pixels have."""
        return IMAGE + 2 if self.images else len(self.box)

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return ELEMENTS[self.element][1]

    @property
    def extents(self) -> tuple[int, ...]:
        """In shared memory."""
        return tuple(-(-extent // step) for extent, step in zip(self.box, self.steps or (1,) * len(self.box)))

    @property
    def bytes(self) -> int:
        """In shared memory: what a copy brings, also of a tile that is partly outside of the tensor."""
        return math.prod(self.extents) * self.item

    @property
    def align(self) -> int:
        """The alignment of a tile in shared memory, in bytes: where a swizzle repeats, or what every copy needs."""
        return 8 * self.swizzle if self.swizzle else TILE_ALIGN

    def __str__(self) -> str:
        swizzle = f", swizzled by {self.swizzle} bytes" if self.swizzle else ""
        return f"map of {'x'.join(map(str, self.box))} {self.element}{' of images' * self.images}{swizzle}"


@dataclass(frozen=True)
class TiledMap:
    """The arguments of cuTensorMapEncodeTiled, without the address.

    dims      elements along each dimension, of the contiguous one first
    strides   bytes between neighbours along each dimension but the first
    l2        bytes (0, 64, 128, 256) that L2 fetches at least
    nan       what is outside is a NaN, of floating-point elements; else 0
    """
    tile: Tile
    dims: tuple[int, ...]
    strides: tuple[int, ...] = ()
    l2: int = 128
    nan: bool = False

    @classmethod
    def from_array(cls, tile: Tile, x: Any, **more: Any) -> TiledMap:
        """The map of an array, whose last dimension is contiguous and the map's first."""
        if x.ndim != len(tile.box) or x.itemsize != tile.item or x.strides[-1] != x.itemsize:
            raise ValueError(f"a {tile} is of an array of {len(tile.box)} dimensions and {tile.item} bytes an element "
                             f"whose last dimension is contiguous, not of shape {x.shape}, {x.dtype} and strides of "
                             f"{x.strides} bytes")
        return cls(tile, tuple(reversed(x.shape)), tuple(reversed(x.strides[:-1])), **more)

    @classmethod
    def of_matrices(cls, tile: Tile, rows: int, columns: int, ld: int, batch: int = 1, stride: int = 0,
                    planes: int = 0, plane: int = 0) -> TiledMap:
        """The map of matrices with contiguous rows, `ld` elements from row to row; each may have `planes`, `plane`
        elements from one to the next, which are the third dimension then. A tile with one more dimension has a number
        of a matrix as the last one, `stride` elements from each to the next, 0 if there is but one. A distance at which
        nothing follows is one that a device takes."""
        apart = ld*tile.item if rows > 1 else -(-columns*tile.item // PIECE) * PIECE
        dims: tuple[int, ...] = (columns, rows)
        strides: tuple[int, ...] = (apart,)
        if planes:
            dims, strides = (*dims, planes), (*strides, plane*tile.item)
        if len(tile.box) == len(dims):
            return cls(tile, dims, strides)
        last = stride*tile.item if stride else dims[-1]*strides[-1]
        return cls(tile, (*dims, batch if stride else 1), (*strides, last))

    def violations(self, address: int = 0) -> Iterator[str]:
        """Why a device refuses it for a tensor at this address, in sentences."""
        rank = len(self.tile.box)
        if len(self.dims) != rank or len(self.strides) != rank - 1:
            yield f"it has {rank} dims and {rank - 1} strides, not {self.dims} and {self.strides}"
        if any(not 1 <= extent <= 1 << 32 for extent in self.dims):
            yield f"a tensor has 1 to 2^32 elements along each dimension, not {self.dims}"
        if any(stride % PIECE or not 0 <= stride < 1 << 40 for stride in self.strides):
            yield f"strides are multiples of {PIECE} bytes below 2^40, not {self.strides}"
        if address % PIECE:
            yield f"a tensor begins at a multiple of {PIECE} bytes, not at {address:#x}"
        if self.l2 not in PROMOTIONS:
            yield f"l2 is one of {', '.join(map(str, PROMOTIONS))} bytes, not {self.l2}"
        if self.nan and self.tile.element.startswith("i"):
            yield f"{self.tile.element} has no NaN"

    def check(self, address: int = 0) -> None:
        """ValueError if a device refuses it."""
        if why := [*self.tile.violations(), *self.violations(address)]:
            raise ValueError(f"{self.tile}: {'; '.join(why)}")

    def elements(self, at: tuple[int, ...]) -> tuple[Any, Any]:
        """The elements of the tile at these coordinates, rows of the contiguous dimension: where they are, in bytes
        from the tensor on, and which of them the tensor has."""
        extents, steps = self.tile.extents, self.tile.steps or (1,) * len(at)
        offsets, inside = np.zeros(1, np.int64), np.ones(1, bool)
        for d in range(1, len(at)):         # the last dimension ends up outermost
            index = at[d] + np.arange(extents[d]) * steps[d]
            offsets = (index[:, None] * self.strides[d - 1] + offsets).ravel()
            inside = (((index >= 0) & (index < self.dims[d]))[:, None] & inside).ravel()
        column = at[0] + np.arange(extents[0])
        return offsets[:, None] + column * self.tile.item, inside[:, None] & (column >= 0) & (column < self.dims[0])


@dataclass(frozen=True)
class ImageMap:
    """The arguments of cuTensorMapEncodeIm2col, without the address: images whose pixels are copied with a window's
    offset, so that the rows of a convolution's matrix of windows come as they are multiplied.

    dims      channels, columns, rows, images
    strides   bytes between neighbouring columns, rows, images
    last      (column, row) of the last pixel, from the last column and row on: 0 or less where windows end inside
    steps     (columns, rows) from a pixel to the next one
    l2        bytes that L2 fetches at least
    """
    tile: Tile
    dims: tuple[int, int, int, int]
    strides: tuple[int, int, int]
    last: tuple[int, int] = (0, 0)
    steps: tuple[int, int] = (1, 1)
    l2: int = 128
    nan = False

    @property
    def pixels(self) -> tuple[int, int]:
        """Pixels in a row, and rows of them in an image: what a convolution's result has."""
        columns, rows = ((size - 1 + last) // step + 1 for size, last, step in zip(self.dims[1:3], self.last,
                                                                                  self.steps))
        return columns, rows

    def violations(self, address: int = 0) -> Iterator[str]:
        """Why a device refuses it for images at this address, in sentences."""
        if not self.tile.images:
            yield "its tile is not of images"
        yield from TiledMap(Tile(self.tile.element, (1,) * IMAGE), self.dims, self.strides, self.l2).violations(address)
        if any(x not in CORNERS for x in self.last) or min(self.pixels) < 1:
            yield f"the last pixel is less than 128 before or behind an edge, not {self.last} of {self.dims}"
        if any(not 1 <= step <= STEP for step in self.steps):
            yield f"steps are one from 1 to {STEP} along columns and rows, not {self.steps}"

    def check(self, address: int = 0) -> None:
        """ValueError if a device refuses it."""
        if why := [*self.tile.violations(), *self.violations(address)]:
            raise ValueError(f"{self.tile}: {'; '.join(why)}")

    def elements(self, at: tuple[int, ...]) -> tuple[Any, Any]:
        """The elements of the tile at these coordinates (channel, column, row, image, and a window's offset along
        columns and rows), a row for each pixel: where they are, in bytes from the images on, and which of them there
        are."""
        channel, column, row, image, *offsets = at
        (wide, high), (right, down) = self.pixels, self.steps
        place = (image * high + row // down) * wide + column // right + np.arange(self.tile.box[1])
        x = place % wide * right + offsets[0]
        y = place // wide % high * down + offsets[1]
        z = place // (wide * high)
        inside = np.logical_and.reduce([(0 <= i) & (i < n) for i, n in zip((x, y, z), self.dims[1:])])
        channels = channel + np.arange(self.tile.box[0])
        where: Any = sum(i.astype(np.int64) * n for i, n in zip((x, y, z), self.strides))
        return (where[:, None] + channels * self.tile.item,
                inside[:, None] & (channels >= 0) & (channels < self.dims[0]))


@dataclass(frozen=True)
class Mapped:
    """An array (or what the simulator's memory has at an address) with a map of it, as an argument of a simulated
    kernel; an array alone is mapped by `TiledMap.from_array`."""
    map: TiledMap | ImageMap
    tensor: Any
