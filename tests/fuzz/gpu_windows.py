"""Random convolutions on a GPU: einsum of windows of images, in any order of their axes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz.gpu_arrays import place
from tests.fuzz.gpu_kinds import KINDS, Case, Kind
from tilewright import formats


def features(rng: Random) -> Case:
    return {"format": rng.choice(["bf16", "bf16", "f16", "f32"]), "channels": rng.choice([64, 64, 128, 192, 32, 8, 5]),
            "memory": rng.choice(["gnhwc", "gnhwc", "ngwhc", "nghcw"]),
            "weights": rng.choice(["grtco", "ogrtc", "gcort"]),
            "result": rng.choice(["gnhwo", "gnhwo", "ngohw", "wngoh"])}


def draw(rng: Random, f: Case) -> Case:
    """Groups, images, pixels, windows, steps, dilations and outputs."""
    rows, columns, step, dilation = rng.choice([1, 2, 3, 3, 5]), rng.choice([1, 2, 3, 3]), rng.choice(
        [1, 1, 2, 3]), rng.choice([1, 1, 2])
    sizes = {"g": rng.choice([1, 1, 1, 2]), "n": rng.choice([1, 2, 3, 5]), "c": f["channels"],
             "h": (rows - 1) * dilation + rng.randint(1, 17), "w": (columns - 1) * dilation + rng.randint(1, 30),
             "o": rng.choice([8, 16, 24, 64, 72, 9])}
    return f | {"sizes": sizes, "window": [rows, columns], "step": step, "dilation": dilation,
                "data": rng.randrange(2**31)}


def check(on: Any, case: Case) -> None:
    """Whole numbers, so that sums are exact; the result may differ by its own rounding."""
    rng, size, dtype = np.random.default_rng(case["data"]), case["sizes"], formats.FORMATS[case["format"]].dtype
    (rows, columns), step, dilation = case["window"], case["step"], case["dilation"]
    size = size | {"r": rows, "t": columns, **{x: (size[x] - (taps - 1) * dilation - 1) // step + 1
                                               for x, taps in zip("hw", (rows, columns))}}
    images = rng.integers(-3, 4, [case["sizes"][x] for x in case["memory"]]).astype(dtype)
    there = place(on, images)
    apart = dict(zip(case["memory"], (x // images.itemsize for x in images.strides)))
    apart = apart | {"r": apart["h"] * dilation, "t": apart["w"] * dilation, "h": apart["h"] * step,
                     "w": apart["w"] * step}
    labels = "gnhwrtc"
    shape, strides = ([of[x] for x in labels] for of in (size, apart))
    begin = int(there.own.argmax())
    view = on.view(there.memory, begin, dtype, shape, strides)
    weights = rng.integers(-3, 4, [size[x] for x in case["weights"]]).astype(dtype)
    subscripts = f"{labels},{case['weights']}->{case['result']}"
    windows = np.lib.stride_tricks.as_strided(images.astype(np.float64), shape, [8 * x for x in strides])
    wanted = np.einsum(subscripts, windows, weights.astype(np.float64))
    out = place(on, np.zeros(wanted.shape, np.float32))
    tw.einsum(subscripts, view, place(on, weights).array, out=out.array)
    on.finish()
    np.testing.assert_array_equal(on.back(out.array), wanted)
    there.untouched("the images")
    out.untouched("the result", elements=False)


KINDS["convolutions"] = Kind(features, draw, check)
