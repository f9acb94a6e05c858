"""A matrix whose elements are divided over ranks, and its way from one layout to another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.mpi import stores
from tilewright.mpi.device import OnDevice, on_device
from tilewright.mpi.layouts import Layout, select, slices
from tilewright.mpi.report import Report
from tilewright.mpi.team import MOVE, Team, finished
from tilewright.rules import arguments
from tilewright.runtime.gpu.arrays import dtype_of

Array = NDArray[Any]


class Matrix:
    """This rank's part of a distributed matrix: its rows and columns by a layout, in order, as a NumPy array.

    team     the ranks
    layout   who has which elements
    local    the elements of this rank, layout.local_shape(team.rank): a NumPy array of any strides, an array in
             an NVIDIA GPU's memory (torch, CuPy, any with DLPack), or what tw.quantize returns. It is not copied.
             Blocks and groups with a scale must not be divided over ranks

    All ranks make it together. TypeError and ValueError, on all ranks, if on one of them an argument is wrong, or if
    layouts or dtypes differ.
    """

    local: Any
    store: stores.Plain

    def __init__(self, team: Team, layout: Layout, local: Any) -> None:
        self.team, self.layout, self.local = team, layout, local
        team.call("Matrix", self._checked)
        self.store = (stores.Plain(local.dtype) if isinstance(local, np.ndarray) else self._of_scales(local)
                      if stores.scaled(local) else OnDevice(local, team.cuda_aware))

    @classmethod
    def trusted(cls, team: Team, layout: Layout, local: Any, store: stores.Plain | None = None) -> Matrix:
        """One that needs no check."""
        new = cls.__new__(cls)
        new.team, new.layout, new.local = team, layout, local
        new.store = (store if store is not None else stores.Plain(local.dtype) if isinstance(local, np.ndarray) else
                     OnDevice(local, team.cuda_aware))
        return new

    def _of_scales(self, local: Any) -> stores.Plain:
        """The store of numbers with scales, and whether every rank has whole blocks of them."""
        with self.team.together():
            said = [text.decode() for text in self.team.everyone(stores.possible(local).encode())]

        def check() -> tuple[dict[str, Any], stores.Plain]:
            store = stores.store_of(local, said)
            axes = self.layout.rows, self.layout.cols
            for axis, unit, what in zip(axes, store.unit, ("rows", "columns")):
                if any(begin % unit for begin in axis.bounds()):
                    raise ValueError(f"layout must give each rank whole blocks of {unit} {what}, which share a scale "
                                     f"or a byte, not {self.layout}")
            return {}, store
        store: stores.Plain = self.team.call("Matrix of numbers with scales", check)
        return store

    def _checked(self) -> tuple[dict[str, Any], None]:
        check_layout(self.layout, self.team)
        if not isinstance(self.local, np.ndarray) and not stores.scaled(self.local) and not on_device(self.local):
            raise TypeError("local must be an array of NumPy's or in an NVIDIA GPU's memory, or a result of "
                            f"tilewright.quantize, not {type(self.local).__name__}")
        if on_device(self.local):
            dtype_of(self.local.dtype, "local")
        elif isinstance(self.local, np.ma.MaskedArray):
            raise TypeError("local is a masked array, whose mask a product cannot honour; pass local.filled(0)")
        elif not stores.known(self.local):
            raise TypeError(f"local has dtype {self.local.dtype}, which tilewright does not multiply")
        wanted = self.layout.local_shape(self.team.rank)
        if tuple(self.local.shape) != wanted:
            raise ValueError(f"local must have the shape {wanted}, this rank's part of {self.layout}, not "
                             f"{tuple(self.local.shape)}")
        return {"layout": self.layout, "format of local": stores.described(self.local)}, None

    @property
    def shape(self) -> tuple[int, int]:
        """The whole matrix's."""
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The elements'; of numbers with scales that of their products, float32."""
        return self.store.trial

    @property
    def T(self) -> Matrix:
        """The transposed matrix; nothing is copied or sent."""
        return Matrix.trusted(self.team, self.layout.T, self.local.T, stores.turned(self.store, self.local.T))

    @property
    def H(self) -> Matrix:
        """The transposed matrix of the conjugated elements."""
        return self.T if stores.scaled(self.local) else \
            Matrix.trusted(self.team, self.layout.T, self.local.T.conj())

    @classmethod
    def scatter(cls, team: Team, array: Any, layout: Layout, root: int = 0) -> Matrix:
        """The matrix that rank `root` has as an array, divided over all ranks. Elsewhere `array` is not looked at."""
        def check() -> tuple[dict[str, Any], str]:
            check_layout(layout, team)
            check_root(root, team)
            if team.rank != root:
                return {"layout": layout, "root": root}, ""
            if formats.find(arguments.operand(array, "array", 0).dtype) is None:
                raise TypeError(f"array has dtype {np.asarray(array).dtype}, which tilewright does not multiply")
            if np.shape(array) != layout.shape:
                raise ValueError(f"array must have the shape of layout, {layout.shape}, not {np.shape(array)}")
            return {"layout": layout, "root": root}, formats.get(np.asarray(array).dtype).name

        name = team.call("Matrix.scatter", check)
        with team.together():
            dtype = formats.get(team.everyone(name.encode())[root].decode()).dtype
            complete = whole_at(layout.shape, root)
            local = np.asarray(array, dtype) if team.rank == root else np.empty((0, 0), dtype)
            return cls.trusted(team, layout, moved(team, local, complete, layout, Report()))

    def gather(self, root: int | None = 0) -> Array | None:
        """The whole matrix as an array on rank `root`, None elsewhere. root=None: on every rank."""
        def check() -> tuple[dict[str, Any], None]:
            if root is not None:
                check_root(root, self.team)
            self._check_plain("gathered")
            return {"root": root, "layout": self.layout, "dtype": self.dtype}, None

        self.team.call("Matrix.gather", check)
        with self.team.together():
            result, local = None, self.local if isinstance(self.local, np.ndarray) else in_host(self.local)
            for rank in range(self.team.size) if root is None else (root,):
                complete = moved(self.team, local, self.layout, whole_at(self.shape, rank), Report())
                result = complete if rank == self.team.rank else result
        return result

    def redistribute(self, layout: Layout, report: Report | None = None) -> Matrix:
        """The matrix in another layout: what ScaLAPACK's pdgemr2d does."""
        def check() -> tuple[dict[str, Any], None]:
            check_layout(layout, self.team)
            self._check_plain("redistributed")
            if not isinstance(self.local, np.ndarray):
                raise TypeError("a Matrix in a GPU's memory cannot be redistributed: gather it, or make it where it "
                                "is needed")
            if layout.shape != self.shape:
                raise ValueError(f"layout must be one of a {self.shape[0]} x {self.shape[1]} matrix, not of "
                                 f"{layout.shape[0]} x {layout.shape[1]}")
            return {"layout": layout, "layout of the matrix": self.layout, "dtype": self.dtype}, None

        self.team.call("Matrix.redistribute", check)
        with self.team.together():
            local = moved(self.team, self.local, self.layout, layout, Report() if report is None else report)
        return Matrix.trusted(self.team, layout, local)

    def _check_plain(self, what: str) -> None:
        if stores.scaled(self.local):
            raise TypeError(f"a Matrix of {self.local.format} with scales cannot be {what}: np.asarray(local) has this "
                            "rank's numbers")

    def __repr__(self) -> str:
        return f"Matrix({self.layout}, {self.dtype}, rank {self.team.rank} has {self.local.shape})"


