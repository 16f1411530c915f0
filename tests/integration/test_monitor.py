"""The monitor against scripted workers: D18 and D19, and what else goes wrong on a network."""

import asyncio
import contextlib
import errno
import random
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import httpx
import pytest

from service.domain.event import (
    Event,
    WorkerDrainChanged,
    WorkerHealthChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerLoadSeen,
)
from service.flow.config import FlowConfig
from service.flow.controller import FlowController
from service.workers.addresses import WorkerAddress, parse_address
from service.workers.discovery import StaticDiscovery, reconcile
from service.workers.evidence import Answer, Evidence
from service.workers.health import Health, HealthConfig, Reason
from service.workers.monitor import Monitor, WorkerStatus
from service.workers.probe import ClientFactory, Probe, ProbeConfig, build_client_factory
from service.workers.watch import MonitorConfig
from tests.support.fake_worker import BROKEN, ENDLESS, GARBAGE, HANG, OK, RESET, FakeWorker
from tests.support.until import holds, until

pytestmark = pytest.mark.integration

MODEL = "MiniMax-M3.1-Flash"
STALL_S = 0.5
CONFIG = MonitorConfig(
    interval_s=0.05,
    eager_s=0.01,
    health_interval_s=0.1,
    models_interval_s=0.2,
    token_gap_s=0.05,
    parole_s=0.3,
    shortest_gap_s=0.005,
    probe=ProbeConfig(0.2, 0.15, 0.25, 0.2),
    health=HealthConfig(
        required_model=MODEL,
        stall_after_s=STALL_S,
        blind_stall_after_s=1.0,
        stale_after_s=0.4,
        longest_tick_s=0.15,
    ),
)


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class House:
    """Everything around one monitor: what it told the core, the gateway's traffic, who may connect."""

    discovery: StaticDiscovery
    build_client: ClientFactory
    monitor: Monitor = field(init=False)
    events: list[Event] = field(default_factory=list)
    flying: dict[str, int] = field(default_factory=dict)
    bytes_at: dict[str, float] = field(default_factory=dict)
    flowing: set[str] = field(default_factory=set)
    reachable: dict[str, WorkerAddress] = field(default_factory=dict)
    leaving: dict[str, bool] = field(default_factory=dict)
    replacements: list[tuple[str, str]] = field(default_factory=list)

    # Traffic
    def in_flight(self, worker_id: str) -> int:
        return self.flying.get(worker_id, 0)

    def last_byte_at(self, worker_id: str) -> float | None:
        return now() if worker_id in self.flowing else self.bytes_at.get(worker_id)

    # Roster
    def add(self, worker_id: str, address: WorkerAddress) -> None:
        assert WorkerJoined(worker_id) not in self.events[-1:]
        self.reachable[worker_id] = address

    def welcome(self, worker_id: str) -> None:
        assert self.events[-1] == WorkerJoined(worker_id)

    def remove(self, worker_id: str) -> None:
        assert self.events[-1] == WorkerLeft(worker_id)
        del self.reachable[worker_id]

    def replaced(self, old: str, new: str) -> None:
        assert self.events[-1] == WorkerJoined(new)
        self.replacements.append((old, new))

    def set_leaving(self, worker_id: str, leaving: bool) -> None:
        assert worker_id in self.listed
        self.leaving[worker_id] = leaving

    # What the core would believe
    def submit(self, event: Event) -> None:
        if isinstance(event, WorkerHealthChanged | WorkerLoadSeen | WorkerLeft):
            assert event.worker_id in self.listed, f"the core does not know the worker of {event}"
        self.events.append(event)

    @property
    def listed(self) -> set[str]:
        listed: set[str] = set()
        for event in self.events:
            if isinstance(event, WorkerJoined):
                listed.add(event.worker_id)
            elif isinstance(event, WorkerLeft):
                listed.discard(event.worker_id)
        return listed

    @property
    def usable(self) -> set[str]:
        usable: set[str] = set()
        for event in self.events:
            if isinstance(event, WorkerHealthChanged) and event.healthy:
                usable.add(event.worker_id)
            elif isinstance(event, WorkerLeft | WorkerHealthChanged):
                usable.discard(event.worker_id)
        return usable

    def status(self, worker_id: str) -> WorkerStatus:
        return next(status for status in self.monitor.status() if status.worker_id == worker_id)

    def reason(self, worker_id: str) -> Reason:
        return self.status(worker_id).health.reason


