"""Faults of providers that are not errors of ours: your own embedder's KeyError, say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ragpg.errors import InvalidProviderResponse, RagpgError


class _Named(Protocol):
    @property
    def provider(self) -> str: ...
    @property
    def model(self) -> str: ...


@contextmanager
def faults_named(provider: _Named) -> Iterator[None]:
    """Raises InvalidProviderResponse for whatever a provider raises that is no RagpgError.

    The exception itself is its `__cause__`. Errors of ours and cancellation come through.
    """
    try:
        yield
    except RagpgError:
        raise
    except Exception as exc:
        # Anybody writes a provider, so any class may come; in a task group it would reach the
        # caller as an ExceptionGroup.
        said = " ".join(str(exc).split())
        raised = f"{type(exc).__name__} ({said})" if said else type(exc).__name__
        raise InvalidProviderResponse(
            f"{provider.provider} {provider.model} raised {raised} instead of an answer;"
            " mend that provider and try again",
            provider=provider.provider,
            model=provider.model,
        ) from exc
