"""Passes a camera frame once through the video codec that the training data went through.

RoboCasa's datasets store their cameras as h264 (libx264, yuv420p, crf 23, 20 frames per second;
robocasa utils/lerobot_utils.py, be22d659), so a policy trained on them never saw a raw rendering.
Every frame is a clip of its own: what comes out is a function of the frame, not of its neighbours.
"""

import io

import av
import numpy as np
from jaxtyping import UInt8

from sim_client.video import CRF, FPS, new_stream


def roundtrip(frame: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w 3"]:
    """Encode one RGB frame as an mp4 clip and decode it again.

    Args:
        frame: Upright RGB, shape (h, w, 3), uint8, h and w even.

    Returns:
        A new array of the same shape: mean error about 3 grey levels, the same bits in every
        process with the same PyAV.
    """
    clip = io.BytesIO()
    with av.open(clip, "w", format="mp4") as container:
        stream = new_stream(container, frame.shape[1], frame.shape[0], fps=FPS)
        for picture in (av.VideoFrame.from_ndarray(frame, format="rgb24"), None):
            for packet in stream.encode(picture):
                container.mux(packet)
    clip.seek(0)
    with av.open(clip, "r", format="mp4") as container:
        container.streams.video[0].codec_context.thread_count = 1
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


SETTINGS = f"libx264 preset medium crf {CRF} yuv420p {FPS} fps one thread, one clip per frame"
