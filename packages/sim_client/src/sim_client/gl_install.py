"""Prints the GL backend to use and installs one where that is allowed; scripts/gl.sh runs it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from sim_client.errors import ConfigError
from sim_client.gl import choose_backend, install_command

OS_RELEASE = Path("/etc/os-release")


def is_debian(os_release: str) -> bool:
    """Whether the text of an os-release file names Debian, Ubuntu or a system derived from them."""
    ids = re.findall(r"^ID(?:_LIKE)?=(.*)$", os_release, re.MULTILINE)
    return any(word in ("debian", "ubuntu") for value in ids for word in value.strip("\"'").split())


def may_install() -> bool:
    """Whether this is root on Debian or Ubuntu, where we install without being asked."""
    return (
        os.geteuid() == 0
        and shutil.which("apt-get") is not None
        and OS_RELEASE.is_file()
        and is_debian(OS_RELEASE.read_text(encoding="utf-8"))
    )


def install(environ: Mapping[str, str]) -> None:
    """Say and run the command that installs software OpenGL; its output goes to stderr."""
    command = install_command(environ)
    sys.stderr.write(f"No software OpenGL works here; installing it: {command}\n")
    sys.stderr.flush()
    subprocess.run(
        ["sh", "-c", command],
        stdout=sys.stderr,
        env={**environ, "DEBIAN_FRONTEND": "noninteractive"},
        check=False,
    )


def resolve_backend(
    environ: Mapping[str, str],
    *,
    choose: Callable[[Mapping[str, str]], str] = choose_backend,
    allowed: Callable[[], bool] = may_install,
    installer: Callable[[Mapping[str, str]], None] = install,
) -> str:
    """The backend to use, after an installation where nothing works and it is allowed.

    A MUJOCO_GL that does not work is refused: installing may touch the Mesa that another one uses.

    Raises:
        ConfigError: Still none; the message has the command to type.
    """
    try:
        return choose(environ)
    except ConfigError:
        if environ.get("MUJOCO_GL") or not allowed():
            raise
    installer(environ)
    return choose(environ)


def main() -> int:
    """Print the backend; exit code 2 and one sentence where there is none."""
    try:
        sys.stdout.write(f"{resolve_backend(os.environ)}\n")
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
