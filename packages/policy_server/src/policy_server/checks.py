"""`policy-server check`: everything that a start would refuse, each as a line with its verdict.

A start stops at its first refusal; here the others are looked at too, as far as they do not need
what is missing. No port is opened and the model is not compiled.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, TypeVar

from policy_server.arms import Arm, get_arm, load_arms
from policy_server.checkpoints import checkpoint_digest
from policy_server.config import PolicyOptions
from policy_server.errors import PolicyServerError
from policy_server.plan import (
    ServePlan,
    apply_overrides,
    find_checkpoint,
    find_norm_stats,
    find_row_tokenizer,
    make_plan,
    require_params_kind,
    require_pins,
)
from policy_server.policy import check_digest, open_request_path, read_model_config
from policy_server.request_path import RequestPath

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One line of the table.

    Attributes:
        subject: What was looked at.
        verdict: PASS, FAIL, or "-" where it could not be looked at.
        detail: What was found, or the sentence of the refusal.
    """

    subject: str
    verdict: Literal["PASS", "FAIL", "-"]
    detail: str


class _Table:
    """Runs checks in order; one whose needs failed is not run."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []

    def look(self, subject: str, check: Callable[[], tuple[T, str]], *needs: object) -> T | None:
        """Run `check`, which gives what it found and a few words on it, unless a need is None."""
        if any(need is None for need in needs):
            self.verdicts.append(Verdict(subject, "-", "needs what failed above"))
            return None
        try:
            found, detail = check()
        except PolicyServerError as error:
            self.verdicts.append(Verdict(subject, "FAIL", str(error)))
            return None
        self.verdicts.append(Verdict(subject, "PASS", detail))
        return found


def check_arm(options: PolicyOptions) -> list[Verdict]:
    """Look at everything that serving an arm needs.

    Returns:
        One verdict per subject, in the order in which a start meets them.
    """
    table = _Table()
    row = table.look("arm", lambda: _row(options))
    if row is None:
        return table.verdicts
    checkpoint = table.look("checkpoint", lambda: _words(find_checkpoint(
        row, options.dir, options.checkpoints_root)))  # fmt: skip
    stats = table.look("norm stats", lambda: _stats(row, options))
    table.look("protocol", lambda: _protocol(row, options, stats[1] if stats else ""), stats)
    table.look("pins", lambda: _pins(row, options, stats[1] if stats else ""), stats)
    if checkpoint is not None:
        table.look("weights", lambda: _words(require_params_kind(row, checkpoint)))
        table.look("tokenizer", lambda: _words(find_row_tokenizer(row, options, checkpoint)))
    failed = any(verdict.verdict != "PASS" for verdict in table.verdicts)
    plan = None if failed else make_plan(options)
    path = table.look("request path", lambda: _request_path(_need(plan)), plan)
    model = table.look("model", lambda: _model(_need(plan), _need(path)), path)
    table.look("digest", lambda: _digest(_need(plan)), model)
    return table.verdicts


def _need(value: T | None) -> T:
    """What `look` has already seen not to be None."""
    assert value is not None
    return value


def _words(found: T) -> tuple[T, str]:
    return found, str(found)


def _row(options: PolicyOptions) -> tuple[Arm, str]:
    row = get_arm(options.arm, load_arms(options.arms_file), options.arms_file)
    return row, f"{row.name} of {options.arms_file}, robot {row.robot}"


def _stats(row: Arm, options: PolicyOptions) -> tuple[tuple[object, str], str]:
    path, sha256 = find_norm_stats(row, options)
    return (path, sha256), f"{path}, sha256 {sha256}"


def _protocol(row: Arm, options: PolicyOptions, stats_sha256: str) -> tuple[Arm, str]:
    arm, deviations = apply_overrides(row, options, stats_sha256)
    as_row = f"{arm.norm_mode}, horizon {arm.action_horizon}, state {arm.state_padding}"
    return arm, "; ".join([as_row, *(f"deviates: {text}" for text in deviations)])


def _pins(row: Arm, options: PolicyOptions, stats_sha256: str) -> tuple[bool, str]:
    require_pins(row, options, stats_sha256)
    pinned = [key for key in ("norm_stats_sha256", "checkpoint_digest") if getattr(row, key)]
    return True, " and ".join(pinned) or 'none, which params = "any" allows'


def _request_path(plan: ServePlan) -> tuple[RequestPath, str]:
    path = open_request_path(plan)
    return path, f"stats {path.stats.state.width} wide, {path.tokenizer.vocab_size} pieces"


def _model(plan: ServePlan, path: RequestPath) -> tuple[object, str]:
    config = read_model_config(plan, path.tokenizer)
    sizes = f"widths {config.siglip.width}, {config.paligemma.width}, {config.expert.width}"
    return config, f"pi0.5, {sizes}, vocabulary {config.vocab_size}"


def _digest(plan: ServePlan) -> tuple[str, str]:
    if not plan.arm.checkpoint_digest:
        return "", "not pinned, so the weights were not read"
    found = checkpoint_digest(plan.checkpoint_dir)
    check_digest(plan, found)
    return _words(found)
