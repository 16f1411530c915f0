"""One number decides how long pods may take to leave; everything else follows from it."""

import pytest
import yaml

from tests.support.chart import Rendered, render

CASES = {"defaults": {}, "short": {"drain": {"delaySeconds": 3, "seconds": 45, "marginSeconds": 20}}}
NUMBERS = {"defaults": (10, 1800, 30), "short": (3, 45, 20)}


def rendered(case: str) -> Rendered:
    return render(CASES[case])


def pod(rendered: Rendered, name: str) -> dict:
    return rendered.one("Deployment", name)["spec"]["template"]["spec"]


def option(words: list[str], name: str) -> str:
    (found,) = (word.split("=", 1)[1] for word in words if word.startswith(f"{name}="))
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["-gateway", "-worker"])
def test_the_pods_grace_is_delay_plus_drain_plus_margin(case, name):
    assert pod(rendered(case), name)["terminationGracePeriodSeconds"] == sum(NUMBERS[case])


@pytest.mark.parametrize("case", CASES)
def test_the_gateway_leaves_within_it(case):
    delay, seconds, _ = NUMBERS[case]
    both = rendered(case)
    limits = yaml.safe_load(both.one("ConfigMap", "-gateway")["data"]["sluice.yaml"])["limits"]
    assert limits == {"drain_delay_s": delay, "whole_s": seconds, "grace_s": delay + seconds + 4}
    # 3.6 s before the end of its grace a gateway cuts what still runs; the pod outlives the gateway by 10 s or more.
    assert limits["grace_s"] - 3.6 >= delay + seconds
    assert pod(both, "-gateway")["terminationGracePeriodSeconds"] >= limits["grace_s"] + 10


@pytest.mark.parametrize("case", CASES)
def test_the_worker_is_emptied_then_stopped_then_killed(case):
    delay, seconds, margin = NUMBERS[case]
    spec = pod(rendered(case), "-worker")
    (container,) = spec["containers"]
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[:3] == ["/opt/sluice/bin/sluice", "worker", "drain"]
    assert option(hook, "--delay-s") == str(delay)
    assert option(hook, "--deadline-s") == str(delay + seconds)
    timeout = int(option(container["args"], "--shutdown-grace-s"))
    assert timeout == margin - 10
    assert spec["terminationGracePeriodSeconds"] >= delay + seconds + timeout + 10


def test_no_answer_may_last_longer_than_the_drain():
    spec = yaml.safe_load(render().one("ConfigMap", "-gateway")["data"]["sluice.yaml"])
    assert spec["limits"]["whole_s"] == NUMBERS["defaults"][1]


def test_the_gateways_hook_drains_it():
    (container,) = pod(render(), "-gateway")["containers"]
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["sluice", "drain", "--admin", "http://127.0.0.1:8081"]


def test_an_emulated_worker_has_the_same_end():
    (container,) = pod(render({"worker": {"emulated": True}}), "-worker")["containers"]
    assert option(container["args"], "--shutdown-timeout") == "20"
    assert container["lifecycle"] == pod(render(), "-worker")["containers"][0]["lifecycle"]


def test_a_follower_stays_as_long_as_its_leader_has_work():
    group = render({"worker": {"kind": "LeaderWorkerSet", "nodes": 2}}).one("LeaderWorkerSet")["spec"]
    templates = group["leaderWorkerTemplate"]
    leader, follower = (templates[f"{rank}Template"]["spec"] for rank in ("leader", "worker"))
    assert leader["terminationGracePeriodSeconds"] == follower["terminationGracePeriodSeconds"] == 1840
    hook = follower["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[:2] == ["sh", "-c"]
    assert hook[2].startswith("exec /opt/sluice/bin/sluice worker drain --delay-s=10 --deadline-s=1810 ")
    assert '--url="http://$LWS_LEADER_ADDRESS:8000"' in hook[2]
