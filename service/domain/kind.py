"""The kinds of requests that generate tokens, by the names of their routes."""

GENERATING_KINDS = ("chat_completions", "completions", "responses", "messages")
"""Routes that generate tokens: only these have a TTFT, a TPOT and an E2E time."""
