"""The self-check of a start: what it asks, what its hash depends on, what it notices."""

import dataclasses

import numpy as np
import pytest
from served_arm import options, write_arms, write_norm_stats

from policy_server.errors import CheckpointError
from policy_server.norm_stats import FieldStats, NormStats
from policy_server.plan import make_plan
from policy_server.policy import LoadedPolicy, Policy, load_policy, open_request_path
from policy_server.request_path import RequestPath
from policy_server.robots import ROBOTS
from policy_server.selfcheck import fixed_requests, make_request, run_selfcheck


@pytest.fixture
def path(tmp_path):
    return open_request_path(make_plan(options(write_arms(tmp_path))))


def echo_noise(images, image_masks, tokens, token_mask, noise):
    """A model that answers with the noise it was given."""
    return noise


def loaded(path: RequestPath, model) -> LoadedPolicy:
    return LoadedPolicy(
        policy=Policy(path, model),
        request_path=path,
        checkpoint_digest="",
        weights="f32",
        platform="cpu",
        device_kind="cpu",
    )


def for_robot(path: RequestPath, name: str) -> RequestPath:
    """The same path for another robot, with stats of its widths."""
    robot = ROBOTS[name]

    def cut(stats: FieldStats, width: int) -> FieldStats:
        return dataclasses.replace(stats, **{k: v[:width] for k, v in vars(stats).items()})

    stats: NormStats = dataclasses.replace(
        path.stats,
        state=cut(path.stats.state, robot.state_width),
        actions=cut(path.stats.actions, robot.action_width),
    )
    return dataclasses.replace(path, robot=robot, stats=stats, state_padding="after_tokenization")


@pytest.mark.parametrize("name", ROBOTS)
def test_every_fixed_request_is_one_that_the_robot_may_send(path, name):
    own = for_robot(path, name)
    masks = [own.prepare(request).image_masks for request in fixed_requests(own.robot)]
    optional = [camera.slot for camera in own.robot.cameras if not camera.required]
    seen = {tuple(mask[slot] for slot in optional) for mask in masks}
    assert len(seen) == 2 ** len(optional)  # each program that the robot can reach


def test_a_request_is_its_seed():
    robot = ROBOTS["droid"]
    one, again, other = (make_request(robot, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_equal(one, again)
    assert not np.array_equal(
        one["observation/joint_position"], other["observation/joint_position"]
    )


def test_a_model_that_repeats_itself_passes_and_gives_the_same_hash_again(path):
    checks = [run_selfcheck(loaded(path, echo_noise)) for _ in range(2)]
    assert checks[0].repeats
    assert checks[0] == checks[1]
    assert len(checks[0].sha256) == 64


def test_a_last_bit_that_drifts_is_noticed(path):
    drifts = iter(np.arange(100, dtype=np.float32) * 1e-6)

    def drift(images, image_masks, tokens, token_mask, noise):
        return noise + next(drifts)

    assert not run_selfcheck(loaded(path, drift)).repeats


def test_a_model_that_remembers_the_request_before_is_noticed(path):
    memory = [np.zeros((50, 32), np.float32)]

    def remember(images, image_masks, tokens, token_mask, noise):
        memory.append(noise)
        return noise + memory[-2]

    assert not run_selfcheck(loaded(path, remember)).repeats


def test_every_request_and_every_number_reaches_the_hash(path):
    def change(index: int):
        calls = iter(range(100))
        n = len(fixed_requests(path.robot))

        def model(images, image_masks, tokens, token_mask, noise):
            call = next(calls)
            request = call if call < n else 2 * n - 1 - call  # the second round goes backwards
            changed = noise.copy()
            changed[-1, 11] += np.float32(1e-6) * (request == index)
            return changed

        return model

    plain = run_selfcheck(loaded(path, echo_noise))
    changed = [run_selfcheck(loaded(path, change(i))) for i in range(2)]
    assert all(check.repeats for check in changed)
    assert len({plain.sha256, *(check.sha256 for check in changed)}) == 3


def test_actions_that_are_not_finite_are_refused(path):
    def broken(images, image_masks, tokens, token_mask, noise):
        return np.full_like(noise, np.nan)

    with pytest.raises(CheckpointError, match="actions that are not finite"):
        run_selfcheck(loaded(path, broken))


def test_other_norm_stats_give_another_hash(path, tmp_path):
    before = run_selfcheck(loaded(path, echo_noise)).sha256
    table = write_arms(tmp_path)
    write_norm_stats(tmp_path / "mine" / "norm_stats.json", scale=1.5)
    other = open_request_path(make_plan(options(table)))
    assert run_selfcheck(loaded(other, echo_noise)).sha256 != before


def test_the_real_model_repeats_itself_whatever_weights_are_stored_as(tmp_path):
    plan = make_plan(options(write_arms(tmp_path)))
    checks = [run_selfcheck(load_policy(plan, weights)) for weights in ("f32", "bf16")]
    assert checks[0].repeats
    assert checks[0] == checks[1]
