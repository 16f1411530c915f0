"""``python -m service`` and the script ``sluice``."""

from service.cli.commands import app


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
