"""The values that cross rooms are comparable and without a dictionary of their own; that they are never assigned to
is held by the type checker."""

import dataclasses

import pytest

from service.domain import command, estimate, event, load, permit, request, tenant, tier

VALUES = sorted(
    {
        value
        for module in (command, estimate, event, load, permit, request, tenant, tier)
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value)
    },
    key=lambda value: value.__name__,
)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_slotted(value):
    assert "__slots__" in vars(value)


def test_equal_fields_make_equal_values():
    assert permit.Permit("r", "w", 1.0, 1) == permit.Permit("r", "w", 1.0, 1)
    assert event.WorkerJoined("w") != event.WorkerLeft("w")
