#!/usr/bin/env bash
# A cluster on this machine with gateways and emulated workers:  deploy/kind/up.sh
# Needs docker, kind, kubectl and helm. Away again:  kind delete cluster --name sluice
set -euo pipefail
cd "$(dirname "$0")/../.."

for program in docker kind kubectl helm; do
  command -v "$program" >/dev/null || { echo "missing: $program" >&2; exit 1; }
done

kind get clusters | grep -qx sluice || kind create cluster --config deploy/kind/cluster.yaml
deploy/build-image.sh 0.1.0 gateway
kind load docker-image sluice/sluice:0.1.0 --name sluice
helm upgrade --install sluice helm/sluice --kube-context kind-sluice --namespace sluice --create-namespace \
  --values helm/sluice/values-dev.yaml --set gateway.replicas=2 --wait --timeout 5m
helm test sluice --kube-context kind-sluice --namespace sluice
echo "ready:  kubectl --context kind-sluice -n sluice port-forward svc/sluice 8080"
