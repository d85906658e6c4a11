import json

import client_fakes as fakes
import pytest

from sim_client import evaluate as evaluation
from sim_client import results
from sim_client.config import PolicyArgs, RunArgs
from sim_client.envs import registry
from sim_client.errors import ConfigError, ContractError, SimError

OUTPUTS = ("outcomes.json", "trace_0.npz", "trace_1.npz", "trace_2.npz")


class PointSim:
    """Builds point environments and keeps them; `build` may be exchanged by a test."""

    def __init__(self):
        self.made: list[fakes.PointEnv] = []
        self.build = fakes.PointEnv

    def __call__(self, task, *, camera_size, max_steps, split):
        env = self.build()
        env.task = task
        self.made.append(env)
        return env


@pytest.fixture
def point(monkeypatch):
    """The point simulator under the name of a real one."""
    make = PointSim()
    monkeypatch.setitem(registry.SIMS, "robosuite", fakes.point_sim(make))
    return make


def run(log_dir, port, **changes):
    seen = []
    given = {"env_names": ("Reach",), "num_trials": 3, "log_dir": log_dir, "connect_timeout_s": 5.0}
    args = RunArgs(**{**given, "port": port, **changes})
    summary = evaluation.evaluate(args, on_episode=seen.append)
    return summary, seen


def outputs(log_dir):
    return {name: (log_dir / name).read_bytes() for name in OUTPUTS}


def test_a_run_leaves_every_file_of_the_design(tmp_path, point):
    with fakes.policy_server() as port:
        summary, seen = run(tmp_path / "out", port)

    names = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*")}
    expected = {"run.json", "outcomes.json", "results.json"}
    for ep_id in range(3):
        expected |= {
            f"episodes/Reach/{ep_id}.json",
            f"actions_{ep_id}_failure.npy",
            f"rollout_{ep_id}_failure.mp4",
            f"trace_{ep_id}.npz",
        }
    assert names == expected
    assert [r.ep_id for r in seen] == [0, 1, 2]
    assert summary.exit_code == 0
    assert point.made[0].closed


def test_the_same_command_gives_the_same_bits(tmp_path, point):
    with fakes.policy_server() as port:
        first, _ = run(tmp_path / "a", port)
        second, _ = run(tmp_path / "b", port)
    assert first.outcomes_sha256 == second.outcomes_sha256
    assert outputs(tmp_path / "a") == outputs(tmp_path / "b")


def test_an_episode_does_not_know_which_episodes_the_run_asks_for(tmp_path, point):
    with fakes.policy_server() as port:
        run(tmp_path / "all", port)
        run(tmp_path / "one", port, env_seed_offset=2, num_trials=1)
    for name in ("trace_2.npz", "actions_2_failure.npy"):
        assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_several_tasks_have_folders_of_their_own(tmp_path, point):
    with fakes.policy_server() as port:
        summary, _ = run(tmp_path, port, env_names=("Reach", "Touch"), num_trials=1)
    assert (tmp_path / "Reach" / "trace_0.npz").exists()
    assert (tmp_path / "Touch" / "trace_0.npz").exists()
    assert [(r.task, r.ep_id) for r in summary.records] == [("Reach", 0), ("Touch", 0)]


def test_a_crashed_simulator_is_tried_again_and_then_scored(tmp_path, point):
    point.build = lambda: fakes.PointEnv(breaks_at=4, broken_episodes=1)
    with fakes.policy_server() as port:
        broken_once, _ = run(tmp_path / "a", port)
        point.build = fakes.PointEnv
        undisturbed, _ = run(tmp_path / "b", port)
    assert broken_once.records[0].attempts == 2
    assert broken_once.outcomes_sha256 == undisturbed.outcomes_sha256


def test_a_simulator_that_keeps_crashing_is_an_error_and_not_a_failed_episode(tmp_path, point):
    point.build = lambda: fakes.PointEnv(breaks_at=4)
    with fakes.policy_server() as port:
        summary, _ = run(tmp_path, port, num_trials=2)
    assert summary.exit_code == 1
    assert {r.outcome for r in summary.records} == {"sim_error"}
    assert {r.attempts for r in summary.records} == {3}
    assert json.loads((tmp_path / "results.json").read_text())["overall"]["n"] == 0
    assert json.loads((tmp_path / "outcomes.json").read_text())["episodes"] == []


