"""A server with a certificate and a key, as the scripts start and reach it."""

import shutil
import subprocess

import pytest
from server_process import EVAL, demo_server, run_command

KEY = "a-key-for-this-test"
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@pytest.fixture(scope="module")
def guarded(checkpoints, tmp_path_factory):
    """Port of a server with TLS and a key, its certificate and the file of its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, private, key_file = folder / "cert.pem", folder / "key.pem", folder / "key"
    key_file.write_text(KEY)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(private), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    flags = ("--api-key-file", key_file, "--tls-cert", certificate, "--tls-key", private)
    with demo_server(checkpoints, folder / "log", *map(str, flags)) as port:
        yield port, certificate, key_file


def evaluate(port, key_file, out, *, trusted):
    command = (
        "env", f"SSL_CERT_FILE={trusted}", EVAL, "--args.host", "wss://127.0.0.1",
        "--args.port", str(port), "--args.api-key-file", str(key_file), "--args.num_trials", "1",
        "--args.max_steps", "5", "--args.allow-deviation", "--args.log_dir", str(out),
        "--args.connect-timeout-s", "2",
    )  # fmt: skip
    return run_command(*command)


def test_an_evaluation_over_tls_with_the_key_runs(guarded, tmp_path):
    port, certificate, key_file = guarded
    done = evaluate(port, key_file, tmp_path / "out", trusted=certificate)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "outcomes.json").exists()


def test_a_certificate_that_nobody_vouches_for_is_refused(guarded, tmp_path):
    port, _, key_file = guarded
    done = evaluate(port, key_file, tmp_path / "out", trusted="/dev/null")
    assert done.returncode == 2
    assert "certificate verify failed" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
