#!/usr/bin/env bash
# ruff and pyright, the same by hand and in CI. Both environments must exist (tests/run.sh makes them).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/bootstrap.sh"
ensure_env lint pi05-eval --only-group lint || exit 2
cd "$ROOT"
bin=.venv-lint/bin
$bin/ruff check
$bin/ruff format --check
$bin/basedpyright --pythonpath .venv-server/bin/python packages/policy_server tests/policy_server tools/demo_tokenizer.py
$bin/basedpyright --pythonpath .venv-client/bin/python packages/sim_client tests/sim_client tests/contract tests/e2e \
  tools/demo_norm_stats.py
