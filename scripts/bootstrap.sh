# Sourced by serve.sh, eval.sh and tests/run.sh: finds uv and creates an environment on first use.
# An environment is left alone while the lock and the project files are what it was made from.

export UV_PYTHON_DOWNLOADS=never
UV_VERSION=0.13.9

say() { printf '%s\n' "$*" >&2; }

# Prints the uv to use: the one on the path, else one that pip puts into .venv-uv.
find_uv() {
  if command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1; then
    command -v uv
    return
  fi
  local venv="$ROOT/.venv-uv"
  if [ ! -x "$venv/bin/uv" ]; then
    local python
    python=$(command -v python3.11 || command -v python3) || {
      say "Python 3.11 is needed and was not found; install it (Debian: apt-get install python3.11 python3.11-venv)."
      return 2
    }
    say "uv is not installed: putting uv $UV_VERSION into .venv-uv"
    "$python" -m venv "$venv" >&2 || {
      say "'$python -m venv' failed; on Debian and Ubuntu: apt-get install python3.11-venv"
      return 2
    }
    "$venv/bin/python" -m pip install --quiet "uv==$UV_VERSION" >&2 || {
      say "pip could not install uv $UV_VERSION; check the network, or install uv yourself."
      return 2
    }
  fi
  printf '%s\n' "$venv/bin/uv"
}

# ensure_env NAME PACKAGE [uv sync options]: makes .venv-NAME hold a workspace package as locked.
ensure_env() {
  local name=$1 package=$2
  shift 2
  sync_env "$name" "uv.lock pyproject.toml packages/*/pyproject.toml" --package "$package" "$@"
}

# ensure_project NAME DIR [uv sync options]: the same for the project in DIR, which has its own lock.
ensure_project() {
  local name=$1 dir=$2
  shift 2
  sync_env "$name" "$dir/uv.lock $dir/pyproject.toml packages/sim_client/pyproject.toml" --project "$dir" "$@"
}

# sync_env NAME FILES UV-SYNC-OPTIONS: syncs .venv-NAME unless it was made from the same FILES.
sync_env() {
  local name=$1 files=$2
  shift 2
  local venv="$ROOT/.venv-$name" uv stamp want
  # shellcheck disable=SC2086 # a list of patterns
  want=$(cd "$ROOT" && cat $files | sha256sum | cut -d' ' -f1)
  # One stamp per set of options: adding the test tools does not make serve.sh or eval.sh sync again.
  stamp="$venv/.synced$(printf '%s' "$*" | tr -c 'a-z0-9\n' '_')"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    return
  fi
  uv=$(find_uv) || return 2
  [ -d "$venv" ] || say "Setting up .venv-$name (first use; downloads are cached by uv)"
  # The lock keeps two processes that start together from building the same environment at once.
  (
    flock 9
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then exit 0; fi
    cd "$ROOT" &&
      UV_PROJECT_ENVIRONMENT="$venv" "$uv" sync --quiet --frozen --inexact --python 3.11 \
        --no-default-groups "$@" && printf '%s' "$want" >"$stamp"
  ) 9>"$ROOT/.venv-$name.lock" || {
    say "uv could not create .venv-$name; its message is above."
    return 2
  }
}