def address_of(worker: FakeWorker) -> WorkerAddress:
    return parse_address(f"http://127.0.0.1:{worker.port}")


def id_of(worker: FakeWorker) -> str:
    return address_of(worker).worker_id


@contextlib.asynccontextmanager
async def watching(
    *workers: FakeWorker, config: MonitorConfig = CONFIG, build_client: ClientFactory | None = None
) -> AsyncIterator[House]:
    house = House(
        StaticDiscovery([address_of(worker) for worker in workers], now),
        build_client or build_client_factory(config.probe),
    )
    house.monitor = Monitor(
        config, house.discovery, house.build_client, house.submit, house, house, now, random.Random(7)
    )
    task = asyncio.create_task(house.monitor.run())
    try:
        yield house
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert [other for other in asyncio.all_tasks() if "Watch" in repr(other.get_coro())] == []


def naive_settle(before: Health | None, evidence: Evidence, config: HealthConfig, moment: float) -> Health:
    """The mutant most routers ship: healthy is who answers ``/health`` with 200 in good time."""
    return Health(Reason.GOOD if evidence.health is Answer.OK else Reason.SILENT, moment)


# ------------------------------------------------------------------ joining


async def test_a_pool_that_is_up_is_usable_at_once() -> None:
    async with FakeWorker() as one, FakeWorker() as two, watching(one, two) as house:
        took_s = await until(lambda: house.usable == {id_of(one), id_of(two)})
        assert took_s < 2.0  # about 30 ms when nobody else works on the machine
        assert house.reachable.keys() == house.usable
        status = house.status(id_of(one))
        assert status.served_models == {MODEL}
        assert status.load is not None
        assert status.load_age_s is not None
        assert 0 <= status.load_age_s < 1.0
        assert house.monitor.discovery_status().listed == 2
        await until(lambda: sum(isinstance(event, WorkerLoadSeen) for event in house.events) > 4)


async def test_a_worker_that_comes_up_later_is_found_soon() -> None:
    worker = await FakeWorker().start()
    await worker.stop()
    async with watching(worker) as house:
        await until(lambda: house.listed == {id_of(worker)})
        await until(lambda: house.reason(id_of(worker)) is Reason.REFUSED)
        assert house.usable == set()
        await worker.start()
        assert await until(lambda: house.usable == {id_of(worker)}) < 2.0
        await worker.stop()


async def test_a_worker_that_serves_another_model_takes_no_work() -> None:
    async with FakeWorker(model="other") as worker, watching(worker) as house:
        await until(lambda: bool(house.listed) and house.reason(id_of(worker)) is Reason.WRONG_MODEL)
        worker.model = MODEL  # an adapter was loaded under that name
        worker.started_at = 1000.0
        await until(lambda: house.usable == {id_of(worker)})


async def test_the_label_of_the_page_names_the_model_where_the_list_is_closed() -> None:
    async with FakeWorker(models=BROKEN) as worker, watching(worker) as house:
        await until(lambda: house.usable == {id_of(worker)})


async def test_a_model_that_nobody_confirms_is_not_assumed() -> None:
    async with FakeWorker(models=BROKEN, model="alias") as worker, watching(worker) as house:
        await until(lambda: worker.calls.get("/v1/models", 0) > 3)
        assert house.reason(id_of(worker)) is Reason.UNPROVEN


async def test_d17_a_worker_that_is_about_to_end_is_said_to_be_and_stays_until_it_is_gone() -> None:
    async with FakeWorker() as one, FakeWorker() as two, watching(one, two) as house:
        await until(lambda: house.usable == {id_of(one), id_of(two)})
        going = address_of(one).as_leaving(True)
        house.discovery.replace([going, address_of(two)])
        await until(lambda: house.leaving == {id_of(one): True})
        assert house.usable == {id_of(one), id_of(two)}  # its streams go on, so it is watched on
        house.discovery.replace([address_of(one), address_of(two)])
        await until(lambda: house.leaving == {id_of(one): False})
        house.discovery.replace([going, address_of(two)])
        await until(lambda: house.leaving == {id_of(one): True})
        one.started_at += 50  # its container starts once more in the pod that is going
        await until(lambda: house.leaving.get(f"{id_of(one)}~2", False))
        house.discovery.replace([address_of(two)])
        await until(lambda: house.listed == {id_of(two)})


