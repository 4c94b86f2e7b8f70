"""Which provider does what: built from settings and a collection's recipe, loaded when needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from pydantic import SecretStr

from ragpg.context_batch import BatchContextWriter
from ragpg.errors import ConfigurationError, InputError, RecipeMismatch
from ragpg.protocols import ContextWriter, Embedder, Generator, Reranker
from ragpg.settings import RateLimit, Settings
from ragpg.types import Recipe

Built = TypeVar("Built")


@runtime_checkable
class Closing(Protocol):
    """A provider that holds connections."""

    async def aclose(self) -> None:
        """Close them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Providers that the caller brought; None means the recipe or the settings decide."""

    embedder: Embedder | None = None
    context_writer: ContextWriter | None = None
    reranker: Reranker | None = None
    generator: Generator | None = None


class Providers:
    """Builds each provider once and closes those that it built."""

    def __init__(self, settings: Settings, given: Given) -> None:
        self._settings = settings
        self._given = given
        self._built: dict[tuple[Any, ...], Any] = {}
        if settings.rate_limits:
            _hold_to(settings.rate_limits)

    async def aclose(self) -> None:
        """Close what was built here; the caller closes what the caller brought."""
        for provider in self._built.values():
            if isinstance(provider, Closing):
                await provider.aclose()
        self._built.clear()

    def default_recipe(self) -> Recipe:
        """The recipe of a new collection: vendors whose keys are set, offline parts otherwise."""
        settings, given = self._settings, self._given
        fields: dict[str, Any] = {}
        if given.embedder is not None:
            fields |= {
                "embedding_provider": given.embedder.provider,
                "embedding_model": given.embedder.model,
                "dimensions": given.embedder.dimensions,
            }
        elif settings.voyage_api_key is not None:
            fields |= {
                "embedding_provider": "voyage",
                "embedding_model": settings.embedding_model,
                "dimensions": settings.embedding_dimensions,
            }
        if given.context_writer is not None:
            fields |= {
                "context_provider": given.context_writer.provider,
                "context_model": given.context_writer.model,
                "context_prompt_version": given.context_writer.prompt_version,
            }
        elif settings.anthropic_api_key is not None:
            fields |= {"context_provider": "claude", "context_model": settings.context_model}
        return Recipe(**fields)

    def require(self, recipe: Recipe, collection: str) -> None:
        """Raise RecipeMismatch where the recipe asks for what its providers here do not make.

        A vendor without a key, and a provider that only another client brings, are not asked.
        """
        settings, given = self._settings, self._given
        if given.embedder is not None or recipe.embedding_provider == "local":
            self.embedder(recipe, collection)
        keyed = recipe.context_provider == "claude" and settings.anthropic_api_key is not None
        if given.context_writer is not None or recipe.context_provider == "rule" or keyed:
            self.context_writer(recipe, collection)

    def embedder(self, recipe: Recipe, collection: str) -> Embedder:
        """The embedder of a recipe. Raises RecipeMismatch, ConfigurationError."""
        given = self._given.embedder
        stored = (recipe.embedding_provider, recipe.embedding_model, recipe.dimensions)
        if given is not None:
            _require_same(
                collection, "vectors", stored, (given.provider, given.model, given.dimensions)
            )
            return given
        if recipe.embedding_provider == "local":
            local = self._once(("local",), _local)
            _require_same(
                collection,
                "vectors",
                (*stored, recipe.embedding_dtype),
                (local.provider, local.model, local.dimensions, "float"),
            )
            return local
        if recipe.embedding_provider == "voyage":
            key = self._key(self._settings.voyage_api_key, "VOYAGE_API_KEY", collection)
            return self._once(
                ("embed", recipe.embedding_model, recipe.dimensions, recipe.embedding_dtype),
                lambda: _voyage_embedder(recipe, key, self._settings),
            )
        raise _unknown(collection, "embedder", recipe.embedding_provider)

    def context_writer(self, recipe: Recipe, collection: str) -> ContextWriter | None:
        """The context writer of a recipe, None for `none`. Raises as `embedder` does."""
        given = self._given.context_writer
        stored = (recipe.context_provider, recipe.context_model, recipe.context_prompt_version)
        if given is not None:
            _require_same(
                collection, "contexts", stored, (given.provider, given.model, given.prompt_version)
            )
            return given
        if recipe.context_provider == "none":
            return None
        if recipe.context_provider == "rule":
            rule = self._once(("rule",), _rule)
            _require_same(
                collection, "contexts", stored, (rule.provider, rule.model, rule.prompt_version)
            )
            return rule
        if recipe.context_provider == "claude":
            key = self._key(self._settings.anthropic_api_key, "ANTHROPIC_API_KEY", collection)
            return self._once(
                ("context", recipe.context_model, recipe.context_prompt_version, recipe.glossary),
                lambda: _claude_writer(recipe, key, self._settings),
            )
        raise _unknown(collection, "context writer", recipe.context_provider)

    def batch_context_writer(self, recipe: Recipe, collection: str) -> BatchContextWriter:
        """The writer of contexts in batches. Raises InputError where the recipe's has none."""
        if recipe.context_provider != "claude":
            raise InputError(
                f"the contexts of {collection!r} come from {recipe.context_provider!r}, which"
                " writes no batches; only 'claude' does, leave the batch option out"
            )
        key = self._key(self._settings.anthropic_api_key, "ANTHROPIC_API_KEY", collection)
        return self._once(
            ("batch", recipe.context_model, recipe.context_prompt_version, recipe.glossary),
            lambda: _claude_batch_writer(recipe, key, self._settings),
        )

    def reranker(self) -> Reranker | None:
        """The reranker of this process: the caller's, by setting, by key, or the offline blend."""
        if self._given.reranker is not None:
            return self._given.reranker
        settings = self._settings
        chosen = settings.rerank_provider or (
            "cohere"
            if settings.cohere_api_key
            else "voyage"
            if settings.voyage_api_key
            else "blend"
        )
        if chosen == "none":
            return None
        if chosen == "blend":
            return self._once(("blend",), _blend)
        if chosen == "cohere":
            key = self._key(settings.cohere_api_key, "CO_API_KEY", "RAGPG_RERANK_PROVIDER")
            return self._once(("cohere",), lambda: _cohere_reranker(key, settings))
        if chosen == "voyage":
            key = self._key(settings.voyage_api_key, "VOYAGE_API_KEY", "RAGPG_RERANK_PROVIDER")
            return self._once(("rerank",), lambda: _voyage_reranker(key, settings))
        raise ConfigurationError(
            f"RAGPG_RERANK_PROVIDER is {chosen!r}; it may be cohere, voyage, blend or none"
        )

    def generator(self, embedder: Embedder) -> Generator:
        """The generator of this process: the caller's, by setting, by key, or the quoting one."""
        if self._given.generator is not None:
            return self._given.generator
        settings = self._settings
        chosen = settings.generate_provider or (
            "claude" if settings.anthropic_api_key else "extractive"
        )
        if chosen == "extractive":
            return self._once(("extractive", id(embedder)), lambda: _extractive(embedder))
        if chosen == "claude":
            key = self._key(
                settings.anthropic_api_key, "ANTHROPIC_API_KEY", "RAGPG_GENERATE_PROVIDER"
            )
            return self._once(("claude",), lambda: _claude_generator(key, settings))
        raise ConfigurationError(
            f"RAGPG_GENERATE_PROVIDER is {chosen!r}; it may be claude or extractive"
        )

    def _once(self, name: tuple[Any, ...], build: Callable[[], Built]) -> Built:
        if name not in self._built:
            self._built[name] = build()
        return cast("Built", self._built[name])

    def _key(self, key: SecretStr | None, variable: str, needed_by: str) -> str:
        if key is None or not key.get_secret_value().strip():
            raise ConfigurationError(f"{needed_by!r} needs {variable}, which is not set; set it")
        return key.get_secret_value()


