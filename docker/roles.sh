#!/bin/sh
# Runs once, when the volume is empty: the roles of ragpg, and two that may log in.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
     --set owner_password="$RAGPG_OWNER_PASSWORD" \
     --set service_password="$RAGPG_SERVICE_PASSWORD" <<'SQL'
create extension if not exists vector;
create role ragpg_owner nologin;
create role ragpg_app nologin;
create role ragpg_reader nologin;
create role ragpg_migrator login password :'owner_password' in role ragpg_owner;
create role ragpg_service login password :'service_password' in role ragpg_app;
grant create, connect on database ragpg to ragpg_owner;
create schema ragpg authorization ragpg_owner;
create schema ragpg_jobs authorization ragpg_owner;
SQL
