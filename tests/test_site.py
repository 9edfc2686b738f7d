"""The site builds without network access and without warnings; anything undocumented fails it."""

import importlib.util
import json
import re
import subprocess
import sys
import time

import pytest
from test_docs import ROOT

import sqsgd
import sqsgd.cli

SPEC = importlib.util.spec_from_file_location("reference_pages", ROOT / "docs/hooks/reference.py")
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    pytest.importorskip("flwr", reason="the flower extra is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    # The build must not even try to use the network.
    offline = "import socket\ndef refused(*_): raise OSError('the build asked for the network')\n"
    offline += "socket.socket.connect = socket.getaddrinfo = refused\n"
    (folder.parent / "sitecustomize.py").write_text(offline)
    path = f"{folder.parent}:{ROOT / 'src'}"
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_page_fetches_anything(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text()):
            assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), (page.name, tag)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", style.read_text()), style.name


def test_the_reference_names_every_command_key_scheme_and_public_name(site):
    from sqsgd.training.settings import FIELDS

    def page(name):
        return (site / f"reference/{name}.html").read_text()

    for command in ("train", "compare", "ledger verify", "data fetch", "doctor"):
        assert f"sqsgd {command}" in page("commands")
    assert all(f"<code>{name}</code>" in page("configuration") for name in FIELDS)
    assert all(f'id="{name.lower()}"' in page("python").lower() for name in sqsgd.__all__)
    assert all(f'id="{name}"' in page("schemes") for name in sqsgd.SCHEMES)
    for where, names in {
        "loop": ("settings", "client_step", "server_step"),
        "flower-classes": ("clientapp", "sqsgdmod", "sqsgdstrategy"),
    }.items():
        assert all(f'id="{name}"' in page(where) for name in names)


def searched(browser, page, word):
    """What the search of a page from disk shows for a word."""
    browser.open(page)
    browser.run("document.querySelector('[data-md-component=search-query]').focus()")
    browser.send("Input.insertText", text=word)
    found, deadline = "", time.monotonic() + 30
    while word not in found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = browser.run("document.querySelector('.md-search-result').innerText").lower()
    assert browser.errors == []
    return found


def test_the_search_works_on_pages_from_disk_also_beside_punctuation(site, browser):
    """Such as for keys in dotted names and what stands in brackets, which its default does not find."""
    assert "ledger" in searched(browser, site / "how-to/resume.html", "witness")
    index = json.loads((site / "search/search_index.json").read_text())
    apart, beside = set(), set()
    for page in index["docs"]:
        text = re.sub(r"<[^>]+>", " ", f"{page['title']} {page['text']}").lower()
        apart |= set(re.findall(r"(?:^|[\s-])([a-z]{5,})", text))
        beside |= set(re.findall(r"[.:/_=(\[\"`]([a-z]{5,})\b", text))
    word = sorted(beside - apart, key=lambda each: (-len(each), each))[0]
    assert word in searched(browser, site / "how-to/resume.html", word)


def silenced(monkeypatch, item, text=None):
    monkeypatch.setattr(item, "__doc__", text)


def new_name(monkeypatch):
    monkeypatch.setattr(sqsgd, "new_name", lambda: None, raising=False)
    monkeypatch.setattr(sqsgd, "__all__", [*sqsgd.__all__, "new_name"])


def undescribed(monkeypatch):
    described = reference.field_docstrings
    without = lambda cls: {k: v for k, v in described(cls).items() if k != "track"}  # noqa: E731
    monkeypatch.setattr(reference, "field_docstrings", without)


def silent_option(monkeypatch):
    import typer

    def silent(rounds: int = 3) -> None:
        """Has a docstring."""

    monkeypatch.setattr(sqsgd.cli, "app", app := typer.Typer())
    app.command()(silent)
    app.command("other")(silent)


GENERATED = "Privacy(*, epsilon: 'float', notion: 'str')"


@pytest.mark.parametrize(
    ("remove", "part", "name"),
    [
        (lambda patch: silenced(patch, COMMANDS["doctor"].callback), "commands", "sqsgd doctor"),
        (silent_option, "commands", "--rounds"),
        (lambda patch: silenced(patch, sqsgd.Task.stream), "python", r"Task\.stream"),
        (new_name, "python", "new_name"),
        (lambda patch: silenced(patch, sqsgd.Privacy, GENERATED), "python", "Privacy"),
        (lambda patch: silenced(patch, sqsgd.SCHEMES["vqsgd"], ""), "schemes", "vqsgd"),
        (undescribed, "configuration", r"RunConfig\.track"),
    ],
)
def test_anything_undocumented_fails_the_build(monkeypatch, remove, part, name):
    """A command, an option, a member, a name, a class with a generated docstring, a scheme, a key."""
    remove(monkeypatch)
    with pytest.raises(reference.Undocumented, match=name):
        reference.on_page_markdown(f"# Page\n\n<!-- generated: {part} -->\n")


COMMANDS = {command.callback.__name__: command for command in sqsgd.cli.app.registered_commands}
