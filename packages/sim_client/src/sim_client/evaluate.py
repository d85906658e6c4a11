"""Evaluates tasks one episode after the other and writes the files of a run.

An errored episode is tried again twice, then recorded with its error; it is never a score. After a
few errored episodes in a row the run stops: the next ones would fail for the same reason.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sim_client import episode, mp4, provenance, results
from sim_client.config import RunArgs
from sim_client.envs.base import SimEnv
from sim_client.envs.registry import SIMS, Sim
from sim_client.errors import ConfigError, PolicyError, SimError
from sim_client.results import EpisodeRecord
from sim_client.served import Served, connected

CAMERA_SIZE = 256  # pixels, as RoboCasa's evaluators
ATTEMPTS = 3
ERRORED_IN_A_ROW = 3
SERVER_LOG = "server.log"

OnEpisode = Callable[[EpisodeRecord], None]


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """What a run ended with.

    Attributes:
        log_dir: Folder of the run.
        records: All its episodes, sorted by (task, ep_id).
        outcomes_sha256: SHA-256 of outcomes.json, the run's digest.
        stopped: Why the run stopped before its last episode, None if it did not.
    """

    log_dir: Path
    records: list[EpisodeRecord]
    outcomes_sha256: str
    stopped: str | None

    @property
    def exit_code(self) -> int:
        """0 if every episode is scored, 1 otherwise."""
        return 0 if self.stopped is None and all(r.scored for r in self.records) else 1


def resolve(args: RunArgs) -> RunArgs:
    """The same request with every task by its own name and the simulator's defaults filled in.

    Raises:
        ConfigError: There is no such task, one is asked for twice, or a number is impossible.
    """
    args.check()
    sim = SIMS[args.sim]
    tasks = tuple(task for name in args.env_names for task in sim.expand_tasks(name))
    for task in tasks:
        sim.check_task(task)
    if len(set(tasks)) != len(tasks):
        raise ConfigError(f"--args.env-names {' '.join(args.env_names)} names a task twice")
    if sim.check_split is not None:
        sim.check_split(args.split)
    codec = sim.mp4_roundtrip if args.mp4_roundtrip is None else args.mp4_roundtrip
    return dataclasses.replace(args, env_names=tasks, mp4_roundtrip=codec)


def claim_log_dir(args: RunArgs, *, arm: str) -> Path:
    """Make the run's folder, or find the one to continue.

    Raises:
        ConfigError: The folder already holds something and --args.resume was not given, or it was
            given and there is no folder.
    """
    if args.log_dir is None:
        stamp = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S-%f")
        log_dir = Path("eval/results") / f"{args.sim}-{arm}-{stamp}"
    else:
        log_dir = args.log_dir
    if args.resume:
        if not log_dir.is_dir():
            raise ConfigError(
                f"--args.resume continues the run in --args.log-dir, but {log_dir} is no folder; "
                "name the run's folder, or leave --args.resume out"
            )
        return log_dir
    if log_dir.is_file():
        raise ConfigError(f"--args.log-dir {log_dir} is a file, expected a folder")
    if log_dir.is_dir() and any(path.name != SERVER_LOG for path in log_dir.iterdir()):
        raise ConfigError(
            f"--args.log-dir {log_dir} already holds a run; continue it with --args.resume or "
            "choose another folder"
        )
    log_dir.mkdir(parents=True, exist_ok=True)
    return log_dir


def evaluate(args: RunArgs, *, on_episode: OnEpisode, log_dir: Path | None = None) -> RunSummary:
    """Run the evaluation that `args` asks for.

    Args:
        args: The command line.
        on_episode: Called with every finished episode, also with those of the run that is resumed.
        log_dir: Folder of the run where it was claimed before, else it is claimed here.

    Raises:
        ConfigError: The request is impossible: no server, another contract, another run's folder.
    """
    args = resolve(args)
    sim = SIMS[args.sim]
    with connected(args, sim) as served:
        log_dir = log_dir or claim_log_dir(args, arm=served.agreed.arm)
        return _Run(args, sim, served, log_dir, on_episode).run()


class _Run:
    """One evaluation under way."""

    def __init__(
        self,
        args: RunArgs,
        sim: Sim,
        served: Served,
        log_dir: Path,
        on_episode: OnEpisode,
    ) -> None:
        self._args = args
        self._sim = sim
        self._served = served
        self._log_dir = log_dir
        self._on_episode = on_episode
        self._deviations = list(served.agreed.deviations)
        if args.max_steps is not None:
            self._deviations.append(f"max_steps {args.max_steps} instead of the task's")
        self._settings = episode.EpisodeSettings(
            replan_steps=args.replan_steps,
            action_seed=args.action_seed,
            noise_shape=served.agreed.noise_shape,
            action_width=served.agreed.action_width,
            mp4_roundtrip=args.mp4_roundtrip or False,
            video=args.video,
            full_trace=args.trace == "full",
        )
        self._errored_in_a_row = 0

    def run(self) -> RunSummary:
        """Run the episodes that are not there yet and write the derived files."""
        first_task, *other_tasks = self._args.env_names
        env = self._make(first_task)
        try:
            known = self._provenance(env)
            if self._args.resume:
                provenance.check_same_provenance(self._log_dir, known)
            else:
                provenance.write_run(self._log_dir, known, _request(self._args))
            stopped = self._run_task(env)
        finally:
            env.close()
        for task in other_tasks:
            if stopped is None:
                with contextlib.closing(self._make(task)) as env:
                    stopped = self._run_task(env)
        return self._finish(known, stopped)

    def _make(self, task: str) -> SimEnv:
        return self._sim.make(
            task,
            camera_size=CAMERA_SIZE,
            max_steps=self._args.max_steps,
            split=self._args.split,
        )

    def _provenance(self, env: SimEnv) -> dict[str, Any]:
        """What the run's numbers depend on."""
        return {
            "server": self._served.server,
            "client": {
                "versions": provenance.client_versions(),
                "revision": provenance.client_revision(),
                "simulator": env.versions(),
            },
            "protocol": self._protocol(),
        }

    def _finish(self, known: dict[str, Any], stopped: str | None) -> RunSummary:
        """Write what is derived from the episodes."""
        records = results.read_episodes(self._log_dir)
        digest = results.write_outcomes(self._log_dir, records, self._protocol())
        results.write_results(
            self._log_dir,
            records,
            config={**_request(self._args), **known},
            runner=self._served.runner,
            notes={
                "reproducible": self._served.agreed.reproducible,
                "not_reproducible_because": self._served.not_reproducible,
                "deviations": self._deviations,
                "outcomes_sha256": digest,
            },
        )
        return RunSummary(self._log_dir, records, digest, stopped)

    def _protocol(self) -> dict[str, Any]:
        """What, with (task, ep_id), determines an episode: it stands in outcomes.json too."""
        return {
            "arm": self._served.agreed.arm,
            "sim": self._sim.name,
            "split": None if self._sim.check_split is None else self._args.split,
            "action_seed": self._args.action_seed,
            "replan_steps": self._args.replan_steps,
            "resize": self._settings.resize,
            "camera_size": CAMERA_SIZE,
            "mp4_roundtrip": mp4.SETTINGS if self._settings.mp4_roundtrip else None,
            "success_rule": "first step at which the simulator's success signal is true",
            "deviations": self._deviations,
            **self._served.protocol,
        }

    def _run_task(self, env: SimEnv) -> str | None:
        """Run a task's missing episodes; returns why the run must stop, if it must."""
        first = self._args.env_seed_offset
        records = results.read_episodes(self._log_dir)
        done = {r.ep_id: r for r in records if r.task == env.task and r.scored}
        for ep_id in range(first, first + self._args.num_trials):
            if ep_id in done:
                self._on_episode(done[ep_id])
                continue
            record = self._attempt(env, ep_id)
            results.write_episode(self._log_dir, record)
            self._on_episode(record)
            self._errored_in_a_row = 0 if record.scored else self._errored_in_a_row + 1
            if self._errored_in_a_row == ERRORED_IN_A_ROW:
                return f"{ERRORED_IN_A_ROW} episodes in a row errored, the last: {record.error}"
        return None

    def _attempt(self, env: SimEnv, ep_id: int) -> EpisodeRecord:
        """Run one episode, trying again after an error."""
        out_dir = self._log_dir if len(self._args.env_names) == 1 else self._log_dir / env.task
        errors: list[PolicyError | SimError] = []
        while len(errors) < ATTEMPTS:
            try:
                self._served.before_episode()
                record = episode.run_episode(
                    env, self._served.policy, self._settings, ep_id=ep_id, out_dir=out_dir
                )
                return dataclasses.replace(record, attempts=len(errors) + 1)
            except (PolicyError, SimError) as error:
                errors.append(error)
        return EpisodeRecord(
            task=env.task,
            ep_id=ep_id,
            outcome="policy_error" if isinstance(errors[-1], PolicyError) else "sim_error",
            steps=0,
            predict_calls=0,
            sum_reward=0.0,
            prompt="",
            stages={},
            scene={},
            digests={},
            error=str(errors[-1]),
            attempts=len(errors),
        )


def _request(args: RunArgs) -> dict[str, Any]:
    """What was asked for, as plain JSON."""
    asked = dataclasses.asdict(args)
    return {name: str(value) if isinstance(value, Path) else value for name, value in asked.items()}
