"""Right answers and time to first token by pruning rate, asked of a running server over HTTP.

``questions`` reads a set, ``asking`` asks one question, ``answers`` keeps what came, ``run`` goes
through the set, ``summary`` makes numbers of it, ``report`` and ``plot`` show them.
"""
