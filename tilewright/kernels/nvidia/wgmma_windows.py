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
    """Where the tiles of such an operand lie in the images."""

    def __init__(self, k: Kernel, g: SimpleNamespace) -> None:
        self.k, self.g = k, g

    def coordinates(self, step: Value, row: Value, matrix: Any = 0) -> tuple[Value, ...]:
        """The coordinates of the block of a tile that begins at this step of k and this row; `matrix`: number of the
        image that the rows of a batch's matrix begin in."""
        k, g = self.k, self.g
        place, channel = step // g.window_channels, step % g.window_channels
        image, pixel = row // g.window_pixels, row % g.window_pixels
        y, x = pixel // g.window_wide, pixel % g.window_wide
        outer, inner = place // g.window_inner, place % g.window_inner
        return (channel, x*g.window_step_x, y*g.window_step_y, k.select(step < g.k, image + matrix, NONE),
                outer*g.window_outer_x + inner*g.window_inner_x, outer*g.window_outer_y + inner*g.window_inner_y)
