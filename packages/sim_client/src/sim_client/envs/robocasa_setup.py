"""Imports RoboCasa into a prepared process and refuses an installation it cannot run with."""

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from sim_client.envs.robosuite_setup import load_robosuite
from sim_client.errors import ConfigError

INSTALL = "./eval.sh install robocasa"
# robocasa/__init__.py (be22d659) asserts both exactly.
REQUIRED_VERSIONS = {"mujoco": "3.3.1", "numpy": "2.2.5"}
OBJECT_REGISTRIES = ("objaverse", "lightwheel")  # Kitchen's default
_ASSET_FOLDERS = ("textures", "fixtures", *(f"objects/{name}" for name in OBJECT_REGISTRIES))


def load_robocasa() -> ModuleType:
    """Import RoboCasa, which registers its tasks with gymnasium, and check what it needs.

    Raises:
        ConfigError: It is not installed, stands beside packages of the wrong version, or its assets
            are absent or in a folder that cannot be written to.
    """
    if "robocasa" in sys.modules:
        return sys.modules["robocasa"]
    if importlib.util.find_spec("robocasa") is None:
        raise ConfigError(
            f"RoboCasa is not installed in the environment of {sys.executable}; "
            f"install it with {INSTALL}."
        )
    check_versions()
    load_robosuite()
    with quiet():
        try:
            robocasa = importlib.import_module("robocasa")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"RoboCasa needs the package {error.name!r}, which is not installed; "
                f"repair the environment with {INSTALL}."
            ) from error
    check_robosuite()
    check_assets(assets_folder(robocasa))
    return robocasa


def assets_folder(robocasa: ModuleType) -> Path:
    """Where RoboCasa keeps its textures, fixtures and objects."""
    return Path(next(iter(robocasa.__path__))) / "models" / "assets"


def check_assets(assets: Path) -> None:
    """Refuse an asset folder that is incomplete or read-only.

    RoboCasa writes a file of its own beside every object's model while it loads it.

    Raises:
        ConfigError: A part of the download is absent, or nothing can be written there.
    """
    for name in _ASSET_FOLDERS:
        if not any((assets / name).glob("*/*")):
            raise ConfigError(
                f"RoboCasa's assets are incomplete: {assets / name} holds nothing; "
                f"download them with {INSTALL}."
            )
    try:
        with tempfile.NamedTemporaryFile(dir=assets / "objects"):
            pass
    except OSError as error:
        raise ConfigError(
            f"RoboCasa's asset folder {assets} must be writable, because RoboCasa writes a file "
            f"beside each model it loads ({error.strerror}); change its permissions or install "
            f"RoboCasa elsewhere with {INSTALL}."
        ) from error


def check_versions() -> None:
    """Refuse other versions than RoboCasa asserts, before its import fails on them.

    Raises:
        ConfigError: Naming the first package that is off.
    """
    for package, expected in REQUIRED_VERSIONS.items():
        found = importlib.metadata.version(package)
        if found != expected:
            raise ConfigError(
                f"RoboCasa runs with {package} {expected} only, found {package} {found} in "
                f"{sys.prefix}; repair the environment with {INSTALL}."
            )


def check_robosuite() -> None:
    """Refuse the package index's robosuite 1.5.2: the commit RoboCasa needs has the same number.

    Raises:
        ConfigError: robosuite lacks what RoboCasa calls it with.
    """
    manipulation = importlib.import_module("robosuite.environments.manipulation.manipulation_env")
    parameters = inspect.signature(manipulation.ManipulationEnv.__init__).parameters
    if "load_model_on_init" not in parameters:
        raise ConfigError(
            "RoboCasa cannot run with the package index's robosuite 1.5.2, which lacks "
            "load_model_on_init; install the commit it needs (it has the same version number) with "
            f"{INSTALL}."
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop what RoboCasa prints and warns about while it is imported or builds a scene."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def source_version(package: str) -> str:
    """A package's version and, where it was installed from git, its commit."""
    distribution = importlib.metadata.distribution(package)
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id")
    return f"{distribution.version} ({commit or 'no commit recorded'})"


def object_models() -> str:
    """How many object models are installed, and a digest of their names and sizes.

    RoboCasa draws a scene's objects from the models it finds: with other models the same seed gives
    another scene.
    """
    objects = importlib.import_module("robocasa.models.objects.kitchen_object_utils")
    paths = sorted(
        Path(path)
        for by_registry in objects.OBJ_CATEGORIES.values()
        for name in OBJECT_REGISTRIES
        if name in by_registry
        for path in by_registry[name].mjcf_paths
    )
    lines = [f"{'/'.join(path.parts[-4:])} {path.stat().st_size}\n" for path in paths]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return f"{len(paths)} models, sha256 {digest}"
