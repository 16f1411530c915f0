"""Which version of Sluice this is."""

from importlib.metadata import PackageNotFoundError, version


def read_version() -> str:
    """The installed version; ``source`` when running from a tree that was never installed."""
    try:
        return version("sluice")
    except PackageNotFoundError:
        return "source"
