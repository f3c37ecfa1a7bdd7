"""The metrics page: true counts, a format that parses, and a size that no client can blow up."""

from __future__ import annotations

import asyncio
import re

import pytest

from skerry.backends.api import Exit
from skerry.node.config import Limits
from skerry.node.gauges.metrics import Histogram, Metrics
from skerry.spec.sandbox import State

LINE = re.compile(r'([a-z_]+)(\{[a-z_]+="[^"\n]*"(?:,[a-z_]+="[^"\n]*")*\})? (-?[0-9.e+-]+|nan)')

METHODS = ("PROPFIND", "LOCK", "MKCOL", "OPTIONS")  # those that the HTTP parser lets through


async def scrape(api, path: str = "/v1/metrics") -> dict[str, float]:
    """Returns every sample; each line must be one, or a comment that announces a family."""
    async with api.session.get(path) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/plain"
        text = await answer.text()
    found: dict[str, float] = {}
    types: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# "):
            if line.startswith("# TYPE "):
                name = line.split()[2]
                assert name not in types, f"{name} is announced twice"
                types.add(name)
            continue
        match = LINE.fullmatch(line)
        assert match, line
        sample = f"{match[1]}{match[2] or ''}"
        assert sample not in found, f"{sample} twice"
        assert any(re.fullmatch(f"{name}(_bucket|_sum|_count)?", match[1]) for name in types), line
        found[sample] = float(match[3])
    return found


async def test_page_tells_what_was_done(stand) -> None:
    async with stand.serving() as (_, api):
        made = [await api.create() for _ in range(3)]
        run = f"/v1/sandboxes/{made[0]}/run"
        await api.call("POST", run, {"argv": ["echo", "12345"]})
        await api.call("POST", run, {"argv": ["false"]})
        await api.call("POST", run, {"argv": ["nonesuch"]})
        await api.call("POST", f"/v1/sandboxes/{made[1]}/pause")
        await api.call("POST", f"/v1/sandboxes/{made[2]}/stop")
        await api.call("GET", "/v1/sandboxes/nonsense", status=422)
        seen = await scrape(api)
        assert seen['skerry_sandboxes_by_state{state="running"}'] == 1
        assert seen['skerry_sandboxes_by_state{state="paused"}'] == 1
        assert seen['skerry_sandboxes_by_state{state="stopped"}'] == 1
        assert seen['skerry_sandboxes_by_state{state="failed"}'] == 0
        assert seen["skerry_create_seconds_count"] == 3
        assert seen['skerry_create_seconds_bucket{le="+Inf"}'] == 3
        assert seen['skerry_commands_total{outcome="ok"}'] == 1
        assert seen['skerry_commands_total{outcome="nonzero"}'] == 1
        assert seen['skerry_commands_total{outcome="not_started"}'] == 1
        assert seen["skerry_command_output_bytes_total"] >= 6
        assert seen['skerry_sandbox_ends_total{reason="stopped"}'] == 1
        assert seen['skerry_sandbox_transitions_total{from="running",to="pausing"}'] == 1
        route = 'method="POST",route="/v1/sandboxes",status="200"'
        assert seen[f"skerry_http_requests_total{{{route}}}"] == 3
        bad = 'method="GET",route="/v1/sandboxes/{id}",status="422"'
        assert seen[f"skerry_http_requests_total{{{bad}}}"] == 1
        assert seen['skerry_http_bytes_total{direction="out"}'] > 500
        assert seen["skerry_process_resident_bytes"] > 1 << 20
        assert seen["skerry_process_descriptors"] > 3
        assert seen["skerry_journal_bytes"] > 0
        assert seen["skerry_journal_records_total"] > 6
        assert (await scrape(api, "/metrics")).keys() >= {"skerry_create_seconds_count"}


async def test_deaths_failures_and_refusals_are_told_apart(stand, manual) -> None:
    limits = Limits(memory_free_min_bytes=0, disk_free_min_bytes=0, sandboxes_max=2)
    async with stand.serving(limits=limits) as (node, api):
        died = await api.create()
        idle = await api.create(idle_timeout_s=5)
        await api.call("POST", "/v1/sandboxes", {}, status=429)
        stand.world.instances[died].die(Exit(signal=9))
        stand.world.instances[died].drop_channel()
        await manual.advance(6)
        for sid, state in ((died, State.FAILED), (idle, State.STOPPED)):
            sandbox = node.sandboxes.get(sid)
            async with asyncio.timeout(5):
                while sandbox.state is not state:
                    await sandbox.changed()
        stand.backend.knobs.fail_create_at = "overlay"
        await api.call("POST", "/v1/sandboxes", {}, status=410)
        seen = await scrape(api)
        assert seen['skerry_sandbox_ends_total{reason="failed"}'] == 1
        assert seen['skerry_sandbox_ends_total{reason="idle"}'] == 1
        assert seen['skerry_create_failures_total{code="sandbox_failed"}'] == 1
        assert seen['skerry_refusals_total{limit="sandboxes"}'] == 1


