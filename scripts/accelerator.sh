# Sourced by serve.sh: which build of jax this machine can run.

# accelerator_for_driver VERSION: the extra of policy-server for an NVIDIA driver, e.g. 580.65.06.
# CUDA 13 needs driver 580, CUDA 12 needs 525 (NVIDIA's CUDA compatibility tables).
accelerator_for_driver() {
  local major=${1%%.*}
  if [ "$major" -ge 580 ]; then
    echo cuda13
  elif [ "$major" -ge 525 ]; then
    echo cuda12
  else
    say "The NVIDIA driver $1 is too old for jax (525 is the oldest); update it, or set PI05_ACCELERATOR=cpu."
    return 2
  fi
}

# Prints cpu, cuda12 or cuda13; PI05_ACCELERATOR decides where it is set.
choose_accelerator() {
  local driver=
  case "${PI05_ACCELERATOR:-}" in
    cpu | cuda12 | cuda13)
      echo "$PI05_ACCELERATOR"
      return
      ;;
    ?*)
      say "PI05_ACCELERATOR is '$PI05_ACCELERATOR', expected cpu, cuda12 or cuda13."
      return 2
      ;;
  esac
  if command -v nvidia-smi >/dev/null 2>&1; then
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
  fi
  case "$driver" in
    [0-9]*) accelerator_for_driver "$driver" ;;
    *) echo cpu ;;
  esac
}
