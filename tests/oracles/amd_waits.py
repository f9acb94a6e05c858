"""Whether AMD's machine code waits for what it uses: one workgroup's instructions are followed, without data.

    findings = amd_waits.findings(function, target, {"m": 256, "a": Memory(1 << 20), ...}, grid=(4, 1, 1))

The simulator checks a kernel as it is recorded. What LLVM made of it is followed here, from the first instruction to
the last, with all that is under way at every point: loads and stores (vmcnt), accesses to LDS and scalar loads
(lgkmcnt). Each wave is taken to be as fast or as slow as barriers let it be. Found are

- registers that are used while a load into them is under way,
- words of LDS that a wave reads before others have written them for certain: they had to wait for their stores, or for
  their loads straight into LDS, and then come to a barrier; and words that are written while somebody may still read;
- words of LDS that nobody wrote, places beyond what the kernel declares, loads to LDS that outlive the workgroup;
- addresses in global memory beyond what the arguments have, as hardware forms them: in buffers a base of 48 bits, and
  offsets of 32 that are compared with the buffer's size;
- matrix instructions, transposing reads, loads to LDS and barriers in waves some of whose lanes are off, and values
  that are taken to be the same in all lanes and are not;
- distances that the ISA guides ask for and hardware does not keep: m0 and scalar registers before the loads that take
  them, matrix instructions before what reads their results.

Sources: AMD Instinct MI300 and CDNA4 ISA guides, 4.4 "Manually Inserted Wait States", 4.5, 9.1.5 and 9.1.9.
"""
from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.oracles.amd_integers import LOW, WAVE, Instruction, instruction, registers
from tests.oracles.amd_lanes import Lanes, Unknown
from tests.oracles.amd_lds import Access, Lds, Places
from tilewright.compiler import amd
from tilewright.inspect import amd_cycles
from tilewright.inspect.resources import amd_body
from tilewright.ir.ops.amd import RAW

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.targets import AmdTarget

MOST = 200_000                  # instructions, in case they never end
ARGUMENTS = 1 << 46             # where the kernel's arguments lie
_LDS = re.compile(r"ds_(read|write)(2st64|2)?_(?:[bui](\d+))(?:_tr_b(\d+))?$")
_MEMORY = re.compile(r"(?:global|buffer)_(?:load|store|atomic)_"
                     r"(?:(dword)(?:x(\d))?|[su]?(byte|short)(?:_d16(?:_hi)?)?|\w+)$")
SGPR_TO_MEMORY = 5              # wait states between a vector instruction that writes it and a load that takes it


@dataclass(frozen=True)
class Memory:
    """An argument that points to so many bytes."""
    bytes: int


def findings(function: Function, target: AmdTarget, arguments: dict[str, Any], grid: tuple[int, int, int],
             block: tuple[int, int, int] = (0, 0, 0), *, text: str | None = None, returned: int = 0) -> list[str]:
    """What is wrong with this kernel's code as workgroup `block` executes it, each thing once. `arguments`: numbers,
    and `Memory`. `returned`: what atomic operations answer. Unknown where the code cannot be followed."""
    text = amd.assembly(function, target) if text is None else text
    assert function.threads is not None
    found = _Workgroup(function, target, text, arguments, grid, returned)
    found.run(block)
    return list(found.findings)


