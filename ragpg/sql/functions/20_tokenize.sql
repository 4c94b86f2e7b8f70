-- 20_tokenize.sql: text to lexemes, the same function for documents and queries.
--
--   words        stop words dropped and stemmed by the text search configuration `language`
--   compounds    kept whole in lower case, unstemmed: err-1042, max_wal_size, os.path.join,
--                etc/nginx/nginx.conf, c++, at&t, v1.2.3 (and 1.2.3); a path also at each level;
--                ERR 1042 and ERR1042 also as err-1042; beside all their parts
--   changing     getUserName, SHA256, K8S: in parts, and whole as getusername, sha256 and k8s are
--   case         read, with which they are found
--   capitals     IT, AWS: also unstemmed; Don inside a sentence: also when it is a stop word
--   accents      cafe is found in café, strasse in straße: the word as written, and once more in
--                plain letters
--   spellings    ١٢٣, १२३ and ๑๒๓ as 123; Persian and Arabic keyboards, vowel points of Arabic and
--                Hebrew, nukta and half nasals of Devanagari alike; invisible characters left out
--   CJK, Thai..  pairs of neighbouring characters; Han and Hangul also one by one
--
-- A chunk's length counts every occurrence of every lexeme, and a lexeme's frequency is its number of
-- positions, of which Postgres keeps 255.

create or replace function ragpg.contextualized(context text, table_header text, text text)
returns text
language sql immutable parallel safe
begin atomic
    select coalesce(context || E'\n\n', '') || coalesce(table_header, '') || text;
end;
comment on function ragpg.contextualized(text, text, text) is
    'What embedding and BM25 read: context, blank line, table header, text.';

create or replace function ragpg._respelled(text text) returns text
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    -- Hyphens are one; ё is mostly written е; what is invisible and, in UAX #29, parts no word is left out.
    words text := translate(_respelled.text,
        E'،؛؟।॥\u2010ёЁ\u00ad\u061c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff',
        '     -еЕ');
begin
    if words !~ '[\u0591-\u17ff]' then
        return words;
    end if;
    -- Lucene's DecimalDigitFilter does this in its Arabic, Persian, Hindi, Bengali and Thai analysis.
    if words ~ '[\u0660-\u0669\u06f0-\u06f9\u0966-\u096f\u09e6-\u09ef\u0a66-\u0a6f\u0ae6-\u0aef\u0b66-\u0b6f\u0be6-\u0bef\u0c66-\u0c6f\u0ce6-\u0cef\u0d66-\u0d6f\u0e50-\u0e59\u0ed0-\u0ed9\u1040-\u1049\u17e0-\u17e9]' then
        words := translate(words, '٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹०१२३४५६७८९০১২৩৪৫৬৭৮৯', repeat('0123456789', 4));
        words := translate(words, '੦੧੨੩੪੫੬੭੮੯૦૧૨૩૪૫૬૭૮૯୦୧୨୩୪୫୬୭୮୯௦௧௨௩௪௫௬௭௮௯', repeat('0123456789', 4));
        words := translate(words, '౦౧౨౩౪౫౬౭౮౯೦೧೨೩೪೫೬೭೮೯൦൧൨൩൪൫൬൭൮൯', repeat('0123456789', 3));
        words := translate(words, '๐๑๒๓๔๕๖๗๘๙໐໑໒໓໔໕໖໗໘໙၀၁၂၃၄၅၆၇၈၉០១២៣៤៥៦៧៨៩', repeat('0123456789', 4));
    end if;
    if words ~ '[\u0591-\u06ed]' then
        -- Points, vowels, tatweel: most texts and nearly all queries are written without.
        words := regexp_replace(words,
            '[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u0652\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]+', '', 'g');
        -- The yeh and kaf of Persian and Urdu, as an Arabic keyboard has them.
        words := translate(words, E'\u06cc\u06a9', E'\u064a\u0643');
    end if;
    if words ~ '[\u0900-\u0dff]' then
        -- Here a joiner chooses a glyph; in Persian the same character parts a word from its ending.
        words := regexp_replace(words, '([\u0900-\u0dff])\u200c', '\1', 'g');
        -- Nukta left out, and न् and candrabindu as anusvara, as in Lucene's HindiNormalizer.
        words := translate(replace(words, E'\u0928\u094d', E'\u0902'), E'\u0901\u093c', E'\u0902');
    end if;
    -- A sara am is taken apart by NFKC, with the tone mark before it or after as it was typed.
    if words ~ '[\u0e4d\u0ecd]' then
        words := regexp_replace(words, '([\u0e4d\u0ecd])([\u0e48-\u0e4b\u0ec8-\u0ecb])', '\2\1', 'g');
    end if;
    return words;
end $$;
comment on function ragpg._respelled(text) is
    'A text in NFKC without invisible characters, its digits 0 to 9 and its Hebrew, Arabic, Indic and Thai words spelled in one way.';

