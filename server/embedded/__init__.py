"""The embedded model: a tiny Qwen3-VL that truly sees synthetic clips, and how it is trained.

``scenes`` and ``questions`` make the world, ``vocabulary`` and ``architecture`` the checkpoint,
``batches`` and ``passes`` the training, ``scoring`` tells how well it went. See
``docs/embedded-model.md``. Empty on purpose: importing it must cost nothing.
"""
