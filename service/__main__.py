"""``python -m service`` and the script ``sluice``."""

import sys

from service.cli.commands import build_app


def main() -> None:
    """Run the command line."""
    build_app(sys.argv[1] if len(sys.argv) > 1 else None)()


if __name__ == "__main__":
    main()
