"""Invalid arguments raise a ValueError that names the argument and its value."""

import pytest


def refuse(match, call):
    with pytest.raises(ValueError, match=match):
        call()