async def test_d17_a_worker_about_to_end_may_shut_its_door_and_finish_what_it_has() -> None:
    async with FakeWorker() as one, watching(one) as house:
        worker_id = id_of(one)
        await until(lambda: house.usable == {worker_id})
        house.discovery.replace([address_of(one).as_leaving(True)])
        await until(lambda: house.leaving == {worker_id: True})
        house.flying[worker_id] = 2
        house.flowing.add(worker_id)
        await one.stop()
        await until(lambda: house.reason(worker_id) is Reason.FINISHING)
        await holds(lambda: house.usable == {worker_id}, 2 * STALL_S, "not being taken its streams")
        house.flowing.clear()  # nothing comes any more
        assert await until(lambda: house.usable == set()) <= STALL_S + 1.0


async def test_d17_a_worker_that_dies_unannounced_loses_its_streams_at_once() -> None:
    async with FakeWorker() as one, watching(one) as house:
        await until(lambda: house.usable == {id_of(one)})
        house.flying[id_of(one)] = 2
        house.flowing.add(id_of(one))
        await one.stop()
        await until(lambda: house.usable == set())
        assert house.reason(id_of(one)) is Reason.REFUSED


async def test_d17_a_worker_that_is_met_while_it_is_about_to_end_gets_no_work() -> None:
    async with FakeWorker() as one, watching() as house:
        house.discovery.replace([address_of(one).as_leaving(True)])
        await until(lambda: house.leaving == {id_of(one): True})


async def test_a_worker_off_its_profile_takes_no_work_and_says_why() -> None:
    found = [("kv_cache.dtype: asked nvfp4, the engine runs fp8",)]
    config = replace(
        CONFIG, find_deviations=lambda page: found[0], health=replace(CONFIG.health, confirms_profile=True)
    )
    async with FakeWorker() as worker, watching(worker, config=config) as house:
        await until(lambda: bool(house.listed) and house.reason(id_of(worker)) is Reason.OFF_PROFILE)
        assert house.status(id_of(worker)).deviations == found[0]
        assert house.usable == set()
        found[0] = ()
        await until(lambda: house.usable == {id_of(worker)})


async def test_a_worker_is_used_only_when_a_token_has_come_out_of_it() -> None:
    config = replace(CONFIG, health=replace(CONFIG.health, proves_first=True))
    async with FakeWorker(token=HANG) as worker, watching(worker, config=config) as house:
        await until(lambda: worker.calls.get("/v1/completions", 0) >= 2)
        assert house.reason(id_of(worker)) is Reason.UNPROVEN
        worker.token = OK
        await until(lambda: house.usable == {id_of(worker)})
    async with FakeWorker(token=HANG, moving=True) as worker, watching(worker, config=config) as house:
        await until(lambda: house.usable == {id_of(worker)})  # others' tokens come out of it


# ------------------------------------------------------------------ D19


async def test_d19a_health_200_and_never_a_token_is_ejected_within_the_threshold() -> None:
    async with FakeWorker(token=HANG) as worker, watching(worker) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        house.flying[worker_id] = 3  # the engine is frozen: its gauges do not even show them
        took_s = await until(lambda: worker_id not in house.usable)
        assert took_s <= STALL_S + 1.0  # the rest is for busy machines
        assert took_s >= STALL_S - 2 * CONFIG.interval_s
        assert house.reason(worker_id) is Reason.STALLED
        house.flying[worker_id] = 0  # the core took its requests back
        await holds(lambda: worker_id not in house.usable, 0.4, "staying out while nothing was shown to work")
        worker.token = OK
        await until(lambda: worker_id in house.usable)


async def test_d19b_slow_health_under_load_with_flowing_tokens_stays_in_service() -> None:
    async with FakeWorker(moving=True, running=8) as worker, watching(worker) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        worker.health_delay_s = 3.0
        house.flying[worker_id] = 4
        await holds(lambda: worker_id in house.usable, 2 * STALL_S, "staying in service")
        assert worker.calls["/health"] > 2


