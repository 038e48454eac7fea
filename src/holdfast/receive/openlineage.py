"""Receives OpenLineage events over HTTP, and answers once they are in the quiver.

A producer that sent to a backend until now should need a new address and nothing else. So the paths
of other backends mean the same here, and a gateway can take the place of any of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, Self

from pydantic import field_validator, model_validator

from holdfast.receive.admission import Tokens, TokenSettings, check_protected, token_settings
from holdfast.receive.body import RequestLimits
from holdfast.receive.http_server import HttpServer
from holdfast.receive.listening import AddressText, ListenerTls
from holdfast.receive.openlineage_endpoints import openlineage_app
from holdfast.receive.receiver import Receiver, ReceiverContext, ReceiverStatistics
from holdfast.receive.server_state import ConnectionSettings
from holdfast.settings import LocalPath, Settings
from holdfast.signals.openlineage.validation import ValidationSettings
from holdfast.signals.registry import OPENLINEAGE

__all__ = ["Config", "OpenLineageReceiver", "make", "produces"]

DEFAULT_PATH = "/api/v1/lineage"
# Where clients send that are configured for DataHub, OpenMetadata or Gravitino.
BACKEND_PATHS = (
    "/openapi/openlineage/api/v1/lineage",
    "/api/v1/openlineage/lineage",
    "/api/lineage",
)


class Config(Settings):
    """An OpenLineage receiver."""

    listen: AddressText = "127.0.0.1:5000"
    """Host and port; port 0 takes any that is free. Elsewhere than on this machine's own
    addresses, `tokens`, `token_file` or client certificates are asked for."""
    path: str = DEFAULT_PATH
    """Where events are sent; batches go to `PATH/batch`, dry runs to `PATH/validate`."""
    aliases: tuple[str, ...] = BACKEND_PATHS
    """Other paths that mean the same; by default those of DataHub, OpenMetadata and Gravitino."""
    prefixes: tuple[str, ...] = ()
    """Prefixes under which all these paths exist too, such as `/lineage-gateway`."""
    level: Literal["memory", "written", "fsynced"] = "fsynced"
    """What 200 promises: the event is in memory (a crash loses it), with the operating system
    (a power cut may lose it), or on stable storage."""
    validation: ValidationSettings = ValidationSettings()
    """How closely events are checked."""
    tokens: tuple[TokenSettings, ...] = ()
    """Producers that may send; with none (and no `token_file`) anybody may."""
    token_file: LocalPath | None = None
    """A file with more of them, `NAME TOKEN [NAMESPACE …]` in each line."""
    tls: ListenerTls | None = None
    """Speak HTTPS."""
    allow_anonymous: bool = False
    """Listen for other machines though anybody may send. Whoever reaches the port can then fill
    the buffer."""
    limits: RequestLimits = RequestLimits()
    """Bounds of requests."""
    connections: ConnectionSettings = ConnectionSettings()
    """Bounds of connections."""

    @field_validator("path", "aliases", "prefixes")
    @classmethod
    def _is_path(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for path in [value] if isinstance(value, str) else value:
            if not path.startswith("/") or path.endswith("/") or "?" in path:
                raise ValueError(f"{path!r} is not a path; begin with '/', and end without")
        return value

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        check_protected(self, {"listen": self.listen})
        return self

    @property
    def all_paths(self) -> list[str]:
        """Every path for single events, the first being the proper one."""
        paths = [self.path, *self.aliases]
        return list(
            dict.fromkeys([*paths, *(fix + path for fix in self.prefixes for path in paths)])
        )


class OpenLineageReceiver:
    """The app on its port."""

    def __init__(self, config: Config, context: ReceiverContext) -> None:
        self._config = config
        self._context = context
        tokens = token_settings(config, context.base_dir)
        self.app = openlineage_app(
            context,
            paths=config.all_paths,
            level=config.level,
            limits=config.limits,
            tokens=tokens,
            validation=config.validation,
        )
        self.server = HttpServer(
            self.app,
            config.listen,
            config.tls,
            config.connections,
            fast_path=self.app,
            base_dir=context.base_dir,
            reuse_port=context.reuse_port,
        )

    @property
    def addresses(self) -> list[str]:
        return self.server.addresses

    async def start(self) -> None:
        await self.server.start()

    async def stop(self, drain_s: float) -> None:
        self.app.refuse_from_now_on()
        await self.server.stop(drain_s)
        await self.app.close()

    def reload(self, config: Config) -> bool:
        """Take new tokens while listening; False if anything else differs, which needs a start.

        Tokens change every few weeks and must not cost a connection. Everything else is decided
        when a port is opened, and seldom changes.
        """
        tokens = {"tokens": config.tokens, "token_file": config.token_file}
        if config != self._config.model_copy(update=tokens):
            return False
        settings = token_settings(config, self._context.base_dir)
        self.app.use_tokens(Tokens(settings, self._context.seam))
        self._config = config
        return True

    def statistics(self) -> ReceiverStatistics:
        """Return the app's figures, with those of connections whose requests it never saw."""
        seen = self.app.statistics()
        unseen = self.server.counts.rejected
        rejected = Counter(seen.rejected) + unseen
        return seen._replace(
            received=seen.received + unseen.total(),
            rejected={str(reason): count for reason, count in rejected.items()},
            connections=self.server.connections,
        )


def produces(config: Config) -> tuple[str, ...]:
    """Return the signals of what it accepts."""
    return (OPENLINEAGE.name,)


def make(config: Config, context: ReceiverContext) -> Receiver:
    """Make the receiver of a node."""
    return OpenLineageReceiver(config, context)
