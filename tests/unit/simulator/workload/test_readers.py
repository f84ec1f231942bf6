"""Traces in their published formats: what is read, and what one sentence says of a bad file."""

import bz2
import gzip
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from qlm.domain.errors import InvalidValueError
from qlm.simulator.workload.csv_table import _CHUNK_ROWS
from qlm.simulator.workload.formats import ZeroOutput
from qlm.simulator.workload.reading import TraceSource, read_trace
from qlm.simulator.workload.trace import Labels, Trace
from qlm.simulator.workload.trace_format import TraceFormat

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109\r
2023-11-16 18:15:51.2224670,879,55\r
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-12 00:00:00.009930+00:00,100,10
2024-05-12 02:00:01.009930+02:00,200,20
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,0,1087,API log
45.5,ChatGPT,417,276,693,Conversation log
"""
BURSTGPT_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens
5,a,1.5,ChatGPT,472,18,490
"""
MOONCAKE = """{"timestamp": 0, "input_length": 915, "output_length": 355, "hash_ids": [0, 462]}
{"timestamp": 3000, "input_length": 1053, "output_length": 26, "hash_ids": [0, 773, 774]}
"""
LENGTHS = """num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
74,918,992,0.08
290,905,1195,0.32
"""
SERVEGEN = """arrival_s,model,tenant,input_tokens,output_tokens
0.0039,deepseek-r1,deepseek-r1/c48,266,338
0.4103,m-small,m-small/c31,1378,3
"""


def read(
    folder: Path,
    content: str | bytes,
    form: str,
    columns: dict[str, str] | None = None,
    zero_output: ZeroOutput = ZeroOutput.DROP,
    tokenizer: Path | None = None,
) -> Trace:
    file = folder / "trace"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_trace(
        TraceSource(
            path=file,
            format=TraceFormat(form),
            columns=columns or {},
            zero_output=zero_output,
            tokenizer=tokenizer,
        )
    )


def names(labels: Labels | None) -> list[str]:
    assert labels is not None
    return [labels.names[code] for code in labels.codes]


def times_s(trace: Trace) -> list[float]:
    assert trace.arrival_ns is not None
    return [each / 1e9 for each in trace.arrival_ns.tolist()]


def test_azure_2023_has_seven_digits_and_starts_at_its_first_row(tmp_path: Path) -> None:
    trace = read(tmp_path, AZURE, "azure")
    assert times_s(trace) == [0.0, 4.314579, 4.541877]
    assert trace.prompt_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]


def test_azure_2024_has_offsets_from_utc(tmp_path: Path) -> None:
    assert times_s(read(tmp_path, AZURE_2024, "azure")) == [0.0, 1.0]


@pytest.mark.parametrize("offset", ["+99:99", "+24:00", "-01:60"])
def test_an_offset_that_no_clock_has_is_refused(offset: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"trace:3: TIMESTAMP is .*; expected a time such as"):
        read(tmp_path, AZURE_2024.replace("+02:00", offset), "azure")


def test_failed_requests_of_burstgpt_are_dropped_and_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, BURSTGPT, "burstgpt")
    assert times_s(trace) == [5.0, 45.5]
    assert names(trace.model) == ["ChatGPT", "ChatGPT"]
    assert trace.zero_output_dropped == 1


def test_failed_requests_can_be_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"trace:3: Response tokens is 0; expected 1 or more"):
        read(tmp_path, BURSTGPT, "burstgpt", zero_output=ZeroOutput.REFUSE)


def test_newer_burstgpt_files_have_more_columns(tmp_path: Path) -> None:
    assert read(tmp_path, BURSTGPT_SESSIONS, "burstgpt").prompt_tokens.tolist() == [472]


THREE_NUMBERS = "arrival_s,input_tokens,output_tokens,team\n0,10,2,a\n1,20,3,b\n"


@pytest.mark.parametrize(
    "columns", [{"model": "input_tokens"}, {"slo_class": "arrival_s"}, {"input_tokens": "arrival_s"}]
)
def test_a_column_for_two_meanings_of_different_types_is_refused(
    columns: dict[str, str], tmp_path: Path
) -> None:
    (name,) = columns.values()
    expected = rf"trace:1: header is '{name} for two meanings of different types'; expected a column for each"
    with pytest.raises(InvalidValueError, match=expected):
        read(tmp_path, THREE_NUMBERS, "csv", columns)


def test_a_column_of_text_may_have_two_meanings(tmp_path: Path) -> None:
    trace = read(tmp_path, THREE_NUMBERS, "csv", {"model": "team", "tenant": "team"})
    assert names(trace.model) == names(trace.tenant) == ["a", "b"]
    assert trace.prompt_tokens.tolist() == [10, 20]


