#!/usr/bin/env bash
# Starts the policy server, or runs another policy-server command: ./serve.sh --help
# The jax build follows the NVIDIA driver; PI05_ACCELERATOR=cpu|cuda12|cuda13 decides otherwise.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$ROOT/scripts/bootstrap.sh"
. "$ROOT/scripts/accelerator.sh"
accelerator=$(choose_accelerator) || exit 2
extra=()
if [ "$accelerator" != cpu ]; then extra=(--extra "$accelerator"); fi
[ -d "$ROOT/.venv-server" ] || say "The policy server will use jax for $accelerator."
ensure_env server policy-server "${extra[@]}" || exit 2
if [ "$accelerator" = cpu ]; then export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}; fi
exec "$ROOT/.venv-server/bin/python" -m policy_server "$@"
