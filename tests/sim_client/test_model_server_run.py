import json
import shlex
import sys
from pathlib import Path

import client_fakes
import model_server_fake as fakes
import numpy as np
import pytest

from sim_client import evaluate as evaluation
from sim_client import launch
from sim_client.__main__ import main
from sim_client.config import PolicyArgs, RunArgs
from sim_client.envs import registry
from sim_client.errors import ConfigError, ContractError

HERE = Path(__file__).parent
MODEL_SERVER = PolicyArgs(protocol="model-server")


@pytest.fixture(autouse=True)
def point(monkeypatch):
    """The point simulator under the name of a real one; collects the environments it makes."""
    made: list[client_fakes.PointEnv] = []

    def make(task, *, camera_size, max_steps, split):
        made.append(client_fakes.PointEnv())
        return made[-1]

    monkeypatch.setitem(registry.SIMS, "robosuite", client_fakes.point_sim(make))
    return made


def run(log_dir, port, **changes):
    given = {
        "env_names": ("Reach",),
        "num_trials": 2,
        "log_dir": log_dir,
        "connect_timeout_s": 5.0,
        "policy": MODEL_SERVER,
        "video": False,
    }
    args = RunArgs(**{**given, "port": port, **changes})
    return evaluation.evaluate(args, on_episode=lambda record: None)


def read(log_dir, name):
    return json.loads((log_dir / name).read_text())


def test_results_say_which_runner_it_was_and_why_they_cannot_be_reproduced(tmp_path):
    with fakes.model_server() as server:
        summary = run(tmp_path, server.port)
    results = read(tmp_path, "results.json")
    assert summary.exit_code == 0
    assert results["runner"] == "model-server"
    assert results["reproducible"] is False
    assert results["not_reproducible_because"] == "the protocol takes no noise"
    assert [e["server_timing_avg_ms"] for e in results["episodes"]] == [
        {"server_predict_ms": 2.5},
        {"server_predict_ms": 2.5},
    ]
    assert [e["warnings"] for e in results["episodes"]] == [
        ["the model-server's actions have 4 numbers each, the first 2 are kept"],
        ["the model-server's actions have 4 numbers each, the first 2 are kept"],
    ]


def test_the_run_records_what_the_flags_stated_and_no_seed(tmp_path):
    policy = PolicyArgs(
        protocol="model-server",
        arm="fake",
        image_names=("observation/image=observation.images.image",),
        state_dim=2,
        action_dim=2,
    )
    with fakes.model_server() as server:
        run(tmp_path, server.port, policy=policy)
    assert server.requests[0].images[0].name == "observation.images.image"
    outcomes = read(tmp_path, "outcomes.json")
    assert outcomes["policy_protocol"] == "model-server"
    assert outcomes["image_names"] == {"observation/image": "observation.images.image"}
    assert (outcomes["state_dim"], outcomes["action_dim"]) == (2, 2)
    assert outcomes["action_seed"] is None
    assert outcomes["arm"] == "fake"


def test_the_server_is_reset_before_every_episode(tmp_path, point):
    with fakes.model_server() as server:
        run(tmp_path, server.port)
    assert server.log == ["health", *["reset", "predict", "predict", "predict"] * 2]
    assert point[0].resets == 2


def test_the_simulator_plays_the_cut_chunk(tmp_path):
    rows = [[step / 8, -step / 8, 9.0, 9.0] for step in range(8)]
    with fakes.model_server(fakes.FakeModelServer(rows=lambda _: rows)) as server:
        run(tmp_path, server.port, num_trials=1, replan_steps=6)
    actions = np.load(tmp_path / "actions_0_failure.npy")
    np.testing.assert_array_equal(actions, np.array([row[:2] for row in rows[:6]] * 2))


def test_a_server_that_refuses_is_an_errored_episode_and_no_score(tmp_path):
    with fakes.model_server(fakes.FakeModelServer(refusal="no image 'left'")) as server:
        summary = run(tmp_path, server.port)
    assert summary.exit_code == 1
    assert {record.outcome for record in summary.records} == {"policy_error"}
    assert server.log.count("reset") == 2 * evaluation.ATTEMPTS


