"""What a user types, from the demo to the mistakes."""

import hashlib
import json
from pathlib import Path

import av
import numpy as np
import pytest
from server_process import EVAL, SERVE, run_command

from sim_client import launch

DEMO_EPISODES = 4


def digests(folder: Path, pattern: str) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.glob(pattern)}


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    """`./eval.sh --demo`, with its files where the test can find them."""
    out = tmp_path_factory.mktemp("demo") / "out"
    done = run_command(EVAL, "--demo", "--args.log_dir", str(out), timeout_s=800.0)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done


def test_the_demo_writes_every_file_of_a_run(demo_run):
    out, _ = demo_run
    names = {str(path.relative_to(out)) for path in out.rglob("*.*")}
    records = [json.loads((out / f"episodes/Lift/{i}.json").read_text()) for i in range(4)]
    expected = {"run.json", "outcomes.json", "results.json", "server.log"}
    for ep_id, record in enumerate(records):
        label = "success" if record["outcome"] == "success" else "failure"
        expected |= {
            f"episodes/Lift/{ep_id}.json",
            f"trace_{ep_id}.npz",
            f"actions_{ep_id}_{label}.npy",
            f"rollout_{ep_id}_{label}.mp4",
        }
    assert names == expected


def test_the_demo_prints_a_table_the_digest_and_where_the_files_are(demo_run):
    out, done = demo_run
    results = json.loads((out / "results.json").read_text())
    assert results["overall"]["n"] == DEMO_EPISODES
    assert results["overall"]["errored"] == 0
    assert "interval" in done.stdout
    assert results["outcomes_sha256"] in done.stdout
    assert str(out / "results.json") in done.stdout
    assert done.stdout.count("Lift ep ") == DEMO_EPISODES


