"""Banks of shared memory (LDS): which lanes of a wave go together, and over how many banks of four bytes.

A pass delivers one word from each bank, to any number of lanes. Wide accesses are made in phases, some lanes after
others, and only lanes of the same phase can be in one another's way.

    NVIDIA     32 banks; 8 and 16 bytes by half and quarter warps. Of loads, two halves go together, and so do the first
               two quarters and the last two, if their lanes read the same addresses in pairs: every lane as its
               neighbour (lane xor 1), or every lane as the next but one (lane xor 2). Stores never do
    gfx942     32 banks; waves in halves (4 bytes), quarters (8) and eighths. Reads of 12 and 16 bytes take lanes 0 to 3
               together with 20 to 23, and so on; writes take eight that follow each other
    gfx950     as gfx942, but 64 banks for reads of 8 bytes, in halves, and of 16, in quarters of their own

Sources. NVIDIA: 1,818 patterns of addresses on an H100 and an H200: all wavefronts that Nsight Compute counts are as
this rule says (bench/results/shared_patterns.json). AMD: Composable Kernel's documentation, "Understanding AMD GPU LDS
and Bank Conflicts",
https://rocm.docs.amd.com/projects/composable_kernel/en/latest/conceptual/ck_tile/hardware/lds_bank_conflicts.html;
https://rocm.blogs.amd.com/software-tools-optimization/lds-bank-conflict/README.html; measured on an MI355X by
HipKittens, https://github.com/HazyResearch/HipKittens (analysis/paper_experiments/phases); rocRoller's LDSBankModel,
https://github.com/ROCm/rocm-libraries/pull/2157.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cache

WORD = 4            # bytes of a bank
WIDEST = 16         # that one instruction moves for a lane


@dataclass(frozen=True)
class Split:
    """`phase` of each lane, of so many phases, over so many banks."""
    phase: tuple[int, ...]
    phases: int
    banks: int


def _even(lanes: int, phases: int, banks: int = 32) -> Split:
    """Lanes that follow each other go together."""
    return Split(tuple(lane * phases // lanes for lane in range(lanes)), phases, banks)


def _fours(turns: tuple[int, ...], banks: int) -> Split:
    """The split of 64 lanes into phases, by the turns of the eight groups of four in each half."""
    phases = max(turns) + 1
    return Split(tuple(lane // 32 * phases + turns[lane % 32 // 4] for lane in range(64)), 2 * phases, banks)


@dataclass(frozen=True)
class Banks:
    """How the shared memory of one kind of chip goes about a wave's access of 4, 8, 12 or 16 bytes a lane."""
    lanes: int
    wide: bool = False          # 64 banks for some reads
    pairs: bool = False         # phases of wide loads go together where lanes read the same addresses in pairs

    def split(self, bytes: int, load: bool) -> Split:
        """The fewest passes of an access are its phases."""
        return _split(self, max(bytes, WORD), load)

    def pieces(self, bytes: int, align: int) -> int:
        """Bytes that one instruction moves, of an access of so many that is so aligned."""
        if self.lanes == 64:
            bytes = min(bytes, align) if bytes > WORD else bytes
        return min(bytes, WIDEST)


@cache
def _split(banks: Banks, bytes: int, load: bool) -> Split:
    if banks.lanes != 64:
        return _even(banks.lanes, max(bytes // WORD, 1))
    if load and banks.wide and bytes in (8, 16):
        return _even(64, 2, 64) if bytes == 8 else _fours((0, 1, 1, 0, 1, 0, 0, 1), 64)
    if load and bytes > 8:
        return _fours((0, 1, 2, 3, 1, 0, 3, 2), 32)
    return _even(64, {4: 2, 8: 4}.get(bytes, 8))


NVIDIA, GFX942, GFX950 = Banks(32, pairs=True), Banks(64), Banks(64, wide=True)


def for_target(name: str | None, lanes: int) -> Banks:
    """The banks of a target, or of any chip with waves of so many lanes."""
    return GFX950 if name == "gfx950" else GFX942 if lanes == 64 else NVIDIA
