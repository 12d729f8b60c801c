"""The live page: grows with its run, keeps what the reader does, and answers nobody else."""

import http.client
import json
import shutil
import threading

import numpy as np
import pytest

from tandem.errors import UserError
from tandem.report.serve import LiveServer
from tandem.track.metrics import MetricsLog
from tests.report.runs import made_run, write_step


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path / "run")


@pytest.fixture
def server(run):
    with LiveServer([run], "127.0.0.1", 0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server, path: str, host: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    told = answer.status, answer.read()
    connection.close()
    return told


def test_new_steps_appear_without_loading_anew_and_the_reader_is_not_disturbed(opened, server, run) -> None:
    with opened(server.address, allowed=(server.address,)) as page:
        reward = page.locator(".chart", has=page.get_by_text("Reward", exact=True)).locator(".readout")
        assert reward.inner_text() == "0.1 → 0.4"
        page.evaluate("window.same = true")
        page.fill("#search", "rows:")
        page.locator(".groups button").nth(1).click()
        opened_before = page.locator(".detail h3").inner_text()
        page.focus("#search")
        write_step(run, 5, 3, 2, 6, np.random.default_rng(5))
        MetricsLog(run).append({"step": 5, "reward/mean": 0.75})
        reward.get_by_text("0.1 → 0.75").wait_for()
        assert page.evaluate("window.same") is True
        assert page.locator(".groups button").first.get_attribute("data-key") == "5/0"
        assert page.locator(".detail h3").inner_text() == opened_before
        assert page.input_value("#search") == "rows:"
        assert page.evaluate("document.activeElement.id") == "search"


def test_data_come_once_and_again_only_when_there_is_more(server, run) -> None:
    status, body = ask(server, "/data.json")
    data = json.loads(body)
    assert (status, data["live"], len(data["runs"][0]["rollouts"]["groups"])) == (200, True, 12)
    assert ask(server, f"/data.json?tag={data['tag']}") == (204, b"")
    MetricsLog(run).append({"step": 5, "reward/mean": 0.75})
    status, body = ask(server, f"/data.json?tag={data['tag']}")
    assert (status, json.loads(body)["runs"][0]["curves"]["reward/mean"][-1]) == (200, [5, 0.75])


def test_a_name_that_was_made_to_point_here_reads_nothing(server) -> None:
    for host in ("evil.example", "evil.example:8642", "127.0.0.1.evil.example", "localhost.evil.example"):
        for path in ("/", "/data.json"):
            status, body = ask(server, path, host)
            assert (status, b"rows:" in body) == (403, False)
    for host in ("localhost:1", "127.0.0.1", "[::1]:8642"):
        assert ask(server, "/", host)[0] == 200


@pytest.mark.parametrize("path", ["/config.yaml", "/../config.yaml", "//etc/passwd", "/rollouts/step_000001.parquet", "/web/main.js"])
def test_no_file_is_served(server, path) -> None:
    assert ask(server, path)[0] == 404


def test_a_run_that_is_gone_is_told_and_the_server_lives(server, run, tmp_path) -> None:
    shutil.move(run, tmp_path / "away")
    status, body = ask(server, "/data.json?tag=x")
    assert status == 503 and b"no run at" in body
    shutil.move(tmp_path / "away", run)
    assert ask(server, "/data.json")[0] == 200


def test_a_port_in_use_and_a_folder_that_is_no_run_are_told(server, run, tmp_path) -> None:
    with pytest.raises(UserError, match="in use"):
        LiveServer([run], "127.0.0.1", server.server_port)
    with pytest.raises(UserError, match="no run's folder"):
        LiveServer([tmp_path], "127.0.0.1", 0)
