"""Every error that ragpg raises; str() of each is one sentence with its values and a next step.

RagpgError
├── InputError (ValueError)       the call can never succeed as it stands
│   ├── FilterError               an unknown operator, field or type in `where`
│   ├── EmptyQueryError           nothing to search for
│   ├── DimensionError            a vector of the wrong length
│   └── DocumentError             a document that cannot be read or holds no text
├── NotFoundError (LookupError)
│   ├── TenantNotFound
│   ├── CollectionNotFound
│   ├── DocumentNotFound
│   └── SearchNotFound            the log of searches has no such search
├── ConflictError
│   ├── CollectionExists
│   └── RecipeMismatch            the collection was made with another recipe
├── ConfigurationError            a setting, key or optional package is missing
├── ClientClosed                  the client is not open, or was closed during the call
├── TenantNotSetError             RG001: a statement ran without a tenant
├── SchemaError
│   ├── SchemaMissing
│   ├── SchemaOutdated            the database is older than this code
│   └── SchemaTooNew              the database is newer than this code
├── DatabaseError                 anything else from Postgres; has .sqlstate and .retryable
│   └── DatabaseUnavailable
└── ProviderError                 has .provider, .model, .status, .request_id, .retryable
    ├── ProviderTimeout
    ├── RateLimited               has .retry_after_s
    ├── ProviderUnavailable
    ├── ProviderRejected          another 4xx: our fault or the account's
    │   └── TextsRejected         some texts of a call, too long say; has .failed and .vectors
    ├── PartlyEmbedded            a call of several requests ended early; has .vectors and .reason
    └── InvalidProviderResponse   wrong count, wrong dimension, a citation outside the text
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragpg.storable_text import storable_text


class RagpgError(Exception):
    """Base of every error that ragpg raises."""

    retryable: bool = False


class InputError(RagpgError, ValueError):
    """The call can never succeed with these arguments."""


class FilterError(InputError):
    """A filter names an unknown operator or field, or a value of a type that it cannot compare."""


class EmptyQueryError(InputError):
    """The query holds no text."""


class DimensionError(InputError):
    """A vector has another length than the collection's recipe says."""


class DocumentError(InputError):
    """A document cannot be read, or holds no text; `reason` is a word for counting.

    Reasons: `no_text`, `binary`, `encoding`, `unsupported`, `unreadable`, `too_large`,
    `front_matter`, and `invalid` for a field of a wrong type or length.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotFoundError(RagpgError, LookupError):
    """Something that the call names does not exist for this tenant."""


class TenantNotFound(NotFoundError):
    """No tenant has this key.

    `near` are keys that it may have been meant for, where they were looked up: they are other
    tenants, so they stand in a note for the operator's log and never in the message.
    """

    near: tuple[str, ...] = ()


class CollectionNotFound(NotFoundError):
    """The tenant has no collection and no alias of this name."""


class DocumentNotFound(NotFoundError):
    """The collection holds no document with this key."""


class SearchNotFound(NotFoundError):
    """The tenant's log has no search of this number."""


class ConflictError(RagpgError):
    """The call contradicts what is stored."""


class CollectionExists(ConflictError):
    """A collection of this name exists already."""


class RecipeMismatch(ConflictError):
    """The collection was made with another recipe; a changed recipe is a new collection."""


class ConfigurationError(RagpgError):
    """A setting, a key or an optional package is missing; the message names it."""


class ClientClosed(RagpgError):
    """The client is not open: it was closed, perhaps while the call ran, or never was opened."""


class TenantNotSetError(RagpgError):
    """RG001: a statement ran before a tenant was set in its transaction."""


class SchemaError(RagpgError):
    """The database's schema does not fit this code; `found` and `needed` are revisions."""

    def __init__(
        self, message: str, *, found: str | None = None, needed: str | None = None
    ) -> None:
        super().__init__(message)
        self.found = found
        self.needed = needed


class SchemaMissing(SchemaError):
    """The database holds no ragpg schema yet."""


class SchemaOutdated(SchemaError):
    """The database's schema is older than this code; `ragpg migrate` mends it."""


class SchemaTooNew(SchemaError):
    """The database's schema is newer than this code; a newer ragpg mends it."""


class DatabaseError(RagpgError):
    """Postgres refused or failed; the driver's error is `__cause__`."""

    def __init__(
        self, message: str, *, sqlstate: str | None = None, retryable: bool = False
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.retryable = retryable


class DatabaseUnavailable(DatabaseError):
    """No connection could be made, or it broke."""


class ProviderError(RagpgError):
    """A vendor's call failed; `retryable` says whether the same call may succeed later.

    The message may repeat the vendor's words, and is kept beside the document that it is about.
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        model: str,
        status: int | None = None,
        request_id: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(storable_text(message))
        self.provider = provider
        self.model = model
        self.status = status
        self.request_id = request_id
        self.retryable = retryable


class ProviderTimeout(ProviderError):
    """The vendor did not answer in time."""


class RateLimited(ProviderError):
    """The vendor answered 429; `retry_after_s` is what it asked for, in seconds, or None."""

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        model: str,
        retry_after_s: float | None,
        status: int | None = 429,
        request_id: str | None = None,
        retryable: bool = True,
    ) -> None:
        super().__init__(
            message,
            provider=provider,
            model=model,
            status=status,
            request_id=request_id,
            retryable=retryable,
        )
        self.retry_after_s = retry_after_s


class ProviderUnavailable(ProviderError):
    """The vendor is down or overloaded, or the connection broke."""


class ProviderRejected(ProviderError):
    """The vendor refused the request: 400, 401, 402, 403, 404, 413, 422."""


class TextsRejected(ProviderRejected):
    """Some texts of an embedding call were refused, each on its own; the others have vectors.

    `failed` is the reason by the text's place in the call, `vectors` the vector by place of every
    other text, `usage` (of `ragpg.Usage`) what those cost: paid for, so keep them.
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        model: str,
        failed: Mapping[int, str],
        vectors: Mapping[int, Sequence[float]],
        usage: tuple[Any, ...] = (),
        status: int | None = 400,
    ) -> None:
        super().__init__(message, provider=provider, model=model, status=status)
        self.failed = failed
        self.vectors = vectors
        self.usage = usage


class PartlyEmbedded(ProviderError):
    """An embedding call of several requests ended early, after some of them were answered.

    `reason` is the error that ended it, whose message and fields this one has; `vectors` is the
    vector by place of every text that was answered, `usage` what those cost: paid for, so keep
    them and ask for the others alone.
    """

    def __init__(
        self,
        reason: ProviderError,
        *,
        vectors: Mapping[int, Sequence[float]],
        usage: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(
            str(reason),
            provider=reason.provider,
            model=reason.model,
            status=reason.status,
            request_id=reason.request_id,
            retryable=reason.retryable,
        )
        self.reason = reason
        self.vectors = vectors
        self.usage = usage


class InvalidProviderResponse(ProviderError):
    """The answer does not fit the request, or a provider of yours broke: see `__cause__`."""
