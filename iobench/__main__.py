"""python -m iobench."""

import sys

from iobench.errors import EXIT_USER
from iobench.needs import missing

try:
    from iobench.cli import main
except ModuleNotFoundError as error:
    if not error.name or error.name.startswith("iobench"):
        raise
    sys.exit(sys.stderr.write(f"iobench: {missing(error.name)}\n") and EXIT_USER)

main()
