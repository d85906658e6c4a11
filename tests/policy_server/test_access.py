"""Who may use a server: keys, addresses, TLS; asked by openpi's unchanged client."""

import http.client
import logging
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import websockets.sync.client
from policy_serving import JOIN_TIMEOUT_S, get, serving, stock_client
from websockets.exceptions import InvalidStatus

from policy_server.access import (
    check_exposure,
    is_authorized,
    load_tls,
    read_api_key,
)
from policy_server.errors import ConfigError
from policy_server.protocol import Inference, NoiseSpec
from policy_server.server import bind

SPEC = NoiseSpec(shape=(4, 3), required=False, seed=7)
METADATA = {"arm": "mine"}
KEY = "s3cret"


def infer(observation, noise):
    return Inference(noise[:, :2] + 1.0, (), 1.0, 2.0)


@pytest.fixture(scope="module")
def port():
    with serving(infer, METADATA, SPEC, api_key=KEY) as port:
        yield port


def status(port: int, path: str, *authorizations: bytes) -> int:
    """The status of a plain request; urllib would not send such headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=JOIN_TIMEOUT_S)
    connection.putrequest("GET", path)
    for authorization in authorizations:
        connection.putheader("Authorization", authorization)
    connection.endheaders()
    with connection.getresponse() as answer:
        return answer.status


def test_the_stock_clients_api_key_opens_the_server(port):
    with stock_client(port, api_key=KEY) as client:
        assert client.get_server_metadata() == METADATA
        assert client.infer({"prompt": "lift"})["actions"].shape == (4, 2)


@pytest.mark.parametrize("wrong", [None, "", "s3cre", "s3cret2", "S3CRET"])
def test_a_stock_client_without_the_key_is_refused_before_the_websocket(port, wrong):
    with pytest.raises(InvalidStatus) as refused, stock_client(port, api_key=wrong):
        pass
    answer = refused.value.response
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Api-Key")
    assert b"Authorization: Api-Key KEY" in (answer.body or b"")


@pytest.mark.parametrize(
    "headers",
    [
        (b"Bearer s3cret",),
        (b"s3cret",),
        (b"Api-Key",),
        (b"Api-Key s3cr\xe9t",),
        (b"Api-Key s3cret", b"Api-Key s3cret"),
    ],
)
def test_other_authorizations_are_refused_and_the_server_lives_on(port, headers):
    assert status(port, "/metrics", *headers) == 401
    assert status(port, "/metrics", b"Api-Key s3cret") == 200


def test_health_and_readiness_need_no_key_and_metrics_do(port):
    assert [status(port, path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 401]
    assert "policy_connections" in get(port, "/metrics", Authorization=f"Api-Key {KEY}")[2]


def test_a_refused_client_is_one_line_without_its_key(caplog):
    caplog.set_level(logging.INFO)
    with serving(infer, METADATA, SPEC, api_key=KEY) as port:
        assert status(port, "/", b"Api-Key guess") == 401
    (line,) = (r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)
    assert line == "127.0.0.1 refused: no valid API key"
    assert "guess" not in caplog.text


def test_a_server_without_a_key_takes_a_client_with_one():
    assert is_authorized("Api-Key anything", None)
    assert is_authorized(None, None)


def test_the_file_goes_before_the_environment(tmp_path):
    path = tmp_path / "key"
    path.write_text("from-file\n")
    assert read_api_key(path, {"PI05_API_KEY": "other"}) == "from-file"
    assert read_api_key(None, {"PI05_API_KEY": "other"}) == "other"
    assert read_api_key(None, {}) is None


@pytest.mark.parametrize("text", ["", "\n", "two words", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused(tmp_path, text):
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"the API key of --api-key-file .*key is empty or"):
        read_api_key(path, {})
    with pytest.raises(ConfigError, match=r"the API key of \$PI05_API_KEY is empty or"):
        read_api_key(None, {"PI05_API_KEY": text})


def test_a_missing_key_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--api-key-file .*absent cannot be read"):
        read_api_key(tmp_path / "absent", {})


def test_other_machines_are_let_in_with_a_key_or_by_the_users_word_only():
    with bind("0.0.0.0", 0) as listener:
        with pytest.raises(ConfigError, match=r"--api-key-file .*--insecure"):
            check_exposure(listener, api_key=None, insecure=False, tls=True)
        open_to_all = check_exposure(listener, api_key=None, insecure=True, tls=True)
        in_the_clear = check_exposure(listener, api_key=KEY, insecure=False, tls=False)
        assert "everyone" in str(open_to_all)
        assert "in the clear" in str(in_the_clear)
        assert check_exposure(listener, api_key=KEY, insecure=False, tls=True) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.9"])
def test_this_machine_needs_no_key(host):
    with bind(host, 0) as listener:
        assert check_exposure(listener, api_key=None, insecure=False, tls=False) is None


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_with_a_certificate_the_websocket_is_encrypted(certificate):
    cert, key = certificate
    with (
        serving(infer, METADATA, SPEC, api_key=KEY, tls=load_tls(cert, key)) as port,
        websockets.sync.client.connect(
            f"wss://127.0.0.1:{port}",
            ssl=ssl.create_default_context(cafile=cert),
            additional_headers={"Authorization": f"Api-Key {KEY}"},
        ) as client,
    ):
        assert b"mine" in client.recv(decode=False)
        with pytest.raises(ConnectionError):  # in the clear the port gives no answer
            status(port, "/healthz")


def test_a_certificate_without_its_key_is_refused(certificate, tmp_path):
    cert, key = certificate
    with pytest.raises(ConfigError, match="given together"):
        load_tls(cert, None)
    with pytest.raises(ConfigError, match="given together"):
        load_tls(None, key)
    with pytest.raises(ConfigError, match="no certificate with its private key"):
        load_tls(key, cert)
    with pytest.raises(ConfigError, match="absent"):
        load_tls(cert, tmp_path / "absent")


def test_an_encrypted_key_is_refused_instead_of_asked_for(certificate, tmp_path):
    cert, key = certificate
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-passout", "pass:x1y2", "-in", key, "-out", locked],
        check=True,
        capture_output=True,
    )
    with pytest.raises(ConfigError, match="the private key is encrypted"):
        load_tls(cert, locked)


def test_without_files_there_is_no_tls():
    assert load_tls(None, None) is None
