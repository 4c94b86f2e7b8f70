"""`make demo`, on the test server."""

from __future__ import annotations

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
    assert done.stdout.count("no model wrote this") == 3
    assert done.stdout.rstrip().endswith("s in all")