create or replace function ragpg._pairs(text text) returns tsvector
language sql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
    select coalesce(string_agg('''' || gram || ''':' || places, ' ')::tsvector, ''::tsvector)
      from (
               select gram, string_agg(least(place, 16383)::text, ',') as places
                 from (
                          select substr(run.found[1], step, width) as gram,
                                 row_number() over () as place
                            from regexp_matches(text,
                                     '([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+)',
                                     'g') as run(found),
                                 generate_series(1, length(run.found[1])) as step,
                                 generate_series(1, 2) as width
                           where width = 1 and (length(run.found[1]) = 1
                                                or substr(run.found[1], step, 1) ~ '[\u3005-\u3007\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]')
                              or width = 2 and step < length(run.found[1])
                      ) as placed
                group by gram
           ) as grouped
$$;
comment on function ragpg._pairs(text) is
    'Lexemes of scripts that are written without spaces: pairs of characters, Han and Hangul also singly.';

create or replace function ragpg._levels(written text) returns text[]
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    whole text := lower(written);
    has_dash boolean := strpos(whole, '-') > 0;
    found text[] := '{}';
    level text;
begin
    if whole ^@ 'v' and whole ~ '^v[0-9]+[.][0-9]' then
        found := found || substr(whole, 2);
    end if;
    if translate(whole, '/:@#', '') <> whole then
        foreach level in array string_to_array(translate(whole, ':@#', '///'), '/') loop
            if translate(level, '-_.', '') <> level then
                found := found || level;
            end if;
        end loop;
    end if;
    if strpos(whole, '.') > 0 then
        foreach level in array string_to_array(translate(whole, '/:@#', '....'), '.') loop
            if translate(level, '-_', '') <> level then
                found := found || level;
            end if;
        end loop;
    end if;
    if has_dash and strpos(whole, '_') > 0 then
        foreach level in array string_to_array(translate(whole, './:@#', '-----'), '-') loop
            if level ~ '[^_]_' then
                found := found || level;
            end if;
        end loop;
    end if;
    return found;
end $$;
comment on function ragpg._levels(text) is
    'The identifiers that an identifier of several parts holds; the same one may come twice.';

create or replace function ragpg._compounds(text text) returns tsvector
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    pattern text := '[0-9A-Za-z_\u00aa-\u1fff\u2c00-\u2fef\u3005-\ud7ff]+(?:[-./:@#]+[0-9A-Za-z_\u00aa-\u1fff\u2c00-\u2fef\u3005-\ud7ff]+)+'
        || '|[0-9A-Za-z\u00aa-\u1fff]+(?:_+[0-9A-Za-z\u00aa-\u1fff]+)+'
        || '|\y[A-Z]{2,8} ?[0-9]{2,}\y'
        || '|\y[A-Z]{2,5}\y';
    hit text;
    place integer := 0;
    original text;
    level text;
    written text := '';
begin
    -- These are rare, and trying them too at every character takes longer than all the others.
    if text ~ '[A-Za-z](?:\+\+|#)|[A-Z]&[A-Z]|\.NET|^[A-Z][a-z]{1,3}$|[a-z0-9,] [A-Z][a-z]{1,3}(?:[^a-z]|$)' then
        pattern := pattern
            || '|\y[A-Za-z]{1,2}(?:\+\+|#)(?![0-9A-Za-z])'
            || '|\y[A-Z]+&[A-Z]+\y'
            || '|\.NET\y'
            || '|^[A-Z][a-z]{1,3}$'
            -- Not the head of a compound: Err-1042 is one whole, whatever stands before it.
            || '|[a-z0-9,] (?:[A-Z][a-z]{1,3}\y(?![-./:@#]+[0-9A-Za-z_\u00aa-\u1fff]))';
    end if;
    -- A statement for the whole costs more than all the steps that a loop takes for a few of them, and
    -- an expression more than a comparison.
    foreach hit in array array(
        select match[1] from regexp_matches(text, '(' || pattern || ')', 'g') as match) loop
        place := least(place + 1, 16383);
        original := case
            when substr(hit, 2, 1) = ' ' then substr(hit, 3)
            when strpos('0123456789', right(hit, 1)) > 0 and hit ~ '^[A-Z]{2,8} ?[0-9]+$'
            then regexp_replace(hit, '^([A-Z]+) ?', '\1-')
            else left(hit, 200) end;
        if length(original) >= 2 then
            written := written || '''' || lower(original) || ''':' || place || ' ';
        end if;
        if translate(original, './:@#', '') <> original
           or strpos(original, '-') > 0 and strpos(original, '_') > 0
        then
            foreach level in array ragpg._levels(original) loop
                if length(level) >= 2 then
                    written := written || '''' || level || ''':' || place || ' ';
                end if;
            end loop;
        end if;
    end loop;
    -- The cast brings the places of equal lexemes together.
    return written::tsvector;
end $$;
comment on function ragpg._compounds(text) is
    'Identifiers, codes, paths, versions and capitals of a text, whole and at each level, unstemmed.';

create or replace function ragpg.tokenize(text text, language text default 'english')
returns tsvector
-- As definer, since its parts are not for callers.
language plpgsql immutable strict parallel safe security definer
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    words text := tokenize.text;
    lexemes tsvector := '';
    -- Where a word changes case, or from letters to digits, and is parted.
    changes constant text := '[a-z0-9][A-Z]|[A-Z][A-Z][a-z][a-z]|[A-Z][A-Z][0-9][0-9]';
    piece text;
    start integer := 1;
begin
    if length(words) > 8000 then
        -- Piecewise, since a tsvector ends at 1,048,575 bytes; what is beyond that, or beyond the
        -- first million characters, is left out.
        words := left(words, 1000000);
        while start <= length(words) and pg_column_size(lexemes) < 750000 loop
            piece := substr(words, start, 8000);
            if start + 8000 <= length(words) and piece ~ '\s\S{0,250}$' then
                piece := regexp_replace(piece, '\S{0,250}$', '');
            end if;
            start := start + greatest(length(piece), 1);
            lexemes := lexemes || ragpg.tokenize(piece, tokenize.language);
        end loop;
        return lexemes;
    end if;
    if octet_length(words) <> length(words) then
        words := normalize(words, NFKC);
        if words ~ '[\u00ad\u0401\u0451\u0591-\u17ff\u200d-\u2010\u202a-\u202e\u2060-\u2069\ufeff]' then
            words := ragpg._respelled(words);
        end if;
        if words ~ '[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]' then
            lexemes := ragpg._pairs(words);
            words := regexp_replace(words,
                '[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+',
                ' ', 'g');
        end if;
        if words ~ '[\u00c0-\u024f\u1e00-\u1eff]' then
            words := words || coalesce((
                select ' ' || string_agg(regexp_replace(spelled.out, '[\u0300-\u036f]', '', 'g'), ' ')
                  from regexp_matches(words,
                           '([A-Za-z]*[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff][A-Za-z\u00c0-\u024f\u1e00-\u1eff]*)',
                           'g') as accented(found),
                       -- Letters that do not decompose, as their languages write them in ASCII.
                       lateral (select replace(replace(replace(replace(replace(
                                           translate(normalize(accented.found[1], NFKD),
                                                     'øØłŁđĐðÐı', 'oOlLdDdDi'),
                                           'ß', 'ss'), 'æ', 'ae'), 'Æ', 'AE'), 'œ', 'oe'), 'Œ', 'OE')
                                       as out) as spelled
                 where spelled.out <> accented.found[1]), '');
        end if;
        words := regexp_replace(words,
            '[^\u0001-\u007f\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u1fff\u2c00-\u2dff\u2e80-\u2fef\u3005-\u3007\u3021-\ud7ff\uf900-\ufefc\uff66-\uffdc\U00010000-\U0001efff\U00020000-\U0003ffff]+',
            ' ', 'g');
    end if;
    -- A run of more than 200 characters is a blob (base64, a hash chain): its head stands for it.
    if words ~ '[0-9A-Za-z+/=_]{50}' and words ~ '[0-9A-Za-z+/=_]{201}' then
        words := regexp_replace(words, '([0-9A-Za-z+/=_]{200})[0-9A-Za-z+/=_]+', '\1', 'g');
    end if;
    lexemes := lexemes || ragpg._compounds(words);
    if words ~ changes then
        -- The whole of what is about to be parted, as it would be read in lower case.
        piece := array_to_string(array(
            select lower(parted[1])
              from regexp_matches(words, '([0-9A-Za-z]*(?:' || changes || ')[0-9A-Za-z]*)', 'g')
                   as parted), ' ');
        words := regexp_replace(words, '([a-z0-9])([A-Z])', '\1 \2', 'g');
        words := regexp_replace(words, '([A-Z])([A-Z][a-z][a-z])', '\1 \2', 'g');
        words := regexp_replace(words, '([A-Z][A-Z])([0-9][0-9])', '\1 \2', 'g');
        words := words || ' ' || piece;
    end if;
    return lexemes || to_tsvector(
        tokenize.language::regconfig,
        -- Not the blanks, which are most of what is neither letter nor digit.
        regexp_replace(words,
            '[\u0001-\u0008\u000e-\u001f\u0021-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u007f]+', ' ', 'g'));
end $$;
comment on function ragpg.tokenize(text, text) is
    'The lexemes of a document or a query: stemmed words, identifiers whole and in parts, pairs of CJK characters. language is a text search configuration.';

create or replace function ragpg.lexeme_number(lexeme text) returns integer
language sql immutable strict parallel safe
begin atomic
    select (hashtextextended(lexeme, 0) & 1073741823)::integer % 999999999 + 1;
end;
comment on function ragpg.lexeme_number(text) is
    'The dimension of a lexeme in a weight vector, 1 to 999,999,999: a hash, so that no dictionary is shared by writers. In a collection of half a million lexemes, one lexeme in 2,000 shares its number.';
