"""A TCP relay in front of an agent's listener, which can lose what the agent sends."""

import re
import socket
import struct
import threading


class Relay:
    """Relays the links of agents that loaded `metadata` of the relay instead of the agent's own."""

    def __init__(self, metadata):
        (target,) = set(re.findall(rb"127\.0\.0\.1:(\d{5})", metadata))
        self.target = int(target)
        self.lost = None
        self.pairs = []
        self.lock = threading.Lock()
        # The metadata states its length, so the relay's port must have as many digits.
        while True:
            self.listener = socket.create_server(("127.0.0.1", 0))
            port = b"%d" % self.listener.getsockname()[1]
            if len(port) == len(target):
                break
            self.listener.close()
        self.metadata = metadata.replace(b"127.0.0.1:" + target, b"127.0.0.1:" + port)
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self):
        """From now on nothing that the agent sends arrives."""
        self.lost = b""

    def cut(self):
        """Breaks all links with a reset. The next ones lose nothing."""
        with self.lock:
            self.lost = None
            for pair in self.pairs:
                for end in pair:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    try:
                        # Wakes the thread that reads, whose call keeps the socket open.
                        end.shutdown(socket.SHUT_RD)
                    except OSError:
                        pass
                    end.close()
            self.pairs.clear()

    def close(self):
        # Wakes the thread that accepts.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            pair = near, far
            with self.lock:
                self.pairs.append(pair)
            for is_from_agent in (False, True):
                threading.Thread(target=self._carry, args=(pair, is_from_agent), daemon=True).start()

    def _carry(self, pair, is_from_agent):
        source, sink = reversed(pair) if is_from_agent else pair
        try:
            while data := source.recv(65536):
                with self.lock:
                    if is_from_agent and self.lost is not None:
                        self.lost += data
                        continue
                sink.sendall(data)
            with self.lock:
                # The end of a link that was cut is no end of what its source sends.
                if pair in self.pairs:
                    sink.shutdown(socket.SHUT_WR)
        except OSError:
            # The links were cut.
            pass
