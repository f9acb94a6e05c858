"""The registers of all waves of a workgroup, and how AMD's machine code changes them, as far as they are known.

`Lanes` executes one instruction after another. Numbers that come from memory are not known, nor is what becomes of
them, and instructions that are not in the tables (amd_integers) leave something unknown behind. So code can be followed
without data: where it branches, which lanes are on, which bytes an access means. compiler.amd_waits does that.
"""
from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.oracles import amd_integers as integers
from tests.oracles.amd_integers import LOW, WAVE, Bits, Instruction, as_bits, as_float, registers, signed

NOWHERE = np.uint64(0x7FDEAD00)     # stands for what lanes have that were off: no address of anything


class Unknown(Exception):
    """The code does something that depends on what is not known here."""


class Lanes:
    """The registers of so many waves, as far as they are known."""

    def __init__(self, waves: int) -> None:
        self.waves = waves
        self.values: dict[str, Bits] = {}
        self.single: dict[tuple[str, str], Bits] = {}       # scalar registers that are kept in a lane of a vector one
        self.set_mask("exec", np.ones((waves, WAVE), bool))

    def get(self, operand: str, bits: int = 32) -> Bits:
        """What an operand is, as far as so many bits go."""
        if operand == "scc" or (names := registers(operand)):
            names = ("scc",) if operand == "scc" else names
            parts: list[Any] = [self.values.get(name) for name in names[:bits // 32]]
            if any(part is None for part in parts) or operand[0] in "-|":
                return None
            return parts[0] if len(parts) == 1 else parts[0] | parts[1] << 32
        try:
            number = int(operand, 0)
        except ValueError:
            try:
                number = struct.unpack("<I", struct.pack("<f", float(operand)))[0]
            except ValueError:
                return None
        return np.full((1, 1), number & (1 << bits) - 1, np.uint64)

    def set(self, operand: str, value: Any) -> None:
        """A register or some of them; vector registers in lanes that are on. None: it is not known any more."""
        for word, name in enumerate(registers(operand)):
            if value is None:
                self.values.pop(name, None)
                continue
            part = as_bits(value) >> (32*word) & LOW
            if name[0] in "va" and name[1].isdigit():
                part = np.where(self.mask("exec"), part, self.values.get(name, NOWHERE))
            self.values[name] = part

    def mask(self, operand: str) -> NDArray[np.bool_]:
        """Lanes of a mask, bool[waves, lanes]."""
        bits = self.get(operand, 64)
        if bits is None:
            raise Unknown(f"the mask {operand}")
        return (np.broadcast_to(bits, (self.waves, 1)) >> np.arange(WAVE, dtype=np.uint64) & 1).astype(bool)

    def set_mask(self, operand: str, lanes: NDArray[np.bool_]) -> None:
        self.set(operand, (lanes.astype(np.uint64) << np.arange(WAVE, dtype=np.uint64)).sum(1, keepdims=True))

    def uniform(self, operand: str, bits: int = 32) -> int:
        """What is the same in all waves."""
        found = self.get(operand, bits)
        if found is None or (found != found.flat[0]).any():
            raise Unknown(f"{operand}, or it differs between waves")
        return int(found.flat[0])

    def jumps(self, name: str) -> bool:
        """Whether a branch of this name is taken. If some waves have lanes that are on, the others go with them: they
        do nothing on the way."""
        kind = name.rpartition("_")[2]
        if kind == "branch":
            return True
        if kind.startswith("exec"):
            return bool(self.mask("exec").any()) == (kind == "execnz")
        if kind.startswith("vcc"):
            return (self.uniform("vcc", 64) != 0) == (kind == "vccnz")
        return bool(self.uniform("scc")) == (kind == "scc1")

    def execute(self, x: Instruction) -> None:
        """Anything but branches, memory and waits."""
        name, compared = x.name[2:], integers.COMPARE.match(x.name)
        if compared:
            self._compare(x, *compared.groups())
        elif x.name.startswith("s_"):
            self._scalar(x, name)
        elif name == "writelane_b32":
            self.single[x.operands[0], x.operands[2]] = self.get(x.operands[1])
        elif name == "readlane_b32":
            self.set(x.operands[0], self.single.get((x.operands[1], x.operands[2])))
        elif name == "readfirstlane_b32":
            value, on = self.get(x.operands[1]), self.mask("exec")
            first = None if value is None else np.take_along_axis(
                np.broadcast_to(value, (self.waves, WAVE)), on.argmax(1)[:, None], 1)
            self.set(x.operands[0], first)
        elif name == "cndmask_b32":
            no, yes = (self.get(operand) for operand in x.operands[1:3])
            known = no is not None and yes is not None and self.get(x.operands[3], 64) is not None
            self.set(x.operands[0], np.where(self.mask(x.operands[3]), yes, no) if known else None)
        elif name in ("mad_u64_u32", "mad_i64_i32"):
            p, q, low = (self.get(operand) for operand in x.operands[2:])
            r = self.get(x.operands[4], 64)
            sign = signed if name == "mad_i64_i32" else as_bits
            product = None if p is None or q is None else as_bits(sign(p)*sign(q))
            self.set(x.operands[0], product + r if product is not None and r is not None else None)
            if product is not None and low is not None:         # also where half of r is whatever was there
                self.set(registers(x.operands[0])[0], product + low)
            self.set(x.operands[1], None)
        elif "_co_" in name:
            self._carried(x, name)
        else:
            self._vector(x, name)

    def _carried(self, x: Instruction, name: str) -> None:
        """v_add_co_u32 and its like: the first mask takes what is carried, the last brings it."""
        p, q = (self.get(operand) for operand in x.operands[2:4])
        bits = self.get(x.operands[4], 64) if len(x.operands) > 4 else np.zeros((1, 1), np.uint64)
        if p is None or q is None or bits is None:
            self.set(x.operands[0], None)
            self.set(x.operands[1], None)
            return
        carry = as_bits(self.mask(x.operands[4])) if len(x.operands) > 4 else bits
        p, q = (q, p) if "rev" in name else (p, q)
        value = p + q + carry if name.startswith("add") else p - q - carry
        lanes = np.broadcast_to(value >> 32 & 1, (self.waves, WAVE)).astype(bool) & self.mask("exec")
        self.set(x.operands[0], value)
        self.set_mask(x.operands[1], lanes)

    def _vector(self, x: Instruction, name: str) -> None:
        bits = 16 if name in integers.HALF else 64 if name in integers.WIDE else 32
        function = (integers.VECTOR | integers.HALF | integers.WIDE).get(name)
        if name.startswith("bitop3_"):
            code = int(x.modifiers["bitop3"], 0)
            bits, function = int(name[-2:]), lambda p, q, r: integers.table(p, q, r, code)
        sources = [self._selected(x, n, operand, bits) for n, operand in enumerate(x.operands[1:])]
        if function is None or any(s is None for s in sources) or x.modifiers.get("dst_sel", "DWORD") != "DWORD":
            self.set(x.operands[0], None)
            return
        value = as_bits(function(*sources))
        if "clamp" in x.flags:
            value = np.where(sources[0] < sources[1], 0, value) if name == "sub_u32" else np.minimum(value, LOW)
        self.set(x.operands[0], value & 0xFFFF if bits == 16 else value)

    def _selected(self, x: Instruction, number: int, operand: str, bits: int) -> Bits:
        value = self.get(operand, max(bits, 32))
        chosen, _, part = x.modifiers.get(f"src{number}_sel", "DWORD").partition("_")
        if value is None or chosen == "DWORD":
            return value if value is None or bits != 16 else value & 0xFFFF
        width = {"BYTE": 8, "WORD": 16}[chosen]
        return value >> (int(part)*width) & ((1 << width) - 1)

    def _compare(self, x: Instruction, how: str, kind: str, bits: str) -> None:
        width = int(bits)
        first = 0 if x.name.startswith("s_") else 1
        p, q = (self._selected(x, n, operand, width) for n, operand in enumerate(x.operands[first:first + 2]))
        found: Any = None
        if p is not None and q is not None and how in integers.COMPARED:
            p, q = (y & ((1 << width) - 1) if width < 64 else y for y in (p, q))
            if x.name.startswith("s_cmpk") and kind == "i":
                q = as_bits(signed(q, 16)) & LOW
            view = {"u": lambda y: y, "i": lambda y: signed(y, width),
                    "f": lambda y: as_float(y) if width == 32 else np.ascontiguousarray(y).view(np.float64)}[kind]
            found = integers.COMPARED[how](view(p), view(q))
        if x.name.startswith("s_"):
            self.values.pop("scc", None)
            if found is not None:
                self.values["scc"] = as_bits(found)
        elif found is None:
            self.set(x.operands[0], None)
        else:
            self.set_mask(x.operands[0], np.broadcast_to(found, (self.waves, WAVE)) & self.mask("exec"))

    def _scalar(self, x: Instruction, name: str) -> None:
        if name.startswith("bitcmp"):
            p, q = (self.get(operand) for operand in x.operands)
            self.values.pop("scc", None)
            if p is not None and q is not None:
                self.values["scc"] = as_bits((p >> q & 1) == int(name[6]))
            return
        if name.endswith("_saveexec_b64"):
            before, given = self.get("exec", 64), self.get(x.operands[1], 64)
            if before is None or (given is None and not name.startswith("and_")):
                raise Unknown(f"the mask after {x.text}")
            given = before if given is None else given      # where numbers decide, as if all lanes went there
            after = {"and": given & before, "or": given | before, "xor": given ^ before, "andn2": given & ~before,
                     "andn1": ~given & before}[name.partition("_")[0]]
            self.set(x.operands[0], before)
            self.set("exec", after)
            self.values["scc"] = as_bits(after != 0)
            return
        bits = 64 if name.endswith("64") else 32
        sources = [self.get(operand, bits) for operand in x.operands[not name.startswith(integers.OWN):]]
        if name.endswith("k_i32") and sources[-1] is not None:          # with 16 bits, the highest its sign
            sources[-1] = as_bits(signed(sources[-1], 16)) & LOW
        carry = self.values.get("scc")
        known = all(s is not None for s in sources)
        if name in ("cselect_b32", "cselect_b64", "addc_u32", "subb_u32"):
            if not known or carry is None:
                self.set(x.operands[0], None)
                if name[:3] != "cse":
                    self.values.pop("scc", None)
                return
            p, q = sources
            both = {"addc_u32": p + q + carry, "subb_u32": p - q - carry}
            value = both[name] if name in both else np.where(carry != 0, p, q)
        else:
            function = integers.SCALAR.get(name)
            value = as_bits(function(*sources)) if function and known else None
        self.set(x.operands[0], value)
        if name.startswith((*integers.KEEPS_SCC, "cselect")):
            return
        self.values.pop("scc", None)
        if value is not None:
            if name in ("add_u32", "addc_u32", "sub_u32", "subb_u32"):
                self.values["scc"] = value >> 32 & 1
            elif name.startswith(("and", "or_", "xor", "not", "lsh", "ash", "bfe")):
                self.values["scc"] = as_bits((value & ((1 << bits) - 1)) != 0)
