#!/usr/bin/env bash
# Builds the images with whichever of docker, podman and buildah is there:  deploy/build-image.sh [TAG [gateway|worker|both]]
# Further options of the builder in BUILD_OPTIONS, as: BUILD_OPTIONS="--secret id=pip,src=/etc/pip.conf --build-arg BASE=..."
set -euo pipefail
cd "$(dirname "$0")/.."

tag=${1:-$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' helm/sluice/Chart.yaml)}
which=${2:-both}
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
if command -v docker >/dev/null; then builder=(docker build)
elif command -v podman >/dev/null; then builder=(podman build)
elif command -v buildah >/dev/null; then builder=(buildah bud)
else
  echo "none of docker, podman and buildah is installed" >&2
  exit 1
fi
read -ra options <<<"${BUILD_OPTIONS:-}"
build() { "${builder[@]}" --build-arg "REVISION=$revision" "${options[@]}" --file "$1" --tag "$2" .; }

case $which in gateway | both) build Dockerfile "sluice/sluice:$tag" ;; esac
case $which in worker | both) build deploy/worker.Dockerfile "sluice/sluice-worker:$tag" ;; esac
