"""Types every command of README.md and docs/ in a checkout without results."""

import contextlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from server_process import REPO

from sim_client import launch

# test_eval_sh.py types the demo, test_libero_run.py the installation; the tests are running.
TYPED_ELSEWHERE = ("./eval.sh --demo", "./eval.sh install libero", "./tests/run.sh")
PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.partition("  #")[0].strip() for line in lines if line.strip()]


@pytest.fixture
def checkout(tmp_path):
    """The repository without what a user's commands write."""
    for path in REPO.iterdir():
        if path.name not in ("eval", "checkpoints", ".git"):
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


def serves(words: list[str]) -> bool:
    return words[0] == "./serve.sh" and words[1].startswith("--") and words[1] != "--help"


def port_of(words: list[str]) -> int:
    return int(words[words.index("--port") + 1]) if "--port" in words else 8000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_works(page, checkout):
    typed = [line for line in commands(page) if line not in TYPED_ELSEWHERE]
    with contextlib.ExitStack() as servers:
        for line in typed:
            words = shlex.split(line)
            if serves(words):
                server = launch.running_server(
                    ["env", "-C", str(checkout), *words],
                    port=port_of(words),
                    log=checkout / "server.log",
                    ready_timeout_s=240.0,
                )
                servers.enter_context(server)
                continue
            done = subprocess.run(
                words, cwd=checkout, capture_output=True, text=True, timeout=600, check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_the_readme_starts_with_two_commands():
    assert commands(PAGES[0])[:2] == ["./eval.sh --demo", "./tests/run.sh"]
