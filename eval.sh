#!/usr/bin/env bash
# Evaluates a policy in a simulator: ./eval.sh --demo, ./eval.sh --help
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$ROOT/scripts/bootstrap.sh"
. "$ROOT/scripts/gl.sh"

if [ "${1:-} ${2:-}" = "install robocasa" ]; then
  shift 2
  exec bash "$ROOT/scripts/install_robocasa.sh" "$@"
elif [ "${1:-} ${2:-}" = "install libero" ]; then
  ensure_project libero envs/libero || exit 2
  say "LIBERO is installed in .venv-libero."
  exit 0
fi

# LIBERO and RoboCasa need other versions of robosuite, so each has an environment of its own.
environment=client previous=
for word in "$@"; do
  case "$previous $word" in
    "--args.sim libero" | "--sim libero" | *" --args.sim=libero" | *" --sim=libero") environment=libero ;;
    "--args.sim robocasa" | "--sim robocasa" | *" --args.sim=robocasa" | *" --sim=robocasa")
      # without it, the client's own environment says which command installs it
      if [ -x "$ROOT/.venv-robocasa/bin/python" ]; then environment=robocasa; fi
      ;;
  esac
  previous=$word
done
case $environment in
  client) ensure_env client sim-client || exit 2 ;;
  libero) ensure_project libero envs/libero || exit 2 ;;
esac
ensure_gl "$ROOT/.venv-$environment/bin/python" || exit 2
export PI05_EVAL_ROOT=$ROOT
exec "$ROOT/.venv-$environment/bin/python" -m sim_client "$@"
