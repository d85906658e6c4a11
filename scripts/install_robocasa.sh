#!/usr/bin/env bash
# Makes .venv-robocasa, the environment for --args.sim robocasa: ./eval.sh install robocasa
#   --no-assets  leaves out RoboCasa's textures, fixtures and objects (about 10 GB)
#   --dry-run    prints the commands and runs none
#
# RoboCasa is in no lock file. It asserts numpy 2.2.5 and mujoco 3.3.1, which the client's lock has;
# it needs three things of robosuite that no release on the package index has, although the commit
# below carries the same version number as the release; and it declares packages that no simulation
# imports (lerobot, tianshou) and one that needs libGL (opencv-python, where the lock has the
# headless one). So both are installed from git at fixed commits, without their dependencies, on top
# of the client's locked packages.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/bootstrap.sh"
. "$ROOT/scripts/gl.sh"

ROBOSUITE_URL=https://github.com/ARISE-Initiative/robosuite
ROBOSUITE_COMMIT=5ce6643f3092639d08f7b0f90ed1c6a84f50552c
ROBOCASA_URL=https://github.com/robocasa/robocasa
ROBOCASA_COMMIT=be22d659b02db8f6d7f3a3c3edc742934fdcbaae
# What RoboCasa imports and the client's lock lacks.
PACKAGES=(
  gymnasium==1.4.0 cloudpickle==3.1.3 farama-notifications==0.0.6
  h5py==3.16.0 imageio==2.38.1 lxml==6.1.3 pyyaml==6.0.4
)

VENV="$ROOT/.venv-robocasa"
PYTHON="$VENV/bin/python"
assets=1
dry_run=0
for option in "$@"; do
  case "$option" in
    --no-assets) assets=0 ;;
    --dry-run) dry_run=1 ;;
    *)
      say "install robocasa takes --no-assets and --dry-run, not '$option'."
      exit 2
      ;;
  esac
done

run() {
  say "+ $*"
  [ $dry_run -eq 1 ] || "$@"
}

# installed_commit PACKAGE: the commit that PACKAGE was installed from, nothing if from elsewhere.
installed_commit() {
  [ -x "$PYTHON" ] || return 0
  "$PYTHON" - "$1" <<'PY' 2>/dev/null || true
import importlib.metadata, json, sys
origin = importlib.metadata.distribution(sys.argv[1]).read_text("direct_url.json") or "{}"
print(json.loads(origin).get("vcs_info", {}).get("commit_id", ""))
PY
}

reachable() {
  [ $dry_run -eq 1 ] || GIT_TERMINAL_PROMPT=0 timeout 60 git ls-remote --exit-code "$1" HEAD >/dev/null 2>&1
}

# from_git NAME URL COMMIT: installs NAME unless it is there from that very commit.
from_git() {
  local name=$1 url=$2 commit=$3
  if [ "$(installed_commit "$name")" = "$commit" ] && [ $dry_run -eq 0 ]; then
    say "$name: already installed from commit $commit"
    return
  fi
  reachable "$url" || {
    say "$name comes from $url, which this machine does not reach; check the network or set HTTPS_PROXY, and run ./eval.sh install robocasa again."
    exit 2
  }
  say "$name: installing commit $commit from $url"
  run "$UV" pip install --quiet --no-deps --reinstall-package "$name" --python "$PYTHON" "$name @ git+$url@$commit"
}

# check: imports RoboCasa as an evaluation would, and says in one sentence what is wrong.
check() {
  "$PYTHON" - <<'PY'
import sys
from sim_client.envs.robocasa_setup import load_robocasa, object_models, source_version
from sim_client.errors import SimClientError
try:
    load_robocasa()
except SimClientError as error:
    sys.exit(str(error))
for name in ("robocasa", "robosuite"):
    sys.stderr.write(f"{name} {source_version(name)}\n")
sys.stderr.write(f"objects: {object_models()}\n")
PY
}

command -v git >/dev/null || {
  say "git is needed and was not found; install it (Debian: apt-get install git)."
  exit 2
}
say "1. .venv-robocasa with the client's locked packages and the test tools"
UV=uv
if [ $dry_run -eq 1 ]; then
  say "+ UV_PROJECT_ENVIRONMENT=$VENV uv sync --frozen --inexact --package sim-client --group test"
else
  ensure_env robocasa sim-client --group test || exit 2
  UV=$(find_uv) || exit 2
fi

say "2. robosuite and RoboCasa at fixed commits, without their dependencies"
from_git robosuite "$ROBOSUITE_URL" "$ROBOSUITE_COMMIT"
from_git robocasa "$ROBOCASA_URL" "$ROBOCASA_COMMIT"

say "3. the packages RoboCasa imports beside them"
run "$UV" pip install --quiet --no-deps --python "$PYTHON" "${PACKAGES[@]}"

if [ $assets -eq 0 ]; then
  say "4. assets: left out; no scene can be built without them (./eval.sh install robocasa adds them)"
  exit 0
fi
say "4. assets: about 10 GB into RoboCasa's folder in .venv-robocasa"
[ $dry_run -eq 1 ] || ensure_gl "$PYTHON" || exit 2
if [ $dry_run -eq 0 ] && check >/dev/null 2>&1; then
  say "the assets are there already"
else
  # RoboCasa's own command; it asks once whether to go on, and its exit code does not tell success.
  say "+ echo y | $PYTHON -m robocasa.scripts.download_kitchen_assets --type all"
  [ $dry_run -eq 1 ] || echo y | "$PYTHON" -m robocasa.scripts.download_kitchen_assets --type all >&2
fi
if [ $dry_run -eq 1 ]; then
  exit 0
fi
say "5. check"
check || exit 2
say "RoboCasa is ready; a run takes it with --args.sim robocasa"
