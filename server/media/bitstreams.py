"""The few bits of coded pictures that containers do not tell."""


def is_hidden_picture(codec: str, packet: memoryview) -> bool:
    """Returns whether a packet holds only pictures that are never shown by themselves.

    VP8 and VP9 encoders send such reference pictures in packets with a time of their own.

    Args:
        codec: decoder name.
        packet: coded data, not empty.
    """
    if codec == "vp8":
        return not packet[0] & 0x10  # RFC 6386, section 9.1: show_frame
    if codec == "vp9":
        return not _is_vp9_superframe(packet) and _is_hidden_vp9_frame(packet[0])
    return False


def _is_vp9_superframe(packet: memoryview) -> bool:
    """Returns whether several frames are packed together; the last one of them is shown."""
    marker = packet[-1]
    if marker & 0xE0 != 0xC0:
        return False
    num_frames = (marker & 7) + 1
    bytes_per_size = (marker >> 3 & 3) + 1
    index_bytes = 2 + num_frames * bytes_per_size
    return len(packet) >= index_bytes and packet[-index_bytes] == marker


def _is_hidden_vp9_frame(header: int) -> bool:
    # VP9 specification, section 6.2: frame_marker(2), profile(2), reserved(1) in profile 3 only,
    # show_existing_frame(1), frame_type(1), show_frame(1); most significant bit first.
    is_profile_3 = header & 0x30 == 0x30
    show_existing_frame = header & (0x04 if is_profile_3 else 0x08)
    show_frame = header & (0x01 if is_profile_3 else 0x02)
    return not show_existing_frame and not show_frame
