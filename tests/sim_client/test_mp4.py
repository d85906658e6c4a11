import hashlib
import subprocess
import sys

import client_fakes as fakes
import numpy as np

from sim_client import mp4
from sim_client.episode import EpisodeSettings, run_episode
from sim_client.remote_policy import PolicyReply

# Measured with the pinned PyAV 18.1.0 on x86-64; another PyAV brings another encoder.
DIGEST = "03c3d7d5dc244779e592ff507f496232266fcdb39abe304d53a6895bccda19d1"

SCRIPT = """
import sys; sys.path.insert(0, {folder!r})
import hashlib, test_mp4
from sim_client import mp4
print(hashlib.sha256(mp4.roundtrip(test_mp4.frame(0)).tobytes()).hexdigest())
"""


def frame(seed: int) -> np.ndarray:
    """A picture with edges, ramps and a little noise, as cameras have them."""
    rows, columns = np.mgrid[0:256, 0:256]
    image = np.stack([rows, columns, (rows + columns) // 2], axis=-1)
    image[64:128, 64:192] = (200, 30, 40)
    noise = np.random.default_rng(seed).integers(-8, 9, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def test_the_decoded_frame_has_the_committed_digest():
    assert hashlib.sha256(mp4.roundtrip(frame(0)).tobytes()).hexdigest() == DIGEST


def test_another_process_decodes_the_same_frame():
    script = SCRIPT.format(folder=str(__file__).rpartition("/")[0])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == DIGEST


def test_a_frame_does_not_know_its_neighbours():
    alone = mp4.roundtrip(frame(0))
    mp4.roundtrip(frame(1))
    np.testing.assert_array_equal(mp4.roundtrip(frame(0)), alone)


def test_the_codec_changes_the_picture_a_little_and_not_its_shape():
    before, after = frame(0), mp4.roundtrip(frame(0))
    error = np.abs(before.astype(int) - after.astype(int))
    assert after.shape == before.shape
    assert after.dtype == np.uint8
    assert 0.5 < error.mean() < 8


def test_an_episode_sends_what_the_codec_left_and_traces_what_the_camera_saw(tmp_path):
    sent = []

    class Policy:
        def infer(self, request, *, noise, query):
            sent.append(request["observation/image"])
            return PolicyReply(noise[:, :2].astype(np.float64), {}, ())

    class Env(fakes.PointEnv):
        def observe(self):
            seen = super().observe()
            return type(seen)({"observation/image": frame(3)[:224, :224]}, seen.state, seen.prompt)

    for on in (False, True):
        settings = EpisodeSettings(
            replan_steps=5, action_seed=0, noise_shape=(8, 4), action_width=2,
            mp4_roundtrip=on, video=False,
        )  # fmt: skip
        out = tmp_path / str(on)
        run_episode(Env(max_steps=5), Policy(), settings, ep_id=0, out_dir=out)

    np.testing.assert_array_equal(sent[0], frame(3)[:224, :224])
    np.testing.assert_array_equal(sent[1], mp4.roundtrip(frame(3)[:224, :224].copy()))
    raw, coded = (np.load(tmp_path / name / "trace_0.npz") for name in ("False", "True"))
    camera, image = "camera_digest/observation/image", "image_digest/observation/image"
    np.testing.assert_array_equal(raw[camera], coded[camera])
    assert (raw[image] != coded[image]).any()
