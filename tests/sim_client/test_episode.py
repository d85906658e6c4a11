import dataclasses
from pathlib import Path

import av
import client_fakes as fakes
import numpy as np
import pytest

from sim_client.episode import EpisodeSettings, run_episode
from sim_client.errors import PolicyError, SimError
from sim_client.remote_policy import PolicyReply
from sim_client.seeding import episode_noise

SETTINGS = EpisodeSettings(
    replan_steps=5, action_seed=42, noise_shape=(8, 4), action_width=2, full_trace=True
)


class RecordingPolicy:
    """Plays the noise and keeps what it was asked."""

    def __init__(self, width=2, fails_at=None):
        self.asked = []
        self.width = width
        self.fails_at = fails_at

    def infer(self, request, *, noise, query):
        if len(self.asked) == self.fails_at:
            raise PolicyError("the policy is gone")
        self.asked.append((request, noise, query))
        actions = np.zeros((len(noise), self.width))
        actions[:, : noise.shape[1]] = noise[:, : self.width]
        return PolicyReply(actions, {"infer_ms": 2.0}, ("state out of range",))


def run(tmp_path: Path, env=None, policy=None, settings=SETTINGS, ep_id=7):
    env = env or fakes.PointEnv()
    return run_episode(env, policy or RecordingPolicy(), settings, ep_id=ep_id, out_dir=tmp_path)


def test_an_episode_queries_every_five_steps_with_the_noise_of_that_query(tmp_path):
    policy = RecordingPolicy()
    record = run(tmp_path, policy=policy)

    assert (record.steps, record.predict_calls, record.outcome) == (12, 3, "timeout")
    for query_idx, (_, noise, query) in enumerate(policy.asked):
        assert query == {"ep_id": 7, "query_idx": query_idx}
        np.testing.assert_array_equal(noise, episode_noise(42, 7, query_idx, (8, 4)))


def test_the_policy_gets_resized_uint8_images_the_unpadded_float32_state_and_the_prompt(tmp_path):
    policy = RecordingPolicy()
    run(tmp_path, policy=policy)

    request = policy.asked[0][0]
    assert request["observation/image"].shape == (224, 224, 3)
    assert request["observation/image"].dtype == np.uint8
    assert request["observation/state"].shape == (2,)
    assert request["observation/state"].dtype == np.float32
    assert request["prompt"] == "Reach."


def test_images_are_rendered_only_for_queries(tmp_path):
    env = fakes.PointEnv()
    record = run(tmp_path, env=env, settings=dataclasses.replace(SETTINGS, video=False))
    assert env.renders == record.predict_calls == 3


def test_success_is_the_first_step_with_the_signal_and_ends_the_episode(tmp_path):
    whole = run(tmp_path / "whole", env=fakes.PointEnv())
    positions = np.load(tmp_path / "whole" / "trace_7.npz")["physics"][:, 1]
    goal = np.sort(positions[1:])[-3]
    first = int(np.argmax(positions[1:] > goal)) + 1

    record = run(tmp_path / "short", env=fakes.PointEnv(goal=goal))
    assert whole.outcome == "timeout"
    assert (record.outcome, record.steps, record.sum_reward) == ("success", first, 1.0)
    assert (tmp_path / "short" / "actions_7_success.npy").exists()
    assert (tmp_path / "short" / "rollout_7_success.mp4").exists()


def test_the_trace_tells_what_was_sent_played_and_where_it_led(tmp_path):
    policy = RecordingPolicy()
    run(tmp_path, policy=policy)
    with np.load(tmp_path / "trace_7.npz", allow_pickle=False) as trace:
        members = {name: trace[name] for name in trace.files}

    np.testing.assert_array_equal(members["query_step"], [0, 5, 10])
    np.testing.assert_array_equal(members["state"][2], policy.asked[2][0]["observation/state"])
    np.testing.assert_array_equal(members["prompt"], ["Reach."] * 3)
    np.testing.assert_array_equal(members["action"][5:10], members["chunk"][1, :5])
    assert members["physics_digest"].shape == (13, 32)
    np.testing.assert_allclose(
        np.diff(members["physics"][:, 1:], axis=0), members["action"], atol=1e-12
    )
    np.testing.assert_array_equal(np.load(tmp_path / "actions_7_failure.npy"), members["action"])


def test_two_runs_of_an_episode_give_the_same_files_byte_for_byte(tmp_path):
    first = run(tmp_path / "a")
    run(tmp_path / "b", ep_id=3)
    again = run(tmp_path / "b")

    assert first.digests == again.digests
    names = ["trace_7.npz", "actions_7_failure.npy", "rollout_7_failure.mp4"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_another_episode_is_another_trace(tmp_path):
    assert run(tmp_path, ep_id=1).digests["trace"] != run(tmp_path, ep_id=2).digests["trace"]


def test_the_video_shows_every_second_step_and_the_last(tmp_path):
    run(tmp_path, env=fakes.PointEnv(max_steps=7))
    with av.open(str(tmp_path / "rollout_7_failure.mp4")) as container:
        frames = list(container.decode(video=0))
        assert container.streams.video[0].average_rate == 20
    assert len(frames) == 5  # before steps 0, 2, 4 and 6, and after the last


@pytest.mark.parametrize(
    ("env", "policy", "error"),
    [
        (fakes.PointEnv(breaks_at=6), RecordingPolicy(), SimError),
        (fakes.PointEnv(), RecordingPolicy(fails_at=1), PolicyError),
        (fakes.PointEnv(), RecordingPolicy(width=3), PolicyError),
    ],
)
def test_an_error_leaves_no_file_that_looks_like_a_result(tmp_path, env, policy, error):
    with pytest.raises(error):
        run(tmp_path, env=env, policy=policy)
    assert list(tmp_path.iterdir()) == []


def test_warnings_of_the_server_are_kept_once(tmp_path):
    assert run(tmp_path).warnings == ("state out of range",)


def test_stages_are_kept_as_ever_reached(tmp_path):
    assert run(tmp_path).stages == {"moved": True}
