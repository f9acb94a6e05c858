"""The code that a kernel became, each line with the Python line that recorded it: by LLVM's debug locations."""
from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from tilewright.compiler import llvm
from tilewright.targets import CpuTarget, GpuTarget, Target

MOST = 6000             # lines of a listing
NAMES: dict[type, str] = {CpuTarget: "x86", GpuTarget: "PTX"}
Place = tuple[str, int]                 # file by its base name, line
Listing = list[tuple[str, Place | None]]
_META = re.compile(r",? ?!dbg !(\d+)")
_ENTRY = re.compile(r"^!(\d+) = (?:distinct )?!(\w+)\((.*)\)$")
_LOC = re.compile(r"\s*\.loc\s+(\d+) (\d+)")
_FILE = re.compile(r'\s*\.file\s+(\d+) (?:"[^"]*" )?"([^"]*)"')
_END = re.compile(r"\s*\.section\s+[\".]*(debug|note|AMDGPU)|\s*\.amdgpu_metadata|\s*\.amdhsa_kernel")
_NOISE = re.compile(r"\s*(\.(?!L)\w+|//|;|#)|\.L(func|tmp|debug|info|line)\w*:|\$L__(tmp|func)")


def listings(functions: Sequence[Any], target: Target) -> dict[str, Listing]:
    """By name of the language; without what a target cannot be compiled for here."""
    every = list(dict.fromkeys(called for function in functions for called in (*function.callees(), function)))
    name = NAMES.get(type(target), "GCN")
    try:
        return {"LLVM IR": ir(llvm.text(every, target, lines=True))[:MOST],
                name: assembly(llvm.assembly(every, target, lines=True))[:MOST]}
    except NotImplementedError:
        return {}


def ir(text: str) -> Listing:
    """LLVM IR, its debug locations taken out of the text."""
    entries = {int(x[1]): (x[2], x[3]) for x in map(_ENTRY.match, text.splitlines()) if x}

    def field(body: str, name: str) -> str:
        listing = re.search(rf'{name}: (?:"([^"]*)"|!?([\w-]+))', body)
        return "" if listing is None else listing[1] or listing[2]

    def file(number: int) -> str:
        kind, body = entries[number]
        if kind == "DIFile":
            return os.path.basename(field(body, "filename"))
        return file(int(field(body, "file")))

    def place(number: int) -> Place | None:
        kind, body = entries.get(number, ("", ""))
        return (file(int(field(body, "scope"))), int(field(body, "line"))) if kind == "DILocation" else None
    listing: Listing = []
    inside = False
    for line in text.splitlines():
        inside |= line.startswith("define")
        if not inside:
            continue
        number = None if line.startswith("define") else _META.search(line)
        listing.append((_META.sub("", line).rstrip(" ,").replace('"', ""), number and place(int(number[1]))))
        inside &= line != "}"
    return listing


def assembly(text: str) -> Listing:
    """Assembly or PTX without directives."""
    lines = text.splitlines()
    files = {x[1]: os.path.basename(x[2]) for x in map(_FILE.match, lines) if x}
    listing: Listing = []
    now: Place | None = None
    for line in lines:
        if _END.match(line):
            break
        if loc := _LOC.match(line):
            now = (files.get(loc[1], ""), int(loc[2])) if loc[2] != "0" else now
        elif not line.strip() or _NOISE.match(line):
            continue
        elif re.match(r"[.$]?\w+:", line):
            now = now if line.startswith((".", "$")) else None
            listing.append((line.rstrip(), None))
        else:
            listing.append((line.replace("\t", "    ").rstrip(), now))
    return listing
