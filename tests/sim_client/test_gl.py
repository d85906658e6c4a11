import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim_client.envs import robosuite_setup
from sim_client.errors import ConfigError
from sim_client.gl import backend_works, choose_backend, egl_device, prepare_process
from sim_client.gl_install import is_debian, resolve_backend

GL_SH = Path(__file__).resolve().parents[2] / "scripts" / "gl.sh"


def only(*working):
    return lambda backend, environ: backend in working


# --- which backend ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("working", "chosen"), [(("egl", "osmesa"), "egl"), (("egl",), "egl"), (("osmesa",), "osmesa")]
)
def test_egl_is_preferred_and_osmesa_the_fallback(working, chosen):
    assert choose_backend({}, only(*working)) == chosen


def test_the_users_backend_is_kept_although_egl_works():
    assert choose_backend({"MUJOCO_GL": "osmesa"}, only("egl", "osmesa")) == "osmesa"


def test_without_software_gl_the_message_is_the_command_to_type():
    with pytest.raises(
        ConfigError,
        match=r"apt-get install -y --no-install-recommends libegl1 libgl1-mesa-dri libopengl0",
    ):
        choose_backend({}, only())


def test_a_backend_that_was_asked_for_and_fails_is_refused_with_its_own_packages():
    with pytest.raises(ConfigError, match=r"MUJOCO_GL=osmesa: unset MUJOCO_GL, .*libosmesa6"):
        choose_backend({"MUJOCO_GL": "osmesa"}, only("egl"))


def test_a_backend_that_cannot_draw_is_found_out():
    assert not backend_works("disable", os.environ)


def test_preparing_a_process_matches_pyopengl_to_mujoco():
    environ = {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "egl"}
    assert prepare_process(environ) == "osmesa"
    assert environ["PYOPENGL_PLATFORM"] == "osmesa"


def test_preparing_a_process_sets_one_llvmpipe_thread_unless_the_user_did():
    unset, users = {"MUJOCO_GL": "egl"}, {"MUJOCO_GL": "egl", "LP_NUM_THREADS": "4"}
    prepare_process(unset)
    prepare_process(users)
    assert (unset["LP_NUM_THREADS"], users["LP_NUM_THREADS"]) == ("1", "4")


# --- which GPU ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda_visible_devices", "chosen", "device"),
    [
        (None, None, None),
        (None, "1", "1"),
        ("3", None, "3"),
        ("2,0", None, "2"),
        ("2, 0", "0", "0"),
        ("", None, "0"),
        ("-1", None, "0"),
        ("GPU-8a2f", "1", "1"),
        ("MIG-77c1", "0", "0"),
    ],
)
def test_the_egl_device_follows_cuda_visible_devices(cuda_visible_devices, chosen, device):
    assert egl_device(cuda_visible_devices, chosen) == device


@pytest.mark.parametrize("uuid", ["GPU-8a2f", "MIG-77c1", "0,GPU-8a2f"])
def test_a_gpu_named_by_uuid_needs_the_users_index(uuid):
    with pytest.raises(ConfigError, match="set MUJOCO_EGL_DEVICE_ID to the GPU's index"):
        egl_device(uuid, None)


def test_an_egl_device_outside_cuda_visible_devices_is_refused():
    with pytest.raises(ConfigError, match=r"MUJOCO_EGL_DEVICE_ID=1 is not among .*=10,11"):
        egl_device("10,11", "1")


def test_an_egl_device_that_is_no_index_is_refused():
    with pytest.raises(ConfigError, match="must be an index"):
        egl_device(None, "GPU-8a2f")


def test_the_gpu_is_chosen_for_egl_only():
    egl = {"MUJOCO_GL": "egl", "CUDA_VISIBLE_DEVICES": "2"}
    osmesa = {"MUJOCO_GL": "osmesa", "CUDA_VISIBLE_DEVICES": "GPU-8a2f"}
    prepare_process(egl)
    prepare_process(osmesa)
    assert egl["MUJOCO_EGL_DEVICE_ID"] == "2"
    assert "MUJOCO_EGL_DEVICE_ID" not in osmesa


def test_cuda_visible_devices_is_hidden_from_robosuites_import_only():
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-8a2f"}
    with robosuite_setup._without_cuda_devices(environ):
        assert environ == {}
    assert environ == {"CUDA_VISIBLE_DEVICES": "GPU-8a2f"}


