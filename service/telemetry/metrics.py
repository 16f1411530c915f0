"""Declares every metric of the service: the one place where names, units, labels and buckets are written."""

from service.telemetry.kinds import Declared, Metric

_declare = Declared()

# ---------------------------------------------------------------- requests, settled once each

REQUESTS = _declare.counter(
    "sluice_requests_total", "requests",
    "Requests that ended, by the one outcome of each; refusals and failures after the first byte included.",
    "tier", "kind", "outcome",
)  # fmt: skip
TTFT = _declare.histogram(
    "sluice_ttft_seconds",
    "Arrival to the first content, reasoning or tool-call delta, of generating streams that got one.",
    "Contracts promise between 1 and 120 s: steps of at most x1.67 from 0.1 to 20 s; the last edge is the "
    "relay's own limit for a first token.",
    (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0),
    "tier",
)
QUEUE_WAIT = _declare.histogram(
    "sluice_queue_wait_seconds",
    "Admission to the last dispatch, of requests that were dispatched; those that never were have an outcome instead.",
    "Below 1 ms means that nobody waited; 30 s is the default time to live in the queue.",
    (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0),
    "tier",
)
TPOT = _declare.histogram(
    "sluice_tpot_seconds",
    "Mean time per output token after the first, of completed generating streams with at least two tokens by usage.",
    "Contracts are written between 10 and 100 ms, so edges are 5 to 10 ms apart there; speculation goes below.",
    (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0),
    "tier",
)
E2E = _declare.histogram(
    "sluice_e2e_seconds",
    "Arrival to the last token, of generating requests that completed, streamed or whole.",
    "Two to three edges per decade; the last is the relay's own limit for a whole answer.",
    (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
    "tier",
)
STAGE = _declare.histogram(
    "sluice_stage_seconds",
    "Time spent in one stage, whatever the outcome, up to the last byte; the queue has its own metric.",
    "One set for stages that differ by five decades: our own edge takes 0.1 ms, a generation may take half an hour.",
    (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
     1800.0),
    "stage",
)  # fmt: skip
PROMPT_TOKENS = _declare.counter(
    "sluice_prompt_tokens_total", "tokens", "Prompt tokens by the workers' usage, cached ones included.", "tier"
)
CACHED_TOKENS = _declare.counter(
    "sluice_cached_tokens_total", "tokens", "Prompt tokens that a worker's prefix cache held, by usage.", "tier"
)
OUTPUT_TOKENS = _declare.counter(
    "sluice_output_tokens_total", "tokens", "Output tokens by the workers' usage.", "tier"
)  # fmt: skip
OUTPUT_TOKENS_ESTIMATED = _declare.counter(
    "sluice_output_tokens_estimated_total", "tokens",
    "Output tokens of streams cut before their usage came: events counted instead, a lower bound. Not in "
    "sluice_output_tokens_total.",
    "tier",
)  # fmt: skip

# ---------------------------------------------------------------- what was promised

SLO_EVENTS = _declare.counter(
    "sluice_slo_events_total", "events",
    "Requests as objectives count them: each once by availability, by the others where they apply to it.",
    "tier", "model", "slo", "result",
)  # fmt: skip
SLO_MISSES = _declare.counter(
    "sluice_slo_misses_total", "requests",
    "Requests that missed anything promised, by what it was for want of; only capacity is bought with workers.",
    "tier", "cause",
)  # fmt: skip
BURN_RATE = _declare.gauge(
    "sluice_slo_burn_rate", "",
    "How many times as fast as it may this gateway alone spends an error budget, over one window; absent where nothing "
    "happened.",
    "tier", "slo", "window",
)  # fmt: skip
BUDGET_LEFT = _declare.gauge(
    "sluice_slo_budget_left_ratio", "ratio",
    "What is left of the 30-day error budget by what this gateway has seen since it started; below 0 it is overspent.",
    "tier", "slo",
)  # fmt: skip
MAINTENANCE = _declare.gauge(
    "sluice_maintenance", "", "1 while an announced maintenance window is in force, else 0."
)  # fmt: skip

# ---------------------------------------------------------------- what the core was told and ordered

DISPATCHES = _declare.counter(
    "sluice_dispatches_total", "dispatches",
    "Permits granted: requests sent to a worker, attempts after the first included. Stored answers need no permit.",
)  # fmt: skip
RETRIES = _declare.counter(
    "sluice_retries_total", "retries", "Dispatches after a failed attempt, within the retry budget."
)  # fmt: skip
ATTEMPT_FAILURES = _declare.counter(
    "sluice_attempt_failures_total", "failures",
    "Attempts that failed before a byte of the answer reached the client, by cause.",
    "cause",
)  # fmt: skip
REVOCATIONS = _declare.counter(
    "sluice_revocations_total", "revocations", "Requests in flight taken back from their worker."
)  # fmt: skip

# ---------------------------------------------------------------- states, read when scraped

QUEUED_REQUESTS = _declare.gauge("sluice_queued_requests", "requests", "Requests that wait in the queue.")
QUEUED_TOKENS = _declare.gauge("sluice_queued_tokens", "tokens", "Estimated prompt tokens of what waits in the queue.")
PERMITS_HELD = _declare.gauge(
    "sluice_permits_held", "", "Permits held on all workers together; there even when no worker is."
)  # fmt: skip
DRAINING = _declare.gauge("sluice_draining", "", "1 while this gateway goes away and admits nothing new, else 0.")
IN_FLIGHT = _declare.gauge(
    "sluice_in_flight_requests", "requests", "Permits held on one worker, until the last byte or the abort.", "worker"
)  # fmt: skip
WORKER_PERMITS = _declare.gauge(
    "sluice_worker_permits", "",
    "Requests that this gateway may have on one worker: its share, where several gateways serve the same workers.",
    "worker",
)  # fmt: skip
REPLICAS = _declare.gauge(
    "sluice_replicas", "",
    "Gateways known to serve the same workers, this one among them; absent where workers are not shared.",
)  # fmt: skip
REPLICAS_SILENT = _declare.gauge(
    "sluice_replicas_silent", "",
    "1 while the other gateways cannot be asked and this one goes on with an equal share, else 0; "
    "absent where workers are not shared.",
)  # fmt: skip
WORKER_HEALTHY = _declare.gauge(
    "sluice_worker_healthy", "", "1 if the worker is judged healthy, else 0.", "worker"
)  # fmt: skip
WORKER_LOAD_AGE = _declare.gauge(
    "sluice_worker_load_age_seconds", "seconds",
    "Age of the worker's last own figures; absent while it never gave any.",
    "worker",
)  # fmt: skip
WORKERS = _declare.gauge("sluice_workers", "workers", "Workers by what they are good for, each in one state.", "state")
OFFERED_WORK = _declare.counter(
    "sluice_offered_work_seconds_total", "seconds",
    "Worker-seconds of work that arrived, refused work among it; its rate is demand in workers.",
    "claim",
)  # fmt: skip
QUEUED_WORK = _declare.gauge(
    "sluice_queued_work_seconds", "seconds", "Worker-seconds of work that waits in the queue.", "claim"
)  # fmt: skip
CLAIM_PERMITS = _declare.gauge(
    "sluice_claim_permits_held", "", "Permits held, by what their requests may claim.", "claim"
)  # fmt: skip
PERMITS = _declare.gauge("sluice_permits", "", "Permits of all usable workers together; 0 when no worker is usable.")
WORKER_KV = _declare.gauge(
    "sluice_worker_kv_ratio", "ratio", "Share of a worker's KV cache in use; absent while it does not say.", "worker"
)  # fmt: skip
DISCOVERY_AGE = _declare.gauge(
    "sluice_discovery_age_seconds", "seconds",
    "Age of the last confirmation of the list of workers; absent before the first, and where the list is in the file.",
)  # fmt: skip
DISCOVERY_FAILURES = _declare.counter(
    "sluice_discovery_failures_total", "failures",
    "Attempts to learn of workers that failed: a name did not resolve, a list or a watch broke or was refused.",
)  # fmt: skip
DISCOVERY_MISSED = _declare.counter(
    "sluice_discovery_missed_total", "lists",
    "Lists with a change of which the watch had not told: it was silent, or has gaps.",
)  # fmt: skip
BROWNOUT_LEVEL = _declare.gauge(
    "sluice_brownout_level", "", "Level of brownout that an operator has forced, 0 (none) to 3."
)  # fmt: skip
CEILING = _declare.gauge(
    "sluice_ceiling_ratio", "ratio", "Share of a worker's permits left to a band that budgets hold back.", "band"
)  # fmt: skip
JOURNAL_DROPPED = _declare.counter(
    "sluice_journal_dropped_total", "events",
    "Decisions that are missing from the journal file: no room, no disk, or it is full; absent without a journal.",
)  # fmt: skip
LEDGER_WAITING = _declare.gauge(
    "sluice_ledger_waiting_entries", "entries",
    "Entries that are safe in the spool and not in the database yet; absent without a ledger.",
)  # fmt: skip
LEDGER_PENDING = _declare.gauge(
    "sluice_ledger_pending_entries", "entries",
    "Entries that are only in memory: those of the last 0.1 s, or more if the disk fails; absent without a ledger.",
)  # fmt: skip
LEDGER_LOST = _declare.counter(
    "sluice_ledger_lost_total", "entries",
    "Entries that found no room in the spool nor in memory and exist only as this number; absent without a ledger.",
)  # fmt: skip
LEDGER_SPOOL_BYTES = _declare.gauge(
    "sluice_ledger_spool_bytes", "bytes", "What the spool takes on the disk; absent without a ledger."
)  # fmt: skip
LEDGER_SPOOL_BYTES_MAX = _declare.gauge(
    "sluice_ledger_spool_max_bytes", "bytes", "What the spool may take on the disk; absent without a ledger."
)  # fmt: skip
LEDGER_AWAY = _declare.gauge(
    "sluice_ledger_database_away", "",
    "1 while the clerk cannot write the ledger's database, else 0; absent without a ledger.",
)  # fmt: skip
BODY_BYTES = _declare.gauge(
    "sluice_body_bytes_in_flight", "",
    "Bytes of request bodies held in memory; absent if the listener does not say.",
)  # fmt: skip
CONNECTIONS = _declare.gauge(
    "sluice_connections", "connections", "Open client connections; absent if the listener does not say."
)  # fmt: skip

# ---------------------------------------------------------------- contracts, and what gateways share

QUOTA_DECISIONS = _declare.counter(
    "sluice_quota_decisions_total", "decisions",
    "Looks at the limits of a contract, by what became of them; later ones of the same request count too.",
    "passage",
)  # fmt: skip
QUOTA_ACCOUNTS = _declare.gauge(
    "sluice_quota_accounts", "accounts", "Tenants with limits that sent something within the last minutes."
)  # fmt: skip
STORE_CALLS = _declare.counter(
    "sluice_store_calls_total", "calls",
    "Calls of the shared store, by what was asked and how it answered; absent without a store.",
    "call", "condition",
)  # fmt: skip
STORE_AWAY = _declare.gauge(
    "sluice_store_away", "",
    "1 while quotas go on from shares because the shared store does not answer, else 0; absent without a store.",
)  # fmt: skip
GATEWAYS = _declare.gauge(
    "sluice_gateways", "gateways", "Gateways by which shares are reckoned, this one too; absent without a store."
)  # fmt: skip

# ---------------------------------------------------------------- the process

LOOP_LAG = _declare.histogram(
    "sluice_event_loop_lag_seconds",
    "How much later than asked the event loop rang a timer.",
    "Below 1 ms is an idle loop; above 25 ms the lag itself shows in a paid tier's TPOT.",
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
BUILD_INFO = _declare.info("sluice_build_info", "Always 1; the label names the running version.", "version")

METRICS: tuple[Metric, ...] = tuple(_declare.metrics)

TIER_EDGES: dict[str, str] = {
    TTFT.name: "TTFT targets",
    TPOT.name: "TPOT targets",
    QUEUE_WAIT.name: "times to live in the queue",
}
"""What each configured tier adds to a histogram's edges, so that a threshold can be read off exactly."""

PROCESS_METRICS: tuple[tuple[str, str, str], ...] = (
    ("process_virtual_memory_bytes", "gauge", "Virtual memory of the process."),
    ("process_resident_memory_bytes", "gauge", "Resident memory of the process."),
    ("process_start_time_seconds", "gauge", "Start of the process, seconds since 1970 UTC."),
    ("process_cpu_seconds_total", "counter", "CPU time of the process, user and system."),
    ("process_open_fds", "gauge", "Open file descriptors."),
    ("process_max_fds", "gauge", "Most file descriptors allowed."),
)
"""Come from prometheus_client's ProcessCollector, which names them; listed for the document."""
