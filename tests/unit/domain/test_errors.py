"""An invariant error is an error of ours and not one that a caller handles in passing."""

from service.domain.errors import InvariantError


def test_it_is_no_value_error_that_somebody_might_catch():
    assert issubclass(InvariantError, Exception)
    assert not issubclass(InvariantError, (ValueError, LookupError, RuntimeError))
