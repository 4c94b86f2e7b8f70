"""Whether a server will do: its version, pgvector, encoding, locale, roles and bound readers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ragpg.errors import ConfigurationError

# False where the locale is C: lower() and the text search parser then know A to Z alone.
KNOWS_LETTERS = "select lower('É') = 'é'"
# Who owns the schema: after a restore without roles, whoever restored it.
OWNER_OF_SCHEMA = "select pg_get_userbyid(nspowner)::text from pg_namespace where nspname = 'ragpg'"
SCHEMA_OF_PGVECTOR = (
    "select extnamespace::regnamespace::text from pg_extension where extname = 'vector'"
)
# Who is granted it, beside superusers, the owner of the schema and owners of ragpg.
CREATORS_IN_PUBLIC = """
select case entry.grantee when 0 then 'public' else pg_get_userbyid(entry.grantee)::text end
  from pg_namespace as namespace
 cross join lateral aclexplode(namespace.nspacl) as entry
  left join pg_roles as grantee on grantee.oid = entry.grantee
 where namespace.nspname = 'public' and entry.privilege_type = 'CREATE'
   and entry.grantee <> namespace.nspowner and not coalesce(grantee.rolsuper, false)
   and not exists (
           select from pg_roles as owner
            where owner.rolname = 'ragpg_owner' and pg_has_role(grantee.oid, owner.oid, 'member'))
 order by 1
"""
# Everybody may, until an administrator revokes it.
SHUT_OUT_OF_PUBLIC = """
select role.rolname::text
  from pg_roles as role, pg_namespace as namespace
 where role.rolname in ('ragpg_owner', 'ragpg_app', 'ragpg_reader')
   and namespace.nspname = 'public'
   and not has_schema_privilege(role.oid, namespace.oid, 'usage')
 order by 1
"""
# As ragpg_owner, like those below: who serves all tenants though a reader's binding holds for it.
BOUND_SERVICES = """
select pg_roles.rolname::text
  from pg_roles
 where pg_roles.rolcanlogin and pg_has_role(pg_roles.oid, 'ragpg_app', 'member')
   and ragpg._is_confined(pg_roles.oid)
   and exists (
           select from ragpg.reader_tenant
            where reader_tenant.role = pg_roles.oid
               or pg_has_role(pg_roles.oid, reader_tenant.role::oid, 'member'))
 order by pg_roles.rolname
"""
LOST_READERS = "select role_name, tenant from ragpg.lost_reader order by role_name, tenant"
UNBOUND_READERS = """
select pg_roles.rolname::text
  from pg_roles
 where pg_roles.rolcanlogin and pg_has_role(pg_roles.oid, 'ragpg_reader', 'member')
   and not pg_has_role(pg_roles.oid, 'ragpg_app', 'member') and ragpg._is_confined(pg_roles.oid)
   and not exists (
           select from ragpg.reader_tenant
            where reader_tenant.role = pg_roles.oid
               or pg_has_role(pg_roles.oid, reader_tenant.role::oid, 'member'))
 order by pg_roles.rolname