async def test_d19b_also_when_it_is_met_in_that_state() -> None:
    async with FakeWorker(moving=True, running=8, health_delay_s=3.0) as worker, watching(worker) as house:
        await until(lambda: id_of(worker) in house.usable)


async def test_d19c_waiting_requests_with_frozen_tokens_are_ejected_within_the_threshold() -> None:
    async with FakeWorker(waiting=5, token=HANG) as worker, watching(worker) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)  # nothing speaks against it yet
        assert await until(lambda: worker_id not in house.usable) <= STALL_S + 1.0
        assert house.reason(worker_id) is Reason.STALLED
        worker.moving = True  # it thawed
        await until(lambda: worker_id in house.usable)


async def test_d19_the_naive_version_fails_all_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.workers.watch.settle", naive_settle)
    frozen = FakeWorker(token=HANG)
    waiting = FakeWorker(waiting=5, token=HANG)
    slow = FakeWorker(moving=True, running=8)
    async with frozen, waiting, slow, watching(frozen, waiting, slow) as house:
        await until(lambda: len(house.usable) == 3)
        house.flying[id_of(frozen)] = 3
        slow.health_delay_s = 3.0
        await until(lambda: id_of(slow) not in house.usable)  # wrong on (b)
        await asyncio.sleep(2 * STALL_S)
        # wrong on (a) and (c); a busy machine may hold up a health check, but the naive version takes them back
        await until(lambda: house.usable == {id_of(frozen), id_of(waiting)})


async def test_d19_a_long_prefill_is_progress() -> None:
    """vLLM counts no token of a chunked prefill before its first output, but each chunk takes cache blocks."""
    async with FakeWorker(running=1, filling=True, token=HANG) as worker, watching(worker) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        house.flying[worker_id] = 1
        await holds(lambda: worker_id in house.usable, 2 * STALL_S)


async def test_d19_a_gauge_that_stuck_on_an_idle_worker_is_settled_by_a_token() -> None:
    async with FakeWorker(running=1) as worker, watching(worker) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        await holds(lambda: worker_id in house.usable, 2 * STALL_S)
        assert worker.calls["/v1/completions"] >= 1


async def test_an_idle_worker_is_asked_for_no_tokens() -> None:
    async with FakeWorker() as worker, watching(worker) as house:
        await until(lambda: id_of(worker) in house.usable)
        await holds(lambda: id_of(worker) in house.usable, 2 * STALL_S)
        assert "/v1/completions" not in worker.calls


async def test_a_worker_without_completions_comes_back_on_parole() -> None:
    async with FakeWorker(token=BROKEN) as worker, watching(worker) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        house.flying[worker_id] = 1
        await until(lambda: worker_id not in house.usable)
        house.flying[worker_id] = 0
        ejected_at = house.status(worker_id).health.since
        await until(lambda: worker_id in house.usable)
        assert house.status(worker_id).health.since - ejected_at >= CONFIG.parole_s


# ------------------------------------------------------------------ probes that fail


async def test_a_slow_health_page_of_an_idle_worker_condemns_nobody() -> None:
    async with FakeWorker() as worker, watching(worker) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        worker.health = HANG
        before = worker.calls["/health"]
        await until(lambda: worker.calls["/health"] > before + 2)
        assert worker_id in house.usable


async def test_a_refused_connection_ejects_at_once_when_it_is_suspected() -> None:
    slow = replace(CONFIG, interval_s=30.0, jitter_ratio=0.0)
    async with FakeWorker() as worker, watching(worker, config=slow) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        await until(lambda: worker.calls["/metrics"] >= 2)  # the last turn of the eager beginning
        await holds(lambda: worker.calls["/metrics"] == 2, 0.1)
        await worker.stop()
        await holds(lambda: worker_id in house.usable, 0.1)
        house.monitor.suspect(worker_id)
        house.monitor.suspect("nobody")
        assert await until(lambda: worker_id not in house.usable) < 0.5
        assert house.reason(worker_id) is Reason.REFUSED


