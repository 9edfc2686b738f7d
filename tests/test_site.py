"""The site builds without network access and without warnings; anything undocumented fails it."""

import importlib.util
import json
import re
import subprocess
import sys
import time

import pytest
from test_docs import ROOT

from sqsgd import central_guarantee, make_scheme

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
    environment = {
        "PYTHONPATH": f"{folder.parent}:{ROOT / 'src'}",
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
    }
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
    import sqsgd
    from sqsgd.training.settings import FIELDS

    def page(name):
        return (site / f"reference/{name}.html").read_text()

    for command in ("train", "compare", "ledger verify", "data fetch", "doctor"):
        assert f"sqsgd {command}" in page("commands")
    assert all(f"<code>{name}</code>" in page("configuration") for name in FIELDS)
    assert all(f'id="{name.lower()}"' in page("python").lower() for name in sqsgd.__all__)
    assert all(f'id="{name}"' in page("schemes") for name in sqsgd.SCHEMES)
    assert not any("generated:" in page(name) for name in ("commands", "configuration", "loop", "python"))
    for name in ("client_step", "server_step", "optimizer"):
        assert f'id="{name}"' in page("loop")
    for name in ("clientapp", "sqsgdmod", "sqsgdstrategy"):
        assert f'id="{name}"' in page("flower-classes")
    for row in ("<code>--epsilon</code>", "<code>400.0</code>", "<code>tuning_rounds</code>"):
        assert row in page("commands") + page("configuration")


def test_pages_from_disk_have_light_and_dark_themes_and_fit_a_phone(site, browser):
    paper = "getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number)"
    sizes = "(({scrollWidth, clientWidth}) => [scrollWidth, clientWidth])(document.documentElement)"
    for page in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # which only servers show
        browser.open(page, width=360)
        wide, seen = browser.run(sizes)
        assert wide <= seen, page.name
        assert min(browser.run(paper)) > 200, page.name
        browser.open(page, scheme="dark")
        assert max(browser.run(paper)) < 80, page.name
        assert browser.errors == []


def test_the_search_works_on_pages_from_disk(site, browser):
    browser.open(site / "how-to/resume.html")
    browser.run("document.querySelector('[data-md-component=search-query]').focus()")
    browser.send("Input.insertText", text="witness")
    found, deadline = "", time.monotonic() + 30
    while "ledger" not in found.lower() and time.monotonic() < deadline:
        time.sleep(0.1)
        found = browser.run("document.querySelector('.md-search-result').innerText")
    assert "Ledger" in found
    assert browser.errors == []


def test_the_search_finds_words_beside_punctuation(site, browser):
    """Such as keys in dotted names and what stands in brackets, which its default does not."""
    index = json.loads((site / "search/search_index.json").read_text())
    texts = [re.sub(r"<[^>]+>", " ", f"{page['title']} {page['text']}") for page in index["docs"]]
    apart, beside = set(), set()
    for text in texts:
        apart |= set(re.findall(r"(?:^|[\s-])([a-z]{5,})", text.lower()))
        beside |= set(re.findall(r"[.:/_=(\[\"`]([a-z]{5,})\b", text.lower()))
    word = sorted(beside - apart, key=lambda each: (-len(each), each))[0]
    browser.open(site / "how-to/resume.html")
    browser.run("document.querySelector('[data-md-component=search-query]').focus()")
    browser.send("Input.insertText", text=word)
    found, deadline = "", time.monotonic() + 30
    while word not in found.lower() and time.monotonic() < deadline:
        time.sleep(0.1)
        found = browser.run("document.querySelector('.md-search-result').innerText")
    assert word in found.lower()
    separator = json.dumps(index["config"]["separator"])
    words = f"({json.dumps(texts)}).flatMap(text => text.split(new RegExp({separator})))"
    wrong = browser.run(f"{words}.filter(word => /^[.,;:()`]+[a-z]|[a-z][,;:()`]$/i.test(word)).slice(0, 5)")
    assert wrong == []


def test_powers_are_raised_and_code_is_not():
    assert reference.raised("e^{2ε/n} - 1, 2^20.") == "e<sup>2ε/n</sup> - 1, 2<sup>20</sup>."
    assert reference.raised("2^-32 of {0..K-1}^n") == "2<sup>−32</sup> of {0..K-1}<sup>n</sup>"
    for code in ("`2^20`", "``a^b``", "```text\nx^2\n```"):
        assert reference.raised(code) == code


# Anything undocumented fails: each test removes one description and expects its name in the error.


def test_a_command_without_a_docstring_fails(monkeypatch):
    import sqsgd.cli

    registered = {command.callback.__name__: command for command in sqsgd.cli.app.registered_commands}
    monkeypatch.setattr(registered["doctor"].callback, "__doc__", None)
    with pytest.raises(reference.Undocumented, match="sqsgd doctor"):
        reference.commands()


