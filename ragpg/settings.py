"""Settings of a process; what belongs to a collection is its recipe, in the database."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import platformdirs
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from ragpg.errors import ConfigurationError
from ragpg.inputs import MAX_LOG_DAYS

VENDORS = frozenset({"claude", "voyage", "cohere"})


def _default_home() -> Path:
    return Path(platformdirs.user_data_path("ragpg"))


class RateLimit(BaseModel):
    """What one process may send to a vendor in any minute; None holds nothing back."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests: float | None = Field(None, ge=1)
    tokens: float | None = Field(None, ge=1)


class Settings(BaseSettings):
    """Read once from the environment (prefix `RAGPG_`), then passed on; frozen.

    Vendor keys are read under the vendors' own names: VOYAGE_API_KEY, ANTHROPIC_API_KEY and
    CO_API_KEY.
    """

    model_config = SettingsConfigDict(
        env_prefix="RAGPG_", extra="forbid", frozen=True, populate_by_name=True
    )

    database_url: SecretStr | None = Field(
        None, description="The service's database, as a role of ragpg_app; unset: the embedded one."
    )
    owner_database_url: SecretStr | None = Field(
        None, description="The same database as a role that may migrate; default: database_url."
    )
    home: Path = Field(
        default_factory=_default_home, description="Where the embedded Postgres keeps its files."
    )
    pool_max_size: int = Field(10, ge=1, description="Connections held at most.")
    statement_timeout_ms: int = Field(60_000, ge=0, description="Per statement; 0 means none.")
    prepared_statements: bool | None = Field(
        None, description="Default: on, off behind a pooler. Turn on for one that knows them."
    )
    actor: str | None = Field(
        None, description="On whose behalf documents change; kept in ragpg.document_history."
    )
    create_tenants: bool = Field(
        default=True, description="Make a tenant that is not there when documents come for it."
    )
    log_searches: bool = Field(default=True, description="Log each search and its candidates.")
    search_log_days: int = Field(
        90, ge=0, le=MAX_LOG_DAYS, description="Then workers delete a logged search; 0 keeps all."
    )

    voyage_api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("voyage_api_key", "VOYAGE_API_KEY")
    )
    anthropic_api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("anthropic_api_key", "ANTHROPIC_API_KEY")
    )
    cohere_api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("cohere_api_key", "CO_API_KEY")
    )
    voyage_base_url: str | None = Field(None, description="Default: the vendor's own host.")
    anthropic_base_url: str | None = Field(None, description="Default: the vendor's own host.")
    cohere_base_url: str | None = Field(None, description="Default: the vendor's own host.")

    embedding_model: str = Field("voyage-4", description="Of new collections, with a Voyage key.")
    embedding_dimensions: int = Field(
        1024, ge=1, le=4000, description="Of new collections, with a Voyage key."
    )
    context_model: str = Field("claude-haiku-5-5", description="Of new collections, with a key.")
    rerank_provider: str | None = Field(
        None, description="cohere, voyage, blend or none; default: by the keys that are set."
    )
    cohere_rerank_model: str = "rerank-v4.0-fast"
    voyage_rerank_model: str = "rerank-2.5"
    generate_provider: str | None = Field(
        None, description="claude or extractive; default: by the keys that are set."
    )
    generate_model: str = "claude-sonnet-5-5"

    provider_timeout_s: float = Field(60.0, gt=0, description="One attempt of one vendor call.")
    provider_deadline_s: float = Field(300.0, gt=0, description="All attempts of one vendor call.")
    rerank_timeout_s: float = Field(5.0, gt=0, description="Then the fused order is used, visibly.")
    batch_poll_s: float = Field(60.0, gt=0, description="Between two looks at open batches.")
    index_cron: str = Field(
        "17 * * * *",
        description="When workers with owner_database_url maintain indexes, UTC; '': never.",
    )
    recall_cron: str = Field(
        "47 3 * * *", description="When they measure the recall of each collection, UTC; '': never."
    )

    provider_concurrency: int = Field(8, ge=1, description="Vendor calls in flight per stage.")

    rate_limits: dict[str, RateLimit] = Field(
        default_factory=dict,
        description="Requests and tokens a minute by vendor, or vendor and model, as JSON:"
        ' {"claude": {"requests": 50, "tokens": 30000}, "voyage voyage-4": {"requests": 300}};'
        " each model apart. Default: learned from the vendor's answers.",
    )

    @field_validator("database_url", "owner_database_url")
    @classmethod
    def _is_address(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        """In the form that libpq, psql and every connection here read."""
        from ragpg.dsn import libpq_dsn

        if value is None:
            return None
        name = f"RAGPG_{str(info.field_name).upper()}"
        return SecretStr(libpq_dsn(value.get_secret_value(), name=name))

    @field_validator("actor")
    @classmethod
    def _is_utf_8(cls, value: str | None) -> str | None:
        # In the environment other bytes come as halves of surrogate pairs, which Postgres refuses.
        if value is not None and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError("it holds bytes that are no UTF-8")
        return value

    @field_validator("rate_limits")
    @classmethod
    def _names_vendors(cls, value: dict[str, RateLimit]) -> dict[str, RateLimit]:
        for name in value:
            if name.partition(" ")[0] not in VENDORS:
                raise ValueError(
                    f"{name!r} begins with no vendor; write 'claude', 'voyage' or 'cohere', or one"
                    " of them, a space and a model"
                )
        return value

    @field_validator("index_cron", "recall_cron")
    @classmethod
    def _is_cron(cls, value: str) -> str:
        # What procrastinate reads the line with.
        from croniter import croniter  # type: ignore[import-untyped]

        if value and not croniter.is_valid(value):
            raise ValueError(f"{value!r} is no cron line of five fields, such as '17 * * * *'")
        return value

    @classmethod
    def variables(cls) -> tuple[str, ...]:
        """The environment variables that are read, in the order of the fields."""
        names = []
        for name, field in cls.model_fields.items():
            alias = field.validation_alias
            names.append(
                str(alias.choices[-1])
                if isinstance(alias, AliasChoices)
                else f"RAGPG_{name.upper()}"
            )
        return tuple(names)

    @classmethod
    def from_env(cls) -> Self:
        """Settings as the environment says; raises ConfigurationError naming the variable."""
        try:
            return cls()
        except SettingsError as exc:
            raise ConfigurationError(
                f"RAGPG_RATE_LIMITS is no JSON: {exc.__cause__}; mend it"
            ) from exc
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
            name = str(first["loc"][0])
            variable = name if name.isupper() else f"RAGPG_{name.upper()}"
            if within := first["loc"][1:]:
                variable = f"{variable} at {'.'.join(map(str, within))}"
            message = first["msg"].removeprefix("Value error, ")
            raise ConfigurationError(f"{variable} is wrong: {message}; mend it") from exc
