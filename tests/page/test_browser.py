"""The page of `smelt explain --html` in a real browser: what it shows, where, and that nothing of a program runs in it.

Needs Chromium, which `.ci/run` installs on Debian, and the package playwright, of the extra `dev`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.page.page import render
from tests.page.test_markup import HOSTILE, run_of

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

if CHROMIUM is None:
    pytest.skip("there is no Chromium (Debian: apt-get install chromium)", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = running.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


def inner(y: torch.Tensor) -> torch.Tensor:
    smelt.graph_break()
    return y * 2


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin().softmax(-1)
    y = inner(y)
    return (y @ y.T).sum()


BREAK = inner.__code__.co_firstlineno + 1
SIN = broken.__code__.co_firstlineno + 1


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = smelt.explain(broken)(torch.randn(8, 8, requires_grad=True))
    found.result.backward()
    path: Path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(found.html("broken"))
    return path.as_uri()


@pytest.fixture(params=[(1280, 900, "light"), (390, 800, "dark")], ids=["wide", "phone"])
def page(browser: Any, file: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    width, height, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    opened = context.new_page()
    opened.user_errors = []
    opened.on("console", lambda message: opened.user_errors.append(message.text))
    opened.on("request", lambda asked: opened.user_errors.append(asked.url) if asked.url != file else None)
    opened.goto(file)
    yield opened
    assert opened.user_errors == []
    context.close()


def test_a_break_is_shown_at_its_line(page: Any) -> None:
    line = page.locator(".line.broken").first
    assert line.locator(".no").inner_text() == str(BREAK)
    assert "smelt.graph_break()" in line.inner_text()
    note = line.locator("xpath=following-sibling::div[1]")
    assert "graph break" in note.inner_text() and note.is_visible()
    page.locator("#breaks a").first.click()
    assert page.locator(".line:target .no").inner_text() == str(BREAK)


def test_lines_have_their_graphs(page: Any) -> None:
    line = page.locator(".line", has=page.get_by_text(str(SIN), exact=True)).first
    assert "x.sin()" in line.inner_text() and line.locator(".bars i").count() == 1
    assert page.locator("details.guards").count() > 0
    assert page.locator("details.guards li").first.is_hidden()
    page.locator("details.guards summary").first.click()
    assert page.locator("details.guards li").first.is_visible()


def test_a_click_on_a_kernel_shows_its_source(page: Any) -> None:
    kernel = page.locator("details.kernel:not(.library)").first
    source = kernel.locator("pre")
    assert source.is_hidden()
    kernel.locator("summary").click()
    assert source.is_visible() and "void kernel0(" in source.inner_text()
    assert "sin" in kernel.inner_text() and "test_browser.py" in kernel.inner_text()


def test_a_click_in_the_picture_leads_to_the_kernel(page: Any) -> None:
    kernel = page.locator("details.kernel:not(.library)").first
    assert not kernel.evaluate("each => each.open")
    page.locator("svg.graph a.box.kernel").first.click()
    assert kernel.evaluate("each => each.open")
    assert kernel.locator("pre").is_visible()


def test_nothing_is_wider_than_the_screen(page: Any) -> None:
    for closed in page.locator("details:not([open]) > summary").all()[:40]:
        if closed.is_visible():
            closed.click()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_colours_follow_the_system(page: Any) -> None:
    red, *_ = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert (red < 64) if dark else (red > 192)


def test_nothing_of_a_program_runs(browser: Any, tmp_path: Path) -> None:
    opened = browser.new_page()
    said: list[str] = []
    opened.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    opened.on("request", lambda asked: said.append(asked.url) if not asked.url.startswith("file:") else None)
    for text in HOSTILE:
        path = tmp_path / "hostile.html"
        path.write_text(render(run_of(text)))
        opened.goto(path.as_uri())
        assert opened.title() and opened.locator("script").count() == 0
        for box in opened.locator("svg a").all():
            box.click()
    assert said == []


def test_the_policy_holds_where_escaping_would_not(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    text = render(run_of("x")).replace("</body>", "<script>document.title = 'ran'</script></body>")
    path.write_text(text)
    opened = browser.new_page()
    opened.goto(path.as_uri())
    assert opened.title() == "smelt: x"


SCRIPT = """import time

import torch


@torch.compile
def step(x):
    y = x.sin() * 2
    time.sleep(0)
    return y.sum()


step(torch.randn(8))
"""


def test_the_command_shows_a_known_break_at_its_line(browser: Any, tmp_path: Path) -> None:
    script, path = tmp_path / "script.py", tmp_path / "page.html"
    script.write_text(SCRIPT)
    command = "from smelt.cli.main import app; app()"
    env = {**os.environ, "PYTHONPATH": str(Path(smelt.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", command, "explain", "--html", path, script], check=True, env=env)
    opened = browser.new_page()
    opened.goto(path.as_uri())
    lines = opened.locator(".line.broken").all()
    assert {each.locator(".no").inner_text() for each in lines} == {"9"} and "time.sleep(0)" in lines[0].inner_text()
    line = lines[0]
    note = line.locator("xpath=following-sibling::div[1]")
    assert note.is_visible() and "a call of time.sleep" in note.inner_text()
