"""The program of the README, as it stands there, in two processes over TCP."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest

README = pathlib.Path(__file__).parent.parent / "README.md"


def listens(port):
    with socket.socket() as connected:
        return connected.connect_ex(("127.0.0.1", port)) == 0


class Readme(unittest.TestCase):
    def test_the_program_moves_memory_between_two_processes(self):
        (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = str(chosen.getsockname()[1])
        self.assertEqual(program.count("5555"), 3)
        with tempfile.TemporaryDirectory() as folder:
            move = pathlib.Path(folder) / "move.py"
            move.write_text(program.replace("5555", port))
            # What the README exports, and nothing else for the plugin.
            settings = {name: value for name, value in os.environ.items() if not name.startswith("POLYRAIL_")}
            settings |= {"POLYRAIL_BACKEND": "tcp", "POLYRAIL_DEVICES": "lo", "POLYRAIL_INTERFACE": "lo"}
            run = [sys.executable, str(move)]
            pipes = {"stdout": subprocess.PIPE, "text": True, "env": settings}
            server = subprocess.Popen([*run, "server", "127.0.0.1"], **pipes)
            try:
                # Its listener may not be there at once, and NIXL tries only once to fetch metadata.
                while server.poll() is None and not listens(int(port)):
                    time.sleep(0.05)
                client = subprocess.run([*run, "client", "127.0.0.1"], timeout=120, **pipes)
                told, _ = server.communicate(timeout=120)
            finally:
                server.kill()
                server.wait()
        self.assertEqual((client.returncode, server.returncode), (0, 0))
        self.assertEqual(client.stdout.splitlines()[-1], "DONE True")
        self.assertEqual(told.splitlines()[-1], "the client has read it")


if __name__ == "__main__":
    unittest.main()
