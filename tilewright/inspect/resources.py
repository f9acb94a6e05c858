"""What a compiled kernel uses, read from LLVM's assembly text: its hot loop, and the FMAs, loads, registers and spills.

The hot loop is the innermost loop with the most FMAs. Loops are found in the control flow graph, not by the order of
the text: LLVM places blocks where it likes. x86-64 in AT&T syntax, AArch64 and PTX, as LLVM prints them.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class HotLoop:
    """One round of the loop, counted. A kernel that unrolls K steps has K times the FMAs of one step."""
    function: str
    text: str
    fma: int                # vector FMA instructions, and those that multiply and add words
    loads: int              # whole vectors read from memory, also by an FMA itself
    elements: int           # single elements read from memory: broadcasts, and scalars that an FMA takes by lane
    stores: int             # vectors written to memory
    registers: int          # different vector registers
    hot_spills: int         # vectors moved to or from the stack in this loop
    spills: int             # the same in any loop of the function
    stack_vectors: int      # the same anywhere in it

    shared = 0                  # bytes of a workgroup's memory, which CPUs do not have

    @property
    def fma_per_load(self) -> float:
        return self.fma / max(self.loads + self.elements, 1)

    @property
    def counts(self) -> dict[str, int]:
        """The counts by names for readers."""
        return {"vector FMAs": self.fma, "vector loads": self.loads, "element loads": self.elements,
                "stores": self.stores, "vector registers": self.registers, "spills": self.spills}


def functions(asm: str) -> list[str]:
    """The names of the functions in an assembly text, in its order."""
    return re.findall(r"^\s*\.type\s+([\w.$]+),\s*[@%]function", asm, re.M)


def hot_loop(asm: str, function: str | None = None) -> HotLoop:
    """The hot loop of a function, or of the whole text. ValueError where there is no loop."""
    if function is None:
        candidates = []
        for name in functions(asm):
            with suppress(ValueError):          # no loop in this one
                candidates.append(hot_loop(asm, name))
        if not candidates:
            raise ValueError("no function in this assembly has a loop")
        return max(candidates, key=lambda loop: loop.fma)
    body = _body(asm, function)
    dialect = _X86(body) if re.search(r"%[a-z]", "\n".join(body)) else _AArch64(body)
    blocks = _blocks(body, dialect)
    loops = _loops(_edges(blocks, dialect))
    if not loops:
        raise ValueError(f"{function} has no loop")
    innermost = _innermost(loops)

    def count(nodes: Iterable[int]) -> _Counts:
        return dialect.count(line for node in nodes for line in blocks[node][1])
    counts = [count(nodes) for nodes in innermost]
    # without FMAs, in packing say, the loop that moves the most vectors: one that stores zeros moves none
    best = max(range(len(counts)), key=lambda n: (
        counts[n].fma, counts[n].loads + counts[n].elements > 0, counts[n].loads + counts[n].stores))
    hot, in_loops = counts[best], count(set().union(*loops.values()))
    return HotLoop(function, _text(blocks, innermost[best]), hot.fma, hot.loads, hot.elements, hot.stores,
                   len(hot.registers), hot.stack, in_loops.stack, count(range(len(blocks))).stack)


def ptx_functions(ptx: str) -> list[str]:
    """The names of the kernels in a PTX text, in its order."""
    return re.findall(r"^\.visible \.entry ([\w$]+)", ptx, re.M)


@dataclass(frozen=True)
class Loop:
    """One round of a GPU kernel's main loop: what each thread, or wave, does."""
    function: str
    text: str
    counts: dict[str, int]          # how many instructions of each kind


def ptx_loop(ptx: str, function: str | None = None) -> Loop:
    """The innermost loop with the most multiply-adds, and among equals with the most instructions, of a kernel or of
    the whole text; a wait for an mbarrier is none. It is PTX: the assembler may unroll it further. ValueError where
    there is none."""
    if function is None:
        loops = []
        for name in ptx_functions(ptx):
            with suppress(ValueError):
                loops.append(ptx_loop(ptx, name))
        if not loops:
            raise ValueError("no kernel in this PTX has a loop")
        return max(loops, key=lambda loop: loop.counts["FMAs"] + loop.counts["MMAs"])
    match = re.search(rf"^\.visible \.entry {re.escape(function)}\(.*?^\{{$(.*?)^\}}$", ptx, re.M | re.S)
    if not match:
        raise ValueError(f"no kernel {function} in this PTX; there are: {', '.join(ptx_functions(ptx))}")
    lines = (re.sub(r"\s*//.*", "", line).strip() for line in match[1].splitlines())
    body = [line for line in lines if line and not line.startswith(".")]
    blocks = _blocks(body, _Ptx())
    every = _loops(_edges(blocks, _Ptx()))
    innermost = _innermost({header: nodes for header, nodes in every.items() if not (
        len(nodes) == 1 and any(_WAIT.match(line) for line in blocks[header][1]))})
    if not innermost:
        raise ValueError(f"{function} has no loop")
    rounds = [(Counter(_ptx_kind(line) for node in nodes for line in blocks[node][1]), nodes) for nodes in innermost]
    counts, nodes = max(rounds, key=lambda each: (each[0]["FMAs"] + each[0]["MMAs"], each[0].total()))
    return Loop(function, _text(blocks, nodes), {kind: counts[kind] for kind in (*_PTX_KINDS, "others")})


