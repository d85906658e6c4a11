import dataclasses

import pytest

from policy_server.errors import ConfigError
from policy_server.tuned import TunedFor, check_record, record_path, write_record

NOW = TunedFor(checkpoint_digest="ab" * 32, device_kind="NVIDIA H200", jaxlib="0.10.2")


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "tuned.pb"
    write_record(path, NOW)
    return path


def test_kernels_tuned_for_this_checkpoint_card_and_compiler_are_accepted(results):
    check_record(results, NOW)
    assert record_path(results).name == "tuned.pb.json"


@pytest.mark.parametrize(
    ("field", "value"),
    [("checkpoint_digest", "cd" * 32), ("device_kind", "NVIDIA A100"), ("jaxlib", "0.11.2")],
)
def test_kernels_tuned_for_something_else_are_refused_with_the_command(results, field, value):
    other = dataclasses.replace(NOW, **{field: value})
    with pytest.raises(ConfigError, match=f"was tuned for {field} .* this server has {value}"):
        check_record(results, other)


@pytest.mark.parametrize("content", [None, "{", '{"device_kind": "x"}'])
def test_kernels_whose_record_is_lost_or_damaged_are_refused(results, content):
    if content is None:
        record_path(results).unlink()
    else:
        record_path(results).write_text(content)
    with pytest.raises(ConfigError, match=r"tuned\.pb\.json cannot be read"):
        check_record(results, NOW)
