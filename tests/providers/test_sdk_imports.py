from __future__ import annotations

import subprocess
import sys

import pytest

SDKS = ("voyageai", "cohere", "anthropic")


@pytest.mark.parametrize(
    ("module", "loaded"),
    [
        ("ragpg.protocols", []),
        ("ragpg.providers", []),
        ("ragpg.providers.retry", []),
        ("ragpg.providers.prices", []),
        ("ragpg.providers.windows", []),
        ("ragpg.providers.voyage", ["voyageai"]),
        ("ragpg.providers.cohere", ["cohere"]),
        ("ragpg.providers.claude", ["anthropic"]),
        ("ragpg.providers.claude_generate", ["anthropic"]),
    ],
)
def test_a_module_loads_the_sdk_of_its_own_vendor_and_no_other(module, loaded):
    code = f"import sys, {module}; print([s for s in {SDKS} if s in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == str(loaded)
