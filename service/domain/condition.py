"""In which ways the shared store can fail to answer: a closed set, each told apart, counted, and met in a declared way.

| condition | what it means | quotas | tenants and keys |
|---|---|---|---|
| fine | it answered | leases | followed |
| away | no connection, or it broke, or it is still loading | shares | those known stay known |
| slow | no answer in time | shares | those known stay known |
| read_only | a replica, or a full disk: it answers reads alone | shares | followed |
| denied | wrong password, or no right to what is asked | shares | those known stay known |
| empty | it was restarted without its data, or flushed | the gateways tell it what they know | those known stay known |
| failed | it answered with another error | shares | those known stay known |
"""

from enum import Enum


class Condition(Enum):
    """How the store answered."""

    FINE = "fine"
    AWAY = "away"
    SLOW = "slow"
    READ_ONLY = "read_only"
    DENIED = "denied"
    EMPTY = "empty"
    FAILED = "failed"


class StoreError(Exception):
    """The store did not do what it was asked; ``condition`` says why."""

    def __init__(self, condition: Condition, detail: str) -> None:
        super().__init__(f"{condition.value}: {detail}")
        self.condition = condition
