"""The unmodified Node ``openai`` SDK."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.node_sdk import install_node_sdk_or_skip

SCRIPT = Path(__file__).parent / "node_sdk.mjs"


@pytest.fixture(scope="module")
def sdk_dir() -> Path:
    return install_node_sdk_or_skip()


def test_node_sdk(sdk_dir: Path, gateway_url: str, api_key: str, model_name: str) -> None:
    done = subprocess.run(
        ["node", str(SCRIPT)],
        env={
            **os.environ,
            "SDK_DIR": str(sdk_dir),
            "SLUICE_URL": gateway_url,
            "SLUICE_API_KEY": api_key,
            "SLUICE_MODEL": model_name,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["responses"][1] in {"response.completed", "response.incomplete"}
    seen["responses"][1] = "ended"
    assert seen == {
        "chat": 8,
        "stream": {"finish": "length", "tokens": 8},
        "text": True,
        "completion": 4,
        "responses": ["response.created", "ended"],
        "left": True,
        "errors": [404, 400],
    }
