"""Kernels put together: what they serve, what is tried first, their steps, what can be tuned."""

from .algorithm import ALGORITHMS as ALGORITHMS
from .original import Short, Streaming
from .tiled import Tiled

# The first is what should be the fastest: so measured on an H200 and on llvmpipe at every length tried.
ALGORITHMS.update({algorithm.name: algorithm for algorithm in (Tiled(), Short(), Streaming())})
