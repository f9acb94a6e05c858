"""Windows of images as an operand of the GEMM by wgmma, as convolutions have them: a row of the matrix is a pixel of
the result, and its steps of k are the rows, columns and channels of the window of images that the pixel sees.

Tensor maps of images (`targets.tensor_maps.ImageMap`) copy a tile of it as it is multiplied: for each pixel the
channels at one offset in its window. So the steps of k of a block of a tile have one offset, and the channels of an
image are a multiple of the block's row.
"""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.ir import Kernel, Value, i32

# Channels of an image; numbers along the inner one of a window's axes; pixels of the result in a row, and in an image;
# columns and rows of an image from a pixel to the next one, and from a number of a window to the next along its outer
# and its inner axis, either of which may be the columns.
PARAMETERS: dict[str, Any] = {f"window_{name}": i32 for name in (
    "channels", "inner", "wide", "pixels", "step_x", "step_y", "outer_x", "outer_y", "inner_x", "inner_y")}
NONE = 1 << 20          # the number of an image that there is not, of which zeros come


class Windows:
    """Where the tiles of such an operand for one tile of C lie in the images, one step of k after the other: a thread
    alone starts all copies, and has no time for divisions in between."""

    def __init__(self, k: Kernel, g: SimpleNamespace, ROW: int, row: Value, step: Value, matrix: Any = 0) -> None:
        """From this row and this step of k on. ROW: channels of a block of a tile; `matrix`: number of the image that
        the rows of a batch's matrix begin in."""
        self.k, self.g, self.ROW = k, g, ROW
        image, pixel = row // g.window_pixels, row % g.window_pixels
        place = step // g.window_channels
        outer, inner = place // g.window_inner, place % g.window_inner
        self.pixel = pixel % g.window_wide * g.window_step_x, pixel // g.window_wide * g.window_step_y
        self.image = image + matrix
        at = (step, step % g.window_channels, inner, outer*g.window_outer_x + inner*g.window_inner_x,
              outer*g.window_outer_y + inner*g.window_inner_y)
        self.at = [k.variable(i32, x) for x in at]
        self.wrap = (g.window_outer_x - g.window_inner*g.window_inner_x,
                     g.window_outer_y - g.window_inner*g.window_inner_y)

    def blocks(self, COUNT: int) -> list[tuple[Value, ...]]:
        """The coordinates of the next COUNT blocks along k."""
        k, g, blocks_of_tile = self.k, self.g, list[tuple[Value, ...]]()
        step, channel, inner, x, y = (at.get() for at in self.at)
        for _ in range(COUNT):
            blocks_of_tile.append((channel, *self.pixel, k.select(step < g.k, self.image, NONE), x, y))
            step, channel = step + self.ROW, channel + self.ROW
            turned = channel >= g.window_channels
            channel, inner = k.select(turned, 0, channel), k.select(turned, inner + 1, inner)
            x, y = k.select(turned, x + g.window_inner_x, x), k.select(turned, y + g.window_inner_y, y)
            ended = inner >= g.window_inner
            inner = k.select(ended, 0, inner)
            x, y = k.select(ended, x + self.wrap[0], x), k.select(ended, y + self.wrap[1], y)
        for at, value in zip(self.at, (step, channel, inner, x, y)):
            at.set(value)
        return blocks_of_tile
