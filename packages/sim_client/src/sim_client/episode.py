"""One episode: reset, query, play `replan_steps` actions, query again, until success or max_steps.

The protocol of an evaluation is here and nowhere else. An episode is a function of (arm, sim,
task, ep_id, action_seed, protocol): the simulator is reseeded with ep_id, the noise of query q is
drawn from action_seed + ep_id * 1_000_003 + q, and success is the first step at which the simulator
says so.
"""

import dataclasses
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, UInt8
from openpi_client import image_tools

from sim_client import mp4
from sim_client.chunking import ChunkPlayer
from sim_client.envs.base import SimEnv
from sim_client.errors import PolicyError, SimError
from sim_client.remote_policy import PolicyReply
from sim_client.results import EpisodeRecord
from sim_client.seeding import episode_noise
from sim_client.trace import TraceRecorder, array_digest
from sim_client.video import VideoWriter

STATE_KEY = "observation/state"
VIDEO_EVERY_STEPS = (
    2  # as the public RoboCasa client: every second step, played at 20 frames per second
)


@runtime_checkable
class QueryPolicy(Protocol):
    """What an episode needs of a policy: `RemotePolicy` or `ModelServerPolicy`."""

    def infer(
        self, request: dict[str, Any], *, noise: Float[np.ndarray, "h a"], query: dict[str, int]
    ) -> PolicyReply:
        """Answer one request or raise PolicyError."""
        ...


@dataclasses.dataclass(frozen=True)
class EpisodeSettings:
    """What is the same for all episodes of a run.

    Attributes:
        replan_steps: Actions played of each chunk.
        action_seed: Base of the noise seeds.
        noise_shape: (action_horizon, action_dim), as the server announces it.
        action_width: Numbers in one action.
        resize: Side of the images that are sent, pixels.
        mp4_roundtrip: Whether frames pass through the training's video codec before the resize.
        video: Whether to write a rollout video.
        full_trace: Whether the trace keeps the physics state beside its digest.
    """

    replan_steps: int
    action_seed: int
    noise_shape: tuple[int, int]
    action_width: int
    resize: int = 224
    mp4_roundtrip: bool = False
    video: bool = True
    full_trace: bool = False


class Stopwatch:
    """Adds up wall-clock time by name, milliseconds."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.total_ms: dict[str, float] = defaultdict(float)

    def measure(self, name: str, since: float) -> None:
        """Add the time since `since` (of time.perf_counter) under `name`."""
        self.total_ms[name] += (time.perf_counter() - since) * 1e3


def run_episode(
    env: SimEnv, policy: QueryPolicy, settings: EpisodeSettings, *, ep_id: int, out_dir: Path
) -> EpisodeRecord:
    """Run one episode to its end and write its actions, trace and video to `out_dir`.

    Returns:
        The record of a scored episode: outcome success or timeout.

    Raises:
        PolicyError: The policy failed; nothing of the episode is kept.
        SimError: The simulator failed; nothing of the episode is kept.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    partial_video = out_dir / f".rollout_{ep_id}.partial.mp4"
    video = VideoWriter(partial_video) if settings.video else None
    rollout = _Rollout(env, policy, settings, ep_id, video)
    try:
        rollout.run()
    except (PolicyError, SimError):
        if video is not None:
            video.close()
            partial_video.unlink(missing_ok=True)
        raise
    if video is not None:
        video.close()
        partial_video.replace(out_dir / f"rollout_{ep_id}_{rollout.label}.mp4")
    return rollout.finish(out_dir)


