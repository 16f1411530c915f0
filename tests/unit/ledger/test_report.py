"""A month's figures against a count by hand, and how they are written."""

import csv
import io
import json
import random
from html.parser import HTMLParser

import pytest

from service.domain.outcome import Outcome
from service.ledger.entry import build_gap
from service.ledger.page import render_html
from service.ledger.query import span_of
from service.ledger.render import percent, render_csv, render_json, render_text, seconds
from service.ledger.report import QUANTILES, build_report
from service.slo.sketch import ACCURACY
from service.slo.verdict import Result, Standing
from tests.support.record import DAY_S, NOVEMBER_S, TERMS, build_random, build_settled

DECEMBER_S = NOVEMBER_S + 30 * DAY_S


def report_of(books, tenant=None, now_s=DECEMBER_S + 1.0, month="2026-11"):
    with books.engine.connect() as connection:
        return build_report(connection, month, tenant, now_s)


@pytest.fixture
def month(books):
    """A thousand requests of any kind, and who they were."""
    chance = random.Random(11)
    settled = [build_random(number, NOVEMBER_S + chance.random() * 30 * DAY_S, chance) for number in range(1000)]
    books.record(settled)
    books.record([build_settled(5000, NOVEMBER_S - 1.0), build_settled(5001, DECEMBER_S)])  # not of this month
    books.take_all()
    return books, settled


def test_every_figure_is_what_a_count_by_hand_gives(month):
    books, settled = month
    report = report_of(books)
    assert (report.over, report.length_s) == (True, 30 * DAY_S)
    assert {(account.tenant, account.tier) for account in report.accounts} == {
        ("", ""), ("acme", "priority"), ("umbra", "flex"), ("umbra", "priority"),
    }  # fmt: skip
    for account in report.accounts:
        mine = [one for one in settled if (one.tenant_id or "", one.tier or "") == (account.tenant, account.tier)]
        assert account.total.requests == len(mine)
        for standing in Standing:
            assert account.total.standings[standing.label] == sum(one.verdict.standing is standing for one in mine)
        for place, name in enumerate(("availability", "ttft", "tpot", "met_all")):
            results = [getattr(one.verdict, name) for one in mine]
            assert account.total.good[place] == results.count(Result.GOOD)
            assert account.total.bad[place] == results.count(Result.BAD)
        lengths = sorted(one.first_token_at - one.arrived_at for one in mine if one.first_token_at is not None)
        for ratio in QUANTILES:
            found, true = account.total.ttft.find_quantile(ratio), lengths[int(ratio * (len(lengths) - 1))]
            assert found == pytest.approx(true, rel=ACCURACY * 1.01)
        assert sum(day.met + day.missed + day.excluded for day in account.days) == len(mine)
        assert sum(one.requests for one in account.classes) == len(mine)
    assert report.evidence.entries == report.evidence.counted == 1000
    assert sum(account.total.requests for account in report.accounts) == 1000


def test_uptime_counts_the_intervals_with_too_many_bad_requests(books):
    bad = [build_settled(number, NOVEMBER_S + 300.0 * number, Outcome.EXPIRED) for number in (0, 0, 7)]
    good = [build_settled(number, NOVEMBER_S + 300.0 * 9 + number / 10) for number in range(10, 2000)]
    books.record([*bad, *good, build_settled(3000, NOVEMBER_S + 300.0 * 9, Outcome.EXPIRED)])
    books.take_all()
    (account,) = report_of(books).accounts
    assert account.down_intervals == 2  # of the third interval one in 1,991 was bad
    assert account.uptime == pytest.approx(1 - 2 / 8640)
    assert account.credit == 0.1  # 4 of 1,994
    assert account.budget_left == pytest.approx(1 - 4 / 1.994)


def test_a_month_that_is_not_over_is_told_up_to_now(month):
    books, _ = month
    report = report_of(books, now_s=NOVEMBER_S + 10 * DAY_S)
    assert (report.over, report.length_s) == (False, 10 * DAY_S)
    assert "the first 10.00 days; the month is not over" in render_text(report)


