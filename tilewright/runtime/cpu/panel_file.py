"""Files of packed operands: the panels of a `Packed`, and what the engine must know of them.

What a panel looks like depends on the plan's register tile and kc, on the format of its words and on the target; the
version of the file rises when the same plan packs otherwise.
"""
from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tilewright import __version__, targets
from tilewright.compiler.checked_file import PANELS, Kind, Refused, believed, made_for
from tilewright.formats.table import get
from tilewright.plans import asked
from tilewright.runtime.cpu import amx
from tilewright.text import plural

if TYPE_CHECKING:
    from tilewright.runtime.cpu.packed import Packed

FILE = Kind(PANELS, 1, "file of packed panels", "Packed.save", "pack and save them again")
FIELDS = {"tilewright": str, "target": str, "shape": list[int], "dtype": str, "a": str, "sums": str, "word": str,
          "plan": str, "asked": bool, "takes": list[str], "factor": float}


def save(packed: Packed, path: str | os.PathLike[str]) -> None:
    index = {"tilewright": __version__, "target": packed.target.name, "shape": list(packed.shape),
             "word": packed.word, "plan": str(packed.plan), "asked": packed._asked, "factor": float(packed._factor)}
    index |= {name: get(getattr(packed, name)).name for name in ("dtype", "a", "sums")}
    index |= {"takes": [get(x).name for x in packed._takes]}
    scales = {} if packed._scales is None else {"scales": np.ascontiguousarray(packed._scales)}
    FILE.save(path, index, {"panels": packed._panels} | scales)


def load(path: Path) -> Packed:
    """What `save` has written, on this machine. OSError; Refused for files that cannot be used here."""
    from tilewright.runtime.cpu import packed
    index, arrays = FILE.load(path, FIELDS)
    made_for(path, index["target"])
    target = amx.permitted(targets.coerce(index["target"], targets.CpuTarget))
    with believed(path):
        dtype, a, sums = (get(index[name]).dtype for name in ("dtype", "a", "sums"))
        left, right = (get(name).dtype for name in index["takes"])
        takes = left, right
        shape, plan = tuple(index["shape"]), asked.plan(index["plan"], target)
        layout = packed.layout(shape, takes, sums, plan, target, index["word"])
        panels, scales = arrays["panels"], arrays.get("scales")
        if panels.shape != (layout.bytes,):
            raise ValueError(f"it has {plural(panels.size, 'byte')} of panels, and this plan packs {layout.bytes:,}")
    if layout.word != index["word"]:
        raise Refused(f"{path} has panels of {index['word']}, and {target.name} multiplies {layout.word} here: "
                      f"{FILE.again}")
    found = packed.held(layout, shape, dtype, a, sums, plan, target, index["asked"], takes)
    found._panels[:] = panels
    return replace(found, _factor=index["factor"], _scales=None if scales is None else scales.copy())
