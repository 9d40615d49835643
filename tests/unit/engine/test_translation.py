import pytest
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from server.engine.translation import parsed_event, raised_error, reported_error
from server.errors import (
    ContextLengthExceeded,
    EngineUnavailable,
    InternalFault,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
)


def report(code, message="m", param=None):
    return {"code": code, "message": message, "type": "t", "param": param}


@pytest.mark.parametrize(
    ("error", "expected", "param"),
    [
        (report(400, "temperature is wrong", "temperature"), InvalidRequest, "temperature"),
        (report(404), ModelNotFound, "model"),
        (report(429), Overloaded, None),
        (report(503), Overloaded, None),
        (report(500), InternalFault, None),
        (report(400, "maximum context length is 5"), ContextLengthExceeded, "messages"),
        (report(400, "x requires --tool-call-parser to be set"), InvalidRequest, "tool_choice"),
    ],
)
def test_what_vllm_reports_is_told_in_our_words(error, expected, param):
    found = reported_error(error)

    assert type(found) is expected
    assert getattr(found, "param", None) == param
    assert "--" not in str(found)


def test_what_vllm_raises_is_told_in_our_words():
    wrong = raised_error(VLLMValidationError("top_p is 7", parameter="top_p", value=7))
    too_big = EngineGenerateError()
    too_big.__cause__ = OverflowError("can't serialize ints")

    assert (type(wrong), wrong.param) == (InvalidRequest, "top_p")
    assert type(raised_error(EngineDeadError())) is EngineUnavailable
    assert type(raised_error(too_big)) is InvalidRequest
    assert type(raised_error(EngineGenerateError())) is InternalFault
    assert raised_error(wrong) is wrong


def test_events_are_parsed_and_the_closing_one_is_none():
    assert parsed_event('data: {"id":"a"}\n\n') == {"id": "a"}
    assert parsed_event("data: [DONE]\n\n") is None
    with pytest.raises(InternalFault):
        parsed_event('data: {"error":{"code":500,"message":"x","type":"t","param":null}}\n\n')
