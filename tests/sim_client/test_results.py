import dataclasses
import hashlib
import json

import pytest

from sim_client import results
from sim_client.errors import ConfigError
from sim_client.results import EpisodeRecord, Outcome

IDENTITY = {"arm": "fake", "action_seed": 42}


def record(ep_id=0, outcome: Outcome = "success", task="Reach", **changes):
    return EpisodeRecord(
        task=task,
        ep_id=ep_id,
        outcome=outcome,
        steps=12,
        predict_calls=3,
        sum_reward=1.0,
        prompt="Reach.",
        stages={"moved": True},
        scene={"goal": 1},
        digests={"trace": "ab"},
        **changes,
    )


def test_an_episode_is_read_back_as_it_was_written(tmp_path):
    written = record(warnings=("w",), timing_ms={"episode": 1.5})
    results.write_episode(tmp_path, written)
    assert results.read_episodes(tmp_path) == [written]


def test_episodes_are_sorted_by_task_and_number_not_by_file_name(tmp_path):
    for ep_id in (10, 9, 100):
        results.write_episode(tmp_path, record(ep_id))
    results.write_episode(tmp_path, record(3, task="Door"))
    read = [(r.task, r.ep_id) for r in results.read_episodes(tmp_path)]
    assert read == [("Door", 3), ("Reach", 9), ("Reach", 10), ("Reach", 100)]


def test_a_damaged_record_is_named(tmp_path):
    results.write_episode(tmp_path, record())
    path = results.episode_path(tmp_path, "Reach", 0)
    path.write_text(path.read_text()[:40])
    with pytest.raises(ConfigError, match=r"Reach/0\.json is not an episode's record"):
        results.read_episodes(tmp_path)


def test_outcomes_do_not_know_clocks_attempts_or_errors(tmp_path):
    slow = record(timing_ms={"episode": 9e9}, attempts=3)
    digest = results.write_outcomes(tmp_path, [record()], IDENTITY)
    assert results.write_outcomes(tmp_path, [slow], IDENTITY) == digest
    assert digest == hashlib.sha256((tmp_path / "outcomes.json").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "timeout"},
        {"steps": 11},
        {"digests": {"trace": "cd"}},
        {"scene": {"goal": 2}},
        {"warnings": ("w",)},
    ],
)
def test_outcomes_change_with_whatever_the_episode_determines(tmp_path, change):
    digest = results.write_outcomes(tmp_path, [record()], IDENTITY)
    changed = dataclasses.replace(record(), **change)
    assert results.write_outcomes(tmp_path, [changed], IDENTITY) != digest


def test_an_errored_episode_is_not_a_score(tmp_path):
    records = [record(0), record(1, "timeout"), record(2, "sim_error"), record(3, "policy_error")]
    results.write_outcomes(tmp_path, records, IDENTITY)
    results.write_results(tmp_path, records, config={}, runner="websocket", notes={})

    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    written = json.loads((tmp_path / "results.json").read_text())
    assert [e["ep_id"] for e in outcomes["episodes"]] == [0, 1]
    assert written["overall"]["n"] == 2
    assert written["overall"]["rate"] == 0.5
    assert written["overall"]["errored"] == 2
    assert [e["outcome"] for e in written["episodes"]][2:] == ["sim_error", "policy_error"]


def test_results_hold_the_fields_that_other_simulators_results_have(tmp_path):
    records = [
        record(0, timing_ms={"server/infer_ms": 2.0, "episode": 5.0}),
        record(1, task="Door"),
    ]
    results.write_results(tmp_path, records, config={"port": 1}, runner="websocket", notes={})

    written = json.loads((tmp_path / "results.json").read_text())
    assert {"runner", "config", "episodes", "timing_ms", "overall", "per_task"} <= set(written)
    row = written["episodes"][0]
    assert (row["episode"], row["seed"], row["task"], row["success"]) == (0, 0, "Reach", True)
    assert row["server_timing_avg_ms"] == {"infer_ms": 2.0}
    assert [(t["task"], t["n"]) for t in written["per_task"]] == [("Door", 1), ("Reach", 1)]