def test_one_tenant_hears_of_nobody_else(month):
    books, _ = month
    report = report_of(books, tenant="acme")
    texts = (render_text(report), render_json(report), render_csv(report), render_html(report))
    assert all("acme" in text and "umbra" not in text for text in texts)


def test_a_month_without_requests_is_an_empty_report(books):
    report = report_of(books, month="2026-07")
    assert report.accounts == []
    assert "no request was recorded" in render_text(report)
    assert "No request was recorded" in render_html(report)
    assert report.evidence.entries == 0


@pytest.mark.parametrize("wrong", ["2026-13", "2026", "november", "2026-1", "2026-11-01", ""])
def test_what_is_no_month_is_refused(wrong):
    with pytest.raises(ValueError, match=r"month|match|data"):
        span_of(wrong)


def test_a_dropped_month_is_told_from_its_sums(month):
    books, _ = month
    books.book.drop_months_before("2026-12", 1)
    report = report_of(books)
    assert report.evidence.entries is None
    assert report.evidence.counted == 1000
    assert "were dropped" in render_text(report)


def test_json_and_csv_say_the_same(month):
    books, _ = month
    report = report_of(books)
    told = json.loads(render_json(report))
    rows = list(csv.DictReader(io.StringIO(render_csv(report))))
    assert len(rows) == len(told["accounts"]) == 4
    for row, account in zip(rows, told["accounts"], strict=True):
        assert int(row["requests"]) == account["requests"] == sum(account[name.label] for name in Standing)
        assert (row["tenant"] or None, row["tier"] or None) == (account["tenant"], account["tier"])
        assert float(row["credit"]) == account["credit"]
        excluded = [one["requests"] for one in account["reasons"] if one["standing"] == "excluded"]
        assert sum(excluded) == account["excluded"]
    assert told["evidence"]["chains"][0]["hash"] == books.spool.head.digest.hex()


class Page(HTMLParser):
    """Looks whether a page is well-formed and fetches nothing."""

    def __init__(self):
        super().__init__()
        self.open, self.counts = [], {}

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}
        if tag not in ("meta", "path", "rect", "circle", "polyline", "text") and tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("path", "rect", "circle", "polyline", "text"):
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(month):
    books, _ = month
    books.record([build_settled(9000, NOVEMBER_S, tenant="<script>alert(1)</script>")])
    books.take_all()
    html = render_html(report_of(books))
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    assert page.counts["svg"] >= 8
    assert "script" not in page.counts
    assert "&lt;script&gt;" in html


def test_lost_requests_are_told(books):
    books.spool.write([], [build_gap(17, TERMS, NOVEMBER_S)])
    books.take_all()
    report = report_of(books)
    assert "17 lost" in render_text(report)
    assert "17 lost" in render_html(report)
    assert report.evidence.entries == report.evidence.counted == 1


def test_a_share_is_never_rounded_up_to_a_promise():
    assert percent(0.9989999) == "99.899 %"
    assert percent(0.999) == "99.900 %"
    assert percent(-0.5) == "-50.000 %"
    assert seconds(None) == "-"


def test_announced_maintenance_of_the_month_is_listed(month):
    books, _ = month
    with books.engine.connect() as connection:
        report = build_report(connection, "2026-11", None, DECEMBER_S, sources={"rules": "abc123"})
    text = render_text(report)
    assert "2026-11-04T00:00:00+00:00 to 2026-11-04T02:00:00+00:00: new <drivers>" in text
    assert "long ago" not in text
    assert "rules abc123" in text
    assert "new &lt;drivers&gt;" in render_html(report)
    told = json.loads(render_json(report))
    assert told["maintenance"][0]["reason"] == "new <drivers>"
    assert told["evidence"]["sources"] == {"rules": "abc123"}


def test_progress_is_told(month):
    books, _ = month
    told = []
    with books.engine.connect() as connection:
        build_report(connection, "2026-11", None, DECEMBER_S, lambda done, of: told.append((done, of)))
    assert told[-1][0] == told[-1][1] > 0


def test_a_name_is_no_formula(books):
    books.record([build_settled(1, NOVEMBER_S, tenant="=1+1")])
    books.take_all()
    assert "'=1+1" in render_csv(report_of(books))
