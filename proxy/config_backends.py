"""The kinds of `[[backends]]`: where requests go, and the engines that chatfuse runs itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from proxy.config_base import EnvironmentValue, Name, Seconds, Secret, Section, Tokens, no_flag

OPENAI_BASE_URL = "https://api.openai.com/v1"


class _BackendSection(Section):
    name: Name
    connect_s: Seconds = 10.0
    ttft_s: Seconds | None = 600.0
    idle_s: Seconds | None = 300.0
    total_s: Seconds | None = None


class OpenAIBackend(_BackendSection):
    kind: Literal["openai"]
    base_url: str = Field(OPENAI_BASE_URL, pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")
    auth: Literal["client", "config", "none"] = "client"
    api_key: Secret | None = None
    ask_usage: Literal["auto", "on", "off"] = "auto"
    keepalive_s: Seconds | None = None

    @property
    def is_openai(self) -> bool:
        """OpenAI's own API, which tells neither windows nor counts."""
        return self.base_url.rstrip("/") == OPENAI_BASE_URL

    @model_validator(mode="after")
    def _key_fits_auth(self) -> OpenAIBackend:
        if self.auth == "config" and self.api_key is None:
            raise ValueError('auth = "config" needs api_key')
        if self.auth != "config" and self.api_key is not None:
            raise ValueError(f'api_key is set, but auth = "{self.auth}" would never use it')
        return self


class EmbeddedBackend(_BackendSection):
    """A small model run by llama.cpp in a child process. One such backend at most."""

    kind: Literal["embedded"]
    weights: Path | None = None
    window_tokens: int = Field(4096, ge=256)
    slots: int = Field(4, ge=1, le=64)
    threads: int | None = Field(None, ge=1)


Count: TypeAlias = Annotated[int, BeforeValidator(no_flag), Field(ge=1)]


class Speculative(Section):
    """Guesses that the model then checks: by what stands in the prompt already, or by a smaller model."""

    method: Name
    num_tokens: Count
    model: str | None = None
    prompt_lookup_max: Count | None = None
    prompt_lookup_min: Count | None = None
    draft_tensor_parallel_size: Count | None = None
    max_model_len: Tokens | None = None
    quantization: str | None = None

    @model_validator(mode="after")
    def _draft_has_a_model(self) -> Speculative:
        if self.method == "draft_model" and self.model is None:
            raise ValueError('method = "draft_model" needs the model that drafts')
        return self


class VllmEngine(Section):
    """What a vLLM engine is started with, by vLLM's own names. None: vLLM's default."""

    model: str | None = Field(None, min_length=1)
    served_model_name: tuple[Name, ...] | None = Field(None, min_length=1)
    revision: str | None = None
    tokenizer: str | None = None
    trust_remote_code: bool | None = None
    chat_template: Path | None = None
    dtype: str | None = None
    quantization: str | None = None
    load_format: str | None = None
    model_loader_extra_config: dict[str, Any] | None = None
    max_model_len: Tokens | None = None
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    kv_cache_dtype: str | None = None
    block_size: Count | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    tensor_parallel_size: Count | None = None
    pipeline_parallel_size: Count | None = None
    data_parallel_size: Count | None = None
    distributed_executor_backend: Literal["mp", "ray", "uni"] | None = None
    enforce_eager: bool | None = None
    cudagraph_capture_sizes: tuple[Count, ...] | None = Field(None, min_length=1)
    optimization_level: int | None = Field(None, ge=0, le=3)
    compilation_config: dict[str, Any] | None = None
    speculative: Speculative | None = None
    enable_sleep_mode: bool | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    lora_modules: dict[str, str] | None = None
    max_loras: Count | None = None
    max_lora_rank: Count | None = None


class VllmStart(Section):
    """How chatfuse starts the engine, and what it does beside it."""

    command: tuple[str, ...] = ()
    extra_args: tuple[str, ...] = ()
    env: dict[str, EnvironmentValue] = Field(default_factory=dict)
    cache_dir: Path | None = None
    port: int | None = Field(None, ge=1, le=65535)
    preload: bool = True
    warm_prompts: tuple[str, ...] = ()
    start_timeout_s: Seconds = 1800.0
    stop_grace_s: float = Field(30.0, ge=0)


class VllmBackend(_BackendSection, VllmEngine, VllmStart):
    """A vLLM: an engine that chatfuse runs beside itself, or with `base_url` one that runs already."""

    kind: Literal["vllm"]
    base_url: str | None = Field(None, pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")
    auth: Literal["client", "config", "none"] = "none"
    api_key: Secret | None = None
    ask_usage: Literal["auto", "on", "off"] = "auto"
    keepalive_s: Seconds | None = None

    @property
    def is_ours(self) -> bool:
        """Whether chatfuse starts it."""
        return self.base_url is None

    @property
    def engine_flags(self) -> dict[str, Any]:
        """What the file sets of the engine's own options."""
        given = self.model_dump(include=set(VllmEngine.model_fields), exclude_none=True)
        return {key: value for key, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _started_or_joined(self) -> VllmBackend:
        if self.base_url is None:
            if self.model is None:
                raise ValueError("needs model, to start an engine, or base_url, to join one that runs")
            for key in ("auth", "api_key", "keepalive_s"):
                if key in self.model_fields_set:
                    raise ValueError(
                        f"{key} is of use with base_url only: an engine of ours has a key of its own"
                    )
            return self
        engine = {*VllmEngine.model_fields, *VllmStart.model_fields} & self.model_fields_set
        if engine:
            raise ValueError(
                f"base_url joins a vLLM that runs: {', '.join(sorted(engine))} can be set only where it is started"
            )
        if (self.auth == "config") != (self.api_key is not None):
            raise ValueError('auth = "config" and api_key go together')
        return self


BackendSection: TypeAlias = Annotated[
    OpenAIBackend | EmbeddedBackend | VllmBackend, Field(discriminator="kind")
]
