#!/usr/bin/env bash
# Evaluates a policy in a simulator: ./eval.sh --demo, ./eval.sh --help
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$ROOT/scripts/bootstrap.sh"
. "$ROOT/scripts/gl.sh"
ensure_env client sim-client || exit 2
ensure_gl "$ROOT/.venv-client/bin/python" || exit 2
export PI05_EVAL_ROOT=$ROOT
exec "$ROOT/.venv-client/bin/python" -m sim_client "$@"
