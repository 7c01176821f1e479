"""One file per format; the package's docstring (iobench.importers) says what a file must have."""
