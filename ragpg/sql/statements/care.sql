-- Corpus care.

-- name: stale_documents
select stale.document_key, stale.title, stale.owner, stale.review_by, stale.overdue_days,
       stale.modified_at, stale.age_days, stale.expires_at
  from ragpg.stale_documents(%(collection)s, %(unmodified_days)s) as stale;

-- name: delete_expired
select expired.key from ragpg.delete_expired(%(collection)s) as expired(key);
