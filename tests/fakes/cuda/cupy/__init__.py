"""A cupy that needs no GPU: what iobench uses of it, over host memory. Put this folder's parent on PYTHONPATH."""

from cupy import cuda
from cupy._arrays import asarray, ndarray, zeros
from cupy._kernels import RawKernel, RawModule
from numpy import float32, float64, int32, uint8, uint16, uint32, uint64

__all__ = [
    "RawKernel", "RawModule", "asarray", "cuda", "float32", "float64", "int32", "ndarray", "uint8", "uint16", "uint32",
    "uint64", "zeros",
]  # fmt: skip
__version__ = "0+fake"
