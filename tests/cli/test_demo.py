"""`make demo`, on the test server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_ingests_the_examples_and_answers_three_questions(database):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAGPG_")
    } | {
        "RAGPG_DATABASE_URL": database.service_url,
        "RAGPG_OWNER_DATABASE_URL": database.owner_url,
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "demo" / "run.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ingesting 3 documents" in done.stdout
    questions = json.loads((ROOT / "demo" / "questions.json").read_text("utf-8"))
    assert [question["supported"] for question in questions] == [True, True, False]
    # Lines are wrapped.
    shown = " ".join(done.stdout.split())
    for question in questions:
        _, rule, shown = shown.partition(question["query"])
        assert rule, question
        answer, model, rest = shown.partition("no model wrote this")
        assert model
        # Behind the hits' times stands the answer, behind the answer its citations.
        answer = answer.rpartition(" ms ")[2]
        citations = rest.partition(" ms ")[0]
        if question["supported"]:
            assert question["answer"] in answer
            assert "[1]" in answer
            assert f"[1] {question['document']}, " in citations
            assert question["answer"] in citations.partition('"')[2]
        else:
            assert answer.startswith("The documents do not answer this.")
            assert "[1]" not in citations
    assert done.stdout.rstrip().endswith("s in all")
