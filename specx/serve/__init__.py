"""An HTTP server with OpenAI's interface: one session, many clients; needs the extra ``serve``.

`wire` reads requests, `engine` answers them one after another, `answers` writes what clients see,
`guard` refuses what must not get in, `app` puts these together and `running` keeps them up.
"""
