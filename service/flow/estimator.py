"""Estimates what a request will cost, without a tokenizer."""

from service.domain.estimate import Estimate
from service.domain.request import Request

BYTES_PER_TOKEN = 3.2
"""Bytes of a JSON body per prompt token: a guess between English text (about 4) and code or CJK (2-3); measured per
tenant once answers report their usage."""

DEFAULT_OUTPUT_TOKENS = 211
"""Mean output of the Azure 2023 conversation trace, for requests that do not bound themselves."""


def estimate_request(request: Request) -> Estimate:
    """Predict prompt and output tokens of ``request``; never fails.

    Trade-offs: images count by their encoded bytes, which overstates them; a body full of JSON syntax is overstated.
    """
    bound = request.max_output_tokens
    output = DEFAULT_OUTPUT_TOKENS if bound is None else min(bound, DEFAULT_OUTPUT_TOKENS)
    return Estimate(int(request.prompt_bytes / BYTES_PER_TOKEN), output)
