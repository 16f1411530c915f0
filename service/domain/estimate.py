"""What a request is expected to cost, before it runs."""

from service.domain.value import value


@value
class Estimate:
    """Predicted size of one request: prompt tokens to read and output tokens to write (both >= 0)."""

    prompt_tokens: int
    output_tokens: int