async def test_suspicion_does_not_flood_a_worker() -> None:
    calm = replace(CONFIG, interval_s=30.0, shortest_gap_s=0.05)
    async with FakeWorker() as worker, watching(worker, config=calm) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        before = worker.calls["/metrics"]

        def again() -> bool:
            house.monitor.suspect(worker_id)
            return True

        await holds(again, 0.3)
        assert 2 <= worker.calls["/metrics"] - before <= 8


async def test_503_of_health_means_a_dead_engine() -> None:
    async with FakeWorker(moving=True) as worker, watching(worker) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        worker.health = BROKEN
        await until(lambda: worker_id not in house.usable)
        assert house.reason(worker_id) is Reason.ENGINE_DEAD
        worker.health = OK
        await until(lambda: worker_id in house.usable)


async def test_a_silent_idle_worker_is_ejected_and_comes_back() -> None:
    async with FakeWorker() as worker, watching(worker) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        worker.metrics = worker.health = HANG
        await until(lambda: worker_id not in house.usable)
        assert house.reason(worker_id) is Reason.SILENT
        worker.metrics = worker.health = OK
        await until(lambda: worker_id in house.usable)


@pytest.mark.parametrize("metrics", [HANG, BROKEN, GARBAGE, RESET])
async def test_d29_a_worker_whose_page_fails_serves_on_with_a_stale_load(metrics: str) -> None:
    async with FakeWorker() as worker, FakeWorker() as other, watching(worker, other) as house:
        worker_id, other_id = id_of(worker), id_of(other)
        await until(lambda: len(house.usable) == 2)
        worker.metrics = metrics
        house.flying[worker_id] = 2
        house.flowing.add(worker_id)
        await until(lambda: house.reason(worker_id) is Reason.STALE)
        assert house.usable == {worker_id, other_id}
        assert house.status(worker_id).scrape_failures > 0
        assert house.reason(other_id) is Reason.GOOD
        worker.metrics = OK
        await until(lambda: house.reason(worker_id) is Reason.GOOD)


async def test_d29_bytes_speak_for_a_worker_that_answers_no_probe_at_all() -> None:
    async with FakeWorker() as worker, watching(worker) as house:
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        worker.metrics = worker.health = worker.models = worker.token = HANG
        house.flying[worker_id] = 2
        house.flowing.add(worker_id)
        await until(lambda: house.status(worker_id).scrape_failures > 3)
        assert house.reason(worker_id) is Reason.STALE
        house.flowing.clear()  # and when they stop, it is silent
        await until(lambda: worker_id not in house.usable)
        assert house.reason(worker_id) is Reason.SILENT


async def test_d29_a_gateway_that_starts_while_pages_fail_asks_for_a_token() -> None:
    async with FakeWorker(metrics=BROKEN) as worker, watching(worker) as house:
        await until(lambda: id_of(worker) in house.usable)
        assert house.reason(id_of(worker)) is Reason.STALE
        assert worker.calls["/v1/completions"] == 1
        house.flying[id_of(worker)] = 1  # blind, it is given longer, but not for ever
        worker.token = HANG
        assert await until(lambda: id_of(worker) not in house.usable) > STALL_S


async def test_one_hung_worker_does_not_delay_the_others() -> None:
    hung, good = FakeWorker(metrics=HANG, health=HANG, models=HANG), FakeWorker()
    async with hung, good, watching(hung, good) as house:
        await until(lambda: house.usable == {id_of(good)})
        before = good.calls["/metrics"]
        await until(lambda: hung.calls["/metrics"] >= 4)
        assert good.calls["/metrics"] - before >= 8


async def test_probes_that_hang_leak_no_connection() -> None:
    async with FakeWorker(metrics=HANG, health=HANG, models=HANG) as worker, watching(worker):
        most = 0

        def watch_connections() -> bool:
            nonlocal most
            most = max(most, worker.connections)
            return worker.calls.get("/metrics", 0) >= 8

        await until(watch_connections)
        assert most <= 8
        worker.metrics = worker.health = worker.models = OK
        await until(lambda: worker.connections <= 3)
    await until(lambda: worker.connections == 0)