SHARED = """arrival_s,input_tokens,output_tokens,prefix_id,prefix_tokens
0,2000,5,system,600
1,2000,5,,
2,700,5,system,700
3,400,5,other,400
"""


def test_csv_prefixes_become_ids_of_blocks(tmp_path: Path) -> None:
    trace = read(tmp_path, SHARED, "csv")
    first, none, again, other = trace.prefixes
    assert first == again and len(first) == 2
    assert none == ()
    assert len(other) == 1 and other[0] not in first
    assert trace.prefix_tokens is not None
    assert trace.prefix_tokens.tolist() == [600, 0, 700, 400]


def test_csv_prefixes_of_equal_ids_are_equal_in_all_files(tmp_path: Path) -> None:
    one, two = read(tmp_path, SHARED, "csv"), read(tmp_path, SHARED.replace("600", "1999"), "csv")
    assert two.prefixes[0][:2] == one.prefixes[0]
    assert two.prefixes[3] == one.prefixes[3]
    named = SHARED.replace("prefix_id", "prompt").replace("prefix_tokens", "length")
    columns = {"prefix_id": "prompt", "prefix_tokens": "length"}
    assert read(tmp_path, named, "csv", columns).prefixes == one.prefixes
    assert read(tmp_path, named, "csv").prefixes == ()


def test_mooncake_has_milliseconds_and_blocks(tmp_path: Path) -> None:
    trace = read(tmp_path, MOONCAKE, "mooncake")
    assert times_s(trace) == [0.0, 3.0]
    assert trace.prefixes == ((0, 462), (0, 773, 774))


def test_lengths_have_no_times(tmp_path: Path) -> None:
    trace = read(tmp_path, LENGTHS, "lengths")
    assert (trace.arrival_ns, trace.prompt_tokens.tolist()) == (None, [74, 290])


def test_a_csv_has_the_usual_columns(tmp_path: Path) -> None:
    trace = read(tmp_path, SERVEGEN, "csv")
    assert times_s(trace) == [0.0039, 0.4103]
    assert names(trace.model) == ["deepseek-r1", "m-small"]
    assert names(trace.tenant) == ["deepseek-r1/c48", "m-small/c31"]


@pytest.mark.parametrize("start_s", [0, 40, 1_700_000_000])
def test_a_csv_starts_at_the_full_second_of_its_first_row(tmp_path: Path, start_s: int) -> None:
    file = tmp_path / "trace"
    times = [start_s + 0.25, start_s + 10.5, start_s + 20]
    file.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{at},1,1\n" for at in times))
    source = TraceSource(path=file, format=TraceFormat.CSV)
    assert times_s(read_trace(source)) == pytest.approx([0.25, 10.5, 20], abs=1e-6)
    assert times_s(read_trace(replace(source, from_s=10))) == pytest.approx([0.5, 10], abs=1e-6)


@pytest.mark.parametrize(
    ("form", "compress", "program"),
    [("csv", gzip.compress, "gzip"), ("mooncake", bz2.compress, "bzip2"), ("azure", lzma.compress, "xz")],
)
def test_a_compressed_file_is_called_that(tmp_path: Path, form: str, compress: Any, program: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"trace is 'compressed \({program}\)'; expected plain text"):
        read(tmp_path, compress(SERVEGEN.encode()), form)


def test_a_csv_may_have_other_columns(tmp_path: Path) -> None:
    content = "at,in,out,kind\n0,5,6,urgent\n1,7,8,later\n"
    columns = {"arrival_s": "at", "input_tokens": "in", "output_tokens": "out", "slo_class": "kind"}
    trace = read(tmp_path, content, "csv", columns)
    assert names(trace.slo_class) == ["urgent", "later"]
    assert (trace.model, trace.tenant) == (None, None)


def test_a_byte_order_mark_blank_lines_and_whole_floats_do_no_harm(tmp_path: Path) -> None:
    trace = read(tmp_path, b"\xef\xbb\xbf" + LENGTHS.replace("290,", "\n290.0,").encode(), "lengths")
    assert trace.prompt_tokens.tolist() == [74, 290]


