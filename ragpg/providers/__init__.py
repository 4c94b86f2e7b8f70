"""One vendor, one file, one SDK import; only `ragpg.client` imports these."""
