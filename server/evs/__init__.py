"""Efficient Video Sampling at a rate chosen per video, as a vLLM plugin.

Installed, it is found by every vLLM process through the ``vllm.general_plugins`` entry point; see
``server.evs.plugin``. Empty on purpose: importing it must cost nothing.
"""
