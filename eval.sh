#!/usr/bin/env bash
# Evaluates a policy in a simulator: ./eval.sh --demo, ./eval.sh --help
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$ROOT/scripts/bootstrap.sh"
. "$ROOT/scripts/gl.sh"

# LIBERO needs an older robosuite than everything else, so it has an environment of its own.
environment=client previous=
for word in "$@"; do
  case "$previous $word" in
    "--args.sim libero" | "--sim libero" | *" --args.sim=libero" | *" --sim=libero") environment=libero ;;
  esac
  previous=$word
done
if [ $environment = libero ]; then
  ensure_project libero envs/libero || exit 2
else
  ensure_env client sim-client || exit 2
fi
ensure_gl "$ROOT/.venv-$environment/bin/python" || exit 2
export PI05_EVAL_ROOT=$ROOT
exec "$ROOT/.venv-$environment/bin/python" -m sim_client "$@"
