"""The main loop of a kernel for an AMD GPU, read from its assembly: the innermost loop with the most matrix
instructions, and among equals with the most instructions."""
from __future__ import annotations

import re

from tilewright.inspect import resources


class _Amdgcn(resources._Dialect):
    branch = re.compile(r"s_c?branch")
    leaves = re.compile(r"s_(branch|endpgm)")


def body(text: str, function: str) -> list[str]:
    """The instructions and labels of a kernel, without comments and directives. ValueError if it is not there."""
    found = re.search(rf"^{re.escape(function)}:(.*?)^\.Lfunc_end", text, re.M | re.S)
    if not found:
        raise ValueError(f"no kernel {function} in this assembly")
    lines = (line.split(";")[0].strip() for line in found[1].splitlines())
    return [line for line in lines if line and (line.endswith(":") or not line.startswith("."))]


def main_loop(text: str, function: str) -> list[str]:
    """Its instructions. ValueError where there is no loop."""
    blocks = resources._blocks(body(text, function), _Amdgcn())
    innermost = resources._innermost(resources._loops(resources._edges(blocks, _Amdgcn())))
    if not innermost:
        raise ValueError(f"{function} has no loop")
    rounds = [[line for node in nodes for line in blocks[node][1]] for nodes in innermost]
    return max(rounds, key=lambda lines: (sum(line.startswith(("v_mfma", "v_smfma")) for line in lines), len(lines)))
