#!/usr/bin/env bash
# Lint, types and all tests, from nothing: makes the environments it needs.
#   ./tests/run.sh          the default suite
#   ./tests/run.sh --long   the longer checks too
#   ./tests/run.sh --libero only the tests that need LIBERO, in its own environment
# More arguments go to pytest, e.g. ./tests/run.sh -k prompt
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/bootstrap.sh"
. "$ROOT/scripts/gl.sh"
cd "$ROOT"

select=(-m "not slow and not libero")
libero=
case "${1:-}" in
  --long)
    select=()
    shift
    ;;
  --libero)
    libero=yes
    shift
    ;;
esac

ensure_env server policy-server --group test || exit 2
ensure_env client sim-client --group test || exit 2
ensure_gl .venv-client/bin/python || exit 2

# Array shapes in signatures are checked at run time in tests only.
failed=0
run() {
  local env=$1 package=$2
  shift 2
  ".venv-$env/bin/python" -m pytest "--jaxtyping-packages=$package,beartype.beartype" "$@" || {
    local code=$?
    [ $code -eq 5 ] || failed=1 # 5: nothing was selected here, as with -k
  }
}
if [ -n "$libero" ]; then
  ensure_project libero envs/libero --group test || exit 2
  run libero sim_client -m "libero and not slow" tests/sim_client/test_libero_env.py "$@"
  run client sim_client -m libero tests/e2e "$@"
  exit $failed
fi
tests/lint.sh

# The two suites run side by side; the server's output is shown when the client's has ended.
server_output=$(mktemp)
(
  run server policy_server "${select[@]}" tests/policy_server "$@"
  exit $failed
) >"$server_output" 2>&1 &
server_suite=$!
trap 'kill $server_suite 2>/dev/null || true; rm -f "$server_output"' EXIT
run client sim_client "${select[@]}" tests/sim_client tests/contract tests/e2e "$@"
wait $server_suite || failed=1
cat "$server_output"
exit $failed
