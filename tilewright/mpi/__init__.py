"""Products of matrices that are divided over the ranks of MPI: SUMMA and 2.5D, in every format of tilewright.

    team = Team()                                              # the ranks of MPI.COMM_WORLD
    a = Matrix.scatter(team, whole_a, Layout.blocks(...))      # or Matrix(team, layout, local)
    c = matmul(a, b)                                           # a Matrix; c.local is this rank's part

docs/mpi.md is the guide. mpi4py is imported when a Team is made of a communicator.
"""

from __future__ import annotations

from tilewright.mpi.errors import RankError as RankError
from tilewright.mpi.layouts import Grid as Grid, Layout as Layout
from tilewright.mpi.matrix import Matrix as Matrix
from tilewright.mpi.model import Prediction as Prediction, predict as predict, predicted as predicted
from tilewright.mpi.placement import Placement as Placement, place as place
from tilewright.mpi.product import matmul as matmul
from tilewright.mpi.report import Report as Report, hidden as hidden
from tilewright.mpi.scalapack import pgemm as pgemm
from tilewright.mpi.team import Team as Team
from tilewright.mpi.threads import run_threads as run_threads
from tilewright.mpi.transport import Network as Network
from tilewright.mpi.volume import bound_2d as bound_2d, choose as choose, lower_bound as lower_bound, sent as sent

__all__ = ["Grid", "Layout", "Matrix", "Network", "Placement", "Prediction", "RankError", "Report", "Team", "bound_2d",
           "choose", "hidden", "lower_bound", "matmul", "pgemm", "place", "predict", "predicted", "run_threads", "sent"]