def test_a_server_with_another_policy_is_refused_before_a_simulator_is_built(tmp_path, point):
    with (
        fakes.model_server() as server,
        pytest.raises(ContractError, match=r"serves policy 'fake', --policy\.arm expects 'pi0'"),
    ):
        run(tmp_path / "out", server.port, policy=PolicyArgs(protocol="model-server", arm="pi0"))
    assert point == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"image_names": ("observation/back=b",)}, "has the images observation/image"),
        ({"state_dim": 8}, r"--policy\.state-dim is 8, simulator robosuite has 2"),
        ({"action_dim": 7}, r"--policy\.action-dim is 7, simulator robosuite has 2"),
        ({"image_names": ("observation/image",)}, "expected KEY=NAME"),
        ({"image_names": ("a=x", "a=y")}, "gives a key twice"),
        ({"image_names": ("a=x", "b=x")}, "gives a name twice"),
        ({"protocol": "openpi", "action_dim": 2}, r"belong to --policy\.protocol model-server"),
    ],
)
def test_flags_that_do_not_fit_the_simulator_are_refused(tmp_path, stated, sentence):
    with pytest.raises(ConfigError, match=sentence):
        run(tmp_path, 1, policy=PolicyArgs(**{"protocol": "model-server", **stated}))


def launched(tmp_path, port, command, *flags):
    return main(
        [
            "--args.env_names", "Reach", "--args.num_trials", "1", "--args.port", str(port),
            "--args.log_dir", str(tmp_path / "out"), "--args.launch-server",
            "--args.server-command", command, *flags,
        ]
    )  # fmt: skip


def model_server_command(port):
    return shlex.join([sys.executable, str(HERE / "model_server_fake.py"), str(port)])


def websocket_command(port):
    program = (
        f"import sys, threading; sys.path.insert(0, {str(HERE)!r}); import client_fakes\n"
        f"with client_fakes.policy_server(port={port}): threading.Event().wait()"
    )
    return shlex.join([sys.executable, "-c", program])


@pytest.mark.parametrize(
    ("command", "flags", "runner"),
    [
        (model_server_command, ("--policy.protocol", "model-server"), "model-server"),
        (websocket_command, (), "websocket"),
    ],
)
def test_a_launched_server_serves_the_run_and_is_gone_after_it(tmp_path, command, flags, runner):
    port = launch.free_port()
    assert launched(tmp_path, port, command(port), *flags) == 0
    assert read(tmp_path / "out", "results.json")["runner"] == runner
    assert (tmp_path / "out" / "server.log").exists()
    with pytest.raises(ConfigError, match="no model-server answered"):
        run(tmp_path / "again", port, connect_timeout_s=0.0)


@pytest.mark.parametrize(
    ("command", "flags", "sentence"),
    [
        ("no-such-program --port 1", (), "does not start with a program that can be run"),
        ("'unbalanced", (), "cannot be split into words"),
        (sys.executable, ("--args.host", "10.0.0.1"), "--args.host is 10.0.0.1"),
        (f"{sys.executable} -c 'raise SystemExit(3)'", (), "ended with code 3"),
        (sys.executable, ("--args.resume",), "out is no folder"),
        (sys.executable, ("--demo",), "--demo starts a server of its own"),
    ],
)
def test_a_server_that_cannot_be_launched_is_one_sentence(
    tmp_path, capsys, command, flags, sentence
):
    assert launched(tmp_path, launch.free_port(), command, *flags) == 2
    assert sentence in capsys.readouterr().err


def test_a_launch_onto_a_taken_port_is_refused(tmp_path, capsys):
    with fakes.model_server() as server:
        assert launched(tmp_path, server.port, model_server_command(server.port)) == 2
    assert f"something already listens on port {server.port}" in capsys.readouterr().err


@pytest.mark.parametrize("given", [{"launch_server": True}, {"server_command": "serve"}])
def test_launching_and_its_command_need_each_other(given):
    with pytest.raises(ConfigError, match="need each other"):
        RunArgs(**given).check()
