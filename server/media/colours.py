"""Colours that a plain screen can not show as they are, brought to SDR BT.709.

What a player does on such a screen: undo the transfer curve, which gives light; express it in the
primaries of BT.709; press highlights into what the screen can do; apply the curve of the screen.

The brightness of HDR white is that of BT.2408, 203 cd/m2, and it becomes the screen's white, so mid
tones look as bright as in SDR. Highlights above are pressed together by the curve of BT.2390, for a
source of 1000 cd/m2; the same for every frame, so that brightness does not jump. What the file says
about its mastering display is often missing or wrong, and is not used.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Light = NDArray[np.float32]
Transfer = Literal["pq", "hlg", "sdr"]
Primaries = Literal["bt709", "bt2020", "p3"]

_WHITE_NITS = 203.0
_PEAK_NITS = 1000.0
_SCREEN_GAMMA = 2.4  # BT.1886
_TO_BT709 = {
    # BT.2087, and the same derivation for Display P3.
    "bt2020": ((1.6605, -0.5876, -0.0728), (-0.1246, 1.1329, -0.0083), (-0.0182, -0.1006, 1.1187)),
    "p3": ((1.2249, -0.2247, 0.0), (-0.0420, 1.0419, 0.0), (-0.0197, -0.0786, 1.0979)),
}
_BT2020_LUMA = np.array([0.2627, 0.6780, 0.0593], np.float32)


@dataclass(frozen=True, slots=True)
class WideColours:
    """How RGB values stand for light that BT.709 has no values for."""

    transfer: Transfer
    primaries: Primaries

    def to_sdr(self, rgb: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Returns the picture for a plain screen.

        Args:
            rgb: coded values from 0 to 1, shape (height, width, 3).
        """
        light = self._light(np.clip(rgb, 0, 1, dtype=np.float32))
        if self.primaries != "bt709":
            light = light @ np.array(_TO_BT709[self.primaries], np.float32).T
        light = np.maximum(light, 0)
        if self.transfer != "sdr":
            light = _without_highlights(light)
        signal = np.minimum(light, 1) ** np.float32(1 / _SCREEN_GAMMA)
        return (signal * 255 + 0.5).astype(np.uint8)

    def _light(self, rgb: Light) -> Light:
        """Returns light: in cd/m2 for HDR, relative to white for SDR."""
        if self.transfer == "pq":
            return _pq_to_nits(rgb)
        if self.transfer == "hlg":
            return _hlg_to_nits(rgb)
        return np.asarray(rgb ** np.float32(_SCREEN_GAMMA), np.float32)


def _without_highlights(nits: Light) -> Light:
    """Returns light from 0 to 1, where 1 is the screen's white; hues stay."""
    strongest = np.maximum(nits.max(axis=-1, keepdims=True), np.float32(1e-4))
    pressed = nits * (_tone_mapped(strongest) / strongest)
    return np.asarray(pressed / np.float32(_WHITE_NITS), np.float32)


def _tone_mapped(nits: Light) -> Light:
    """Returns light of [0, peak] as light of [0, white]: Report BT.2390, section 5.4.1."""
    peak, white = (_nits_to_pq(np.array([n], np.float32)) for n in (_PEAK_NITS, _WHITE_NITS))
    highest = white / peak
    knee = 1.5 * highest - 0.5
    level = np.minimum(_nits_to_pq(nits) / peak, 1)
    t = np.maximum(level - knee, 0) / (1 - knee)
    spline = (
        (2 * t**3 - 3 * t**2 + 1) * knee
        + (t**3 - 2 * t**2 + t) * (1 - knee)
        + (3 * t**2 - 2 * t**3) * highest
    )
    return _pq_to_nits(np.where(level < knee, level, spline) * peak)


# SMPTE ST 2084
_M1, _M2 = 2610 / 16384, 2523 / 32
_C1, _C2, _C3 = 3424 / 4096, 2413 / 128, 2392 / 128
_PQ_NITS = 10_000.0


def _pq_to_nits(signal: Light) -> Light:
    root = signal ** np.float32(1 / _M2)
    light = np.maximum(root - _C1, 0) / (_C2 - _C3 * root)
    return np.asarray(_PQ_NITS * light ** np.float32(1 / _M1), np.float32)


def _nits_to_pq(nits: Light) -> Light:
    power = (nits / np.float32(_PQ_NITS)) ** np.float32(_M1)
    return np.asarray(((_C1 + _C2 * power) / (1 + _C3 * power)) ** np.float32(_M2), np.float32)


def _hlg_to_nits(signal: Light) -> Light:
    """BT.2100: the inverse of the camera's curve, then what a screen of 1000 cd/m2 makes of it."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12)
    luminance = (scene @ _BT2020_LUMA)[..., None]
    return np.asarray(_PEAK_NITS * np.maximum(luminance, 1e-6) ** 0.2 * scene, np.float32)
