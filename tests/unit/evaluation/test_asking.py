"""One question over real HTTP: what is sent, what is kept of the answer, and what goes wrong."""

import openai
import pytest

from server.evaluation.asking import Asker, Asking, ServerGone, free_box
from server.evaluation.questions import load_questions
from tests.unit.evaluation.conftest import MP4, item
from tests.unit.evaluation.fakeserver import Reply, running

pytestmark = pytest.mark.anyio


@pytest.fixture
def waits():
    """How long was waited before each further attempt."""
    return []


@pytest.fixture
async def ask(fake, write_set, waits):
    """Returns a function that asks the first item of a set at a rate."""

    async def sleep(seconds):
        waits.append(seconds)

    clients = []

    async def asked(rate=0.5, *lines, **asking):
        questions = load_questions(write_set(*(lines or [item(1)])))
        clients.append(openai.AsyncOpenAI(base_url=fake.base_url, api_key="key", max_retries=0))
        asker = Asker(clients[-1], questions, Asking("tiny", **asking), sleep)
        return await asker.ask(questions.items[0], rate)

    yield asked
    for client in clients:
        await client.close()


def in_turn(*replies):
    left = list(replies)
    return lambda asked: left.pop(0)


async def test_an_answer_is_kept_with_its_times_and_tokens(fake, ask):
    fake.reply = lambda asked: Reply("A1")

    answer = await ask(0.25, max_tokens=7)

    assert (answer.text, answer.is_right, answer.error, answer.num_retries) == ("A1", True, None, 0)
    assert answer.time_to_first_token_ms == 85
    assert answer.stages_ms == {"decode": 10, "prefill": 75}
    assert (answer.prompt_tokens, answer.video_tokens, answer.video_tokens_before) == (80, 60, 80)
    assert answer.cached_tokens == 0
    (body,) = fake.bodies
    assert (body["max_tokens"], body["temperature"], body["stream"]) == (7, 0, True)
    assert body["video_pruning_rate"] == 0.25
    assert fake.keys == {"Bearer key"}


async def test_the_client_measures_from_sending_to_the_first_text(fake, ask):
    fake.has_metrics = False
    fake.reply = in_turn(Reply("?"), Reply(""))

    answer, empty = await ask(None), await ask(None)

    assert answer.time_to_first_token_ms is None
    assert answer.client_time_to_first_token_ms > 0
    assert answer.is_right is False
    assert "video_pruning_rate" not in fake.bodies[0]
    assert (empty.text, empty.client_time_to_first_token_ms) == ("", None)


async def test_a_cold_clip_is_the_same_video_in_other_bytes_each_time(fake, ask):
    answers = [await ask(), await ask()]
    warm = await ask(is_cold=False)

    original = MP4 + b"v1.mp4"
    sent = [asked.video_bytes for asked in fake.asked]
    assert all(video[: len(original)] == original for video in sent)
    assert {video[len(original) :][:8] for video in sent[:2]} == {b"\0\0\0\x18free"}
    assert sent[0] != sent[1]
    assert sent[2] == original
    assert [answer.is_cold for answer in [*answers, warm]] == [True, True, False]


def test_a_free_box_tells_its_length():
    assert free_box(b"abc") == b"\0\0\0\x0bfreeabc"


async def test_what_is_no_mp4_and_what_is_a_url_is_sent_as_it_is(fake, ask, tmp_path):
    url = "https://example.com/a.mp4"
    by_url = await ask(0.5, item(1, video=url))
    path = tmp_path / "a.webm"
    line = '{"id": "i", "video": "a.webm", "question": "Q", "answers": ["A"], "kind": "k"}'
    path.write_bytes(b"\x1a\x45\xdf\xa3webm")
    by_file = await ask(0.5, line)

    assert fake.asked[0].video == url
    assert fake.asked[1].video.startswith("data:video/webm;base64,")
    assert fake.asked[1].video_bytes == path.read_bytes()
    assert not by_url.is_cold
    assert not by_file.is_cold


