from vllm.multimodal.inputs import PlaceholderRange

from server.engine.serving import video_token_counts

TEXT, VIDEO = 1, 7


def test_only_video_tokens_count_of_what_stands_for_a_video():
    prompt = [TEXT, TEXT, VIDEO, VIDEO, TEXT, TEXT, VIDEO, TEXT, VIDEO, TEXT]
    places = [PlaceholderRange(offset=1, length=6), PlaceholderRange(offset=7, length=2)]
    rendered = {"prompt_token_ids": prompt, "mm_placeholders": {"video": places}}

    assert video_token_counts(rendered, VIDEO) == (3, 1)


def test_without_a_known_video_token_everything_embedded_counts():
    rendered = {
        "prompt_token_ids": [TEXT] * 9,
        "mm_placeholders": {"video": [PlaceholderRange(offset=1, length=6)]},
    }

    assert video_token_counts(rendered, None) == (6,)


def test_a_prompt_without_videos_has_no_counts():
    assert video_token_counts({"prompt_token_ids": [TEXT]}, VIDEO) == ()
