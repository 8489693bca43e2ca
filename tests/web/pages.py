"""An app on a real port."""

import threading
from contextlib import contextmanager

from suprank.web.serving import bind_socket, make_server, server_url


@contextmanager
def serving(app):
    """Serve an app in a thread, and yield its address."""
    listening = bind_socket("127.0.0.1", 0)
    listening.listen(128)
    server = make_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield server_url(listening, "127.0.0.1")
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
