"""Memory behind CXL: in which forms a machine offers it, how to open one, and where its latency goes."""