async def test_an_endless_page_is_cut_off() -> None:
    config = replace(CONFIG, probe=ProbeConfig(0.5, 2.0, 5.0, 1.0))
    async with FakeWorker(metrics=ENDLESS) as worker, watching(worker, config=config) as house:
        await until(lambda: bool(house.listed) and house.status(id_of(worker)).scrape_failures > 0, bound_s=10.0)


async def test_want_of_descriptors_on_our_side_is_not_the_workers_fault() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("too many") from OSError(errno.EMFILE, "Too many open files")

    async with httpx.AsyncClient(transport=httpx.MockTransport(fail)) as client:
        probe = Probe(client, "http://w:1", ProbeConfig())
        assert (await probe.fetch_metrics()).answer is Answer.BROKEN
        assert await probe.fetch_models() is None


async def test_the_key_of_the_workers_is_sent() -> None:
    client = build_client_factory(ProbeConfig(api_key="canary"))()
    assert client.headers["authorization"] == "Bearer canary"
    await client.aclose()


async def test_a_fault_of_ours_in_one_call_is_survived_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    faulty = True

    def answer(request: httpx.Request) -> httpx.Response:
        if faulty:
            raise RuntimeError("a bug")
        return httpx.Response(503, stream=httpx.ByteStream(b""))

    def build() -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(answer))

    async with watching(FakeWorker(port=24999), build_client=build) as house:
        worker_id = "127.0.0.1:24999"
        await until(lambda: bool(house.listed) and house.status(worker_id).faults > 2)
        faulty = False
        await until(lambda: house.reason(worker_id) is Reason.ENGINE_DEAD)
    assert "a bug" in caplog.text


# ------------------------------------------------------------------ D18


async def test_d18_an_address_reused_by_another_model_is_another_worker() -> None:
    async with FakeWorker() as old, watching(old) as house:
        first = id_of(old)
        await until(lambda: house.usable == {first})
        assert reconcile([address_of(old)], [address_of(old)]) == ([], [])  # the mutant, addresses only, sees nothing
        house.flying[first] = 2
        old.model, old.started_at, old.tokens = "other", 2000.0, 5.0
        await until(lambda: first not in house.listed)
        second = f"{first}~2"
        assert WorkerHealthChanged(first, healthy=False) in house.events  # what it held is lost: taken back
        assert house.replacements == [(first, second)]
        assert house.reachable.keys() == {second}
        await until(lambda: house.reason(second) is Reason.WRONG_MODEL)
        assert house.usable == set()


async def test_d18_the_naive_version_takes_the_newcomer_for_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.workers.watch.is_other", lambda known, seen: False)
    async with FakeWorker() as old, watching(old) as house:
        await until(lambda: house.usable == {id_of(old)})
        old.started_at = 2000.0
        before = old.calls["/metrics"]
        await until(lambda: old.calls["/metrics"] > before + 3)
        assert house.usable == {id_of(old)}


async def test_d18_a_restarted_worker_joins_anew() -> None:
    worker = await FakeWorker().start()
    async with watching(worker) as house:
        first = id_of(worker)
        await until(lambda: house.usable == {first})
        await worker.stop()
        await until(lambda: house.usable == set())
        worker.started_at = 2000.0
        await worker.start()
        await until(lambda: house.usable == {f"{first}~2"})
        assert house.listed == {f"{first}~2"}
        await worker.stop()


async def test_d18_static_a_removed_worker_gets_no_more_probes_and_its_requests_are_left_alone() -> None:
    async with FakeWorker() as gone, FakeWorker() as stays, watching(gone, stays) as house:
        await until(lambda: len(house.usable) == 2)
        house.discovery.replace([address_of(stays)])
        await until(lambda: house.listed == {id_of(stays)})
        assert WorkerHealthChanged(id_of(gone), healthy=False) not in house.events
        calls = dict(gone.calls)
        await holds(lambda: gone.calls == calls, 0.2)
        assert [status.worker_id for status in house.monitor.status()] == [id_of(stays)]


async def test_d18_a_worker_that_returns_is_known_again_unless_it_is_another() -> None:
    async with FakeWorker() as worker, watching(worker) as house:
        first = id_of(worker)
        for started_at, expected in ((1000.0, first), (2000.0, f"{first}~2")):
            await until(lambda: len(house.usable) == 1)
            house.discovery.replace([])
            await until(lambda: house.listed == set())
            worker.started_at = started_at
            house.discovery.replace([address_of(worker)])
            await until(lambda expected=expected: house.usable == {expected})


