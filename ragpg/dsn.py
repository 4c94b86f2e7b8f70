"""The address of a database as its users write it, in the one form that everything here reads."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ragpg.errors import ConfigurationError

_SCHEME = re.compile(r"^postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
_FORMS = (
    "write it like postgresql://user:password@host:5432/name, with %40 for an @ and %2F for a / in"
    " the password, or like host=.. port=5432 dbname=.. user=.. password=.."
)

# Where the other end has vanished nobody answers and nobody refuses: by default a call then ends
# after 15 minutes if it still had something to send (net.ipv4.tcp_retries2), else after two hours.
LIVENESS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def libpq_dsn(text: str, *, name: str = "the address of the database") -> str:
    """The address as libpq reads it: a URL without SQLAlchemy's name of a driver, or key=value.

    Raises ConfigurationError for what is neither; the message never holds the address, which may
    hold a password, and nor do those of the server, which name a host and a port.
    """
    dsn = _SCHEME.sub("postgresql://", text.strip())
    fault = _fault(dsn)
    if fault is not None:
        raise ConfigurationError(f"{name} {fault}; {_FORMS}")
    return dsn


def connect_args(text: str) -> dict[str, Any]:
    """The address as the arguments of `psycopg.connect`, with LIVENESS where it says nothing else.

    Raises as `libpq_dsn`.
    """
    # A role may have been given another encoding, in which most texts cannot be sent.
    return {**LIVENESS, "client_encoding": "utf8", **conninfo_to_dict(libpq_dsn(text))}


def _fault(dsn: str) -> str | None:
    if not dsn:
        return "is empty"
    scheme = re.match(r"^([a-z][a-z0-9+.-]*)://", dsn, re.IGNORECASE)
    if scheme is not None and scheme[1] != "postgresql":
        return f"begins with {scheme[1][:20]}://, which is no Postgres"
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        return "is neither a URL nor a key=value string"
    # A password with one of these characters in it, read as the host and the port.
    if "@" in str(parts.get("host", "")):
        return "has more than one @"
    if not re.fullmatch(r"[\d,]*", str(parts.get("port", ""))):
        return "has a port that is no number"
    return None
