"""Privacy that does not depend on an app's author: ``SqsgdMod`` around an app, put there by the node."""

from __future__ import annotations

from typing import final

import flwr.clientapp
from flwr.app import Context, Message

from sqsgd.flower.mod import SqsgdMod


@final
class WrappedApp(flwr.clientapp.ClientApp):
    """An app whose answers all come from a ``SqsgdMod`` of the node.

    Guarantees
    ----------
    * Whatever the app, its own mods and its lifespan function return or raise, one report leaves, or one of
      the fixed errors: tests/flower/test_wrapping.py::test_nothing_else_leaves.
    * An app with a ``SqsgdMod`` of its own pays once for one report:
      tests/flower/test_wrapping.py::test_an_app_with_the_mod_is_not_wrapped_twice.
    * Its ``check`` and ``dry_run``, whose outcomes are told before anything is paid, are used only if the app
      is ``trusted``: tests/flower/test_wrapping.py::test_the_checks_of_other_apps_tell_nothing.
    * Its simulation settings are ignored:
      tests/flower/test_wrapping.py::test_no_app_simulates_on_a_wrapping_node,
      ::test_an_app_that_uses_ray_is_not_a_simulation.
    """

    def __init__(self, app: flwr.clientapp.ClientApp, *, trusted: bool = False) -> None:
        """``trusted``: the app is that of the installed ``sqsgd``, whose checks look at no data."""
        super().__init__()
        own = (mod for mod in app._mods if type(mod) is SqsgdMod and trusted)
        self._app, self._mod = app, next(own, SqsgdMod()).without_simulation()

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message; the app is only asked to compute."""
        return self._mod(message, context, self._app)
