"""RoboCasa's registry of tasks and horizons behind our names."""

import pytest
from robocasa_rollout import TASK, require_robocasa

from sim_client.envs.robocasa_tasks import check_task, expand_tasks, task_horizon
from sim_client.errors import ConfigError

require_robocasa()
pytestmark = pytest.mark.robocasa


def test_the_step_limit_is_the_registrys_and_not_a_multiple():
    assert task_horizon(TASK) == 750
    assert {task_horizon(task) for task in expand_tasks("atomic_seen")} <= set(range(450, 1051))


def test_a_task_set_expands_to_tasks_and_a_task_to_itself():
    assert len(expand_tasks("target50")) == len(set(expand_tasks("target50"))) == 50
    assert len(expand_tasks("atomic_seen")) == 18
    assert expand_tasks(TASK) == (TASK,)


@pytest.mark.parametrize(
    ("asked", "nearest"), [(TASK.lower(), TASK), ("atomic_sene", "atomic_seen")]
)
def test_an_unknown_task_names_the_nearest_task_or_set(asked, nearest):
    for refuse in (check_task, expand_tasks):
        with pytest.raises(
            ConfigError, match=rf"--args\.env_names '{asked}'.*did you.*'{nearest}'"
        ):
            refuse(asked)
