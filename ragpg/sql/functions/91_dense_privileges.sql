-- 91_dense_privileges.sql: both service and reader may look at the dense arm, each at its tenant.

grant select on
    ragpg.dense_setting, ragpg.dense_collection, ragpg.dense_recall, ragpg.index_health
    to ragpg_app, ragpg_reader;
grant execute on function
    ragpg.dense_mode(bigint, integer, boolean), ragpg.dense_index_state(boolean)
    to ragpg_app, ragpg_reader;
