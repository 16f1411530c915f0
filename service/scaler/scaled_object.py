"""Builds the KEDA ScaledObject that makes a deployment follow ``sluice_desired_replicas``.

Fields by the KEDA documentation, https://keda.sh/docs/latest/reference/scaledobject-spec/ and .../scalers/prometheus/:

* ``ignoreNullValues: "false"``: an empty answer is an error, not a zero. Its default would scale a fleet to its minimum
  at peak when Prometheus loses its targets.
* the query answers nothing while the scaler's own knowledge is too old, so a number that is present is a fresh one;
* ``fallback`` with ``currentReplicasIfHigher`` keeps what is there, and it needs ``AverageValue``;
* threshold "1" with ``AverageValue``: the number of replicas is the value of the query;
* up at once and up to double, down one pod in five minutes and only after ten minutes' agreement.

HPA ignores a wish within 10 % of what there is, so in a pool of more than ten workers it ignores one worker more;
the tolerance for scaling up is therefore 0 (field ``tolerance``, Kubernetes 1.33 and later, alpha there).
"""

from typing import Any


def build_query(pool: str, stale_s: float = 300.0) -> str:
    """What KEDA asks: the greatest target that a scaler with fresh knowledge publishes; nothing if there is none."""
    fresh = f'sluice_scaler_input_age_seconds{{pool="{pool}"}} < {stale_s:g}'
    return f'max(sluice_desired_replicas{{pool="{pool}"}} and on (instance) ({fresh}))'


def build_scaled_object(
    name: str, deployment: str, pool: str, prometheus: str, least: int, most: int, tolerance: bool = True
) -> dict[str, Any]:
    """The manifest. ``least`` workers stay whatever happens; ``tolerance``: the cluster knows that field.

    Raises:
        ValueError: bounds that cannot be kept.
    """
    if not 1 <= least <= most:
        raise ValueError(
            f"at least {least} and at most {most} workers: the least must be 1 or more, and no more than most"
        )
    scale_up: dict[str, Any] = {
        "stabilizationWindowSeconds": 0,
        "policies": [
            {"type": "Percent", "value": 100, "periodSeconds": 60},
            {"type": "Pods", "value": 2, "periodSeconds": 60},
        ],
        "selectPolicy": "Max",
    }
    if tolerance:
        scale_up["tolerance"] = 0
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "sluice"}},
        "spec": {
            "scaleTargetRef": {"name": deployment},
            "pollingInterval": 30,
            "minReplicaCount": least,
            "maxReplicaCount": most,
            "fallback": {"failureThreshold": 3, "replicas": least, "behavior": "currentReplicasIfHigher"},
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "behavior": {
                        "scaleUp": scale_up,
                        "scaleDown": {
                            "stabilizationWindowSeconds": 600,
                            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
                        },
                    }
                }
            },
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": prometheus,
                        "query": build_query(pool),
                        "threshold": "1",
                        "ignoreNullValues": "false",
                    },
                }
            ],
        },
    }
