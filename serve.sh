#!/usr/bin/env bash
# Starts the policy server, or runs another policy-server command: ./serve.sh --help
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$ROOT/scripts/bootstrap.sh"
ensure_env server policy-server || exit 2
exec "$ROOT/.venv-server/bin/python" -m policy_server "$@"