"""
OLDEST_SERVER = 150000
PGVECTOR_FAULTS = (
    ((0, 8, 2), "can overflow a buffer when it builds HNSW indexes in parallel (before 0.8.2)"),
    ((0, 8, 4), "can break an HNSW index when it is vacuumed (before 0.8.4)"),
)


def judge_server(version_number: int, pgvector: str) -> None:
    """Raise ConfigurationError if this server (`server_version_num`) or its pgvector is too old."""
    if version_number < OLDEST_SERVER:
        raise ConfigurationError(
            f"the server is PostgreSQL {version_number // 10000}, and ragpg needs 15 or later"
            " (tested with 15 to 18); use a newer server"
        )
    # Iterative scans came with 0.8.
    if _numbers(pgvector) < (0, 8):
        raise ConfigurationError(
            f"the database has pgvector {pgvector}, and ragpg needs 0.8 or later; install a newer"
            " one on the server, then `alter extension vector update`"
        )


def pgvector_warnings(version: str) -> tuple[str, ...]:
    """Why this version of pgvector should be replaced, a sentence each; from its changelog."""
    return tuple(
        f"pgvector {version} {fault}; update the extension"
        for mended_in, fault in PGVECTOR_FAULTS
        if _numbers(version) < mended_in
    )


def judge_encoding(encoding: str | None) -> None:
    """Raise ConfigurationError if a database of this `server_encoding` lacks letters."""
    if encoding != "UTF8":
        raise ConfigurationError(
            f"the encoding of the database is {encoding}, and ragpg needs UTF8, which holds every"
            " letter; make the database anew with `create database .. template template0 encoding"
            " 'UTF8' locale 'C.UTF-8'`"
        )


def locale_warnings(*, knows_letters: bool | None) -> tuple[str, ...]:
    """Why the database's locale does harm, if KNOWS_LETTERS answered that it does."""
    if knows_letters:
        return ()
    return (
        (
            "the locale of this database knows no letters but A to Z, so École is not found by"
            " ÉCOLE, and such words are cut at these letters; make the database anew with a UTF-8"
            " locale such as C.UTF-8"
        ),
    )


def judge_owner(owner: str | None) -> None:
    """Raise ConfigurationError if schema ragpg belongs to another role than ragpg_owner."""
    if owner not in (None, "ragpg_owner"):
        raise ConfigurationError(
            f"schema ragpg belongs to {owner!r} and not to ragpg_owner, as after a restore on a"
            " server without the roles; restore the dump into a new database after those of"
            " `pg_dumpall --roles-only`, or after `create role` of ragpg_owner, ragpg_app and"
            " ragpg_reader"
        )


def judge_public(pgvector: str | None, creators: Sequence[str], *, migrator: str | None) -> None:
    """Raise ConfigurationError if pgvector is elsewhere, or others may put objects beside it.

    `pgvector` is the schema of the extension, None if there is none; `migrator` may create there.
    """
    if pgvector not in (None, "public"):
        raise ConfigurationError(
            f"pgvector is in schema {pgvector}, and ragpg looks for it in public; run `alter"
            " extension vector set schema public`, or use another database"
        )
    others = ", ".join(name for name in creators if name != migrator)
    if others:
        raise ConfigurationError(
            f"{others} may create objects in schema public, beside pgvector, where what owners of"
            f" ragpg run could take them for its own; run `revoke create on schema public from"
            f" {others}` as the owner of that schema"
        )


def judge_usage(shut_out: Sequence[str]) -> None:
    """Raise ConfigurationError for the roles of ragpg in SHUT_OUT_OF_PUBLIC."""
    if shut_out:
        names = ", ".join(shut_out)
        raise ConfigurationError(
            f"{names} may not use schema public, where the types of pgvector are; as the owner of"
            f" that schema run `grant usage on schema public to {names}`"
        )


def reader_warnings(lost: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """What is to be done about LOST_READERS, in a sentence; none if there are none."""
    if not lost:
        return ()
    names = ", ".join(f"{role!r} of {tenant!r}" for role, tenant in lost)
    return (
        (
            f"these readers were bound to a tenant and are no more, as after a restore without"  # noqa: S608
            f" their roles, so all unbound readers are refused: {names}; create the roles, then as"
            " ragpg_owner `select ragpg.bind_readers_again()`, and for those who are not to come"
            " back `delete from ragpg.reader_name where role_name = '..'`"
        ),
    )


def unbound_sentence(names: Sequence[str]) -> str:
    """What readers may do that are bound to no tenant, and how to bind one."""
    return (
        f"bound to no tenant, so may read any: {', '.join(map(repr, names))}; to bind one, as"  # noqa: S608
        " ragpg_owner `insert into ragpg.reader_tenant select '..', tenant_id from ragpg.tenant"
        " where key = '..'`"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
