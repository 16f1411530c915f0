"""Builds the configuration and the command line of each gateway: pure text from ports and paths.

Each peer runs with what its own documentation calls fast: no access log, no retries that make it hold and rewrite
bodies, connections to the worker kept, no buffering of answers, and one thread where it is a proxy with a thread
count (Sluice is one process, and nginx, HAProxy and Envoy are the floor it is held against). Routing is round robin:
one worker leaves nothing to choose, so the cheapest choice is the fair one.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from loadtests.live.backend import MODEL

BENCH_KEY = "sk-sluice-bench-of-this-machine-only-0000000000"
_HOST = "127.0.0.1"
_ENVOY_FILTERS = "type.googleapis.com/envoy.extensions.filters"


@dataclass(frozen=True)
class Site:
    """The places one gateway is given for one run: its port, its admin port, its workers, a folder of its own."""

    port: int
    admin_port: int
    worker_ports: tuple[int, ...]
    folder: Path

    @property
    def worker_urls(self) -> list[str]:
        """Base URLs of the workers."""
        return [f"http://{_HOST}:{port}" for port in self.worker_ports]


def build_vllm_router_command(program: Path, site: Site) -> list[str]:
    """vllm-router: round robin, no retries."""
    return [
        str(program),
        *("--host", _HOST, "--port", str(site.port)),
        *("--worker-urls", *site.worker_urls),
        *("--policy", "round_robin", "--disable-retries"),
        *("--prometheus-host", _HOST, "--prometheus-port", str(site.admin_port)),
        *("--log-level", "error"),
    ]


def build_smg_command(program: Path, site: Site) -> list[str]:
    """SMG with its priority scheduler, the part that compares with ours.

    With retries on it rewrites and merges stream chunks. Its workers are registered after the start, because only
    then can they carry the label that lifts the scheduler's slots: without it 50 streams were served six at a time.
    """
    return [
        str(program),
        "launch",
        *("--host", _HOST, "--port", str(site.port)),
        *("--policy", "round_robin", "--disable-retries", "--priority-scheduler-enabled"),
        *("--disable-tokenizer-autoload", "--history-backend", "none"),
        *("--prometheus-host", _HOST, "--prometheus-port", str(site.admin_port)),
        *("--shutdown-grace-period-secs", "1", "--log-level", "error"),
    ]


def build_envoy_bootstrap(site: Site) -> str:
    """Envoy: one route to one cluster, no time limit on streams, no access log; YAML."""
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": _HOST, "port_value": port}}}}
        for port in site.worker_ports
    ]
    connection_manager = {
        "@type": f"{_ENVOY_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "generate_request_id": False,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "workers",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "workers", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": f"{_ENVOY_FILTERS}.http.router.v3.Router",
                    "suppress_envoy_headers": True,
                },
            }
        ],
    }
    thresholds = {"max_connections": 10000, "max_pending_requests": 10000, "max_requests": 10000}
    bootstrap = {
        "admin": {"address": {"socket_address": {"address": _HOST, "port_value": site.admin_port}}},
        "static_resources": {
            "listeners": [
                {
                    "name": "public",
                    "address": {"socket_address": {"address": _HOST, "port_value": site.port}},
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "envoy.filters.network.http_connection_manager",
                                    "typed_config": connection_manager,
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "workers",
                    "type": "STATIC",
                    "connect_timeout": "2s",
                    "lb_policy": "ROUND_ROBIN",
                    "circuit_breakers": {"thresholds": [thresholds]},
                    "load_assignment": {"cluster_name": "workers", "endpoints": [{"lb_endpoints": endpoints}]},
                }
            ],
        },
    }
    return yaml.safe_dump(bootstrap, sort_keys=False)


def build_envoy_command(program: Path, site: Site) -> list[str]:
    """Envoy with one worker thread."""
    return [
        str(program),
        *("--config-path", str(site.folder / "envoy.yaml")),
        *("--concurrency", "1", "--use-dynamic-base-id", "--disable-hot-restart"),
        *("--log-level", "error"),
    ]


def build_nginx_config(site: Site, *, as_root: bool) -> str:
    """nginx: one worker process, connections kept, answers not buffered; everything it writes in its own folder."""
    servers = "\n".join(f"        server {_HOST}:{port};" for port in site.worker_ports)
    temporary = "\n".join(
        f"    {name}_temp_path {site.folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if as_root else ""
    return f"""\
{user}worker_processes 1;
daemon off;
pid {site.folder}/nginx.pid;
error_log {site.folder}/error.log error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
{temporary}
    keepalive_requests 10000000;
    upstream workers {{
{servers}
        keepalive 512;
        keepalive_requests 10000000;
    }}
    server {{
        listen {_HOST}:{site.port} backlog=4096;
        tcp_nodelay on;
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


def build_nginx_command(program: Path, site: Site) -> list[str]:
    """nginx on our prefix, so that the system's own configuration is neither read nor touched."""
    config = site.folder / "nginx.conf"
    return [str(program), "-p", str(site.folder), "-c", str(config), "-e", str(site.folder / "error.log")]


def build_haproxy_config(site: Site) -> str:
    """HAProxy: one thread, connections reused; without ``http-no-delay`` it holds small chunks back."""
    servers = "\n".join(f"    server worker{port} {_HOST}:{port}" for port in site.worker_ports)
    return f"""\
global
    maxconn 8192
    nbthread 1
defaults
    mode http
    timeout connect 2s
    timeout client 600s
    timeout server 600s
    option http-no-delay
    option http-keep-alive
    http-reuse always
listen public
    bind {_HOST}:{site.port} backlog 4096
    balance roundrobin
{servers}
"""


def build_haproxy_command(program: Path, site: Site) -> list[str]:
    """HAProxy in the foreground."""
    return [str(program), "-db", "-f", str(site.folder / "haproxy.cfg")]


def build_sluice_config(site: Site, *, key: str = BENCH_KEY, ledger: bool = False) -> str:
    """Sluice with the whole corridor on and every limit far above the load: one tenant, its key, three tiers; YAML. The
    ledger, which none of the peers has, is off unless wanted."""
    ttft = {4096: 2.5, 32768: 6.0, 131072: 25.0, 1048576: 120.0}
    config = {
        "model": MODEL,
        "pool": {"discovery": "static", "workers": site.worker_urls, "profile": "m3.1-flash"},
        "tiers": {
            "priority": {
                "rank": 0,
                "availability": 0.999,
                "ttft": {4096: 1.0, 32768: 3.0, 131072: 12.0, 1048576: 60.0},
                "tpot_s": 0.025,
                "attainment": 0.99,
            },
            "default": {"rank": 1, "availability": 0.995, "ttft": ttft, "tpot_s": 0.05, "attainment": 0.99},
            "flex": {"rank": 2, "best_effort": True, "queue_ttl_s": 600},
        },
        "tenants": [
            {
                "id": "bench",
                "tier": "priority",
                "keys": [{"hash": "sha256:" + hashlib.sha256(key.encode()).hexdigest(), "prefix": key[:14]}],
            }
        ],
        "listen": {"host": _HOST, "port": site.port, "admin_port": site.admin_port},
        "limits": {"requests_per_worker": 4096, "requests_per_new_worker": 4096, "drain_delay_s": 0.0},
        "state": "memory",
        "ledger": f"sqlite:///{site.folder}/ledger.db" if ledger else None,
        "record": {"spool": f"{site.folder}/spool"},
    }
    return yaml.safe_dump(config, sort_keys=False)


def build_sluice_command(python: str, site: Site) -> list[str]:
    """One gateway process from this tree."""
    return [python, "-m", "service", "serve", "-c", str(site.folder / "sluice.yaml")]


def build_smg_worker(url: str, slots: int | None) -> str:
    """The registration that gives SMG's scheduler other than its 64 slots for a worker; JSON."""
    labels = {} if slots is None else {"labels": {"max_running_requests": str(slots)}}
    return json.dumps({"url": url, **labels})
