"""Runs one emulated worker: ``python -m service.emulator --port 9001``."""

from service.emulator.config import parse_arguments
from service.emulator.server import run

if __name__ == "__main__":
    run(parse_arguments())
