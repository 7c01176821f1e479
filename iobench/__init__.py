"""iobench: interconnect and memory-subsystem microbenchmarks for AI-inference machines."""

__version__ = "0.1.0"
