"""CPU kernels in numba: streams, a pointer chase, and the pinned threads that run them."""