def in_host(local: Any) -> Array:
    """A copy of an array in a GPU's memory."""
    store = OnDevice(local)
    store.ready()
    return store.message(local).view(store.dtype).reshape(tuple(local.shape))


def check_layout(layout: Any, team: Team) -> None:
    if not isinstance(layout, Layout):
        raise TypeError(f"layout must be a Layout, not {type(layout).__name__}")
    if max(layout.ranks) >= team.size:
        raise ValueError(f"layout must be of ranks 0 to {team.size - 1}, those of the team, and has rank "
                         f"{max(layout.ranks)}")


def check_root(root: Any, team: Team) -> None:
    if not isinstance(root, (int, np.integer)) or not 0 <= root < team.size:
        raise ValueError(f"root must be a rank of the team, 0 to {team.size - 1}, not {root!r}")


def whole_at(shape: tuple[int, int], rank: int) -> Layout:
    """The layout of a matrix that one rank has alone."""
    return Layout.cyclic(shape, [max(1, n) for n in shape], (1, 1), ranks=(rank,))


def moved(team: Team, local: Array, source: Layout, target: Layout, report: Report) -> Array:
    """This rank's part in the other layout: of each pair of ranks, the elements that one has and the other needs are
    one message. The same array if nothing is to be moved."""
    if source == target:
        return local
    new = np.empty(target.local_shape(team.rank), local.dtype)
    from_rows, from_cols = source.local_indices(team.rank)
    to_rows, to_cols = target.local_indices(team.rank)
    requests, places = [], []
    begin = team.transport
    for step in range(1, team.size):            # first what others have, so that their messages find their place
        rank = (team.rank - step) % team.size
        rows, cols = source.local_indices(rank)
        r, c = _where(to_rows, rows), _where(to_cols, cols)
        if len(r) and len(c):
            buffer = np.empty(len(r) * len(c) * local.itemsize, np.uint8)
            with team.lock:
                requests.append(begin.receive(buffer, rank, MOVE))
            places.append((requests[-1], rank, buffer, r, c))
            report.moved_received += len(buffer)
    for step in range(team.size):
        rank = (team.rank + step) % team.size
        rows, cols = target.local_indices(rank)
        r, c = _where(from_rows, rows), _where(from_cols, cols)
        if not len(r) or not len(c):
            continue
        part = select(local, r, c)
        if rank == team.rank:
            new[np.ix_(_where(to_rows, from_rows), _where(to_cols, from_cols))] = part
            continue
        message = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        with team.lock:
            requests.append(begin.send(message, rank, MOVE))
        report.moved_sent += len(message)
    team.wait(lambda: finished(requests), lambda: [rank for request, rank, *_ in places if not request.done()],
              "its part of a matrix")
    for _, _, buffer, r, c in places:
        put(new, r, c, buffer.view(local.dtype).reshape(len(r), len(c)))
    return new


def put(array: Array, rows: Any, cols: Any, values: Array) -> None:
    r, c = slices(rows), slices(cols)
    if isinstance(r, slice) or isinstance(c, slice):
        array[r, c] = values
    else:
        array[np.ix_(rows, cols)] = values


def _where(mine: Any, others: Any) -> Any:
    """The places in `mine` of the indices that are in `others`, too; both rise."""
    return np.flatnonzero(np.isin(mine, others, assume_unique=True))