async def test_d18_the_same_identity_at_another_address_is_reached_there() -> None:
    async with FakeWorker() as here, FakeWorker(started_at=1500.0) as there, watching() as house:
        pod = WorkerAddress("pod-1", "127.0.0.1", here.port)
        house.discovery.replace([pod])
        await until(lambda: house.usable == {"pod-1"})
        house.discovery.replace([replace(pod, port=there.port)])
        await until(lambda: house.usable == {"pod-1~2"})
        assert house.reachable["pod-1~2"].port == there.port


async def test_d18_a_connect_failure_leaves_no_usable_worker() -> None:
    worker = await FakeWorker().start()
    async with watching(worker) as house:
        await until(lambda: len(house.usable) == 1)
        await worker.stop()
        await until(lambda: house.usable == set())  # what readiness looks at


async def test_the_monitor_never_speaks_of_drains_nor_of_its_own_end() -> None:
    async with FakeWorker() as worker:
        async with watching(worker) as house:
            await until(lambda: len(house.usable) == 1)
        assert {type(event) for event in house.events} == {WorkerJoined, WorkerHealthChanged, WorkerLoadSeen}
        assert house.usable == {id_of(worker)}


async def test_a_source_that_breaks_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeWorker() as worker, watching() as house:

        class Fragile:
            tries = 0

            async def run(self, publish) -> None:
                self.tries += 1
                if self.tries < 3:
                    raise RuntimeError("source broke")
                publish([address_of(worker)])
                await asyncio.Event().wait()

            def status(self) -> None:
                return None

        monitor = Monitor(CONFIG, Fragile(), house.build_client, house.submit, house, house, now, random.Random(1))
        task = asyncio.create_task(monitor.run())
        await until(lambda: house.usable == {id_of(worker)})
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert re.search("source broke", caplog.text)


async def test_memory_of_those_who_left_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.workers.monitor._REMEMBERED", 3)
    async with watching() as house:
        for port in range(24950, 24962):
            addresses: Sequence[WorkerAddress] = [parse_address(f"http://127.0.0.1:{port}")]
            house.monitor.publish(addresses)
        house.monitor.publish([])
        assert len(house.monitor._past) <= 4


async def test_without_any_name_no_token_can_be_asked_for() -> None:
    config = replace(CONFIG, health=replace(CONFIG.health, required_model=None))
    async with FakeWorker(metrics=BROKEN, models=BROKEN) as worker, watching(worker, config=config) as house:
        await until(lambda: worker.calls.get("/metrics", 0) > 5)
        assert "/v1/completions" not in worker.calls
        assert house.reason(id_of(worker)) is Reason.UNPROVEN


async def test_the_real_core_agrees_and_an_operators_drain_outlives_an_ejection() -> None:
    async with FakeWorker() as worker:
        house = House(StaticDiscovery([address_of(worker)], now), build_client_factory(CONFIG.probe))
        core = FlowController(FlowConfig(requests_per_worker=4), random.Random(1))

        def submit(event: Event) -> None:
            core.handle(event, now())  # an event that cannot happen raises here, and is counted as a fault
            house.submit(event)

        monitor = Monitor(CONFIG, house.discovery, house.build_client, submit, house, house, now, random.Random(1))
        task = asyncio.create_task(monitor.run())
        worker_id = id_of(worker)
        await until(lambda: worker_id in house.usable)
        core.handle(WorkerDrainChanged(worker_id, draining=True), now())
        worker.health = BROKEN
        await until(lambda: worker_id not in house.usable)
        worker.health = OK
        await until(lambda: worker_id in house.usable)
        (stats,) = core.stats(now()).workers
        assert (stats.healthy, stats.draining) == (True, True)
        worker.started_at = 2000.0  # replaced, then delisted
        await until(lambda: house.listed == {f"{worker_id}~2"})
        house.discovery.replace([])
        await until(lambda: house.listed == set())
        assert core.stats(now()).workers == ()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
