"""The files of a run: one per finished episode, and what is derived from them.

`episodes/<task>/<ep_id>.json` is the record; `outcomes.json` and `results.json` are rewritten from
these files at any time. Everything is written under another name, synced, then renamed.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from sim_client.errors import ConfigError
from sim_client.statistics import Rate, success_rate

Outcome = Literal["success", "timeout", "policy_error", "sim_error"]
SCORED: tuple[Outcome, ...] = ("success", "timeout")
SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class EpisodeRecord:
    """What one (task, ep_id) produced.

    Attributes:
        task: Task name.
        ep_id: Global episode id; also the seed of the episode.
        outcome: success, timeout (max_steps reached), policy_error or sim_error.
        steps: Simulator steps taken.
        predict_calls: Queries answered by the policy.
        sum_reward: Sum of the simulator's rewards.
        prompt: The language instruction.
        stages: Stage flags, whether each was ever true.
        scene: What the seed made of the scene, plain JSON.
        digests: SHA-256 of initial and final physics state, of the actions and of the trace file.
        warnings: What the server said about this episode's requests, without repeats.
        error: The text of the error, None for a scored episode.
        attempts: How often the episode was started (clocks and counts never enter outcomes.json).
        timing_ms: Wall-clock measurements, milliseconds by name.
    """

    task: str
    ep_id: int
    outcome: Outcome
    steps: int
    predict_calls: int
    sum_reward: float
    prompt: str
    stages: dict[str, bool]
    scene: dict[str, Any]
    digests: dict[str, str]
    warnings: tuple[str, ...] = ()
    error: str | None = None
    attempts: int = 1
    timing_ms: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def scored(self) -> bool:
        """Whether this episode says anything about the policy."""
        return self.outcome in SCORED


# These depend on the machine and the hour; the rest is what the function of an episode determines.
_MEASURED = ("attempts", "timing_ms", "error")


def write_json(path: Path, content: Mapping[str, Any]) -> str:
    """Write `content` durably to `path` by rename and return the SHA-256 of the file."""
    data = (json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return hashlib.sha256(data).hexdigest()


def episode_path(log_dir: Path, task: str, ep_id: int) -> Path:
    """Where the record of one episode lies."""
    return log_dir / "episodes" / task / f"{ep_id}.json"


def write_episode(log_dir: Path, record: EpisodeRecord) -> None:
    """Record a finished episode."""
    content = {"schema": SCHEMA, **dataclasses.asdict(record)}
    write_json(episode_path(log_dir, record.task, record.ep_id), content)


def read_episodes(log_dir: Path) -> list[EpisodeRecord]:
    """All recorded episodes, sorted by (task, ep_id).

    Raises:
        ConfigError: A file is not an episode's record.
    """
    records = [_read_episode(path) for path in (log_dir / "episodes").glob("*/*.json")]
    return sorted(records, key=lambda record: (record.task, record.ep_id))


def _read_episode(path: Path) -> EpisodeRecord:
    try:
        content = json.loads(path.read_bytes())
        if content.pop("schema") != SCHEMA:
            raise ConfigError(
                f"{path} has another schema than {SCHEMA}; read it with the revision that wrote it"
            )
        content["warnings"] = tuple(content["warnings"])
        return EpisodeRecord(**content)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not an episode's record ({error}); remove it to run the episode again"
        ) from error


def write_outcomes(
    log_dir: Path, records: Iterable[EpisodeRecord], identity: Mapping[str, Any]
) -> str:
    """Write the canonical record of the scored episodes and return its SHA-256, the run's digest.

    Args:
        log_dir: Folder of the run.
        records: Episodes, sorted by (task, ep_id).
        identity: What, with (task, ep_id), determines an episode: arm, sim, action_seed, protocol.
    """
    episodes = []
    for record in records:
        if record.scored:
            content = dataclasses.asdict(record)
            episodes.append({k: v for k, v in content.items() if k not in _MEASURED})
    return write_json(
        log_dir / "outcomes.json", {"schema": SCHEMA, **identity, "episodes": episodes}
    )


def write_results(
    log_dir: Path,
    records: list[EpisodeRecord],
    *,
    config: Mapping[str, Any],
    runner: str,
    notes: Mapping[str, Any],
) -> None:
    """Write results.json: outcomes joined with timings, rates per task and overall."""
    by_task: dict[str, list[EpisodeRecord]] = {}
    for record in records:
        by_task.setdefault(record.task, []).append(record)
    write_json(
        log_dir / "results.json",
        {
            "schema": SCHEMA,
            "runner": runner,
            "config": dict(config),
            **notes,
            "episodes": [_result_row(record) for record in records],
            "timing_ms": _mean_timings(records),
            "overall": summary(records),
            "per_task": [{"task": task, **summary(rows)} for task, rows in sorted(by_task.items())],
        },
    )


def summary(records: Iterable[EpisodeRecord]) -> dict[str, Any]:
    """n, successes, rate, interval_95 and errored of some episodes, as results.json has them."""
    rows = list(records)
    rate = rate_of(rows)
    return {**dataclasses.asdict(rate), "errored": len(rows) - rate.n}


def rate_of(records: Iterable[EpisodeRecord]) -> Rate:
    """The success rate over the scored ones of some episodes."""
    scored = [record for record in records if record.scored]
    return success_rate(sum(record.outcome == "success" for record in scored), len(scored))


def _result_row(record: EpisodeRecord) -> dict[str, Any]:
    server = {
        k.removeprefix("server/"): v for k, v in record.timing_ms.items() if k.startswith("server/")
    }
    return {
        "episode": record.ep_id,
        "seed": record.ep_id,
        "task": record.task,
        "success": record.outcome == "success",
        "outcome": record.outcome,
        "sum_reward": record.sum_reward,
        "steps": record.steps,
        "predict_calls": record.predict_calls,
        "stages": record.stages,
        "warnings": list(record.warnings),
        "error": record.error,
        "attempts": record.attempts,
        "server_timing_avg_ms": server,
    }


def _mean_timings(records: list[EpisodeRecord]) -> dict[str, float]:
    """Mean over the scored episodes of each per-episode measurement, milliseconds."""
    scored = [record for record in records if record.scored]
    names = sorted({name for record in scored for name in record.timing_ms})
    return {
        name: sum(values) / len(values)
        for name in names
        if (values := [r.timing_ms[name] for r in scored if name in r.timing_ms])
    }
