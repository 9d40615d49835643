import numpy as np

from server.engine.base import PreparedVideo
from server.engine.vllm_engine import pruning_kwargs
from server.media.clip import VideoClip


def test_every_video_gets_its_own_rate_and_method():
    clip = VideoClip(np.zeros((1, 4, 4, 3), np.uint8), (0.0,), 1.0, b"key")
    videos = [PreparedVideo(clip, 0.5, "evs"), PreparedVideo(clip, 0.0, "vidcom2")]

    assert pruning_kwargs(videos) == {
        "video_pruning_rate": [0.5, 0.0],
        "video_pruning_method": ["evs", "vidcom2"],
    }
