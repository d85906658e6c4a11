# Sourced by eval.sh and tests/run.sh: finds the OpenGL that MuJoCo can draw with.

# ensure_gl PYTHON: exports MUJOCO_GL and PYOPENGL_PLATFORM. The answer is kept in a stamp in the
# environment of PYTHON, one per machine and per value of MUJOCO_GL that was asked for.
ensure_gl() {
  local python=$1 asked=${MUJOCO_GL:-auto} backend stamp
  stamp="$(dirname "$(dirname "$python")")/.gl-$(uname -n)-$(printf '%s' "$asked" | tr -c 'a-zA-Z0-9' '_')"
  if [ -f "$stamp" ] && [ "$stamp" -nt "$python" ]; then
    backend=$(cat "$stamp")
  else
    backend=$("$python" -m sim_client.gl_install) || return 2
    printf '%s\n' "$backend" 2>/dev/null >"$stamp" || true
  fi
  export MUJOCO_GL="$backend"
  case "$backend" in
    egl | osmesa) export PYOPENGL_PLATFORM="$backend" ;;
  esac
}