def _require_same(
    collection: str, what: str, wanted: tuple[Any, ...], brought: tuple[Any, ...]
) -> None:
    """Raise RecipeMismatch unless what a recipe says is what this client's provider makes."""
    if wanted != brought:
        raise RecipeMismatch(
            f"the recipe of collection {collection!r} says {what} of {' '.join(map(str, wanted))},"
            f" this client brings {' '.join(map(str, brought))}; bring what the recipe says, or"
            " make a new collection with another recipe, ingest into it and swap the alias"
        )


def _unknown(collection: str, what: str, provider: str) -> ConfigurationError:
    return ConfigurationError(
        f"collection {collection!r} needs the {what} {provider!r}, which ragpg does not build;"
        f" pass it to the client"
    )


# Imports stand inside: a vendor's SDK or a model is loaded only by the process that uses it.


def _common(settings: Settings) -> dict[str, Any]:
    return {
        "timeout_s": settings.provider_timeout_s,
        "deadline_s": settings.provider_deadline_s,
        "concurrency": settings.provider_concurrency,
    }


def _hold_to(given: Mapping[str, RateLimit]) -> None:
    """Limit the vendors' calls of this process; what is not given is left without a limit."""
    from ragpg.providers.limiter import LIMITERS
    from ragpg.providers.prices import UNLIMITED, RateLimits

    limits = {}
    for name, rate in given.items():
        vendor, _, model = name.partition(" ")
        limits[vendor, model] = RateLimits(
            requests=rate.requests or UNLIMITED, tokens=rate.tokens or UNLIMITED
        )
    LIMITERS.configure(limits)


