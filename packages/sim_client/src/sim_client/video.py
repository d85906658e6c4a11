"""Rollout videos: h264 by PyAV, one encoder thread, so that equal frames give equal files."""

from pathlib import Path

import av
import numpy as np
from av.container import OutputContainer
from av.video.stream import VideoStream
from jaxtyping import UInt8

FPS = 20
CRF = "23"  # as RoboCasa's dataset writer: h264, yuv420p, crf 23, 20 fps


class VideoWriter:
    """Writes frames to `path`: there from the first frame on, complete after `close`."""

    def __init__(self, path: Path, *, fps: int = FPS) -> None:
        """Remember `path`; nothing is written yet."""
        self._path = path
        self._fps = fps
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None

    def add(self, frame: UInt8[np.ndarray, "h w 3"]) -> None:
        """Append one RGB frame, shape (h, w, 3), uint8; h and w even, the same in all frames."""
        if self._container is None or self._stream is None:
            self._container, self._stream = self._open(frame.shape[1], frame.shape[0])
        for packet in self._stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
            self._container.mux(packet)

    def close(self) -> None:
        """Flush the encoder and finish the file."""
        if self._container is not None and self._stream is not None:
            for packet in self._stream.encode(None):
                self._container.mux(packet)
            self._container.close()
            self._container = self._stream = None

    def _open(self, width: int, height: int) -> tuple[OutputContainer, VideoStream]:
        container = av.open(str(self._path), "w", format="mp4")
        return container, new_stream(container, width, height, fps=self._fps)


def new_stream(container: OutputContainer, width: int, height: int, *, fps: int) -> VideoStream:
    """Add an h264 stream whose bytes depend on the frames alone.

    Args:
        container: Where the stream goes.
        width: Pixels, even.
        height: Pixels, even.
        fps: Frames per second.
    """
    stream = container.add_stream("libx264", rate=fps)
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    stream.options = {"crf": CRF, "preset": "medium"}
    # libx264's output depends on the number of threads, whose default is the number of cores
    stream.codec_context.thread_count = 1
    return stream