def test_the_run_stops_after_a_few_errored_episodes_in_a_row(tmp_path, point):
    with fakes.policy_server(lambda _: "the model is on fire") as port:
        summary, seen = run(tmp_path, port, num_trials=50)
    assert len(seen) == evaluation.ERRORED_IN_A_ROW
    assert summary.stopped is not None
    assert "the model is on fire" in summary.stopped
    assert summary.exit_code == 1


def test_a_folder_of_another_run_is_refused_and_left_as_it_was(tmp_path, point):
    with fakes.policy_server() as port:
        run(tmp_path / "out", port)
        before = outputs(tmp_path / "out")
        with pytest.raises(ConfigError, match=r"out already holds a run; .*--args\.resume"):
            run(tmp_path / "out", port)
    assert outputs(tmp_path / "out") == before


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, point):
    with fakes.policy_server() as port:
        whole, _ = run(tmp_path / "whole", port)
        run(tmp_path / "part", port)
        results.episode_path(tmp_path / "part", "Reach", 1).unlink()
        (tmp_path / "part" / "trace_1.npz").unlink()
        (tmp_path / "part" / "outcomes.json").unlink()
        n_envs = len(point.made)
        resumed, seen = run(tmp_path / "part", port, resume=True)
    assert resumed.outcomes_sha256 == whole.outcomes_sha256
    assert outputs(tmp_path / "part") == outputs(tmp_path / "whole")
    assert [r.ep_id for r in seen] == [0, 1, 2]
    assert point.made[n_envs].renders == 3  # only episode 1 was run


def test_a_run_is_not_continued_with_another_seed_or_checkpoint(tmp_path, point):
    with fakes.policy_server() as port:
        run(tmp_path, port)
        with pytest.raises(ConfigError, match=r"protocol\.action_seed: 42 there, 43 now"):
            run(tmp_path, port, resume=True, action_seed=43)
    other = {**fakes.METADATA, "checkpoint": {"name": "c", "digest": "1", "params_kind": "raw"}}
    with (
        fakes.policy_server(metadata=other) as port,
        pytest.raises(ConfigError, match=r"server\.checkpoint\.digest: 0 there, 1 now"),
    ):
        run(tmp_path, port, resume=True)


def test_a_server_with_another_contract_is_refused_before_a_simulator_is_built(tmp_path, point):
    with fakes.policy_server() as port, pytest.raises(ContractError, match="expects 'base'"):
        run(tmp_path / "out", port, policy=PolicyArgs(arm="base"))
    assert point.made == []
    assert not (tmp_path / "out").exists()


def test_a_simulator_that_cannot_be_built_is_one_sentence(tmp_path, point):
    def build():
        raise SimError("no GL")

    point.build = build
    with fakes.policy_server() as port, pytest.raises(SimError, match="no GL"):
        run(tmp_path, port)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"num_trials": 0}, "--args.num-trials is 0, expected at least 1"),
        ({"env_seed_offset": -1}, "--args.env-seed-offset is -1"),
        ({"replan_steps": 0}, "--args.replan-steps is 0"),
        ({"max_steps": 5}, "--args.allow-deviation"),
        ({"resume": True}, "needs --args.log-dir"),
        ({"env_names": ("Lift", "Lift")}, "names a task twice"),
    ],
)
def test_numbers_that_no_evaluation_can_have_are_refused(flags, sentence):
    with pytest.raises(ConfigError, match=sentence):
        evaluation.resolve(RunArgs(**flags))


def test_a_shortened_episode_marks_the_run(tmp_path, point):
    with fakes.policy_server() as port:
        run(tmp_path, port, max_steps=5, allow_deviation=True)
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    assert outcomes["deviations"] == ["max_steps 5 instead of the task's"]
