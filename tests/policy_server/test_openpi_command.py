"""openpi's own command line is answered with the arm to use."""

import pytest

from policy_server.arms import load_arms
from policy_server.config import ARMS_FILE
from policy_server.errors import ConfigError
from policy_server.openpi_command import CONFIG_ARMS, ENVIRONMENT_ARMS, refuse_openpi_command


def answer(line: str) -> str:
    with pytest.raises(ConfigError) as refused:
        refuse_openpi_command(line.split())
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("config", "arm"),
    [
        ("pi05_libero", "pi05_libero"),
        ("pi05_droid", "pi05_droid"),
        ("pi05_full_droid_finetune", "pi05_droid"),
        ("pi05_aloha", "pi05_aloha"),
        ("pi05_aloha_pen_uncap", "pi05_aloha"),
        ("pi05_robocasa_ctc502", "base"),
        ("pi05_pretrain_human300", "base"),
        ("pi05_ctc502_qnorm", "vace"),
    ],
)
@pytest.mark.parametrize("before", ["", "--port 9000 "])
def test_a_configs_name_is_answered_with_its_arm_and_the_directory(config, arm, before):
    said = answer(f"{before}policy:checkpoint --policy.config {config} --policy.dir D/1")
    assert f"--policy.config {config} is openpi's command line" in said
    assert f": use --policy.arm {arm} --policy.dir D/1" in said


def test_an_equals_sign_makes_no_difference():
    said = answer("policy:checkpoint --policy.config=pi05_libero --policy.dir=D")
    assert "use --policy.arm pi05_libero --policy.dir D." in said


@pytest.mark.parametrize("config", ["pi0_libero", "pi0_fast_droid", "debug", "mine"])
def test_a_config_that_no_arm_serves_gets_the_list_of_arms(config):
    said = answer(f"policy:checkpoint --policy.config {config} --policy.dir D")
    assert all(arm in said for arm in load_arms(ARMS_FILE))


@pytest.mark.parametrize(
    ("line", "arm"),
    [
        ("--env LIBERO", "pi05_libero"),
        ("--env DROID --port 8000", "pi05_droid"),
        ("--env ALOHA", "pi05_aloha"),
        ("--env ALOHA_SIM", "ARM"),
        ("policy:default", "ARM"),
    ],
)
def test_openpis_default_policies_are_answered_too(line, arm):
    assert f"use --policy.arm {arm}" in answer(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--policy.arm base --policy.dir D",
        "serve --policy.arm pi05_libero",
        "checkpoint init --config tiny --out o --seed 0",
        "--help",
    ],
)
def test_our_own_command_lines_pass(line):
    refuse_openpi_command(line.split())


def test_every_arm_that_is_named_exists():
    named = {arm for _, arms in CONFIG_ARMS for arm in arms} | {*ENVIRONMENT_ARMS.values()}
    assert named <= set(load_arms(ARMS_FILE))
