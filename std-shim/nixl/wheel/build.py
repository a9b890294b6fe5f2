#!/usr/bin/env python3
"""Makes the wheel polyrail-nixl of a plugin that was built, and prints where it is.

    std-shim/nixl/wheel/build.py libplugin_POLYRAIL.so FOLDER

Needs only Python and binutils. A wheel is a zip file whose format is specified
(https://packaging.python.org/en/latest/specifications/binary-distribution-format/). The same files make the same
wheel, byte by byte; SOURCE_DATE_EPOCH is the time of all files in it.
"""

import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from polyrail_nixl import NIXLS  # noqa: E402

# The first release of glibc with which any distribution has a libstdc++ of this GLIBCXX version, the last number.
GLIBC_WITH_LIBSTDCXX = {25: 28, 28: 31, 29: 34, 30: 35, 33: 39}


def oldest_glibc(plugin):
    """Returns the minor version of the oldest glibc 2 on whose distributions the plugin loads."""
    needs = subprocess.run(["objdump", "-p", plugin], check=True, capture_output=True, text=True).stdout
    glibc = max(int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", needs))
    libstdcxx = max((int(patch) for patch in re.findall(r"\bGLIBCXX_3\.4\.(\d+)", needs)), default=0)
    beside = [with_it for newest, with_it in GLIBC_WITH_LIBSTDCXX.items() if newest >= libstdcxx]
    if not beside:
        sys.exit(f"{plugin} needs GLIBCXX_3.4.{libstdcxx}, and no distribution is known that has it")
    return max(glibc, min(beside))


def main(plugin, folder):
    manifest = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"$', manifest, re.MULTILINE)[1]
    system = f"manylinux_2_{oldest_glibc(plugin)}_{platform.machine()}"
    tag = f"py3-none-{system}"
    info = f"polyrail_nixl-{version}.dist-info"
    readme = (HERE.parent / "README.md").read_text()
    files = {f"polyrail_nixl/{path.name}": path.read_bytes() for path in sorted(HERE.glob("polyrail_nixl/*.py"))}
    for nixl in NIXLS:
        files[f".{nixl}.mesonpy.libs/plugins/libplugin_POLYRAIL.so"] = Path(plugin).read_bytes()
    for license in ("LICENSE-APACHE", "LICENSE-MIT"):
        files[f"{info}/licenses/{license}"] = (ROOT / license).read_bytes()
    files[f"{info}/METADATA"] = (
        "Metadata-Version: 2.4\nName: polyrail-nixl\n"
        f"Version: {version}\n"
        "Summary: The backend POLYRAIL of NIXL: all rails of a machine at once\n"
        "License-Expression: Apache-2.0 OR MIT\n"
        "License-File: LICENSE-APACHE\nLicense-File: LICENSE-MIT\n"
        "Requires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n"
        f"{readme}"
    ).encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: polyrail\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    record = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}\n")
    record.append(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = "".join(record).encode()

    # A zip file cannot be older.
    made = max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800)
    wheel = Path(folder) / f"polyrail_nixl-{version}-{tag}.whl"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, time.gmtime(made)[:6])
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    print(wheel)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
