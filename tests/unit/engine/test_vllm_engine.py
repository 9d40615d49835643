import math
from types import SimpleNamespace

import numpy as np

from server.engine.base import PreparedVideo
from server.engine.vllm_engine import max_video_seconds, pruning_kwargs
from server.media.clip import VideoClip


def test_every_video_gets_its_own_rate_and_method():
    clip = VideoClip(np.zeros((1, 4, 4, 3), np.uint8), (0.0,), 1.0, b"key")
    videos = [PreparedVideo(clip, 0.5, "evs"), PreparedVideo(clip, 0.0, "vidcom2")]

    assert pruning_kwargs(videos) == {
        "video_pruning_rate": [0.5, 0.0],
        "video_pruning_method": ["evs", "vidcom2"],
    }


def model_config(**vision):
    return SimpleNamespace(
        hf_config=SimpleNamespace(vision_config=SimpleNamespace(**vision)),
        hf_text_config=SimpleNamespace(max_position_embeddings=1000),
        max_model_len=500,
    )


def test_time_is_limited_where_positions_count_it():
    assert max_video_seconds(model_config(tokens_per_second=2)) == 1500.0
    assert max_video_seconds(model_config()) == math.inf
