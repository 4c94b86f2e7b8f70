"""`ragpg ask` with Claude on a small collection says that it read all of it."""

from __future__ import annotations

import json

from tests.cli.test_commands import EXAMPLES, CommandLine
from tests.vendor_stub import VendorStub


def test_ask_reads_a_small_collection_whole_and_prints_and_logs_it(database):
    with VendorStub() as stub:
        ragpg = CommandLine(
            {
                "RAGPG_DATABASE_URL": database.service_url,
                "ANTHROPIC_API_KEY": "sk-ant-test",
                "RAGPG_ANTHROPIC_BASE_URL": stub.anthropic_url,
            }
        )
        ragpg("ingest", str(EXAMPLES), "-t", "acme")
        shown = ragpg("ask", "What happened in incident 2025-05-18?", "-t", "acme").stdout
        chunks = json.loads(ragpg("sql", "table ragpg.chunk", "-t", "acme", "--json").stdout)
        assert f"read whole: {len(chunks)} chunks of 3 documents, no search\n" in shown
        assert "[1] warehouse-cost-runbook.md" in shown
        where = '{"tags": {"any": ["cost"]}}'
        answer = json.loads(
            ragpg("ask", "What is COST-103?", "-t", "acme", "--where", where, "--json").stdout
        )
        assert answer["mode"] == "whole_corpus"
        assert {hit["document_key"] for hit in answer["hits"]["hits"]} == {
            "warehouse-cost-runbook.md"
        }
        ragpg("sql", "select ragpg.set_whole_corpus_tokens('default', 0)", "-t", "acme")
        shown = ragpg("ask", "What happened in incident 2025-05-18?", "-t", "acme").stdout
        assert "read whole" not in shown
        assert "reranked by blend" in shown
        modes = ragpg(
            "sql", "select mode from ragpg.search order by search_id", "-t", "acme", "--json"
        ).stdout
        assert [row["mode"] for row in json.loads(modes)] == [
            "whole_corpus",
            "whole_corpus",
            "retrieved",
        ]
