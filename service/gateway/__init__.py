"""Room: see the package docstring of ``service``."""
