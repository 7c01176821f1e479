"""Collective operations between ranks: what each must move, what its result must be, who can carry it out.

``ops`` holds the definitions, ``values`` the data and its check, one file per engine the operations themselves.
Engines run inside rank processes (iobench.ranks); this package imports no GPU library until one is started.
"""