def _local() -> Embedder:
    from ragpg.providers.local import LocalEmbedder

    return LocalEmbedder()


def _voyage_embedder(recipe: Recipe, key: str, settings: Settings) -> Embedder:
    from ragpg.providers import voyage

    kind = (
        voyage.VoyageContextEmbedder
        if recipe.embedding_model.startswith("voyage-context-")
        else voyage.VoyageEmbedder
    )
    return kind(
        api_key=key,
        model=recipe.embedding_model,
        dimensions=recipe.dimensions,
        dtype=recipe.embedding_dtype,
        base_url=settings.voyage_base_url,
        **_common(settings),
    )


def _rule() -> ContextWriter:
    from ragpg.providers.rule import RuleContextWriter

    return RuleContextWriter()


def _claude_writer(recipe: Recipe, key: str, settings: Settings) -> ContextWriter:
    from ragpg.providers.claude import ClaudeContextWriter

    return ClaudeContextWriter(
        api_key=key,
        model=recipe.context_model,
        prompt_version=recipe.context_prompt_version,
        glossary=recipe.glossary,
        base_url=settings.anthropic_base_url,
        **_common(settings),
    )


def _claude_batch_writer(recipe: Recipe, key: str, settings: Settings) -> BatchContextWriter:
    from ragpg.providers.claude_batch import ClaudeBatchContextWriter

    return ClaudeBatchContextWriter(
        api_key=key,
        model=recipe.context_model,
        prompt_version=recipe.context_prompt_version,
        glossary=recipe.glossary,
        base_url=settings.anthropic_base_url,
        timeout_s=settings.provider_timeout_s,
        deadline_s=settings.provider_deadline_s,
    )


def _blend() -> Reranker:
    from ragpg.providers.blend import BlendReranker

    return BlendReranker()


def _cohere_reranker(key: str, settings: Settings) -> Reranker:
    from ragpg.providers.cohere import CohereReranker

    return CohereReranker(
        api_key=key,
        model=settings.cohere_rerank_model,
        base_url=settings.cohere_base_url,
        timeout_s=settings.rerank_timeout_s,
        deadline_s=settings.rerank_timeout_s,
        concurrency=settings.provider_concurrency,
    )


def _voyage_reranker(key: str, settings: Settings) -> Reranker:
    from ragpg.providers.voyage import VoyageReranker

    return VoyageReranker(
        api_key=key,
        model=settings.voyage_rerank_model,
        base_url=settings.voyage_base_url,
        timeout_s=settings.rerank_timeout_s,
        deadline_s=settings.rerank_timeout_s,
        concurrency=settings.provider_concurrency,
    )


def _extractive(embedder: Embedder) -> Generator:
    from ragpg.providers.extractive import ExtractiveGenerator

    return ExtractiveGenerator(embedder)


def _claude_generator(key: str, settings: Settings) -> Generator:
    from ragpg.providers.claude_generate import ClaudeGenerator

    return ClaudeGenerator(
        api_key=key,
        model=settings.generate_model,
        base_url=settings.anthropic_base_url,
        **_common(settings),
    )
