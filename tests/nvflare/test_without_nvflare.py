"""Without NVFlare the room can be imported, and says what to install."""

import subprocess
import sys

import pytest

CODE = """
import sys
sys.modules["nvflare"] = None
import sqsgd.federation.nvflare
try:
    sqsgd.federation.nvflare.{name}
except {error} as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("SqsgdFilter", "ImportError", "SqsgdFilter needs NVFlare: pip install 'sqsgd[nvflare]'"),
        ("SqsgdAggregator", "ImportError", "SqsgdAggregator needs NVFlare: pip install 'sqsgd[nvflare]'"),
        ("Other", "AttributeError", "module 'sqsgd.federation.nvflare' has no attribute 'Other'"),
    ],
)
def test_what_to_install_is_told(name, error, told):
    command = [sys.executable, "-c", CODE.format(name=name, error=error)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == told
