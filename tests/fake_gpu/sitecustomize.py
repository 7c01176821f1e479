"""Lets every process of a run discover the machine of FAKE_MACHINE."""

import os

if "FAKE_MACHINE" in os.environ:
    from importlib import import_module

    from iobench.topology.file import load

    package, module = import_module("iobench.topology"), import_module("iobench.topology.discover")
    package.discover = module.discover = lambda *_, **__: load(os.environ["FAKE_MACHINE"])
