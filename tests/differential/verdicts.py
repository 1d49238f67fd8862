"""What uvicorn's two HTTP readers make of bytes. One case a line of stdin, in hex; one line out:
`h11 END BODY,BODY,... httptools END BODY,...`, each BODY in hex behind a `=`. END is `whole` (all
bytes were whole requests), `part` (more are awaited), `refused`, or `closed` (no more wanted).
"""
import sys

import h11
import httptools


def read_h11(data):
    conn, bodies, body = h11.Connection(h11.SERVER), [], None
    try:
        conn.receive_data(data)
        while True:
            event = conn.next_event()
            if isinstance(event, h11.Request):
                body = b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                bodies.append(body)
                body = None
                conn.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                conn.send(h11.EndOfMessage())
                if conn.our_state is not h11.DONE or conn.their_state is not h11.DONE:
                    return ("closed" if conn.trailing_data[0] else "whole"), bodies
                conn.start_next_cycle()
            elif event is h11.NEED_DATA:
                idle = body is None and not conn.trailing_data[0]
                return ("whole" if idle else "part"), bodies
            else:
                return "closed", bodies
    except h11.RemoteProtocolError:
        return "refused", bodies


class Messages:
    def __init__(self):
        self.bodies, self.body = [], None

    def on_message_begin(self):
        self.body = b""

    def on_body(self, data):
        self.body += data

    def on_message_complete(self):
        self.bodies.append(self.body)
        self.body = None


def read_httptools(data):
    messages = Messages()
    try:
        httptools.HttpRequestParser(messages).feed_data(data)
    except httptools.HttpParserError:
        return "refused", messages.bodies
    except httptools.HttpParserUpgrade:
        return "closed", messages.bodies
    return ("whole" if messages.body is None else "part"), messages.bodies


def main():
    for line in sys.stdin:
        data = bytes.fromhex(line)
        words = []
        for name, read in (("h11", read_h11), ("httptools", read_httptools)):
            end, bodies = read(data)
            words += [name, end, ",".join("=" + body.hex() for body in bodies) or "-"]
        print(*words)


main()
