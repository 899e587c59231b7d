"""Run moto with its requests one at a time: it checks the condition of a write and stores the object in two steps.

python atomic_moto.py -H 127.0.0.1 -p PORT
"""

from __future__ import annotations

import io
import threading

from moto import server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication


class OneAtATime(DomainDispatcherApplication):
    turn = threading.Lock()

    def __call__(self, environ, start_response):
        # A request that arrives slowly, or never whole, keeps no others waiting.
        if length := int(environ.get("CONTENT_LENGTH") or 0):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self.turn:
            return super().__call__(environ, start_response)


if __name__ == "__main__":
    server.DomainDispatcherApplication = OneAtATime
    server.main()
