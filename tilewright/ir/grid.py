"""What only kernels of a GPU can write: who a thread is, shared memory, barriers, clusters, copies in flight, lanes.

`Kernel` inherits all of it. On a CPU target the gate refuses what it records, in a sentence.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.ir import clusters, copies, direct, hints, lanes, sync, textures, turned
from tilewright.ir.roles import Roles
from tilewright.ir.types import Pointer, Texture, Type, i8, i32, i64, vec
from tilewright.ir.values import Value

if TYPE_CHECKING:
    from tilewright.ir.program import Function

_COPIED = (4, 8, 16)        # bytes that one asynchronous copy can move


class Grid(Roles):
    if TYPE_CHECKING:
        function: Function
        warp: int
        _op: Any
        _effect: Any
        _group: Any
        _value: Any
        _array: Any
        cast: Any

    # ---- who I am

    def _builtin(self, name: str) -> Value:
        return self.function.builtins.setdefault(name, Value(self, i32))    # type: ignore[arg-type]

    @property
    def thread(self) -> tuple[Value, Value]:
        """(x, y) of this thread in its CTA."""
        return self._builtin("thread.x"), self._builtin("thread.y")

    @property
    def block(self) -> tuple[Value, Value]:
        """(x, y) of this CTA in the grid."""
        return self._builtin("block.x"), self._builtin("block.y")

    @property
    def block_z(self) -> Value:
        """The third coordinate of this CTA: a slice of k, or a product of a batch."""
        return self._builtin("block.z")

    @property
    def grid(self) -> tuple[Value, Value]:
        """How many CTAs the grid has along x and along y."""
        return self._builtin("grid.x"), self._builtin("grid.y")

    # ---- shared memory, and meeting there

    def smem(self, name: str, shape: int | tuple[int, ...], element: Type, align: int = 16) -> Value:
        """A shared-memory array, row-major, its first element at a multiple of `align` bytes."""
        return self._array(name, shape, element, "shared", align)

    def smem_bytes(self, name: str, size: int, align: int = 128) -> Value:
        """Bytes of shared memory for arrays of any type, at once or one after another: `bytes.as_(f32).view(LD, 1)`."""
        return self._array(name, (size,), i8, "shared", align)

    def barrier(self) -> None:
        """All threads of the CTA meet here."""
        self._whole_cta("a barrier")
        self._effect(sync.BARRIER)

    def warp_barrier(self) -> None:
        """All lanes of the warp meet here; what each did in memory before, the others see after.

        It costs next to nothing, and the assembler moves no loads across it: what comes before stays there."""
        self._effect(sync.WARP_BARRIER)

    # ---- clusters: CTAs that run at once, by Kernel(cluster=(x, y, z))

    @property
    def cluster_rank(self) -> Value:
        """Which CTA of its cluster this one is: x + y*X + z*X*Y, from its place in a cluster of X x Y x Z."""
        self._in_cluster("cluster_rank")
        return self._builtin("cluster.ctarank")

    def cluster_barrier(self) -> None:
        """All threads of all CTAs of the cluster meet here; what each did in memory before, the others see after.

        Before they have met once a CTA may not have begun, and after they meet for the last time it may be gone: only
        between can others use its shared memory."""
        self.cluster_arrive()
        self.cluster_wait()

    def cluster_arrive(self) -> None:
        """The first half of the barrier: let the others know that this thread has come, and go on."""
        self._in_cluster("a cluster barrier")
        self._whole_cta("a cluster barrier")
        self._effect(clusters.ARRIVE)

    def cluster_wait(self) -> None:
        """The other half: wait until all have come."""
        self._in_cluster("a cluster barrier")
        self._effect(clusters.WAIT)

    def of_cta(self, smem: Value, rank: Any) -> Value:
        """The same place in the shared memory of the cluster's CTA `rank` (an i32): a pointer to "cluster" memory."""
        self._in_cluster("of_cta()")
        if not isinstance(smem.type, Pointer) or smem.type.space != "shared":
            raise TypeError(f"of_cta() takes a place in this CTA's shared memory, not a {smem.type}")
        there = Pointer(smem.type.element, "cluster")
        found = self._op(clusters.OF_CTA, there, smem, self._value(rank, i32))
        return Value(self, there, array=smem.array, strides=smem.strides, id=found.id)      # type: ignore[arg-type]

    def _in_cluster(self, what: str) -> None:
        if self.function.ctas_cluster == 1:
            raise SyntaxError(f"{what} is for clusters, and {self.function.name} has none: Kernel(cluster=(x, y, z))")

    # ---- copies from global to shared memory that go on while the thread does

    def cp_async(self, smem: Value, gmem: Value, bytes: int, valid: Any = None) -> None:
        """Start to copy `bytes` (4, 8 or 16, both addresses aligned to them) from global to shared memory.

        Only the first `valid` of them are read (an i32 value; all if None), the others are written as zeros. Nobody may
        read the destination before this thread has waited for the group of the copy, and others not before a barrier.
        """
        if bytes not in _COPIED:
            raise ValueError(f"an asynchronous copy moves 4, 8 or 16 bytes, not {bytes}")
        if smem.type.space != "shared" or gmem.type.space != "global":
            raise TypeError(f"a copy goes from global to shared memory, not from {gmem.type} to {smem.type}")
        if valid is None:
            self._effect(copies.copy(bytes), smem, gmem)
        else:
            self._effect(copies.copy_some(bytes), smem, gmem, self._value(valid, i32))

    def cp_async_commit(self) -> None:
        """Close the group of the copies that this thread has started since the last group."""
        self._effect(copies.COMMIT)

    def cp_async_wait(self, pending: int = 0) -> None:
        """Wait until at most `pending` of this thread's newest groups are still in flight."""
        self._effect(copies.wait(pending))

    # ---- loads straight into LDS, on AMD's chips

    def lds_load(self, smem: Value, gmem: Value, bytes: int, *, base: Value | None = None, size: Any = None) -> None:
        """Start to load `bytes` (4; on gfx950 also 12 or 16) for each lane from its `gmem` into LDS: those of lane l
        land at smem + l * bytes, so `smem` is the same for all lanes of a wave. `gmem` is a multiple of 4 bytes.

        base    where to count addresses from, the same for all lanes, at most 4 GiB before each: the parameter that
                `gmem` points into, if none is given
        size    bytes from `base` on that are read, at most 2^32 - 1; zeros arrive for what lies beyond

        Nobody may read what is under way before this wave has waited for it, and others not before a barrier."""
        if bytes not in direct.BYTES:
            raise ValueError(f"a lane can load 4, 12 or 16 bytes straight into LDS, not {bytes}")
        if smem.type.space != "shared" or gmem.type.space != "global":
            raise TypeError(f"a direct load goes from global memory to LDS, not from {gmem.type} to {smem.type}")
        if bytes % smem.type.element.bytes:
            raise TypeError(f"{bytes} bytes are not whole {smem.type.element}")
        self._effect(direct.load(bytes), smem, gmem, *self._bounds(gmem, base, size))

    def _bounds(self, gmem: Value, base: Value | None, size: Any) -> tuple[Value, Value]:
        if base is None:
            base = next((value for _, value in self.function.params if value.array and value.array is gmem.array), None)
        if base is None:
            raise TypeError("this pointer is into no parameter: say which `base` to count its addresses from")
        return base, self._value(direct.WHOLE if size is None else size, i64)

    def lds_wait(self, pending: int = 0) -> None:
        """Wait until at most `pending` of the direct loads that this wave has started are under way: its newest.

        The hardware counts all loads and stores of global memory, so it may wait for a little more than it is asked to;
        what is loaded into registers after them is better loaded before."""
        if not 0 <= pending <= direct.PENDING:
            raise ValueError(f"from 0 to {direct.PENDING} loads can be left under way, not {pending}")
        self._effect(direct.wait(pending))

    def uniform(self, x: Value) -> Value:
        """x, of which all lanes of the wave hold the same: what is computed from it is then computed once for the wave.
        """
        found = self._op(direct.UNIFORM, x.type, x)
        return Value(self, x.type, array=x.array, strides=x.strides, id=found.id)   # type: ignore[arg-type]

    # ---- reads of LDS that transpose, on gfx950

    def load_turned(self, smem: Value) -> Value:
        """Four numbers of 16 bits, or eight of 8, of a column, where each lane reads 8 bytes of rows: of 16 lanes that
        follow each other lane l gets the l-th elements of the rows, each of which as many lanes as it takes have read
        one after the other. All lanes of the wave take part."""
        pointer = smem.type
        if not isinstance(pointer, Pointer) or pointer.space != "shared" or pointer.element.bits not in turned.BITS:
            raise TypeError(f"what is transposed is LDS of 8-bit or 16-bit numbers, not {pointer}")
        t = pointer.element
        return self._op(turned.read(t.bits), vec(t, turned.BYTES // t.bytes), smem)

    # ---- hints to the scheduler

    def sched_group(self, kind: str, count: int, pipeline: int = 0) -> None:
        """The next `count` instructions of a kind ("mfma", "lds read", "global read" ...: `hints.GROUPS`) belong here.
        A row of such groups is the order in which LLVM is to issue what lies between two fences of its scheduler."""
        if kind not in hints.GROUPS:
            raise ValueError(f"instructions are {', '.join(hints.GROUPS)}, not {kind!r}")
        self._effect(hints.group(kind, count, pipeline))

    def sched_fence(self, *kinds: str) -> None:
        """The scheduler moves nothing across this place, except for instructions of these kinds."""
        self._effect(hints.fence(kinds))

    def priority(self, level: int) -> None:
        """From 0 to 3, of this wave among those of its SIMD."""
        if not 0 <= level <= 3:
            raise ValueError(f"a wave's priority is from 0 to 3, not {level}")
        self._effect(hints.priority(level))

    # ---- textures

    def fetch(self, texture: Value, index: Value) -> Value:
        """Texel `index` (an i32) of a texture parameter, a vector; zeros where it is outside."""
        if not isinstance(texture.type, Texture):
            raise TypeError(f"only a texture parameter can be fetched from, not {texture.type}")
        return self._op(textures.FETCH, texture.type.texel, texture, self._value(index, i32))

    # ---- lanes of a warp

    def lane_xor(self, x: Value, mask: int) -> Value:
        """The x of the lane whose number differs in the bits of `mask`; all lanes take part."""
        if not isinstance(x, Value):
            raise TypeError(f"lanes exchange values of the kernel, not {x!r}")
        if not isinstance(x.type, Type) or x.type.length > 1 or x.type.bits not in lanes.MOVED:
            raise TypeError(f"lanes exchange numbers of 16, 32 or 64 bits, not {x.type}")
        if not 0 < mask < self.warp:
            raise ValueError(f"mask must be from 1 to {self.warp - 1}, not {mask}")
        return self._op(lanes.exchange(mask, self.warp), x.type, x)

    def warp_sum(self, x: Value) -> Value:
        """The sum of x over the lanes of the warp, in every lane, always in the same order."""
        distance = self.warp // 2
        while distance:
            x = x + self.lane_xor(x, distance)
            distance //= 2
        return x

    # ---- atomics of many threads

    def fence_device(self) -> None:
        """What this thread has written before is seen by every thread of the device that sees what it writes after."""
        self._effect(sync.FENCE_DEVICE)

    def mma(self, atom: Any, a: Any, b: Any, c: Any) -> tuple[Value, ...]:
        """D = A @ B + C by a matrix instruction (atoms): each a list of this lane's registers, as is D."""
        types = [x.type for x in c]
        return self._group(atom.operation, types, *a, *b, *c)
