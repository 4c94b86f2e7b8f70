-- Corpus care.

-- name: stale_documents
select stale.document_key, stale.title, stale.owner, stale.review_by, stale.overdue_days,
       stale.modified_at, stale.age_days, stale.expires_at
  from ragpg.stale_documents(%(collection)s, %(unmodified_days)s) as stale;

-- name: delete_expired
select expired.key from ragpg.delete_expired(%(collection)s, %(most_chunks)s) as expired(key);

-- name: prune_log
select ragpg.prune_log(%(older_than_days)s, %(most)s) as pruned;

-- name: overdue
-- Of all tenants; for workers.
select overdue.tenant, overdue.collection, overdue.expired, overdue.old_log
  from ragpg_jobs.overdue(%(log_days)s) as overdue;
