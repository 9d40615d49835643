"""Files that tell a player to open something else. Nothing else is opened."""

import asyncio

import pytest

from server.errors import InvalidVideo
from server.media.memoryfile import MemoryFile
from tests.clips.counter import ClipRecipe

pytestmark = pytest.mark.anyio

# security.md, A20 to A25. URL is a listener of this test, FILE a video that exists.
FILES = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nURL/a.ts\n#EXT-X-ENDLIST\n",
    "hls of a file": "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nfile://FILE\n#EXT-X-ENDLIST\n",
    "hls of playlists": "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nURL/b.m3u8\n",
    "ffconcat": "ffconcat version 1.0\nfile URL/a.mp4\n",
    "ffconcat of a file": "ffconcat version 1.0\nfile FILE\n",
    "sdp": "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nc=IN IP4 127.0.0.1\r\nm=video PORT RTP/AVP 96\r\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period>'
    "<BaseURL>URL/</BaseURL></Period></MPD>",
    "asx": '<asx version="3.0"><entry><ref href="URL/a.mp4"/></entry></asx>',
    "rtsp text": "RTSPtextRTSP://127.0.0.1:PORT/a\r\n",
    "reference": "[Reference]\r\nRef1=URL/a.asf\r\n",
}


@pytest.mark.parametrize("name", FILES)
async def test_a_file_that_points_elsewhere_is_refused_and_not_followed(name, make_pool, tmp_path):
    calls = []

    async def listen(reader, writer):
        calls.append(1)
        writer.close()

    video = tmp_path / "a.mp4"
    video.write_bytes(ClipRecipe(num_frames=4).encode())
    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = str(listener.sockets[0].getsockname()[1])
    text = FILES[name].replace("URL", f"http://127.0.0.1:{port}").replace("PORT", port)
    source = text.replace("FILE", str(video)).encode()
    with pytest.raises(InvalidVideo) as caught:
        async with make_pool().open(MemoryFile.of(source)) as opened:
            await opened.probe()
    listener.close()
    await listener.wait_closed()
    assert caught.value.code in ("invalid_video", "unsupported_container")
    assert calls == []