async def test_brakes_are_told_with_value_state_and_count(stand, manual) -> None:
    limits = Limits(memory_free_min_bytes=0, disk_free_min_bytes=0, loop_lag_max_s=3.0)
    async with stand.serving(limits=limits) as (node, api):
        shortages = node.admission.shortages
        lag = 0.0
        shortages._lag = lambda: lag
        for lag, held in ((5.0, 1), (2.0, 1), (0.1, 0), (4.0, 1)):
            await manual.advance(1)
            seen = await scrape(api)
            assert seen['skerry_brake_value{brake="loop_lag"}'] == lag
            assert seen['skerry_brake_held{brake="loop_lag"}'] == held
        assert seen['skerry_brake_engaged_total{brake="loop_lag"}'] == 2
        kinds = [f"{name}_{kind}" for name in ("cpu", "memory", "io") for kind in ("some", "full")]
        assert {f'skerry_brake_held{{brake="{kind}"}}' for kind in kinds} <= seen.keys()


async def test_prometheus_own_parser_reads_the_page_and_finds_the_same(stand) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="no prometheus-client here")
    async with stand.serving() as (_, api):
        sid = await api.create(labels={"job": 'a"b\\c'})
        await api.call("POST", f"/v1/sandboxes/{sid}/run", {"argv": ["true"]})
        async with api.session.get("/metrics") as answer:
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            text = await answer.text()
        families = list(parser.text_string_to_metric_families(text))
        samples = [sample for family in families for sample in family.samples]
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert len(samples) == len(lines)
        assert {family.type for family in families} == {"counter", "gauge", "histogram"}
        assert len({family.name for family in families}) == len(families)
        for family in families:  # counts of a histogram only rise, to the number of values
            series: dict[tuple[tuple[str, str], ...], list[float]] = {}
            for sample in family.samples if family.type == "histogram" else ():
                labels = {name: value for name, value in sample.labels.items() if name != "le"}
                if sample.name.endswith(("_bucket", "_count")):
                    series.setdefault(tuple(labels.items()), []).append(sample.value)
            for counts in series.values():
                assert counts == sorted(counts)
                assert counts[-1] == counts[-2]


async def test_labels_never_come_from_a_client(stand) -> None:
    """However many paths, ids, labels and methods clients try, the page grows no new sample."""
    async with stand.serving() as (_, api):
        sid = await api.create()
        await api.call("GET", f"/v1/sandboxes/{'s' + 'a' * 20}", status=404)
        async with api.session.request("LOCK", "/v1/health") as answer:
            assert answer.status == 405
        await scrape(api)
        before = set(await scrape(api))
        for number in range(40):
            await api.call("GET", f"/v1/nothing/{number}", status=404)
            await api.call("GET", f"/v1/sandboxes/{'s' + 'a' * 19 + 'bcdefghijk'[number % 10]}",
                           status=404)  # fmt: skip
            async with api.session.request(METHODS[number % 4], "/v1/health") as answer:
                assert answer.status == 405
        assert set(await scrape(api)) == before
        await api.call("DELETE", f"/v1/sandboxes/{sid}")


async def test_metrics_need_the_token_on_tcp(stand) -> None:
    token = "t" * 20
    async with stand.serving(tcp="127.0.0.1:0", tokens=(token,)) as (_, api):
        url = f"http://127.0.0.1:{api.tcp[1]}"
        import aiohttp

        async with aiohttp.ClientSession() as session:
            for path in ("/v1/metrics", "/metrics"):
                async with session.get(url + path) as answer:
                    assert answer.status == 401
                headers = {"authorization": f"Bearer {token}"}
                async with session.get(url + path, headers=headers) as answer:
                    assert answer.status == 200


def test_stages_are_bounded_and_odd_ones_are_left_out() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics._stage(f"stage_{chr(97 + number % 26)}{chr(97 + number // 26 % 26)}=5")
        metrics._stage(f'x"y{number}=5')
        metrics._stage("overlay=abc")
    assert len(metrics.stage_us) <= 64
    assert all(re.fullmatch("[a-z_]+", name) for name in metrics.stage_us)


@pytest.mark.parametrize("value", [0.0, 0.001, 0.0011, 5.0, 1e9])
def test_histogram_counts_each_value_once(value: float) -> None:
    histogram = Histogram((0.001, 1.0, 5.0))
    histogram.add(value)
    lines = list(histogram.lines("x"))
    counts = [int(line.rsplit(" ", 1)[1]) for line in lines if "_bucket" in line]
    assert counts == sorted(counts)
    assert counts[-1] == 1
    assert counts == [int(value <= bound) for bound in (0.001, 1.0, 5.0, float("inf"))]