# --- installing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("os_release", "expected"),
    [
        ('PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\n', True),
        ("ID=ubuntu\nID_LIKE=debian\n", True),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', True),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nHOME_URL="https://debian.example"\n', False),
    ],
)
def test_only_debian_and_its_descendants_are_installed_on(os_release, expected):
    assert is_debian(os_release) == expected


class Machine:
    """A machine without GL until `install` has run, if that helps at all."""

    def __init__(self, *, fixable):
        self.installed = 0
        self._fixable = fixable

    def choose(self, environ):
        works = only("egl") if self._fixable and self.installed else only()
        return choose_backend(environ, works)

    def install(self, environ):
        self.installed += 1


def resolve(machine, environ, *, allowed):
    return resolve_backend(
        environ, choose=machine.choose, allowed=lambda: allowed, installer=machine.install
    )


def test_where_allowed_gl_is_installed_once_and_used():
    machine = Machine(fixable=True)
    assert resolve(machine, {}, allowed=True) == "egl"
    assert machine.installed == 1


def test_an_installation_that_does_not_help_ends_with_the_command():
    with pytest.raises(ConfigError, match="apt-get install"):
        resolve(Machine(fixable=False), {}, allowed=True)


@pytest.mark.parametrize(("environ", "allowed"), [({}, False), ({"MUJOCO_GL": "osmesa"}, True)])
def test_nothing_is_installed_without_leave_or_for_one_backend_asked_for(environ, allowed):
    machine = Machine(fixable=True)
    with pytest.raises(ConfigError):
        resolve(machine, environ, allowed=allowed)
    assert machine.installed == 0


# --- scripts/gl.sh ------------------------------------------------------------------------------


@pytest.fixture
def fake_env(tmp_path):
    """An environment whose python counts its calls and answers with what the test wrote."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n[ -f {tmp_path}/answer ] || exit 2\n'
        f"cat {tmp_path}/answer\n"
    )
    python.chmod(0o755)
    os.utime(python, (1, 1))
    (tmp_path / "calls").touch()
    return tmp_path


def ensure_gl(root, **environ):
    clean = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    script = (
        f". {GL_SH}; ensure_gl {root}/venv/bin/python || exit 2; "
        'printf "%s %s" "$MUJOCO_GL" "$PYOPENGL_PLATFORM"'
    )
    return subprocess.run(
        ["bash", "-c", script],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def n_probes(root):
    return len((root / "calls").read_text().splitlines())


def test_the_script_exports_the_backend_and_probes_once(fake_env):
    (fake_env / "answer").write_text("osmesa\n")
    assert ensure_gl(fake_env).stdout == "osmesa osmesa"
    assert ensure_gl(fake_env).stdout == "osmesa osmesa"
    assert (fake_env / "calls").read_text() == "-m sim_client.gl_install\n"


def test_the_script_probes_again_for_another_mujoco_gl(fake_env):
    (fake_env / "answer").write_text("egl\n")
    ensure_gl(fake_env)
    ensure_gl(fake_env, MUJOCO_GL="osmesa")
    assert n_probes(fake_env) == 2


def test_the_script_fails_without_gl_and_remembers_nothing(fake_env):
    assert ensure_gl(fake_env).returncode == 2
    (fake_env / "answer").write_text("egl\n")
    assert ensure_gl(fake_env).stdout == "egl egl"


def test_the_command_prints_one_sentence_and_exits_2_for_a_backend_that_fails():
    done = subprocess.run(
        [sys.executable, "-m", "sim_client.gl_install"],
        env={**os.environ, "MUJOCO_GL": "disable"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("MuJoCo cannot draw here with MUJOCO_GL=disable")
    assert done.stderr.count("\n") == 1


# --- numba's cache ------------------------------------------------------------------------------


def test_numba_gets_a_writable_cache_only_where_robosuites_folder_is_not(monkeypatch):
    read_only, writable, users = {}, {}, {"NUMBA_CACHE_DIR": "/mine"}
    robosuite_setup._set_numba_cache(writable)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) == sys.prefix)
    robosuite_setup._set_numba_cache(read_only)
    robosuite_setup._set_numba_cache(users)
    assert writable == {}
    assert Path(read_only["NUMBA_CACHE_DIR"]).parent == Path(sys.prefix)
    assert users == {"NUMBA_CACHE_DIR": "/mine"}