def test_an_option_without_help_fails():
    import typer

    app = typer.Typer()

    @app.command()
    def silent(rounds: int = 3) -> None:
        """Has a docstring."""

    with pytest.raises(reference.Undocumented, match="--rounds"):
        reference._command(("silent",), typer.main.get_command(app))


def test_a_public_name_or_member_without_a_docstring_fails(monkeypatch):
    import sqsgd

    monkeypatch.setattr(sqsgd.Task.stream, "__doc__", None)
    with pytest.raises(reference.Undocumented, match=r"Task\.stream"):
        reference.python()
    monkeypatch.undo()
    monkeypatch.setattr(sqsgd, "new_name", lambda: None, raising=False)
    monkeypatch.setattr(sqsgd, "__all__", [*sqsgd.__all__, "new_name"])
    with pytest.raises(reference.Undocumented, match="new_name"):
        reference.python()


def test_the_docstring_that_dataclasses_generate_does_not_count(monkeypatch):
    import sqsgd

    monkeypatch.setattr(sqsgd.Privacy, "__doc__", "Privacy(*, epsilon: 'float', notion: 'str')")
    with pytest.raises(reference.Undocumented, match="Privacy"):
        reference.python()


def test_a_scheme_without_a_docstring_fails(monkeypatch):
    import sqsgd

    monkeypatch.setattr(sqsgd.SCHEMES["vqsgd"], "__doc__", "")
    with pytest.raises(reference.Undocumented, match="vqsgd"):
        reference.schemes()


def test_a_key_without_a_description_fails(monkeypatch):
    described = reference.field_docstrings
    monkeypatch.setattr(
        reference, "field_docstrings", lambda cls: {k: v for k, v in described(cls).items() if k != "track"}
    )
    with pytest.raises(reference.Undocumented, match=r"RunConfig\.track"):
        reference.configuration()


def test_a_page_with_an_undocumented_part_does_not_build(monkeypatch):
    def undocumented():
        raise reference.Undocumented("the command `sqsgd new` has no docstring")

    monkeypatch.setitem(reference.PARTS, "commands", undocumented)
    with pytest.raises(reference.Undocumented):
        reference.on_page_markdown("# Page\n\n<!-- generated: commands -->\n")


@pytest.fixture(autouse=True)
def _pictures_find_each_other(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "pictures"))


def drawn_by(name):
    """The module that draws a picture of the site."""
    pytest.importorskip("matplotlib", reason="the docs extra is not installed")
    spec = importlib.util.spec_from_file_location("picture", ROOT / f"docs/pictures/{name}.py")
    picture = importlib.util.module_from_spec(spec)
    sys.modules["picture"] = picture
    spec.loader.exec_module(picture)
    return picture


@pytest.mark.parametrize(
    ("name", "rows"),
    [("accuracy_against_bytes", 15), ("accuracy_against_epsilon", 11), ("accuracy_against_users", 12)],
)
def test_a_picture_shows_its_table(name, rows, tmp_path):
    picture = drawn_by(name)
    assert len(picture.points()) == rows
    picture.draw(tmp_path / "again.svg")
    marks = re.compile(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"')
    assert marks.findall((tmp_path / "again.svg").read_text()) == marks.findall(picture.PICTURE.read_text())


@pytest.mark.parametrize("path", sorted((ROOT / "docs/pictures").glob("*.svg")), ids=lambda path: path.stem)
def test_every_colour_of_a_picture_has_a_dark_one(path):
    style, _, drawn = path.read_text().partition("</style>")
    assert "@media (prefers-color-scheme: dark)" in style
    used = set(re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", drawn))
    assert used <= set(re.findall(r'\[style\*="([^"]+)"\]', style))


def test_the_pictures_show_what_is_claimed():
    points = {point.name: point for point in drawn_by("accuracy_against_bytes").points()}
    assert (points["sqsgd"].accuracy, points["sqsgd"].bytes) == (98.98, 102)
    once = {(point.dataset, point.epsilon): point for point in drawn_by("accuracy_against_epsilon").points()}
    for epsilon, least in ((8, 92.5), (4, 89), (2, 80)):
        assert once["MNIST", epsilon].accuracy >= least
        assert once["MNIST", epsilon].bytes <= 64
    for epsilon, least in ((8, 97), (4, 96), (2, 94), (1, 92)):
        assert once["MNIST, public pretraining", epsilon].accuracy >= least


def test_the_central_figures_are_certified():
    """Rounded up, and by less than one per cent."""
    for name in ("accuracy_against_epsilon", "accuracy_against_users"):
        for point in drawn_by(name).points():
            weights = getattr(point, "weights", 3920)
            scheme = make_scheme("privunit-index", dim=weights, epsilon=float(point.epsilon))
            found = central_guarantee(scheme, getattr(point, "users", 60_000), 1e-6).epsilon
            assert found <= point.central <= 1.01 * found
