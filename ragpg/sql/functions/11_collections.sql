-- 11_collections.sql: collections and their aliases, by name.

create or replace function ragpg.collection_number(collection text) returns integer
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    found_id integer;
begin
    select named.collection_id into found_id
      from (
               select collection.collection_id
                 from ragpg.collection
                where collection.tenant_id = tenant
                  and collection.name = collection_number.collection
               union all
               select collection_alias.collection_id
                 from ragpg.collection_alias
                where collection_alias.tenant_id = tenant
                  and collection_alias.alias = collection_number.collection
           ) as named
     limit 1;
    if found_id is null then
        raise exception using errcode = 'RG003',
            message = format('the tenant has no collection %L', collection_number.collection),
            hint = 'Check the name, or create the collection first.';
    end if;
    return found_id;
end $$;
comment on function ragpg.collection_number(text) is
    'The number of the current tenant''s collection of this name or alias. Raises RG001, RG003.';

create or replace function ragpg._own_filter(collection integer, filter jsonpath) returns jsonpath
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return (case when filter::text like 'strict %' then 'strict ' else '' end
            || '$."@collection" == ' || collection
            || ' && (' || regexp_replace(filter::text, '^strict ', '') || ')')::jsonpath;
exception when syntax_error then
    raise exception using errcode = 'RG009',
        message = format('the filter %s is not a condition', filter),
        hint = 'Compare something, as in $.year >= 2025; a path alone is neither true nor false.';
end $$;
comment on function ragpg._own_filter(integer, jsonpath) is
    'The filter behind a condition on the collection, without which an index recheck or the planner would evaluate it on rows of other tenants, whose content errors and time could then tell.';

create or replace function ragpg._tagged(
    collection integer,
    tags_all text[],
    tags_any text[],
    row_count bigint default null,
    expected bigint default null,
    others bigint default null
)
returns text
language sql stable parallel safe
begin atomic
    -- An entry of the index takes .075 of what a row takes. A row in expected / others has the tags.
    -- 50 rows are read sooner than it is planned to combine two indexes.
    select case when row_count <= 50 then null
                when others::double precision * (others - expected) < 0.075 * row_count * expected
                then null
                -- Every chunk has all of no tags; asked for no key, the index would read all entries.
                else concat(
                    case when cardinality(tags_all) > 0 then format(
                        ' and ragpg.tag_keys(embedding.collection_id, embedding.tags)'
                        ' @> ragpg.tag_keys(%s, $3)', collection) end,
                    case when tags_any is not null then format(
                        ' and ragpg.tag_keys(embedding.collection_id, embedding.tags)'
                        ' && ragpg.tag_keys(%s, $4)', collection) end) end;
end;
comment on function ragpg._tagged(integer, text[], text[], bigint, bigint, bigint) is
    'The conditions on tags by which the index of tags finds the chunks of a collection; parameters are numbered as in the arms of a search. Null where so few of the row_count rows pass the other conditions that these are asked for their tags sooner: others pass those, expected all. Rows found otherwise are not to be asked for keys, a microsecond each.';

