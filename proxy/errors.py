"""Every way in which the proxy itself refuses a request: status, type and code in one place. Pure.

The shape is OpenAI's (`{"error": {"message", "type", "param", "code"}}`) where a dialect has none of its own, so
that SDKs map it to their own exception classes. Messages hold numbers, names and places, never message text or keys.
"""

from __future__ import annotations

from typing import ClassVar

import orjson


class ProxyError(Exception):
    """The base: an answer that ends the request. Never used by itself."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"
    code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.http_status = status if status is not None else self.status
        self.error_code = code if code is not None else self.code
        self.retry_after_s = retry_after_s

    def body(self, prompt_field: str = "messages") -> bytes:
        """In OpenAI's shape. `prompt_field` is where the request had its prompt."""
        return error_body(self.message, self.type, self.param, self.error_code)


def error_body(message: str, type_: str, param: str | None, code: str | None) -> bytes:
    """An error object as OpenAI's API gives it."""
    return orjson.dumps({"error": {"message": message, "type": type_, "param": param, "code": code}})


class InvalidRequest(ProxyError):
    """A body that is not what the endpoint takes; the message names the place."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class InvalidJson(InvalidRequest):
    code = "invalid_json"


class UnsupportedEncoding(InvalidRequest):
    status = 415


class TooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"


class InvalidApiKey(ProxyError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class NotAllowed(ProxyError):
    """The caller is known, and may not do this."""

    status = 403
    type = "permission_error"
    code = "model_not_allowed"


class ModelNotFound(ProxyError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class NotFound(ProxyError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ContextExceeded(ProxyError):
    """The prompt is too long. The base of the two below: they differ in who set the limit."""

    type = "invalid_request_error"
    code = "context_length_exceeded"

    def __init__(
        self,
        *,
        tokens: int,
        complete: bool,
        limit: int,
        what: str,
        status: int | None = None,
        advice: str = "",
    ) -> None:
        at_least = "" if complete else "at least "
        # The words that clients look for before they compact their history: OpenAI's and vLLM's
        # "maximum context length", Anthropic's "prompt is too long" and "input length and ...".
        super().__init__(
            f"This model's maximum context length is {limit} tokens ({what}). However, your messages "
            f"resulted in {at_least}{tokens} tokens: prompt is too long: {at_least}{tokens} tokens > {limit} "
            f"maximum; input length and `max_tokens` exceed context limit.{' ' + advice if advice else ''}",
            status=status,
        )
        self.tokens = tokens
        self.limit = limit

    def body(self, prompt_field: str = "messages") -> bytes:
        return error_body(self.message, self.type, prompt_field, self.error_code)


class FuseTripped(ContextExceeded):
    """Over the fuse's threshold: refused before anything else is spent on it."""

    status = 422


class Overflow(ContextExceeded):
    """No cut makes it fit. 400 by default: SDKs raise BadRequestError for it, which clients watch for."""

    status = 400


class Overloaded(ProxyError):
    """Not now: the answer says when to come again."""

    status = 503
    type = "server_error"
    code = "overloaded"


class Draining(Overloaded):
    code = "draining"


class UpstreamError(ProxyError):
    """Nothing answered, after every target and fallback."""

    status = 502
    type = "server_error"
    code = "upstream_error"


class UpstreamTimeout(UpstreamError):
    status = 504
    code = "upstream_timeout"


class NoBackend(UpstreamError):
    """The engine that would answer is being started; the answer says when to come again."""

    status = 503
    code = "no_backend"


class Internal(ProxyError):
    """A fault of ours. The log has the trace, the client has the request id."""