class _Rollout:
    """The state of one running episode."""

    def __init__(
        self,
        env: SimEnv,
        policy: QueryPolicy,
        settings: EpisodeSettings,
        ep_id: int,
        video: VideoWriter | None,
    ) -> None:
        self._env = env
        self._policy = policy
        self._settings = settings
        self._ep_id = ep_id
        self._video = video
        self._trace = TraceRecorder(full=settings.full_trace)
        self._player = ChunkPlayer(settings.replan_steps)
        self._clock = Stopwatch()
        self._server_ms: dict[str, list[float]] = defaultdict(list)
        self._warnings: list[str] = []
        self._stages: dict[str, bool] = {}
        self._sum_reward = 0.0
        self._success = False
        self._prompt = ""
        self._scene: dict[str, Any] = {}
        self._steps = 0

    @property
    def label(self) -> str:
        """How file names call the outcome."""
        return "success" if self._success else "failure"

    def run(self) -> None:
        """Play the episode to success or max_steps."""
        start = time.perf_counter()
        self._env.reset(self._ep_id)
        self._clock.measure("reset", start)
        self._scene = self._env.scene()
        self._trace.add_physics(self._env.physics_state())
        while self._steps < self._env.max_steps and not self._success:
            self._film()
            if self._player.needs_query:
                self._query()
            self._step()
        self._film(last=True)
        self._clock.measure("episode", start)

    def _query(self) -> None:
        """Ask the policy for a chunk, with the noise that this query of this episode has."""
        start = time.perf_counter()
        observation = self._env.observe()
        self._clock.measure("observe", start)
        start = time.perf_counter()
        request: dict[str, Any] = {
            key: self._sent_image(frame) for key, frame in observation.images.items()
        }
        request[STATE_KEY] = np.asarray(observation.state, np.float32)
        request["prompt"] = self._prompt = observation.prompt
        query_idx = self._trace.n_queries
        noise = episode_noise(
            self._settings.action_seed, self._ep_id, query_idx, self._settings.noise_shape
        )
        query = {"ep_id": self._ep_id, "query_idx": query_idx}
        self._clock.measure("prepare", start)
        start = time.perf_counter()
        reply = self._policy.infer(request, noise=noise, query=query)
        self._clock.measure("query", start)
        if reply.actions.shape[1] != self._settings.action_width:
            raise PolicyError(
                f"the reply's actions have {reply.actions.shape[1]} numbers each, the robot takes "
                f"{self._settings.action_width}"
            )
        for name, value in reply.server_timing_ms.items():
            self._server_ms[name].append(value)
        self._warnings += [text for text in reply.warnings if text not in self._warnings]
        self._trace.add_query(
            self._steps,
            camera_frames=observation.images,
            request=request,
            state_key=STATE_KEY,
            noise=noise,
            chunk=reply.actions,
        )
        self._player.load(reply.actions)

    def _sent_image(self, frame: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "s s 3"]:
        """The image that the policy gets for a camera's frame."""
        if self._settings.mp4_roundtrip:
            frame = mp4.roundtrip(frame)
        return image_tools.resize_with_pad(frame, self._settings.resize, self._settings.resize)

    def _step(self) -> None:
        """Play one action."""
        start = time.perf_counter()
        action = self._player.next_action()
        self._trace.add_action(action)
        result = self._env.step(action)
        self._steps += 1
        self._trace.add_physics(self._env.physics_state())
        self._sum_reward += result.reward
        self._success = result.success
        for name, reached in self._env.stages().items():
            self._stages[name] = self._stages.get(name, False) or reached
        self._clock.measure("step", start)

    def _film(self, *, last: bool = False) -> None:
        """Add a frame to the video, every second step and once at the end."""
        if self._video is None or (self._steps % VIDEO_EVERY_STEPS and not last):
            return
        start = time.perf_counter()
        self._video.add(self._env.video_frame())
        self._clock.measure("video", start)

    def finish(self, out_dir: Path) -> EpisodeRecord:
        """Write actions and trace and return the record."""
        actions_path = out_dir / f"actions_{self._ep_id}_{self.label}.npy"
        trace_path = out_dir / f"trace_{self._ep_id}.npz"
        np.save(actions_path, self._trace.actions, allow_pickle=False)
        self._trace.save(trace_path)
        server = {f"server/{k}": sum(v) / len(v) for k, v in self._server_ms.items()}
        return EpisodeRecord(
            task=self._env.task,
            ep_id=self._ep_id,
            outcome="success" if self._success else "timeout",
            steps=self._steps,
            predict_calls=self._trace.n_queries,
            sum_reward=self._sum_reward,
            prompt=self._prompt,
            stages=self._stages,
            scene=self._scene,
            digests={
                "initial_physics": self._trace.physics_digest(0),
                "final_physics": self._trace.physics_digest(-1),
                "actions": array_digest(self._trace.actions).hex(),
                "trace": array_digest(np.frombuffer(trace_path.read_bytes(), np.uint8)).hex(),
            },
            warnings=tuple(self._warnings),
            timing_ms={**self._clock.total_ms, **server},
        )
