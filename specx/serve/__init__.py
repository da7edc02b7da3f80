"""The parts of an HTTP server with OpenAI's interface: one session, many clients.

`wire` reads requests, `engine` answers them one after another, `answers` writes what clients see.
"""
