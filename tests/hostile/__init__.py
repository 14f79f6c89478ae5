"""Bytes that no well-meaning client sends, with what must come of each; and the means to send them."""
