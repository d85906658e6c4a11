#!/usr/bin/env bash
# Lint, types and all tests, from nothing: makes the environments it needs.
#   ./tests/run.sh          the default suite
#   ./tests/run.sh --long   the longer checks too
# More arguments go to pytest, e.g. ./tests/run.sh -k prompt
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/bootstrap.sh"
. "$ROOT/scripts/gl.sh"
cd "$ROOT"

select=(-m "not slow")
if [ "${1:-}" = --long ]; then
  select=()
  shift
fi

ensure_env server policy-server --group test || exit 2
ensure_env client sim-client --group test || exit 2
ensure_gl .venv-client/bin/python || exit 2

tests/lint.sh

# Array shapes in signatures are checked at run time in tests only.
failed=0
run() {
  local env=$1 package=$2
  shift 2
  ".venv-$env/bin/python" -m pytest "${select[@]}" "--jaxtyping-packages=$package,beartype.beartype" "$@" || {
    local code=$?
    [ $code -eq 5 ] || failed=1 # 5: nothing was selected here, as with -k
  }
}
run server policy_server tests/policy_server "$@"
run client sim_client tests/sim_client tests/contract tests/e2e "$@"
exit $failed
