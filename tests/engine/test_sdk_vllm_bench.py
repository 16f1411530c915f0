"""``vllm bench serve``, vLLM's own load tool, unmodified: 200 requests without an error."""

import json
import os
import subprocess
from pathlib import Path

from service.launch.cpu_engine import RUN_VLLM, CpuEngine

REQUESTS = 200


def test_vllm_bench_serve(
    cpu_engine: CpuEngine, gateway_url: str, api_key: str, model_name: str, tmp_path: Path
) -> None:
    argv = [
        str(cpu_engine.python),
        str(RUN_VLLM),
        *("bench", "serve", "--backend", "openai-chat", "--base-url", gateway_url),
        *("--endpoint", "/v1/chat/completions", "--model", model_name, "--tokenizer", str(cpu_engine.model_dir)),
        *("--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "16", "--ignore-eos"),
        *("--num-prompts", str(REQUESTS), "--request-rate", "20", "--max-concurrency", "12", "--seed", "1"),
        *("--goodput", "ttft:2000", "tpot:500", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "bench.json"),
    ]
    done = subprocess.run(
        argv,
        env={**os.environ, "OPENAI_API_KEY": api_key, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "bench.json").read_text())
    assert (result["completed"], result.get("failed", 0)) == (REQUESTS, 0)
    assert result["total_output_tokens"] > REQUESTS
