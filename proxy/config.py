"""The configuration: frozen sections that forbid unknown keys. `proxy.config_load` reads them from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from proxy.config_backends import BackendSection as BackendSection
from proxy.config_backends import EmbeddedBackend as EmbeddedBackend
from proxy.config_backends import OpenAIBackend as OpenAIBackend
from proxy.config_backends import VllmBackend as VllmBackend
from proxy.config_base import MIB, Name, Seconds, Secret, Section, Tokens, no_flag
from proxy.config_base import ConfigError as ConfigError
from proxy.config_base import Network as Network
from proxy.config_base import Strategy as Strategy


class Tls(Section):
    cert: Path
    key: Path


class Server(Section):
    """The listener that clients speak to."""

    host: str = "127.0.0.1"
    port: int = Field(8787, ge=0, le=65535)
    workers: int = Field(1, ge=1, le=256)
    max_body_bytes: int = Field(64 * MIB, ge=1024)
    body_idle_s: Seconds = 30.0
    drain_s: float = Field(30.0, ge=0)
    tls: Tls | None = None
    trusted_proxies: tuple[Network, ...] = ()
    passthrough_backend: str = "auto"
    passthrough_paths: tuple[str, ...] = ("GET /v1/models/*",)
    keepalive_comment_s: Seconds | None = None


class Admin(Section):
    """The listener for operators: metrics now."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = Field(9787, ge=0, le=65535)
    token: Secret | None = None


class FuseOverride(Section):
    """What a model, a route or a caller sets for itself; what it leaves out comes from `[fuse]`."""

    max_context_tokens: Tokens | None = None
    mode: Literal["enforce", "observe"] | None = None


class FuseAllow(Section):
    callers: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()


class Fuse(Section):
    max_context_tokens: Tokens | None = None
    mode: Literal["enforce", "observe"] = "enforce"
    allow: FuseAllow = FuseAllow()
    routes: dict[str, FuseOverride] = Field(default_factory=dict)


class Cap(Section):
    """Limits on the completion. None: nothing of the kind (as an override: as in `[cap]`)."""

    default_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    min_tokens: Tokens | None = None
    reasoning_default_tokens: Tokens | None = None
    reasoning_max_tokens: Tokens | None = None
    reasoning_min_tokens: Tokens | None = None

    def over(self, base: Cap) -> Cap:
        """This section's own values, the rest from `base`."""
        return base.model_copy(update=self.model_dump(exclude_none=True))


class Summary(Section):
    """Who writes summaries of what the cut drops, how long they are, and when they are started."""

    model: Name | None = None
    max_tokens: Tokens = 400
    start_at: float = Field(0.75, ge=0.1, le=1.0)


class Squeeze(Section):
    """What is said shorter wherever it stands, from the first time it is seen. All of it is off unless set."""

    system_repeats: bool = False
    tool_output_tokens: Annotated[int, BeforeValidator(no_flag), Field(ge=64)] | None = None
    base64: bool = False

    @property
    def any(self) -> bool:
        return self.system_repeats or self.base64 or self.tool_output_tokens is not None


Ends: TypeAlias = Literal["head", "tail"]


class ContextOverride(Section):
    strategy: Strategy | None = None
    budget_tokens: Tokens | None = None
    reserve_tokens: Annotated[int, Field(ge=0)] | None = None
    low_water: Annotated[float, Field(ge=0.05, le=0.95)] | None = None
    overflow_status: Literal[400, 413, 422] | None = None
    completions_keep: Ends | None = None
    shorten_messages: bool | None = None
    squeeze: Squeeze | None = None
    summary: Summary | None = None
    prewarm: bool | None = None


class Context(Section):
    """How much of a conversation is sent on. The budget, if not given, is the window less the reserve."""

    strategy: Strategy = "keep"
    budget_tokens: Tokens | None = None
    reserve_tokens: int | None = Field(None, ge=0)
    low_water: float = Field(0.5, ge=0.05, le=0.95)
    overflow_status: Literal[400, 413, 422] = 400
    completions_keep: Ends = "tail"
    shorten_messages: bool = False
    squeeze: Squeeze = Squeeze()
    summary: Summary = Summary()
    prewarm: bool = False

    def overridden(self, own: ContextOverride | None) -> Context:
        if own is None:
            return self
        given = {key: getattr(own, key) for key in own.model_fields_set}
        return self.model_copy(update={key: value for key, value in given.items() if value is not None})

    def budget(self, window: int | None) -> int | None:
        """Prompt tokens to stay within. None: no window is known and no budget set, so nothing to fit."""
        if self.budget_tokens is not None:
            return self.budget_tokens if window is None else min(self.budget_tokens, window)
        if window is None:
            return None
        reserve = self.reserve_tokens if self.reserve_tokens is not None else min(4096, window // 4)
        return max(1, window - reserve)


class Caller(Section):
    name: Name
    key: Secret
    models: tuple[str, ...] = ("*",)
    may_choose_context: bool = False
    fuse: FuseOverride | None = None
    cap: Cap | None = None


class TargetSection(Section):
    backend: str
    model: Name | None = None
    weight: float = Field(1.0, gt=0)


class ChatTemplate(Section):
    """How the server of a model with a chat template was started, where that changes the count."""

    file: Path | None = None
    server: Literal["vllm", "llama.cpp"] = "vllm"
    content_format: Literal["auto", "string", "openai"] = "auto"
    kwargs: dict[str, Any] = Field(default_factory=dict)
    exclude_tools_when_tool_choice_none: bool = False


class Model(Section):
    """What clients ask for (`*` stands for anything), and where it is served."""

    name: Name
    targets: tuple[TargetSection, ...] = Field(min_length=1)
    fallbacks: tuple[Name, ...] = ()
    tokenizer: str = "auto"
    chat_template: ChatTemplate = ChatTemplate()
    window: Literal["auto"] | Tokens = "auto"
    context: ContextOverride | None = None
    cap: Cap | None = None
    fuse: FuseOverride | None = None

    @property
    def tokenizer_files(self) -> Path | None:
        """The model's own files, when `tokenizer` is a path: it has a slash, or is there."""
        if self.tokenizer == "auto" or ("/" not in self.tokenizer and not Path(self.tokenizer).exists()):
            return None
        return Path(self.tokenizer)


class Telemetry(Section):
    client_ip: Literal["off", "truncated", "full"] = "off"
    max_client_ips: int = Field(1000, ge=1)
    max_models: int = Field(200, ge=1)


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


class Config(Section):
    server: Server = Server()
    admin: Admin = Admin()
    callers: tuple[Caller, ...] = ()
    backends: tuple[BackendSection, ...] = ()
    models: tuple[Model, ...] = ()
    context: Context = Context()
    cap: Cap = Cap()
    fuse: Fuse = Fuse()
    telemetry: Telemetry = Telemetry()
    log: Log = Log()
    not_served: dict[str, str] = Field(default_factory=dict)
    """Names that no pattern takes, with what the client is told."""

    def backend(self, name: str) -> OpenAIBackend | EmbeddedBackend | VllmBackend | None:
        return next((backend for backend in self.backends if backend.name == name), None)

    def passthrough(self) -> str | None:
        """The backend that takes every path we do not know; `auto`: the first of kind openai, else of kind vllm."""
        if self.server.passthrough_backend == "none":
            return None
        if self.server.passthrough_backend != "auto":
            return self.server.passthrough_backend
        kinds = ("openai", "vllm")
        fitting = [backend for backend in self.backends if backend.kind in kinds]
        return min(fitting, key=lambda backend: kinds.index(backend.kind)).name if fitting else None
