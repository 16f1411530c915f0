#!/usr/bin/env bash
# Prints the Python that the virtual environment is made of: among those from 3.11 to 3.13 on PATH and in /usr/bin that
# can make one, the fastest. Builds of the same version differ by a fifth (a distribution optimises its own with
# profiles), and a gateway's CPU is mostly the interpreter's.
set -euo pipefail

probe='
import sys, time
if not (3, 11) <= sys.version_info[:2] <= (3, 13): sys.exit(1)
import ensurepip, venv
class Cell:
    __slots__ = ("value",)
    def __init__(self, value): self.value = value
    def add(self, other): return Cell(self.value + other)
def work():
    cell = Cell(0)
    for turn in range(60000): cell = cell.add(turn & 7)
best = 9.9
for _ in range(5):
    start = time.process_time(); work(); best = min(best, time.process_time() - start)
print(f"{best:.6f} {sys.executable}")
'
seen=""
for name in python3.13 python3.12 python3.11 python3 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11; do
  path=$(command -v "$name" || true)
  [ -n "$path" ] && "$path" -c "$probe" 2>/dev/null || true
done | sort -n | head -n 1 | cut -d' ' -f2- | { read -r seen || true; [ -n "$seen" ] && echo "$seen"; } || {
  echo "Sluice needs Python 3.11, 3.12 or 3.13 with venv (on Debian: apt-get install python3-venv); found none." >&2
  exit 1
}
