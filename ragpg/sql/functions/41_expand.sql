-- 41_expand.sql: what stands around a hit, so that a reader sees more than the passage found.

create or replace function ragpg.expand(
    collection text,
    chunk_ids bigint[],
    unit text default 'neighbours'
)
returns table (place integer, chunk_id bigint, expanded_from bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    tenant integer := ragpg.current_tenant();
    home integer := ragpg.collection_number(expand.collection);
    -- 41 chunks of a section at most, about 16,000 tokens: where a document has no headings, all of
    -- it is one section.
    reach integer;
begin
    reach := case unit when 'neighbours' then 1 when 'section' then 20 end;
    if reach is null then
        raise exception using errcode = 'RG009',
            message = format('the unit is %L, it must be neighbours or section', unit),
            hint = 'neighbours adds the chunk before and after, section all of the same section.';
    end if;
    if cardinality(chunk_ids) > 1000 then
        raise exception using errcode = 'RG009',
            message = format('%s chunks are to be expanded, 1000 are allowed', cardinality(chunk_ids)),
            hint = 'Expand the hits that you show.';
    end if;
    return query
      with origin as (
               select chunk.chunk_id, chunk.document_id, chunk.position, chunk.section_path,
                      min(given.place) as place
                 from unnest(chunk_ids) with ordinality as given(chunk_id, place)
                 join ragpg.chunk on chunk.tenant_id = tenant and chunk.collection_id = home
                                 and chunk.chunk_id = given.chunk_id
                 join ragpg.document on document.tenant_id = tenant
                                    and document.document_id = chunk.document_id
                where document.expires_at is null or document.expires_at > now()
                group by chunk.chunk_id, chunk.document_id, chunk.position, chunk.section_path
           ),
           around as (
               select origin.place, origin.chunk_id as expanded_from, near.chunk_id, near.position
                 from origin
                cross join lateral (
                          -- Sections of one path may stand apart; only the run around the hit counts.
                          select chunk.chunk_id, chunk.position,
                                 chunk.section_path = origin.section_path as same_section,
                                 count(*) filter (where chunk.section_path <> origin.section_path)
                                     over (order by chunk.position) as others_before,
                                 count(*) filter (where chunk.section_path <> origin.section_path
                                                    and chunk.position < origin.position)
                                     over () as others_before_origin
                            from ragpg.chunk
                           where chunk.tenant_id = tenant
                             and chunk.document_id = origin.document_id
                             and chunk.position between origin.position - reach
                                                    and origin.position + reach
                      ) as near
                where near.chunk_id <> origin.chunk_id
                  and (unit = 'neighbours'
                       or near.same_section and near.others_before = near.others_before_origin)
                  and not exists (select from origin as given
                                   where given.chunk_id = near.chunk_id)
           ),
           listed as (
               select origin.place, origin.chunk_id, null::bigint as expanded_from, -1 as position
                 from origin
                union all
               select added.place, added.chunk_id, added.expanded_from, added.position
                 from (
                          select distinct on (around.chunk_id) around.*
                            from around
                           order by around.chunk_id, around.place
                      ) as added
           )
    select row_number() over (order by listed.place, listed.position)::integer,
           listed.chunk_id, listed.expanded_from
      from listed
     order by 1;
end $$;
comment on function ragpg.expand is
    'These chunks in their order, each followed by those around it, in document order: the chunk before and after (neighbours), or its section (section: the same section_path without a break, at most 20 chunks before and 20 after). Each chunk once, an added one at the first that brings it (expanded_from). Chunks of another tenant or collection, or expired, are left out. Raises RG001, RG003, RG009.';