async def test_a_busy_server_is_asked_again_when_it_says(fake, ask, waits):
    busy = {"status": 503, "message": "full"}
    fake.reply = in_turn(
        Reply(**busy, headers={"retry-after": "7"}),
        Reply(**busy, headers={"retry-after": "100000"}),
        Reply(status=429, headers={"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}),
        Reply(status=502),
        Reply("A1"),
    )

    answer = await ask()

    assert (answer.is_right, answer.num_retries) == (True, 4)
    assert waits == [7, 60, 2, 4]


async def test_a_server_that_stays_busy_is_an_error_to_ask_again(fake, ask, waits):
    fake.reply = lambda asked: Reply(status=503, message="full", headers={"retry-after": "1"})

    answer = await ask()

    assert (answer.status, answer.is_right, answer.is_final) == (503, None, False)
    assert "full" in answer.error
    assert waits == [1] * 8


@pytest.mark.parametrize(
    ("status", "headers"), [(400, {}), (413, {}), (500, {}), (503, {"x-should-retry": "false"})]
)
async def test_a_refusal_is_an_error_at_once_and_no_wrong_answer(fake, ask, waits, status, headers):
    fake.reply = lambda asked: Reply(status=status, message="too long", headers=headers)

    answer = await ask()

    assert (answer.status, answer.text, answer.is_right) == (status, None, None)
    assert "too long" in answer.error
    assert waits == []
    assert answer.is_final is (status < 500)


@pytest.mark.parametrize("ending", ["silent", "error"])
async def test_half_an_answer_is_an_error_to_ask_again(fake, ask, ending):
    fake.reply = lambda asked: Reply("A1", ending=ending)

    answer = await ask()

    assert answer.error.startswith("the answer broke off: ")
    assert (answer.is_right, answer.is_final) == (None, False)


@pytest.mark.parametrize(
    "chunk", [{"usage": {"prompt_tokens": "many"}}, {"choices": None}, {"choices": [{"index": 0}]}]
)
async def test_what_is_no_answer_of_the_api_is_an_error(fake, ask, chunk):
    fake._metrics = lambda rate: chunk
    fake._usage = lambda rate: None

    answer = await ask()

    assert answer.error.startswith("the answer is none of OpenAI's API: ")
    assert answer.is_final is False


async def test_a_video_that_has_gone_is_an_error(ask, write_set, tmp_path, fake):
    questions = load_questions(write_set(item(1)))
    (tmp_path / "v1.mp4").unlink()
    async with openai.AsyncOpenAI(base_url=fake.base_url, api_key="key") as client:
        answer = await Asker(client, questions, Asking("tiny")).ask(questions.items[0], 0.5)
    assert answer.error.startswith("can not read the video")


@pytest.mark.parametrize(
    "metrics",
    [
        {"time_to_first_token_ms": "soon"},
        {"time_to_first_token_ms": float("nan")},
        {"time_to_first_token_ms": 1.0, "stages_ms": {"decode": float("inf")}},
        ["fast"],
    ],
)
async def test_metrics_of_other_servers_are_not_taken_for_ours(fake, ask, metrics):
    fake._metrics = lambda rate: {"metrics": metrics}

    answer = await ask()

    assert (answer.error, answer.time_to_first_token_ms) == (None, None)
    assert answer.video_tokens == 40  # of the usage


async def test_nobody_at_the_address_ends_the_run(write_set, waits, fake):
    async def sleep(seconds):
        waits.append(seconds)

    with running(type(fake)()) as other:
        url = other.base_url
    questions = load_questions(write_set(item(1)))
    async with openai.AsyncOpenAI(base_url=url, api_key="key", max_retries=0) as client:
        asker = Asker(client, questions, Asking("tiny"), sleep)
        with pytest.raises(ServerGone):
            await asker.ask(questions.items[0], 0.5)
    assert waits == [0.5, 1, 2, 4]