create or replace function ragpg._check_recipe(recipe jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    required constant text[] := array[
        'embedding_provider', 'embedding_model', 'dimensions', 'embedding_dtype',
        'context_provider', 'context_model', 'context_prompt_version', 'glossary',
        'splitter', 'max_tokens', 'overlap_tokens', 'language'];
    optional constant text[] := array['context_reuse', 'failed_contexts', 'whole_corpus_tokens'];
    unknown text;
    missing text;
    language regconfig;
begin
    if coalesce(jsonb_typeof(_check_recipe.recipe), 'null') <> 'object' then
        raise exception using errcode = 'RG009',
            message = 'a recipe is a JSON object',
            hint = format('Give it the keys %s.', array_to_string(required, ', '));
    end if;
    select string_agg(quote_literal(given.key), ', ' order by given.key) into unknown
      from jsonb_object_keys(_check_recipe.recipe) as given(key)
     where given.key <> all (required || optional);
    if unknown is not null then
        raise exception using errcode = 'RG009',
            message = format('a recipe has no key %s', unknown),
            hint = format('Its keys are %s.', array_to_string(required || optional, ', '));
    end if;
    select string_agg(wanted.key, ', ' order by wanted.place) into missing
      from unnest(required) with ordinality as wanted(key, place)
     where _check_recipe.recipe ->> wanted.key is null;
    if missing is not null then
        raise exception using errcode = 'RG009',
            message = format('the recipe lacks %s', missing),
            hint = 'Give them, or copy the recipe of a collection that there is, in ragpg.collection.';
    end if;
    begin
        language := (_check_recipe.recipe ->> 'language')::regconfig;
    exception when undefined_object or invalid_schema_name or invalid_name or syntax_error
        or numeric_value_out_of_range then
        null;
    end;
    -- A number is read as an oid, whether there is one or not.
    if language is null or not exists (select from pg_ts_config where pg_ts_config.oid = language)
    then
        raise exception using errcode = 'RG009',
            message = format('language %L is no text search configuration of this server',
                             _check_recipe.recipe ->> 'language'),
            hint = format('Use simple, or one of %s.',
                          (select string_agg(pg_ts_config.cfgname::text, ', ' order by cfgname)
                             from pg_ts_config
                            where pg_ts_config.cfgnamespace = 'pg_catalog'::regnamespace
                              and pg_ts_config.cfgname <> 'simple'));
    end if;
end $$;
comment on function ragpg._check_recipe(jsonb) is
    'Raises RG009 for a recipe that lacks a key, has one that no recipe has, or names a language that this server does not know.';

create or replace function ragpg.create_collection(name text, recipe jsonb) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    made_id integer;
begin
    perform ragpg._check_recipe(create_collection.recipe);
    perform pg_catalog.pg_advisory_xact_lock(hashtextextended('ragpg.collection', tenant));
    if exists (
        select from ragpg.collection_alias
         where collection_alias.tenant_id = tenant and collection_alias.alias = create_collection.name
    ) then
        raise exception using errcode = 'RG006',
            message = format('%L is an alias already', create_collection.name),
            hint = 'Choose another name for the collection.';
    end if;
    insert into ragpg.collection (
        tenant_id, name, embedding_provider, embedding_model, dimensions, embedding_dtype,
        context_provider, context_model, context_prompt_version, glossary,
        splitter, max_tokens, overlap_tokens, language, context_reuse, failed_contexts,
        whole_corpus_tokens)
    select tenant, create_collection.name,
           given.embedding_provider, given.embedding_model, given.dimensions, given.embedding_dtype,
           given.context_provider, given.context_model, given.context_prompt_version, given.glossary,
           given.splitter, given.max_tokens, given.overlap_tokens, given.language,
           coalesce(given.context_reuse, 'chunk'), coalesce(given.failed_contexts, 'publish'),
           coalesce(given.whole_corpus_tokens, 20000)
      from jsonb_to_record(create_collection.recipe) as given(
               embedding_provider text, embedding_model text, dimensions integer,
               embedding_dtype text, context_provider text, context_model text,
               context_prompt_version integer, glossary text, splitter text,
               max_tokens integer, overlap_tokens integer, language text,
               context_reuse text, failed_contexts text, whole_corpus_tokens integer)
        on conflict on constraint collection_name_unique do nothing
    returning collection.collection_id into made_id;
    if made_id is null then
        raise exception using errcode = 'RG006',
            message = format('the tenant has a collection %L already', create_collection.name),
            hint = 'Use it, or choose another name.';
    end if;
    return made_id;
end $$;
comment on function ragpg.create_collection(text, jsonb) is
    'Makes a collection of the current tenant under this recipe and returns its number. Keys of the recipe, all of them needed: embedding_provider, embedding_model, dimensions, embedding_dtype (float, int8), context_provider, context_model, context_prompt_version, glossary, splitter (section, fixed, semantic, whole), max_tokens, overlap_tokens, language; those that may be left out: context_reuse (chunk, document), failed_contexts (publish, hold), whole_corpus_tokens (20000). What each means is in the comments of ragpg.collection''s columns. Raises RG006 when the name is taken, RG009 for another key, one that lacks, or an unknown language.';

create or replace function ragpg.set_alias(alias text, collection text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
begin
    perform pg_catalog.pg_advisory_xact_lock(hashtextextended('ragpg.collection', tenant));
    if exists (
        select from ragpg.collection
         where collection.tenant_id = tenant and collection.name = set_alias.alias
    ) then
        raise exception using errcode = 'RG006',
            message = format('%L is a collection, not an alias', set_alias.alias),
            hint = 'Choose another alias.';
    end if;
    insert into ragpg.collection_alias (tenant_id, alias, collection_id)
    values (tenant, set_alias.alias, ragpg.collection_number(set_alias.collection))
        on conflict on constraint collection_alias_pkey
        do update set collection_id = excluded.collection_id;
end $$;
comment on function ragpg.set_alias(text, text) is
    'Makes alias mean this collection from the next statement on: how a new recipe goes live.';

create or replace function ragpg.delete_collection(collection text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenant integer := ragpg.current_tenant();
    doomed integer := ragpg.collection_number(delete_collection.collection);
begin
    -- In the order of 11_locks.sql; everything below goes with the row, by foreign keys.
    perform pg_advisory_xact_lock(hashtextextended('ragpg.rebuild_lexical', doomed));
    perform from ragpg.collection
      where collection.tenant_id = tenant and collection.collection_id = doomed for update;
    delete from ragpg.collection
     where collection.tenant_id = tenant and collection.collection_id = doomed;
end $$;
comment on function ragpg.delete_collection(text) is
    'Deletes a collection of the current tenant with all its documents, searches and aliases.';
