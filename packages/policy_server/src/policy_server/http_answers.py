"""What the port answers to plain HTTP, and the key that stands before everything but health."""

import logging
from collections.abc import Callable
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from policy_server.access import AUTHORIZATION_SCHEME, is_authorized
from policy_server.metrics import Metrics

logger = logging.getLogger(__name__)

NEEDS_KEY = (
    "this server needs its API key in the header `Authorization: Api-Key KEY`; "
    "openpi's client sends it as api_key.\n"
)


class HttpAnswers:
    """Answers `/healthz`, `/readyz` and `/metrics`; lets everything else become a websocket."""

    def __init__(
        self, metrics: Metrics, *, api_key: str | None, is_stopping: Callable[[], bool]
    ) -> None:
        """Keep what the answers depend on.

        Args:
            metrics: What `/metrics` shows.
            api_key: Demanded of everything but `/healthz` and `/readyz`; None demands nothing.
            is_stopping: Whether the server takes no more queries.
        """
        self._metrics = metrics
        self._api_key = api_key
        self._is_stopping = is_stopping

    def __call__(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer one HTTP request; None lets the websocket's handshake go on."""
        if request.path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        if request.path == "/readyz":
            # the port opens when a query can be answered, so only the end is a time of not ready
            if self._is_stopping():
                return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "stopping\n")
            return connection.respond(HTTPStatus.OK, "ready\n")
        if not self._is_authorized(request):
            return self._refuse(connection)
        if request.path == "/metrics":
            page = connection.respond(HTTPStatus.OK, self._metrics.text().decode())
            del page.headers["Content-Type"]
            page.headers["Content-Type"] = self._metrics.content_type
            return page
        return None

    def _is_authorized(self, request: Request) -> bool:
        sent = request.headers.get_all("Authorization")
        return is_authorized(sent[0] if len(sent) == 1 else None, self._api_key)

    def _refuse(self, connection: ServerConnection) -> Response:
        self._metrics.unauthorized.inc()
        logger.warning("%s refused: no valid API key", connection.remote_address[0])
        refusal = connection.respond(HTTPStatus.UNAUTHORIZED, NEEDS_KEY)
        refusal.headers["WWW-Authenticate"] = AUTHORIZATION_SCHEME
        return refusal
