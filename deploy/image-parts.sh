#!/usr/bin/env bash
# Installs what `make image` needs: buildah and mmdebstrap. As root on Debian with apt-get; elsewhere it says what is missing.
set -euo pipefail

mkdir -p var
missing=()
for program in buildah mmdebstrap; do command -v "$program" >/dev/null || missing+=("$program"); done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${missing[*]}"
  apt-get update -qq >var/apt.log 2>&1
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >>var/apt.log 2>&1 && exit 0
  tail -5 var/apt.log >&2
fi
echo "missing: ${missing[*]} (on Debian: apt-get install ${missing[*]}); to build an image only: deploy/build-image.sh" >&2
exit 1