class _Workgroup:
    def __init__(self, function: Function, target: AmdTarget, text: str, arguments: dict[str, Any],
                 grid: tuple[int, int, int], returned: int) -> None:
        self.target, self.returned = target, returned
        x, y = function.threads or (1, 1)
        self.shape, self.lanes = (x, y), Lanes(-(-x*y // WAVE))
        lines = amd_body(text, function.name)
        self.labels = {line[:-1]: n - i for i, (n, line) in enumerate(
            (n, line) for n, line in enumerate(lines) if line.endswith(":"))}
        self.code = [instruction(line) for line in lines if not line.endswith(":")]
        told = text[text.index(f".amdhsa_kernel {function.name}\n"):]
        self.told = dict(re.findall(r"^\s*\.amdhsa_(\w+) (\d+)$", told, re.M))
        self.regions: list[tuple[int, int]] = []
        self.arguments = self._arguments(amd.manifest(function, target, None, text), arguments, grid)
        self.findings: dict[str, None] = {}
        self.issued = self.states = 0                           # accesses, and wait states
        self.memory: list[Access] = []                          # under way, by the counter that hears of them
        self.local: list[Access] = []
        self.pending: dict[str, Access] = {}                    # registers that an access will fill
        self.spilled: dict[int, Any] = {}
        self.lds = Lds(int(self.told["group_segment_fixed_size"]) // 4, self.lanes.waves)
        self.results: dict[str, int] = {}                       # from which state on a register may be read
        self.scalars: dict[str, int] = {}                       # states in which vector instructions wrote them

    def _arguments(self, manifest: dict[str, Any], given: dict[str, Any], grid: tuple[int, int, int]) -> bytes:
        size = int(self.told["kernarg_size"])
        found = bytearray(size)
        for row in manifest["arguments"]:
            value = given[row["name"]]
            if isinstance(value, Memory):       # a carry lies in its way
                begin = (len(self.regions) + 1 << 40) + 0xFFFF_F000
                self.regions.append((begin, begin + value.bytes))
                value = begin
            form = {"f32": "<f", "f64": "<d"}.get(row["type"], "<i" if row["size"] == 4 else "<q")
            struct.pack_into(form, found, row["offset"], value)
        hidden = -(-manifest["argument_bytes"] // 8) * 8
        if size >= hidden + 12:                 # hidden_block_count_x, _y, _z
            struct.pack_into("<3i", found, hidden, *grid)
        return bytes(found)

    def run(self, block: tuple[int, int, int]) -> None:
        lanes, t = self.lanes, np.arange(self.lanes.waves*WAVE, dtype=np.uint64).reshape(-1, WAVE)
        packed = int(self.told["system_vgpr_workitem_id"]) > 0
        lanes.values["v0"] = t % self.shape[0] | (t // self.shape[0] << 10 if packed else np.uint64(0))
        lanes.set("s[0:1]", np.full((1, 1), ARGUMENTS, np.uint64))
        place = int(self.told["user_sgpr_count"])
        for axis, number in zip("xyz", block):
            if int(self.told[f"system_sgpr_workgroup_id_{axis}"]):
                lanes.set(f"s{place}", np.full((1, 1), number, np.uint64))
                place += 1
        at = 0
        for _ in range(MOST):
            x = self.code[at]
            if x.name == "s_endpgm":
                if any(each.writes is not None for each in self.memory):
                    self._find("the workgroup ends while a load straight into LDS is under way", x)
                return
            at += 1
            if x.name.startswith(("s_branch", "s_cbranch")):
                if lanes.jumps(x.name):
                    at = self.labels[x.operands[0]]
            else:
                self._step(x, self.code[at - 2])
            self.states += int(x.operands[0], 0) + 1 if x.name == "s_nop" else 1
        raise Unknown(f"the end, after {MOST} instructions")

    def _find(self, what: str, x: Instruction) -> None:
        self.findings[f"{what}: {x.text}"] = None

    def _all(self, wrong: list[str], x: Instruction) -> None:
        for what in wrong:
            self._find(what, x)

    def _step(self, x: Instruction, before: Instruction) -> None:
        name = x.name
        if name == "s_waitcnt":
            for counter, left in re.findall(r"(vm|lgkm)cnt\((\d+)\)", x.text):
                self._wait(self.memory if counter == "vm" else self.local, int(left))
        elif name == "s_barrier":
            self._full(x)
            self.lds.barriers += 1
        elif name.startswith(("ds_", "s_load", "global_", "buffer_load", "buffer_store", "buffer_atomic", "scratch_")):
            self._access(x, before)
        elif name.startswith("flat_"):
            raise Unknown(f"what {x.text} means")
        elif not name.startswith(("s_nop", "s_set", "s_sleep", "buffer_wbl2", "buffer_inv")):
            self._settled(x, x.registers)
            if name.startswith("v_mfma"):
                self._full(x)
                passes = amd_cycles.step(x.text, self.target).cycles // amd_cycles.TURN
                self.lanes.set(x.operands[0], None)
                self.results |= dict.fromkeys(registers(x.operands[0]), self.states + passes + 3)
                return
            if name == "v_readfirstlane_b32" and not self._alike(x.operands[1]):
                self._find("a register whose lanes differ is taken for a scalar one", x)
            self.lanes.execute(x)
            if name.startswith("v_"):
                two = "_co_" in name or name.startswith(("v_mad_u64", "v_mad_i64"))
                self.scalars |= {each: self.states for operand in x.operands[:1 + two] for each in registers(operand)
                                 if each[0] == "s" or not each[1].isdigit()}

    def _alike(self, operand: str) -> bool:
        """Whether all lanes of a wave that are on have the same, if that is known."""
        value, on = self.lanes.get(operand), self.lanes.mask("exec")
        if value is None:
            return True
        first = np.take_along_axis(np.broadcast_to(value, on.shape), on.argmax(1)[:, None], 1)
        return not (on & (value != first)).any()

    def _full(self, x: Instruction) -> None:
        if not self.lanes.mask("exec").all():
            self._find("some lanes are off", x)

    def _settled(self, x: Instruction, used: Any) -> None:
        """Nothing is under way to the registers that are used, and results of matrix instructions have arrived."""
        matrix = x.name.startswith("v_mfma")
        for name in used:
            if name in self.pending:
                self._find(f"{name} is used before {self.pending[name].text} has been waited for", x)
            if not matrix and self.results.get(name, 0) > self.states:
                self._find(f"{name} is used too early after a matrix instruction", x)

    def _wait(self, queue: list[Access], left: int) -> None:
        if left and any(each.scalar for each in queue):
            return
        while len(queue) > left:
            done = queue.pop(0)
            for name in done.registers:
                if self.pending.get(name) is done:
                    del self.pending[name]
            self.lds.done(done)

    # ---- accesses

    def _access(self, x: Instruction, before: Instruction) -> None:
        self.issued += 1
        load = "load" in x.name or "read" in x.name or (x.name.startswith("global_atomic") and "sc0" in x.flags)
        straight = "lds" in x.flags
        fills = registers(x.operands[0]) if load and not straight else ()
        self._settled(x, [name for operand in x.operands[bool(fills):] for name in registers(operand)])
        each = Access(x.text, self.issued, fills)
        value: Any = None
        if x.name.startswith("s_load"):
            each.scalar = True
            self._argument(x)
        elif x.name.startswith("ds_"):
            value = self._lds(x, each)
        elif x.name.startswith("scratch_"):
            self._spilled(x, load)
        else:
            self._memory(x, each, before)
            if "atomic" in x.name:
                value = np.full((1, 1), self.returned, np.uint64)
        if fills:
            if not (each.scalar or x.name.startswith("scratch_")):
                self.lanes.set(x.operands[0], value)
            self.pending |= dict.fromkeys(fills, each)
        (self.local if x.name.startswith(("ds_", "s_load")) else self.memory).append(each)

    def _spilled(self, x: Instruction, load: bool) -> None:
        """Registers that LLVM keeps in memory, each at an offset that is written in the instruction."""
        names, far = registers(x.operands[not load]), int(x.modifiers.get("offset", 0))
        if set(x.operands[1:] if load else x.operands[::2]) != {"off"}:
            raise Unknown(f"the address of {x.text}")
        for word, name in enumerate(names):
            if load:
                self.lanes.set(name, self.spilled.get(far + 4*word))
            else:
                self.spilled[far + 4*word] = self.lanes.get(name)

    def _argument(self, x: Instruction) -> None:
        at = self.lanes.uniform(x.operands[1], 64) + int(x.operands[2], 0) - ARGUMENTS
        names = registers(x.operands[0])
        words = self.arguments[at:at + 4*len(names)] if at >= 0 else b""
        if len(words) < 4*len(names):
            self._find("beyond the arguments", x)
        for name, (word,) in zip(names, struct.iter_unpack("<I", words)):
            self.lanes.set(name, np.full((1, 1), word, np.uint64))

    def _lds(self, x: Instruction, access: Access) -> Any:
        found = _LDS.match(x.name)
        if not found:                                           # lanes exchange
            return None
        verb, pair, bits, turned = found.groups()
        bytes, load = int(bits) // 8, verb == "read"
        if turned:
            self._full(x)
        start = self.lanes.get(x.operands[load])
        if start is None:
            raise Unknown(f"the address of {x.text}")
        step = bytes * (64 if pair == "2st64" else 1)
        offsets = [int(x.modifiers.get("offset", 0))]
        if pair:
            offsets = [int(x.modifiers.get(f"offset{n}", 0))*step for n in (0, 1)]
        at = np.stack([start.astype(np.int64) + offset + byte for offset in offsets for byte in range(0, bytes, 4)], -1)
        words = np.broadcast_to(at & LOW, (self.lanes.waves, WAVE, at.shape[-1])) // 4
        on, single = self.lanes.mask("exec"), bytes == 4 and not pair
        if not self._inside(x, words):
            return None
        if load:
            self._all(self.lds.reads(access, words, on), x)
            known = single and (self.lds.data[words] >= 0).all()
            return self.lds.data[words[..., 0]].astype(np.uint64) if known else None
        self._all(self.lds.writes(access, words, on, straight=False), x)
        if single and (data := self.lanes.get(x.operands[1])) is not None:
            self.lds.data[words[..., 0][on]] = np.broadcast_to(data, on.shape)[on].astype(np.int64)
        return None

    def _inside(self, x: Instruction, words: Places) -> bool:
        used = words[self.lanes.mask("exec")]
        inside = not used.size or 0 <= used.min() <= used.max() < self.lds.words
        if not inside:
            self._find("beyond the kernel's LDS", x)
        return bool(inside)

    def _memory(self, x: Instruction, access: Access, before: Instruction) -> None:
        found = _MEMORY.match(x.name)
        if not found:
            raise Unknown(f"what {x.text} means")
        dword, many, part = found.groups()
        bytes = 4*int(many or 1) if dword else {"byte": 1, "short": 2}.get(part, 4)
        for name in (name for operand in x.operands for name in registers(operand)):
            if self.states - self.scalars.get(name, -SGPR_TO_MEMORY - 1) <= SGPR_TO_MEMORY:
                self._find(f"{name} is used too early after a vector instruction", x)
        at = self._buffer(x, bytes) if x.name.startswith("buffer") else self._global(x, bool(access.registers))
        on = self.lanes.mask("exec")
        at = np.broadcast_to(at, on.shape)[on]
        inside = np.zeros(at.shape, bool)
        for begin, end in self.regions:
            inside |= (at >= begin) & (at + bytes <= end)
        if not inside.all():
            self._find("beyond the arguments' memory", x)
        if "lds" in x.flags:
            self._full(x)
            start = self.lanes.get("m0")
            if start is None:
                raise Unknown(f"m0 of {x.text}")
            if "m0" in before.operands[:1]:
                self._find("m0 is used too early", x)
            first = start.astype(np.int64) + (np.arange(WAVE)*bytes + int(x.modifiers.get("offset", 0)))
            words = np.broadcast_to((first[..., None] + np.arange(0, bytes, 4)) // 4, (*on.shape, bytes // 4))
            if self._inside(x, words):
                self._all(self.lds.writes(access, words, on, straight=True), x)

    def _global(self, x: Instruction, loads: bool) -> Any:
        far, base = x.operands[loads], x.operands[-1]
        parts = [self.lanes.get(far, 64 if base == "off" else 32)]
        parts += [] if base == "off" else [self.lanes.get(base, 64)]
        if any(part is None for part in parts):
            raise Unknown(f"the address of {x.text}")
        return sum(part.astype(np.int64) for part in parts if part is not None) + int(x.modifiers.get("offset", 0))

    def _buffer(self, x: Instruction, bytes: int) -> Any:
        """Where it reads: base + offsets, unless these reach beyond the size."""
        straight = "lds" in x.flags
        offset, resource, far = x.operands[:3] if straight else x.operands[1:4]
        words = [self.lanes.get(name) for name in registers(resource)]
        offsets = [self.lanes.get(each) for each, there in ((offset, "offen" in x.flags), (far, True)) if there]
        if any(each is None for each in words + offsets):
            raise Unknown(f"the address of {x.text}")
        low, high, size, kind = (each.astype(np.int64) for each in words)
        if (kind != RAW).any() or (high >> 16).any():
            self._find("not a buffer of bytes", x)
        *own, all = (each.astype(np.int64) for each in offsets)
        mine = sum(own) + int(x.modifiers.get("offset", 0))
        if (mine + bytes > size - all).any():
            self._find("beyond the buffer", x)
        return (low | high << 32) + all + mine
