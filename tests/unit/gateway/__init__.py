"""The HTTP edge, piece by piece, without sockets."""
