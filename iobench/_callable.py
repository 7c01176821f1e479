"""Lets a module be called like the verb it is named after: iobench.run(...), iobench.fit(...).

A notebook wants ``iobench.compare(a, b)``; the module that holds the verb has the same name and would
hide the function once it is imported. Python lets a module's class be changed for such cases
(Language Reference, 3.3.2.1 "Customizing module attribute access").
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Make the module ``name`` pass a call on to ``function``."""

    class Verb(ModuleType):
        __doc__ = function.__doc__

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    sys.modules[name].__class__ = Verb
