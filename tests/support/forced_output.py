"""Making a model of random weights say something in particular, by vLLM's ``structured_outputs`` request field."""

import json


def forced_text(text: str) -> dict[str, object]:
    """Return request fields under which the reply is exactly ``text``."""
    return {"structured_outputs": {"choice": [text]}, "max_tokens": 256}


def forced_tool_call(name: str, arguments: dict[str, str]) -> dict[str, object]:
    """Return request fields under which the reply calls the tool ``name``, written as the hermes parser reads it."""
    call = json.dumps({"name": name, "arguments": arguments})
    properties = {argument: {"type": "string"} for argument in arguments}
    return {
        **forced_text(f"<tool_call>\n{call}\n</tool_call>"),
        "tools": [
            {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
        ],
        "tool_choice": "auto",
    }
