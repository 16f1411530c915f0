"""The report as a person sees it: opened in a real browser, which fetches nothing and draws every plot."""

import random
import re
import subprocess
import sys

import pytest
from PIL import Image

from tests.support.chromium import read_page, take_picture
from tests.support.record import DAY_S, NOVEMBER_S, Books, build_random, build_settled

pytestmark = pytest.mark.integration


@pytest.fixture
def page(tmp_path):
    books = Books(tmp_path)
    chance = random.Random(1)
    requests = [build_random(number, NOVEMBER_S + chance.random() * 30 * DAY_S, chance) for number in range(400)]
    requests.append(build_settled(9999, NOVEMBER_S, tenant="<img src=x onerror=alert(1)>"))
    books.record(requests)
    books.take_all()
    books.close()
    path = tmp_path / "report.html"
    command = [sys.executable, "-m", "service", "report", "--month", "2026-11", "--format", "html"]
    subprocess.run([*command, "--ledger", books.url, "-o", str(path)], check=True, capture_output=True)
    return path


def test_the_page_opens_in_a_browser(page, tmp_path):
    shown = read_page(tmp_path, page)
    assert "<h1>SLA report 2026-11</h1>" in shown
    assert shown.count("<svg") >= 6
    assert "acme, priority" in shown
    assert "&lt;img src=x onerror" in shown
    assert not re.search(r"<(script|img|link|iframe)\b", shown)
    picture = tmp_path / "report.png"
    take_picture(tmp_path, page, picture)
    with Image.open(picture) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
    assert colours is not None
    seen = {colour for count, colour in colours if count > 200}
    assert {(0x2A, 0x9D, 0x6F), (0xC8, 0x40, 0x3A)} <= seen  # bars of what was met and what was missed
