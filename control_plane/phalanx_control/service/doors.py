"""The listening ends: two gRPC servers and the page's HTTP server. Addresses are known before anything is served."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator

import grpc
import grpc.aio
import uvicorn
from starlette.types import ASGIApp

from phalanx.core.errors import InvalidSpecError
from phalanx_control.certificates import KeyPair
from phalanx_control.service.gate import Gate
from phalanx_control.service.limits import SERVER_OPTIONS
from phalanx_control.settings import Address

WEB_DRAIN_S = 1


class GrpcDoor:
    """One gRPC server, bound and not yet serving."""

    def __init__(self, at: Address, public_host: str, gate: Gate, credentials: grpc.ServerCredentials) -> None:
        self.server = grpc.aio.server(interceptors=[gate], options=SERVER_OPTIONS)
        try:
            port = self.server.add_secure_port(str(at), credentials)
        except RuntimeError as e:
            raise InvalidSpecError(f"cannot listen on {at}: {e}", hint="choose another port, or 0 for any") from e
        self.address = str(Address(public_host, port))


class WebDoor:
    """The page's HTTP server, bound and not yet serving."""

    def __init__(self, at: Address) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in at.host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((at.host, at.port))
        except OSError as e:
            self._socket.close()
            raise InvalidSpecError(f"cannot listen on {at}: {e}", hint="choose another port, or 0 for any") from e
        self.page = f"http://{Address(at.host, self._socket.getsockname()[1])}"
        self._server: _QuietServer | None = None

    async def serve(self, app: ASGIApp) -> None:
        """Serves until :meth:`close`."""
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=WEB_DRAIN_S,
            limit_concurrency=2000,
        )
        self._server = _QuietServer(config)
        await self._server.serve(sockets=[self._socket])

    def close(self) -> None:
        """Lets requests in progress finish, and no more."""
        if self._server is None:
            self._socket.close()
        else:
            self._server.should_exit = True


class _QuietServer(uvicorn.Server):
    """Leaves signals to the program."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def client_credentials(pair: KeyPair) -> grpc.ServerCredentials:
    """TLS for clients, who show bearer tokens."""
    return grpc.ssl_server_credentials([(pair.key_pem, pair.certificate_pem)])


def agent_credentials(pair: KeyPair, ca_pem: bytes) -> grpc.ServerCredentials:
    """Mutual TLS for agents."""
    return grpc.ssl_server_credentials(
        [(pair.key_pem, pair.certificate_pem)], root_certificates=ca_pem, require_client_auth=True
    )