_PTX_KINDS = {
    "FMAs": r"fma\.", "MMAs": r"mma\.|.*\bwgmma\.mma_async\.", "shared loads": r"ld\.shared|ldmatrix",
    "shared stores": r"st\.shared",
    "global loads": r"ld\.global|tex\.", "global stores": r"st\.global|red\.|atom\.", "local memory": r"(ld|st)\.local",
    "copies in flight": r"cp\.async\.(ca|cg|bulk)\.", "barriers": r"(mbarrier|barrier|bar)\."}
_WAIT = re.compile(r"mbarrier\.(try|test)_wait\.")


def _ptx_kind(line: str) -> str:
    instruction = re.sub(r"^@!?%\w+\s+", "", line)
    return next((kind for kind, pattern in _PTX_KINDS.items() if re.match(pattern, instruction)), "others")


def amd_body(text: str, function: str) -> list[str]:
    """The instructions and labels of an AMD GPU's kernel, without comments and directives. ValueError if it is not
    there."""
    lines = (line.split(";")[0].strip() for line in _lines(text, function, "kernel"))
    return [line for line in lines if line and (line.endswith(":") or not line.startswith("."))]


def amd_loop(text: str, function: str) -> list[str]:
    """The instructions of its main loop: the innermost loop with the most matrix instructions, and among equals with
    the most instructions. ValueError where there is no loop."""
    blocks = _blocks(amd_body(text, function), _Amdgcn())
    innermost = _innermost(_loops(_edges(blocks, _Amdgcn())))
    if not innermost:
        raise ValueError(f"{function} has no loop")
    rounds = [[line for node in nodes for line in blocks[node][1]] for nodes in innermost]
    return max(rounds, key=lambda lines: (sum(line.startswith(("v_mfma", "v_smfma")) for line in lines), len(lines)))


# ---- text to blocks to loops

def _innermost(loops: dict[int, set[int]]) -> list[list[int]]:
    """The blocks of the loops that hold no other loop."""
    return [sorted(nodes) for header, nodes in loops.items()
            if not any(other in nodes for other in loops if other != header)]


def _text(blocks: list[tuple[str, list[str]]], nodes: list[int]) -> str:
    return "\n".join("\n".join([f"{label}:"] * bool(label) + [f"\t{line}" for line in instructions])
                     for label, instructions in (blocks[node] for node in nodes))


def _body(asm: str, function: str) -> list[str]:
    """The instructions and labels between `name:` and the end of the function, without comments and directives."""
    lines = (_COMMENT.sub("", line) if "#" in line or "//" in line else line for line in _lines(asm, function))
    return [line.strip() for line in lines if line.strip() and not _DIRECTIVE.match(line)]


def _lines(asm: str, function: str, what: str = "function") -> list[str]:
    match = re.search(rf"^{re.escape(function)}:(.*?)^\.Lfunc_end", asm, re.M | re.S)
    if not match:
        raise ValueError(f"no {what} {function} in this assembly; there are: {', '.join(functions(asm))}")
    return match[1].splitlines()


_COMMENT, _DIRECTIVE = re.compile(r"\s*(#\s|//|##).*"), re.compile(r"\s+\.|\s*#")


def _blocks(body: list[str], dialect: _Dialect) -> list[tuple[str, list[str]]]:
    """(label, instructions), in the order of the text. A block ends at a branch, and may have no label."""
    blocks: list[tuple[str, list[str]]] = [("", [])]
    for line in body:
        if line.endswith(":"):
            blocks.append((line[:-1], []))
        else:
            blocks[-1][1].append(line)
            if dialect.branch.match(line):
                blocks.append(("", []))
    return [block for block in blocks if block != ("", [])]


def _edges(blocks: list[tuple[str, list[str]]], dialect: _Dialect) -> list[set[int]]:
    """The blocks that follow each block."""
    index = {label: n for n, (label, _) in enumerate(blocks)}
    successors: list[set[int]] = []
    for n, (_, lines) in enumerate(blocks):
        last = lines[-1] if lines else ""
        targets = {index[label] for label in re.findall(r"[.$]L_*BB\w+", last)} if dialect.branch.match(last) else set()
        falls = n + 1 < len(blocks) and not dialect.leaves.match(last)
        successors.append(targets | ({n + 1} if falls else set()))
    return successors


