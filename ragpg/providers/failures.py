"""What a vendor's failure becomes: one status table and one form of message for all vendors."""

from __future__ import annotations

import datetime as dt
import email.utils
from collections.abc import Mapping
from dataclasses import dataclass, field

from ragpg.errors import (
    ConfigurationError,
    InvalidProviderResponse,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
)

# A proxy's error page can be megabytes; the first line of it says enough.
_MESSAGE_CHARACTERS = 400
_NEXT_STEP = {
    401: "set {key_variable} to a valid key",
    400: "the request is at fault and was not retried",
    402: "check the account's billing",
    403: "check what the key in {key_variable} may use",
    404: "check the name of the model",
    413: "send less in one request",
    422: "the request is at fault and was not retried",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """Who is called with which model and key: what each message about a call names.

    `key_variable` is the environment variable of the key. `pool` names what the vendor limits apart
    from the model's other calls. Raises ConfigurationError without a key.
    """

    provider: str
    model: str
    key_variable: str
    api_key: str = field(repr=False)
    pool: str = ""

    def __post_init__(self) -> None:
        if not self.api_key.strip():
            raise ConfigurationError(
                f"{self.provider} {self.model} needs a key; set {self.key_variable}, "
                "or choose an offline provider"
            )


def failed(
    vendor: Vendor,
    status: int | None,
    message: str,
    *,
    headers: Mapping[str, str] | None = None,
    retryable: bool | None = None,
) -> ProviderError:
    """The error for an HTTP status; `retryable` overrides what the status says.

    429 is RateLimited with what `retry-after` asks for; 408, 409, 5xx and no status at all are
    ProviderUnavailable; the rest is ProviderRejected and not retryable.
    """
    headers = {name.lower(): value for name, value in (headers or {}).items()}
    request_id = headers.get("request-id") or headers.get("x-request-id")
    if status == 429:  # noqa: PLR2004
        return RateLimited(
            _sentence(vendor, status, message, "try again later or with fewer calls in flight"),
            provider=vendor.provider,
            model=vendor.model,
            request_id=request_id,
            retry_after_s=retry_after_s(headers, now=dt.datetime.now(dt.UTC)),
            retryable=retryable is not False,
        )
    passing = status is None or status in {408, 409} or status >= 500  # noqa: PLR2004
    kind = ProviderUnavailable if passing else ProviderRejected
    step = "try again later" if passing else _NEXT_STEP.get(status or 0, "check the request")
    return kind(
        _sentence(vendor, status, message, step.format(key_variable=vendor.key_variable)),
        provider=vendor.provider,
        model=vendor.model,
        status=status,
        request_id=request_id,
        retryable=passing if retryable is None else retryable,
    )


def timed_out(vendor: Vendor, seconds: float) -> ProviderTimeout:
    """The error of an attempt that took longer than `seconds`."""
    return ProviderTimeout(
        f"{vendor.provider} {vendor.model} did not answer within {seconds:g} s; "
        "try again or allow more time",
        provider=vendor.provider,
        model=vendor.model,
        retryable=True,
    )


def invalid(vendor: Vendor, message: str) -> InvalidProviderResponse:
    """The error of an answer that does not fit the request."""
    return InvalidProviderResponse(
        f"{vendor.provider} {vendor.model} {_clean(vendor, message)}; the answer was not used",
        provider=vendor.provider,
        model=vendor.model,
        retryable=False,
    )


def retry_after_s(headers: Mapping[str, str], *, now: dt.datetime) -> float | None:
    """Seconds that lower-case `headers` ask to wait, from milliseconds, seconds or a date."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after")
        if value is None:
            return None
        if value.strip().replace(".", "", 1).isdigit():
            return float(value)
        return max(0.0, (email.utils.parsedate_to_datetime(value) - now).total_seconds())
    except (ValueError, TypeError):
        # A header that nobody can read asks for nothing; the exponential wait applies.
        return None


def _sentence(vendor: Vendor, status: int | None, message: str, step: str) -> str:
    answered = f"answered {status}" if status is not None else "failed"
    return f"{vendor.provider} {vendor.model} {answered}: {_clean(vendor, message)}; {step}"


def _clean(vendor: Vendor, message: str) -> str:
    """`message` on one line, cut, with the key struck out: some vendors quote it back."""
    line = " ".join(message.replace(vendor.api_key, "[key]").split()).rstrip(".;")
    return line if len(line) <= _MESSAGE_CHARACTERS else f"{line[:_MESSAGE_CHARACTERS]}..."