def test_files_longer_than_a_chunk_keep_their_lines(tmp_path: Path) -> None:
    rows = "".join(f"{i},1\n" for i in range(1, _CHUNK_ROWS + 11))
    content = f"num_prefill_tokens,num_decode_tokens\n{rows}"
    trace = read(tmp_path, content, "lengths")
    assert trace.prompt_tokens.tolist() == list(range(1, _CHUNK_ROWS + 11))
    with pytest.raises(InvalidValueError, match=rf"trace:{_CHUNK_ROWS + 12}: num_prefill_tokens is '-1'"):
        read(tmp_path, content + "-1,1\n", "lengths")


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A tokenizer for which each of a few words is one token."""
    known = {word: index for index, word in enumerate(["[UNK]", "hello", "there", "you"])}
    tokenizer = Tokenizer(WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    return file


def test_sharegpt_counts_tokens_of_the_first_two_turns(tmp_path: Path, words: Path) -> None:
    content = """[{"id": "a", "conversations": [{"from": "human", "value": "hello there"},
        {"from": "gpt", "value": "hello you there"}, {"from": "human", "value": "ignored"}]},
        {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
        {"id": "c", "conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": ""}]}]"""
    trace = read(tmp_path, content, "sharegpt", tokenizer=words)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([2], [3])
    assert trace.zero_output_dropped == 1


def test_sharegpt_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"tokenizer is None; expected a tokenizer\.json"):
        read(tmp_path, "[]", "sharegpt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"conversations": [', r"trace:1 is .*; expected a whole JSON list"),
        ("{}", "trace is 'dict'; expected a JSON list"),
        ('[{"turns": []}]', r"trace: \[0\] is .*expected an object with the list conversations"),
        ('[{"conversations": [{"value": 1}, {"value": "x"}]}]', r"\[0\]\.conversations\[0\] is .*text value"),
        ("[]", "expected at least one"),
        (b"\xff", "UTF-8"),
    ],
)
def test_a_bad_sharegpt_file_is_named(
    tmp_path: Path, words: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        read(tmp_path, content, "sharegpt", tokenizer=words)


def test_a_bad_tokenizer_is_named(tmp_path: Path) -> None:
    content = '[{"conversations": [{"value": "a"}, {"value": "b"}]}]'
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    for file in (broken, tmp_path / "missing.json"):
        with pytest.raises(InvalidValueError, match=rf"tokenizer is '.*{file.name}.*tokenizer\.json file"):
            read(tmp_path, content, "sharegpt", tokenizer=file)


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("azure", "", "trace is 'empty'; expected a header and rows"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "header without rows"),
        ("azure", "TIMESTAMP,ContextTokens\n", r"trace:1: header is .*also the columns GeneratedTokens"),
        ("azure", AZURE.replace("18:15:50", "25:15:50"), r"trace:3: TIMESTAMP is '2023-11-16 25:15"),
        ("azure", AZURE.replace("2023-11-16 18:15:50", "yesterday"), r"trace:3: TIMESTAMP is 'yesterday"),
        (
            "azure",
            AZURE.replace("18:15:51", "18:15:40"),
            r"trace:4: TIMESTAMP is .* before line 3'.*never fall",
        ),
        ("azure", AZURE.replace("396", "-396"), r"trace:3: ContextTokens is '-396'; expected a whole number"),
        ("azure", AZURE.replace("396", "39.6"), r"trace:3: ContextTokens is '39\.6'"),
        ("azure", AZURE.replace("396", ""), r"trace:3: ContextTokens is ''"),
        ("azure", AZURE.replace("396", "nan"), r"trace:3: ContextTokens is 'nan'"),
        ("azure", AZURE.replace("396", "0"), r"trace:3: ContextTokens is 0; expected 1 or more"),
        ("azure", AZURE.replace("396", "9" * 17), r"trace:3: ContextTokens is '9{17}'"),
        ("azure", AZURE.replace("396", "3_9"), r"trace:3: ContextTokens is '3_9'"),
        ("azure", AZURE.replace("396", "٣"), r"trace:3: ContextTokens is '٣'"),
        ("azure", AZURE.replace(",396", ""), r"trace:3 is '.*'; expected 3 columns"),
        ("azure", AZURE.replace("396", '"396'), r"trace:\d+ is .*expected comma-separated values"),
        ("azure", AZURE.replace("396", "\x00"), r"trace:3"),
        ("azure", AZURE.encode().replace(b"396", b"\xff6"), r"trace:3 is b'\\xff6.*expected UTF-8 text"),
        ("lengths", "num_prefill_tokens,num_decode_tokens\n3,0\n", "at least one row"),
        (
            "lengths",
            "num_prefill_tokens,num_decode_tokens,num_decode_tokens\n",
            "num_decode_tokens exactly once",
        ),
        ("burstgpt", BURSTGPT.replace("\n45,", "\ninf,"), r"trace:3: Timestamp is 'inf'; expected a number"),
        ("burstgpt", BURSTGPT.replace("\n45,", "\nnan,"), r"trace:3: Timestamp is 'nan'"),
        ("burstgpt", BURSTGPT.replace("\n45,", "\n-1,"), r"trace:3: Timestamp is '-1'"),
        ("burstgpt", BURSTGPT.replace("\n45,", "\n1e12,"), r"trace:3: Timestamp is '1e12'"),
        ("burstgpt", BURSTGPT.replace("GPT-4", ""), r"trace:3: Model is ''; expected some text"),
        ("csv", SERVEGEN.replace("0.4103", "soon"), r"trace:3: arrival_s is 'soon'"),
        (
            "csv",
            SERVEGEN.replace("input_tokens", "tokens"),
            r"trace:1: header is .*also the columns input_tokens",
        ),
        ("csv", SHARED.replace("600", "2001"), r"trace:2: prefix_tokens is 2001; expected at most input_tok"),
        ("csv", SHARED.replace(",,", ",,3"), r"trace:3: prefix_tokens is 3; expected 0 without a prefix_id"),
        ("csv", SHARED.replace("600", "x"), r"trace:2: prefix_tokens is 'x'"),
        (
            "csv",
            SHARED.replace("prefix_id", "id"),
            r"trace:1: header is .*expected both prefix_id and",
        ),
        ("mooncake", "", "trace is 'empty'"),
        ("mooncake", MOONCAKE[:-20], r"trace:2 is .*expected one whole JSON object"),
        ("mooncake", "[1]\n", r"trace:1 is \[1\]; expected a JSON object"),
        ("mooncake", MOONCAKE.replace("timestamp", "time"), r"trace:1 is .*also the key timestamp"),
        (
            "mooncake",
            MOONCAKE.replace("3000", '"3"'),
            r"trace:2: timestamp is '3'; expected a number of milli",
        ),
        ("mooncake", MOONCAKE.replace("3000", "-3"), r"trace:2: timestamp is -3"),
        ("mooncake", MOONCAKE.replace(": 0,", ": 4000,"), r"trace:2: timestamp is .*never fall"),
        ("mooncake", MOONCAKE.replace("355", "3.5"), r"trace:1: output_length is 3\.5"),
        ("mooncake", MOONCAKE.replace("355", "true"), r"trace:1: output_length is True"),
        ("mooncake", MOONCAKE.replace("1053", "1024"), r"trace:2: hash_ids is '3 ids'; expected at most 2"),
        ("mooncake", MOONCAKE.replace("773", "-1"), r"trace:2: hash_ids is \[0, -1"),
        ("mooncake", MOONCAKE.encode() + b"\xff\n", r"trace:3 is b'\\xff.*expected UTF-8"),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    tmp_path: Path, form: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message) as caught:
        read(tmp_path, content, form)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", [form for form in TraceFormat if form is not TraceFormat.SHAREGPT])
def test_a_folder_or_a_missing_file_is_refused(tmp_path: Path, form: TraceFormat) -> None:
    for path in (tmp_path, tmp_path / "missing.csv"):
        with pytest.raises(InvalidValueError, match="expected a file that can be read"):
            read_trace(TraceSource(path=path, format=form))


def test_a_window_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n10,2,2\n19.5,3,3\n20,4,4\n")
    source = TraceSource(path=tmp_path / "trace", format=TraceFormat.CSV, from_s=10, duration_s=10)
    trace = read_trace(source)
    assert (times_s(trace), trace.prompt_tokens.tolist()) == ([0.0, 9.5], [2, 3])


@pytest.mark.parametrize(("from_s", "dropped"), [(0, 3), (10, 2), (15, 1), (20, 0)])
def test_a_window_counts_only_its_own_rows_without_output(tmp_path: Path, from_s: int, dropped: int) -> None:
    rows = ("0,1,0", "1,1,1", "10,2,0", "12,2,2", "16,3,0", "18,3,3", "20,4,4", "21,4,0")
    (tmp_path / "trace").write_text("\n".join(("arrival_s,input_tokens,output_tokens", *rows)))
    source = TraceSource(
        path=tmp_path / "trace", format=TraceFormat.CSV, from_s=from_s, duration_s=20 - from_s or 1
    )
    assert read_trace(source).zero_output_dropped == dropped


def test_an_empty_window_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    source = TraceSource(path=tmp_path / "trace", format=TraceFormat.CSV, from_s=10, duration_s=5)
    with pytest.raises(InvalidValueError, match=r"no row from 10 s for 5 s'; expected .* it ends at 0 s"):
        read_trace(source)


def test_a_window_needs_times(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(LENGTHS)
    source = TraceSource(path=tmp_path / "trace", format=TraceFormat.LENGTHS, from_s=10)
    with pytest.raises(InvalidValueError, match="a trace without times"):
        read_trace(source)
