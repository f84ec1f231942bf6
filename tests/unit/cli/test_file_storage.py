"""The place for files and batches that the configuration names, and what `qlm doctor` says of it."""

import sys
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from qlm.cli.config.default import emulated_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.results import FilesConfig
from qlm.cli.config.settings import Config
from qlm.cli.deployment import file_storage
from qlm.cli.deployment.file_storage import check_storage, storage
from qlm.cli.main import main
from qlm.cli.runtime.clock import SystemClock
from support.ports import free_port
from support.s3 import CREDENTIALS, new_bucket


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def with_bucket(**s3: Any) -> Config:
    files = FilesConfig.model_validate({"s3": s3})
    return emulated_config({}).model_copy(update={"files": files})


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"dir": "/x", "s3": {"bucket": "abc"}}, "has dir and s3; expected one of them"),
        ({"file_bytes_max": 2**33, "s3": {"bucket": "abc"}}, "expected at most 5368709120 with s3"),
        ({"s3": {"bucket": "a/b"}}, "bucket"),
        ({"s3": {"bucket": "abc", "prefix": "no-slash"}}, "prefix"),
        ({"s3": {"bucket": "abc", "endpoint_url": "http://key:secret@host"}}, "endpoint_url"),
        ({"s3": {}}, "bucket"),
    ],
)
def test_what_cannot_be_is_refused(files: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FilesConfig.model_validate(files)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://key:secret@host:9000", "'http://***@host:9000'"),
        ("key:secret@host:9000", "'***@host:9000'"),
        ("host:9000", "'host:9000'"),
        ("https://host/?key=secret", "'https://host/?***'"),
        ("http://host:99999", "'http://host:99999'"),
    ],
)
def test_a_wrong_address_of_the_storage_is_shown_whole_but_for_its_secret(address: str, shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        emulated_config({"files": {"s3": {"bucket": "abc", "endpoint_url": address}}})
    _, _, complaint = str(caught.value).partition(": ")
    assert complaint == (
        f"files.s3.endpoint_url is {shown}; "
        "expected an address such as https://minio.example.org:9000, without user, path and query"
    )


async def test_a_bucket_is_used_in_place_of_a_folder(s3_url: str) -> None:
    config = with_bucket(bucket=new_bucket(s3_url).name, endpoint_url=s3_url)
    await check_storage(config)
    found = storage(config, SystemClock())
    assert found is not None and found.files.page("a")[0] == []
    assert found.executor is not None  # slow calls keep no thread of the event loop busy


async def test_a_wrong_bucket_ends_the_start_and_one_that_is_away_does_not(
    s3_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match=r"files\.s3 cannot be used: .*there is no such bucket"):
        await check_storage(with_bucket(bucket="not-there", endpoint_url=s3_url))
    away = f"http://127.0.0.1:{free_port()}"
    await check_storage(with_bucket(bucket="abc", endpoint_url=away, timeout_s=0.2))
    (said,) = _said(caplog)
    assert f"the S3 bucket abc at {away} cannot be reached" in said
    assert CREDENTIALS["QLM_S3_SECRET_ACCESS_KEY"] not in caplog.text


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records]
    return [each for each in said if "files and batches wait" in each]


async def test_a_folder_that_cannot_be_written_is_reported_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    config = emulated_config({"files": {"dir": str(tmp_path / "file/below")}})
    await check_storage(config)
    (said,) = _said(caplog)
    assert "expected a folder to write to (Not a directory)" in said and "file/below" in said
    caplog.clear()
    await check_storage(emulated_config({"files": {"dir": str(tmp_path / "new/folder")}}))
    assert _said(caplog) == []
    assert [path for path in (tmp_path / "new").rglob("*") if path.is_file()] == []


async def test_a_folder_that_hangs_does_not_hold_up_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired = threading.Event()
    monkeypatch.setattr(file_storage, "write_in", lambda _: repaired.wait())
    monkeypatch.setattr(file_storage, "FOLDER_S", 0.05)
    try:
        await check_storage(emulated_config({"files": {"dir": str(tmp_path)}}))
    finally:
        repaired.set()
    (said,) = _said(caplog)
    assert "(no answer within 0.05 s)" in said


def test_the_doctor_tries_the_bucket(s3_url: str, tmp_path: Path) -> None:
    file, url = tmp_path / "qlm.yaml", f"http://127.0.0.1:{free_port()}"
    for bucket, ok in ((new_bucket(s3_url).name, True), ("not-there", False)):
        file.write_bytes(orjson.dumps({"files": {"s3": {"bucket": bucket, "endpoint_url": s3_url}}}))
        result = CliRunner().invoke(main, ["doctor", "--config", str(file), "--url", url, "--json"])
        (found,) = [each for each in orjson.loads(result.stdout) if each["check"] == "files"]
        assert (found["ok"], "no such bucket" in found["detail"]) == (ok, not ok)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ConfigError, match=r"files\.s3 needs botocore: .*\[s3\]"):
        storage(with_bucket(bucket="abc"), SystemClock())