def _loops(successors: list[set[int]]) -> dict[int, set[int]]:
    """Natural loops: header → blocks. A back edge leads to a block that every path to its source goes through."""
    count = len(successors)
    predecessors: list[set[int]] = [set() for _ in range(count)]
    for n, following in enumerate(successors):
        for s in following:
            predecessors[s].add(n)
    everyone = (1 << count) - 1
    dominators = [1] + [everyone] * (count - 1)             # sets of blocks, as bits
    changed = True
    while changed:
        changed = False
        for n in range(1, count):
            # LLVM removes blocks that nothing reaches, so every block has predecessors
            common = everyone if predecessors[n] else 0
            for p in predecessors[n]:
                common &= dominators[p]
            if common | 1 << n != dominators[n]:
                dominators[n], changed = common | 1 << n, True
    loops: dict[int, set[int]] = {}
    for n in range(count):
        for header in (s for s in successors[n] if dominators[n] >> s & 1):
            nodes = loops.setdefault(header, {header})
            pending = [n]
            while pending:
                node = pending.pop()
                if node not in nodes:
                    nodes.add(node)
                    pending.extend(predecessors[node])
    return loops


# ---- instructions

class _Counts:
    def __init__(self) -> None:
        self.fma = self.loads = self.elements = self.stores = self.stack = 0
        self.registers: set[int] = set()


class _Dialect:
    branch: re.Pattern
    leaves: re.Pattern          # an instruction after which the next one is not reached

    def count(self, lines: Iterable[str]) -> _Counts:
        counts = _Counts()
        for line in lines:
            if not line.endswith(":"):
                mnemonic, _, operands = line.partition("\t") if "\t" in line else line.partition(" ")
                self.instruction(counts, mnemonic, operands)
        return counts

    def instruction(self, counts: _Counts, mnemonic: str, operands: str) -> None:
        raise NotImplementedError


class _X86(_Dialect):
    branch = re.compile(r"j\w+\s")
    leaves = re.compile(r"(jmp|ret|ud2|hlt)")
    fma = re.compile(r"vf(n?)m(add|sub)\d{3}p[sd]|vpdp(bu|ws)sd|vdpbf16ps|vpmaddwd")
    element = re.compile(r"vbroadcast|vpbroadcast|vmovddup|vmovs[sd]$|vf\w+s[sd]$|v(add|sub|mul)s[sd]$")

    def __init__(self, body: list[str]) -> None:
        # %rbp is a register like any other, unless the function keeps its frame there
        frame = any(re.match(r"movq\s+%rsp, %rbp", line) for line in body)
        self.stack = re.compile(r"\(%r[sb]p" if frame else r"\(%rsp")

    def instruction(self, counts: _Counts, mnemonic: str, operands: str) -> None:
        if mnemonic == "{vex}":                             # how the assembler is to encode it
            mnemonic, _, operands = operands.partition("\t")
        registers = re.findall(r"%[xyz]mm(\d+)", operands)
        counts.registers |= {int(r) for r in registers}
        if not registers:
            return
        counts.fma += bool(self.fma.match(mnemonic))
        if "(" not in operands:
            return
        counts.stack += bool(self.stack.search(operands))
        if re.search(r"\)(\s*\{%k\d\})?$", operands):       # memory comes last where it is written
            counts.stores += 1
        elif "{1to" in operands or self.element.match(mnemonic):
            counts.elements += 1
        else:
            counts.loads += 1


class _Ptx(_Dialect):
    branch = re.compile(r"(@!?%p\d+ )?bra")
    leaves = re.compile(r"(bra|ret|exit|trap)")


class _Amdgcn(_Dialect):
    branch = re.compile(r"s_c?branch")
    leaves = re.compile(r"s_(branch|endpgm)")


class _AArch64(_Dialect):
    branch = re.compile(r"(b(\.\w+)?|cbn?z|tbn?z)\s")
    leaves = re.compile(r"(b\s|ret|br\s|brk)")

    def __init__(self, body: list[str]) -> None:
        frame = any(re.match(r"(mov\s+x29, sp|add\s+x29, sp)", line) for line in body)
        self.stack = re.compile(r"\[(sp|x29)\b" if frame else r"\[sp\b")

    def instruction(self, counts: _Counts, mnemonic: str, operands: str) -> None:
        registers = re.findall(r"\b([vqds])(\d+)\b", operands)
        counts.registers |= {int(r) for _, r in registers}
        if not registers:
            return
        counts.fma += mnemonic in ("fmla", "fmls")
        if "[" not in re.sub(r"\.\w\[\d+\]", "", operands):
            return
        moved = len(registers)
        vectors = all(kind in "qv" for kind, _ in registers)
        # callee-saved registers are their lower halves: a whole vector on the stack is a spill
        counts.stack += moved * (vectors and bool(self.stack.search(operands)))
        if mnemonic.startswith("st"):
            counts.stores += moved * vectors
        elif mnemonic == "ld1r" or not vectors or re.search(r"\}\[\d+\]", operands):
            counts.elements += moved
        else:
            counts.loads += moved