def test_every_demo_episode_is_scored_over_real_steps_and_queries(demo_run):
    out, _ = demo_run
    for ep_id in range(DEMO_EPISODES):
        record = json.loads((out / f"episodes/Lift/{ep_id}.json").read_text())
        with np.load(out / f"trace_{ep_id}.npz", allow_pickle=False) as trace:
            steps = len(trace["action"])
            assert trace["chunk"].shape == (record["predict_calls"], 50, 12)
            assert trace["physics_digest"].shape == (steps + 1, 32)
        assert record["outcome"] in ("success", "timeout")
        assert record["steps"] == steps
        assert record["predict_calls"] == -(-steps // 5)


def test_the_demos_video_shows_the_scene_moving(demo_run):
    out, _ = demo_run
    path = next(out.glob("rollout_0_*.mp4"))
    with av.open(str(path)) as container:
        frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    assert frames[0].shape == (256, 256, 3)
    assert np.std(frames[0]) > 10
    assert np.abs(frames[-1].astype(int) - frames[0].astype(int)).max() > 50


def test_run_json_says_what_the_numbers_depend_on(demo_run):
    out, _ = demo_run
    known = json.loads((out / "run.json").read_text())["provenance"]
    assert known["server"]["arm"] == "demo"
    assert known["server"]["norm_stats"]["mode"] == "zscore"
    assert len(known["server"]["checkpoint"]["digest"]) == 64
    assert known["server"]["determinism"]["deterministic"] is True
    assert known["client"]["simulator"]["gl_renderer"]
    assert known["protocol"]["replan_steps"] == 5


def test_the_demo_again_gives_the_same_bits(demo_run, tmp_path):
    out, _ = demo_run
    again = tmp_path / "again"
    done = run_command(
        EVAL, "--demo", "--args.num_trials", "2", "--args.log_dir", str(again), timeout_s=800.0
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for pattern in ("trace_*.npz", "actions_*.npy", "rollout_*.mp4"):
        first, second = digests(out, pattern), digests(again, pattern)
        assert len(second) == 2
        assert second.items() <= first.items()
    first_outcomes = json.loads((out / "outcomes.json").read_text())
    outcomes = json.loads((again / "outcomes.json").read_text())
    assert outcomes["episodes"] == first_outcomes["episodes"][:2]


def test_an_evaluation_against_a_running_server_continues_after_it_was_cut_short(
    demo_port, demo_run, tmp_path
):
    # --args.max-steps makes it short; the demo's server and this one are two starts of the same arm
    out = tmp_path / "out"
    words = (EVAL, "run", "--args.port", str(demo_port), "--args.env_names", "Lift",
             "--args.num_trials", "2", "--args.log_dir", str(out), "--args.max_steps", "10",
             "--args.allow-deviation", "--policy.arm", "demo")  # fmt: skip
    first = run_command(*words)
    assert first.returncode == 0, first.stderr
    before = (out / "outcomes.json").read_bytes()
    (out / "episodes/Lift/1.json").unlink()
    (out / "outcomes.json").unlink()

    again = run_command(*words, "--args.resume")
    assert again.returncode == 0, again.stderr
    assert (out / "outcomes.json").read_bytes() == before
    short, full = np.load(out / "trace_0.npz"), np.load(demo_run[0] / "trace_0.npz")
    np.testing.assert_array_equal(short["action"], full["action"][:10])
    np.testing.assert_array_equal(short["physics_digest"], full["physics_digest"][:11])


def one_sentence(done, *hints):
    """The exit code of an impossible request, and one line on stderr that holds the hints."""
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for hint in hints:
        assert hint in lines[0]


def test_an_unknown_task_names_the_nearest(demo_port):
    done = run_command(EVAL, "--args.port", str(demo_port), "--args.env_names", "Lif")
    one_sentence(done, "'Lif'", "'Lift'", "--args.env_names")


def test_a_server_of_another_arm_is_refused(demo_port):
    done = run_command(EVAL, "--args.port", str(demo_port), "--policy.arm", "base")
    one_sentence(done, "'demo'", "'base'", "--policy.arm")


def test_no_server_is_said_after_the_stated_time():
    port = str(launch.free_port())
    done = run_command(EVAL, "--args.port", port, "--args.connect-timeout-s", "1")
    one_sentence(done, "within 1 s", "./serve.sh", "--args.port")


def test_a_folder_of_another_run_is_refused(demo_port, demo_run):
    out = demo_run[0]
    before = digests(out, "**/*.json")
    done = run_command(EVAL, "--args.port", str(demo_port), "--args.log_dir", str(out))
    one_sentence(done, str(out), "--args.resume")
    assert digests(out, "**/*.json") == before


def test_another_replan_steps_than_the_arms_is_refused(demo_port):
    done = run_command(EVAL, "--args.port", str(demo_port), "--args.replan_steps", "10")
    one_sentence(done, "replan_steps 10 instead of 5", "--args.allow-deviation")


def test_an_unknown_arm_names_the_nearest():
    one_sentence(run_command(SERVE, "--policy.arm", "bas"), "'bas'", "'base'", "--policy.arm")


def test_a_missing_checkpoint_names_where_it_was_looked_for(tmp_path):
    done = run_command(
        SERVE, "--policy.arm", "demo", "--policy.checkpoints-root", str(tmp_path / "none")
    )
    one_sentence(done, str(tmp_path / "none"), "--policy.dir")


def test_a_wrong_tokenizer_path_is_named(checkpoints):
    done = run_command(
        SERVE, "--policy.arm", "demo", "--policy.checkpoints-root", str(checkpoints),
        "--policy.tokenizer", "/no/such/file.model",
    )  # fmt: skip
    one_sentence(done, "/no/such/file.model", "--policy.tokenizer")


def test_a_port_in_use_is_refused(demo_port, checkpoints):
    done = run_command(
        SERVE, "--policy.arm", "demo", "--policy.checkpoints-root", str(checkpoints),
        "--port", str(demo_port),
    )  # fmt: skip
    one_sentence(done, str(demo_port), "--port")


def test_a_real_arm_is_not_served_without_its_pins(checkpoints):
    done = run_command(SERVE, "--policy.arm", "base", "--policy.dir", str(checkpoints / "demo"))
    one_sentence(done, "norm_stats", "base")


def test_the_flag_of_the_lab_that_does_nothing_says_so(demo_port, tmp_path):
    done = run_command(
        EVAL, "--args.port", str(demo_port), "--args.start_episode_idx", "3",
        "--policy.arm", "base",
    )  # fmt: skip
    assert "--args.start_episode_idx does nothing" in done.stdout


def test_the_server_that_a_demo_started_is_gone(demo_run):
    out, _ = demo_run
    port = json.loads((out / "results.json").read_text())["config"]["port"]
    done = run_command(EVAL, "--args.port", str(port), "--args.connect-timeout-s", "0.1")
    one_sentence(done, "no policy server answered")
