"""What is left in the SuperLink's store after a round: nothing. With Flower's own grid and object store."""

import pytest
from federation import IDS, model, strategy
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.run import Run
from test_parts import HOSTILE, Link, RealGrid, another_kind, bomb, large

from sqsgd.flower import gathering
from sqsgd.flower.store_trimming import discard

RUN = 7
pytestmark = pytest.mark.filterwarnings(
    "ignore:No path_separator:DeprecationWarning"
)  # of Alembic, to Flower


class StoringLink(Link):
    """A SuperLink that stores as Flower's does. No node confirms a request, as if it had died."""

    def __init__(self, folder, spoil) -> None:
        super().__init__(folder, spoil)
        self.store, self.most = SqlObjectStore(str(folder / "link.db"), verify=False), 0
        self.store.initialize()

    def PushMessages(self, request):  # noqa: N802
        for tree in request.message_object_trees:
            self.store.preregister(RUN, tree)
        return super().PushMessages(request)

    def PushObject(self, request):  # noqa: N802
        self.store.put(request.object_id, request.object_content)
        return super().PushObject(request)

    def PullMessages(self, request) -> PullAppMessagesResponse:  # noqa: N802
        response = super().PullMessages(request)
        for tree in response.message_object_trees:
            for part in (tree, *tree.children):
                if part.object_id not in self.store:
                    self.store.preregister(RUN, tree)
                if content := self.objects.get(part.object_id):
                    self.store.put(part.object_id, content)
        self.most = max(self.most, len(self.store))
        return response

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.store.delete(request.message_object_id)


def honest(reply, contents):
    return contents


def withheld(reply, contents):
    """Announced, and never sent."""
    return {reply.object_id: contents[reply.object_id], get_object_id(b"never sent"): b""}


def trained(folder, spoil):
    link, grid = StoringLink(folder, spoil), RealGrid(token="of no use")  # noqa: S106
    grid._client = link
    grid.set_run(Run.create_empty(RUN))
    made = strategy()
    made.start(grid, model(), num_rounds=2, timeout=4.0)
    assert HOSTILE in IDS
    return made, link


@pytest.mark.parametrize("spoil", [honest, bomb, large, another_kind, withheld])
def test_nothing_of_a_round_is_left(tmp_path, spoil):
    made, link = trained(tmp_path, spoil)
    assert len(made.current.reports) == (3 if spoil is honest else 2)
    assert link.most > 3
    assert len(link.store) == 0


@pytest.mark.parametrize("spoil", [honest, bomb])
def test_flower_by_itself_keeps_it_until_the_run_ends(tmp_path, monkeypatch, spoil):
    """The test above fails where nothing is discarded."""
    monkeypatch.setattr(gathering, "discard", lambda grid, message: None)
    _, link = trained(tmp_path, spoil)
    assert len(link.store) > 3


def test_a_grid_without_a_connection_has_nothing_to_discard():
    discard(object(), "a message")
