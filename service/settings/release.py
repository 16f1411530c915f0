"""Which version of Sluice this is, and in which form."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


def read_version() -> str:
    """The installed version; ``source`` when running from a tree that was never installed."""
    try:
        return version("sluice")
    except PackageNotFoundError:
        return "source"


def read_form() -> str:
    """``compiled`` where the core runs as machine code, as in the image, else ``interpreted``."""
    core = find_spec("service.flow.controller")
    return "interpreted" if core is None or str(core.origin).endswith(".py") else "compiled"
