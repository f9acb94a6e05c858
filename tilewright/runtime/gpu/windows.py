"""A gathered operand that is windows of images, as convolutions have them: what Hopper's tensor maps of images and the
kernel that copies by them (kernels/nvidia/wgmma_windows.py) are told."""
from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.targets.tensor_maps import PIECE, ImageMap, Tile

if TYPE_CHECKING:
    from tilewright.runtime.gpu.gathered import Axes, Gather

ALONE = 1, 0                    # an axis of one element
FURTHEST = 255                  # columns, or rows, from a window's first one


class Windows(NamedTuple):
    """Images and their windows. `map` has a tile in place of the plan's; `values` are the kernel's parameters."""
    map: ImageMap
    values: dict[str, Any]

    @property
    def channels(self) -> int:
        return self.map.dims[0]


class _Axis(NamedTuple):
    """Columns or rows of images: how many, elements from one to the next, pixels of the result and numbers of a window
    along it, and how many columns of the image from each to the next."""
    size: int
    stride: int
    step: int
    dilation: int
    last: int


def windows(gather: Gather, item: int, batch: int = 1, apart: int = 0) -> Windows | None:
    """The images of an operand of elements of `item` bytes, whose `batch` matrices are `apart` elements from each
    other; None where rows and steps of k are not those of windows that a tensor map has."""
    rows, steps = (tuple(x for x in axes if x[0] > 1) for axes in (gather.rows, gather.steps[:-1]))
    channels, stride = gather.steps[-1]
    several = batch > 1 and apart != 0
    if stride != 1 or len(rows) > 3 - several or len(steps) > 2 or gather.vector * item < PIECE:
        return None
    image, *pixels = (batch, apart) if several else ALONE, *_filled(rows, 2)
    if len(rows) == 3:
        image, *pixels = rows
    taps = _filled(steps, 2)
    for outer, inner in ((0, 1), (1, 0)):       # which of them is along rows, and which along columns
        y, x = (_axis(*pixel, *taps[tap], PIECE // item) for pixel, tap in zip(pixels, (outer, inner)))
        if y is None or x is None:
            continue
        along = {(outer, "y"): y.dilation, (inner, "x"): x.dilation}
        tile = Tile(f"i{8 * item}", (PIECE // item, 1), images=True)
        strides = x.stride * item, y.stride * item, image[1] * item or PIECE
        images = ImageMap(tile, (channels, x.size, y.size, image[0]), strides, (x.last, y.last), (x.step, y.step))
        if not any(images.violations()):
            wide, high = images.pixels
            return Windows(images, {"images": images} | {f"window_{name}": value for name, value in {
                "channels": channels, "inner": taps[1][0], "wide": wide, "pixels": wide * high, "step_x": x.step,
                "step_y": y.step, **{f"{axis}_{way}": along.get((tap, way), 0) for way in "xy" for tap, axis in (
                    (0, "outer"), (1, "inner"))}}.items()})
    return None


def _filled(axes: Axes, count: int) -> Axes:
    """With axes of one element in front."""
    return (ALONE,) * (count - len(axes)) + axes


def _axis(pixels: int, apart: int, taps: int, between: int, least: int) -> _Axis | None:
    """Columns (rows) of images with so many pixels and numbers of a window, elements from each to the next; None where
    no distance divides both, or windows are too long. `least`: elements that distances are multiples of."""
    if taps == 1:
        return _Axis(pixels, apart if pixels > 1 else least, 1, 0, 0)
    if pixels > 1 and not apart * between:
        return None
    stride = gcd(apart, between) if pixels > 1 else between
    step, dilation = (apart // stride if pixels > 1 else 1), between // stride
    reach = (taps - 1) * dilation
    if taps * dilation > FURTHEST:
        return None
    return _Axis((pixels - 1) * step + reach + 1, stride, step, dilation, -reach)
