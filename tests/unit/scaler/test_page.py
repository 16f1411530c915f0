"""What the scaler tells whoever scrapes it."""

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.scaler.page import Bulletin, Page
from service.slo.scaling import Decision, Parts
from service.telemetry.scaler_metrics import SCALER_METRICS

DECISION = Decision(7, 7, Parts(6, 5, None), True, (), 4.2, 0.3, 0.85)


def read(*bulletins: Bulletin) -> dict[tuple[str, ...], float]:
    text = generate_latest(Page(list(bulletins)).registry).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("sluice_")
    }


def test_everything_that_is_known_is_told() -> None:
    bulletin = Bulletin("m3", lambda: 130.0)
    bulletin.publish(DECISION, 100.0)
    found = read(bulletin)
    assert found[("sluice_desired_replicas", "m3")] == 7.0
    assert found[("sluice_desired_replicas_part", "forecast", "m3")] == 6.0
    assert ("sluice_desired_replicas_part", "burn", "m3") not in found
    assert found[("sluice_scaler_input_age_seconds", "m3")] == 30.0
    assert {name for name, *_ in found} == {metric.name for metric in SCALER_METRICS}


def test_nothing_is_a_number_before_anything_is_known() -> None:
    silent, blind = Bulletin("a", lambda: 0.0), Bulletin("b", lambda: 0.0)
    blind.publish(Decision(None, None, Parts(None, None, None), False, ()), 0.0)
    names = {name for name, *_ in read(silent, blind)}
    assert names == {"sluice_scaler_failures_total", "sluice_scaler_input_complete"}
