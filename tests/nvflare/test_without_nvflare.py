"""Without NVFlare the room can be imported, and says what to install."""

import subprocess
import sys

CODE = """
import sys
sys.modules["nvflare"] = None
import sqsgd.federation.nvflare as room
for name in ("SqsgdFilter", "SqsgdAggregator", "Other"):
    try:
        getattr(room, name)
    except (ImportError, AttributeError) as error:
        print(error)
"""


def test_what_to_install_is_told():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "SqsgdFilter needs NVFlare: pip install 'sqsgd[nvflare]'",
        "SqsgdAggregator needs NVFlare: pip install 'sqsgd[nvflare]'",
        "module 'sqsgd.federation.nvflare' has no attribute 'Other'",
    ]
